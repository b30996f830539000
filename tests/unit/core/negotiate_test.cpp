// SPDX-License-Identifier: BSD-3-Clause
#include "core/negotiate.h"

#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "offers.h"

namespace peerbuf
{
namespace
{

using namespace test;

Answer ask(const ExporterSide &e, const ImporterSide &i, const Policy &p = {},
	   const LedgerView &l = {}, const Demand &d = megabyte())
{
	return negotiate(e, i, d, p, l);
}

peerbuf_flow flowOf(const Answer &a)
{
	return a.plan ? a.plan->flow : PEERBUF_FLOW_NONE;
}

/** No plan, and the refusal that decides is the one that is meant and explains itself. */
void expectRefused(const Answer &a, Errc code, int err, const std::string &who,
		   const std::string &capability, const std::vector<std::string> &facts = {})
{
	EXPECT_FALSE(a.plan) << a;
	const Refusal *r = decisive(a.refusals);
	ASSERT_TRUE(r) << a;
	EXPECT_EQ(code, r->code) << errcName(r->code) << "\n" << a;
	EXPECT_EQ(err, r->err) << a;
	EXPECT_EQ(who, r->who) << a;
	EXPECT_EQ(capability, r->capability) << a;
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(r->why, fact)) << "'" << fact << "' is not in: " << r->why;
}

/** The refusal of one flow has these words; with @p code OK it says that nothing is lost. */
void expectReason(const Answer &a, peerbuf_flow flow, Errc code, const std::string &capability,
		  const std::vector<std::string> &facts = {})
{
	const Refusal *r = refusalOf(a.refusals, flow);
	ASSERT_TRUE(r) << flowName(flow) << " is not explained: " << a;
	EXPECT_EQ(code, r->code) << a;
	EXPECT_EQ(capability, r->capability) << a;
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(r->why, fact)) << "'" << fact << "' is not in: " << r->why;
}

const char *const EXPORTER = "exporter hbm0";
const char *const IMPORTER = "importer nic0";

/* ---- the table, row by row -------------------------------------------------------------- */

TEST(Negotiate, GivenStaticExporterWhenImporterRefaultsThenPinned)
{
	const Answer a = ask(staticExporter(), refaultImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
	EXPECT_EQ(0u, a.plan->invalidation) << "no callback for memory that never moves";
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_OK, "moves", {"never moves"});
	expectReason(a, PEERBUF_FLOW_REVOCABLE, PEERBUF_OK, "revoke", {"never revokes"});
	EXPECT_FALSE(decisive(a.refusals)) << "nothing went wrong: " << a;
}

TEST(Negotiate, GivenStaticExporterWhenImporterIsRevocableOnlyThenPinned)
{
	const Answer a = ask(staticExporter(), revocableImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->invalidation);
}

TEST(Negotiate, GivenStaticExporterWhenImporterHasNeitherThenPinned)
{
	const Answer a = ask(staticExporter(), plainImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
}

TEST(Negotiate, GivenStaticExporterThatCouldPinThenItIsNotAskedTo)
{
	ExporterSide e = staticExporter();
	e.offer.pin = PEERBUF_PIN_CAN;
	const Answer a = ask(e, plainImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
}

TEST(Negotiate, GivenMovingExporterThatCanPinWhenImporterRefaultsThenMovable)
{
	const Answer a = ask(movingExporter(), refaultImporter());
	ASSERT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
	EXPECT_EQ(uint32_t{PEERBUF_INVALIDATION_REFAULT | PEERBUF_INVALIDATION_REVOCABLE},
		  a.plan->invalidation);
	EXPECT_EQ(PEERBUF_FLOW_BIT(PEERBUF_FLOW_MOVABLE), a.plan->flowsPossible);
	EXPECT_EQ(PEERBUF_KNOWN_NEGOTIATED, a.plan->howKnown);
	EXPECT_TRUE(a.refusals.empty()) << a;
}

TEST(Negotiate, GivenImporterRevocableOnlyWhenExporterCanPinThenPinned)
{
	const Answer a = ask(movingExporter(), revocableImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_TRUE(a.plan->pin);
	EXPECT_EQ(0x100000u, a.plan->pinCharge);
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, "refault");
}

TEST(Negotiate, GivenImporterWithoutInvalidateWhenExporterCanPinThenPinned)
{
	const Answer a = ask(movingExporter(), plainImporter());
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_TRUE(a.plan->pin);
	EXPECT_EQ(0x100000u, a.plan->pinCharge);
	EXPECT_EQ(0u, a.plan->invalidation);
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, "refault",
		     {"importer lacks refault"});
	expectReason(a, PEERBUF_FLOW_REVOCABLE, PEERBUF_OK, "revoke", {"never revokes"});
}

TEST(Negotiate, GivenRevokingExporterWhenImporterRefaultsThenMovable)
{
	const Answer a = ask(revokingExporter(), refaultImporter());
	ASSERT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(a)) << a;
	EXPECT_NE(0u, a.plan->invalidation);
}

TEST(Negotiate, GivenRevokingExporterWhenImporterIsRevocableOnlyThenRevocable)
{
	const Answer a = ask(revokingExporter(), revocableImporter());
	ASSERT_EQ(PEERBUF_FLOW_REVOCABLE, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin) << "static memory needs no pin";
	EXPECT_EQ(0u, a.plan->pinCharge);
	EXPECT_EQ(PEERBUF_INVALIDATION_REVOCABLE, a.plan->invalidation);
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, "refault");
}

TEST(Negotiate, GivenRevokingExporterWhenImporterHasNeitherThenRevokeUnsupported)
{
	expectRefused(ask(revokingExporter(), plainImporter()), PEERBUF_ERR_REVOKE_UNSUPPORTED,
		      EOPNOTSUPP, IMPORTER, "revocable", {"may revoke", "cannot stop"});
}

