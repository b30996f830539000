// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file device_test.cpp
 * Both kinds of dma-bufs on a kernel of the test's own; each step of it fails once.
 */
#include <cerrno>
#include <cstring>
#include <numeric>

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exporter/dmabuf/device.h"
#include "exporter/dmabuf/drm_source.h"
#include "fake_kernel.h"
#include "tests/support/fake_host.h"

namespace peerbuf::test
{
namespace
{

using dmabuf::Device;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint64_t page = 4096;

struct KindOf {
	const char *name;
	std::unique_ptr<dmabuf::Source> (*make)();
	const char *node;
	const char *device;
	const char *exporter; /* as the kernel calls it */
};
const KindOf udmabufKind = {"udmabuf", dmabuf::makeUdmabuf, "/dev/udmabuf", "udmabuf", "udmabuf"};
const KindOf heapKind = {"dma_heap", dmabuf::makeHeap, "/dev/dma_heap/system", "dma_heap:system",
			 "system"};

using Params = std::vector<std::pair<std::string, std::string>>;

class DmabufBase
{
public:
	/** Whatever happened: nothing of it is left. */
	virtual ~DmabufBase()
	{
		device_.reset();
		EXPECT_EQ(kernel_.breaches, 0u);
		EXPECT_EQ(kernel_.mappings, 0);
		EXPECT_EQ(kernel_.reading, 0);
		EXPECT_EQ(kernel_.writing, 0);
		EXPECT_EQ(openFds(), fds_);
	}

protected:
	int tryOpen(const KindOf &kind, const Params &params = {})
	{
		std::vector<peerbuf_param> raw;
		for (const auto &[key, value] : params)
			raw.push_back({key.c_str(), value.c_str()});
		return Device::create(host_.raw(), raw.data(), raw.size(), kind.make(), kernel_,
				      &device_);
	}
	void open(const KindOf &kind, const Params &params = {})
	{
		ASSERT_EQ(tryOpen(kind, params), 0) << host_.failure().message;
	}
	peerbuf_buffer_desc alloc(uint64_t size)
	{
		peerbuf_buffer_desc desc = {};
		EXPECT_EQ(device_->alloc(size, &desc), 0) << host_.failure().message;
		return desc;
	}
	uint64_t attach(const peerbuf_buffer_desc &desc)
	{
		peerbuf_attach_request request = {};
		request.length = desc.size;
		request.allow_peer2peer = 1;
		peerbuf_attach_reply reply = {};
		EXPECT_EQ(device_->attach(desc.handle, request, &reply), 0)
			<< host_.failure().message;
		EXPECT_EQ(reply.peer2peer, 0u);
		EXPECT_EQ(reply.placement, PEERBUF_PLACEMENT_HOST);
		return reply.token;
	}
	peerbuf_exporter_stats stats()
	{
		peerbuf_exporter_stats s = {};
		device_->stats(&s);
		return s;
	}
	std::string why() const { return host_.failure().message; }

