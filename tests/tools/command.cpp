// SPDX-License-Identifier: BSD-3-Clause
#include "command.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern char **environ;

namespace peerbuf::test
{

namespace
{

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string contents(int fd)
{
	std::string text;
	char buffer[4096];
	lseek(fd, 0, SEEK_SET);
	for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;)
		text.append(buffer, static_cast<size_t>(n));
	return text;
}

std::vector<pid_t> childrenOf(pid_t pid)
{
	std::vector<pid_t> children;
	std::error_code error;
	for (const auto &task :
	     fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
		std::ifstream in(task.path() / "children");
		for (pid_t child = 0; in >> child;)
			children.push_back(child);
	}
	return children;
}

std::string commandLine(pid_t pid)
{
	std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
	std::stringstream text;
	text << in.rdbuf();
	std::string line = text.str();
	std::replace(line.begin(), line.end(), '\0', ' ');
	return line;
}

} // namespace

int Ended::code() const
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

nlohmann::json Ended::json() const
{
	std::istringstream in(out);
	std::string last;
	for (std::string line; std::getline(in, line);)
		last = line;
	return nlohmann::json::parse(last, nullptr, false);
}

std::string Ended::text() const
{
	return "ended with " + std::to_string(code()) + (onTime ? "" : ", killed for being late") +
	       "\n--- standard output\n" + out + "--- standard error\n" + err + "---";
}

Program::Program(const std::vector<std::string> &argv) : Program(argv, Options()) {}

Program::Program(const std::vector<std::string> &argv, const Options &options)
    : out_(memfd_create("out", MFD_CLOEXEC)),
      err_(memfd_create("err", MFD_CLOEXEC))
{
	std::vector<std::string> environment;
	for (char **one = environ; *one; one++) {
		const std::string text = *one;
		if (!options.environment.count(text.substr(0, text.find('='))))
			environment.push_back(text);
	}
	for (const auto &[key, value] : options.environment)
		environment.push_back(key + "=" + value);
	const auto pointers = [](const std::vector<std::string> &words) {
		std::vector<char *> all;
		all.reserve(words.size() + 1);
		for (const std::string &word : words)
			all.push_back(const_cast<char *>(word.c_str()));
		all.push_back(nullptr);
		return all;
	};
	const auto args = pointers(argv);
	const auto env = pointers(environment);
	const int out = options.terminal >= 0 ? options.terminal : out_;
	const int err = options.terminal >= 0 ? options.terminal : err_;

	pid_ = fork();
	if (pid_ == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		std::vector<int> high;
		for (const int fd : options.fds)
			high.push_back(fcntl(fd, F_DUPFD_CLOEXEC, 100));
		dup2(out, 1);
		dup2(err, 2);
		for (size_t i = 0; i < high.size(); i++)
			dup2(high[i], static_cast<int>(3 + i));
		execve(args[0], args.data(), env.data());
		_exit(126);
	}
	EXPECT_GT(pid_, 0);
}

Program::~Program()
{
	if (pid_ > 0) {
		kill(-pid_, SIGKILL);
		kill(pid_, SIGKILL);
		waitpid(pid_, nullptr, 0);
	}
	close(out_);
	close(err_);
}

std::map<std::string, pid_t> Program::roles() const
{
	std::map<std::string, pid_t> roles;
	for (const pid_t child : childrenOf(pid_)) {
		const std::string line = commandLine(child);
		if (line.find("demo-target") != std::string::npos)
			roles["target"] = child;
		else if (line.find("demo-peer") != std::string::npos)
			roles["peer"] = child;
		else if (line.find("--ready-fd") != std::string::npos)
			roles["device"] = child;
	}
	return roles;
}

bool Program::endsWithin(std::chrono::milliseconds limit) const
{
	const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
	pollfd p = {fd, POLLIN, 0};
	const auto deadline = Clock::now() + limit;
	int rc = 0;
	do {
		const auto left =
			std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
		rc = poll(&p, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
	} while (rc < 0 && errno == EINTR);
	close(fd);
	return rc > 0;
}

Ended Program::wait(std::chrono::milliseconds limit)
{
	Ended ended;
	ended.onTime = endsWithin(limit);
	if (!ended.onTime)
		kill(-pid_, SIGKILL);
	waitpid(pid_, &ended.status, 0);
	pid_ = -1;
	ended.out = contents(out_);
	ended.err = contents(err_);
	return ended;
}

std::vector<std::string> peerbuf(std::vector<std::string> arguments)
{
	const char *command = getenv("PEERBUF_COMMAND");
	arguments.insert(arguments.begin(), command ? command : "peerbuf");
	return arguments;
}

Ended runPeerbuf(const std::vector<std::string> &arguments, const Program::Options &options)
{
	return Program(peerbuf(arguments), options).wait();
}

TemporaryFolder::TemporaryFolder()
{
	std::string name = (fs::temp_directory_path() / "peerbuf-test-XXXXXX").string();
	path_ = mkdtemp(name.data()) ? name : "";
	EXPECT_NE(path_, "");
}

TemporaryFolder::~TemporaryFolder()
{
	std::error_code error;
	for (const auto &left : fs::directory_iterator(path_, error))
		ADD_FAILURE() << left.path() << " was left behind";
	fs::remove_all(path_, error);
}

NoProcessLeft::NoProcessLeft()
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

NoProcessLeft::~NoProcessLeft()
{
	const auto deadline = Clock::now() + std::chrono::seconds(20);
	while (Clock::now() < deadline) {
		if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD)
			return;
		poll(nullptr, 0, 5);
	}
	for (const pid_t left : childrenOf(getpid())) {
		ADD_FAILURE() << "process " << left << " was left behind: " << commandLine(left);
		kill(left, SIGKILL);
		waitpid(left, nullptr, 0);
	}
}

std::set<std::string> orphanedSharedMemory()
{
	std::set<std::string> names;
	std::error_code error;
	for (const auto &entry : fs::directory_iterator("/dev/shm", error)) {
		const std::string name = entry.path().filename().string();
		const std::string pid = name.substr(0, name.find(':'));
		if (pid != name && !pid.empty() &&
		    pid.find_first_not_of("0123456789") == std::string::npos &&
		    !fs::exists("/proc/" + pid, error))
			names.insert(name);
	}
	return names;
}

} // namespace peerbuf::test
