// SPDX-License-Identifier: BSD-3-Clause
#include "recorder.h"

#include <atomic>
#include <cstring>

#include <peerbuf/plugin_support.hpp>

namespace
{

using namespace peerbuf::plugin;

struct Region {
	uint64_t attachment = 0;
};

struct Nic {
	explicit Nic(const peerbuf_host *h) : host(h) {}

	Host host;
	peerbuf_importer_offer offer = {};
	Tokens<Region> regions;
	std::mutex mutex;
	recorder_hook hook = nullptr;
	void *hook_data = nullptr;

	int tell(recorder_call call)
	{
		recorder_hook run = nullptr;
		void *data = nullptr;
		{
			const std::lock_guard<std::mutex> lock(mutex);
			run = hook;
			data = hook_data;
		}
		call.held = call.attachment == 0
				    ? -1
				    : host.raw()->reservation_held(host.raw(), call.attachment);
		return run ? run(data, &call) : 0;
	}
};

Nic &nicOf(void *importer)
{
	return *static_cast<Nic *>(importer);
}

int openNic(const peerbuf_host *host, const peerbuf_param *params, size_t n_params, const void *,
	    void **ret_importer) noexcept
{
	return guarded(host, [&] {
		auto nic = std::make_unique<Nic>(host);
		Options options(host, params, n_params);
		peerbuf_importer_offer &offer = nic->offer;
		const std::string stops = options.choice(
			"invalidation", {"refault", "revocable", "neither"}, "refault");
		offer.invalidation = stops == "refault" ? PEERBUF_INVALIDATION_REFAULT |
								  PEERBUF_INVALIDATION_REVOCABLE
				     : stops == "revocable" ? PEERBUF_INVALIDATION_REVOCABLE
							    : 0;
		offer.invalidate_scope = PEERBUF_SCOPE_RANGE;
		offer.notified_by = PEERBUF_NOTIFIED_BY_USER;
		offer.peer2peer = options.flag("peer2peer", true);
		offer.variants = PEERBUF_VARIANT_HOST;
		offer.handles = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
		offer.access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
			       PEERBUF_ACCESS_REMOTE_WRITE;
		offer.dma_mask_bits = 64;
		offer.merges_segments = 1;
		offer.page_sizes = 4096;
		offer.max_length = PEERBUF_UNLIMITED;
		offer.keys_left = PEERBUF_UNLIMITED;
		copyName(offer.device, "recorder");
		if (const int rc = options.finish())
			return rc;
		*ret_importer = nic.release();
		return 0;
	});
}

void closeNic(void *importer) noexcept
{
	delete &nicOf(importer);
}

int offerOf(void *importer, peerbuf_importer_offer *ret_offer) noexcept
{
	const uint32_t size = ret_offer->struct_size;
	*ret_offer = nicOf(importer).offer;
	ret_offer->struct_size = size;
	return 0;
}

int reg(void *importer, const peerbuf_reg_request *request, peerbuf_region *ret_region) noexcept
{
	return guarded(nicOf(importer).host.raw(), [&] {
		Nic &nic = nicOf(importer);
		auto region = std::make_shared<Region>();
		region->attachment = request->attachment;
		const uint64_t token = nic.regions.add(region);
		ret_region->token = token;
		ret_region->key64 = token;
		ret_region->lkey = static_cast<uint32_t>(token);
		ret_region->rkey = static_cast<uint32_t>(token);
		ret_region->remote_base = request->iova;
		recorder_call call = {};
		call.slot = RECORDER_REG;
		call.attachment = request->attachment;
		call.token = token;
		call.offset = request->offset;
		call.length = request->length;
		call.request = request;
		call.reply = ret_region;
		const int rc = nic.tell(call);
		if (rc)
			nic.regions.take(token);
		return rc;
	});
}

void dereg(void *importer, uint64_t token) noexcept
{
	guardedVoid([&] {
		Nic &nic = nicOf(importer);
		const auto region = nic.regions.take(token);
		recorder_call call = {};
		call.slot = RECORDER_DEREG;
		call.token = token;
		call.attachment = region ? region->attachment : 0;
		nic.tell(call);
	});
}

int invalidate(void *importer, const peerbuf_importer_invalidate *inv) noexcept
{
	return guarded(nicOf(importer).host.raw(), [&] {
		recorder_call call = {};
		call.slot = RECORDER_INVALIDATE;
		call.attachment = inv->attachment;
		call.reason = inv->reason;
		call.offset = inv->offset;
		call.length = inv->length;
		call.ticket = inv->ticket;
		call.request = inv;
		return nicOf(importer).tell(call);
	});
}

void resume(void *importer, const peerbuf_importer_resume *res) noexcept
{
	guardedVoid([&] {
		recorder_call call = {};
		call.slot = RECORDER_RESUME;
		call.attachment = res->attachment;
		call.offset = res->offset;
		call.length = res->length;
		call.request = res;
		nicOf(importer).tell(call);
	});
}

void setHook(void *importer, recorder_hook hook, void *data) noexcept
{
	const std::lock_guard<std::mutex> lock(nicOf(importer).mutex);
	nicOf(importer).hook = hook;
	nicOf(importer).hook_data = data;
}

int mapUp(void *importer, uint64_t attachment, uint64_t offset, uint64_t length,
	  peerbuf_mapping *ret_mapping) noexcept
{
	const peerbuf_host *host = nicOf(importer).host.raw();
	return host->map(host, attachment, offset, length, ret_mapping);
}

void ticketDone(void *importer, uint64_t ticket) noexcept
{
	const peerbuf_host *host = nicOf(importer).host.raw();
	host->ticket_done(host, ticket);
}

constexpr recorder_ops ops = {sizeof(recorder_ops),
			      0,
			      setHook,
			      nullptr,
			      nullptr,
			      nullptr,
			      nullptr,
			      nullptr,
			      mapUp,
			      ticketDone};

int openOps(void *, const char *name, const void **ret_ops) noexcept
{
	if (strcmp(name, PEERBUF_RECORDER_OPS) != 0)
		return -ENOENT;
	*ret_ops = &ops;
	return 0;
}

} // namespace

extern "C" PEERBUF_PLUGIN_EXPORT const peerbuf_importer_plugin peerbuf_importer_v1;
const peerbuf_importer_plugin peerbuf_importer_v1 = {
	sizeof(peerbuf_importer_plugin),
	PEERBUF_ABI_VERSION,
	PEERBUF_IMPORTER_CAP_INVALIDATE | PEERBUF_IMPORTER_CAP_RESUME | PEERBUF_IMPORTER_CAP_OPS,
	0,
	"recorder",
	"records calls for the tests (emulated)",
	nullptr,
	openNic,
	closeNic,
	offerOf,
	reg,
	dereg,
	invalidate,
	resume,
	nullptr,
	nullptr,
	openOps,
};