	const size_t fds_ = openFds();
	FakeKernel kernel_;
	FakeHost host_;
	std::unique_ptr<Device> device_;
};

class Dmabuf : public DmabufBase, public ::testing::TestWithParam<KindOf>
{
protected:
	void open() { DmabufBase::open(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, Dmabuf, ::testing::Values(udmabufKind, heapKind),
			 [](const auto &kind) { return std::string(kind.param.name); });

TEST_P(Dmabuf, GivenNoNodeThenOpenNamesItTheErrnoAndTheCause)
{
	kernel_.nodes.clear();
	EXPECT_EQ(tryOpen(GetParam()), -ENOENT);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_NOT_FOUND);
	EXPECT_THAT(why(),
		    AllOf(HasSubstr(GetParam().node), HasSubstr("ENOENT"), HasSubstr("CONFIG_")));
	kernel_.openError = -EACCES;
	EXPECT_EQ(tryOpen(GetParam()), -EACCES);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_ACCESS);
	kernel_.openError = -EMFILE;
	EXPECT_EQ(tryOpen(GetParam()), -EMFILE);
	EXPECT_THAT(why(), HasSubstr("EMFILE"));
	EXPECT_EQ(device_, nullptr);
}

TEST_P(Dmabuf, GivenAnUnknownOptionThenItIsNamed)
{
	EXPECT_EQ(tryOpen(GetParam(), {{"colour", "red"}}), -EINVAL);
	EXPECT_THAT(why(), HasSubstr("'colour'"));
}

TEST_P(Dmabuf, OfferSaysStaticHostMemoryByViewAndDmaBuf)
{
	open();
	peerbuf_exporter_offer o = {};
	ASSERT_EQ(device_->offer(0, &o), 0);
	EXPECT_EQ(o.stability, PEERBUF_STABILITY_STATIC);
	EXPECT_EQ(o.pin, PEERBUF_PIN_NOT_NEEDED);
	EXPECT_EQ(o.revoke, PEERBUF_REVOKE_NEVER);
	EXPECT_EQ(o.placements, PEERBUF_PLACEMENT_HOST);
	EXPECT_EQ(o.handles, PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD);
	EXPECT_STREQ(o.device, GetParam().device);
	EXPECT_EQ(device_->offer(77, &o), -ENOENT);
}

TEST_P(Dmabuf, GivenABufferThenItIsRoundedZeroedAndSeenFromBothSides)
{
	open();
	const peerbuf_buffer_desc desc = alloc(3 * page - 1);
	EXPECT_EQ(desc.size, 3 * page);
	auto *view = reinterpret_cast<uint8_t *>(desc.address);
	for (uint64_t i = 0; i < desc.size; i++)
		ASSERT_EQ(view[i], 0) << i;
	std::vector<uint8_t> data(5000);
	std::iota(data.begin(), data.end(), 1);
	ASSERT_EQ(device_->transfer(desc.handle, 3000, data.data(), data.size(), true), 0);
	EXPECT_EQ(memcmp(view + 3000, data.data(), data.size()), 0);
	EXPECT_EQ(view[2999], 0);
	view[8001] = 99;
	uint8_t seen[2] = {};
	ASSERT_EQ(device_->transfer(desc.handle, 8000, seen, 2, false), 0);
	EXPECT_EQ(seen[1], 99);
	EXPECT_EQ(device_->transfer(desc.handle, desc.size - 1, seen, 2, false), -EINVAL);
	EXPECT_EQ(device_->transfer(desc.handle + 1, 0, seen, 1, false), -ENOENT);
	EXPECT_EQ(stats().memory_used, 3 * page);
	EXPECT_EQ(device_->free(desc.handle), 0);
	EXPECT_EQ(stats().memory_used, 0u);
	EXPECT_EQ(stats().buffers, 0u);
}

TEST_P(Dmabuf, GivenNonsenseSizesThenRefused)
{
	open();
	peerbuf_buffer_desc desc = {};
	EXPECT_EQ(device_->alloc(0, &desc), -EINVAL);
	EXPECT_EQ(device_->alloc(UINT64_MAX, &desc), -ENOMEM);
	EXPECT_EQ(device_->alloc(uint64_t{1} << 63, &desc), -ENOMEM);
	EXPECT_THAT(why(), HasSubstr(GetParam().device));
}

TEST_P(Dmabuf, GivenAnExportThenARealDescriptorOfTheWholeBufferAndItIsClosedByRelease)
{
	open();
	const peerbuf_buffer_desc desc = alloc(4 * page);
	const uint64_t attachment = attach(desc);
	const size_t before = openFds();
	peerbuf_fd_export e = {};
	ASSERT_EQ(device_->exportFd(attachment, page + 0x180, page, &e), 0) << why();
	EXPECT_EQ(e.offset, page + 0x180);
	EXPECT_EQ(e.size, desc.size);
	EXPECT_EQ(openFds(), before + 1);
	EXPECT_TRUE(fcntl(e.fd, F_GETFD) & FD_CLOEXEC);
	uint64_t inode = 0, same = 0;
	kernel_.identity(e.fd, &inode);
	EXPECT_EQ(kernel_.exporterOf(e.fd), GetParam().exporter);
	peerbuf_fd_export again = {};
	ASSERT_EQ(device_->exportFd(attachment, 0, desc.size, &again), 0);
	EXPECT_NE(again.fd, e.fd);
	kernel_.identity(again.fd, &same);
	EXPECT_EQ(inode, same);
	EXPECT_EQ(stats().exports, 2);
	EXPECT_EQ(device_->releaseFd(attachment, again), 0);
	EXPECT_EQ(device_->releaseFd(attachment, e), 0);
	EXPECT_EQ(openFds(), before);
	EXPECT_EQ(stats().violations, 0u);
	EXPECT_EQ(device_->releaseFd(attachment, e), -ENOENT);
	EXPECT_EQ(stats().violations, 1u);
	EXPECT_EQ(device_->exportFd(attachment, page, 4 * page, &e), -EINVAL);
	EXPECT_EQ(device_->exportFd(attachment + 1, 0, page, &e), -ENOENT);
	EXPECT_EQ(device_->detach(attachment), 0);
	EXPECT_EQ(device_->free(desc.handle), 0);
}

TEST_P(Dmabuf, GivenAMappingThenTheCpuIsToldOfBeforeAndAfter)
{
	open();
	const peerbuf_buffer_desc desc = alloc(4 * page);
	const uint64_t attachment = attach(desc);
	peerbuf_mapping m = {};
	kernel_.busySyncs = 3; // interrupted: tried again
	ASSERT_EQ(device_->map(attachment, page + 1, page, &m), 0) << why();
	EXPECT_EQ(m.offset, page);
	EXPECT_EQ(m.length, 2 * page);
	EXPECT_EQ(reinterpret_cast<uint64_t>(m.cpu_addr), desc.address + page);
	EXPECT_EQ(kernel_.reading, 1);
	EXPECT_EQ(kernel_.writing, 1);
	peerbuf_mapping second = {};
	ASSERT_EQ(device_->map(attachment, 0, page, &second), 0);
	EXPECT_EQ(stats().mappings, 2);
	EXPECT_EQ(device_->unmap(attachment, second), 0);
	EXPECT_EQ(device_->unmap(attachment, m), 0);
	EXPECT_EQ(kernel_.reading, 0);
	EXPECT_EQ(device_->unmap(attachment, m), -ENOENT);
	EXPECT_EQ(stats().violations, 1u);
	EXPECT_EQ(device_->map(attachment, 3 * page, page + 1, &m), -EINVAL);
	EXPECT_EQ(device_->map(attachment + 9, 0, page, &m), -ENOENT);
	kernel_.busySyncs = 1000; // for ever
	EXPECT_EQ(device_->map(attachment, 0, page, &m), -EINTR);
	EXPECT_THAT(why(), HasSubstr("DMA_BUF_IOCTL_SYNC"));
	kernel_.busySyncs = 0;
	EXPECT_EQ(device_->detach(attachment), 0);
	EXPECT_EQ(device_->detach(attachment), -ENOENT);
	EXPECT_EQ(device_->free(desc.handle), 0);
}

TEST_P(Dmabuf, GivenABufferThatIsFreedThenItsAttachmentKeepsTheMemory)
{
	open();
	const peerbuf_buffer_desc desc = alloc(page);
	const uint64_t attachment = attach(desc);
	reinterpret_cast<uint8_t *>(desc.address)[5] = 7;
	EXPECT_EQ(device_->free(desc.handle), 0);
	EXPECT_EQ(stats().buffers, 0u);
	peerbuf_mapping m = {};
	ASSERT_EQ(device_->map(attachment, 0, page, &m), 0);
	EXPECT_EQ(static_cast<uint8_t *>(m.cpu_addr)[5], 7);
	EXPECT_EQ(device_->unmap(attachment, m), 0);
	EXPECT_EQ(device_->detach(attachment), 0);
	EXPECT_EQ(device_->free(desc.handle), -ENOENT);
	EXPECT_EQ(stats().violations, 1u);
}

TEST_P(Dmabuf, GivenMemoryByAddressOrDescriptorThenTheSameBuffer)
{
	open();
	const peerbuf_buffer_desc desc = alloc(4 * page);
	peerbuf_get_request request = {};
	request.struct_size = sizeof(request);
	request.fd = -1;
	request.address = desc.address + page + 7;
	request.length = page;
	peerbuf_buffer_desc found = {};
	ASSERT_EQ(device_->get(request, &found), 0) << why();
	EXPECT_EQ(found.handle, desc.handle);
	EXPECT_EQ(found.allocation_id, desc.allocation_id);
	EXPECT_EQ(device_->free(found.handle), 0); // put
	request.length = 3 * page;
	EXPECT_EQ(device_->get(request, &found), -EINVAL);
	request.address = 0x10;
	EXPECT_EQ(device_->get(request, &found), -ENOENT);

	const uint64_t attachment = attach(desc);
	peerbuf_fd_export e = {};
	ASSERT_EQ(device_->exportFd(attachment, 0, page, &e), 0);
	request.fd = e.fd;
	ASSERT_EQ(device_->get(request, &found), 0) << why();
	EXPECT_EQ(found.handle, desc.handle);
	EXPECT_EQ(stats().buffers, 1u);
	EXPECT_EQ(device_->free(found.handle), 0);
	EXPECT_EQ(device_->releaseFd(attachment, e), 0);
	EXPECT_EQ(device_->detach(attachment), 0);
	EXPECT_EQ(device_->free(desc.handle), 0);
	EXPECT_EQ(stats().violations, 0u);
}

TEST_P(Dmabuf, GivenADmaBufOfTheSameDriverThenItIsTakenAndAnothersIsNot)
{
	open();
	const int mine = kernel_.foreign(GetParam().exporter, 2 * page);
	const int other = kernel_.foreign("vgem", page);
	peerbuf_get_request request = {};
	request.fd = other;
	peerbuf_buffer_desc found = {};
	EXPECT_EQ(device_->get(request, &found), -ENOENT) << "another exporter is asked";
	request.fd = STDIN_FILENO;
	EXPECT_EQ(device_->get(request, &found), -EINVAL);
	EXPECT_THAT(why(), HasSubstr("is no dma-buf"));
	request.fd = mine;
	ASSERT_EQ(device_->get(request, &found), 0) << why();
	EXPECT_EQ(found.size, 2 * page);
	peerbuf_buffer_desc again = {};
	ASSERT_EQ(device_->get(request, &again), 0);
	EXPECT_EQ(again.handle, found.handle) << "one allocation, one handle";
	kernel_.close(mine); // it lives on
	uint8_t byte = 9;
	ASSERT_EQ(device_->transfer(found.handle, 5000, &byte, 1, true), 0) << why();
	EXPECT_EQ(reinterpret_cast<uint8_t *>(found.address)[5000], 9);
	EXPECT_EQ(device_->free(found.handle), 0);
	EXPECT_EQ(device_->free(found.handle), 0);
	EXPECT_EQ(stats().buffers, 0u);
	kernel_.close(other);
}

/* ---- each step fails ----------------------------------------------------------------------- */

TEST_P(Dmabuf, GivenAnAllocationWhenAnyStepFailsThenItsErrnoAndNothingIsLeft)
{
	open();
	size_t failed = 0;
	for (const char *step :
	     {"alloc", "memfd", "ftruncate", "seal", "create", "identity", "mmap"}) {
		const bool heaps = std::string(GetParam().name) == "dma_heap";
		const std::string name = step;
		if (heaps && (name == "memfd" || name == "ftruncate" || name == "seal"))
			continue;
		SCOPED_TRACE(step);
		const size_t before = openFds();
		ASSERT_EQ(device_->calls().fault(step, 0, 1, -ENFILE, 0), 0);
		peerbuf_buffer_desc desc = {};
		EXPECT_EQ(device_->alloc(page, &desc), -ENFILE);
		EXPECT_THAT(why(), HasSubstr(GetParam().device));
		EXPECT_EQ(desc.handle, 0u);
		EXPECT_EQ(openFds(), before);
		EXPECT_EQ(kernel_.mappings, 0);
		EXPECT_EQ(stats().buffers, 0u);
		failed++;
	}
	EXPECT_EQ(failed, std::string(GetParam().name) == "dma_heap" ? 4u : 7u);
	EXPECT_EQ(device_->free(alloc(page).handle), 0);
}

TEST_P(Dmabuf, GivenTheOtherSlotsWhenAnyStepFailsThenItsErrnoAndNothingIsLeft)
{
	open();
	const peerbuf_buffer_desc desc = alloc(page);
	const uint64_t attachment = attach(desc);
	const auto fault = [&](const char *step) {
		ASSERT_EQ(device_->calls().fault(step, 0, 1, -EIO, 0), 0) << step;
	};
	peerbuf_exporter_offer offer = {};
	fault("offer");
	EXPECT_EQ(device_->offer(0, &offer), -EIO);
	peerbuf_attach_request request = {};
	request.length = page;
	peerbuf_attach_reply reply = {};
	fault("attach");
	EXPECT_EQ(device_->attach(desc.handle, request, &reply), -EIO);
	request.length = 2 * page;
	EXPECT_EQ(device_->attach(desc.handle, request, &reply), -EINVAL);
	EXPECT_EQ(device_->attach(99, request, &reply), -ENOENT);
	peerbuf_mapping mapping = {};
	for (const char *step : {"map", "sync"}) {
		fault(step);
		EXPECT_EQ(device_->map(attachment, 0, page, &mapping), -EIO) << step;
	}
	peerbuf_fd_export exported = {};
	for (const char *step : {"export_fd", "dup"}) {
		fault(step);
		EXPECT_EQ(device_->exportFd(attachment, 0, page, &exported), -EIO) << step;
	}
	peerbuf_get_request get = {};
	get.fd = kernel_.foreign(GetParam().exporter, page);
	peerbuf_buffer_desc found = {};
	for (const char *step : {"get", "identity", "size", "dup", "mmap"}) {
		fault(step);
		EXPECT_EQ(device_->get(get, &found), -EIO) << step;
		EXPECT_EQ(stats().buffers, 1u);
	}
	kernel_.close(get.fd);
	uint8_t byte = 0;
	if (std::string(GetParam().name) == "dma_heap") {
		for (const char *step : {"mmap", "sync"}) {
			fault(step);
			EXPECT_EQ(device_->transfer(desc.handle, 0, &byte, 1, true), -EIO) << step;
		}
	} else {
		fault("transfer");
		EXPECT_EQ(device_->transfer(desc.handle, 0, &byte, 1, true), -EIO);
	}
	EXPECT_EQ(device_->calls().fault("dance", 0, 1, -EIO, 0), -ENOENT);
	const peerbuf_exporter_stats s = stats();
	EXPECT_EQ(s.attachments, 1u);
	EXPECT_EQ(s.mappings, 0);
	EXPECT_EQ(s.exports, 0);
	EXPECT_EQ(s.violations, 0u);
	EXPECT_EQ(device_->detach(attachment), 0);
	EXPECT_EQ(device_->free(desc.handle), 0);
}

TEST_P(Dmabuf, GivenACloseWithBuffersInItThenTheyGoWithIt)
{
	open();
	alloc(page);
	alloc(2 * page);
	EXPECT_EQ(kernel_.mappings, 2);
}

/* ---- udmabuf ------------------------------------------------------------------------------- */

class Udmabuf : public DmabufBase, public ::testing::Test
{
};

TEST_F(Udmabuf, GivenRangesThenAListOfThemFromTheLastAndBytesByTheirPlaceInTheDmaBuf)
{
	open(udmabufKind, {{"ranges", "3"}});
	const peerbuf_buffer_desc desc = alloc(7 * page);
	EXPECT_THAT(kernel_.lastRanges, ElementsAre(Pair(4 * page, 3 * page),
						    Pair(2 * page, 2 * page), Pair(0, 2 * page)));
	// across two borders: bytes [2.5, 5.5) pages of the dma-buf
	std::vector<uint8_t> data(3 * page);
	std::iota(data.begin(), data.end(), 1);
	ASSERT_EQ(device_->transfer(desc.handle, 5 * page / 2, data.data(), data.size(), true), 0);
	std::vector<uint8_t> back(3 * page);
	ASSERT_EQ(device_->transfer(desc.handle, 5 * page / 2, back.data(), back.size(), false), 0);
	EXPECT_EQ(back, data);
	EXPECT_EQ(device_->free(desc.handle), 0);
	// fewer pages than ranges
	EXPECT_EQ(device_->free(alloc(page).handle), 0);
	EXPECT_THAT(kernel_.lastRanges, ElementsAre(Pair(0, page)));
}

TEST_F(Udmabuf, GivenMoreThanTheDriverAllowsThenItsLimitIsNamed)
{
	open(udmabufKind);
	kernel_.sizeLimit = page;
	peerbuf_buffer_desc desc = {};
	EXPECT_EQ(device_->alloc(2 * page, &desc), -EINVAL);
	EXPECT_THAT(why(),
		    AllOf(HasSubstr("UDMABUF_CREATE for 8192 bytes"), HasSubstr("size_limit_mb")));
	EXPECT_EQ(tryOpen(udmabufKind, {{"ranges", "0"}}), -EINVAL);
	EXPECT_EQ(tryOpen(udmabufKind, {{"ranges", "1025"}}), -EINVAL);
}

class Heap : public DmabufBase, public ::testing::Test
{
};

TEST_F(Heap, GivenANameThenThatHeapAndNoPathOutOfTheFolder)
{
	kernel_.nodes.insert("/dev/dma_heap/reserved");
	open(heapKind, {{"heap", "reserved"}});
	peerbuf_exporter_offer o = {};
	ASSERT_EQ(device_->offer(0, &o), 0);
	EXPECT_STREQ(o.device, "dma_heap:reserved");
	for (const char *bad : {"", "../sda", "a/b", ".."})
		EXPECT_EQ(tryOpen(heapKind, {{"heap", bad}}), -EINVAL) << bad;
}

/* ---- drm ----------------------------------------------------------------------------------- */

/** libdrm with dumb buffers that are memfds. */
class FakeDrm final : public dmabuf::Drm
{
public:
	explicit FakeDrm(FakeKernel &kernel, std::map<int, uint64_t> &handles)
	    : kernel_(kernel),
	      handles_(handles)
	{
	}
	int driver(int fd, std::string *retName) override
	{
		*retName = kernel_.drivers[kernel_.nodeOf(fd)];
		return retName->empty() ? -ENOTTY : 0;
	}
	int createDumb(int, uint32_t pages, uint32_t *retHandle, uint64_t *retSize) override
	{
		*retHandle = ++last_;
		*retSize = pages * page - kernel_.dumbShort;
		handles_[static_cast<int>(last_)] = pages * page;
		return 0;
	}
	int prime(int, uint32_t handle, int *retFd) override
	{
		*retFd = kernel_.foreign("drm", handles_.at(static_cast<int>(handle)));
		return *retFd < 0 ? *retFd : 0;
	}
	int destroyDumb(int, uint32_t handle) override
	{
		if (kernel_.destroyError)
			return kernel_.destroyError;
		return handles_.erase(static_cast<int>(handle)) ? 0 : -ENOENT;
	}

private:
	FakeKernel &kernel_;
	std::map<int, uint64_t> &handles_;
	uint32_t last_ = 0;
};

class DrmTest : public DmabufBase, public ::testing::Test
{
protected:
	~DrmTest() override { EXPECT_TRUE(handles_.empty()) << "a handle is left"; }
	int tryDrm(const Params &params = {})
	{
		std::vector<peerbuf_param> raw;
		for (const auto &[key, value] : params)
			raw.push_back({key.c_str(), value.c_str()});
		return Device::create(host_.raw(), raw.data(), raw.size(),
				      dmabuf::makeDrm(std::make_unique<FakeDrm>(kernel_, handles_)),
				      kernel_, &device_);
	}
	void node(const std::string &path, const std::string &driver)
	{
		kernel_.nodes.insert(path);
		kernel_.drivers[path] = driver;
	}

