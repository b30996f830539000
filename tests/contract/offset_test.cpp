// SPDX-License-Identifier: BSD-3-Clause
// Offset_: a region is exactly the range that was asked for, wherever it lies in its allocation.
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;
using test::pattern;

class Offset_ : public PairTest
{
protected:
	static constexpr uint64_t allocation = 16 << 20;
	static constexpr uint64_t view_length = 0x1000;
	static constexpr uint64_t views[] = {0, 0x1000, 0x10010, 0x200000, 0xFFF000};
	/* where a region is off by less than its length, the neighbours show it */
	static constexpr uint64_t fringe = 4096;

	Buffer allocateAll()
	{
		if (exporter().offer.memory_size != 0 && exporter().offer.memory_size < allocation)
			return {};
		return filledBuffer(allocation);
	}

	/** The range and what surrounds it, as the device has it. */
	struct Surroundings {
		uint64_t begin;
		uint64_t end;
	};
	static Surroundings around(uint64_t offset, uint64_t length)
	{
		return {offset < fringe ? 0 : offset - fringe,
			std::min<uint64_t>(offset + length + fringe, allocation)};
	}

	/** What went in is where it should be, and nothing else changed. */
	void expectOnlyChanged(const Buffer &buffer, uint64_t offset,
			       const std::vector<uint8_t> &written)
	{
		const Surroundings all = around(offset, written.size());
		std::vector<uint8_t> expected = pattern(all.begin, all.end - all.begin);
		std::copy(written.begin(), written.end(),
			  expected.begin() + static_cast<ptrdiff_t>(offset - all.begin));
		const std::vector<uint8_t> now =
			deviceBytes(buffer, all.begin, all.end - all.begin);
		for (size_t i = 0; i < expected.size(); i++) {
			ASSERT_EQ(expected[i], now[i])
				<< "at " << all.begin + i << " of the allocation, after a write of "
				<< written.size() << " bytes at " << offset;
		}
	}

	/** A register that must be refused before anything is touched. */
	void expectBadGeometry(const Buffer &buffer, uint64_t offset, uint64_t length,
			       uint64_t first_number, uint64_t second_number, uint64_t iova = 0)
	{
		peerbuf_reg_t reg = 0;
		EXPECT_PB_ERROR(
			registerRange(buffer, offset, length, &reg, usual_access, nullptr, iova),
			-EINVAL, PEERBUF_ERR_BAD_GEOMETRY)
			<< "offset " << offset << ", length " << length;
		const LastError error = LastError::take();
		EXPECT_TRUE(test::mentions(error.text(), first_number));
		EXPECT_TRUE(test::mentions(error.text(), second_number));
		EXPECT_EQ(0u, reg) << "outputs are written on success only";
		EXPECT_TRUE(world().nothingHeld());
	}
};

TEST_P(Offset_, GivenViewsOfOneAllocationWhenPeerReadsThenEachGivesItsOwnBytes)
{
	NEEDS_PEER();
	const Buffer buffer = allocateAll();
	NEEDS(buffer.id != 0, "the device has less than 16 MiB");
	NEEDS(canSeeDevice(buffer), "no way to fill the buffer");
	for (const uint64_t view : views) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, view, view_length, &reg)) << "view at " << view;
		const RegInfo info = world().regInfo(reg);
		EXPECT_EQ(view, info.offset);
		EXPECT_EQ(view_length, info.length);
		std::vector<uint8_t> seen(view_length);
		ASSERT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), seen.size()))
			<< "view at " << view;
		EXPECT_EQ(pattern(view, view_length), seen) << "view at " << view;
		EXPECT_PB_OK(world().deregister(reg));
	}
}

TEST_P(Offset_, GivenViewsOfOneAllocationWhenAllAreRegisteredThenTheyAreApart)
{
	NEEDS_PEER();
	const Buffer buffer = allocateAll();
	NEEDS(buffer.id != 0, "the device has less than 16 MiB");
	constexpr uint64_t mib = 1 << 20;
	uint64_t length = std::min<uint64_t>(mib, importer().offer.max_length);
	if (const peerbuf_exporter_offer &offer = exporter().offer; offer.window_size != 0) {
		const uint64_t free = offer.window_size - offer.window_used - offer.window_reserve;
		length = std::min(length, free / 4 & ~(offer.granularity - 1));
	}
	constexpr unsigned tags = 4;
	std::vector<peerbuf_reg_t> regs;
	for (unsigned i = 0; i < tags; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, i * mib, length, &reg));
		regs.push_back(reg);
	}
	for (unsigned i = 0; i < tags; i++) {
		const auto tag = static_cast<uint8_t>(i + 1);
		ASSERT_EQ(0, peer()->write(world().region(regs[i]), 0, &tag, 1));
	}
	for (unsigned i = 0; i < tags; i++) {
		uint8_t seen = 0;
		ASSERT_EQ(0, peer()->read(world().region(regs[i]), 0, &seen, 1));
		EXPECT_EQ(i + 1, seen);
		if (canSeeDevice(buffer)) {
			EXPECT_EQ(i + 1, deviceBytes(buffer, i * mib, 1)[0]);
		}
	}
}

