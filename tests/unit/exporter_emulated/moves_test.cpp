// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

constexpr uint64_t page = 64 << 10;
/* A deadline that passes in a test, and not because this machine is busy: all else is told at
 * once, and which slice it hits is not assumed. */
constexpr uint64_t soon = 200'000'000;

uint8_t patternAt(uint64_t i, uint64_t salt = 0)
{
	return static_cast<uint8_t>((i + salt) * 31 + i / 4096 * 7);
}

void fill(const peerbuf_buffer_desc &desc, uint64_t salt = 0)
{
	auto *memory = reinterpret_cast<uint8_t *>(desc.address);
	for (uint64_t i = 0; i < desc.size; i++)
		memory[i] = patternAt(i, salt);
}

/** The client's window and the device agree, and nothing has changed. */
::testing::AssertionResult intact(Device &device, const peerbuf_buffer_desc &desc,
				  uint64_t salt = 0)
{
	const auto *memory = reinterpret_cast<const volatile uint8_t *>(desc.address);
	const std::vector<uint8_t> theirs = device.deviceBytes(desc.handle, 0, desc.size);
	for (uint64_t i = 0; i < desc.size; i++)
		if (memory[i] != patternAt(i, salt) || theirs[i] != patternAt(i, salt))
			return ::testing::AssertionFailure()
			       << "byte " << i << ": window " << +memory[i] << ", device "
			       << +theirs[i] << ", written " << +patternAt(i, salt);
	return ::testing::AssertionSuccess();
}

/** Bus addresses of the whole buffer, as an importer sees them now. */
std::vector<peerbuf_segment> segmentsOf(Device &device, uint64_t token, uint64_t size)
{
	peerbuf_mapping m;
	EXPECT_EQ(0, device.map(token, 0, size, &m)) << device.why();
	std::vector<peerbuf_segment> segments(m.segments, m.segments + m.n_segments);
	device.slots.unmap(device.handle, token, &m);
	return segments;
}

/** An importer that keeps its tickets from some slice on. */
class Holder
{
public:
	Holder(Device &device, size_t from, size_t count = SIZE_MAX) : device_(device)
	{
		device.host.onInvalidate = [this, from, count](uint64_t buffer,
							       const peerbuf_invalidate &inv) {
			const size_t n = told_++;
			if (n < from || n - from >= count)
				return 0;
			open_.emplace_back(buffer, inv.cookie);
			return -EINPROGRESS;
		};
	}
	~Holder() { device_.host.onInvalidate = nullptr; }
	Holder(const Holder &) = delete;
	Holder &operator=(const Holder &) = delete;

	size_t open() const { return open_.size(); }
	size_t told() const { return told_; }
	/** Let go of everything. */
	void release(int status = 0)
	{
		for (const auto &[buffer, cookie] : std::exchange(open_, {}))
			device_.slots.invalidate_done(device_.handle, buffer, cookie, status);
	}

private:
	Device &device_;
	size_t told_ = 0;
	std::vector<std::pair<uint64_t, uint64_t>> open_;
};

} // namespace

TEST(Move, GivenABufferInUseThenBytesAndAddressStayAndEverySliceIsTold)
{
	Device device("hbm=4M,granularity=64K");
	const auto desc = device.alloc(1 << 20);
	fill(desc);
	const uint64_t token = device.attached(desc.handle);
	const auto before = segmentsOf(device, token, desc.size);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
	EXPECT_EQ(2 * desc.size, device.stats().memory_used) << "both places are charged";
	const auto status = device.finishMove(desc.handle);
	EXPECT_EQ(0, status.result);
	EXPECT_EQ(desc.size, status.moved);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, status.placement);
	EXPECT_EQ(desc.size / page, status.slices);
	EXPECT_EQ(desc.generation + status.slices, status.generation);
	EXPECT_GT(status.copy_ns, 0u);
	EXPECT_GE(status.wall_ns, status.copy_ns);

	const auto told = device.host.invalidated();
	const auto resumed = device.host.resumed();
	ASSERT_EQ(status.slices, told.size());
	ASSERT_EQ(status.slices, resumed.size());
	for (size_t i = 0; i < told.size(); i++) {
		EXPECT_EQ(PEERBUF_REASON_MOVE, told[i].inv.reason);
		EXPECT_EQ(i * page, told[i].inv.offset);
		EXPECT_EQ(page, told[i].inv.length);
		EXPECT_GT(told[i].inv.expected_ns, 0u);
		EXPECT_EQ(told[i].inv.offset, resumed[i].res.offset);
		EXPECT_EQ(told[i].inv.length, resumed[i].res.length);
		EXPECT_EQ(told[i].inv.generation + 1, resumed[i].res.generation);
		EXPECT_EQ(0u, resumed[i].res.aborted);
	}
	EXPECT_TRUE(intact(device, desc));
	reinterpret_cast<volatile uint8_t *>(desc.address)[page + 3] = 0xe1;
	EXPECT_EQ(0xe1, device.deviceBytes(desc.handle, page + 3, 1)[0]);
	reinterpret_cast<volatile uint8_t *>(desc.address)[page + 3] = patternAt(page + 3);

	const auto after = segmentsOf(device, token, desc.size);
	for (const peerbuf_segment &a : after)
		for (const peerbuf_segment &b : before)
			EXPECT_TRUE(a.dma_addr + a.length <= b.dma_addr ||
				    b.dma_addr + b.length <= a.dma_addr)
				<< "the new place is the old one";
	uint64_t at = 0;
	for (const peerbuf_segment &s : after)
		for (uint64_t i = 0; i < s.length; i++, at++)
			ASSERT_EQ(patternAt(at), static_cast<uint8_t *>(s.cpu_addr)[i]) << at;

	const auto stats = device.stats();
	EXPECT_EQ(1u, stats.moves);
	EXPECT_EQ(status.slices, stats.slices);
	EXPECT_EQ(0u, stats.aborted + stats.evictions + stats.refaults);
	EXPECT_EQ(desc.size, stats.memory_used);
	EXPECT_EQ(0, device.tryAlloc(3 << 20)) << device.why();
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(0, device.tryAlloc(4 << 20)) << device.why();
	EXPECT_TRUE(device.clean());
}

