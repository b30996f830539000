// SPDX-License-Identifier: BSD-3-Clause
#include "estimate.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace peerbuf::bench
{
namespace
{

std::vector<double> upTo(size_t n)
{
	std::vector<double> values(n);
	std::iota(values.begin(), values.end(), 1);
	std::shuffle(values.begin(), values.end(), std::mt19937_64(7));
	return values;
}

/* The ranks are those of every table of the sign test at 95 %. */
TEST(Estimate, GivenValuesWhenEstimatedThenRanksAreThoseOfTheSignTest)
{
	struct Row {
		size_t n;
		double low;
		double high;
	};
	for (const Row &row :
	     {Row{6, 1, 6}, Row{8, 1, 8}, Row{9, 2, 8}, Row{11, 2, 10}, Row{12, 3, 10},
	      Row{15, 4, 12}, Row{20, 6, 15}, Row{25, 8, 18}, Row{50, 18, 33}, Row{100, 40, 61}}) {
		const Estimate e = estimate(upTo(row.n));
		EXPECT_EQ(e.low, row.low) << row.n;
		EXPECT_EQ(e.high, row.high) << row.n;
		EXPECT_EQ(e.median, (1 + static_cast<double>(row.n)) / 2) << row.n;
		EXPECT_EQ(e.least, 1);
		EXPECT_EQ(e.n, row.n);
	}
}

TEST(Estimate, GivenTooFewValuesWhenEstimatedThenExtremesAreGiven)
{
	for (size_t n = 1; n < fewestForInterval; n++) {
		const Estimate e = estimate(upTo(n));
		EXPECT_EQ(e.low, 1);
		EXPECT_EQ(e.high, n);
	}
}

TEST(Estimate, GivenThousandsOfValuesWhenEstimatedThenNothingUnderflows)
{
	const Estimate e = estimate(upTo(10000));
	EXPECT_NEAR(e.low, 5000 - 98, 2);
	EXPECT_NEAR(e.high, 5000 + 98, 2);
}

TEST(Percentile, GivenValuesWhenAskedThenNearestRankIsGiven)
{
	EXPECT_EQ(percentile(upTo(100), 99), 99);
	EXPECT_EQ(percentile(upTo(100), 50), 50);
	EXPECT_EQ(percentile(upTo(101), 99), 100);
	EXPECT_EQ(percentile(upTo(3), 99), 3);
	EXPECT_EQ(percentile(upTo(3), 0), 1);
	EXPECT_EQ(percentile({42}, 50), 42);
}

} // namespace
} // namespace peerbuf::bench
