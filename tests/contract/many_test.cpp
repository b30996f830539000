// SPDX-License-Identifier: BSD-3-Clause
// Many_: several importers of one registration stand or fall together, unless asked otherwise.
#include <algorithm>
#include <cerrno>
#include <set>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;

class Many_ : public PairTest
{
protected:
	static constexpr size_t copies = 3;

	/** The pair's importer and more of the same kind. */
	std::vector<Importer *> importers()
	{
		std::vector<Importer *> all = {&importer()};
		while (all.size() < copies) {
			Importer *more = world().addImporter(GetParam().importer);
			if (!more)
				return {};
			all.push_back(more);
		}
		return all;
	}

	static std::vector<peerbuf_importer_t> ids(const std::vector<Importer *> &importers)
	{
		std::vector<peerbuf_importer_t> ids;
		ids.reserve(importers.size());
		for (const Importer *importer : importers)
			ids.push_back(importer->id);
		return ids;
	}

	static peerbuf_policy partialOk()
	{
		peerbuf_policy policy = {};
		policy.struct_size = sizeof(policy);
		policy.partial_ok = 1;
		return policy;
	}
};

TEST_P(Many_, GivenSeveralImportersWhenRegisteredThenEachReachesTheSameMemory)
{
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(world().registerRange(buffer, 0x1010, 0x8000, ids(all), usual_access, nullptr,
					   &reg));
	const RegInfo info = world().regInfo(reg);
	EXPECT_EQ(copies, info.n_importers);
	EXPECT_EQ(verdict().flow, info.flow);
	for (size_t i = 0; i < copies; i++) {
		const RegionInfo region = world().region(reg, i);
		EXPECT_EQ(0, region.status);
		EXPECT_EQ(all[i]->id, region.importer);
		EXPECT_EQ(verdict().flow, region.flow);
		std::string why;
		const std::unique_ptr<Peer> peer = makePeer(*all[i], &why);
		NEEDS(peer != nullptr, why);
		// each writes its own part, the next reads it
		const std::vector<uint8_t> mine = test::pattern(0, 64, i + 1);
		ASSERT_EQ(0, peer->write(region, i * 64, mine.data(), mine.size()));
		if (i > 0) {
			std::vector<uint8_t> before(64);
			ASSERT_EQ(0, peer->read(region, (i - 1) * 64, before.data(), 64));
			EXPECT_EQ(test::pattern(0, 64, i), before);
		}
	}
	RegionInfo beyond = {};
	beyond.struct_size = sizeof(beyond);
	EXPECT_GT(0, peerbuf_query_reg_importer(world().ctx(), reg, copies, &beyond));
}

