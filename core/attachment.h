// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_ATTACHMENT_H
#define PEERBUF_CORE_ATTACHMENT_H

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/attachment_state.h"
#include "core/buffer.h"
#include "core/importer.h"
#include "core/ledger.h"
#include "core/negotiate.h"

namespace peerbuf
{

/** What an attachment is made from. */
struct AttachmentSetup {
	uint64_t id = 0;
	uint64_t reg = 0;   /* the registration it belongs to */
	uint32_t index = 0; /* of the importer in it */
	std::shared_ptr<Buffer> buffer;
	std::shared_ptr<Importer> importer;
	Plan plan;
	Range range;
	uint64_t iova = 0;
	uint64_t granularity = 0;
	std::string tenant;
	std::string device;
	std::string holder; /* the ledger's name for it */
	bool dedicated = false;
	bool hostPlacementOk = false;
};

/**
 * One importer's hold on one range of a buffer: it runs a Plan step by step and takes it back step
 * by step. build() leaves nothing behind when it fails, whatever the step. Thread-safe: state is
 * guarded by the buffer's reservation.
 */
class Attachment
{
public:
	Attachment(AttachmentSetup setup, Ledger &ledger);
	Attachment(const Attachment &) = delete;
	Attachment &operator=(const Attachment &) = delete;

	const AttachmentSetup &setup() const { return setup_; }
	uint64_t id() const { return setup_.id; }
	Buffer &buffer() const { return *setup_.buffer; }
	Reservation &reservation() const RETURN_CAPABILITY(setup_.buffer->reservation)
	{
		return setup_.buffer->reservation;
	}
	Importer &importer() const { return *setup_.importer; }

	/** charge → attach → [export] → [pin] → [map] → register. */
	Result<void> build();
	/** deregister → unmap → unpin → [release] → detach → uncharge. Once, after build(). */
	void teardown();

	/** The upward call of the importer: one more mapping, inside the attachment's range. */
	Result<peerbuf_mapping> map(const Range &range) REQUIRES(setup_.buffer->reservation);

	/** What an Invalidate says to this attachment; nothing: it has nothing to say any more. */
	std::optional<peerbuf_importer_invalidate> prepare(const peerbuf_invalidate &inv)
		REQUIRES(setup_.buffer->reservation);
	/** How many Invalidates prepare() has passed on; the number of the last one. */
	uint64_t stops() const REQUIRES(setup_.buffer->reservation) { return stops_; }
	/**
	 * The importer has let go of what prepare() named as Invalidate number @p stop. One that is
	 * late, after the move was aborted, says nothing about what was mapped since.
	 */
	void letGo(peerbuf_reason reason, const Range &range, uint64_t stop)
		REQUIRES(setup_.buffer->reservation);
	/**
	 * The importer could not stop: what it holds stays held until teardown, and it is revoked.
	 * @return whether that is news.
	 */
	bool quarantine() REQUIRES(setup_.buffer->reservation)
	{
		quarantined_ = true;
		return state_.revoke();
	}
	void resume(const peerbuf_resume &res) REQUIRES(setup_.buffer->reservation);

	/*
	 * Rekey: the importer is not told; its region ends and is made anew. What waits for the end
	 * are the tickets below.
	 */
	bool rekeys() const { return setup_.plan.flow == PEERBUF_FLOW_REKEY; }
	/** A ticket that ends with the region. @return false: there is no region, it has ended. */
	bool awaitEnd(uint64_t ticket) REQUIRES(setup_.buffer->reservation);
	std::vector<uint64_t> takeAwaiting() REQUIRES(setup_.buffer->reservation);
	bool awaited() const REQUIRES(setup_.buffer->reservation) { return !awaiting_.empty(); }
	/** Deregister and unmap now, keep the rest. Not with the reservation held. */
	void endRegion() EXCLUDES(setup_.buffer->reservation);
	/** Map and register again after a move, if it has ended and nothing is suspended.
	 *  @return false: nothing to do. */
	Result<bool> renewRegion() REQUIRES(setup_.buffer->reservation);
	bool hasRegion() const REQUIRES(setup_.buffer->reservation)
	{
		return state_.holds(Held::Region);
	}
	uint64_t generation() const REQUIRES(setup_.buffer->reservation)
	{
		return setup_.buffer->generationLocked();
	}
	bool suspended() const REQUIRES(setup_.buffer->reservation) { return state_.suspended(); }

	bool overlaps(const Range &range) const { return reach_.overlaps(range); }
	bool linked() const REQUIRES(setup_.buffer->reservation) { return linked_; }
	bool revoked() const REQUIRES(setup_.buffer->reservation)
	{
		return state_.life() != AttachmentState::Life::Live;
	}

	/** For reports. */
	bool revokedNow() const EXCLUDES(setup_.buffer->reservation)
	{
		ReservationLock lock(setup_.buffer->reservation);
		return revoked();
	}

	/** Another one after every move under Rekey. */
	peerbuf_region region() const EXCLUDES(setup_.buffer->reservation)
	{
		ReservationLock lock(setup_.buffer->reservation);
		return region_;
	}
	const Plan &plan() const { return setup_.plan; }
	struct Charged {
		uint64_t pins = 0;
		uint64_t window = 0;
		uint64_t host = 0;
	};
	Charged charged() const EXCLUDES(setup_.buffer->reservation)
	{
		ReservationLock lock(setup_.buffer->reservation);
		return {pinCharge_.bytes(), windowCharge_.bytes(), hostCharge_.bytes()};
	}

private:
	using Held = AttachmentState::Held;

	/** A mapping and the parts of it that have been invalidated meanwhile. */
	struct Mapping {
		peerbuf_mapping mapping;
		uint64_t stops; /* Invalidates before it was made: none of them is about it */
		RangeSet gone;
	};

	Result<void> charge();
	Result<void> attach(uint64_t &revokes);
	Result<void> exportDmabuf();
	std::shared_ptr<SharedExport> endExport();
	Result<void> settle(uint64_t revokes) REQUIRES(setup_.buffer->reservation);
	Result<void> registerRegion() REQUIRES(setup_.buffer->reservation);
	void release();
	void unmapAll() REQUIRES(setup_.buffer->reservation);
	void unpin() REQUIRES(setup_.buffer->reservation);
	void uncharge();
	void dropRegion(bool unmap);
	void took(Held what) { must(state_.take(what)); }
	void drops(Held what) { must(state_.drop(what)); }
	static void must(const Result<void> &result);

	AttachmentSetup setup_;
	Ledger &ledger_;
	/** Held while the region is being ended, so that it is ended once. */
	Mutex ending_;
	const Range reach_; /* the range, rounded out to the granularity */
	AttachmentState state_;
	bool linked_ = false;
	bool quarantined_ = false;
	bool over_ = false; /* teardown has begun */
	uint64_t stops_ = 0;
	std::vector<uint64_t> awaiting_;
	peerbuf_attach_reply reply_ = {};
	std::list<Mapping> mappings_; /* addresses are lent to the importer */
	std::shared_ptr<SharedExport> export_;
	bool exportedHere_ = false;	  /* export_ was made for this attachment */
	peerbuf_fd_export exported_ = {}; /* of export_, for this range */
	peerbuf_region region_ = {};
	Charge pinCharge_;
	Charge windowCharge_;
	Charge hostCharge_;
};

} // namespace peerbuf

#endif