	std::map<int, uint64_t> handles_;
};

TEST_F(DrmTest, GivenSeveralCardsThenTheFirstWhoseBuffersStay)
{
	node("/dev/dri/card0", "amdgpu");
	node("/dev/dri/card1", "vgem");
	node("/dev/dri/card2", "virtio_gpu");
	ASSERT_EQ(tryDrm(), 0) << why();
	peerbuf_exporter_offer o = {};
	ASSERT_EQ(device_->offer(0, &o), 0);
	EXPECT_STREQ(o.device, "drm:vgem:/dev/dri/card1");
	const peerbuf_buffer_desc desc = alloc(3 * page);
	uint8_t byte = 4;
	ASSERT_EQ(device_->transfer(desc.handle, 2 * page, &byte, 1, true), 0) << why();
	EXPECT_EQ(reinterpret_cast<uint8_t *>(desc.address)[2 * page], 4);
	EXPECT_TRUE(handles_.empty()) << "the dma-buf keeps the memory";
	EXPECT_EQ(device_->free(desc.handle), 0);
	device_.reset();
	ASSERT_EQ(tryDrm({{"node", "/dev/dri/card2"}}), 0) << why();
}

TEST_F(DrmTest, GivenNothingThatWillDoThenWhatThereIs)
{
	EXPECT_EQ(tryDrm(), -ENOENT);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_NOT_FOUND);
	EXPECT_THAT(why(), HasSubstr("/dev/dri/card*"));
	node("/dev/dri/card0", "amdgpu");
	EXPECT_EQ(tryDrm(), -ENODEV);
	EXPECT_THAT(why(), AllOf(HasSubstr("/dev/dri/card0 (amdgpu)"), HasSubstr("vgem")));
	EXPECT_EQ(tryDrm({{"node", "/dev/dri/card0"}}), -EOPNOTSUPP);
	EXPECT_THAT(why(), HasSubstr("'amdgpu' may move"));
	EXPECT_EQ(tryDrm({{"node", "/dev/dri/card9"}}), -ENOENT);
	EXPECT_THAT(why(), HasSubstr("/dev/dri/card9"));
	node("/dev/dri/card0", "");
	EXPECT_EQ(tryDrm({{"node", "/dev/dri/card0"}}), -ENOTTY);
	EXPECT_THAT(why(), HasSubstr("DRM_IOCTL_VERSION"));
}

TEST_F(DrmTest, GivenAStepThatFailsThenItsErrnoAndNothingIsLeft)
{
	node("/dev/dri/card0", "vgem");
	ASSERT_EQ(tryDrm(), 0) << why();
	peerbuf_buffer_desc desc = {};
	for (const char *step : {"create", "prime", "identity", "mmap"}) {
		ASSERT_EQ(device_->calls().fault(step, 0, 1, -ENOMEM, 0), 0);
		EXPECT_EQ(device_->alloc(page, &desc), -ENOMEM) << step;
		EXPECT_TRUE(handles_.empty()) << step;
	}
	kernel_.dumbShort = 1;
	EXPECT_EQ(device_->alloc(page, &desc), -ENOSPC);
	EXPECT_TRUE(handles_.empty());
	kernel_.dumbShort = 0;
	kernel_.destroyError = -EIO;
	EXPECT_EQ(device_->alloc(page, &desc), -EIO);
	EXPECT_THAT(why(), HasSubstr("DESTROY_DUMB"));
	handles_.clear();
	kernel_.destroyError = 0;
	EXPECT_EQ(stats().buffers, 0u);
	peerbuf_get_request get = {};
	get.fd = kernel_.foreign("drm", page);
	EXPECT_EQ(device_->get(get, &desc), -ENOENT) << "it may be of a driver that moves it";
	kernel_.close(get.fd);
}

/* ---- vfio ---------------------------------------------------------------------------------- */

class VfioTest : public DmabufBase, public ::testing::Test
{
protected:
	VfioTest() : device(kernel_.vfioDevice(8 * page)) {}
	~VfioTest() override
	{
		device_.reset();
		EXPECT_EQ(fcntl(device, F_GETFD), FD_CLOEXEC) << "borrowed, never closed";
		kernel_.close(device);
	}
	int tryVfio(Params params = {{"region", "2"}})
	{
		params.emplace_back("device_fd", std::to_string(device));
		return tryOpen({"vfio", dmabuf::makeVfio, "", "", ""}, params);
	}

