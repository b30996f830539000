// SPDX-License-Identifier: BSD-3-Clause
// FdLeak_: descriptors and threads are as before, however often and however badly it goes.
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

class FdLeak_ : public PairTest
{
protected:
	/* a table of descriptors that holds this many more than are open now is enough */
	static constexpr unsigned few_fds = 24;
};

TEST_P(FdLeak_, GivenManyCyclesThenNothingIsLeftOfAny)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &reg)); // what is made once is made now
	EXPECT_PB_OK(world().deregister(reg));
	const test::ProcessState before = test::ProcessState::now();
	constexpr int cycles = 200;
	for (int i = 0; i < cycles; i++) {
		ASSERT_PB_OK(registerRange(buffer, 0x1000, 0x10000, &reg)) << "cycle " << i;
		ASSERT_PB_OK(world().deregister(reg));
	}
	EXPECT_TRUE(test::nothingLeaked(before));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(FdLeak_, GivenFewDescriptorsWhenManyCyclesThenAllSucceed)
{
	const Buffer buffer = filledBuffer();
	const test::LowFdLimit low(few_fds);
	for (unsigned i = 0; i < 4 * few_fds; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &reg)) << "cycle " << i;
		ASSERT_PB_OK(world().deregister(reg));
	}
}

TEST_P(FdLeak_, GivenRegistrationsThatFailWhenRepeatedThenNothingIsLeftOfAny)
{
	NEEDS_IMPORTER_OP(fault);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &reg));
	EXPECT_PB_OK(world().deregister(reg));
	const test::ProcessState before = test::ProcessState::now();
	ASSERT_EQ(0, importer().ops->fault(importer().device, "reg", 0, UINT32_MAX, -ENOMEM, 0));
	for (unsigned i = 0; i < 4 * few_fds; i++)
		ASSERT_EQ(-ENOMEM, registerRange(buffer, 0, 0x10000, &reg)) << "cycle " << i;
	EXPECT_EQ(0, importer().ops->fault(importer().device, "reg", 0, 0, 0, 0));
	EXPECT_TRUE(test::nothingLeaked(before));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(FdLeak_, GivenRegistrationsKeptThenOnlyAsManyDescriptorsAsExports)
{
	NEEDS_EXPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	const test::ProcessState before = test::ProcessState::now();
	constexpr size_t n = 64;
	for (size_t i = 0; i < n; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, i * 0x1000, 0x1000, &reg));
	}
	const test::ProcessState during = test::ProcessState::now();
	EXPECT_LE(during.fds.size(), before.fds.size() + n);
	EXPECT_LE(exporter().stats().exports, static_cast<int64_t>(n));
	EXPECT_EQ(before.threads.size(), during.threads.size());
	world().deregisterAll();
	EXPECT_TRUE(test::nothingLeaked(before));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FdLeak_);
INSTANTIATE_TEST_SUITE_P(Pairs, FdLeak_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
