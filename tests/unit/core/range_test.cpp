// SPDX-License-Identifier: BSD-3-Clause
#include "core/range.h"

#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "offers.h"

namespace peerbuf
{
namespace
{

using test::has;

TEST(Range, GivenUnalignedRangeThenRoundedOutwards)
{
	EXPECT_EQ((Range{0, 0x1000}), roundOut({0x180, 384}, 0x1000));
	EXPECT_EQ((Range{0, 0x2000}), roundOut({0xF80, 0x100}, 0x1000));
	EXPECT_EQ((Range{0, 0x1000}), roundOut({0, 1}, 0x1000));
	EXPECT_EQ((Range{0x1000, 0x1000}), roundOut({0x1000, 0x1000}, 0x1000));
	// RB-08
	EXPECT_EQ((Range{0x12397fd5000, 0x7240f000}),
		  roundOut({0x12397fd5800, 1916853120}, 0x1000));
	EXPECT_EQ((Range{0x12397fd0000, 0x72420000}),
		  roundOut({0x12397fd5800, 1916853120}, 0x10000));
}

TEST(Range, GivenRoundedRangeThenItCoversAndIsTheSmallest)
{
	for (const uint64_t granularity : {uint64_t{4096}, uint64_t{65536}})
		for (uint64_t offset = 4000; offset < 4200; offset += 7)
			for (const uint64_t length : {1u, 95u, 96u, 97u, 4096u, 70000u}) {
				const Range range{offset, length};
				const Range around = roundOut(range, granularity);
				EXPECT_TRUE(around.covers(range));
				EXPECT_EQ(0u, around.offset % granularity);
				EXPECT_EQ(0u, around.length % granularity);
				EXPECT_GT(around.offset + granularity, range.offset);
				EXPECT_LT(around.end() - granularity, range.end());
			}
}

TEST(Range, GivenNeighboursThenTheyDoNotOverlap)
{
	const Range range{100, 50};
	EXPECT_FALSE(range.overlaps({50, 50}));
	EXPECT_FALSE(range.overlaps({150, 1}));
	EXPECT_TRUE(range.overlaps({50, 51}));
	EXPECT_TRUE(range.overlaps({149, 1}));
	EXPECT_TRUE(range.overlaps({0, 1000}));
	EXPECT_TRUE(range.overlaps({120, 1}));
	EXPECT_TRUE(range.covers({100, 50}));
	EXPECT_TRUE(range.covers({120, 1}));
	EXPECT_FALSE(range.covers({99, 50}));
	EXPECT_FALSE(range.covers({101, 50}));
}

Error rangeError(uint64_t offset, uint64_t length, uint64_t size)
{
	const Result<Range> result = checkRange("buffer 7", offset, length, size);
	EXPECT_FALSE(result);
	return result ? Error{} : result.error();
}

void expectGeometry(const Error &error, const std::vector<std::string> &facts)
{
	EXPECT_EQ(PEERBUF_ERR_BAD_GEOMETRY, error.code);
	EXPECT_EQ(EINVAL, error.sysErrno);
	EXPECT_TRUE(has(error.what, "buffer 7")) << error.what;
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(error.what, fact)) << "'" << fact << "' is not in: " << error.what;
}

// RB-22, kernel-semantics rule 33
TEST(CheckRange, GivenEmptyOverflowOrBeyondTheEndThenRefusedWithTheNumbers)
{
	expectGeometry(rangeError(0x1000, 0, 0x10000), {"empty", "0x1000"});
	expectGeometry(rangeError(0xfffffffffffff000, 8192, 0x10000),
		       {"overflow", "0xfffffffffffff000", "0x2000"});
	expectGeometry(rangeError(UINT64_MAX, UINT64_MAX, UINT64_MAX), {"overflow"});
	expectGeometry(rangeError(0xf000, 0x1001, 0x10000),
		       {"beyond the end", "0xf000", "0x1001", "0x10001", "0x10000"});
	expectGeometry(rangeError(0x10000, 1, 0x10000), {"beyond the end"});
	expectGeometry(rangeError(0, 1, 0), {"beyond the end"});
}

TEST(CheckRange, GivenRangeUpToTheEndThenItself)
{
	const Result<Range> whole = checkRange("buffer 7", 0, 0x10000, 0x10000);
	ASSERT_TRUE(whole);
	EXPECT_EQ((Range{0, 0x10000}), *whole);
	const Result<Range> last = checkRange("buffer 7", 0xffff, 1, 0x10000);
	ASSERT_TRUE(last);
	EXPECT_EQ((Range{0xffff, 1}), *last);
	EXPECT_TRUE(checkRange("buffer 7", 0, UINT64_MAX, UINT64_MAX));
}

/** The ranges of a set, as numbers. */
std::vector<Range> of(const RangeSet &set)
{
	return set.ranges();
}

TEST(RangeSet, GivenRangesThatTouchOrOverlapThenOne)
{
	RangeSet set;
	EXPECT_TRUE(set.empty());
	set.add({100, 10});
	set.add({110, 10}); // touches
	EXPECT_EQ((std::vector<Range>{{100, 20}}), of(set));
	set.add({90, 15}); // overlaps
	EXPECT_EQ((std::vector<Range>{{90, 30}}), of(set));
	set.add({95, 1}); // inside
	EXPECT_EQ((std::vector<Range>{{90, 30}}), of(set));
	set.add({200, 10});
	set.add({10, 10});
	EXPECT_EQ((std::vector<Range>{{10, 10}, {90, 30}, {200, 10}}), of(set));
	set.add({0, 300}); // swallows all
	EXPECT_EQ((std::vector<Range>{{0, 300}}), of(set));
	EXPECT_FALSE(set.empty());
}

TEST(RangeSet, GivenTheGapIsFilledThenTheNeighboursJoin)
{
	RangeSet set;
	set.add({0, 10});
	set.add({20, 10});
	EXPECT_FALSE(set.covers({0, 30}));
	set.add({10, 10});
	EXPECT_EQ((std::vector<Range>{{0, 30}}), of(set));
	EXPECT_TRUE(set.covers({0, 30}));
}

TEST(RangeSet, GivenRemovalThenTheRestIsLeft)
{
	RangeSet set;
	set.add({0, 100});
	set.remove({40, 20});
	EXPECT_EQ((std::vector<Range>{{0, 40}, {60, 40}}), of(set));
	set.remove({0, 10});
	set.remove({90, 50});
	EXPECT_EQ((std::vector<Range>{{10, 30}, {60, 30}}), of(set));
	set.remove({50, 5}); // nothing there
	set.remove({0, 200});
	EXPECT_TRUE(set.empty());
	set.remove({0, 200});
	EXPECT_TRUE(set.empty());
}

TEST(RangeSet, GivenNeighboursThenNeitherOverlapNorCover)
{
	RangeSet set;
	set.add({10, 10});
	EXPECT_FALSE(set.overlaps({0, 10}));
	EXPECT_FALSE(set.overlaps({20, 10}));
	EXPECT_TRUE(set.overlaps({19, 10}));
	EXPECT_TRUE(set.covers({10, 10}));
	EXPECT_FALSE(set.covers({10, 11}));
	set.clear();
	EXPECT_TRUE(set.empty());
	EXPECT_FALSE(set.overlaps({10, 10}));
}

/** Against one bit for every number. */
TEST(RangeSet, GivenManyRandomStepsThenAsASetOfNumbers)
{
	constexpr uint64_t SIZE = 64;
	std::mt19937_64 random(7);
	RangeSet set;
	std::vector<bool> model(SIZE);
	for (int step = 0; step < 20000; step++) {
		const uint64_t offset = random() % SIZE;
		const uint64_t length = 1 + random() % (SIZE - offset);
		const Range range{offset, length};
		const bool adding = random() & 1;
		if (adding)
			set.add(range);
		else
			set.remove(range);
		for (uint64_t n = offset; n < range.end(); n++)
			model[n] = adding;

		const uint64_t a = random() % SIZE;
		const Range probe{a, 1 + random() % (SIZE - a)};
		bool any = false;
		bool all = true;
		for (uint64_t n = probe.offset; n < probe.end(); n++) {
			any = any || model[n];
			all = all && model[n];
		}
		ASSERT_EQ(any, set.overlaps(probe)) << "step " << step;
		ASSERT_EQ(all, set.covers(probe)) << "step " << step;
		const std::vector<Range> &ranges = set.ranges();
		for (size_t n = 0; n < ranges.size(); n++) {
			ASSERT_NE(0u, ranges[n].length) << "step " << step;
			ASSERT_TRUE(!n || ranges[n - 1].end() < ranges[n].offset)
				<< "not sorted or not disjoint, step " << step;
		}
	}
}

} // namespace
} // namespace peerbuf
