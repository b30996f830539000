// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exporter/emulated/wire.h"
#include "harness.h"

namespace peerbuf::emulated::test
{

TEST(Fd, Rule4_GivenAnExportThenItsSizeIsTheBuffersAndStays)
{
	Device device("hbm=4M");
	const auto desc = device.alloc(1 << 20);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 12345, 4096, &e)) << device.why();
	EXPECT_EQ(12345u, e.offset);
	EXPECT_EQ(desc.size, e.size);
	EXPECT_EQ(static_cast<off_t>(desc.size), lseek(e.fd, 0, SEEK_END));
	EXPECT_NE(0, ftruncate(e.fd, 1)) << "its size can be changed";
	EXPECT_NE(0, ftruncate(e.fd, 2 << 20));
	const char byte = 1;
	EXPECT_GT(0, pwrite(e.fd, &byte, 1, 0)) << "its mark can be overwritten";
	device.slots.release_fd(device.handle, token, &e);
}

TEST(Fd, Rule6_GivenAnExportThenItIsCloseOnExecFromBirth)
{
	Device device("hbm=4M");
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
	EXPECT_EQ(FD_CLOEXEC, fcntl(e.fd, F_GETFD));
	device.slots.release_fd(device.handle, token, &e);
	EXPECT_EQ(-1, fcntl(e.fd, F_GETFD)) << "release_fd ends the descriptor";
}

TEST(Fd, Rule8_GivenWhatIsNoDmaBufThenToldApart)
{
	Device device("hbm=4M");
	peerbuf_buffer_desc found;
	EXPECT_ERRNO(EBADF, device.getFd(1000, 0, &found));
	const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
	EXPECT_ERRNO(EINVAL, device.getFd(file.get(), 0, &found));
	const UniqueFd plain(memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	ASSERT_EQ(0, ftruncate(plain.get(), 4096));
	EXPECT_ERRNO(EINVAL, device.getFd(plain.get(), 0, &found));
	EXPECT_CONTAINS(device.why(), "not a dma-buf");
	int pair[2];
	ASSERT_EQ(0, pipe2(pair, O_CLOEXEC));
	const UniqueFd in(pair[0]);
	const UniqueFd out(pair[1]);
	EXPECT_ERRNO(EINVAL, device.getFd(in.get(), 0, &found));
	EXPECT_TRUE(device.clean());
}

TEST(Fd, GivenADmaBufOfAnotherDeviceThenItIsNotOurs)
{
	Device one("hbm=4M");
	Device two("hbm=4M");
	const auto desc = one.alloc(4096);
	const uint64_t token = one.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, one.exportFd(token, 0, 4096, &e));
	peerbuf_buffer_desc found;
	EXPECT_ERRNO(ENOENT, two.getFd(e.fd, 0, &found));
	one.slots.release_fd(one.handle, token, &e);
}

/* The mark says our device, but the device made no such file. */
TEST(Fd, GivenAForgedMarkThenTheDeviceDoesNotKnowIt)
{
	Device device("hbm=4M");
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
	IdentityMark mark = {};
	ASSERT_TRUE(readIdentity(e.fd, &mark));
	const UniqueFd forged(makeIdentity(4096, mark));
	ASSERT_GE(forged.get(), 0);
	peerbuf_buffer_desc found;
	EXPECT_ERRNO(ENOENT, device.getFd(forged.get(), 0, &found));
	device.slots.release_fd(device.handle, token, &e);
}

