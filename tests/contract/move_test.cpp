// SPDX-License-Identifier: BSD-3-Clause
// Move_: memory changes its place under a live region, and peers notice nothing but a clock.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "pair_test.h"
#include "support/seed.h"

namespace peerbuf::contract
{

namespace
{

constexpr uint64_t page = 0x1000;

class Move_ : public PairTest
{
protected:
	void SetUp() override
	{
		PairTest::SetUp();
		if (!HasFatalFailure())
			NEEDS_MOVES();
	}

	/** A filled buffer, registered as a whole. */
	void open(uint64_t size = 0x40000)
	{
		buffer_ = filledBuffer(size);
		bytes_ = test::pattern(0, buffer_.size);
		ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_));
		region_ = world().region(reg_);
	}

	/** One write or read of a peer, somewhere. What is read must be what was written last. */
	void someTraffic()
	{
		if (HasFatalFailure())
			return; // it says enough
		const uint64_t length = 1 + random_() % (3 * page);
		const uint64_t offset = random_() % (buffer_.size - length + 1);
		if (random_() % 2) {
			const std::vector<uint8_t> data = test::pattern(0, length, random_());
			ASSERT_EQ(0, peerWrite(region_, offset, data.data(), length));
			std::copy(data.begin(), data.end(),
				  bytes_.begin() + static_cast<ptrdiff_t>(offset));
		} else {
			std::vector<uint8_t> seen(length);
			ASSERT_EQ(0, peerRead(region_, offset, seen.data(), length));
			ASSERT_EQ(0, memcmp(seen.data(), bytes_.data() + offset, length))
				<< "stale at " << offset << ", +" << length;
		}
		transfers_++;
	}

	/** Both sides see what was written last. */
	void expectBytes()
	{
		EXPECT_TRUE(deviceBytes(buffer_, 0, buffer_.size) == bytes_) << "bytes were lost";
		std::vector<uint8_t> seen(buffer_.size);
		ASSERT_EQ(0, peerRead(region_, 0, seen.data(), seen.size()));
		EXPECT_TRUE(seen == bytes_) << "a peer sees other bytes than the device";
		// and what the device writes now is what the peer sees next
		const std::vector<uint8_t> fresh = test::pattern(0, page, random_());
		setDeviceBytes(buffer_, 0, fresh);
		std::copy(fresh.begin(), fresh.end(), bytes_.begin());
		ASSERT_EQ(0, peerRead(region_, 0, seen.data(), page));
		EXPECT_TRUE(std::equal(fresh.begin(), fresh.end(), seen.begin()))
			<< "a peer still reads the old place";
	}

	/** The peer's view of the region is as it was. */
	void expectSameRegion()
	{
		const RegionInfo now = world().region(reg_);
		EXPECT_EQ(region_.key64, now.key64);
		EXPECT_EQ(region_.lkey, now.lkey);
		EXPECT_EQ(region_.rkey, now.rkey);
		EXPECT_EQ(region_.remote_base, now.remote_base);
		EXPECT_EQ(region_.native, now.native);
		EXPECT_EQ(region_.desc, now.desc);
		ASSERT_EQ(region_.raw_key_size, now.raw_key_size);
		EXPECT_EQ(0, memcmp(region_.raw_key, now.raw_key, region_.raw_key_size));
		EXPECT_EQ(0u, now.revoked);
	}

	bool whole() const
	{
		return GetParam().importer_offer.invalidate_scope == PEERBUF_SCOPE_WHOLE;
	}

	uint64_t generation()
	{
		peerbuf_buffer_info info = {};
		info.struct_size = sizeof(info);
		EXPECT_PB_OK(peerbuf_query_buffer(world().ctx(), buffer_.id, &info));
		return info.generation;
	}

	/**
	 * A move that is under way until this process has done something about it: its next slice
	 * waits to be acknowledged, or its only one for the end of CPU access.
	 */
	void beginMove()
	{
		MoveWish wish;
		wish.past_deadline = PEERBUF_PAST_DEADLINE_WAIT;
		if (whole()) {
			ASSERT_NE(nullptr, buffer_.address);
			ASSERT_PB_OK(peerbuf_cpu_begin(world().ctx(), buffer_.id, 0));
			held_ = true;
		}
		ASSERT_EQ(0, startMove(buffer_, wish));
		const size_t slices = whole() ? 1 : 3;
		EXPECT_TRUE(world().progressUntil(
			[&] { return countEvents(events_, PEERBUF_EVENT_SUSPENDED) >= slices; },
			&events_));
		EXPECT_EQ(1u, moveStatus(buffer_).running);
	}
	void letMoveGo()
	{
		if (held_) {
			EXPECT_PB_OK(peerbuf_cpu_end(world().ctx(), buffer_.id));
		}
		held_ = false;
	}

