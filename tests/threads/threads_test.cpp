// SPDX-License-Identifier: BSD-3-Clause
/*
 * Several threads of one application on one context, with the emulated pair: register, deregister,
 * use, revoke, progress. What a call may answer is a short list; at the end everything is back.
 * Runs under ThreadSanitizer as well. Every figure and every choice comes from a constant.
 */
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "contract/world.h"
#include "importer/fabric/domain_gate.h"
#include "support/watchdog.h"

namespace peerbuf::contract
{

namespace
{

using test::PluginSpec;

constexpr unsigned workers = 3;
constexpr unsigned iterations = 120;
constexpr unsigned revokes = 40;
constexpr unsigned moves = 40;
constexpr uint64_t gateRounds = 300;
constexpr uint64_t patience = 60'000'000'000; /* ns; longer is a thread that hangs */
constexpr uint64_t buffer_size = 0x40000;
constexpr unsigned watchdog_seconds = 240; /* a sanitizer makes it slow */

struct Pairing {
	const char *exporter;
	const char *importer;
	bool revokes;
};

void PrintTo(const Pairing &pairing, std::ostream *out)
{
	*out << pairing.exporter << " x " << pairing.importer;
}

class Threads : public testing::TestWithParam<Pairing>
{
protected:
	void SetUp() override
	{
		std::string why;
		exporter_ = world_.addExporter(*PluginSpec::parse(GetParam().exporter, &why));
		importer_ = world_.addImporter(*PluginSpec::parse(GetParam().importer, &why));
		ASSERT_NE(nullptr, exporter_);
		ASSERT_NE(nullptr, importer_);
		for (Buffer &buffer : buffers_) {
			buffer = world_.alloc(*exporter_, buffer_size);
			ASSERT_NE(0u, buffer.id);
		}
	}
	void TearDown() override { world_.close(); }

	int registerRange(const Buffer &buffer, uint64_t offset, uint64_t length,
			  peerbuf_reg_t *ret_reg)
	{
		peerbuf_source source = {};
		source.struct_size = sizeof(source);
		source.fd = -1;
		source.buffer = buffer.id;
		source.offset = offset;
		source.length = length;
		return peerbuf_register(world_.ctx(), &source, &importer_->id, 1, usual_access,
					nullptr, ret_reg);
	}

	/** Write and read back through the key. @return the first status that is not 0. */
	int use(const RegionInfo &region, unsigned worker)
	{
		std::array<uint8_t, 256> out;
		std::array<uint8_t, 256> in = {};
		out.fill(static_cast<uint8_t>(worker + 1));
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.key64 = region.key64;
		transfer.remote_addr = region.remote_base;
		transfer.length = out.size();
		transfer.op = PEERBUF_TRANSFER_WRITE;
		transfer.data = out.data();
		if (const int rc = importer_->ops->transfer(importer_->device, &transfer))
			return rc;
		transfer.op = PEERBUF_TRANSFER_READ;
		transfer.data = in.data();
		if (const int rc = importer_->ops->transfer(importer_->device, &transfer))
			return rc;
		// each worker has a range of its own, so nobody else can have written there
		EXPECT_EQ(out, in);
		return 0;
	}

	/** One worker: register its range of some buffer, use it, end it. */
	void work(unsigned worker)
	{
		std::mt19937 random(worker + 1); // NOLINT(cert-msc51-cpp): replays
		const uint64_t share = buffer_size / workers & ~uint64_t{0xFFF};
		for (unsigned i = 0; i < iterations; i++) {
			const Buffer &buffer = buffers_[random() % buffers_.size()];
			const uint64_t offset = worker * share + random() % 0x1000;
			peerbuf_reg_t reg = 0;
			const int rc = registerRange(buffer, offset, 0x2000, &reg);
			if (rc != 0) {
				EXPECT_TRUE(GetParam().revokes && rc == -ENODEV)
					<< test::LastError::take().text();
				refused_++;
				continue;
			}
			RegionInfo region = {};
			region.struct_size = sizeof(region);
			EXPECT_PB_OK(peerbuf_query_reg_importer(world_.ctx(), reg, 0, &region));
			const int used = use(region, worker);
			if (used != 0) {
				EXPECT_TRUE(GetParam().revokes) << test::errnoName(used);
				cut_off_++;
			}
			EXPECT_PB_OK(peerbuf_deregister(world_.ctx(), reg));
			EXPECT_EQ(-ESTALE, peerbuf_deregister(world_.ctx(), reg));
			done_++;
		}
	}

