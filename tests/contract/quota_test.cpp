// SPDX-License-Identifier: BSD-3-Clause
// Quota_: whoever asks for too much is refused, with the figures, and nobody else notices.
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;

class Quota_ : public PairTest
{
protected:
	static constexpr uint64_t limit = 0x30000;

	void SetUp() override
	{
		PairTest::SetUp();
		if (HasFatalFailure())
			return;
		ASSERT_PB_OK(peerbuf_ledger_set_limit(world().ctx(), nullptr,
						      exporter().offer.device, PEERBUF_LEDGER_PINS,
						      limit));
	}

	uint64_t used(const char *tenant)
	{
		peerbuf_ledger_info info = {};
		info.struct_size = sizeof(info);
		EXPECT_PB_OK(peerbuf_query_ledger(world().ctx(), tenant, exporter().offer.device,
						  PEERBUF_LEDGER_PINS, &info));
		return info.used;
	}

	static peerbuf_policy policyOf(const char *tenant, uint32_t pins)
	{
		peerbuf_policy policy = {};
		policy.struct_size = sizeof(policy);
		policy.tenant = tenant;
		policy.pins = pins;
		return policy;
	}
};

TEST_P(Quota_, GivenALimitWhenItIsPassedThenTheErrorNamesNeedUsedAndLimit)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t first = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x21000, &first));
	peerbuf_reg_t second = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0x40000, 0x12000, &second), -EDQUOT,
			PEERBUF_ERR_QUOTA);
	const std::string text = LastError::take().text();
	EXPECT_TRUE(test::mentions(text, 0x12000)) << "need";
	EXPECT_TRUE(test::mentions(text, 0x21000)) << "used";
	EXPECT_TRUE(test::mentions(text, limit)) << "limit";
	EXPECT_NE(std::string::npos, text.find("contract")) << "the holder: " << text;
	// the one that was there is undisturbed, and what fits still fits
	EXPECT_EQ(0x21000u, used("contract"));
	EXPECT_EQ(0u, world().regInfo(first).revoked);
	EXPECT_PB_OK(registerRange(buffer, 0x40000, limit - 0x21000, &second));
	EXPECT_EQ(limit, used("contract"));
	world().deregisterAll();
	EXPECT_EQ(0u, used("contract"));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Quota_, GivenOneTenantAtItsLimitThenAnotherIsUnaffected)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, limit, &reg));
	peerbuf_reg_t more = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &more), -EDQUOT, PEERBUF_ERR_QUOTA);
	const peerbuf_policy other = policyOf("other", PEERBUF_PINS_WITHIN_LIMIT);
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &more, usual_access, &other));
	EXPECT_EQ(0x1000u, used("other"));
	EXPECT_EQ(limit, used("contract"));
	EXPECT_EQ(limit + 0x1000, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
	EXPECT_PB_OK(world().deregister(more));
	EXPECT_EQ(0u, used("other"));
	EXPECT_EQ(limit, used("contract"));
}

TEST_P(Quota_, GivenADedicatedMachineThenPinsAreCountedAndNotLimited)
{
	const Buffer buffer = filledBuffer();
	const peerbuf_policy dedicated = policyOf(nullptr, PEERBUF_PINS_DEDICATED);
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 2 * limit, &reg, usual_access, &dedicated));
	EXPECT_EQ(2 * limit, used("contract"));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ(0u, used("contract"));
}

