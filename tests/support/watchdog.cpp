// SPDX-License-Identifier: BSD-3-Clause
#include "watchdog.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <unistd.h>

namespace peerbuf::test
{

namespace
{

constexpr int watchdog_signal = SIGALRM;

/** For the handler, which may not allocate. */
std::array<char, 256> running_test;

void say(const char *text)
{
	const ssize_t written = write(STDERR_FILENO, text, strlen(text));
	(void)written; // there is nobody to tell
}

void onTimeout(int)
{
	say("\nwatchdog: still running, stuck? ");
	say(running_test.data());
	say("\nstack of its thread:\n");
	std::array<void *, 64> frames;
	const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
	backtrace_symbols_fd(frames.data(), n, STDERR_FILENO);
	abort();
}

} // namespace

Watchdog::Watchdog(const std::string &what, unsigned seconds)
{
	running_test.fill('\0');
	what.copy(running_test.data(), std::min(what.size(), running_test.size() - 1));

	// the first call loads a library, which a signal handler must not do
	std::array<void *, 1> warm;
	backtrace(warm.data(), 1);

	struct sigaction action = {};
	action.sa_handler = onTimeout;
	sigaction(watchdog_signal, &action, nullptr);

	sigevent event = {};
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = watchdog_signal;
	event._sigev_un._tid = gettid();
	if (timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0)
		abort();
	itimerspec when = {};
	when.it_value.tv_sec = seconds;
	timer_settime(timer_, 0, &when, nullptr);
}

Watchdog::~Watchdog()
{
	timer_delete(timer_);
}

} // namespace peerbuf::test
