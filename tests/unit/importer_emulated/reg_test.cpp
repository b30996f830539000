// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "serving_host.h"

using namespace peerbuf::test;

namespace
{

void expectNothingLeft(OpenNic &nic, const std::string &what)
{
	const peerbuf_importer_stats stats = nic.stats();
	EXPECT_EQ(stats.regions, 0u) << what;
	EXPECT_EQ(stats.keys_used, 0u) << what;
	EXPECT_EQ(stats.translations, 0u) << what;
	EXPECT_EQ(stats.in_flight, 0u) << what;
	EXPECT_EQ(stats.violations, 0u) << what;
}

peerbuf_reg_request pinned(OpenNic &nic, const peerbuf_mapping *mapping, uint64_t offset,
			   uint64_t length, uint64_t iova)
{
	peerbuf_reg_request request = nic.request(offset, length, iova);
	request.flow = PEERBUF_FLOW_PINNED;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.mapping = mapping;
	return request;
}

struct Refusal {
	const char *what;
	Params params;
	std::function<void(ServingHost &, peerbuf_reg_request &, peerbuf_mapping &)> spoil;
	int err;
	uint32_t errc;
	std::vector<std::string> says;
};

peerbuf_segment *segments(peerbuf_mapping &mapping)
{
	return const_cast<peerbuf_segment *>(mapping.segments);
}

} // namespace

