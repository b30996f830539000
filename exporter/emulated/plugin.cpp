// SPDX-License-Identifier: BSD-3-Clause
/*
 * The exporter plugin "emulated": the slots, each a guarded call of Client.
 */
#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "client.h"

namespace
{

using peerbuf::emulated::Client;
using peerbuf::plugin::guarded;
using peerbuf::plugin::guardedVoid;

Client &self(void *device)
{
	return *static_cast<Client *>(device);
}

int openSlot(const peerbuf_host *host, const peerbuf_param *params, size_t n, void **ret_device)
{
	return guarded(host, [&] {
		Client *client = nullptr;
		if (const int rc = Client::open(host, params, n, &client))
			return rc;
		*ret_device = client;
		return 0;
	});
}

void closeSlot(void *device)
{
	guardedVoid([&] { delete static_cast<Client *>(device); });
}

int offerSlot(void *device, uint64_t buffer, peerbuf_exporter_offer *ret_offer)
{
	return guarded(self(device).host(), [&] { return self(device).offer(buffer, ret_offer); });
}

int allocSlot(void *device, uint64_t size, peerbuf_buffer_desc *ret_desc)
{
	return guarded(self(device).host(), [&] { return self(device).alloc(size, ret_desc); });
}

int freeSlot(void *device, uint64_t buffer)
{
	return guarded(self(device).host(), [&] { return self(device).free(buffer); });
}

int getSlot(void *device, const peerbuf_get_request *request, peerbuf_buffer_desc *ret_desc)
{
	return guarded(self(device).host(), [&] { return self(device).get(request, ret_desc); });
}

void putSlot(void *device, uint64_t buffer)
{
	guardedVoid([&] { self(device).put(buffer); });
}

int attachSlot(void *device, uint64_t buffer, const peerbuf_attach_request *request,
	       peerbuf_attach_reply *ret_reply)
{
	return guarded(self(device).host(),
		       [&] { return self(device).attach(buffer, request, ret_reply); });
}

void detachSlot(void *device, uint64_t attachment)
{
	guardedVoid([&] { self(device).detach(attachment); });
}

int pinSlot(void *device, uint64_t attachment)
{
	return guarded(self(device).host(), [&] { return self(device).pin(attachment); });
}

void unpinSlot(void *device, uint64_t attachment)
{
	guardedVoid([&] { self(device).unpin(attachment); });
}

int mapSlot(void *device, uint64_t attachment, uint64_t offset, uint64_t length,
	    peerbuf_mapping *ret_mapping)
{
	return guarded(self(device).host(),
		       [&] { return self(device).map(attachment, offset, length, ret_mapping); });
}

void unmapSlot(void *device, uint64_t attachment, const peerbuf_mapping *mapping)
{
	guardedVoid([&] { self(device).unmap(attachment, mapping); });
}

int exportFdSlot(void *device, uint64_t attachment, uint64_t offset, uint64_t length,
		 uint32_t variant, peerbuf_fd_export *ret_export)
{
	return guarded(self(device).host(), [&] {
		return self(device).exportFd(attachment, offset, length, variant, ret_export);
	});
}

void releaseFdSlot(void *device, uint64_t attachment, const peerbuf_fd_export *exported)
{
	guardedVoid([&] { self(device).releaseFd(attachment, exported); });
}

void invalidateDoneSlot(void *device, uint64_t buffer, uint64_t cookie, int status)
{
	guardedVoid([&] { self(device).invalidateDone(buffer, cookie, status); });
}

int eventFdSlot(void *device)
{
	return self(device).eventFd();
}

int progressSlot(void *device)
{
	return guarded(self(device).host(), [&] { return self(device).progress(); });
}

/* The test operations. */

int deviceReadOp(void *device, uint64_t buffer, uint64_t offset, void *data, uint64_t length)
{
	return guarded(self(device).host(),
		       [&] { return self(device).deviceRead(buffer, offset, data, length); });
}

int deviceWriteOp(void *device, uint64_t buffer, uint64_t offset, const void *data, uint64_t length)
{
	return guarded(self(device).host(),
		       [&] { return self(device).deviceWrite(buffer, offset, data, length); });
}

int revokeOp(void *device, uint64_t buffer)
{
	return guarded(self(device).host(), [&] { return self(device).revoke(buffer); });
}

int restoreOp(void *device, uint64_t buffer)
{
	return guarded(self(device).host(), [&] { return self(device).restore(buffer); });
}

int removeOp(void *device)
{
	return guarded(self(device).host(), [&] { return self(device).remove(); });
}

int faultOp(void *device, const char *step, uint32_t skip, uint32_t count, int err,
	    uint64_t delay_ns)
{
	return guarded(self(device).host(),
		       [&] { return self(device).fault(step, skip, count, err, delay_ns); });
}

int moveOp(void *device, uint64_t buffer, const peerbuf_move_request *request)
{
	return guarded(self(device).host(), [&] { return self(device).move(buffer, request); });
}

int moveStatusOp(void *device, uint64_t buffer, peerbuf_move_status *ret_status)
{
	return guarded(self(device).host(),
		       [&] { return self(device).moveStatus(buffer, ret_status); });
}

int poolOp(void *device, uint32_t placement, uint32_t state)
{
	return guarded(self(device).host(), [&] { return self(device).pool(placement, state); });
}

int setLimitsOp(void *device, const char *tenant, const peerbuf_tenant_limits *limits)
{
	return guarded(self(device).host(), [&] { return self(device).setLimits(tenant, limits); });
}

int tenantStatusOp(void *device, const char *tenant, peerbuf_tenant_status *ret_status)
{
	return guarded(self(device).host(),
		       [&] { return self(device).tenantStatus(tenant, ret_status); });
}

int statsOp(void *device, peerbuf_exporter_stats *ret_stats)
{
	return guarded(self(device).host(), [&] { return self(device).stats(ret_stats); });
}

constexpr peerbuf_exporter_test_ops testOps = {
	.struct_size = sizeof(peerbuf_exporter_test_ops),
	.reserved = 0,
	.device_read = deviceReadOp,
	.device_write = deviceWriteOp,
	.revoke = revokeOp,
	.restore = restoreOp,
	.remove = removeOp,
	.fault = faultOp,
	.stats = statsOp,
	.move = moveOp,
	.move_status = moveStatusOp,
	.pool = poolOp,
	.set_limits = setLimitsOp,
	.tenant_status = tenantStatusOp,
};

int openOpsSlot(void *, const char *name, const void **ret_ops)
{
	if (!name || std::string_view(name) != PEERBUF_EXPORTER_TEST_OPS)
		return -ENOENT;
	*ret_ops = &testOps;
	return 0;
}

constexpr const char *optionLines[] = {
	"socket: PATH of a running device; without it a private one is started",
	"binary: PATH of peerbuf-emulated-device (env PEERBUF_EMULATED_DEVICE, else as installed)",
	"tenant: NAME that the device knows this client by (default)",
	"timeout: milliseconds without an answer after which the device counts as gone (30000)",
	"profile: static | moves | revokes | nopin: emulated row of the negotiation table (moves)",
	"stability: static | moves",
	"pin: not_needed | can | refuses",
	"revoke: never | may",
	"peer2peer: required | optional (optional)",
	"variants: host, pcie, joined by + (host+pcie)",
	"handles: segments, cpu, fd, joined by + (all)",
	"access: local_write, remote_read, remote_write, remote_atomic, joined by + (all)",
	"placements: device, host, joined by + (device)",
	"hbm: bytes of emulated HBM (256M)",
	"host: bytes of the emulated host tier (as hbm where placements has host, else 0)",
	"granularity: bytes of a page, a power of two from 4096 (4096)",
	"window: bytes of the emulated PCIe window; 0: none that limits (0)",
	"window_reserve: bytes of the window never given out (0)",
	"dma_base: bus address of the first byte of HBM (0x1000000000)",
	"layout: scattered | contiguous: how the allocator puts what belongs together (scattered)",
	"huge_pages: auto | never | require: pages of 2 MiB; auto: if layout=contiguous (auto)",
	"pool: offline | isolated | online: what the pools of memory begin as (online)",
	"tenant_bytes: bytes that one tenant may allocate (no limit)",
	"tenant_pins: bytes that one tenant may pin (half of the HBM; without, of the host tier)",
	"tenant_min: bytes of HBM up to which nothing of a tenant makes room for others (0)",
	"seed: of the scattering allocator and of fault_rate (1)",
	"fault_rate: of 1000 requests that can fail, how many are made to (0)",
	"mutant: none | early_reuse | peer2peer_kept: a deliberate fault, for tests of tests",
	nullptr,
};

} // namespace