TEST(Negotiate, GivenMovingRevokingExporterThenTheRowOfRevokeHoldsAndItPins)
{
	ExporterSide e = movingExporter();
	e.offer.revoke = PEERBUF_REVOKE_MAY;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(e, refaultImporter())));
	const Answer a = ask(e, revocableImporter());
	ASSERT_EQ(PEERBUF_FLOW_REVOCABLE, flowOf(a)) << a;
	EXPECT_TRUE(a.plan->pin);
	EXPECT_EQ(0x100000u, a.plan->pinCharge);
	expectRefused(ask(e, plainImporter()), PEERBUF_ERR_REVOKE_UNSUPPORTED, EOPNOTSUPP, IMPORTER,
		      "revocable");
}

TEST(Negotiate, GivenExporterThatRefusesToPinWhenImporterRefaultsThenMovable)
{
	for (const uint32_t revoke : {PEERBUF_REVOKE_NEVER, PEERBUF_REVOKE_MAY})
		for (const uint32_t stability :
		     {PEERBUF_STABILITY_STATIC, PEERBUF_STABILITY_MOVES}) {
			ExporterSide e = unpinnableExporter();
			e.offer.revoke = revoke;
			e.offer.stability = stability;
			EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(e, refaultImporter())));
		}
}

TEST(Negotiate, GivenExporterThatRefusesToPinWhenImporterIsRevocableOnlyThenPinRefused)
{
	for (const uint32_t revoke : {PEERBUF_REVOKE_NEVER, PEERBUF_REVOKE_MAY}) {
		ExporterSide e = unpinnableExporter();
		e.offer.revoke = revoke;
		expectRefused(ask(e, revocableImporter()), PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP,
			      EXPORTER, "pin", {"refuses to pin", "its memory manager compacts"});
	}
}

TEST(Negotiate, GivenExporterThatRefusesToPinWhenImporterHasNeitherThenPinRefused)
{
	for (const uint32_t revoke : {PEERBUF_REVOKE_NEVER, PEERBUF_REVOKE_MAY}) {
		ExporterSide e = unpinnableExporter();
		e.offer.revoke = revoke;
		expectRefused(ask(e, plainImporter()), PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP,
			      EXPORTER, "pin");
	}
}

/* ---- hardware NIC and user-managed memory ----------------------------------------------- */

TEST(Negotiate, GivenHardwareNicThatRefaultsWhenExporterMovesInUserSpaceThenPinned)
{
	const Answer a = ask(movingExporter(), toldByKernel(refaultImporter()));
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_TRUE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->invalidation) << "it would not obey";
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, "refault",
		     {"only the kernel's Invalidate"});
}

TEST(Negotiate, GivenHardwareNicWhenExporterRevokesInUserSpaceThenRevokeUnsupported)
{
	expectRefused(ask(revokingExporter(), toldByKernel(refaultImporter())),
		      PEERBUF_ERR_REVOKE_UNSUPPORTED, EOPNOTSUPP, IMPORTER, "revocable",
		      {"only the kernel's Invalidate"});
}

TEST(Negotiate, GivenHardwareNicWhenUserSpaceExporterRefusesToPinThenPinRefused)
{
	expectRefused(ask(unpinnableExporter(), toldByKernel(refaultImporter())),
		      PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP, EXPORTER, "pin");
}

TEST(Negotiate, GivenImporterToldByBothThenItFollowsEither)
{
	ImporterSide i = refaultImporter();
	i.offer.notified_by = PEERBUF_NOTIFIED_BY_USER | PEERBUF_NOTIFIED_BY_KERNEL;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(movingExporter(), i)));
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(managedByKernel(movingExporter()), i)));
}

/* ---- memory that the kernel manages ------------------------------------------------------ */

uint32_t bits(std::initializer_list<peerbuf_flow> flows)
{
	uint32_t set = 0;
	for (const peerbuf_flow f : flows)
		set |= PEERBUF_FLOW_BIT(f);
	return set;
}

/** What a kernel-managed pair may be, and what of it can be promised. */
void expectSet(const Answer &a, std::initializer_list<peerbuf_flow> flows, peerbuf_flow promised)
{
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(bits(flows), a.plan->flowsPossible) << a;
	EXPECT_EQ(promised, a.plan->flow) << a;
	EXPECT_EQ(PEERBUF_KNOWN_POSSIBLE, a.plan->howKnown);
	EXPECT_EQ(PEERBUF_HANDLE_FD, a.plan->handleKind);
	EXPECT_FALSE(a.plan->pin) << "the kernel pins";
}

TEST(Negotiate, GivenKernelManagedMemoryWithoutEvidenceThenTheSetOfTheRow)
{
	const ImporterSide unknown = plainImporter();
	expectSet(ask(managedByKernel(staticExporter()), unknown), {PEERBUF_FLOW_PINNED},
		  PEERBUF_FLOW_PINNED);
	expectSet(ask(managedByKernel(movingExporter()), unknown),
		  {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_PINNED}, PEERBUF_FLOW_PINNED);
	expectSet(ask(managedByKernel(revokingExporter()), unknown),
		  {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE}, PEERBUF_FLOW_REVOCABLE);
	expectSet(ask(managedByKernel(unpinnableExporter()), unknown), {PEERBUF_FLOW_MOVABLE},
		  PEERBUF_FLOW_MOVABLE);
}

TEST(Negotiate, GivenKernelManagedMemoryWhenTheDriverIsKnownThenTheSetIsNarrowed)
{
	const ImporterSide refault = toldByKernel(refaultImporter());
	const ImporterSide revocable = toldByKernel(revocableImporter());
	expectSet(ask(managedByKernel(movingExporter()), refault), {PEERBUF_FLOW_MOVABLE},
		  PEERBUF_FLOW_MOVABLE);
	expectSet(ask(managedByKernel(movingExporter()), revocable), {PEERBUF_FLOW_PINNED},
		  PEERBUF_FLOW_PINNED);
	expectSet(ask(managedByKernel(revokingExporter()), refault), {PEERBUF_FLOW_MOVABLE},
		  PEERBUF_FLOW_MOVABLE);
	expectSet(ask(managedByKernel(revokingExporter()), revocable), {PEERBUF_FLOW_REVOCABLE},
		  PEERBUF_FLOW_REVOCABLE);
	expectSet(ask(managedByKernel(staticExporter()), refault), {PEERBUF_FLOW_PINNED},
		  PEERBUF_FLOW_PINNED);
}

