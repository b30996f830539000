// SPDX-License-Identifier: BSD-3-Clause
#include "importer.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include <sys/random.h>
#include <sys/uio.h>

#include <rdma/fi_errno.h>

namespace peerbuf::fabric
{

using plugin::hex;
using plugin::text;

namespace
{

/* Deprecated values of mr_mode that stand alone; newer headers warn when they are named. */
constexpr int mrModeBasic = 1 << 0;

/* How many keys are tried before "no key left"; the application has to hold them all in a row. */
constexpr int keyTries = 64;

#ifdef FI_MR_DMABUF
constexpr bool haveDmabuf = true;
#else
constexpr bool haveDmabuf = false;
#endif
/* Holder of the gate while a region is revoked; the core's ids of attachments leave the bit. */
constexpr uint64_t revokeHolder = uint64_t{1} << 63;

/* Opening the gate; the first touch of a new place faults its pages in on top. */
constexpr uint64_t resumeCostNs = 1000;

constexpr uint32_t dmabufApi = FI_VERSION(1, 20);

constexpr uint32_t requiredAccess = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
				    PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC;

/**
 * fi_mr_regattr takes no size: a library newer than the headers this is built with, asked for its
 * own API version by the application, reads fields behind ours. They read as 0, "not given".
 */
struct PaddedAttr {
	fi_mr_attr attr;
	uint64_t later[32];
};

std::string version(uint32_t v)
{
	return text(FI_MAJOR(v), ".", FI_MINOR(v));
}

std::string accessNames(uint32_t access)
{
	std::string list;
	const auto name = [&](uint32_t bit, const char *word) {
		if (access & bit)
			list += (list.empty() ? "" : "|") + std::string(word);
		access &= ~bit;
	};
	name(PEERBUF_ACCESS_LOCAL_WRITE, "local write");
	name(PEERBUF_ACCESS_REMOTE_READ, "remote read");
	name(PEERBUF_ACCESS_REMOTE_WRITE, "remote write");
	name(PEERBUF_ACCESS_REMOTE_ATOMIC, "remote atomic");
	if (access)
		list += (list.empty() ? "" : "|") + hex(access);
	return list;
}

uint64_t keyMask(const fi_info &info)
{
	const size_t size = info.domain_attr->mr_key_size;
	return size == 0 || size >= 8 ? UINT64_MAX : (uint64_t{1} << (8 * size)) - 1;
}

int randomKey(uint64_t mask, uint64_t *retKey)
{
	uint64_t key = 0;
	if (getrandom(&key, sizeof(key), 0) != static_cast<ssize_t>(sizeof(key)))
		return -errno;
	/* 48 bits: enough to be alone, and a run of keys does not wrap at once */
	*retKey = key & mask & ((uint64_t{1} << 48) - 1);
	return 0;
}

/** What is wrong with the application's objects, or "". */
std::string objectsProblem(const peerbuf_fabric_objects *objects)
{
	if (!objects)
		return "no objects: struct peerbuf_fabric_objects with domain and info is needed";
	constexpr size_t needed = offsetof(peerbuf_fabric_objects, ep) + sizeof(void *);
	if (objects->struct_size < needed)
		return text("struct peerbuf_fabric_objects: struct_size is ", objects->struct_size,
			    ", at least ", needed, " is needed");
	if (!objects->domain)
		return "struct peerbuf_fabric_objects: domain is NULL";
	if (!objects->info)
		return "struct peerbuf_fabric_objects: info is NULL; it is the fi_info the domain "
		       "was opened with";
	if (!objects->info->fabric_attr || !objects->info->fabric_attr->prov_name ||
	    !objects->info->domain_attr)
		return "struct peerbuf_fabric_objects: info names no provider or has no "
		       "domain_attr; "
		       "it must come from fi_getinfo";
	return "";
}

/** Why this provider cannot be used, or "". */
std::string providerProblem(const std::string &name, const Provider *provider, const fi_info &info)
{
	if (!provider)
		return text("provider '", name, "' is not known; there are: ", providerList());
	if (provider->software)
		return "";
	const std::string head = text("provider '", name,
				      "' moves bytes in hardware, so memory of another device "
				      "reaches it as a dma-buf only: ");
	if (!haveDmabuf)
		return head + text("built against libfabric ", FI_MAJOR_VERSION, ".",
				   FI_MINOR_VERSION, " headers, which lack FI_MR_DMABUF");
	const uint32_t api = info.fabric_attr->api_version;
	if (FI_VERSION_LT(api, dmabufApi))
		return head + text("the domain was opened with API version ", version(api),
				   ", FI_MR_DMABUF needs ", version(dmabufApi));
	if (!(info.caps & FI_HMEM))
		return head + "the domain was opened without FI_HMEM, which FI_MR_DMABUF needs";
	return "";
}

/**
 * Why a provider's calls cannot be stopped by a gate, or "". On the list is not enough: somebody
 * has to own the gate, and nothing may reach memory outside those calls.
 */
std::string fixedBecause(const Provider &provider, const fi_info &info,
			 const peerbuf_fabric_objects &objects, bool cma)
{
	const auto set = [](const char *name) {
		const char *value = ::getenv(name);
		return value && *value && std::string_view(value) != "0";
	};
	if (cma)
		return "peers may copy by CMA past any gate";
	if (!provider.gateable)
		return provider.why;
	if (!(objects.flags & PEERBUF_FABRIC_BRACKETED))
		return "progress is not under peerbuf's control: the application does not bracket "
		       "its "
		       "provider calls (PEERBUF_FABRIC_BRACKETED)";
	if (info.domain_attr->data_progress != FI_PROGRESS_MANUAL)
		return "progress is not under peerbuf's control: the domain has automatic data "
		       "progress";
	struct Outside {
		const char *variable;
		const char *who;
	};
	constexpr Outside outside[] = {
		{"FI_TCP_IO_URING", "the kernel"},
		{"FI_TCP_ZEROCOPY_SIZE", "the kernel"},
		{"FI_SHM_USE_DSA_SAR", "a copy engine"},
		{"FI_SHM_USE_XPMEM", "a peer"},
	};
	for (const Outside &o : outside)
		if (set(o.variable))
			return text(o.variable, " is set: ", o.who,
				    " may reach memory outside provider calls");
	return "";
}

/** Libfabric's error as an errno: those from 256 on are its own. */
int systemErrno(int rc)
{
	switch (-rc) {
	case FI_ENOKEY:
		return ENOSPC;
	case FI_ENOSYS:
	case FI_EBADFLAGS:
		return EOPNOTSUPP;
	default:
		return -rc > 0 && -rc < FI_ERRNO_OFFSET ? -rc : EIO;
	}
}

uint64_t fabricAccess(uint32_t access)
{
	/* reading by the importer itself is always allowed: FI_SEND, FI_WRITE */
	uint64_t to = FI_SEND | FI_WRITE;
	if (access & PEERBUF_ACCESS_LOCAL_WRITE)
		to |= FI_RECV | FI_READ;
	if (access & PEERBUF_ACCESS_REMOTE_READ)
		to |= FI_REMOTE_READ;
	if (access & PEERBUF_ACCESS_REMOTE_WRITE)
		to |= FI_REMOTE_WRITE;
	return to;
}

const char *nameOf(const peerbuf_reg_request &request)
{
	return request.name ? request.name : "(unnamed)";
}

} // namespace

MrMode MrMode::of(const fi_info &info)
{
	const auto bits = static_cast<unsigned>(info.domain_attr->mr_mode);
	/* the old way of saying so, alone in mr_mode */
	const bool basic = bits == static_cast<unsigned>(mrModeBasic);
	return {
		.endpoint = (bits & FI_MR_ENDPOINT) != 0,
		.providerKeys = basic || (bits & FI_MR_PROV_KEY),
		.virtualAddress = basic || (bits & FI_MR_VIRT_ADDR),
		.raw = (bits & FI_MR_RAW) != 0,
		.allocated = basic || (bits & (FI_MR_ALLOCATED | FI_MR_MMU_NOTIFY)),
	};
}

int Importer::create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
		     const peerbuf_fabric_objects *objects, std::unique_ptr<Importer> *retImporter)
{
	const plugin::Host h(host);
	plugin::Options options(host, params, nParams);
	const std::string keyBase = options.string("key_base", "");
	uint64_t firstKey = 0;
	if (!keyBase.empty()) {
		const peerbuf_param again = {"key_base", keyBase.c_str()};
		plugin::Options number(host, &again, 1);
		firstKey = number.number("key_base", 0);
		if (const int rc = number.finish())
			return rc;
	}
	const bool peersWithoutCma = options.flag("peers_without_cma", false);
	if (const int rc = options.finish())
		return rc;

	if (const std::string problem = objectsProblem(objects); !problem.empty())
		return h.fail(EINVAL, problem, PEERBUF_ERR_INVALID_ARGUMENT);
	const fi_info &info = *objects->info;
	const std::string name = info.fabric_attr->prov_name;
	const Provider *provider = findProvider(name);
	if (const std::string problem = providerProblem(name, provider, info); !problem.empty())
		return h.fail(EOPNOTSUPP, problem, PEERBUF_ERR_UNSUPPORTED_DRIVER);

	const MrMode mode = MrMode::of(info);
	if (mode.endpoint && !objects->ep)
		return h.fail(EINVAL,
			      text("provider '", name,
				   "' binds memory regions to an endpoint "
				   "(FI_MR_ENDPOINT), and objects.ep is NULL: give the enabled "
				   "endpoint that peers will address"),
			      PEERBUF_ERR_INVALID_ARGUMENT);

	const bool cma = provider->cma && !peersWithoutCma &&
			 !(objects->flags & PEERBUF_FABRIC_PEERS_WITHOUT_CMA);
	if (cma && mode.virtualAddress)
		return h.fail(
			EOPNOTSUPP,
			text("provider '", name,
			     "' with FI_MR_VIRT_ADDR: a peer that uses CMA "
			     "reads memory by address without a key, also after the region is "
			     "deregistered. Open the domain without FI_MR_VIRT_ADDR, or give "
			     "peers_without_cma=yes if every peer runs with "
			     "FI_SHM_DISABLE_CMA=1"),
			PEERBUF_ERR_UNSUPPORTED_DRIVER);

	const uint64_t mask = keyMask(info);
	if (keyBase.empty()) {
		if (const int rc = randomKey(mask, &firstKey))
			return h.fail(-rc, "getrandom, for the first memory key");
	} else if (mode.providerKeys) {
		return h.fail(EINVAL,
			      text("option key_base='", keyBase, "': provider '", name,
				   "' chooses keys itself (FI_MR_PROV_KEY)"),
			      PEERBUF_ERR_INVALID_ARGUMENT);
	} else if (firstKey > mask) {
		return h.fail(EINVAL,
			      text("option key_base='", keyBase, "': keys of provider '", name,
				   "' have ", info.domain_attr->mr_key_size,
				   " bytes, the largest is ", hex(mask)),
			      PEERBUF_ERR_INVALID_ARGUMENT);
	}

	retImporter->reset(new Importer(host, *objects, *provider, cma,
					fixedBecause(*provider, info, *objects, cma),
					KeyChooser(firstKey, mask)));
	h.debug(text("opened on provider '", name,
		     "': ", mode.virtualAddress ? "virtual addresses" : "offsets", ", ",
		     mode.raw		 ? "raw"
		     : mode.providerKeys ? "provider"
					 : "chosen",
		     " keys", mode.endpoint ? ", bound to the endpoint" : ""));
	return 0;
}

