// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_FABRIC_IMPORTER_H
#define PEERBUF_IMPORTER_FABRIC_IMPORTER_H

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <peerbuf/fabric.h>
#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "calls.h"
#include "domain_gate.h"
#include "provider.h"

namespace peerbuf::fabric
{

/** How a domain registers memory: info->domain_attr->mr_mode, taken apart once. */
struct MrMode {
	bool endpoint;	     /* a region is bound to an endpoint, then enabled */
	bool providerKeys;   /* the provider chooses keys */
	bool virtualAddress; /* peers name bytes by virtual address, not by offset */
	bool raw;	     /* keys longer than 64 bits */
	bool allocated;	     /* pages must be there before */

	static MrMode of(const fi_info &info);
};

/**
 * The keys to ask for where the application chooses them. The start is random, so that two users
 * of one domain seldom meet; a key that is taken is met by trying another. Thread-bound.
 */
class KeyChooser
{
public:
	KeyChooser(uint64_t first, uint64_t mask) : next_(first & mask), mask_(mask) {}
	uint64_t next()
	{
		const uint64_t key = next_;
		next_ = (next_ + 1) & mask_;
		return key;
	}

private:
	uint64_t next_;
	uint64_t mask_;
};

/** A memory region of libfabric; closed by Importer, which can count what would not close. */
struct Region {
	fid_mr *mr = nullptr;
	uint64_t attachment = 0; /* by which the core would name it */
	uint64_t offset = 0;	 /* in the buffer */
	uint64_t length = 0;
	uint64_t key = 0;
	std::string name;
	bool revoked = false; /* told so */
	bool ended = false;   /* closed, or about to be */
	/** Ranges of the buffer that are suspended, one entry a reason for the gate. */
	std::vector<std::pair<uint64_t, uint64_t>> suspended;
};

/**
 * Regions on one libfabric domain of the application. Borrows domain, info and endpoint.
 *
 * Thread-safe. Calls into the domain are made one at a time, whatever its threading level says: in
 * libfabric 1.17 concurrent registrations corrupt the key map of `net`, which claims
 * FI_THREAD_SAFE. Against the application's own calls the application orders them.
 */
class Importer
{
public:
	/** @return 0, or a negative errno after telling the host why. */
	static int create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
			  const peerbuf_fabric_objects *objects,
			  std::unique_ptr<Importer> *retImporter);
	~Importer();
	Importer(const Importer &) = delete;
	Importer &operator=(const Importer &) = delete;

	const peerbuf_host *host() const { return host_.raw(); }

	void offer(peerbuf_importer_offer *retOffer) const;
	int reg(const peerbuf_reg_request &request, peerbuf_region *retRegion);
	void dereg(uint64_t token);
	int invalidate(const peerbuf_importer_invalidate &inv);
	void resume(const peerbuf_importer_resume &res);
	/** Null: nothing of this importer is ever Movable. */
	peerbuf_gate *gate() { return gate_ ? gate_->gate() : nullptr; }
	size_t pauses(peerbuf_pause *to, size_t most);

	void stats(peerbuf_importer_stats *retStats) const;
	Calls &calls() { return calls_; }

private:
	/** What a region is made of, checked. */
	struct Source {
		void *address = nullptr; /* by CPU address ... */
		int fd = -1;		 /* ... or as a dma-buf */
		uint64_t fdOffset = 0;
	};

	Importer(const peerbuf_host *host, const peerbuf_fabric_objects &objects,
		 const Provider &provider, bool cma, std::string whyFixed, KeyChooser keys);

	int fail(int err, const std::string &why, uint32_t errc = PEERBUF_OK) const;
	int failCall(int rc, const char *call, const peerbuf_reg_request &request) const;
	uint32_t knownAccess() const;
	int checkAccess(const peerbuf_reg_request &request) const;
	int checkSource(const peerbuf_reg_request &request, Source *retSource) const;
	int checkIova(const peerbuf_reg_request &request, const Source &source) const;
	int registerMemory(const peerbuf_reg_request &request, const Source &source,
			   Region *region);
	int activate(const peerbuf_reg_request &request, Region *region);
	int describe(const peerbuf_reg_request &request, const Source &source, Region *region,
		     peerbuf_region *retRegion);
	void end(std::shared_ptr<Region> region);
	void endOnce(std::shared_ptr<Region> region);
	bool finishRevoke(uint64_t ticket);
	void retryStuck();

	plugin::Host host_;
	fid_domain *domain_;
	const fi_info *info_;
	fid_ep *ep_;
	const Provider &provider_;
	const MrMode mode_;
	const bool cma_;	     /* some peer may use it */
	const std::string whyFixed_; /* why nothing is Movable; empty: it is */
	std::unique_ptr<DomainGate> gate_;

	std::mutex domainMutex_;   /* around every call into the domain */
	mutable std::mutex mutex_; /* keys_, stuck_, byAttachment_, Region::suspended, revoked */
	KeyChooser keys_;
	std::vector<std::shared_ptr<Region>> stuck_; /* regions that fi_close refused to end */
	plugin::Tokens<Region> regions_;
	std::map<uint64_t, std::shared_ptr<Region>> byAttachment_;
	std::map<uint64_t, std::shared_ptr<Region>> revoking_; /* by ticket */
	Calls calls_;
};

} // namespace peerbuf::fabric

#endif