TEST(Move, GivenManyMovesOfScatteredMemoryThenNothingIsLost)
{
	Device device("hbm=4M,seed=11");
	std::vector<peerbuf_buffer_desc> buffers;
	for (const uint64_t size : {300u << 10, 64u << 10, 512u << 10, 4u << 10}) {
		buffers.push_back(device.alloc(size));
		fill(buffers.back(), size);
	}
	for (int round = 0; round < 5; round++) {
		for (const auto &desc : buffers)
			ASSERT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
		for (const auto &desc : buffers)
			EXPECT_EQ(0, device.finishMove(desc.handle).result);
	}
	for (const auto &desc : buffers) {
		EXPECT_TRUE(intact(device, desc, desc.size));
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	}
	EXPECT_EQ(20u, device.stats().moves);
	EXPECT_EQ(0, device.tryAlloc(4 << 20)) << device.why();
}

TEST(Move, GivenNobodyAttachedThenTheHolderIsToldAndItsWindowFollows)
{
	Device device("hbm=1M");
	device.host.onInvalidate = [](uint64_t, const peerbuf_invalidate &) { return -ENOENT; };
	const auto desc = device.alloc(64 << 10);
	fill(desc);
	ASSERT_EQ(0, device.move(desc.handle, cleared<peerbuf_move_request>()));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenTheHostTierThenOutAndBackWithSegmentsThere)
{
	Device device("hbm=1M,host=1M,placements=device+host,granularity=64K,dma_base=0x100000");
	const auto desc = device.alloc(512 << 10);
	fill(desc);
	const uint64_t token = device.attached(desc.handle);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	auto status = device.finishMove(desc.handle);
	EXPECT_EQ(0, status.result);
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, status.placement);
	EXPECT_EQ(1u, device.stats().evictions);
	for (const peerbuf_segment &s : segmentsOf(device, token, desc.size))
		EXPECT_GE(s.dma_addr, 0x100000u + (1u << 20)) << "that is HBM";
	EXPECT_EQ(0u, device.offer().window_used);
	EXPECT_TRUE(intact(device, desc));
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << "the HBM is free: " << device.why();

	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_DEVICE)));
	status = device.finishMove(desc.handle);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, status.placement);
	EXPECT_EQ(1u, device.stats().evictions);
	EXPECT_EQ(0u, device.stats().refaults) << "nobody faulted";
	for (const peerbuf_segment &s : segmentsOf(device, token, desc.size))
		EXPECT_LE(s.dma_addr + s.length, 0x100000u + (1u << 20));
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenAnEvictedBufferThenTheFaultOfAnImporterBringsItBack)
{
	Device device("hbm=1M,host=1M,placements=device+host,granularity=64K");
	const auto desc = device.alloc(512 << 10);
	fill(desc);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	const size_t resumedBefore = device.host.resumed().size();
	peerbuf_mapping m;
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, page, &m));
	EXPECT_CONTAINS(device.why(), "being brought back");
	device.await([&] { return device.stats().refaults == 1; });
	device.slots.progress(device.handle);
	uint64_t covered = 0;
	const auto resumed = device.host.resumed();
	for (size_t i = resumedBefore; i < resumed.size(); i++)
		covered += resumed[i].res.length;
	EXPECT_EQ(desc.size, covered) << "who waits for any part of it must be woken";
	ASSERT_EQ(0, device.map(token, 0, desc.size, &m)) << device.why();
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
	EXPECT_TRUE(intact(device, desc));
}

/* A fault is served as soon as its part is there: it waits for a resume that will not come twice.
 */
TEST(Move, GivenARefaultUnderWayThenWhatHasComeCanBeMapped)
{
	Device device("hbm=1M,host=1M,placements=device+host,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	Holder importer(device, 1);
	peerbuf_mapping m;
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, page, &m));
	/* one page a slice is not promised, so the first two slices may be all of it */
	device.await([&] { return importer.open() == 1 || device.stats().refaults == 1; });
	if (importer.open()) {
		const auto second = device.host.invalidated().back().inv;
		ASSERT_GT(second.offset, 0u);
		EXPECT_EQ(0, device.map(token, 0, second.offset, &m)) << device.why();
		EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
		peerbuf_mapping other;
		EXPECT_ERRNO(EAGAIN, device.map(token, second.offset, page, &other));
	}
	while (device.stats().refaults == 0)
		device.await([&] {
			importer.release();
			return device.stats().refaults == 1;
		});
}

