// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file gate_test.cpp
 * The gate of a domain: who may be inside when, who says so, and what keeps it closed.
 */
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importer/fabric/domain_gate.h"
#include "stand_in_domain.h"
#include "support.h"

namespace peerbuf::test
{
namespace
{

using fabric::DomainGate;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GateAlone : public ::testing::Test
{
protected:
	std::vector<uint64_t> answered_;
	uint64_t now_ = 1000;
	DomainGate domain_{[this](uint64_t ticket) { answered_.push_back(ticket); },
			   [this] { return now_; }};
	peerbuf_gate *gate_ = domain_.gate();
};

TEST_F(GateAlone, GivenNobodyInsideThenItClosesAtOnceAndTurnsAway)
{
	EXPECT_TRUE(domain_.close(1, 10));
	EXPECT_EQ(peerbuf_progress_enter(gate_), -EAGAIN);
	EXPECT_THAT(answered_, IsEmpty()); // the close was the answer
	now_ += 70;
	EXPECT_TRUE(domain_.open(1));
	EXPECT_EQ(peerbuf_progress_enter(gate_), 0);
	peerbuf_progress_leave(gate_);

	peerbuf_pause pauses[2] = {};
	EXPECT_EQ(domain_.takePauses(pauses, 2), 1u);
	EXPECT_EQ(pauses[0].ns, 70u);
	EXPECT_EQ(domain_.takePauses(pauses, 2), 0u);
	EXPECT_EQ(domain_.pauses(), 1u);
}

TEST_F(GateAlone, GivenSomebodyInsideThenTheLastToLeaveAnswers)
{
	ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
	ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
	EXPECT_FALSE(domain_.close(1, 10));
	EXPECT_FALSE(domain_.close(2, 20));
	EXPECT_EQ(peerbuf_progress_enter(gate_), -EAGAIN);
	peerbuf_progress_leave(gate_);
	EXPECT_THAT(answered_, IsEmpty());
	peerbuf_progress_leave(gate_);
	EXPECT_THAT(answered_, ElementsAre(10, 20));
	EXPECT_EQ(peerbuf_progress_enter(gate_), -EAGAIN); // and answers nobody twice
	EXPECT_THAT(answered_, ElementsAre(10, 20));
}

TEST_F(GateAlone, GivenTwoReasonsThenTheLastOneOpensIt)
{
	EXPECT_TRUE(domain_.close(1, 10));
	EXPECT_TRUE(domain_.close(2, 20));
	EXPECT_TRUE(domain_.close(2, 21));
	EXPECT_TRUE(domain_.open(2));
	EXPECT_TRUE(domain_.open(1));
	EXPECT_EQ(peerbuf_progress_enter(gate_), -EAGAIN);
	EXPECT_FALSE(domain_.open(1)); // it had one
	EXPECT_TRUE(domain_.open(2));
	EXPECT_EQ(peerbuf_progress_enter(gate_), 0);
	peerbuf_progress_leave(gate_);
	EXPECT_EQ(domain_.pauses(), 1u);
}

TEST_F(GateAlone, GivenAHolderThatEndsThenNothingOfItKeepsTheGateClosed)
{
	ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
	EXPECT_FALSE(domain_.close(1, 10));
	EXPECT_FALSE(domain_.close(1, 11));
	domain_.forget(1);
	EXPECT_EQ(peerbuf_progress_enter(gate_), 0);
	peerbuf_progress_leave(gate_);
	peerbuf_progress_leave(gate_);
	EXPECT_THAT(answered_, ElementsAre(10, 11)); // late, for whom it may concern
	domain_.forget(1);
	EXPECT_EQ(domain_.pauses(), 1u);
}

/* Threads that go in and out while another closes: never somebody inside a drained gate. */
TEST(GateUnderThreads, GivenManyEntriesThenADrainedGateIsEmpty)
{
	std::atomic<uint64_t> lastAnswered{0};
	DomainGate domain([&](uint64_t ticket) { lastAnswered.store(ticket); },
			  [] { return uint64_t{1}; });
	std::atomic<int> inside{0};
	std::atomic<bool> stop{false};
	std::atomic<uint64_t> entries{0};
	std::atomic<uint64_t> turnedAway{0};
	std::vector<std::thread> threads;
	threads.reserve(3);
	for (int i = 0; i < 3; i++)
		threads.emplace_back([&] {
			while (!stop) {
				if (peerbuf_progress_enter(domain.gate())) {
					turnedAway++;
					std::this_thread::yield();
					continue;
				}
				inside++;
				inside--;
				entries++;
				peerbuf_progress_leave(domain.gate());
			}
		});
	uint64_t waited = 0;
	constexpr uint64_t rounds = 3000;
	for (uint64_t round = 1; round <= rounds; round++) {
		if (!domain.close(7, round)) {
			waited++;
			while (lastAnswered.load() != round)
				std::this_thread::yield();
		}
		EXPECT_EQ(inside.load(), 0);
		EXPECT_TRUE(domain.open(7));
		std::this_thread::yield();
	}
	// both ways of closing have been met, whatever the scheduler does
	while (!entries.load())
		std::this_thread::yield();
	stop = true;
	for (std::thread &thread : threads)
		thread.join();
	EXPECT_EQ(domain.pauses(), rounds);
	RecordProperty("waited", static_cast<int>(waited));
	RecordProperty("turned_away", static_cast<int>(turnedAway.load()));
}

/* ---- which domains have one ---------------------------------------------------------------- */

class ScopedEnv
{
public:
	ScopedEnv(const char *name, const char *value) : name_(name)
	{
		setenv(name, value, 1); // NOLINT(concurrency-mt-unsafe): one thread
	}
	~ScopedEnv() { unsetenv(name_); } // NOLINT(concurrency-mt-unsafe): one thread
	ScopedEnv(const ScopedEnv &) = delete;
	ScopedEnv &operator=(const ScopedEnv &) = delete;

private:
	const char *name_;
};

/** The offer of a domain opened as @p flags say, and whether it has a gate. */
peerbuf_importer_offer offerOf(StandInDomain &domain, uint32_t flags, bool *retGate)
{
	FakeHost host;
	int err = 0;
	auto objects = objectsOf(domain.domain(), domain.info(), domain.ep());
	objects.flags = flags;
	const auto importer = OpenImporter::open(host, &objects, {}, &err);
	EXPECT_EQ(err, 0) << host.why();
	if (!importer)
		return {};
	*retGate = importer->gate() != nullptr;
	if (!*retGate) {
		EXPECT_THAT(host.why(), HasSubstr("no gate"));
	}
	return importer->offer();
}

constexpr uint32_t follows = PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT;

TEST(FabricGate, GivenATestedProviderThatIsBracketedThenItFollowsMoves)
{
	for (const char *provider : {"tcp", "tcp;ofi_rxm"}) {
		StandInDomain domain(provider, 0);
		domain.info()->domain_attr->data_progress = FI_PROGRESS_MANUAL;
		bool gate = false;
		const auto offer = offerOf(domain, PEERBUF_FABRIC_BRACKETED, &gate);
		EXPECT_TRUE(gate) << provider;
		EXPECT_EQ(offer.invalidation, follows);
		EXPECT_EQ(offer.invalidate_scope, static_cast<uint32_t>(PEERBUF_SCOPE_RANGE));
		EXPECT_EQ(offer.notified_by, static_cast<uint32_t>(PEERBUF_NOTIFIED_BY_USER));
		EXPECT_GT(offer.resume_cost_ns, 0u);
		EXPECT_STREQ(offer.why, "");
	}
}

struct Fixed {
	const char *name;
	const char *provider;
	uint32_t flags;
	enum fi_progress progress;
	const char *variable;
	const char *why;
};

class FabricFixed : public ::testing::TestWithParam<Fixed>
{
};

TEST_P(FabricFixed, GivenAnythingPastTheGateThenNothingIsMovableAndWhyIsSaid)
{
	const Fixed &c = GetParam();
	StandInDomain domain(c.provider, 0);
	domain.info()->domain_attr->data_progress = c.progress;
	const ScopedEnv env(c.variable ? c.variable : "PEERBUF_TEST_UNUSED", "1");
	bool gate = true;
	const auto offer = offerOf(domain, c.flags, &gate);
	EXPECT_FALSE(gate);
	EXPECT_EQ(offer.invalidation, 0u);
	EXPECT_THAT(offer.why, HasSubstr(c.why));
	EXPECT_THAT(offer.why, HasSubstr("regions are pinned"));
}

constexpr uint32_t bracketed = PEERBUF_FABRIC_BRACKETED;

INSTANTIATE_TEST_SUITE_P(
	Reasons, FabricFixed,
	::testing::Values(
		Fixed{"not_bracketed", "tcp", 0, FI_PROGRESS_MANUAL, nullptr, "does not bracket"},
		Fixed{"automatic", "tcp;ofi_rxm", bracketed, FI_PROGRESS_AUTO, nullptr,
		      "automatic data progress"},
		Fixed{"io_uring", "tcp", bracketed, FI_PROGRESS_MANUAL, "FI_TCP_IO_URING",
		      "FI_TCP_IO_URING"},
		Fixed{"zero_copy", "tcp", bracketed, FI_PROGRESS_MANUAL, "FI_TCP_ZEROCOPY_SIZE",
		      "FI_TCP_ZEROCOPY_SIZE"},
		Fixed{"dsa", "shm", bracketed | PEERBUF_FABRIC_PEERS_WITHOUT_CMA,
		      FI_PROGRESS_MANUAL, "FI_SHM_USE_DSA_SAR", "FI_SHM_USE_DSA_SAR"},
		Fixed{"cma", "shm", bracketed, FI_PROGRESS_MANUAL, nullptr, "CMA"},
		Fixed{"untested", "net", bracketed, FI_PROGRESS_MANUAL, nullptr, "tested"},
		Fixed{"own_thread", "sockets", bracketed, FI_PROGRESS_MANUAL, nullptr, "thread"}),
	[](const auto &param) { return std::string(param.param.name); });

/* ---- regions behind it --------------------------------------------------------------------- */

class FabricSuspended : public ::testing::Test
{
protected:
	void SetUp() override
	{
		domain_.info()->domain_attr->data_progress = FI_PROGRESS_MANUAL;
		auto objects = objectsOf(domain_.domain(), domain_.info(), domain_.ep());
		objects.flags = PEERBUF_FABRIC_BRACKETED;
		int err = 0;
		importer_ = OpenImporter::open(host_, &objects, {}, &err);
		ASSERT_EQ(err, 0) << host_.why();
		gate_ = importer_->gate();
		ASSERT_NE(gate_, nullptr);
	}
	void TearDown() override
	{
		importer_.reset();
		EXPECT_EQ(domain_.live, 0u);
		EXPECT_EQ(domain_.breaches, 0u);
		EXPECT_THAT(host_.warnings(), IsEmpty());
	}
	peerbuf_region reg(uint64_t attachment, uint32_t flow)
	{
		auto request = memory_.request(0, memory_.size(), readWrite);
		request.attachment = attachment;
		request.flow = flow;
		peerbuf_region region = {};
		EXPECT_EQ(importer_->reg(request, &region), 0) << host_.why();
		return region;
	}
	bool open()
	{
		if (peerbuf_progress_enter(gate_))
			return false;
		peerbuf_progress_leave(gate_);
		return true;
	}

