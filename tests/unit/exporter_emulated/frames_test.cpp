// SPDX-License-Identifier: BSD-3-Clause
#include "exporter/emulated/frames.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace peerbuf::emulated::test
{

namespace
{

constexpr uint64_t page = 4096;

/* inside a test, Run is a member function of gtest */
using Runs = std::vector<Run>;

uint64_t sum(const Runs &runs)
{
	uint64_t bytes = 0;
	for (const Run &run : runs)
		bytes += run.length;
	return bytes;
}

/** Who owns each frame; a second owner is a failure. */
class Owners
{
public:
	Owners(uint64_t base, uint64_t size) : base_(base), owner_(size / page, 0) {}

	void take(const Runs &runs, int who)
	{
		for (const Run &run : runs) {
			ASSERT_EQ(0u, run.offset % page);
			ASSERT_EQ(0u, run.length % page);
			ASSERT_NE(0u, run.length);
			ASSERT_GE(run.offset, base_);
			ASSERT_LE(run.offset + run.length, base_ + owner_.size() * page);
			for (uint64_t f = run.offset; f < run.offset + run.length; f += page) {
				int &owner = owner_[(f - base_) / page];
				ASSERT_EQ(0, owner) << "frame at " << f << " has two owners";
				owner = who;
			}
		}
	}
	void give(const Runs &runs)
	{
		for (const Run &run : runs)
			for (uint64_t f = run.offset; f < run.offset + run.length; f += page)
				owner_[(f - base_) / page] = 0;
	}

private:
	uint64_t base_;
	std::vector<int> owner_;
};

} // namespace

TEST(Frames, GivenRandomUseThenNoFrameHasTwoOwnersAndAllComeBack)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		SCOPED_TRACE(seed);
		const uint64_t base = seed % 2 ? 0 : 512 * page;
		const uint64_t size = 1000 * page; /* no power of two */
		Frames frames(base, size, page, seed);
		Owners owners(base, size);
		std::mt19937_64 random(seed);
		std::vector<Runs> held;
		uint64_t used = 0;
		for (int step = 0; step < 2000; step++) {
			if (random() % 2 || held.empty()) {
				const uint64_t length = (1 + random() % 200) * page;
				Runs runs;
				std::string why;
				const bool fits = length <= size - used;
				ASSERT_EQ(fits, frames.allocate(length, &runs, &why)) << why;
				if (!fits) {
					EXPECT_TRUE(runs.empty());
					EXPECT_NE(std::string::npos,
						  why.find(std::to_string(size - used)));
					continue;
				}
				ASSERT_EQ(length, sum(runs));
				for (size_t i = 1; i < runs.size(); i++)
					ASSERT_NE(runs[i - 1].offset + runs[i - 1].length,
						  runs[i].offset)
						<< "adjacent runs were not merged";
				owners.take(runs, step + 1);
				if (HasFatalFailure())
					return;
				used += length;
				held.push_back(std::move(runs));
			} else {
				const size_t i = random() % held.size();
				owners.give(held[i]);
				used -= sum(held[i]);
				frames.release(held[i]);
				held.erase(held.begin() + static_cast<ptrdiff_t>(i));
			}
			ASSERT_EQ(size - used, frames.available());
		}
		for (const auto &runs : held)
			frames.release(runs);
		ASSERT_EQ(1u, frames.freeRuns().size());
		EXPECT_EQ(base, frames.freeRuns().begin()->first);
		EXPECT_EQ(size, frames.freeRuns().begin()->second);
	}
}

TEST(Frames, GivenMoreThanAPageThenABufferIsUsuallyScattered)
{
	Frames frames(0, 4096 * page, page, 1);
	int scattered = 0;
	for (int i = 0; i < 32; i++) {
		Runs runs;
		std::string why;
		ASSERT_TRUE(frames.allocate(64 * page, &runs, &why)) << why;
		scattered += runs.size() >= 4;
	}
	EXPECT_GE(scattered, 30);
}

TEST(Frames, GivenTheSameSeedThenTheSamePlaces)
{
	Runs first;
	Runs second;
	Runs other;
	std::string why;
	Frames a(0, 1024 * page, page, 42);
	Frames b(0, 1024 * page, page, 42);
	Frames c(0, 1024 * page, page, 43);
	ASSERT_TRUE(a.allocate(100 * page, &first, &why));
	ASSERT_TRUE(b.allocate(100 * page, &second, &why));
	ASSERT_TRUE(c.allocate(100 * page, &other, &why));
	const auto same = [](const Runs &x, const Runs &y) {
		return std::equal(x.begin(), x.end(), y.begin(), y.end(),
				  [](const auto &l, const auto &r) {
					  return l.offset == r.offset && l.length == r.length;
				  });
	};
	EXPECT_TRUE(same(first, second));
	EXPECT_FALSE(same(first, other));
}

/* Every other frame free: what fits in bytes may not fit in pieces. */
TEST(Frames, GivenTooManyPiecesThenRefusedAndNothingIsTaken)
{
	constexpr uint64_t n = 4 * Frames::maxRuns;
	Frames frames(0, n * page, page, 1);
	Runs all;
	std::string why;
	ASSERT_TRUE(frames.allocate(n * page, &all, &why));
	Runs odd;
	for (uint64_t i = 1; i < n; i += 2)
		odd.push_back({i * page, page});
	frames.release(odd);
	Runs runs;
	EXPECT_FALSE(frames.allocate((Frames::maxRuns + 1) * page, &runs, &why));
	EXPECT_NE(std::string::npos, why.find("pieces")) << why;
	EXPECT_EQ(n / 2 * page, frames.available());
	ASSERT_TRUE(frames.allocate(Frames::maxRuns * page, &runs, &why)) << why;
	EXPECT_EQ(Frames::maxRuns, runs.size());
}

} // namespace peerbuf::emulated::test