/* Parts that an aborted refault did not reach are resumed by nothing but the next one. */
TEST(Move, GivenARefaultThatFailsThenItIsTriedAgain)
{
	Device device("hbm=1M,host=1M,placements=device+host,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	fill(desc);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	for (const char *step : {"device.copy", "device.populate"})
		ASSERT_EQ(0, device.ops->fault(device.handle, step, 0, 1, -ENOMEM, 0));
	peerbuf_mapping m;
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, page, &m));
	device.await([&] { return device.stats().refaults == 1; });
	EXPECT_EQ(2u, device.stats().aborted);
	EXPECT_EQ(0, device.map(token, 0, desc.size, &m)) << device.why();
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenAFaultInTheMiddleOfAnEvictionThenWhatIsLeftIsThereAndTheRestComesBack)
{
	Device device("hbm=1M,host=1M,placements=device+host,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	fill(desc);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	Holder importer(device, 1, 1);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	device.await([&] { return importer.open() == 1; });
	peerbuf_mapping m;
	EXPECT_EQ(0, device.map(token, 2 * page, 2 * page, &m)) << device.why();
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, page, &m));
	importer.release();
	device.await([&] { return device.stats().refaults == 1; });
	EXPECT_EQ(1u, device.stats().evictions);
	EXPECT_EQ(0, device.map(token, 0, desc.size, &m)) << device.why();
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenNoRoomThereThenRefusedAndNobodyIsTold)
{
	Device device("hbm=1M,host=64K,placements=device+host");
	const auto desc = device.alloc(768 << 10);
	const uint64_t token = device.attached(desc.handle);
	const auto before = segmentsOf(device, token, desc.size);
	EXPECT_ERRNO(ENOMEM, device.move(desc.handle, slicedMove()));
	EXPECT_CONTAINS(device.why(), "786432 bytes needed, 262144 of 1048576 free");
	EXPECT_ERRNO(ENOMEM, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_CONTAINS(device.why(), "host tier");
	EXPECT_EQ(0, device.slots.progress(device.handle));
	EXPECT_TRUE(device.host.invalidated().empty());
	const auto after = segmentsOf(device, token, desc.size);
	ASSERT_EQ(before.size(), after.size());
	EXPECT_TRUE(
		std::equal(before.begin(), before.end(), after.begin(),
			   [](const auto &a, const auto &b) { return a.dma_addr == b.dma_addr; }));
	EXPECT_EQ(0u, device.stats().moves + device.stats().aborted);
	EXPECT_EQ(desc.size, device.stats().memory_used);
	EXPECT_EQ(0, device.tryAlloc(256 << 10)) << device.why();
}

TEST(Move, GivenAPinThenBusyAndMovableAfterTheUnpin)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	ASSERT_EQ(0, device.slots.pin(device.handle, token));
	EXPECT_ERRNO(EBUSY, device.move(desc.handle, slicedMove()));
	EXPECT_CONTAINS(device.why(), "pinned");
	device.slots.unpin(device.handle, token);
	EXPECT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
}

TEST(Move, GivenNonsenseThenSaidAndNothingMoves)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	const auto bad = [&](int err, const char *word, auto change) {
		auto request = slicedMove();
		change(request);
		EXPECT_ERRNO(err, device.move(desc.handle, request));
		EXPECT_CONTAINS(device.why(), word);
	};
	bad(EINVAL, "placement 2", [](auto &r) { r.placement = PEERBUF_PLACEMENT_HOST; });
	bad(EINVAL, "placement 8", [](auto &r) { r.placement = 8; });
	bad(EINVAL, "flags", [](auto &r) { r.flags = 1u << 31; });
	bad(EINVAL, "duty", [](auto &r) { r.duty_percent = 101; });
	bad(EINVAL, "past_deadline", [](auto &r) { r.past_deadline = 9; });
	bad(EOPNOTSUPP, "revoke=never",
	    [](auto &r) { r.past_deadline = PEERBUF_PAST_DEADLINE_REVOKE; });
	bad(EINVAL, "struct_size", [](auto &r) { r.struct_size = 4; });
	EXPECT_ERRNO(ENOENT, device.move(desc.handle + 1, slicedMove()));
	EXPECT_EQ(0u, device.moveStatus(desc.handle).running);
	Device fixed("hbm=1M,profile=static");
	const auto still = fixed.alloc(4096);
	EXPECT_ERRNO(EOPNOTSUPP, fixed.move(still.handle, slicedMove()));
	EXPECT_CONTAINS(fixed.why(), "static");
	Device taking("hbm=1M,profile=revokes");
	const auto taken = taking.alloc(4096);
	ASSERT_EQ(0, taking.ops->revoke(taking.handle, taken.handle));
	EXPECT_ERRNO(ENODEV, taking.move(taken.handle, slicedMove()));
}