	StandInDomain domain_{"tcp;ofi_rxm", 0};
	FakeHost host_;
	Memory memory_{size_t{16} * 4096};
	std::unique_ptr<OpenImporter> importer_;
	peerbuf_gate *gate_ = nullptr;
};

TEST_F(FabricSuspended, GivenAMoveThenTheGateIsClosedUntilTheSliceIsResumed)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 0, 4096, 1), 0);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 8192, 4096, 2), 0);
	EXPECT_FALSE(open());
	importer_->resume(5, 0, 4096);
	EXPECT_FALSE(open()); // the other slice
	importer_->resume(5, 4096, 4096);
	EXPECT_FALSE(open()); // of something else
	importer_->resume(5, 0, memory_.size());
	EXPECT_TRUE(open());
	EXPECT_EQ(importer_->stats().pauses, 1u);
	EXPECT_EQ(importer_->pauses().size(), 1u);
	EXPECT_THAT(host_.tickets(), IsEmpty());
	importer_->dereg(region.token);
}

TEST_F(FabricSuspended, GivenACallUnderWayThenItsEndGivesTheTicketBack)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 0, 4096, 77), -EINPROGRESS);
	EXPECT_THAT(host_.tickets(), IsEmpty());
	peerbuf_progress_leave(gate_);
	EXPECT_THAT(host_.tickets(), ElementsAre(77));
	importer_->resume(5, 0, 4096);
	EXPECT_TRUE(open());
	importer_->dereg(region.token);
}

