// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_IMPORTER_FABRIC_STAND_IN_DOMAIN_H
#define PEERBUF_TESTS_UNIT_IMPORTER_FABRIC_STAND_IN_DOMAIN_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

namespace peerbuf::test
{

/**
 * A libfabric domain with nothing behind it, for ways of registering that no provider on a plain
 * machine has: endpoint-bound regions, raw keys, short keys, errors at every call. It follows
 * fi_mr(3) strictly: what is out of order is counted as a breach, as are two calls at once, which
 * libfabric 1.17's net does not bear whatever it says. Thread-safe all the same.
 */
class StandInDomain
{
public:
	StandInDomain(const std::string &provider, int mrMode);
	~StandInDomain();
	StandInDomain(const StandInDomain &) = delete;
	StandInDomain &operator=(const StandInDomain &) = delete;

	fid_domain *domain() { return &domain_.fid; }
	fi_info *info() { return info_; }
	fid_ep *ep() { return &ep_; }

	/* behaviour */
	size_t rawKeySize = 24;
	std::set<uint64_t> takenKeys; /* besides its own */
	int regError = 0;	      /* negative libfabric errors, given once per call while set */
	int closeError = 0;

	/* what was seen */
	size_t live = 0;
	size_t enabled = 0;
	std::atomic<size_t> breaches{0}; /* enable before bind, bind of a foreign endpoint, ... */
	uint64_t lastAccess = 0;
	uint64_t lastFlags = 0;
	bool laterFieldsZero = true; /* what a newer library would read behind our fi_mr_attr */
	int lastFd = -1;	     /* with FI_MR_DMABUF */
	uint64_t lastFdOffset = 0;
	const void *lastBase = nullptr; /* base_addr with FI_MR_DMABUF */
	size_t lastLength = 0;
	std::set<uint64_t> keys; /* live ones */

private:
	struct Domain {
		::fid_domain fid;
		StandInDomain *self;
	};
	struct Region {
		::fid_mr fid;
		StandInDomain *self;
		bool bound;
		bool enabled;
	};
	/** Inside a call; a second one at the same time is a breach. */
	class Inside
	{
	public:
		explicit Inside(StandInDomain *self);
		~Inside();
		Inside(const Inside &) = delete;
		Inside &operator=(const Inside &) = delete;

	private:
		StandInDomain *self_;
		std::unique_lock<std::mutex> lock_;
	};
	static StandInDomain *of(fid *fid);
	static int regAttr(fid *fid, const fi_mr_attr *attr, uint64_t flags, fid_mr **retMr);
	static int close(fid *fid);
	static int bind(fid *fid, struct fid *to, uint64_t flags);
	static int control(fid *fid, int command, void *arg);

	Domain domain_ = {};
	fid_ep ep_ = {};
	fi_ops_mr mrOps_ = {};
	fi_ops regionOps_ = {};
	fi_info *info_;
	std::mutex mutex_;
	std::atomic<int> inside_{0};
	uint64_t nextKey_ = 0x700; /* when the provider chooses */
};

} // namespace peerbuf::test

#endif