TEST(Reg, GivenARequestThatCannotBeServedThenRefusedInWordsAndNothingIsLeft)
{
	using Request = peerbuf_reg_request;
	using Mapping = peerbuf_mapping;
	const Refusal cases[] = {
		{"length 0",
		 {},
		 [](auto &, Request &r, Mapping &) { r.length = 0; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"length 0"}},
		{"offset overflows",
		 {},
		 [](auto &, Request &r, Mapping &) { r.offset = UINT64_MAX - 0xfff; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0xfffffffffffff000", "0x4000", "overflows"}},
		{"iova overflows",
		 {},
		 [](auto &, Request &r, Mapping &) { r.iova = UINT64_MAX - 0xfff; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"iova 0xfffffffffffff000", "overflows"}},
		{"too long",
		 {{"max_length", "8K"}},
		 [](auto &, Request &, Mapping &) {},
		 EINVAL,
		 PEERBUF_ERR_DEVICE_LIMIT,
		 {"16384", "8192"}},
		{"granularity",
		 {},
		 [](auto &, Request &r, Mapping &) { r.granularity = 6144; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"6144", "4096"}},
		{"low bits",
		 {},
		 [](auto &, Request &r, Mapping &) { r.iova += 512; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x2000", "0x10200", "0x1000"}},
		{"access unknown",
		 {{"access", "remote_read"}},
		 [](auto &, Request &, Mapping &) {},
		 EACCES,
		 PEERBUF_ERR_ACCESS,
		 {"0x6", "bits 0x4", "knows 0x2"}},
		{"optional access unknown",
		 {{"access", "remote_read+remote_write"}},
		 [](auto &, Request &r, Mapping &) { r.access |= PEERBUF_ACCESS_RELAXED_ORDERING; },
		 EACCES,
		 PEERBUF_ERR_ACCESS,
		 {"0x100000"}},
		{"movable on revocable",
		 {{"profile", "revocable"}},
		 [](auto &, Request &r, Mapping &) { r.flow = PEERBUF_FLOW_MOVABLE; },
		 EOPNOTSUPP,
		 PEERBUF_ERR_UNSUPPORTED_DRIVER,
		 {"Movable"}},
		{"revocable on neither",
		 {{"profile", "neither"}},
		 [](auto &, Request &r, Mapping &) { r.flow = PEERBUF_FLOW_REVOCABLE; },
		 EOPNOTSUPP,
		 PEERBUF_ERR_REVOKE_UNSUPPORTED,
		 {"Revocable"}},
		{"flow 0",
		 {},
		 [](auto &, Request &r, Mapping &) { r.flow = 0; },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"flow 0"}},
		{"fd handle",
		 {},
		 [](auto &, Request &r, Mapping &) { r.handle_kind = PEERBUF_HANDLE_FD; },
		 EOPNOTSUPP,
		 PEERBUF_ERR_UNSUPPORTED_DRIVER,
		 {"0x4", "0x1"}},
		{"no mapping",
		 {},
		 [](auto &, Request &r, Mapping &) { r.mapping = nullptr; },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"no mapping"}},
		{"neither mapping nor movable",
		 {},
		 [](auto &, Request &r, Mapping &) {
			 r.mapping = nullptr;
			 r.handle_kind = 0;
		 },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"no mapping", "flow 3"}},
		{"short mapping",
		 {},
		 [](auto &, Request &, Mapping &m) { m.struct_size = 8; },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"8 bytes"}},
		{"no segments",
		 {},
		 [](auto &, Request &, Mapping &m) { m.n_segments = 0; },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"0 segments"}},
		{"does not cover",
		 {},
		 [](auto &, Request &r, Mapping &) { r.length += 0x1000; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x2000 of 0x4000", "0x2000 of 0x5000"}},
		{"starts behind",
		 {},
		 [](auto &, Request &r, Mapping &) { r.offset = 0x1000; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x1000 of 0x4000"}},
		{"sum",
		 {},
		 [](auto &, Request &, Mapping &m) { segments(m)[0].length += 0x1000; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x5000", "0x4000"}},
		{"unaligned address",
		 {},
		 [](auto &, Request &, Mapping &m) { segments(m)[1].dma_addr += 512; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"segment 1", "200 ", "0x1000"}},
		{"unaligned length",
		 {},
		 [](auto &, Request &, Mapping &m) { segments(m)[0].length = 100; },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"segment 0", "0x64"}},
		{"bus address overflows",
		 {},
		 [](auto &, Request &, Mapping &m) {
			 segments(m)[0].dma_addr = UINT64_MAX - 0xfff;
			 segments(m)[0].length = 0x2000;
		 },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"segment 0", "overflows"}},
		{"mask",
		 {{"dma_mask", "40"}},
		 [](auto &, Request &, Mapping &) {},
		 EINVAL,
		 PEERBUF_ERR_NO_P2P_PATH,
		 {"41 address bits", "has 40"}},
		{"mask of a later segment",
		 {{"dma_mask", "41"}},
		 [](auto &, Request &, Mapping &m) { segments(m)[1].dma_addr = uint64_t{1} << 43; },
		 EINVAL,
		 PEERBUF_ERR_NO_P2P_PATH,
		 {"segment 1", "44 address bits", "has 41"}},
		{"no CPU address",
		 {},
		 [](auto &, Request &, Mapping &m) { segments(m)[0].cpu_addr = nullptr; },
		 EOPNOTSUPP,
		 PEERBUF_ERR_UNSUPPORTED_DRIVER,
		 {"segment 0", "CPU address"}},
		{"too many segments",
		 {{"max_segments", "1"}},
		 [](auto &, Request &, Mapping &) {},
		 EINVAL,
		 PEERBUF_ERR_DEVICE_LIMIT,
		 {"2 segments", "takes 1"}},
		{"page size",
		 {{"page_sizes", "2M"}},
		 [](auto &, Request &, Mapping &) {},
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x2000 at most", "0x200000"}},
		{"peer-to-peer",
		 {{"peer2peer", "no"}},
		 [](auto &, Request &, Mapping &) {},
		 EOPNOTSUPP,
		 PEERBUF_ERR_NO_P2P_PATH,
		 {"peer2peer=1", "peer2peer=no"}},
		{"no room in the domain",
		 {{"iommu", "translating"}, {"dma_mask", "12"}},
		 [](auto &, Request &, Mapping &) {},
		 ENOSPC,
		 PEERBUF_ERR_DEVICE_RESOURCES,
		 {"0x4000", "12 address bits"}},
		{"smallest page larger than what moves",
		 {{"page_sizes", "64K"}},
		 [](auto &, Request &r, Mapping &) {
			 r.flow = PEERBUF_FLOW_MOVABLE;
			 r.handle_kind = 0;
			 r.mapping = nullptr;
		 },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x1000", "0x10000"}},
		{"movable, low bits of a large page",
		 {{"page_sizes", "64K"}},
		 [](auto &, Request &r, Mapping &) {
			 r.flow = PEERBUF_FLOW_MOVABLE;
			 r.handle_kind = 0;
			 r.mapping = nullptr;
			 r.granularity = 65536;
		 },
		 EINVAL,
		 PEERBUF_ERR_BAD_GEOMETRY,
		 {"0x2000", "0x10000"}},
		{"table too large",
		 {},
		 [](auto &, Request &r, Mapping &) {
			 r.flow = PEERBUF_FLOW_MOVABLE;
			 r.handle_kind = 0;
			 r.mapping = nullptr;
			 r.length = uint64_t{1} << 60;
		 },
		 ENOMEM,
		 PEERBUF_ERR_DEVICE_RESOURCES,
		 {"268435456"}},
		{"short request",
		 {},
		 [](auto &, Request &r, Mapping &) { r.struct_size = 8; },
		 EINVAL,
		 PEERBUF_ERR_INVALID_ARGUMENT,
		 {"request"}},
	};
	for (const Refusal &c : cases) {
		ServingHost host(16, 2); // 4 pages from page 2: two segments
		OpenNic nic(host, c.params);
		ASSERT_EQ(nic.rc(), 0) << c.what << ": " << host.lastFailure();
		peerbuf_mapping *const mapping = host.mapping(0x2000, 0x4000);
		ASSERT_EQ(mapping->n_segments, 2u);
		peerbuf_reg_request request = pinned(nic, mapping, 0x2000, 0x4000, 0x10000);
		c.spoil(host, request, *mapping);
		peerbuf_region region;
		EXPECT_EQ(nic.reg(request, region), -c.err) << c.what;
		EXPECT_EQ(host.lastErrc(), c.errc) << c.what;
		for (const std::string &word : c.says)
			EXPECT_NE(host.lastFailure().find(word), std::string::npos)
				<< c.what << ": '" << word << "' in: " << host.lastFailure();
		expectNothingLeft(nic, c.what);
		EXPECT_EQ(nic.offer().keys_left, 4096u) << c.what;
	}
}

TEST(Reg, GivenAFaultAtAnyStepThenNothingIsLeftAndTheNextTryWorks)
{
	for (const char *iommu : {"identity", "translating"}) {
		for (const char *step : {"reg", "reg.table", "reg.key", "reg.program"}) {
			ServingHost host(16, 2);
			OpenNic nic(host, {{"iommu", iommu}, {"keys", "1"}});
			ASSERT_EQ(nic.ops().fault(nic.raw(), step, 0, 1, -ENOMEM, 1000), 0);
			const auto request =
				pinned(nic, host.mapping(0x2000, 0x4000), 0x2000, 0x4000, 0);
			peerbuf_region region;
			EXPECT_EQ(nic.reg(request, region), -ENOMEM) << step;
			EXPECT_NE(host.lastFailure().find(step), std::string::npos);
			expectNothingLeft(nic, step);
			ASSERT_EQ(nic.reg(request, region), 0) << host.lastFailure();
			EXPECT_EQ(nic.stats().translations, 4u);
			nic.dereg(region);
			expectNothingLeft(nic, step);
		}
	}
}

TEST(Reg, GivenAFaultOfMapWhenPrefaultingThenNothingIsLeft)
{
	ServingHost host(64);
	OpenNic nic(host, {{"prefault", "yes"}, {"fault_window", "16K"}, {"keys", "1"}});
	ASSERT_EQ(nic.ops().fault(nic.raw(), "map", 2, 1, -ENOMEM, 0), 0);
	peerbuf_region region;
	EXPECT_EQ(nic.reg(nic.request(0, host.size(), 0), region), -ENOMEM);
	EXPECT_NE(host.lastFailure().find("0x8000"), std::string::npos) << host.lastFailure();
	expectNothingLeft(nic, "prefault");
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	EXPECT_EQ(nic.stats().translations, 64u);
	for (const auto &[offset, length] : host.mapCalls())
		EXPECT_LE(length, 16384u) << offset;
	nic.dereg(region);
	expectNothingLeft(nic, "prefault");
}

TEST(Reg, GivenARegionThenKeysAndBaseAreToldAndDeregFreesAll)
{
	ServingHost host(16);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0x1200, 0x3000, 0x7f200), region), 0) << host.lastFailure();
	EXPECT_NE(region.key64, 0u);
	EXPECT_EQ(region.rkey, region.key64);
	EXPECT_EQ(region.lkey, region.key64);
	EXPECT_EQ(region.raw_key_size, 0u);
	EXPECT_EQ(region.remote_base, 0x7f200u);
	EXPECT_EQ(nic.stats().regions, 1u);
	EXPECT_EQ(nic.stats().keys_used, 1u);
	nic.dereg(region);
	nic.dereg(region); // of something gone: nothing happens
	expectNothingLeft(nic, "dereg");
}

TEST(Key, GivenAllTakenThenRefusedUntilDereg)
{
	ServingHost host(16);
	OpenNic nic(host, {{"keys", "2"}});
	peerbuf_region a;
	peerbuf_region b;
	peerbuf_region c;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), a), 0);
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), b), 0);
	EXPECT_EQ(nic.offer().keys_left, 0u);
	EXPECT_EQ(nic.reg(nic.request(0, page, 0), c), -ENOSPC);
	EXPECT_EQ(host.lastErrc(), static_cast<uint32_t>(PEERBUF_ERR_DEVICE_RESOURCES));
	EXPECT_NE(host.lastFailure().find("all 2"), std::string::npos);
	nic.dereg(a);
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), c), 0);
	EXPECT_NE(c.key64, a.key64);
	EXPECT_NE(c.key64, b.key64);
}

