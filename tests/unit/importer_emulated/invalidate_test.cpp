// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>

#include <gtest/gtest.h>

#include "promises.h"

using namespace peerbuf::test;

namespace
{

constexpr uint32_t Move = PEERBUF_REASON_MOVE;
constexpr uint32_t Revoke = PEERBUF_REASON_REVOKE;

} // namespace

TEST(Invalidate, GivenNothingMappedOrNothingKnownThenDoneAtOnce)
{
	for (const uint32_t reason : {Move, Revoke}) {
		ServingHost host(8);
		OpenNic nic(host, {});
		EXPECT_EQ(nic.invalidate(reason, 0, page), 0); // nothing is registered
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(2 * page, 2 * page, 0), region), 0);
		EXPECT_EQ(nic.invalidate(reason, 0, page, 12345), 0); // another attachment
		EXPECT_EQ(nic.invalidate(reason, 0, 2 * page), 0);    // before the region
		EXPECT_EQ(nic.invalidate(reason, 4 * page, page), 0); // behind it
		EXPECT_EQ(nic.invalidate(reason, UINT64_MAX - 5, 100), 0);
		nic.resume(0, page, false, 12345);
		nic.resume(0, page);
		Bytes bytes = pattern(2 * page, 1);
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
		// larger than the region, twice
		host.suspend(0, host.size());
		EXPECT_EQ(nic.invalidate(reason, 0, UINT64_MAX), 0);
		EXPECT_EQ(nic.invalidate(reason, 0, UINT64_MAX), 0);
		EXPECT_EQ(nic.stats().translations, 0u);
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes),
			  reason == Move ? -EBUSY : -EACCES);
		EXPECT_EQ(nic.stats().violations, 0u);
	}
}

TEST(Invalidate, GivenAReasonThatIsNoneThenRefused)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	EXPECT_EQ(nic.invalidate(0, 0, page), -EINVAL);
	EXPECT_EQ(nic.invalidate(3, 0, page), -EINVAL);
	EXPECT_NE(host.lastFailure().find("reason 3"), std::string::npos);
}

TEST(Invalidate, GivenPacketsInFlightThenOneTicketWhenTheyHaveLanded)
{
	for (const uint32_t reason : {Move, Revoke}) {
		for (int seed = 0; seed < 30; seed++) {
			for (const char *early : {"yes", "no"})
				EXPECT_EQ(
					oneTicketAfterTheLastPacket({{"seed", std::to_string(seed)},
								     {"early_completion", early}},
								    reason),
					"")
					<< reason << " seed " << seed;
		}
	}
}

TEST(Invalidate, GivenAnEarlyCompletionThenTheTicketStillWaitsForTheBytes)
{
	for (int seed = 0; seed < 50; seed++) {
		ServingHost host(8);
		OpenNic nic(host, {{"early_completion", "yes"}, {"seed", std::to_string(seed)}});
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
		Bytes bytes = pattern(page, 1);
		ASSERT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
		if (host.read(0, page) == bytes)
			continue;
		EXPECT_EQ(nic.invalidate(Revoke, 0, page), -EINPROGRESS);
		EXPECT_EQ(host.ticketsDone(nic.lastTicket()), 0u);
		nic.drain();
		EXPECT_EQ(host.ticketsDone(nic.lastTicket()), 1u);
		EXPECT_EQ(host.read(0, page), bytes);
		return;
	}
	FAIL() << "no seed completed early";
}

TEST(Invalidate, GivenItTwiceWhileInFlightThenEachTicketComesOnce)
{
	ServingHost host(8);
	OpenNic nic(host, {{"trace", "yes"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	ASSERT_TRUE(nic.stepIntoFlight());
	EXPECT_EQ(nic.invalidate(Move, 0, page), -EINPROGRESS);
	EXPECT_EQ(nic.invalidate(Revoke, 0, page), -EINPROGRESS);
	nic.drain();
	EXPECT_EQ(host.ticketsDone(1), 1u);
	EXPECT_EQ(host.ticketsDone(2), 1u);
	EXPECT_EQ(nic.invalidate(Revoke, 0, page), 0);
}

TEST(Invalidate, GivenItFromInsideMapBeforeRegReturnsThenNothingOfTheMappingIsUsed)
{
	for (const uint32_t reason : {Move, Revoke}) {
		ServingHost host(8);
		OpenNic nic(host, {{"prefault", "yes"}});
		int rc = 0;
		int calls = 0;
		host.onMapped = [&](peerbuf_mapping &) {
			if (!calls++)
				rc = nic.invalidate(reason, 0, host.size());
		};
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
		EXPECT_EQ(rc, -EINPROGRESS);
		EXPECT_EQ(host.ticketsDone(1), 1u);
		EXPECT_EQ(nic.stats().translations, 0u);
		// what was mapped is gone; using it would be a use after free
		host.relocate(0, host.size());
		Bytes bytes = pattern(page, 1);
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes),
			  reason == Move ? -EBUSY : -EACCES);
		nic.resume(0, host.size());
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes),
			  reason == Move ? 0 : -EACCES);
		EXPECT_EQ(host.strayBytes(), 0u);
	}
}

