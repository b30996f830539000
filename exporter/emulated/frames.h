// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_FRAMES_H
#define PEERBUF_EXPORTER_EMULATED_FRAMES_H

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace peerbuf::emulated
{

/** Adjacent frames. */
struct Run {
	uint64_t offset; /* in the device's memory */
	uint64_t length;
};

/** The part [offset, offset + length) of what @p runs make up, in order. */
std::vector<Run> partOf(const std::vector<Run> &runs, uint64_t offset, uint64_t length);
/** Append, merging what is adjacent. */
void append(std::vector<Run> *runs, const Run &run);

/**
 * Frames of one tier of the device's memory.
 *
 * Scatters on purpose: a buffer is made of a few dozen runs from all over the tier, so that nobody
 * gets away with "one buffer, one segment". The same seed and calls give the same places. Where
 * it was made contiguous, a buffer is one run as long as there is one, large ones on a boundary of
 * huge pages.
 * Thread-bound.
 */
class Frames
{
public:
	/**
	 * Most runs of one buffer. Every run is a mapping in each client, and a process may have
	 * 65530 of those (vm.max_map_count).
	 */
	static constexpr size_t maxRuns = 4096;

	Frames(uint64_t base, uint64_t size, uint64_t frame, uint64_t seed,
	       bool contiguous = false);

	/** @param length multiple of the frame, not 0. @return false with the reason in ret_why. */
	bool allocate(uint64_t length, std::vector<Run> *ret_runs, std::string *ret_why);
	void release(const std::vector<Run> &runs);

	uint64_t size() const { return size_; }
	uint64_t available() const { return available_; }
	const std::map<uint64_t, uint64_t> &freeRuns() const { return free_; }

private:
	Run takeNear(uint64_t position, uint64_t most);
	bool allocateWhole(uint64_t length, std::vector<Run> *ret_runs);
	bool allocateLargestFirst(uint64_t length, std::vector<Run> *ret_runs);
	void releaseRun(Run run);

	uint64_t base_;
	uint64_t size_;
	uint64_t frame_;
	uint64_t available_;
	bool contiguous_;
	std::mt19937_64 random_;
	std::map<uint64_t, uint64_t> free_; /* offset → length, never adjacent */
};

} // namespace peerbuf::emulated

#endif
