// SPDX-License-Identifier: BSD-3-Clause
#include "core/session.h"

#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/sys.h"
#include "session_harness.h"

/** What the core does about memory that moves, against devices that write down every call. */
namespace peerbuf
{
namespace
{

using namespace test;
using Calls = std::vector<std::string>;

constexpr Range WHOLE = {0, 0x100000};
constexpr Range FIRST = {0x1000, 0x1000}; // the two pages of the registration
constexpr Range SECOND = {0x2000, 0x1000};

/** Time that passes by a tenth of a second whenever somebody looks at it. */
class FastClock
{
public:
	FastClock()
	{
		sys().nowNs = [] { return now_ += 100'000'000; };
	}
	~FastClock() { sys().nowNs = realSys().nowNs; }
	FastClock(const FastClock &) = delete;
	FastClock &operator=(const FastClock &) = delete;

private:
	static inline uint64_t now_ = 0;
};

class MovesTest : public SessionTest
{
protected:
	void TearDown() override
	{
		sys().epollWait = realSys().epollWait;
		for (const auto column :
		     {PEERBUF_LEDGER_PINS, PEERBUF_LEDGER_WINDOW, PEERBUF_LEDGER_HOST}) {
			EXPECT_EQ(0u, session_ ? session_->ledger().usage("", "", column).used : 0);
		}
	}

	Calls takeCalls() { return std::exchange(fake_.calls, {}); }

	/** What the next wait of the core brings, instead of waiting. */
	void onWait(std::function<void()> what)
	{
		wait_ = std::move(what);
		sys().epollWait = [](int epfd, epoll_event *events, int max, int timeout) {
			if (const auto now = std::exchange(wait_, nullptr))
				now();
			return realSys().epollWait(epfd, events, max, timeout);
		};
	}

	int map(const Range &range, peerbuf_mapping *ret_mapping)
	{
		*ret_mapping = {};
		ret_mapping->struct_size = sizeof(*ret_mapping);
		return fake_.importerHost->map(fake_.importerHost, fake_.lastReg.attachment,
					       range.offset, range.length, ret_mapping);
	}
	void ticketDone(uint64_t ticket)
	{
		fake_.importerHost->ticket_done(fake_.importerHost, ticket);
	}
	uint64_t key(uint64_t reg)
	{
		const auto found = session_->registration(reg);
		EXPECT_TRUE(found);
		return found ? (*found)->members.at(0).attachment->region().key64 : 0;
	}

private:
	static inline std::function<void()> wait_;
};

/* ---- what is passed on ---------------------------------------------------------------------- */

TEST_F(MovesTest, GivenAMoveThenTheImporterAndTheApplicationLearnHowLongAbout)
{
	const uint64_t reg = registered();
	expectedNs_ = 123'456;
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, FIRST));
	EXPECT_EQ(123'456u, fake_.lastInvalidate.expected_ns);
	EXPECT_EQ(FIRST, (Range{fake_.lastInvalidate.offset, fake_.lastInvalidate.length}));
	EXPECT_EQ(1u, fake_.lastInvalidate.generation);
	EXPECT_EQ(0, resume(FIRST, 2));
	EXPECT_EQ(0u, fake_.lastResume.aborted);
	const std::vector<peerbuf_event> told = events();
	ASSERT_EQ(2u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_SUSPENDED}, told[0].type);
	EXPECT_EQ(123'456u, told[0].expected_ns);
	EXPECT_EQ(reg, told[0].reg);
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_RESUMED}, told[1].type);
	EXPECT_EQ(2u, told[1].generation);
	EXPECT_EQ(FIRST, (Range{told[1].offset, told[1].length}));
	EXPECT_TRUE(session_->deregister(reg));
}

