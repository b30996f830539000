// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/peerbuf/pauses.h"

namespace peerbuf::test
{
namespace
{

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace peerbuf::tools;

TEST(Pauses, GivenNoneThenAllIsZero)
{
	const PauseSummary summary = Pauses().summary();
	EXPECT_EQ(summary.count, 0u);
	EXPECT_EQ(summary.p50Ns, 0u);
	EXPECT_EQ(summary.p99Ns, 0u);
	EXPECT_EQ(summary.maxNs, 0u);
	EXPECT_TRUE(summary.octaves.empty());
	EXPECT_TRUE(histogramLines(summary).empty());
}

TEST(Pauses, GivenAnyTimesThenPercentilesAreThoseOfTheSortedListToWithinASixtyFourth)
{
	std::mt19937_64 random(5);
	for (int round = 0; round < 200; round++) {
		Pauses pauses;
		std::vector<uint64_t> all;
		uint64_t preempted = 0;
		const size_t n = 1 + random() % 300;
		for (size_t i = 0; i < n; i++) {
			const uint64_t ns = random() >> (random() % 64);
			const bool lost = random() % 3 == 0;
			pauses.add(ns, lost);
			all.push_back(ns);
			preempted += lost;
		}
		std::sort(all.begin(), all.end());
		const PauseSummary summary = pauses.summary();
		EXPECT_EQ(summary.count, n);
		EXPECT_EQ(summary.preempted, preempted);
		EXPECT_EQ(summary.maxNs, all.back());
		for (const unsigned percent : {1u, 50u, 99u, 100u}) {
			const uint64_t exact = all[(n * percent + 99) / 100 - 1];
			EXPECT_GE(pauses.percentileNs(percent), exact);
			EXPECT_LE(pauses.percentileNs(percent) - exact, exact / 64);
		}
		uint64_t sum = 0;
		for (const uint64_t octave : summary.octaves)
			sum += octave;
		EXPECT_EQ(sum, n);
	}
}

TEST(Pauses, GivenTimesThenEachIsInItsOctave)
{
	Pauses pauses;
	for (const uint64_t ns : {0u, 999u, 1000u, 1999u, 2000u, 15999u, 16000u, 31999u})
		pauses.add(ns, false);
	EXPECT_THAT(pauses.summary().octaves, ElementsAre(4, 1, 0, 1, 2));
}

TEST(Pauses, GivenASummaryThenEveryOctaveBetweenFirstAndLastHasALineAndWhatHappenedIsSeen)
{
	PauseSummary summary;
	summary.octaves = {0, 0, 1, 0, 4000};
	const auto lines = histogramLines(summary);
	ASSERT_EQ(lines.size(), 3u);
	EXPECT_THAT(lines[0], HasSubstr(" 4 us  # "));
	EXPECT_THAT(lines[0], ::testing::EndsWith(" 1"));
	EXPECT_THAT(lines[1], HasSubstr(" 8 us   "));
	EXPECT_THAT(lines[2], HasSubstr(" 16 us  ########################################"));
	EXPECT_THAT(lines[2], ::testing::EndsWith(" 4000"));
}

TEST(Pauses, GivenATimeThenItIsSaidInItsUnit)
{
	EXPECT_EQ(durationWords(0), "0 us");
	EXPECT_EQ(durationWords(1499), "1 us");
	EXPECT_EQ(durationWords(999'999), "1000 us");
	EXPECT_EQ(durationWords(1'234'567), "1.23 ms");
}

} // namespace
} // namespace peerbuf::test