	const int device;
};

TEST_F(VfioTest, OfferSaysDeviceMemoryThatTheKernelMayTakeBack)
{
	ASSERT_EQ(tryVfio({{"region", "2"}, {"name", "0000:03:00.0"}}), 0) << why();
	peerbuf_exporter_offer o = {};
	ASSERT_EQ(device_->offer(0, &o), 0);
	EXPECT_EQ(o.management, PEERBUF_MANAGED_BY_KERNEL);
	EXPECT_EQ(o.revoke, PEERBUF_REVOKE_MAY);
	EXPECT_EQ(o.handles, PEERBUF_HANDLE_FD);
	EXPECT_EQ(o.placements, PEERBUF_PLACEMENT_DEVICE);
	EXPECT_EQ(o.needs_peer2peer, 1u);
	EXPECT_EQ(o.memory_size, 8 * page);
	EXPECT_STREQ(o.device, "vfio:0000:03:00.0");
}

TEST_F(VfioTest, GivenRangesThenEachIsZeroedItsOwnAndUsedAgainWhenItEnds)
{
	ASSERT_EQ(tryVfio(), 0) << why();
	std::vector<uint8_t> dirt(8 * page, 0xee);
	ASSERT_EQ(kernel_.transfer(device, FakeKernel::barOffset, dirt.data(), dirt.size(), true),
		  0);
	const peerbuf_buffer_desc a = alloc(2 * page);
	const peerbuf_buffer_desc b = alloc(3 * page);
	EXPECT_EQ(a.address, 0u) << "the CPU has no view by the dma-buf";
	EXPECT_THAT(kernel_.lastRanges, ElementsAre(Pair(2 * page, 3 * page)));
	std::vector<uint8_t> bytes(3 * page);
	ASSERT_EQ(device_->transfer(b.handle, 0, bytes.data(), bytes.size(), false), 0) << why();
	EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), static_cast<long>(3 * page));
	uint8_t byte = 7;
	ASSERT_EQ(device_->transfer(b.handle, 5, &byte, 1, true), 0);
	uint8_t seen = 0;
	kernel_.transfer(device, FakeKernel::barOffset + 2 * page + 5, &seen, 1, false);
	EXPECT_EQ(seen, 7);
	kernel_.transfer(device, FakeKernel::barOffset + 5 * page, &seen, 1, false);
	EXPECT_EQ(seen, 0xee) << "beyond it nothing was touched";
	peerbuf_buffer_desc c = {};
	EXPECT_EQ(device_->alloc(4 * page, &c), -ENOMEM);
	EXPECT_THAT(why(), HasSubstr("16384 left in one piece"));
	EXPECT_EQ(device_->free(a.handle), 0);
	EXPECT_EQ(device_->free(alloc(2 * page).handle), 0) << "the gap at the start";
	EXPECT_THAT(kernel_.lastRanges, ElementsAre(Pair(0, 2 * page)));
	EXPECT_EQ(device_->free(alloc(3 * page).handle), 0) << "the rest at the end";
	EXPECT_THAT(kernel_.lastRanges, ElementsAre(Pair(5 * page, 3 * page)));
	EXPECT_EQ(device_->free(b.handle), 0);
	EXPECT_EQ(device_->free(alloc(8 * page).handle), 0) << "all of it is back";
}

