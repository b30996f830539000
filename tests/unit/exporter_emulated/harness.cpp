// SPDX-License-Identifier: BSD-3-Clause
#include "harness.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace peerbuf::emulated::test
{

namespace
{

const peerbuf_exporter_plugin *load()
{
	const char *path = getenv("PEERBUF_PLUGIN_PATH");
	std::stringstream list(path ? path : "");
	std::string dir;
	while (std::getline(list, dir, ':')) {
		const std::string file = dir + "/peerbuf-exporter-emulated.so";
		if (access(file.c_str(), R_OK) != 0)
			continue;
		void *module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (!module) {
			ADD_FAILURE() << dlerror();
			return nullptr;
		}
		return static_cast<const peerbuf_exporter_plugin *>(
			dlsym(module, "peerbuf_exporter_v1"));
	}
	ADD_FAILURE() << "no peerbuf-exporter-emulated.so in PEERBUF_PLUGIN_PATH";
	return nullptr;
}

std::string contents(int fd)
{
	struct stat st = {};
	fstat(fd, &st);
	std::string text(static_cast<size_t>(st.st_size), '\0');
	const ssize_t n = pread(fd, text.data(), text.size(), 0);
	text.resize(n < 0 ? 0 : static_cast<size_t>(n));
	return text;
}

} // namespace

const peerbuf_exporter_plugin &plugin()
{
	static const peerbuf_exporter_plugin *found = load();
	if (!found)
		exit(1); /* nothing can be tested */
	return *found;
}

std::string deviceBinary()
{
	const char *binary = getenv("PEERBUF_EMULATED_DEVICE");
	return binary ? binary : "peerbuf-emulated-device";
}

Params parseSpec(const std::string &spec)
{
	Params params;
	std::stringstream list(spec);
	std::string one;
	while (std::getline(list, one, ',')) {
		const size_t equals = one.find('=');
		params.emplace_back(one.substr(0, equals),
				    equals == std::string::npos ? "" : one.substr(equals + 1));
	}
	return params;
}

size_t openFds(pid_t pid)
{
	size_t n = 0;
	DIR *dir = opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	/* ".", ".." and, of ourselves, the directory */
	return n - 2 - (pid == getpid() ? 1 : 0);
}

std::vector<pid_t> children()
{
	const std::string self = std::to_string(getpid());
	std::ifstream list("/proc/self/task/" + self + "/children");
	return {std::istream_iterator<pid_t>(list), std::istream_iterator<pid_t>()};
}

Process::Process(std::vector<std::string> words, int passFd, int passAs)
    : errors_(memfd_create("stderr", MFD_CLOEXEC)),
      output_(memfd_create("stdout", MFD_CLOEXEC))
{
	std::vector<char *> argv;
	argv.reserve(words.size() + 1);
	for (std::string &word : words)
		argv.push_back(word.data());
	argv.push_back(nullptr);
	/* NOLINTNEXTLINE(cppcoreguidelines-prefer-member-initializer): not before argv stands */
	pid_ = fork();
	if (pid_ == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(errors_.get(), STDERR_FILENO);
		dup2(output_.get(), STDOUT_FILENO);
		if (passFd >= 0) {
			if (passFd == passAs)
				fcntl(passFd, F_SETFD, 0);
			else
				dup2(passFd, passAs);
		}
		execv(argv[0], argv.data());
		_exit(127);
	}
	EXPECT_GT(pid_, 0);
}

Process::~Process()
{
	if (!waited_) {
		kill(SIGKILL);
		wait();
	}
}

void Process::kill(int signal)
{
	EXPECT_EQ(0, ::kill(pid_, signal));
}

int Process::wait()
{
	if (!waited_) {
		int status = 0;
		while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
		}
		waited_ = true;
		status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	}
	return status_;
}

std::string Process::errors() const
{
	return contents(errors_.get());
}
std::string Process::output() const
{
	return contents(output_.get());
}