TEST(Invalidate, GivenItWhileARefaultIsUnderWayThenTheTicketWaitsForIt)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	int calls = 0;
	host.onMapped = [&](peerbuf_mapping &) {
		if (calls++)
			return;
		EXPECT_EQ(nic.invalidate(Move, 0, page), -EINPROGRESS);
		EXPECT_EQ(host.ticketsDone(1), 0u);
	};
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), -EBUSY);
	EXPECT_EQ(host.ticketsDone(1), 1u);
	EXPECT_EQ(nic.stats().translations, 0u);
	host.relocate(0, page);
	nic.resume(0, page);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(host.read(0, page), bytes);
	EXPECT_EQ(nic.stats().violations, 0u);
}

TEST(Invalidate, GivenAFaultThenItsErrnoIsReturned)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	ASSERT_EQ(nic.ops().fault(nic.raw(), "invalidate", 0, 1, -EIO, 1000), 0);
	EXPECT_EQ(nic.invalidate(Revoke, 0, page), -EIO);
	EXPECT_NE(host.lastFailure().find("invalidate"), std::string::npos);
	EXPECT_EQ(nic.invalidate(Revoke, 0, page), 0);
}

TEST(Invalidate, GivenProfileNeitherThenItCannotLetGoOfWhatItHas)
{
	ServingHost host(8);
	OpenNic nic(host, {{"profile", "neither"}});
	peerbuf_reg_request request = nic.request(0, page, 0);
	request.flow = PEERBUF_FLOW_PINNED;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.mapping = host.mapping(0, page);
	peerbuf_region region;
	ASSERT_EQ(nic.reg(request, region), 0);
	EXPECT_EQ(nic.invalidate(Revoke, page, page), 0); // not its memory
	EXPECT_EQ(nic.invalidate(Revoke, 0, page), -EOPNOTSUPP);
	EXPECT_EQ(host.lastErrc(), static_cast<uint32_t>(PEERBUF_ERR_REVOKE_UNSUPPORTED));
	EXPECT_NE(host.lastFailure().find("buf"), std::string::npos);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
}

TEST(Revoke, GivenProfileRevocableThenAMoveIsFinalToo)
{
	ServingHost host(8);
	OpenNic nic(host, {{"profile", "revocable"}});
	peerbuf_reg_request request = nic.request(0, page, 0);
	request.flow = PEERBUF_FLOW_REVOCABLE;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.mapping = host.mapping(0, page);
	peerbuf_region region;
	ASSERT_EQ(nic.reg(request, region), 0);
	EXPECT_EQ(nic.invalidate(Move, 0, page), 0);
	nic.resume(0, page);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), -EACCES);
	EXPECT_TRUE(host.mapCalls().empty());
}

TEST(Revoke, GivenItThenTheKeyStaysTakenAndFailsUntilDereg)
{
	EXPECT_EQ(revokedKeyStaysTaken({}), "");
	EXPECT_EQ(revokedKeyStaysTaken({{"iommu", "translating"}}), "");
}

TEST(Revoke, GivenWaitingRequestsThenTheyFail)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	host.suspend(0, page);
	ASSERT_EQ(nic.invalidate(Move, 0, page), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 4), 0);
	nic.drain();
	EXPECT_EQ(nic.stats().in_flight, 1u);
	host.markRevoked();
	ASSERT_EQ(nic.invalidate(Revoke, 0, page), 0);
	nic.drain();
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	ASSERT_EQ(nic.ops().poll(nic.raw(), &completion), 1);
	EXPECT_EQ(completion.status, -EACCES);
	EXPECT_EQ(completion.bytes, 0u);
	nic.resume(0, page); // a late one changes nothing
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), -EACCES);
	nic.dereg(region);
	EXPECT_EQ(nic.stats().keys_used, 0u);
}

TEST(Move, GivenItThenTheNewPlaceIsUsedAndTheOldOneNeverTouched)
{
	for (const char *iommu : {"identity", "translating"}) {
		for (const char *scope : {"range", "whole"}) {
			EXPECT_EQ(resumeUsesTheNewPlace({{"iommu", iommu}, {"scope", scope}}), "");
			EXPECT_EQ(resumeAfterAbortGoesOn({{"iommu", iommu}, {"scope", scope}}), "");
		}
	}
}