TEST_F(MovesTest, GivenWhatAnImporterCanStopThenTheExporterIsToldAtAttach)
{
	const uint64_t reg = registered();
	EXPECT_EQ(uint32_t{PEERBUF_SCOPE_RANGE}, fake_.lastAttach.invalidate_scope);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, fake_.lastAttach.placements);
	EXPECT_TRUE(session_->deregister(reg));
	fake_.importer.offer.invalidate_scope = PEERBUF_SCOPE_WHOLE;
	const uint64_t whole = registered();
	EXPECT_EQ(uint32_t{PEERBUF_SCOPE_WHOLE}, fake_.lastAttach.invalidate_scope);
	EXPECT_TRUE(session_->deregister(whole));
}

TEST_F(MovesTest, GivenAPolicyThatAllowsHostMemoryThenTheExporterIsToldAtAttach)
{
	fake_.exporter.offer.placements |= PEERBUF_PLACEMENT_HOST;
	Policy policy;
	policy.hostPlacementOk = true;
	const uint64_t reg = registered(policy);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST, fake_.lastAttach.placements);
	EXPECT_TRUE(session_->deregister(reg));
	const uint64_t device = registered();
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, fake_.lastAttach.placements);
	EXPECT_TRUE(session_->deregister(device));
}

TEST_F(MovesTest, GivenAMoveOfPinnedMemoryThenBusyAndNobodyIsStopped)
{
	const uint64_t reg = registered(pinned());
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, FIRST));
	drain();
	EXPECT_EQ(0, count("invalidate"));
	ASSERT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(-EBUSY, fake_.dones[0].status);
	EXPECT_EQ(0, resume(FIRST, 1, true)); // as an exporter does that gives up
	EXPECT_TRUE(session_->deregister(reg));
}

/* ---- tickets and generations ---------------------------------------------------------------- */

TEST_F(MovesTest, GivenAnAbortedMoveThenTheGenerationStaysAndTheImporterKnows)
{
	const uint64_t reg = registered();
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, FIRST));
	EXPECT_EQ(0, resume(FIRST, 1, true));
	EXPECT_EQ(1u, fake_.lastResume.aborted);
	EXPECT_EQ(1u, fake_.lastResume.generation);
	const auto buffer = session_->buffer(buffer_);
	ASSERT_TRUE(buffer);
	EXPECT_EQ(1u, (*buffer)->currentGeneration());
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, FIRST));
	EXPECT_EQ(0, resume(FIRST, 7));
	EXPECT_EQ(7u, (*buffer)->currentGeneration());
	EXPECT_TRUE(session_->deregister(reg));
}

TEST_F(MovesTest, GivenATicketThatComesAfterTheAbortThenWhatWasMappedSinceStays)
{
	const uint64_t reg = registered();
	peerbuf_mapping old = {};
	ASSERT_EQ(0, map(FIRST, &old));
	fake_.failing["invalidate"] = -EINPROGRESS;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, FIRST));
	const uint64_t late = fake_.lastInvalidate.ticket;
	EXPECT_EQ(0, resume(FIRST, 1, true)); // past the deadline
	peerbuf_mapping fresh = {};
	ASSERT_EQ(0, map(FIRST, &fresh));
	ASSERT_NE(old.token, fresh.token);
	ticketDone(late);
	drain();
	ASSERT_EQ(1u, fake_.unmapped.size()) << "unmapped under an importer that uses it";
	EXPECT_EQ(old.token, fake_.unmapped[0].token);
	EXPECT_EQ(1u, fake_.dones.size()) << "the exporter is told once, for its own books";
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_EQ(2u, fake_.unmapped.size());
}

TEST_F(MovesTest, GivenNeighboursThatMoveAtOnceThenEachHasItsTicketAndItsResume)
{
	const uint64_t reg = registered();
	fake_.failing["invalidate"] = -EINPROGRESS;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, FIRST, 9, 1));
	const uint64_t first = fake_.lastInvalidate.ticket;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, SECOND, 9, 2));
	const uint64_t second = fake_.lastInvalidate.ticket;
	ticketDone(second);
	drain();
	ASSERT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(2u, fake_.dones[0].cookie);
	EXPECT_EQ(0, resume(SECOND, 2));
	peerbuf_mapping mapping = {};
	EXPECT_EQ(0, map(SECOND, &mapping));
	EXPECT_EQ(-EAGAIN, map(FIRST, &mapping));
	ticketDone(first);
	drain();
	ASSERT_EQ(2u, fake_.dones.size());
	EXPECT_EQ(1u, fake_.dones[1].cookie);
	EXPECT_EQ(0, fake_.dones[1].status);
	EXPECT_EQ(0, resume(FIRST, 3));
	EXPECT_EQ(0, map(FIRST, &mapping));
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_EQ(2u, fake_.unmapped.size());
}

