// SPDX-License-Identifier: BSD-3-Clause
#include "rma.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <netinet/in.h>
#include <sys/socket.h>

#include <rdma/fi_errno.h>

namespace peerbuf::tools
{

namespace
{

/* Best first. Those that name themselves by socket addresses are kept on the loopback device. */
struct Known {
	const char *name;
	bool network;
};
constexpr Known known[] = {
	{"tcp;ofi_rxm", true}, {"tcp", true},	  {"shm", false},	 {"sm2", false},
	{"net", true},	       {"sockets", true}, {"udp;ofi_rxd", true},
};

constexpr const char *loopback = "127.0.0.1";

uint32_t apiVersion()
{
	return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
}

std::string errorText(int rc)
{
	return std::string(fi_strerror(-rc)) + " (" + std::to_string(rc) + ")";
}

bool isNetwork(const std::string &provider)
{
	const auto it = std::find_if(std::begin(known), std::end(known),
				     [&](const Known &k) { return provider == k.name; });
	return it == std::end(known) || it->network;
}

int mrMode(const RmaOptions &options)
{
	if (options.mrMode != RmaOptions::defaultMrMode)
		return options.mrMode;
	return isNetwork(options.provider) ? RmaOptions::everyMrMode
					   : RmaOptions::everyMrMode & ~FI_MR_VIRT_ADDR;
}

/** @return 0 or libfabric's error; the list is the caller's to free. */
int getInfo(const RmaOptions &options, bool deliveryComplete, fi_info **retInfo)
{
	fi_info *hints = fi_allocinfo();
	if (!hints)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA | options.extraCaps;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = mrMode(options);
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->tx_attr->op_flags = deliveryComplete ? FI_DELIVERY_COMPLETE : 0;
	hints->fabric_attr->prov_name = strdup(options.provider.c_str());
	int rc = -FI_ENOMEM;
	if (hints->fabric_attr->prov_name) {
		const bool network = isNetwork(options.provider);
		rc = fi_getinfo(apiVersion(), network ? loopback : nullptr, nullptr,
				network ? FI_SOURCE : 0, hints, retInfo);
	}
	fi_freeinfo(hints);
	return rc;
}

/** What of a socket address is not loopback, or "". Other formats stay on the machine anyway. */
std::string outside(const fi_info &info, const std::vector<uint8_t> &name)
{
	if (info.addr_format == FI_SOCKADDR_IN && name.size() >= sizeof(sockaddr_in)) {
		sockaddr_in address = {};
		std::memcpy(&address, name.data(), sizeof(address));
		if (ntohl(address.sin_addr.s_addr) >> 24 == 127)
			return "";
		return "an address that is not a loopback address";
	}
	if (isNetwork(info.fabric_attr->prov_name))
		return "an address of a format that was not asked for";
	return "";
}

} // namespace

std::unique_ptr<RmaEndpoint> RmaEndpoint::create(const RmaOptions &options, std::string &error)
{
	std::unique_ptr<RmaEndpoint> endpoint(new RmaEndpoint);
	if (endpoint->open(options, error))
		return nullptr;
	return endpoint;
}

RmaEndpoint::~RmaEndpoint() = default;

std::string RmaEndpoint::failure(const char *call, int rc) const
{
	return "provider '" + provider_ + "': " + call + ": " + errorText(rc);
}

int RmaEndpoint::open(const RmaOptions &options, std::string &error)
{
	provider_ = options.provider;
	nextKey_ = options.firstKey;
	fi_info *list = nullptr;
	deliveryComplete_ = true;
	int rc = getInfo(options, true, &list);
	if (rc == -FI_ENODATA) {
		deliveryComplete_ = false;
		rc = getInfo(options, false, &list);
	}
	if (rc) {
		error = failure("fi_getinfo", rc);
		if (rc == -FI_ENODATA) {
			error += "; there are: ";
			const std::vector<std::string> names = rmaProviders();
			for (const std::string &name : names)
				error += (&name == &names[0] ? "" : ", ") + name;
			if (names.empty())
				error += "none";
		}
		return rc;
	}
	info_.reset(fi_dupinfo(list));
	fi_freeinfo(list);
	if (!info_) {
		error = failure("fi_dupinfo", -FI_ENOMEM);
		return -FI_ENOMEM;
	}
	provider_ = info_->fabric_attr->prov_name;

	slots_.resize(std::max<size_t>(options.window, 1));
	for (size_t i = slots_.size(); i-- > 0;)
		free_.push_back(i);
	return openObjects(error);
}

int RmaEndpoint::openObjects(std::string &error)
{
	const auto failed = [&](const char *call, int rc) {
		error = failure(call, rc);
		return rc;
	};

	fid_fabric *fabric = nullptr;
	if (const int rc = fi_fabric(info_->fabric_attr, &fabric, nullptr))
		return failed("fi_fabric", rc);
	fabric_.reset(fabric);

	fid_domain *domain = nullptr;
	if (const int rc = fi_domain(fabric, info_.get(), &domain, nullptr))
		return failed("fi_domain", rc);
	domain_.reset(domain);

	fi_av_attr avAttr = {};
	avAttr.type = info_->domain_attr->av_type;
	fid_av *av = nullptr;
	if (const int rc = fi_av_open(domain, &avAttr, &av, nullptr))
		return failed("fi_av_open", rc);
	av_.reset(av);

	fi_cq_attr cqAttr = {};
	cqAttr.format = FI_CQ_FORMAT_CONTEXT;
	cqAttr.wait_obj = FI_WAIT_NONE;
	/* room for what peers cause here as well */
	cqAttr.size = slots_.size() + 64;
	fid_cq *cq = nullptr;
	if (const int rc = fi_cq_open(domain, &cqAttr, &cq, nullptr))
		return failed("fi_cq_open", rc);
	cq_.reset(cq);

	fid_ep *ep = nullptr;
	if (const int rc = fi_endpoint(domain, info_.get(), &ep, nullptr))
		return failed("fi_endpoint", rc);
	ep_.reset(ep);
	if (const int rc = fi_ep_bind(ep, &av->fid, 0))
		return failed("fi_ep_bind(av)", rc);
	if (const int rc = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV))
		return failed("fi_ep_bind(cq)", rc);
	if (const int rc = fi_enable(ep))
		return failed("fi_enable", rc);

