// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_TOOLS_COMMAND_H
#define PEERBUF_TESTS_TOOLS_COMMAND_H

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace peerbuf::test
{

/** What a program that has ended left behind. */
struct Ended {
	int status = 0; /* of waitpid */
	std::string out;
	std::string err;
	bool onTime = true; /* else it was killed for taking too long */

	/** 0..255, or 128 + the signal it died of. */
	int code() const;
	/** The last line of out; discarded if that is none. */
	nlohmann::json json() const;
	/** For failure messages. */
	std::string text() const;
};

/** A program under test with its output in memory. Killed with its group when this goes. */
class Program
{
public:
	struct Options {
		std::map<std::string, std::string> environment; /* over ours */
		std::vector<int> fds;				/* become 3, 4, ... */
		int terminal = -1; /* standard output and error, instead of memory */
	};

	explicit Program(const std::vector<std::string> &argv);
	Program(const std::vector<std::string> &argv, const Options &options);
	~Program();
	Program(const Program &) = delete;
	Program &operator=(const Program &) = delete;

	pid_t pid() const { return pid_; }
	/** Its children by their role: "device", "target", "peer". */
	std::map<std::string, pid_t> roles() const;
	/** Whether it ends within @p limit; does not reap. */
	bool endsWithin(std::chrono::milliseconds limit) const;
	Ended wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

private:
	pid_t pid_ = -1;
	int out_ = -1;
	int err_ = -1;
};

/** The command peerbuf: its path and @p arguments. */
std::vector<std::string> peerbuf(std::vector<std::string> arguments);
Ended runPeerbuf(const std::vector<std::string> &arguments, const Program::Options &options = {});

/** A folder that is TMPDIR for what is started, and empty again at the end or the test fails. */
class TemporaryFolder
{
public:
	TemporaryFolder();
	~TemporaryFolder();
	TemporaryFolder(const TemporaryFolder &) = delete;
	TemporaryFolder &operator=(const TemporaryFolder &) = delete;
	const std::string &path() const { return path_; }

private:
	std::string path_;
};

/**
 * Makes this process inherit the orphans below it, so that none escapes; at the end there must be
 * none left, and none may have been killed for it.
 */
class NoProcessLeft
{
public:
	NoProcessLeft();
	~NoProcessLeft();
	NoProcessLeft(const NoProcessLeft &) = delete;
	NoProcessLeft &operator=(const NoProcessLeft &) = delete;
};

/** Files of the provider shm that belong to processes that are gone. */
std::set<std::string> orphanedSharedMemory();

} // namespace peerbuf::test

#endif