	/* a transfer that the test steps, so that it is half way when something happens */
	void postWrite(uint64_t offset, std::vector<uint8_t> &data)
	{
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.op = PEERBUF_TRANSFER_WRITE;
		transfer.key64 = region_.key64;
		transfer.remote_addr = region_.remote_base + offset;
		transfer.data = data.data();
		transfer.length = data.size();
		transfer.context = ++posted_;
		ASSERT_EQ(0, importer().ops->post(importer().device, &transfer));
	}
	/** Post a write of the first bytes of a page whose packet has left the peer, not landed. */
	void flyingWrite(uint64_t offset, std::vector<uint8_t> &data)
	{
		postWrite(offset, data);
		// its translation is asked for, then the packet is fetched
		const uint64_t refaults = importer().stats().refaults;
		ASSERT_EQ(1, importer().ops->step(importer().device, 1));
		if (importer().stats().refaults != refaults) {
			ASSERT_EQ(1, importer().ops->step(importer().device, 1));
		}
		ASSERT_EQ(1u, importer().stats().in_flight);
		std::copy(data.begin(), data.end(),
			  bytes_.begin() + static_cast<ptrdiff_t>(offset));
	}
	/** Whatever flies lands, and was told to be well. */
	void landAll()
	{
		while (importer().ops->step(importer().device, 1) > 0) {
		}
		peerbuf_completion completion = {};
		completion.struct_size = sizeof(completion);
		while (importer().ops->poll(importer().device, &completion) == 1) {
			EXPECT_EQ(0, completion.status) << test::errnoName(completion.status);
			EXPECT_EQ(page / 2, completion.bytes);
			completed_++;
		}
		EXPECT_EQ(posted_, completed_);
	}

	testing::ScopedTrace replay_{__FILE__, __LINE__,
				     std::string(test::seed_variable) + "=" +
					     std::to_string(test::seed())};
	std::mt19937_64 random_{test::seed()};
	Buffer buffer_;
	peerbuf_reg_t reg_ = 0;
	RegionInfo region_ = {};
	std::vector<uint8_t> bytes_;
	std::vector<peerbuf_event> events_;
	unsigned transfers_ = 0;
	uint64_t posted_ = 0;
	uint64_t completed_ = 0;
	bool held_ = false;
};

#define NEEDS_STEPS()                                                                              \
	do {                                                                                       \
		NEEDS_IMPORTER_OP(post);                                                           \
		NEEDS_IMPORTER_OP(step);                                                           \
		NEEDS_IMPORTER_OP(poll);                                                           \
		NEEDS_IMPORTER_OP(stats);                                                          \
	} while (false)

/* ---- peers notice nothing ------------------------------------------------------------------ */

TEST_P(Move_, GivenTransfersBeforeDuringAndAfterThenEveryByteIsRightAndTheRegionTheSame)
{
	NEEDS_PEER();
	open();
	for (int i = 0; i < 8; i++)
		someTraffic();
	for (int move = 0; move < 4 && !HasFatalFailure(); move++) {
		ASSERT_EQ(0, startMove(buffer_, {}));
		const peerbuf_move_status status =
			endMove(buffer_, &events_, [this] { someTraffic(); });
		EXPECT_EQ(0, status.result) << test::errnoName(status.result);
		EXPECT_EQ(buffer_.size, status.moved);
		for (int i = 0; i < 4; i++)
			someTraffic();
	}
	expectBytes();
	expectSameRegion();
	EXPECT_EQ(4u, exporter().stats().moves);
	EXPECT_EQ(0u, exporter().stats().quarantined);
	RecordProperty("transfers", static_cast<int>(transfers_));
}