TEST_F(MovesTest, GivenARevokeDuringAMoveThenBothEndAndNoResumeRevivesIt)
{
	const uint64_t reg = registered();
	fake_.failing["invalidate"] = -EINPROGRESS;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, FIRST, 9, 1));
	const uint64_t move = fake_.lastInvalidate.ticket;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_REVOKE, WHOLE, 9, 2));
	const uint64_t revoke = fake_.lastInvalidate.ticket;
	ticketDone(revoke);
	ticketDone(move);
	drain();
	EXPECT_EQ(2u, fake_.dones.size());
	events();
	fake_.calls.clear();
	EXPECT_EQ(0, resume(FIRST, 2));
	EXPECT_TRUE(takeCalls().empty()) << "a revoked importer is not resumed";
	EXPECT_TRUE(events().empty()) << "nor is the application told that it was";
	peerbuf_mapping mapping = {};
	EXPECT_EQ(-ENODEV, map(FIRST, &mapping));
	EXPECT_TRUE(session_->deregister(reg));
}

/* ---- an exporter that is in the middle of a move -------------------------------------------- */

class BusyExporter : public MovesTest, public testing::WithParamInterface<const char *>
{
};

TEST_P(BusyExporter, GivenAgainThenEverythingIsUndoneAndTriedAgain)
{
	fake_.failing[GetParam()] = -EAGAIN;
	fake_.times[GetParam()] = 3;
	const uint64_t reg = registered(pinned());
	EXPECT_NE(0u, reg);
	EXPECT_EQ(4, count(GetParam()));
	EXPECT_EQ(count("attach") - 1 - (GetParam() == std::string("attach") ? 3 : 0),
		  count("detach"));
	EXPECT_EQ(1, count("reg"));
	EXPECT_TRUE(session_->deregister(reg));
	fake_.calls.clear();
}

TEST_P(BusyExporter, GivenAgainForLongerThanPatienceThenAgainAndNothingIsLeft)
{
	fake_.failing[GetParam()] = -EAGAIN;
	{
		const FastClock fast;
		Source source;
		source.buffer = buffer_;
		source.length = 0x1000;
		const auto reg =
			session_->registerMemory(source, {importer_}, READ_WRITE, pinned());
		ASSERT_FALSE(reg);
		EXPECT_EQ(EAGAIN, reg.error().sysErrno);
		EXPECT_TRUE(has(reg.error().what, GetParam())) << reg.error().what;
	}
	EXPECT_LT(1, count(GetParam()));
	EXPECT_EQ(0, count("reg"));
	EXPECT_EQ(GetParam() == std::string("attach") ? 0 : count("attach"), count("detach"));
	const auto buffer = session_->buffer(buffer_);
	ASSERT_TRUE(buffer);
	{
		ReservationLock lock((*buffer)->reservation);
		EXPECT_TRUE((*buffer)->attachments.empty());
	}
	fake_.failing.clear();
	EXPECT_TRUE(session_->free(buffer_));
	fake_.calls.clear();
}

std::string stepName(const testing::TestParamInfo<const char *> &step)
{
	return step.param;
}

INSTANTIATE_TEST_SUITE_P(Steps, BusyExporter, testing::Values("attach", "pin", "map"), stepName);

TEST_F(MovesTest, GivenAllocSaysAgainThenTriedUntilPatienceEnds)
{
	fake_.failing["alloc"] = -EAGAIN;
	fake_.times["alloc"] = 2;
	const auto second = session_->alloc(exporter_, 0x1000);
	ASSERT_TRUE(second) << second.error().what;
	EXPECT_EQ(3, count("alloc"));
	EXPECT_TRUE(session_->free(*second));
	fake_.failing["alloc"] = -EAGAIN;
	const FastClock fast;
	const auto never = session_->alloc(exporter_, 0x1000);
	ASSERT_FALSE(never);
	EXPECT_EQ(EAGAIN, never.error().sysErrno);
}

