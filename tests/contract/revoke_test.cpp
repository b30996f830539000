// SPDX-License-Identifier: BSD-3-Clause
// Revoke_: memory that is taken back is let go of at once and for good, and nobody is surprised.
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

class Revoke_ : public PairTest
{
protected:
	void SetUp() override
	{
		PairTest::SetUp();
		if (!HasFatalFailure())
			NEEDS_EXPORTER_OP(revoke);
	}

	void expectLetGo()
	{
		if (!HAS_OP(exporter().ops, stats))
			return;
		EXPECT_EQ(0, exporter().stats().pins);
		EXPECT_EQ(0, exporter().stats().mappings);
		EXPECT_EQ(0u, exporter().stats().violations);
	}

	/** A transfer that the test steps, so that it is half way when something happens. */
	int post(const RegionInfo &region, uint32_t op, uint64_t offset, void *data,
		 uint64_t length, uint64_t context)
	{
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.op = op;
		transfer.key64 = region.key64;
		transfer.remote_addr = region.remote_base + offset;
		transfer.data = data;
		transfer.length = length;
		transfer.context = context;
		return importer().ops->post(importer().device, &transfer);
	}
};

TEST_P(Revoke_, GivenAnIdleRegionWhenRevokedThenItIsLetGoAndReportedOnce)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0x2000, 0x8000, &reg));
	std::vector<peerbuf_event> events = revoke(buffer);
	EXPECT_EQ(1u, countEvents(events, PEERBUF_EVENT_REVOKED, reg));
	for (const peerbuf_event &event : events) {
		if (event.type == PEERBUF_EVENT_REVOKED) {
			EXPECT_EQ(0u, event.importer_index);
			EXPECT_EQ(exporter().id, event.exporter);
		}
	}
	EXPECT_EQ(1u, world().regInfo(reg).revoked);
	EXPECT_EQ(1u, world().region(reg).revoked);
	expectLetGo();
	// a second time is no news
	EXPECT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(0u, countEvents(world().events(), PEERBUF_EVENT_REVOKED));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Revoke_, GivenAnIdleRegionWhenRevokedThenPinsAreNoLongerCharged)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	revoke(buffer);
	EXPECT_EQ(0u, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
	EXPECT_EQ(0u, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Revoke_, Rule55_GivenARevokedRegionWhenAPeerUsesItsKeyThenItFails)
{
	NEEDS_PEER();
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	const RegionInfo region = world().region(reg);
	std::vector<uint8_t> data(64);
	ASSERT_EQ(0, peer()->read(region, 0, data.data(), data.size()));
	revoke(buffer);
	EXPECT_GT(0, peer()->read(region, 0, data.data(), data.size()));
	EXPECT_GT(0, peer()->write(region, 0, data.data(), data.size()));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_GT(0, peer()->read(region, 0, data.data(), data.size()));
}

TEST_P(Revoke_, Rule55_GivenARevokedRegionThenItsKeyIsTakenUntilDeregistered)
{
	const Buffer buffer = filledBuffer();
	const Buffer other = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	const uint64_t key = world().region(reg).key64;
	revoke(buffer);
	constexpr int n = 64;
	for (int i = 0; i < n; i++) {
		peerbuf_reg_t next = 0;
		ASSERT_PB_OK(registerRange(other, 0, 0x1000, &next));
		ASSERT_NE(key, world().region(next).key64) << "registration " << i;
		if (i % 2 == 0) {
			EXPECT_PB_OK(world().deregister(next));
		}
	}
	EXPECT_PB_OK(world().deregister(reg));
}

TEST_P(Revoke_, Rule32_GivenARevokedBufferWhenRegisteredThenRevokedUntilRestored)
{
	NEEDS_EXPORTER_OP(restore);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	revoke(buffer);
	peerbuf_reg_t late = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x8000, &late), -ENODEV, PEERBUF_ERR_REVOKED);
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld());
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x8000, &late), -ENODEV, PEERBUF_ERR_REVOKED);
	EXPECT_TRUE(world().nothingHeld());

	restore(buffer);
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &late));
	EXPECT_EQ(0u, world().regInfo(late).revoked);
	NEEDS_PEER();
	NEEDS(canSeeDevice(buffer), "no way to fill the buffer");
	setDeviceBytes(buffer, 0, test::pattern(0, 0x8000, 3));
	std::vector<uint8_t> seen(0x8000);
	ASSERT_EQ(0, peer()->read(world().region(late), 0, seen.data(), seen.size()));
	EXPECT_EQ(test::pattern(0, 0x8000, 3), seen);
}

