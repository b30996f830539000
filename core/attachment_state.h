// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_ATTACHMENT_STATE_H
#define PEERBUF_CORE_ATTACHMENT_STATE_H

#include <cstdint>

#include "core/range.h"

namespace peerbuf
{

/**
 * What one attachment holds and where it is in its life, and which step may follow which. A pure
 * state machine: it calls nobody. A step out of order is a bug of the core, told as an Error with
 * the state unchanged. Thread-bound (the attachment's buffer lock guards it).
 *
 *     attach → [pin] → [map | export] → register     and back in the opposite order
 *     Live → Suspended → Live                         Invalidate{Move}, resume
 *     Live | Suspended → Revoking → Revoked           Invalidate{Revoke}, let go
 */
class AttachmentState
{
public:
	enum class Held : uint32_t { Attach = 1, Pin = 2, Map = 4, Export = 8, Region = 16 };
	enum class Life { Live, Revoking, Revoked };

	bool holds(Held what) const { return held_ & static_cast<uint32_t>(what); }
	Life life() const { return life_; }
	bool suspended() const { return !suspended_.empty(); }
	bool suspended(const Range &range) const { return suspended_.overlaps(range); }

	/** @p what has just been obtained. */
	Result<void> take(Held what);
	/** @p what is about to be given back. */
	Result<void> drop(Held what);

	/** Invalidate{Move} of a range; may come twice, and for something not mapped (rule 48). */
	Result<void> suspend(const Range &range);
	/** End of a move. A range that was never suspended is accepted. */
	void resume(const Range &range) { suspended_.remove(range); }
	/** Invalidate{Revoke}. @return false: it was revoked before, nothing is to be done. */
	bool revoke();
	/** The importer has let go after a revoke: mapping and pin may be dropped under its region.
	 */
	void letGo();

	/** Whether the exporter may be asked for a mapping of @p range. */
	enum class MayMap { Yes, Suspended, Revoked };
	MayMap mayMap(const Range &range) const;

private:
	uint32_t held_ = 0;
	Life life_ = Life::Live;
	RangeSet suspended_;
};

} // namespace peerbuf

#endif
