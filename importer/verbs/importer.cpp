// SPDX-License-Identifier: BSD-3-Clause
#include "importer.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <linux/dma-buf.h>

namespace peerbuf::verbs
{

using plugin::errnoText;
using plugin::hex;
using plugin::text;

namespace
{

constexpr uint64_t pageMask = 4096 - 1;

/** Nobody there has the operation, as opposed to an operation that failed. */
bool isLacking(int rc)
{
	return rc == -EOPNOTSUPP || rc == -EPROTONOSUPPORT || rc == -ENOSYS || rc == -ENOTTY;
}

const char *nameOf(const peerbuf_reg_request &request)
{
	return request.name ? request.name : "(unnamed)";
}

unsigned verbsAccess(uint32_t access)
{
	unsigned to = 0;
	if (access & PEERBUF_ACCESS_LOCAL_WRITE)
		to |= IBV_ACCESS_LOCAL_WRITE;
	if (access & PEERBUF_ACCESS_REMOTE_READ)
		to |= IBV_ACCESS_REMOTE_READ;
	if (access & PEERBUF_ACCESS_REMOTE_WRITE)
		to |= IBV_ACCESS_REMOTE_WRITE;
	if (access & PEERBUF_ACCESS_REMOTE_ATOMIC)
		to |= IBV_ACCESS_REMOTE_ATOMIC;
	if (access & PEERBUF_ACCESS_RELAXED_ORDERING)
		to |= IBV_ACCESS_RELAXED_ORDERING;
	return to;
}

/** What is wrong with the application's objects, or "". */
std::string objectsProblem(const peerbuf_verbs_objects *objects)
{
	if (!objects)
		return "no objects: struct peerbuf_verbs_objects with pd is needed";
	constexpr size_t needed = offsetof(peerbuf_verbs_objects, pd) + sizeof(void *);
	if (objects->struct_size < needed)
		return text("struct peerbuf_verbs_objects: struct_size is ", objects->struct_size,
			    ", at least ", needed, " is needed");
	if (!objects->pd)
		return "struct peerbuf_verbs_objects: pd is NULL";
	if (!objects->pd->context || !objects->pd->context->device)
		return "struct peerbuf_verbs_objects: pd has no device; it must come from "
		       "ibv_alloc_pd";
	return "";
}

} // namespace

int Importer::create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
		     const peerbuf_verbs_objects *objects, System &system,
		     std::unique_ptr<Importer> *retImporter)
{
	const plugin::Host h(host);
	plugin::Options options(host, params, nParams);
	Settings settings;
	const std::string flow = options.choice("flow", {"auto", "movable", "revocable"}, "auto");
	settings.flow = flow == "movable"     ? PEERBUF_FLOW_MOVABLE
			: flow == "revocable" ? PEERBUF_FLOW_REVOCABLE
					      : PEERBUF_FLOW_NONE;
	settings.onDemand = options.flag("odp", false);
	settings.dataDirect = options.flag("data_direct", false);
	if (const int rc = options.finish())
		return rc;
	if (const std::string problem = objectsProblem(objects); !problem.empty())
		return h.fail(EINVAL, problem, PEERBUF_ERR_INVALID_ARGUMENT);

	std::unique_ptr<Importer> importer(new Importer(host, objects->pd, settings, system));
	if (const int rc = importer->start())
		return rc;
	*retImporter = std::move(importer);
	return 0;
}

Importer::Importer(const peerbuf_host *host, ibv_pd *pd, const Settings &settings, System &system)
    : host_(host),
      pd_(pd),
      settings_(settings),
      calls_(system),
      uverbs_(calls_, pd->context->cmd_fd)
{
}

