// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file region_test.cpp
 * Regions on a stand-in domain: every mr_mode, every error, and nothing left behind.
 */
#include <atomic>
#include <cerrno>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rdma/fi_errno.h>

#include "stand_in_domain.h"
#include "support.h"

namespace peerbuf::test
{
namespace
{

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t regionOffset = 16 * page;

class FabricRegion : public ::testing::Test
{
protected:
	void open(const std::string &provider, int mrMode, const Params &params = {})
	{
		domain_ = std::make_unique<StandInDomain>(provider, mrMode);
		reopen(params);
	}
	void reopen(const Params &params = {})
	{
		importer_.reset();
		int err = 0;
		const auto objects = objectsOf(domain_->domain(), domain_->info(), domain_->ep());
		importer_ = OpenImporter::open(host_, &objects, params, &err);
		ASSERT_EQ(err, 0) << host_.why();
	}
	int reg(const peerbuf_reg_request &request) { return importer_->reg(request, &region_); }

	void TearDown() override
	{
		if (!importer_)
			return;
		const auto stats = importer_->stats();
		EXPECT_EQ(stats.regions, 0u);
		EXPECT_EQ(stats.keys_used, 0u);
		EXPECT_EQ(stats.translations, 0u);
		importer_.reset();
		EXPECT_EQ(domain_->live, 0u);
		EXPECT_EQ(domain_->breaches, 0u);
		EXPECT_THAT(host_.warnings(), IsEmpty());
	}

