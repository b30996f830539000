// SPDX-License-Identifier: BSD-3-Clause
#include "system.h"

#include <cerrno>

#include <dlfcn.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::verbs
{

namespace
{

/* Younger than the headers this may be built with, so declared here; both are rdma-core's ABI. */
struct MrInitAttr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	uint64_t later[8]; /* what a newer library has behind them, not asked for */
};
constexpr uint64_t MR_HAS_IOVA = 1 << 0;
constexpr uint64_t MR_HAS_FD = 1 << 2;
constexpr uint64_t MR_HAS_FD_OFFSET = 1 << 3;
using RegMrEx = ibv_mr *(ibv_pd *, MrInitAttr *);

constexpr int MLX5_DATA_DIRECT = 1 << 0;
using Mlx5RegDmabuf = ibv_mr *(ibv_pd *, uint64_t, size_t, uint64_t, int, int, int);

/** A function of a library that is loaded already, or null. */
template <typename Function> Function *lookUp(const char *library, const char *name)
{
	void *object = dlopen(library, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
	if (!object)
		return nullptr;
	auto *function = reinterpret_cast<Function *>(dlsym(object, name));
	dlclose(object); /* whoever loaded it keeps it */
	return function;
}

Mlx5RegDmabuf *mlx5RegDmabuf()
{
	return lookUp<Mlx5RegDmabuf>("libmlx5.so.1", "mlx5dv_reg_dmabuf_mr");
}

/** rdma-core says why in errno; one that forgets to has failed all the same. */
int result(ibv_mr *mr, ibv_mr **retMr)
{
	if (!mr)
		return errno ? -errno : -EIO;
	*retMr = mr;
	return 0;
}

} // namespace

int System::ioctl(int fd, unsigned long request, void *arg)
{
	return ::ioctl(fd, request, arg) < 0 ? -errno : 0;
}

int System::queryDevice(ibv_context *context, ibv_device_attr *retAttr)
{
	return -ibv_query_device(context, retAttr);
}

int System::regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		  ibv_mr **retMr)
{
	errno = 0;
	return result(ibv_reg_mr_iova(pd, address, length, iova, access), retMr);
}

int System::regDmabufMr(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	errno = 0;
	return result(ibv_reg_dmabuf_mr(pd, range.offset, range.length, range.iova, range.fd,
					static_cast<int>(range.access)),
		      retMr);
}

int System::regMrEx(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	auto *regEx = lookUp<RegMrEx>("libibverbs.so.1", "ibv_reg_mr_ex");
	if (!regEx)
		return -ENOSYS;
	MrInitAttr attr = {};
	attr.length = range.length;
	attr.access = static_cast<int>(range.access);
	attr.comp_mask = MR_HAS_IOVA | MR_HAS_FD | MR_HAS_FD_OFFSET;
	attr.iova = range.iova;
	attr.fd = range.fd;
	attr.fd_offset = range.offset;
	errno = 0;
	return result(regEx(pd, &attr), retMr);
}

int System::regDataDirect(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr)
{
	Mlx5RegDmabuf *reg = mlx5RegDmabuf();
	if (!reg)
		return -ENOSYS;
	errno = 0;
	return result(reg(pd, range.offset, range.length, range.iova, range.fd,
			  static_cast<int>(range.access), MLX5_DATA_DIRECT),
		      retMr);
}

bool System::hasDataDirect()
{
	return mlx5RegDmabuf() != nullptr;
}

int System::deregMr(ibv_mr *mr)
{
	const int err = ibv_dereg_mr(mr);
	return err < 0 ? -errno : -err;
}

uint64_t System::lockLimit()
{
	rlimit limit = {};
	const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
	return known && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

std::string System::exporterOf(int fd)
{
	return plugin::dmabufExporter(fd);
}

} // namespace peerbuf::verbs
