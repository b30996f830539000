// SPDX-License-Identifier: BSD-3-Clause
#include "core/importer.h"

#include <cerrno>

namespace peerbuf
{

Importer::Importer(const Plugin &plugin, uint64_t id, HostServices &services, const Log &log)
    : ops_(plugin.importer),
      id_(id),
      name_("importer " + plugin.name),
      host_(services, log, false, id, "importer." + plugin.name)
{
}

Result<std::shared_ptr<Importer>> Importer::create(const Plugin &plugin, uint64_t id,
						   HostServices &services, const Log &log,
						   const std::vector<peerbuf_param> &params,
						   const void *objects)
{
	std::shared_ptr<Importer> importer(new Importer(plugin, id, services, log));
	Host::clearSaid();
	void *device = nullptr;
	const int rc = importer->ops_.open(importer->host_.table(), params.data(), params.size(),
					   objects, &device);
	if (rc)
		return fail(importer->slotError("open", rc));
	if (!device)
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, importer->name_,
			    ": open returned 0 and no object");
	importer->device_ = device;
	const Result<peerbuf_importer_offer> offer = importer->offer(); // refuse nonsense now
	if (!offer)
		return fail(offer.error());
	return importer;
}

Importer::~Importer()
{
	if (device_)
		ops_.close(device_);
}

Result<peerbuf_importer_offer> Importer::offer() const
{
	Host::clearSaid();
	peerbuf_importer_offer offer = {};
	offer.struct_size = sizeof(offer);
	if (const int rc = ops_.offer(device_, &offer))
		return fail(slotError("offer", rc));
	if (Result<void> valid = validate(offer, ops_.capabilities, name_); !valid)
		return fail(valid.error());
	return offer;
}

Result<peerbuf_region> Importer::reg(const peerbuf_reg_request &request)
{
	Host::clearSaid();
	peerbuf_region region = {};
	region.struct_size = sizeof(region);
	if (const int rc = ops_.reg(device_, &request, &region))
		return fail(slotError("reg", rc));
	if (region.raw_key_size <= PEERBUF_RAW_KEY_LEN && region.kernel_flow <= PEERBUF_FLOW_PINNED)
		return region;
	ops_.dereg(device_, region.token);
	if (region.kernel_flow > PEERBUF_FLOW_PINNED)
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": reg returned kernel_flow ",
			    region.kernel_flow, ", which is none that a kernel takes");
	return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": reg returned a raw key of ",
		    region.raw_key_size, " bytes, at most ", PEERBUF_RAW_KEY_LEN, " fit");
}

void Importer::dereg(uint64_t region)
{
	ops_.dereg(device_, region);
}

int Importer::invalidate(const peerbuf_importer_invalidate &inv)
{
	if (!has(PEERBUF_IMPORTER_CAP_INVALIDATE))
		return -EOPNOTSUPP;
	const int rc = ops_.invalidate(device_, &inv);
	return rc > 0 ? -EINVAL : rc;
}

void Importer::resume(const peerbuf_importer_resume &res)
{
	if (has(PEERBUF_IMPORTER_CAP_RESUME))
		ops_.resume(device_, &res);
}

BorrowedFd Importer::eventFd() const
{
	return BorrowedFd(has(PEERBUF_IMPORTER_CAP_EVENTS) ? ops_.event_fd(device_) : -1);
}

Result<int> Importer::progress()
{
	Host::clearSaid();
	const int rc = ops_.progress(device_);
	if (rc < 0)
		return fail(slotError("progress", rc));
	return rc;
}

Result<const void *> Importer::openOps(const std::string &name) const
{
	Host::clearSaid();
	const void *ops = nullptr;
	const int rc = has(PEERBUF_IMPORTER_CAP_OPS) ? ops_.open_ops(device_, name.c_str(), &ops)
						     : -ENOENT;
	if (rc)
		return fail(slotError("open_ops", rc));
	return ops;
}

Result<peerbuf_gate *> Importer::gate() const
{
	Host::clearSaid();
	peerbuf_gate *gate = nullptr;
	const int rc = has(PEERBUF_IMPORTER_CAP_GATE) ? ops_.gate(device_, &gate) : -EOPNOTSUPP;
	if (rc)
		return fail(slotError("gate", rc));
	if (!gate)
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": gate returned 0 and no gate");
	// enter and leave are compiled into applications: they need all that they read
	if (gate->struct_size < sizeof(*gate) || !gate->drained)
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, name_, ": gate returned 0 and a gate ",
			    gate->drained ? "of " : "without drained, of ", gate->struct_size,
			    " bytes; ", sizeof(*gate), " are needed");
	return gate;
}

} // namespace peerbuf
