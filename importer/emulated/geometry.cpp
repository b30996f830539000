// SPDX-License-Identifier: BSD-3-Clause
#include "geometry.h"

#include <bit>
#include <cerrno>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::emulated
{

namespace
{

using plugin::hex;
using plugin::text;

bool passesEnd(uint64_t start, uint64_t length)
{
	return length > UINT64_MAX - start;
}

Failure geometry(const std::string &why)
{
	return {EINVAL, PEERBUF_ERR_BAD_GEOMETRY, why};
}

Failure invalid(const std::string &why)
{
	return {EINVAL, PEERBUF_ERR_INVALID_ARGUMENT, why};
}

std::optional<Failure> checkFlow(const NicOptions &nic, const peerbuf_reg_request &request,
				 const std::string &name)
{
	switch (request.flow) {
	case PEERBUF_FLOW_MOVABLE:
		if (nic.profile != Profile::Refault)
			return Failure{EOPNOTSUPP, PEERBUF_ERR_UNSUPPORTED_DRIVER,
				       text(nic.name, ": ", name,
					    ": Movable asked for, but the device does not ask for "
					    "a translation again")};
		return std::nullopt;
	case PEERBUF_FLOW_REVOCABLE:
		if (nic.profile == Profile::Neither)
			return Failure{EOPNOTSUPP, PEERBUF_ERR_REVOKE_UNSUPPORTED,
				       text(nic.name, ": ", name,
					    ": Revocable asked for, but the device cannot stop")};
		return std::nullopt;
	case PEERBUF_FLOW_PINNED:
	case PEERBUF_FLOW_STAGED:
	case PEERBUF_FLOW_REKEY:
		return std::nullopt;
	default:
		return invalid(text(nic.name, ": ", name, ": flow ", request.flow,
				    " is not one of 1 to 5"));
	}
}

/** Segments in order, adjacent ones made one where the device does that. */
std::vector<Run> runsOf(const NicOptions &nic, const Extent &extent, const peerbuf_mapping &mapping)
{
	std::vector<Run> runs;
	uint64_t at = mapping.offset;
	for (uint64_t i = 0; i < mapping.n_segments; i++) {
		const peerbuf_segment &segment = mapping.segments[i];
		const uint64_t start = at;
		at += segment.length;
		if (at <= extent.offset || start >= extent.offset + extent.length)
			continue;
		auto *const cpu = static_cast<unsigned char *>(segment.cpu_addr);
		if (nic.mergesSegments && !runs.empty()) {
			Run &last = runs.back();
			// software also needs the bytes to be adjacent in this process
			if (last.dmaAddr + last.length == segment.dma_addr &&
			    last.cpu + last.length == cpu) {
				last.length += segment.length;
				continue;
			}
		}
		runs.push_back({start, segment.length, segment.dma_addr, cpu});
	}
	return runs;
}

} // namespace

std::optional<Failure> checkRequest(const NicOptions &nic, const peerbuf_reg_request &request)
{
	const std::string name = request.name ? request.name : "buffer";

	if (request.length == 0)
		return geometry(
			text(nic.name, ": ", name, ": length 0 at offset ", hex(request.offset)));
	if (passesEnd(request.offset, request.length))
		return geometry(text(nic.name, ": ", name, ": offset ", hex(request.offset),
				     " + length ", hex(request.length), " overflows"));
	if (passesEnd(request.iova, request.length))
		return geometry(text(nic.name, ": ", name, ": iova ", hex(request.iova),
				     " + length ", hex(request.length), " overflows"));
	if (request.length > nic.maxLength)
		return Failure{EINVAL, PEERBUF_ERR_DEVICE_LIMIT,
			       text(nic.name, ": ", name, ": length ", request.length,
				    " is more than the longest region, ", nic.maxLength)};
	if (!std::has_single_bit(request.granularity) || request.granularity < basePage)
		return geometry(text(nic.name, ": ", name, ": granularity ", request.granularity,
				     " is not a power of two of at least ", basePage));
	if ((request.offset ^ request.iova) & (basePage - 1))
		return geometry(text(nic.name, ": ", name, ": offset ", hex(request.offset),
				     " and iova ", hex(request.iova),
				     " differ below the page size ", hex(basePage)));
	if (const uint32_t unknown = request.access & ~nic.access)
		return Failure{EACCES, PEERBUF_ERR_ACCESS,
			       text(nic.name, ": ", name, ": access ", hex(request.access),
				    " has bits ", hex(unknown), " that the device, which knows ",
				    hex(nic.access), ", does not")};
	if (std::optional<Failure> failure = checkFlow(nic, request, name))
		return failure;
	if (request.handle_kind & ~uint32_t{PEERBUF_HANDLE_SEGMENTS})
		return Failure{EOPNOTSUPP, PEERBUF_ERR_UNSUPPORTED_DRIVER,
			       text(nic.name, ": ", name, ": handle kind ",
				    hex(request.handle_kind), ", the device takes segments (",
				    hex(PEERBUF_HANDLE_SEGMENTS), ") only")};
	if (request.handle_kind == PEERBUF_HANDLE_SEGMENTS && !request.mapping)
		return invalid(text(nic.name, ": ", name,
				    ": handle kind says segments, but there is no mapping"));
	if (!request.mapping && request.flow != PEERBUF_FLOW_MOVABLE)
		return invalid(text(nic.name, ": ", name, ": no mapping, which flow ", request.flow,
				    " needs (only Movable maps later)"));
	return std::nullopt;
}

std::optional<Failure> checkMapping(const NicOptions &nic, const Extent &extent,
				    const peerbuf_mapping &mapping, const std::string &name,
				    Layout &ret_layout)
{
	if (mapping.struct_size < sizeof(peerbuf_mapping))
		return invalid(text(nic.name, ": ", name, ": mapping of ", mapping.struct_size,
				    " bytes, ", sizeof(peerbuf_mapping), " needed"));
	if (!mapping.segments || !mapping.n_segments)
		return invalid(text(nic.name, ": ", name, ": mapping with ", mapping.n_segments,
				    " segments", mapping.segments ? "" : " and no list of them"));
	if (passesEnd(mapping.offset, mapping.length) || mapping.offset > extent.offset ||
	    mapping.offset + mapping.length < extent.offset + extent.length)
		return geometry(text(nic.name, ": ", name, ": mapping at ", hex(mapping.offset),
				     " of ", hex(mapping.length), " bytes does not cover ",
				     hex(extent.offset), " of ", hex(extent.length)));
	if (mapping.peer2peer && !nic.peer2peer && nic.mutant != Mutant::P2pFlagIgnored)
		return Failure{EOPNOTSUPP, PEERBUF_ERR_NO_P2P_PATH,
			       text(nic.name, ": ", name,
				    ": the mapping has peer2peer=1, the device peer2peer=no")};

	uint64_t sum = 0;
	for (uint64_t i = 0; i < mapping.n_segments; i++) {
		const peerbuf_segment &segment = mapping.segments[i];
		if (!segment.length || (segment.length & (basePage - 1)) ||
		    (segment.dma_addr & (basePage - 1)))
			return geometry(text(nic.name, ": ", name, ": segment ", i, " at ",
					     hex(segment.dma_addr), " of ", hex(segment.length),
					     " bytes is empty or not aligned to ", hex(basePage)));
		if (passesEnd(segment.dma_addr, segment.length - 1) ||
		    passesEnd(sum, segment.length))
			return geometry(text(nic.name, ": ", name, ": segment ", i, " at ",
					     hex(segment.dma_addr), " of ", hex(segment.length),
					     " bytes overflows"));
		sum += segment.length;
		const uint64_t last = segment.dma_addr + (segment.length - 1);
		if (!nic.iommuTranslates && last > nic.dmaMask())
			return Failure{EINVAL, PEERBUF_ERR_NO_P2P_PATH,
				       text(nic.name, ": ", name, ": segment ", i, " ends at ",
					    hex(last), ", which needs ", std::bit_width(last),
					    " address bits; the device has ", nic.dmaMaskBits)};
		if (!segment.cpu_addr)
			return Failure{EOPNOTSUPP, PEERBUF_ERR_UNSUPPORTED_DRIVER,
				       text(nic.name, ": ", name, ": segment ", i, " at ",
					    hex(segment.dma_addr),
					    " has no CPU address; an emulated device reaches "
					    "memory by no other way")};
	}
	if (sum != mapping.length)
		return geometry(text(nic.name, ": ", name, ": segments sum up to ", hex(sum),
				     ", the mapping has ", hex(mapping.length)));

	Layout layout;
	layout.runs = runsOf(nic, extent, mapping);
	if (nic.maxSegments && layout.runs.size() > nic.maxSegments)
		return Failure{EINVAL, PEERBUF_ERR_DEVICE_LIMIT,
			       text(nic.name, ": ", name, ": ", layout.runs.size(), " segments",
				    nic.mergesSegments ? " after merging" : "",
				    ", the device takes ", nic.maxSegments)};
	for (size_t i = 0; i < layout.runs.size(); i++) {
		const Run &run = layout.runs[i];
		// modulo 2^64: the first run may start before the extent
		const uint64_t address = extent.iova + (run.offset - extent.offset);
		layout.pageMask |= run.dmaAddr ^ address;
		if (i > 0)
			layout.pageMask |= address; // a page lies in one run
	}
	ret_layout = std::move(layout);
	return std::nullopt;
}

std::optional<Failure> choosePageSize(const NicOptions &nic, const Layout &layout,
				      const std::string &name, uint64_t &ret_size)
{
	const uint64_t limit =
		layout.pageMask ? layout.pageMask & (~layout.pageMask + 1) : uint64_t{1} << 63;
	const uint64_t usable = nic.pageSizes & (limit | (limit - 1));
	if (!usable)
		return geometry(text(nic.name, ": ", name, ": segments and iova agree in pages of ",
				     hex(limit), " at most, the device's smallest is ",
				     hex(nic.smallestPage())));
	ret_size = std::bit_floor(usable);
	return std::nullopt;
}

std::optional<Failure> chooseMovablePageSize(const NicOptions &nic, const Extent &extent,
					     uint64_t granularity, const std::string &name,
					     uint64_t &ret_size)
{
	const uint64_t size = nic.smallestPage();
	if (size > granularity)
		return geometry(text(nic.name, ": ", name, ": the memory moves in parts of ",
				     hex(granularity), ", the device's smallest page is ",
				     hex(size)));
	if ((extent.offset ^ extent.iova) & (size - 1))
		return geometry(text(nic.name, ": ", name, ": offset ", hex(extent.offset),
				     " and iova ", hex(extent.iova),
				     " differ below the device's smallest page ", hex(size)));
	ret_size = size;
	return std::nullopt;
}

} // namespace peerbuf::emulated
