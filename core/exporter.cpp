// SPDX-License-Identifier: BSD-3-Clause
#include "core/exporter.h"

#include <cerrno>

#include "core/base/mutant.h"

namespace peerbuf
{

namespace
{

bool aligned(uint64_t value, uint64_t granularity)
{
	return !(value & (granularity - 1));
}

/** What is wrong with a mapping; empty: nothing. */
std::string mappingProblem(const peerbuf_mapping &m, const Range &asked, uint64_t size,
			   uint64_t granularity, uint32_t handleKind)
{
	if (!m.length)
		return text("length is 0, asked for ", hex(asked.length));
	if (m.offset > UINT64_MAX - m.length)
		return text("offset ", hex(m.offset), " + length ", hex(m.length), " passes 2^64");
	if (!aligned(m.offset, granularity) || !aligned(m.length, granularity))
		return text("offset ", hex(m.offset), ", length ", hex(m.length),
			    " are not multiples of the granularity ", hex(granularity));
	if (m.offset + m.length > size)
		return text("offset ", hex(m.offset), " + length ", hex(m.length),
			    " is beyond the end of the buffer, size ", hex(size));
	if (!Range{m.offset, m.length}.covers(asked))
		return text("[", hex(m.offset), ", ", hex(m.offset + m.length),
			    ") does not cover what was asked for, [", hex(asked.offset), ", ",
			    hex(asked.end()), ")");
	if (m.placement != PEERBUF_PLACEMENT_DEVICE && m.placement != PEERBUF_PLACEMENT_HOST &&
	    m.placement != (PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST))
		return text("placement is ", m.placement, ", which is not one");
	if (handleKind == PEERBUF_HANDLE_CPU)
		return m.cpu_addr ? "" : "cpu_addr is NULL, the offer has the handle cpu";
	if (!m.segments || !m.n_segments)
		return text("segments is ", m.segments ? "set" : "NULL", ", n_segments ",
			    m.n_segments, ", the offer has the handle segments");
	if (m.n_segments > m.length / MIN_GRANULARITY)
		return text("n_segments ", m.n_segments, " are more than the pages of length ",
			    hex(m.length));
	uint64_t sum = 0;
	for (uint64_t i = 0; i < m.n_segments; i++) {
		const peerbuf_segment &s = m.segments[i];
		if (!s.length || !aligned(s.length, MIN_GRANULARITY) ||
		    !aligned(s.dma_addr, MIN_GRANULARITY))
			return text("segment ", i, " at ", hex(s.dma_addr), " length ",
				    hex(s.length), " is empty or not page aligned");
		if (s.dma_addr > UINT64_MAX - s.length || s.length > m.length - sum)
			return text("segment ", i, " at ", hex(s.dma_addr), " length ",
				    hex(s.length), " overflows; the segments before it have ",
				    hex(sum), " of ", hex(m.length));
		sum += s.length;
	}
	if (sum != m.length)
		return text("the segments sum up to ", hex(sum), ", length is ", hex(m.length));
	return "";
}

} // namespace

Exporter::Exporter(const Plugin &plugin, uint64_t id, HostServices &services, const Log &log)
    : ops_(plugin.exporter),
      id_(id),
      name_("exporter " + plugin.name),
      log_(log),
      host_(services, log, true, id, "exporter." + plugin.name)
{
}

Result<std::shared_ptr<Exporter>> Exporter::create(const Plugin &plugin, uint64_t id,
						   HostServices &services, const Log &log,
						   const std::vector<peerbuf_param> &params)
{
	std::shared_ptr<Exporter> exporter(new Exporter(plugin, id, services, log));
	Host::clearSaid();
	void *device = nullptr;
	const int rc =
		exporter->ops_.open(exporter->host_.table(), params.data(), params.size(), &device);
	if (rc)
		return fail(exporter->slotError("open", rc));
	if (!device)
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, exporter->name_,
			    ": open returned 0 and no device");
	exporter->device_ = device;
	const Result<peerbuf_exporter_offer> offer = exporter->offer(0); // refuse nonsense now
	if (!offer)
		return fail(offer.error());
	return exporter;
}