TEST_P(Many_, GivenOneVariantThatServesAllThenOneExportAndOneWindowCharge)
{
	NEEDS_EXPORTER_OP(stats);
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(
		world().registerRange(buffer, 0, 0x8000, ids(all), usual_access, nullptr, &reg));
	std::set<uint32_t> variants;
	for (size_t i = 0; i < copies; i++)
		variants.insert(world().region(reg, i).variant);
	EXPECT_EQ(1u, variants.size());
	// one descriptor for the buffer, where it is handed over as one
	const bool by_fd = world().region(reg).handle_kind == PEERBUF_HANDLE_FD;
	EXPECT_EQ(by_fd ? 1 : 0, exporter().stats().exports);
	EXPECT_GE(0x8000u, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(verdict().charged_pin ? copies * 0x8000 : 0u,
		  test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
}

TEST_P(Many_, GivenOneImporterThatFailsThenNoneHasARegion)
{
	NEEDS_IMPORTER_OP(fault);
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	for (size_t bad = 0; bad < copies; bad++) {
		ASSERT_EQ(0, all[bad]->ops->fault(all[bad]->device, "reg", 0, UINT32_MAX, -EIO, 0));
		peerbuf_reg_t reg = 0;
		EXPECT_EQ(-EIO, world().registerRange(buffer, 0, 0x8000, ids(all), usual_access,
						      nullptr, &reg));
		EXPECT_FALSE(LastError::take().what.empty());
		EXPECT_TRUE(world().nothingHeld());
		EXPECT_EQ(0, all[bad]->ops->fault(all[bad]->device, "reg", 0, 0, 0, 0));
	}
}

TEST_P(Many_, GivenPartialIsFineWhenOneFailsThenTheOthersWorkAndItSaysWhy)
{
	NEEDS_IMPORTER_OP(fault);
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	constexpr size_t bad = 1;
	ASSERT_EQ(0, all[bad]->ops->fault(all[bad]->device, "reg", 0, UINT32_MAX, -EIO, 0));
	const peerbuf_policy policy = partialOk();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(
		world().registerRange(buffer, 0, 0x8000, ids(all), usual_access, &policy, &reg));
	EXPECT_EQ(0, all[bad]->ops->fault(all[bad]->device, "reg", 0, 0, 0, 0));
	EXPECT_EQ(copies, world().regInfo(reg).n_importers);
	for (size_t i = 0; i < copies; i++)
		EXPECT_EQ(i == bad ? -EIO : 0, world().region(reg, i).status);
	// who has no region pays nothing
	EXPECT_EQ(verdict().charged_pin ? (copies - 1) * 0x8000 : 0u,
		  test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
	NEEDS_PEER();
	uint8_t byte = 0;
	EXPECT_EQ(0, peer()->read(world().region(reg, 0), 0, &byte, 1));
}

TEST_P(Many_, GivenPartialIsFineWhenAllFailThenItIsAnError)
{
	NEEDS_IMPORTER_OP(fault);
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	for (const Importer *one : all)
		ASSERT_EQ(0, one->ops->fault(one->device, "reg", 0, UINT32_MAX, -EIO, 0));
	const peerbuf_policy policy = partialOk();
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EIO,
		  world().registerRange(buffer, 0, 0x8000, ids(all), usual_access, &policy, &reg));
	EXPECT_TRUE(world().nothingHeld());
	for (const Importer *one : all)
		EXPECT_EQ(0, one->ops->fault(one->device, "reg", 0, 0, 0, 0));
}

TEST_P(Many_, GivenTooManyOrNoneThenInvalid)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(world().registerRange(buffer, 0, 0x1000, {}, usual_access, nullptr, &reg),
			-EINVAL, PEERBUF_ERR_INVALID_ARGUMENT);
	const std::vector<peerbuf_importer_t> many(65, importer().id);
	EXPECT_PB_ERROR(world().registerRange(buffer, 0, 0x1000, many, usual_access, nullptr, &reg),
			-EINVAL, PEERBUF_ERR_INVALID_ARGUMENT);
	EXPECT_TRUE(test::mentions(LastError::take().text(), 65));
	EXPECT_TRUE(world().nothingHeld());
}

class ManyRevoke_ : public Many_
{
};

TEST_P(ManyRevoke_, GivenSeveralImportersWhenRevokedThenEachIsToldOnce)
{
	NEEDS_EXPORTER_OP(revoke);
	const std::vector<Importer *> all = importers();
	ASSERT_EQ(copies, all.size());
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(
		world().registerRange(buffer, 0, 0x8000, ids(all), usual_access, nullptr, &reg));
	std::vector<peerbuf_event> events = revoke(buffer);
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events, PEERBUF_EVENT_REVOKED, reg) >= copies; },
		&events));
	std::multiset<uint32_t> told;
	for (const peerbuf_event &event : events) {
		if (event.type == PEERBUF_EVENT_REVOKED)
			told.insert(event.importer_index);
	}
	EXPECT_EQ((std::multiset<uint32_t>{0, 1, 2}), told);
	for (size_t i = 0; i < copies; i++)
		EXPECT_EQ(1u, world().region(reg, i).revoked);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ManyRevoke_);
