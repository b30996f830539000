// SPDX-License-Identifier: BSD-3-Clause
#include "fake_kernel.h"

#include <cerrno>
#include <filesystem>
#include <iterator>

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <linux/vfio.h>
#include <sys/mman.h>

namespace peerbuf::test
{

int FakeKernel::open(const char *path)
{
	if (!nodes.count(path))
		return openError;
	const int fd = System::open("/dev/null");
	if (fd >= 0)
		devices_[fd] = path;
	return fd;
}

int FakeKernel::close(int fd)
{
	devices_.erase(fd);
	dmabufs_.erase(fd);
	const int rc = System::close(fd);
	if (rc)
		breaches++;
	return rc;
}

int FakeKernel::dup(int fd)
{
	const int made = System::dup(fd);
	if (made >= 0 && dmabufs_.count(fd))
		dmabufs_[made] = dmabufs_[fd];
	return made;
}

int FakeKernel::foreign(const std::string &exporter, uint64_t size)
{
	const int fd = memfd("foreign");
	if (fd >= 0 && resize(fd, size) == 0)
		dmabufs_[fd] = exporter;
	return fd;
}

int FakeKernel::create(const std::vector<std::pair<int, std::pair<uint64_t, uint64_t>>> &ranges,
		       uint64_t flags)
{
	lastRanges.clear();
	uint64_t total = 0;
	for (const auto &[fd, range] : ranges) {
		const int seals = fcntl(fd, F_GET_SEALS);
		uint64_t have = 0;
		if (seals < 0 || !(seals & F_SEAL_SHRINK) || (seals & F_SEAL_WRITE) ||
		    size(fd, &have) || (range.first | range.second) % 4096 || !range.second ||
		    range.first + range.second > have)
			return -EINVAL;
		lastRanges.push_back(range);
		total += range.second;
	}
	if (total > sizeLimit)
		return -EINVAL;
	if (!(flags & UDMABUF_FLAGS_CLOEXEC))
		breaches++;
	const int fd = ranges.size() == 1 ? System::dup(ranges[0].first) : memfd("list");
	if (fd >= 0 && ranges.size() > 1)
		resize(fd, total);
	if (fd >= 0)
		dmabufs_[fd] = "udmabuf";
	return fd;
}

int FakeKernel::ioctl(int fd, unsigned long request, void *arg)
{
	if (request == DMA_BUF_IOCTL_SYNC)
		return sync(fd, static_cast<dma_buf_sync *>(arg)->flags);
	const auto device = devices_.find(fd);
	if (device == devices_.end()) {
		breaches++;
		return -ENOTTY;
	}
	if (device->second == "vfio")
		return vfio(fd, request, arg);
	if (request == UDMABUF_CREATE && device->second == "/dev/udmabuf") {
		const auto &one = *static_cast<udmabuf_create *>(arg);
		return create({{static_cast<int>(one.memfd), {one.offset, one.size}}}, one.flags);
	}
	if (request == UDMABUF_CREATE_LIST && device->second == "/dev/udmabuf") {
		const auto &list = *static_cast<udmabuf_create_list *>(arg);
		std::vector<std::pair<int, std::pair<uint64_t, uint64_t>>> ranges;
		for (uint32_t i = 0; i < list.count; i++)
			ranges.push_back({static_cast<int>(list.list[i].memfd),
					  {list.list[i].offset, list.list[i].size}});
		return create(ranges, list.flags);
	}
	if (request == DMA_HEAP_IOCTL_ALLOC && device->second != "/dev/udmabuf") {
		auto &data = *static_cast<dma_heap_allocation_data *>(arg);
		if (data.fd || data.heap_flags || data.len % 4096)
			return -EINVAL;
		if (!(data.fd_flags & O_CLOEXEC))
			breaches++;
		const int made = memfd("heap");
		if (made < 0)
			return made;
		resize(made, data.len);
		dmabufs_[made] = device->second.substr(device->second.rfind('/') + 1);
		data.fd = static_cast<uint32_t>(made);
		return 0;
	}
	breaches++;
	return -ENOTTY;
}

int FakeKernel::sync(int fd, uint64_t flags)
{
	if (!dmabufs_.count(fd)) {
		breaches++;
		return -ENOTTY;
	}
	if (!(flags & DMA_BUF_SYNC_RW) || (flags & ~uint64_t{DMA_BUF_SYNC_VALID_FLAGS_MASK}))
		return -EINVAL;
	if (busySyncs) {
		busySyncs--;
		return -EINTR;
	}
	const int step = flags & DMA_BUF_SYNC_END ? -1 : 1;
	reading += flags & DMA_BUF_SYNC_READ ? step : 0;
	writing += flags & DMA_BUF_SYNC_WRITE ? step : 0;
	if (reading < 0 || writing < 0) // an end without its begin
		return -EINVAL;
	return 0;
}

int FakeKernel::vfioDevice(uint64_t size)
{
	const int fd = memfd("vfio");
	if (fd >= 0 && resize(fd, barOffset + size) == 0) {
		devices_[fd] = "vfio";
		barSize = size;
	}
	return fd;
}

int FakeKernel::vfio(int fd, unsigned long request, void *arg)
{
	if (request == VFIO_DEVICE_GET_REGION_INFO) {
		auto &info = *static_cast<vfio_region_info *>(arg);
		if (info.argsz < sizeof(info))
			return -EINVAL;
		info.size = info.index == 2 ? barSize : 0;
		info.offset = barOffset;
		info.flags = barMaps ? VFIO_REGION_INFO_FLAG_MMAP : 0;
		return 0;
	}
	if (request != VFIO_DEVICE_FEATURE || !vfioDmabuf)
		return -ENOTTY;
	struct Request {
		uint32_t argsz, flags, region, open, zero, n;
		uint64_t offset, length;
	};
	const auto &asked = *static_cast<const Request *>(arg);
	if (asked.argsz < sizeof(asked) || asked.flags != (VFIO_DEVICE_FEATURE_GET | 11u) ||
	    asked.region != 2 || asked.zero || asked.n != 1 || !asked.length ||
	    (asked.offset | asked.length) % 4096 || asked.offset + asked.length > barSize)
		return -EINVAL;
	if (!(asked.open & O_CLOEXEC))
		breaches++;
	lastRanges = {{asked.offset, asked.length}};
	const int made = System::dup(fd);
	if (made >= 0)
		dmabufs_[made] = "vfio";
	return made;
}

int FakeKernel::map(int fd, uint64_t size, void **retAddress, uint64_t offset)
{
	if (!dmabufs_.count(fd) && !devices_.count(fd))
		breaches++;
	const int rc = System::map(fd, size, retAddress, offset);
	mappings += rc == 0;
	return rc;
}

int FakeKernel::unmap(void *address, uint64_t size)
{
	mappings--;
	return System::unmap(address, size);
}

std::string FakeKernel::exporterOf(int fd)
{
	const auto it = dmabufs_.find(fd);
	return it == dmabufs_.end() ? "" : it->second;
}

size_t openFds()
{
	const std::filesystem::directory_iterator all("/proc/self/fd");
	return static_cast<size_t>(std::distance(begin(all), end(all)));
}

} // namespace peerbuf::test