/* ---- the application's CPU ------------------------------------------------------------------ */

TEST_F(MovesTest, GivenCpuAccessThenAMoveWaitsForTheLastEnd)
{
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0)) << "it nests, also while a move waits";
	for (int i = 0; i < 2; i++) {
		EXPECT_TRUE(session_->cpuEnd(buffer_));
		drain();
		EXPECT_TRUE(fake_.dones.empty());
	}
	EXPECT_TRUE(session_->cpuEnd(buffer_));
	drain();
	ASSERT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(5u, fake_.dones[0].cookie);
	EXPECT_EQ(0, fake_.dones[0].status);
	EXPECT_EQ(0, resume(WHOLE, 2));
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_TRUE(session_->cpuEnd(buffer_));
}

TEST_F(MovesTest, GivenAMoveThatWaitsForOneThreadThenAnotherOneDoesNotKeepItWaiting)
{
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	std::thread([this] {
		const Result<void> begun = session_->cpuBegin(buffer_, 0);
		ASSERT_FALSE(begun);
		EXPECT_EQ(ETIMEDOUT, begun.error().sysErrno);
		EXPECT_TRUE(session_->cpuEnd(buffer_)) << "any thread may end it";
	}).join();
	drain();
	EXPECT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(0, resume(WHOLE, 2));
}

TEST_F(MovesTest, GivenAMoveThenCpuAccessWaitsForItsEndOrTheTimeout)
{
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, FIRST));
	{
		const FastClock fast;
		const Result<void> late = session_->cpuBegin(buffer_, 1'000'000'000);
		ASSERT_FALSE(late);
		EXPECT_EQ(PEERBUF_ERR_TIMEOUT, late.error().code);
		EXPECT_EQ(ETIMEDOUT, late.error().sysErrno);
		EXPECT_TRUE(has(late.error().what, "1000000000")) << late.error().what;
	}
	const Result<void> none = session_->cpuEnd(buffer_);
	ASSERT_FALSE(none) << "a begin that failed counts for nothing";
	onWait([this] { EXPECT_EQ(0, resume(FIRST, 2)); });
	EXPECT_TRUE(session_->cpuBegin(buffer_, UINT64_MAX));
	EXPECT_TRUE(session_->cpuEnd(buffer_));
}

TEST_F(MovesTest, GivenCpuEndWithoutBeginThenInvalid)
{
	const Result<void> ended = session_->cpuEnd(buffer_);
	ASSERT_FALSE(ended);
	EXPECT_EQ(EINVAL, ended.error().sysErrno);
	EXPECT_FALSE(session_->cpuBegin(buffer_ + 1, 0));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, WHOLE)) << "nothing was begun";
}

TEST_F(MovesTest, GivenRevokedMemoryThenNoCpuAccessUntilItCanBeAttachedAgain)
{
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, FIRST));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_REVOKE, WHOLE)); // no resume will come
	const Result<void> begun = session_->cpuBegin(buffer_, 0);
	ASSERT_FALSE(begun);
	EXPECT_EQ(PEERBUF_ERR_REVOKED, begun.error().code);
	EXPECT_EQ(ENODEV, begun.error().sysErrno);
	EXPECT_TRUE(session_->deregister(registered())) << "restored";
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_TRUE(session_->cpuEnd(buffer_));
}

TEST_F(MovesTest, GivenCpuAccessThenTheBufferCannotBeFreed)
{
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	const Result<void> busy = session_->free(buffer_);
	ASSERT_FALSE(busy);
	EXPECT_EQ(EBUSY, busy.error().sysErrno);
	EXPECT_TRUE(has(busy.error().what, "cpu_begin")) << busy.error().what;
	EXPECT_EQ(0, count("free"));
	EXPECT_TRUE(session_->cpuEnd(buffer_));
	EXPECT_TRUE(session_->free(buffer_));
	EXPECT_EQ(1, count("free"));
}

