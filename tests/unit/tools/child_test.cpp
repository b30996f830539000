// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tools/peerbuf/child.h"
#include "tools/peerbuf/socket_place.h"

namespace peerbuf::test
{
namespace
{

using namespace peerbuf::tools;
using std::chrono::seconds;

TEST(Child, GivenDescriptorsThenItHasThemAndNoOthers)
{
	int ends[2];
	ASSERT_EQ(pipe(ends), 0);
	const UniqueFd reader(ends[0]);
	UniqueFd writer(ends[1]);
	Child child;
	/* the listing itself takes one */
	ASSERT_EQ(child.start({"/bin/sh", "-c", "echo /proc/$$/fd/* >&3; exit 5"}, {writer.get()}),
		  0);
	writer.reset();
	std::string text(4096, '\0');
	const ssize_t n = read(reader.get(), text.data(), text.size());
	text.resize(n > 0 ? static_cast<size_t>(n) : 0);
	const std::string base = "/proc/" + std::to_string(child.pid()) + "/fd/";
	for (const char *fd : {"0", "1", "2", "3"})
		EXPECT_NE(text.find(base + fd), std::string::npos) << text;
	EXPECT_EQ(text.find(base + "5"), std::string::npos) << text;
	ASSERT_TRUE(child.wait(seconds(20)));
	EXPECT_EQ(WEXITSTATUS(*child.status()), 5);
	EXPECT_FALSE(child.running());
	EXPECT_EQ(child.pidfd(), -1);
}

TEST(Child, GivenNoSuchProgramThenTheErrnoIsReturnedAndNothingRuns)
{
	Child child;
	EXPECT_EQ(child.start({"/nonexistent"}, {}), -ENOENT);
	EXPECT_FALSE(child.running());
	EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Child, WhenItGoesThenTheProcessIsKilledAndReaped)
{
	pid_t pid = -1;
	{
		Child child;
		ASSERT_EQ(child.start({"/bin/sleep", "1000"}, {}), 0);
		pid = child.pid();
		EXPECT_FALSE(child.poll());
	}
	EXPECT_EQ(kill(pid, 0), -1);
	EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Child, WhenItsStarterIsKilledThenItDiesToo)
{
	int ends[2];
	ASSERT_EQ(pipe(ends), 0);
	const pid_t middle = fork();
	if (middle == 0) {
		Child child;
		/* it keeps the pipe open as long as it lives */
		const int rc = child.start({"/bin/sleep", "1000"}, {ends[1]});
		close(ends[1]);
		raise(rc ? SIGTERM : SIGKILL);
	}
	close(ends[1]);
	int status = 0;
	ASSERT_EQ(waitpid(middle, &status, 0), middle);
	EXPECT_EQ(WTERMSIG(status), SIGKILL);
	pollfd p = {ends[0], POLLIN, 0};
	ASSERT_EQ(poll(&p, 1, 20000), 1) << "the grandchild lives on";
	EXPECT_TRUE(p.revents & POLLHUP);
	close(ends[0]);
}

TEST(Child, GivenAnOrphanThatDoesNotEndThenItIsKilledAndCounted)
{
	adoptOrphans();
	Child child;
	ASSERT_EQ(child.start({"/bin/sh", "-c", "sleep 1000 & exit 0"}, {}), 0);
	ASSERT_TRUE(child.wait(seconds(20)));
	EXPECT_EQ(reapOrphans(std::chrono::milliseconds(50)), 1);
	EXPECT_EQ(reapOrphans(std::chrono::milliseconds(50)), 0);
}

TEST(SocketPlace, WhenHeldThenTheNameIsGoneAndTheSocketIsReached)
{
	SocketPlace place;
	ASSERT_EQ(place.create(), "");
	const std::string path = place.path();
	sockaddr_un address = {};
	address.sun_family = AF_UNIX;
	path.copy(address.sun_path, sizeof(address.sun_path) - 1);
	const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);
	ASSERT_EQ(listen(listener.get(), 1), 0);
	ASSERT_EQ(place.hold(), "");
	EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path()));

	sockaddr_un held = {};
	held.sun_family = AF_UNIX;
	const std::string name = "/proc/self/fd/" + std::to_string(place.fd());
	name.copy(held.sun_path, sizeof(held.sun_path) - 1);
	const UniqueFd client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr *>(&held), sizeof(held)), 0);
}

TEST(SocketPlace, GivenALongTemporaryFolderThenAShortOneIsUsed)
{
	const std::string before = getenv("TMPDIR") ? getenv("TMPDIR") : "";
	setenv("TMPDIR", ("/tmp/" + std::string(200, 'x')).c_str(), 1);
	{
		SocketPlace place;
		EXPECT_EQ(place.create(), "");
		EXPECT_LT(place.path().size(), sizeof(sockaddr_un::sun_path));
	}
	if (before.empty())
		unsetenv("TMPDIR");
	else
		setenv("TMPDIR", before.c_str(), 1);
}

} // namespace
} // namespace peerbuf::test
