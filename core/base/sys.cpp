// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/sys.h"

#include <ctime>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace peerbuf
{

namespace
{

constexpr Sys REAL = {
	.close = ::close,
	.epollCreate = [] { return ::epoll_create1(EPOLL_CLOEXEC); },
	.epollCtl = ::epoll_ctl,
	.epollWait = ::epoll_wait,
	.eventFd = [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); },
	.read = ::read,
	.write = ::write,
	.fcntlGetFd = [](int fd) { return ::fcntl(fd, F_GETFD); },
	.seekEnd = [](int fd) { return ::lseek(fd, 0, SEEK_END); },
	.nowNs =
		[] {
			timespec now{};
			clock_gettime(CLOCK_MONOTONIC, &now);
			return static_cast<uint64_t>(now.tv_sec) * 1000000000u +
			       static_cast<uint64_t>(now.tv_nsec);
		},
};

} // namespace

Sys &sys()
{
	static Sys table = REAL;
	return table;
}

const Sys &realSys()
{
	return REAL;
}

} // namespace peerbuf