Importer::Importer(const peerbuf_host *host, const peerbuf_fabric_objects &objects,
		   const Provider &provider, bool cma, std::string whyFixed, KeyChooser keys)
    : host_(host),
      domain_(objects.domain),
      info_(objects.info),
      ep_(objects.ep),
      provider_(provider),
      mode_(MrMode::of(*objects.info)),
      cma_(cma),
      whyFixed_(std::move(whyFixed)),
      keys_(keys)
{
	if (!whyFixed_.empty())
		return;
	gate_ = std::make_unique<DomainGate>(
		[this](uint64_t ticket) {
			finishRevoke(ticket);
			host_.raw()->ticket_done(host_.raw(), ticket);
		},
		[this] { return host_.nowNs(); });
}

Importer::~Importer()
{
	retryStuck();
	for (const auto &region : stuck_)
		host_.warn(text("region ", hex(region->key), " of ", region->name,
				" could not be closed and is left to the domain"));
}

int Importer::fail(int err, const std::string &why, uint32_t errc) const
{
	return host_.fail(err, why, errc);
}

int Importer::failCall(int rc, const char *call, const peerbuf_reg_request &request) const
{
	const int err = systemErrno(rc);
	const uint32_t errc = err == ENOSPC	  ? PEERBUF_ERR_DEVICE_RESOURCES
			      : err == EOPNOTSUPP ? PEERBUF_ERR_UNSUPPORTED_DRIVER
						  : PEERBUF_OK;
	return fail(err,
		    text(call, " of provider '", provider_.name, "' for ", nameOf(request), " [",
			 request.offset, ", +", request.length, "): ", fi_strerror(-rc), " (", rc,
			 ")"),
		    errc);
}

