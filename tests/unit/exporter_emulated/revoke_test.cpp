// SPDX-License-Identifier: BSD-3-Clause
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

bool readable(Device &device)
{
	struct pollfd p = {device.slots.event_fd(device.handle), POLLIN, 0};
	return poll(&p, 1, 0) == 1;
}

/** Wait for the device's event. */
void awaitEvent(Device &device)
{
	struct pollfd p = {device.slots.event_fd(device.handle), POLLIN, 0};
	ASSERT_EQ(1, poll(&p, 1, 30000)) << "no event came";
}

int revoke(Device &device, const peerbuf_buffer_desc &buffer)
{
	return device.ops->revoke(device.handle, buffer.handle);
}

} // namespace

TEST(Revoke, GivenAnIdleBufferThenToldOnceAndTheMemoryIsReusable)
{
	Device device("hbm=64K,profile=revokes");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	EXPECT_FALSE(readable(device));
	ASSERT_EQ(0, revoke(device, desc)) << device.why();
	EXPECT_TRUE(device.host.invalidated().empty()) << "only progress may tell the host";
	EXPECT_TRUE(readable(device));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	const auto told = device.host.invalidated();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(desc.handle, told[0].buffer);
	EXPECT_EQ(PEERBUF_REASON_REVOKE, told[0].inv.reason);
	EXPECT_EQ(0u, told[0].inv.offset);
	EXPECT_EQ(desc.size, told[0].inv.length);
	EXPECT_EQ(desc.generation, told[0].inv.generation);
	EXPECT_NE(0u, told[0].inv.cookie);
	EXPECT_FALSE(readable(device));
	EXPECT_EQ(0, device.slots.progress(device.handle));
	EXPECT_EQ(0u, device.stats().memory_used);
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
	EXPECT_EQ(0, revoke(device, desc)) << "idempotent";
	EXPECT_EQ(0, device.slots.progress(device.handle));
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Revoke, Rule32_GivenARevokedBufferThenNothingNewWorksAndOldThingsEnd)
{
	Device device("hbm=1M,profile=revokes");
	const auto desc = device.alloc(8192);
	const uint64_t token = device.attached(desc.handle);
	ASSERT_EQ(0, device.slots.pin(device.handle, token));
	peerbuf_mapping mapped;
	peerbuf_fd_export exported;
	ASSERT_EQ(0, device.map(token, 0, 8192, &mapped));
	ASSERT_EQ(0, device.exportFd(token, 0, 8192, &exported));
	/* rule 54: refused from the mark on, before anybody was told */
	ASSERT_EQ(0, revoke(device, desc));
	for (int told = 0; told < 2; told++) {
		uint64_t late = 0;
		peerbuf_mapping m;
		peerbuf_fd_export e;
		EXPECT_ERRNO(ENODEV, device.attach(desc.handle, &late));
		EXPECT_EQ(PEERBUF_ERR_REVOKED, device.errc());
		EXPECT_ERRNO(ENODEV, device.map(token, 0, 1, &m));
		EXPECT_EQ(PEERBUF_ERR_REVOKED, device.errc());
		EXPECT_ERRNO(ENODEV, device.slots.pin(device.handle, token));
		EXPECT_ERRNO(ENODEV, device.exportFd(token, 0, 1, &e));
		device.slots.progress(device.handle);
	}
	device.slots.unmap(device.handle, token, &mapped);
	device.slots.release_fd(device.handle, token, &exported);
	device.slots.unpin(device.handle, token);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Revoke, GivenADelayedDoneThenTheMemoryIsNotReusedBeforeIt)
{
	Device device("hbm=64K,profile=revokes");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) {
		return -EINPROGRESS;
	};
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	memset(reinterpret_cast<void *>(desc.address), 0x11, desc.size);
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	EXPECT_ERRNO(EBUSY, device.ops->restore(device.handle, desc.handle));
	/* the application's free does not make it free either */
	EXPECT_EQ(65536u, device.stats().memory_used);
	const uint64_t cookie = device.host.invalidated()[0].inv.cookie;
	device.slots.invalidate_done(device.handle, desc.handle, cookie, 0);
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
	device.slots.invalidate_done(device.handle, desc.handle, cookie, 0);
	EXPECT_EQ(1u, device.stats().violations) << "done twice";
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
}

TEST(Revoke, GivenAFreeWhileLettingGoThenTheMemoryWaitsForTheDone)
{
	Device device("hbm=64K,profile=revokes");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) {
		return -EINPROGRESS;
	};
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	device.slots.invalidate_done(device.handle, desc.handle,
				     device.host.invalidated()[0].inv.cookie, 0);
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
	EXPECT_TRUE(device.clean());
}

TEST(Revoke, GivenADoneBeforeInvalidateHasReturnedThenItCounts)
{
	Device device("hbm=64K,profile=revokes");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	device.host.onInvalidate = [&](uint64_t buffer, const peerbuf_invalidate &inv) {
		device.slots.invalidate_done(device.handle, buffer, inv.cookie, 0);
		return -EINPROGRESS;
	};
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
	EXPECT_EQ(0u, device.stats().violations);
	device.slots.detach(device.handle, token);
}

