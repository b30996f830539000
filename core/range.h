// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_RANGE_H
#define PEERBUF_CORE_RANGE_H

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace peerbuf
{

/** The smallest page any kernel this runs on has, and so the least granularity of an offer. */
inline constexpr uint64_t MIN_GRANULARITY = 4096;

/** [offset, offset + length), which never passes 2^64. Value type. */
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

/** A union of ranges, kept sorted and disjoint. Thread-bound. */
class RangeSet
{
public:
	bool empty() const { return ranges_.empty(); }
	void clear() { ranges_.clear(); }
	void add(const Range &range);
	void remove(const Range &range);
	bool overlaps(const Range &range) const;
	bool covers(const Range &range) const;
	const std::vector<Range> &ranges() const { return ranges_; }

private:
	std::vector<Range> ranges_;
};

} // namespace peerbuf

#endif
