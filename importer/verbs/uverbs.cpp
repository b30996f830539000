// SPDX-License-Identifier: BSD-3-Clause
#include "uverbs.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <peerbuf/types.h>

namespace peerbuf::verbs
{

namespace
{

/* Of rxe's own namespace, behind the two attributes that stand for udata (rdma_user_rxe.h of the
 * kernels that have them; the others ignore what is not mandatory and refuse what is). */
constexpr uint16_t RXE_FLAGS = (1u << UVERBS_ID_NS_SHIFT) + 2;
constexpr uint16_t RXE_RESP_FLOW = RXE_FLAGS + 1;
constexpr uint32_t RXE_REVOCABLE = 1 << 0;
constexpr uint32_t RXE_FLOW_MOVABLE = 1;
constexpr uint32_t RXE_FLOW_REVOCABLE = 2;

/* No driver has so many methods. */
constexpr uint16_t noSuchMethod = (1u << UVERBS_ID_NS_SHIFT) - 1;
constexpr uint32_t mostDrivers = 64;

struct DriverName {
	uint32_t id;
	const char *name;
};
constexpr DriverName driverNames[] = {
	{RDMA_DRIVER_MLX5, "mlx5"},   {RDMA_DRIVER_MLX4, "mlx4"},
	{RDMA_DRIVER_CXGB4, "cxgb4"}, {RDMA_DRIVER_BNXT_RE, "bnxt_re"},
	{RDMA_DRIVER_IRDMA, "irdma"}, {RDMA_DRIVER_QEDR, "qedr"},
	{RDMA_DRIVER_HNS, "hns"},     {RDMA_DRIVER_RXE, "rxe"},
	{RDMA_DRIVER_EFA, "efa"},     {RDMA_DRIVER_SIW, "siw"},
	{RDMA_DRIVER_ERDMA, "erdma"},
};

/** One request to the kernel. Thread-bound. */
class Command
{
public:
	Command(uint16_t object, uint16_t method, uint32_t driver)
	{
		header()->object_id = object;
		header()->method_id = method;
		header()->driver_id = driver;
	}

	/** A value of up to 8 bytes travels in the attribute itself. */
	template <typename T> void in(uint16_t id, T value)
	{
		static_assert(std::is_integral_v<T> && sizeof(T) <= sizeof(uint64_t));
		ib_uverbs_attr *attr = add(id, sizeof(T), UVERBS_ATTR_F_MANDATORY);
		std::memcpy(&attr->data, &value, sizeof(T));
	}
	void object(uint16_t id, uint32_t handle)
	{
		add(id, 0, UVERBS_ATTR_F_MANDATORY)->data = handle;
	}
	/** @return where the kernel puts the new object's handle. */
	const ib_uverbs_attr *newObject(uint16_t id) { return add(id, 0, UVERBS_ATTR_F_MANDATORY); }
	void out(uint16_t id, uint32_t *to, bool mandatory)
	{
		add(id, sizeof(*to), mandatory ? UVERBS_ATTR_F_MANDATORY : 0)->data =
			reinterpret_cast<uintptr_t>(to);
	}

	int submit(System &system, int fd)
	{
		ib_uverbs_ioctl_hdr *h = header();
		h->length = static_cast<uint16_t>(sizeof(*h) + h->num_attrs * sizeof(h->attrs[0]));
		return system.ioctl(fd, RDMA_VERBS_IOCTL, h);
	}

private:
	static constexpr size_t mostAttrs = 12;

	ib_uverbs_ioctl_hdr *header()
	{
		return reinterpret_cast<ib_uverbs_ioctl_hdr *>(memory_.data());
	}
	ib_uverbs_attr *add(uint16_t id, uint16_t length, uint16_t flags)
	{
		ib_uverbs_attr *attr = &header()->attrs[header()->num_attrs++];
		attr->attr_id = id;
		attr->len = length;
		attr->flags = flags;
		return attr;
	}

	alignas(ib_uverbs_ioctl_hdr)
		std::array<std::byte, sizeof(ib_uverbs_ioctl_hdr) +
					      mostAttrs * sizeof(ib_uverbs_attr)> memory_ = {};
};

} // namespace

int Uverbs::findDriver()
{
	int rc = -EINVAL;
	for (uint32_t id = 0; id < mostDrivers; id++) {
		Command command(UVERBS_OBJECT_DEVICE, noSuchMethod, id);
		rc = command.submit(system_, fd_);
		if (rc == -EPROTONOSUPPORT) {
			driver_ = id;
			return 0;
		}
		if (rc != -EINVAL)
			return rc ? rc : -EPROTO;
	}
	return rc;
}

std::string Uverbs::driver() const
{
	for (const DriverName &known : driverNames)
		if (driver_ == known.id)
			return known.name;
	return driver_ ? "driver " + std::to_string(*driver_) : "unknown driver";
}

bool Uverbs::saysFlow() const
{
	return driver_ == uint32_t{RDMA_DRIVER_RXE};
}

int Uverbs::regDmabuf(uint32_t pd, const DmabufRange &range, uint32_t flow, KernelRegion *retRegion)
{
	if (!driver_)
		return -ENODEV;
	KernelRegion region;
	uint32_t said = 0;
	Command command(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, *driver_);
	const ib_uverbs_attr *handle = command.newObject(UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
	command.object(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd);
	command.in(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, range.offset);
	command.in(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, range.length);
	command.in(UVERBS_ATTR_REG_DMABUF_MR_IOVA, range.iova);
	command.in(UVERBS_ATTR_REG_DMABUF_MR_FD, static_cast<uint32_t>(range.fd));
	command.in(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, static_cast<uint32_t>(range.access));
	command.out(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &region.lkey, true);
	command.out(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &region.rkey, true);
	if (saysFlow()) {
		if (flow == PEERBUF_FLOW_REVOCABLE)
			command.in(RXE_FLAGS, RXE_REVOCABLE);
		command.out(RXE_RESP_FLOW, &said, false);
	}
	if (const int rc = command.submit(system_, fd_))
		return rc;
	region.handle = static_cast<uint32_t>(handle->data);
	region.flow = said == RXE_FLOW_MOVABLE	   ? PEERBUF_FLOW_MOVABLE
		      : said == RXE_FLOW_REVOCABLE ? PEERBUF_FLOW_REVOCABLE
						   : PEERBUF_FLOW_NONE;
	*retRegion = region;
	return 0;
}

int Uverbs::destroy(uint32_t handle)
{
	Command command(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, driver_.value_or(0));
	command.object(UVERBS_ATTR_DESTROY_MR_HANDLE, handle);
	return command.submit(system_, fd_);
}

} // namespace peerbuf::verbs
