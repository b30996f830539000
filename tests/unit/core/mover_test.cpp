// SPDX-License-Identifier: BSD-3-Clause
#include <peerbuf/mover.hpp>

#include <cerrno>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace
{

using peerbuf::plugin::MovePolicy;
using peerbuf::plugin::Mover;
using Do = Mover::Do;

constexpr uint64_t PAGE = 64 << 10;

/** An exporter in a world where copying, draining and sleeping take the time that is set here. */
struct World {
	uint64_t now = 1000;
	uint64_t bytesPerUs = 8000;
	uint64_t drainNs = 5000;
	uint64_t wakeNs = 3000;		  /* lateness of every wait */
	uint64_t stuckSlice = UINT64_MAX; /* of those that go forward: never let go of */
	uint64_t begun = 0;

	std::vector<uint64_t> pauses;
	uint64_t closedNs = 0;
	std::set<uint64_t> atNew; /* pages */
	bool revoked = false;

	/** Run to the end, or until nothing more happens. */
	void run(Mover &mover, int most = 1000000)
	{
		uint64_t invalidated = 0;
		for (int i = 0; i < most; i++) {
			const Mover::Step step = mover.step(now);
			switch (step.what) {
			case Do::Invalidate:
				ASSERT_GT(step.length, 0u);
				ASSERT_EQ(step.offset % PAGE, 0u);
				invalidated = now;
				now += drainNs;
				if (!step.back && begun++ == stuckSlice)
					break;
				mover.letGo(now);
				break;
			case Do::Copy:
				for (uint64_t at = step.offset; at < step.offset + step.length;
				     at += PAGE) {
					if (step.back)
						ASSERT_EQ(atNew.erase(at), 1u);
					else
						ASSERT_TRUE(atNew.insert(at).second);
				}
				now += step.length * 1000 / bytesPerUs;
				mover.copied(now);
				break;
			case Do::Resume:
				now += wakeNs;
				mover.resumed(now);
				pauses.push_back(now - invalidated);
				closedNs += now - invalidated;
				break;
			case Do::Wait:
				if (!step.until)
					return; // waits for an importer that never comes
				ASSERT_GT(step.until, now);
				now = step.until + wakeNs;
				break;
			case Do::Revoke:
				revoked = true;
				return;
			case Do::Done:
				return;
			}
		}
		FAIL() << "no end";
	}
};

TEST(Mover, GivenNobodyInTheWayThenEveryPageMovesOnce)
{
	Mover mover(64 * PAGE, PAGE, MovePolicy{});
	World world;
	world.run(mover);
	EXPECT_TRUE(mover.over());
	EXPECT_EQ(mover.result(), 0);
	EXPECT_EQ(mover.moved(), 64 * PAGE);
	EXPECT_EQ(world.atNew.size(), 64u);
	EXPECT_GT(mover.slices(), 1u);
}

TEST(Mover, GivenWholeThenOneSlice)
{
	MovePolicy policy;
	policy.whole = true;
	Mover mover(64 * PAGE, PAGE, policy);
	World world;
	world.run(mover);
	EXPECT_EQ(mover.slices(), 1u);
	EXPECT_EQ(mover.result(), 0);
	EXPECT_GT(mover.effectiveMaxPauseNs(), policy.maxPauseNs);
}

TEST(Mover, GivenASteadyCopyRateThenPausesKeepTheBound)
{
	for (const uint64_t rate : {500u, 2000u, 8000u, 20000u}) {
		Mover mover(4096 * PAGE, PAGE, MovePolicy{});
		World world;
		world.bytesPerUs = rate;
		world.run(mover);
		ASSERT_EQ(mover.result(), 0);
		// The first slices are sized by a guess; it is learnt from within a few of them.
		for (size_t i = 8; i < world.pauses.size(); i++)
			EXPECT_LE(world.pauses[i], mover.effectiveMaxPauseNs()) << rate << " " << i;
	}
}

TEST(Mover, GivenAPageThatTakesLongerThanTheBoundThenTheBoundIsThePage)
{
	MovePolicy policy;
	policy.maxPauseNs = 10'000;
	Mover mover(64 * PAGE, PAGE, policy);
	World world;
	world.bytesPerUs = 1000; // 65 us a page
	world.run(mover);
	EXPECT_EQ(mover.slices(), 64u);
	EXPECT_GT(mover.effectiveMaxPauseNs(), policy.maxPauseNs);
	EXPECT_GE(mover.effectiveMaxPauseNs(), mover.longestPauseNs() * 8 / 10);
}

TEST(Mover, GivenADutyThenGatesAreOpenTheRest)
{
	for (const uint32_t duty : {10u, 50u, 80u}) {
		MovePolicy policy;
		policy.dutyPercent = duty;
		Mover mover(2048 * PAGE, PAGE, policy);
		World world;
		const uint64_t start = world.now;
		world.run(mover);
		// The last slice has no rest behind it.
		const double wall = static_cast<double>(world.now - start + world.pauses.back());
		EXPECT_LE(static_cast<double>(world.closedNs) / wall, duty / 100.0 + 0.02) << duty;
	}
}

TEST(Mover, GivenAnImporterThatDoesNotLetGoWhenAbortThenAllGoesBack)
{
	Mover mover(256 * PAGE, PAGE, MovePolicy{});
	World world;
	world.stuckSlice = 5;
	world.run(mover);
	EXPECT_TRUE(mover.over());
	EXPECT_EQ(mover.result(), -ETIMEDOUT);
	EXPECT_TRUE(mover.rollingBack());
	EXPECT_EQ(mover.moved(), 0u);
	EXPECT_TRUE(world.atNew.empty());
	EXPECT_GT(world.pauses.size(), 6u); // five out, one given up, and the way back
}

TEST(Mover, GivenTheFirstSliceStuckWhenAbortThenNothingMovedAndItIsResumed)
{
	Mover mover(64 * PAGE, PAGE, MovePolicy{});
	World world;
	world.stuckSlice = 0;
	world.run(mover);
	EXPECT_EQ(mover.result(), -ETIMEDOUT);
	EXPECT_EQ(mover.moved(), 0u);
	EXPECT_EQ(world.pauses.size(), 1u);
}

TEST(Mover, GivenAnImporterThatDoesNotLetGoWhenWaitThenItWaits)
{
	MovePolicy policy;
	policy.past = MovePolicy::Past::Wait;
	Mover mover(64 * PAGE, PAGE, policy);
	World world;
	world.stuckSlice = 0;
	world.run(mover);
	EXPECT_FALSE(mover.over());
	EXPECT_EQ(mover.due(), UINT64_MAX);
	mover.letGo(world.now); // at last
	world.stuckSlice = UINT64_MAX;
	world.run(mover);
	EXPECT_EQ(mover.result(), 0);
	EXPECT_EQ(world.atNew.size(), 64u);
}

TEST(Mover, GivenAnImporterThatDoesNotLetGoWhenRevokeThenItIsRevoked)
{
	MovePolicy policy;
	policy.past = MovePolicy::Past::Revoke;
	Mover mover(64 * PAGE, PAGE, policy);
	World world;
	world.stuckSlice = 0;
	world.run(mover);
	EXPECT_TRUE(world.revoked);
	EXPECT_TRUE(mover.over());
	EXPECT_EQ(mover.result(), -ETIMEDOUT);
	EXPECT_FALSE(mover.rollingBack());
}

TEST(Mover, GivenARefusalThenTheSliceIsResumedAndAllGoesBack)
{
	Mover mover(64 * PAGE, PAGE, MovePolicy{});
	ASSERT_EQ(mover.step(0).what, Do::Invalidate);
	mover.refused(-EIO);
	const Mover::Step step = mover.step(1);
	EXPECT_EQ(step.what, Do::Resume);
	EXPECT_TRUE(step.aborted);
	mover.resumed(2);
	EXPECT_TRUE(mover.over());
	EXPECT_EQ(mover.result(), -EIO);
}

TEST(Mover, GivenAnAbortDuringACopyThenThatSliceIsFinishedAndGoesBack)
{
	Mover mover(64 * PAGE, PAGE, MovePolicy{});
	World world;
	ASSERT_EQ(mover.step(world.now).what, Do::Invalidate);
	mover.letGo(world.now);
	ASSERT_EQ(mover.step(world.now).what, Do::Copy);
	mover.abort(-ENODEV);
	Mover::Step step = mover.step(world.now);
	EXPECT_EQ(step.what, Do::Copy);
	EXPECT_FALSE(step.back);
	world.run(mover);
	EXPECT_EQ(mover.moved(), 0u);
	EXPECT_TRUE(world.atNew.empty());
	EXPECT_EQ(mover.result(), -ENODEV);
}

TEST(Mover, GivenLateAndDoubleReportsThenTheyChangeNothing)
{
	Mover mover(2 * PAGE, PAGE, MovePolicy{});
	mover.letGo(1); // nothing was asked
	mover.copied(1);
	mover.resumed(1);
	EXPECT_EQ(mover.moved(), 0u);
	World world;
	world.run(mover);
	mover.letGo(9);
	mover.copied(9);
	mover.resumed(9);
	mover.abort(-EIO);
	EXPECT_EQ(mover.result(), 0);
	EXPECT_EQ(mover.moved(), 2 * PAGE);
}

TEST(Mover, GivenARandomWorldThenEveryMoveEndsWholeOrUndone)
{
	for (uint32_t seed = 1; seed <= 300; seed++) {
		std::mt19937 random(seed);
		MovePolicy policy;
		policy.maxPauseNs = 20'000 + random() % 1'000'000;
		policy.dutyPercent = 5 + random() % 90;
		policy.deadlineNs = 200'000;
		policy.whole = random() % 8 == 0;
		const uint64_t pages = 1 + random() % 200;
		Mover mover(pages * PAGE, PAGE, policy);
		World world;
		world.bytesPerUs = 200 + random() % 10000;
		world.drainNs = random() % 150'000;
		if (random() % 3 == 0)
			world.stuckSlice = random() % 8;
		world.run(mover);
		ASSERT_TRUE(mover.over()) << seed;
		ASSERT_EQ(world.atNew.size(), mover.result() ? 0 : pages) << seed;
		ASSERT_FALSE(mover.stuck()) << seed;
	}
}

} // namespace