TEST_P(Move_, GivenSlicesThenEachIsSuspendedAndResumedOnceAndTheGenerationGrows)
{
	open(0x20000);
	if (peer()) {
		std::vector<uint8_t> seen(buffer_.size); // so that there is something to stop
		ASSERT_EQ(0, peerRead(region_, 0, seen.data(), seen.size()));
	}
	const uint64_t before = generation();
	ASSERT_EQ(0, startMove(buffer_, {}));
	const peerbuf_move_status status = endMove(buffer_, &events_);
	EXPECT_EQ(0, status.result);
	// as small as they can be, unless the importer has to be stopped as a whole
	const uint64_t slices = whole() ? 1 : buffer_.size / exporter().offer.granularity;
	EXPECT_EQ(slices, status.slices);
	EXPECT_EQ(slices, countEvents(events_, PEERBUF_EVENT_SUSPENDED, reg_));
	EXPECT_EQ(slices, countEvents(events_, PEERBUF_EVENT_RESUMED, reg_));
	EXPECT_EQ(events_.size(), 2 * slices);
	uint64_t last = before;
	uint64_t covered = 0;
	for (const peerbuf_event &event : events_) {
		if (event.type == PEERBUF_EVENT_SUSPENDED) {
			EXPECT_LT(0u, event.expected_ns) << "the pause is announced";
			EXPECT_EQ(last, event.generation) << "of the place that is left";
			continue;
		}
		EXPECT_LT(last, event.generation);
		last = event.generation;
		EXPECT_EQ(covered, event.offset);
		covered += event.length;
	}
	EXPECT_EQ(buffer_.size, covered);
	EXPECT_EQ(last, generation());
	EXPECT_EQ(last, world().regInfo(reg_).generation);
}

TEST_P(Move_, GivenTwoRegionsThenOnlyTheOneThatIsTouchedIsStopped)
{
	NEEDS(!whole(), "the importer is stopped as a whole");
	open(0x20000);
	peerbuf_reg_t part = 0;
	ASSERT_PB_OK(registerRange(buffer_, 0x8000, page, &part));
	ASSERT_EQ(0, startMove(buffer_, {}));
	EXPECT_EQ(0, endMove(buffer_, &events_).result);
	EXPECT_EQ(buffer_.size / exporter().offer.granularity,
		  countEvents(events_, PEERBUF_EVENT_SUSPENDED, reg_));
	EXPECT_EQ(1u, countEvents(events_, PEERBUF_EVENT_SUSPENDED, part));
	EXPECT_EQ(1u, countEvents(events_, PEERBUF_EVENT_RESUMED, part));
}

TEST_P(Move_, GivenTwoBuffersThatMoveAtOnceThenBothArrive)
{
	NEEDS_PEER();
	open();
	const Buffer other = filledBuffer(0x20000, 7);
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(other, 0, other.size, &reg));
	ASSERT_EQ(0, startMove(buffer_, {}));
	ASSERT_EQ(0, startMove(other, {}));
	EXPECT_EQ(-EBUSY, startMove(other, {})) << "it is on its way";
	EXPECT_EQ(0, endMove(buffer_, &events_, [this] { someTraffic(); }).result);
	EXPECT_EQ(0, endMove(other, &events_).result);
	expectBytes();
	std::vector<uint8_t> seen(other.size);
	ASSERT_EQ(0, peerRead(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_TRUE(seen == test::pattern(0, other.size, 7));
}

TEST_P(Move_, GivenNoRoomAtTheDestinationThenNothingWasSuspended)
{
	open();
	NEEDS(exporter().offer.memory_size != 0, "the exporter does not say how much it has");
	// whatever is left is less than the buffer needs
	const uint64_t left = exporter().offer.memory_size - exporter().stats().memory_used;
	NEEDS(left > buffer_.size && left < (uint64_t{1} << 30), "its memory is too large to fill");
	const Buffer ballast = world().alloc(exporter(), left - buffer_.size + page);
	ASSERT_NE(0u, ballast.id);
	EXPECT_EQ(-ENOMEM, startMove(buffer_, {}));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_TRUE(world().events().empty());
	EXPECT_PB_OK(world().free(ballast));
	EXPECT_EQ(0, startMove(buffer_, {}));
	EXPECT_EQ(0, endMove(buffer_, &events_).result);
}

TEST_P(Move_, GivenCpuAccessThenTheMoveWaitsForItsEnd)
{
	open();
	NEEDS(buffer_.address != nullptr, "the exporter's memory has no address here");
	constexpr uint64_t patience = 20'000'000'000;
	ASSERT_PB_OK(peerbuf_cpu_begin(world().ctx(), buffer_.id, patience));
	MoveWish wish;
	wish.past_deadline = PEERBUF_PAST_DEADLINE_WAIT;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events_, PEERBUF_EVENT_SUSPENDED) > 0; }, &events_));
	EXPECT_EQ(0u, moveStatus(buffer_).moved);
	const std::vector<uint8_t> fresh = test::pattern(0, buffer_.size, 3);
	memcpy(buffer_.address, fresh.data(), fresh.size());
	bytes_ = fresh;
	EXPECT_PB_OK(peerbuf_cpu_end(world().ctx(), buffer_.id));
	EXPECT_EQ(0, endMove(buffer_, &events_, [&] {
			     if (peerbuf_cpu_begin(world().ctx(), buffer_.id, patience) < 0)
				     return;
			     EXPECT_EQ(0, memcmp(buffer_.address, bytes_.data(), bytes_.size()));
			     EXPECT_PB_OK(peerbuf_cpu_end(world().ctx(), buffer_.id));
		     }).result);
	EXPECT_EQ(0, memcmp(buffer_.address, bytes_.data(), bytes_.size()))
		<< "the address shows the new place";
	EXPECT_TRUE(deviceBytes(buffer_, 0, buffer_.size) == bytes_);
}

