// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tools/peerbuf/blocks.h"

namespace peerbuf::test
{
namespace
{

using namespace peerbuf::tools;

std::vector<uint8_t> bytes(uint64_t seed, uint64_t number, uint64_t from, size_t length)
{
	std::vector<uint8_t> data(length);
	fillBlock(seed, number, from, data.data(), length);
	return data;
}

TEST(RegionParts, GivenASizeThenItIsAllThereInPartsThatHoldTheLongestBlock)
{
	for (const uint64_t size :
	     {uint64_t{1} << 20, (uint64_t{1} << 20) + 1, uint64_t{2} << 20, uint64_t{5} << 20,
	      uint64_t{8} << 20, uint64_t{64} << 20, (uint64_t{3} << 30) + 4095}) {
		SCOPED_TRACE(size);
		const std::vector<uint64_t> parts = regionParts(size);
		uint64_t sum = 0;
		for (const uint64_t part : parts) {
			EXPECT_GE(part, Block::most);
			sum += part;
		}
		EXPECT_EQ(sum, size);
		EXPECT_LE(parts.size(), 8u);
		EXPECT_EQ(parts.size() > 1, size >= 2 * Block::most);
		EXPECT_EQ(parts.back(), *std::max_element(parts.begin(), parts.end()));
	}
}

TEST(RegionParts, GivenAnOffsetThenItIsFoundInItsPart)
{
	const std::vector<uint64_t> parts = {10, 20, 30};
	const auto expectAt = [&](uint64_t offset, size_t index, uint64_t inside, uint64_t room) {
		const PartAt at = partAt(parts, offset);
		EXPECT_EQ(at.index, index) << offset;
		EXPECT_EQ(at.offset, inside) << offset;
		EXPECT_EQ(at.room, room) << offset;
	};
	expectAt(0, 0, 0, 10);
	expectAt(9, 0, 9, 1);
	expectAt(10, 1, 0, 20);
	expectAt(29, 1, 19, 1);
	expectAt(30, 2, 0, 30);
	expectAt(59, 2, 29, 1);
}

TEST(BlockSequence, GivenASeedThenBlocksAreThoseOfTheSeedAndEachIsInsideOnePart)
{
	const std::vector<uint64_t> parts = {1 << 20, (1 << 20) + 4096, 3 << 20};
	const BlockSequence one(7, parts);
	const BlockSequence same(7, parts);
	const BlockSequence other(8, parts);
	std::set<uint64_t> offsets;
	std::map<size_t, int> inPart;
	std::map<uint64_t, int> octaves;
	size_t equal = 0;
	for (uint64_t i = 0; i < 1000; i++) {
		const Block block = one.at(i);
		const PartAt at = partAt(parts, block.offset);
		EXPECT_EQ(block.number, i);
		EXPECT_GE(block.length, Block::least);
		EXPECT_LE(block.length, Block::most);
		EXPECT_LE(block.length, at.room);
		EXPECT_EQ(block.offset, same.at(i).offset);
		EXPECT_EQ(block.length, same.at(i).length);
		equal += block.offset == other.at(i).offset;
		offsets.insert(block.offset);
		inPart[at.index]++;
		octaves[std::bit_width(block.length / Block::least)]++;
	}
	EXPECT_GT(offsets.size(), 980u);
	EXPECT_LT(equal, 5u);
	for (size_t i = 0; i < parts.size(); i++)
		EXPECT_GT(inPart[i], 100) << i;
	for (uint64_t octave = 1; octave <= 4; octave++)
		EXPECT_GT(octaves[octave], 150) << octave;
}

TEST(BlockSequence, GivenTheSmallestRegionThenTheLongestBlockFills)
{
	const BlockSequence blocks(1, {Block::most});
	for (uint64_t i = 0; i < 1000; i++)
		EXPECT_LE(blocks.at(i).end(), Block::most);
}

TEST(Pattern, GivenAnyPartThenItIsThatPartOfTheWhole)
{
	const auto whole = bytes(3, 5, 0, 200);
	for (size_t from = 0; from < 30; from++)
		for (size_t length : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{33}})
			EXPECT_TRUE(std::equal(whole.begin() + static_cast<long>(from),
					       whole.begin() + static_cast<long>(from + length),
					       bytes(3, 5, from, length).begin()))
				<< from << " " << length;
}

TEST(Pattern, GivenAnotherSeedBlockOrPositionThenItDiffers)
{
	const auto one = bytes(3, 5, 0, 4096);
	EXPECT_NE(one, bytes(4, 5, 0, 4096));
	EXPECT_NE(one, bytes(3, 6, 0, 4096));
	EXPECT_NE(one, bytes(3, 5, 1, 4096));
	EXPECT_NE(one, bytes(3, 5, 8, 4096));
}

TEST(Pattern, GivenOneWrongByteAnywhereThenItIsFound)
{
	auto data = bytes(1, 2, 3, 100);
	EXPECT_EQ(firstWrong(1, 2, 3, data.data(), data.size()), std::nullopt);
	for (size_t i = 0; i < data.size(); i++) {
		data[i] ^= 1;
		EXPECT_EQ(firstWrong(1, 2, 3, data.data(), data.size()), i);
		data[i] ^= 1;
	}
}

/** The same by brute force: who wrote each byte. */
class WrittenModel
{
public:
	explicit WrittenModel(size_t size) : bytes_(size, {-1, 0}) {}
	void add(const Block &block)
	{
		for (uint64_t i = 0; i < block.length; i++)
			bytes_[block.offset + i] = {static_cast<int64_t>(block.number), i};
	}
	void remove(uint64_t offset, uint64_t end)
	{
		for (uint64_t i = offset; i < end; i++)
			bytes_[i] = {-1, 0};
	}
	void expectSame(const Written &written, uint64_t most) const
	{
		auto left = bytes_;
		uint64_t at = 0;
		for (const Written::Piece &piece : written.pieces(most)) {
			EXPECT_GE(piece.offset, at) << "overlap or disorder";
			EXPECT_LE(piece.length, most);
			at = piece.offset + piece.length;
			for (uint64_t i = 0; i < piece.length; i++) {
				auto &byte = left[piece.offset + i];
				EXPECT_EQ(byte.first, static_cast<int64_t>(piece.number));
				EXPECT_EQ(byte.second, piece.from + i);
				byte = {-1, 0};
			}
		}
		EXPECT_TRUE(std::all_of(left.begin(), left.end(),
					[](const auto &byte) { return byte.first < 0; }));
	}

private:
	std::vector<std::pair<int64_t, uint64_t>> bytes_;
};

TEST(Written, GivenOverlappingBlocksThenTheLastToWriteEachByteIsKnown)
{
	constexpr uint64_t size = 200;
	for (uint64_t seed = 0; seed < 200; seed++) {
		Written written;
		WrittenModel model(size);
		uint64_t x = seed + 1;
		const auto random = [&](uint64_t below) {
			x = x * 6364136223846793005 + 1442695040888963407;
			return (x >> 33) % below;
		};
		for (uint64_t i = 0; i < 30; i++) {
			const uint64_t length = 1 + random(40);
			const Block block = {i, random(size - length + 1), length};
			if (random(6) == 0) {
				written.remove(block.offset, block.end());
				model.remove(block.offset, block.end());
			} else {
				written.add(block);
				model.add(block);
			}
		}
		SCOPED_TRACE(seed);
		model.expectSame(written, size);
		model.expectSame(written, 7);
		if (HasFailure())
			return;
	}
}

} // namespace
} // namespace peerbuf::test