TEST(Negotiate, GivenKernelManagedMemoryThatRefusesToPinWhenDriverIsRevocableOnlyThenPinRefused)
{
	const Answer a =
		ask(managedByKernel(unpinnableExporter()), toldByKernel(revocableImporter()));
	expectRefused(a, PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP, EXPORTER, "pin",
		      {"refuses to pin", "lacks refault"});
}

TEST(Negotiate, GivenKernelManagedMemoryWhenOnlyUserSpaceIsObeyedThenNoEvidence)
{
	const Answer a = ask(managedByKernel(movingExporter()), refaultImporter());
	expectSet(a, {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_PINNED}, PEERBUF_FLOW_PINNED);
	EXPECT_EQ(0u, a.plan->invalidation);
}

/** A driver that is asked for a flow and says what it took. */
ImporterSide asking(ImporterSide i)
{
	i.offer.asks_flow = 1;
	return i;
}

TEST(Negotiate, GivenKernelManagedMemoryWhenTheDriverCanBeAskedThenForTheBest)
{
	const Answer a = ask(managedByKernel(movingExporter()), asking(plainImporter()));
	expectSet(a, {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_PINNED}, PEERBUF_FLOW_MOVABLE);
	EXPECT_EQ(PEERBUF_FLOW_PINNED, a.plan->flowUnsaid);
	expectSet(ask(managedByKernel(revokingExporter()), asking(plainImporter())),
		  {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE}, PEERBUF_FLOW_MOVABLE);
	expectSet(ask(managedByKernel(staticExporter()), asking(plainImporter())),
		  {PEERBUF_FLOW_PINNED}, PEERBUF_FLOW_PINNED);
}

TEST(Negotiate, GivenKernelManagedMemoryAndACeilingWhenTheDriverCanBeAskedThenForTheRevocable)
{
	for (const peerbuf_flow ceiling : {PEERBUF_FLOW_REVOCABLE, PEERBUF_FLOW_PINNED}) {
		Policy policy;
		policy.ceiling = ceiling;
		const ExporterSide moving = managedByKernel(movingExporter());
		const Answer a = negotiate(moving, asking(toldByKernel(refaultImporter())),
					   Demand{{0, 4096}, READ_WRITE, 4096}, policy, {});
		ASSERT_TRUE(a.plan) << a;
		EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, a.plan->flow);
		ASSERT_EQ(1u, a.refusals.size()) << a;
		EXPECT_EQ(PEERBUF_FLOW_MOVABLE, a.refusals[0].flow);
		EXPECT_EQ("policy", a.refusals[0].who);
		const Answer b = negotiate(managedByKernel(unpinnableExporter()),
					   asking(toldByKernel(refaultImporter())),
					   Demand{{0, 4096}, READ_WRITE, 4096}, policy, {});
		expectRefused(b, PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP, EXPORTER, "pin",
			      {"refuses to pin"});
	}
}

TEST(Negotiate, GivenWhatTheKernelTookThenThatIsTheFlowAsFarAsItIsWorthIt)
{
	Plan plan = *ask(managedByKernel(movingExporter()), asking(plainImporter())).plan;
	observe(plan, PEERBUF_FLOW_MOVABLE);
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, plan.flow);
	EXPECT_EQ(PEERBUF_KNOWN_OBSERVED, plan.howKnown);
	EXPECT_EQ(bits({PEERBUF_FLOW_MOVABLE}), plan.flowsPossible);
	observe(plan, PEERBUF_FLOW_REVOCABLE); // of what is never revoked
	EXPECT_EQ(PEERBUF_FLOW_PINNED, plan.flow);

	plan = *ask(managedByKernel(revokingExporter()), asking(plainImporter())).plan;
	observe(plan, PEERBUF_FLOW_REVOCABLE);
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, plan.flow);

	plan = *ask(managedByKernel(staticExporter()), asking(plainImporter())).plan;
	observe(plan, PEERBUF_FLOW_MOVABLE); // of what never moves
	EXPECT_EQ(PEERBUF_FLOW_PINNED, plan.flow);
	EXPECT_EQ(PEERBUF_KNOWN_OBSERVED, plan.howKnown);
}

TEST(Negotiate, GivenAKernelThatDoesNotSayWhatItTookThenTheLeastIsPromised)
{
	Plan plan = *ask(managedByKernel(movingExporter()), asking(plainImporter())).plan;
	observe(plan, PEERBUF_FLOW_NONE);
	EXPECT_EQ(PEERBUF_FLOW_PINNED, plan.flow);
	EXPECT_EQ(PEERBUF_KNOWN_POSSIBLE, plan.howKnown);
	EXPECT_EQ(bits({PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_PINNED}), plan.flowsPossible);
}

TEST(Negotiate, GivenADmaBufOfHostMemoryThenNoLockedHostMemoryIsCharged)
{
	ExporterSide e = staticExporter();
	e.offer.placements = PEERBUF_PLACEMENT_HOST;
	e.offer.handles = PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	ImporterSide i = plainImporter();
	i.offer.locks_host_memory = 1;
	LedgerView ledger;
	ledger.host.limit = 0;
	Answer a = negotiate(e, i, Demand{{0, 4096}, READ_WRITE, 4096}, {}, ledger);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(PEERBUF_HANDLE_FD, a.plan->handleKind);
	EXPECT_EQ(0u, a.plan->hostCharge);
	i.offer.handles = PEERBUF_HANDLE_CPU;
	a = negotiate(e, i, Demand{{0, 4096}, READ_WRITE, 4096}, {}, ledger);
	EXPECT_FALSE(a.plan) << "locked, and no room for it";
}

