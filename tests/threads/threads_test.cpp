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
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "contract/world.h"
#include "support/watchdog.h"

namespace peerbuf::contract
{

namespace
{

using test::PluginSpec;

constexpr unsigned workers = 3;
constexpr unsigned iterations = 120;
constexpr unsigned revokes = 40;
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
INSTANTIATE_TEST_SUITE_P(Revoking, ThreadsRevoke, testing::ValuesIn(revoking), pairingName);

} // namespace

} // namespace peerbuf::contract
