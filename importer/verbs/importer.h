// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_VERBS_IMPORTER_H
#define PEERBUF_IMPORTER_VERBS_IMPORTER_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>
#include <peerbuf/verbs.h>

#include "calls.h"
#include "uverbs.h"

namespace peerbuf::verbs
{

/** A memory region: of rdma-core, or of the kernel with a description of ours. */
struct Region {
	ibv_mr *mr = nullptr; /* what the application sees */
	ibv_mr own = {};      /* mr points here where rdma-core knows nothing of it */
	std::string name;

	bool byKernel() const { return mr == &own; }
};

/**
 * Regions on one protection domain of the application, which it borrows.
 *
 * A dma-buf is registered by the provider library where that has a call for it, and by the kernel
 * itself where it has none; what neither can do is told apart. Host memory is registered as such.
 * The kernel alone tells the data path to let go: nothing here is invalidated from user space.
 * Thread-safe.
 */
class Importer
{
public:
	/** @return 0, or a negative errno after telling the host why. */
	static int create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
			  const peerbuf_verbs_objects *objects, System &system,
			  std::unique_ptr<Importer> *retImporter);
	~Importer();
	Importer(const Importer &) = delete;
	Importer &operator=(const Importer &) = delete;

	const peerbuf_host *host() const { return host_.raw(); }

	int offer(peerbuf_importer_offer *retOffer);
	int reg(const peerbuf_reg_request &request, peerbuf_region *retRegion);
	void dereg(uint64_t token);
	void stats(peerbuf_importer_stats *retStats) const;
	Calls &calls() { return calls_; }

private:
	struct Settings {
		uint32_t flow = 0; /* asked of the driver; 0: what was negotiated */
		bool onDemand = false;
		bool dataDirect = false;
	};
	/** What was tried with a dma-buf, and what came of it. */
	struct Attempt {
		bool libraryAsked = false;
		bool kernelAsked = false;
		int library = 0;
		int kernel = 0;
	};

	Importer(const peerbuf_host *host, ibv_pd *pd, const Settings &settings, System &system);
	int start();

	int fail(int err, const std::string &why, uint32_t errc = PEERBUF_OK) const
	{
		return host_.fail(err, why, errc);
	}
	uint32_t knownAccess() const;
	int checkAccess(const peerbuf_reg_request &request) const;
	int regHost(const peerbuf_reg_request &request, Region *region);
	int regDmabuf(const peerbuf_reg_request &request, Region *region, uint32_t *retFlow);
	int byLibrary(const DmabufRange &range, Region *region, Attempt *attempt);
	int byKernel(const DmabufRange &range, uint32_t flow, Region *region, uint32_t *retFlow,
		     Attempt *attempt);
	int refuseDmabuf(const DmabufRange &range, uint32_t flow, const std::string &what,
			 const Attempt &attempt);
	int failDmabuf(int rc, const DmabufRange &range, const std::string &what,
		       const Attempt &attempt);
	std::string describe(const peerbuf_reg_request &request, const DmabufRange &range);
	std::string told(const Attempt &attempt) const;
	void end(std::shared_ptr<Region> region);
	int endNow(Region &region);
	void retryStuck();

	plugin::Host host_;
	ibv_pd *const pd_;
	const Settings settings_;
	Calls calls_;
	Uverbs uverbs_;
	int kernelClosed_ = 0; /* why the kernel cannot be asked: a negative errno */
	ibv_device_attr device_ = {};
	/* Only what was found to be so whatever the dma-buf is; see refuseDmabuf. */
	std::atomic<bool> libraryLacks_{false};
	std::atomic<int> kernelLacks_{0};  /* the errno it says */
	std::atomic<bool> movable_{false}; /* the driver has said that it follows moves */

	mutable std::mutex mutex_;		     /* stuck_ */
	std::vector<std::shared_ptr<Region>> stuck_; /* that would not end */
	plugin::Tokens<Region> regions_;
};

} // namespace peerbuf::verbs

#endif