TEST(Negotiate, GivenKernelManagedMemoryThenRekeyIsNoChoice)
{
	Policy p;
	p.rekeyOk = true;
	expectSet(ask(managedByKernel(movingExporter()), plainImporter(), p),
		  {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_PINNED}, PEERBUF_FLOW_PINNED);
}

TEST(Negotiate, GivenKernelManagedMemoryThenEveryBetterFlowIsExplained)
{
	const Answer a = ask(managedByKernel(movingExporter()), plainImporter());
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_OK, "flow", {"kernel"});
	EXPECT_TRUE(refusalOf(a.refusals, PEERBUF_FLOW_REVOCABLE)) << a;
}

// The caller asked for the latency of pinned memory; the kernel cannot be asked for it.
TEST(Negotiate, GivenKernelManagedMemoryWhenEveryPossibleFlowIsAboveTheCeilingThenPolicy)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_PINNED;
	expectRefused(ask(managedByKernel(movingExporter()), toldByKernel(refaultImporter()), p),
		      PEERBUF_ERR_POLICY, EOPNOTSUPP, "policy", "ceiling", {"Movable", "Pinned"});
}

/* ---- gates ------------------------------------------------------------------------------- */

TEST(Negotiate, GivenNoPeerToPeerWhenMemoryIsOnTheDeviceOnlyThenNoPath)
{
	ImporterSide i = refaultImporter();
	i.offer.peer2peer = 0;
	const Answer a = ask(movingExporter(), i);
	expectRefused(a, PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, IMPORTER, "peer2peer",
		      {"struct page", "no place in host memory"});
	EXPECT_TRUE(refusalOf(a.refusals, PEERBUF_FLOW_NONE)) << "a gate refuses every flow: " << a;
}

TEST(Negotiate, GivenNoPathBetweenTheDevicesThenNoPath)
{
	ImporterSide i = refaultImporter();
	i.distance = PEERBUF_DISTANCE_NO_PATH;
	expectRefused(ask(movingExporter(), i), PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, IMPORTER,
		      "peer2peer", {"no peer-to-peer path"});
	for (const peerbuf_distance fine : {PEERBUF_DISTANCE_UNKNOWN, PEERBUF_DISTANCE_PATH}) {
		i.distance = fine;
		EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(movingExporter(), i)));
	}
}

TEST(Negotiate, GivenExporterNeedsPeerToPeerThenHostMemoryDoesNotHelp)
{
	ExporterSide e = movingExporter();
	e.offer.placements = PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST;
	e.offer.needs_peer2peer = 1;
	ImporterSide i = refaultImporter();
	i.offer.peer2peer = 0;
	Policy p;
	p.hostPlacementOk = true;
	expectRefused(ask(e, i, p), PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, IMPORTER, "peer2peer",
		      {"exporter needs peer-to-peer"});
}

// RB-31: a BAR at 0x380000000000, 32 GiB, needs 46 bits.
TEST(Negotiate, GivenMaskOf44BitsWhenAddressesNeed46ThenNoPathWithBothNumbers)
{
	ExporterSide e = movingExporter();
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS;
	e.offer.dma_addr_max = 0x380000000000 + (uint64_t{32} << 30) - 1;
	ImporterSide i = refaultImporter();
	i.offer.dma_mask_bits = 44;
	expectRefused(ask(e, i), PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, IMPORTER, "dma_mask",
		      {"46", "44", "0x3807ffffffff"});
	i.offer.dma_mask_bits = 45;
	EXPECT_FALSE(ask(e, i).plan);
	for (const uint32_t enough : {46u, 48u, 64u}) {
		i.offer.dma_mask_bits = enough;
		EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(e, i))) << enough;
	}
}

TEST(Negotiate, GivenNarrowMaskWhenTheDataPathIsTheCpuThenItDoesNotMatter)
{
	ExporterSide e = movingExporter();
	e.offer.dma_addr_max = UINT64_MAX;
	ImporterSide i = refaultImporter();
	i.offer.handles = PEERBUF_HANDLE_CPU;
	i.offer.dma_mask_bits = 32;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(e, i)));
}

TEST(Negotiate, GivenNarrowMaskWhenMemoryIsHostMemoryThenRefusedAsWell)
{
	ExporterSide e = staticExporter();
	e.offer.placements = PEERBUF_PLACEMENT_HOST;
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS;
	e.offer.dma_addr_max = uint64_t{1} << 40;
	ImporterSide i = plainImporter();
	i.offer.dma_mask_bits = 32;
	expectRefused(ask(e, i), PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, IMPORTER, "dma_mask",
		      {"41", "32"});
}

TEST(Negotiate, GivenVariantsWithoutACommonOneThenUnsupportedNamingBoth)
{
	ExporterSide e = movingExporter();
	e.offer.variants = PEERBUF_VARIANT_PCIE;
	ImporterSide i = refaultImporter();
	i.offer.variants = PEERBUF_VARIANT_HOST;
	expectRefused(ask(e, i), PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP, IMPORTER, "variant",
		      {"pcie", "host"});
}

TEST(Negotiate, GivenSeveralVariantsThenHostBeforePcieAndTheCallersRestrictionHolds)
{
	const ExporterSide e = movingExporter();
	const ImporterSide i = refaultImporter();
	EXPECT_EQ(PEERBUF_VARIANT_HOST, ask(e, i).plan->variant);
	const Answer pcie = negotiate(e, i, megabyte(), {}, {}, PEERBUF_VARIANT_PCIE);
	ASSERT_TRUE(pcie.plan);
	EXPECT_EQ(PEERBUF_VARIANT_PCIE, pcie.plan->variant);
}

TEST(Negotiate, GivenHandlesWithoutACommonOneThenUnsupportedNamingBoth)
{
	ExporterSide e = movingExporter();
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS;
	ImporterSide i = refaultImporter();
	i.offer.handles = PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	expectRefused(ask(e, i), PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP, IMPORTER, "handle",
		      {"segments", "cpu+dma-buf"});
}

