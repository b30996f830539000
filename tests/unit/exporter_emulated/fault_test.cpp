// SPDX-License-Identifier: BSD-3-Clause
#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

/**
 * One pass over every slot, with every step undone. @return the first error; whatever it was,
 * nothing may be left.
 */
int session(Device &device)
{
	auto offer = cleared<peerbuf_exporter_offer>();
	if (const int rc = device.slots.offer(device.handle, 0, &offer))
		return rc;
	auto desc = cleared<peerbuf_buffer_desc>();
	if (const int rc = device.slots.alloc(device.handle, 300 << 10, &desc))
		return rc;
	uint64_t token = 0;
	int rc = device.attach(desc.handle, &token);
	if (!rc) {
		rc = device.slots.pin(device.handle, token);
		if (!rc) {
			peerbuf_mapping m;
			rc = device.map(token, 4096, 8192, &m);
			if (!rc)
				device.slots.unmap(device.handle, token, &m);
			device.slots.unpin(device.handle, token);
		}
		peerbuf_fd_export e;
		if (!rc && !(rc = device.exportFd(token, 0, 4096, &e))) {
			peerbuf_buffer_desc found;
			rc = device.getFd(e.fd, 0, &found);
			if (!rc)
				device.slots.put(device.handle, found.handle);
			device.slots.release_fd(device.handle, token, &e);
		}
		device.slots.detach(device.handle, token);
	}
	uint8_t byte = 7;
	if (!rc)
		rc = device.ops->device_write(device.handle, desc.handle, 9, &byte, 1);
	if (!rc)
		rc = device.ops->device_read(device.handle, desc.handle, 9, &byte, 1);
	if (!rc)
		rc = device.ops->revoke(device.handle, desc.handle);
	if (!rc)
		rc = device.slots.progress(device.handle) < 0;
	if (!rc)
		rc = device.ops->restore(device.handle, desc.handle);
	device.slots.progress(device.handle);
	const int freed = device.slots.free(device.handle, desc.handle);
	if (freed) { /* the fault hit free itself, which has then changed nothing */
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	}
	return rc ? rc : freed;
}

class FaultAt : public ::testing::TestWithParam<const char *>
{
};

} // namespace

TEST_P(FaultAt, GivenTheStepFailsThenTheErrorIsItsAndNothingIsLeft)
{
	RunningDevice running("hbm=1M,window=1M,profile=revokes");
	Device device("socket=" + running.path());
	ASSERT_EQ(0, session(device)) << device.why();
	const size_t ours = openFds(getpid());
	const size_t theirs = device.deviceFds(running);
	int failures = 0;
	for (uint32_t skip = 0; skip < 10; skip++) {
		SCOPED_TRACE(skip);
		ASSERT_EQ(0, device.ops->fault(device.handle, GetParam(), skip, 1, -EXDEV, 0))
			<< device.why();
		const int rc = session(device);
		EXPECT_EQ(0, device.ops->fault(device.handle, GetParam(), 0, 0, 0, 0));
		EXPECT_TRUE(device.clean());
		EXPECT_EQ(ours, openFds(getpid()));
		EXPECT_EQ(theirs, device.deviceFds(running));
		EXPECT_EQ(0u, device.offer().window_used);
		EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();
		if (rc == 0)
			break; /* the step is not taken so often */
		failures++;
		/* where memory runs out in words of its own, its own errno */
		const std::string step = GetParam();
		const bool memory = step == "device.frames" || step == "device.clear";
		EXPECT_ERRNO(memory ? ENOMEM : EXDEV, rc);
		EXPECT_CONTAINS(device.why(), step);
	}
	EXPECT_GT(failures, 0) << "the step is never taken";
	EXPECT_LT(failures, 10);
	EXPECT_EQ(0, session(device)) << device.why();
}

INSTANTIATE_TEST_SUITE_P(Every, FaultAt,
			 ::testing::Values("offer", "alloc", "free", "get", "attach", "pin", "map",
					   "export_fd", "client.window", "client.place",
					   "device.offer", "device.alloc", "device.get",
					   "device.attach", "device.pin", "device.map",
					   "device.export_fd", "device.read", "device.write",
					   "device.revoke", "device.restore", "device.layout",
					   "device.frames", "device.clear", "device.identity"),
			 [](const auto &step) {
				 std::string name = step.param;
				 for (char &c : name)
					 if (c == '.')
						 c = '_';
				 return name;
			 });