TEST_P(Offset_, GivenViewWhenPeerWritesThenDeviceHasItAndNeighboursKeepTheirs)
{
	NEEDS_PEER();
	const Buffer buffer = allocateAll();
	NEEDS(buffer.id != 0, "the device has less than 16 MiB");
	NEEDS(canSeeDevice(buffer), "no way to see the memory from the device's side");
	for (const uint64_t view : views) {
		SCOPED_TRACE("view at " + std::to_string(view));
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, view, view_length, &reg));
		const RegionInfo region = world().region(reg);
		std::vector<uint8_t> expected = pattern(view, view_length);

		for (const uint64_t at : {uint64_t{0}, view_length - 1}) {
			expected[at] = static_cast<uint8_t>(~expected[at]);
			ASSERT_EQ(0, peer()->write(region, at, &expected[at], 1));
			ASSERT_NO_FATAL_FAILURE(expectOnlyChanged(buffer, view, expected));
		}
		expected = pattern(view, view_length, 1);
		ASSERT_EQ(0, peer()->write(region, 0, expected.data(), expected.size()));
		ASSERT_NO_FATAL_FAILURE(expectOnlyChanged(buffer, view, expected));

		setDeviceBytes(buffer, view, pattern(view, view_length));
		EXPECT_PB_OK(world().deregister(reg));
	}
}

TEST_P(Offset_, GivenARegionOfManySegmentsThenPeersReachEveryByteOfIt)
{
	NEEDS_PEER();
	const Buffer buffer = allocateAll();
	NEEDS(buffer.id != 0, "the device has less than 16 MiB");
	NEEDS(canSeeDevice(buffer), "no way to see the memory from the device's side");
	constexpr uint64_t offset = 0x181010;
	const uint64_t length = std::min<uint64_t>(4 << 20, importer().offer.max_length);
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, offset, length, &reg));
	std::vector<uint8_t> bytes(length);
	ASSERT_EQ(0, peer()->read(world().region(reg), 0, bytes.data(), length));
	EXPECT_TRUE(pattern(offset, length) == bytes) << "read";
	bytes = pattern(0, length, 2);
	ASSERT_EQ(0, peer()->write(world().region(reg), 0, bytes.data(), length));
	EXPECT_TRUE(bytes == deviceBytes(buffer, offset, length)) << "written";
}

TEST_P(Offset_, GivenRegionWhenPeerPassesItsEndThenErrorAndNothingIsWritten)
{
	NEEDS_PEER_THAT_IS_REFUSED();
	const Buffer buffer = filledBuffer();
	NEEDS(canSeeDevice(buffer), "no way to see the memory from the device's side");
	constexpr uint64_t offset = 0x10010;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, offset, view_length, &reg));
	const RegionInfo region = world().region(reg);
	const uint8_t two[2] = {0xEE, 0xEE};
	// the second byte is one too far, but it lies in a page that is mapped
	EXPECT_GT(0, peer()->write(region, view_length - 1, two, sizeof(two)));
	EXPECT_GT(0, peer()->write(region, view_length, two, 1));
	const std::vector<uint8_t> after = deviceBytes(buffer, offset + view_length, 16);
	EXPECT_EQ(pattern(offset + view_length, 16), after);
}

TEST_P(Offset_, GivenUnalignedLengthsWhenPeerReadsThenExactlyThose)
{
	NEEDS_PEER();
	const Buffer buffer = filledBuffer();
	NEEDS(canSeeDevice(buffer), "no way to fill the buffer");
	const std::pair<uint64_t, uint64_t> ranges[] = {
		{0x180, 384}, {0xF80, 0x100}, {0, 1}, {buffer.size - 1, 1}, {0xFFF, 2}};
	for (const auto &[offset, length] : ranges) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, offset, length, &reg));
		std::vector<uint8_t> seen(length);
		ASSERT_EQ(0, peer()->read(world().region(reg), 0, seen.data(), length))
			<< "offset " << offset << ", length " << length;
		EXPECT_EQ(pattern(offset, length), seen);
		EXPECT_PB_OK(world().deregister(reg));
	}
}

