// SPDX-License-Identifier: BSD-3-Clause
/*
 * One thread that keeps a window of operations in flight on memory that moves, polls the queue
 * itself, and makes peerbuf's progress: what a communication library's progress loop does. If the
 * gate were held for an operation's lifetime this would hang at the first move.
 */
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "stack.h"
#include "support/watchdog.h"

namespace peerbuf::moves
{

namespace
{

using tools::RmaCompletion;
using tools::RmaOp;
using tools::RmaTransfer;

constexpr size_t window = 16;
constexpr uint64_t block_size = 64 << 10;

std::string nameOf(const testing::TestParamInfo<std::string> &info)
{
	std::string name = info.param;
	std::replace_if(
		name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
	return name;
}

class MovesWindow : public testing::TestWithParam<std::string>
{
protected:
	void SetUp() override
	{
		Stack::Options options;
		options.provider = GetParam();
		options.device = {{"profile", "moves"}, {"hbm", "16M"}};
		options.size = 2 * window * block_size;
		if (!stack_.open(options))
			GTEST_SKIP() << "provider " << GetParam() << " is not here";
		ASSERT_EQ(stack_.region().flow, static_cast<uint32_t>(PEERBUF_FLOW_MOVABLE));
		std::string error;
		remote_.resize(stack_.size());
		ASSERT_EQ(stack_.peer().expose(remote_.data(), remote_.size(),
					       FI_REMOTE_READ | FI_REMOTE_WRITE, &exposed_, error),
			  0)
			<< error;
	}
	void TearDown() override
	{
		exposed_ = {}; // before its domain
		stack_.close();
	}

	/** A transfer between block @p block here and the same one at the peer. */
	RmaTransfer transferOf(RmaOp op, size_t block)
	{
		RmaTransfer t;
		t.op = op;
		t.peer = stack_.peerAtEndpoint();
		t.data = stack_.address() + block * block_size;
		t.length = block_size;
		t.remoteAddr = exposed_.remoteBase + block * block_size;
		t.key = exposed_.key;
		t.context = block;
		return t;
	}

	Stack stack_;
	std::vector<uint8_t> remote_;
	tools::RmaMemory exposed_;
};

/* Even blocks are read from the peer into memory that moves, odd ones written from it. */
TEST_P(MovesWindow, GivenAMoveEveryMillisecondThenNoHangAndNoError)
{
	const test::Watchdog watchdog("a window of operations under moves", watchdog_seconds);
	constexpr auto every = std::chrono::milliseconds(1);
	constexpr unsigned enough_moves = 100;
	constexpr unsigned enough_rounds = 20;
	std::atomic<bool> stop{false};
	std::atomic<int> peerError{0};
	std::thread peer([&] { // serves, as any libfabric program does
		RmaCompletion completion;
		while (!stop)
			if (const int rc = stack_.peer().pollOnce(&completion))
				peerError = rc;
	});

	const uint64_t key = stack_.region().key64;
	auto lastMove = std::chrono::steady_clock::now();
	unsigned moves = 0;
	unsigned turnedAway = 0;
	unsigned rounds = 0;
	uint64_t operations = 0;
	std::vector<uint8_t> expected(stack_.size());
	while (moves < enough_moves || rounds < enough_rounds) {
		rounds++;
		for (size_t block = 0; block < 2 * window; block++) {
			uint8_t *bytes = expected.data() + block * block_size;
			fill(bytes, block_size, block, rounds);
			if (block % 2) {
				ASSERT_PB_OK(peerbuf_cpu_begin(stack_.ctx(), stack_.buffer(),
							       UINT64_MAX));
				std::copy_n(bytes, block_size,
					    stack_.address() + block * block_size);
				ASSERT_PB_OK(peerbuf_cpu_end(stack_.ctx(), stack_.buffer()));
			} else {
				std::copy_n(bytes, block_size, remote_.data() + block * block_size);
			}
		}
		size_t posted = 0;
		size_t done = 0;
		while (done < 2 * window) {
			const bool entered = stack_.inside([&] {
				std::string error;
				while (posted < 2 * window && posted - done < window) {
					const int rc = stack_.endpoint().post(
						transferOf(posted % 2 ? RmaOp::Write : RmaOp::Read,
							   posted),
						error);
					if (rc == -EAGAIN)
						break;
					ASSERT_EQ(rc, 0) << error;
					posted++;
				}
				RmaCompletion completion;
				const int rc = stack_.endpoint().pollOnce(&completion);
				ASSERT_GE(rc, 0) << completion.what;
				if (rc == 1) {
					ASSERT_EQ(completion.status, 0) << completion.what;
					done++;
				}
			});
			if (HasFatalFailure())
				break;
			turnedAway += !entered;
			ASSERT_GE(peerbuf_progress(stack_.ctx()), 0);
			const auto now = std::chrono::steady_clock::now();
			if (now - lastMove >= every) {
				lastMove = now;
				const int rc = stack_.move();
				ASSERT_TRUE(rc == 0 || rc == -EBUSY) << test::errnoName(rc);
				moves += rc == 0;
			}
		}
		if (HasFatalFailure())
			break;
		operations += done;
		stack_.finishMove();
		ASSERT_EQ(std::memcmp(remote_.data(), expected.data(), expected.size()), 0)
			<< "round " << rounds;
		ASSERT_TRUE(stack_.deviceBytes() == expected) << "round " << rounds;
	}
	stop = true;
	peer.join();
	EXPECT_EQ(peerError, 0);
	EXPECT_EQ(stack_.region().key64, key);
	EXPECT_GE(stack_.stats().moves, enough_moves);
	EXPECT_GT(stack_.pauses().size(), 0u);
	RecordProperty("operations", static_cast<int>(operations));
	RecordProperty("moves", static_cast<int>(moves));
	RecordProperty("turned_away", static_cast<int>(turnedAway));
}

/*
 * The control that must fail: a read from the peer is posted, the memory moves and nobody is told,
 * then the bytes come. They land where the device no longer looks.
 */
TEST_P(MovesWindow, GivenAMoveThatSkipsTheImportersThenTheBytesAreLost)
{
	const test::Watchdog watchdog("a silent move", watchdog_seconds);
	fill(remote_.data(), block_size, 0, 1);
	std::string error;
	bool posted = false;
	while (!posted) {
		ASSERT_TRUE(stack_.inside([&] {
			const int rc = stack_.endpoint().post(transferOf(RmaOp::Read, 0), error);
			ASSERT_TRUE(rc == 0 || rc == -EAGAIN) << error;
			posted = rc == 0;
			RmaCompletion completion;
			if (!posted) { // the connection is still being made
				ASSERT_EQ(stack_.endpoint().pollOnce(&completion), 0);
			}
		}));
		RmaCompletion completion;
		ASSERT_EQ(stack_.peer().pollOnce(&completion), 0);
	}
	ASSERT_EQ(stack_.move(0, PEERBUF_MOVE_NO_NOTIFY), 0);
	while (stack_.moveStatus().running) {
	}
	int rc = 0;
	while (rc == 0) {
		RmaCompletion completion;
		ASSERT_TRUE(stack_.inside([&] { rc = stack_.endpoint().pollOnce(&completion); }));
		ASSERT_GE(rc, 0) << completion.what;
		if (rc == 1) {
			ASSERT_EQ(completion.status, 0) << completion.what;
		}
		ASSERT_EQ(stack_.peer().pollOnce(&completion), 0);
	}
	const std::vector<uint8_t> seen = stack_.deviceBytes();
	EXPECT_NE(std::memcmp(seen.data(), remote_.data(), block_size), 0)
		<< "the damage did not show, so this test proves nothing";
}

INSTANTIATE_TEST_SUITE_P(Providers, MovesWindow, testing::Values("tcp", "shm"), nameOf);

} // namespace

} // namespace peerbuf::moves
