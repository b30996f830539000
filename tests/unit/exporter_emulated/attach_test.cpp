// SPDX-License-Identifier: BSD-3-Clause
#include <random>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

/** Every change of one field that must be refused, beside what it is refused with. */
struct Refused {
	const char *name;
	const char *device;
	void (*change)(peerbuf_attach_request &);
	int err;
	uint32_t errc;
	const char *words;
};

constexpr Refused refusals[] = {
	{"NoPeer2peer", "profile=static,peer2peer=required",
	 [](peerbuf_attach_request &r) { r.allow_peer2peer = 0; }, EOPNOTSUPP,
	 PEERBUF_ERR_NO_P2P_PATH, "peer-to-peer"},
	{"NoRevoke", "profile=revokes", [](peerbuf_attach_request &r) { r.invalidation = 0; },
	 EOPNOTSUPP, PEERBUF_ERR_REVOKE_UNSUPPORTED, "revoked"},
	{"Access", "access=remote_read",
	 [](peerbuf_attach_request &r) { r.access = PEERBUF_ACCESS_REMOTE_WRITE; }, EACCES,
	 PEERBUF_ERR_ACCESS, "access=remote_read"},
	{"Variant", "variants=pcie",
	 [](peerbuf_attach_request &r) { r.variant = PEERBUF_VARIANT_HOST; }, EOPNOTSUPP,
	 PEERBUF_ERR_UNSUPPORTED_DRIVER, "variants=pcie"},
	{"TwoVariants", "profile=static", [](peerbuf_attach_request &r) { r.variant = 3; }, EINVAL,
	 PEERBUF_ERR_INVALID_ARGUMENT, "one bit"},
	{"Handle", "handles=cpu",
	 [](peerbuf_attach_request &r) { r.handle_kind = PEERBUF_HANDLE_FD; }, EOPNOTSUPP,
	 PEERBUF_ERR_UNSUPPORTED_DRIVER, "handles=cpu"},
	{"NoLength", "profile=static", [](peerbuf_attach_request &r) { r.length = 0; }, EINVAL,
	 PEERBUF_ERR_BAD_GEOMETRY, "0 bytes"},
	{"BeyondEnd", "profile=static", [](peerbuf_attach_request &r) { r.offset = 1; }, EINVAL,
	 PEERBUF_ERR_BAD_GEOMETRY, "8192"},
	{"Overflow", "profile=static", [](peerbuf_attach_request &r) { r.offset = UINT64_MAX; },
	 EINVAL, PEERBUF_ERR_BAD_GEOMETRY, "8192"},
	{"ShortStruct", "profile=static", [](peerbuf_attach_request &r) { r.struct_size = 8; },
	 EINVAL, PEERBUF_ERR_INVALID_ARGUMENT, "struct_size is 8"},
};

class AttachRefused : public ::testing::TestWithParam<Refused>
{
};

} // namespace

TEST_P(AttachRefused, Rule13_GivenAGateThenTheErrorNamesItAndNothingIsLeft)
{
	const Refused &refused = GetParam();
	Device device(std::string("hbm=1M,") + refused.device);
	const auto desc = device.alloc(8192);
	auto request = usualAttach(8192);
	if (std::string(refused.device) == "access=remote_read")
		request.access = PEERBUF_ACCESS_REMOTE_READ;
	if (std::string(refused.device) == "variants=pcie")
		request.variant = PEERBUF_VARIANT_PCIE;
	if (std::string(refused.device) == "handles=cpu")
		request.handle_kind = PEERBUF_HANDLE_CPU;
	uint64_t token = 0;
	const auto good = request;
	refused.change(request);
	EXPECT_ERRNO(refused.err, device.attach(desc.handle, &token, &request));
	EXPECT_EQ(refused.errc, device.errc()) << device.why();
	EXPECT_CONTAINS(device.why(), refused.words);
	EXPECT_EQ(0u, device.stats().attachments);
	request = good;
	EXPECT_EQ(0, device.attach(desc.handle, &token, &request)) << device.why();
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

INSTANTIATE_TEST_SUITE_P(Every, AttachRefused, ::testing::ValuesIn(refusals),
			 [](const auto &param_info) { return std::string(param_info.param.name); });

TEST(Attach, GivenAnOptionalAccessFlagThenItIsNoObstacle)
{
	Device device("hbm=1M,access=remote_read");
	const auto desc = device.alloc(4096);
	auto request = usualAttach(4096);
	request.access = PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_RELAXED_ORDERING;
	uint64_t token = 0;
	EXPECT_EQ(0, device.attach(desc.handle, &token, &request)) << device.why();
}

TEST(Attach, Rule9_GivenAnAttachmentWhenTheBufferIsFreedThenTheMemoryStaysUntilDetach)
{
	Device device("hbm=64K,profile=static");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	peerbuf_mapping mapping;
	ASSERT_EQ(0, device.map(token, 0, 65536, &mapping)) << device.why();
	*static_cast<uint8_t *>(mapping.cpu_addr) = 1; /* still there */
	device.slots.unmap(device.handle, token, &mapping);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.tryAlloc(64 << 10));
	EXPECT_TRUE(device.clean());
}

