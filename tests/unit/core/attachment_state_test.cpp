// SPDX-License-Identifier: BSD-3-Clause
#include "core/attachment_state.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "offers.h"

namespace peerbuf
{
namespace
{

using Held = AttachmentState::Held;
using Life = AttachmentState::Life;
using MayMap = AttachmentState::MayMap;
using test::has;

constexpr Range FIRST = {0, 0x1000};
constexpr Range SECOND = {0x1000, 0x1000};
constexpr Range BOTH = {0, 0x2000};

AttachmentState holding(std::initializer_list<Held> what)
{
	AttachmentState state;
	for (const Held h : what) {
		const Result<void> taken = state.take(h);
		EXPECT_TRUE(taken) << taken.error().what;
	}
	return state;
}

void expectOutOfOrder(const Result<void> &result, const std::string &step, const std::string &why)
{
	ASSERT_FALSE(result) << step << " was allowed";
	EXPECT_EQ(PEERBUF_ERR_INTERNAL, result.error().code);
	EXPECT_TRUE(has(result.error().what, step)) << result.error().what;
	EXPECT_TRUE(has(result.error().what, why)) << result.error().what;
}

TEST(AttachmentState, GivenNewThenNothingHeldAndLive)
{
	const AttachmentState state;
	for (const Held h : {Held::Attach, Held::Pin, Held::Map, Held::Export, Held::Region})
		EXPECT_FALSE(state.holds(h));
	EXPECT_EQ(Life::Live, state.life());
	EXPECT_FALSE(state.suspended());
	EXPECT_EQ(MayMap::Yes, state.mayMap(FIRST));
}

TEST(AttachmentState, GivenTheWholeLadderThenUpAndDownInOrder)
{
	AttachmentState state = holding({Held::Attach, Held::Pin, Held::Map, Held::Region});
	for (const Held h : {Held::Region, Held::Map, Held::Pin, Held::Attach}) {
		EXPECT_TRUE(state.holds(h));
		EXPECT_TRUE(state.drop(h));
		EXPECT_FALSE(state.holds(h));
	}
}

TEST(AttachmentState, GivenNotAttachedThenNoOtherStep)
{
	for (const Held h : {Held::Pin, Held::Map, Held::Export, Held::Region}) {
		AttachmentState state;
		EXPECT_FALSE(state.take(h));
		EXPECT_FALSE(state.holds(h)) << "a refused step changed the state";
		EXPECT_FALSE(state.drop(h));
	}
	AttachmentState state;
	expectOutOfOrder(state.take(Held::Map), "map", "not attached");
	expectOutOfOrder(state.drop(Held::Pin), "pin", "not held");
}

TEST(AttachmentState, GivenTakenTwiceThenOnlyMapMay)
{
	AttachmentState state = holding({Held::Attach, Held::Pin, Held::Map, Held::Region});
	EXPECT_TRUE(state.take(Held::Map)) << "refaults map range by range";
	expectOutOfOrder(state.take(Held::Attach), "attach", "held already");
	expectOutOfOrder(state.take(Held::Pin), "pin", "held already");
	expectOutOfOrder(state.take(Held::Region), "register", "held already");
}

// kernel-semantics rule 20: pin first, then the addresses are stable
TEST(AttachmentState, GivenMappedOrRegisteredThenPinIsTooLate)
{
	AttachmentState mapped = holding({Held::Attach, Held::Map});
	expectOutOfOrder(mapped.take(Held::Pin), "pin", "mapped before");
	AttachmentState registered = holding({Held::Attach, Held::Region});
	EXPECT_FALSE(registered.take(Held::Pin));
}

TEST(AttachmentState, GivenTheImporterStillUsesItThenNotUnmappedNorUnpinned)
{
	AttachmentState state = holding({Held::Attach, Held::Pin, Held::Map, Held::Region});
	expectOutOfOrder(state.drop(Held::Map), "map", "still uses");
	expectOutOfOrder(state.drop(Held::Pin), "pin", "still uses");
	EXPECT_TRUE(state.holds(Held::Map));
	EXPECT_TRUE(state.drop(Held::Region));
	expectOutOfOrder(state.drop(Held::Pin), "pin", "still mapped");
	expectOutOfOrder(state.drop(Held::Attach), "attach", "something else");
	EXPECT_TRUE(state.drop(Held::Map));
	EXPECT_TRUE(state.drop(Held::Pin));
	EXPECT_TRUE(state.drop(Held::Attach));
}

TEST(AttachmentState, GivenExportedThenReleasedAfterTheRegionOnly)
{
	AttachmentState state = holding({Held::Attach, Held::Export, Held::Region});
	expectOutOfOrder(state.drop(Held::Export), "export", "still registered");
	EXPECT_TRUE(state.drop(Held::Region));
	expectOutOfOrder(state.drop(Held::Attach), "attach", "something else");
	EXPECT_TRUE(state.drop(Held::Export));
	EXPECT_TRUE(state.drop(Held::Attach));
}

// RB-15: the unwinding of a failed map must not unpin twice.
TEST(AttachmentState, GivenDroppedTwiceThenRefused)
{
	AttachmentState state = holding({Held::Attach, Held::Pin});
	EXPECT_TRUE(state.drop(Held::Pin));
	expectOutOfOrder(state.drop(Held::Pin), "pin", "not held");
	EXPECT_TRUE(state.drop(Held::Attach));
	expectOutOfOrder(state.drop(Held::Attach), "attach", "not held");
}

TEST(AttachmentState, GivenSuspendedThenThatRangeMayNotBeMapped)
{
	AttachmentState state = holding({Held::Attach, Held::Region});
	EXPECT_TRUE(state.suspend(FIRST));
	EXPECT_TRUE(state.suspended());
	EXPECT_EQ(MayMap::Suspended, state.mayMap(FIRST));
	EXPECT_EQ(MayMap::Suspended, state.mayMap(BOTH));
	EXPECT_EQ(MayMap::Yes, state.mayMap(SECOND));
	state.resume(FIRST);
	EXPECT_EQ(MayMap::Yes, state.mayMap(BOTH));
	EXPECT_FALSE(state.suspended());
	EXPECT_EQ(Life::Live, state.life());
}

// rule 48
TEST(AttachmentState, GivenSuspendTwiceAndBeforeAnythingIsMappedThenOneResumeEndsIt)
{
	AttachmentState state = holding({Held::Attach});
	EXPECT_TRUE(state.suspend(FIRST));
	EXPECT_TRUE(state.suspend(FIRST));
	state.resume(FIRST);
	EXPECT_FALSE(state.suspended());
}

TEST(AttachmentState, GivenResumeOfSomethingNeverSuspendedThenAccepted)
{
	AttachmentState state = holding({Held::Attach});
	state.resume(BOTH);
	EXPECT_EQ(MayMap::Yes, state.mayMap(BOTH));
}

TEST(AttachmentState, GivenPartResumedThenTheRestStaysSuspended)
{
	AttachmentState state = holding({Held::Attach});
	EXPECT_TRUE(state.suspend(BOTH));
	state.resume(SECOND);
	EXPECT_EQ(MayMap::Suspended, state.mayMap(FIRST));
	EXPECT_EQ(MayMap::Yes, state.mayMap(SECOND));
	EXPECT_TRUE(state.suspended());
}

// rule 21: what is pinned is not moved, but it may be revoked
TEST(AttachmentState, GivenPinnedThenNotSuspendedButRevoked)
{
	AttachmentState state = holding({Held::Attach, Held::Pin, Held::Map, Held::Region});
	const Result<void> moved = state.suspend(FIRST);
	ASSERT_FALSE(moved);
	EXPECT_TRUE(has(moved.error().what, "pinned")) << moved.error().what;
	EXPECT_FALSE(state.suspended());
	EXPECT_TRUE(state.revoke());
}

// rules 32, 54
TEST(AttachmentState, GivenRevokedThenNothingMoreIsTakenAndMapSaysRevoked)
{
	AttachmentState state = holding({Held::Attach});
	EXPECT_TRUE(state.revoke());
	EXPECT_EQ(Life::Revoking, state.life());
	EXPECT_EQ(MayMap::Revoked, state.mayMap(FIRST));
	for (const Held h : {Held::Pin, Held::Map, Held::Export, Held::Region})
		expectOutOfOrder(state.take(h), "attachment", "revoked");
	state.letGo();
	EXPECT_EQ(Life::Revoked, state.life());
	EXPECT_EQ(MayMap::Revoked, state.mayMap(FIRST));
}

TEST(AttachmentState, GivenRevokeTwiceThenTheSecondHasNothingToDo)
{
	AttachmentState state = holding({Held::Attach, Held::Map, Held::Region});
	EXPECT_TRUE(state.revoke());
	EXPECT_FALSE(state.revoke());
	state.letGo();
	EXPECT_FALSE(state.revoke());
	state.letGo();
	EXPECT_EQ(Life::Revoked, state.life());
}

// rule 55: the hardware stops, then unmap, then unpin; the key stays taken until dereg
TEST(AttachmentState, GivenRevokingThenUnmappedOnlyAfterTheImporterLetGo)
{
	AttachmentState state = holding({Held::Attach, Held::Pin, Held::Map, Held::Region});
	EXPECT_TRUE(state.revoke());
	expectOutOfOrder(state.drop(Held::Map), "map", "still uses");
	expectOutOfOrder(state.drop(Held::Pin), "pin", "still uses");
	state.letGo();
	expectOutOfOrder(state.drop(Held::Pin), "pin", "still mapped");
	EXPECT_TRUE(state.drop(Held::Map));
	EXPECT_TRUE(state.drop(Held::Pin));
	EXPECT_TRUE(state.holds(Held::Region));
	EXPECT_TRUE(state.drop(Held::Region));
	EXPECT_TRUE(state.drop(Held::Attach));
}

TEST(AttachmentState, GivenLetGoWithoutRevokeThenNothingChanges)
{
	AttachmentState state = holding({Held::Attach, Held::Map, Held::Region});
	state.letGo();
	EXPECT_EQ(Life::Live, state.life());
	EXPECT_FALSE(state.drop(Held::Map));
}

TEST(AttachmentState, GivenSuspendedWhenRevokedThenRevokedIsWhatCounts)
{
	AttachmentState state = holding({Held::Attach, Held::Region});
	EXPECT_TRUE(state.suspend(FIRST));
	EXPECT_TRUE(state.revoke());
	EXPECT_FALSE(state.suspended());
	EXPECT_EQ(MayMap::Revoked, state.mayMap(FIRST));
	state.resume(FIRST); // of the move that was under way; must not bring it back
	EXPECT_EQ(MayMap::Revoked, state.mayMap(FIRST));
}

/**
 * Every order of steps up to a depth: whatever is tried, a refused step changes nothing, and what
 * is held is always an allowed set.
 */
class Walk
{
public:
	void run(const AttachmentState &state, int depth)
	{
		allowed(state);
		if (!depth)
			return;
		for (const Held h :
		     {Held::Attach, Held::Pin, Held::Map, Held::Export, Held::Region}) {
			AttachmentState taken = state;
			if (taken.take(h)) {
				EXPECT_TRUE(taken.holds(h));
				run(taken, depth - 1);
			} else {
				same(state, taken);
			}
			AttachmentState dropped = state;
			if (dropped.drop(h)) {
				EXPECT_TRUE(state.holds(h));
				EXPECT_FALSE(dropped.holds(h));
				run(dropped, depth - 1);
			} else {
				same(state, dropped);
			}
		}
		AttachmentState revoked = state;
		if (revoked.revoke())
			run(revoked, depth - 1);
		revoked.letGo();
		run(revoked, depth - 1);
		AttachmentState suspended = state;
		if (!suspended.suspend(FIRST))
			same(state, suspended);
	}
	size_t visited() const { return visited_; }

private:
	void allowed(const AttachmentState &state)
	{
		visited_++;
		for (const Held h : {Held::Pin, Held::Map, Held::Export, Held::Region}) {
			if (state.holds(h)) {
				ASSERT_TRUE(state.holds(Held::Attach));
			}
		}
	}
	static void same(const AttachmentState &a, const AttachmentState &b)
	{
		for (const Held h :
		     {Held::Attach, Held::Pin, Held::Map, Held::Export, Held::Region})
			ASSERT_EQ(a.holds(h), b.holds(h));
		ASSERT_EQ(a.life(), b.life());
		ASSERT_EQ(a.suspended(), b.suspended());
	}

	size_t visited_ = 0;
};

TEST(AttachmentState, GivenEveryOrderOfStepsThenARefusedStepChangesNothing)
{
	Walk walk;
	walk.run(AttachmentState(), 6);
	EXPECT_GT(walk.visited(), 1000u);
}

} // namespace
} // namespace peerbuf
