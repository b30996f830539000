// SPDX-License-Identifier: BSD-3-Clause
#include "core/attachment.h"

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace peerbuf
{

Attachment::Attachment(AttachmentSetup setup, Ledger &ledger)
    : setup_(std::move(setup)),
      ledger_(ledger),
      reach_(roundOut(setup_.range, setup_.granularity))
{
}

void Attachment::must(const Result<void> &result)
{
	assert(result && "attachment step out of order");
	static_cast<void>(result);
}

Result<void> Attachment::build()
{
	Result<void> done = charge();
	uint64_t revokes = 0;
	if (done)
		done = attach(revokes);
	if (done) {
		ReservationLock lock(setup_.buffer->reservation);
		done = settle(revokes);
	}
	if (!done)
		release();
	return done;
}

Result<void> Attachment::charge()
{
	const Plan &plan = setup_.plan;
	const Ledger::Account account{setup_.tenant, setup_.device};
	Result<Charge> pins = ledger_.charge(account, PEERBUF_LEDGER_PINS, plan.pinCharge,
					     setup_.holder, !setup_.dedicated);
	if (!pins)
		return fail(pins.error());
	pinCharge_ = std::move(*pins);
	Result<Charge> host =
		ledger_.charge(account, PEERBUF_LEDGER_HOST, plan.hostCharge, setup_.holder, true);
	if (!host)
		return fail(host.error());
	hostCharge_ = std::move(*host);
	if (!plan.usesWindow)
		return {};
	Result<Charge> window = ledger_.chargeWindow(account, setup_.buffer->desc().allocation_id,
						     reach_, setup_.holder);
	if (!window)
		return fail(window.error());
	windowCharge_ = std::move(*window);
	return {};
}

Result<void> Attachment::attach(uint64_t &revokes)
{
	const Plan &plan = setup_.plan;
	Exporter &exporter = *setup_.buffer->exporter();
	{
		ReservationLock lock(setup_.buffer->reservation);
		revokes = setup_.buffer->revokes;
	}
	peerbuf_attach_request request = {};
	request.struct_size = sizeof(request);
	request.allow_peer2peer = plan.peer2peer;
	request.invalidation = plan.invalidation;
	request.variant = plan.variant;
	request.access = plan.access;
	request.handle_kind = plan.handleKind;
	request.offset = setup_.range.offset;
	request.length = setup_.range.length;
	request.attachment = setup_.id;
	request.importer = setup_.importer->name().c_str();
	request.placements = plan.placements;
	request.invalidate_scope = plan.scope;
	// Unlocked, and before the attachment is on the list (kernel-semantics rule 13).
	const Result<peerbuf_attach_reply> reply =
		exporter.attach(setup_.buffer->desc().handle, request);
	if (!reply)
		return fail(reply.error());
	reply_ = *reply;
	took(Held::Attach);
	if (reply->placement != plan.placement && (reply->placement & PEERBUF_PLACEMENT_HOST) &&
	    !setup_.hostPlacementOk)
		return fail(PEERBUF_ERR_NOT_P2P_PLACEMENT, EOPNOTSUPP, setup_.buffer->name(),
			    ": the exporter would place it in ", placementText(reply->placement),
			    " memory for ", setup_.importer->name(),
			    "; the policy (placement device_only) forbids it");
	if (reply->placement == PEERBUF_PLACEMENT_HOST)
		windowCharge_.release();
	setup_.plan.placement = reply->placement;
	setup_.plan.peer2peer = reply->peer2peer;
	if (plan.handleKind != PEERBUF_HANDLE_FD)
		return {};
	return exportDmabuf();
}

/** One dma-buf serves all attachments of the buffer that it covers. */
Result<void> Attachment::exportDmabuf()
{
	Buffer &buffer = *setup_.buffer;
	MutexLock exporting(buffer.exporting);
	ExportKey key;
	key.variant = setup_.plan.variant;
	{
		ReservationLock lock(buffer.reservation);
		key.generation = buffer.generationLocked();
		key.revokes = buffer.revokes;
	}
	std::erase_if(buffer.exports, [](const auto &weak) { return weak.expired(); });
	for (const std::weak_ptr<SharedExport> &weak : buffer.exports) {
		const std::shared_ptr<SharedExport> there = weak.lock();
		const auto same = there ? there->of(setup_.range, key) : std::nullopt;
		if (!same)
			continue;
		export_ = there;
		exported_ = *same;
		took(Held::Export);
		return {};
	}
	const Result<peerbuf_fd_export> exported =
		buffer.exporter()->exportFd(reply_.token, setup_.range, key.variant);
	if (!exported)
		return fail(exported.error());
	exported_ = *exported;
	export_ = std::make_shared<SharedExport>(buffer.exporter(), reply_.token, setup_.range,
						 *exported, key);
	buffer.exports.push_back(export_);
	exportedHere_ = true;
	took(Held::Export);
	return {};
}

/** Let go of the export; if others use it, it takes this attachment's token along. */
std::shared_ptr<SharedExport> Attachment::endExport()
{
	drops(Held::Export);
	MutexLock exporting(setup_.buffer->exporting);
	if (export_.use_count() > 1) {
		if (exportedHere_) {
			export_->adopt();
			drops(Held::Attach);
		}
	} else { // from here on nobody else may find it
		std::erase_if(setup_.buffer->exports,
			      [&](const auto &weak) { return weak.lock() == export_; });
	}
	return std::move(export_);
}

Result<void> Attachment::settle(uint64_t revokes)
{
	const Plan &plan = setup_.plan;
	// From here an Invalidate finds it, also before anybody has seen the result (rule 15).
	std::vector<Attachment *> &list = setup_.buffer->attachments;
	list.insert(list.begin(), this);
	linked_ = true;
	if (setup_.buffer->revokes != revokes)
		return fail(PEERBUF_ERR_REVOKED, ENODEV, setup_.buffer->name(),
			    " was revoked while it was being attached");
	setup_.buffer->revoked = false; // or the exporter would not have let it attach
	if (plan.pin) {
		if (Result<void> pinned = setup_.buffer->exporter()->pin(reply_.token); !pinned)
			return pinned;
		took(Held::Pin);
	}
	// An importer that refaults maps at first touch; a CPU view must exist to have an address.
	const bool lazy =
		plan.flow == PEERBUF_FLOW_MOVABLE && plan.handleKind == PEERBUF_HANDLE_SEGMENTS;
	if (plan.handleKind != PEERBUF_HANDLE_FD && !lazy) {
		const Result<peerbuf_mapping> mapping = map(setup_.range);
		if (!mapping)
			return fail(mapping.error());
	}
	return registerRegion();
}

Result<void> Attachment::registerRegion()
{
	const std::string name = setup_.buffer->name();
	const Plan &plan = setup_.plan;
	peerbuf_reg_request request = {};
	request.struct_size = sizeof(request);
	request.flow = plan.flow;
	request.access = plan.access;
	request.attachment = setup_.id;
	request.offset = setup_.range.offset;
	request.length = setup_.range.length;
	request.iova = setup_.iova;
	request.granularity = setup_.granularity;
	request.mapping = mappings_.empty() ? nullptr : &mappings_.front().mapping;
	request.fd_export = export_ ? &exported_ : nullptr;
	// Nothing is set where the importer asks for its mappings itself, at first touch.
	request.handle_kind = request.mapping || request.fd_export ? plan.handleKind : 0;
	request.name = name.c_str();
	const Result<peerbuf_region> region = setup_.importer->reg(request);
	if (!region)
		return fail(region.error());
	region_ = *region;
	if (plan.howKnown != PEERBUF_KNOWN_NEGOTIATED)
		observe(setup_.plan, region->kernel_flow);
	took(Held::Region);
	return {};
}

Result<peerbuf_mapping> Attachment::map(const Range &range)
{
	const Result<Range> inside = checkRange(text(setup_.buffer->name(), ": map"), range.offset,
						range.length, reach_.end());
	if (!inside)
		return fail(inside.error());
	if (range.offset < reach_.offset)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, setup_.buffer->name(),
			    ": map: offset ", hex(range.offset),
			    " is before the attachment's start, ", hex(reach_.offset));
	switch (state_.mayMap(range)) {
	case AttachmentState::MayMap::Revoked:
		return fail(PEERBUF_ERR_REVOKED, ENODEV, setup_.buffer->name(), " is revoked");
	case AttachmentState::MayMap::Suspended:
		return fail(PEERBUF_ERR_BUSY, EAGAIN, setup_.buffer->name(),
			    " is moving; resume follows");
	case AttachmentState::MayMap::Yes:
		break;
	}
	Result<peerbuf_mapping> mapping =
		setup_.buffer->exporter()->map(reply_.token, range, setup_.buffer->desc().size,
					       setup_.granularity, setup_.plan.handleKind);
	if (!mapping)
		return mapping;
	took(Held::Map);
	mappings_.push_back(Mapping{*mapping, stops_, {}});
	return mapping;
}

