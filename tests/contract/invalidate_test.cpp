// SPDX-License-Identifier: BSD-3-Clause
// Invalidate_: a Movable region holds no pin and asks for its translation when it needs one.
#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

class Invalidate_ : public PairTest
{
};

TEST_P(Invalidate_, GivenMovableThenNoPinIsTakenAndNoneCharged)
{
	NEEDS_EXPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, buffer.size, &reg));
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, world().regInfo(reg).flow);
	EXPECT_EQ(0, exporter().stats().pins);
	EXPECT_EQ(0u, world().regInfo(reg).pinned_bytes);
	EXPECT_EQ(0u, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
}

TEST_P(Invalidate_, GivenNoTranslationYetWhenAPeerComesThenItIsFetchedAndCounted)
{
	NEEDS_PEER();
	NEEDS_IMPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, buffer.size, &reg));
	const peerbuf_importer_stats before = importer().stats();
	std::vector<uint8_t> seen(buffer.size);
	ASSERT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_EQ(test::pattern(0, seen.size()), seen);
	const peerbuf_importer_stats after = importer().stats();
	EXPECT_LT(0u, after.translations);
	// fetched at registration, or at the first touch
	EXPECT_TRUE(before.translations > 0 || after.refaults > before.refaults)
		<< "before: " << before.translations << " translations, " << before.refaults
		<< " refaults; after: " << after.translations << ", " << after.refaults;
	// touched again it is there
	ASSERT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_EQ(after.refaults, importer().stats().refaults);
}

TEST_P(Invalidate_, GivenADeviceThatCannotMapNowWhenAPeerComesThenErrorAndTheNextIsRight)
{
	NEEDS_PEER();
	NEEDS_EXPORTER_OP(fault);
	NEEDS_IMPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, buffer.size, &reg));
	NEEDS(importer().stats().translations == 0, "the importer maps when it registers");
	ASSERT_EQ(0, exporter().ops->fault(exporter().device, "map", 0, 1, -ENOMEM, 0));
	std::vector<uint8_t> seen(0x1000);
	EXPECT_GT(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_EQ(0, exporter().ops->fault(exporter().device, "map", 0, 0, 0, 0));
	EXPECT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_EQ(test::pattern(0, seen.size()), seen);
	// the failed mapping left nothing behind
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Invalidate_);
INSTANTIATE_TEST_SUITE_P(Pairs, Invalidate_, testing::ValuesIn(movablePairs()), pairName);

} // namespace

} // namespace peerbuf::contract