TEST_F(MovesTest, GivenADeviceThatIsClosedUnderCpuAccessThenTheMoveDoesNotWaitForEver)
{
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->closeExporter(exporter_));
	drain();
	EXPECT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(1, count("close"));
	EXPECT_FALSE(session_->cpuEnd(buffer_));
}

TEST_F(MovesTest, GivenTheSessionEndsUnderCpuAccessThenEverythingCloses)
{
	EXPECT_TRUE(session_->cpuBegin(buffer_, 0));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	session_.reset();
	EXPECT_EQ(1, count("free"));
	EXPECT_EQ(1, count("close"));
}

/* ---- the gate ------------------------------------------------------------------------------- */

TEST_F(MovesTest, GivenAnImportersGateThenTheApplicationGetsIt)
{
	fake_.gate.drained = [](peerbuf_gate *) {};
	const auto importer = session_->importer(importer_);
	ASSERT_TRUE(importer);
	const Result<peerbuf_gate *> gate = (*importer)->gate();
	ASSERT_TRUE(gate) << gate.error().what;
	EXPECT_EQ(&fake_.gate, *gate);
}

TEST_F(MovesTest, GivenAGateThatCannotSayWhenItIsEmptyThenRefused)
{
	const auto importer = session_->importer(importer_);
	ASSERT_TRUE(importer);
	const Result<peerbuf_gate *> mute = (*importer)->gate();
	ASSERT_FALSE(mute);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, mute.error().code);
	EXPECT_TRUE(has(mute.error().what, "drained")) << mute.error().what;
	fake_.gate.drained = [](peerbuf_gate *) {};
	fake_.gate.struct_size = 16;
	const Result<peerbuf_gate *> shorter = (*importer)->gate();
	ASSERT_FALSE(shorter);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, shorter.error().code);
	EXPECT_TRUE(has(shorter.error().what, "16 bytes")) << shorter.error().what;
	fake_.givesGate = false;
	const Result<peerbuf_gate *> none = (*importer)->gate();
	ASSERT_FALSE(none);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, none.error().code);
	EXPECT_TRUE(has(none.error().what, "no gate")) << none.error().what;
	fake_.failing["gate"] = -EOPNOTSUPP;
	const Result<peerbuf_gate *> refused = (*importer)->gate();
	ASSERT_FALSE(refused);
	EXPECT_EQ(EOPNOTSUPP, refused.error().sysErrno);
}

/* ---- Rekey ---------------------------------------------------------------------------------- */

/** An importer that cannot stop, and an application that accepts new keys. */
class RekeyTest : public MovesTest
{
protected:
	RekeyTest() { fake_.importer = importerWith(0); }

	uint64_t rekeyed()
	{
		Policy policy;
		policy.rekeyOk = true;
		const uint64_t reg = registered(policy);
		const auto found = session_->registration(reg);
		EXPECT_TRUE(found);
		if (found) {
			EXPECT_EQ(PEERBUF_FLOW_REKEY, (*found)->members.at(0).plan.flow);
		}
		EXPECT_EQ((Calls{"attach", "map", "reg"}), takeCalls());
		return reg;
	}
	/** The registration ends; nothing of it is left. @param mapped, region what it still had.
	 */
	void end(uint64_t reg, bool region, bool mapped)
	{
		takeCalls();
		EXPECT_TRUE(session_->deregister(reg));
		Calls expected;
		if (region)
			expected.emplace_back("dereg");
		if (mapped)
			expected.emplace_back("unmap");
		expected.emplace_back("detach");
		EXPECT_EQ(expected, takeCalls());
		EXPECT_TRUE(session_->free(buffer_));
		EXPECT_TRUE(session_->closeExporter(exporter_));
		EXPECT_EQ(1, count("close")) << "something still holds the device";
	}
};

