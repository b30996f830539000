// SPDX-License-Identifier: BSD-3-Clause
#include "frames.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <sstream>

#include "pages.h"

namespace peerbuf::emulated
{

void append(std::vector<Run> *runs, const Run &run)
{
	if (!runs->empty() && runs->back().offset + runs->back().length == run.offset)
		runs->back().length += run.length;
	else
		runs->push_back(run);
}

std::vector<Run> partOf(const std::vector<Run> &runs, uint64_t offset, uint64_t length)
{
	std::vector<Run> part;
	uint64_t start = 0; /* of the run, in the buffer */
	for (const Run &run : runs) {
		const uint64_t from = std::max(start, offset);
		const uint64_t to = std::min(start + run.length, offset + length);
		if (from < to)
			append(&part, {run.offset + (from - start), to - from});
		start += run.length;
	}
	return part;
}

Frames::Frames(uint64_t base, uint64_t size, uint64_t frame, uint64_t seed, bool contiguous)
    : base_(base),
      size_(size),
      frame_(frame),
      available_(size),
      contiguous_(contiguous),
      random_(seed)
{
	if (size_)
		free_.emplace(base_, size_);
}

bool Frames::allocate(uint64_t length, std::vector<Run> *ret_runs, std::string *ret_why)
{
	assert(length && length % frame_ == 0);
	if (length > available_) {
		std::ostringstream why;
		why << length << " bytes needed, " << available_ << " of " << size_ << " free";
		*ret_why = why.str();
		return false;
	}

	if (contiguous_ && allocateWhole(length, ret_runs))
		return true;

	/* Aligned pieces of a power of two keep what is left over usable, as a buddy system. */
	const uint64_t usual = std::bit_ceil((length / frame_ + 31) / 32);
	std::vector<Run> runs;
	uint64_t left = length;
	while (left && runs.size() < maxRuns && !contiguous_) {
		const uint64_t piece = std::min(left, (usual << (random_() % 3)) * frame_);
		const uint64_t align = std::bit_floor(piece / frame_) * frame_;
		const uint64_t position = base_ + random_() % size_ / align * align;
		const Run run = takeNear(position, piece);
		append(&runs, run);
		left -= run.length;
	}
	if (left) {
		release(runs);
		runs.clear();
		if (!allocateLargestFirst(length, &runs)) {
			std::ostringstream why;
			why << length << " bytes needed, " << available_ << " of " << size_
			    << " free but in more than " << maxRuns << " pieces";
			*ret_why = why.str();
			return false;
		}
	}
	*ret_runs = std::move(runs);
	return true;
}

/** Up to @p most bytes from @p position, or from the next free run after it, round the end. */
Run Frames::takeNear(uint64_t position, uint64_t most)
{
	auto it = free_.upper_bound(position);
	uint64_t start = 0;
	if (it != free_.begin() && std::prev(it)->first + std::prev(it)->second > position) {
		--it;
		start = position;
	} else {
		if (it == free_.end())
			it = free_.begin();
		start = it->first;
	}
	const uint64_t first = it->first;
	const uint64_t end = first + it->second;
	const Run run = {start, std::min(most, end - start)};
	if (start > first)
		it->second = start - first;
	else
		free_.erase(it);
	if (start + run.length < end)
		free_.emplace(start + run.length, end - start - run.length);
	available_ -= run.length;
	return run;
}

/** The smallest piece that it fits into. */
bool Frames::allocateWhole(uint64_t length, std::vector<Run> *ret_runs)
{
	const uint64_t align = length >= hugePage ? std::max(frame_, hugePage) : frame_;
	uint64_t best = UINT64_MAX;
	uint64_t position = 0;
	for (const auto &[offset, size] : free_) {
		const uint64_t skip = (align - offset % align) % align;
		if (size < best && skip < size && length <= size - skip) {
			best = size;
			position = offset + skip;
		}
	}
	if (best == UINT64_MAX)
		return false;
	*ret_runs = {takeNear(position, length)};
	return true;
}

bool Frames::allocateLargestFirst(uint64_t length, std::vector<Run> *ret_runs)
{
	std::vector<Run> pieces;
	for (const auto &[offset, size] : free_)
		pieces.push_back({offset, size});
	std::sort(pieces.begin(), pieces.end(),
		  [](const Run &a, const Run &b) { return a.length > b.length; });
	uint64_t sum = 0;
	size_t n = 0;
	while (sum < length && n < pieces.size())
		sum += pieces[n++].length;
	if (n > maxRuns)
		return false;
	uint64_t left = length;
	for (size_t i = 0; i < n; i++) {
		const Run run = takeNear(pieces[i].offset, std::min(left, pieces[i].length));
		append(ret_runs, run);
		left -= run.length;
	}
	return true;
}

void Frames::release(const std::vector<Run> &runs)
{
	for (const Run &run : runs)
		releaseRun(run);
}

void Frames::releaseRun(Run run)
{
	available_ += run.length;
	auto next = free_.lower_bound(run.offset);
	assert(next == free_.end() || run.offset + run.length <= next->first);
	if (next != free_.end() && run.offset + run.length == next->first) {
		run.length += next->second;
		next = free_.erase(next);
	}
	if (next != free_.begin()) {
		auto before = std::prev(next);
		assert(before->first + before->second <= run.offset);
		if (before->first + before->second == run.offset) {
			before->second += run.length;
			return;
		}
	}
	free_.emplace_hint(next, run.offset, run.length);
}

} // namespace peerbuf::emulated
