// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file blocks.h
 * What the demo's peer writes and where: all of it follows from a seed.
 */
#ifndef PEERBUF_TOOLS_BLOCKS_H
#define PEERBUF_TOOLS_BLOCKS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace peerbuf::tools
{

/** A range of the region that is written at once. */
struct Block {
	static constexpr uint64_t least = 64 << 10;
	static constexpr uint64_t most = 1 << 20;

	uint64_t number = 0;
	uint64_t offset = 0;
	uint64_t length = 0;

	uint64_t end() const { return offset + length; }
	bool overlaps(const Block &other) const
	{
		return offset < other.end() && other.offset < end();
	}
};

/**
 * The buffers that a region of @p size, at least Block::most, is made of: a few small ones, which
 * move often, and the rest, which takes long to move. Each has at least Block::most bytes.
 */
std::vector<uint64_t> regionParts(uint64_t size);

/** One of a region's parts. */
struct PartAt {
	size_t index = 0;
	uint64_t offset = 0; /* in the part */
	uint64_t room = 0;   /* from there to its end */
};
/** @param offset less than all of them together. */
PartAt partAt(const std::vector<uint64_t> &parts, uint64_t offset);

/**
 * Blocks of every alignment in the parts of a region, which lie one behind the other; each is
 * inside one part. Small lengths are as frequent as large ones: every power of two has its share. A
 * value.
 */
class BlockSequence
{
public:
	/** @param parts each at least Block::most. */
	BlockSequence(uint64_t seed, std::vector<uint64_t> parts)
	    : seed_(seed),
	      parts_(std::move(parts))
	{
	}
	Block at(uint64_t number) const;

private:
	uint64_t seed_;
	std::vector<uint64_t> parts_;
};

/** Bytes [from, from + length) of block @p number. */
void fillBlock(uint64_t seed, uint64_t number, uint64_t from, uint8_t *data, size_t length);
/** The first of them that is not what fillBlock makes. */
std::optional<size_t> firstWrong(uint64_t seed, uint64_t number, uint64_t from, const uint8_t *data,
				 size_t length);

/** Which block was the last to write each byte of a region. */
class Written
{
public:
	struct Piece {
		uint64_t offset; /* in the region */
		uint64_t length;
		uint64_t number; /* of the block */
		uint64_t from;	 /* in the block */
	};

	void add(const Block &block);
	/** Forget a range: what is there is not known. */
	void remove(uint64_t offset, uint64_t end);
	/** In order of offset; none is longer than @p most. */
	std::vector<Piece> pieces(uint64_t most) const;

private:
	std::map<uint64_t, Piece> pieces_; /* by offset, disjoint */
};

} // namespace peerbuf::tools

#endif