TEST_F(FabricSuspended, GivenARegionThatEndsWhileSuspendedThenTheOthersGoOn)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	const auto other = reg(6, PEERBUF_FLOW_MOVABLE);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 0, 4096, 1), 0);
	EXPECT_FALSE(open());
	importer_->dereg(region.token);
	EXPECT_TRUE(open());
	importer_->resume(5, 0, 4096); // late, and of nothing
	EXPECT_TRUE(open());
	importer_->dereg(other.token);
}

TEST_F(FabricSuspended, GivenARevokeThenTheKeyIsGoneAndStaysUnusedUntilDereg)
{
	const auto region = reg(5, PEERBUF_FLOW_REVOCABLE);
	const auto other = reg(6, PEERBUF_FLOW_MOVABLE);
	ASSERT_EQ(domain_.live, 2u);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_REVOKE, 5, 0, memory_.size(), 1), 0);
	EXPECT_EQ(domain_.live, 1u);
	EXPECT_EQ(domain_.keys.count(region.key64), 0u);
	EXPECT_TRUE(open());
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_REVOKE, 5, 0, memory_.size(), 2), 0);
	EXPECT_EQ(domain_.live, 1u);
	const auto later = reg(7, PEERBUF_FLOW_MOVABLE);
	EXPECT_NE(later.key64, region.key64);
	importer_->dereg(region.token); // idempotent in any order
	EXPECT_EQ(domain_.live, 2u);
	importer_->dereg(other.token);
	importer_->dereg(later.token);
}

