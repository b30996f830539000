// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_PATTERN_H
#define PEERBUF_TESTS_SUPPORT_PATTERN_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peerbuf::test
{

/**
 * The byte at @p position of an endless pattern. No two positions of one buffer have the same
 * neighbourhood, so data that is off by a page, or by one byte, is recognised.
 */
inline uint8_t patternByte(uint64_t position, uint64_t seed = 0)
{
	uint64_t x = (position >> 3) + seed * 0x9E3779B97F4A7C15ull + 1;
	x ^= x >> 30;
	x *= 0xBF58476D1CE4E5B9ull;
	x ^= x >> 27;
	x *= 0x94D049BB133111EBull;
	x ^= x >> 31;
	return static_cast<uint8_t>(x >> (8 * (position & 7)));
}

inline std::vector<uint8_t> pattern(uint64_t position, size_t length, uint64_t seed = 0)
{
	std::vector<uint8_t> bytes(length);
	for (size_t i = 0; i < length; i++)
		bytes[i] = patternByte(position + i, seed);
	return bytes;
}

} // namespace peerbuf::test

#endif