TEST_P(Revoke_, Rule53_GivenARestoredBufferThenOldRegionsStayRevoked)
{
	NEEDS_EXPORTER_OP(restore);
	NEEDS_PEER();
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	const RegionInfo region = world().region(reg);
	revoke(buffer);
	restore(buffer);
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(1u, world().regInfo(reg).revoked);
	uint8_t byte = 0;
	EXPECT_GT(0, peer()->read(region, 0, &byte, 1));
	peerbuf_reg_t fresh = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &fresh));
	EXPECT_EQ(0, peer()->read(world().region(fresh), 0, &byte, 1));
	EXPECT_GT(0, peer()->read(region, 0, &byte, 1));
}

TEST_P(Revoke_, Rule21_GivenAPinnedRegionWhenRevokedThenThePinIsNoShield)
{
	NEEDS_EXPORTER_OP(stats);
	NEEDS(verdict().charged_pin, "this pair pins nothing");
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	EXPECT_EQ(1, exporter().stats().pins);
	revoke(buffer);
	expectLetGo();
}

TEST_P(Revoke_, GivenManyRegionsOfABufferWhenRevokedThenEachIsToldOnce)
{
	const Buffer buffer = filledBuffer();
	const Buffer bystander = filledBuffer();
	std::vector<peerbuf_reg_t> regs(8);
	for (size_t i = 0; i < regs.size(); i++)
		ASSERT_PB_OK(registerRange(buffer, i * 0x3000, 0x5000, &regs[i]));
	peerbuf_reg_t other = 0;
	ASSERT_PB_OK(registerRange(bystander, 0, 0x1000, &other));
	std::vector<peerbuf_event> events = revoke(buffer);
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events, PEERBUF_EVENT_REVOKED) >= regs.size(); },
		&events));
	for (const peerbuf_reg_t reg : regs)
		EXPECT_EQ(1u, countEvents(events, PEERBUF_EVENT_REVOKED, reg));
	EXPECT_EQ(0u, countEvents(events, PEERBUF_EVENT_REVOKED, other));
	EXPECT_EQ(0u, world().regInfo(other).revoked);
	NEEDS_PEER();
	uint8_t byte = 0;
	EXPECT_EQ(0, peer()->read(world().region(other), 0, &byte, 1));
}