TEST(Fd, GivenRangesOfADescriptorThenOnlyThoseInside)
{
	Device device("hbm=4M");
	const auto desc = device.alloc(8192);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	for (const auto &[offset, length] :
	     std::vector<std::pair<uint64_t, uint64_t>>{{0, 0}, {0, 8193}, {8192, 1}, {1, ~0ull}})
		EXPECT_ERRNO(EINVAL, device.exportFd(token, offset, length, &e));
	ASSERT_EQ(0, device.exportFd(token, 0, 8192, &e));
	peerbuf_buffer_desc found;
	EXPECT_ERRNO(EINVAL, device.getFd(e.fd, 8193, &found));
	EXPECT_CONTAINS(device.why(), "8192");
	EXPECT_EQ(1u, device.stats().buffers);
	ASSERT_EQ(0, device.getFd(e.fd, 8192, &found));
	EXPECT_EQ(desc.address, found.address);
	device.slots.put(device.handle, found.handle);
	ASSERT_EQ(0, device.getFd(e.fd, 0, &found));
	device.slots.put(device.handle, found.handle);
	device.slots.release_fd(device.handle, token, &e);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Fd, Rule9_GivenAnotherClientThenTheBufferIsSharedAndStaysUntilTheLastReference)
{
	RunningDevice running("hbm=1M,profile=moves");
	const std::string spec = "socket=" + running.path();
	Device a(spec);
	Device b(spec);
	const auto mine = a.alloc(1 << 20);
	const uint64_t token = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(token, 0, 4096, &e));
	peerbuf_buffer_desc theirs;
	ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs)) << b.why();
	EXPECT_EQ(mine.allocation_id, theirs.allocation_id);
	EXPECT_EQ(mine.size, theirs.size);
	EXPECT_NE(mine.address, theirs.address);
	auto *x = reinterpret_cast<volatile uint8_t *>(mine.address);
	auto *y = reinterpret_cast<volatile uint8_t *>(theirs.address);
	x[70000] = 7;
	EXPECT_EQ(7, y[70000]);
	y[99] = 9;
	EXPECT_EQ(9, x[99]);

	/* the first owner leaves entirely */
	const UniqueFd kept(fcntl(e.fd, F_DUPFD_CLOEXEC, 0));
	a.slots.release_fd(a.handle, token, &e);
	a.slots.detach(a.handle, token);
	EXPECT_EQ(0, a.slots.free(a.handle, mine.handle));
	EXPECT_TRUE(a.clean());
	EXPECT_ERRNO(ENOMEM, a.tryAlloc(4096));
	EXPECT_EQ(7, y[70000]);
	const uint64_t late = b.attached(theirs.handle);
	peerbuf_mapping m;
	ASSERT_EQ(0, b.map(late, 0, 4096, &m));
	b.slots.unmap(b.handle, late, &m);
	b.slots.detach(b.handle, late);

	/* and comes back through the descriptor */
	peerbuf_buffer_desc again;
	ASSERT_EQ(0, a.getFd(kept.get(), 0, &again)) << a.why();
	EXPECT_EQ(mine.allocation_id, again.allocation_id);
	a.slots.put(a.handle, again.handle);
	EXPECT_EQ(1u, b.stats().buffers);
	b.slots.put(b.handle, theirs.handle);
	EXPECT_TRUE(a.clean());
	EXPECT_TRUE(b.clean());
	EXPECT_EQ(0, a.tryAlloc(1 << 20));
	EXPECT_ERRNO(ENOENT, a.getFd(kept.get(), 0, &again));
	EXPECT_EQ(PEERBUF_ERR_STALE, a.errc());
}

TEST(Fd, GivenTwoReferencesByDescriptorThenEachNeedsItsPut)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
	peerbuf_buffer_desc found;
	ASSERT_EQ(0, device.getFd(e.fd, 0, &found));
	ASSERT_EQ(0, device.getFd(e.fd, 0, &found));
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	device.slots.release_fd(device.handle, token, &e);
	device.slots.detach(device.handle, token);
	device.slots.put(device.handle, desc.handle);
	EXPECT_EQ(1u, device.stats().buffers);
	device.slots.put(device.handle, desc.handle);
	EXPECT_TRUE(device.clean());
}