	size_t size = 0;
	int rc = fi_getname(&ep->fid, nullptr, &size);
	if (rc && rc != -FI_ETOOSMALL)
		return failed("fi_getname", rc);
	name_.resize(size);
	rc = fi_getname(&ep->fid, name_.data(), &size);
	if (rc)
		return failed("fi_getname", rc);
	name_.resize(size);
	if (const std::string problem = outside(*info_, name_); !problem.empty()) {
		error = "provider '" + provider_ + "': the endpoint has " + problem;
		return -FI_EINVAL;
	}
	return 0;
}

int RmaEndpoint::addPeer(const std::vector<uint8_t> &name, fi_addr_t *retPeer, std::string &error)
{
	fi_addr_t peer = FI_ADDR_NOTAVAIL;
	const int rc = fi_av_insert(av_.get(), name.data(), 1, &peer, 0, nullptr);
	if (rc == 1) {
		*retPeer = peer;
		return 0;
	}
	/* 0: it took none and gives no reason */
	const int err = rc < 0 ? rc : -FI_EINVAL;
	error = failure("fi_av_insert", err);
	return err;
}

int RmaEndpoint::mapRawKey(uint64_t remoteBase, const uint8_t *rawKey, size_t size,
			   uint64_t *retKey, std::string &error)
{
	std::vector<uint8_t> key(rawKey, rawKey + size); /* the call takes no const */
	const int rc = fi_mr_map_raw(domain_.get(), remoteBase, key.data(), size, retKey, 0);
	if (rc)
		error = failure("fi_mr_map_raw", rc);
	return rc;
}

int RmaEndpoint::post(const RmaTransfer &transfer, std::string &error)
{
	if (free_.empty())
		return -EAGAIN;
	const size_t index = free_.back();
	Slot &slot = slots_[index];
	slot.context = transfer.context;
	slot.op = transfer.op;

	iovec local = {transfer.data, transfer.length};
	fi_rma_iov remote = {transfer.remoteAddr, transfer.length, transfer.key};
	void *desc = transfer.desc;
	fi_msg_rma message = {};
	message.msg_iov = &local;
	message.desc = desc ? &desc : nullptr;
	message.iov_count = 1;
	message.addr = transfer.peer;
	message.rma_iov = &remote;
	message.rma_iov_count = 1;
	message.context = &slot.scratch;

	const bool write = transfer.op == RmaOp::Write;
	const uint64_t flags =
		FI_COMPLETION | (write && deliveryComplete_ ? FI_DELIVERY_COMPLETE : 0);
	const ssize_t rc = write ? fi_writemsg(ep_.get(), &message, flags)
				 : fi_readmsg(ep_.get(), &message, flags);
	if (rc == -FI_EAGAIN)
		return -EAGAIN;
	if (rc) {
		error = failure(write ? "fi_writemsg" : "fi_readmsg", static_cast<int>(rc));
		return static_cast<int>(rc);
	}
	free_.pop_back();
	inFlight_++;
	return 0;
}

