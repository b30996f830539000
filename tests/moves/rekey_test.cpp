// SPDX-License-Identifier: BSD-3-Clause
/*
 * Rekey from end to end: a domain that nobody gates, memory that moves, and an application that
 * accepts new keys.
 */
#include <cerrno>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stack.h"
#include "support/watchdog.h"

namespace peerbuf::moves
{

namespace
{

using testing::HasSubstr;
using tools::RmaOp;

constexpr uint64_t block = 256 << 10;

class MovesRekey : public testing::Test
{
protected:
	void open(bool rekeyOk)
	{
		Stack::Options options;
		options.device = {{"profile", "moves"}, {"hbm", "16M"}};
		options.bracketed = false;
		options.policy.rekey_ok = rekeyOk;
		if (!stack_.open(options))
			GTEST_SKIP() << "provider tcp is not here";
		bytes_.resize(block);
	}
	void TearDown() override { stack_.close(); }

	int write(uint64_t version, uint64_t key)
	{
		fill(bytes_.data(), block, 0, version);
		return stack_.byPeer(RmaOp::Write, 0, bytes_.data(), block, key, &error_);
	}
	bool deviceHasThem() const
	{
		return std::memcmp(stack_.deviceBytes().data(), bytes_.data(), block) == 0;
	}

	Stack stack_;
	std::vector<uint8_t> bytes_;
	std::string error_;
	const test::Watchdog watchdog_{"rekey", watchdog_seconds};
};

TEST_F(MovesRekey, GivenItIsNotAllowedThenPinnedAndTheMoveAnswersBusy)
{
	open(false);
	ASSERT_EQ(stack_.region().flow, static_cast<uint32_t>(PEERBUF_FLOW_PINNED));
	EXPECT_EQ(stack_.move(), -EBUSY);
	EXPECT_THAT(test::LastError::take().text(), testing::Not(HasSubstr("unknown")));
	ASSERT_EQ(write(1, stack_.region().key64), 0) << error_;
	EXPECT_TRUE(deviceHasThem());
}

TEST_F(MovesRekey, GivenAnApplicationThatIsReadyThenTheMemoryMovesAndTheKeysAreNew)
{
	open(true);
	const auto before = stack_.region();
	ASSERT_EQ(before.flow, static_cast<uint32_t>(PEERBUF_FLOW_REKEY));
	ASSERT_EQ(write(1, before.key64), 0) << error_;
	const uint64_t generation = stack_.moveStatus().generation;
	EXPECT_EQ(peerbuf_rekey_ready(stack_.ctx(), stack_.reg()), -EINVAL); // nothing waits

	ASSERT_EQ(stack_.move(), 0);
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_SUSPENDED));
	EXPECT_EQ(stack_.moveStatus().moved, 0u); // it waits for us
	EXPECT_TRUE(stack_.moveStatus().running);
	ASSERT_PB_OK(peerbuf_rekey_ready(stack_.ctx(), stack_.reg()));
	const auto rekeyed = stack_.waitFor(PEERBUF_EVENT_REKEYED);
	ASSERT_TRUE(rekeyed);
	EXPECT_GT(rekeyed->generation, generation);
	stack_.finishMove();
	EXPECT_EQ(stack_.moveStatus().result, 0);
	EXPECT_EQ(stack_.moveStatus().moved, stack_.size());
	EXPECT_EQ(stack_.moveStatus().slices, 1u); // its region ends as a whole
	EXPECT_TRUE(deviceHasThem());

	const auto after = stack_.region();
	EXPECT_NE(after.key64, before.key64);
	ASSERT_EQ(write(2, after.key64), 0) << error_;
	EXPECT_TRUE(deviceHasThem());
}

TEST_F(MovesRekey, GivenAnApplicationThatDoesNotAnswerThenTheMoveIsAbortedAndTheKeyStays)
{
	constexpr uint64_t soon = 20'000'000;
	open(true);
	const auto before = stack_.region();
	ASSERT_EQ(write(1, before.key64), 0) << error_;
	ASSERT_EQ(stack_.move(0, 0, soon), 0);
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_SUSPENDED));
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_RESUMED));
	stack_.finishMove();
	EXPECT_EQ(stack_.moveStatus().result, -ETIMEDOUT);
	EXPECT_EQ(stack_.moveStatus().moved, 0u);
	EXPECT_EQ(stack_.stats().aborted, 1u);
	EXPECT_EQ(stack_.region().key64, before.key64);
	EXPECT_EQ(peerbuf_rekey_ready(stack_.ctx(), stack_.reg()), -EINVAL); // too late
	ASSERT_EQ(write(2, before.key64), 0) << error_;
	EXPECT_TRUE(deviceHasThem());
	ASSERT_EQ(stack_.move(), 0); // and it can be tried again
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_SUSPENDED));
	ASSERT_PB_OK(peerbuf_rekey_ready(stack_.ctx(), stack_.reg()));
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_REKEYED));
	EXPECT_TRUE(deviceHasThem());
}

TEST_F(MovesRekey, GivenADeregistrationInTheMiddleThenTheMoveGoesOnWithoutUs)
{
	open(true);
	ASSERT_EQ(write(1, stack_.region().key64), 0) << error_;
	ASSERT_EQ(stack_.move(), 0);
	ASSERT_TRUE(stack_.waitFor(PEERBUF_EVENT_SUSPENDED));
	stack_.deregister();
	stack_.finishMove();
	EXPECT_EQ(stack_.moveStatus().result, 0);
	EXPECT_TRUE(deviceHasThem());
}

} // namespace

} // namespace peerbuf::moves
