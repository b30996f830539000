// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file pauses.h
 * How long a data path was stopped, as a distribution.
 */
#ifndef PEERBUF_TOOLS_PAUSES_H
#define PEERBUF_TOOLS_PAUSES_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace peerbuf::tools
{

struct PauseSummary {
	uint64_t count = 0;
	uint64_t preempted = 0; /* the thread lost its CPU in the middle */
	/* Percentiles are of the pauses counted, to within 1/64 of their length; 0 without any. */
	uint64_t p50Ns = 0;
	uint64_t p99Ns = 0;
	uint64_t maxNs = 0;
	/** [i]: pauses of at least 2^i us, less than twice that; [0] also has all shorter ones. */
	std::vector<uint64_t> octaves;
};

/** Counts pauses; takes the same room for any number of them. Thread-bound. */
class Pauses
{
public:
	void add(uint64_t ns, bool preempted);
	uint64_t count() const { return count_; }
	/** The least time that @p percent of the pauses did not exceed. */
	uint64_t percentileNs(unsigned percent) const;
	PauseSummary summary() const;

private:
	/* Values share a counter when their first 7 bits and their lengths are the same. */
	static constexpr unsigned keptBits = 7;
	static constexpr size_t perOctave = size_t{1} << (keptBits - 1);
	static constexpr size_t counters = (64 - keptBits + 2) * perOctave;

	static size_t indexOf(uint64_t ns);
	static uint64_t mostOf(size_t index);

	std::array<uint64_t, counters> at_ = {};
	std::array<uint64_t, 64> octaves_ = {};
	uint64_t count_ = 0;
	uint64_t preempted_ = 0;
	uint64_t maxNs_ = 0;
};

/** "64 us ####      123": a bar for each octave from the first to the last that has any. */
std::vector<std::string> histogramLines(const PauseSummary &pauses);
/** "0.21 ms", "120 us". */
std::string durationWords(uint64_t ns);

} // namespace peerbuf::tools

#endif