int RmaEndpoint::readError(RmaCompletion *retCompletion)
{
	fi_cq_err_entry entry = {};
	const ssize_t rc = fi_cq_readerr(cq_.get(), &entry, 0);
	if (rc == -FI_EAGAIN)
		return 0;
	if (rc < 0) {
		retCompletion->status = static_cast<int>(rc);
		retCompletion->what = failure("fi_cq_readerr", static_cast<int>(rc));
		return static_cast<int>(rc);
	}
	const int err = entry.err > 0 ? -entry.err : -FI_EIO;
	char buffer[128] = "";
	const char *detail =
		fi_cq_strerror(cq_.get(), entry.prov_errno, entry.err_data, buffer, sizeof(buffer));

	const auto *first = reinterpret_cast<const char *>(slots_.data());
	const auto *at = static_cast<const char *>(entry.op_context);
	const bool ours = at && at >= first && at < first + slots_.size() * sizeof(Slot);
	std::string call = "completion of no transfer";
	if (ours) {
		const size_t index = static_cast<size_t>(at - first) / sizeof(Slot);
		call = slots_[index].op == RmaOp::Write ? "write" : "read";
		retCompletion->context = slots_[index].context;
		free_.push_back(index);
		inFlight_--;
	}
	retCompletion->status = err;
	retCompletion->what = failure(call.c_str(), err);
	if (detail && *detail)
		retCompletion->what += std::string(", provider: ") + detail;
	return ours ? 1 : err;
}

int RmaEndpoint::pollOnce(RmaCompletion *retCompletion)
{
	fi_cq_entry entry = {};
	const ssize_t rc = fi_cq_read(cq_.get(), &entry, 1);
	if (rc == -FI_EAGAIN || rc == 0)
		return 0;
	if (rc == -FI_EAVAIL)
		return readError(retCompletion);
	if (rc < 0) {
		retCompletion->status = static_cast<int>(rc);
		retCompletion->what = failure("fi_cq_read", static_cast<int>(rc));
		return static_cast<int>(rc);
	}
	const auto *slot = static_cast<const Slot *>(entry.op_context);
	retCompletion->context = slot->context;
	retCompletion->status = 0;
	retCompletion->what.clear();
	free_.push_back(static_cast<size_t>(slot - slots_.data()));
	inFlight_--;
	return 1;
}

int RmaEndpoint::transfer(const RmaTransfer &transfer, std::chrono::milliseconds limit,
			  const std::function<void()> &meanwhile, std::string &error)
{
	if (inFlight_) {
		error = "provider '" + provider_ + "': " + std::to_string(inFlight_) +
			" operations are in flight";
		return -EBUSY;
	}
	const auto deadline = std::chrono::steady_clock::now() + limit;
	bool posted = false;
	while (std::chrono::steady_clock::now() < deadline) {
		if (!posted) {
			const int rc = post(transfer, error);
			if (rc && rc != -EAGAIN)
				return rc;
			posted = rc == 0;
		}
		RmaCompletion completion;
		const int rc = pollOnce(&completion);
		if (rc < 0 || (rc == 1 && completion.status)) {
			error = completion.what;
			return completion.status;
		}
		if (rc == 1)
			return 0;
		if (meanwhile)
			meanwhile();
	}
	error = "provider '" + provider_ +
		"': " + (transfer.op == RmaOp::Write ? "write" : "read") + " of " +
		std::to_string(transfer.length) + " bytes " +
		(posted ? "did not complete" : "could not be posted") + " within " +
		std::to_string(limit.count()) + " ms";
	return -ETIMEDOUT;
}

int RmaEndpoint::expose(void *base, size_t length, uint64_t access, RmaMemory *retMemory,
			std::string &error)
{
	fid_mr *mr = nullptr;
	const uint64_t key = nextKey_++;
	if (const int rc =
		    fi_mr_reg(domain_.get(), base, length, access, 0, key, 0, &mr, nullptr)) {
		error = failure("fi_mr_reg", rc);
		return rc;
	}
	RmaMemory memory;
	memory.mr.reset(mr);
	const int mode = info_->domain_attr->mr_mode;
	if (mode & FI_MR_ENDPOINT) {
		int rc = fi_mr_bind(mr, &ep_->fid, 0);
		if (rc == 0)
			rc = fi_mr_enable(mr);
		if (rc) {
			error = failure("fi_mr_bind, fi_mr_enable", rc);
			return rc;
		}
	}
	memory.key = fi_mr_key(mr);
	memory.desc = fi_mr_desc(mr);
	if (mode & (FI_MR_VIRT_ADDR | RmaOptions::basicMrMode))
		memory.remoteBase = reinterpret_cast<uintptr_t>(base);
	*retMemory = std::move(memory);
	return 0;
}

std::vector<std::string> rmaProviders()
{
	std::vector<std::string> names;
	for (const Known &candidate : known) {
		RmaOptions options;
		options.provider = candidate.name;
		fi_info *list = nullptr;
		if (getInfo(options, false, &list))
			continue;
		/* "tcp" is answered by "tcp;ofi_rxm" where it has no endpoints of this type */
		if (std::string(list->fabric_attr->prov_name) == candidate.name)
			names.emplace_back(candidate.name);
		fi_freeinfo(list);
	}
	return names;
}

} // namespace peerbuf::tools
