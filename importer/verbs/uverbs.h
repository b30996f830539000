// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_VERBS_UVERBS_H
#define PEERBUF_IMPORTER_VERBS_UVERBS_H

#include <cstdint>
#include <optional>
#include <string>

#include "system.h"

namespace peerbuf::verbs
{

/** A region that the kernel made for us, past the provider library. */
struct KernelRegion {
	uint32_t handle = 0;
	uint32_t lkey = 0;
	uint32_t rkey = 0;
	uint32_t flow = 0; /* enum peerbuf_flow that the driver says it took; 0: it does not say */
};

/**
 * The kernel's own methods for regions, by RDMA_VERBS_IOCTL on the application's context. They work
 * where the provider library has no call for them. Thread-safe.
 */
class Uverbs
{
public:
	Uverbs(System &system, int commandFd) : system_(system), fd_(commandFd) {}

	/**
	 * Find out which driver this is: the kernel serves only who names it. It tells the right
	 * name from a wrong one even for a method that there is not, so nothing happens.
	 * @return 0, or why the kernel could not be asked.
	 */
	int findDriver();
	bool known() const { return driver_.has_value(); }
	/** "rxe", or "driver 77". */
	std::string driver() const;
	/** Whether this driver can be asked for a flow, and says which it took. */
	bool saysFlow() const;

	/** @param flow wanted, enum peerbuf_flow; 0: the driver's own choice. */
	int regDmabuf(uint32_t pd, const DmabufRange &range, uint32_t flow,
		      KernelRegion *retRegion);
	int destroy(uint32_t handle);

private:
	System &system_;
	const int fd_;
	std::optional<uint32_t> driver_;
};

} // namespace peerbuf::verbs

#endif
