// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

size_t highestFd(pid_t pid)
{
	size_t highest = 0;
	for (const auto &entry :
	     std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
		highest = std::max<size_t>(highest, std::stoul(entry.path().filename()));
	return highest;
}

struct Usage {
	std::vector<std::string> words;
	const char *said;
};

} // namespace

TEST(DeviceProgram, GivenBadUsageThenTwoAndAReasonAndNothingOnStdout)
{
	const Usage all[] = {
		{{}, "exactly one of --socket PATH and --fd N"},
		{{"--socket", "/tmp/x", "--fd", "3"}, "exactly one"},
		{{"--fd", "0"}, "not a SEQPACKET socket"},
		{{"--fd", "99"}, "not a SEQPACKET socket"},
		{{"--fd", "three"}, "--fd"},
		{{"--socket", "/tmp/x", "--ready-fd", "99"}, "--ready-fd 99"},
		{{"--socket", "/tmp/x", "--colour", "red"}, "colour"},
		{{"--socket", "/tmp/x", "--profile", "fast"}, "nopin"},
		{{"--socket", "/tmp/x", "--hbm", "1000"}, "granularity"},
		{{"--socket", "/tmp/x", "--hbm"}, "hbm"},
	};
	for (const Usage &usage : all) {
		std::vector<std::string> words = {deviceBinary()};
		words.insert(words.end(), usage.words.begin(), usage.words.end());
		Process process(words);
		EXPECT_EQ(2, process.wait());
		EXPECT_CONTAINS(process.errors(), usage.said);
		EXPECT_EQ(0u, process.errors().find("peerbuf-emulated-device: "));
		EXPECT_EQ("", process.output());
	}
	Process help({deviceBinary(), "--help"});
	EXPECT_EQ(0, help.wait());
	EXPECT_CONTAINS(help.output(), "--window_reserve");
}

TEST(DeviceProgram, GivenASocketThatCannotBeThenOneAndTheReason)
{
	RunningDevice running("hbm=1M");
	Process second({deviceBinary(), "--socket", running.path()});
	EXPECT_EQ(1, second.wait());
	EXPECT_CONTAINS(second.errors(), running.path());
	EXPECT_CONTAINS(second.errors(), "EADDRINUSE");
	Device still("socket=" + running.path());
	EXPECT_EQ(0, still.tryAlloc(4096));
	Process nowhere({deviceBinary(), "--socket", "/nonexistent/dir/socket"});
	EXPECT_EQ(1, nowhere.wait());
	EXPECT_CONTAINS(nowhere.errors(), "ENOENT");
	Process tooLong({deviceBinary(), "--socket", std::string(200, 'x')});
	EXPECT_EQ(1, tooLong.wait());
	/* a file that is no socket is left alone */
	char file[] = "/tmp/peerbuf-test-XXXXXX";
	const UniqueFd fd(mkstemp(file));
	Process onFile({deviceBinary(), "--socket", file});
	EXPECT_EQ(1, onFile.wait());
	EXPECT_EQ(0, access(file, F_OK));
	unlink(file);
}

TEST(DeviceProgram, GivenASocketLeftByAKilledDeviceThenItIsTakenOver)
{
	RunningDevice running("hbm=1M");
	running.expectDead();
	running.process().kill(SIGKILL);
	running.process().wait();
	ASSERT_EQ(0, access(running.path().c_str(), F_OK));
	int ready[2];
	ASSERT_EQ(0, pipe2(ready, O_CLOEXEC));
	Process next({deviceBinary(), "--socket", running.path(), "--ready-fd", "9", "--hbm", "1M"},
		     ready[1], 9);
	close(ready[1]);
	char byte = 0;
	EXPECT_EQ(1, read(ready[0], &byte, 1)) << next.errors();
	close(ready[0]);
	{
		Device device("socket=" + running.path());
		EXPECT_EQ(0, device.tryAlloc(4096));
	}
	next.kill(SIGTERM);
	EXPECT_EQ(0, next.wait());
	EXPECT_NE(0, access(running.path().c_str(), F_OK));
}

TEST(DeviceProgram, GivenAQuietLifeThenNothingIsPrintedAndWithVerboseItIs)
{
	RunningDevice quiet("hbm=1M");
	{
		Device device("socket=" + quiet.path());
		EXPECT_EQ(0, device.tryAlloc(4096));
	}
	EXPECT_EQ("", quiet.process().errors());
	EXPECT_EQ("", quiet.process().output());
	struct stat st = {};
	ASSERT_EQ(0, stat(quiet.path().c_str(), &st));
	EXPECT_EQ(0u, st.st_mode & 0077) << "only its owner may use a device";

	int pair[2];
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	Process verbose({deviceBinary(), "--fd", "9", "--verbose", "--hbm", "1M"}, pair[1], 9);
	close(pair[1]);
	close(pair[0]);
	EXPECT_EQ(0, verbose.wait()) << "it ends when its only client has left";
	EXPECT_CONTAINS(verbose.errors(), "ready");
	EXPECT_CONTAINS(verbose.errors(), "leaves");
}

TEST(DeviceProgram, GivenNoDescriptorLeftThenClientsAreTurnedAwayAndOthersGoOn)
{
	RunningDevice running("hbm=1M");
	Device device("socket=" + running.path());
	/* no number free below the highest in use */
	std::vector<std::unique_ptr<Device>> others;
	while (device.deviceFds(running) <= highestFd(running.process().pid()))
		others.push_back(std::make_unique<Device>("socket=" + running.path()));
	const size_t fds = device.deviceFds(running);
	const struct rlimit none = {fds, fds};
	ASSERT_EQ(0, prlimit(running.process().pid(), RLIMIT_NOFILE, &none, nullptr));
	peerbuf::test::FakeHost host;
	EXPECT_ERRNO(ENODEV, Device::tryOpen(host, "socket=" + running.path()));
	EXPECT_EQ(0, device.tryAlloc(4096)) << device.why();
	EXPECT_CONTAINS(running.process().errors(), "no descriptor left");
	/* and what needs one says so */
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_fd_export e;
	EXPECT_ERRNO(EMFILE, device.exportFd(token, 0, 4096, &e));
	EXPECT_EQ(PEERBUF_ERR_FD_EXHAUSTED, device.errc());
	std::vector<uint8_t> byte(1);
	EXPECT_ERRNO(EMFILE,
		     device.ops->device_read(device.handle, desc.handle, 0, byte.data(), 1));
	EXPECT_EQ(0, device.stats().exports);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(PrivateDevice, GivenCloseThenItsProcessHasEnded)
{
	{
		Device device("hbm=1M");
		EXPECT_EQ(1u, children().size());
	}
	EXPECT_TRUE(children().empty());
}

TEST(PrivateDevice, GivenTwoThenTheyAreTwo)
{
	Device a("hbm=1M");
	Device b("hbm=2M");
	EXPECT_STRNE(a.offer().device, b.offer().device);
	EXPECT_EQ(2u, children().size());
}

} // namespace peerbuf::emulated::test