	void revokeAndRestore()
	{
		std::mt19937 random(99); // NOLINT(cert-msc51-cpp): replays
		for (unsigned i = 0; i < revokes; i++) {
			const Buffer &buffer = buffers_[random() % buffers_.size()];
			EXPECT_EQ(0, exporter_->ops->revoke(exporter_->device, buffer.handle));
			restore(buffer);
		}
	}

	/** Un-revoke; busy as long as an importer has not let go. */
	void restore(const Buffer &buffer)
	{
		int rc = -EBUSY;
		EXPECT_TRUE(world_.progressUntil([&] {
			rc = exporter_->ops->restore(exporter_->device, buffer.handle);
			return rc != -EBUSY;
		}));
		EXPECT_EQ(0, rc) << test::errnoName(rc);
	}

	void progressUntil(const std::atomic<bool> &stop)
	{
		while (!stop) {
			EXPECT_PB_OK(peerbuf_progress(world_.ctx()));
			peerbuf_event event = {};
			event.struct_size = sizeof(event);
			while (peerbuf_next_event(world_.ctx(), &event) == 1)
				events_++;
			std::this_thread::yield();
		}
	}

	test::Watchdog watchdog_{testing::UnitTest::GetInstance()->current_test_info()->name(),
				 watchdog_seconds};
	World world_;
	Exporter *exporter_ = nullptr;
	Importer *importer_ = nullptr;
	std::array<Buffer, 2> buffers_;
	std::atomic<unsigned> done_ = 0;
	std::atomic<unsigned> refused_ = 0;
	std::atomic<unsigned> cut_off_ = 0;
	std::atomic<unsigned> events_ = 0;
};

TEST_P(Threads, GivenWorkersARevokerAndProgressThenEverythingComesBack)
{
	ASSERT_TRUE(HAS_OP(importer_->ops, transfer));
	ASSERT_TRUE(HAS_OP(exporter_->ops, revoke) && HAS_OP(exporter_->ops, restore));
	std::atomic<bool> stop = false;
	std::thread progress([&] { progressUntil(stop); });
	std::vector<std::thread> threads;
	for (unsigned worker = 0; worker < workers; worker++)
		threads.emplace_back([this, worker] { work(worker); });
	if (GetParam().revokes)
		threads.emplace_back([this] { revokeAndRestore(); });
	for (std::thread &thread : threads)
		thread.join();
	stop = true;
	progress.join();
	EXPECT_EQ(workers * iterations, done_ + refused_);
	EXPECT_LT(0u, done_);
	EXPECT_TRUE(world_.progressUntil([&] { return world_.nothingHeld(); }));
	RecordProperty("refused", static_cast<int>(refused_));
	RecordProperty("cut_off", static_cast<int>(cut_off_));
	RecordProperty("events", static_cast<int>(events_));
	// and it works as ever
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffers_[0], 0, 0x1000, &reg));
	EXPECT_PB_OK(peerbuf_deregister(world_.ctx(), reg));
}

