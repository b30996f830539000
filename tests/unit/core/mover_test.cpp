// SPDX-License-Identifier: BSD-3-Clause
#include <peerbuf/mover.hpp>

#include <algorithm>
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
	uint64_t failedCopy = UINT64_MAX; /* of those that go forward */
	uint64_t begun = 0;
	uint64_t copies = 0;

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
				if (!step.back && copies++ == failedCopy) {
					mover.copyFailed(-EIO);
					break;
				}
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

/** A steady world, but some slices meet a thread that has lost its CPU. @return slices. */
uint64_t slicesWhenPreempted(unsigned every, unsigned inCopy)
{
	Mover mover(16384 * PAGE, PAGE, MovePolicy{});
	World calm;
	calm.bytesPerUs = 8000;
	uint64_t now = 0;
	for (uint64_t slice = 0; !mover.over();) {
		const Mover::Step step = mover.step(now);
		const uint64_t lost = every && slice % every == 0 ? 4'000'000 : 0;
		switch (step.what) {
		case Do::Invalidate:
			now += calm.drainNs + (inCopy ? 0 : lost);
			mover.letGo(now);
			break;
		case Do::Copy:
			now += step.length * 1000 / calm.bytesPerUs + (inCopy ? lost : 0);
			mover.copied(now);
			break;
		case Do::Resume:
			slice++;
			now += calm.wakeNs;
			mover.resumed(now);
			break;
		default:
			now = std::max(now, step.until);
			break;
		}
	}
	return mover.slices();
}

/* One slice in ten or in two that takes ten times as long must not make slices of one page. */
TEST(Mover, GivenThreadsThatLoseTheirCpuThenSlicesStayUseful)
{
	const uint64_t calm = slicesWhenPreempted(0, 0);
	for (const unsigned inCopy : {0u, 1u}) {
		EXPECT_LE(slicesWhenPreempted(10, inCopy), calm * 3 / 2) << inCopy;
		EXPECT_LE(slicesWhenPreempted(2, inCopy), calm * 4) << inCopy;
	}
}

TEST(Mover, GivenStoppingThatTakesLongerThanTheBoundThenCopyingHasItsShare)
{
	Mover mover(4096 * PAGE, PAGE, MovePolicy{});
	World world;
	world.drainNs = 700'000; // of 500,000
	world.run(mover);
	ASSERT_EQ(mover.result(), 0);
	// A page at a time would make 4096 slices, none of them shorter than the bound.
	EXPECT_LT(mover.slices(), 4096u / 8);
	EXPECT_GT(mover.effectiveMaxPauseNs(), world.drainNs);
	EXPECT_LE(world.pauses.back(), mover.effectiveMaxPauseNs());
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

TEST(Mover, GivenACopyThatFailsThenTheSliceStaysAndAllGoesBack)
{
	MovePolicy policy;
	policy.maxPauseNs = 1; // a page a slice
	Mover mover(3 * PAGE, PAGE, policy);
	ASSERT_EQ(mover.step(0).what, Do::Invalidate);
	mover.letGo(1);
	ASSERT_EQ(mover.step(1).what, Do::Copy);
	mover.copied(2);
	mover.resumed(3);
	EXPECT_EQ(mover.moved(), PAGE);
	ASSERT_EQ(mover.step(100).what, Do::Invalidate);
	mover.letGo(101);
	ASSERT_EQ(mover.step(101).what, Do::Copy);
	mover.copyFailed(-EIO);
	Mover::Step step = mover.step(102);
	EXPECT_EQ(step.what, Do::Resume);
	EXPECT_TRUE(step.aborted);
	EXPECT_EQ(step.offset, PAGE);
	mover.resumed(103);
	step = mover.step(1000);
	EXPECT_EQ(step.what, Do::Invalidate);
	EXPECT_TRUE(step.back);
	EXPECT_EQ(step.offset, 0u);
	mover.letGo(1001);
	ASSERT_EQ(mover.step(1001).what, Do::Copy);
	mover.copied(1002);
	mover.resumed(1003);
	EXPECT_TRUE(mover.over());
	EXPECT_FALSE(mover.stuck());
	EXPECT_EQ(mover.moved(), 0u);
	EXPECT_EQ(mover.result(), -EIO);
}

TEST(Mover, GivenNoWayBackThenItIsStuckAndTheLastSliceIsResumed)
{
	for (const bool copying : {false, true}) {
		MovePolicy policy;
		policy.maxPauseNs = 1;
		Mover mover(3 * PAGE, PAGE, policy);
		for (uint64_t now = 0; now < 1000; now += 500) {
			ASSERT_EQ(mover.step(now).what, Do::Invalidate);
			mover.letGo(now + 1);
			ASSERT_EQ(mover.step(now + 1).what, Do::Copy);
			mover.copied(now + 2);
			mover.resumed(now + 3);
		}
		mover.abort(-ENODEV);
		Mover::Step step = mover.step(2000);
		ASSERT_EQ(step.what, Do::Invalidate);
		ASSERT_TRUE(step.back);
		if (copying) {
			mover.letGo(2001);
			ASSERT_EQ(mover.step(2001).what, Do::Copy);
			mover.copyFailed(-EIO);
		} else {
			mover.refused(-EIO);
		}
		step = mover.step(2002);
		EXPECT_EQ(step.what, Do::Resume);
		EXPECT_TRUE(step.aborted);
		EXPECT_EQ(step.offset, PAGE);
		mover.resumed(2003);
		EXPECT_TRUE(mover.over());
		EXPECT_TRUE(mover.stuck());
		EXPECT_EQ(mover.moved(), 2 * PAGE);
		EXPECT_EQ(mover.result(), -ENODEV);
	}
}

TEST(Mover, GivenALateCopyThenOnlyTheCopyItselfCountsAsCopying)
{
	Mover mover(PAGE, PAGE, MovePolicy{});
	ASSERT_EQ(mover.step(1000).what, Do::Invalidate);
	mover.letGo(2000);
	ASSERT_EQ(mover.step(50'000).what, Do::Copy);
	mover.copied(53'000);
	mover.resumed(60'000);
	EXPECT_EQ(mover.copyNs(), 3000u);
	EXPECT_EQ(mover.longestPauseNs(), 59'000u);
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
		world.failedCopy = random() % 4 == 0 ? random() % 8 : UINT64_MAX;
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