RunningDevice::RunningDevice(const std::string &spec)
{
	char directory[] = "/tmp/peerbuf-test-XXXXXX";
	EXPECT_NE(nullptr, mkdtemp(directory));
	directory_ = directory;
	path_ = directory_ + "/device";
	int ready[2];
	EXPECT_EQ(0, pipe2(ready, O_CLOEXEC));
	const UniqueFd end(ready[0]);
	UniqueFd start(ready[1]);
	constexpr int readyFd = 9;
	std::vector<std::string> words = {deviceBinary(), "--socket", path_, "--ready-fd",
					  std::to_string(readyFd)};
	for (const auto &[key, value] : parseSpec(spec))
		words.push_back("--" + key + "=" + value);
	process_ = std::make_unique<Process>(words, start.get(), readyFd);
	start.reset();
	char byte = 0;
	EXPECT_EQ(1, read(end.get(), &byte, 1)) << process_->errors();
}

RunningDevice::~RunningDevice()
{
	if (!expectDead_) {
		process_->kill(SIGTERM);
		EXPECT_EQ(0, process_->wait()) << process_->errors();
		EXPECT_NE(0, access(path_.c_str(), F_OK)) << "the socket was left behind";
	}
	process_.reset();
	unlink(path_.c_str());
	rmdir(directory_.c_str());
}

Device::Device(const std::string &spec) : slots(plugin())
{
	const int rc = [&] {
		const Params params = parseSpec(spec);
		std::vector<peerbuf_param> list;
		for (const auto &[key, value] : params)
			list.push_back({key.c_str(), value.c_str()});
		return slots.open(host.raw(), list.data(), list.size(), &handle);
	}();
	EXPECT_EQ(0, rc) << why();
	if (rc)
		exit(1); /* no test could go on */
	const void *table = nullptr;
	EXPECT_EQ(0, slots.open_ops(handle, PEERBUF_EXPORTER_TEST_OPS, &table));
	ops = static_cast<const peerbuf_exporter_test_ops *>(table);
}

Device::~Device()
{
	close();
}

void Device::close()
{
	if (handle)
		slots.close(handle);
	handle = nullptr;
}

int Device::tryOpen(peerbuf::test::FakeHost &host, const std::string &spec)
{
	const Params params = parseSpec(spec);
	std::vector<peerbuf_param> list;
	for (const auto &[key, value] : params)
		list.push_back({key.c_str(), value.c_str()});
	void *device = nullptr;
	const int rc = plugin().open(host.raw(), list.data(), list.size(), &device);
	if (rc == 0)
		plugin().close(device);
	else
		EXPECT_EQ(nullptr, device);
	return rc;
}

peerbuf_buffer_desc Device::alloc(uint64_t size)
{
	auto desc = cleared<peerbuf_buffer_desc>();
	const int rc = slots.alloc(handle, size, &desc);
	EXPECT_EQ(0, rc) << why();
	return desc;
}

int Device::tryAlloc(uint64_t size)
{
	auto desc = cleared<peerbuf_buffer_desc>();
	const int rc = slots.alloc(handle, size, &desc);
	if (rc == 0)
		EXPECT_EQ(0, slots.free(handle, desc.handle));
	else
		EXPECT_EQ(0u, desc.handle);
	return rc;
}

int Device::get(uint64_t address, uint64_t length, peerbuf_buffer_desc *ret_desc)
{
	auto request = cleared<peerbuf_get_request>();
	request.fd = -1;
	request.address = address;
	request.length = length;
	*ret_desc = cleared<peerbuf_buffer_desc>();
	return slots.get(handle, &request, ret_desc);
}

int Device::getFd(int fd, uint64_t length, peerbuf_buffer_desc *ret_desc)
{
	auto request = cleared<peerbuf_get_request>();
	request.fd = fd;
	request.length = length;
	*ret_desc = cleared<peerbuf_buffer_desc>();
	return slots.get(handle, &request, ret_desc);
}

peerbuf_attach_request usualAttach(uint64_t length)
{
	auto request = cleared<peerbuf_attach_request>();
	request.allow_peer2peer = 1;
	request.invalidation = PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT;
	request.variant = PEERBUF_VARIANT_HOST;
	request.access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
			 PEERBUF_ACCESS_REMOTE_WRITE;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.length = length;
	request.attachment = 7;
	request.importer = "test-importer";
	return request;
}

peerbuf_attach_request hbmAttach(uint64_t length)
{
	auto request = usualAttach(length);
	request.placements = PEERBUF_PLACEMENT_DEVICE;
	return request;
}

