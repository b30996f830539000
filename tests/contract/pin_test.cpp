// SPDX-License-Identifier: BSD-3-Clause
// Pin_: the flow is the one the table says, and memory is held, and paid for, exactly as it says.
#include <algorithm>
#include <cerrno>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;

class PinTable_ : public PairTest
{
protected:
	/** Register with a policy and compare with the oracle's opinion of it. */
	void expectAsJudged(const peerbuf_policy &policy)
	{
		Request request;
		request.access = usual_access;
		request.host_placement_ok = policy.host_placement_ok != 0;
		request.ceiling = policy.ceiling;
		const Verdict expected = judge(exporter().offer, importer().offer, request);
		const Buffer buffer = filledBuffer();
		peerbuf_reg_t reg = 0;
		const int rc = registerRange(buffer, 0, 0x4000, &reg, usual_access, &policy);
		if (!expected.works()) {
			expectRefused(rc, expected);
			EXPECT_TRUE(world().nothingHeld());
			return;
		}
		ASSERT_TRUE(test::succeeded("peerbuf_register", rc));
		const RegInfo info = world().regInfo(reg);
		EXPECT_STREQ(peerbuf_flow_name(expected.flow), peerbuf_flow_name(info.flow));
		EXPECT_EQ(expected.flow, world().region(reg).flow);
		if (exporter().offer.management == PEERBUF_MANAGED_BY_USER) {
			EXPECT_EQ(PEERBUF_KNOWN_NEGOTIATED, info.how_known);
			EXPECT_EQ(PEERBUF_FLOW_BIT(expected.flow), info.flows_possible);
		}
		expectRefusalsAbove(reg, info);
		if (HAS_OP(exporter().ops, stats)) {
			EXPECT_EQ(expected.charged_pin ? 1 : 0, exporter().stats().pins);
			EXPECT_EQ(1u, exporter().stats().attachments);
		}
	}

	static void expectRefused(int rc, const Verdict &expected)
	{
		ASSERT_GT(0, rc) << "must be refused: " << expected.why;
		const LastError error = LastError::take();
		EXPECT_EQ(rc, error.err);
		if (expected.err != 0) {
			EXPECT_EQ(test::errnoName(expected.err), test::errnoName(rc))
				<< error.text();
		}
		if (expected.errc != PEERBUF_OK) {
			EXPECT_STREQ(peerbuf_errc_name(expected.errc),
				     peerbuf_errc_name(error.errc))
				<< error.text();
		}
		EXPECT_FALSE(error.what.empty());
		ASSERT_FALSE(error.refusals.empty()) << "refusals are data: " << error.what;
		for (const peerbuf_refusal &refusal : error.refusals)
			expectComplete(refusal);
	}

	static void expectComplete(const peerbuf_refusal &refusal)
	{
		EXPECT_STRNE("", refusal.who);
		EXPECT_STRNE("", refusal.capability);
		EXPECT_STRNE("", refusal.why);
	}

	/** What was obtained comes with why nothing better was. */
	void expectRefusalsAbove(peerbuf_reg_t reg, const RegInfo &info)
	{
		for (uint32_t i = 0; i < info.n_refusals; i++) {
			peerbuf_refusal refusal = {};
			refusal.struct_size = sizeof(refusal);
			ASSERT_PB_OK(peerbuf_query_refusal(world().ctx(), reg, i, &refusal));
			expectComplete(refusal);
			EXPECT_LT(refusal.flow, info.flow) << refusal.why;
		}
		const bool moves = exporter().offer.stability == PEERBUF_STABILITY_MOVES;
		if (moves && info.flow > PEERBUF_FLOW_MOVABLE) {
			EXPECT_LT(0u, info.n_refusals) << "not Movable, and no reason given";
		}
		peerbuf_refusal beyond = {};
		beyond.struct_size = sizeof(beyond);
		EXPECT_EQ(-ENOENT,
			  peerbuf_query_refusal(world().ctx(), reg, info.n_refusals, &beyond));
	}

	static peerbuf_policy policyWith(uint32_t ceiling, uint32_t host_ok = 0)
	{
		peerbuf_policy policy = {};
		policy.struct_size = sizeof(policy);
		policy.ceiling = ceiling;
		policy.host_placement_ok = host_ok;
		return policy;
	}
};