TEST(Negotiate, GivenSeveralHandlesThenSegmentsFirstAndTheViewBeforeTheDmaBufForSoftwareOnly)
{
	ExporterSide e = movingExporter();
	ImporterSide i = refaultImporter();
	e.offer.handles = i.offer.handles =
		PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	EXPECT_EQ(PEERBUF_HANDLE_SEGMENTS, ask(e, i).plan->handleKind);
	i.offer.handles = PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	EXPECT_EQ(PEERBUF_HANDLE_FD, ask(e, i).plan->handleKind);
	i.offer.software = 1;
	EXPECT_EQ(PEERBUF_HANDLE_CPU, ask(e, i).plan->handleKind);
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_FD;
	EXPECT_EQ(PEERBUF_HANDLE_FD, ask(e, i).plan->handleKind);
}

TEST(Negotiate, GivenLengthAboveTheLongestRegionThenDeviceLimitWithBothNumbers)
{
	ImporterSide i = refaultImporter();
	i.offer.max_length = 0xfffff;
	expectRefused(ask(movingExporter(), i), PEERBUF_ERR_DEVICE_LIMIT, EINVAL, IMPORTER,
		      "max_length", {"1048576", "1048575"});
	i.offer.max_length = 0x100000;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(movingExporter(), i)));
}

TEST(Negotiate, GivenNoKeyLeftThenDeviceResources)
{
	ImporterSide i = refaultImporter();
	i.offer.keys_left = 0;
	expectRefused(ask(movingExporter(), i), PEERBUF_ERR_DEVICE_RESOURCES, ENOSPC, IMPORTER,
		      "keys", {"no memory key"});
	i.offer.keys_left = 1;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(movingExporter(), i)));
}

TEST(Negotiate, GivenAccessThatTheMemoryForbidsThenTheExporterIsNamed)
{
	ExporterSide e = movingExporter();
	e.offer.access = PEERBUF_ACCESS_REMOTE_READ;
	expectRefused(ask(e, refaultImporter()), PEERBUF_ERR_ACCESS, EACCES, EXPORTER, "access",
		      {"local-write+remote-write", "does not allow"});
}

TEST(Negotiate, GivenAccessThatTheImporterDoesNotKnowThenTheImporterIsNamed)
{
	ExporterSide e = movingExporter();
	e.offer.access |= PEERBUF_ACCESS_REMOTE_ATOMIC;
	Demand d = megabyte();
	d.access |= PEERBUF_ACCESS_REMOTE_ATOMIC;
	expectRefused(ask(e, refaultImporter(), {}, {}, d), PEERBUF_ERR_ACCESS, EACCES, IMPORTER,
		      "access", {"remote-atomic", "does not know"});
}

// RB-29
TEST(Negotiate, GivenOptionalAccessThatIsNotKnownThenDroppedAndReported)
{
	Demand d = megabyte();
	d.access |= PEERBUF_ACCESS_RELAXED_ORDERING | (1u << 25);
	const Answer a = ask(movingExporter(), refaultImporter(), {}, {}, d);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(READ_WRITE, a.plan->access);
	EXPECT_EQ(PEERBUF_ACCESS_RELAXED_ORDERING | (1u << 25), a.plan->droppedAccess);
}

TEST(Negotiate, GivenOptionalAccessThatBothKnowThenKept)
{
	ExporterSide e = movingExporter();
	ImporterSide i = refaultImporter();
	e.offer.access |= PEERBUF_ACCESS_RELAXED_ORDERING;
	i.offer.access |= PEERBUF_ACCESS_RELAXED_ORDERING;
	Demand d = megabyte();
	d.access |= PEERBUF_ACCESS_RELAXED_ORDERING;
	const Answer a = ask(e, i, {}, {}, d);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(d.access, a.plan->access);
	EXPECT_EQ(0u, a.plan->droppedAccess);
}

TEST(Negotiate, GivenOptionalAndNecessaryAccessMissingThenNothingIsDroppedSilently)
{
	Demand d = megabyte();
	d.access |= PEERBUF_ACCESS_RELAXED_ORDERING | PEERBUF_ACCESS_REMOTE_ATOMIC;
	expectRefused(ask(movingExporter(), refaultImporter(), {}, {}, d), PEERBUF_ERR_ACCESS,
		      EACCES, EXPORTER, "access", {"remote-atomic"});
}

TEST(Negotiate, GivenAGateThatStagingCouldNotPassEitherThenNotStaged)
{
	Policy p;
	p.stagingOk = true;
	ImporterSide i = refaultImporter();
	i.offer.keys_left = 0;
	EXPECT_FALSE(ask(movingExporter(), i, p).plan);
	i = refaultImporter();
	i.offer.max_length = 1;
	EXPECT_FALSE(ask(movingExporter(), i, p).plan);
	i = refaultImporter();
	i.offer.access = 0;
	EXPECT_FALSE(ask(movingExporter(), i, p).plan);
}

/* ---- policy ------------------------------------------------------------------------------ */

ExporterSide tieredExporter()
{
	ExporterSide e = movingExporter();
	e.offer.placements = PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST;
	return e;
}

ImporterSide withoutPeerToPeer(ImporterSide i)
{
	i.offer.peer2peer = 0;
	return i;
}

// RB-07
TEST(Negotiate, GivenOnlyHostMemoryReachableWhenPolicyIsDeviceOnlyThenRefused)
{
	expectRefused(ask(tieredExporter(), withoutPeerToPeer(refaultImporter())),
		      PEERBUF_ERR_NOT_P2P_PLACEMENT, EOPNOTSUPP, IMPORTER, "peer2peer",
		      {"device_only", "host memory"});
}

TEST(Negotiate, GivenOnlyHostMemoryReachableWhenPolicyAllowsItThenPlacedThereAndReported)
{
	Policy p;
	p.hostPlacementOk = true;
	const Answer a = ask(tieredExporter(), withoutPeerToPeer(refaultImporter()), p);
	ASSERT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(a)) << a;
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, a.plan->placement);
	EXPECT_FALSE(a.plan->peer2peer);
}