	FakeHost host_;
	Memory memory_{8 * page, regionOffset};
	std::unique_ptr<StandInDomain> domain_;
	std::unique_ptr<OpenImporter> importer_;
	peerbuf_region region_ = {};
};

TEST_F(FabricRegion, GivenOffsetModeThenBaseIs0AndTheInteriorIsRegistered)
{
	open("tcp", 0, {{"key_base", "0x42"}});
	ASSERT_EQ(reg(memory_.request(regionOffset + 100, 5000, readWrite)), 0) << host_.why();
	EXPECT_EQ(domain_->lastBase, memory_.data() + 100);
	EXPECT_EQ(domain_->lastLength, 5000u);
	EXPECT_EQ(region_.remote_base, 0u);
	EXPECT_EQ(region_.key64, 0x42u);
	EXPECT_EQ(region_.raw_key_size, 0u);
	EXPECT_EQ(region_.native, region_.desc); /* the stand-in's descriptor is the region */
	EXPECT_EQ(importer_->stats().regions, 1u);
	EXPECT_TRUE(domain_->laterFieldsZero);
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenVirtualAddressModeThenBaseIsTheAddress)
{
	open("tcp", FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
	auto request = memory_.request(regionOffset + page, page, readWrite);
	const auto address = reinterpret_cast<uintptr_t>(memory_.data() + page);
	ASSERT_EQ(reg(request), 0) << host_.why();
	EXPECT_EQ(region_.remote_base, address);
	EXPECT_EQ(region_.key64, 0x700u);
	importer_->dereg(region_.token);

	request.iova = address;
	ASSERT_EQ(reg(request), 0) << host_.why();
	importer_->dereg(region_.token);

	request.iova = address + page;
	EXPECT_EQ(reg(request), -EINVAL);
	std::ostringstream both;
	both << "0x" << std::hex << address + page;
	EXPECT_THAT(host_.why(), HasSubstr(both.str()));
	both.str("");
	both << "0x" << std::hex << address;
	EXPECT_THAT(host_.why(), HasSubstr("the memory is at " + both.str()));
}

TEST_F(FabricRegion, GivenOffsetModeAndIovaThenItIsNoMatter)
{
	open("tcp", 0);
	auto request = memory_.request(regionOffset, page, readWrite);
	request.iova = 0x123000;
	ASSERT_EQ(reg(request), 0) << host_.why();
	EXPECT_EQ(region_.remote_base, 0u);
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenDeprecatedBasicModeThenAsVirtualAddressesAndProviderKeys)
{
	open("tcp", 1 << 0);
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << host_.why();
	EXPECT_EQ(region_.remote_base, reinterpret_cast<uintptr_t>(memory_.data()));
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenEndpointModeThenBoundAndEnabled)
{
	open("tcp", FI_MR_ENDPOINT);
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << host_.why();
	EXPECT_EQ(domain_->enabled, 1u);
	EXPECT_EQ(domain_->breaches, 0u);
	importer_->dereg(region_.token);
	EXPECT_EQ(domain_->live, 0u);
}

TEST_F(FabricRegion, GivenRawKeysThenTheyAreCarriedUpToTheRoomThereIs)
{
	open("tcp", FI_MR_RAW | FI_MR_PROV_KEY | FI_MR_ENDPOINT);
	for (const size_t size : {size_t{1}, size_t{24}, size_t{PEERBUF_RAW_KEY_LEN}}) {
		domain_->rawKeySize = size;
		ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << host_.why();
		EXPECT_EQ(region_.raw_key_size, size);
		EXPECT_EQ(region_.raw_key[0], 1);
		EXPECT_EQ(region_.raw_key[size - 1], size);
		EXPECT_EQ(region_.remote_base, 0x5000u);
		importer_->dereg(region_.token);
	}
	domain_->rawKeySize = PEERBUF_RAW_KEY_LEN + 1;
	EXPECT_EQ(reg(memory_.request(regionOffset, page, readWrite)), -EOPNOTSUPP);
	EXPECT_THAT(host_.why(), AllOf(HasSubstr("65 bytes"), HasSubstr("at most 64")));
	EXPECT_EQ(domain_->live, 0u);
}

TEST_F(FabricRegion, GivenAccessThenExactlyThoseRightsAreGiven)
{
	open("tcp", 0);
	const struct {
		uint32_t access;
		uint64_t rights;
	} rows[] = {
		{0, FI_SEND | FI_WRITE},
		{PEERBUF_ACCESS_LOCAL_WRITE, FI_SEND | FI_WRITE | FI_RECV | FI_READ},
		{PEERBUF_ACCESS_REMOTE_READ, FI_SEND | FI_WRITE | FI_REMOTE_READ},
		{PEERBUF_ACCESS_REMOTE_WRITE, FI_SEND | FI_WRITE | FI_REMOTE_WRITE},
		{readWrite | PEERBUF_ACCESS_RELAXED_ORDERING,
		 FI_SEND | FI_WRITE | FI_RECV | FI_READ | FI_REMOTE_READ | FI_REMOTE_WRITE},
	};
	for (const auto &row : rows) {
		ASSERT_EQ(reg(memory_.request(regionOffset, page, row.access)), 0) << host_.why();
		EXPECT_EQ(domain_->lastAccess, row.rights) << row.access;
		importer_->dereg(region_.token);
	}
}

TEST_F(FabricRegion, GivenAccessThatCannotBeGivenThenRefusedByName)
{
	open("tcp", 0);
	EXPECT_EQ(reg(memory_.request(regionOffset, page, 1u << 9)), -EACCES);
	EXPECT_THAT(host_.why(), HasSubstr("0x200"));
	EXPECT_EQ(host_.errc(), PEERBUF_ERR_ACCESS);
	EXPECT_EQ(
		reg(memory_.request(regionOffset, page, readWrite | PEERBUF_ACCESS_REMOTE_ATOMIC)),
		-EACCES);
	EXPECT_THAT(host_.why(), AllOf(HasSubstr("remote atomic"), HasSubstr("capability")));

	domain_->info()->caps |= FI_ATOMIC;
	EXPECT_EQ(reg(memory_.request(regionOffset, page, PEERBUF_ACCESS_REMOTE_ATOMIC)), -EACCES);
	EXPECT_THAT(host_.why(), HasSubstr("no right for atomics alone"));
	ASSERT_EQ(
		reg(memory_.request(regionOffset, page, readWrite | PEERBUF_ACCESS_REMOTE_ATOMIC)),
		0);
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenBadGeometryThenRefusedWithTheNumbers)
{
	open("tcp", 0);
	const uint64_t end = regionOffset + memory_.size();
	const struct {
		uint64_t offset, length;
	} rows[] = {
		{regionOffset, 0},
		{regionOffset - 1, 10},
		{end - 1, 2},
		{end, 1},
		{end + page, 1},
		{UINT64_MAX, 2},
		{regionOffset, UINT64_MAX},
		{regionOffset, memory_.size() + 1},
	};
	for (const auto &row : rows) {
		EXPECT_EQ(reg(memory_.request(row.offset, row.length, readWrite)), -EINVAL);
		EXPECT_THAT(host_.why(), HasSubstr(std::to_string(row.length)));
		EXPECT_EQ(host_.errc(), PEERBUF_ERR_BAD_GEOMETRY);
	}
	ASSERT_EQ(reg(memory_.request(end - 1, 1, readWrite)), 0);
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenWhatASoftwareProviderCannotTakeThenRefused)
{
	open("tcp", 0);
	peerbuf_fd_export fd = {};
	fd.struct_size = sizeof(fd);
	fd.fd = 0;
	fd.size = page;
	auto request = memory_.request(regionOffset, page, readWrite);
	request.handle_kind = PEERBUF_HANDLE_FD;
	request.mapping = nullptr;
	request.fd_export = &fd;
	EXPECT_EQ(reg(request), -EOPNOTSUPP);
	EXPECT_THAT(host_.why(), HasSubstr("accept any descriptor without importing it"));

	request = memory_.request(regionOffset, page, readWrite);
	request.mapping = nullptr;
	EXPECT_EQ(reg(request), -EINVAL);
	EXPECT_THAT(host_.why(), HasSubstr("no CPU mapping"));

	for (const uint32_t flow : {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE}) {
		request = memory_.request(regionOffset, page, readWrite);
		request.flow = flow;
		EXPECT_EQ(reg(request), -EOPNOTSUPP);
	}

	request = memory_.request(regionOffset, page, readWrite);
	request.struct_size = 16;
	EXPECT_EQ(reg(request), -EINVAL);
	EXPECT_THAT(host_.why(), HasSubstr("struct_size 16"));
}

TEST_F(FabricRegion, GivenTakenKeysThenOthersAreTriedUpToABound)
{
	open("tcp", 0, {{"key_base", "10"}});
	domain_->takenKeys = {10, 11, 12};
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << host_.why();
	EXPECT_EQ(region_.key64, 13u);
	importer_->dereg(region_.token);

	for (uint64_t key = 0; key < 1000; key++)
		domain_->takenKeys.insert(key);
	EXPECT_EQ(reg(memory_.request(regionOffset, page, readWrite)), -ENOSPC);
	EXPECT_EQ(host_.errc(), PEERBUF_ERR_DEVICE_RESOURCES);
	EXPECT_THAT(host_.why(), AllOf(HasSubstr("from 0xe on"), HasSubstr("64 tried")));
}

TEST_F(FabricRegion, GivenShortKeysThenTheyWrapInsideTheirSize)
{
	domain_ = std::make_unique<StandInDomain>("tcp", 0);
	domain_->info()->domain_attr->mr_key_size = 1;
	domain_->info()->domain_attr->mr_cnt = 3;
	reopen({{"key_base", "0xff"}});
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	const auto first = region_;
	EXPECT_EQ(first.key64, 0xffu);
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	EXPECT_EQ(region_.key64, 0u);
	EXPECT_EQ(importer_->offer().keys_left, 1u);
	importer_->dereg(first.token);
	importer_->dereg(region_.token);
	EXPECT_EQ(importer_->offer().keys_left, 3u);
}

TEST_F(FabricRegion, GivenNoKeyBaseThenTwoImportersStartApart)
{
	open("tcp", 0);
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	const uint64_t first = region_.key64;
	importer_->dereg(region_.token);
	reopen();
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	EXPECT_NE(region_.key64, first); /* the same by chance once in 2^48 */
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenLibfabricsOwnErrorsThenTheyBecomeErrnos)
{
	open("tcp", FI_MR_PROV_KEY);
	const struct {
		int from, to;
	} rows[] = {
		{-FI_ENOKEY, -ENOSPC}, {-FI_ENOMEM, -ENOMEM},	     {-FI_ENOSYS, -EOPNOTSUPP},
		{-FI_EINVAL, -EINVAL}, {-FI_EBADFLAGS, -EOPNOTSUPP}, {-FI_EDOMAIN, -EIO},
		{-FI_EACCES, -EACCES},
	};
	for (const auto &row : rows) {
		domain_->regError = row.from;
		EXPECT_EQ(reg(memory_.request(regionOffset, page, readWrite)), row.to);
		EXPECT_THAT(host_.why(), AllOf(HasSubstr("fi_mr_regattr"), HasSubstr("test buffer"),
					       HasSubstr(fi_strerror(-row.from))));
	}
}

TEST_F(FabricRegion, GivenAFailureAtAnyStepThenNothingIsLeft)
{
	open("tcp", FI_MR_ENDPOINT | FI_MR_RAW | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
	const size_t fds = openFds();
	for (const char *step :
	     {"reg", "populate", "fi_mr_regattr", "fi_mr_bind", "fi_mr_enable", "fi_mr_raw_attr"}) {
		ASSERT_EQ(importer_->fault(step, 1, 1, -ENOMEM), 0);
		/* one is let through, the next fails, the third is let through again */
		ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << step;
		const uint64_t good = region_.token;
		EXPECT_EQ(reg(memory_.request(regionOffset, page, readWrite)), -ENOMEM) << step;
		EXPECT_FALSE(host_.why().empty());
		EXPECT_EQ(region_.token, 0u) << step; /* nothing was written */
		EXPECT_EQ(domain_->live, 1u) << step;
		EXPECT_EQ(importer_->stats().regions, 1u) << step;
		EXPECT_EQ(importer_->stats().keys_used, 1u) << step;
		importer_->dereg(good);
		ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0) << step;
		importer_->dereg(region_.token);
		EXPECT_EQ(domain_->live, 0u) << step;
	}
	EXPECT_EQ(openFds(), fds);
}

TEST_F(FabricRegion, GivenUnknownFaultStepThenTheListIsNamed)
{
	open("tcp", 0);
	EXPECT_EQ(importer_->fault("fi_mr_guess", 0, 1, -EIO), -ENOENT);
	EXPECT_THAT(host_.why(), AllOf(HasSubstr("fi_mr_guess"), HasSubstr("fi_close")));
	ASSERT_EQ(importer_->fault("reg", 0, 1, -EIO), 0);
	ASSERT_EQ(importer_->fault("reg", 0, 0, 0), 0); /* cleared */
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	importer_->dereg(region_.token);
}

TEST_F(FabricRegion, GivenMemoryThatIsNotThereThenAllocatedModeRefusesIt)
{
	open("tcp", FI_MR_ALLOCATED);
	Memory short_(4 * page);
	auto request = short_.request(0, 4 * page, readWrite);
	peerbuf_mapping hole = short_.mapping();
	/* nothing is mapped there */
	hole.cpu_addr = reinterpret_cast<void *>(page);
	request.mapping = &hole;
	EXPECT_EQ(reg(request), -ENOMEM);
	EXPECT_THAT(host_.why(), HasSubstr("FI_MR_ALLOCATED"));
}

TEST_F(FabricRegion, GivenRegionDeregisteredTwiceOrNeverMadeThenNothingHappens)
{
	open("tcp", 0);
	ASSERT_EQ(reg(memory_.request(regionOffset, page, readWrite)), 0);
	importer_->dereg(region_.token);
	importer_->dereg(region_.token);
	importer_->dereg(12345);
	importer_->dereg(0);
}

TEST_F(FabricRegion, GivenSeveralThreadsThenTheDomainIsEnteredByOneAtATime)
{
	open("tcp", FI_MR_ENDPOINT | FI_MR_RAW);
	std::atomic<int> bad = 0;
	std::vector<std::thread> threads;
	threads.reserve(4);
	for (int t = 0; t < 4; t++) {
		threads.emplace_back([&] {
			for (int i = 0; i < 100; i++) {
				peerbuf_region region = {};
				if (importer_->reg(memory_.request(regionOffset, page, readWrite),
						   &region))
					bad++;
				else
					importer_->dereg(region.token);
			}
		});
	}
	for (auto &thread : threads)
		thread.join();
	EXPECT_EQ(bad, 0);
	EXPECT_EQ(domain_->breaches, 0u);
}

#ifdef FI_MR_DMABUF
TEST_F(FabricRegion, GivenHardwareProviderThenTheDmabufIsImported)
{
	domain_ = std::make_unique<StandInDomain>("verbs", FI_MR_VIRT_ADDR | FI_MR_PROV_KEY |
								   FI_MR_ALLOCATED | FI_MR_LOCAL);
	domain_->info()->caps |= FI_HMEM;
	reopen();
	const auto offer = importer_->offer();
	EXPECT_EQ(offer.software, 0u);
	EXPECT_EQ(offer.handles, PEERBUF_HANDLE_FD);

	peerbuf_fd_export fd = {};
	fd.struct_size = sizeof(fd);
	fd.fd = 0; /* a valid descriptor like any other */
	fd.offset = 3 * page;
	fd.size = 8 * page;
	auto request = memory_.request(7 * page, 5 * page, readWrite);
	request.handle_kind = PEERBUF_HANDLE_FD;
	request.mapping = nullptr;
	request.fd_export = &fd;
	ASSERT_EQ(reg(request), 0) << host_.why();
	EXPECT_EQ(domain_->lastFlags, FI_MR_DMABUF);
	EXPECT_EQ(domain_->lastFd, 0);
	EXPECT_EQ(domain_->lastFdOffset, 3 * page);
	EXPECT_EQ(domain_->lastLength, 5 * page);
	EXPECT_EQ(region_.remote_base, 3 * page); /* base_addr + offset */
	importer_->dereg(region_.token);

	request.iova = 0x7000'0000'0000;
	ASSERT_EQ(reg(request), 0) << host_.why();
	EXPECT_EQ(reinterpret_cast<uintptr_t>(domain_->lastBase) + 3 * page, request.iova);
	EXPECT_EQ(region_.remote_base, request.iova);
	importer_->dereg(region_.token);

	request.length = 5 * page + 1;
	EXPECT_EQ(reg(request), -EINVAL);
	EXPECT_THAT(host_.why(), HasSubstr("passes the end of the dma-buf"));
	fd.offset = 9 * page;
	request.length = 1;
	EXPECT_EQ(reg(request), -EINVAL);
	fd.fd = -1;
	EXPECT_EQ(reg(request), -EINVAL);
	EXPECT_THAT(host_.why(), HasSubstr("no dma-buf descriptor"));
	request = memory_.request(regionOffset, page, readWrite);
	EXPECT_EQ(reg(request), -EOPNOTSUPP);
	EXPECT_THAT(host_.why(), HasSubstr("takes a dma-buf descriptor"));
}
#endif

/* The cases below warn, so they check for the warning and not for none. */

TEST(FabricClose, GivenRegionThatWillNotCloseThenWarnsCountsItAndTriesAgain)
{
	FakeHost host;
	StandInDomain domain("tcp", 0);
	const auto objects = objectsOf(domain.domain(), domain.info(), domain.ep());
	int err = 0;
	auto importer = OpenImporter::open(host, &objects, {{"key_base", "5"}}, &err);
	ASSERT_NE(importer, nullptr);
	Memory memory(page);
	peerbuf_region region;
	ASSERT_EQ(importer->reg(memory.request(0, page, readWrite), &region), 0);
	domain.closeError = -FI_EBUSY;
	importer->dereg(region.token);
	EXPECT_THAT(host.warnings(),
		    ElementsAre(AllOf(HasSubstr("fi_close"), HasSubstr("0x5"),
				      HasSubstr("test buffer"), HasSubstr(fi_strerror(FI_EBUSY)))));
	EXPECT_EQ(importer->stats().regions, 0u);
	EXPECT_EQ(importer->stats().keys_used, 1u);
	EXPECT_EQ(domain.live, 1u);

	domain.closeError = 0;
	importer->dereg(region.token); /* tries what is left over, knows no such region */
	EXPECT_EQ(importer->stats().keys_used, 0u);
	EXPECT_EQ(domain.live, 0u);
	EXPECT_EQ(host.warnings().size(), 1u);
}

TEST(FabricClose, GivenUnwindThatWillNotCloseThenTheFirstErrorStands)
{
	FakeHost host;
	StandInDomain domain("tcp", FI_MR_ENDPOINT);
	const auto objects = objectsOf(domain.domain(), domain.info(), domain.ep());
	int err = 0;
	auto importer = OpenImporter::open(host, &objects, {}, &err);
	ASSERT_NE(importer, nullptr);
	Memory memory(page);
	peerbuf_region region;
	ASSERT_EQ(importer->fault("fi_mr_enable", 0, 1, -EACCES), 0);
	ASSERT_EQ(importer->fault("fi_close", 0, 1, -EBUSY), 0);
	EXPECT_EQ(importer->reg(memory.request(0, page, readWrite), &region), -EACCES);
	EXPECT_THAT(host.why(), HasSubstr("fi_mr_enable"));
	EXPECT_EQ(host.warnings().size(), 1u);
	EXPECT_EQ(importer->stats().keys_used, 1u);
	importer.reset(); /* close tries once more */
	EXPECT_EQ(domain.live, 0u);
	EXPECT_EQ(host.warnings().size(), 1u);
}

TEST(FabricClose, GivenRegionThatNeverClosesThenCloseSaysWhatIsLeft)
{
	FakeHost host;
	StandInDomain domain("tcp", 0);
	const auto objects = objectsOf(domain.domain(), domain.info(), domain.ep());
	int err = 0;
	auto importer = OpenImporter::open(host, &objects, {}, &err);
	ASSERT_NE(importer, nullptr);
	Memory memory(page);
	peerbuf_region region;
	ASSERT_EQ(importer->reg(memory.request(0, page, readWrite), &region), 0);
	domain.closeError = -FI_EBUSY;
	importer->dereg(region.token);
	importer.reset();
	ASSERT_EQ(host.warnings().size(), 2u);
	EXPECT_THAT(host.warnings()[1], HasSubstr("left to the domain"));
	/* the stand-in's own memory */
	domain.closeError = 0;
	EXPECT_EQ(fi_close(static_cast<fid *>(region.native)), 0);
}

} // namespace
} // namespace peerbuf::test
