// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_SYS_H
#define PEERBUF_CORE_BASE_SYS_H

#include <cstdint>
#include <sys/epoll.h>
#include <sys/types.h>

namespace peerbuf
{

/**
 * The system calls of the core, at one seam. Tests replace a member to make the call fail; nothing
 * else in the core reaches the kernel. Members behave as the functions of the same name.
 */
struct Sys {
	int (*close)(int fd);
	int (*epollCreate)();
	int (*epollCtl)(int epfd, int op, int fd, epoll_event *event);
	int (*epollWait)(int epfd, epoll_event *events, int max, int timeoutMs);
	int (*eventFd)();
	ssize_t (*read)(int fd, void *data, size_t size);
	ssize_t (*write)(int fd, const void *data, size_t size);
	int (*fcntlGetFd)(int fd);
	off_t (*seekEnd)(int fd);
	uint64_t (*nowNs)();
};

/** The table in force. Replace its members only while no other thread is in the core. */
Sys &sys();
/** The real one, to go back to. */
const Sys &realSys();

} // namespace peerbuf

#endif
