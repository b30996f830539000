// SPDX-License-Identifier: BSD-3-Clause
#include "nic.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace peerbuf::emulated
{

using plugin::copyName;
using plugin::hex;
using plugin::text;

namespace
{

// more is a mistake, not a region: the table alone would be tens of GiB
constexpr uint64_t mostPages = uint64_t{1} << 28;

constexpr unsigned generationBits = 8;

} // namespace

void Nic::After::deliver() noexcept
{
	for (const auto &[level, line] : lines_)
		host_.raw()->log(host_.raw(), level, line.c_str());
	for (const uint64_t ticket : tickets_)
		host_.raw()->ticket_done(host_.raw(), ticket);
	lines_.clear();
	tickets_.clear();
}

void Nic::deliver(After &after)
{
	if (after.empty())
		return;
	mutex_.unlock();
	after.deliver();
	mutex_.lock();
}

Nic::Nic(const peerbuf_host *host, NicOptions options)
    : host_(host),
      options_(std::move(options)),
      random_(options_.seed),
      domain_(options_.dmaMask())
{
}

Nic::~Nic()
{
	if (!thread_.joinable())
		return;
	{
		const MutexLock lock(mutex_);
		stopping_ = true;
	}
	changed_.notify_all();
	thread_.join();
}

void Nic::start()
{
	// the application's signal handlers must not run on a thread it does not know
	sigset_t all;
	sigset_t before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	try {
		thread_ = std::thread(&Nic::run, this);
	} catch (...) {
		pthread_sigmask(SIG_SETMASK, &before, nullptr);
		throw;
	}
	pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/* ---- offer -------------------------------------------------------------------------------- */

int Nic::offer(peerbuf_importer_offer &ret_offer)
{
	if (const int rc = faults_.due("offer"))
		return host_.fail(-rc, text(options_.name, ": injected fault at offer"));

	peerbuf_importer_offer offer = {};
	offer.struct_size = sizeof(offer);
	std::string why;
	switch (options_.profile) {
	case Profile::Refault:
		offer.invalidation = PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT;
		break;
	case Profile::Revocable:
		offer.invalidation = PEERBUF_INVALIDATION_REVOCABLE;
		why = "profile=revocable: it stops for good, since it has no way to ask for a "
		      "translation again";
		break;
	case Profile::Neither:
		why = "profile=neither: it cannot stop using a region before it is deregistered";
		break;
	}
	if (options_.profile != Profile::Neither) {
		offer.invalidate_scope =
			options_.wholeScope ? PEERBUF_SCOPE_WHOLE : PEERBUF_SCOPE_RANGE;
		offer.notified_by = PEERBUF_NOTIFIED_BY_USER;
		if (options_.wholeScope)
			why += text(why.empty() ? "" : "; ",
				    "scope=whole: it cannot stop a part of a region");
	}
	if (!options_.peer2peer)
		why += text(why.empty() ? "" : "; ", "peer2peer=no: it needs memory of the host");
	copyName(offer.why, why);

	offer.peer2peer = options_.peer2peer || options_.mutant == Mutant::P2pFlagIgnored;
	offer.variants = options_.variants;
	offer.handles = PEERBUF_HANDLE_SEGMENTS;
	offer.access = options_.access;
	// behind an IOMMU that translates the device never sees the exporter's addresses
	offer.dma_mask_bits = options_.iommuTranslates ? 64 : options_.dmaMaskBits;
	offer.merges_segments = options_.mergesSegments;
	offer.max_segments = options_.maxSegments;
	offer.software = 1;
	offer.locks_host_memory = options_.locksHostMemory;
	offer.page_sizes = options_.pageSizes;
	offer.max_length = options_.maxLength;
	copyName(offer.device, options_.name);
	{
		const MutexLock lock(mutex_);
		offer.keys_left = options_.keys - keysUsed_;
		offer.resume_cost_ns = refaults_ ? refaultNs_ / refaults_ : 0;
	}
	ret_offer = offer;
	return 0;
}

/* ---- keys --------------------------------------------------------------------------------- */

bool Nic::takeKey(Region &region)
{
	if (keysUsed_ >= options_.keys)
		return false;
	uint64_t slot;
	if (!leakedSlots_.empty()) {
		slot = leakedSlots_.back();
		leakedSlots_.pop_back();
	} else if (generations_.size() < options_.keys) {
		slot = generations_.size();
		generations_.push_back(0);
	} else {
		slot = freeSlots_.front();
		freeSlots_.pop_front();
	}
	keysUsed_++;
	region.slot = slot;
	region.hasKey = true;
	// slots count from 1, so that no key is 0
	region.key = (slot + 1) << generationBits | generations_[slot];
	return true;
}

void Nic::freeKey(Region &region)
{
	if (!region.hasKey)
		return;
	freeSlots_.push_back(region.slot);
	region.hasKey = false;
	generations_[region.slot]++;
	keysUsed_--;
}

/** Mutant: what a driver does that destroys the key in its revoke handler. */
void Nic::freeKeyTooEarly(const RegionPtr &region)
{
	if (!region->hasKey)
		return;
	leakedSlots_.push_back(region->slot);
	region->hasKey = false;
	keys_.erase(region->key);
	keysUsed_--;
}

/* ---- regions ------------------------------------------------------------------------------ */

std::optional<Failure> Nic::makeRegion(const peerbuf_reg_request &request, Layout &ret_layout,
				       RegionPtr &ret_region) const
{
	if (std::optional<Failure> failure = checkRequest(options_, request))
		return failure;
	const std::string name = request.name ? request.name : "buffer";
	const Extent extent = {request.offset, request.length, request.iova};
	const bool movable = request.flow == PEERBUF_FLOW_MOVABLE;

	if (request.mapping) {
		if (std::optional<Failure> failure =
			    checkMapping(options_, extent, *request.mapping, name, ret_layout))
			return failure;
	}
	uint64_t pageSize = 0;
	// a mutant's wrong addresses stay inside the mapping only in the smallest pages
	const bool smallest = movable || options_.mutant == Mutant::OffsetDropped ||
			      options_.mutant == Mutant::FirstSegmentOnly;
	std::optional<Failure> failure =
		smallest ? chooseMovablePageSize(options_, extent, request.granularity, name,
						 pageSize)
			 : choosePageSize(options_, ret_layout, name, pageSize);
	if (failure)
		return failure;
	if (ret_layout.pageMask & (pageSize - 1))
		return Failure{EINVAL, PEERBUF_ERR_BAD_GEOMETRY,
			       text(options_.name, ": ", name,
				    ": segments and iova differ in bits ",
				    hex(ret_layout.pageMask & (pageSize - 1)),
				    " below the device's page of ", hex(pageSize))};

	auto region = std::make_shared<Region>();
	region->attachment = request.attachment;
	region->offset = request.offset;
	region->length = request.length;
	region->iova = request.iova;
	region->granularity = request.granularity;
	region->pageSize = pageSize;
	region->access = request.access;
	region->movable = movable;
	region->name = name;
	if (region->pageCount() > mostPages)
		return Failure{ENOMEM, PEERBUF_ERR_DEVICE_RESOURCES,
			       text(options_.name, ": ", name, ": ", region->pageCount(),
				    " pages of ", hex(pageSize), ", its table holds ", mostPages)};
	region->pages.resize(region->pageCount());
	region->letGo.resize(region->pageCount());
	ret_region = std::move(region);
	return std::nullopt;
}

int Nic::reg(const peerbuf_reg_request &request, peerbuf_region &ret_region)
{
	const auto injected = [this](int rc, const char *step) {
		return host_.fail(-rc, text(options_.name, ": injected fault at ", step));
	};
	if (const int rc = faults_.due("reg"))
		return injected(rc, "reg");
	Layout layout;
	RegionPtr region;
	std::optional<Failure> failure = makeRegion(request, layout, region);
	if (failure)
		return host_.fail(failure->err, failure->why, failure->errc);
	if (const int rc = faults_.due("reg.table"))
		return injected(rc, "reg.table");
	const int failKey = faults_.due("reg.key");
	const int failProgram = faults_.due("reg.program");
	{
		After after(host_);
		const MutexLock lock(mutex_);
		try {
			failure =
				enter(region, request.mapping, layout, failKey, failProgram, after);
		} catch (...) {
			remove(region);
			settleTickets(after);
			throw;
		}
		if (failure) {
			remove(region);
			settleTickets(after);
		}
	}
	if (failure)
		return host_.fail(failure->err, failure->why, failure->errc);

	peerbuf_region out = {};
	out.struct_size = sizeof(out);
	out.lkey = out.rkey = static_cast<uint32_t>(region->key);
	out.key64 = region->key;
	out.remote_base = region->iova;
	out.token = region->token;
	ret_region = out;
	return 0;
}

/** Make a region known and give it a key and its translation. The caller undoes it. */
std::optional<Failure> Nic::enter(const RegionPtr &region, const peerbuf_mapping *mapping,
				  const Layout &layout, int failKey, int failProgram, After &after)
{
	if (!takeKey(*region))
		return Failure{ENOSPC, PEERBUF_ERR_DEVICE_RESOURCES,
			       text(options_.name, ": ", region->name, ": no key left, all ",
				    options_.keys, " are taken")};
	if (failKey)
		return Failure{-failKey, PEERBUF_OK,
			       text(options_.name, ": injected fault at reg.key")};
	region->token = ++lastToken_;
	// known before anything is asked for: an invalidate may come from inside map
	regions_.emplace(region->token, region);
	keys_.emplace(region->key, region);
	attachments_.emplace(region->attachment, region);
	if (mapping) {
		if (std::optional<Failure> failure =
			    program(*region, layout, *mapping, region->allPages()))
			return failure;
	}
	if (failProgram)
		return Failure{-failProgram, PEERBUF_OK,
			       text(options_.name, ": injected fault at reg.program")};
	if (!mapping && options_.prefault)
		return prefault(region, after);
	return std::nullopt;
}

std::optional<Failure> Nic::prefault(const RegionPtr &region, After &after)
{
	const uint64_t count = region->pages.size();
	const uint64_t step = std::max<uint64_t>(1, options_.faultWindow / region->pageSize);
	for (uint64_t page = 0; page < count; page += step) {
		const PageRange pages = {page, std::min(count, page + step)};
		const int rc = fetchRange(region, pages, after);
		if (rc == -EAGAIN || rc == -ECANCELED)
			return std::nullopt; // suspended already: the first touch maps
		if (rc)
			return Failure{-rc, PEERBUF_OK,
				       text(options_.name, ": ", region->name, ": mapping ",
					    hex(region->bufferOffset(region->pageBegin(page))),
					    " failed, errno ", -rc)};
	}
	return std::nullopt;
}

/** Take a region, or what there is of one, out of every table. Nothing of it is in flight. */
void Nic::remove(const RegionPtr &region)
{
	region->gone = true;
	drop(*region, region->allPages());
	if (region->token) {
		regions_.erase(region->token);
		auto key = keys_.find(region->key);
		// a mutant may have given the key to another region
		if (key != keys_.end() && key->second == region)
			keys_.erase(key);
		auto [it, end] = attachments_.equal_range(region->attachment);
		for (; it != end; ++it) {
			if (it->second == region) {
				attachments_.erase(it);
				break;
			}
		}
	}
	freeKey(*region);
	// whatever lands from now on is a breach
	std::fill(region->letGo.begin(), region->letGo.end(), UINT64_MAX);
}

void Nic::dereg(uint64_t token)
{
	faults_.due("dereg");
	After after(host_);
	const MutexLock lock(mutex_);
	auto it = regions_.find(token);
	if (it == regions_.end() || it->second->gone)
		return;
	const RegionPtr region = it->second;
	region->gone = true; // no new packet, no new translation
	landAll([&](const Packet &packet) { return packet.region == region; }, after);
	while (!region->fetches.empty())
		changed_.wait(mutex_);
	remove(region);
	settleTickets(after);
	changed_.notify_all();
}

/* ---- translation -------------------------------------------------------------------------- */

/** Enter the places of @p pages into the table, all of them reached by @p layout. */
std::optional<Failure> Nic::program(Region &region, const Layout &layout,
				    const peerbuf_mapping &mapping, PageRange pages)
{
	drop(region, pages);
	const bool translates = options_.iommuTranslates && options_.mutant != Mutant::Untranslated;
	uint64_t domainAddress = 0;
	if (translates) {
		const uint64_t bytes = (pages.end - pages.begin) * region.pageSize;
		const std::optional<uint64_t> found = domain_.findSpace(bytes, region.pageSize);
		if (!found)
			return Failure{ENOSPC, PEERBUF_ERR_DEVICE_RESOURCES,
				       text(options_.name, ": ", region.name, ": no room for ",
					    hex(bytes), " bytes in an IOMMU domain of ",
					    options_.dmaMaskBits, " address bits")};
		domainAddress = *found;
	}

	uint64_t lost = 0;
	if (options_.mutant == Mutant::OffsetDropped)
		lost = (region.offset - mapping.offset) & ~(basePage - 1);

	size_t at = 0;
	for (uint64_t page = pages.begin; page < pages.end; page++) {
		const uint64_t address = region.pageBegin(page);
		const uint64_t inPage = address % region.pageSize;
		const uint64_t offset = region.bufferOffset(address) - lost;
		while (at + 1 < layout.runs.size() && offset >= layout.runs[at + 1].offset)
			at++;
		const Run &run = layout.runs[at];
		uint64_t inRun = offset - run.offset;
		if (options_.mutant == Mutant::FirstSegmentOnly) {
			const uint64_t wanted = offset - layout.runs[0].offset;
			at = 0;
			inRun = wanted % layout.runs[0].length;
		}
		const Run &used = layout.runs[at];

		Translation &entry = region.pages[page];
		entry.cpu = reinterpret_cast<uintptr_t>(used.cpu) + inRun - inPage;
		entry.address = used.dmaAddr + inRun - inPage;
		if (translates) {
			entry.address = domainAddress;
			domain_.map(domainAddress, region.pageSize, entry.cpu);
			domainAddress += region.pageSize;
		}
		entry.peer2peer = mapping.peer2peer != 0;
		entry.serial = ++serial_;
		entry.valid = true;
		translations_++;
	}
	return std::nullopt;
}

/** Check a mapping that a refault brought, and enter it. */
std::optional<Failure> Nic::install(Region &region, const peerbuf_mapping &mapping, PageRange pages)
{
	const uint64_t first = region.pageBegin(pages.begin);
	const uint64_t end = region.pageEnd(pages.end - 1);
	const Extent extent = {region.bufferOffset(first), end - first, first};
	Layout layout;
	if (std::optional<Failure> failure =
		    checkMapping(options_, extent, mapping, region.name, layout))
		return failure;
	if (layout.pageMask & (region.pageSize - 1))
		return Failure{EINVAL, PEERBUF_ERR_BAD_GEOMETRY,
			       text(options_.name, ": ", region.name, ": the place at generation ",
				    mapping.generation, " differs in bits ",
				    hex(layout.pageMask & (region.pageSize - 1)),
				    " below the region's page of ", hex(region.pageSize))};
	return program(region, layout, mapping, pages);
}

void Nic::drop(Region &region, PageRange pages)
{
	for (uint64_t page = pages.begin; page < pages.end; page++) {
		Translation &entry = region.pages[page];
		if (!entry.valid)
			continue;
		entry.valid = false;
		translations_--;
		if (options_.iommuTranslates)
			domain_.release(entry.address);
	}
}

/**
 * Ask the host for the translation of some pages. The mutex is free meanwhile.
 * @return 0; -ECANCELED: look again, things have changed; -EAGAIN: suspended; what map said.
 */
int Nic::fetchRange(const RegionPtr &region, PageRange pages, After &after)
{
	Fetch fetch = {++serial_, pages, false, false};
	region->fetches.push_back(&fetch);
	const uint64_t first = region->pageBegin(pages.begin);
	const uint64_t length = region->pageEnd(pages.end - 1) - first;
	mutex_.unlock();
	after.deliver();
	peerbuf_mapping mapping = {};
	mapping.struct_size = sizeof(mapping);
	const uint64_t start = host_.nowNs();
	int rc = faults_.due("map");
	if (!rc)
		rc = host_.raw()->map(host_.raw(), region->attachment, region->bufferOffset(first),
				      length, &mapping);
	const uint64_t took = host_.nowNs() - start;
	mutex_.lock();

	std::erase(region->fetches, &fetch);
	changed_.notify_all();
	settleTickets(after);
	if (fetch.cancelled || region->gone || region->revoked)
		return -ECANCELED;
	if (rc == -EAGAIN)
		return fetch.resumed ? -ECANCELED : -EAGAIN;
	if (rc)
		return rc;
	if (const std::optional<Failure> failure = install(*region, mapping, pages)) {
		after.log(PEERBUF_LOG_DEBUG, failure->why);
		return -failure->err;
	}
	refaults_++;
	refaultNs_ += took;
	return 0;
}

/** A request touched a page without translation. */
void Nic::refault(const RequestPtr &request, const RegionPtr &region, uint64_t page, After &after)
{
	const uint64_t offset = region->bufferOffset(region->pageBegin(page));
	const PageRange granule =
		region->pagesOf(offset - offset % region->granularity, region->granularity);
	PageRange window = granule;
	while (window.end < region->pages.size() &&
	       (window.end - window.begin) * region->pageSize < options_.faultWindow &&
	       !region->pages[window.end].valid && !blocked(*region, window.end))
		window.end++;
	if (options_.trace)
		after.log(PEERBUF_LOG_TRACE, text("refault #", request->id, " pages ", window.begin,
						  " to ", window.end));

	request->busy = true;
	int rc = fetchRange(region, window, after);
	// perhaps only the neighbours are suspended
	if (rc == -EAGAIN && window.end > granule.end)
		rc = fetchRange(region, granule, after);
	request->busy = false;
	changed_.notify_all();
	switch (rc) {
	case 0:
	case -ECANCELED:
		break;
	case -EAGAIN:
		region->stopped.add(granule.begin, granule.end);
		break;
	case -ENODEV:
		request->status = -EACCES;
		settle(request);
		break;
	default:
		request->status = -EIO;
		settle(request);
		break;
	}
}

/* ---- letting go --------------------------------------------------------------------------- */

bool Nic::drained(const Ticket &ticket) const
{
	for (const Stop &stop : ticket.stops) {
		for (const Fetch *fetch : stop.region->fetches) {
			if (fetch->serial <= ticket.upTo && fetch->pages.overlaps(stop.pages))
				return false;
		}
	}
	const auto inFlight = [&](const Packet &packet) {
		if (packet.serial > ticket.upTo)
			return false;
		return std::any_of(ticket.stops.begin(), ticket.stops.end(), [&](const Stop &stop) {
			return packet.region == stop.region &&
			       stop.pages.overlaps({packet.page, packet.page + 1});
		});
	};
	return std::none_of(writes_.begin(), writes_.end(), inFlight) &&
	       std::none_of(reads_.begin(), reads_.end(), inFlight);
}

/** From now on touching these pages by an old translation is a breach. */
void Nic::acknowledge(const Ticket &ticket)
{
	for (const Stop &stop : ticket.stops) {
		for (uint64_t page = stop.pages.begin; page < stop.pages.end; page++)
			stop.region->letGo[page] = std::max(stop.region->letGo[page], ticket.upTo);
	}
}

void Nic::settleTickets(After &after)
{
	for (size_t i = 0; i < tickets_.size();) {
		if (!drained(tickets_[i])) {
			i++;
			continue;
		}
		const Ticket ticket = std::move(tickets_[i]);
		tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(i));
		acknowledge(ticket);
		if (options_.mutant == Mutant::TicketLost)
			continue;
		after.ticket(ticket.id);
		if (options_.mutant == Mutant::TicketDouble)
			after.ticket(ticket.id);
	}
}

int Nic::invalidate(const peerbuf_importer_invalidate &inv)
{
	if (inv.reason != PEERBUF_REASON_MOVE && inv.reason != PEERBUF_REASON_REVOKE)
		return host_.fail(EINVAL,
				  text(options_.name, ": invalidate for reason ", inv.reason,
				       ", 1 (move) and 2 (revoke) are known"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (const int rc = faults_.due("invalidate"))
		return host_.fail(-rc, text(options_.name, ": injected fault at invalidate"));

	std::string cannot;
	{
		After after(host_);
		const MutexLock lock(mutex_);
		Ticket ticket = {inv.ticket, serial_, {}};
		auto [it, end] = attachments_.equal_range(inv.attachment);
		for (; it != end; ++it) {
			const RegionPtr &region = it->second;
			const PageRange touched = region->pagesOf(inv.offset, inv.length);
			if (touched.empty())
				continue;
			if (options_.profile == Profile::Neither) {
				cannot = region->name;
				continue;
			}
			const bool suspend = inv.reason == PEERBUF_REASON_MOVE &&
					     options_.profile == Profile::Refault &&
					     region->movable;
			const PageRange pages =
				suspend && !options_.wholeScope ? touched : region->allPages();
			ticket.stops.push_back({region, pages});
			if (suspend)
				region->stopped.add(touched.begin, touched.end);
			else
				region->revoked = true; // whoever cannot refault stays stopped
			for (Fetch *fetch : region->fetches) {
				if (fetch->pages.overlaps(pages))
					fetch->cancelled = true;
			}
			if (suspend && options_.mutant == Mutant::StaleTranslationOnResume)
				continue;
			if (!suspend && options_.mutant == Mutant::KeyReuseAfterRevoke)
				freeKeyTooEarly(region);
			drop(*region, pages);
		}
		changed_.notify_all();
		if (cannot.empty()) {
			if (drained(ticket)) {
				acknowledge(ticket);
				return 0;
			}
			if (options_.mutant == Mutant::TicketBeforeDrain) {
				acknowledge(ticket);
				after.ticket(ticket.id);
			} else {
				tickets_.push_back(std::move(ticket));
			}
			return -EINPROGRESS;
		}
	}
	return host_.fail(EOPNOTSUPP,
			  text(options_.name, ": ", cannot,
			       ": told to let go, but profile=neither cannot stop"),
			  PEERBUF_ERR_REVOKE_UNSUPPORTED);
}

void Nic::resume(const peerbuf_importer_resume &res)
{
	faults_.due("resume");
	if (res.aborted && options_.mutant == Mutant::NoResumeAfterAbort)
		return;
	const MutexLock lock(mutex_);
	auto [it, end] = attachments_.equal_range(res.attachment);
	for (; it != end; ++it) {
		const RegionPtr &region = it->second;
		const PageRange pages = region->pagesOf(res.offset, res.length);
		region->stopped.remove(pages.begin, pages.end);
		for (Fetch *fetch : region->fetches) {
			if (fetch->pages.overlaps(pages))
				fetch->resumed = true;
		}
	}
	changed_.notify_all();
}

/* ---- engine ------------------------------------------------------------------------------- */

Nic::RegionPtr Nic::findKey(uint64_t key) const
{
	auto it = keys_.find(key);
	return it == keys_.end() ? nullptr : it->second;
}

/** Its next packet can go nowhere before a resume. A request that will fail does not wait. */
bool Nic::waits(const Request &request) const
{
	const RegionPtr region = findKey(request.transfer.key64);
	if (!region || region->gone || region->revoked)
		return false;
	const uint64_t address = request.transfer.remote_addr + request.fetched;
	if (address < region->iova || address - region->iova >= region->length)
		return false;
	return blocked(*region, region->pageOf(address));
}

/** What can be done next, in an order that depends on nothing but the history. */
void Nic::listActions()
{
	actions_.clear();
	for (size_t i = 0; i < requests_.size(); i++) {
		const Request &request = *requests_[i];
		if (request.busy || request.status ||
		    (request.fetched == request.transfer.length && request.transfer.length))
			continue; // its last packets are on their way
		if (request.transfer.op == PEERBUF_TRANSFER_WRITE &&
		    writes_.size() >= options_.postedWrites)
			continue;
		if (request.transfer.op == PEERBUF_TRANSFER_READ &&
		    reads_.size() >= options_.postedWrites)
			continue;
		if (!waits(request))
			actions_.push_back({ActionKind::Fetch, i});
	}
	if (!writes_.empty())
		actions_.push_back({ActionKind::LandWrite, 0});
	for (size_t i = 0; i < reads_.size(); i++)
		actions_.push_back({ActionKind::LandRead, i});
}

bool Nic::stepOnce(After &after)
{
	listActions();
	if (actions_.empty())
		return false;
	const Action action = actions_[random_() % actions_.size()];
	switch (action.kind) {
	case ActionKind::Fetch:
		// a copy: requests may complete and leave the list meanwhile
		fetch(RequestPtr(requests_[action.index]), after);
		break;
	case ActionKind::LandWrite:
		landWrite(action.index, after);
		break;
	case ActionKind::LandRead:
		landRead(action.index, after);
		break;
	}
	return true;
}

/** Look up the next packet's translation and send it on its way. */
void Nic::fetch(const RequestPtr &request, After &after)
{
	const peerbuf_transfer &transfer = request->transfer;
	const bool write = transfer.op == PEERBUF_TRANSFER_WRITE;
	const RegionPtr region = findKey(transfer.key64);
	const uint32_t needed = write ? PEERBUF_ACCESS_REMOTE_WRITE : PEERBUF_ACCESS_REMOTE_READ;
	const bool allowed =
		region && !region->gone && !region->revoked && (region->access & needed) &&
		transfer.remote_addr >= region->iova &&
		transfer.remote_addr - region->iova <= region->length &&
		transfer.length <= region->length - (transfer.remote_addr - region->iova);
	if (!allowed) {
		request->status = -EACCES;
		settle(request);
		return;
	}
	if (!transfer.length) {
		settle(request);
		return;
	}

	const uint64_t address = transfer.remote_addr + request->fetched;
	const uint64_t page = region->pageOf(address);
	const Translation &entry = region->pages[page];
	if (!entry.valid) {
		if (region->movable) {
			refault(request, region, page, after);
		} else {
			request->status = -EIO;
			settle(request);
		}
		return;
	}

	const uint64_t inPage = address % region->pageSize;
	Packet packet;
	packet.request = request;
	packet.region = region;
	packet.length = std::min({options_.mtu, transfer.length - request->fetched,
				  region->pageEnd(page) - address});
	packet.page = page;
	packet.address = entry.address + inPage;
	packet.cpu = entry.cpu + inPage;
	packet.translation = entry.serial;
	packet.at = request->fetched;
	packet.peer2peer = entry.peer2peer;
	if (options_.iommuTranslates && !domain_.translate(packet.address, packet.length)) {
		after.log(PEERBUF_LOG_DEBUG,
			  text(options_.name, ": ", region->name, ": access to ",
			       hex(packet.address), ", which is not in the IOMMU domain, dropped"));
		request->status = -EIO;
		settle(request);
		return;
	}
	if (write) {
		const auto *from = static_cast<const unsigned char *>(transfer.data) + packet.at;
		packet.bytes.assign(from, from + packet.length);
	}
	packet.serial = ++serial_;
	trace(after, "fetch", packet);
	auto &queue = write ? writes_ : reads_;
	queue.push_back(std::move(packet));
	const Packet &sent = queue.back();
	if (options_.iommuTranslates)
		domain_.hold(sent.address);
	request->fetched += sent.length;
	request->inFlight++;
	settle(request);
}

/** The bytes reach their place. The self-check goes by serials alone, whatever the engine thinks.
 */
void Nic::land(const Packet &packet, After &after)
{
	Request &request = *packet.request;
	const Region &region = *packet.region;
	trace(after, "land", packet);

	uintptr_t cpu = packet.cpu;
	if (options_.iommuTranslates)
		cpu = domain_.translate(packet.address, packet.length);
	if (packet.translation <= region.letGo[packet.page] ||
	    (packet.peer2peer && !options_.peer2peer))
		violations_++;
	if (cpu) {
		auto *const memory = reinterpret_cast<unsigned char *>(cpu);
		if (request.transfer.op == PEERBUF_TRANSFER_WRITE)
			std::memcpy(memory, packet.bytes.data(), packet.length);
		else
			std::memcpy(static_cast<unsigned char *>(request.transfer.data) + packet.at,
				    memory, packet.length);
		request.landed += packet.length;
	} else {
		if (request.done)
			violations_++; // it was reported as a success
		request.status = -EIO;
	}
	if (options_.iommuTranslates)
		domain_.release(packet.address);
	request.inFlight--;
	settle(packet.request);
}

void Nic::landWrite(size_t index, After &after)
{
	const Packet packet = std::move(writes_[index]);
	writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(index));
	land(packet, after);
	settleTickets(after);
}

void Nic::landRead(size_t index, After &after)
{
	// a read pushes the writes before it, or it could miss one that was reported complete; it
	// stays in flight meanwhile, or their landing could settle a ticket that waits for it
	for (size_t i = 0; i < writes_.size();) {
		if (writes_[i].region == reads_[index].region &&
		    writes_[i].serial < reads_[index].serial)
			landWrite(i, after);
		else
			i++;
	}
	const Packet packet = std::move(reads_[index]);
	reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(index));
	land(packet, after);
	settleTickets(after);
}

/** Land what matches, in order. */
template <typename Match> void Nic::landAll(Match match, After &after)
{
	for (size_t i = 0; i < writes_.size();) {
		if (match(writes_[i]))
			landWrite(i, after);
		else
			i++;
	}
	for (size_t i = 0; i < reads_.size();) {
		if (match(reads_[i])) {
			landRead(i, after);
			i = 0;
		} else {
			i++;
		}
	}
}

/** Complete a request if it is at its end. */
void Nic::settle(const RequestPtr &request)
{
	if (request->done)
		return;
	const uint64_t length = request->transfer.length;
	if (request->status) {
		if (!request->inFlight && !request->busy)
			complete(request, request->landed);
		return;
	}
	if (request->fetched < length)
		return;
	const bool write = request->transfer.op == PEERBUF_TRANSFER_WRITE;
	if (!request->inFlight || (write && options_.earlyCompletion && request->inFlight == 1))
		complete(request, length);
}

void Nic::complete(const RequestPtr &request, uint64_t bytes)
{
	if (!request->direct) {
		peerbuf_completion completion = {};
		completion.struct_size = sizeof(completion);
		completion.status = request->status;
		completion.context = request->transfer.context;
		completion.bytes = bytes;
		completions_.push_back(completion);
	}
	request->bytes = bytes;
	request->done = true;
	std::erase(requests_, request);
	changed_.notify_all();
}

Nic::RequestPtr Nic::enqueue(const peerbuf_transfer &transfer, bool direct)
{
	auto request = std::make_shared<Request>();
	request->id = ++lastRequest_;
	request->transfer = transfer;
	request->direct = direct;
	requests_.push_back(request);
	changed_.notify_all();
	return request;
}

bool Nic::busy() const
{
	return std::any_of(requests_.begin(), requests_.end(),
			   [](const RequestPtr &request) { return request->busy; });
}

void Nic::trace(After &after, const char *what, const Packet &packet) const
{
	if (!options_.trace)
		return;
	const bool write = packet.request->transfer.op == PEERBUF_TRANSFER_WRITE;
	after.log(PEERBUF_LOG_TRACE, text(what, write ? " write #" : " read #", packet.request->id,
					  " +", packet.at, " of ", packet.length));
}

void Nic::run()
{
	for (;;) {
		After after(host_);
		{
			const MutexLock lock(mutex_);
			while (!stopping_ && !stepOnce(after))
				changed_.wait(mutex_);
			if (stopping_)
				return;
		}
		after.deliver();
		while (mutex_.wanted())
			std::this_thread::yield();
	}
}

/* ---- work requests ------------------------------------------------------------------------ */

int Nic::transfer(const peerbuf_transfer &transfer)
{
	After after(host_);
	const MutexLock lock(mutex_);
	const RequestPtr request = enqueue(transfer, true);
	while (!request->done) {
		if (!options_.threaded && stepOnce(after)) {
			deliver(after);
			continue;
		}
		if (options_.threaded || busy()) {
			changed_.wait(mutex_);
			continue;
		}
		landAll([&](const Packet &packet) { return packet.request == request; }, after);
		std::erase(requests_, request);
		return -EBUSY;
	}
	return request->status;
}

int Nic::post(const peerbuf_transfer &transfer)
{
	const MutexLock lock(mutex_);
	if (queued_ >= options_.queueDepth)
		return -EAGAIN;
	enqueue(transfer, false);
	queued_++;
	return 0;
}

int Nic::step(uint32_t actions)
{
	int done = 0;
	After after(host_);
	const MutexLock lock(mutex_);
	for (uint32_t i = 0; i < actions && stepOnce(after); i++) {
		deliver(after);
		done++;
	}
	return done;
}

bool Nic::poll(peerbuf_completion &ret_completion)
{
	const MutexLock lock(mutex_);
	if (completions_.empty())
		return false;
	ret_completion = completions_.front();
	completions_.pop_front();
	queued_--;
	return true;
}

void Nic::stats(peerbuf_importer_stats &ret_stats)
{
	const MutexLock lock(mutex_);
	peerbuf_importer_stats stats = {};
	stats.struct_size = sizeof(stats);
	stats.regions = regions_.size();
	stats.keys_used = keysUsed_;
	stats.translations = translations_;
	stats.refaults = refaults_;
	stats.in_flight = requests_.size();
	stats.violations = violations_;
	ret_stats = stats;
}

} // namespace peerbuf::emulated
