// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_OFFER_H
#define PEERBUF_CORE_OFFER_H

#include <string>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>
#include <peerbuf/types.h>

#include "core/base/result.h"

namespace peerbuf
{

/** The smallest page any kernel this runs on has, and so the least granularity of an offer. */
inline constexpr uint64_t MIN_GRANULARITY = 4096;

/**
 * Whether an offer can be believed: every enumeration set and known, no contradiction, nothing
 * promised whose slots the plugin lacks. The error names both facts. Pure.
 *
 * @param capabilities PEERBUF_EXPORTER_CAP_* of the plugin.
 */
Result<void> validate(const peerbuf_exporter_offer &offer, uint32_t capabilities,
		      const std::string &name);
/** @param capabilities PEERBUF_IMPORTER_CAP_* of the plugin. */
Result<void> validate(const peerbuf_importer_offer &offer, uint32_t capabilities,
		      const std::string &name);

/** Round outwards to the granularity. */
struct Range {
	uint64_t offset = 0;
	uint64_t length = 0;

	uint64_t end() const { return offset + length; }
	bool overlaps(const Range &other) const
	{
		return offset < other.end() && other.offset < end();
	}
	bool covers(const Range &other) const
	{
		return offset <= other.offset && other.end() <= end();
	}
	bool operator==(const Range &) const = default;
};

/** The smallest aligned range around @p range. @param granularity a power of two. */
Range roundOut(const Range &range, uint64_t granularity);

/**
 * Whether [offset, offset + length) lies inside @p size, without overflow and not empty
 * (kernel-semantics rule 33). @param what names the range in the error.
 */
Result<Range> checkRange(const std::string &what, uint64_t offset, uint64_t length, uint64_t size);

} // namespace peerbuf

#endif
