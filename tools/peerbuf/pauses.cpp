// SPDX-License-Identifier: BSD-3-Clause
#include "pauses.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace peerbuf::tools
{

size_t Pauses::indexOf(uint64_t ns)
{
	const auto width = static_cast<unsigned>(std::bit_width(ns));
	const unsigned shift = width > keptBits ? width - keptBits : 0;
	return shift * perOctave + (ns >> shift);
}

uint64_t Pauses::mostOf(size_t index)
{
	if (index < 2 * perOctave)
		return index;
	const size_t shift = index / perOctave - 1;
	const uint64_t first = (index - shift * perOctave) << shift;
	return first + ((uint64_t{1} << shift) - 1);
}

void Pauses::add(uint64_t ns, bool preempted)
{
	at_[indexOf(ns)]++;
	octaves_[static_cast<size_t>(std::bit_width(std::max<uint64_t>(ns / 1000, 1))) - 1]++;
	count_++;
	preempted_ += preempted;
	maxNs_ = std::max(maxNs_, ns);
}

uint64_t Pauses::percentileNs(unsigned percent) const
{
	const uint64_t rank = (count_ * percent + 99) / 100;
	uint64_t seen = 0;
	for (size_t i = 0; i < counters && rank; i++) {
		seen += at_[i];
		if (seen >= rank)
			return std::min(mostOf(i), maxNs_);
	}
	return 0;
}

PauseSummary Pauses::summary() const
{
	PauseSummary s;
	s.count = count_;
	s.preempted = preempted_;
	s.p50Ns = percentileNs(50);
	s.p99Ns = percentileNs(99);
	s.maxNs = maxNs_;
	const auto last =
		std::find_if(octaves_.rbegin(), octaves_.rend(), [](uint64_t n) { return n != 0; });
	s.octaves.assign(octaves_.begin(), last.base());
	return s;
}

std::string durationWords(uint64_t ns)
{
	char text[32];
	if (ns < 1'000'000)
		snprintf(text, sizeof(text), "%.0f us", static_cast<double>(ns) / 1e3);
	else
		snprintf(text, sizeof(text), "%.2f ms", static_cast<double>(ns) / 1e6);
	return text;
}

std::vector<std::string> histogramLines(const PauseSummary &pauses)
{
	constexpr uint64_t widest = 40;
	uint64_t most = 1;
	for (const uint64_t n : pauses.octaves)
		most = std::max(most, n);
	const auto first = std::find_if(pauses.octaves.begin(), pauses.octaves.end(),
					[](uint64_t n) { return n != 0; });
	std::vector<std::string> lines;
	for (auto it = first; it != pauses.octaves.end(); ++it) {
		const uint64_t us = uint64_t{1} << (it - pauses.octaves.begin());
		/* what happened once is seen, however often the others did */
		const uint64_t bar = (*it * widest + most - 1) / most;
		char text[128];
		snprintf(text, sizeof(text), "%9lu us  %-*s %lu", static_cast<unsigned long>(us),
			 static_cast<int>(widest), std::string(bar, '#').c_str(),
			 static_cast<unsigned long>(*it));
		lines.emplace_back(text);
	}
	return lines;
}

} // namespace peerbuf::tools