int Device::attach(uint64_t buffer, uint64_t *ret_token, peerbuf_attach_request *request,
		   peerbuf_attach_reply *ret_reply)
{
	auto usual = usualAttach(1);
	auto reply = cleared<peerbuf_attach_reply>();
	const int rc = slots.attach(handle, buffer, request ? request : &usual, &reply);
	if (rc == 0)
		*ret_token = reply.token;
	else
		EXPECT_EQ(0u, reply.token);
	if (ret_reply)
		*ret_reply = reply;
	return rc;
}

uint64_t Device::attached(uint64_t buffer)
{
	uint64_t token = 0;
	EXPECT_EQ(0, attach(buffer, &token)) << why();
	return token;
}

int Device::map(uint64_t attachment, uint64_t offset, uint64_t length, peerbuf_mapping *ret_mapping)
{
	*ret_mapping = cleared<peerbuf_mapping>();
	return slots.map(handle, attachment, offset, length, ret_mapping);
}

int Device::exportFd(uint64_t attachment, uint64_t offset, uint64_t length,
		     peerbuf_fd_export *ret_export)
{
	*ret_export = cleared<peerbuf_fd_export>();
	ret_export->fd = -1;
	return slots.export_fd(handle, attachment, offset, length, PEERBUF_VARIANT_HOST,
			       ret_export);
}

peerbuf_exporter_offer Device::offer()
{
	auto offer = cleared<peerbuf_exporter_offer>();
	EXPECT_EQ(0, slots.offer(handle, 0, &offer)) << why();
	return offer;
}

peerbuf_exporter_stats Device::stats()
{
	auto stats = cleared<peerbuf_exporter_stats>();
	EXPECT_EQ(0, ops->stats(handle, &stats)) << why();
	return stats;
}

::testing::AssertionResult Device::clean()
{
	const peerbuf_exporter_stats s = stats();
	if (s.buffers || s.attachments || s.pins || s.mappings || s.exports || s.memory_used ||
	    s.window_used || s.violations)
		return ::testing::AssertionFailure()
		       << "buffers " << s.buffers << ", attachments " << s.attachments << ", pins "
		       << s.pins << ", mappings " << s.mappings << ", exports " << s.exports
		       << ", memory " << s.memory_used << ", window " << s.window_used
		       << ", violations " << s.violations;
	return ::testing::AssertionSuccess();
}

void Device::await(const std::function<bool()> &done)
{
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
	while (!done()) {
		ASSERT_LT(std::chrono::steady_clock::now(), end) << "it did not come";
		struct pollfd p = {slots.event_fd(handle), POLLIN, 0};
		poll(&p, 1, 1);
		slots.progress(handle);
	}
}

int Device::move(uint64_t buffer, const peerbuf_move_request &request)
{
	return ops->move(handle, buffer, &request);
}

peerbuf_move_status Device::moveStatus(uint64_t buffer)
{
	auto status = cleared<peerbuf_move_status>();
	EXPECT_EQ(0, ops->move_status(handle, buffer, &status)) << why();
	return status;
}

peerbuf_move_status Device::finishMove(uint64_t buffer, std::initializer_list<Device *> others)
{
	const auto all = [&] {
		for (Device *other : others)
			other->slots.progress(other->handle);
	};
	auto status = cleared<peerbuf_move_status>();
	await([&] {
		all();
		status = moveStatus(buffer);
		return !status.running;
	});
	all();
	slots.progress(handle);
	return status;
}

peerbuf_move_request slicedMove(uint32_t placement)
{
	auto request = cleared<peerbuf_move_request>();
	request.placement = placement;
	request.max_pause_ns = 1; /* a page a slice */
	request.duty_percent = 100;
	request.deadline_ns = 60'000'000'000; /* of a busy machine's patience */
	return request;
}

size_t Device::deviceFds(RunningDevice &running)
{
	stats();
	return openFds(running.process().pid());
}

std::vector<uint8_t> Device::deviceBytes(uint64_t buffer, uint64_t offset, uint64_t length)
{
	std::vector<uint8_t> bytes(length);
	EXPECT_EQ(0, ops->device_read(handle, buffer, offset, bytes.data(), length)) << why();
	return bytes;
}

} // namespace peerbuf::emulated::test