TEST(Map, GivenScatteredMemoryThenSegmentsAndCpuViewAreTheSameBytes)
{
	Device device("hbm=16M,seed=9,dma_base=0x200000000");
	const auto desc = device.alloc(4 << 20);
	const uint64_t token = device.attached(desc.handle);
	const uint64_t top = device.offer().dma_addr_max;
	EXPECT_EQ(0x200000000 + (16u << 20) - 1, top);
	auto *memory = reinterpret_cast<uint8_t *>(desc.address);
	std::mt19937_64 random(9);
	for (uint64_t i = 0; i < desc.size; i++)
		memory[i] = static_cast<uint8_t>(random());
	uint64_t most = 0;
	for (int i = 0; i < 100; i++) {
		const uint64_t offset = random() % desc.size;
		const uint64_t length = 1 + random() % (desc.size - offset);
		peerbuf_mapping m;
		ASSERT_EQ(0, device.map(token, offset, length, &m)) << device.why();
		ASSERT_EQ(0u, m.offset % 4096);
		ASSERT_EQ(0u, m.length % 4096);
		ASSERT_LE(m.offset, offset);
		ASSERT_GE(m.offset + m.length, offset + length);
		ASSERT_LE(m.offset + m.length, desc.size);
		ASSERT_LT(offset - m.offset, 4096u);
		ASSERT_EQ(1u, m.peer2peer);
		ASSERT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
		ASSERT_EQ(desc.generation, m.generation);
		ASSERT_EQ(desc.address + m.offset, reinterpret_cast<uintptr_t>(m.cpu_addr));
		uint64_t at = m.offset;
		for (uint64_t k = 0; k < m.n_segments; k++) {
			const peerbuf_segment &s = m.segments[k];
			ASSERT_GE(s.dma_addr, 0x200000000u);
			ASSERT_LE(s.dma_addr + s.length - 1, top);
			ASSERT_NE(s.cpu_addr, memory + at) << "segments lie in the device's memory";
			ASSERT_EQ(0, memcmp(s.cpu_addr, memory + at, s.length));
			if (k) {
				ASSERT_NE(m.segments[k - 1].dma_addr + m.segments[k - 1].length,
					  s.dma_addr)
					<< "adjacent frames make one segment";
			}
			at += s.length;
		}
		ASSERT_EQ(m.offset + m.length, at);
		most = std::max(most, m.n_segments);
		device.slots.unmap(device.handle, token, &m);
	}
	EXPECT_GE(most, 8u);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Map, Rule28_GivenTwoMapsThenEachIsAnotherMapping)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_mapping a;
	peerbuf_mapping b;
	ASSERT_EQ(0, device.map(token, 0, 65536, &a));
	ASSERT_EQ(0, device.map(token, 0, 65536, &b));
	EXPECT_NE(a.token, b.token);
	EXPECT_NE(a.segments, b.segments);
	device.slots.unmap(device.handle, token, &a);
	EXPECT_EQ(1, device.stats().mappings);
	EXPECT_NE(0u, b.segments[0].length);
	device.slots.unmap(device.handle, token, &b);
	EXPECT_EQ(0, device.stats().mappings);
}