TEST_F(VfioTest, GivenAnImporterWithoutPeerToPeerThenRefusedAndNoMappingByTheCpu)
{
	ASSERT_EQ(tryVfio(), 0) << why();
	const peerbuf_buffer_desc desc = alloc(page);
	peerbuf_attach_request request = {};
	request.length = page;
	request.importer = "importer nic";
	peerbuf_attach_reply reply = {};
	EXPECT_EQ(device_->attach(desc.handle, request, &reply), -EOPNOTSUPP);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_NO_P2P_PATH);
	EXPECT_THAT(why(), HasSubstr("importer nic"));
	request.allow_peer2peer = 1;
	ASSERT_EQ(device_->attach(desc.handle, request, &reply), 0);
	EXPECT_EQ(reply.placement, PEERBUF_PLACEMENT_DEVICE);
	EXPECT_EQ(reply.peer2peer, 1u);
	peerbuf_mapping m = {};
	EXPECT_EQ(device_->map(reply.token, 0, page, &m), -EOPNOTSUPP);
	peerbuf_fd_export e = {};
	ASSERT_EQ(device_->exportFd(reply.token, 0, page, &e), 0);
	EXPECT_EQ(device_->releaseFd(reply.token, e), 0);
	EXPECT_EQ(device_->detach(reply.token), 0);
	EXPECT_EQ(device_->free(desc.handle), 0);
}