TEST_P(Threads, GivenManyThreadsThatEndOneRegistrationThenOneDoes)
{
	for (unsigned i = 0; i < iterations; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffers_[0], 0, 0x1000, &reg));
		std::atomic<unsigned> ended = 0;
		std::vector<std::thread> threads;
		for (unsigned worker = 0; worker < workers; worker++) {
			threads.emplace_back([&] {
				const int rc = peerbuf_deregister(world_.ctx(), reg);
				EXPECT_TRUE(rc == 0 || rc == -ESTALE) << test::errnoName(rc);
				ended += rc == 0 ? 1 : 0;
			});
		}
		for (std::thread &thread : threads)
			thread.join();
		EXPECT_EQ(1u, ended);
	}
	EXPECT_TRUE(world_.nothingHeld());
}

class ThreadsRevoke : public Threads
{
};

TEST_P(ThreadsRevoke, GivenARevokeThatMeetsADeregisterThenNeitherIsLost)
{
	for (unsigned i = 0; i < iterations; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffers_[0], 0, 0x4000, &reg));
		std::thread revoker([&] {
			EXPECT_EQ(0, exporter_->ops->revoke(exporter_->device, buffers_[0].handle));
			EXPECT_PB_OK(peerbuf_progress(world_.ctx()));
		});
		std::thread deregistrar(
			[&] { EXPECT_PB_OK(peerbuf_deregister(world_.ctx(), reg)); });
		revoker.join();
		deregistrar.join();
		EXPECT_PB_OK(peerbuf_progress(world_.ctx()));
		ASSERT_TRUE(world_.nothingHeld()) << "round " << i;
		restore(buffers_[0]);
	}
}

/** Memory that moves while all of that goes on. */
class ThreadsMove : public Threads
{
protected:
	/** Moves of any buffer, one after the other; at most @p n. */
	void moveAll(unsigned n)
	{
		std::mt19937 random(7); // NOLINT(cert-msc51-cpp): replays
		for (unsigned i = 0; i < n; i++) {
			const Buffer &buffer = buffers_[random() % buffers_.size()];
			peerbuf_move_request request = {};
			request.struct_size = sizeof(request);
			request.max_pause_ns = 1; // page by page
			request.duty_percent = 100;
			request.deadline_ns = patience;
			const int rc =
				exporter_->ops->move(exporter_->device, buffer.handle, &request);
			EXPECT_TRUE(rc == 0 || rc == -EBUSY ||
				    (GetParam().revokes && rc == -ENODEV))
				<< test::errnoName(rc);
			moved_ += rc == 0 ? 1 : 0;
			waitFor(buffer);
		}
	}
	void waitFor(const Buffer &buffer)
	{
		peerbuf_move_status status = {};
		status.struct_size = sizeof(status);
		do {
			std::this_thread::yield();
			ASSERT_EQ(0, exporter_->ops->move_status(exporter_->device, buffer.handle,
								 &status));
		} while (status.running);
		// a deadline that passes is a thread that hangs
		EXPECT_TRUE(status.result == 0 || GetParam().revokes)
			<< test::errnoName(status.result);
	}
	/** The application's own CPU access, now and then. */
	void touch(unsigned n)
	{
		std::mt19937 random(8); // NOLINT(cert-msc51-cpp): replays
		for (unsigned i = 0; i < n; i++) {
			const Buffer &buffer = buffers_[random() % buffers_.size()];
			const int rc = peerbuf_cpu_begin(world_.ctx(), buffer.id, patience);
			if (rc == 0) {
				EXPECT_PB_OK(peerbuf_cpu_end(world_.ctx(), buffer.id));
				continue;
			}
			EXPECT_TRUE(GetParam().revokes && rc == -ENODEV)
				<< test::LastError::take().text();
		}
	}

	std::atomic<unsigned> moved_ = 0;
};

