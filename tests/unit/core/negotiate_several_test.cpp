// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/negotiate.h"
#include "offers.h"

/** Several importers of one range. */
namespace peerbuf
{
namespace
{

using namespace test;

std::vector<Answer> ask(const ExporterSide &e, const std::vector<ImporterSide> &importers,
			const Policy &p = {}, const LedgerView &l = {})
{
	return negotiateAll(e, importers, megabyte(), p, l);
}

ExporterSide tiered()
{
	ExporterSide e = movingExporter();
	e.offer.placements = PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST;
	return e;
}

ImporterSide takes(ImporterSide i, uint32_t variants)
{
	i.offer.variants = variants;
	return i;
}

ImporterSide hostOnly(ImporterSide i)
{
	i.offer.peer2peer = 0;
	return i;
}

TEST(NegotiateAll, GivenNoImporterThenNoAnswer)
{
	EXPECT_TRUE(ask(movingExporter(), {}).empty());
}

TEST(NegotiateAll, GivenOneImporterThenAsNegotiate)
{
	const auto answers = ask(movingExporter(), {refaultImporter()});
	ASSERT_EQ(1u, answers.size());
	ASSERT_TRUE(answers[0].plan);
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, answers[0].plan->flow);
}

TEST(NegotiateAll, GivenImportersOfDifferentKindThenEachItsOwnFlowInOrder)
{
	const auto answers = ask(movingExporter(), {plainImporter(), refaultImporter()});
	ASSERT_EQ(2u, answers.size());
	ASSERT_TRUE(answers[0].plan && answers[1].plan);
	EXPECT_EQ(PEERBUF_FLOW_PINNED, answers[0].plan->flow);
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, answers[1].plan->flow);
}

TEST(NegotiateAll, GivenOneVariantServesAllThenItIsUsedForAll)
{
	constexpr uint32_t BOTH = PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE;
	const auto answers =
		ask(movingExporter(), {takes(refaultImporter(), BOTH),
				       takes(refaultImporter(), PEERBUF_VARIANT_PCIE)});
	ASSERT_TRUE(answers[0].plan && answers[1].plan);
	EXPECT_EQ(PEERBUF_VARIANT_PCIE, answers[0].plan->variant)
		<< "alone it would have been host";
	EXPECT_EQ(PEERBUF_VARIANT_PCIE, answers[1].plan->variant);
}

TEST(NegotiateAll, GivenNoCommonVariantThenEachItsOwn)
{
	const auto answers =
		ask(movingExporter(), {takes(refaultImporter(), PEERBUF_VARIANT_HOST),
				       takes(refaultImporter(), PEERBUF_VARIANT_PCIE)});
	ASSERT_TRUE(answers[0].plan && answers[1].plan);
	EXPECT_EQ(PEERBUF_VARIANT_HOST, answers[0].plan->variant);
	EXPECT_EQ(PEERBUF_VARIANT_PCIE, answers[1].plan->variant);
}

// RB-26: the memory can be in one place only.
TEST(NegotiateAll, GivenOneWithoutPeerToPeerThenAllInHostMemoryInWhateverOrder)
{
	Policy p;
	p.hostPlacementOk = true;
	const ImporterSide a = refaultImporter();
	const ImporterSide b = hostOnly(plainImporter());
	for (const std::vector<ImporterSide> &order :
	     {std::vector<ImporterSide>{a, b}, std::vector<ImporterSide>{b, a}})
		for (const Answer &answer : ask(tiered(), order, p)) {
			ASSERT_TRUE(answer.plan) << answer;
			EXPECT_EQ(PEERBUF_PLACEMENT_HOST, answer.plan->placement) << answer;
			EXPECT_FALSE(answer.plan->peer2peer);
		}
}

TEST(NegotiateAll, GivenOneWithoutPeerToPeerWhenPolicyIsDeviceOnlyThenItIsRefused)
{
	Policy p;
	p.partialOk = true;
	const auto answers = ask(tiered(), {refaultImporter(), hostOnly(plainImporter())}, p);
	ASSERT_TRUE(answers[0].plan);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, answers[0].plan->placement);
	EXPECT_FALSE(answers[1].plan);
	EXPECT_EQ(PEERBUF_ERR_NOT_P2P_PLACEMENT, decisiveCode(answers[1]));
}

TEST(NegotiateAll, GivenDeviceMemoryOnlyThenTheOneWithoutPeerToPeerIsRefused)
{
	Policy p;
	p.partialOk = true;
	p.hostPlacementOk = true;
	const auto answers =
		ask(movingExporter(), {refaultImporter(), hostOnly(plainImporter())}, p);
	ASSERT_TRUE(answers[0].plan);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, answers[0].plan->placement);
	EXPECT_FALSE(answers[1].plan);
	EXPECT_EQ(PEERBUF_ERR_NO_P2P_PATH, decisiveCode(answers[1]));
}

TEST(NegotiateAll, GivenAStagedOneThenItDoesNotPullTheOthersIntoHostMemory)
{
	Policy p;
	p.stagingOk = true; // but no host placement
	const auto answers = ask(tiered(), {refaultImporter(), hostOnly(plainImporter())}, p);
	ASSERT_TRUE(answers[0].plan && answers[1].plan);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, answers[0].plan->placement);
	EXPECT_EQ(PEERBUF_FLOW_STAGED, answers[1].plan->flow);
}

