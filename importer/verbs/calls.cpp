// SPDX-License-Identifier: BSD-3-Clause
#include "calls.h"

#include <cerrno>
#include <ctime>

namespace peerbuf::verbs
{

namespace
{

constexpr const char *stepNames[] = {"offer",
				     "reg",
				     "ioctl",
				     "ibv_reg_mr",
				     "ibv_reg_dmabuf_mr",
				     "ibv_reg_mr_ex",
				     "mlx5dv_reg_dmabuf_mr",
				     "ibv_dereg_mr"};

} // namespace

int Calls::ioctl(int fd, unsigned long request, void *arg)
{
	const int rc = due(Step::Ioctl);
	return rc ? rc : system_.ioctl(fd, request, arg);
}

int Calls::queryDevice(ibv_context *context, ibv_device_attr *retAttr)
{
	return system_.queryDevice(context, retAttr);
}

int Calls::regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		 ibv_mr **retMr)
{
	const int rc = due(Step::RegMr);
	return rc ? rc : system_.regMr(pd, address, length, iova, access, retMr);
}

int Calls::regDmabufMr(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due(Step::RegDmabufMr);
	return rc ? rc : system_.regDmabufMr(pd, range, retMr);
}

int Calls::regMrEx(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due(Step::RegMrEx);
	return rc ? rc : system_.regMrEx(pd, range, retMr);
}

int Calls::regDataDirect(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due(Step::RegDataDirect);
	return rc ? rc : system_.regDataDirect(pd, range, retMr);
}

int Calls::deregMr(ibv_mr *mr)
{
	const int rc = due(Step::DeregMr);
	return rc ? rc : system_.deregMr(mr);
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

} // namespace peerbuf::verbs
