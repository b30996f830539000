// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file interval_set.h
 * A set of page numbers as disjoint intervals.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_INTERVAL_SET_H
#define PEERBUF_IMPORTER_EMULATED_INTERVAL_SET_H

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace peerbuf::emulated
{

/** Intervals are half open. Thread-bound. */
class IntervalSet
{
public:
	bool empty() const { return ends_.empty(); }

	bool contains(uint64_t value) const
	{
		auto it = ends_.upper_bound(value);
		return it != ends_.begin() && std::prev(it)->second > value;
	}

	void add(uint64_t begin, uint64_t end)
	{
		if (begin >= end)
			return;
		auto it = ends_.upper_bound(begin);
		if (it != ends_.begin() && std::prev(it)->second >= begin)
			--it;
		while (it != ends_.end() && it->first <= end) {
			begin = std::min(begin, it->first);
			end = std::max(end, it->second);
			it = ends_.erase(it);
		}
		ends_.emplace(begin, end);
	}

	void remove(uint64_t begin, uint64_t end)
	{
		if (begin >= end)
			return;
		auto it = ends_.upper_bound(begin);
		if (it != ends_.begin())
			--it;
		while (it != ends_.end() && it->first < end) {
			const uint64_t first = it->first;
			const uint64_t last = it->second;
			if (last <= begin) {
				++it;
				continue;
			}
			it = ends_.erase(it);
			if (first < begin)
				ends_.emplace(first, begin);
			if (last > end)
				ends_.emplace(end, last);
		}
	}

private:
	std::map<uint64_t, uint64_t> ends_; // by begin
};

} // namespace peerbuf::emulated

#endif
