// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file vfio.cpp
 * Ranges of a BAR of a PCI function that the application drives through VFIO
 * (drivers/vfio/pci/vfio_pci_dmabuf.c).
 *
 * The kernel takes them back for good, or for a while, when the function is reset or its memory is
 * disabled. It tells the importer and nobody else, so nothing of it is seen here.
 */
#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>

#include "source.h"

namespace peerbuf::dmabuf
{

namespace
{

using plugin::hex;
using plugin::text;

/* Younger than the headers that this may be built with (linux/vfio.h of 6.19). */
constexpr uint32_t featureDmaBuf = 11;
struct DmaRange {
	uint64_t offset;
	uint64_t length;
};
struct DmaBufFeature {
	uint32_t regionIndex;
	uint32_t openFlags;
	uint32_t flags;
	uint32_t nRanges;
	DmaRange range;
};
struct DmaBufRequest {
	uint32_t argsz;
	uint32_t flags;
	DmaBufFeature feature;
};

/** The ranges of a BAR that are handed out. Thread-safe. */
class Ranges
{
public:
	explicit Ranges(uint64_t size) : size_(size) {}

	/** The first gap that is large enough. @return false: there is none. */
	bool take(uint64_t length, uint64_t *retOffset)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		uint64_t at = 0;
		for (const auto &[offset, taken] : taken_) {
			if (offset - at >= length)
				break;
			at = offset + taken;
		}
		if (at > size_ || length > size_ - at)
			return false;
		taken_[at] = length;
		*retOffset = at;
		return true;
	}
	void giveBack(uint64_t offset)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		taken_.erase(offset);
	}

private:
	const uint64_t size_;
	std::mutex mutex_;
	std::map<uint64_t, uint64_t> taken_; /* offset → length */
};

class Vfio final : public Source
{
public:
	void options(plugin::Options &options) override
	{
		/* borrowed: the application's own, as are its group, container and iommufd */
		const uint64_t none = INT32_MAX;
		const uint64_t fd = options.number("device_fd", none, 0, none);
		region_ = static_cast<uint32_t>(options.number("region", VFIO_PCI_BAR0_REGION_INDEX,
							       VFIO_PCI_BAR0_REGION_INDEX,
							       VFIO_PCI_BAR5_REGION_INDEX));
		name_ = options.string("name", text("fd", fd));
		given_ = fd != none;
		fd_ = static_cast<int>(fd);
	}

	int start(const plugin::Host &host, Calls &calls) override
	{
		if (!given_)
			return host.fail(ENODEV,
					 "vfio: which device? Option device_fd names the "
					 "application's own, opened through /dev/vfio",
					 PEERBUF_ERR_NOT_FOUND);
		vfio_region_info info = {};
		info.argsz = sizeof(info);
		info.index = region_;
		const int rc = calls.ioctl("region", fd_, VFIO_DEVICE_GET_REGION_INFO, &info);
		if (rc < 0)
			return host.fail(-rc,
					 text(device(), ": VFIO_DEVICE_GET_REGION_INFO of region ",
					      region_, ": ", errnoText(rc), ": descriptor ", fd_,
					      " is no open VFIO device"));
		if (info.size < pageSize)
			return host.fail(ENODEV, text(device(), ": BAR ", region_, " has ",
						      uint64_t{info.size}, " bytes"));
		if (!(info.flags & VFIO_REGION_INFO_FLAG_MMAP))
			return host.fail(EOPNOTSUPP,
					 text(device(), ": BAR ", region_,
					      " cannot be mapped, so memory of it cannot be handed "
					      "out zeroed"),
					 PEERBUF_ERR_UNSUPPORTED_DRIVER);
		size_ = info.size & ~(pageSize - 1);
		fileOffset_ = info.offset;
		ranges_ = std::make_shared<Ranges>(size_);
		return 0;
	}

	int make(const plugin::Host &host, Calls &calls, uint64_t size,
		 Backing *retBacking) override
	{
		uint64_t offset = 0;
		if (!ranges_->take(size, &offset))
			return host.fail(ENOMEM,
					 text(device(), ": BAR ", region_, " of ", size_,
					      " bytes has no ", size, " left in one piece"));
		Backing b;
		b.keep = std::shared_ptr<void>(
			nullptr, [ranges = ranges_, offset](void *) { ranges->giveBack(offset); });
		DmaBufRequest request = {};
		request.argsz = sizeof(request);
		request.flags = VFIO_DEVICE_FEATURE_GET | featureDmaBuf;
		request.feature.regionIndex = region_;
		request.feature.openFlags = O_RDWR | O_CLOEXEC;
		request.feature.nRanges = 1;
		request.feature.range = {offset, size};
		const int fd = calls.ioctl("create", fd_, VFIO_DEVICE_FEATURE, &request);
		if (fd < 0)
			return host.fail(-fd,
					 text(device(), ": VFIO_DEVICE_FEATURE_DMA_BUF of BAR ",
					      region_, " offset ", hex(offset), " length ",
					      hex(size), ": ", errnoText(fd), hint(fd)));
		b.dmabuf = Fd(calls, fd);
		b.view = false; /* vfio gives the CPU no way to it by the dma-buf */
		b.door = fd_;
		b.doorOffset = fileOffset_ + offset;
		if (const int rc = clear(calls, b, size))
			return host.fail(-rc, text(device(), ": mmap of BAR ", region_, ": ",
						   errnoText(rc)));
		*retBacking = std::move(b);
		return 0;
	}

	std::string device() const override { return "vfio:" + name_; }
	bool owns(const std::string &) const override { return false; }

	void describe(peerbuf_exporter_offer *offer) const override
	{
		offer->revoke = PEERBUF_REVOKE_MAY;
		offer->management = PEERBUF_MANAGED_BY_KERNEL;
		offer->placements = PEERBUF_PLACEMENT_DEVICE;
		offer->handles = PEERBUF_HANDLE_FD;
		offer->needs_peer2peer = 1;
		offer->memory_size = size_;
		plugin::copyName(offer->why,
				 "a reset of the function, or its memory disabled, takes "
				 "the memory back");
	}

private:
	static const char *hint(int rc)
	{
		return rc == -ENOTTY || rc == -EOPNOTSUPP
			       ? ": the kernel has no dma-bufs of VFIO (CONFIG_VFIO_PCI_DMABUF, "
				 "Linux "
				 "6.19), or this function has no peer-to-peer provider"
			       : "";
	}

	static int clear(Calls &calls, const Backing &b, uint64_t size)
	{
		void *base = nullptr;
		if (const int rc = calls.map(b.door, size, &base, b.doorOffset))
			return rc;
		/* whole words: what is behind it may be a device's registers, not memory */
		auto *word = static_cast<volatile uint64_t *>(base);
		for (uint64_t i = 0; i < size / sizeof(*word); i++)
			word[i] = 0;
		calls.unmap(base, size);
		return 0;
	}

	int fd_ = -1;
	bool given_ = false;
	uint32_t region_ = 0;
	std::string name_;
	uint64_t size_ = 0;
	uint64_t fileOffset_ = 0; /* of the BAR in the device's descriptor */
	std::shared_ptr<Ranges> ranges_;
};

} // namespace

std::unique_ptr<Source> makeVfio()
{
	return std::make_unique<Vfio>();
}

} // namespace peerbuf::dmabuf
