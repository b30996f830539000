// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/negotiate.h"
#include "offers.h"

/**
 * negotiate() over the cross product of its enumerations, against the table written down a second
 * time, and against what must hold whatever the table says.
 */
namespace peerbuf
{
namespace
{

using namespace test;

constexpr uint32_t REFAULT = PEERBUF_INVALIDATION_REFAULT | PEERBUF_INVALIDATION_REVOCABLE;
constexpr uint32_t REVOCABLE = PEERBUF_INVALIDATION_REVOCABLE;

/*
 * The plain build looks at every case. Under a sanitizer, which looks for something else and takes
 * twenty times as long, every 11th will do; 11 divides the size of none of the enumerations.
 */
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STRIDE = 11;
#else
constexpr size_t STRIDE = 1;
#endif

/** One call. */
struct Case {
	ExporterSide exporter;
	ImporterSide importer;
	Demand demand = megabyte();
	Policy policy;
	LedgerView ledger;

	Answer answer() const { return negotiate(exporter, importer, demand, policy, ledger); }
};

/* ---- the oracle --------------------------------------------------------------------------- */

/** A cell of the table: a flow, or the class of the refusal. */
struct Cell {
	peerbuf_flow flow;
	Errc refusal = PEERBUF_OK;
};

enum Row { STATIC, CAN_PIN, MAY_REVOKE, NO_PIN };
enum Column { BY_REFAULT, BY_REVOKE, BY_NEITHER };

constexpr Cell PIN_REFUSED = {PEERBUF_FLOW_NONE, PEERBUF_ERR_PIN_REFUSED};
constexpr Cell NO_REVOKE = {PEERBUF_FLOW_NONE, PEERBUF_ERR_REVOKE_UNSUPPORTED};
constexpr Cell TABLE[4][3] = {
	/* STATIC */ {{PEERBUF_FLOW_PINNED}, {PEERBUF_FLOW_PINNED}, {PEERBUF_FLOW_PINNED}},
	/* CAN_PIN */ {{PEERBUF_FLOW_MOVABLE}, {PEERBUF_FLOW_PINNED}, {PEERBUF_FLOW_PINNED}},
	/* MAY_REVOKE */ {{PEERBUF_FLOW_MOVABLE}, {PEERBUF_FLOW_REVOCABLE}, NO_REVOKE},
	/* NO_PIN */ {{PEERBUF_FLOW_MOVABLE}, PIN_REFUSED, PIN_REFUSED},
};

Row rowOf(const peerbuf_exporter_offer &o)
{
	if (o.pin == PEERBUF_PIN_REFUSES)
		return NO_PIN;
	if (o.revoke == PEERBUF_REVOKE_MAY)
		return MAY_REVOKE;
	return o.stability == PEERBUF_STABILITY_STATIC ? STATIC : CAN_PIN;
}

Column columnOf(uint32_t invalidation)
{
	return invalidation == REFAULT	   ? BY_REFAULT
	       : invalidation == REVOCABLE ? BY_REVOKE
					   : BY_NEITHER;
}

/** What should come out, as far as a table can tell. */
struct Expected {
	peerbuf_flow flow = PEERBUF_FLOW_NONE;
	Errc refusal = PEERBUF_OK; /* of the missing plan */
	uint32_t set = 0;
	uint32_t placement = 0;
	bool pin = false;
};

bool isManagedByKernel(const Case &c)
{
	return c.exporter.offer.management == PEERBUF_MANAGED_BY_KERNEL;
}

/** What the importer does when this exporter says Invalidate. */
uint32_t effectiveInvalidation(const Case &c)
{
	const uint32_t by =
		isManagedByKernel(c) ? PEERBUF_NOTIFIED_BY_KERNEL : PEERBUF_NOTIFIED_BY_USER;
	const peerbuf_importer_offer &o = c.importer.offer;
	return o.invalidation && (o.notified_by & by) ? o.invalidation : 0;
}

/** A flow that the policy's ceiling rules out, for an exporter of this row. */
bool aboveCeiling(peerbuf_flow flow, Row row, peerbuf_flow ceiling)
{
	if (ceiling == PEERBUF_FLOW_NONE)
		return false;
	if (flow == PEERBUF_FLOW_REVOCABLE && row == MAY_REVOKE)
		return false; // the pinned form of such an exporter
	return flow < ceiling;
}

/** The gates before the table; nothing: passed. */
std::optional<Errc> gate(const Case &c, uint32_t *retPlacement, bool *retFinal)
{
	const peerbuf_exporter_offer &e = c.exporter.offer;
	const peerbuf_importer_offer &i = c.importer.offer;
	*retFinal = true; // a copy would not pass either
	if (c.demand.access & ~(e.access & i.access) & ~PEERBUF_ACCESS_OPTIONAL_MASK)
		return PEERBUF_ERR_ACCESS;
	if (c.demand.range.length > i.max_length)
		return PEERBUF_ERR_DEVICE_LIMIT;
	if (!i.keys_left)
		return PEERBUF_ERR_DEVICE_RESOURCES;
	if (!(e.handles & i.handles) || !(e.variants & i.variants))
		return PEERBUF_ERR_UNSUPPORTED_DRIVER;
	*retFinal = false;

	const uint32_t common = e.handles & i.handles;
	const bool byCpu = (common & PEERBUF_HANDLE_CPU) && !(common & PEERBUF_HANDLE_SEGMENTS) &&
			   (i.software || !(common & PEERBUF_HANDLE_FD));
	const bool wideEnough =
		byCpu || i.dma_mask_bits == 64 || !(e.dma_addr_max >> i.dma_mask_bits);
	if (e.placements == PEERBUF_PLACEMENT_HOST) {
		*retPlacement = PEERBUF_PLACEMENT_HOST;
		return wideEnough ? std::nullopt : std::optional<Errc>(PEERBUF_ERR_NO_P2P_PATH);
	}
	const bool near = byCpu || c.importer.distance != PEERBUF_DISTANCE_NO_PATH;
	if (i.peer2peer && near && wideEnough) {
		*retPlacement = PEERBUF_PLACEMENT_DEVICE;
		return std::nullopt;
	}
	if (e.needs_peer2peer || !(e.placements & PEERBUF_PLACEMENT_HOST))
		return PEERBUF_ERR_NO_P2P_PATH;
	if (!c.policy.hostPlacementOk)
		return PEERBUF_ERR_NOT_P2P_PLACEMENT;
	*retPlacement = PEERBUF_PLACEMENT_HOST;
	return std::nullopt;
}

bool fits(const LedgerView::Column &column, uint64_t need)
{
	return column.used <= column.limit && need <= column.limit - column.used;
}

Expected inPlaceUser(const Case &c)
{
	const peerbuf_exporter_offer &e = c.exporter.offer;
	const Row row = rowOf(e);
	const bool moves = e.stability == PEERBUF_STABILITY_MOVES;
	const Column column = columnOf(effectiveInvalidation(c));
	Cell cell = TABLE[row][column];
	if (cell.flow == PEERBUF_FLOW_MOVABLE &&
	    aboveCeiling(PEERBUF_FLOW_MOVABLE, row, c.policy.ceiling))
		cell = TABLE[row][BY_REVOKE]; // who refaults can also stop

	const bool pins =
		moves && (cell.flow == PEERBUF_FLOW_PINNED || cell.flow == PEERBUF_FLOW_REVOCABLE);
	const bool unpaid = pins && !c.policy.dedicated && !fits(c.ledger.pins, c.demand.pinBytes);
	const bool toRekey = cell.flow == PEERBUF_FLOW_PINNED || cell.flow == PEERBUF_FLOW_NONE;
	if (c.policy.rekeyOk && moves && (toRekey || unpaid))
		return {.flow = PEERBUF_FLOW_REKEY, .set = PEERBUF_FLOW_BIT(PEERBUF_FLOW_REKEY)};
	if (unpaid)
		return {.refusal = PEERBUF_ERR_QUOTA};
	if (cell.flow == PEERBUF_FLOW_NONE)
		return {.refusal = cell.refusal};
	return {.flow = cell.flow, .set = PEERBUF_FLOW_BIT(cell.flow), .pin = pins};
}

Expected inPlaceKernel(const Case &c)
{
	const Row row = rowOf(c.exporter.offer);
	std::vector<Column> columns = {BY_REFAULT, BY_REVOKE, BY_NEITHER};
	if (effectiveInvalidation(c)) // the driver is known
		columns = {columnOf(effectiveInvalidation(c))};
	Expected x;
	for (const Column column : columns) {
		const Cell &cell = TABLE[row][column];
		if (cell.flow == PEERBUF_FLOW_NONE) {
			x.refusal = cell.refusal;
			continue;
		}
		x.set |= PEERBUF_FLOW_BIT(cell.flow);
		x.flow = std::max(x.flow, cell.flow); // the least is what can be promised
	}
	if (x.flow != PEERBUF_FLOW_NONE && aboveCeiling(x.flow, row, c.policy.ceiling))
		return {.refusal = PEERBUF_ERR_POLICY};
	if (x.flow != PEERBUF_FLOW_NONE)
		x.refusal = PEERBUF_OK;
	return x;
}

Expected oracle(const Case &c)
{
	const peerbuf_exporter_offer &e = c.exporter.offer;
	Expected x;
	bool final = false;
	uint32_t placement = 0;
	if (const auto refused = gate(c, &placement, &final))
		x.refusal = *refused;
	else
		x = isManagedByKernel(c) ? inPlaceKernel(c) : inPlaceUser(c);

	if (x.flow != PEERBUF_FLOW_NONE) {
		x.placement = placement;
		const uint64_t usable = e.window_size - e.window_reserve;
		const bool crowded = placement == PEERBUF_PLACEMENT_DEVICE && e.window_size &&
				     e.window_used + c.ledger.windowNeed > usable;
		const uint32_t common = e.handles & c.importer.offer.handles;
		const bool byFd = (common & PEERBUF_HANDLE_FD) &&
				  !(common & PEERBUF_HANDLE_SEGMENTS) &&
				  !(c.importer.offer.software && (common & PEERBUF_HANDLE_CPU));
		const bool locked = placement == PEERBUF_PLACEMENT_HOST &&
				    c.importer.offer.locks_host_memory && !byFd;
		if (crowded)
			x = {.refusal = PEERBUF_ERR_WINDOW_EXHAUSTED};
		else if (locked && !fits(c.ledger.host, c.demand.pinBytes))
			x = {.refusal = PEERBUF_ERR_QUOTA};
	}
	if (x.flow == PEERBUF_FLOW_NONE && !final && c.policy.stagingOk &&
	    (e.handles & PEERBUF_HANDLE_CPU) && fits(c.ledger.host, c.demand.pinBytes))
		x = {.flow = PEERBUF_FLOW_STAGED,
		     .set = PEERBUF_FLOW_BIT(PEERBUF_FLOW_STAGED),
		     .placement = PEERBUF_PLACEMENT_HOST};
	return x;
}

/* ---- comparing ---------------------------------------------------------------------------- */

/** What went wrong, by kind: how often, and the first case in words. */
class Findings
{
public:
	void add(const std::string &kind, const Case &c, const Answer &a)
	{
		Finding &f = found_[kind];
		if (!f.count++)
			f.first = describe(c) + "\n" + text(a);
	}
	/** Count a case. @return whether this build looks at it. */
	bool due() { return cases_++ % STRIDE == 0; }
	size_t cases() const { return cases_; }

