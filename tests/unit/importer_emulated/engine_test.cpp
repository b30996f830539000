// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "promises.h"
#include "serving_host.h"

using namespace peerbuf::test;

TEST(Data, GivenAnyGeometryThenEveryByteGoesWhereItBelongs)
{
	for (const uint64_t chunk : {1, 2, 5, 64}) {
		for (const char *iommu : {"identity", "translating"}) {
			for (const char *early : {"no", "yes"}) {
				for (const char *mtu : {"64", "1000", "4K", "64K"}) {
					for (const bool movable : {true, false}) {
						EXPECT_EQ(bytesGoWhereTheyBelong(
								  {{"iommu", iommu},
								   {"early_completion", early},
								   {"mtu", mtu},
								   {"fault_window", "12K"}},
								  chunk, movable),
							  "")
							<< chunk << iommu << early << mtu
							<< movable;
					}
				}
			}
		}
	}
}

TEST(Data, GivenLargePagesThenTheyAreUsed)
{
	ServingHost host(64, 64);
	OpenNic nic(host, {{"page_sizes", "4K+64K"}});
	host.busBase = 0;
	auto *const mapping = host.mapping(0, host.size());
	ASSERT_EQ(mapping->n_segments, 1u);
	peerbuf_reg_request request = nic.request(0, host.size(), 0);
	request.flow = PEERBUF_FLOW_PINNED;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.mapping = mapping;
	peerbuf_region region;
	ASSERT_EQ(nic.reg(request, region), 0) << host.lastFailure();
	EXPECT_EQ(nic.stats().translations, 4u);
	Bytes bytes = pattern(host.size(), 5);
	ASSERT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(host.read(0, host.size()), bytes);
}

TEST(Access, GivenARequestThatIsNotAllowedThenRemoteAccessErrorAndNothingTouched)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_reg_request request = nic.request(page, 2 * page, 0x10000);
	request.access = PEERBUF_ACCESS_REMOTE_WRITE;
	peerbuf_region writable;
	ASSERT_EQ(nic.reg(request, writable), 0);
	request.access = PEERBUF_ACCESS_REMOTE_READ;
	peerbuf_region readable;
	ASSERT_EQ(nic.reg(request, readable), 0);
	Bytes bytes = pattern(64, 1);
	EXPECT_EQ(nic.transfer(Read, writable.key64, 0x10000, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, readable.key64, 0x10000, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, writable.key64 + 1000, 0x10000, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, writable.key64 | uint64_t{1} << 32, 0x10000, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, writable.key64, 0xffff, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, writable.key64, 0x10000 + 2 * page - 63, bytes), -EACCES);
	EXPECT_EQ(nic.transfer(Write, writable.key64, UINT64_MAX - 3, bytes), -EACCES);
	EXPECT_EQ(host.read(0, host.size()), Bytes(host.size()));
	EXPECT_EQ(nic.transfer(Write, writable.key64, 0x10000 + 2 * page - 64, bytes), 0);
	EXPECT_EQ(host.read(3 * page - 64, 64), bytes);
	Bytes nothing;
	EXPECT_EQ(nic.transfer(Write, writable.key64, 0x10000, nothing), 0);
	EXPECT_EQ(nic.transfer(Write, writable.key64 + 1000, 0x10000, nothing), -EACCES);
}

TEST(Access, GivenATransferThatMakesNoSenseThenRefused)
{
	ServingHost host(4);
	OpenNic nic(host, {});
	Bytes bytes(4);
	peerbuf_transfer transfer = {};
	transfer.struct_size = sizeof(transfer);
	transfer.op = 3;
	transfer.data = bytes.data();
	EXPECT_EQ(nic.ops().transfer(nic.raw(), &transfer), -EINVAL);
	EXPECT_EQ(nic.ops().post(nic.raw(), &transfer), -EINVAL);
	transfer.op = PEERBUF_TRANSFER_READ;
	transfer.data = nullptr;
	transfer.length = 1;
	EXPECT_EQ(nic.ops().transfer(nic.raw(), &transfer), -EINVAL);
	transfer.data = bytes.data();
	transfer.struct_size = 8;
	EXPECT_EQ(nic.ops().transfer(nic.raw(), &transfer), -EINVAL);
	EXPECT_EQ(nic.stats().in_flight, 0u);
}

