// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "exporter/emulated/window_use.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace peerbuf::emulated::test
{

TEST(WindowUse, GivenRandomRangesThenItAgreesWithCountingEveryPage)
{
	std::mt19937_64 random(5);
	constexpr uint64_t pages = 64;
	WindowUse use;
	std::vector<int> count(pages, 0);
	std::vector<std::pair<uint64_t, uint64_t>> held;
	for (int step = 0; step < 5000; step++) {
		if (random() % 2 || held.empty()) {
			const uint64_t from = random() % pages;
			const uint64_t length = 1 + random() % (pages - from);
			uint64_t fresh = 0;
			for (uint64_t i = from; i < from + length; i++)
				fresh += count[i]++ == 0;
			ASSERT_EQ(fresh, use.need(from, length)) << "step " << step;
			use.add(from, length);
			ASSERT_EQ(0u, use.need(from, length));
			held.emplace_back(from, length);
		} else {
			const size_t k = random() % held.size();
			const auto [from, length] = held[k];
			held.erase(held.begin() + static_cast<ptrdiff_t>(k));
			uint64_t freed = 0;
			for (uint64_t i = from; i < from + length; i++)
				freed += --count[i] == 0;
			ASSERT_EQ(freed, use.remove(from, length)) << "step " << step;
		}
	}
	for (const auto &[from, length] : held)
		use.remove(from, length);
	EXPECT_EQ(pages, use.need(0, pages));
}

} // namespace peerbuf::emulated::test
