// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file estimate.h
 * What a noisy machine lets one say: medians with the interval that holds them, percentiles,
 * minima.
 */
#ifndef PEERBUF_BENCH_ESTIMATE_H
#define PEERBUF_BENCH_ESTIMATE_H

#include <cstddef>
#include <vector>

namespace peerbuf::bench
{

/** Of at least one value. */
struct Estimate {
	double median = 0;
	double low = 0; /* [low, high] holds the median in at least 95 % of all such runs */
	double high = 0;
	double least = 0;
	size_t n = 0;
};

/** Fewer values than this hold no interval of 95 %: low and high are then the extremes. */
inline constexpr size_t fewestForInterval = 6;

/**
 * The interval comes from order statistics: how many of n values lie below the median is binomial
 * with 1/2, whatever they are distributed like. Nothing is assumed of the noise but that it strikes
 * values independently.
 */
Estimate estimate(std::vector<double> values);

/** Nearest rank: the least value that at least @p percent of all do not exceed. */
double percentile(std::vector<double> values, double percent);

} // namespace peerbuf::bench

#endif