TEST_P(Offset_, GivenIovaWithTheOffsetsLowBitsThenPeersUseIt)
{
	const Buffer buffer = filledBuffer();
	constexpr uint64_t offset = 0x10010;
	constexpr uint64_t iova = 0x7F0000123010;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, offset, view_length, &reg, usual_access, nullptr, iova));
	const RegionInfo region = world().region(reg);
	// a software data path addresses by its own rules, which its library fixed
	NEEDS(region.handle_kind != PEERBUF_HANDLE_CPU,
	      "importer " + importer().spec.text() + " does not work with addresses of our choice");
	EXPECT_EQ(iova, region.remote_base);
	NEEDS_PEER();
	std::vector<uint8_t> seen(view_length);
	ASSERT_EQ(0, peer()->read(region, 0, seen.data(), seen.size()));
	EXPECT_EQ(pattern(offset, view_length), seen);
}

TEST_P(Offset_, Rule33_GivenIovaWithOtherLowBitsThenBadGeometry)
{
	const Buffer buffer = filledBuffer();
	expectBadGeometry(buffer, 0x1000, 0x1000, 0x1000, 0x7F0000000123, 0x7F0000000123);
}

TEST_P(Offset_, Rule33_GivenRangePastTheEndThenBadGeometry)
{
	const Buffer buffer = filledBuffer();
	expectBadGeometry(buffer, buffer.size - 0x1000, 0x1001, buffer.size, 0x1001);
	expectBadGeometry(buffer, buffer.size, 1, buffer.size, 1);
	// and one that ends exactly there is right
	peerbuf_reg_t reg = 0;
	EXPECT_PB_OK(registerRange(buffer, buffer.size - 0x1000, 0x1000, &reg));
}

TEST_P(Offset_, Rule33_GivenOverflowThenBadGeometry)
{
	const Buffer buffer = filledBuffer();
	expectBadGeometry(buffer, UINT64_MAX - 4095, 8192, UINT64_MAX - 4095, 8192);
	expectBadGeometry(buffer, 4096, UINT64_MAX, 4096, UINT64_MAX);
}

TEST_P(Offset_, Rule33_GivenLengthZeroThenBadGeometry)
{
	const Buffer buffer = filledBuffer();
	expectBadGeometry(buffer, 0x3000, 0, 0x3000, 0);
}

TEST_P(Offset_, GivenBadGeometryFirstThenTheNextRegistrationIsAsGood)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t bad = 0;
	EXPECT_PB_ERROR(registerRange(buffer, buffer.size, 1, &bad), -EINVAL,
			PEERBUF_ERR_BAD_GEOMETRY);
	peerbuf_reg_t good = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &good));
	EXPECT_EQ(verdict().flow, world().regInfo(good).flow);
}

class OffsetLimit_ : public PairTest
{
};

TEST_P(OffsetLimit_, GivenRegionLongerThanTheImportersThenDeviceLimit)
{
	const uint64_t longest = importer().offer.max_length;
	const Buffer buffer = world().alloc(exporter(), longest + 1);
	peerbuf_reg_t reg = 0;
	EXPECT_GT(0, registerRange(buffer, 0, longest + 1, &reg));
	const LastError error = LastError::take();
	EXPECT_EQ(PEERBUF_ERR_DEVICE_LIMIT, error.errc) << error.text();
	EXPECT_TRUE(test::mentions(error.text(), longest));
	EXPECT_TRUE(test::mentions(error.text(), longest + 1));
	EXPECT_TRUE(world().nothingHeld());
	EXPECT_PB_OK(registerRange(buffer, 0, longest, &reg));
}

TEST_P(Offset_, Rule4_GivenABufferThenItsSizeNeverChanges)
{
	const Buffer buffer = world().alloc(exporter(), buffer_size + 1);
	ASSERT_NE(0u, buffer.id);
	EXPECT_EQ(0u, buffer.size % exporter().offer.granularity);
	EXPECT_GE(buffer.size, buffer_size + 1);
	const auto size = [&] {
		peerbuf_buffer_info info = {};
		info.struct_size = sizeof(info);
		EXPECT_PB_OK(peerbuf_query_buffer(world().ctx(), buffer.id, &info));
		return info.size;
	};
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg));
	EXPECT_EQ(buffer.size, size());
	if (exporter().offer.revoke == PEERBUF_REVOKE_MAY && HAS_OP(exporter().ops, revoke) &&
	    HAS_OP(exporter().ops, restore)) {
		revoke(buffer);
		EXPECT_EQ(buffer.size, size());
		EXPECT_PB_OK(world().deregister(reg));
		restore(buffer);
		EXPECT_EQ(buffer.size, size());
	}
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OffsetLimit_);
INSTANTIATE_TEST_SUITE_P(Pairs, OffsetLimit_, testing::ValuesIn(limitedPairs()), pairName);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Offset_);
INSTANTIATE_TEST_SUITE_P(Pairs, Offset_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