INSTANTIATE_TEST_SUITE_P(Pairs, ManyRevoke_, testing::ValuesIn(revokingPairs()), pairName);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Many_);
INSTANTIATE_TEST_SUITE_P(Pairs, Many_, testing::ValuesIn(workingPairs()), pairName);

/** Importers of every kind at once, on one exporter. */
class ManyKinds_ : public testing::TestWithParam<test::PluginSpec>
{
protected:
	void SetUp() override
	{
		const testing::TestInfo *test =
			testing::UnitTest::GetInstance()->current_test_info();
		watchdog_.emplace(test->name());
		exporter_ = world_.addExporter(GetParam());
		ASSERT_NE(nullptr, exporter_);
		for (const test::PluginSpec &spec : bench().importers) {
			Importer *importer = world_.addImporter(spec);
			ASSERT_NE(nullptr, importer);
			Request request;
			request.access = usual_access;
			importers_.push_back(importer);
			ids_.push_back(importer->id);
			verdicts_.push_back(judge(exporter_->offer, importer->offer, request));
		}
		buffer_ = world_.alloc(*exporter_, 0x10000);
		ASSERT_NE(0u, buffer_.id);
	}

	std::optional<test::Watchdog> watchdog_;
	World world_;
	Exporter *exporter_ = nullptr;
	std::vector<Importer *> importers_;
	std::vector<peerbuf_importer_t> ids_;
	std::vector<Verdict> verdicts_;
	Buffer buffer_;
};

TEST_P(ManyKinds_, GivenEveryImporterThenAllOrNothing)
{
	const bool all_work = std::all_of(verdicts_.begin(), verdicts_.end(),
					  [](const Verdict &verdict) { return verdict.works(); });
	peerbuf_reg_t reg = 0;
	const int rc = world_.registerRange(buffer_, 0, 0x4000, ids_, usual_access, nullptr, &reg);
	if (all_work) {
		EXPECT_TRUE(test::succeeded("peerbuf_register", rc));
		for (size_t i = 0; i < ids_.size(); i++)
			EXPECT_EQ(verdicts_[i].flow, world_.region(reg, i).flow);
	} else {
		EXPECT_GT(0, rc);
		EXPECT_FALSE(LastError::take().refusals.empty());
		EXPECT_TRUE(world_.nothingHeld());
	}
}

TEST_P(ManyKinds_, GivenEveryImporterAndPartialIsFineThenThoseThatCanDo)
{
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.partial_ok = 1;
	const bool any_works = std::any_of(verdicts_.begin(), verdicts_.end(),
					   [](const Verdict &verdict) { return verdict.works(); });
	peerbuf_reg_t reg = 0;
	const int rc = world_.registerRange(buffer_, 0, 0x4000, ids_, usual_access, &policy, &reg);
	if (!any_works) {
		EXPECT_GT(0, rc);
		return;
	}
	ASSERT_TRUE(test::succeeded("peerbuf_register", rc));
	uint32_t least = 0;
	for (size_t i = 0; i < ids_.size(); i++) {
		const RegionInfo region = world_.region(reg, i);
		SCOPED_TRACE(importers_[i]->spec.text());
		EXPECT_EQ(verdicts_[i].works(), region.status == 0)
			<< test::errnoName(region.status);
		if (verdicts_[i].works()) {
			EXPECT_STREQ(peerbuf_flow_name(verdicts_[i].flow),
				     peerbuf_flow_name(region.flow));
			least = std::max(least, region.flow);
		}
	}
	EXPECT_STREQ(peerbuf_flow_name(least), peerbuf_flow_name(world_.regInfo(reg).flow));
}

std::string exporterName(const testing::TestParamInfo<test::PluginSpec> &tested)
{
	return tested.param.label();
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ManyKinds_);
INSTANTIATE_TEST_SUITE_P(Exporters, ManyKinds_, testing::ValuesIn(bench().exporters), exporterName);

} // namespace

} // namespace peerbuf::contract
