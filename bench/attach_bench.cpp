// SPDX-License-Identifier: BSD-3-Clause
/*
 * A registration and its end, against the least that any attachment between processes costs: ask
 * another process for a descriptor, and get it.
 */
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "figures.h"
#include "tools/peerbuf/child.h"
#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::bench
{

namespace
{

constexpr uint64_t size = 1 << 20;

/** One byte, with a descriptor if @p fd is not -1. */
bool sendByte(int socket, int fd)
{
	char byte = 1;
	iovec iov = {&byte, 1};
	alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
	msghdr header = {};
	header.msg_iov = &iov;
	header.msg_iovlen = 1;
	if (fd >= 0) {
		header.msg_control = control;
		header.msg_controllen = sizeof(control);
		cmsghdr *c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	ssize_t n = 0;
	do {
		n = ::sendmsg(socket, &header, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == 1;
}

/** @return false: the other end is gone. */
bool receiveByte(int socket, tools::UniqueFd *ret_fd)
{
	char byte = 0;
	iovec iov = {&byte, 1};
	alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
	msghdr header = {};
	header.msg_iov = &iov;
	header.msg_iovlen = 1;
	header.msg_control = control;
	header.msg_controllen = sizeof(control);
	ssize_t n = 0;
	do {
		n = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	const cmsghdr *c = CMSG_FIRSTHDR(&header);
	if (n == 1 && c && c->cmsg_type == SCM_RIGHTS) {
		int fd = -1;
		std::memcpy(&fd, CMSG_DATA(c), sizeof(int));
		*ret_fd = tools::UniqueFd(fd);
	}
	return n == 1;
}

class Echo
{
public:
	bool open(Failure *ret_failure)
	{
		int pair[2];
		int rc = 0;
		if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			rc = -errno;
		if (rc == 0) {
			socket_ = tools::UniqueFd(pair[0]);
			const tools::UniqueFd theirs(pair[1]);
			rc = child_.start({"/proc/self/exe", echoCommand}, {theirs.get()});
		}
		if (rc == 0)
			return true;
		*ret_failure = {tools::exitMissing,
				"a process to get descriptors from: " + tools::errnoWord(rc)};
		return false;
	}
	/** @return ns; 0: it is gone. */
	uint64_t roundTrip()
	{
		tools::UniqueFd fd;
		const uint64_t started = nowNs();
		if (!sendByte(socket_.get(), -1) || !receiveByte(socket_.get(), &fd) || !fd)
			return 0;
		return nowNs() - started;
	}

private:
	tools::Child child_; /* ended after the socket, at whose end it goes by itself */
	tools::UniqueFd socket_;
};

} // namespace

int echoDescriptors(int fd)
{
	const tools::UniqueFd socket(fd);
	const tools::UniqueFd memory(::memfd_create("peerbuf-bench-echo", MFD_CLOEXEC));
	if (!memory)
		return tools::exitMissing;
	tools::UniqueFd none;
	while (receiveByte(socket.get(), &none))
		if (!sendByte(socket.get(), memory.get()))
			return tools::exitBad;
	return tools::exitOk;
}

bool benchAttach(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	Held held;
	Echo echo;
	if (!bench.world.alloc(size, &held, ret_failure) || !echo.open(ret_failure))
		return false;
	const size_t pairs = bench.effort.quick ? 20 : 4000;
	std::vector<double> attach;
	std::vector<double> bare;
	std::vector<double> ratios;
	for (size_t i = 0; i <= pairs; i++) {
		if (i % 16 == 0)
			bench.output.progress({"attach: pair " + std::to_string(i) + " of " +
					       std::to_string(pairs)});
		const uint64_t started = nowNs();
		if (!bench.world.registerWith(&held, ret_failure))
			return false;
		if (held.reg.reset()) {
			*ret_failure = brokenCall("deregistering");
			return false;
		}
		const uint64_t ended = nowNs();
		bench.world.progress();
		const uint64_t roundTrip = echo.roundTrip();
		if (!roundTrip) {
			*ret_failure = {tools::exitChildDied,
					"the process that hands out descriptors is gone"};
			return false;
		}
		if (i == 0)
			continue; /* the first of either meets cold caches and a new process */
		attach.push_back(static_cast<double>(ended - started));
		bare.push_back(static_cast<double>(roundTrip));
		ratios.push_back(attach.back() / bare.back());
	}
	const Estimate ratio = estimate(ratios);
	ret_report->json["register_deregister"] = percentilesUs(attach);
	ret_report->json["fd_round_trip"] = percentilesUs(bare);
	ret_report->json["ratio"] = ratioJson("median", ratio);
	const auto row = [&](const char *name, const std::vector<double> &ns) {
		ret_report->rows.push_back({name,
					    number(percentile(ns, 50) / 1e3, 1) + " / " +
						    number(percentile(ns, 99) / 1e3, 1),
					    "", "", ""});
	};
	row("attach and detach 1 MiB, p50 / p99, us", attach);
	row("a descriptor asked for, p50 / p99, us", bare);
	ret_report->rows.push_back({"attach and detach / descriptor", number(ratio.median, 2),
				    interval(ratio, 2), "", ""});
	return true;
}

} // namespace peerbuf::bench
