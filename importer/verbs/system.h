// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_VERBS_SYSTEM_H
#define PEERBUF_IMPORTER_VERBS_SYSTEM_H

#include <cstddef>
#include <cstdint>
#include <string>

#include <infiniband/verbs.h>

namespace peerbuf::verbs
{

/** A dma-buf, or a part of one, to make a region of. */
struct DmabufRange {
	uint64_t offset = 0;
	uint64_t length = 0;
	uint64_t iova = 0;
	int fd = -1;
	unsigned access = 0; /* IBV_ACCESS_* */
};

/**
 * All that this plugin asks of the kernel and of rdma-core. Everything returns 0 or a negative
 * errno. Tests put another in its place. Thread-safe, as rdma-core is.
 */
class System
{
public:
	System() = default;
	virtual ~System() = default;
	System(const System &) = delete;
	System &operator=(const System &) = delete;

	virtual int ioctl(int fd, unsigned long request, void *arg);
	virtual int queryDevice(ibv_context *context, ibv_device_attr *retAttr);
	virtual int regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
			  ibv_mr **retMr);
	virtual int regDmabufMr(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr);
	/** rdma-core 59 and later; elsewhere -ENOSYS. */
	virtual int regMrEx(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr);
	/** mlx5dv_reg_dmabuf_mr for the data-direct path; -ENOSYS where the library lacks it. */
	virtual int regDataDirect(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr);
	virtual bool hasDataDirect();
	virtual int deregMr(ibv_mr *mr);
	/** RLIMIT_MEMLOCK, bytes; UINT64_MAX: none. */
	virtual uint64_t lockLimit();
	/** The kernel's name for who exported the dma-buf @p fd; "" where it is none. */
	virtual std::string exporterOf(int fd);
};

} // namespace peerbuf::verbs

#endif