/* ---- what is in flight --------------------------------------------------------------------- */

TEST_P(Move_, Rule50_GivenAPacketInFlightThenItsMemoryIsHeldUntilItHasLanded)
{
	NEEDS_STEPS();
	open();
	std::vector<uint8_t> data = test::pattern(0, page / 2, 21);
	flyingWrite(0x3000, data);
	if (HasFatalFailure())
		return;
	MoveWish wish;
	wish.past_deadline = PEERBUF_PAST_DEADLINE_WAIT;
	ASSERT_EQ(0, startMove(buffer_, wish));
	// as far as the slice that waits for the packet
	EXPECT_TRUE(world().progressUntil(
		[&] {
			return countEvents(events_, PEERBUF_EVENT_SUSPENDED) >
			       (whole() ? 0u : 0x3000u / exporter().offer.granularity);
		},
		&events_));
	for (int i = 0; i < 4; i++) // it goes no further, however often it is asked
		EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(1u, moveStatus(buffer_).running);
	EXPECT_EQ(whole() ? 0
			  : 0x3000 / exporter().offer.granularity * exporter().offer.granularity,
		  moveStatus(buffer_).moved);
	landAll();
	EXPECT_EQ(0, endMove(buffer_, &events_).result);
	expectBytes();
	EXPECT_EQ(0u, importer().stats().violations);
}

TEST_P(Move_, GivenPacketsInFlightAllTheTimeThenNoneIsLostOrLandsInTheWrongPlace)
{
	NEEDS_STEPS();
	open();
	std::vector<std::vector<uint8_t>> flying(1); // what the engine may still read
	const auto traffic = [&] {
		if (flying.size() < 4000 && random_() % 3 == 0) {
			// each place once, so that the order of two writes does not matter
			const uint64_t slot = posted_ % (buffer_.size / (page / 2));
			if (slot == 0)
				landAll();
			flying.push_back(test::pattern(0, page / 2, random_()));
			std::vector<uint8_t> &data = flying.back();
			const uint64_t offset = slot * (page / 2);
			postWrite(offset, data);
			std::copy(data.begin(), data.end(),
				  bytes_.begin() + static_cast<ptrdiff_t>(offset));
		}
		importer().ops->step(importer().device, 1 + random_() % 4);
		peerbuf_completion completion = {};
		completion.struct_size = sizeof(completion);
		while (importer().ops->poll(importer().device, &completion) == 1) {
			EXPECT_EQ(0, completion.status);
			completed_++;
		}
	};
	flying.reserve(4001); // whoever grows it moves the vectors, not their bytes
	for (int move = 0; move < 3 && !HasFatalFailure(); move++) {
		ASSERT_EQ(0, startMove(buffer_, {}));
		const peerbuf_move_status status = endMove(buffer_, &events_, traffic);
		EXPECT_EQ(0, status.result) << test::errnoName(status.result);
	}
	landAll();
	expectBytes();
	EXPECT_EQ(0u, importer().stats().violations);
	EXPECT_EQ(0u, importer().stats().in_flight);
	expectSameRegion();
}

/* The control that must fail: without the protocol the damage is certain. */
TEST_P(Move_, GivenNobodyIsToldThenAWriteIsLost)
{
	NEEDS_STEPS();
	open();
	std::vector<uint8_t> data = test::pattern(0, page / 2, 23);
	flyingWrite(0x3000, data);
	if (HasFatalFailure())
		return;
	MoveWish wish;
	wish.flags = PEERBUF_MOVE_NO_NOTIFY;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_EQ(0, endMove(buffer_, &events_).result);
	EXPECT_TRUE(events_.empty());
	landAll(); // it is told to be well
	EXPECT_NE(data, deviceBytes(buffer_, 0x3000, data.size())) << "nothing was at stake";
}

/* ---- deadlines ------------------------------------------------------------------------------ */

