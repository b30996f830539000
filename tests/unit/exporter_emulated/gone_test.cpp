// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

constexpr uint64_t forEver = 3600ull * 1000000000;

/** Everything of one buffer at once. */
struct Held {
	peerbuf_buffer_desc buffer;
	uint64_t token = 0;
	peerbuf_mapping mapping;
	peerbuf_fd_export exported;
};

Held hold(Device &device)
{
	Held held;
	held.buffer = device.alloc(256 << 10);
	held.token = device.attached(held.buffer.handle);
	EXPECT_EQ(0, device.slots.pin(device.handle, held.token));
	EXPECT_EQ(0, device.map(held.token, 0, 256 << 10, &held.mapping));
	EXPECT_EQ(0, device.exportFd(held.token, 0, 4096, &held.exported));
	return held;
}

void giveBack(Device &device, Held &held)
{
	device.slots.unmap(device.handle, held.token, &held.mapping);
	device.slots.release_fd(device.handle, held.token, &held.exported);
	device.slots.unpin(device.handle, held.token);
	device.slots.detach(device.handle, held.token);
	EXPECT_EQ(0, device.slots.free(device.handle, held.buffer.handle));
}

/** Every slot that needs the device says so, with the reason. */
void expectGone(Device &device, const Held &held)
{
	auto offer = cleared<peerbuf_exporter_offer>();
	peerbuf_mapping m;
	peerbuf_fd_export e;
	peerbuf_buffer_desc d;
	uint64_t token = 0;
	uint8_t byte = 0;
	EXPECT_ERRNO(ENODEV, device.slots.offer(device.handle, 0, &offer));
	EXPECT_EQ(PEERBUF_ERR_DEVICE_GONE, device.errc()) << device.why();
	EXPECT_ERRNO(ENODEV, device.tryAlloc(4096));
	EXPECT_EQ(PEERBUF_ERR_DEVICE_GONE, device.errc()) << device.why();
	EXPECT_ERRNO(ENODEV, device.get(held.buffer.address, 1, &d));
	EXPECT_ERRNO(ENODEV, device.getFd(held.exported.fd, 0, &d));
	EXPECT_ERRNO(ENODEV, device.attach(held.buffer.handle, &token));
	EXPECT_ERRNO(ENODEV, device.slots.pin(device.handle, held.token));
	EXPECT_ERRNO(ENODEV, device.map(held.token, 0, 1, &m));
	EXPECT_ERRNO(ENODEV, device.exportFd(held.token, 0, 1, &e));
	EXPECT_ERRNO(ENODEV,
		     device.ops->device_read(device.handle, held.buffer.handle, 0, &byte, 1));
	EXPECT_ERRNO(ENODEV, device.ops->revoke(device.handle, held.buffer.handle));
	EXPECT_ERRNO(ENODEV, device.ops->restore(device.handle, held.buffer.handle));
}

bool readable(Device &device, int ms)
{
	struct pollfd p = {device.slots.event_fd(device.handle), POLLIN, 0};
	return poll(&p, 1, ms) == 1;
}

void whenGone(Device &device, Held &held)
{
	EXPECT_TRUE(readable(device, 30000));
	EXPECT_TRUE(device.host.invalidated().empty()) << "only progress may tell the host";
	EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	const auto told = device.host.invalidated();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(held.buffer.handle, told[0].buffer);
	EXPECT_EQ(PEERBUF_REASON_REVOKE, told[0].inv.reason);
	EXPECT_EQ(held.buffer.size, told[0].inv.length);
	EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	EXPECT_EQ(1u, device.host.invalidated().size());
	EXPECT_FALSE(readable(device, 0)) << "an event loop would spin";
	expectGone(device, held);
	/* no SIGBUS: the pages live as long as a mapping of them */
	auto *memory = reinterpret_cast<volatile uint8_t *>(held.buffer.address);
	for (uint64_t i = 0; i < held.buffer.size; i += 1024)
		memory[i] = static_cast<uint8_t>(memory[i] + 1);
	*static_cast<volatile uint8_t *>(held.mapping.segments[0].cpu_addr) = 1;
	EXPECT_EQ(1u, device.stats().attachments);
	giveBack(device, held);
	giveBack(device, held); /* idempotent */
	EXPECT_TRUE(device.clean());
}

} // namespace