/* Freed, still attached, and taken up again: one buffer, one place in this process. */
TEST(Fd, GivenAFreedBufferThatIsStillAttachedWhenGotAgainThenItIsTheSameOne)
{
	Device device("hbm=64K,profile=revokes");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	peerbuf_buffer_desc found;
	EXPECT_ERRNO(ENOENT, device.get(desc.address, 1, &found));
	ASSERT_EQ(0, device.getFd(e.fd, 0, &found));
	EXPECT_EQ(desc.address, found.address);
	ASSERT_EQ(0, device.get(desc.address, 1, &found));
	device.slots.put(device.handle, found.handle);
	/* so a revoke leaves no second view of the memory behind */
	ASSERT_EQ(0, device.ops->revoke(device.handle, found.handle));
	EXPECT_EQ(1, device.slots.progress(device.handle));
	const auto next = device.alloc(64 << 10);
	*reinterpret_cast<volatile uint8_t *>(desc.address) = 9;
	EXPECT_EQ(0, device.deviceBytes(next.handle, 0, 1)[0]);
	for (const uint8_t byte : device.deviceBytes(next.handle, 0, next.size))
		ASSERT_EQ(0, byte);
	device.slots.release_fd(device.handle, token, &e);
	device.slots.detach(device.handle, token);
	device.slots.put(device.handle, found.handle);
	EXPECT_EQ(0, device.slots.free(device.handle, next.handle));
	EXPECT_TRUE(device.clean());
}

TEST(FdLeak, GivenManyExportsThenDescriptorsComeBackOnBothSides)
{
	RunningDevice running("hbm=1M");
	Device device("socket=" + running.path());
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	const size_t ours = openFds(getpid());
	const size_t theirs = device.deviceFds(running);
	for (int i = 0; i < 50; i++) {
		peerbuf_fd_export e;
		ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
		peerbuf_buffer_desc found;
		ASSERT_EQ(0, device.getFd(e.fd, 0, &found));
		device.slots.put(device.handle, found.handle);
		device.slots.release_fd(device.handle, token, &e);
		/* a second release must not close what has the number now */
		const UniqueFd bystander(fcntl(0, F_DUPFD_CLOEXEC, e.fd));
		device.slots.release_fd(device.handle, token, &e);
		EXPECT_GE(fcntl(bystander.get(), F_GETFD), 0);
	}
	EXPECT_EQ(ours, openFds(getpid()));
	EXPECT_EQ(theirs + 1, device.deviceFds(running)) << "but for the buffer's identity";
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(theirs, device.deviceFds(running));
}

/* The descriptor was made and sent, and this process has no number left for it. */
TEST(FdLeak, GivenNoDescriptorLeftHereThenExportFailsAndIsUndone)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	const int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
	ASSERT_GE(lowest, 0);
	close(lowest);
	struct rlimit limit = {};
	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
	const struct rlimit none = {static_cast<rlim_t>(lowest), limit.rlim_max};
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
	peerbuf_fd_export e;
	const int rc = device.exportFd(token, 0, 4096, &e);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
	EXPECT_ERRNO(EMFILE, rc);
	EXPECT_EQ(PEERBUF_ERR_FD_EXHAUSTED, device.errc());
	EXPECT_EQ(-1, e.fd);
	EXPECT_EQ(0, device.stats().exports);
	EXPECT_EQ(0u, device.stats().window_used);
	EXPECT_EQ(0, device.exportFd(token, 0, 4096, &e)) << device.why();
	device.slots.release_fd(device.handle, token, &e);
}

TEST(FdLeak, GivenCloseWithEverythingStillHeldThenNothingIsLeft)
{
	RunningDevice running("hbm=4M");
	const size_t ours = openFds(getpid());
	Device watcher("socket=" + running.path());
	const size_t theirs = watcher.deviceFds(running);
	{
		Device device("socket=" + running.path());
		const auto desc = device.alloc(4 << 20);
		const uint64_t token = device.attached(desc.handle);
		peerbuf_mapping m;
		peerbuf_fd_export e;
		ASSERT_EQ(0, device.map(token, 0, 4096, &m));
		ASSERT_EQ(0, device.exportFd(token, 0, 4096, &e));
		EXPECT_ERRNO(ENOMEM, watcher.tryAlloc(4096));
	}
	EXPECT_EQ(0, watcher.tryAlloc(4 << 20)) << watcher.why();
	EXPECT_EQ(0u, watcher.offer().window_used);
	EXPECT_EQ(theirs, watcher.deviceFds(running));
	watcher.close();
	EXPECT_EQ(ours, openFds(getpid()));
}

} // namespace peerbuf::emulated::test