TEST_P(Move_, Rule51_GivenAnImporterThatDoesNotLetGoThenTheMoveIsRolledBackAtItsDeadline)
{
	NEEDS_STEPS();
	NEEDS_PEER();
	open();
	std::vector<uint8_t> data = test::pattern(0, page / 2, 25);
	flyingWrite(0x8000, data);
	if (HasFatalFailure())
		return;
	MoveWish wish;
	wish.deadline_ns = 20'000'000;
	const uint64_t used = exporter().stats().memory_used;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_EQ(used + buffer_.size, exporter().stats().memory_used) << "both places are charged";
	const peerbuf_move_status status = endMove(buffer_, &events_);
	EXPECT_EQ(-ETIMEDOUT, status.result) << test::errnoName(status.result);
	EXPECT_EQ(0u, status.moved) << "it is where it was";
	// out, as far as the one that did not let go, and back by the same protocol
	EXPECT_EQ(whole() ? 1 : 2 * (0x8000 / exporter().offer.granularity) + 1,
		  countEvents(events_, PEERBUF_EVENT_SUSPENDED, reg_));
	EXPECT_EQ(1u, exporter().stats().aborted);
	EXPECT_EQ(used, exporter().stats().memory_used) << "the destination was given back";
	EXPECT_EQ(0u, exporter().stats().quarantined);

	landAll(); // its late ticket is dropped
	for (int i = 0; i < 16; i++)
		someTraffic();
	expectBytes();
	expectSameRegion();
	EXPECT_EQ(0u, importer().stats().violations);
	// and the next move is as good as any
	ASSERT_EQ(0, startMove(buffer_, {}));
	EXPECT_EQ(0, endMove(buffer_, &events_, [this] { someTraffic(); }).result);
	expectBytes();
}

TEST_P(Move_, GivenADeadlineThatRevokesThenTheMemoryIsTakenBackAndKeptFromOthers)
{
	NEEDS_STEPS();
	NEEDS(exporter().offer.revoke == PEERBUF_REVOKE_MAY, "the exporter never revokes");
	open();
	std::vector<uint8_t> data = test::pattern(0, page / 2, 27);
	flyingWrite(0x8000, data);
	if (HasFatalFailure())
		return;
	MoveWish wish;
	wish.deadline_ns = 500'000'000; // and as long again until what is held goes to quarantine
	wish.past_deadline = PEERBUF_PAST_DEADLINE_REVOKE;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events_, PEERBUF_EVENT_REVOKED, reg_) > 0; }, &events_));
	EXPECT_EQ(-ETIMEDOUT, moveStatus(buffer_).result);
	EXPECT_EQ(1u, world().regInfo(reg_).revoked);
	// nobody gets what the packet is still going to hit
	const Buffer next = filledBuffer(0x40000, 9);
	drainImporter();
	EXPECT_TRUE(deviceBytes(next, 0, next.size) == test::pattern(0, next.size, 9));
	EXPECT_EQ(0u, importer().stats().violations);
	EXPECT_PB_OK(world().deregister(reg_));
	EXPECT_TRUE(world().progressUntil([&] { return world().nothingHeld(); }));
}

/* ---- at a bad moment ------------------------------------------------------------------------ */

TEST_P(Move_, GivenARegistrationDuringAMoveThenItSeesTheMemoryWhereItIs)
{
	NEEDS_PEER();
	open();
	for (int i = 0; i < 8; i++) {
		ASSERT_EQ(0, startMove(buffer_, {}));
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer_, 0x1000, 0x8000, &reg));
		std::vector<uint8_t> seen(0x8000);
		EXPECT_EQ(0, peerRead(world().region(reg), 0, seen.data(), seen.size()));
		EXPECT_EQ(0, memcmp(seen.data(), bytes_.data() + 0x1000, seen.size()));
		EXPECT_PB_OK(world().deregister(reg));
		// the events of one that came or went half way need not be balanced
		EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
		EXPECT_EQ(0, moveStatus(buffer_).result);
	}
	expectBytes();
}

TEST_P(Move_, GivenRegistrationsOfAnotherThreadThenMovesAndTheyPassEachOther)
{
	NEEDS_PEER();
	open();
	std::atomic<bool> stop = false;
	std::atomic<int> registered = 0;
	std::thread registering([&] {
		while (!stop) {
			peerbuf_source source = {};
			source.struct_size = sizeof(source);
			source.fd = -1;
			source.buffer = buffer_.id;
			source.offset = 0x2000;
			source.length = 0x10000;
			peerbuf_reg_t reg = 0;
			const peerbuf_importer_t id = importer().id;
			EXPECT_PB_OK(peerbuf_register(world().ctx(), &source, &id, 1, usual_access,
						      nullptr, &reg));
			EXPECT_PB_OK(peerbuf_deregister(world().ctx(), reg));
			registered++;
		}
	});
	int moves = 0;
	EXPECT_TRUE(world().progressUntil([&] {
		if (moveStatus(buffer_).running)
			return false;
		EXPECT_EQ(0, moveStatus(buffer_).result);
		if (moves >= 8 && registered >= 8)
			return true;
		EXPECT_EQ(0, startMove(buffer_, {}));
		moves++;
		return false;
	})) << moves
	    << " moves, " << registered << " registrations";
	stop = true;
	registering.join();
	EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
	expectBytes();
}