int Importer::start()
{
	const char *name = pd_->context->device->name;
	if (const int rc = calls_.queryDevice(pd_->context, &device_))
		return fail(-rc, text("ibv_query_device of ", name, ": ", errnoText(rc)));
	kernelClosed_ = uverbs_.findDriver();
	if (settings_.flow && !uverbs_.saysFlow())
		return fail(EOPNOTSUPP,
			    text("option flow: ", name, " is of the kernel's ", uverbs_.driver(),
				 ", which cannot be asked for a flow"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (settings_.dataDirect && !calls_.hasDataDirect())
		return fail(EOPNOTSUPP,
			    text("option data_direct: ", name,
				 ": mlx5dv_reg_dmabuf_mr is not in this process (libmlx5.so.1 of "
				 "rdma-core 54 or later has it, with an mlx5 device)"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	host_.debug(text("opened on ", name, ", driver ", uverbs_.driver(),
			 kernelClosed_
				 ? text("; the kernel cannot be asked: ", errnoText(kernelClosed_))
				 : std::string()));
	return 0;
}

Importer::~Importer()
{
	retryStuck();
	for (const auto &region : stuck_)
		host_.warn(text("region ", hex(region->mr->rkey), " of ", region->name,
				" could not be ended and is left to the protection domain"));
}

uint32_t Importer::knownAccess() const
{
	uint32_t access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
			  PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_RELAXED_ORDERING;
	if (device_.atomic_cap != IBV_ATOMIC_NONE)
		access |= PEERBUF_ACCESS_REMOTE_ATOMIC;
	return access;
}

int Importer::offer(peerbuf_importer_offer *retOffer)
{
	if (const int rc = calls_.due("offer"))
		return fail(-rc, "a test made offer fail");
	/* What the driver does is evidence once it has said so, and not before. */
	if (movable_) {
		retOffer->invalidation =
			PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT;
		retOffer->invalidate_scope = PEERBUF_SCOPE_WHOLE;
		retOffer->notified_by = PEERBUF_NOTIFIED_BY_KERNEL;
	}
	const std::string driver = uverbs_.driver();
	const int lacks = kernelLacks_;
	std::string why = text("the data path obeys only the kernel (driver ", driver, ")");
	if (lacks && libraryLacks_)
		why = text("no dma-bufs: neither the provider library nor the kernel's ", driver,
			   " registers them (", errnoText(lacks), ")");
	plugin::copyName(retOffer->why, why);

	retOffer->peer2peer = 1;
	retOffer->variants = settings_.dataDirect ? PEERBUF_VARIANT_PCIE
						  : PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	retOffer->handles = PEERBUF_HANDLE_FD | PEERBUF_HANDLE_CPU;
	retOffer->access = knownAccess();
	retOffer->dma_mask_bits = 64;
	retOffer->merges_segments = 1;
	retOffer->max_segments = 0;
	retOffer->software = 0;
	retOffer->locks_host_memory = !settings_.onDemand;
	retOffer->asks_flow = uverbs_.saysFlow();
	retOffer->page_sizes = device_.page_size_cap ? device_.page_size_cap : 4096;
	retOffer->max_length = device_.max_mr_size ? device_.max_mr_size : PEERBUF_UNLIMITED;
	peerbuf_importer_stats held = {};
	stats(&held);
	const auto most = static_cast<uint64_t>(std::max(device_.max_mr, 0));
	retOffer->keys_left =
		most == 0 ? PEERBUF_UNLIMITED : most - std::min<uint64_t>(most, held.keys_used);
	plugin::copyName(retOffer->device, text("verbs:", pd_->context->device->name));
	return 0;
}

int Importer::checkAccess(const peerbuf_reg_request &request) const
{
	const uint32_t unknown = request.access & ~knownAccess() & ~PEERBUF_ACCESS_OPTIONAL_MASK;
	if (unknown)
		return fail(EACCES,
			    text(nameOf(request), ": access ", hex(unknown), " is not known to ",
				 pd_->context->device->name),
			    PEERBUF_ERR_ACCESS);
	constexpr uint32_t written = PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC;
	if ((request.access & written) && !(request.access & PEERBUF_ACCESS_LOCAL_WRITE))
		return fail(EACCES,
			    text(nameOf(request),
				 ": verbs gives remote write and atomics only together with local "
				 "write; ask for that as well"),
			    PEERBUF_ERR_ACCESS);
	return 0;
}

int Importer::regHost(const peerbuf_reg_request &request, Region *region)
{
	const peerbuf_mapping *m = request.mapping;
	const char *device = pd_->context->device->name;
	if (request.flow != PEERBUF_FLOW_PINNED && request.flow != PEERBUF_FLOW_REKEY)
		return fail(EOPNOTSUPP,
			    text(nameOf(request), ": host memory on ", device,
				 " is locked: it can neither follow moves nor be stopped"),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (!m || !m->cpu_addr || request.offset < m->offset ||
	    request.offset - m->offset > m->length ||
	    request.length > m->length - (request.offset - m->offset))
		return fail(EINVAL,
			    text(nameOf(request), ": region offset ", hex(request.offset),
				 " length ", hex(request.length), " is not inside the mapping ",
				 m ? text("of offset ", hex(m->offset), " length ", hex(m->length))
				   : std::string("(there is none)")),
			    PEERBUF_ERR_BAD_GEOMETRY);
	auto *address = static_cast<char *>(m->cpu_addr) + (request.offset - m->offset);
	unsigned access = verbsAccess(request.access);
	if (settings_.onDemand)
		access |= IBV_ACCESS_ON_DEMAND;
	const int rc =
		calls_.regMr(pd_, address, request.length, request.iova, access, &region->mr);
	if (rc == 0)
		return 0;
	const std::string what =
		text("ibv_reg_mr on ", device, " of ", nameOf(request), ", address ",
		     hex(reinterpret_cast<uintptr_t>(address)), " (offset ", hex(request.offset),
		     "), length ", hex(request.length), ", iova ", hex(request.iova), ": ",
		     errnoText(rc));
	const uint64_t limit = calls_.lockLimit();
	if (rc == -ENOMEM && request.length > limit)
		return fail(ENOMEM, text(what, "; RLIMIT_MEMLOCK is ", limit, " bytes"),
			    PEERBUF_ERR_QUOTA);
	if (rc == -EFAULT)
		return fail(EFAULT, text(what, ": this is not host memory"),
			    PEERBUF_ERR_NOT_HOST_MEMORY);
	return fail(-rc, what);
}

std::string Importer::describe(const peerbuf_reg_request &request, const DmabufRange &range)
{
	const std::string exporter = calls_.exporterOf(range.fd);
	return text(nameOf(request), " on ", pd_->context->device->name, " (driver ",
		    uverbs_.driver(), "): dma-buf ", range.fd,
		    exporter.empty() ? std::string() : text(" of '", exporter, "'"), ", offset ",
		    hex(range.offset), ", length ", hex(range.length), ", iova ", hex(range.iova));
}

std::string Importer::told(const Attempt &attempt) const
{
	std::string list;
	if (attempt.libraryAsked)
		list = text("the provider library says ", errnoText(attempt.library));
	if (attempt.kernelAsked)
		list += text(list.empty() ? "" : ", ", "the kernel itself (REG_DMABUF_MR) says ",
			     errnoText(attempt.kernel));
	return list;
}

int Importer::byLibrary(const DmabufRange &range, Region *region, Attempt *attempt)
{
	attempt->libraryAsked = true;
	if (settings_.dataDirect)
		return attempt->library = calls_.regDataDirect(pd_, range, &region->mr);
	/* the newest first; where it is missing, or its provider has nothing for it, the older */
	attempt->library = calls_.regMrEx(pd_, range, &region->mr);
	if (isLacking(attempt->library))
		attempt->library = calls_.regDmabufMr(pd_, range, &region->mr);
	return attempt->library;
}

int Importer::byKernel(const DmabufRange &range, uint32_t flow, Region *region, uint32_t *retFlow,
		       Attempt *attempt)
{
	attempt->kernelAsked = true;
	KernelRegion made;
	attempt->kernel = uverbs_.regDmabuf(pd_->handle, range, flow, &made);
	if (attempt->kernel)
		return attempt->kernel;
	region->own.context = pd_->context;
	region->own.pd = pd_;
	region->own.addr = reinterpret_cast<void *>(range.iova);
	region->own.length = range.length;
	region->own.handle = made.handle;
	region->own.lkey = made.lkey;
	region->own.rkey = made.rkey;
	region->mr = &region->own;
	*retFlow = made.flow;
	return 0;
}

/**
 * Both say that they have no such operation. That may be about this dma-buf, whose exporter or
 * whose kind of memory was refused, or about all of them: asked once more with no descriptor at
 * all, who has the operation says EBADF. Only what is so whatever the dma-buf is, is remembered.
 */
int Importer::refuseDmabuf(const DmabufRange &range, uint32_t flow, const std::string &what,
			   const Attempt &attempt)
{
	DmabufRange none = range;
	none.fd = -1;
	Region unused;
	uint32_t took = 0;
	Attempt probe;
	if (attempt.kernelAsked && attempt.kernel == kernelLacks_) {
		probe.kernel = attempt.kernel;
	} else if (attempt.kernelAsked) {
		/* without the wish, which might be what is unknown; a success cannot be */
		if (byKernel(none, PEERBUF_FLOW_NONE, &unused, &took, &probe) == 0)
			(void)endNow(unused);
	}
	const bool kernelHas = attempt.kernelAsked && !isLacking(probe.kernel);
	const std::string driver = uverbs_.driver();
	if (kernelHas && flow == PEERBUF_FLOW_REVOCABLE && attempt.kernel == -EPROTONOSUPPORT)
		return fail(EOPNOTSUPP,
			    text(what, ": the kernel's ", driver,
				 " registers dma-bufs but cannot be asked for Revocable: ",
				 told(attempt)),
			    PEERBUF_ERR_UNSUPPORTED_KERNEL);
	if (kernelHas)
		return fail(
			EOPNOTSUPP,
			text(what, ": the kernel's ", driver,
			     " registers dma-bufs, but not this one: ", told(attempt),
			     ". Its exporter refuses this importer, or has no way to its memory "
			     "that the driver can use (soft-RoCE needs a mapping for the CPU)"),
			PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (attempt.libraryAsked && !settings_.dataDirect && !libraryLacks_) {
		Region alsoUnused;
		if (byLibrary(none, &alsoUnused, &probe) == 0)
			(void)endNow(alsoUnused);
		libraryLacks_ = isLacking(probe.library);
	}
	if (settings_.dataDirect)
		return fail(EOPNOTSUPP,
			    text(what, ": there is no data-direct path: ", told(attempt)),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (!attempt.kernelAsked)
		return fail(EOPNOTSUPP,
			    text(what, ": ", told(attempt),
				 ", and the kernel cannot be asked past it: ",
				 errnoText(kernelClosed_)),
			    PEERBUF_ERR_UNSUPPORTED_DRIVER);
	kernelLacks_ = probe.kernel;
	const bool noMethod = probe.kernel != -EOPNOTSUPP;
	return fail(noMethod ? -probe.kernel : EOPNOTSUPP,
		    text(what, ": ",
			 noMethod ? std::string("this kernel has no method for dma-bufs")
				  : text("the kernel's ", driver, " does not import dma-bufs"),
			 ", so what the provider library has does not matter: ", told(attempt)),
		    noMethod ? PEERBUF_ERR_UNSUPPORTED_KERNEL : PEERBUF_ERR_UNSUPPORTED_DRIVER);
}

/** It has the operation, and that failed. */
int Importer::failDmabuf(int rc, const DmabufRange &range, const std::string &what,
			 const Attempt &attempt)
{
	if (rc == -EINVAL) {
		/* a dma-buf refuses a sync of nothing; what is none knows no sync at all */
		dma_buf_sync nothing = {};
		const int sync = calls_.ioctl(range.fd, DMA_BUF_IOCTL_SYNC, &nothing);
		if (sync == -ENOTTY || sync == -EBADF)
			return fail(EINVAL,
				    text(what, ": descriptor ", range.fd,
					 " is no dma-buf of the kernel: ", told(attempt)),
				    PEERBUF_ERR_UNSUPPORTED_DRIVER);
		return fail(EINVAL,
			    text(what, ": ", told(attempt),
				 "; the range is empty, passes the end or 2^64, or the exporter "
				 "refused to attach or map it"),
			    PEERBUF_ERR_BAD_GEOMETRY);
	}
	if (rc == -ENOSPC || rc == -EAGAIN)
		return fail(-rc, text(what, ": ", told(attempt)), PEERBUF_ERR_DEVICE_RESOURCES);
	return fail(-rc, text(what, ": ", told(attempt)));
}

int Importer::regDmabuf(const peerbuf_reg_request &request, Region *region, uint32_t *retFlow)
{
	const peerbuf_fd_export *e = request.fd_export;
	if (!e)
		return fail(EINVAL, text(nameOf(request), ": there is no dma-buf"),
			    PEERBUF_ERR_INVALID_ARGUMENT);
	const DmabufRange range = {e->offset, request.length, request.iova, e->fd,
				   verbsAccess(request.access)};
	const std::string what = describe(request, range);
	if ((range.offset ^ range.iova) & pageMask)
		return fail(EINVAL, text(what, ": offset and iova differ inside the page"),
			    PEERBUF_ERR_BAD_GEOMETRY);

	uint32_t flow = settings_.flow;
	if (!flow && uverbs_.saysFlow() && request.flow == PEERBUF_FLOW_REVOCABLE)
		flow = PEERBUF_FLOW_REVOCABLE;
	/* Where the kernel can say what it took, it is asked first: no library passes that on. */
	const bool kernelFirst = uverbs_.saysFlow() && !settings_.dataDirect;
	Attempt attempt;
	int rc = -ENOSYS;
	for (const bool kernel : {kernelFirst, !kernelFirst}) {
		/* the ioctl has no attribute for the data-direct path */
		if (kernel && (settings_.dataDirect || !uverbs_.known()))
			continue;
		if (kernel) {
			attempt.kernel = kernelLacks_;
			attempt.kernelAsked = true;
			rc = attempt.kernel ? attempt.kernel
					    : byKernel(range, flow, region, retFlow, &attempt);
		} else if (flow == PEERBUF_FLOW_REVOCABLE) {
			continue; /* no library can pass the wish on */
		} else {
			attempt.libraryAsked = true;
			attempt.library = libraryLacks_ ? -EOPNOTSUPP : 0;
			rc = attempt.library ? attempt.library : byLibrary(range, region, &attempt);
		}
		if (!isLacking(rc))
			break;
	}
	if (isLacking(rc))
		return refuseDmabuf(range, flow, what, attempt);
	if (rc)
		return failDmabuf(rc, range, what, attempt);
	if (flow && *retFlow && *retFlow != flow) {
		const uint32_t took = *retFlow;
		if (endNow(*region))
			host_.warn(text(what, ": a region of the wrong flow is left"));
		return fail(EPROTO,
			    text(what, ": asked for flow ", flow, ", the kernel's ",
				 uverbs_.driver(), " took ", took),
			    PEERBUF_ERR_INTERNAL);
	}
	if (*retFlow == PEERBUF_FLOW_MOVABLE)
		movable_ = true;
	return 0;
}

int Importer::reg(const peerbuf_reg_request &request, peerbuf_region *retRegion)
{
	retryStuck();
	if (const int rc = calls_.due("reg"))
		return fail(-rc, text(nameOf(request), ": a test made reg fail"));
	if (const int rc = checkAccess(request))
		return rc;
	auto region = std::make_shared<Region>();
	region->name = nameOf(request);
	uint32_t flow = PEERBUF_FLOW_NONE;
	int rc = 0;
	if (request.handle_kind == PEERBUF_HANDLE_FD)
		rc = regDmabuf(request, region.get(), &flow);
	else if (request.handle_kind == PEERBUF_HANDLE_CPU)
		rc = regHost(request, region.get());
	else
		rc = fail(EINVAL,
			  text(nameOf(request), ": handle kind ", request.handle_kind,
			       "; verbs takes a dma-buf or host memory"),
			  PEERBUF_ERR_INVALID_ARGUMENT);
	if (rc)
		return rc;
	retRegion->lkey = region->mr->lkey;
	retRegion->rkey = region->mr->rkey;
	retRegion->key64 = region->mr->rkey;
	retRegion->remote_base = request.iova;
	retRegion->native = region->mr;
	retRegion->kernel_flow = flow;
	try {
		retRegion->token = regions_.add(region);
	} catch (...) { /* out of memory; nothing may be left of it */
		end(std::move(region));
		throw;
	}
	return 0;
}

int Importer::endNow(Region &region)
{
	return region.byKernel() ? uverbs_.destroy(region.own.handle) : calls_.deregMr(region.mr);
}

/** A region that would not end still answers to its key: it is kept, and tried again. */
void Importer::end(std::shared_ptr<Region> region)
{
	const int rc = endNow(*region);
	if (rc == 0)
		return;
	host_.warn(text(region->byKernel() ? "MR_DESTROY" : "ibv_dereg_mr", " on ",
			pd_->context->device->name, " of region ", hex(region->mr->rkey), " of ",
			region->name, ": ", errnoText(rc), "; its key may still be valid"));
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
		if (endNow(*region) == 0)
			continue;
		std::lock_guard<std::mutex> lock(mutex_);
		stuck_.push_back(std::move(region));
	}
}

void Importer::dereg(uint64_t token)
{
	retryStuck();
	if (std::shared_ptr<Region> region = regions_.take(token))
		end(std::move(region));
}

void Importer::stats(peerbuf_importer_stats *retStats) const
{
	size_t stuck = 0;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		stuck = stuck_.size();
	}
	const size_t live = regions_.size();
	*retStats = {};
	retStats->regions = live;
	retStats->keys_used = live + stuck;
	retStats->translations = live;
}

} // namespace peerbuf::verbs
