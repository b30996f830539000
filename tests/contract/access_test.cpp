// SPDX-License-Identifier: BSD-3-Clause
// Access_: a region allows what was asked for, no more, and says what it left out.
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;

class Access_ : public PairTest
{
};

TEST_P(Access_, GivenAFlagThatDoesNotExistThenRefusedByName)
{
	const Buffer buffer = filledBuffer();
	constexpr uint32_t unknown = 1u << 12;
	static_assert((unknown & PEERBUF_ACCESS_OPTIONAL_MASK) == 0);
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &reg, usual_access | unknown), -EACCES,
			PEERBUF_ERR_ACCESS);
	EXPECT_TRUE(test::mentions(LastError::take().text(), unknown));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Access_, GivenAnAccessOneSideLacksThenRefusedAndNothingDroppedSilently)
{
	constexpr uint32_t all = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
				 PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC;
	const uint32_t lacking = all & ~(exporter().offer.access & importer().offer.access);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	if (lacking == 0) {
		ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg, all));
		EXPECT_EQ(0u, world().region(reg).dropped_access);
		return;
	}
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &reg, all), -EACCES, PEERBUF_ERR_ACCESS);
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Access_, GivenAnOptionalFlagThenTakenOrDroppedAndReported)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg,
				   usual_access | PEERBUF_ACCESS_RELAXED_ORDERING));
	const bool known = importer().offer.access & PEERBUF_ACCESS_RELAXED_ORDERING;
	EXPECT_EQ(known ? 0u : PEERBUF_ACCESS_RELAXED_ORDERING, world().region(reg).dropped_access);
	// one that nobody knows yet is optional all the same
	constexpr uint32_t future = 1u << 27;
	static_assert((future & PEERBUF_ACCESS_OPTIONAL_MASK) != 0);
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg, usual_access | future));
	EXPECT_EQ(future, world().region(reg).dropped_access & future);
}

TEST_P(Access_, GivenAReadOnlyRegionWhenAPeerWritesThenErrorAndTheMemoryIsUntouched)
{
	NEEDS_PEER_THAT_IS_REFUSED();
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg, PEERBUF_ACCESS_REMOTE_READ));
	std::vector<uint8_t> seen(0x1000);
	ASSERT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	const std::vector<uint8_t> other = test::pattern(0, 0x1000, 9);
	EXPECT_GT(0, peer()->write(world().region(reg), 0, other.data(), other.size()));
	NEEDS(canSeeDevice(buffer), "no way to see the memory from the device's side");
	EXPECT_EQ(test::pattern(0, 0x1000), deviceBytes(buffer, 0, 0x1000));
}

TEST_P(Access_, GivenAWriteOnlyRegionWhenAPeerReadsThenError)
{
	NEEDS_PEER_THAT_IS_REFUSED();
	NEEDS(importer().spec.option("provider").find("ofi_rxm") == std::string::npos,
	      "provider ofi_rxm allows remote reads of every region, for its rendezvous");
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg,
				   PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_WRITE));
	std::vector<uint8_t> data(0x1000);
	EXPECT_GT(0, peer()->read(world().region(reg), 0, data.data(), data.size()));
	EXPECT_EQ(0, peer()->write(world().region(reg), 0, data.data(), data.size()));
}

TEST_P(Access_, GivenAKeyThatWasDeregisteredWhenAPeerUsesItThenError)
{
	NEEDS_PEER_THAT_IS_REFUSED();
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg));
	const RegionInfo region = world().region(reg);
	EXPECT_PB_OK(world().deregister(reg));
	const uint8_t byte = 0;
	EXPECT_GT(0, peer()->write(region, 0, &byte, 1));
}

class AccessReach_ : public PairTest
{
};

TEST_P(AccessReach_, GivenAPairThenItIsRefusedOrEveryByteArrivesWithoutABreach)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	const int rc = registerRange(buffer, 0, buffer.size, &reg);
	if (!verdict().works()) {
		EXPECT_GT(0, rc) << verdict().why;
		EXPECT_TRUE(world().nothingHeld());
		return;
	}
	ASSERT_PB_OK(rc);
	NEEDS_PEER();
	std::vector<uint8_t> seen(buffer.size);
	EXPECT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()));
	EXPECT_TRUE(seen == test::pattern(0, buffer.size));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().nothingHeld()); // an importer counts what it must not reach
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AccessReach_);
INSTANTIATE_TEST_SUITE_P(AllPairs, AccessReach_, testing::ValuesIn(allPairs()), pairName);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Access_);
INSTANTIATE_TEST_SUITE_P(Pairs, Access_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
