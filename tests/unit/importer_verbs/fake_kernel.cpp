// SPDX-License-Identifier: BSD-3-Clause
#include "fake_kernel.h"

#include <cerrno>
#include <cstring>

#include <linux/dma-buf.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

namespace peerbuf::test
{

namespace
{

constexpr int commandFd = 33;
constexpr uint32_t pdHandle = 5;
constexpr uint16_t driverFlags = (1u << UVERBS_ID_NS_SHIFT) + 2;
constexpr uint16_t driverFlow = driverFlags + 1;

} // namespace

FakeKernel::FakeKernel()
{
	std::strcpy(ibvDevice_.name, "fake0");
	context_.device = &ibvDevice_;
	context_.cmd_fd = commandFd;
	pd_.context = &context_;
	pd_.handle = pdHandle;
	attr.max_mr_size = UINT64_MAX;
	attr.page_size_cap = 0xfffff000;
	attr.max_mr = 100;
	attr.atomic_cap = IBV_ATOMIC_HCA;
}

peerbuf_verbs_objects FakeKernel::objects()
{
	peerbuf_verbs_objects objects = {};
	objects.struct_size = sizeof(objects);
	objects.pd = &pd_;
	return objects;
}

int FakeKernel::ioctl(int fd, unsigned long request, void *arg)
{
	if (request == DMA_BUF_IOCTL_SYNC) {
		if (!dmabufs.count(fd))
			return others.count(fd) ? -ENOTTY : -EBADF;
		return static_cast<dma_buf_sync *>(arg)->flags ? 0 : -EINVAL;
	}
	if (fd != commandFd || request != RDMA_VERBS_IOCTL)
		return breach(-ENOTTY);
	if (openError)
		return openError;
	auto *hdr = static_cast<ib_uverbs_ioctl_hdr *>(arg);
	if (hdr->length != sizeof(*hdr) + hdr->num_attrs * sizeof(hdr->attrs[0]))
		return breach(-EINVAL);
	if (hdr->reserved1 || hdr->reserved2)
		return breach(-EPROTONOSUPPORT);
	if (hdr->driver_id != driver)
		return -EINVAL;
	if (hdr->object_id == UVERBS_OBJECT_MR && hdr->method_id == UVERBS_METHOD_REG_DMABUF_MR) {
		kernelAsked++;
		return kernelMethod ? regByIoctl(hdr) : -EPROTONOSUPPORT;
	}
	if (hdr->object_id == UVERBS_OBJECT_MR && hdr->method_id == UVERBS_METHOD_MR_DESTROY)
		return destroy(hdr);
	return -EPROTONOSUPPORT;
}

int FakeKernel::regByIoctl(ib_uverbs_ioctl_hdr *hdr)
{
	verbs::DmabufRange range;
	ib_uverbs_attr *handle = nullptr;
	uint32_t *lkey = nullptr;
	uint32_t *rkey = nullptr;
	uint32_t *flow = nullptr;
	bool revocable = false;
	uint32_t given = 0;
	for (ib_uverbs_attr *a = hdr->attrs; a < hdr->attrs + hdr->num_attrs; a++) {
		const bool mandatory = a->flags & UVERBS_ATTR_F_MANDATORY;
		auto *out = reinterpret_cast<uint32_t *>(a->data);
		uint32_t word = 0;
		std::memcpy(&word, &a->data, sizeof(word));
		given |= a->attr_id < 32 ? 1u << a->attr_id : 0;
		switch (a->attr_id) {
		case UVERBS_ATTR_REG_DMABUF_MR_HANDLE:
			handle = a;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE:
			if (a->data != pdHandle)
				return breach(-ENOENT);
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_OFFSET:
			range.offset = a->data;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_LENGTH:
			range.length = a->data;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_IOVA:
			range.iova = a->data;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_FD:
			range.fd = static_cast<int>(word);
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS:
			range.access = word;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY:
			lkey = out;
			break;
		case UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY:
			rkey = out;
			break;
		case driverFlags:
		case driverFlow:
			if (!driverAttributes) {
				if (mandatory)
					return -EPROTONOSUPPORT;
				break;
			}
			if (a->attr_id == driverFlags)
				revocable = word & 1;
			else
				flow = out;
			break;
		default:
			return breach(-EPROTONOSUPPORT);
		}
	}
	if (given != 0x1ff || !lkey || !rkey)
		return breach(-EINVAL);
	if (!kernelDmabuf)
		return -EOPNOTSUPP;
	if (const int rc = importDmabuf(range))
		return rc;
	last = range;
	lastRevocable = revocable;
	regions++;
	handle->data = nextKey_;
	handles_.insert(nextKey_);
	*lkey = nextKey_ + 1;
	*rkey = nextKey_ + 2;
	if (flow)
		*flow = takes ? takes : revocable ? 2 : 1;
	nextKey_ += 0x100;
	return 0;
}

int FakeKernel::destroy(ib_uverbs_ioctl_hdr *hdr)
{
	if (destroyError)
		return destroyError;
	if (hdr->num_attrs != 1 || hdr->attrs[0].attr_id != UVERBS_ATTR_DESTROY_MR_HANDLE ||
	    !handles_.erase(static_cast<uint32_t>(hdr->attrs[0].data)))
		return breach(-ENOENT);
	regions--;
	return 0;
}

int FakeKernel::importDmabuf(const verbs::DmabufRange &range) const
{
	if (!dmabufs.count(range.fd))
		return others.count(range.fd) ? -EINVAL : -EBADF;
	if (refuseFd)
		return refuseFd;
	constexpr uint64_t size = 1 << 20;
	const bool inside =
		range.length && range.offset <= size && range.length <= size - range.offset;
	return inside ? 0 : -EINVAL;
}

int FakeKernel::queryDevice(ibv_context *, ibv_device_attr *retAttr)
{
	*retAttr = attr;
	return queryError;
}

int FakeKernel::hand(ibv_mr **retMr)
{
	auto mr = std::make_unique<ibv_mr>();
	mr->pd = &pd_;
	mr->context = &context_;
	mr->lkey = nextKey_ + 1;
	mr->rkey = nextKey_ + 2;
	nextKey_ += 0x100;
	*retMr = mr.get();
	mrs_[mr.get()] = std::move(mr);
	libraryRegions++;
	return 0;
}

int FakeKernel::regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		      ibv_mr **retMr)
{
	if (pd != &pd_)
		return breach(-EINVAL);
	lastAddress = address;
	lastLength = length;
	lastIova = iova;
	lastAccess = access;
	return regHostError ? regHostError : hand(retMr);
}

