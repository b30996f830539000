// SPDX-License-Identifier: BSD-3-Clause
#include "calls.h"

#include <cerrno>
#include <ctime>

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

int Calls::regAttr(fid_domain *domain, const fi_mr_attr &attr, uint64_t flags, fid_mr **retMr)
{
	if (const int rc = due(Step::RegAttr))
		return rc;
	return fi_mr_regattr(domain, &attr, flags, retMr);
}

int Calls::bind(fid_mr *mr, fid_ep *ep)
{
	if (const int rc = due(Step::Bind))
		return rc;
	return fi_mr_bind(mr, &ep->fid, 0);
}

int Calls::enable(fid_mr *mr)
{
	if (const int rc = due(Step::Enable))
		return rc;
	return fi_mr_enable(mr);
}

int Calls::rawAttr(fid_mr *mr, uint64_t *retBase, uint8_t *retKey, size_t *ioSize)
{
	if (const int rc = due(Step::RawAttr))
		return rc;
	return fi_mr_raw_attr(mr, retBase, retKey, ioSize, 0);
}

int Calls::close(fid_mr *mr)
{
	if (const int rc = due(Step::Close))
		return rc;
	return fi_close(&mr->fid);
}

int Calls::populate(void *address, size_t length, bool writable)
{
	if (const int rc = due(Step::Populate))
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

int Calls::due(Step step)
{
	if (armed_.load(std::memory_order_relaxed) == 0)
		return 0;
	int err = 0;
	uint64_t delayNs = 0;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		Fault &fault = faults_[static_cast<size_t>(step)];
		if (fault.count == 0)
			return 0;
		if (fault.skip > 0) {
			fault.skip--;
			return 0;
		}
		err = fault.err;
		delayNs = fault.delayNs;
		if (--fault.count == 0)
			armed_--;
	}
	if (delayNs) {
		const timespec delay = {static_cast<time_t>(delayNs / 1000000000),
					static_cast<long>(delayNs % 1000000000)};
		nanosleep(&delay, nullptr);
	}
	return err;
}

int Calls::fault(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
{
	for (size_t i = 0; i < nSteps; i++) {
		if (step != stepNames[i])
			continue;
		std::lock_guard<std::mutex> lock(mutex_);
		if (faults_[i].count == 0 && count > 0)
			armed_++;
		if (faults_[i].count > 0 && count == 0)
			armed_--;
		faults_[i] = {skip, count, err, delayNs};
		return 0;
	}
	return -ENOENT;
}

std::string Calls::stepList()
{
	std::string list;
	for (const char *name : stepNames)
		list += (list.empty() ? "" : ", ") + std::string(name);
	return list;
}

} // namespace peerbuf::fabric
