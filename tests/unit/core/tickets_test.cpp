// SPDX-License-Identifier: BSD-3-Clause
#include "core/tickets.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace peerbuf
{
namespace
{

class TicketsTest : public testing::Test
{
protected:
	uint64_t issue(uint64_t attachment = 1)
	{
		return tickets_.issue(
			{operation_, attachment, PEERBUF_REASON_MOVE, Range{0, 0x1000}});
	}

	Tickets tickets_;
	std::shared_ptr<Operation> operation_ = std::make_shared<Operation>();
};

TEST_F(TicketsTest, GivenAnswerThenFreshOnceThenAgain)
{
	const uint64_t id = issue();
	EXPECT_NE(0u, id);
	EXPECT_FALSE(tickets_.anyDone());
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(id));
	EXPECT_TRUE(tickets_.anyDone());
	EXPECT_EQ(Tickets::Answer::Again, tickets_.done(id));
	const std::optional<Ticket> ticket = tickets_.takeDone();
	ASSERT_TRUE(ticket);
	EXPECT_EQ(operation_, ticket->operation);
	EXPECT_EQ(1u, ticket->attachment);
	EXPECT_EQ((Range{0, 0x1000}), ticket->range);
	EXPECT_FALSE(tickets_.takeDone()) << "processed once";
	EXPECT_FALSE(tickets_.anyDone());
	EXPECT_EQ(Tickets::Answer::Again, tickets_.done(id)) << "also after it was processed";
}

TEST_F(TicketsTest, GivenATicketThatNeverWasThenLate)
{
	EXPECT_EQ(Tickets::Answer::Late, tickets_.done(12345));
	EXPECT_EQ(Tickets::Answer::Late, tickets_.done(0));
	EXPECT_FALSE(tickets_.anyDone());
}

TEST_F(TicketsTest, GivenTheInvalidateItselfAnsweredThenATicketOnTopIsABreach)
{
	const uint64_t id = issue();
	tickets_.answered(id);
	EXPECT_EQ(Tickets::Answer::Again, tickets_.done(id));
	EXPECT_FALSE(tickets_.takeDone());
}

// "it may come before that invalidate has returned"
TEST_F(TicketsTest, GivenDoneBeforeTheInvalidateReturnedZeroThenNotProcessedTwice)
{
	const uint64_t id = issue();
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(id));
	tickets_.answered(id);
	EXPECT_FALSE(tickets_.takeDone());
	EXPECT_FALSE(tickets_.anyDone());
}

TEST_F(TicketsTest, GivenAttachmentGoneThenItsOpenTicketsAreReturnedAndLateOnesDropped)
{
	const uint64_t a = issue(1);
	const uint64_t b = issue(2);
	const uint64_t c = issue(1);
	EXPECT_EQ(2u, tickets_.forget(1).size());
	EXPECT_EQ(Tickets::Answer::Late, tickets_.done(a));
	EXPECT_EQ(Tickets::Answer::Late, tickets_.done(c));
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(b));
	EXPECT_TRUE(tickets_.forget(1).empty());
	ASSERT_TRUE(tickets_.takeDone());
}

TEST_F(TicketsTest, GivenDoneButNotYetProcessedWhenForgottenThenNotProcessedAgain)
{
	const uint64_t id = issue(1);
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(id));
	EXPECT_EQ(1u, tickets_.forget(1).size());
	EXPECT_FALSE(tickets_.takeDone());
}

TEST_F(TicketsTest, GivenSeveralDoneThenProcessedInOrder)
{
	const uint64_t a = issue(1);
	const uint64_t b = issue(2);
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(b));
	EXPECT_EQ(Tickets::Answer::Fresh, tickets_.done(a));
	EXPECT_EQ(2u, tickets_.takeDone()->attachment);
	EXPECT_EQ(1u, tickets_.takeDone()->attachment);
}

TEST_F(TicketsTest, GivenOperationThenOverWhenTheWalkAndEveryTicketAre)
{
	issue(1);
	issue(2);
	EXPECT_FALSE(tickets_.finish(*operation_, 0)); // the walk
	EXPECT_FALSE(tickets_.finish(*operation_, 0));
	EXPECT_TRUE(tickets_.finish(*operation_, 0));
	EXPECT_EQ(0, operation_->status);
}

TEST_F(TicketsTest, GivenSeveralFailuresThenTheFirstIsKept)
{
	issue(1);
	issue(2);
	EXPECT_FALSE(tickets_.finish(*operation_, -EIO));
	EXPECT_FALSE(tickets_.finish(*operation_, -ENODEV));
	EXPECT_TRUE(tickets_.finish(*operation_, 0));
	EXPECT_EQ(-EIO, operation_->status);
}

TEST_F(TicketsTest, GivenNoImporterThenOverWithTheWalk)
{
	EXPECT_TRUE(tickets_.finish(*operation_, 0));
}

TEST_F(TicketsTest, GivenIdsThenNeverTheSameTwice)
{
	const uint64_t a = issue();
	tickets_.answered(a);
	const uint64_t b = issue();
	EXPECT_NE(a, b);
}

TEST_F(TicketsTest, GivenManyClosedThenTheOldestAreForgottenAndTheLatestStillKnown)
{
	const uint64_t first = issue();
	tickets_.answered(first);
	uint64_t last = 0;
	for (int n = 0; n < 1000; n++) {
		last = issue();
		tickets_.answered(last);
	}
	EXPECT_EQ(Tickets::Answer::Late, tickets_.done(first));
	EXPECT_EQ(Tickets::Answer::Again, tickets_.done(last));
}

/** Importers answer from their own threads; each answer counts once and none is lost. */
TEST_F(TicketsTest, GivenAnswersFromManyThreadsThenEachOnce)
{
	constexpr unsigned THREADS = 4;
	constexpr unsigned EACH = 500;
	std::vector<uint64_t> ids;
	for (unsigned n = 0; n < EACH; n++)
		ids.push_back(issue(n));
	std::atomic<unsigned> fresh{0};
	std::vector<std::thread> threads;
	for (unsigned t = 0; t < THREADS; t++)
		threads.emplace_back([&] { // all of them answer all tickets
			for (const uint64_t id : ids)
				if (tickets_.done(id) == Tickets::Answer::Fresh)
					fresh++;
		});
	for (std::thread &t : threads)
		t.join();
	EXPECT_EQ(EACH, fresh);
	unsigned processed = 0;
	while (tickets_.takeDone())
		processed++;
	EXPECT_EQ(EACH, processed);
}

} // namespace
} // namespace peerbuf
