// SPDX-License-Identifier: BSD-3-Clause
#include "exporter/emulated/copy.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace peerbuf::emulated::test
{

namespace
{

/** Around every size at which the engine changes its way. */
std::vector<size_t> sizes()
{
	std::vector<size_t> list;
	for (const size_t around : {0u, 16u, 32u, 128u, 4096u, 32768u, 65536u})
		for (const int by : {-129, -128, -127, -33, -32, -31, -17, -16, -15, -1, 0,
				     1,	   15,	 16,   17,  31,	 32,  33,  127, 128, 129})
			if (by >= 0 || around >= static_cast<size_t>(-by))
				list.push_back(around + static_cast<size_t>(by));
	return list;
}

} // namespace

class Engine : public ::testing::TestWithParam<CopyEngine>
{
};

TEST_P(Engine, GivenAnyAlignmentAndSizeThenTheBytesArriveAndTheirNeighboursStay)
{
	if (!copyEngineWorks(GetParam()))
		GTEST_SKIP() << "this CPU has no such instructions";
	constexpr size_t most = 65536 + 256;
	constexpr size_t margin = 128;
	alignas(64) static uint8_t source[most + margin];
	alignas(64) static uint8_t target[most + 2 * margin];
	std::mt19937 random(5);
	for (uint8_t &byte : source)
		byte = static_cast<uint8_t>(random());
	for (const size_t size : sizes()) {
		for (const size_t to : {0u, 1u, 8u, 15u, 16u, 31u, 32u, 33u, 63u}) {
			for (const size_t from : {0u, 1u, 7u, 16u, 32u, 63u}) {
				const size_t begin = margin / 2 + to;
				memset(target, 0xc5, begin + size + margin);
				copyMemory(target + begin, source + from, size, GetParam());
				ASSERT_EQ(0, memcmp(target + begin, source + from, size))
					<< size << " bytes, " << from << " to " << to;
				for (size_t i = 0; i < margin / 2; i++) {
					ASSERT_EQ(0xc5, target[begin - 1 - i]) << size << " " << to;
					ASSERT_EQ(0xc5, target[begin + size + i])
						<< size << " " << to;
				}
			}
		}
	}
}

INSTANTIATE_TEST_SUITE_P(Every, Engine,
			 ::testing::Values(CopyEngine::Best, CopyEngine::Plain, CopyEngine::Sse2,
					   CopyEngine::Avx2),
			 [](const auto &engine) {
				 switch (engine.param) {
				 case CopyEngine::Best:
					 return "Best";
				 case CopyEngine::Plain:
					 return "Plain";
				 case CopyEngine::Sse2:
					 return "Sse2";
				 case CopyEngine::Avx2:
					 return "Avx2";
				 }
				 return "Unknown";
			 });

} // namespace peerbuf::emulated::test
