// SPDX-License-Identifier: BSD-3-Clause
#include "support.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <sstream>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace peerbuf::test
{

FakeHost::FakeHost() : host_{}
{
	host_.self = this;
	peerbuf_host &host = host_.host;
	host.struct_size = sizeof(host);
	host.log = [](const peerbuf_host *h, uint32_t level, const char *message) {
		FakeHost *self = reinterpret_cast<const WithSelf *>(h)->self;
		std::lock_guard<std::mutex> lock(self->mutex_);
		if (level <= PEERBUF_LOG_WARN)
			self->warnings_.emplace_back(message);
	};
	host.now_ns = [](const peerbuf_host *) {
		timespec now = {};
		clock_gettime(CLOCK_MONOTONIC, &now);
		return static_cast<uint64_t>(now.tv_sec) * 1000000000u +
		       static_cast<uint64_t>(now.tv_nsec);
	};
	host.fail = [](const peerbuf_host *h, uint32_t errc, const char *message) {
		FakeHost *self = reinterpret_cast<const WithSelf *>(h)->self;
		std::lock_guard<std::mutex> lock(self->mutex_);
		self->failures_[std::this_thread::get_id()] = {errc, message};
	};
	host.ticket_done = [](const peerbuf_host *h, uint64_t ticket) {
		FakeHost *self = reinterpret_cast<const WithSelf *>(h)->self;
		std::lock_guard<std::mutex> lock(self->mutex_);
		self->tickets_.push_back(ticket);
	};
}

std::vector<uint64_t> FakeHost::tickets() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	return tickets_;
}

std::string FakeHost::why() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	auto it = failures_.find(std::this_thread::get_id());
	return it == failures_.end() ? "" : it->second.why;
}

uint32_t FakeHost::errc() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	auto it = failures_.find(std::this_thread::get_id());
	return it == failures_.end() ? 0 : it->second.errc;
}

std::vector<std::string> FakeHost::warnings() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	return warnings_;
}

const peerbuf_importer_plugin *loadPlugin()
{
	const char *path = std::getenv("PEERBUF_PLUGIN_PATH");
	std::istringstream folders(path ? path : "");
	std::string folder;
	while (std::getline(folders, folder, ':')) {
		const std::string file = folder + "/peerbuf-importer-fabric.so";
		if (!std::filesystem::exists(file))
			continue;
		void *object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		EXPECT_NE(object, nullptr) << dlerror();
		if (!object)
			return nullptr;
		const void *symbol = dlsym(object, "peerbuf_importer_v1");
		EXPECT_NE(symbol, nullptr) << dlerror();
		return static_cast<const peerbuf_importer_plugin *>(symbol);
	}
	ADD_FAILURE() << "no peerbuf-importer-fabric.so in PEERBUF_PLUGIN_PATH="
		      << (path ? path : "(unset)");
	return nullptr;
}

std::unique_ptr<OpenImporter> OpenImporter::open(FakeHost &host,
						 const peerbuf_fabric_objects *objects,
						 const Params &params, int *retErr)
{
	const peerbuf_importer_plugin *plugin = loadPlugin();
	*retErr = -ENOENT;
	if (!plugin)
		return nullptr;
	std::vector<peerbuf_param> raw;
	for (const auto &[key, value] : params)
		raw.push_back({key.c_str(), value.c_str()});
	void *importer = nullptr;
	*retErr = plugin->open(host.raw(), raw.data(), raw.size(), objects, &importer);
	if (*retErr) {
		EXPECT_EQ(importer, nullptr);
		return nullptr;
	}
	return std::unique_ptr<OpenImporter>(new OpenImporter(plugin, importer));
}

OpenImporter::~OpenImporter()
{
	plugin_->close(importer_);
}

peerbuf_importer_offer OpenImporter::offer() const
{
	peerbuf_importer_offer offer = {};
	offer.struct_size = sizeof(offer);
	EXPECT_EQ(plugin_->offer(importer_, &offer), 0);
	return offer;
}

int OpenImporter::reg(const peerbuf_reg_request &request, peerbuf_region *retRegion) const
{
	*retRegion = {};
	retRegion->struct_size = sizeof(*retRegion);
	return plugin_->reg(importer_, &request, retRegion);
}

void OpenImporter::dereg(uint64_t token) const
{
	plugin_->dereg(importer_, token);
}

const peerbuf_importer_test_ops *OpenImporter::ops() const
{
	const void *table = nullptr;
	EXPECT_EQ(plugin_->open_ops(importer_, PEERBUF_IMPORTER_TEST_OPS, &table), 0);
	return static_cast<const peerbuf_importer_test_ops *>(table);
}

int OpenImporter::fault(const char *step, uint32_t skip, uint32_t count, int err) const
{
	return ops()->fault(importer_, step, skip, count, err, 0);
}

peerbuf_importer_stats OpenImporter::stats() const
{
	peerbuf_importer_stats stats = {};
	stats.struct_size = sizeof(stats);
	EXPECT_EQ(ops()->stats(importer_, &stats), 0);
	return stats;
}