TEST(Gone, GivenSurpriseRemovalThenEverythingSaysSoAndNothingBreaks)
{
	const size_t fds = openFds(getpid());
	{
		Device device("hbm=1M");
		Held held = hold(device);
		EXPECT_EQ(0, device.ops->remove(device.handle));
		whenGone(device, held);
		EXPECT_EQ(0, device.ops->remove(device.handle)) << "twice is as good";
	}
	EXPECT_EQ(fds, openFds(getpid()));
	EXPECT_TRUE(children().empty()) << "its process was not reaped";
}

TEST(Gone, GivenTheProcessIsKilledThenTheSame)
{
	const size_t fds = openFds(getpid());
	{
		Device device("hbm=1M");
		const auto processes = children();
		ASSERT_EQ(1u, processes.size());
		Held held = hold(device);
		ASSERT_EQ(0, kill(processes[0], SIGKILL));
		whenGone(device, held);
	}
	EXPECT_EQ(fds, openFds(getpid()));
	EXPECT_TRUE(children().empty());
}

TEST(Gone, GivenNothingAttachedThenProgressSaysItAtOnce)
{
	RunningDevice running("hbm=1M");
	running.expectDead();
	Device device("socket=" + running.path());
	const auto desc = device.alloc(4096);
	running.process().kill(SIGKILL);
	running.process().wait();
	EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	EXPECT_CONTAINS(device.why(), "is gone");
	EXPECT_TRUE(device.host.invalidated().empty());
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Gone, GivenAnImporterThatLetsGoLaterThenItsDoneIsTaken)
{
	Device device("hbm=1M");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) {
		return -EINPROGRESS;
	};
	Held held = hold(device);
	ASSERT_EQ(0, device.ops->remove(device.handle));
	EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	const uint64_t cookie = device.host.invalidated()[0].inv.cookie;
	device.slots.invalidate_done(device.handle, held.buffer.handle, cookie, 0);
	giveBack(device, held);
	EXPECT_TRUE(device.clean());
}

TEST(Gone, GivenARevokeThatIsNotAcknowledgedYetThenBothEnd)
{
	Device device("hbm=1M,profile=revokes");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) {
		return -EINPROGRESS;
	};
	Held held = hold(device);
	ASSERT_EQ(0, device.ops->revoke(device.handle, held.buffer.handle));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	ASSERT_EQ(0, device.ops->remove(device.handle));
	EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	for (const auto &told : device.host.invalidated())
		device.slots.invalidate_done(device.handle, told.buffer, told.inv.cookie, 0);
	EXPECT_EQ(2u, device.host.invalidated().size());
	giveBack(device, held);
	EXPECT_TRUE(device.clean());
}

/* In the middle of each request: the device holds the answer back, and is killed. */
class GoneDuring : public ::testing::TestWithParam<const char *>
{
};

TEST_P(GoneDuring, GivenARequestUnderWayThenItEndsAndNothingIsLeft)
{
	const std::string step = GetParam();
	RunningDevice running("hbm=1M,profile=revokes");
	running.expectDead();
	const size_t fds = openFds(getpid());
	{
		Device device("socket=" + running.path());
		Held held = hold(device);
		ASSERT_EQ(0, device.ops->fault(device.handle, ("device." + step).c_str(), 0, 1, 0,
					       forEver))
			<< device.why();
		int rc = 0;
		uint64_t token = 0;
		peerbuf_mapping m;
		peerbuf_fd_export e;
		peerbuf_buffer_desc d;
		uint8_t byte = 0;
		auto offer = cleared<peerbuf_exporter_offer>();
		if (step == "detach") {
			device.slots.unmap(device.handle, held.token, &held.mapping);
			device.slots.release_fd(device.handle, held.token, &held.exported);
			device.slots.unpin(device.handle, held.token);
		}
		std::thread asking([&] {
			if (step == "alloc")
				rc = device.tryAlloc(4096);
			else if (step == "get")
				rc = device.getFd(held.exported.fd, 0, &d);
			else if (step == "attach")
				rc = device.attach(held.buffer.handle, &token);
			else if (step == "pin")
				rc = device.slots.pin(device.handle, held.token);
			else if (step == "map")
				rc = device.map(held.token, 0, 4096, &m);
			else if (step == "export_fd")
				rc = device.exportFd(held.token, 0, 4096, &e);
			else if (step == "read")
				rc = device.ops->device_read(device.handle, held.buffer.handle, 0,
							     &byte, 1);
			else if (step == "offer")
				rc = device.slots.offer(device.handle, 0, &offer);
			else if (step == "revoke")
				rc = device.ops->revoke(device.handle, held.buffer.handle);
			else if (step == "unmap")
				device.slots.unmap(device.handle, held.token, &held.mapping);
			else if (step == "detach")
				device.slots.detach(device.handle, held.token);
		});
		running.process().kill(SIGKILL); /* before, while or after it is asked */
		asking.join();
		if (step != "unmap" && step != "detach") {
			EXPECT_ERRNO(ENODEV, rc);
		}
		device.slots.progress(device.handle);
		EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
		giveBack(device, held);
		EXPECT_TRUE(device.clean());
	}
	EXPECT_EQ(fds, openFds(getpid()));
}

