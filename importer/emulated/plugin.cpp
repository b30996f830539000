// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin.cpp
 * The emulated NIC behind the contract of importer.h.
 */
#include <cerrno>
#include <cstring>
#include <memory>

#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "nic.h"
#include "options.h"

namespace peerbuf::emulated
{

namespace
{

using plugin::copyOut;
using plugin::guarded;
using plugin::guardedVoid;
using plugin::Host;
using plugin::text;

Nic &nicOf(void *importer)
{
	return *static_cast<Nic *>(importer);
}

/** Both sides of a call are structures that are there and large enough. */
template <typename T> bool whole(const T *value)
{
	return value && value->struct_size >= sizeof(T);
}

int badStruct(const Nic &nic, const char *what)
{
	return Host(nic.host())
		.fail(EINVAL, text(what, " is missing or shorter than this version"),
		      PEERBUF_ERR_INVALID_ARGUMENT);
}

int openNic(const peerbuf_host *host, const peerbuf_param *params, size_t count,
	    const void *objects, void **ret_importer) noexcept
{
	return guarded(host, [&]() -> int {
		if (objects)
			return Host(host).fail(EINVAL,
					       "the emulated importer takes no objects of the "
					       "application, some were given",
					       PEERBUF_ERR_INVALID_ARGUMENT);
		NicOptions options;
		if (const int rc = parseNicOptions(host, params, count, options))
			return rc;
		auto nic = std::make_unique<Nic>(host, options);
		if (nic->threaded())
			nic->start();
		*ret_importer = nic.release();
		return 0;
	});
}

void closeNic(void *importer) noexcept
{
	guardedVoid([&] { delete static_cast<Nic *>(importer); });
}

int offer(void *importer, peerbuf_importer_offer *ret_offer) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&]() -> int {
		peerbuf_importer_offer out;
		if (const int rc = nic.offer(out))
			return rc;
		copyOut(out, ret_offer);
		return 0;
	});
}

int reg(void *importer, const peerbuf_reg_request *request, peerbuf_region *ret_region) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&]() -> int {
		if (!whole(request))
			return badStruct(nic, "the request for a region");
		if (!whole(ret_region))
			return badStruct(nic, "the place for a region");
		peerbuf_region out;
		if (const int rc = nic.reg(*request, out))
			return rc;
		copyOut(out, ret_region);
		return 0;
	});
}

void dereg(void *importer, uint64_t region) noexcept
{
	guardedVoid([&] { nicOf(importer).dereg(region); });
}

int invalidate(void *importer, const peerbuf_importer_invalidate *inv) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&]() -> int {
		if (!whole(inv))
			return badStruct(nic, "the invalidate");
		return nic.invalidate(*inv);
	});
}

void resume(void *importer, const peerbuf_importer_resume *res) noexcept
{
	Nic &nic = nicOf(importer);
	guardedVoid([&] {
		if (whole(res))
			nic.resume(*res);
	});
}

/* ---- test operations ---------------------------------------------------------------------- */

bool sound(const peerbuf_transfer *transfer)
{
	return whole(transfer) &&
	       (transfer->op == PEERBUF_TRANSFER_WRITE || transfer->op == PEERBUF_TRANSFER_READ) &&
	       (transfer->data || !transfer->length);
}

int transfer(void *importer, const peerbuf_transfer *transfer) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(),
		       [&] { return sound(transfer) ? nic.transfer(*transfer) : -EINVAL; });
}

int post(void *importer, const peerbuf_transfer *transfer) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&] { return sound(transfer) ? nic.post(*transfer) : -EINVAL; });
}

int step(void *importer, uint32_t packets) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&] { return nic.step(packets); });
}

int poll(void *importer, peerbuf_completion *ret_completion) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&] {
		peerbuf_completion out;
		if (!nic.poll(out))
			return 0;
		copyOut(out, ret_completion);
		return 1;
	});
}

int fault(void *importer, const char *step, uint32_t skip, uint32_t count, int err,
	  uint64_t delayNs) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&] {
		return step ? nic.faults().set(step, skip, count, err, delayNs) : -EINVAL;
	});
}

int stats(void *importer, peerbuf_importer_stats *ret_stats) noexcept
{
	Nic &nic = nicOf(importer);
	return guarded(nic.host(), [&] {
		peerbuf_importer_stats out;
		nic.stats(out);
		copyOut(out, ret_stats);
		return 0;
	});
}

constexpr peerbuf_importer_test_ops steppedOps = {
	.struct_size = sizeof(peerbuf_importer_test_ops),
	.reserved = 0,
	.transfer = transfer,
	.post = post,
	.step = step,
	.poll = poll,
	.fault = fault,
	.stats = stats,
};

constexpr peerbuf_importer_test_ops threadedOps = {
	.struct_size = sizeof(peerbuf_importer_test_ops),
	.reserved = 0,
	.transfer = transfer,
	.post = nullptr,
	.step = nullptr,
	.poll = nullptr,
	.fault = fault,
	.stats = stats,
};

int openOps(void *importer, const char *name, const void **ret_ops) noexcept
{
	if (!name || std::strcmp(name, PEERBUF_IMPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*ret_ops = nicOf(importer).threaded() ? &threadedOps : &steppedOps;
	return 0;
}

} // namespace

} // namespace peerbuf::emulated

extern "C" {

extern PEERBUF_PLUGIN_EXPORT const peerbuf_importer_plugin peerbuf_importer_v1;

const peerbuf_importer_plugin peerbuf_importer_v1 = {
	.struct_size = sizeof(peerbuf_importer_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_IMPORTER_CAP_INVALIDATE | PEERBUF_IMPORTER_CAP_RESUME |
			PEERBUF_IMPORTER_CAP_OPS,
	.reserved = 0,
	.name = "emulated",
	.description = "emulated RDMA NIC in software; option mutant= makes it wrong on purpose",
	.options = peerbuf::emulated::nicOptionLines,
	.open = peerbuf::emulated::openNic,
	.close = peerbuf::emulated::closeNic,
	.offer = peerbuf::emulated::offer,
	.reg = peerbuf::emulated::reg,
	.dereg = peerbuf::emulated::dereg,
	.invalidate = peerbuf::emulated::invalidate,
	.resume = peerbuf::emulated::resume,
	.event_fd = nullptr,
	.progress = nullptr,
	.open_ops = peerbuf::emulated::openOps,
};
}