TEST(Move, GivenAnImporterThatCannotReachThePlaceThenBusy)
{
	Device device("hbm=1M,host=1M,placements=device+host");
	const auto desc = device.alloc(64 << 10);
	auto request = usualAttach(4096);
	request.handle_kind = PEERBUF_HANDLE_CPU;
	request.placements = PEERBUF_PLACEMENT_DEVICE;
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	EXPECT_ERRNO(EBUSY, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_CONTAINS(device.why(), "could not reach it in the host tier");
	EXPECT_EQ(0, device.move(desc.handle, slicedMove())) << "but inside the HBM";
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	device.slots.detach(device.handle, token);
	/* and the other way round: one without peer-to-peer */
	request = usualAttach(4096);
	request.allow_peer2peer = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request)) << device.why();
	EXPECT_ERRNO(EBUSY, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_DEVICE)));
	EXPECT_CONTAINS(device.why(), "could not reach it in device memory");
}

TEST(Move, GivenAMoveUnderWayThenAttachAndPinAndMapOfItsSliceAreToldToTryAgain)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	const uint64_t token = device.attached(desc.handle);
	Holder importer(device, 1, 1);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	device.await([&] { return importer.open() == 1; });
	const auto slice = device.host.invalidated().back().inv;
	uint64_t late = 0;
	EXPECT_ERRNO(EAGAIN, device.attach(desc.handle, &late));
	EXPECT_ERRNO(EAGAIN, device.slots.pin(device.handle, token));
	EXPECT_ERRNO(EBUSY, device.move(desc.handle, slicedMove()));
	EXPECT_CONTAINS(device.why(), "already");
	peerbuf_mapping m;
	EXPECT_ERRNO(EAGAIN, device.map(token, slice.offset, page, &m));
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, desc.size, &m)) << "a part of it is away";
	EXPECT_EQ(0, device.map(token, 0, page, &m)) << "its neighbour is there";
	importer.release();
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_EQ(0, device.attach(desc.handle, &late)) << device.why();
	EXPECT_EQ(0, device.slots.pin(device.handle, token)) << device.why();
	EXPECT_EQ(0, device.map(token, slice.offset, page, &m));
	EXPECT_EQ(1u, device.stats().attachments - 1) << "what failed left nothing";
}

TEST(Move, GivenAnImporterOfTheWholeThenOneSliceWithItsPauseAnnounced)
{
	Device device("hbm=8M,granularity=64K");
	const auto desc = device.alloc(2 << 20);
	fill(desc);
	auto request = usualAttach(desc.size);
	request.invalidate_scope = PEERBUF_SCOPE_WHOLE;
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	const auto status = device.finishMove(desc.handle);
	EXPECT_EQ(0, status.result);
	EXPECT_EQ(1u, status.slices);
	const auto told = device.host.invalidated();
	ASSERT_EQ(1u, told.size());
	EXPECT_EQ(0u, told[0].inv.offset);
	EXPECT_EQ(desc.size, told[0].inv.length);
	EXPECT_GT(told[0].inv.expected_ns, 0u);
	EXPECT_GT(status.effective_max_pause_ns, 1u);
	EXPECT_TRUE(intact(device, desc));
	/* a caller may want the same */
	device.slots.detach(device.handle, token);
	auto unsliced = slicedMove();
	unsliced.flags = PEERBUF_MOVE_UNSLICED;
	ASSERT_EQ(0, device.move(desc.handle, unsliced));
	EXPECT_EQ(1u, device.finishMove(desc.handle).slices);
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenNoNotifyThenTheClientStaysOnTheOldPlaceToItsHarm)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(64 << 10);
	fill(desc);
	const uint64_t token = device.attached(desc.handle);
	auto request = slicedMove();
	request.flags = PEERBUF_MOVE_NO_NOTIFY;
	ASSERT_EQ(0, device.move(desc.handle, request));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_TRUE(device.host.invalidated().empty());
	EXPECT_TRUE(device.host.resumed().empty());
	/* what the client writes goes to where the memory was */
	auto *memory = reinterpret_cast<volatile uint8_t *>(desc.address);
	memory[5] = static_cast<uint8_t>(~patternAt(5));
	EXPECT_EQ(patternAt(5), device.deviceBytes(desc.handle, 5, 1)[0]);
	/* a client that asks again learns */
	(void)segmentsOf(device, token, desc.size);
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenTwoClientsThenBothFollowAndTheSlowerOneIsWaitedFor)
{
	RunningDevice running("hbm=1M,granularity=64K");
	Device a("socket=" + running.path());
	Device b("socket=" + running.path());
	const auto mine = a.alloc(256 << 10);
	fill(mine);
	const uint64_t at = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(at, 0, 4096, &e));
	peerbuf_buffer_desc theirs;
	ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs));
	Holder slow(b, 0, 1);
	ASSERT_EQ(0, a.move(mine.handle, slicedMove()));
	b.await([&] { return slow.open() == 1; });
	a.slots.progress(a.handle);
	EXPECT_EQ(1u, a.host.invalidated().size());
	EXPECT_TRUE(a.host.resumed().empty());
	EXPECT_EQ(0u, a.moveStatus(mine.handle).moved);
	slow.release();
	EXPECT_EQ(0, a.finishMove(mine.handle, {&b}).result);
	EXPECT_TRUE(intact(a, mine));
	EXPECT_TRUE(intact(b, theirs));
	EXPECT_EQ(a.host.resumed().size(), b.host.resumed().size());
	a.slots.release_fd(a.handle, at, &e);
}