TEST(Map, GivenACpuHandleThenNoSegmentsAndWithoutCpuNoView)
{
	Device cpu("hbm=1M,handles=cpu");
	auto request = usualAttach(4096);
	request.handle_kind = PEERBUF_HANDLE_CPU;
	uint64_t token = 0;
	const auto desc = cpu.alloc(4096);
	ASSERT_EQ(0, cpu.attach(desc.handle, &token, &request));
	peerbuf_mapping m;
	ASSERT_EQ(0, cpu.map(token, 0, 1, &m));
	EXPECT_EQ(0u, m.n_segments);
	EXPECT_EQ(nullptr, m.segments);
	EXPECT_NE(nullptr, m.cpu_addr);

	Device segments("hbm=1M,handles=segments");
	const auto other = segments.alloc(4096);
	token = segments.attached(other.handle);
	ASSERT_EQ(0, segments.map(token, 0, 1, &m));
	EXPECT_EQ(1u, m.n_segments);
	EXPECT_EQ(nullptr, m.cpu_addr);
}

TEST(Map, Rule33_GivenBadRangesThenRefusedWithTheNumbers)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(8192);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_mapping m;
	for (const auto &[offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
		     {0, 0}, {0, 8193}, {8192, 1}, {1, UINT64_MAX}, {UINT64_MAX, 1}}) {
		EXPECT_ERRNO(EINVAL, device.map(token, offset, length, &m));
		EXPECT_EQ(PEERBUF_ERR_BAD_GEOMETRY, device.errc());
		EXPECT_CONTAINS(device.why(), std::to_string(length));
		EXPECT_EQ(0u, m.token);
	}
	EXPECT_EQ(0, device.stats().mappings);
	EXPECT_EQ(0u, device.stats().violations);
}

TEST(Pin, Rule21_GivenPinsThenTheyNestAndBalance)
{
	Device device("hbm=1M,profile=moves");
	const auto desc = device.alloc(4096);
	const uint64_t a = device.attached(desc.handle);
	const uint64_t b = device.attached(desc.handle);
	EXPECT_EQ(0, device.slots.pin(device.handle, a));
	EXPECT_EQ(0, device.slots.pin(device.handle, a));
	EXPECT_EQ(0, device.slots.pin(device.handle, b));
	EXPECT_EQ(3, device.stats().pins);
	device.slots.unpin(device.handle, a);
	device.slots.unpin(device.handle, a);
	EXPECT_EQ(1, device.stats().pins);
	device.slots.unpin(device.handle, a); /* one too many */
	EXPECT_EQ(0, device.stats().pins) << "one unpin too many must show";
	EXPECT_EQ(1u, device.stats().violations);
	device.slots.unpin(device.handle, b);
	EXPECT_EQ(-1, device.stats().pins);
}

TEST(Pin, Rule23_GivenADeviceThatRefusesThenSaidAndNotBusy)
{
	Device device("hbm=1M,profile=nopin");
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	EXPECT_ERRNO(EOPNOTSUPP, device.slots.pin(device.handle, token));
	EXPECT_EQ(PEERBUF_ERR_PIN_REFUSED, device.errc());
	EXPECT_EQ(0, device.stats().pins);
}

/* Misuse is counted and survived. */
TEST(Violation, GivenEveryMisuseThenEachIsCountedAndNothingBreaks)
{
	Device device("hbm=1M,profile=moves");
	const auto desc = device.alloc(8192);
	const uint64_t token = device.attached(desc.handle);
	const uint64_t other = device.attached(desc.handle);
	peerbuf_mapping m;
	uint64_t expected = 0;
	const auto counted = [&](const char *what) {
		expected++;
		EXPECT_EQ(expected, device.stats().violations) << what;
		EXPECT_EQ(expected, device.host.log(PEERBUF_LOG_WARN).size()) << what;
	};

	ASSERT_EQ(0, device.map(token, 0, 8192, &m));
	device.slots.unmap(device.handle, other, &m);
	counted("unmap with the wrong attachment");
	device.slots.unmap(device.handle, token, &m);
	device.slots.unmap(device.handle, token, &m);
	counted("unmap twice");
	device.slots.unmap(device.handle, token, nullptr);
	counted("unmap of nothing");
	device.slots.unpin(device.handle, token);
	counted("unpin of an unpinned attachment");
	device.slots.unpin(device.handle, 4711);
	counted("unpin of an unknown attachment");
	EXPECT_ERRNO(EINVAL, device.slots.pin(device.handle, 4711));
	counted("pin of an unknown attachment");
	EXPECT_ERRNO(EINVAL, device.map(4711, 0, 1, &m));
	counted("map of an unknown attachment");
	device.slots.detach(device.handle, 4711);
	counted("detach of an unknown attachment");
	peerbuf_fd_export e;
	EXPECT_ERRNO(EINVAL, device.exportFd(4711, 0, 1, &e));
	counted("export of an unknown attachment");
	device.slots.release_fd(device.handle, token, nullptr);
	counted("release of nothing");
	device.slots.invalidate_done(device.handle, desc.handle, 99, 0);
	counted("invalidate_done that nobody waits for");

	ASSERT_EQ(0, device.slots.pin(device.handle, other));
	ASSERT_EQ(0, device.map(other, 0, 8192, &m));
	ASSERT_EQ(0, device.exportFd(other, 0, 8192, &e));
	device.slots.detach(device.handle, other);
	counted("detach with a mapping, an export and a pin");
	EXPECT_CONTAINS(device.host.log(PEERBUF_LOG_WARN).back(),
			"1 mappings, 1 exports and 1 pins");
	device.slots.release_fd(device.handle, other, &e); /* ends the descriptor all the same */
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	const auto s = device.stats();
	EXPECT_EQ(0u, s.attachments + s.buffers + s.memory_used + s.window_used);
	EXPECT_EQ(0, s.mappings + s.exports);
	EXPECT_EQ(-2, s.pins); /* the two unpins too many */
}

