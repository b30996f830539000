// SPDX-License-Identifier: BSD-3-Clause
#include "core/host.h"

#include <cerrno>

#include "core/base/sys.h"

namespace peerbuf
{

namespace
{

/** What the slot that runs on this thread said about its failure. */
struct Said {
	uint32_t errc = PEERBUF_OK;
	std::string what;
};
thread_local Said said;

} // namespace

Host::Host(HostServices &services, const Log &log, bool exporterSide, uint64_t device,
	   std::string category)
    : services_(services),
      log_(log),
      exporterSide_(exporterSide),
      device_(device),
      category_(std::move(category)),
      lent_{}
{
	lent_.self = this;
	peerbuf_host &t = lent_.table;
	t.struct_size = sizeof(t);
	t.log = [](const peerbuf_host *host, uint32_t level, const char *message) {
		const Host &h = of(host);
		h.log_.line(level, h.category_, message ? message : "");
	};
	t.now_ns = [](const peerbuf_host *) { return sys().nowNs(); };
	t.fail = [](const peerbuf_host *, uint32_t errc, const char *message) {
		said = Said{errc, message ? message : ""};
	};
	t.invalidate = [](const peerbuf_host *host, uint64_t buffer,
			  const peerbuf_invalidate *inv) {
		const Host &h = of(host);
		if (!h.exporterSide_ || !inv || inv->struct_size < sizeof(*inv))
			return -EINVAL;
		return h.services_.hostInvalidate(h.device_, buffer, *inv);
	};
	t.resume = [](const peerbuf_host *host, uint64_t buffer, const peerbuf_resume *res) {
		const Host &h = of(host);
		if (!h.exporterSide_ || !res || res->struct_size < sizeof(*res))
			return -EINVAL;
		return h.services_.hostResume(h.device_, buffer, *res);
	};
	t.map = [](const peerbuf_host *host, uint64_t attachment, uint64_t offset, uint64_t length,
		   peerbuf_mapping *retMapping) {
		const Host &h = of(host);
		if (h.exporterSide_ || !retMapping || retMapping->struct_size < sizeof(*retMapping))
			return -EINVAL;
		return h.services_.hostMap(attachment, Range{offset, length}, retMapping);
	};
	t.ticket_done = [](const peerbuf_host *host, uint64_t ticket) {
		of(host).services_.hostTicketDone(ticket);
	};
	t.reservation_held = [](const peerbuf_host *host, uint64_t object) {
		const Host &h = of(host);
		return h.services_.hostReservationHeld(h.exporterSide_, h.device_, object) ? 1 : 0;
	};
}

Host &Host::of(const peerbuf_host *table)
{
	return *reinterpret_cast<const Lent *>(table)->self; // the table is Lent's first member
}

void Host::clearSaid()
{
	said = Said{};
}

Error Host::slotError(const std::string &plugin, const char *slot, int rc) const
{
	if (rc > 0)
		return Error{PEERBUF_ERR_BAD_PLUGIN, EINVAL,
			     text(plugin, ": ", slot, " returned ", rc,
				  ", which is neither 0 nor a negative errno")};
	const int err = -rc;
	const Errc code = said.errc != PEERBUF_OK && said.errc <= PEERBUF_ERR_INTERNAL
				  ? static_cast<Errc>(said.errc)
				  : errcFor(err);
	Error error{code, err, text(plugin, ": ", slot, ": ", errnoText(err))};
	if (!said.what.empty())
		error.what += ": " + said.what;
	said = Said{};
	return error;
}

} // namespace peerbuf