TEST(Negotiate, GivenDeviceMemoryReachableThenHostIsNotUsedThoughAllowed)
{
	Policy p;
	p.hostPlacementOk = true;
	const Answer a = ask(tieredExporter(), refaultImporter(), p);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, a.plan->placement);
	EXPECT_TRUE(a.plan->peer2peer);
}

TEST(Negotiate, GivenMemoryThatIsHostMemoryThenNoPermissionNeeded)
{
	ExporterSide e = staticExporter();
	e.offer.placements = PEERBUF_PLACEMENT_HOST;
	const Answer a = ask(e, withoutPeerToPeer(plainImporter()));
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, a.plan->placement);
	EXPECT_FALSE(a.plan->peer2peer);
}

TEST(Negotiate, GivenNothingInPlaceWhenStagingIsAllowedThenStaged)
{
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(unpinnableExporter(), plainImporter(), p);
	ASSERT_EQ(PEERBUF_FLOW_STAGED, flowOf(a)) << a;
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, a.plan->placement);
	EXPECT_FALSE(a.plan->peer2peer);
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
	EXPECT_EQ(0u, a.plan->windowCharge);
	EXPECT_EQ(0x100000u, a.plan->hostCharge) << "the copy is locked host memory";
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, "refault");
	expectReason(a, PEERBUF_FLOW_PINNED, PEERBUF_ERR_PIN_REFUSED, "pin");
}

TEST(Negotiate, GivenNoPathWhenStagingIsAllowedThenStaged)
{
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(movingExporter(), withoutPeerToPeer(refaultImporter()), p);
	ASSERT_EQ(PEERBUF_FLOW_STAGED, flowOf(a)) << a;
	EXPECT_EQ(PEERBUF_FLOW_BIT(PEERBUF_FLOW_STAGED), a.plan->flowsPossible);
	expectReason(a, PEERBUF_FLOW_NONE, PEERBUF_ERR_NO_P2P_PATH, "peer2peer");
}

TEST(Negotiate, GivenStagingNotAllowedThenSaidThatItWouldWorkAndTheReasonBeforeItDecides)
{
	const Answer a = ask(unpinnableExporter(), plainImporter());
	expectReason(a, PEERBUF_FLOW_STAGED, PEERBUF_ERR_POLICY, "staging", {"would work"});
	expectRefused(a, PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP, EXPORTER, "pin");
}

TEST(Negotiate, GivenMemoryTheCpuCannotReachThenNotStagedThoughAllowed)
{
	ExporterSide e = unpinnableExporter();
	e.offer.handles = PEERBUF_HANDLE_SEGMENTS;
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(e, plainImporter(), p);
	EXPECT_FALSE(a.plan) << a;
	expectReason(a, PEERBUF_FLOW_STAGED, PEERBUF_ERR_UNSUPPORTED_DRIVER, "cpu", {"CPU"});
}

TEST(Negotiate, GivenSomethingInPlaceThenNotStagedThoughAllowed)
{
	Policy p;
	p.stagingOk = true;
	EXPECT_EQ(PEERBUF_FLOW_PINNED, flowOf(ask(movingExporter(), plainImporter(), p)));
}

TEST(Negotiate, GivenRekeyAllowedWhenTheTableSaysPinnedThenRekey)
{
	Policy p;
	p.rekeyOk = true;
	const Answer a = ask(movingExporter(), toldByKernel(refaultImporter()), p);
	ASSERT_EQ(PEERBUF_FLOW_REKEY, flowOf(a)) << a;
	EXPECT_FALSE(a.plan->pin);
	EXPECT_EQ(0u, a.plan->pinCharge);
}

TEST(Negotiate, GivenRekeyAllowedWhenTheTableRefusesThenRekey)
{
	Policy p;
	p.rekeyOk = true;
	EXPECT_EQ(PEERBUF_FLOW_REKEY, flowOf(ask(unpinnableExporter(), plainImporter(), p)));
}

TEST(Negotiate, GivenRekeyAllowedWhenMovableIsPossibleThenMovable)
{
	Policy p;
	p.rekeyOk = true;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(movingExporter(), refaultImporter(), p)));
}

// design: Rekey is for where the table says Pinned or refuses
TEST(Negotiate, GivenRekeyAllowedWhenTheTableSaysRevocableThenRevocable)
{
	ExporterSide e = movingExporter();
	e.offer.revoke = PEERBUF_REVOKE_MAY;
	Policy p;
	p.rekeyOk = true;
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, flowOf(ask(e, revocableImporter(), p)));
}

TEST(Negotiate, GivenRekeyAllowedWhenMemoryNeverMovesThenPinned)
{
	Policy p;
	p.rekeyOk = true;
	const Answer a = ask(staticExporter(), plainImporter(), p);
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	expectReason(a, PEERBUF_FLOW_REKEY, PEERBUF_OK, "moves");
}

TEST(Negotiate, GivenCeilingPinnedWhenMovableIsPossibleThenPinnedAndSaidWhy)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_PINNED;
	const Answer a = ask(movingExporter(), refaultImporter(), p);
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_TRUE(a.plan->pin);
	expectReason(a, PEERBUF_FLOW_MOVABLE, PEERBUF_OK, "ceiling", {"Pinned"});
	EXPECT_EQ("policy", refusalOf(a.refusals, PEERBUF_FLOW_MOVABLE)->who);
}

TEST(Negotiate, GivenCeilingPinnedWhenTheExporterMayRevokeThenRevocableIsThatPin)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_PINNED;
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, flowOf(ask(revokingExporter(), refaultImporter(), p)));
}

TEST(Negotiate, GivenCeilingRevocableThenMovableIsLeftOut)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_REVOCABLE;
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, flowOf(ask(revokingExporter(), refaultImporter(), p)));
	EXPECT_EQ(PEERBUF_FLOW_PINNED, flowOf(ask(movingExporter(), refaultImporter(), p)));
	p.ceiling = PEERBUF_FLOW_MOVABLE;
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, flowOf(ask(revokingExporter(), refaultImporter(), p)));
}