	testing::AssertionResult none() const
	{
		if (found_.empty())
			return testing::AssertionSuccess();
		testing::AssertionResult result = testing::AssertionFailure();
		for (const auto &[kind, finding] : found_)
			result << "\n* " << kind << ": " << finding.count << " of " << cases_
			       << " cases, the first: " << finding.first;
		return result;
	}

private:
	static std::string describe(const Case &c)
	{
		const peerbuf_exporter_offer &e = c.exporter.offer;
		const peerbuf_importer_offer &i = c.importer.offer;
		return text("exporter{stability ", e.stability, " pin ", e.pin, " revoke ",
			    e.revoke, " management ", e.management, " placements ",
			    placementText(e.placements), " variants ", variantText(e.variants),
			    " handles ", handleText(e.handles), " needs_p2p ", e.needs_peer2peer,
			    "} importer{invalidation ", i.invalidation, " notified_by ",
			    i.notified_by, " p2p ", i.peer2peer, " variants ",
			    variantText(i.variants), " handles ", handleText(i.handles), " locks ",
			    i.locks_host_memory, " mask ", i.dma_mask_bits, " distance ",
			    c.importer.distance, "} policy{host ", c.policy.hostPlacementOk,
			    " staging ", c.policy.stagingOk, " dedicated ", c.policy.dedicated,
			    " rekey ", c.policy.rekeyOk, " ceiling ", flowName(c.policy.ceiling),
			    "} ledger{pins ", c.ledger.pins.limit, " host ", c.ledger.host.limit,
			    " window ", c.ledger.windowNeed, "}");
	}

