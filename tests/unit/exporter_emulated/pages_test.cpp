// SPDX-License-Identifier: BSD-3-Clause
#include "exporter/emulated/pages.h"

#include <fstream>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

/** What smaps of @p process says of the device's memory, wherever it is mapped. */
uint64_t hugeBytesIn(pid_t process)
{
	std::ifstream smaps("/proc/" + std::to_string(process) + "/smaps");
	std::string line;
	bool ours = false;
	uint64_t bytes = 0;
	while (std::getline(smaps, line)) {
		unsigned long from = 0;
		unsigned long to = 0;
		unsigned long kib = 0;
		if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
			ours = line.find("peerbuf-emulated-hbm") != std::string::npos;
		else if (ours && sscanf(line.c_str(), "ShmemPmdMapped: %lu", &kib) == 1)
			bytes += kib << 10;
	}
	return bytes;
}

/** Whether this host gives any; the reason if not. */
std::string whyNoHugePages()
{
	peerbuf::test::FakeHost host;
	if (Device::tryOpen(host, "hbm=4M,layout=contiguous,huge_pages=require") == 0)
		return "";
	return host.failure().message;
}

} // namespace

TEST(Pages, GivenHugePagesThenTheSizeReportedIsTheOneSmapsShows)
{
	if (const std::string why = whyNoHugePages(); !why.empty())
		GTEST_SKIP() << "this host gives no huge pages: " << why;
	for (const char *mode : {"auto", "require", "never"}) {
		SCOPED_TRACE(mode);
		RunningDevice running("hbm=64M,layout=contiguous,huge_pages=" + std::string(mode));
		Device device("socket=" + running.path());
		const bool never = std::string(mode) == "never";
		const auto desc = device.alloc(16 << 20);
		EXPECT_EQ(0u, desc.address % hugePage);
		auto *memory = reinterpret_cast<uint8_t *>(desc.address);
		for (int i = 0; i < 3; i++) {
			for (uint64_t at = 0; at < desc.size; at += 4096)
				memory[at] = static_cast<uint8_t>(at / 4096 + 1);
			EXPECT_EQ(never ? 4096u : hugePage,
				  device.moveStatus(desc.handle).page_size);
			/* what the memory has left stays with the device, and stays huge */
			const uint64_t all = hugeBytesIn(running.process().pid());
			EXPECT_TRUE(never ? all == 0 : all >= desc.size) << all;
			/* the client's window is huge as well */
			EXPECT_EQ(never ? 0u : desc.size, hugeBytesIn(getpid()));
			EXPECT_EQ(never ? 0u : desc.size, hugeBytesOf(memory));
			auto request = slicedMove();
			request.max_pause_ns = 0;
			if (i == 1)
				request.flags = PEERBUF_MOVE_UNSLICED;
			ASSERT_EQ(0, device.move(desc.handle, request));
			EXPECT_EQ(0, device.finishMove(desc.handle).result);
			for (uint64_t at = 0; at < desc.size; at += 4096)
				ASSERT_EQ(static_cast<uint8_t>(at / 4096 + 1), memory[at]);
		}
	}
}

TEST(Pages, GivenABufferTooSmallOrScatteredThenSmallPagesAreReported)
{
	Device small("hbm=8M,layout=contiguous");
	const auto desc = small.alloc(1 << 20);
	EXPECT_EQ(4096u, small.moveStatus(desc.handle).page_size);
	RunningDevice running("hbm=64M");
	Device scattered("socket=" + running.path());
	const auto large = scattered.alloc(16 << 20);
	memset(reinterpret_cast<void *>(large.address), 1, large.size);
	EXPECT_EQ(4096u, scattered.moveStatus(large.handle).page_size);
	EXPECT_EQ(0u, hugeBytesIn(running.process().pid()));
}

TEST(Pages, GivenNoneWhereRequiredThenOpenFailsWithTheReason)
{
	peerbuf::test::FakeHost host;
	EXPECT_ERRNO(EINVAL, Device::tryOpen(host, "hbm=1M,huge_pages=require"));
	EXPECT_CONTAINS(host.failure().message, "one has 2097152");
	const std::string why = whyNoHugePages();
	if (why.empty())
		GTEST_SKIP() << "this host gives huge pages, so nothing is refused";
	EXPECT_CONTAINS(why, "huge_pages=require");
}

TEST(Pages, GivenContiguousThenOneSegmentOnItsBoundaryUntilNoneIsLeft)
{
	Device device("hbm=8M,layout=contiguous,huge_pages=never,dma_base=0");
	const auto segments = [&](const peerbuf_buffer_desc &desc) {
		const uint64_t token = device.attached(desc.handle);
		peerbuf_mapping m;
		EXPECT_EQ(0, device.map(token, 0, desc.size, &m)) << device.why();
		std::vector<peerbuf_segment> list(m.segments, m.segments + m.n_segments);
		device.slots.unmap(device.handle, token, &m);
		device.slots.detach(device.handle, token);
		return list;
	};
	const auto small = device.alloc(64 << 10);
	const auto large = device.alloc(3 << 20);
	ASSERT_EQ(1u, segments(small).size());
	ASSERT_EQ(1u, segments(large).size());
	EXPECT_EQ(0u, segments(large)[0].dma_addr % hugePage);
	/* what is left is in two pieces, and is still had whole */
	const auto rest = device.alloc((8 << 20) - (3 << 20) - (64 << 10));
	EXPECT_EQ(2u, segments(rest).size());
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	for (const auto &desc : {small, large, rest})
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(0, device.tryAlloc(8 << 20)) << device.why();
}

} // namespace peerbuf::emulated::test
