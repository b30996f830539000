// SPDX-License-Identifier: BSD-3-Clause
#include "calls.h"

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

Calls::Calls(System &system) : FaultPlan(stepNames), system_(system) {}

int Calls::ioctl(int fd, unsigned long request, void *arg)
{
	const int rc = due("ioctl");
	return rc ? rc : system_.ioctl(fd, request, arg);
}

int Calls::queryDevice(ibv_context *context, ibv_device_attr *retAttr)
{
	return system_.queryDevice(context, retAttr);
}

int Calls::regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		 ibv_mr **retMr)
{
	const int rc = due("ibv_reg_mr");
	return rc ? rc : system_.regMr(pd, address, length, iova, access, retMr);
}

int Calls::regDmabufMr(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due("ibv_reg_dmabuf_mr");
	return rc ? rc : system_.regDmabufMr(pd, range, retMr);
}

int Calls::regMrEx(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due("ibv_reg_mr_ex");
	return rc ? rc : system_.regMrEx(pd, range, retMr);
}

int Calls::regDataDirect(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	const int rc = due("mlx5dv_reg_dmabuf_mr");
	return rc ? rc : system_.regDataDirect(pd, range, retMr);
}

int Calls::deregMr(ibv_mr *mr)
{
	const int rc = due("ibv_dereg_mr");
	return rc ? rc : system_.deregMr(mr);
}

} // namespace peerbuf::verbs