TEST_F(VfioTest, GivenWhatIsMissingThenItIsNamed)
{
	EXPECT_EQ(tryOpen({"vfio", dmabuf::makeVfio, "", "", ""}), -ENODEV);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_NOT_FOUND);
	EXPECT_THAT(why(), HasSubstr("device_fd"));
	EXPECT_EQ(tryVfio({{"region", "6"}}), -EINVAL);
	EXPECT_EQ(tryVfio({{"region", "0"}}), -ENODEV);
	EXPECT_THAT(why(), HasSubstr("BAR 0 has 0 bytes"));
	kernel_.barMaps = false;
	EXPECT_EQ(tryVfio(), -EOPNOTSUPP);
	EXPECT_THAT(why(), HasSubstr("zeroed"));
	kernel_.barMaps = true;
	ASSERT_EQ(tryVfio(), 0) << why();
	peerbuf_buffer_desc desc = {};
	for (const char *step : {"create", "identity", "mmap"}) {
		ASSERT_EQ(device_->calls().fault(step, 0, 1, -EIO, 0), 0);
		EXPECT_EQ(device_->alloc(8 * page, &desc), -EIO) << step;
	}
	kernel_.vfioDmabuf = false;
	EXPECT_EQ(device_->alloc(8 * page, &desc), -ENOTTY);
	EXPECT_THAT(why(), HasSubstr("CONFIG_VFIO_PCI_DMABUF"));
	kernel_.vfioDmabuf = true;
	EXPECT_EQ(device_->free(alloc(8 * page).handle), 0) << "what failed gave its range back";
	ASSERT_EQ(device_->calls().due("region"), 0);
	device_.reset();
	const int none = kernel_.foreign("vgem", page);
	EXPECT_EQ(tryOpen({"vfio", dmabuf::makeVfio, "", "", ""},
			  {{"device_fd", std::to_string(none)}}),
		  -ENOTTY);
	EXPECT_THAT(why(), HasSubstr("is no open VFIO device"));
	kernel_.breaches = 0; // it was to be asked something that it does not know
	kernel_.close(none);
}

} // namespace
} // namespace peerbuf::test