TEST(Negotiate, GivenCeilingPinnedWhenTheExporterRefusesToPinThenPinRefused)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_PINNED;
	expectRefused(ask(unpinnableExporter(), refaultImporter(), p), PEERBUF_ERR_PIN_REFUSED,
		      EOPNOTSUPP, EXPORTER, "pin");
}

TEST(Negotiate, GivenCeilingNeverMakesMoreThanThePairCanDo)
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_MOVABLE;
	EXPECT_EQ(PEERBUF_FLOW_PINNED, flowOf(ask(movingExporter(), plainImporter(), p)));
}

/* ---- ledger, window, host memory --------------------------------------------------------- */

LedgerView pinsLeft(uint64_t left)
{
	LedgerView l;
	l.pins.used = 5000;
	l.pins.limit = 5000 + left;
	l.pins.holders = "reg 3 (4000), reg 4 (1000)";
	return l;
}

TEST(Negotiate, GivenPinsAboveTheLimitThenQuotaWithNumbersAndHolders)
{
	Policy p;
	p.tenant = "train";
	expectRefused(ask(movingExporter(), plainImporter(), p, pinsLeft(0xfffff)),
		      PEERBUF_ERR_QUOTA, EDQUOT, "ledger", "pins",
		      {"'train'", "hbm0", "need 1048576", "used 5000", "limit 1053575",
		       "reg 3 (4000), reg 4 (1000)"});
}

TEST(Negotiate, GivenPinsUpToTheLimitThenPinned)
{
	const Answer a = ask(movingExporter(), plainImporter(), {}, pinsLeft(0x100000));
	EXPECT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
}

TEST(Negotiate, GivenALimitLoweredBelowWhatIsUsedThenQuotaWithoutWrappingAround)
{
	LedgerView l;
	l.pins.used = 5000;
	l.pins.limit = 4000;
	expectRefused(ask(movingExporter(), plainImporter(), {}, l), PEERBUF_ERR_QUOTA, EDQUOT,
		      "ledger", "pins", {"used 5000", "limit 4000", "nobody"});
}

TEST(Negotiate, GivenDedicatedMachineThenChargedButNotLimited)
{
	Policy p;
	p.dedicated = true;
	const Answer a = ask(movingExporter(), plainImporter(), p, pinsLeft(0));
	ASSERT_EQ(PEERBUF_FLOW_PINNED, flowOf(a)) << a;
	EXPECT_EQ(0x100000u, a.plan->pinCharge);
}

TEST(Negotiate, GivenStaticMemoryThenThePinLimitDoesNotMatter)
{
	EXPECT_EQ(PEERBUF_FLOW_PINNED,
		  flowOf(ask(staticExporter(), plainImporter(), {}, pinsLeft(0))));
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE,
		  flowOf(ask(revokingExporter(), revocableImporter(), {}, pinsLeft(0))));
}

TEST(Negotiate, GivenMovableThenThePinLimitDoesNotMatter)
{
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE,
		  flowOf(ask(movingExporter(), refaultImporter(), {}, pinsLeft(0))));
}

TEST(Negotiate, GivenThePinIsWiderThanTheRangeThenTheRoundedBytesCount)
{
	Demand d = megabyte();
	d.range.length = 1;
	d.pinBytes = 4096;
	EXPECT_FALSE(negotiate(movingExporter(), plainImporter(), d, {}, pinsLeft(4095)).plan);
	const Answer a = negotiate(movingExporter(), plainImporter(), d, {}, pinsLeft(4096));
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(4096u, a.plan->pinCharge);
}

TEST(Negotiate, GivenPinLimitReachedWhenStagingIsAllowedThenStagedWithTheReason)
{
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(movingExporter(), plainImporter(), p, pinsLeft(0));
	ASSERT_EQ(PEERBUF_FLOW_STAGED, flowOf(a)) << a;
	expectReason(a, PEERBUF_FLOW_PINNED, PEERBUF_ERR_QUOTA, "pins");
}

// The table comes before the ledger: raising the limit would not help here.
TEST(Negotiate, GivenPinLimitReachedWhenTheImporterCannotStopThenRevokeUnsupported)
{
	ExporterSide e = movingExporter();
	e.offer.revoke = PEERBUF_REVOKE_MAY;
	expectRefused(ask(e, plainImporter(), {}, pinsLeft(0)), PEERBUF_ERR_REVOKE_UNSUPPORTED,
		      EOPNOTSUPP, IMPORTER, "revocable");
}

ExporterSide windowedExporter()
{
	ExporterSide e = movingExporter();
	e.offer.window_size = 0x10000000; // RB-11: 256 MiB, 36 MiB of it reserved
	e.offer.window_reserve = 36u << 20;
	return e;
}

// RB-11
TEST(Negotiate, GivenWindowTooSmallThenWindowExhaustedWithTheNumbers)
{
	LedgerView l;
	l.windowNeed = 231735296;
	const Answer a = ask(windowedExporter(), refaultImporter(), {}, l);
	expectRefused(a, PEERBUF_ERR_WINDOW_EXHAUSTED, ENOSPC, EXPORTER, "window",
		      {"268435456", "free 230686720", "need 231735296"});
}

TEST(Negotiate, GivenWindowJustLargeEnoughThenChargedOnce)
{
	LedgerView l;
	l.windowNeed = 220u << 20;
	const Answer a = ask(windowedExporter(), refaultImporter(), {}, l);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(220u << 20, a.plan->windowCharge);
	l.windowNeed = 0; // somebody of this process has it in the window
	EXPECT_EQ(0u, ask(windowedExporter(), refaultImporter(), {}, l).plan->windowCharge);
}