TEST(Queue, GivenItIsFullThenTryAgainUntilPolled)
{
	ServingHost host(8);
	OpenNic nic(host, {{"queue_depth", "2"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	Bytes bytes = pattern(64, 1);
	EXPECT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	EXPECT_EQ(nic.post(Write, region.key64, 64, bytes, 2), 0);
	EXPECT_EQ(nic.post(Write, region.key64, 128, bytes, 3), -EAGAIN);
	EXPECT_EQ(nic.stats().in_flight, 2u);
	nic.drain();
	EXPECT_EQ(nic.stats().in_flight, 0u);
	EXPECT_EQ(nic.post(Write, region.key64, 128, bytes, 3), -EAGAIN);
	std::set<uint64_t> contexts;
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	while (nic.ops().poll(nic.raw(), &completion) == 1) {
		EXPECT_EQ(completion.status, 0);
		EXPECT_EQ(completion.bytes, 64u);
		contexts.insert(completion.context);
	}
	EXPECT_EQ(contexts, (std::set<uint64_t>{1, 2}));
	EXPECT_EQ(nic.post(Write, region.key64, 128, bytes, 3), 0);
}

TEST(Queue, GivenAFailedRequestThenItsCompletionTellsWhatWasMoved)
{
	ServingHost host(8);
	OpenNic nic(host, {{"fault_window", "4K"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	ASSERT_EQ(nic.ops().fault(nic.raw(), "map", 2, 1, -ENOMEM, 0), 0);
	Bytes bytes = pattern(5 * page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 9), 0);
	nic.drain();
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	ASSERT_EQ(nic.ops().poll(nic.raw(), &completion), 1);
	EXPECT_EQ(completion.status, -EIO);
	EXPECT_EQ(completion.context, 9u);
	EXPECT_EQ(completion.bytes, 2 * page);
	EXPECT_EQ(nic.ops().poll(nic.raw(), &completion), 0);
	EXPECT_EQ(nic.stats().in_flight, 0u);
}

namespace
{

std::vector<std::string> traceOf(const std::string &seed)
{
	ServingHost host(16);
	OpenNic nic(host, {{"seed", seed}, {"trace", "yes"}, {"mtu", "1000"}});
	peerbuf_region region;
	EXPECT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	std::vector<Bytes> buffers;
	buffers.reserve(4);
	for (uint64_t i = 0; i < 4; i++) {
		buffers.push_back(pattern(3 * page, i));
		EXPECT_EQ(nic.post(i % 2 ? Read : Write, region.key64, i * 4 * page, buffers[i], i),
			  0);
	}
	nic.drain();
	return host.lines();
}

} // namespace

TEST(Engine, GivenTheSameSeedThenTheSameInterleaving)
{
	const std::vector<std::string> one = traceOf("7");
	ASSERT_GT(one.size(), 40u);
	EXPECT_EQ(traceOf("7"), one);
	EXPECT_NE(traceOf("8"), one);
	// requests are truly interleaved: the first does not end before the last starts
	const auto starts = [&](const char *what) {
		return std::find_if(one.begin(), one.end(), [&](const std::string &line) {
			return line.starts_with(what);
		});
	};
	const auto lastOfFirst =
		std::find_if(one.rbegin(), one.rend(), [](const std::string &line) {
			return line.starts_with("land write #1 ");
		});
	EXPECT_LT(starts("fetch read #4 ") - one.begin(), one.rend() - lastOfFirst);
}

TEST(EarlyCompletion, GivenItThenAWriteIsReportedBeforeItIsInMemory)
{
	bool seen = false;
	for (int seed = 0; seed < 50 && !seen; seed++) {
		ServingHost host(8);
		OpenNic nic(host, {{"early_completion", "yes"}, {"seed", std::to_string(seed)}});
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
		Bytes bytes = pattern(100, 1);
		ASSERT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
		seen = host.read(0, 100) != bytes;
		// what the peer does with its memory after the completion is its own affair
		const Bytes sent = bytes;
		std::fill(bytes.begin(), bytes.end(), 0);
		// a read through the NIC never misses it
		Bytes got(100);
		ASSERT_EQ(nic.transfer(Read, region.key64, 0, got), 0);
		EXPECT_EQ(got, sent);
		EXPECT_EQ(host.read(0, 100), sent);
	}
	EXPECT_TRUE(seen);
}

TEST(Refault, GivenWhatMapMaySayThenTheRequestEndsAsPromised)
{
	const struct {
		int map;
		int transfer;
	} cases[] = {{-EAGAIN, -EBUSY},
		     {-ENODEV, -EACCES},
		     {-ENOMEM, -EIO},
		     {-ENOSPC, -EIO},
		     {-EINVAL, -EIO}};
	for (const auto &c : cases) {
		ServingHost host(8);
		OpenNic nic(host, {});
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
		int answer = c.map;
		host.onMap = [&](uint64_t, uint64_t) { return answer; };
		Bytes bytes = pattern(100, 1);
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), c.transfer) << c.map;
		EXPECT_EQ(nic.stats().translations, 0u);
		EXPECT_EQ(nic.stats().refaults, 0u);
		EXPECT_EQ(nic.stats().in_flight, 0u);
		answer = 0;
		nic.resume(0, host.size());
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0) << c.map;
		EXPECT_EQ(nic.stats().refaults, 1u);
		EXPECT_GT(nic.offer().resume_cost_ns, 0u);
	}
}

TEST(Refault, GivenAMappingThatDoesNotFitThenTheRequestFailsAndNothingIsTouched)
{
	for (int spoil = 0; spoil < 4; spoil++) {
		ServingHost host(8, 2);
		OpenNic nic(host, {});
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
		host.onMapped = [&](peerbuf_mapping &mapping) {
			auto *segments = const_cast<peerbuf_segment *>(mapping.segments);
			switch (spoil) {
			case 0:
				segments[0].dma_addr += 512;
				break;
			case 1:
				mapping.length += page;
				break;
			case 2:
				mapping.offset += page;
				break;
			case 3:
				mapping.n_segments = 0;
				break;
			}
		};
		Bytes bytes = pattern(100, 1);
		EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), -EIO) << spoil;
		EXPECT_EQ(host.read(0, 100), Bytes(100));
		EXPECT_EQ(nic.stats().translations, 0u);
		ASSERT_FALSE(host.lines().empty());
		EXPECT_NE(host.lines().back().find("buf"), std::string::npos)
			<< host.lines().back();
	}
}