TEST(Move, GivenAClientThatJoinsInTheMiddleThenItComesWhenNothingIsAway)
{
	RunningDevice running("hbm=1M,granularity=64K");
	Device a("socket=" + running.path());
	Device b("socket=" + running.path());
	const auto mine = a.alloc(256 << 10);
	fill(mine);
	const uint64_t at = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(at, 0, 4096, &e));
	Holder slow(a, 1, 1);
	ASSERT_EQ(0, a.move(mine.handle, slicedMove()));
	a.await([&] { return slow.open() == 1; });
	peerbuf_buffer_desc theirs;
	EXPECT_ERRNO(EAGAIN, b.getFd(e.fd, 0, &theirs));
	EXPECT_EQ(0u, b.stats().buffers);
	slow.release();
	EXPECT_EQ(0, a.finishMove(mine.handle).result);
	ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs)) << b.why();
	EXPECT_TRUE(intact(b, theirs));
	a.slots.release_fd(a.handle, at, &e);
}

TEST(Move, GivenAClientThatDiesWithItsTicketThenTheMoveGoesOn)
{
	RunningDevice running("hbm=1M,granularity=64K");
	Device a("socket=" + running.path());
	const auto mine = a.alloc(256 << 10);
	fill(mine);
	const uint64_t at = a.attached(mine.handle);
	peerbuf_fd_export e;
	ASSERT_EQ(0, a.exportFd(at, 0, 4096, &e));
	{
		Device b("socket=" + running.path());
		peerbuf_buffer_desc theirs;
		ASSERT_EQ(0, b.getFd(e.fd, 0, &theirs));
		b.attached(theirs.handle);
		Holder never(b, 0);
		ASSERT_EQ(0, a.move(mine.handle, slicedMove()));
		b.await([&] { return never.open() == 1; });
		a.slots.progress(a.handle);
		EXPECT_EQ(1u, a.moveStatus(mine.handle).running);
		b.close();
	}
	EXPECT_EQ(0, a.finishMove(mine.handle).result);
	EXPECT_TRUE(intact(a, mine));
	a.slots.release_fd(a.handle, at, &e);
	a.slots.detach(a.handle, at);
	EXPECT_EQ(0, a.slots.free(a.handle, mine.handle));
	EXPECT_EQ(0, a.tryAlloc(1 << 20)) << a.why();
}

/* ---- deadlines ------------------------------------------------------------------------------ */

TEST(Move, GivenATicketThatDoesNotComeWhenAbortThenAllGoesBackAndTheLateOneIsDropped)
{
	for (const size_t stuck : {0u, 2u}) {
		SCOPED_TRACE(stuck);
		Device device("hbm=1M,granularity=64K");
		const auto desc = device.alloc(512 << 10);
		fill(desc);
		const uint64_t token = device.attached(desc.handle);
		const auto before = segmentsOf(device, token, desc.size);
		Holder importer(device, stuck, 1);
		auto request = slicedMove();
		request.deadline_ns = soon;
		ASSERT_EQ(0, device.move(desc.handle, request));
		const auto status = device.finishMove(desc.handle);
		EXPECT_EQ(-ETIMEDOUT, status.result);
		EXPECT_EQ(0u, status.moved);
		EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, status.placement);
		/* told of each slice out, and of each slice back */
		const auto told = device.host.invalidated();
		const auto resumed = device.host.resumed();
		ASSERT_EQ(told.size(), resumed.size());
		const auto isAborted = [](const auto &r) { return r.res.aborted == 1; };
		ASSERT_EQ(1, std::count_if(resumed.begin(), resumed.end(), isAborted));
		const auto late = std::find_if(resumed.begin(), resumed.end(), isAborted);
		EXPECT_EQ(told[static_cast<size_t>(late - resumed.begin())].inv.generation,
			  late->res.generation)
			<< "it never left";
		EXPECT_TRUE(intact(device, desc));
		const auto after = segmentsOf(device, token, desc.size);
		ASSERT_EQ(before.size(), after.size());
		for (size_t i = 0; i < before.size(); i++)
			EXPECT_EQ(before[i].dma_addr, after[i].dma_addr);
		EXPECT_EQ(1u, device.stats().aborted);
		EXPECT_EQ(0u, device.stats().moves);
		EXPECT_EQ(desc.size, device.stats().memory_used);
		importer.release();
		EXPECT_EQ(0, device.tryAlloc(512 << 10))
			<< "late, and nobody minds: " << device.why();
		/* and it can be moved again */
		ASSERT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
		EXPECT_EQ(0, device.finishMove(desc.handle).result);
		EXPECT_TRUE(intact(device, desc));
		EXPECT_EQ(0u, device.stats().violations + device.stats().quarantined);
	}
}