TEST(Fault, GivenSkipAndCountThenExactlyThoseFail)
{
	Device device("hbm=1M");
	for (const std::string step : {"alloc", "device.alloc"}) {
		SCOPED_TRACE(step);
		ASSERT_EQ(0, device.ops->fault(device.handle, step.c_str(), 2, 3, -EIO, 0));
		for (const int expected : {0, 0, -EIO, -EIO, -EIO, 0})
			EXPECT_EQ(expected, device.tryAlloc(4096));
		ASSERT_EQ(0,
			  device.ops->fault(device.handle, step.c_str(), 0, UINT32_MAX, -EIO, 0));
		EXPECT_EQ(-EIO, device.tryAlloc(4096));
		ASSERT_EQ(0, device.ops->fault(device.handle, step.c_str(), 0, 0, 0, 0));
		EXPECT_EQ(0, device.tryAlloc(4096));
	}
}

TEST(Fault, GivenADelayThenTheStepIsLateAndOthersAreNot)
{
	RunningDevice running("hbm=1M");
	Device slow("socket=" + running.path());
	Device other("socket=" + running.path());
	constexpr uint64_t delay = 20000000;
	const uint64_t before = slow.host.raw()->now_ns(slow.host.raw());
	ASSERT_EQ(0, slow.ops->fault(slow.handle, "alloc", 0, 1, 0, delay));
	EXPECT_EQ(0, slow.tryAlloc(4096));
	const uint64_t between = slow.host.raw()->now_ns(slow.host.raw());
	EXPECT_GE(between - before, delay);
	ASSERT_EQ(0, slow.ops->fault(slow.handle, "device.attach", 0, 1, -EIO, delay));
	const auto desc = slow.alloc(4096);
	uint64_t token = 0;
	EXPECT_EQ(-EIO, slow.attach(desc.handle, &token));
	EXPECT_GE(slow.host.raw()->now_ns(slow.host.raw()) - between, delay);
	EXPECT_EQ(0, other.tryAlloc(4096));
}

TEST(Fault, GivenNoSuchStepThenSaid)
{
	Device device("hbm=1M");
	EXPECT_ERRNO(ENOENT, device.ops->fault(device.handle, "launch", 0, 1, -EIO, 0));
	EXPECT_CONTAINS(device.why(), "launch");
	EXPECT_ERRNO(ENOENT, device.ops->fault(device.handle, "device.launch", 0, 1, -EIO, 0));
	EXPECT_ERRNO(ENOENT, device.ops->fault(device.handle, nullptr, 0, 1, -EIO, 0));
	EXPECT_ERRNO(EINVAL, device.ops->fault(device.handle, "unmap", 0, 1, -EIO, 0));
	EXPECT_ERRNO(EINVAL, device.ops->fault(device.handle, "alloc", 0, 1, EIO, 0));
	EXPECT_EQ(0, device.ops->fault(device.handle, "unmap", 0, 1, 0, 1));
	EXPECT_EQ(0, device.ops->fault(device.handle, "device.unmap", 0, 1, 0, 1));
}

/* Failures at random, by seed: whatever fails, everything comes back. */
TEST(Fault, GivenARateThenSomeRequestsFailAndNothingLeaks)
{
	RunningDevice running("hbm=1M,window=1M,profile=revokes,fault_rate=100,seed=77");
	Device device("socket=" + running.path());
	int failed = 0;
	constexpr int rounds = 100;
	for (int i = 0; i < rounds; i++)
		failed += session(device) != 0;
	EXPECT_GT(failed, rounds / 10);
	EXPECT_LT(failed, rounds);
	/* what may fail may also fail here; what is held may not */
	const auto s = device.stats();
	EXPECT_EQ(0u, s.buffers + s.attachments + s.memory_used + s.window_used + s.violations);
	EXPECT_EQ(0, s.pins + s.mappings + s.exports);
}

} // namespace peerbuf::emulated::test