int OpenImporter::invalidate(uint32_t reason, uint64_t attachment, uint64_t offset, uint64_t length,
			     uint64_t ticket) const
{
	peerbuf_importer_invalidate inv = {};
	inv.struct_size = sizeof(inv);
	inv.reason = reason;
	inv.attachment = attachment;
	inv.offset = offset;
	inv.length = length;
	inv.generation = 1;
	inv.ticket = ticket;
	return plugin_->invalidate(importer_, &inv);
}

void OpenImporter::resume(uint64_t attachment, uint64_t offset, uint64_t length) const
{
	peerbuf_importer_resume res = {};
	res.struct_size = sizeof(res);
	res.attachment = attachment;
	res.offset = offset;
	res.length = length;
	res.generation = 2;
	plugin_->resume(importer_, &res);
}

peerbuf_gate *OpenImporter::gate() const
{
	peerbuf_gate *gate = nullptr;
	const int rc = plugin_->gate(importer_, &gate);
	EXPECT_EQ(rc, gate ? 0 : -EOPNOTSUPP);
	return gate;
}

std::vector<peerbuf_pause> OpenImporter::pauses() const
{
	std::vector<peerbuf_pause> pauses(65536);
	const int n = ops()->pauses(importer_, pauses.data(), static_cast<uint32_t>(pauses.size()));
	EXPECT_GE(n, 0);
	pauses.resize(static_cast<size_t>(std::max(n, 0)));
	return pauses;
}

peerbuf_fabric_objects objectsOf(fid_domain *domain, const fi_info *info, fid_ep *ep)
{
	peerbuf_fabric_objects objects = {};
	objects.struct_size = sizeof(objects);
	objects.domain = domain;
	objects.info = info;
	objects.ep = ep;
	return objects;
}

namespace
{

/** Fresh pages: a descriptor, and an address of their own. */
bool makePlace(size_t length, int *retFd, uint8_t **retPlace)
{
	*retFd = memfd_create("peerbuf-test", MFD_CLOEXEC);
	void *address = MAP_FAILED;
	if (*retFd >= 0 && ftruncate(*retFd, static_cast<off_t>(length)) == 0)
		address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, *retFd, 0);
	if (address == MAP_FAILED) {
		if (*retFd >= 0)
			close(*retFd);
		ADD_FAILURE() << "no memory of " << length << " bytes";
		return false;
	}
	*retPlace = static_cast<uint8_t *>(address);
	return true;
}

} // namespace

Memory::Memory(size_t length, uint64_t offsetInBuffer)
{
	if (!makePlace(length, &fd_, &place_))
		return;
	void *address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
	if (address == MAP_FAILED) {
		ADD_FAILURE() << "no second mapping of " << length << " bytes";
		return;
	}
	mapping_.struct_size = sizeof(mapping_);
	mapping_.placement = PEERBUF_PLACEMENT_DEVICE;
	mapping_.offset = offsetInBuffer;
	mapping_.length = length;
	mapping_.generation = 1;
	mapping_.cpu_addr = address;
}

Memory::~Memory()
{
	if (mapping_.cpu_addr)
		munmap(mapping_.cpu_addr, mapping_.length);
	if (place_) {
		munmap(place_, mapping_.length);
		close(fd_);
	}
}

const uint8_t *Memory::move(uint8_t poison, bool silent)
{
	int fd = -1;
	uint8_t *place = nullptr;
	if (!makePlace(size(), &fd, &place))
		return nullptr;
	std::copy_n(place_, size(), place);
	std::fill_n(place_, size(), poison);
	if (!silent && mmap(mapping_.cpu_addr, size(), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		ADD_FAILURE() << "the new place was not mapped";
	munmap(place_, size());
	close(fd_);
	fd_ = fd;
	place_ = place;
	return place_;
}

peerbuf_reg_request Memory::request(uint64_t offset, uint64_t length, uint32_t access) const
{
	peerbuf_reg_request request = {};
	request.struct_size = sizeof(request);
	request.flow = PEERBUF_FLOW_PINNED;
	request.access = access;
	request.handle_kind = PEERBUF_HANDLE_CPU;
	request.attachment = 1;
	request.offset = offset;
	request.length = length;
	request.granularity = 4096;
	request.mapping = &mapping_;
	request.name = "test buffer";
	return request;
}

#if defined(__SANITIZE_ADDRESS__)
#define PEERBUF_TEST_LEAK_CHECK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PEERBUF_TEST_LEAK_CHECK 1
#endif
#endif

const char *leftOut([[maybe_unused]] const std::string &provider)
{
#ifdef PEERBUF_TEST_LEAK_CHECK
	if (provider == "net")
		return "it leaks by itself";
#endif
	return nullptr;
}

size_t openFds()
{
	const std::filesystem::directory_iterator all("/proc/self/fd");
	return static_cast<size_t>(std::distance(begin(all), end(all)));
}

} // namespace peerbuf::test