TEST(Revoke, Rule50_GivenAMappingThatIsLeftThenTheMemoryWaitsForTheUnmap)
{
	Device device("hbm=64K,profile=revokes");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(token, 0, 4096, &m));
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	device.slots.unmap(device.handle, token, &m);
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
}

TEST(Revoke, GivenAnImporterThatCannotStopThenQuarantineForGood)
{
	for (const bool atOnce : {true, false}) {
		SCOPED_TRACE(atOnce);
		Device device("hbm=64K,profile=revokes");
		device.host.onInvalidate = [atOnce](uint64_t, const peerbuf_invalidate &) {
			return atOnce ? -EIO : -EINPROGRESS;
		};
		const auto desc = device.alloc(16 << 10);
		const uint64_t token = device.attached(desc.handle);
		ASSERT_EQ(0, revoke(device, desc));
		EXPECT_EQ(1, device.slots.progress(device.handle));
		if (!atOnce)
			device.slots.invalidate_done(device.handle, desc.handle,
						     device.host.invalidated()[0].inv.cookie, -EIO);
		EXPECT_EQ(16384u, device.stats().quarantined);
		device.slots.detach(device.handle, token);
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
		EXPECT_EQ(16384u, device.stats().quarantined);
		EXPECT_ERRNO(ENOMEM, device.tryAlloc(64 << 10));
		EXPECT_CONTAINS(device.why(), "49152 of 65536 free");
		EXPECT_EQ(0, device.tryAlloc(48 << 10)) << device.why();
		EXPECT_TRUE(device.clean());
	}
}

TEST(Revoke, GivenARevokedBufferThenTheApplicationsPointerHitsNobody)
{
	Device device("hbm=64K,profile=revokes");
	const auto old = device.alloc(64 << 10);
	auto *memory = reinterpret_cast<volatile uint8_t *>(old.address);
	memory[0] = 1;
	ASSERT_EQ(0, revoke(device, old));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	EXPECT_EQ(1, device.deviceBytes(old.handle, 0, 1)[0]) << "nobody needed it yet";
	const auto next = device.alloc(64 << 10);
	for (uint64_t i = 0; i < old.size; i++)
		memory[i] = 0x55;
	for (const uint8_t byte : device.deviceBytes(next.handle, 0, next.size))
		ASSERT_EQ(0, byte);
	uint8_t byte = 0;
	EXPECT_ERRNO(ENODEV, device.ops->device_read(device.handle, old.handle, 0, &byte, 1));
	EXPECT_EQ(PEERBUF_ERR_REVOKED, device.errc());
}

TEST(Restore, Rule53_GivenUnRevokeThenNewAttachmentsWorkAndOldOnesDoNot)
{
	Device device("hbm=64K,profile=revokes");
	const auto desc = device.alloc(32 << 10);
	auto *memory = reinterpret_cast<volatile uint8_t *>(desc.address);
	memory[17] = 17;
	const uint64_t old = device.attached(desc.handle);
	ASSERT_EQ(0, revoke(device, desc));
	device.slots.progress(device.handle);
	ASSERT_EQ(0, device.ops->restore(device.handle, desc.handle)) << device.why();
	EXPECT_EQ(17, memory[17]) << "its memory was still there";
	peerbuf_mapping m;
	EXPECT_ERRNO(ENODEV, device.map(old, 0, 1, &m));
	EXPECT_ERRNO(ENODEV, device.slots.pin(device.handle, old));
	const uint64_t fresh = device.attached(desc.handle);
	ASSERT_EQ(0, device.map(fresh, 0, desc.size, &m)) << device.why();
	EXPECT_GT(m.generation, desc.generation);
	EXPECT_EQ(17, static_cast<uint8_t *>(m.cpu_addr)[17]);
	device.slots.progress(device.handle);
	EXPECT_EQ(1u, device.host.invalidated().size()) << "un-revoke tells nobody to let go";
	device.slots.unmap(device.handle, fresh, &m);

	/* again, and this time somebody needs the memory meanwhile */
	ASSERT_EQ(0, revoke(device, desc));
	device.slots.progress(device.handle);
	const auto taker = device.alloc(64 << 10);
	EXPECT_ERRNO(ENOMEM, device.ops->restore(device.handle, desc.handle));
	uint64_t late = 0;
	EXPECT_ERRNO(ENODEV, device.attach(desc.handle, &late));
	EXPECT_EQ(0, device.slots.free(device.handle, taker.handle));
	ASSERT_EQ(0, device.ops->restore(device.handle, desc.handle)) << device.why();
	EXPECT_EQ(0, memory[17]) << "it is new memory";
	memory[17] = 18;
	EXPECT_EQ(18, device.deviceBytes(desc.handle, 17, 1)[0]);
}

