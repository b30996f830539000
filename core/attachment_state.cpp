// SPDX-License-Identifier: BSD-3-Clause
#include "core/attachment_state.h"

#include <cerrno>

namespace peerbuf
{

namespace
{

using Held = AttachmentState::Held;

constexpr uint32_t bit(Held what)
{
	return static_cast<uint32_t>(what);
}

const char *name(Held what)
{
	switch (what) {
	case Held::Attach:
		return "attach";
	case Held::Pin:
		return "pin";
	case Held::Map:
		return "map";
	case Held::Export:
		return "export";
	case Held::Region:
		return "register";
	}
	return "?";
}

} // namespace

Result<void> AttachmentState::take(Held what)
{
	const auto illegal = [&](const char *why) {
		return fail(PEERBUF_ERR_INTERNAL, EINVAL, "attachment: ", name(what), ": ", why);
	};
	// A mapping may be taken many times over: refaults map range by range.
	if (holds(what) && what != Held::Map)
		return illegal("held already");
	if (what != Held::Attach && !holds(Held::Attach))
		return illegal("not attached");
	if (life_ != Life::Live)
		return illegal("revoked");
	if (what == Held::Pin && (holds(Held::Map) || holds(Held::Region)))
		return illegal("mapped before it was pinned");
	held_ |= bit(what);
	return {};
}

Result<void> AttachmentState::drop(Held what)
{
	const auto illegal = [&](const char *why) {
		return fail(PEERBUF_ERR_INTERNAL, EINVAL, "attachment: give back ", name(what),
			    ": ", why);
	};
	const bool stopped = life_ == Life::Revoked || !holds(Held::Region);
	if (!holds(what))
		return illegal("not held");
	if ((what == Held::Map || what == Held::Pin) && !stopped)
		return illegal("the importer still uses it");
	if (what == Held::Pin && holds(Held::Map))
		return illegal("still mapped");
	if (what == Held::Export && holds(Held::Region))
		return illegal("still registered");
	if (what == Held::Attach && held_ != bit(Held::Attach))
		return illegal("something else is still held");
	held_ &= ~bit(what);
	return {};
}

Result<void> AttachmentState::suspend(const Range &range)
{
	if (holds(Held::Pin))
		return fail(PEERBUF_ERR_INTERNAL, EBUSY, "attachment: pinned memory does not move");
	suspended_.add(range);
	return {};
}

bool AttachmentState::revoke()
{
	if (life_ != Life::Live)
		return false;
	life_ = Life::Revoking;
	suspended_.clear();
	return true;
}

void AttachmentState::letGo()
{
	if (life_ == Life::Revoking)
		life_ = Life::Revoked;
}

AttachmentState::MayMap AttachmentState::mayMap(const Range &range) const
{
	if (life_ != Life::Live)
		return MayMap::Revoked;
	return suspended(range) ? MayMap::Suspended : MayMap::Yes;
}

} // namespace peerbuf