uint32_t Importer::knownAccess() const
{
	/* fi_getinfo spells out the secondary capabilities; without any, primary means both */
	const uint64_t caps = info_->caps;
	const bool both = !(caps & (FI_REMOTE_READ | FI_REMOTE_WRITE));
	uint32_t access = PEERBUF_ACCESS_LOCAL_WRITE;
	if (both || (caps & FI_REMOTE_READ))
		access |= PEERBUF_ACCESS_REMOTE_READ;
	if (both || (caps & FI_REMOTE_WRITE))
		access |= PEERBUF_ACCESS_REMOTE_WRITE;
	if (caps & FI_ATOMIC)
		access |= PEERBUF_ACCESS_REMOTE_ATOMIC;
	return access;
}

void Importer::offer(peerbuf_importer_offer *retOffer) const
{
	if (gate_) {
		retOffer->invalidation =
			PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT;
		retOffer->invalidate_scope = PEERBUF_SCOPE_RANGE;
		retOffer->notified_by = PEERBUF_NOTIFIED_BY_USER;
		retOffer->resume_cost_ns = resumeCostNs;
	} else {
		plugin::copyName(retOffer->why,
				 text(provider_.name, ": ", whyFixed_, ", so regions are pinned"));
	}

	/* without CMA a mapped BAR is memory like any other */
	retOffer->peer2peer = !cma_;
	retOffer->variants = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	retOffer->handles = provider_.software ? PEERBUF_HANDLE_CPU : PEERBUF_HANDLE_FD;
	retOffer->access = knownAccess();
	retOffer->dma_mask_bits = 64;
	retOffer->merges_segments = 1;
	retOffer->max_segments = 0;
	retOffer->software = provider_.software;
	retOffer->locks_host_memory = 0;
	retOffer->page_sizes = UINT64_MAX;
	/* libfabric limits a transfer (ep_attr->max_msg_size), not a region */
	retOffer->max_length = PEERBUF_UNLIMITED;

	const size_t most = info_->domain_attr->mr_cnt;
	peerbuf_importer_stats held = {};
	stats(&held);
	retOffer->keys_left =
		most == 0 ? PEERBUF_UNLIMITED : most - std::min<uint64_t>(most, held.keys_used);

	const char *domain = info_->domain_attr->name;
	plugin::copyName(retOffer->device, text("fabric:", domain ? domain : provider_.name));
}