TEST_P(Move_, GivenAStepOfARegistrationThatTakesLongWhenItMovesThenBothSucceed)
{
	NEEDS_PEER();
	NEEDS_EXPORTER_OP(fault);
	open();
	for (const char *step : {"attach", "map", "detach"}) {
		SCOPED_TRACE(step);
		constexpr uint64_t delay_ns = 20'000'000;
		const int known = exporter().ops->fault(exporter().device, step, 0, 1, 0, delay_ns);
		if (known != 0)
			continue;
		std::thread registering([&] {
			peerbuf_reg_t reg = 0;
			ASSERT_PB_OK(registerRange(buffer_, 0x1000, 0x8000, &reg));
			EXPECT_PB_OK(world().deregister(reg));
		});
		EXPECT_EQ(0, startMove(buffer_, {}));
		EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
		registering.join();
		EXPECT_EQ(0, exporter().ops->fault(exporter().device, step, 0, 0, 0, 0));
		EXPECT_EQ(0, moveStatus(buffer_).result);
	}
	expectBytes();
}

TEST_P(Move_, GivenDeregisterDuringAMoveThenTheMoveGoesOn)
{
	open();
	ASSERT_NO_FATAL_FAILURE(beginMove());
	EXPECT_PB_OK(world().deregister(reg_));
	EXPECT_TRUE(world().nothingHeld());
	letMoveGo();
	EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
	EXPECT_EQ(0, moveStatus(buffer_).result);
	EXPECT_TRUE(deviceBytes(buffer_, 0, buffer_.size) == bytes_);
}

TEST_P(Move_, GivenDeregisterWhileAPacketHoldsTheMoveThenTheMoveGoesOn)
{
	NEEDS_STEPS();
	open();
	std::vector<uint8_t> data = test::pattern(0, page / 2, 29);
	flyingWrite(0, data);
	if (HasFatalFailure())
		return;
	MoveWish wish;
	wish.past_deadline = PEERBUF_PAST_DEADLINE_WAIT;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events_, PEERBUF_EVENT_SUSPENDED) > 0; }, &events_));
	EXPECT_PB_OK(world().deregister(reg_)); // lands it
	EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
	EXPECT_EQ(0, moveStatus(buffer_).result);
	EXPECT_TRUE(deviceBytes(buffer_, 0, buffer_.size) == bytes_);
	drainImporter();
}

TEST_P(Move_, GivenTheContextClosesDuringAMoveThenItClosesWhole)
{
	open();
	ASSERT_NO_FATAL_FAILURE(beginMove());
	world().closeAtOnce();
}

TEST_P(Move_, GivenARevokeDuringAMoveThenItEndsRevokedAndNothingIsLeft)
{
	NEEDS_EXPORTER_OP(revoke);
	NEEDS(exporter().offer.revoke == PEERBUF_REVOKE_MAY, "the exporter never revokes");
	open();
	const uint64_t used = exporter().stats().memory_used;
	ASSERT_NO_FATAL_FAILURE(beginMove());
	EXPECT_EQ(0, exporter().ops->revoke(exporter().device, buffer_.handle));
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events_, PEERBUF_EVENT_REVOKED, reg_) > 0; }, &events_));
	EXPECT_EQ(1u, countEvents(events_, PEERBUF_EVENT_REVOKED, reg_));
	letMoveGo();
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(0u, moveStatus(buffer_).running);
	EXPECT_NE(0, moveStatus(buffer_).result);
	EXPECT_EQ(-ENODEV, startMove(buffer_, {}));
	EXPECT_GE(used, exporter().stats().memory_used) << "one place is enough";
	EXPECT_PB_ERROR(peerbuf_cpu_begin(world().ctx(), buffer_.id, 0), -ENODEV,
			PEERBUF_ERR_REVOKED);
	if (peer() && peer()->whyNoRefusals().empty()) {
		uint8_t byte = 0;
		EXPECT_GT(0, peer()->read(region_, 0, &byte, 1));
	}
	EXPECT_PB_OK(world().deregister(reg_));
	EXPECT_TRUE(world().nothingHeld());
	if (HAS_OP(exporter().ops, restore)) {
		restore(buffer_);
		peerbuf_reg_t again = 0;
		EXPECT_PB_OK(registerRange(buffer_, 0, buffer_.size, &again));
		events_.clear();
		EXPECT_EQ(0, startMove(buffer_, {}));
		EXPECT_EQ(0, endMove(buffer_, &events_).result);
	}
}