/* On the way back there is no deadline: both places are charged until the importer lets go. */
TEST(Move, GivenATicketThatDoesNotComeOnTheWayBackThenBothPlacesStayCharged)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(512 << 10);
	fill(desc);
	device.attached(desc.handle);
	Holder importer(device, 3); /* keeps the fourth, and the first one back */
	auto request = slicedMove();
	request.deadline_ns = soon;
	ASSERT_EQ(0, device.move(desc.handle, request));
	device.await([&] { return importer.open() == 2; });
	EXPECT_EQ(1u, device.moveStatus(desc.handle).running);
	EXPECT_EQ(2 * desc.size, device.stats().memory_used);
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	device.await([&] {
		importer.release();
		return !device.moveStatus(desc.handle).running;
	});
	EXPECT_EQ(-ETIMEDOUT, device.finishMove(desc.handle).result);
	EXPECT_EQ(desc.size, device.stats().memory_used);
	EXPECT_TRUE(intact(device, desc));
	EXPECT_EQ(0, device.tryAlloc(512 << 10)) << device.why();
}

TEST(Move, GivenATicketThatDoesNotComeWhenWaitThenItIsWaitedFor)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	fill(desc);
	device.attached(desc.handle);
	Holder importer(device, 0, 1);
	auto request = slicedMove();
	request.deadline_ns = 1;
	request.past_deadline = PEERBUF_PAST_DEADLINE_WAIT;
	ASSERT_EQ(0, device.move(desc.handle, request));
	device.await([&] { return importer.open() == 1; });
	for (int i = 0; i < 100; i++) /* a hundred turns of the device's loop past the deadline */
		ASSERT_EQ(1u, device.moveStatus(desc.handle).running);
	EXPECT_EQ(1u, device.host.invalidated().size());
	importer.release();
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_TRUE(intact(device, desc));
}

TEST(Move, GivenATicketThatDoesNotComeWhenRevokeThenWhatIsHeldIsNeverUsedAgain)
{
	for (const bool letsGoInTheEnd : {false, true}) {
		SCOPED_TRACE(letsGoInTheEnd);
		RunningDevice running("hbm=1M,granularity=64K,profile=revokes");
		Device device("socket=" + running.path());
		const auto desc = device.alloc(256 << 10);
		const uint64_t token = device.attached(desc.handle);
		peerbuf_mapping m;
		ASSERT_EQ(0, device.map(token, 0, desc.size, &m));
		Holder importer(device, 1, letsGoInTheEnd ? 1 : SIZE_MAX);
		auto request = slicedMove();
		request.deadline_ns = soon;
		request.past_deadline = PEERBUF_PAST_DEADLINE_REVOKE;
		ASSERT_EQ(0, device.move(desc.handle, request));
		device.await([&] {
			const auto told = device.host.invalidated();
			return !told.empty() && told.back().inv.reason == PEERBUF_REASON_REVOKE;
		});
		const auto status = device.finishMove(desc.handle);
		EXPECT_EQ(-ETIMEDOUT, status.result);
		peerbuf_mapping late;
		EXPECT_ERRNO(ENODEV, device.map(token, 0, page, &late));
		const uint64_t lost = letsGoInTheEnd ? 0 : desc.size;
		if (!letsGoInTheEnd)
			device.await([&] { return device.stats().quarantined != 0; });
		EXPECT_EQ(lost, device.stats().quarantined);
		importer.release();
		device.slots.unmap(device.handle, token, &m);
		device.slots.detach(device.handle, token);
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
		EXPECT_TRUE(device.clean());
		EXPECT_EQ(lost, device.stats().quarantined) << "late is too late";
		EXPECT_EQ(0, device.tryAlloc((1 << 20) - lost)) << device.why();
		EXPECT_ERRNO(lost ? ENOMEM : 0, device.tryAlloc(1 << 20));
	}
}

TEST(Move, GivenAnImporterThatCannotStopThenItGoesBack)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	fill(desc);
	device.attached(desc.handle);
	size_t n = 0;
	device.host.onInvalidate = [&](uint64_t, const peerbuf_invalidate &) {
		return n++ == 2 ? -EIO : 0;
	};
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	const auto status = device.finishMove(desc.handle);
	EXPECT_EQ(-EIO, status.result);
	EXPECT_EQ(0u, status.moved);
	EXPECT_TRUE(intact(device, desc));
	EXPECT_EQ(device.host.invalidated().size(), device.host.resumed().size());
	EXPECT_EQ(0, device.tryAlloc(768 << 10)) << device.why();
}

/* ---- ends in the middle --------------------------------------------------------------------- */