std::optional<peerbuf_importer_invalidate> Attachment::prepare(const peerbuf_invalidate &inv)
{
	Range range{inv.offset, inv.length};
	if (inv.reason == PEERBUF_REASON_REVOKE) {
		if (!state_.revoke())
			return std::nullopt;
		range = reach_; // final for the attachment, whatever part was taken back
	} else if (revoked()) {
		return std::nullopt;
	} else {
		must(state_.suspend(range));
	}
	stops_++;
	peerbuf_importer_invalidate out = {};
	out.struct_size = sizeof(out);
	out.reason = inv.reason;
	out.attachment = setup_.id;
	out.offset = range.offset;
	out.length = range.length;
	out.generation = inv.generation;
	out.expected_ns = inv.expected_ns;
	return out;
}

void Attachment::letGo(peerbuf_reason reason, const Range &range, uint64_t stop)
{
	if (quarantined_)
		return;
	if (reason == PEERBUF_REASON_REVOKE) {
		state_.letGo();
		unmapAll();
		unpin();
		uncharge();
		return;
	}
	if (setup_.plan.handleKind == PEERBUF_HANDLE_CPU)
		return; // the view stays where it is; the exporter puts the new place under it
	if (rekeys())
		return; // the mapping ends with the region, or stays with it after an abort
	for (auto it = mappings_.begin(); it != mappings_.end();) {
		if (it->stops >= stop) {
			++it;
			continue;
		}
		const Range whole{it->mapping.offset, it->mapping.length};
		it->gone.add(range);
		if (!it->gone.covers(whole)) {
			++it;
			continue;
		}
		setup_.buffer->exporter()->unmap(reply_.token, it->mapping);
		it = mappings_.erase(it);
	}
}