Exporter::~Exporter()
{
	if (device_)
		ops_.close(device_);
}

Result<peerbuf_exporter_offer> Exporter::offer(uint64_t buffer) const
{
	Host::clearSaid();
	peerbuf_exporter_offer offer = {};
	offer.struct_size = sizeof(offer);
	if (const int rc = ops_.offer(device_, buffer, &offer))
		return fail(slotError("offer", rc));
	if (Result<void> valid = validate(offer, ops_.capabilities, name_); !valid)
		return fail(valid.error());
	return offer;
}

Result<peerbuf_buffer_desc> Exporter::checkedDesc(const peerbuf_buffer_desc &desc, const char *slot)
{
	const auto bad = [&](const auto &...parts) {
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": ", slot,
			    " returned a buffer ", parts...);
	};
	if (!desc.handle)
		return bad("with handle 0, size ", desc.size);
	if (!desc.size)
		return bad("with size 0, handle ", desc.handle);
	const Result<peerbuf_exporter_offer> offer = this->offer(desc.handle);
	if (!offer)
		return fail(offer.error());
	if (!aligned(desc.size, offer->granularity))
		return bad("of size ", desc.size, ", which is not a multiple of its granularity ",
			   offer->granularity);
	if (desc.address > UINT64_MAX - desc.size)
		return bad("at ", hex(desc.address), " of size ", hex(desc.size),
			   ", which passes 2^64");
	return desc;
}

Result<peerbuf_buffer_desc> Exporter::alloc(uint64_t size)
{
	if (!has(PEERBUF_EXPORTER_CAP_ALLOC))
		return fail(PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP, name_,
			    " has no alloc: bring memory of its runtime");
	Host::clearSaid();
	peerbuf_buffer_desc desc = {};
	desc.struct_size = sizeof(desc);
	if (const int rc = ops_.alloc(device_, size, &desc))
		return fail(slotError("alloc", rc));
	Result<peerbuf_buffer_desc> checked = checkedDesc(desc, "alloc");
	if (checked && checked->size < size)
		checked = fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": alloc returned ",
			       checked->size, " bytes, asked for ", size);
	if (!checked && desc.handle)
		ops_.free(device_, desc.handle);
	return checked;
}

void Exporter::free(uint64_t buffer)
{
	if (const int rc = ops_.free(device_, buffer); rc && !gone())
		log_.warn(host_.category(), "free of buffer ", buffer, ": ", errnoText(-rc));
}

Result<peerbuf_buffer_desc> Exporter::get(const peerbuf_get_request &request)
{
	if (!has(PEERBUF_EXPORTER_CAP_GET))
		return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, name_, " does not look memory up");
	Host::clearSaid();
	peerbuf_buffer_desc desc = {};
	desc.struct_size = sizeof(desc);
	if (const int rc = ops_.get(device_, &request, &desc))
		return fail(slotError("get", rc));
	Result<peerbuf_buffer_desc> checked = checkedDesc(desc, "get");
	if (!checked && desc.handle)
		ops_.put(device_, desc.handle);
	return checked;
}

void Exporter::put(uint64_t buffer)
{
	ops_.put(device_, buffer);
}

Result<peerbuf_attach_reply> Exporter::attach(uint64_t buffer,
					      const peerbuf_attach_request &request)
{
	Host::clearSaid();
	peerbuf_attach_reply reply = {};
	reply.struct_size = sizeof(reply);
	if (const int rc = ops_.attach(device_, buffer, &request, &reply))
		return fail(slotError("attach", rc));
	std::string why;
	if (reply.peer2peer && !request.allow_peer2peer)
		why = "peer2peer was raised: asked with 0, answered 1 (it may only be lowered)";
	else if (!reply.placement ||
		 (reply.placement & ~(PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST)))
		why = text("placement is ", reply.placement, ", which is not one");
	if (why.empty())
		return reply;
	ops_.detach(device_, reply.token);
	return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": attach: ", why);
}

