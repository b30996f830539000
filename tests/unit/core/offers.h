// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_CORE_OFFERS_H
#define PEERBUF_TESTS_UNIT_CORE_OFFERS_H

#include <ostream>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/negotiate.h"
#include "core/offer.h"

/** Offers that are right in every field, for tests to spoil one of them. */
namespace peerbuf
{

// gtest prints values by the operator<< of their own namespace
inline std::ostream &operator<<(std::ostream &out, const Refusal &r)
{
	return out << flowName(r.flow) << " refused by " << r.who << " (" << r.capability << ", "
		   << errcName(r.code) << ", errno " << r.err << "): " << r.why;
}

inline std::ostream &operator<<(std::ostream &out, const Answer &a)
{
	out << "plan " << (a.plan ? flowName(a.plan->flow) : "none");
	for (const Refusal &r : a.refusals)
		out << "\n  " << r;
	return out;
}

} // namespace peerbuf

namespace peerbuf::test
{

inline constexpr uint32_t ALL_EXPORTER_CAPS = 0xff;
inline constexpr uint32_t ALL_IMPORTER_CAPS = 0xf;
inline constexpr uint32_t READ_WRITE =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;

/** Moves, can pin, never revokes; device memory; by segments or CPU. */
inline ExporterSide movingExporter()
{
	ExporterSide e;
	e.name = "exporter hbm0";
	e.offer.struct_size = sizeof(e.offer);
	e.offer.stability = PEERBUF_STABILITY_MOVES;
	e.offer.pin = PEERBUF_PIN_CAN;
	e.offer.revoke = PEERBUF_REVOKE_NEVER;
	e.offer.management = PEERBUF_MANAGED_BY_USER;
	e.offer.placements = PEERBUF_PLACEMENT_DEVICE;
	e.offer.variants = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU;
	e.offer.access = READ_WRITE;
	e.offer.granularity = 4096;
	e.offer.memory_size = uint64_t{1} << 34;
	copyText(e.offer.device, "hbm0");
	return e;
}

inline ExporterSide staticExporter()
{
	ExporterSide e = movingExporter();
	e.offer.stability = PEERBUF_STABILITY_STATIC;
	e.offer.pin = PEERBUF_PIN_NOT_NEEDED;
	return e;
}

/** Static, pin not needed, may revoke. */
inline ExporterSide revokingExporter()
{
	ExporterSide e = staticExporter();
	e.offer.revoke = PEERBUF_REVOKE_MAY;
	return e;
}

/** Moves and will not be stopped. */
inline ExporterSide unpinnableExporter()
{
	ExporterSide e = movingExporter();
	e.offer.pin = PEERBUF_PIN_REFUSES;
	copyText(e.offer.why, "its memory manager compacts");
	return e;
}

inline ExporterSide managedByKernel(ExporterSide e)
{
	e.offer.management = PEERBUF_MANAGED_BY_KERNEL;
	e.offer.handles = PEERBUF_HANDLE_FD;
	return e;
}

/** Takes everything, peer-to-peer, 64 bits; told by peerbuf if it can invalidate. */
inline ImporterSide importerWith(uint32_t invalidation)
{
	ImporterSide i;
	i.name = "importer nic0";
	i.offer.struct_size = sizeof(i.offer);
	i.offer.invalidation = invalidation;
	i.offer.invalidate_scope = invalidation ? PEERBUF_SCOPE_RANGE : 0;
	i.offer.notified_by = invalidation ? PEERBUF_NOTIFIED_BY_USER : 0;
	i.offer.peer2peer = 1;
	i.offer.variants = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	i.offer.handles = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	i.offer.access = READ_WRITE;
	i.offer.dma_mask_bits = 64;
	i.offer.page_sizes = 0x1000;
	i.offer.max_length = PEERBUF_UNLIMITED;
	i.offer.keys_left = PEERBUF_UNLIMITED;
	copyText(i.offer.device, "nic0");
	return i;
}

inline ImporterSide refaultImporter()
{
	return importerWith(PEERBUF_INVALIDATION_REFAULT | PEERBUF_INVALIDATION_REVOCABLE);
}

inline ImporterSide revocableImporter()
{
	return importerWith(PEERBUF_INVALIDATION_REVOCABLE);
}

inline ImporterSide plainImporter()
{
	return importerWith(0);
}

/** A NIC whose data path is hardware: it obeys the kernel's Invalidate alone. */
inline ImporterSide toldByKernel(ImporterSide i)
{
	if (i.offer.invalidation)
		i.offer.notified_by = PEERBUF_NOTIFIED_BY_KERNEL;
	return i;
}

inline ImporterSide named(ImporterSide i, const std::string &name)
{
	i.name = name;
	return i;
}

/** 1 MiB at 64 KiB, read and write. */
inline Demand megabyte()
{
	Demand d;
	d.range = {0x10000, 0x100000};
	d.access = READ_WRITE;
	d.pinBytes = 0x100000;
	return d;
}

/** The first refusal of @p flow, or null. */
inline const Refusal *refusalOf(const std::vector<Refusal> &refusals, peerbuf_flow flow)
{
	for (const Refusal &r : refusals)
		if (r.flow == flow)
			return &r;
	return nullptr;
}

/** The class of the refusal that decides; PEERBUF_OK: none does. */
inline Errc decisiveCode(const Answer &a)
{
	const Refusal *r = decisive(a.refusals);
	return r ? r->code : PEERBUF_OK;
}

inline bool has(const std::string &text, const std::string &part)
{
	return text.find(part) != std::string::npos;
}

} // namespace peerbuf::test

#endif