TEST(Move, GivenASuspendedRangeThenOnlyItWaits)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	peerbuf_region other;
	ASSERT_EQ(nic.reg(nic.request(0, 4 * page, 0), region), 0);
	ASSERT_EQ(nic.reg(nic.request(4 * page, 4 * page, 0), other), 0);
	host.suspend(page, page);
	ASSERT_EQ(nic.invalidate(Move, page, page), 0);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, 2 * page, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, other.key64, 0, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, page, bytes), -EBUSY);
	EXPECT_EQ(nic.transfer(Read, region.key64, page + 100, bytes), -EBUSY);
}

TEST(Move, GivenScopeWholeThenAllOfTheRegionWaitsAndOthersGoOn)
{
	ServingHost host(8);
	OpenNic nic(host, {{"scope", "whole"}});
	peerbuf_region region;
	peerbuf_region other;
	ASSERT_EQ(nic.reg(nic.request(0, 4 * page, 0), region), 0);
	ASSERT_EQ(nic.reg(nic.request(4 * page, 4 * page, 0), other), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	host.suspend(page, page);
	ASSERT_EQ(nic.invalidate(Move, page, page), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), -EBUSY);
	EXPECT_EQ(nic.transfer(Write, region.key64, 3 * page, bytes), -EBUSY);
	EXPECT_EQ(nic.transfer(Write, other.key64, 0, bytes), 0);
	host.release(page, page);
	nic.resume(page, page);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, 3 * page, bytes), 0);
}

TEST(Move, GivenAPostedRequestThenItWaitsAndEndsAtTheNewPlace)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mtu", "1000"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	Bytes bytes = pattern(host.size(), 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	ASSERT_EQ(nic.ops().step(nic.raw(), 7), 7);
	host.suspend(2 * page, page);
	const int rc = nic.invalidate(Move, 2 * page, page);
	nic.drain();
	EXPECT_EQ(host.ticketsDone(1), rc ? 1u : 0u);
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	EXPECT_EQ(nic.ops().poll(nic.raw(), &completion), 0);
	EXPECT_EQ(nic.ops().step(nic.raw(), 10), 0); // it waits, it does not spin
	host.relocate(2 * page, page);
	host.release(2 * page, page);
	nic.resume(2 * page, page);
	nic.drain();
	ASSERT_EQ(nic.ops().poll(nic.raw(), &completion), 1);
	EXPECT_EQ(completion.status, 0);
	EXPECT_EQ(host.read(0, host.size()), bytes);
	EXPECT_EQ(host.strayBytes(), 0u);
	EXPECT_EQ(nic.stats().violations, 0u);
}

TEST(Move, GivenATransferThatMeetsItThenTakenBackWithNothingInFlight)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mtu", "512"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	host.suspend(2 * page, page);
	ASSERT_EQ(nic.invalidate(Move, 2 * page, page), 0);
	{
		Bytes bytes = pattern(4 * page, 1);
		EXPECT_EQ(nic.transfer(Read, region.key64, 0, bytes), -EBUSY);
		EXPECT_EQ(Bytes(bytes.begin(), bytes.begin() + 2 * page), Bytes(2 * page));
	}
	// its memory is gone; nothing may still be written to it
	EXPECT_EQ(nic.stats().in_flight, 0u);
	EXPECT_EQ(nic.invalidate(Move, 0, host.size()), 0);
	EXPECT_EQ(nic.ops().step(nic.raw(), 10), 0);
}

TEST(Move, GivenAnAbortBeforeTheTicketThenNewPacketsDoNotDelayIt)
{
	ServingHost host(8);
	OpenNic nic(host, {{"trace", "yes"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	ASSERT_TRUE(nic.stepIntoFlight());
	ASSERT_EQ(nic.invalidate(Move, 0, page), -EINPROGRESS);
	nic.resume(0, page, true);
	Bytes more = pattern(page, 2);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, more), 0);
	nic.drain();
	EXPECT_EQ(host.ticketsDone(1), 1u);
	EXPECT_EQ(host.read(0, page), more);
	EXPECT_EQ(nic.stats().violations, 0u);
}

TEST(Move, GivenDeregWithATicketToComeThenItComes)
{
	ServingHost host(8);
	OpenNic nic(host, {{"trace", "yes"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	ASSERT_TRUE(nic.stepIntoFlight());
	ASSERT_EQ(nic.invalidate(Move, 0, page), -EINPROGRESS);
	nic.dereg(region);
	EXPECT_EQ(host.ticketsDone(1), 1u);
	nic.drain();
	EXPECT_EQ(host.ticketsDone(1), 1u);
	EXPECT_EQ(nic.invalidate(Move, 0, page), 0); // late, for an attachment that is gone
	nic.resume(0, page);
}

TEST(Move, GivenRandomTrafficMovesAndAbortsThenNoByteIsLost)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		EXPECT_EQ(movesUnderTraffic({}, seed), "") << "seed " << seed;
		EXPECT_EQ(movesUnderTraffic({{"scope", "whole"}}, seed), "") << "seed " << seed;
	}
}