TEST_P(ThreadsMove, GivenMovesDetachRevokeAndProgressAtOnceThenEverythingComesBack)
{
	ASSERT_TRUE(HAS_OP(exporter_->ops, move) && HAS_OP(exporter_->ops, move_status));
	std::atomic<bool> stop = false;
	std::thread progress([&] { progressUntil(stop); });
	std::vector<std::thread> threads;
	for (unsigned worker = 0; worker < workers; worker++)
		threads.emplace_back([this, worker] { work(worker); });
	threads.emplace_back([this] { moveAll(moves); });
	threads.emplace_back([this] { touch(iterations); });
	if (GetParam().revokes)
		threads.emplace_back([this] { revokeAndRestore(); });
	for (std::thread &thread : threads)
		thread.join();
	stop = true;
	progress.join();
	EXPECT_EQ(workers * iterations, done_ + refused_);
	EXPECT_LT(0u, done_);
	EXPECT_LT(0u, moved_);
	EXPECT_TRUE(world_.progressUntil([&] { return world_.nothingHeld(); }));
	RecordProperty("moved", static_cast<int>(moved_));
	RecordProperty("cut_off", static_cast<int>(cut_off_));
	// and it works as ever
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffers_[0], 0, 0x1000, &reg));
	EXPECT_PB_OK(peerbuf_deregister(world_.ctx(), reg));
}

TEST_P(ThreadsMove, GivenAMoveThatMeetsADeregisterThenNeitherHangs)
{
	std::atomic<bool> stop = false;
	std::thread progress([&] { progressUntil(stop); });
	for (unsigned i = 0; i < moves; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffers_[0], 0, buffer_size, &reg));
		RegionInfo region = {};
		region.struct_size = sizeof(region);
		EXPECT_PB_OK(peerbuf_query_reg_importer(world_.ctx(), reg, 0, &region));
		EXPECT_EQ(0, use(region, 0)); // so that there is something to let go of
		std::thread mover([&] {
			peerbuf_move_request request = {};
			request.struct_size = sizeof(request);
			request.max_pause_ns = 1;
			request.duty_percent = 100;
			request.deadline_ns = patience;
			EXPECT_EQ(0, exporter_->ops->move(exporter_->device, buffers_[0].handle,
							  &request));
			waitFor(buffers_[0]);
		});
		std::thread deregistrar(
			[&] { EXPECT_PB_OK(peerbuf_deregister(world_.ctx(), reg)); });
		mover.join();
		deregistrar.join();
	}
	stop = true;
	progress.join();
	EXPECT_TRUE(world_.progressUntil([&] { return world_.nothingHeld(); }));
}

/**
 * Application threads go in and out of a gate while memory moves. What they do inside is plain
 * memory access, so that ThreadSanitizer sees whether the gate excludes it from the move's.
 */
TEST(ThreadsGate, GivenThreadsInsideThenNothingMovesUnderThem)
{
	const test::Watchdog watchdog("ThreadsGate", watchdog_seconds);
	struct Memory {
		std::array<uint64_t, 64> place = {};
		std::array<uint64_t, 64> next = {};
		uint64_t *now = place.data();
	} memory;
	std::mutex mutex;
	std::set<uint64_t> answered;
	fabric::DomainGate gate(
		[&](uint64_t ticket) {
			const std::lock_guard<std::mutex> lock(mutex);
			EXPECT_TRUE(answered.insert(ticket).second) << "ticket twice";
		},
		[] { return uint64_t{1}; });
	std::atomic<bool> stop = false;
	std::atomic<uint64_t> inside = 0;
	std::atomic<uint64_t> refused = 0;
	std::array<uint64_t, workers> counted = {};

	std::vector<std::thread> threads;
	for (unsigned worker = 0; worker < workers; worker++) {
		threads.emplace_back([&, worker] {
			while (!stop) {
				if (peerbuf_progress_enter(gate.gate())) {
					refused++;
					std::this_thread::yield();
					continue;
				}
				counted[worker]++;
				memory.now[worker]++;
				peerbuf_progress_leave(gate.gate());
				inside++;
			}
		});
	}
	// Two movers share the gate; only when both have let go may threads come in again, and only
	// one of them has the memory at a time.
	std::mutex copying;
	std::vector<std::thread> movers;
	for (uint64_t holder = 1; holder <= 2; holder++) {
		movers.emplace_back([&, holder] {
			for (uint64_t i = 0; i < gateRounds; i++) {
				const uint64_t ticket = i * 2 + holder;
				if (!gate.close(holder, ticket)) {
					for (bool due = false; !due;) {
						std::this_thread::yield();
						const std::lock_guard<std::mutex> lock(mutex);
						due = answered.count(ticket) != 0;
					}
				}
				{
					const std::lock_guard<std::mutex> lock(copying);
					uint64_t *to = memory.now == memory.place.data()
							       ? memory.next.data()
							       : memory.place.data();
					std::copy_n(memory.now, memory.place.size(), to);
					std::fill_n(memory.now, memory.place.size(), ~uint64_t{0});
					memory.now = to;
				}
				EXPECT_TRUE(gate.open(holder));
				for (const uint64_t before = inside; inside == before && !stop;)
					std::this_thread::yield(); // traffic is not starved
			}
		});
	}
	for (std::thread &thread : movers)
		thread.join();
	stop = true;
	for (std::thread &thread : threads)
		thread.join();
	for (unsigned worker = 0; worker < workers; worker++)
		EXPECT_EQ(counted[worker], memory.now[worker]) << "an access was lost to a move";
	EXPECT_LT(0u, inside);
	RecordProperty("refused", static_cast<int>(refused));
	EXPECT_EQ(0, peerbuf_progress_enter(gate.gate()));
	peerbuf_progress_leave(gate.gate());
}