int Importer::checkAccess(const peerbuf_reg_request &request) const
{
	const uint32_t access = request.access & ~PEERBUF_ACCESS_OPTIONAL_MASK;
	if (const uint32_t unknown = access & ~requiredAccess)
		return fail(EACCES,
			    text(nameOf(request), ": access ", accessNames(unknown),
				 " means nothing to libfabric"),
			    PEERBUF_ERR_ACCESS);
	if (const uint32_t missing = access & ~knownAccess())
		return fail(EACCES,
			    text(nameOf(request), ": access ", accessNames(missing),
				 ": the domain of provider '", provider_.name,
				 "' was opened without that capability"),
			    PEERBUF_ERR_ACCESS);
	constexpr uint32_t readWrite = PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;
	if ((access & PEERBUF_ACCESS_REMOTE_ATOMIC) && (access & readWrite) != readWrite)
		return fail(
			EACCES,
			text(nameOf(request),
			     ": libfabric has no right for atomics alone; ask for remote "
			     "read and remote write as well, which peers would get in any case"),
			PEERBUF_ERR_ACCESS);
	return 0;
}

int Importer::checkSource(const peerbuf_reg_request &request, Source *retSource) const
{
	const uint32_t wanted = provider_.software ? PEERBUF_HANDLE_CPU : PEERBUF_HANDLE_FD;
	if (request.handle_kind != wanted)
		return fail(EOPNOTSUPP,
			    text(nameOf(request), ": handle kind ", request.handle_kind,
				 ", but provider '", provider_.name, "' takes ",
				 provider_.software
					 ? "a CPU mapping (it would accept any descriptor "
					   "without importing it)"
					 : "a dma-buf descriptor"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (request.length == 0 || request.offset + request.length < request.offset)
		return fail(EINVAL,
			    text(nameOf(request), ": range [", request.offset, ", +",
				 request.length, ") is empty or overflows"),
			    PEERBUF_ERR_BAD_GEOMETRY);

	if (!provider_.software) {
		const peerbuf_fd_export *from = request.fd_export;
		if (!from || from->fd < 0)
			return fail(EINVAL, text(nameOf(request), ": no dma-buf descriptor"));
		if (from->offset > from->size || request.length > from->size - from->offset)
			return fail(EINVAL,
				    text(nameOf(request), ": [", from->offset, ", +",
					 request.length, ") passes the end of the dma-buf, ",
					 from->size, " bytes"),
				    PEERBUF_ERR_BAD_GEOMETRY);
		retSource->fd = from->fd;
		retSource->fdOffset = from->offset;
		return 0;
	}

	const peerbuf_mapping *from = request.mapping;
	if (!from || !from->cpu_addr)
		return fail(EINVAL, text(nameOf(request), ": no CPU mapping"));
	const uint64_t into = request.offset - from->offset;
	if (request.offset < from->offset || into > from->length ||
	    request.length > from->length - into)
		return fail(EINVAL,
			    text(nameOf(request), ": range [", request.offset, ", +",
				 request.length, ") is not inside the mapping [", from->offset,
				 ", +", from->length, ")"),
			    PEERBUF_ERR_BAD_GEOMETRY);
	retSource->address = static_cast<char *>(from->cpu_addr) + into;
	return 0;
}

int Importer::checkIova(const peerbuf_reg_request &request, const Source &source) const
{
	/* Peers of an offset domain start at 0 whatever the address is, and a dma-buf has none of
	 * its own; only memory registered by its address fixes the address. */
	if (!request.iova || !mode_.virtualAddress || !source.address)
		return 0;
	const auto address = reinterpret_cast<uintptr_t>(source.address);
	if (request.iova == address)
		return 0;
	return fail(EINVAL,
		    text(nameOf(request), ": peers should use address ", hex(request.iova),
			 ", but provider '", provider_.name,
			 "' works with virtual addresses (FI_MR_VIRT_ADDR) and the memory is at ",
			 hex(address)),
		    PEERBUF_ERR_INVALID_ARGUMENT);
}

int Importer::registerMemory(const peerbuf_reg_request &request, const Source &source,
			     Region *region)
{
	PaddedAttr padded = {};
	fi_mr_attr &attr = padded.attr;
	uint64_t flags = 0;
	const iovec iov = {source.address, request.length};
	if (source.address)
		attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = fabricAccess(request.access);
	attr.iface = FI_HMEM_SYSTEM;
#ifdef FI_MR_DMABUF
	fi_mr_dmabuf dmabuf = {};
	if (!source.address) {
		dmabuf.fd = source.fd;
		dmabuf.offset = source.fdOffset;
		dmabuf.len = request.length;
		/* the address of the region's first byte is base_addr + offset */
		if (request.iova)
			dmabuf.base_addr = reinterpret_cast<void *>(request.iova - source.fdOffset);
		attr.dmabuf = &dmabuf;
		flags |= FI_MR_DMABUF;
	}
#endif

	uint64_t first = 0;
	for (int i = 0; i < keyTries; i++) {
		if (!mode_.providerKeys) {
			std::lock_guard<std::mutex> lock(mutex_);
			attr.requested_key = keys_.next();
		}
		if (i == 0)
			first = attr.requested_key;
		int rc = 0;
		{
			std::lock_guard<std::mutex> lock(domainMutex_);
			rc = calls_.regAttr(domain_, attr, flags, &region->mr);
		}
		if (rc == 0)
			return 0;
		region->mr = nullptr;
		if (rc != -FI_ENOKEY || mode_.providerKeys)
			return failCall(rc, "fi_mr_regattr", request);
	}
	return fail(ENOSPC,
		    text("fi_mr_regattr of provider '", provider_.name, "' for ", nameOf(request),
			 ": every key from ", hex(first), " on is taken (", keyTries,
			 " tried): ", fi_strerror(FI_ENOKEY)),
		    PEERBUF_ERR_DEVICE_RESOURCES);
}

/** Under FI_MR_ENDPOINT a region is born disabled. */
int Importer::activate(const peerbuf_reg_request &request, Region *region)
{
	if (!mode_.endpoint)
		return 0;
	std::lock_guard<std::mutex> lock(domainMutex_);
	if (const int rc = calls_.bind(region->mr, ep_))
		return failCall(rc, "fi_mr_bind", request);
	if (const int rc = calls_.enable(region->mr))
		return failCall(rc, "fi_mr_enable", request);
	return 0;
}

int Importer::describe(const peerbuf_reg_request &request, const Source &source, Region *region,
		       peerbuf_region *retRegion)
{
	uint64_t base = 0;
	if (mode_.virtualAddress) {
		if (source.address)
			base = reinterpret_cast<uintptr_t>(source.address);
		else
			base = request.iova ? request.iova : source.fdOffset;
	}
	size_t keySize = 0;
	uint8_t rawKey[PEERBUF_RAW_KEY_LEN] = {};
	if (mode_.raw) {
		keySize = sizeof(rawKey);
		std::lock_guard<std::mutex> lock(domainMutex_);
		const int rc = calls_.rawAttr(region->mr, &base, rawKey, &keySize);
		if (rc == -FI_ETOOSMALL || (rc == 0 && keySize > sizeof(rawKey)))
			return fail(EOPNOTSUPP,
				    text("provider '", provider_.name, "': raw keys have ", keySize,
					 " bytes, peerbuf carries at most ", sizeof(rawKey)),
				    PEERBUF_ERR_DEVICE_LIMIT);
		if (rc)
			return failCall(rc, "fi_mr_raw_attr", request);
	}
	region->key = fi_mr_key(region->mr);
	if (!mode_.raw && region->key == FI_KEY_NOTAVAIL)
		return fail(EOPNOTSUPP,
			    text("provider '", provider_.name,
				 "': the region has no 64-bit key, and mr_mode lacks FI_MR_RAW"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);

	retRegion->lkey = 0;
	retRegion->rkey = 0;
	retRegion->raw_key_size = static_cast<uint32_t>(keySize);
	retRegion->key64 = mode_.raw ? 0 : region->key;
	std::copy(std::begin(rawKey), std::end(rawKey), std::begin(retRegion->raw_key));
	retRegion->remote_base = base;
	retRegion->native = region->mr;
	retRegion->desc = fi_mr_desc(region->mr);
	return 0;
}

int Importer::reg(const peerbuf_reg_request &request, peerbuf_region *retRegion)
{
	retryStuck();
	if (const int rc = calls_.due("reg"))
		return fail(-rc, text(nameOf(request), ": a test made reg fail"));
	const bool follows =
		request.flow == PEERBUF_FLOW_MOVABLE || request.flow == PEERBUF_FLOW_REVOCABLE;
	if (follows && !gate_)
		return fail(EOPNOTSUPP,
			    text(nameOf(request), ": ", provider_.name, ": ", whyFixed_,
				 ", so the region cannot follow or be stopped"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (const int rc = checkAccess(request))
		return rc;
	Source source;
	if (const int rc = checkSource(request, &source))
		return rc;
	if (const int rc = checkIova(request, source))
		return rc;

	if (mode_.allocated && source.address) {
		/* the exporter may have mapped it for reading only */
		const bool writes =
			request.access & (PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_WRITE |
					  PEERBUF_ACCESS_REMOTE_ATOMIC);
		if (const int rc = calls_.populate(source.address, request.length, writes))
			return failCall(rc, "madvise(MADV_POPULATE) for FI_MR_ALLOCATED", request);
	}

	auto region = std::make_shared<Region>();
	region->attachment = request.attachment;
	region->offset = request.offset;
	region->length = request.length;
	region->name = nameOf(request);
	if (const int rc = registerMemory(request, source, region.get()))
		return rc;
	int rc = 0;
	try {
		rc = activate(request, region.get());
		if (rc == 0)
			rc = describe(request, source, region.get(), retRegion);
		if (rc == 0) {
			{
				std::lock_guard<std::mutex> lock(mutex_);
				byAttachment_[region->attachment] = region;
			}
			retRegion->token = regions_.add(region);
		}
	} catch (...) { /* out of memory; nothing may be left of it */
		end(std::move(region));
		throw;
	}
	if (rc)
		end(std::move(region));
	return rc;
}

/**
 * Close a region. One that libfabric will not close still answers to its key, so it is not
 * forgotten: it counts as used and is tried again.
 */
void Importer::end(std::shared_ptr<Region> region)
{
	int rc = 0;
	{
		std::lock_guard<std::mutex> lock(domainMutex_);
		rc = calls_.close(region->mr);
	}
	if (rc == 0)
		return;
	host_.warn(text("fi_close of region ", hex(region->key), " of ", region->name,
			", provider '", provider_.name, "': ", fi_strerror(-rc), " (", rc,
			"); its key may still be valid"));
	std::lock_guard<std::mutex> lock(mutex_);
	stuck_.push_back(std::move(region));
}

void Importer::retryStuck()
{
	std::vector<std::shared_ptr<Region>> again;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		again.swap(stuck_);
	}
	for (auto &region : again) {
		int rc = 0;
		{
			std::lock_guard<std::mutex> lock(domainMutex_);
			rc = calls_.close(region->mr);
		}
		if (rc == 0)
			continue;
		std::lock_guard<std::mutex> lock(mutex_);
		stuck_.push_back(std::move(region));
	}
}

void Importer::dereg(uint64_t token)
{
	retryStuck();
	std::shared_ptr<Region> region = regions_.take(token);
	if (!region)
		return;
	const uint64_t attachment = region->attachment;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		byAttachment_.erase(attachment);
	}
	endOnce(std::move(region));
	/* What was suspended of it keeps the gate closed no longer. */
	if (gate_)
		gate_->forget(attachment);
}

/** A revoke and a deregistration may meet. */
void Importer::endOnce(std::shared_ptr<Region> region)
{
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (std::exchange(region->ended, true))
			return;
	}
	end(std::move(region));
}

/**
 * MOVE closes the gate until the range is resumed. REVOKE closes it until nobody is inside, then
 * ends the region: from then on its key is unknown to libfabric, and what a peer had begun before
 * meets the exporter's window, behind which there is nothing of the device any more.
 */
int Importer::invalidate(const peerbuf_importer_invalidate &inv)
{
	if (const int rc = calls_.due("invalidate"))
		return rc;
	if (!gate_)
		return -EOPNOTSUPP;
	const bool move = inv.reason == PEERBUF_REASON_MOVE;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto it = byAttachment_.find(inv.attachment);
		if (it == byAttachment_.end() || it->second->revoked)
			return 0;
		if (move) {
			it->second->suspended.emplace_back(inv.offset, inv.length);
		} else {
			it->second->revoked = true;
			revoking_[inv.ticket] = it->second;
		}
	}
	if (!gate_->close(move ? inv.attachment : revokeHolder | inv.attachment, inv.ticket))
		return -EINPROGRESS;
	if (!move)
		finishRevoke(inv.ticket);
	return 0;
}

/** Nobody is inside. @return false: the ticket is of no revoke. */
bool Importer::finishRevoke(uint64_t ticket)
{
	std::shared_ptr<Region> region;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto it = revoking_.find(ticket);
		if (it == revoking_.end())
			return false;
		region = std::move(it->second);
		revoking_.erase(it);
	}
	const uint64_t attachment = region->attachment;
	endOnce(std::move(region));
	gate_->open(revokeHolder | attachment);
	gate_->forget(attachment); /* no resume follows */
	return true;
}

