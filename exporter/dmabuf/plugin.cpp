// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin.cpp
 * The table of an exporter of the kernel's dma-bufs, built once for each kind.
 */
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "device.h"
#include "drm_source.h"

namespace
{

/* A table is data, without a constructor, so each kind is written down here. */
#if defined(PEERBUF_KIND_UDMABUF)
constexpr const char *kindName = "udmabuf";
constexpr const char *kindDescription =
	"host memory of this process (memfd) as dma-bufs of the kernel's udmabuf";
constexpr const char *kindOptions[] = {
	"node: the driver's device node (/dev/udmabuf)",
	"ranges: of how many ranges of a memfd, last to first, each buffer is put together (1)",
	nullptr,
};
constexpr auto makeSource = peerbuf::dmabuf::makeUdmabuf;
#elif defined(PEERBUF_KIND_HEAP)
constexpr const char *kindName = "dma_heap";
constexpr const char *kindDescription = "memory of a dma-buf heap of the kernel";
constexpr const char *kindOptions[] = {
	"heap: the heap's name in /dev/dma_heap (system)",
	nullptr,
};
constexpr auto makeSource = peerbuf::dmabuf::makeHeap;
#elif defined(PEERBUF_KIND_VFIO)
constexpr const char *kindName = "vfio";
constexpr const char *kindDescription =
	"ranges of a BAR of the application's own VFIO device, as dma-bufs";
constexpr const char *kindOptions[] = {
	"device_fd: the descriptor of the open VFIO device, borrowed while this is open (needed)",
	"region: which BAR, 0 to 5 (0)",
	"name: the device's name in ledger and messages (fdN)",
	nullptr,
};
constexpr auto makeSource = peerbuf::dmabuf::makeVfio;
#elif defined(PEERBUF_KIND_DRM)
constexpr const char *kindName = "drm";
constexpr const char *kindDescription =
	"dumb buffers of a DRM driver whose memory stays in place (vgem, virtio_gpu), by PRIME";
constexpr const char *kindOptions[] = {
	"node: the primary node (the first of /dev/dri/card0.. whose driver will do)",
	nullptr,
};
std::unique_ptr<peerbuf::dmabuf::Source> makeSource()
{
	return peerbuf::dmabuf::makeDrm(peerbuf::dmabuf::makeLibdrm());
}
#endif

using peerbuf::dmabuf::Device;
using peerbuf::dmabuf::System;
using peerbuf::plugin::copyOut;
using peerbuf::plugin::guarded;
using peerbuf::plugin::guardedVoid;

/** In the order in which they end, last first. */
struct Opened {
	std::unique_ptr<System> system;
	std::unique_ptr<Device> device;
};

Device &self(void *opened)
{
	return *static_cast<Opened *>(opened)->device;
}

/** A slot made of a method that may throw, which no slot may. */
template <auto method, typename... Args> int slot(void *device, Args... args) noexcept
{
	return guarded(self(device).host(), [&] { return (self(device).*method)(args...); });
}
template <auto method, typename... Args> void slotVoid(void *device, Args... args) noexcept
{
	guardedVoid([&] { (self(device).*method)(args...); });
}

/** Made in a structure of ours, and no more given than the other side knows of. */
template <typename T, typename Make> int give(void *device, T *to, Make &&make) noexcept
{
	return guarded(self(device).host(), [&] {
		T made = {};
		const int rc = make(&made);
		if (rc == 0)
			copyOut(made, to);
		return rc;
	});
}

int openSlot(const peerbuf_host *host, const peerbuf_param *params, size_t n, void **retDevice)
{
	return guarded(host, [&] {
		auto opened = std::make_unique<Opened>();
		opened->system = std::make_unique<System>();
		const int rc = Device::create(host, params, n, makeSource(), *opened->system,
					      &opened->device);
		if (rc == 0)
			*retDevice = opened.release();
		return rc;
	});
}

void closeSlot(void *opened)
{
	guardedVoid([&] { delete static_cast<Opened *>(opened); });
}

int offerSlot(void *d, uint64_t buffer, peerbuf_exporter_offer *ret)
{
	return give(d, ret, [&](auto *made) { return self(d).offer(buffer, made); });
}

int allocSlot(void *d, uint64_t size, peerbuf_buffer_desc *ret)
{
	return give(d, ret, [&](auto *made) { return self(d).alloc(size, made); });
}

int getSlot(void *d, const peerbuf_get_request *request, peerbuf_buffer_desc *ret)
{
	return give(d, ret, [&](auto *made) { return self(d).get(*request, made); });
}

int attachSlot(void *d, uint64_t buffer, const peerbuf_attach_request *request,
	       peerbuf_attach_reply *ret)
{
	return give(d, ret, [&](auto *made) { return self(d).attach(buffer, *request, made); });
}

int mapSlot(void *d, uint64_t attachment, uint64_t offset, uint64_t length, peerbuf_mapping *ret)
{
	return give(d, ret,
		    [&](auto *made) { return self(d).map(attachment, offset, length, made); });
}

void unmapSlot(void *d, uint64_t attachment, const peerbuf_mapping *mapping)
{
	guardedVoid([&] { self(d).unmap(attachment, *mapping); });
}

int exportFdSlot(void *d, uint64_t attachment, uint64_t offset, uint64_t length, uint32_t,
		 peerbuf_fd_export *ret)
{
	return give(d, ret,
		    [&](auto *made) { return self(d).exportFd(attachment, offset, length, made); });
}

void releaseFdSlot(void *d, uint64_t attachment, const peerbuf_fd_export *exported)
{
	guardedVoid([&] { self(d).releaseFd(attachment, *exported); });
}

/* For the contract suite. */

int readOp(void *d, uint64_t buffer, uint64_t offset, void *data, uint64_t length)
{
	return slot<&Device::transfer>(d, buffer, offset, data, length, false);
}

int writeOp(void *d, uint64_t buffer, uint64_t offset, const void *data, uint64_t length)
{
	/* one pointer for both ways; a write only reads from it */
	return slot<&Device::transfer>(d, buffer, offset, const_cast<void *>(data), length, true);
}

int faultOp(void *d, const char *step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
{
	return guarded(self(d).host(), [&] {
		return self(d).calls().fault(self(d).say(), step, skip, count, err, delayNs);
	});
}

int statsOp(void *d, peerbuf_exporter_stats *ret)
{
	return give(d, ret, [&](auto *made) {
		self(d).stats(made);
		return 0;
	});
}

constexpr peerbuf_exporter_test_ops testOps = {
	.struct_size = sizeof(peerbuf_exporter_test_ops),
	.reserved = 0,
	.device_read = readOp,
	.device_write = writeOp,
	.revoke = nullptr,
	.restore = nullptr,
	.remove = nullptr,
	.fault = faultOp,
	.stats = statsOp,
	.move = nullptr,
	.move_status = nullptr,
	.pool = nullptr,
	.set_limits = nullptr,
	.tenant_status = nullptr,
};

int openOpsSlot(void *, const char *name, const void **retOps)
{
	if (!name || std::strcmp(name, PEERBUF_EXPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*retOps = &testOps;
	return 0;
}

} // namespace

extern "C" {
extern PEERBUF_PLUGIN_EXPORT const peerbuf_exporter_plugin peerbuf_exporter_v1;
const peerbuf_exporter_plugin peerbuf_exporter_v1 = {
	.struct_size = sizeof(peerbuf_exporter_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET |
			PEERBUF_EXPORTER_CAP_MAP | PEERBUF_EXPORTER_CAP_FD |
			PEERBUF_EXPORTER_CAP_OPS,
	.reserved = 0,
	.name = kindName,
	.description = kindDescription,
	.options = kindOptions,
	.open = openSlot,
	.close = closeSlot,
	.offer = offerSlot,
	.alloc = allocSlot,
	.free = slot<&Device::free, uint64_t>,
	.get = getSlot,
	.put = slotVoid<&Device::free, uint64_t>,
	.attach = attachSlot,
	.detach = slotVoid<&Device::detach, uint64_t>,
	.pin = nullptr,
	.unpin = nullptr,
	.map = mapSlot,
	.unmap = unmapSlot,
	.export_fd = exportFdSlot,
	.release_fd = releaseFdSlot,
	.invalidate_done = nullptr,
	.event_fd = nullptr,
	.progress = nullptr,
	.open_ops = openOpsSlot,
};
}