extern "C" {
extern PEERBUF_PLUGIN_EXPORT const peerbuf_exporter_plugin peerbuf_exporter_v1;
const peerbuf_exporter_plugin peerbuf_exporter_v1 = {
	.struct_size = sizeof(peerbuf_exporter_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET |
			PEERBUF_EXPORTER_CAP_PIN | PEERBUF_EXPORTER_CAP_MAP |
			PEERBUF_EXPORTER_CAP_FD | PEERBUF_EXPORTER_CAP_INVALIDATE |
			PEERBUF_EXPORTER_CAP_EVENTS | PEERBUF_EXPORTER_CAP_OPS,
	.reserved = 0,
	.name = "emulated",
	.description = "emulated accelerator: a device process with HBM of its own",
	.options = optionLines,
	.open = openSlot,
	.close = closeSlot,
	.offer = offerSlot,
	.alloc = allocSlot,
	.free = freeSlot,
	.get = getSlot,
	.put = putSlot,
	.attach = attachSlot,
	.detach = detachSlot,
	.pin = pinSlot,
	.unpin = unpinSlot,
	.map = mapSlot,
	.unmap = unmapSlot,
	.export_fd = exportFdSlot,
	.release_fd = releaseFdSlot,
	.invalidate_done = invalidateDoneSlot,
	.event_fd = eventFdSlot,
	.progress = progressSlot,
	.open_ops = openOpsSlot,
};
}
