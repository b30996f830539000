// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file mutant_test.cpp
 * A NIC that is wrong on purpose breaks the promise named for it; the same promise holds without.
 */
#include <cerrno>
#include <functional>

#include <gtest/gtest.h>

#include "promises.h"
#include "tests/support/seed.h"

using namespace peerbuf::test;

namespace
{

/** @return what the promise says of the mutant; "" if it went unnoticed. */
std::string caught(const std::string &mutant,
		   const std::function<std::string(const Params &)> &promise)
{
	EXPECT_EQ(promise({}), "");
	std::string why = promise({{"mutant", mutant}});
	::testing::Test::RecordProperty(mutant, why);
	return why;
}

std::string ticketOfMove(const Params &params)
{
	return oneTicketAfterTheLastPacket(params, PEERBUF_REASON_MOVE);
}

} // namespace

TEST(Mutant, TicketLostIsCaught)
{
	EXPECT_EQ(caught("ticket_lost", ticketOfMove), "0 tickets");
}

TEST(Mutant, TicketDoubleIsCaught)
{
	EXPECT_EQ(caught("ticket_double", ticketOfMove), "2 tickets");
}

TEST(Mutant, TicketBeforeDrainIsCaught)
{
	EXPECT_EQ(caught("ticket_before_drain", ticketOfMove),
		  "memory was written after the ticket");
}

TEST(Mutant, TicketBeforeDrainIsCountedByTheNicItself)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mutant", "ticket_before_drain"}, {"mtu", "512"}, {"trace", "yes"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.post(PEERBUF_TRANSFER_WRITE, region.key64, 0, bytes, 1), 0);
	ASSERT_TRUE(nic.stepIntoFlight());
	ASSERT_EQ(nic.invalidate(PEERBUF_REASON_MOVE, 0, page), -EINPROGRESS);
	EXPECT_EQ(nic.stats().violations, 0u);
	nic.drain();
	EXPECT_GT(nic.stats().violations, 0u);
}

TEST(Mutant, OffsetDroppedIsCaught)
{
	for (const bool movable : {false}) {
		const auto promise = [&](const Params &params) {
			return bytesGoWhereTheyBelong(params, 3, movable);
		};
		EXPECT_NE(caught("offset_dropped", promise).find("first wrong byte"),
			  std::string::npos);
	}
}

TEST(Mutant, FirstSegmentOnlyIsCaught)
{
	for (const bool movable : {true, false}) {
		const auto promise = [&](const Params &params) {
			return bytesGoWhereTheyBelong(params, 3, movable);
		};
		EXPECT_NE(caught("first_segment_only", promise).find("first wrong byte"),
			  std::string::npos);
	}
}

TEST(Mutant, KeyReuseAfterRevokeIsCaught)
{
	EXPECT_NE(caught("key_reuse_after_revoke", revokedKeyStaysTaken).find("0 keys used"),
		  std::string::npos);
}

TEST(Mutant, KeyReuseAfterRevokeLetsAStalePeerIntoAnotherRegion)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mutant", "key_reuse_after_revoke"}});
	peerbuf_region revoked;
	peerbuf_region other;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), revoked), 0);
	ASSERT_EQ(nic.invalidate(PEERBUF_REASON_REVOKE, 0, page), 0);
	ASSERT_EQ(nic.reg(nic.request(page, page, 0), other), 0);
	EXPECT_EQ(other.key64, revoked.key64);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, revoked.key64, 0, bytes), 0);
	EXPECT_EQ(host.read(page, page), bytes);
	// the fault is only in the keys: dereg of the one does not end the other
	nic.dereg(revoked);
	EXPECT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, other.key64, 0, bytes), 0);
	nic.dereg(other);
	EXPECT_EQ(nic.stats().keys_used, 0u);
}

TEST(Mutant, P2pFlagIgnoredIsCaught)
{
	EXPECT_EQ(caught("p2p_flag_ignored", peerMemoryIsRefused), "the offer claims peer-to-peer");
}

TEST(Mutant, P2pFlagIgnoredIsCountedByTheNicItself)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mutant", "p2p_flag_ignored"}, {"peer2peer", "no"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, region.key64, 0, bytes), 0);
	EXPECT_GT(nic.stats().violations, 0u);
}

TEST(Mutant, StaleTranslationAfterResumeIsCaught)
{
	EXPECT_NE(caught("stale_translation_after_resume", resumeUsesTheNewPlace)
			  .find("first wrong byte"),
		  std::string::npos);
}

TEST(Mutant, StaleTranslationAfterResumeIsCountedByTheNicItself)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mutant", "stale_translation_after_resume"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, region.key64, 0, bytes), 0);
	nic.move(0, page);
	EXPECT_EQ(nic.stats().violations, 0u);
	ASSERT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, region.key64, 0, bytes), 0);
	EXPECT_GT(nic.stats().violations, 0u);
}

TEST(Mutant, NoResumeAfterAbortIsCaught)
{
	EXPECT_EQ(caught("no_resume_after_abort", resumeAfterAbortGoesOn),
		  "write after the aborted move: -16");
}

TEST(Mutant, UntranslatedIsCaughtAndNeverReportedAsASuccess)
{
	EXPECT_EQ(caught("untranslated", domainAddressesAreUsed), "write: -5");
}

/** Each fault is caught, and the very same traffic is right without it. */
TEST(Mutant, MovesUnderTrafficCatchEveryFaultOfMoving)
{
	const uint64_t first = peerbuf::test::seed();
	constexpr uint64_t tries = 20;
	for (const char *mutant : {"ticket_lost", "ticket_double", "ticket_before_drain",
				   "stale_translation_after_resume", "no_resume_after_abort"}) {
		std::string why;
		uint64_t tried = first;
		while (tried < first + tries &&
		       (why = movesUnderTraffic({{"mutant", mutant}}, tried)).empty())
			tried++;
		EXPECT_NE(why, "") << mutant << " with " << seed_variable << "=" << first << " to "
				   << first + tries - 1;
		EXPECT_EQ(movesUnderTraffic({}, tried), "")
			<< "without " << mutant << ", " << seed_variable << "=" << tried;
	}
}
