// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file heap.cpp
 * Memory of one of the kernel's dma-buf heaps (drivers/dma-buf/dma-heap.c).
 */
#include <cerrno>

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <sys/ioctl.h>

#include "source.h"

namespace peerbuf::dmabuf
{

namespace
{

using plugin::text;

class Heap final : public Source
{
public:
	void options(plugin::Options &options) override
	{
		heap_ = options.string("heap", "system");
		if (heap_.empty() || heap_.find('/') != std::string::npos || heap_[0] == '.')
			options.complain(text("option heap='", heap_,
					      "': the name of a node in /dev/dma_heap"));
	}

	int start(const plugin::Host &host, Calls &calls) override
	{
		const std::string node = "/dev/dma_heap/" + heap_;
		const int fd = calls.open(node.c_str());
		if (fd < 0)
			return failNode(host, node, "CONFIG_DMABUF_HEAPS", fd);
		device_ = Fd(calls, fd);
		return 0;
	}

	int make(const plugin::Host &host, Calls &calls, uint64_t size,
		 Backing *retBacking) override
	{
		dma_heap_allocation_data data = {};
		data.len = size;
		data.fd_flags = O_RDWR | O_CLOEXEC;
		const int rc = calls.ioctl("create", device_.get(), DMA_HEAP_IOCTL_ALLOC, &data);
		if (rc < 0)
			return host.fail(-rc, text(device(), ": DMA_HEAP_IOCTL_ALLOC of ", size,
						   " bytes: ", errnoText(rc)));
		retBacking->dmabuf = Fd(calls, static_cast<int>(data.fd));
		return 0;
	}

	std::string device() const override { return "dma_heap:" + heap_; }
	bool owns(const std::string &exporter) const override { return exporter == heap_; }

private:
	std::string heap_;
	Fd device_;
};

} // namespace

std::unique_ptr<Source> makeHeap()
{
	return std::make_unique<Heap>();
}

} // namespace peerbuf::dmabuf
