// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_WATCHDOG_H
#define PEERBUF_TESTS_SUPPORT_WATCHDOG_H

#include <ctime>
#include <string>

namespace peerbuf::test
{

/**
 * Ends the process with the stack of the thread that made it if it lives too long: a test that
 * hangs says where. Built on a timer signal, so that it adds no thread to those LeakCheck counts.
 * Thread-bound; one at a time.
 */
class Watchdog
{
public:
	explicit Watchdog(const std::string &what, unsigned seconds = 60);
	~Watchdog();
	Watchdog(const Watchdog &) = delete;
	Watchdog &operator=(const Watchdog &) = delete;

private:
	timer_t timer_ = nullptr;
};

} // namespace peerbuf::test

#endif