TEST_P(Threads, GivenContextsInEveryThreadThenTheyDoNotMeet)
{
	std::vector<std::thread> threads;
	for (unsigned worker = 0; worker < workers; worker++) {
		threads.emplace_back([&] {
			for (int i = 0; i < 5; i++) {
				peerbuf_context *ctx = nullptr;
				ASSERT_PB_OK(peerbuf_open(nullptr, &ctx));
				peerbuf_exporter_t exporter = 0;
				ASSERT_PB_OK(peerbuf_exporter_open(ctx, "emulated", nullptr, 0,
								   &exporter));
				EXPECT_PB_OK(peerbuf_close(ctx));
			}
		});
	}
	work(0);
	for (std::thread &thread : threads)
		thread.join();
}

std::string pairingName(const testing::TestParamInfo<Pairing> &tested)
{
	std::string why;
	return PluginSpec::parse(tested.param.exporter, &why)->label() + "__" +
	       PluginSpec::parse(tested.param.importer, &why)->label();
}

constexpr Pairing revoking[] = {
	{"emulated:profile=revokes", "emulated:profile=revocable,engine=thread", true},
	{"emulated:profile=revokes", "emulated:profile=refault,engine=thread", true},
	{"emulated:profile=revokes", "emulated:profile=revocable", true},
};
constexpr Pairing steady[] = {
	{"emulated:profile=static", "emulated:profile=neither,engine=thread", false},
	{"emulated:profile=moves", "emulated:profile=refault,engine=thread", false},
};

INSTANTIATE_TEST_SUITE_P(Revoking, Threads, testing::ValuesIn(revoking), pairingName);
INSTANTIATE_TEST_SUITE_P(Steady, Threads, testing::ValuesIn(steady), pairingName);
constexpr Pairing moving[] = {
	{"emulated:profile=moves", "emulated:profile=refault,engine=thread", false},
	{"emulated:profile=moves", "emulated:profile=refault,scope=whole,engine=thread", false},
};
constexpr Pairing movingAndRevoking[] = {
	{"emulated:profile=revokes", "emulated:profile=refault,engine=thread", true},
};

INSTANTIATE_TEST_SUITE_P(Moving, ThreadsMove, testing::ValuesIn(moving), pairingName);
INSTANTIATE_TEST_SUITE_P(Revoking, ThreadsMove, testing::ValuesIn(movingAndRevoking), pairingName);
INSTANTIATE_TEST_SUITE_P(Revoking, ThreadsRevoke, testing::ValuesIn(revoking), pairingName);

} // namespace

} // namespace peerbuf::contract
