// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file traffic_test.cpp
 * Regions made by the plugin on real providers, used by a peer that is plain libfabric.
 */
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rdma/fi_errno.h>

#include "support.h"
#include "tools/peerbuf/rma.h"

namespace peerbuf::test
{
namespace
{

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tools::RmaCompletion;
using tools::RmaEndpoint;
using tools::RmaMemory;
using tools::RmaOp;
using tools::RmaOptions;
using tools::RmaTransfer;

constexpr uint64_t offsetOfMapping = 3 * page;
/* Polls of both sides after which something that has not happened is taken never to happen; a
 * transfer takes some tens of them. */
constexpr int manyPolls = 20000;

struct Case {
	std::string provider;
	int mrMode;
};

std::string caseName(const ::testing::TestParamInfo<Case> &info)
{
	std::string name = info.param.provider;
	name += info.param.mrMode == 0				 ? "_offsets"
		: info.param.mrMode == RmaOptions::basicMrMode	 ? "_basic"
		: info.param.mrMode == RmaOptions::defaultMrMode ? "_default"
								 : "_virtual_addresses";
	std::replace_if(
		name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
	return name;
}

class FabricTrafficOn : public ::testing::TestWithParam<Case>
{
protected:
	static std::unique_ptr<RmaEndpoint> endpoint(const Case &c, std::string &error)
	{
		RmaOptions options;
		options.provider = c.provider;
		options.mrMode = c.mrMode;
		return RmaEndpoint::create(options, error);
	}

	void SetUp() override
	{
		{
			/* what libfabric opens at the first use, and keeps */
			std::string error;
			const auto a = endpoint(GetParam(), error);
			const auto b = endpoint(GetParam(), error);
		}
		fdsBefore_ = openFds();
		std::string error;
		target_ = endpoint(GetParam(), error);
		ASSERT_NE(target_, nullptr) << error;
		newInitiator();
		openImporter({});
	}

	void newInitiator()
	{
		std::string error;
		initiator_.reset();
		initiator_ = endpoint(GetParam(), error);
		ASSERT_NE(initiator_, nullptr) << error;
		ASSERT_EQ(initiator_->addPeer(target_->name(), &peer_, error), 0) << error;
	}

	void openImporter(Params params)
	{
		/* test_env sets FI_SHM_DISABLE_CMA for every process here */
		params.emplace_back("peers_without_cma", "yes");
		int err = 0;
		const auto objects = objectsOf(target_->domain(), target_->info(), target_->ep());
		importer_ = OpenImporter::open(host_, &objects, params, &err);
		ASSERT_EQ(err, 0) << host_.why();
	}

	void TearDown() override
	{
		if (!importer_)
			return;
		EXPECT_EQ(importer_->stats().regions, 0u);
		EXPECT_EQ(importer_->stats().keys_used, 0u);
		importer_.reset();
		initiator_.reset();
		target_.reset();
		EXPECT_EQ(openFds(), fdsBefore_);
		EXPECT_THAT(host_.warnings(), IsEmpty());
	}

	bool providerKeys() const
	{
		return target_->info()->domain_attr->mr_mode &
		       (FI_MR_PROV_KEY | RmaOptions::basicMrMode);
	}

	peerbuf_region reg(uint64_t offset, uint64_t length, uint32_t access)
	{
		peerbuf_region region = {};
		EXPECT_EQ(importer_->reg(memory_.request(offset, length, access), &region), 0)
			<< host_.why();
		return region;
	}

	static RmaTransfer transferOf(RmaOp op, const peerbuf_region &region, uint64_t at,
				      void *data, size_t length, fi_addr_t peer)
	{
		RmaTransfer t;
		t.op = op;
		t.peer = peer;
		t.data = data;
		t.length = length;
		t.remoteAddr = region.remote_base + at;
		t.key = region.key64;
		return t;
	}

	void serve()
	{
		RmaCompletion completion;
		const int rc = target_->pollOnce(&completion);
		EXPECT_EQ(rc, 0) << completion.what;
	}

	int move(RmaOp op, const peerbuf_region &region, uint64_t at, void *data, size_t length)
	{
		std::string error;
		const int rc = initiator_->transfer(
			transferOf(op, region, at, data, length, peer_), limit, [this] { serve(); },
			error);
		EXPECT_EQ(rc, 0) << error;
		return rc;
	}

	/**
	 * An access that must not succeed. @return libfabric's error, or 0 when after many polls
	 * there is none: shm and udp do not tell the initiator.
	 */
	int forbidden(RmaOp op, const peerbuf_region &region, void *data, size_t length)
	{
		std::string error;
		bool posted = false;
		for (int i = 0; i < manyPolls; i++) {
			if (!posted) {
				const int rc = initiator_->post(
					transferOf(op, region, 0, data, length, peer_), error);
				if (rc && rc != -EAGAIN)
					return rc;
				posted = rc == 0;
			}
			RmaCompletion completion;
			const int rc = initiator_->pollOnce(&completion);
			EXPECT_FALSE(rc == 1 && completion.status == 0) << "it was let through";
			if (rc)
				return completion.status;
			serve();
		}
		EXPECT_TRUE(posted);
		return 0;
	}

	FakeHost host_;
	Memory memory_{64 * page, offsetOfMapping};
	size_t fdsBefore_ = 0;
	std::unique_ptr<RmaEndpoint> target_;
	std::unique_ptr<RmaEndpoint> initiator_;
	std::unique_ptr<OpenImporter> importer_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

std::vector<uint8_t> pattern(size_t length, uint8_t seed)
{
	std::vector<uint8_t> bytes(length);
	for (size_t i = 0; i < length; i++)
		bytes[i] = static_cast<uint8_t>(seed + i * 31 + i / 255);
	return bytes;
}

TEST_P(FabricTrafficOn, GivenModeThenTheProviderWorksInIt)
{
	const int mode = target_->info()->domain_attr->mr_mode;
	if (GetParam().mrMode == 0) {
		EXPECT_EQ(mode, 0);
	}
	if (GetParam().mrMode == FI_MR_VIRT_ADDR) {
		EXPECT_TRUE(mode & FI_MR_VIRT_ADDR);
	}
	if (GetParam().mrMode == RmaOptions::basicMrMode) {
		EXPECT_EQ(mode, RmaOptions::basicMrMode);
	}
}

TEST_P(FabricTrafficOn, GivenWholeBufferThenEveryByteArrivesBothWays)
{
	const auto region = reg(offsetOfMapping, memory_.size(), readWrite);
	auto out = pattern(memory_.size(), 1);
	ASSERT_EQ(move(RmaOp::Write, region, 0, out.data(), out.size()), 0);
	EXPECT_EQ(std::memcmp(memory_.data(), out.data(), out.size()), 0);

	const auto changed = pattern(memory_.size(), 99);
	std::copy(changed.begin(), changed.end(), memory_.data());
	std::vector<uint8_t> in(memory_.size());
	ASSERT_EQ(move(RmaOp::Read, region, 0, in.data(), in.size()), 0);
	EXPECT_EQ(in, changed);
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenInteriorRangeThenNeighboursStay)
{
	constexpr uint64_t into = 5 * page + 123;
	constexpr size_t length = 2 * page + 77;
	std::fill_n(memory_.data(), memory_.size(), 0xee);
	const auto region = reg(offsetOfMapping + into, length, readWrite);
	auto out = pattern(length, 7);
	ASSERT_EQ(move(RmaOp::Write, region, 0, out.data(), length), 0);
	EXPECT_EQ(std::memcmp(memory_.data() + into, out.data(), length), 0);
	const std::vector<uint8_t> before(memory_.data(), memory_.data() + into);
	const std::vector<uint8_t> after(memory_.data() + into + length,
					 memory_.data() + memory_.size());
	EXPECT_THAT(before, Each(0xee));
	EXPECT_THAT(after, Each(0xee));

	/* the first and the last byte by themselves */
	uint8_t first = 0x11;
	uint8_t last = 0x22;
	ASSERT_EQ(move(RmaOp::Write, region, 0, &first, 1), 0);
	ASSERT_EQ(move(RmaOp::Write, region, length - 1, &last, 1), 0);
	EXPECT_EQ(memory_.data()[into - 1], 0xee);
	EXPECT_EQ(memory_.data()[into], 0x11);
	EXPECT_EQ(memory_.data()[into + length - 1], 0x22);
	EXPECT_EQ(memory_.data()[into + length], 0xee);
	uint8_t back = 0;
	ASSERT_EQ(move(RmaOp::Read, region, length - 1, &back, 1), 0);
	EXPECT_EQ(back, 0x22);
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenKeysOfTheApplicationThenOursStepAside)
{
	std::string error;
	std::vector<uint8_t> own(page);
	std::vector<RmaMemory> taken(5); /* keys 1 to 5 */
	for (auto &memory : taken)
		ASSERT_EQ(target_->expose(own.data(), own.size(), FI_REMOTE_READ | FI_REMOTE_WRITE,
					  &memory, error),
			  0)
			<< error;
	if (!providerKeys()) {
		importer_.reset();
		openImporter({{"key_base", "1"}});
	}
	const auto region = reg(offsetOfMapping, page, readWrite);
	for (const auto &memory : taken)
		EXPECT_NE(region.key64, memory.key);
	if (!providerKeys()) {
		EXPECT_EQ(region.key64, 6u);
	}
	auto out = pattern(page, 3);
	ASSERT_EQ(move(RmaOp::Write, region, 0, out.data(), page), 0);
	EXPECT_EQ(std::memcmp(memory_.data(), out.data(), page), 0);
	EXPECT_THAT(own, Each(0));
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenReadOnlyRegionThenAWriteDoesNotArrive)
{
	std::fill_n(memory_.data(), memory_.size(), 0x44);
	const auto region = reg(offsetOfMapping, page, PEERBUF_ACCESS_REMOTE_READ);
	std::vector<uint8_t> in(page);
	ASSERT_EQ(move(RmaOp::Read, region, 0, in.data(), page), 0);
	EXPECT_THAT(in, Each(0x44));
	auto out = pattern(page, 9);
	RecordProperty("error", forbidden(RmaOp::Write, region, out.data(), page));
	EXPECT_THAT(std::vector<uint8_t>(memory_.data(), memory_.data() + page), Each(0x44));
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenDeregisteredRegionThenItsKeyIsDead)
{
	std::fill_n(memory_.data(), memory_.size(), 0x44);
	for (const RmaOp op : {RmaOp::Write, RmaOp::Read}) {
		const auto region = reg(offsetOfMapping, page, readWrite);
		auto data = std::vector<uint8_t>(page, 0x44);
		ASSERT_EQ(move(op, region, 0, data.data(), page), 0);
		importer_->dereg(region.token);
		std::fill(data.begin(), data.end(), 0x99);
		const int rc = forbidden(op, region, data.data(), page);
		RecordProperty(op == RmaOp::Write ? "write" : "read", rc);
		/* nothing went in either direction */
		EXPECT_THAT(std::vector<uint8_t>(memory_.data(), memory_.data() + page),
			    Each(0x44));
		EXPECT_THAT(data, Each(0x99));
		/* the key is lost for this peer alone: a new one works with the target */
		newInitiator();
	}
	const auto region = reg(offsetOfMapping, page, readWrite);
	auto out = pattern(page, 5);
	ASSERT_EQ(move(RmaOp::Write, region, 0, out.data(), page), 0);
	EXPECT_EQ(std::memcmp(memory_.data(), out.data(), page), 0);
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenAFailureAtAStepThenTheDomainIsAsBefore)
{
	for (const char *step : {"reg", "populate", "fi_mr_regattr"}) {
		if (std::string(step) == "populate" && GetParam().mrMode != RmaOptions::basicMrMode)
			continue; /* only where the provider asks for pages */
		ASSERT_EQ(importer_->fault(step, 0, 1, -ENOMEM), 0);
		peerbuf_region region = {};
		EXPECT_EQ(
			importer_->reg(memory_.request(offsetOfMapping, page, readWrite), &region),
			-ENOMEM);
		EXPECT_FALSE(host_.why().empty());
		EXPECT_EQ(importer_->stats().keys_used, 0u);
	}
	const auto region = reg(offsetOfMapping, page, readWrite);
	uint8_t byte = 1;
	ASSERT_EQ(move(RmaOp::Write, region, 0, &byte, 1), 0);
	importer_->dereg(region.token);
}

TEST_P(FabricTrafficOn, GivenTenThousandRegionsThenAllAreDistinctAndAllGo)
{
	constexpr size_t n = 10000;
	std::vector<peerbuf_region> regions(n);
	std::set<uint64_t> keys;
	for (size_t i = 0; i < n; i++) {
		const uint64_t offset = offsetOfMapping + (i * 64) % memory_.size();
		ASSERT_EQ(importer_->reg(memory_.request(offset, 64, readWrite), &regions[i]), 0)
			<< host_.why();
		keys.insert(regions[i].key64);
	}
	EXPECT_EQ(keys.size(), n);
	EXPECT_EQ(importer_->stats().regions, n);
	uint8_t byte = 0x77;
	ASSERT_EQ(move(RmaOp::Write, regions[n - 1], 63, &byte, 1), 0);
	EXPECT_EQ(memory_.data()[((n - 1) * 64) % memory_.size() + 63], 0x77);
	for (const auto &region : regions)
		importer_->dereg(region.token);
	EXPECT_EQ(importer_->stats().regions, 0u);
}

TEST_P(FabricTrafficOn, GivenSeveralThreadsThenTheirRegionsDoNotMix)
{
	constexpr int nThreads = 4;
	constexpr int rounds = 300;
	std::atomic<int> bad = 0;
	std::vector<std::thread> threads;
	threads.reserve(nThreads);
	for (int t = 0; t < nThreads; t++) {
		threads.emplace_back([&, t] {
			for (int i = 0; i < rounds; i++) {
				const uint64_t into = static_cast<uint64_t>(t) * page;
				peerbuf_region region = {};
				const auto request =
					memory_.request(offsetOfMapping + into, page, readWrite);
				if (importer_->reg(request, &region) || !region.native)
					bad++;
				else
					importer_->dereg(region.token);
			}
		});
	}
	for (auto &thread : threads)
		thread.join();
	EXPECT_EQ(bad, 0) << host_.why();
}

const std::vector<Case> &everyCase()
{
	static const std::vector<Case> cases = {
		{"tcp;ofi_rxm", 0},
		{"tcp;ofi_rxm", RmaOptions::basicMrMode},
		{"tcp;ofi_rxm", RmaOptions::defaultMrMode},
		{"tcp", 0},
		{"tcp", RmaOptions::defaultMrMode},
		{"shm", 0},
		{"shm", FI_MR_VIRT_ADDR},
		{"shm", RmaOptions::basicMrMode},
		{"net", 0},
		{"net", RmaOptions::basicMrMode},
		{"sockets", 0},
		{"sockets", RmaOptions::basicMrMode},
	};
	return cases;
}

bool isHere(const Case &c)
{
	if (leftOut(c.provider))
		return false;
	std::string error;
	RmaOptions options;
	options.provider = c.provider;
	options.mrMode = c.mrMode;
	const auto endpoint = RmaEndpoint::create(options, error);
	return endpoint && endpoint->provider() == c.provider;
}

std::vector<Case> casesHere()
{
	std::vector<Case> here;
	std::copy_if(everyCase().begin(), everyCase().end(), std::back_inserter(here), isHere);
	return here;
}

TEST(FabricTraffic, GivenThisLibfabricThenEveryCaseIsTested)
{
	std::string missing;
	for (const Case &c : everyCase()) {
		if (!isHere(c))
			missing +=
				(missing.empty() ? "" : ", ") + caseName({c, 0}) +
				(leftOut(c.provider) ? " (" + std::string(leftOut(c.provider)) + ")"
						     : "");
	}
	EXPECT_FALSE(casesHere().empty());
	if (!missing.empty())
		GTEST_SKIP() << "not here in this libfabric, as datagram RMA: " << missing;
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricTrafficOn, ::testing::ValuesIn(casesHere()), caseName);

} // namespace
} // namespace peerbuf::test
