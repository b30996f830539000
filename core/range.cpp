// SPDX-License-Identifier: BSD-3-Clause
#include "core/range.h"

#include <algorithm>
#include <cerrno>

namespace peerbuf
{

Range roundOut(const Range &range, uint64_t granularity)
{
	const uint64_t start = range.offset & ~(granularity - 1);
	const uint64_t end = (range.end() + granularity - 1) & ~(granularity - 1);
	return {start, end - start};
}

Result<Range> checkRange(const std::string &what, uint64_t offset, uint64_t length, uint64_t size)
{
	if (!length)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, what, ": empty: length 0 at offset ",
			    hex(offset));
	if (offset > UINT64_MAX - length)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, what, ": overflow: offset ",
			    hex(offset), " + length ", hex(length), " passes 2^64");
	if (offset + length > size)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, what, ": beyond the end: offset ",
			    hex(offset), " + length ", hex(length), " = ", hex(offset + length),
			    ", size ", hex(size));
	return Range{offset, length};
}

void RangeSet::add(const Range &range)
{
	Range merged = range;
	std::vector<Range> others;
	for (const Range &r : ranges_) {
		if (r.end() < merged.offset || merged.end() < r.offset) {
			others.push_back(r);
			continue;
		}
		const uint64_t start = std::min(r.offset, merged.offset);
		merged = Range{start, std::max(r.end(), merged.end()) - start};
	}
	others.push_back(merged);
	std::sort(others.begin(), others.end(),
		  [](const Range &a, const Range &b) { return a.offset < b.offset; });
	ranges_ = std::move(others);
}

void RangeSet::remove(const Range &range)
{
	std::vector<Range> left;
	for (const Range &r : ranges_) {
		if (!r.overlaps(range)) {
			left.push_back(r);
			continue;
		}
		if (r.offset < range.offset)
			left.push_back(Range{r.offset, range.offset - r.offset});
		if (range.end() < r.end())
			left.push_back(Range{range.end(), r.end() - range.end()});
	}
	ranges_ = std::move(left);
}

bool RangeSet::overlaps(const Range &range) const
{
	return std::any_of(ranges_.begin(), ranges_.end(),
			   [&](const Range &r) { return r.overlaps(range); });
}

bool RangeSet::covers(const Range &range) const
{
	return std::any_of(ranges_.begin(), ranges_.end(),
			   [&](const Range &r) { return r.covers(range); });
}

} // namespace peerbuf
