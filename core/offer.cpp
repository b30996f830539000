// SPDX-License-Identifier: BSD-3-Clause
#include "core/offer.h"

#include <cerrno>

namespace peerbuf
{

namespace
{

/** Collects the first contradiction; so that each check is one line. */
class Checker
{
public:
	explicit Checker(std::string name) : name_(std::move(name)) {}

	template <typename... Parts> void require(bool condition, const Parts &...parts)
	{
		if (!condition && problem_.empty())
			problem_ = text(parts...);
	}
	void known(const char *field, uint32_t value, uint32_t last)
	{
		require(value >= 1 && value <= last, field, " is ", value,
			value ? ", which is not one of its values" : ": it was not set");
	}
	void bits(const char *field, uint32_t value, uint32_t allowed)
	{
		require(!(value & ~allowed), field, " has unknown bits ", hex(value & ~allowed));
	}

	Result<void> result() const
	{
		if (problem_.empty())
			return {};
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": offer refused: ", problem_);
	}

private:
	std::string name_;
	std::string problem_;
};

constexpr uint32_t ALL_PLACEMENTS = PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST;
constexpr uint32_t ALL_VARIANTS = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
constexpr uint32_t ALL_HANDLES = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;

} // namespace

Result<void> validate(const peerbuf_exporter_offer &offer, uint32_t capabilities,
		      const std::string &name)
{
	Checker c(name);
	c.known("stability", offer.stability, PEERBUF_STABILITY_MOVES);
	c.known("pin", offer.pin, PEERBUF_PIN_REFUSES);
	c.known("revoke", offer.revoke, PEERBUF_REVOKE_MAY);
	c.known("management", offer.management, PEERBUF_MANAGED_BY_KERNEL);
	c.require(offer.placements, "placements is 0: the memory is nowhere");
	c.bits("placements", offer.placements, ALL_PLACEMENTS);
	c.require(offer.variants, "variants is 0: it cannot be mapped");
	c.bits("variants", offer.variants, ALL_VARIANTS);
	c.require(offer.handles, "handles is 0: it cannot be handed out");
	c.bits("handles", offer.handles, ALL_HANDLES);

	c.require(!(offer.stability == PEERBUF_STABILITY_MOVES &&
		    offer.pin == PEERBUF_PIN_NOT_NEEDED),
		  "stability says the memory moves, pin says pinning is not needed");
	c.require(!(offer.pin == PEERBUF_PIN_CAN && offer.management == PEERBUF_MANAGED_BY_USER) ||
			  (capabilities & PEERBUF_EXPORTER_CAP_PIN),
		  "pin says it can, the plugin has no PIN capability");
	c.require(!(offer.handles & (PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU)) ||
			  (capabilities & PEERBUF_EXPORTER_CAP_MAP),
		  "handles has ", handleText(offer.handles & ~PEERBUF_HANDLE_FD),
		  ", the plugin has no MAP capability");
	c.require(!(offer.handles & PEERBUF_HANDLE_FD) || (capabilities & PEERBUF_EXPORTER_CAP_FD),
		  "handles has dma-buf, the plugin has no FD capability");
	c.require(offer.management != PEERBUF_MANAGED_BY_USER ||
			  (offer.stability == PEERBUF_STABILITY_STATIC &&
			   offer.revoke == PEERBUF_REVOKE_NEVER) ||
			  (capabilities & PEERBUF_EXPORTER_CAP_INVALIDATE),
		  "the memory moves or may be revoked, the plugin has no INVALIDATE capability");
	c.require(offer.management != PEERBUF_MANAGED_BY_KERNEL ||
			  offer.handles == PEERBUF_HANDLE_FD,
		  "management is the kernel's, handles has ", handleText(offer.handles),
		  " where only dma-buf can be");
	c.require(!offer.needs_peer2peer || (offer.placements & PEERBUF_PLACEMENT_DEVICE),
		  "needs_peer2peer is set, placements lacks device");

	c.require(offer.granularity >= MIN_GRANULARITY &&
			  !(offer.granularity & (offer.granularity - 1)),
		  "granularity is ", offer.granularity, ", not a power of two of at least ",
		  MIN_GRANULARITY);
	c.require(!offer.window_size || offer.window_reserve <= offer.window_size,
		  "window_reserve ", offer.window_reserve, " is more than window_size ",
		  offer.window_size);
	c.require(memchr(offer.device, 0, sizeof(offer.device)) && offer.device[0],
		  "device has no name");
	c.require(memchr(offer.why, 0, sizeof(offer.why)), "why is not terminated");
	return c.result();
}

Result<void> validate(const peerbuf_importer_offer &offer, uint32_t capabilities,
		      const std::string &name)
{
	Checker c(name);
	c.bits("invalidation", offer.invalidation,
	       PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT);
	c.require(!(offer.invalidation & PEERBUF_INVALIDATION_REFAULT) ||
			  (offer.invalidation & PEERBUF_INVALIDATION_REVOCABLE),
		  "invalidation has refault, but not revocable, which it implies");
	if (offer.invalidation) {
		c.known("invalidate_scope", offer.invalidate_scope, PEERBUF_SCOPE_WHOLE);
		c.require(offer.notified_by,
			  "invalidation is offered, notified_by is 0: by nobody");
		c.bits("notified_by", offer.notified_by,
		       PEERBUF_NOTIFIED_BY_USER | PEERBUF_NOTIFIED_BY_KERNEL);
	}
	if (offer.invalidation && (offer.notified_by & PEERBUF_NOTIFIED_BY_USER)) {
		c.require(capabilities & PEERBUF_IMPORTER_CAP_INVALIDATE,
			  "invalidation has revocable, the plugin has no INVALIDATE capability");
		c.require(!(offer.invalidation & PEERBUF_INVALIDATION_REFAULT) ||
				  (capabilities & PEERBUF_IMPORTER_CAP_RESUME),
			  "invalidation has refault, the plugin has no RESUME capability");
	}
	c.require(offer.variants, "variants is 0: it takes no mapping");
	c.bits("variants", offer.variants, ALL_VARIANTS);
	c.require(offer.handles, "handles is 0: it takes memory by nothing");
	c.bits("handles", offer.handles, ALL_HANDLES);
	c.require(offer.dma_mask_bits >= 1 && offer.dma_mask_bits <= 64, "dma_mask_bits is ",
		  offer.dma_mask_bits, ", not 1..64");
	c.require(offer.page_sizes, "page_sizes is 0: it knows no page");
	c.require(offer.max_length, "max_length is 0: it takes nothing");
	c.require(!offer.asks_flow || (offer.handles & PEERBUF_HANDLE_FD),
		  "asks_flow is set, handles lacks dma-buf");
	c.require(memchr(offer.device, 0, sizeof(offer.device)) && offer.device[0],
		  "device has no name");
	c.require(memchr(offer.why, 0, sizeof(offer.why)), "why is not terminated");
	return c.result();
}

} // namespace peerbuf