TEST_F(RekeyTest, GivenAMoveThenTheRegionEndsWhenTheApplicationIsReadyAndComesBackWithANewKey)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(uint32_t{PEERBUF_SCOPE_WHOLE}, fake_.lastAttach.invalidate_scope);
	const uint64_t before = key(reg);
	expectedNs_ = 777;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	drain();
	EXPECT_TRUE(takeCalls().empty()) << "nothing happens before the application is ready";
	std::vector<peerbuf_event> told = events();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_SUSPENDED}, told[0].type);
	EXPECT_EQ(777u, told[0].expected_ns);

	ASSERT_TRUE(session_->rekeyReady(reg));
	EXPECT_EQ((Calls{"dereg", "unmap"}), takeCalls());
	drain();
	EXPECT_EQ((Calls{"invalidate_done"}), takeCalls());
	EXPECT_EQ(0, fake_.dones.at(0).status);
	EXPECT_TRUE(events().empty());

	EXPECT_EQ(0, resume(WHOLE, 2));
	EXPECT_EQ((Calls{"map", "reg"}), takeCalls());
	told = events();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REKEYED}, told[0].type);
	EXPECT_EQ(2u, told[0].generation);
	EXPECT_EQ(reg, told[0].reg);
	EXPECT_NE(before, key(reg));
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenNoMoveThatWaitsThenReadyIsInvalidAndChangesNothing)
{
	const uint64_t reg = rekeyed();
	const auto expectInvalid = [&] {
		const Result<void> ready = session_->rekeyReady(reg);
		ASSERT_FALSE(ready);
		EXPECT_EQ(EINVAL, ready.error().sysErrno);
		EXPECT_TRUE(takeCalls().empty());
	};
	expectInvalid();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->rekeyReady(reg));
	drain();
	takeCalls();
	expectInvalid(); // said once is enough
	EXPECT_EQ(0, resume(WHOLE, 2));
	takeCalls();
	expectInvalid();
	EXPECT_FALSE(session_->rekeyReady(reg + 1));
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenAnApplicationThatNeverAnswersThenTheAbortLeavesEverythingAsItWas)
{
	const uint64_t reg = rekeyed();
	const uint64_t before = key(reg);
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	drain();
	EXPECT_EQ(0, resume(WHOLE, 1, true));
	drain();
	EXPECT_EQ((Calls{"invalidate_done"}), takeCalls()) << "unmapped under a live region";
	EXPECT_EQ(before, key(reg));
	const std::vector<peerbuf_event> told = events();
	ASSERT_EQ(2u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_RESUMED}, told[1].type);
	const Result<void> late = session_->rekeyReady(reg);
	EXPECT_FALSE(late);
	EXPECT_TRUE(takeCalls().empty());
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenTheAbortComesWhileTheRegionEndsThenItComesBackAtOnce)
{
	const uint64_t reg = rekeyed();
	const uint64_t before = key(reg);
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	fake_.inside["dereg"] = [this] { EXPECT_EQ(0, resume(WHOLE, 1, true)); };
	EXPECT_TRUE(session_->rekeyReady(reg));
	fake_.inside.clear();
	EXPECT_EQ((Calls{"dereg", "unmap", "map", "reg"}), takeCalls());
	EXPECT_NE(before, key(reg));
	drain();
	EXPECT_EQ(1u, fake_.dones.size());
	const std::vector<peerbuf_event> told = events();
	ASSERT_FALSE(told.empty());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REKEYED}, told.back().type);
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenARevokeWhileItWaitsThenBothEndWithoutTheApplication)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE, 9, 1));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_REVOKE, WHOLE, 9, 2));
	EXPECT_TRUE(takeCalls().empty()) << "a region cannot end with the reservation held";
	drain();
	EXPECT_EQ((Calls{"dereg", "unmap", "invalidate_done", "invalidate_done"}), takeCalls());
	ASSERT_EQ(2u, fake_.dones.size());
	EXPECT_EQ(0, fake_.dones[0].status);
	EXPECT_EQ(0, fake_.dones[1].status);
	EXPECT_FALSE(session_->rekeyReady(reg));
	EXPECT_EQ(0, resume(WHOLE, 2));
	EXPECT_TRUE(takeCalls().empty()) << "revoked is final";
	const std::vector<peerbuf_event> told = events();
	ASSERT_EQ(2u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REVOKED}, told[1].type);
	end(reg, false, false);
}