namespace
{

/** A DMA engine that was told to stop and has not: who gets its store? */
uint8_t lateStoreSeenByNextOwner(const std::string &spec)
{
	Device device("hbm=64K,profile=revokes," + spec);
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) {
		return -EINPROGRESS;
	};
	const auto old = device.alloc(64 << 10);
	const uint64_t token = device.attached(old.handle);
	peerbuf_mapping m;
	EXPECT_EQ(0, device.map(token, 0, old.size, &m));
	auto *bus = static_cast<volatile uint8_t *>(m.segments[0].cpu_addr);
	EXPECT_EQ(0, revoke(device, old));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	auto next = cleared<peerbuf_buffer_desc>();
	if (device.slots.alloc(device.handle, 64 << 10, &next) != 0)
		return 0; /* nobody has it */
	*bus = 0x66;
	for (const uint8_t byte : device.deviceBytes(next.handle, 0, next.size))
		if (byte)
			return byte;
	return 0;
}

} // namespace

TEST(Mutant, GivenEarlyReuseThenALateStoreHitsTheNextOwnerAndOtherwiseNobody)
{
	EXPECT_EQ(0x66, lateStoreSeenByNextOwner("mutant=early_reuse"));
	EXPECT_EQ(0, lateStoreSeenByNextOwner("mutant=none"));
}

TEST(Revoke, GivenADeviceThatNeverRevokesThenItDoesNot)
{
	Device device("hbm=64K,profile=moves");
	const auto desc = device.alloc(4096);
	EXPECT_ERRNO(EOPNOTSUPP, revoke(device, desc));
	EXPECT_CONTAINS(device.why(), "revoke=never");
	EXPECT_ERRNO(ENOENT, device.ops->revoke(device.handle, 99));
	EXPECT_EQ(0, device.slots.progress(device.handle));
}

TEST(Revoke, GivenTwoClientsThenBothAreToldAndTheSlowerOneDecides)
{
	RunningDevice running("hbm=64K,profile=revokes");
	Device a("socket=" + running.path());
	Device b("socket=" + running.path());
	b.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) { return -EINPROGRESS; };
	const auto mine = a.alloc(64 << 10);
	const uint64_t at = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(at, 0, 4096, &e));
	peerbuf_buffer_desc theirs;
	ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs));
	const uint64_t bt = b.attached(theirs.handle);
	auto *seen = reinterpret_cast<volatile uint8_t *>(theirs.address);
	*reinterpret_cast<volatile uint8_t *>(mine.address) = 3;
	EXPECT_EQ(3, *seen);

	ASSERT_EQ(0, revoke(a, mine));
	EXPECT_EQ(1, a.slots.progress(a.handle));
	EXPECT_ERRNO(ENOMEM, a.tryAlloc(4096));
	awaitEvent(b);
	EXPECT_EQ(1, b.slots.progress(b.handle));
	ASSERT_EQ(1u, b.host.invalidated().size());
	EXPECT_ERRNO(ENOMEM, b.tryAlloc(4096));
	b.slots.invalidate_done(b.handle, theirs.handle, b.host.invalidated()[0].inv.cookie, 0);
	EXPECT_EQ(0, b.tryAlloc(64 << 10)) << b.why();

	/* un-revoked by one, seen by the other after its progress */
	ASSERT_EQ(0, a.ops->restore(a.handle, mine.handle)) << a.why();
	awaitEvent(b);
	EXPECT_EQ(1, b.slots.progress(b.handle));
	*reinterpret_cast<volatile uint8_t *>(mine.address) = 4;
	EXPECT_EQ(4, *seen);
	a.slots.release_fd(a.handle, at, &e);
	a.slots.detach(a.handle, at);
	b.slots.detach(b.handle, bt);
	EXPECT_EQ(0, a.slots.free(a.handle, mine.handle));
	b.slots.put(b.handle, theirs.handle);
	EXPECT_TRUE(a.clean());
	EXPECT_TRUE(b.clean());
}

TEST(Revoke, GivenAClientThatDiesInsteadOfLettingGoThenItsDeathCounts)
{
	RunningDevice running("hbm=64K,profile=revokes");
	Device a("socket=" + running.path());
	const auto mine = a.alloc(64 << 10);
	const uint64_t at = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(at, 0, 4096, &e));
	{
		Device b("socket=" + running.path());
		peerbuf_buffer_desc theirs;
		ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs));
		b.attached(theirs.handle);
		ASSERT_EQ(0, revoke(a, mine));
		a.slots.progress(a.handle);
		EXPECT_ERRNO(ENOMEM, a.tryAlloc(4096));
	}
	EXPECT_EQ(0, a.tryAlloc(64 << 10)) << a.why();
	a.slots.release_fd(a.handle, at, &e);
}

/* Rule 15: told about a buffer whose attach has not returned, and one that is all gone. */
TEST(Revoke, GivenABufferWithoutAttachmentsThenNothingBreaks)
{
	Device device("hbm=64K,profile=revokes");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) { return -ENOENT; };
	const auto desc = device.alloc(64 << 10);
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	EXPECT_EQ(0, device.tryAlloc(64 << 10));
	ASSERT_EQ(0, device.ops->restore(device.handle, desc.handle));
	ASSERT_EQ(0, revoke(device, desc));
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle)); /* before it was told */
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(64 << 10));
	EXPECT_LT(0, device.slots.progress(device.handle));
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << device.why();
	EXPECT_TRUE(device.clean());
}

} // namespace peerbuf::emulated::test