TEST_P(Move_, GivenTheDeviceDiesDuringAMoveThenReportedAndNothingHangs)
{
	NEEDS(exporter().process != 0, "the device is no child process of this one");
	open();
	ASSERT_NO_FATAL_FAILURE(beginMove());
	exporter().gone = true;
	EXPECT_EQ(0, kill(exporter().process, SIGKILL));
	EXPECT_TRUE(world().progressUntil(
		[&] {
			return countEvents(events_, PEERBUF_EVENT_DEVICE_GONE) > 0 &&
			       countEvents(events_, PEERBUF_EVENT_REVOKED, reg_) > 0;
		},
		&events_));
	EXPECT_EQ(1u, world().regInfo(reg_).revoked);
	letMoveGo();
	EXPECT_PB_ERROR(peerbuf_cpu_begin(world().ctx(), buffer_.id, 20'000'000'000), -ENODEV,
			PEERBUF_ERR_DEVICE_GONE);
	EXPECT_PB_OK(world().deregister(reg_));
	EXPECT_TRUE(world().nothingHeld());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Move_);
INSTANTIATE_TEST_SUITE_P(Pairs, Move_, testing::ValuesIn(movablePairs()), pairName);

/* ---- two tiers ------------------------------------------------------------------------------ */

class MoveEvict_ : public Move_
{
protected:
	/** Whether the importer finds the memory again wherever it is. */
	bool follows() const
	{
		return (GetParam().exporter_offer.handles & GetParam().importer_offer.handles &
			PEERBUF_HANDLE_SEGMENTS) != 0;
	}
};

TEST_P(MoveEvict_, GivenEvictedMemoryWhenAPeerComesThenItIsBroughtBack)
{
	NEEDS_PEER();
	open();
	MoveWish out;
	out.placement = PEERBUF_PLACEMENT_HOST;
	if (!follows()) { // it has an address, which must stay in reach of the peers
		EXPECT_EQ(-EBUSY, startMove(buffer_, out));
		return;
	}
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, startMove(buffer_, out));
		const peerbuf_move_status status = endMove(buffer_, &events_);
		EXPECT_EQ(0, status.result);
		EXPECT_EQ(PEERBUF_PLACEMENT_HOST, status.placement);
		for (int t = 0; t < 8; t++)
			someTraffic();
		EXPECT_TRUE(world().progressUntil([&] { return !moveStatus(buffer_).running; }));
		EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, moveStatus(buffer_).placement);
	}
	expectBytes();
	expectSameRegion();
	EXPECT_EQ(3u, exporter().stats().evictions);
	EXPECT_EQ(3u, exporter().stats().refaults);
}

TEST_P(MoveEvict_, GivenAPolicyThatAllowsTheHostThenItIsUsedWhereItIs)
{
	NEEDS_PEER();
	buffer_ = filledBuffer(0x40000);
	bytes_ = test::pattern(0, buffer_.size);
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.host_placement_ok = 1;
	ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_, usual_access, &policy));
	region_ = world().region(reg_);
	for (const uint32_t place : {PEERBUF_PLACEMENT_HOST, PEERBUF_PLACEMENT_DEVICE}) {
		MoveWish wish;
		wish.placement = place;
		ASSERT_EQ(0, startMove(buffer_, wish));
		EXPECT_EQ(0, endMove(buffer_, &events_, [this] { someTraffic(); }).result);
		for (int t = 0; t < 4; t++)
			someTraffic();
		EXPECT_EQ(place, moveStatus(buffer_).placement);
	}
	expectBytes();
	EXPECT_EQ(1u, exporter().stats().evictions);
	EXPECT_EQ(0u, exporter().stats().refaults);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MoveEvict_);
INSTANTIATE_TEST_SUITE_P(Pairs, MoveEvict_, testing::ValuesIn(evictingPairs()), pairName);

/* ---- importers that cannot follow ----------------------------------------------------------- */

class MoveFixed_ : public Move_
{
};

