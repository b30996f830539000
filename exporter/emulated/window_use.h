// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_WINDOW_USE_H
#define PEERBUF_EXPORTER_EMULATED_WINDOW_USE_H

#include <cstdint>
#include <map>

namespace peerbuf::emulated
{

/**
 * Which bytes of one buffer are in the PCIe window, and how often. A byte that is mapped twice
 * takes its place in the window once. Thread-bound.
 */
class WindowUse
{
public:
	/** Bytes that add() would newly cover. */
	uint64_t need(uint64_t offset, uint64_t length) const
	{
		uint64_t covered = 0;
		const uint64_t end = offset + length;
		for (auto it = from(offset); it != count_.end() && it->first < end; ++it) {
			if (it->second == 0)
				continue;
			const auto next = std::next(it);
			const uint64_t last = next == count_.end() ? end : next->first;
			covered += std::min(last, end) - std::max(it->first, offset);
		}
		return length - covered;
	}

	void add(uint64_t offset, uint64_t length) { change(offset, offset + length, +1); }

	/** @return bytes that are now covered no more. */
	uint64_t remove(uint64_t offset, uint64_t length)
	{
		change(offset, offset + length, -1);
		return need(offset, length);
	}

private:
	using Map = std::map<uint64_t, int64_t>;

	/** The entry that covers @p offset, or the first after it. */
	Map::const_iterator from(uint64_t offset) const
	{
		auto it = count_.upper_bound(offset);
		return it == count_.begin() ? it : std::prev(it);
	}

	/** Make an entry begin at @p offset. */
	Map::iterator split(uint64_t offset)
	{
		auto it = count_.lower_bound(offset);
		if (it != count_.end() && it->first == offset)
			return it;
		const int64_t before = it == count_.begin() ? 0 : std::prev(it)->second;
		return count_.emplace_hint(it, offset, before);
	}

	void change(uint64_t offset, uint64_t end, int64_t by)
	{
		auto it = split(offset);
		const auto last = split(end);
		for (; it != last; ++it)
			it->second += by;
		merge();
	}

	void merge()
	{
		int64_t before = 0;
		for (auto it = count_.begin(); it != count_.end();) {
			if (it->second == before) {
				it = count_.erase(it);
			} else {
				before = it->second;
				++it;
			}
		}
	}

	Map count_; /* from offset on, as often; 0 before the first */
};

} // namespace peerbuf::emulated

#endif