TEST(Move, GivenARevokeInTheMiddleThenItEndsThere)
{
	Device device("hbm=1M,granularity=64K,profile=revokes");
	const auto desc = device.alloc(256 << 10);
	const uint64_t token = device.attached(desc.handle);
	Holder importer(device, 2);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	device.await([&] { return importer.open() == 1; });
	ASSERT_EQ(0, device.ops->revoke(device.handle, desc.handle)) << device.why();
	EXPECT_EQ(0u, device.moveStatus(desc.handle).running);
	EXPECT_EQ(-ENODEV, device.moveStatus(desc.handle).result);
	EXPECT_EQ(1u, device.stats().aborted);
	EXPECT_EQ(desc.size, device.stats().memory_used) << "it lies at two places, whole";
	device.await([&] { return importer.open() == 2; });
	EXPECT_EQ(PEERBUF_REASON_REVOKE, device.host.invalidated().back().inv.reason);
	importer.release();
	EXPECT_EQ(0u, device.stats().memory_used);
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();
	/* what was given to the other may come back, too */
	ASSERT_EQ(0, device.ops->restore(device.handle, desc.handle)) << device.why();
	const uint64_t fresh = device.attached(desc.handle);
	EXPECT_FALSE(segmentsOf(device, fresh, desc.size).empty());
	device.slots.detach(device.handle, fresh);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Move, GivenDetachAndFreeInTheMiddleThenEverythingComesBack)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	const uint64_t token = device.attached(desc.handle);
	Holder importer(device, 1);
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	device.await([&] { return importer.open() == 1; });
	device.slots.detach(device.handle, token);
	EXPECT_EQ(1u, device.moveStatus(desc.handle).running) << "the application still has it";
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();
	importer.release();
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << "a late ticket: " << device.why();
	EXPECT_TRUE(device.clean());
}

TEST(Move, GivenTheDeviceGoesInTheMiddleThenItsUsersAreToldOnce)
{
	for (const bool killed : {false, true}) {
		SCOPED_TRACE(killed);
		RunningDevice running("hbm=1M,granularity=64K");
		running.expectDead();
		Device device("socket=" + running.path());
		const auto desc = device.alloc(256 << 10);
		const uint64_t token = device.attached(desc.handle);
		Holder importer(device, 1, 1);
		ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
		device.await([&] { return importer.open() == 1; });
		if (killed)
			running.process().kill(SIGKILL);
		else
			EXPECT_EQ(0, device.ops->remove(device.handle));
		EXPECT_EQ(killed ? -SIGKILL : 0, running.process().wait());
		EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
		const auto told = device.host.invalidated();
		EXPECT_EQ(1, std::count_if(told.begin(), told.end(), [](const auto &t) {
				  return t.inv.reason == PEERBUF_REASON_REVOKE;
			  }));
		importer.release();
		EXPECT_ERRNO(ENODEV, device.move(desc.handle, slicedMove()));
		device.slots.detach(device.handle, token);
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
		EXPECT_EQ(0u, device.stats().violations);
	}
}

TEST(Move, GivenTwoAtOnceThenTheirPausesOfOneClientDoNotMeet)
{
	constexpr uint64_t long_pause = 60'000'000'000; // so that a slow test changes nothing
	Device device("hbm=2M");
	const auto a = device.alloc(64 << 10);
	const auto b = device.alloc(64 << 10);
	device.attached(a.handle);
	device.attached(b.handle);
	auto request = slicedMove();
	request.max_pause_ns = long_pause;
	request.deadline_ns = 2 * long_pause;
	unsigned met = 0;
	device.host.onInvalidate = [&](uint64_t, const peerbuf_invalidate &) {
		met += device.host.resumed().size() + 1 != device.host.invalidated().size();
		return 0;
	};
	ASSERT_EQ(0, device.move(a.handle, request));
	ASSERT_EQ(0, device.move(b.handle, request));
	EXPECT_EQ(0, device.finishMove(a.handle).result);
	EXPECT_EQ(0, device.finishMove(b.handle).result);
	EXPECT_EQ(2u, device.host.invalidated().size());
	EXPECT_EQ(0u, met);
}

TEST(Move, GivenTwoNeighboursThenNeitherWaitsForTheOther)
{
	Device device("hbm=2M,granularity=64K");
	const auto a = device.alloc(512 << 10);
	const auto b = device.alloc(512 << 10);
	fill(a, 1);
	fill(b, 2);
	device.attached(a.handle);
	device.attached(b.handle);
	uint64_t kept = 0;
	device.host.onInvalidate = [&](uint64_t buffer, const peerbuf_invalidate &inv) {
		if (buffer != a.handle || kept)
			return 0;
		kept = inv.cookie;
		return -EINPROGRESS;
	};
	ASSERT_EQ(0, device.move(a.handle, slicedMove()));
	ASSERT_EQ(0, device.move(b.handle, slicedMove()));
	device.await([&] { return kept != 0; });
	EXPECT_EQ(0, device.finishMove(b.handle).result);
	EXPECT_EQ(1u, device.moveStatus(a.handle).running);
	EXPECT_TRUE(intact(device, b, 2));
	device.slots.invalidate_done(device.handle, a.handle, kept, 0);
	EXPECT_EQ(0, device.finishMove(a.handle).result);
	EXPECT_TRUE(intact(device, a, 1));
}

/* ---- faults --------------------------------------------------------------------------------- */

