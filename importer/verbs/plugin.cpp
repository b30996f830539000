// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin.cpp
 * The table of the verbs importer: checks what crosses the ABI, then asks Importer.
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

using peerbuf::plugin::copyOut;
using peerbuf::plugin::guarded;
using peerbuf::plugin::guardedVoid;
using peerbuf::plugin::Host;
using peerbuf::plugin::text;
using peerbuf::verbs::Importer;
using peerbuf::verbs::System;

/** In the order in which they end, last first. */
struct Opened {
	std::unique_ptr<System> system;
	std::unique_ptr<Importer> importer;
};

Importer &importerOf(void *opened)
{
	return *static_cast<Opened *>(opened)->importer;
}

int openImporter(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
		 const void *objects, void **retImporter)
{
	return guarded(host, [&] {
		std::unique_ptr<Importer> importer;
		auto system = std::make_unique<System>();
		const int rc = Importer::create(host, params, nParams,
						static_cast<const peerbuf_verbs_objects *>(objects),
						*system, &importer);
		if (rc == 0)
			*retImporter = new Opened{std::move(system), std::move(importer)};
		return rc;
	});
}

void closeImporter(void *importer)
{
	guardedVoid([&] { delete static_cast<Opened *>(importer); });
}

int offer(void *importer, peerbuf_importer_offer *retOffer)
{
	Importer &self = importerOf(importer);
	return guarded(self.host(), [&] {
		peerbuf_importer_offer made = {};
		const int rc = self.offer(&made);
		if (rc == 0)
			copyOut(made, retOffer);
		return rc;
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

/* A peer of verbs is a QP of somebody else; the plugin makes none. */
constexpr peerbuf_importer_test_ops testOps = {
	.struct_size = sizeof(peerbuf_importer_test_ops),
	.reserved = 0,
	.transfer = nullptr,
	.post = nullptr,
	.step = nullptr,
	.poll = nullptr,
	.fault = testFault,
	.stats = testStats,
	.pauses = nullptr,
};

int openOps(void *, const char *name, const void **retOps)
{
	if (!name || std::strcmp(name, PEERBUF_IMPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*retOps = &testOps;
	return 0;
}

constexpr const char *options[] = {
	"flow: auto | movable | revocable: how the kernel's driver is asked to hold dma-bufs, "
	"where it "
	"can be asked; auto: as negotiated, else its own choice (auto)",
	"odp: yes | no: register host memory on demand instead of locking it (no)",
	"data_direct: yes | no: reach dma-bufs by the data-direct path of mlx5, which takes memory "
	"by "
	"its PCIe window (no)",
	nullptr,
};

} // namespace

extern "C" {
extern PEERBUF_PLUGIN_EXPORT const struct peerbuf_importer_plugin peerbuf_importer_v1;

const struct peerbuf_importer_plugin peerbuf_importer_v1 = {
	.struct_size = sizeof(peerbuf_importer_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_IMPORTER_CAP_OPS,
	.reserved = 0,
	.name = "verbs",
	.description =
		"rdma-core: regions on the application's own protection domain; dma-bufs are "
		"imported by the kernel's driver",
	.options = options,
	.open = openImporter,
	.close = closeImporter,
	.offer = offer,
	.reg = reg,
	.dereg = dereg,
	.invalidate = nullptr,
	.resume = nullptr,
	.event_fd = nullptr,
	.progress = nullptr,
	.open_ops = openOps,
	.gate = nullptr,
};
}