TEST(Window, GivenAWindowSmallerThanTheHbmThenItFillsAndSaysHow)
{
	Device device("hbm=16M,window=4M,window_reserve=1M");
	const auto desc = device.alloc(8 << 20);
	const uint64_t token = device.attached(desc.handle);
	EXPECT_EQ(4u << 20, device.offer().window_size);
	EXPECT_EQ(1u << 20, device.offer().window_reserve);
	EXPECT_EQ(0u, device.offer().window_used);
	peerbuf_mapping a;
	peerbuf_mapping b;
	peerbuf_mapping c;
	ASSERT_EQ(0, device.map(token, 0, 2 << 20, &a)) << device.why();
	EXPECT_EQ(2u << 20, device.offer().window_used);
	EXPECT_EQ(2u << 20, device.stats().window_used);
	EXPECT_ERRNO(ENOSPC, device.map(token, 2 << 20, (1 << 20) + 1, &b));
	EXPECT_EQ(PEERBUF_ERR_WINDOW_EXHAUSTED, device.errc());
	for (const char *part :
	     {"4194304 bytes in all", "1048576 reserved", "2097152 used", "1052672 needed"})
		EXPECT_CONTAINS(device.why(), part);
	EXPECT_EQ(2u << 20, device.offer().window_used) << "a refusal took something";
	/* what is in the window already costs nothing more */
	ASSERT_EQ(0, device.map(token, 1 << 20, 2 << 20, &b)) << device.why();
	EXPECT_EQ(3u << 20, device.offer().window_used);
	EXPECT_ERRNO(ENOSPC, device.map(token, 3 << 20, 1, &c));
	device.slots.unmap(device.handle, token, &a);
	EXPECT_EQ(2u << 20, device.offer().window_used);
	/* an export takes its place too */
	peerbuf_fd_export e;
	ASSERT_EQ(0, device.exportFd(token, 0, 1 << 20, &e)) << device.why();
	EXPECT_EQ(3u << 20, device.offer().window_used);
	device.slots.release_fd(device.handle, token, &e);
	device.slots.unmap(device.handle, token, &b);
	EXPECT_EQ(0u, device.offer().window_used);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Window, GivenTwoClientsThenTheyShareOneWindow)
{
	RunningDevice running("hbm=16M,window=1M");
	const std::string spec = "socket=" + running.path();
	Device a(spec);
	Device b(spec);
	const auto mine = a.alloc(1 << 20);
	const auto theirs = b.alloc(1 << 20);
	const uint64_t at = a.attached(mine.handle);
	const uint64_t bt = b.attached(theirs.handle);
	peerbuf_mapping m;
	ASSERT_EQ(0, a.map(at, 0, 1 << 20, &m));
	EXPECT_EQ(1u << 20, b.offer().window_used);
	EXPECT_EQ(0u, b.stats().window_used);
	peerbuf_mapping refused;
	EXPECT_ERRNO(ENOSPC, b.map(bt, 0, 1, &refused));
	a.slots.unmap(a.handle, at, &m);
	EXPECT_EQ(0, b.map(bt, 0, 1 << 20, &refused)) << b.why();
}

} // namespace peerbuf::emulated::test