void Exporter::detach(uint64_t attachment)
{
	ops_.detach(device_, attachment);
}

Result<void> Exporter::pin(uint64_t attachment)
{
	Host::clearSaid();
	const int rc = ops_.pin(device_, attachment);
	if (rc == -EBUSY) // kernel-semantics rule 23
		return fail(PEERBUF_ERR_BAD_PLUGIN, EBUSY, name_,
			    ": pin returned -EBUSY, which only attach may say");
	if (rc)
		return fail(slotError("pin", rc));
	return {};
}

void Exporter::unpin(uint64_t attachment)
{
	ops_.unpin(device_, attachment);
	if (PEERBUF_MUTANT("double_unpin"))
		ops_.unpin(device_, attachment);
}

Result<peerbuf_mapping> Exporter::map(uint64_t attachment, const Range &range, uint64_t size,
				      uint64_t granularity, uint32_t handleKind)
{
	Host::clearSaid();
	peerbuf_mapping mapping = {};
	mapping.struct_size = sizeof(mapping);
	if (const int rc = ops_.map(device_, attachment, range.offset, range.length, &mapping))
		return fail(slotError("map", rc));
	const std::string problem = mappingProblem(mapping, range, size, granularity, handleKind);
	if (problem.empty())
		return mapping;
	ops_.unmap(device_, attachment, &mapping);
	return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": map returned nonsense: ", problem);
}

void Exporter::unmap(uint64_t attachment, const peerbuf_mapping &mapping)
{
	ops_.unmap(device_, attachment, &mapping);
}

Result<peerbuf_fd_export> Exporter::exportFd(uint64_t attachment, const Range &range,
					     uint32_t variant)
{
	Host::clearSaid();
	peerbuf_fd_export exported = {};
	exported.struct_size = sizeof(exported);
	exported.fd = -1;
	if (const int rc = ops_.export_fd(device_, attachment, range.offset, range.length, variant,
					  &exported))
		return fail(slotError("export_fd", rc));
	std::string why;
	if (exported.fd < 0)
		why = text("descriptor ", exported.fd);
	else if (exported.offset > UINT64_MAX - range.length)
		why = text("offset ", hex(exported.offset), " + length ", hex(range.length),
			   " passes 2^64");
	else if (exported.offset + range.length > exported.size)
		why = text("offset ", hex(exported.offset), " + length ", hex(range.length),
			   " is beyond the end of the dma-buf, size ", hex(exported.size));
	else if ((exported.offset ^ range.offset) & (MIN_GRANULARITY - 1))
		why = text("offset ", hex(exported.offset), " and the range's offset ",
			   hex(range.offset), " differ in their low bits");
	if (why.empty())
		return exported;
	ops_.release_fd(device_, attachment, &exported);
	return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": export_fd returned nonsense: ", why);
}

void Exporter::releaseFd(uint64_t attachment, const peerbuf_fd_export &exported)
{
	ops_.release_fd(device_, attachment, &exported);
}

void Exporter::invalidateDone(uint64_t buffer, uint64_t cookie, int status)
{
	ops_.invalidate_done(device_, buffer, cookie, status);
}

BorrowedFd Exporter::eventFd() const
{
	return BorrowedFd(has(PEERBUF_EXPORTER_CAP_EVENTS) ? ops_.event_fd(device_) : -1);
}

Result<int> Exporter::progress()
{
	Host::clearSaid();
	const int rc = ops_.progress(device_);
	if (rc < 0)
		return fail(slotError("progress", rc));
	return rc;
}

Result<const void *> Exporter::openOps(const std::string &name) const
{
	Host::clearSaid();
	const void *ops = nullptr;
	const int rc = has(PEERBUF_EXPORTER_CAP_OPS) ? ops_.open_ops(device_, name.c_str(), &ops)
						     : -ENOENT;
	if (rc)
		return fail(slotError("open_ops", rc));
	return ops;
}

} // namespace peerbuf