TEST_P(Quota_, GivenTwoImportersThenEachPaysAndTheSecondCannotPassTheLimitUnseen)
{
	const Importer *second = world().addImporter(GetParam().importer);
	ASSERT_NE(nullptr, second);
	const Buffer buffer = filledBuffer();
	const std::vector<peerbuf_importer_t> both = {importer().id, second->id};
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(
		world().registerRange(buffer, 0, limit / 2, both, usual_access, nullptr, &reg));
	EXPECT_EQ(limit, used("contract"));
	EXPECT_EQ(limit, world().regInfo(reg).pinned_bytes);
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_PB_ERROR(world().registerRange(buffer, 0, limit / 2 + 0x1000, both, usual_access,
					      nullptr, &reg),
			-EDQUOT, PEERBUF_ERR_QUOTA);
	EXPECT_EQ(0u, used("contract"));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Quota_, GivenALimitBelowWhatIsUsedThenWhatIsThereStays)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, limit, &reg));
	ASSERT_PB_OK(peerbuf_ledger_set_limit(world().ctx(), "contract", exporter().offer.device,
					      PEERBUF_LEDGER_PINS, 0x1000));
	EXPECT_EQ(limit, used("contract"));
	EXPECT_EQ(0u, world().regInfo(reg).revoked);
	peerbuf_reg_t more = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &more), -EDQUOT, PEERBUF_ERR_QUOTA);
	ASSERT_PB_OK(peerbuf_ledger_set_limit(world().ctx(), "contract", exporter().offer.device,
					      PEERBUF_LEDGER_PINS, PEERBUF_UNLIMITED));
	EXPECT_PB_OK(registerRange(buffer, 0, buffer.size, &more));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Quota_);
INSTANTIATE_TEST_SUITE_P(Pairs, Quota_, testing::ValuesIn(chargedPairs()), pairName);

class QuotaDefault_ : public PairTest
{
};

TEST_P(QuotaDefault_, GivenMemoryThatMovesThenHalfOfItIsTheLimitAndElseNone)
{
	// not an amount that has been set, but the one that is there
	peerbuf_ledger_info info = {};
	info.struct_size = sizeof(info);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg));
	ASSERT_PB_OK(peerbuf_query_ledger(world().ctx(), "contract", exporter().offer.device,
					  PEERBUF_LEDGER_PINS, &info));
	const bool moves = exporter().offer.stability == PEERBUF_STABILITY_MOVES;
	NEEDS(!moves || exporter().offer.memory_size != 0, "the size of the memory is not known");
	EXPECT_EQ(moves ? exporter().offer.memory_size / 2 : PEERBUF_UNLIMITED, info.limit);
}

class QuotaWindow_ : public PairTest
{
};

TEST_P(QuotaWindow_, GivenAWindowWhenItIsFullThenTheErrorNamesItAndNothingIsLeft)
{
	const peerbuf_exporter_offer &offer = exporter().offer;
	const uint64_t free = offer.window_size - offer.window_used - offer.window_reserve;
	const uint64_t need = free + 4 * offer.granularity;
	NEEDS(offer.memory_size >= need, "the window is as large as the memory");
	NEEDS(importer().offer.max_length >= need, "the importer's regions are too short");
	const Buffer buffer = world().alloc(exporter(), need);
	peerbuf_reg_t fits = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, free, &fits));
	NEEDS(world().regInfo(fits).window_bytes != 0, "this pair does not use the window");
	EXPECT_EQ(free, world().regInfo(fits).window_bytes);
	EXPECT_EQ(free, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));

	// the same range again takes nothing more
	peerbuf_reg_t again = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, free, &again));
	EXPECT_EQ(0u, world().regInfo(again).window_bytes);
	EXPECT_EQ(free, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));
	peerbuf_exporter_offer now = {};
	now.struct_size = sizeof(now);
	ASSERT_PB_OK(peerbuf_query_exporter(world().ctx(), exporter().id, &now));
	EXPECT_EQ(offer.window_used + free, now.window_used);

	// who paid goes, who shares stays: the range is still in the window
	EXPECT_PB_OK(world().deregister(fits));
	EXPECT_EQ(free, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));
	EXPECT_PB_OK(world().deregister(again));
	EXPECT_EQ(0u, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));

	EXPECT_PB_ERROR(registerRange(buffer, 0, need, &fits), -ENOSPC,
			PEERBUF_ERR_WINDOW_EXHAUSTED);
	const std::string text = LastError::take().text();
	EXPECT_TRUE(test::mentions(text, offer.window_size));
	EXPECT_TRUE(test::mentions(text, free));
	EXPECT_TRUE(test::mentions(text, need));
	EXPECT_TRUE(world().nothingHeld());
	ASSERT_PB_OK(registerRange(buffer, 0, free, &fits));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QuotaWindow_);
INSTANTIATE_TEST_SUITE_P(Pairs, QuotaWindow_, testing::ValuesIn(windowPairs()), pairName);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QuotaDefault_);
INSTANTIATE_TEST_SUITE_P(Pairs, QuotaDefault_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