void Attachment::resume(const peerbuf_resume &res)
{
	if (revoked())
		return;
	state_.resume(Range{res.offset, res.length});
	if (rekeys())
		return;
	peerbuf_importer_resume out = {};
	out.struct_size = sizeof(out);
	out.aborted = res.aborted;
	out.attachment = setup_.id;
	out.offset = res.offset;
	out.length = res.length;
	out.generation = res.generation;
	setup_.importer->resume(out);
}

void Attachment::dropRegion(bool unmap)
{
	{
		ReservationLock lock(setup_.buffer->reservation);
		if (!state_.holds(Held::Region))
			return;
	}
	// Without the reservation: deregistering may have to wait for what is in flight, and that
	// may be waiting for a mapping. An Invalidate meanwhile finds a region that is going.
	setup_.importer->dereg(region_.token);
	ReservationLock lock(setup_.buffer->reservation);
	drops(Held::Region);
	if (unmap) // at once, or a resume could make the next region of this mapping
		unmapAll();
}

void Attachment::teardown()
{
	MutexLock ending(ending_);
	{
		ReservationLock lock(setup_.buffer->reservation);
		over_ = true;
	}
	dropRegion(false);
	release();
}

bool Attachment::awaitEnd(uint64_t ticket)
{
	if (!state_.holds(Held::Region))
		return false;
	awaiting_.push_back(ticket);
	return true;
}

std::vector<uint64_t> Attachment::takeAwaiting()
{
	return std::exchange(awaiting_, {});
}

void Attachment::endRegion()
{
	MutexLock ending(ending_);
	dropRegion(true);
}

Result<bool> Attachment::renewRegion()
{
	if (over_ || revoked() || state_.holds(Held::Region) || state_.suspended())
		return false;
	const Result<peerbuf_mapping> mapping = map(setup_.range);
	if (!mapping)
		return fail(mapping.error());
	if (Result<void> registered = registerRegion(); !registered) {
		unmapAll();
		return fail(registered.error());
	}
	return true;
}

void Attachment::release()
{
	Exporter &exporter = *setup_.buffer->exporter();
	{
		ReservationLock lock(setup_.buffer->reservation);
		unmapAll();
		unpin();
		std::vector<Attachment *> &list = setup_.buffer->attachments;
		if (linked_)
			list.erase(std::find(list.begin(), list.end(), this));
		linked_ = false;
	}
	if (export_)
		endExport(); // what it returns goes outside the lock
	if (state_.holds(Held::Attach)) {
		drops(Held::Attach);
		exporter.detach(reply_.token);
	}
	uncharge();
}

void Attachment::unmapAll()
{
	if (!state_.holds(Held::Map))
		return;
	drops(Held::Map);
	for (const Mapping &m : mappings_)
		setup_.buffer->exporter()->unmap(reply_.token, m.mapping);
	mappings_.clear();
}

void Attachment::unpin()
{
	if (!state_.holds(Held::Pin))
		return;
	drops(Held::Pin);
	setup_.buffer->exporter()->unpin(reply_.token);
}

void Attachment::uncharge()
{
	pinCharge_.release();
	windowCharge_.release();
	hostCharge_.release();
}

} // namespace peerbuf
