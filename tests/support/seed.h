// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_SEED_H
#define PEERBUF_TESTS_SUPPORT_SEED_H

#include <cstdint>
#include <cstdlib>

namespace peerbuf::test
{

/** What every random choice of a test begins with. A failure says it; the variable replays it. */
constexpr const char *seed_variable = "PEERBUF_TEST_SEED";

inline uint64_t seed()
{
	// NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment meanwhile
	const char *given = getenv(seed_variable);
	return given ? strtoull(given, nullptr, 0) : 1;
}

} // namespace peerbuf::test

#endif