TEST_P(MoveFixed_, GivenAPinnedRegionThenAMoveIsBusyUntilItEnds)
{
	open();
	EXPECT_EQ(-EBUSY, startMove(buffer_, {}));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_TRUE(world().events().empty()) << "nobody was disturbed";
	if (peer()) {
		std::vector<uint8_t> seen(page);
		EXPECT_EQ(0, peerRead(region_, 0, seen.data(), seen.size()));
		EXPECT_EQ(0, memcmp(seen.data(), bytes_.data(), seen.size()));
	}
	EXPECT_PB_OK(world().deregister(reg_));
	ASSERT_EQ(0, startMove(buffer_, {}));
	EXPECT_EQ(0, endMove(buffer_, &events_).result);
	EXPECT_TRUE(deviceBytes(buffer_, 0, buffer_.size) == bytes_);
	// at its new place it can be pinned as before
	ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_));
	EXPECT_EQ(-EBUSY, startMove(buffer_, {}));
	region_ = world().region(reg_);
	if (peer()) {
		std::vector<uint8_t> seen(buffer_.size);
		EXPECT_EQ(0, peerRead(region_, 0, seen.data(), seen.size()));
		EXPECT_TRUE(seen == bytes_);
	}
}

TEST_P(MoveFixed_, GivenARegistrationThatPinsDuringAMoveThenItWaitsForTheEnd)
{
	buffer_ = filledBuffer(0x40000);
	bytes_ = test::pattern(0, buffer_.size);
	for (int i = 0; i < 4; i++) {
		ASSERT_EQ(0, startMove(buffer_, {}));
		ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_));
		EXPECT_EQ(0u, moveStatus(buffer_).running) << "pinned under a move";
		EXPECT_EQ(0, moveStatus(buffer_).result);
		region_ = world().region(reg_);
		if (peer()) {
			std::vector<uint8_t> seen(buffer_.size);
			EXPECT_EQ(0, peerRead(region_, 0, seen.data(), seen.size()));
			EXPECT_TRUE(seen == bytes_);
		}
		EXPECT_PB_OK(world().deregister(reg_));
	}
}

TEST_P(MoveFixed_, GivenRekeyThenTheRegionFollowsWithNewKeys)
{
	NEEDS_PEER();
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.rekey_ok = 1;
	buffer_ = filledBuffer(0x40000);
	bytes_ = test::pattern(0, buffer_.size);
	ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_, usual_access, &policy));
	NEEDS(world().regInfo(reg_).flow == PEERBUF_FLOW_REKEY,
	      "there is a better flow than Rekey");
	for (int i = 0; i < 3; i++) {
		region_ = world().region(reg_);
		someTraffic();
		ASSERT_EQ(0, startMove(buffer_, {}));
		events_.clear();
		EXPECT_TRUE(world().progressUntil(
			[&] { return countEvents(events_, PEERBUF_EVENT_SUSPENDED, reg_) > 0; },
			&events_));
		someTraffic(); // the old key holds until the application says so
		ASSERT_PB_OK(peerbuf_rekey_ready(world().ctx(), reg_));
		EXPECT_EQ(0, endMove(buffer_, &events_).result);
		EXPECT_EQ(1u, countEvents(events_, PEERBUF_EVENT_REKEYED, reg_));
		const RegionInfo before = region_;
		region_ = world().region(reg_);
		EXPECT_NE(before.key64, region_.key64);
		expectBytes();
		if (peer()->whyNoRefusals().empty()) {
			uint8_t byte = 0;
			EXPECT_GT(0, peer()->read(before, 0, &byte, 1))
				<< "the old key still opens";
		}
	}
}

TEST_P(MoveFixed_, GivenRekeyAndAnApplicationThatNeverAnswersThenTheMoveIsGivenUp)
{
	NEEDS_PEER();
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.rekey_ok = 1;
	buffer_ = filledBuffer(0x40000);
	bytes_ = test::pattern(0, buffer_.size);
	ASSERT_PB_OK(registerRange(buffer_, 0, buffer_.size, &reg_, usual_access, &policy));
	NEEDS(world().regInfo(reg_).flow == PEERBUF_FLOW_REKEY,
	      "there is a better flow than Rekey");
	region_ = world().region(reg_);
	MoveWish wish;
	wish.deadline_ns = 20'000'000;
	ASSERT_EQ(0, startMove(buffer_, wish));
	EXPECT_EQ(-ETIMEDOUT, endMove(buffer_, &events_).result);
	EXPECT_EQ(0u, countEvents(events_, PEERBUF_EVENT_REKEYED));
	EXPECT_PB_ERROR(peerbuf_rekey_ready(world().ctx(), reg_), -EINVAL,
			PEERBUF_ERR_INVALID_ARGUMENT);
	expectSameRegion();
	expectBytes();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MoveFixed_);
INSTANTIATE_TEST_SUITE_P(Pairs, MoveFixed_, testing::ValuesIn(fixedPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