TEST(Key, GivenASlotUsedOverAndOverThenItsKeyChangesEveryTime)
{
	ServingHost host(4);
	OpenNic nic(host, {{"keys", "1"}});
	std::set<uint64_t> keys;
	for (int i = 0; i < 256; i++) {
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
		EXPECT_LE(region.key64, UINT32_MAX);
		keys.insert(region.key64);
		nic.dereg(region);
		Bytes byte(1);
		EXPECT_EQ(nic.transfer(PEERBUF_TRANSFER_READ, region.key64, 0, byte), -EACCES);
	}
	EXPECT_EQ(keys.size(), 256u);
}

TEST(Segments, GivenAdjacentOnesThenTheyCountOnceOnlyIfTheDeviceMerges)
{
	for (const bool merges : {true, false}) {
		ServingHost host(16, 16);
		host.adjacentSegments = true;
		OpenNic nic(host, {{"max_segments", "1"}, {"merges", merges ? "yes" : "no"}});
		peerbuf_region region;
		EXPECT_EQ(nic.reg(pinned(nic, host.mapping(0, 4 * page), 0, 4 * page, 0), region),
			  merges ? 0 : -EINVAL)
			<< host.lastFailure();
	}
}

TEST(Mask, GivenTranslatingIommuThenAddressesBeyondTheMaskAreReached)
{
	ServingHost host(16);
	OpenNic nic(host, {{"iommu", "translating"}, {"dma_mask", "32"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(pinned(nic, host.mapping(0, 4 * page), 0, 4 * page, 0), region), 0)
		<< host.lastFailure();
	Bytes bytes = pattern(4 * page, 3);
	ASSERT_EQ(nic.transfer(PEERBUF_TRANSFER_WRITE, region.key64, 0, bytes), 0);
	EXPECT_EQ(host.read(0, 4 * page), bytes);
}
