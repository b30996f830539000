// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_CHILD_H
#define PEERBUF_TOOLS_CHILD_H

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "unique_fd.h"

namespace peerbuf::tools
{

/**
 * A process of ours. It dies with the thread that started it, and is killed and reaped at the
 * latest when this object goes. Thread-bound.
 */
class Child
{
public:
	/** First number of the descriptors that are handed over. */
	static constexpr int firstFd = 3;

	Child() = default;
	~Child() { end(); }
	Child(const Child &) = delete;
	Child &operator=(const Child &) = delete;

	/**
	 * @param argv path of the program and its arguments.
	 * @param fds become firstFd, firstFd + 1, ... there; of all others it has standard error.
	 * @return 0, or a negative errno.
	 */
	int start(const std::vector<std::string> &argv, const std::vector<int> &fds);

	pid_t pid() const { return pid_; }
	/** Readable once it has ended; -1 once that was noticed. */
	int pidfd() const { return pidfd_.get(); }
	bool running() const { return pid_ > 0 && !status_; }
	/** Of waitpid, once it has ended. */
	const std::optional<int> &status() const { return status_; }

	/** @return whether it has ended by now. */
	bool poll() { return wait(std::chrono::milliseconds(0)); }
	bool wait(std::chrono::milliseconds limit);
	void signal(int number) const;
	/** Kill it, if it still runs, and reap it. */
	void end();

private:
	pid_t pid_ = -1;
	UniqueFd pidfd_;
	std::optional<int> status_;
};

/** What processes below us that we did not start ourselves become ours when orphaned. */
void adoptOrphans();
/** Wait for adopted processes to end, then kill those that did not. @return how many were. */
int reapOrphans(std::chrono::milliseconds limit);

} // namespace peerbuf::tools

#endif