TEST_P(PinTable_, GivenAPairWhenRegisteredThenTheFlowIsTheTables)
{
	expectAsJudged(policyWith(PEERBUF_FLOW_NONE));
}

TEST_P(PinTable_, GivenHostPlacementAllowedThenTheFlowIsTheTables)
{
	expectAsJudged(policyWith(PEERBUF_FLOW_NONE, 1));
}

TEST_P(PinTable_, GivenACeilingThenNoBetterFlowIsTaken)
{
	for (const uint32_t ceiling :
	     {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE, PEERBUF_FLOW_PINNED}) {
		SCOPED_TRACE(std::string("ceiling ") + peerbuf_flow_name(ceiling));
		expectAsJudged(policyWith(ceiling));
		world().deregisterAll();
	}
}

TEST_P(PinTable_, GivenAPairWhenNegotiatedThenTheSameAnswerAndNothingTouched)
{
	uint32_t flow = PEERBUF_FLOW_NONE;
	size_t n = 0;
	const int rc = peerbuf_negotiate(world().ctx(), exporter().id, importer().id, usual_access,
					 nullptr, &flow, nullptr, 0, &n);
	EXPECT_TRUE(world().nothingHeld());
	if (verdict().works()) {
		ASSERT_TRUE(test::succeeded("peerbuf_negotiate", rc));
		EXPECT_STREQ(peerbuf_flow_name(verdict().flow), peerbuf_flow_name(flow));
	} else {
		expectRefused(rc, verdict());
		EXPECT_LT(0u, n);
	}
	std::vector<peerbuf_refusal> refusals(n);
	for (peerbuf_refusal &refusal : refusals)
		refusal.struct_size = sizeof(refusal);
	size_t again = 0;
	EXPECT_EQ(rc, peerbuf_negotiate(world().ctx(), exporter().id, importer().id, usual_access,
					nullptr, &flow, refusals.data(), refusals.size(), &again));
	EXPECT_EQ(n, again);
	std::for_each(refusals.begin(), refusals.end(), expectComplete);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PinTable_);
INSTANTIATE_TEST_SUITE_P(AllPairs, PinTable_, testing::ValuesIn(allPairs()), pairName);

class PinDeaf_ : public PairTest
{
};

TEST_P(PinDeaf_, Rule52_GivenARevokingExporterAndADeafImporterThenRevokeUnsupported)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &reg), -EOPNOTSUPP,
			PEERBUF_ERR_REVOKE_UNSUPPORTED);
	EXPECT_TRUE(world().nothingHeld());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PinDeaf_);
INSTANTIATE_TEST_SUITE_P(Pairs, PinDeaf_, testing::ValuesIn(deafPairs()), pairName);

class PinHost_ : public PairTest
{
};

TEST_P(PinHost_, GivenNoPeerToPeerWhenHostIsAllowedThenHostPlacementIsReportedAndTrue)
{
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.host_placement_ok = 1;
	NEEDS_PEER();
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x4000, &reg, usual_access, &policy));
	const RegionInfo region = world().region(reg);
	EXPECT_EQ(0u, region.peer2peer);
	EXPECT_EQ(uint32_t{PEERBUF_PLACEMENT_HOST}, region.placement);
	// the device and the peer see the same bytes, wherever they are now
	std::vector<uint8_t> seen(0x4000);
	ASSERT_EQ(0, peer()->read(region, 0, seen.data(), seen.size()));
	EXPECT_EQ(test::pattern(0, seen.size()), seen);
	const std::vector<uint8_t> written = test::pattern(0, 0x4000, 7);
	ASSERT_EQ(0, peer()->write(region, 0, written.data(), written.size()));
	EXPECT_EQ(written, deviceBytes(buffer, 0, written.size()));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PinHost_);
INSTANTIATE_TEST_SUITE_P(Pairs, PinHost_, testing::ValuesIn(hostPairs()), pairName);

class Pin_ : public PairTest
{
protected:
	int64_t pins() { return HAS_OP(exporter().ops, stats) ? exporter().stats().pins : 0; }
	int64_t pinsOfOne() const { return verdict().charged_pin ? 1 : 0; }
};

