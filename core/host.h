// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_HOST_H
#define PEERBUF_CORE_HOST_H

#include <cstdint>
#include <string>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>

#include "core/base/log.h"
#include "core/base/result.h"
#include "core/offer.h"

namespace peerbuf
{

/** What the core does for plugins; the session implements it. Returns negative errno as the ABI. */
class HostServices
{
public:
	virtual int hostInvalidate(uint64_t exporter, uint64_t handle,
				   const peerbuf_invalidate &inv) noexcept = 0;
	virtual int hostResume(uint64_t exporter, uint64_t handle,
			       const peerbuf_resume &res) noexcept = 0;
	virtual int hostMap(uint64_t attachment, const Range &range,
			    peerbuf_mapping *retMapping) noexcept = 0;
	virtual void hostTicketDone(uint64_t ticket) noexcept = 0;
	virtual bool hostReservationHeld(bool exporterSide, uint64_t device,
					 uint64_t object) noexcept = 0;

	virtual ~HostServices() = default;
};

/** The peerbuf_host that one open device of a plugin is lent. Its address is what plugins keep. */
class Host
{
public:
	Host(HostServices &services, const Log &log, bool exporterSide, uint64_t device,
	     std::string category);
	Host(const Host &) = delete;
	Host &operator=(const Host &) = delete;

	const peerbuf_host *table() const { return &lent_.table; }
	const std::string &category() const { return category_; }
	const Log &log() const { return log_; }

	/** Forget what a slot said earlier on this thread; call before a slot. */
	static void clearSaid();
	/**
	 * The Error for a slot that returned @p rc (not 0): what the slot said through host->fail,
	 * else the slot's name and the errno. A positive @p rc is the plugin's fault.
	 */
	Error slotError(const std::string &plugin, const char *slot, int rc) const;

private:
	struct Lent {
		peerbuf_host table;
		Host *self;
	};
	static Host &of(const peerbuf_host *table);

	HostServices &services_;
	const Log &log_;
	const bool exporterSide_;
	const uint64_t device_;
	const std::string category_;
	Lent lent_;
};

} // namespace peerbuf

#endif
