// SPDX-License-Identifier: BSD-3-Clause
#include "child.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace peerbuf::tools
{

namespace
{

using Clock = std::chrono::steady_clock;

/** Poll one descriptor. @return whether it is ready within @p limit. */
bool readyWithin(int fd, std::chrono::milliseconds limit)
{
	const auto deadline = Clock::now() + limit;
	for (;;) {
		const auto left =
			std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
		pollfd p = {fd, POLLIN, 0};
		const int rc = ::poll(&p, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
		if (rc >= 0 || errno != EINTR)
			return rc > 0;
	}
}

/** In the child, between fork and exec: only what is safe there. */
[[noreturn]] void become(pid_t parent, char *const *argv, const std::vector<int> &fds, int report)
{
	const auto give = [&](bool ok) {
		if (ok)
			return;
		const int err = errno;
		if (::write(report, &err, sizeof(err)) < 0)
			_exit(126);
		_exit(127);
	};
	give(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	if (::getppid() != parent)
		_exit(127); /* it was gone before we asked */

	sigset_t none;
	sigemptyset(&none);
	give(::pthread_sigmask(SIG_SETMASK, &none, nullptr) == 0);
	/* whoever started us decides about the keys of the terminal */
	::signal(SIGINT, SIG_IGN);
	::signal(SIGPIPE, SIG_IGN);

	/* out of the way first, so that none is overwritten before it was moved */
	constexpr int above = 64;
	const int first = Child::firstFd;
	const int count = static_cast<int>(fds.size());
	const int reportAt = first + count;
	const int reportHigh = ::fcntl(report, F_DUPFD_CLOEXEC, above);
	give(reportHigh >= 0);
	int high[8];
	for (int i = 0; i < count; i++) {
		high[i] = ::fcntl(fds[static_cast<size_t>(i)], F_DUPFD_CLOEXEC, above);
		give(high[i] >= 0);
	}
	for (int i = 0; i < count; i++)
		give(::dup2(high[i], first + i) >= 0);
	give(::dup3(reportHigh, reportAt, O_CLOEXEC) >= 0);
	report = reportAt;
	const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
	give(null >= 0 && ::dup2(null, 0) >= 0 && ::dup2(null, 1) >= 0);
	::syscall(SYS_close_range, static_cast<unsigned>(reportAt + 1), ~0u, 0u);
	::execv(argv[0], argv);
	give(false);
	_exit(127);
}

std::set<pid_t> childrenNow()
{
	std::set<pid_t> pids;
	std::ifstream in("/proc/thread-self/children");
	for (pid_t pid = 0; in >> pid;)
		pids.insert(pid);
	return pids;
}

} // namespace

int Child::start(const std::vector<std::string> &argv, const std::vector<int> &fds)
{
	std::vector<char *> words;
	words.reserve(argv.size() + 1);
	for (const std::string &word : argv)
		words.push_back(const_cast<char *>(word.c_str())); /* execv takes no const */
	words.push_back(nullptr);
	int report[2];
	if (::pipe2(report, O_CLOEXEC) < 0)
		return -errno;
	UniqueFd reader(report[0]);
	UniqueFd writer(report[1]);

	const pid_t parent = ::getpid();
	const pid_t pid = ::fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		become(parent, words.data(), fds, writer.get());
	pid_ = pid;
	writer.reset();
	/* closed by exec, or the errno of the step that failed */
	int err = 0;
	ssize_t n = 0;
	do {
		n = ::read(reader.get(), &err, sizeof(err));
	} while (n < 0 && errno == EINTR);
	if (n == static_cast<ssize_t>(sizeof(err))) {
		end();
		return -err;
	}
	pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
	if (!pidfd_) {
		const int failed = errno;
		end();
		return -failed;
	}
	return 0;
}

bool Child::wait(std::chrono::milliseconds limit)
{
	if (!running())
		return true;
	if (pidfd_ && !readyWithin(pidfd_.get(), limit))
		return false;
	int status = 0;
	pid_t rc = 0;
	do {
		rc = ::waitpid(pid_, &status, 0);
	} while (rc < 0 && errno == EINTR);
	status_ = rc == pid_ ? status : 0;
	pidfd_.reset();
	return true;
}

void Child::signal(int number) const
{
	if (running())
		::kill(pid_, number);
}

void Child::end()
{
	if (!running())
		return;
	signal(SIGKILL);
	pidfd_.reset(); /* a killed process ends by itself; there is nothing to time */
	wait(std::chrono::milliseconds(0));
}

void adoptOrphans()
{
	::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int reapOrphans(std::chrono::milliseconds limit)
{
	const auto deadline = Clock::now() + limit;
	int killed = 0;
	for (;;) {
		const pid_t rc = ::waitpid(-1, nullptr, WNOHANG);
		if (rc > 0)
			continue;
		if (rc < 0 && errno != EINTR)
			return killed;
		if (Clock::now() > deadline) {
			for (const pid_t pid : childrenNow()) {
				killed++;
				::kill(pid, SIGKILL);
				::waitpid(pid, nullptr, 0);
			}
			return killed;
		}
		::poll(nullptr, 0, 5);
	}
}

} // namespace peerbuf::tools