TEST(Move, GivenAStepBeforeTheFirstSliceFailsThenNobodyIsToldAndNothingIsTaken)
{
	for (const char *step : {"device.move", "device.frames", "device.populate"}) {
		SCOPED_TRACE(step);
		Device device("hbm=1M");
		const auto desc = device.alloc(256 << 10);
		fill(desc);
		device.attached(desc.handle);
		ASSERT_EQ(0, device.ops->fault(device.handle, step, 0, 1, -ENOMEM, 0))
			<< device.why();
		if (std::string(step) == "device.populate") {
			ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
			EXPECT_EQ(-ENOMEM, device.finishMove(desc.handle).result);
		} else {
			EXPECT_ERRNO(ENOMEM, device.move(desc.handle, slicedMove()));
			EXPECT_CONTAINS(device.why(), step);
		}
		EXPECT_TRUE(device.host.invalidated().empty());
		EXPECT_EQ(desc.size, device.stats().memory_used);
		EXPECT_EQ(0, device.tryAlloc(768 << 10)) << device.why();
		EXPECT_TRUE(intact(device, desc));
		ASSERT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
		EXPECT_EQ(0, device.finishMove(desc.handle).result);
	}
}

TEST(Move, GivenACopyFailsThenItGoesBackAndWhereItCannotItStaysWhole)
{
	for (const uint32_t failures : {1u, 2u}) {
		SCOPED_TRACE(failures);
		Device device("hbm=1M,granularity=64K");
		const auto desc = device.alloc(512 << 10);
		fill(desc);
		const uint64_t token = device.attached(desc.handle);
		ASSERT_EQ(0, device.ops->fault(device.handle, "device.copy", 3, failures, -EIO, 0));
		ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
		const auto status = device.finishMove(desc.handle);
		EXPECT_EQ(-EIO, status.result);
		/* the second failure is on the way back: no way out, and no byte lost */
		EXPECT_EQ(failures == 1 ? 0u : 3 * page, status.moved);
		EXPECT_TRUE(intact(device, desc));
		const auto told = device.host.invalidated();
		ASSERT_EQ(told.size(), device.host.resumed().size());
		EXPECT_FALSE(segmentsOf(device, token, desc.size).empty());
		EXPECT_EQ(desc.size, device.stats().memory_used);
		EXPECT_EQ(0, device.tryAlloc(512 << 10)) << device.why();
		ASSERT_EQ(0, device.move(desc.handle, slicedMove())) << device.why();
		EXPECT_EQ(0, device.finishMove(desc.handle).result);
		EXPECT_TRUE(intact(device, desc));
		EXPECT_EQ(0, device.tryAlloc(512 << 10)) << device.why();
	}
}

TEST(Move, GivenTheClientCannotMapTheNewPlaceThenItsImportersGetAnErrorAndNotBlankMemory)
{
	Device device("hbm=1M,granularity=64K");
	const auto desc = device.alloc(256 << 10);
	device.attached(desc.handle);
	ASSERT_EQ(0, device.ops->fault(device.handle, "client.place", 1, 1, -ENOMEM, 0));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	const auto told = device.host.invalidated();
	EXPECT_EQ(1, std::count_if(told.begin(), told.end(), [](const auto &t) {
			  return t.inv.reason == PEERBUF_REASON_REVOKE;
		  }));
	EXPECT_EQ(1u, device.host.log(PEERBUF_LOG_WARN).size());
}

TEST(Move, GivenMemoryThatWasLeftOrFreedThenWhoGetsItSeesZeroes)
{
	Device device("hbm=1M,tenant_pins=1M");
	const auto first = device.alloc(512 << 10);
	fill(first);
	ASSERT_EQ(0, device.move(first.handle, slicedMove()));
	ASSERT_EQ(0, device.finishMove(first.handle).result);
	EXPECT_TRUE(intact(device, first));
	const std::vector<uint8_t> zeroes(512 << 10);
	const auto left = device.alloc(512 << 10);
	EXPECT_EQ(zeroes, device.deviceBytes(left.handle, 0, left.size)) << "left by a move";
	ASSERT_EQ(0, device.slots.free(device.handle, first.handle));
	const auto freed = device.alloc(512 << 10);
	EXPECT_EQ(zeroes, device.deviceBytes(freed.handle, 0, freed.size)) << "freed";
	EXPECT_EQ(0, std::memcmp(reinterpret_cast<const void *>(freed.address), zeroes.data(),
				 zeroes.size()));
}

TEST(Move, GivenTheSameSeedThenTheSamePlaces)
{
	std::vector<uint64_t> places[2];
	for (auto &list : places) {
		Device device("hbm=4M,seed=99");
		const auto desc = device.alloc(300 << 10);
		const uint64_t token = device.attached(desc.handle);
		for (int i = 0; i < 3; i++) {
			ASSERT_EQ(0, device.move(desc.handle, slicedMove()));
			EXPECT_EQ(0, device.finishMove(desc.handle).result);
			for (const auto &segment : segmentsOf(device, token, desc.size))
				list.push_back(segment.dma_addr);
		}
	}
	EXPECT_EQ(places[0], places[1]);
}

} // namespace peerbuf::emulated::test