TEST(Negotiate, GivenWindowUsedByOthersBeyondItsReserveThenNothingIsFree)
{
	ExporterSide e = windowedExporter();
	e.offer.window_used = 0x10000000;
	LedgerView l;
	l.windowNeed = 1;
	expectRefused(ask(e, refaultImporter(), {}, l), PEERBUF_ERR_WINDOW_EXHAUSTED, ENOSPC,
		      EXPORTER, "window", {"free 0", "need 1"});
	l.windowNeed = 0;
	EXPECT_TRUE(ask(e, refaultImporter(), {}, l).plan);
}

TEST(Negotiate, GivenNoWindowThatLimitsThenNotCharged)
{
	LedgerView l;
	l.windowNeed = UINT64_MAX;
	const Answer a = ask(movingExporter(), refaultImporter(), {}, l);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(0u, a.plan->windowCharge);
}

TEST(Negotiate, GivenHostPlacementThenTheWindowDoesNotMatter)
{
	ExporterSide e = windowedExporter();
	e.offer.placements |= PEERBUF_PLACEMENT_HOST;
	LedgerView l;
	l.windowNeed = UINT64_MAX;
	Policy p;
	p.hostPlacementOk = true;
	const Answer a = ask(e, withoutPeerToPeer(refaultImporter()), p, l);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(0u, a.plan->windowCharge);
}

TEST(Negotiate, GivenWindowExhaustedWhenStagingIsAllowedThenStagedAndEveryFlowExplained)
{
	LedgerView l;
	l.windowNeed = UINT64_MAX;
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(windowedExporter(), refaultImporter(), p, l);
	ASSERT_EQ(PEERBUF_FLOW_STAGED, flowOf(a)) << a;
	EXPECT_EQ(0u, a.plan->windowCharge);
	for (const peerbuf_flow better :
	     {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE, PEERBUF_FLOW_PINNED})
		EXPECT_TRUE(refusalOf(a.refusals, better) ||
			    refusalOf(a.refusals, PEERBUF_FLOW_NONE))
			<< flowName(better) << " is not explained: " << a;
}

TEST(Negotiate, GivenStagedOnARevokingExporterThenPinnedIsExplainedToo)
{
	Policy p;
	p.stagingOk = true;
	const Answer a = ask(revokingExporter(), plainImporter(), p);
	ASSERT_EQ(PEERBUF_FLOW_STAGED, flowOf(a)) << a;
	EXPECT_TRUE(refusalOf(a.refusals, PEERBUF_FLOW_PINNED)) << a;
}

ExporterSide hostExporter()
{
	ExporterSide e = staticExporter();
	e.offer.placements = PEERBUF_PLACEMENT_HOST;
	return e;
}

TEST(Negotiate, GivenHostMemoryWhenTheImporterLocksItThenChargedToTheHostColumnAlone)
{
	ImporterSide i = plainImporter();
	i.offer.locks_host_memory = 1;
	const Answer a = ask(hostExporter(), i);
	ASSERT_TRUE(a.plan) << a;
	EXPECT_EQ(0x100000u, a.plan->hostCharge);
	EXPECT_EQ(0u, a.plan->pinCharge);
	i.offer.locks_host_memory = 0;
	EXPECT_EQ(0u, ask(hostExporter(), i).plan->hostCharge);
}

TEST(Negotiate, GivenDeviceMemoryThenTheHostColumnIsNotTouched)
{
	ImporterSide i = plainImporter();
	i.offer.locks_host_memory = 1;
	EXPECT_EQ(0u, ask(movingExporter(), i).plan->hostCharge);
}

TEST(Negotiate, GivenHostMemoryAboveTheLimitThenQuotaWithNumbersAndHolders)
{
	ImporterSide i = plainImporter();
	i.offer.locks_host_memory = 1;
	LedgerView l;
	l.host.used = 10;
	l.host.limit = 0x100009;
	l.host.holders = "reg 7 (10)";
	Policy p;
	p.tenant = "train";
	expectRefused(ask(hostExporter(), i, p, l), PEERBUF_ERR_QUOTA, EDQUOT, "ledger", "host",
		      {"'train'", "need 1048576", "used 10", "limit 1048585", "reg 7 (10)"});
	l.host.limit++;
	EXPECT_TRUE(ask(hostExporter(), i, p, l).plan);
}

TEST(Negotiate, GivenTheCopyDoesNotFitTheHostLimitThenNotStaged)
{
	Policy p;
	p.stagingOk = true;
	LedgerView l;
	l.host.limit = 1;
	const Answer a = ask(unpinnableExporter(), plainImporter(), p, l);
	EXPECT_FALSE(a.plan) << a;
	expectReason(a, PEERBUF_FLOW_STAGED, PEERBUF_ERR_QUOTA, "host");
}

/* ---- words ------------------------------------------------------------------------------- */

TEST(Negotiate, GivenTheImporterSaysWhyThenItsWordsAreInTheRefusal)
{
	ImporterSide i = plainImporter();
	copyText(i.offer.why, "progress not under our control");
	expectReason(ask(movingExporter(), i), PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER,
		     "refault", {"progress not under our control"});
}

TEST(Decisive, GivenRefusalsThenTheLastThatIsAnErrorAndStagedOnlyIfAlone)
{
	EXPECT_FALSE(decisive({}));
	std::vector<Refusal> refusals = {
		{PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP, "a", "x", "y"},
		{PEERBUF_FLOW_REVOCABLE, PEERBUF_OK, 0, "a", "x", "y"},
	};
	EXPECT_EQ(&refusals[0], decisive(refusals));
	refusals.push_back({PEERBUF_FLOW_PINNED, PEERBUF_ERR_QUOTA, EDQUOT, "a", "x", "y"});
	refusals.push_back({PEERBUF_FLOW_STAGED, PEERBUF_ERR_POLICY, EOPNOTSUPP, "a", "x", "y"});
	EXPECT_EQ(&refusals[2], decisive(refusals));
	const std::vector<Refusal> staged = {refusals[3]};
	EXPECT_EQ(&staged[0], decisive(staged));
	const std::vector<Refusal> needless = {refusals[1]};
	EXPECT_FALSE(decisive(needless));
}

} // namespace
} // namespace peerbuf