TEST_F(FabricSuspended, GivenARevokeDuringACallThenTheRegionEndsWhenItIsOver)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_REVOKE, 5, 0, memory_.size(), 9),
		  -EINPROGRESS);
	EXPECT_EQ(domain_.live, 1u);
	peerbuf_progress_leave(gate_);
	EXPECT_EQ(domain_.live, 0u);
	EXPECT_THAT(host_.tickets(), ElementsAre(9));
	EXPECT_TRUE(open());
	importer_->dereg(region.token);
}

TEST_F(FabricSuspended, GivenARevokeInTheMiddleOfAMoveThenNoResumeIsWaitedFor)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 0, 4096, 1), 0);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_REVOKE, 5, 0, memory_.size(), 2), 0);
	EXPECT_TRUE(open());
	EXPECT_EQ(domain_.live, 0u);
	importer_->dereg(region.token);
}

TEST_F(FabricSuspended, GivenSomethingItDoesNotKnowThenThereIsNothingToStop)
{
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 99, 0, 4096, 1), 0);
	EXPECT_TRUE(open());
}

TEST_F(FabricSuspended, GivenAnInvalidateThatFailsThenNothingIsClosed)
{
	const auto region = reg(5, PEERBUF_FLOW_MOVABLE);
	ASSERT_EQ(importer_->fault("invalidate", 0, 1, -EIO), 0);
	EXPECT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, 5, 0, 4096, 1), -EIO);
	EXPECT_TRUE(open());
	importer_->dereg(region.token);
}

} // namespace
} // namespace peerbuf::test