TEST_P(Revoke_, Rule50_GivenATransferInFlightWhenRevokedThenTheMemoryIsHeldUntilItHasStopped)
{
	NEEDS_IMPORTER_OP(post);
	NEEDS_IMPORTER_OP(step);
	NEEDS_IMPORTER_OP(poll);
	NEEDS_IMPORTER_OP(stats);
	NEEDS_EXPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	constexpr uint64_t length = 0x40000;
	ASSERT_PB_OK(registerRange(buffer, 0, length, &reg));
	const RegionInfo region = world().region(reg);
	std::vector<uint8_t> out = test::pattern(0, length, 5);
	std::vector<uint8_t> in(length);
	ASSERT_EQ(0, post(region, PEERBUF_TRANSFER_WRITE, 0, out.data(), length, 1));
	ASSERT_EQ(0, post(region, PEERBUF_TRANSFER_READ, 0, in.data(), length, 2));
	// until packets are on their way through a translation
	while (importer().stats().translations == 0)
		ASSERT_LT(0, importer().ops->step(importer().device, 1));
	ASSERT_LT(0, importer().ops->step(importer().device, 3));
	ASSERT_EQ(2u, importer().stats().in_flight);

	ASSERT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	std::vector<peerbuf_event> events;
	std::vector<peerbuf_completion> completions;
	const bool ended = world().progressUntil(
		[&] {
			// whatever may still use a translation keeps its memory mapped
			if (importer().stats().translations > 0) {
				EXPECT_LT(0, exporter().stats().mappings);
			}
			importer().ops->step(importer().device, 1);
			peerbuf_completion completion = {};
			completion.struct_size = sizeof(completion);
			while (importer().ops->poll(importer().device, &completion) == 1)
				completions.push_back(completion);
			return completions.size() == 2 && exporter().stats().mappings == 0 &&
			       countEvents(events, PEERBUF_EVENT_REVOKED, reg) > 0;
		},
		&events);
	EXPECT_TRUE(ended) << completions.size() << " completions, " << exporter().stats().mappings
			   << " mappings, " << events.size() << " events";
	EXPECT_EQ(1u, countEvents(events, PEERBUF_EVENT_REVOKED, reg));
	for (const peerbuf_completion &completion : completions) {
		EXPECT_NE(0, completion.status)
			<< "transfer " << completion.context << " cannot have ended well";
	}
	expectLetGo();
	EXPECT_EQ(0u, importer().stats().in_flight);
	EXPECT_EQ(0u, importer().stats().violations);
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Revoke_, GivenATransferInFlightWhenRevokedThenNobodyElseGetsItsMemory)
{
	NEEDS_IMPORTER_OP(post);
	NEEDS_IMPORTER_OP(step);
	NEEDS_EXPORTER_OP(stats);
	constexpr uint64_t largest = 16 << 20;
	NEEDS(exporter().offer.memory_size != 0 && exporter().offer.memory_size <= largest,
	      "the exporter has too much memory to use it up");
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, buffer.size, &reg));
	std::vector<uint8_t> data = test::pattern(0, 0x800, 5);
	ASSERT_EQ(0, post(world().region(reg), PEERBUF_TRANSFER_WRITE, 0, data.data(), data.size(),
			  1));
	const int refault = importer().stats().translations == 0 ? 1 : 0;
	ASSERT_EQ(refault + 1, importer().ops->step(importer().device, 1 + refault));
	// more than there is without the memory that the packet is still going to hit
	const uint64_t left = exporter().offer.memory_size - exporter().stats().memory_used;
	revoke(buffer);
	peerbuf_buffer_t next = 0;
	const int rc = peerbuf_alloc(world().ctx(), exporter().id, left + 0x1000, &next);
	drainImporter();
	if (rc == 0) {
		peerbuf_buffer_info info = {};
		info.struct_size = sizeof(info);
		EXPECT_PB_OK(peerbuf_query_buffer(world().ctx(), next, &info));
		Buffer other;
		other.handle = info.handle;
		EXPECT_TRUE(deviceBytes(other, 0, info.size) == std::vector<uint8_t>(info.size, 0))
			<< "a late packet hit another buffer";
		EXPECT_PB_OK(peerbuf_free(world().ctx(), next));
	} else {
		EXPECT_EQ(test::errnoName(-ENOMEM), test::errnoName(rc));
	}
	EXPECT_PB_OK(world().deregister(reg));
}

TEST_P(Revoke_, GivenATransferInFlightWhenRevokedAndDeregisteredThenNothingIsLeft)
{
	NEEDS_IMPORTER_OP(post);
	NEEDS_IMPORTER_OP(step);
	NEEDS_IMPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	constexpr uint64_t length = 0x20000;
	ASSERT_PB_OK(registerRange(buffer, 0, length, &reg));
	std::vector<uint8_t> data(length);
	ASSERT_EQ(0, post(world().region(reg), PEERBUF_TRANSFER_WRITE, 0, data.data(), length, 1));
	ASSERT_LT(0, importer().ops->step(importer().device, 2));
	ASSERT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_PB_OK(world().deregister(reg));
	drainImporter();
	EXPECT_TRUE(world().progressUntil([&] {
		return !HAS_OP(exporter().ops, stats) || exporter().stats().mappings == 0;
	}));
	EXPECT_TRUE(world().nothingHeld());
}

/* Revoke, deregister and close in every order. */

TEST_P(Revoke_, GivenARevokeThatIsNotYetHeardWhenDeregisteredThenItIsDropped)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	ASSERT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Revoke_, GivenADeregisteredRegionWhenRevokedThenNobodyIsTold)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	EXPECT_PB_OK(world().deregister(reg));
	ASSERT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(0u, countEvents(world().events(), PEERBUF_EVENT_REVOKED));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Revoke_, GivenARevokedRegionWhenTheContextClosesThenItClosesWhole)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	revoke(buffer);
	world().closeAtOnce();
}

TEST_P(Revoke_, GivenARevokeThatIsNotYetHeardWhenTheContextClosesThenItClosesWhole)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	ASSERT_EQ(0, exporter().ops->revoke(exporter().device, buffer.handle));
	world().closeAtOnce();
}

TEST_P(Revoke_, GivenARevokedBufferThenItCanBeFreed)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
	revoke(buffer);
	EXPECT_PB_ERROR(world().free(buffer), -EBUSY, PEERBUF_ERR_BUSY);
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_PB_OK(world().free(buffer));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Revoke_);
INSTANTIATE_TEST_SUITE_P(Pairs, Revoke_, testing::ValuesIn(revokingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