INSTANTIATE_TEST_SUITE_P(Every, GoneDuring,
			 ::testing::Values("alloc", "get", "attach", "pin", "map", "export_fd",
					   "read", "offer", "revoke", "unmap", "detach"),
			 [](const auto &step) { return std::string(step.param); });

TEST(Gone, GivenADeviceThatHangsThenItCountsAsGoneAfterTheTimeout)
{
	RunningDevice running("hbm=1M");
	Device device("timeout=50,socket=" + running.path());
	const auto desc = device.alloc(4096);
	ASSERT_EQ(0, device.ops->fault(device.handle, "device.attach", 0, 1, 0, forEver));
	uint64_t token = 0;
	EXPECT_ERRNO(ENODEV, device.attach(desc.handle, &token));
	EXPECT_EQ(PEERBUF_ERR_TIMEOUT, device.errc());
	EXPECT_CONTAINS(device.why(), "50 ms");
	EXPECT_ERRNO(ENODEV, device.tryAlloc(4096));
	/* the device is well, and has let go of all that we held */
	Device other("socket=" + running.path());
	EXPECT_EQ(0, other.tryAlloc(1 << 20)) << other.why();
}

/* A client that dies without a word: its memory, window, pins and mappings go back. */
TEST(ClientDeath, GivenAClientIsKilledThenAllItHeldIsFree)
{
	RunningDevice running("hbm=1M,window=1M,profile=moves");
	Device survivor("socket=" + running.path());
	const size_t fds = survivor.deviceFds(running);
	for (int round = 0; round < 3; round++) {
		int ready[2];
		ASSERT_EQ(0, pipe2(ready, O_CLOEXEC));
		const pid_t child = fork();
		if (child == 0) {
			Device victim("socket=" + running.path());
			const auto desc = victim.alloc(1 << 20);
			uint64_t token = victim.attached(desc.handle);
			peerbuf_mapping m;
			peerbuf_fd_export e;
			const bool ok = victim.slots.pin(victim.handle, token) == 0 &&
					victim.map(token, 0, 1 << 20, &m) == 0 &&
					victim.exportFd(token, 0, 4096, &e) == 0;
			const char byte = ok ? 'y' : 'n';
			if (write(ready[1], &byte, 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		char byte = 0;
		close(ready[1]);
		ASSERT_EQ(1, read(ready[0], &byte, 1));
		close(ready[0]);
		EXPECT_EQ('y', byte);
		EXPECT_ERRNO(ENOMEM, survivor.tryAlloc(4096));
		EXPECT_EQ(1u << 20, survivor.offer().window_used);
		ASSERT_EQ(0, kill(child, SIGKILL));
		ASSERT_EQ(child, waitpid(child, nullptr, 0));
		EXPECT_EQ(0, survivor.tryAlloc(1 << 20)) << survivor.why();
		EXPECT_EQ(0u, survivor.offer().window_used);
		EXPECT_EQ(fds, survivor.deviceFds(running));
	}
}

/* A forked child's copy is inert: that it exits takes nothing from the parent. */
TEST(ClientDeath, GivenAForkedChildThatExitsThenTheParentGoesOn)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	const pid_t child = fork();
	if (child == 0) {
		device.slots.close(device.handle);
		_exit(0);
	}
	int status = 0;
	ASSERT_EQ(child, waitpid(child, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(1u, device.stats().buffers);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

} // namespace peerbuf::emulated::test