TEST_P(Pin_, GivenARegistrationThenPinsAreTakenAndChargedAsTheTableSays)
{
	NEEDS_EXPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	constexpr uint64_t length = 0x40000;
	ASSERT_PB_OK(registerRange(buffer, 0x10000, length, &reg));
	EXPECT_EQ(pinsOfOne(), pins());
	const uint64_t charge = verdict().charged_pin ? length : 0;
	EXPECT_EQ(charge, world().regInfo(reg).pinned_bytes);
	EXPECT_EQ(charge, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ(0, pins());
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Pin_, Rule21_GivenNestedRegistrationsThenPinsBalance)
{
	NEEDS_EXPORTER_OP(stats);
	const Buffer buffer = filledBuffer();
	std::vector<peerbuf_reg_t> regs;
	constexpr int n = 5;
	for (int i = 1; i <= n; i++) {
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &reg));
		regs.push_back(reg);
		EXPECT_EQ(i * pinsOfOne(), pins());
	}
	// out of order: neither stack nor queue
	for (const size_t at : {2u, 0u, 4u, 1u, 3u}) {
		EXPECT_PB_OK(world().deregister(regs[at]));
	}
	EXPECT_EQ(0, pins());
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Pin_, Rule28_GivenTwoRegistrationsOfARangeWhenOneEndsThenTheOtherGoesOn)
{
	NEEDS_PEER();
	const Buffer buffer = filledBuffer();
	NEEDS(canSeeDevice(buffer), "no way to fill the buffer");
	peerbuf_reg_t first = 0;
	peerbuf_reg_t second = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &first));
	ASSERT_PB_OK(registerRange(buffer, 0, 0x10000, &second));
	EXPECT_NE(first, second);
	EXPECT_PB_OK(world().deregister(first));
	std::vector<uint8_t> seen(0x10000);
	ASSERT_EQ(0, peer()->read(world().region(second), 0, seen.data(), seen.size()));
	EXPECT_EQ(test::pattern(0, seen.size()), seen);
}

TEST_P(Pin_, Rule17_GivenIdsThatAreNotOursThenErrorsAndNothingHappens)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg));
	EXPECT_EQ(-ENOENT, peerbuf_deregister(world().ctx(), 0));
	EXPECT_EQ(-ENOENT, peerbuf_deregister(world().ctx(), UINT64_MAX - 7));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_PB_ERROR(peerbuf_deregister(world().ctx(), reg), -ESTALE, PEERBUF_ERR_STALE);
	RegInfo info = {};
	info.struct_size = sizeof(info);
	EXPECT_EQ(-ESTALE, peerbuf_query_reg(world().ctx(), reg, &info));
	EXPECT_TRUE(world().nothingHeld());
}

TEST_P(Pin_, Rule9_GivenARegisteredBufferThenItCannotBeFreedOrItsDevicesClosed)
{
	const Buffer buffer = filledBuffer();
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, 0, 0x1000, &reg));
	EXPECT_PB_ERROR(world().free(buffer), -EBUSY, PEERBUF_ERR_BUSY);
	EXPECT_PB_ERROR(peerbuf_exporter_close(world().ctx(), exporter().id), -EBUSY,
			PEERBUF_ERR_BUSY);
	EXPECT_PB_ERROR(peerbuf_importer_close(world().ctx(), importer().id), -EBUSY,
			PEERBUF_ERR_BUSY);
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_PB_OK(world().free(buffer));
	peerbuf_reg_t late = 0;
	EXPECT_PB_ERROR(registerRange(buffer, 0, 0x1000, &late), -ESTALE, PEERBUF_ERR_STALE);
}

class PinCharged_ : public PairTest
{
};

TEST_P(PinCharged_, GivenPartOfAGranuleThenAllOfItIsCharged)
{
	const Buffer buffer = filledBuffer();
	const uint64_t granule = exporter().offer.granularity;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerRange(buffer, granule - 1, 2, &reg));
	EXPECT_EQ(2 * granule, world().regInfo(reg).pinned_bytes);
	EXPECT_EQ(2 * granule, test::ledgerUsed(world().ctx(), PEERBUF_LEDGER_PINS));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PinCharged_);
INSTANTIATE_TEST_SUITE_P(Pairs, PinCharged_, testing::ValuesIn(chargedPairs()), pairName);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pin_);
INSTANTIATE_TEST_SUITE_P(Pairs, Pin_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