	struct Finding {
		size_t count = 0;
		std::string first;
	};
	std::map<std::string, Finding> found_;
	size_t cases_ = 0;
};

bool samePlan(const Plan &a, const Plan &b)
{
	return a.flow == b.flow && a.flowsPossible == b.flowsPossible && a.howKnown == b.howKnown &&
	       a.placement == b.placement && a.variant == b.variant &&
	       a.handleKind == b.handleKind && a.invalidation == b.invalidation &&
	       a.peer2peer == b.peer2peer && a.pin == b.pin && a.access == b.access &&
	       a.droppedAccess == b.droppedAccess && a.pinCharge == b.pinCharge &&
	       a.windowCharge == b.windowCharge && a.hostCharge == b.hostCharge;
}

bool sameAnswer(const Answer &a, const Answer &b)
{
	if (a.plan.has_value() != b.plan.has_value() || a.refusals.size() != b.refusals.size())
		return false;
	if (a.plan && !samePlan(*a.plan, *b.plan))
		return false;
	for (size_t n = 0; n < a.refusals.size(); n++) {
		const Refusal &x = a.refusals[n];
		const Refusal &y = b.refusals[n];
		if (x.flow != y.flow || x.code != y.code || x.err != y.err || x.who != y.who ||
		    x.capability != y.capability || x.why != y.why)
			return false;
	}
	return true;
}

void checkPlan(const Case &c, const Answer &a, Findings &findings)
{
	const Plan &plan = *a.plan;
	const peerbuf_exporter_offer &e = c.exporter.offer;
	const auto require = [&](bool condition, const char *kind) {
		if (!condition)
			findings.add(kind, c, a);
	};
	const bool moves = e.stability == PEERBUF_STABILITY_MOVES;
	const bool mayRevoke = e.revoke == PEERBUF_REVOKE_MAY;
	const bool held = plan.flow == PEERBUF_FLOW_PINNED || plan.flow == PEERBUF_FLOW_REVOCABLE;
	const bool kernel = isManagedByKernel(c);

	require(plan.flow != PEERBUF_FLOW_NONE, "a plan without a flow");
	if (!kernel) // there a set may hold what only the kernel decides
		require(plan.flow != PEERBUF_FLOW_MOVABLE || effectiveInvalidation(c) == REFAULT,
			"Movable without refault that works for this exporter");
	require(!held || e.pin != PEERBUF_PIN_REFUSES,
		"Pinned or Revocable where the exporter refuses to pin");
	require(plan.flow != PEERBUF_FLOW_PINNED || !mayRevoke,
		"Pinned where the exporter may revoke");
	if (!kernel)
		require(plan.flow != PEERBUF_FLOW_REVOCABLE || effectiveInvalidation(c),
			"Revocable with an importer that cannot stop");
	require(!aboveCeiling(plan.flow, rowOf(e), c.policy.ceiling), "above the ceiling");
	require(plan.flow != PEERBUF_FLOW_STAGED || c.policy.stagingOk,
		"Staged without permission");
	require(plan.flow != PEERBUF_FLOW_REKEY || (c.policy.rekeyOk && moves && !kernel),
		"Rekey without permission, a move or a user-managed exporter");
	require(plan.placement != PEERBUF_PLACEMENT_HOST || plan.flow == PEERBUF_FLOW_STAGED ||
			c.policy.hostPlacementOk || e.placements == PEERBUF_PLACEMENT_HOST,
		"host memory without permission");
	require(plan.placement == PEERBUF_PLACEMENT_HOST ||
			plan.placement == PEERBUF_PLACEMENT_DEVICE,
		"not exactly one placement");
	require(plan.peer2peer == (plan.placement == PEERBUF_PLACEMENT_DEVICE),
		"peer-to-peer does not say where the memory is");
	require(!plan.peer2peer || c.importer.offer.peer2peer,
		"peer-to-peer with an importer that cannot");
	require(!plan.pin || (moves && held && !kernel), "a pin that keeps nothing in place");
	require(plan.pin || !moves || !held || kernel, "held in place without a pin");
	require(plan.pinCharge == (plan.pin ? c.demand.pinBytes : 0), "pin and its charge differ");
	require(moves || !plan.pinCharge, "static memory is charged a pin");
	require(!plan.windowCharge || plan.placement == PEERBUF_PLACEMENT_DEVICE,
		"window charged for memory that is not in it");
	require(!plan.hostCharge || plan.placement == PEERBUF_PLACEMENT_HOST,
		"host memory charged where none is used");
	require(!plan.hostCharge || plan.handleKind != PEERBUF_HANDLE_FD,
		"a dma-buf charged as locked host memory");
	require(plan.flowsPossible & PEERBUF_FLOW_BIT(plan.flow), "flow not in the set");
	require(plan.howKnown == PEERBUF_KNOWN_POSSIBLE ||
			plan.flowsPossible == PEERBUF_FLOW_BIT(plan.flow),
		"several flows possible though it is known which");
	// A copy is made by the CPU, whatever the importer would have taken the memory by.
	const uint32_t handles = plan.flow == PEERBUF_FLOW_STAGED
					 ? PEERBUF_HANDLE_CPU & e.handles
					 : e.handles & c.importer.offer.handles;
	require(plan.handleKind && !(plan.handleKind & (plan.handleKind - 1)) &&
			(plan.handleKind & handles),
		"handle is not one that both have");
	require(plan.variant && !(plan.variant & (plan.variant - 1)) &&
			(plan.variant & e.variants & c.importer.offer.variants),
		"variant is not one that both have");
	require((plan.access | plan.droppedAccess) == c.demand.access &&
			!(plan.access & plan.droppedAccess) &&
			!(plan.access & ~c.importer.offer.access) &&
			!(plan.access & ~e.access & ~PEERBUF_ACCESS_OPTIONAL_MASK) &&
			!(plan.droppedAccess & ~PEERBUF_ACCESS_OPTIONAL_MASK) &&
			!(plan.droppedAccess & c.importer.offer.access),
		"access lost or invented");
	require(!(plan.invalidation & ~effectiveInvalidation(c)),
		"invalidation that the importer will not honour");

	// "Every plan carries the refusals above it"; a gate's refusal is above them all.
	const peerbuf_flow upTo = plan.flow == PEERBUF_FLOW_REKEY ? PEERBUF_FLOW_PINNED : plan.flow;
	for (int better = PEERBUF_FLOW_MOVABLE; better < upTo; better++)
		if (!refusalOf(a.refusals, static_cast<peerbuf_flow>(better)) &&
		    !refusalOf(a.refusals, PEERBUF_FLOW_NONE))
			findings.add(text(flowName(plan.flow), " does not say why not ",
					  flowName(static_cast<uint32_t>(better))),
				     c, a);
}

void checkRefusals(const Case &c, const Answer &a, Findings &findings)
{
	for (const Refusal &r : a.refusals) {
		if (r.who.empty() || r.capability.empty() || r.why.empty())
			findings.add("a refusal without words", c, a);
		if ((r.code == PEERBUF_OK) != (r.err == 0))
			findings.add("a refusal whose class and errno disagree", c, a);
	}
	if (!a.plan && !decisive(a.refusals))
		findings.add("no plan and no reason", c, a);
}

void check(const Case &c, Findings &findings)
{
	if (!findings.due())
		return;
	const Answer a = c.answer();
	const Expected x = oracle(c);
	const peerbuf_flow flow = a.plan ? a.plan->flow : PEERBUF_FLOW_NONE;
	if (flow != x.flow)
		findings.add(text("table says ", flowName(x.flow),
				  x.refusal ? text(" (", errcName(x.refusal), ")") : "",
				  ", answer is ", flowName(flow),
				  a.plan ? "" : text(" (", errcName(decisiveCode(a)), ")")),
			     c, a);
	else if (!a.plan && decisiveCode(a) != x.refusal)
		findings.add(text("table refuses with ", errcName(x.refusal), ", answer with ",
				  errcName(decisiveCode(a))),
			     c, a);
	else if (a.plan && (a.plan->flowsPossible != x.set || a.plan->placement != x.placement ||
			    a.plan->pin != x.pin))
		findings.add(text("set, placement or pin of ", flowName(flow), " differ"), c, a);
	if (a.plan)
		checkPlan(c, a, findings);
	checkRefusals(c, a, findings);
}

/* ---- the cross products ------------------------------------------------------------------- */

/** Every exporter that validate() believes, by what decides the row. */
std::vector<ExporterSide> everyExporter()
{
	std::vector<ExporterSide> all;
	for (uint32_t stability = 1; stability <= PEERBUF_STABILITY_MOVES; stability++)
		for (uint32_t pin = 1; pin <= PEERBUF_PIN_REFUSES; pin++)
			for (uint32_t revoke = 1; revoke <= PEERBUF_REVOKE_MAY; revoke++)
				for (const bool kernel : {false, true}) {
					ExporterSide e = movingExporter();
					e.offer.stability = stability;
					e.offer.pin = pin;
					e.offer.revoke = revoke;
					if (kernel)
						e = managedByKernel(e);
					if (validate(e.offer, ALL_EXPORTER_CAPS, e.name))
						all.push_back(e);
				}
	return all;
}

std::vector<ImporterSide> everyImporter()
{
	std::vector<ImporterSide> all = {plainImporter()};
	for (const uint32_t invalidation : {REVOCABLE, REFAULT})
		for (uint32_t by = 1; by <= 3; by++) {
			ImporterSide i = importerWith(invalidation);
			i.offer.notified_by = by;
			if (validate(i.offer, ALL_IMPORTER_CAPS, i.name))
				all.push_back(i);
		}
	return all;
}

struct Place {
	uint32_t placements;
	uint32_t needsPeer2peer;
};
constexpr uint32_t ON_DEVICE = PEERBUF_PLACEMENT_DEVICE;
constexpr uint32_t IN_HOST = PEERBUF_PLACEMENT_HOST;
constexpr Place PLACES[] = {
	{ON_DEVICE, 0},		  {ON_DEVICE, 1},	    {IN_HOST, 0},
	{ON_DEVICE | IN_HOST, 0}, {ON_DEVICE | IN_HOST, 1},
};

std::vector<Policy> everyPolicy()
{
	std::vector<Policy> all;
	for (unsigned bits = 0; bits < 16; bits++)
		for (const peerbuf_flow ceiling : {PEERBUF_FLOW_NONE, PEERBUF_FLOW_MOVABLE,
						   PEERBUF_FLOW_REVOCABLE, PEERBUF_FLOW_PINNED}) {
			Policy p;
			p.hostPlacementOk = bits & 1;
			p.stagingOk = bits & 2;
			p.dedicated = bits & 4;
			p.rekeyOk = bits & 8;
			p.ceiling = ceiling;
			p.tenant = "t";
			all.push_back(p);
		}
	return all;
}

TEST(NegotiateProperty, GivenTheOffersThenAllRowsAndColumnsAreInTheProduct)
{
	bool rows[4] = {};
	for (const ExporterSide &e : everyExporter())
		rows[rowOf(e.offer)] = true;
	for (const bool row : rows)
		EXPECT_TRUE(row);
	EXPECT_EQ(20u, everyExporter().size()); // 24 less "moves, pin not needed"
	EXPECT_EQ(7u, everyImporter().size());
	EXPECT_EQ(64u, everyPolicy().size());
}

TEST(NegotiateProperty, GivenEveryOfferPolicyAndLedgerThenTheTableAndItsPromises)
{
	Findings findings;
	for (const ExporterSide &exporter : everyExporter())
		for (const Place &place : PLACES)
			for (const ImporterSide &importer : everyImporter())
				for (unsigned bits = 0; bits < 32; bits++) {
					Case c{.exporter = exporter, .importer = importer};
					c.exporter.offer.placements = place.placements;
					c.exporter.offer.needs_peer2peer = place.needsPeer2peer;
					c.importer.offer.peer2peer = !(bits & 1);
					c.importer.offer.locks_host_memory = (bits & 2) != 0;
					if (bits & 4)
						c.ledger.pins.limit = c.demand.pinBytes - 1;
					if (bits & 8)
						c.ledger.host.limit = c.demand.pinBytes - 1;
					c.exporter.offer.window_size = 0x200000;
					c.exporter.offer.window_reserve = 0x80000;
					c.exporter.offer.window_used = 0x40000;
					c.ledger.windowNeed = bits & 16 ? 0x140001 : 0x140000;
					for (const Policy &policy : everyPolicy()) {
						c.policy = policy;
						check(c, findings);
					}
				}
	EXPECT_EQ(20u * 5 * 7 * 32 * 64, findings.cases());
	EXPECT_TRUE(findings.none());
}

TEST(NegotiateProperty, GivenEveryHandleVariantMaskAndDistanceThenTheGatesAndTheirPromises)
{
	const ExporterSide exporters[] = {movingExporter(), staticExporter(), revokingExporter(),
					  unpinnableExporter()};
	const ImporterSide importers[] = {refaultImporter(), revocableImporter(), plainImporter()};
	Findings findings;
	for (const ExporterSide &exporter : exporters)
		for (const ImporterSide &importer : importers)
			for (uint32_t handles = 0; handles < 7 * 7; handles++)
				for (uint32_t variants = 0; variants < 3 * 3; variants++)
					for (unsigned bits = 0; bits < 3 * 64; bits++) {
						Case c{.exporter = exporter, .importer = importer};
						auto &e = c.exporter.offer;
						auto &i = c.importer.offer;
						e.handles = handles % 7 + 1;
						i.handles = handles / 7 + 1;
						e.variants = variants % 3 + 1;
						i.variants = variants / 3 + 1;
						e.dma_addr_max = 0x3807ffffffff;
						i.dma_mask_bits = bits & 1 ? 45 : 46;
						i.peer2peer = (bits & 2) != 0;
						c.policy.hostPlacementOk = bits & 4;
						c.policy.stagingOk = bits & 8;
						e.placements =
							bits & 16 ? ON_DEVICE | IN_HOST : ON_DEVICE;
						if (bits & 32)
							e.placements = IN_HOST;
						c.importer.distance =
							static_cast<peerbuf_distance>(bits / 64);
						check(c, findings);
					}
	EXPECT_TRUE(findings.none());
}

TEST(NegotiateProperty, GivenEveryAccessThenNothingIsLostOrInvented)
{
	constexpr uint32_t KNOWN[] = {
		PEERBUF_ACCESS_LOCAL_WRITE,	 PEERBUF_ACCESS_REMOTE_READ,
		PEERBUF_ACCESS_REMOTE_WRITE,	 PEERBUF_ACCESS_REMOTE_ATOMIC,
		PEERBUF_ACCESS_RELAXED_ORDERING,
	};
	const auto set = [&](unsigned bits) {
		uint32_t access = 0;
		for (unsigned n = 0; n < 5; n++)
			access |= bits & (1u << n) ? KNOWN[n] : 0;
		return access;
	};
	Findings findings;
	for (unsigned bits = 0; bits < 1u << 15; bits++) {
		Case c{.exporter = movingExporter(), .importer = refaultImporter()};
		c.demand.access = set(bits);
		c.exporter.offer.access = set(bits >> 5);
		c.importer.offer.access = set(bits >> 10);
		check(c, findings);
	}
	EXPECT_TRUE(findings.none());
}

TEST(NegotiateProperty, GivenTheSameInputsThenTheSameAnswer)
{
	size_t n = 0;
	for (const ExporterSide &exporter : everyExporter())
		for (const ImporterSide &importer : everyImporter())
			for (const Policy &policy : everyPolicy()) {
				const Case c{.exporter = exporter,
					     .importer = importer,
					     .policy = policy};
				const Answer first = c.answer();
				// something else in between, so that state kept anywhere shows
				negotiate(unpinnableExporter(), plainImporter(), megabyte(), {},
					  {});
				ASSERT_TRUE(sameAnswer(first, c.answer()));
				n++;
			}
	EXPECT_EQ(20u * 7 * 64, n);
}

/** What one importer gets alone it also gets beside itself, and none is given away for nothing. */
TEST(NegotiateProperty, GivenTwoImportersThenAllOrNothingUnlessPartial)
{
	for (const ExporterSide &exporter : everyExporter())
		for (const ImporterSide &a : everyImporter())
			for (const ImporterSide &b : everyImporter())
				for (Policy policy : everyPolicy()) {
					const bool aloneA =
						negotiate(exporter, a, megabyte(), policy, {})
							.plan.has_value();
					const bool aloneB =
						negotiate(exporter, b, megabyte(), policy, {})
							.plan.has_value();
					const auto all = negotiateAll(exporter, {a, b}, megabyte(),
								      policy, {});
					ASSERT_EQ(2u, all.size());
					ASSERT_EQ(aloneA && aloneB, all[0].plan.has_value());
					ASSERT_EQ(aloneA && aloneB, all[1].plan.has_value());
					policy.partialOk = true;
					const auto some = negotiateAll(exporter, {a, b}, megabyte(),
								       policy, {});
					ASSERT_EQ(aloneA, some[0].plan.has_value());
					ASSERT_EQ(aloneB, some[1].plan.has_value());
				}
}

} // namespace
} // namespace peerbuf
