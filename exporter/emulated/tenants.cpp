// SPDX-License-Identifier: BSD-3-Clause
/*
 * Who may have how much of the emulated device, and when its pools of memory are there. The limits
 * hold for all clients together, as those of a kernel's cgroup do.
 */
#include <algorithm>
#include <cerrno>

#include "device.h"

namespace peerbuf::emulated
{

using plugin::text;

namespace
{

const char *poolStateName(uint32_t state)
{
	switch (state) {
	case PEERBUF_POOL_OFFLINE:
		return "offline";
	case PEERBUF_POOL_ISOLATED:
		return "isolated";
	case PEERBUF_POOL_ONLINE:
		return "online";
	default:
		return "unknown";
	}
}

const char *poolName(uint32_t placement)
{
	return placement == PEERBUF_PLACEMENT_HOST ? "host tier" : "HBM";
}

} // namespace

uint32_t &Device::poolState(uint32_t placement)
{
	return pools_[placement == PEERBUF_PLACEMENT_HOST ? 1 : 0];
}

/** Whether anything new may go there. */
bool Device::poolOpen(uint32_t placement, std::string *ret_why)
{
	const uint32_t state = poolState(placement);
	if (state == PEERBUF_POOL_ONLINE)
		return true;
	*ret_why = text("the ", poolName(placement), " of ", name_, " is ", poolStateName(state));
	return false;
}

Device::Outcome Device::pool(const Message &request, Message &reply)
{
	const PoolBody &ask = request.body.pool;
	if ((ask.placement != PEERBUF_PLACEMENT_DEVICE &&
	     ask.placement != PEERBUF_PLACEMENT_HOST) ||
	    !(ask.placement & settings_.placements))
		return failed(reply, EINVAL, PEERBUF_ERR_INVALID_ARGUMENT,
			      text("pool of placement ", ask.placement, ", which is none of ",
				   name_, ", placements=", settingText(settings_, "placements")));
	uint32_t &state = poolState(ask.placement);
	const std::string what = text("the ", poolName(ask.placement), " of ", name_, " from ",
				      poolStateName(state), " to ", poolStateName(ask.state));
	if (ask.state < PEERBUF_POOL_OFFLINE || ask.state > PEERBUF_POOL_ONLINE ||
	    std::max(state, ask.state) - std::min(state, ask.state) > 1)
		return failed(reply, EINVAL, PEERBUF_ERR_INVALID_ARGUMENT,
			      text(what, ": it goes offline, isolated, online, a step at a time"));
	if (ask.state == PEERBUF_POOL_OFFLINE && state == PEERBUF_POOL_ISOLATED) {
		const Frames &frames =
			ask.placement == PEERBUF_PLACEMENT_HOST ? hostFrames_ : deviceFrames_;
		const auto inIt = [&](const auto &entry) {
			return !entry.second->runs.empty() &&
			       (entry.second->placement & ask.placement);
		};
		if (frames.available() != frames.size())
			return failed(reply, EBUSY, PEERBUF_ERR_BUSY,
				      text(what, ": ", frames.size() - frames.available(), " of ",
					   frames.size(), " bytes are in use by ",
					   std::count_if(buffers_.begin(), buffers_.end(), inIt),
					   " buffers, ", quarantined_, " are in quarantine"));
	}
	state = ask.state;
	chat(what);
	return Outcome::Answered;
}

std::string Device::tenantOf(Id client) const
{
	auto it = clients_.find(client);
	return it == clients_.end() ? "" : it->second->tenant;
}

peerbuf_tenant_limits Device::limitsOf(const std::string &tenant) const
{
	if (const auto it = tenants_.find(tenant); it != tenants_.end())
		return it->second.limits;
	peerbuf_tenant_limits limits = {};
	limits.struct_size = sizeof(limits);
	limits.bytes = settings_.tenantBytes;
	limits.pinned = settings_.tenantPins;
	limits.min_resident = settings_.tenantMin;
	return limits;
}

uint64_t Device::allocatedBytes(const std::string &tenant) const
{
	uint64_t bytes = 0;
	for (const auto &[id, buffer] : buffers_)
		if (buffer->tenant == tenant)
			bytes += buffer->size;
	return bytes;
}

/** The memory that limits are about: without HBM it is the host tier. */
uint32_t Device::homePlacement() const
{
	return settings_.placements & PEERBUF_PLACEMENT_DEVICE ? PEERBUF_PLACEMENT_DEVICE
							       : PEERBUF_PLACEMENT_HOST;
}

uint64_t Device::homeSize() const
{
	return settings_.placements & PEERBUF_PLACEMENT_DEVICE ? settings_.hbm : settings_.host;
}

/** The task that pins pays, also for memory that another allocated. */
uint64_t Device::pinnedBytes(const std::string &tenant) const
{
	uint64_t bytes = 0;
	for (const auto &[id, attachment] : attachments_)
		if (attachment->pins && tenantOf(attachment->client) == tenant &&
		    buffers_.at(attachment->buffer)->placement == homePlacement())
			bytes += attachment->length;
	return bytes;
}

/** "tenant 'a' 4096 bytes by client 17, ...", for errors. */
std::string Device::pinHolders() const
{
	std::map<std::pair<std::string, Id>, uint64_t> held;
	for (const auto &[id, attachment] : attachments_)
		if (attachment->pins)
			held[{tenantOf(attachment->client), attachment->client}] +=
				attachment->length;
	std::string list;
	for (const auto &[who, bytes] : held)
		list += text(list.empty() ? "" : ", ", "tenant '", who.first, "' ", bytes,
			     " bytes by client ", who.second);
	return list.empty() ? "nobody" : list;
}

/**
 * Whether all that was promised still fits into the HBM if @p tenant pinned @p pinned bytes and
 * was promised @p minimum: what is pinned never makes room.
 */
bool Device::promisesFit(const std::string &tenant, uint64_t pinned, uint64_t minimum,
			 std::string *ret_why) const
{
	const uint64_t own = std::max(pinned, minimum);
	uint64_t others = 0;
	std::string list;
	for (const auto &[name, other] : tenants_) {
		const uint64_t bytes = std::max(pinnedBytes(name), other.limits.min_resident);
		if (name == tenant || !bytes)
			continue;
		others += bytes;
		list += text(list.empty() ? "" : ", ", "tenant '", name, "' ", bytes);
	}
	if (!own || (own <= homeSize() && others <= homeSize() - own))
		return true;
	*ret_why =
		text("tenant '", tenant, "' needs ", own, " of the ", homeSize(), " bytes of the ",
		     poolName(homePlacement()), " of ", name_, " to itself, ", others,
		     " are pinned or promised to others: ", list.empty() ? "nobody" : list);
	return false;
}

/** A client comes. @return false with the reason: its tenant's minimum cannot be kept. */
bool Device::admit(const std::string &tenant, std::string *ret_why)
{
	if (tenants_.count(tenant) == 0) {
		const peerbuf_tenant_limits limits = limitsOf(tenant);
		if (!promisesFit(tenant, 0, limits.min_resident, ret_why))
			return false;
		tenants_.emplace(tenant, Tenant{limits, 0, false});
	}
	tenants_.at(tenant).clients++;
	return true;
}

/** What nobody set ends with the last client and the last buffer. */
void Device::forgetTenant(const std::string &tenant)
{
	const auto it = tenants_.find(tenant);
	if (it != tenants_.end() && !it->second.clients && !it->second.set &&
	    !allocatedBytes(tenant))
		tenants_.erase(it);
}

Device::Outcome Device::setLimits(const Message &request, Message &reply)
{
	const peerbuf_tenant_limits &limits = request.body.tenant.limits;
	const std::string tenant =
		sentName(request.body.tenant.name, sizeof(request.body.tenant.name));
	const uint32_t placement = homePlacement();
	const std::string what = text("limits of tenant '", tenant, "': ");
	if (poolState(placement) == PEERBUF_POOL_OFFLINE)
		return failed(
			reply, ENODEV, PEERBUF_ERR_NOT_FOUND,
			text(what, "the ", poolName(placement), " of ", name_, " is offline"));
	const uint64_t allocated = allocatedBytes(tenant);
	const uint64_t pinned = pinnedBytes(tenant);
	if (allocated > limits.bytes || pinned > limits.pinned)
		return failed(reply, EBUSY, PEERBUF_ERR_BUSY,
			      text(what, "it has allocated ", allocated,
				   " bytes, wanted are at most ", limits.bytes, "; pinned ", pinned,
				   ", wanted at most ", limits.pinned));
	std::string why;
	if (!promisesFit(tenant, pinned, limits.min_resident, &why))
		return failed(reply, ENOMEM, PEERBUF_ERR_QUOTA, text(what, why));
	Tenant &kept = tenants_[tenant];
	kept.limits = limits;
	kept.limits.struct_size = sizeof(limits);
	kept.set = true;
	return Outcome::Answered;
}

Device::Outcome Device::tenantStatus(const Message &request, Message &reply)
{
	const std::string tenant =
		sentName(request.body.tenant.name, sizeof(request.body.tenant.name));
	const auto it = tenants_.find(tenant);
	if (it == tenants_.end())
		return failed(reply, ENOENT, PEERBUF_ERR_NOT_FOUND,
			      text(name_, " knows no tenant '", tenant, "'"));
	peerbuf_tenant_status s = {};
	s.struct_size = sizeof(s);
	s.clients = static_cast<uint32_t>(it->second.clients);
	s.limits = it->second.limits;
	s.bytes = allocatedBytes(tenant);
	s.pinned = pinnedBytes(tenant);
	for (const auto &[id, buffer] : buffers_)
		if (buffer->tenant == tenant && !buffer->runs.empty() &&
		    buffer->placement == homePlacement())
			s.resident += buffer->size;
	reply.body.tenantStatus = s;
	return Outcome::Answered;
}

} // namespace peerbuf::emulated
