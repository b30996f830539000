// SPDX-License-Identifier: BSD-3-Clause
#include "estimate.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace peerbuf::bench
{

namespace
{

constexpr double confidence = 0.95;

/** The probability that k of n fair coins fall on the same given side. */
double coins(size_t n, size_t k)
{
	const auto logFactorial = [](size_t i) { return std::lgamma(static_cast<double>(i) + 1); };
	return std::exp(logFactorial(n) - logFactorial(k) - logFactorial(n - k) -
			static_cast<double>(n) * std::log(2.0));
}

/** How many values at each end may be left out of the interval. */
size_t leftOut(size_t n)
{
	double outside = 0; /* on one side */
	size_t k = 0;
	while (k < n / 2) {
		outside += coins(n, k);
		if (1 - 2 * outside < confidence)
			break;
		k++;
	}
	return k ? k - 1 : 0;
}

} // namespace

Estimate estimate(std::vector<double> values)
{
	assert(!values.empty());
	std::sort(values.begin(), values.end());
	const size_t n = values.size();
	const size_t out = leftOut(n);
	Estimate e;
	e.n = n;
	e.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
	e.low = values[out];
	e.high = values[n - 1 - out];
	e.least = values.front();
	return e;
}

double percentile(std::vector<double> values, double percent)
{
	assert(!values.empty());
	const auto n = static_cast<double>(values.size());
	const double rank = std::ceil(percent / 100 * n);
	const size_t index = static_cast<size_t>(std::clamp(rank, 1.0, n)) - 1;
	std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(index),
			 values.end());
	return values[index];
}

} // namespace peerbuf::bench