int FakeKernel::library(const char *call, const verbs::DmabufRange &range, ibv_mr **retMr)
{
	calls.emplace_back(call);
	libraryAsked++;
	if (!libraryDmabuf || !kernelMethod || !kernelDmabuf)
		return -EOPNOTSUPP;
	if (const int rc = importDmabuf(range))
		return rc;
	last = range;
	return hand(retMr);
}

int FakeKernel::regDmabufMr(ibv_pd *, const verbs::DmabufRange &range, ibv_mr **retMr)
{
	return library("ibv_reg_dmabuf_mr", range, retMr);
}

int FakeKernel::regMrEx(ibv_pd *, const verbs::DmabufRange &range, ibv_mr **retMr)
{
	return libraryEx ? library("ibv_reg_mr_ex", range, retMr) : -ENOSYS;
}

int FakeKernel::regDataDirect(ibv_pd *, const verbs::DmabufRange &range, ibv_mr **retMr)
{
	return dataDirect ? library("mlx5dv_reg_dmabuf_mr", range, retMr) : -ENOSYS;
}

int FakeKernel::deregMr(ibv_mr *mr)
{
	if (deregError)
		return deregError;
	if (!mrs_.erase(mr))
		return breach(-EINVAL);
	libraryRegions--;
	return 0;
}

int openImporter(const FakeHost &host, FakeKernel &kernel, const Params &params,
		 std::unique_ptr<verbs::Importer> *retImporter)
{
	std::vector<peerbuf_param> raw;
	for (const auto &[key, value] : params)
		raw.push_back({key.c_str(), value.c_str()});
	const peerbuf_verbs_objects objects = kernel.objects();
	return verbs::Importer::create(host.raw(), raw.data(), raw.size(), &objects, kernel,
				       retImporter);
}

DmabufRequest::DmabufRequest(int fd)
{
	exported.struct_size = sizeof(exported);
	exported.fd = fd;
	exported.offset = 0x3100;
	exported.size = 1 << 20;
	request.struct_size = sizeof(request);
	request.flow = PEERBUF_FLOW_PINNED;
	request.access = readWrite;
	request.handle_kind = PEERBUF_HANDLE_FD;
	request.attachment = 1;
	request.offset = 0x1100;
	request.length = 0x2001;
	request.iova = 0x7f0000001100;
	request.granularity = 4096;
	request.fd_export = &exported;
	request.name = "buffer 9";
}

} // namespace peerbuf::test
