// SPDX-License-Identifier: BSD-3-Clause
#include "leak_check.h"

#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "errors.h"

namespace peerbuf::test
{

namespace
{

struct CloseDir {
	void operator()(DIR *dir) const { closedir(dir); }
};

/** Numeric names in a folder of /proc. */
std::set<int> numbersIn(const char *path, int *own_fd = nullptr)
{
	std::set<int> found;
	const std::unique_ptr<DIR, CloseDir> dir(opendir(path));
	if (!dir)
		return found;
	if (own_fd)
		*own_fd = dirfd(dir.get());
	while (const dirent *entry = readdir(dir.get())) { // NOLINT(concurrency-mt-unsafe): own DIR
		char *end = nullptr;
		const long n = strtol(entry->d_name, &end, 10);
		if (end != entry->d_name && *end == '\0')
			found.insert(static_cast<int>(n));
	}
	return found;
}

} // namespace

ProcessState ProcessState::now()
{
	// a sanitizer starts a thread of its own together with the first of ours
	static const bool warm = [] {
		std::thread([] {}).join();
		return true;
	}();
	static_cast<void>(warm);

	ProcessState state;
	int own = -1;
	for (const int fd : numbersIn("/proc/self/fd", &own)) {
		if (fd == own)
			continue;
		const std::string link = "/proc/self/fd/" + std::to_string(fd);
		std::string target(256, '\0');
		const ssize_t n = readlink(link.c_str(), target.data(), target.size());
		target.resize(n > 0 ? static_cast<size_t>(n) : 0);
		state.fds.emplace(fd, target);
	}
	state.threads = numbersIn("/proc/self/task");
	for (const int tid : state.threads) {
		std::ifstream list("/proc/self/task/" + std::to_string(tid) + "/children");
		for (int child = 0; list >> child;)
			state.children.insert(child);
	}
	return state;
}

namespace
{

/** A joined thread stays listed until the kernel has reaped it, so look again a few times. */
constexpr int reap_attempts = 2000;

} // namespace

testing::AssertionResult nothingLeaked(const ProcessState &before)
{
	ProcessState after = ProcessState::now();
	for (int i = 0; i < reap_attempts && after.threads.size() > before.threads.size(); i++) {
		usleep(1000);
		after = ProcessState::now();
	}
	std::string left;
	for (const auto &[fd, target] : after.fds) {
		if (before.fds.count(fd) == 0)
			left += " descriptor " + std::to_string(fd) + " (" + target + ")";
	}
	if (after.threads.size() > before.threads.size())
		left += " threads: " + std::to_string(before.threads.size()) + " before, " +
			std::to_string(after.threads.size()) + " after";
	for (const int pid : after.children) {
		if (before.children.count(pid) == 0)
			left += " child process " + std::to_string(pid);
	}
	if (left.empty())
		return testing::AssertionSuccess();
	return testing::AssertionFailure() << "left over:" << left;
}

uint64_t ledgerUsed(peerbuf_context *ctx, peerbuf_ledger_column column)
{
	peerbuf_ledger_info info = {};
	info.struct_size = sizeof(info);
	EXPECT_PB_OK(peerbuf_query_ledger(ctx, nullptr, nullptr, column, &info));
	return info.used;
}

testing::AssertionResult ledgerIsZero(peerbuf_context *ctx)
{
	for (const auto &[column, name] :
	     {std::pair{PEERBUF_LEDGER_PINS, "pins"}, std::pair{PEERBUF_LEDGER_WINDOW, "window"},
	      std::pair{PEERBUF_LEDGER_HOST, "host"}}) {
		peerbuf_ledger_info info = {};
		info.struct_size = sizeof(info);
		const int rc = peerbuf_query_ledger(ctx, nullptr, nullptr, column, &info);
		if (rc < 0)
			return testing::AssertionFailure() << LastError::take().text();
		if (info.used != 0 || info.holders != 0)
			return testing::AssertionFailure()
			       << "ledger column " << name << ": " << info.used << " bytes, "
			       << info.holders << " holders";
	}
	return testing::AssertionSuccess();
}

LowFdLimit::LowFdLimit(unsigned spare)
{
	rlimit limit = {};
	EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
	soft_ = limit.rlim_cur;
	const ProcessState now = ProcessState::now();
	const int highest = now.fds.empty() ? 2 : now.fds.rbegin()->first;
	limit.rlim_cur = static_cast<rlim_t>(highest) + 1 + spare;
	EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
}

LowFdLimit::~LowFdLimit()
{
	rlimit limit = {};
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = soft_;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

} // namespace peerbuf::test
