// SPDX-License-Identifier: BSD-3-Clause
// Gone_: a device that is no more, at whatever moment, is reported, and nothing hangs or leaks.
#include <cerrno>
#include <csignal>
#include <thread>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

/** How the device goes. */
enum class Way { Removed, Killed };

class Gone_ : public PairTest
{
protected:
	/** Whether the device can go this way; else the reason. */
	std::string unable(Way way)
	{
		if (way == Way::Removed && !HAS_OP(exporter().ops, remove))
			return "exporter " + exporter().spec.text() +
			       " has no 'remove' in its table " PEERBUF_EXPORTER_TEST_OPS;
		if (way == Way::Killed && exporter().process == 0)
			return "the device of exporter " + exporter().spec.text() +
			       " is no child process of this one";
		return "";
	}

	void go(Way way)
	{
		exporter().gone = true;
		if (way == Way::Removed) {
			EXPECT_EQ(0, exporter().ops->remove(exporter().device));
		} else {
			EXPECT_EQ(0, kill(exporter().process, SIGKILL));
		}
	}

	std::vector<peerbuf_event> waitUntilReported()
	{
		std::vector<peerbuf_event> events;
		EXPECT_TRUE(world().progressUntil(
			[&] { return countEvents(events, PEERBUF_EVENT_DEVICE_GONE) > 0; },
			&events))
			<< "no DEVICE_GONE event came";
		return events;
	}

	void expectGoneToNewcomers(const Buffer &buffer)
	{
		peerbuf_reg_t late = 0;
		EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &late), -ENODEV,
				PEERBUF_ERR_DEVICE_GONE);
		peerbuf_buffer_t another = 0;
		EXPECT_PB_ERROR(peerbuf_alloc(world().ctx(), exporter().id, 0x1000, &another),
				-ENODEV, PEERBUF_ERR_DEVICE_GONE);
	}

	void whenIdle(Way way)
	{
		const Buffer buffer = filledBuffer();
		go(way);
		const std::vector<peerbuf_event> events = waitUntilReported();
		EXPECT_EQ(1u, countEvents(events, PEERBUF_EVENT_DEVICE_GONE));
		expectGoneToNewcomers(buffer);
	}

	void withRegions(Way way)
	{
		const Buffer buffer = filledBuffer();
		peerbuf_reg_t first = 0;
		peerbuf_reg_t second = 0;
		ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &first));
		ASSERT_PB_OK(registerRange(buffer, 0x1010, 0x8000, &second));
		const RegionInfo region = world().region(first);
		go(way);
		std::vector<peerbuf_event> events = waitUntilReported();
		EXPECT_TRUE(world().progressUntil(
			[&] { return countEvents(events, PEERBUF_EVENT_REVOKED) >= 2; }, &events));
		for (const peerbuf_reg_t reg : {first, second}) {
			EXPECT_EQ(1u, countEvents(events, PEERBUF_EVENT_REVOKED, reg));
			EXPECT_EQ(1u, world().regInfo(reg).revoked);
		}
		if (importer().offer.invalidation != 0 && peer() &&
		    peer()->whyNoRefusals().empty()) {
			uint8_t byte = 0;
			EXPECT_GT(0, peer()->read(region, 0, &byte, 1));
		}
		expectGoneToNewcomers(buffer);
		EXPECT_PB_OK(world().deregister(first));
		EXPECT_PB_ERROR(peerbuf_deregister(world().ctx(), first), -ESTALE,
				PEERBUF_ERR_STALE);
		EXPECT_PB_OK(world().deregister(second));
		EXPECT_TRUE(world().nothingHeld());
	}

	void duringRegister(Way way, const char *step)
	{
		NEEDS_EXPORTER_OP(fault);
		const Buffer buffer = filledBuffer();
		constexpr uint64_t delay_ns = 200'000'000;
		const int known = exporter().ops->fault(exporter().device, step, 0, 1, 0, delay_ns);
		NEEDS(known == 0, std::string("no step '") + step + "'");
		peerbuf_reg_t reg = 0;
		int rc = 0;
		std::thread registering([&] { rc = registerRange(buffer, 0, 0x8000, &reg); });
		go(way);
		registering.join();
		// the race has two right ends
		if (rc != 0) {
			EXPECT_EQ(test::errnoName(-ENODEV), test::errnoName(rc));
			EXPECT_EQ(0u, reg);
		}
		waitUntilReported();
		if (rc == 0) {
			EXPECT_EQ(1u, world().regInfo(reg).revoked);
			EXPECT_PB_OK(world().deregister(reg));
		}
		EXPECT_TRUE(world().nothingHeld());
	}

	void beforeAnybodyLooked(Way way)
	{
		const Buffer buffer = filledBuffer();
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
		go(way);
		EXPECT_PB_OK(world().deregister(reg));
		EXPECT_TRUE(world().nothingHeld());
	}

	void withATransferInFlight(Way way)
	{
		NEEDS_IMPORTER_OP(post);
		NEEDS_IMPORTER_OP(step);
		NEEDS_IMPORTER_OP(stats);
		const Buffer buffer = filledBuffer();
		peerbuf_reg_t reg = 0;
		constexpr uint64_t length = 0x20000;
		ASSERT_PB_OK(registerRange(buffer, 0, length, &reg));
		std::vector<uint8_t> data(length);
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.op = PEERBUF_TRANSFER_WRITE;
		transfer.key64 = world().region(reg).key64;
		transfer.remote_addr = world().region(reg).remote_base;
		transfer.data = data.data();
		transfer.length = length;
		ASSERT_EQ(0, importer().ops->post(importer().device, &transfer));
		ASSERT_LT(0, importer().ops->step(importer().device, 2));
		go(way);
		waitUntilReported();
		drainImporter();
		EXPECT_EQ(0u, importer().stats().in_flight);
		EXPECT_PB_OK(world().deregister(reg));
		EXPECT_TRUE(world().nothingHeld());
	}

	void whenTheContextCloses(Way way)
	{
		const Buffer buffer = filledBuffer();
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, 0, 0x8000, &reg));
		go(way);
		world().closeAtOnce();
	}
};

#define GONE_TEST(name, call)                                                                      \
	TEST_P(Gone_, GivenADeviceRemoved##name)                                                   \
	{                                                                                          \
		const Way way = Way::Removed;                                                      \
		NEEDS(unable(way).empty(), unable(way));                                           \
		call;                                                                              \
	}                                                                                          \
	TEST_P(Gone_, GivenADeviceProcessKilled##name)                                             \
	{                                                                                          \
		const Way way = Way::Killed;                                                       \
		NEEDS(unable(way).empty(), unable(way));                                           \
		call;                                                                              \
	}

GONE_TEST(WhenIdleThenReportedOnceAndRefused, whenIdle(way))
GONE_TEST(WithRegionsLiveThenTheyAreRevoked, withRegions(way))
GONE_TEST(DuringAttachThenTheRegistrationEnds, duringRegister(way, "attach"))
GONE_TEST(DuringMapThenTheRegistrationEnds, duringRegister(way, "map"))
GONE_TEST(WhenDeregisteredBeforeAnybodyLookedThenFine, beforeAnybodyLooked(way))
GONE_TEST(WithATransferInFlightThenItEnds, withATransferInFlight(way))
GONE_TEST(WhenTheContextClosesThenItClosesWhole, whenTheContextCloses(way))

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Gone_);
INSTANTIATE_TEST_SUITE_P(Pairs, Gone_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