TEST(Refault, GivenALargeRegionThenItIsAskedForInBoundedRanges)
{
	ServingHost host(64);
	host.granularity = 2 * page;
	OpenNic nic(host, {{"fault_window", "16K"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(page + 512, 50 * page, 512), region), 0);
	Bytes bytes = pattern(50 * page, 1);
	ASSERT_EQ(nic.transfer(Write, region.key64, 512, bytes), 0);
	EXPECT_EQ(host.read(page + 512, 50 * page), bytes);
	for (const auto &[offset, length] : host.mapCalls()) {
		EXPECT_LE(length, 16384u);
		EXPECT_GE(offset, page + 512);
		EXPECT_LE(offset + length, 51 * page + 512);
	}
	EXPECT_EQ(nic.stats().refaults, host.mapCalls().size());
}

TEST(Refault, GivenNeighboursThatAreSuspendedThenOnlyTheyWait)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	// the NIC was not told of it, as when the move began before it attached
	host.suspend(4 * page, page);
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, 3 * page, bytes), 0);
	EXPECT_EQ(nic.transfer(Write, region.key64, 4 * page, bytes), -EBUSY);
	host.release(4 * page, page);
	nic.resume(4 * page, page);
	EXPECT_EQ(nic.transfer(Write, region.key64, 4 * page, bytes), 0);
}

TEST(Refault, GivenAResumeWhileMapRefusesThenItIsNotMissed)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	int calls = 0;
	host.onMap = [&](uint64_t, uint64_t) {
		if (calls++)
			return 0;
		nic.resume(0, page); // it comes after map decided and before map returns
		return -EAGAIN;
	};
	Bytes bytes = pattern(page, 1);
	EXPECT_EQ(nic.transfer(Write, region.key64, 0, bytes), 0);
	EXPECT_EQ(calls, 2);
}

TEST(Dereg, GivenPacketsInFlightThenTheyLandFirstAndTheRestFails)
{
	ServingHost host(8);
	OpenNic nic(host, {{"mtu", "512"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
	Bytes bytes = pattern(4 * page, 1);
	ASSERT_EQ(nic.post(Write, region.key64, 0, bytes, 1), 0);
	ASSERT_EQ(nic.ops().step(nic.raw(), 9), 9);
	nic.dereg(region);
	const Bytes before = host.read(0, host.size());
	nic.drain();
	EXPECT_EQ(host.read(0, host.size()), before);
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	ASSERT_EQ(nic.ops().poll(nic.raw(), &completion), 1);
	EXPECT_EQ(completion.status, -EACCES);
	EXPECT_GT(completion.bytes, 0u);
	EXPECT_TRUE(std::equal(before.begin(),
			       before.begin() + static_cast<std::ptrdiff_t>(completion.bytes),
			       bytes.begin()));
	EXPECT_EQ(nic.stats().violations, 0u);
	EXPECT_EQ(nic.stats().translations, 0u);
}

TEST(Dereg, GivenADelayThenItIsOnlyLate)
{
	ServingHost host(8);
	OpenNic nic(host, {});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	ASSERT_EQ(nic.ops().fault(nic.raw(), "dereg", 0, 1, 0, 2000000), 0);
	const uint64_t start = host.now_ns(&host);
	nic.dereg(region);
	EXPECT_GE(host.now_ns(&host) - start, 2000000u);
	EXPECT_EQ(nic.stats().regions, 0u);
}
