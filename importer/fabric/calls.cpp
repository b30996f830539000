// SPDX-License-Identifier: BSD-3-Clause
#include "calls.h"

#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fi_endpoint.h>

namespace peerbuf::fabric
{

namespace
{

constexpr const char *stepNames[] = {"reg",	   "populate",	   "fi_mr_regattr",
				     "fi_mr_bind", "fi_mr_enable", "fi_mr_raw_attr",
				     "fi_close",   "invalidate"};

} // namespace

Calls::Calls() : FaultPlan(stepNames) {}

int Calls::regAttr(fid_domain *domain, const fi_mr_attr &attr, uint64_t flags, fid_mr **retMr)
{
	if (const int rc = due("fi_mr_regattr"))
		return rc;
	return fi_mr_regattr(domain, &attr, flags, retMr);
}

int Calls::bind(fid_mr *mr, fid_ep *ep)
{
	if (const int rc = due("fi_mr_bind"))
		return rc;
	return fi_mr_bind(mr, &ep->fid, 0);
}

int Calls::enable(fid_mr *mr)
{
	if (const int rc = due("fi_mr_enable"))
		return rc;
	return fi_mr_enable(mr);
}

int Calls::rawAttr(fid_mr *mr, uint64_t *retBase, uint8_t *retKey, size_t *ioSize)
{
	if (const int rc = due("fi_mr_raw_attr"))
		return rc;
	return fi_mr_raw_attr(mr, retBase, retKey, ioSize, 0);
}

int Calls::close(fid_mr *mr)
{
	if (const int rc = due("fi_close"))
		return rc;
	return fi_close(&mr->fid);
}

int Calls::populate(void *address, size_t length, bool writable)
{
	if (const int rc = due("populate"))
		return rc;
	const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
	const uintptr_t first = reinterpret_cast<uintptr_t>(address) & ~(page - 1);
	const uintptr_t end = reinterpret_cast<uintptr_t>(address) + length;
	const int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	if (madvise(reinterpret_cast<void *>(first), end - first, advice) == 0)
		return 0;
	/* Linux before 5.14 knows neither advice and no kernel takes it for mapped device memory;
	 * the exporter's map has promised resident memory (rule 20), so nothing is lost. */
	return errno == EINVAL ? 0 : -errno;
}

} // namespace peerbuf::fabric