void Importer::resume(const peerbuf_importer_resume &res)
{
	if (!gate_)
		return;
	size_t ended = 0;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto it = byAttachment_.find(res.attachment);
		if (it == byAttachment_.end())
			return;
		auto &suspended = it->second->suspended;
		const auto covered = [&](const std::pair<uint64_t, uint64_t> &range) {
			return res.offset <= range.first &&
			       range.first + range.second <= res.offset + res.length;
		};
		const auto keep = std::remove_if(suspended.begin(), suspended.end(), covered);
		ended = static_cast<size_t>(suspended.end() - keep);
		suspended.erase(keep, suspended.end());
	}
	for (; ended; ended--)
		gate_->open(res.attachment);
}

size_t Importer::pauses(peerbuf_pause *to, size_t most)
{
	return gate_ ? gate_->takePauses(to, most) : 0;
}

void Importer::stats(peerbuf_importer_stats *retStats) const
{
	size_t stuck = 0;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		stuck = stuck_.size();
	}
	const size_t live = regions_.size();
	retStats->regions = live;
	retStats->keys_used = live + stuck;
	retStats->translations = live;
	retStats->refaults = 0;
	retStats->in_flight = 0;
	retStats->violations = 0;
	retStats->pauses = gate_ ? gate_->pauses() : 0;
}

} // namespace peerbuf::fabric
