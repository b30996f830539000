// SPDX-License-Identifier: BSD-3-Clause
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "importer/emulated/geometry.h"
#include "importer/emulated/interval_set.h"
#include "importer/emulated/iommu_domain.h"

using namespace peerbuf::emulated;

TEST(IntervalSet, GivenRandomAddsAndRemovesThenItAgreesWithASetOfNumbers)
{
	std::mt19937_64 random(11);
	for (int round = 0; round < 200; round++) {
		IntervalSet intervals;
		std::set<uint64_t> numbers;
		for (int i = 0; i < 30; i++) {
			const uint64_t begin = random() % 40;
			const uint64_t end = begin + random() % 12;
			const bool add = random() % 2;
			for (uint64_t n = begin; n < end; n++) {
				if (add)
					numbers.insert(n);
				else
					numbers.erase(n);
			}
			if (add)
				intervals.add(begin, end);
			else
				intervals.remove(begin, end);
			ASSERT_EQ(intervals.empty(), numbers.empty());
			for (uint64_t n = 0; n < 60; n++)
				ASSERT_EQ(intervals.contains(n), numbers.count(n) == 1) << n;
		}
	}
}

TEST(IommuDomain, GivenAccessBesideAPageThenDropped)
{
	unsigned char memory[8192] = {};
	const auto cpu = reinterpret_cast<uintptr_t>(memory);
	IommuDomain domain(UINT64_MAX);
	const uint64_t at = domain.findSpace(8192, 4096).value();
	EXPECT_NE(at, 0u);
	domain.map(at, 4096, cpu);
	EXPECT_EQ(domain.translate(at + 10, 4086), cpu + 10);
	EXPECT_EQ(domain.translate(at + 10, 4087), 0u);
	EXPECT_EQ(domain.translate(at + 4096, 1), 0u);
	EXPECT_EQ(domain.translate(at - 1, 1), 0u);
	domain.hold(at);
	domain.release(at);
	EXPECT_EQ(domain.translate(at, 1), cpu);
	domain.release(at);
	EXPECT_EQ(domain.translate(at, 1), 0u);
	EXPECT_TRUE(domain.empty());
}

TEST(IommuDomain, GivenFullDomainWhenAPageIsReleasedThenItsPlaceIsFoundAgain)
{
	IommuDomain domain((uint64_t{1} << 21) - 1); // 1 MiB above the first address
	std::vector<uint64_t> pages;
	while (const std::optional<uint64_t> at = domain.findSpace(4096, 4096)) {
		domain.map(*at, 4096, 1);
		pages.push_back(*at);
	}
	EXPECT_EQ(pages.size(), 256u);
	EXPECT_EQ(std::set<uint64_t>(pages.begin(), pages.end()).size(), 256u);
	domain.release(pages[100]);
	EXPECT_FALSE(domain.findSpace(8192, 4096));
	EXPECT_EQ(domain.findSpace(4096, 4096), pages[100]);
}

namespace
{

struct PageSizeCase {
	const char *what;
	std::vector<peerbuf_segment> segments;
	uint64_t iova;
	uint64_t expected; // 0: refused
};

std::optional<Failure> chosen(const PageSizeCase &c, uint64_t sizes, uint64_t &ret_size)
{
	NicOptions nic;
	nic.pageSizes = sizes;
	peerbuf_mapping mapping = {};
	mapping.struct_size = sizeof(mapping);
	mapping.segments = c.segments.data();
	mapping.n_segments = c.segments.size();
	for (const peerbuf_segment &segment : c.segments)
		mapping.length += segment.length;
	Layout layout;
	const Extent extent = {0, mapping.length, c.iova};
	if (auto failure = checkMapping(nic, extent, mapping, "buf", layout))
		return failure;
	return choosePageSize(nic, layout, "buf", ret_size);
}

} // namespace

TEST(Geometry, GivenSegmentsThenTheLargestPageThatFitsIsChosen)
{
	constexpr uint64_t k4 = 4096;
	constexpr uint64_t k64 = 65536;
	constexpr uint64_t m2 = 2 << 20;
	auto *const cpu = reinterpret_cast<void *>(uintptr_t{1} << 32);
	auto *const far = reinterpret_cast<void *>(uintptr_t{1} << 40);
	const PageSizeCase cases[] = {
		{"one aligned segment", {{m2, m2, cpu}}, m2, m2},
		{"address differs at 64K", {{m2, m2, cpu}}, m2 + k64, k64},
		{"address differs at 4K", {{m2, m2, cpu}}, m2 + k4, k4},
		{"boundary at 64K", {{m2, k64, cpu}, {4 * m2 + k64, m2, far}}, 0, k64},
		{"adjacent on the bus, not for the CPU",
		 {{m2, k4, cpu}, {m2 + k4, k4, far}},
		 0,
		 k4},
		{"adjacent for both",
		 {{m2, k64, cpu}, {m2 + k64, k64, static_cast<char *>(cpu) + k64}},
		 0,
		 m2},
	};
	for (const PageSizeCase &c : cases) {
		uint64_t size = 0;
		EXPECT_FALSE(chosen(c, k4 | k64 | m2, size)) << c.what;
		EXPECT_EQ(size, c.expected) << c.what;
	}
}

TEST(Geometry, GivenNoPageSizeThatFitsThenRefusedWithBothSizes)
{
	auto *const cpu = reinterpret_cast<void *>(uintptr_t{1} << 32);
	uint64_t size = 0;
	const auto failure = chosen({"", {{0x1000, 0x2000, cpu}}, 0, 0}, 65536, size);
	ASSERT_TRUE(failure);
	EXPECT_EQ(failure->err, EINVAL);
	EXPECT_EQ(failure->errc, static_cast<uint32_t>(PEERBUF_ERR_BAD_GEOMETRY));
	EXPECT_NE(failure->why.find("0x1000"), std::string::npos) << failure->why;
	EXPECT_NE(failure->why.find("0x10000"), std::string::npos) << failure->why;
}
