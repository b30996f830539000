// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_FABRIC_CALLS_H
#define PEERBUF_IMPORTER_FABRIC_CALLS_H

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

namespace peerbuf::fabric
{

/** The calls that make and end a region, each of which a test can make fail. */
enum class Step { Reg, Populate, RegAttr, Bind, Enable, RawAttr, Close, Invalidate };

/**
 * The one way from this plugin to libfabric. Results are 0 or libfabric's negative error.
 * Thread-safe as far as the domain is.
 */
class Calls
{
public:
	int regAttr(fid_domain *domain, const fi_mr_attr &attr, uint64_t flags, fid_mr **retMr);
	int bind(fid_mr *mr, fid_ep *ep);
	int enable(fid_mr *mr);
	int rawAttr(fid_mr *mr, uint64_t *retBase, uint8_t *retKey, size_t *ioSize);
	int close(fid_mr *mr);
	/** Back [address, address + length) with pages, as FI_MR_ALLOCATED asks. */
	int populate(void *address, size_t length, bool writable);

	/** The fault that is due for @p step now: 0 or a negative errno, after its delay. */
	int due(Step step);
	/** testing.h: skip, then fail. @return -ENOENT: no such step. */
	int fault(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs);
	static std::string stepList();

private:
	struct Fault {
		uint32_t skip = 0;
		uint32_t count = 0;
		int err = 0;
		uint64_t delayNs = 0;
	};

	static constexpr size_t nSteps = static_cast<size_t>(Step::Invalidate) + 1;

	std::atomic<uint32_t> armed_{0}; /* steps with a fault, so that real work takes no lock */
	std::mutex mutex_;
	std::array<Fault, nSteps> faults_; /* under mutex_ */
};

} // namespace peerbuf::fabric

#endif
