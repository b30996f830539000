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

/** Call @p visit(position in data, 8 bytes, how many of them count) for the whole range. */
template <typename Visit>
void eachWord(uint64_t key, uint64_t from, size_t length, const Visit &visit)
{
	size_t done = 0;
	while (done < length) {
		const uint64_t at = from + done;
		const size_t skip = at % 8;
		const size_t n = std::min(8 - skip, length - done);
		const uint64_t word = mixed(key + at / 8) >> (8 * skip);
		if (!visit(done, word, n))
			return;
		done += n;
	}
}

} // namespace

Block BlockSequence::at(uint64_t number) const
{
	const uint64_t key = blockKey(seed_, number);
	const uint64_t longest = std::min(Block::most, size_);
	Block block;
	block.number = number;
	block.length = Block::least + mixed(key ^ 1) % (longest - Block::least + 1);
	block.offset = mixed(key ^ 2) % (size_ - block.length + 1);
	return block;
}

void fillBlock(uint64_t seed, uint64_t number, uint64_t from, uint8_t *data, size_t length)
{
	eachWord(blockKey(seed, number), from, length, [&](size_t at, uint64_t word, size_t n) {
		std::memcpy(data + at, &word, n);
		return true;
	});
}

std::optional<size_t> firstWrong(uint64_t seed, uint64_t number, uint64_t from, const uint8_t *data,
				 size_t length)
{
	std::optional<size_t> wrong;
	eachWord(blockKey(seed, number), from, length, [&](size_t at, uint64_t word, size_t n) {
		if (std::memcmp(data + at, &word, n) == 0)
			return true;
		const auto *bytes = reinterpret_cast<const uint8_t *>(&word);
		wrong = at + static_cast<size_t>(std::mismatch(bytes, bytes + n, data + at).first -
						 bytes);
		return false;
	});
	return wrong;
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
