// SPDX-License-Identifier: BSD-3-Clause
#include "verbs_side.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>

#include <unistd.h>

#include <infiniband/verbs.h>

#include <peerbuf/verbs.h>

namespace peerbuf::tools
{

namespace
{

constexpr size_t bounceSize = 1 << 20;
constexpr uint8_t port = 1;
constexpr uint64_t patienceNs = 10'000'000'000;
constexpr useconds_t pollUs = 50; /* soft-RoCE moves bytes in a thread that needs the CPU too */

/** All of ibv_get_device_list, freed at the end. */
class DeviceList
{
public:
	DeviceList() : list_(ibv_get_device_list(&count_)) {}
	~DeviceList()
	{
		if (list_)
			ibv_free_device_list(list_);
	}
	DeviceList(const DeviceList &) = delete;
	DeviceList &operator=(const DeviceList &) = delete;

	int size() const { return list_ ? count_ : 0; }
	ibv_device *at(int i) const { return list_[i]; }

private:
	int count_ = 0;
	ibv_device **list_;
};

uint64_t nowNs()
{
	timespec now = {};
	clock_gettime(CLOCK_MONOTONIC, &now);
	return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
	       static_cast<uint64_t>(now.tv_nsec);
}

class RealVerbsSide final : public VerbsSide
{
public:
	~RealVerbsSide() override
	{
		disconnect();
		if (bounceMr_)
			ibv_dereg_mr(bounceMr_);
		if (objects_.pd)
			ibv_dealloc_pd(objects_.pd);
		if (context_)
			ibv_close_device(context_);
	}

	bool open(const std::string &wanted, std::string &error)
	{
		const DeviceList list;
		ibv_device *device = nullptr;
		for (int i = 0; i < list.size() && !device; i++)
			if (wanted.empty() || wanted == list.at(i)->name)
				device = list.at(i);
		if (!device) {
			std::string names;
			for (int i = 0; i < list.size(); i++) {
				names += i ? ", " : "";
				names += ibv_get_device_name(list.at(i));
			}
			error = "there is no RDMA device" +
				(wanted.empty() ? ""
						: " '" + wanted + "'; there are: " +
							  (names.empty() ? "none" : names));
			return false;
		}
		name_ = device->name;
		context_ = ibv_open_device(device);
		if (!context_)
			return failed("ibv_open_device", errno, error);
		objects_.struct_size = sizeof(objects_);
		objects_.pd = ibv_alloc_pd(context_);
		if (!objects_.pd)
			return failed("ibv_alloc_pd", errno, error);
		bounce_.resize(bounceSize);
		bounceMr_ = ibv_reg_mr(objects_.pd, bounce_.data(), bounce_.size(),
				       unsigned{IBV_ACCESS_LOCAL_WRITE});
		if (!bounceMr_)
			return failed("ibv_reg_mr", errno, error);
		return findGid(error) && connect(error);
	}

	const std::string &device() const override { return name_; }
	const void *objects() const override { return &objects_; }

	int transfer(const peerbuf_reg_importer_info &region, bool write, uint64_t at,
		     uint8_t *data, size_t length, std::string &error) override
	{
		do { // also once for a length of 0: an access with no byte
			const size_t n = std::min(length, bounceSize);
			if (write)
				memcpy(bounce_.data(), data, n);
			if (const int rc = once(region, write, at, n, error))
				return rc;
			if (!write)
				memcpy(data, bounce_.data(), n);
			at += n;
			data += n;
			length -= n;
		} while (length);
		return 0;
	}

private:
	bool failed(const char *call, int err, std::string &error) const
	{
		error = name_ + ": " + call + ": " + std::generic_category().message(err);
		return false;
	}

	/** An IPv4-mapped address where there is one: RoCE v2 needs it; else the first. */
	bool findGid(std::string &error)
	{
		if (const int err = ibv_query_port(context_, port, &portAttr_))
			return failed("ibv_query_port", err, error);
		if (portAttr_.state != IBV_PORT_ACTIVE) {
			error = name_ + ": port 1 is not active";
			return false;
		}
		constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
		for (int i = portAttr_.gid_tbl_len; i-- > 0;) {
			ibv_gid gid = {};
			if (ibv_query_gid(context_, port, i, &gid))
				continue;
			if (i && memcmp(gid.raw, mapped, sizeof(mapped)) != 0)
				continue;
			gid_ = gid;
			gidIndex_ = static_cast<uint8_t>(i);
			return true;
		}
		error = name_ + ": port 1 has no GID";
		return false;
	}

	ibv_qp *makeQp()
	{
		ibv_qp_init_attr init = {};
		init.send_cq = cq_;
		init.recv_cq = cq_;
		init.cap.max_send_wr = 4;
		init.cap.max_recv_wr = 4;
		init.cap.max_send_sge = 1;
		init.cap.max_recv_sge = 1;
		init.qp_type = IBV_QPT_RC;
		return ibv_create_qp(objects_.pd, &init);
	}