TEST_F(RekeyTest, GivenTheNewRegionFailsThenRevokedAndNothingLeaks)
{
	for (const char *step : {"map", "reg"}) {
		SCOPED_TRACE(step);
		const uint64_t reg = rekeyed();
		EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
		EXPECT_TRUE(session_->rekeyReady(reg));
		drain();
		takeCalls();
		events();
		lines_.clear();
		fake_.failing = {{step, -ENOMEM}};
		EXPECT_EQ(0, resume(WHOLE, 2));
		fake_.failing.clear();
		EXPECT_EQ(step == std::string("map") ? (Calls{"map"})
						     : (Calls{"map", "reg", "unmap"}),
			  takeCalls());
		EXPECT_TRUE(warned("rekey"));
		const std::vector<peerbuf_event> told = events();
		ASSERT_EQ(1u, told.size());
		EXPECT_EQ(uint32_t{PEERBUF_EVENT_REVOKED}, told[0].type);
		const auto found = session_->registration(reg);
		ASSERT_TRUE(found);
		EXPECT_TRUE((*found)->members.at(0).attachment->revokedNow());
		EXPECT_EQ(0u, session_->ledger().usage("", "", PEERBUF_LEDGER_WINDOW).used);
		EXPECT_TRUE(session_->deregister(reg));
		EXPECT_EQ((Calls{"detach"}), takeCalls());
	}
}

TEST_F(RekeyTest, GivenTheNextMoveHasBegunBeforeTheNewRegionThenItIsMadeAfterThatOne)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->rekeyReady(reg));
	drain();
	takeCalls();
	events();
	fake_.failing = {{"map", -EAGAIN}};
	EXPECT_EQ(0, resume(WHOLE, 2));
	EXPECT_TRUE(events().empty());
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, WHOLE)) << "nothing to let go of";
	EXPECT_TRUE(events().empty()) << "the application waits already";
	fake_.failing.clear();
	takeCalls();
	EXPECT_EQ(0, resume(WHOLE, 3));
	EXPECT_EQ((Calls{"map", "reg"}), takeCalls());
	const std::vector<peerbuf_event> told = events();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REKEYED}, told[0].type);
	EXPECT_EQ(3u, told[0].generation);
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenAPartComesBackThenTheRestIsWaitedFor)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, FIRST, 9, 1));
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, SECOND, 9, 2));
	events();
	EXPECT_EQ(0, resume(FIRST, 1, true));
	drain();
	EXPECT_TRUE(fake_.dones.empty()) << "answered for a part that is still to move";
	EXPECT_TRUE(events().empty());
	EXPECT_TRUE(session_->rekeyReady(reg));
	drain();
	EXPECT_EQ(2u, fake_.dones.size());
	EXPECT_EQ(0, resume(SECOND, 2));
	const std::vector<peerbuf_event> told = events();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REKEYED}, told[0].type);
	end(reg, true, true);
}

TEST_F(RekeyTest, GivenDeregisterWhileItWaitsThenTheMoveGoesOn)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_EQ((Calls{"dereg", "unmap", "detach"}), takeCalls());
	drain();
	ASSERT_EQ(1u, fake_.dones.size());
	EXPECT_EQ(0, fake_.dones[0].status);
	EXPECT_EQ(0, resume(WHOLE, 2));
	drain();
	EXPECT_EQ((Calls{"invalidate_done"}), takeCalls());
}

TEST_F(RekeyTest, GivenDeregisterBetweenTwoRegionsThenNoneIsMade)
{
	const uint64_t reg = rekeyed();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, WHOLE));
	EXPECT_TRUE(session_->rekeyReady(reg));
	drain();
	takeCalls();
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_EQ(0, resume(WHOLE, 2));
	EXPECT_EQ((Calls{"detach"}), takeCalls());
}

} // namespace
} // namespace peerbuf
