// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_EXPORTER_EMULATED_HARNESS_H
#define PEERBUF_TESTS_UNIT_EXPORTER_EMULATED_HARNESS_H

#include <cerrno>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <peerbuf/exporter.h>
#include <peerbuf/testing.h>

#include "exporter/emulated/unique_fd.h"
#include "support/fake_host.h"

namespace peerbuf::emulated::test
{

/** "key=value,key=value" as pairs. */
using Params = std::vector<std::pair<std::string, std::string>>;
Params parseSpec(const std::string &spec);

/** The plugin as a host finds it; loaded once. */
const peerbuf_exporter_plugin &plugin();
/** PEERBUF_EMULATED_DEVICE. */
std::string deviceBinary();
size_t openFds(pid_t pid);
/** Children of this process, so that a test can find the device it did not start itself. */
std::vector<pid_t> children();

/** A program with its standard error kept. */
class Process
{
public:
	Process(std::vector<std::string> words, int passFd = -1, int passAs = -1);
	~Process();
	Process(const Process &) = delete;
	Process &operator=(const Process &) = delete;

	pid_t pid() const { return pid_; }
	void kill(int signal);
	/** @return exit status, or -signal. */
	int wait();
	std::string errors() const;
	std::string output() const;

private:
	pid_t pid_ = -1;
	int status_ = 0;
	bool waited_ = false;
	UniqueFd errors_;
	UniqueFd output_;
};

/** A device process that listens; ends with the object, and must end well. */
class RunningDevice
{
public:
	explicit RunningDevice(const std::string &spec = "");
	~RunningDevice();

	const std::string &path() const { return path_; }
	Process &process() { return *process_; }
	/** It is expected to be dead, or to be killed, by the test. */
	void expectDead() { expectDead_ = true; }

private:
	std::string directory_;
	std::string path_;
	std::unique_ptr<Process> process_;
	bool expectDead_ = false;
};

/** The plugin opened on a device, with everything a test asks of it as a line. */
class Device
{
public:
	explicit Device(const std::string &spec);
	~Device();
	Device(const Device &) = delete;
	Device &operator=(const Device &) = delete;

	/** Open where it is expected to fail. @return what open said. */
	static int tryOpen(peerbuf::test::FakeHost &host, const std::string &spec);

	void close();

	peerbuf_buffer_desc alloc(uint64_t size);
	int tryAlloc(uint64_t size);
	int get(uint64_t address, uint64_t length, peerbuf_buffer_desc *ret_desc);
	int getFd(int fd, uint64_t length, peerbuf_buffer_desc *ret_desc);
	int attach(uint64_t buffer, uint64_t *ret_token, peerbuf_attach_request *request = nullptr,
		   peerbuf_attach_reply *ret_reply = nullptr);
	uint64_t attached(uint64_t buffer);
	int map(uint64_t attachment, uint64_t offset, uint64_t length,
		peerbuf_mapping *ret_mapping);
	int exportFd(uint64_t attachment, uint64_t offset, uint64_t length,
		     peerbuf_fd_export *ret_export);
	peerbuf_exporter_offer offer();
	peerbuf_exporter_stats stats();
	/** Nothing is held any more and nobody broke a rule. */
	::testing::AssertionResult clean();
	std::vector<uint8_t> deviceBytes(uint64_t buffer, uint64_t offset, uint64_t length);

	/** Progress until @p done; fails after a while without. */
	void await(const std::function<bool()> &done);
	int move(uint64_t buffer, const peerbuf_move_request &request);
	peerbuf_move_status moveStatus(uint64_t buffer);
	/** Progress of all until no move of the buffer runs, and what it told is heard. */
	peerbuf_move_status finishMove(uint64_t buffer,
				       std::initializer_list<Device *> others = {});

	/** Descriptors of the device's process, once it has finished what it was asked. */
	size_t deviceFds(RunningDevice &running);

	/** What was said about the last failure on this thread. */
	std::string why() const { return host.failure().message; }
	uint32_t errc() const { return host.failure().errc; }

	peerbuf::test::FakeHost host;
	void *handle = nullptr;
	const peerbuf_exporter_plugin &slots;
	const peerbuf_exporter_test_ops *ops = nullptr;
};

/** An attach request that suits every device: everything, whole buffer. */
peerbuf_attach_request usualAttach(uint64_t length);
/** The same of somebody who reaches it in HBM alone. */
peerbuf_attach_request hbmAttach(uint64_t length);

template <typename T> T cleared()
{
	T value = {};
	value.struct_size = sizeof(value);
	return value;
}

/** A move in small slices that rest as little as can be. */
peerbuf_move_request slicedMove(uint32_t placement = 0);

#define EXPECT_ERRNO(err, expression)                                                              \
	EXPECT_EQ(std::string(strerrorname_np(err)), strerrorname_np(-(expression)))
#define EXPECT_CONTAINS(text, part)                                                                \
	EXPECT_NE(std::string::npos, std::string(text).find(part)) << "in: " << (text)

} // namespace peerbuf::emulated::test

#endif
