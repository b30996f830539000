// SPDX-License-Identifier: BSD-3-Clause
// An importer whose device is the CPU: it takes checksums of memory in place, and stops when told.
#include <cstring>
#include <map>
#include <mutex>

#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "checksum.h"

namespace checksum
{

using namespace peerbuf::plugin;

struct Region {
	uint8_t *at; // null once revoked
	uint64_t iova;
	uint64_t length;
	uint32_t access;
	uint64_t attachment;
};

struct Importer {
	explicit Importer(const peerbuf_host *lent) : host(lent) {}

	Host host;
	std::mutex mutex; // held while memory is touched, so whoever has it knows that nobody does
	std::map<uint64_t, Region> regions; // by key
	uint64_t last_key = 0;		    // keys are never used twice
};

/** A slot made of a function that may throw, which no slot may; with the lock held. */
template <auto function, typename... Args> int slot(void *importer, Args... args) noexcept
{
	auto &self = *static_cast<Importer *>(importer);
	return guarded(self.host.raw(), [&] {
		const std::lock_guard<std::mutex> lock(self.mutex);
		return function(self, args...);
	});
}

int open(const peerbuf_host *host, const peerbuf_param *params, size_t n, const void *,
	 void **ret_importer)
{
	return guarded(host, [&] {
		const int rc = Options(host, params, n).finish(); // there are none
		if (rc == 0)
			*ret_importer = new Importer(host);
		return rc;
	});
}

int offer(Importer &, peerbuf_importer_offer *ret)
{
	ret->invalidation = PEERBUF_INVALIDATION_REVOCABLE;
	ret->invalidate_scope = PEERBUF_SCOPE_WHOLE;
	ret->notified_by = PEERBUF_NOTIFIED_BY_USER;
	ret->peer2peer = 1; // a CPU reads a device's window as it reads anything
	ret->variants = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	ret->handles = PEERBUF_HANDLE_CPU;
	ret->access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
		      PEERBUF_ACCESS_REMOTE_WRITE;
	ret->dma_mask_bits = 64;
	ret->merges_segments = 1;
	ret->software = 1;
	ret->page_sizes = UINT64_MAX;
	ret->max_length = PEERBUF_UNLIMITED;
	ret->keys_left = PEERBUF_UNLIMITED;
	copyName(ret->device, "checksum");
	copyName(ret->why, "it has no queue in which a request could wait for a move to end");
	return 0;
}

int reg(Importer &self, const peerbuf_reg_request *request, peerbuf_region *ret)
{
	const peerbuf_mapping *mapping = request->mapping;
	if (request->handle_kind != PEERBUF_HANDLE_CPU || !mapping || !mapping->cpu_addr)
		return self.host.fail(EOPNOTSUPP, text(request->name, ": no CPU mapping"));
	// the mapping may begin before the region
	uint8_t *at = static_cast<uint8_t *>(mapping->cpu_addr) + request->offset - mapping->offset;
	const uint64_t key = ++self.last_key;
	self.regions[key] = {at, request->iova, request->length, request->access,
			     request->attachment};
	ret->lkey = ret->rkey = ret->raw_key_size = 0;
	ret->key64 = ret->token = key;
	ret->remote_base = request->iova;
	ret->native = ret->desc = nullptr;
	return 0;
}

int dereg(Importer &self, uint64_t key)
{
	self.regions.erase(key);
	return 0;
}

int invalidate(Importer &self, const peerbuf_importer_invalidate *inv)
{
	// pinned or static memory does not move, so it can only be a revoke
	for (auto &[key, region] : self.regions)
		if (region.attachment == inv->attachment)
			region.at = nullptr; // the key stays taken until dereg
	return 0;			     // the lock is ours: nothing is in flight
}

/** The bytes, or null with the reason told. */
uint8_t *reach(Importer &self, uint64_t key, uint64_t address, uint64_t length, uint32_t access)
{
	const auto found = self.regions.find(key);
	if (found == self.regions.end() || !found->second.at)
		return nullptr;
	const Region &region = found->second;
	if ((region.access & access) != access || address < region.iova ||
	    address - region.iova > region.length ||
	    length > region.length - (address - region.iova))
		return nullptr;
	return region.at + (address - region.iova);
}

int sum(Importer &self, uint64_t key, uint64_t address, uint64_t length, uint64_t *ret_sum)
{
	const uint8_t *at = reach(self, key, address, length, 0);
	if (!at)
		return -EACCES;
	uint64_t hash = 0xcbf29ce484222325;
	for (uint64_t i = 0; i < length; i++)
		hash = (hash ^ at[i]) * 0x100000001b3;
	*ret_sum = hash;
	return 0;
}

/* For the contract suite. */

int transfer(Importer &self, const peerbuf_transfer *t)
{
	const bool write = t->op == PEERBUF_TRANSFER_WRITE;
	uint8_t *at = reach(self, t->key64, t->remote_addr, t->length,
			    write ? PEERBUF_ACCESS_REMOTE_WRITE : PEERBUF_ACCESS_REMOTE_READ);
	if (!at)
		return -EACCES;
	memcpy(write ? at : t->data, write ? t->data : at, t->length);
	return 0;
}

int stats(Importer &self, peerbuf_importer_stats *ret)
{
	ret->regions = ret->keys_used = self.regions.size();
	ret->translations = 0;
	for (const auto &[key, region] : self.regions)
		ret->translations += region.at ? 1 : 0;
	ret->refaults = ret->in_flight = ret->violations = 0;
	return 0;
}

const checksum_ops checksumOps = {.struct_size = sizeof(checksum_ops), .checksum = slot<sum>};
const peerbuf_importer_test_ops testOps = {
	.struct_size = sizeof(peerbuf_importer_test_ops),
	.transfer = slot<transfer>,
	.stats = slot<stats>,
};

int openOps(Importer &, const char *name, const void **ret_ops)
{
	if (strcmp(name, CHECKSUM_OPS) == 0)
		*ret_ops = &checksumOps;
	else if (strcmp(name, PEERBUF_IMPORTER_TEST_OPS) == 0)
		*ret_ops = &testOps;
	else
		return -ENOENT;
	return 0;
}

extern "C" PEERBUF_PLUGIN_EXPORT const peerbuf_importer_plugin peerbuf_importer_v1 = {
	.struct_size = sizeof(peerbuf_importer_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_IMPORTER_CAP_INVALIDATE | PEERBUF_IMPORTER_CAP_OPS,
	.name = "checksum",
	.description = "example: the CPU takes checksums of memory in place",
	.open = open,
	.close = [](void *importer) { delete static_cast<Importer *>(importer); },
	.offer = slot<offer>,
	.reg = slot<reg>,
	.dereg = [](void *importer, uint64_t region) { slot<dereg>(importer, region); },
	.invalidate = slot<invalidate>,
	.open_ops = slot<openOps>,
};

} // namespace checksum