// RB-09: the need multiplies with the importers.
TEST(NegotiateAll, GivenPinsOfAllTogetherAboveTheLimitThenTheLastIsRefusedWithTheSum)
{
	LedgerView l;
	l.pins.limit = 2 * 0x100000 - 1;
	Policy p;
	p.partialOk = true;
	const auto answers = ask(movingExporter(), {plainImporter(), plainImporter()}, p, l);
	EXPECT_TRUE(answers[0].plan);
	EXPECT_FALSE(answers[1].plan);
	const Refusal *r = decisive(answers[1].refusals);
	ASSERT_TRUE(r);
	EXPECT_EQ(PEERBUF_ERR_QUOTA, r->code);
	EXPECT_TRUE(has(r->why, "used 1048576")) << r->why;
	l.pins.limit++;
	for (const Answer &a : ask(movingExporter(), {plainImporter(), plainImporter()}, {}, l))
		EXPECT_TRUE(a.plan) << a;
}

TEST(NegotiateAll, GivenHostMemoryOfAllTogetherAboveTheLimitThenTheLastIsRefused)
{
	ExporterSide e = staticExporter();
	e.offer.placements = PEERBUF_PLACEMENT_HOST;
	ImporterSide i = plainImporter();
	i.offer.locks_host_memory = 1;
	LedgerView l;
	l.host.limit = 2 * 0x100000 - 1;
	Policy p;
	p.partialOk = true;
	const auto answers = ask(e, {i, i}, p, l);
	EXPECT_TRUE(answers[0].plan);
	EXPECT_FALSE(answers[1].plan);
	EXPECT_EQ(PEERBUF_ERR_QUOTA, decisiveCode(answers[1]));
}

TEST(NegotiateAll, GivenAMovableOneThenItTakesNothingFromThePinLimitOfTheNext)
{
	LedgerView l;
	l.pins.limit = 0x100000;
	for (const Answer &a :
	     ask(movingExporter(), {refaultImporter(), plainImporter(), refaultImporter()}, {}, l))
		EXPECT_TRUE(a.plan) << a;
}

// RB-11: 128 MiB by two users is 128 MiB of the window.
TEST(NegotiateAll, GivenAWindowThenTheRangeIsInItOnce)
{
	ExporterSide e = movingExporter();
	e.offer.window_size = 0x100000;
	LedgerView l;
	l.windowNeed = 0x100000;
	const auto answers = ask(e, {refaultImporter(), refaultImporter()}, {}, l);
	ASSERT_TRUE(answers[0].plan && answers[1].plan);
	EXPECT_EQ(0x100000u, answers[0].plan->windowCharge);
	EXPECT_EQ(0u, answers[1].plan->windowCharge);
}

TEST(NegotiateAll, GivenTheFirstIsRefusedThenTheSecondPaysTheWindow)
{
	ExporterSide e = movingExporter();
	e.offer.window_size = 0x100000;
	LedgerView l;
	l.windowNeed = 0x100000;
	ImporterSide none = refaultImporter();
	none.offer.keys_left = 0;
	Policy p;
	p.partialOk = true;
	const auto answers = ask(e, {none, refaultImporter()}, p, l);
	EXPECT_FALSE(answers[0].plan);
	ASSERT_TRUE(answers[1].plan);
	EXPECT_EQ(0x100000u, answers[1].plan->windowCharge);
}

TEST(NegotiateAll, GivenOneRefusedThenNoneHasAPlan)
{
	for (const bool last : {false, true}) {
		std::vector<ImporterSide> importers(3, refaultImporter());
		importers[last ? 2 : 0].offer.keys_left = 0;
		for (const Answer &a : ask(movingExporter(), importers))
			EXPECT_FALSE(a.plan) << a;
	}
}

TEST(NegotiateAll, GivenOneRefusedThenTheOthersSayWhoTookTheirPlan)
{
	ImporterSide full = named(refaultImporter(), "importer full");
	full.offer.keys_left = 0;
	const auto answers = ask(movingExporter(), {refaultImporter(), full});
	EXPECT_EQ(PEERBUF_ERR_DEVICE_RESOURCES, decisiveCode(answers[1]));
	const Refusal *r = decisive(answers[0].refusals);
	ASSERT_TRUE(r) << "an importer without a plan does not say why: " << answers[0];
	EXPECT_NE(0, r->err);
	EXPECT_TRUE(has(text(r->who, r->why), "importer full")) << answers[0];
}

TEST(NegotiateAll, GivenOneRefusedWhenPartialIsAllowedThenTheOthersKeepTheirPlans)
{
	std::vector<ImporterSide> importers(3, refaultImporter());
	importers[1].offer.keys_left = 0;
	Policy p;
	p.partialOk = true;
	const auto answers = ask(movingExporter(), importers, p);
	EXPECT_TRUE(answers[0].plan);
	EXPECT_FALSE(answers[1].plan);
	EXPECT_TRUE(answers[2].plan);
}

} // namespace
} // namespace peerbuf