	int toReady(ibv_qp *qp, const ibv_qp *peer)
	{
		ibv_qp_attr attr = {};
		attr.qp_state = IBV_QPS_INIT;
		attr.port_num = port;
		attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
		if (const int err = ibv_modify_qp(qp, &attr,
						  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							  IBV_QP_ACCESS_FLAGS))
			return err;
		attr = {};
		attr.qp_state = IBV_QPS_RTR;
		attr.path_mtu = portAttr_.active_mtu;
		attr.dest_qp_num = peer->qp_num;
		attr.max_dest_rd_atomic = 1;
		attr.min_rnr_timer = 12;
		attr.ah_attr.port_num = port;
		attr.ah_attr.dlid = portAttr_.lid;
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = gid_;
		attr.ah_attr.grh.sgid_index = gidIndex_;
		attr.ah_attr.grh.hop_limit = 64;
		if (const int err =
			    ibv_modify_qp(qp, &attr,
					  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
			return err;
		attr = {};
		attr.qp_state = IBV_QPS_RTS;
		attr.timeout = 16; /* a quarter of a second, for emulated machines */
		attr.retry_cnt = 7;
		attr.rnr_retry = 7;
		attr.max_rd_atomic = 1;
		return ibv_modify_qp(qp, &attr,
				     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
					     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_MAX_QP_RD_ATOMIC);
	}

	bool connect(std::string &error)
	{
		cq_ = ibv_create_cq(context_, 16, nullptr, nullptr, 0);
		if (!cq_)
			return failed("ibv_create_cq", errno, error);
		asking_ = makeQp();
		answering_ = asking_ ? makeQp() : nullptr;
		if (!answering_)
			return failed("ibv_create_qp", errno, error);
		int err = toReady(asking_, answering_);
		if (!err)
			err = toReady(answering_, asking_);
		return err ? failed("ibv_modify_qp", err, error) : true;
	}

	void disconnect()
	{
		/* looped back, a request holds its sender until the answering side is done with it
		 */
		if (answering_)
			ibv_destroy_qp(answering_);
		if (asking_)
			ibv_destroy_qp(asking_);
		if (cq_)
			ibv_destroy_cq(cq_);
		answering_ = asking_ = nullptr;
		cq_ = nullptr;
	}

	int once(const peerbuf_reg_importer_info &region, bool write, uint64_t at, size_t length,
		 std::string &error)
	{
		if (!asking_) { // the last transfer ended the connection
			if (!connect(error)) {
				disconnect();
				return -EIO;
			}
		}
		ibv_sge sge = {};
		sge.addr = reinterpret_cast<uintptr_t>(bounce_.data());
		sge.length = static_cast<uint32_t>(length);
		sge.lkey = bounceMr_->lkey;
		ibv_send_wr wr = {};
		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = region.remote_base + at;
		wr.wr.rdma.rkey = region.rkey;
		ibv_send_wr *bad = nullptr;
		if (const int err = ibv_post_send(asking_, &wr, &bad)) {
			failed("ibv_post_send", err, error);
			return -err;
		}
		const uint64_t until = nowNs() + patienceNs;
		ibv_wc wc = {};
		for (;;) {
			const int n = ibv_poll_cq(cq_, 1, &wc);
			if (n > 0)
				break;
			if (n < 0 || nowNs() > until) {
				error = name_ + (n < 0 ? ": ibv_poll_cq failed"
						       : ": no completion in 10 s");
				disconnect();
				return n < 0 ? -EIO : -ETIMEDOUT;
			}
			usleep(pollUs);
		}
		if (wc.status == IBV_WC_SUCCESS)
			return 0;
		error = name_ + ": " + ibv_wc_status_str(wc.status);
		disconnect(); // an error ends a reliable connection
		return wc.status == IBV_WC_REM_ACCESS_ERR ? -EACCES : -EIO;
	}

	using ibv_gid = union ::ibv_gid;

	std::string name_;
	ibv_context *context_ = nullptr;
	peerbuf_verbs_objects objects_ = {};
	std::vector<uint8_t> bounce_;
	ibv_mr *bounceMr_ = nullptr;
	ibv_port_attr portAttr_ = {};
	ibv_gid gid_ = {};
	uint8_t gidIndex_ = 0;
	ibv_cq *cq_ = nullptr;
	ibv_qp *asking_ = nullptr;
	ibv_qp *answering_ = nullptr;
};

} // namespace

std::unique_ptr<VerbsSide> VerbsSide::create(const std::string &device, std::string &error)
{
	auto side = std::make_unique<RealVerbsSide>();
	if (!side->open(device, error))
		return nullptr;
	return side;
}

std::vector<std::string> verbsDevices()
{
	const DeviceList list;
	std::vector<std::string> names;
	names.reserve(list.size());
	for (int i = 0; i < list.size(); i++)
		names.emplace_back(list.at(i)->name);
	return names;
}

} // namespace peerbuf::tools
