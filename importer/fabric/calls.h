// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_FABRIC_CALLS_H
#define PEERBUF_IMPORTER_FABRIC_CALLS_H

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::fabric
{

/**
 * The one way from this plugin to libfabric. Results are 0 or libfabric's negative error.
 * testing.h's faults are in it. Thread-safe as far as the domain is.
 */
class Calls : public plugin::FaultPlan
{
public:
	Calls();

	int regAttr(fid_domain *domain, const fi_mr_attr &attr, uint64_t flags, fid_mr **retMr);
	int bind(fid_mr *mr, fid_ep *ep);
	int enable(fid_mr *mr);
	int rawAttr(fid_mr *mr, uint64_t *retBase, uint8_t *retKey, size_t *ioSize);
	int close(fid_mr *mr);
	/** Back [address, address + length) with pages, as FI_MR_ALLOCATED asks. */
	int populate(void *address, size_t length, bool writable);
};

} // namespace peerbuf::fabric

#endif
