// SPDX-License-Identifier: BSD-3-Clause
#include "blocks.h"

#include <algorithm>
#include <cstring>

namespace peerbuf::tools
{

namespace
{

/** The finalizer of splitmix64: every bit of the input reaches every bit of the output. */
uint64_t mixed(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xBF58476D1CE4E5B9;
	x ^= x >> 27;
	x *= 0x94D049BB133111EB;
	return x ^ (x >> 31);
}

constexpr uint64_t step = 0x9E3779B97F4A7C15;

uint64_t blockKey(uint64_t seed, uint64_t number)
{
	return mixed(mixed(seed + step) ^ (number * step + 1));
}

uint64_t wordAt(uint64_t key, uint64_t at)
{
	return mixed(key + at / 8);
}

/** Bytes [from, from + length) of the pattern, all inside one word. */
void fillPart(uint64_t key, uint64_t from, uint8_t *data, size_t length)
{
	const uint64_t word = wordAt(key, from) >> (8 * (from % 8));
	if (length) /* else there may be no data */
		std::memcpy(data, &word, length);
}

/** As fillPart; the first byte of them that differs. */
std::optional<size_t> differsInPart(uint64_t key, uint64_t from, const uint8_t *data, size_t length)
{
	uint8_t bytes[8];
	fillPart(key, from, bytes, length);
	const auto at = std::mismatch(bytes, bytes + length, data).first - bytes;
	return static_cast<size_t>(at) < length ? std::optional(static_cast<size_t>(at))
						: std::nullopt;
}

/** How many of @p length bytes from @p from lie before the first whole word. */
size_t headOf(uint64_t from, size_t length)
{
	return std::min<size_t>((8 - from % 8) % 8, length);
}

} // namespace

std::vector<uint64_t> regionParts(uint64_t size)
{
	constexpr uint64_t fewest = 8; /* of the small size, that would fill the region */
	const uint64_t small = std::clamp(size / fewest, Block::most, Block::most) / 4096 * 4096;
	std::vector<uint64_t> parts;
	uint64_t left = size;
	while (parts.size() < fewest - 2 && left >= 2 * small) {
		parts.push_back(small);
		left -= small;
	}
	parts.push_back(left);
	return parts;
}

PartAt partAt(const std::vector<uint64_t> &parts, uint64_t offset)
{
	PartAt at;
	at.offset = offset;
	while (at.index + 1 < parts.size() && at.offset >= parts[at.index])
		at.offset -= parts[at.index++];
	at.room = parts[at.index] - at.offset;
	return at;
}

Block BlockSequence::at(uint64_t number) const
{
	const uint64_t key = blockKey(seed_, number);
	/* the last part is larger than the others, and has the share of three of them */
	const size_t part =
		std::min<size_t>(mixed(key ^ 3) % (parts_.size() + 2), parts_.size() - 1);
	const uint64_t shortest = Block::least << mixed(key ^ 4) % 4;
	Block block;
	block.number = number;
	block.length = std::min(shortest + mixed(key ^ 1) % (shortest + 1), Block::most);
	block.offset = mixed(key ^ 2) % (parts_[part] - block.length + 1);
	for (size_t i = 0; i < part; i++)
		block.offset += parts_[i];
	return block;
}

void fillBlock(uint64_t seed, uint64_t number, uint64_t from, uint8_t *data, size_t length)
{
	const uint64_t key = blockKey(seed, number);
	size_t at = headOf(from, length);
	fillPart(key, from, data, at);
	for (; length - at >= 8; at += 8) {
		const uint64_t word = wordAt(key, from + at);
		std::memcpy(data + at, &word, sizeof(word));
	}
	fillPart(key, from + at, data + at, length - at);
}

std::optional<size_t> firstWrong(uint64_t seed, uint64_t number, uint64_t from, const uint8_t *data,
				 size_t length)
{
	const uint64_t key = blockKey(seed, number);
	size_t at = headOf(from, length);
	if (const auto wrong = differsInPart(key, from, data, at))
		return wrong;
	for (; length - at >= 8; at += 8) {
		uint64_t word = 0;
		std::memcpy(&word, data + at, sizeof(word));
		if (word != wordAt(key, from + at))
			break; /* in these eight, or behind them all is left over */
	}
	const size_t rest = std::min<size_t>(length - at, 8);
	const auto wrong = differsInPart(key, from + at, data + at, rest);
	return wrong ? std::optional(at + *wrong) : std::nullopt;
}

void Written::remove(uint64_t offset, uint64_t end)
{
	auto it = pieces_.upper_bound(offset);
	if (it != pieces_.begin())
		--it;
	while (it != pieces_.end() && it->first < end) {
		const Piece piece = it->second;
		const uint64_t pieceEnd = piece.offset + piece.length;
		if (pieceEnd <= offset) {
			++it;
			continue;
		}
		it = pieces_.erase(it);
		if (piece.offset < offset)
			pieces_[piece.offset] = {piece.offset, offset - piece.offset, piece.number,
						 piece.from};
		if (pieceEnd > end) {
			pieces_[end] = {end, pieceEnd - end, piece.number,
					piece.from + (end - piece.offset)};
			return;
		}
	}
}

void Written::add(const Block &block)
{
	remove(block.offset, block.end());
	pieces_[block.offset] = {block.offset, block.length, block.number, 0};
}

std::vector<Written::Piece> Written::pieces(uint64_t most) const
{
	std::vector<Piece> all;
	for (const auto &[offset, piece] : pieces_)
		for (uint64_t at = 0; at < piece.length; at += most)
			all.push_back({offset + at, std::min(most, piece.length - at), piece.number,
				       piece.from + at});
	return all;
}

} // namespace peerbuf::tools
