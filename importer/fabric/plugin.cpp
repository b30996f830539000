// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin.cpp
 * The table of the fabric importer: checks what crosses the ABI, then asks Importer.
 */
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "importer.h"

namespace
{

using peerbuf::fabric::Importer;
using peerbuf::plugin::copyOut;
using peerbuf::plugin::guarded;
using peerbuf::plugin::guardedVoid;
using peerbuf::plugin::Host;
using peerbuf::plugin::text;

Importer &importerOf(void *importer)
{
	return *static_cast<Importer *>(importer);
}

int openImporter(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
		 const void *objects, void **retImporter)
{
	return guarded(host, [&] {
		std::unique_ptr<Importer> importer;
		const int rc = Importer::create(
			host, params, nParams, static_cast<const peerbuf_fabric_objects *>(objects),
			&importer);
		if (rc == 0)
			*retImporter = importer.release();
		return rc;
	});
}

void closeImporter(void *importer)
{
	guardedVoid([&] { delete static_cast<Importer *>(importer); });
}

int offer(void *importer, peerbuf_importer_offer *retOffer)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] {
		peerbuf_importer_offer made = {};
		self.offer(&made);
		copyOut(made, retOffer);
		return 0;
	});
}

int reg(void *importer, const peerbuf_reg_request *request, peerbuf_region *retRegion)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] {
		constexpr size_t needed =
			offsetof(peerbuf_reg_request, name) + sizeof(peerbuf_reg_request::name);
		constexpr size_t returned =
			offsetof(peerbuf_region, token) + sizeof(peerbuf_region::token);
		if (request->struct_size < needed || retRegion->struct_size < returned)
			return Host(self.host())
				.fail(EINVAL, text("reg: struct_size ", request->struct_size, "/",
						   retRegion->struct_size, ", at least ", needed,
						   "/", returned, " is needed"));
		peerbuf_region made = {};
		const int rc = self.reg(*request, &made);
		if (rc == 0)
			copyOut(made, retRegion);
		return rc;
	});
}

void dereg(void *importer, uint64_t region)
{
	guardedVoid([&] { importerOf(importer).dereg(region); });
}

int invalidate(void *importer, const peerbuf_importer_invalidate *inv)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] { return self.invalidate(*inv); });
}

void resume(void *importer, const peerbuf_importer_resume *res)
{
	guardedVoid([&] { importerOf(importer).resume(*res); });
}

int gate(void *importer, peerbuf_gate **retGate)
{
	Importer &self = importerOf(importer);
	*retGate = self.gate();
	if (*retGate)
		return 0;
	return Host(self.host())
		.fail(EOPNOTSUPP,
		      "no gate: nothing of this importer is Movable; its offer says why");
}

int testPauses(void *importer, peerbuf_pause *pauses, uint32_t capacity)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(),
		       [&] { return static_cast<int>(self.pauses(pauses, capacity)); });
}

int testFault(void *importer, const char *step, uint32_t skip, uint32_t count, int err,
	      uint64_t delayNs)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] {
		return self.calls().fault(Host(self.host()), step, skip, count, err, delayNs);
	});
}

int testStats(void *importer, peerbuf_importer_stats *retStats)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] {
		peerbuf_importer_stats made = {};
		self.stats(&made);
		copyOut(made, retStats);
		return 0;
	});
}

/* A peer of libfabric is a process of its own with its own endpoint; the plugin plays none. */
constexpr peerbuf_importer_test_ops testOps = {
	.struct_size = sizeof(peerbuf_importer_test_ops),
	.reserved = 0,
	.transfer = nullptr,
	.post = nullptr,
	.step = nullptr,
	.poll = nullptr,
	.fault = testFault,
	.stats = testStats,
	.pauses = testPauses,
};

int openOps(void *, const char *name, const void **retOps)
{
	if (!name || std::strcmp(name, PEERBUF_IMPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*retOps = &testOps;
	return 0;
}

constexpr const char *options[] = {
	"key_base: first memory key to ask for, where the application chooses keys (default: "
	"random)",
	"peers_without_cma: yes: with shm, every peer runs with FI_SHM_DISABLE_CMA=1 (default: no)",
	nullptr,
};

} // namespace

extern "C" {
extern PEERBUF_PLUGIN_EXPORT const struct peerbuf_importer_plugin peerbuf_importer_v1;

const struct peerbuf_importer_plugin peerbuf_importer_v1 = {
	.struct_size = sizeof(peerbuf_importer_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_IMPORTER_CAP_OPS | PEERBUF_IMPORTER_CAP_INVALIDATE |
			PEERBUF_IMPORTER_CAP_RESUME | PEERBUF_IMPORTER_CAP_GATE,
	.reserved = 0,
	.name = "fabric",
	.description = "libfabric: regions on the application's own domain; with tcp, shm and the "
		       "like it is software RMA",
	.options = options,
	.open = openImporter,
	.close = closeImporter,
	.offer = offer,
	.reg = reg,
	.dereg = dereg,
	.invalidate = invalidate,
	.resume = resume,
	.event_fd = nullptr,
	.progress = nullptr,
	.open_ops = openOps,
	.gate = gate,
};
}
