// SPDX-License-Identifier: BSD-3-Clause
#include "core/negotiate.h"

#include <algorithm>
#include <cerrno>

#include "core/base/result.h"

namespace peerbuf
{

namespace
{

constexpr uint32_t REFAULT = PEERBUF_INVALIDATION_REFAULT;
constexpr uint32_t REVOCABLE = PEERBUF_INVALIDATION_REVOCABLE;

unsigned bitsNeeded(uint64_t address)
{
	unsigned bits = 0;
	for (; address; address >>= 1)
		bits++;
	return bits;
}

/** One negotiation under way: the inputs, and what has been decided so far. */
class Negotiation
{
public:
	Negotiation(const ExporterSide &exporter, const ImporterSide &importer,
		    const Demand &demand, const Policy &policy, const LedgerView &ledger,
		    uint32_t variants)
	    : e_(exporter),
	      i_(importer),
	      demand_(demand),
	      policy_(policy),
	      ledger_(ledger),
	      variants_(variants ? variants : exporter.offer.variants)
	{
	}

	Answer run()
	{
		honoured();
		if (!accessGate() || !limitGates() || !handleGate())
			return std::move(answer_);
		if (!placementGate() || !climb())
			staged();
		return std::move(answer_);
	}

	/** Some other importer of the same memory needs it in host memory. */
	void placeInHost() { onlyHost_ = true; }

private:
	bool moves() const { return e_.offer.stability == PEERBUF_STABILITY_MOVES; }
	bool mayRevoke() const { return e_.offer.revoke == PEERBUF_REVOKE_MAY; }
	bool refusesPin() const { return e_.offer.pin == PEERBUF_PIN_REFUSES; }
	bool kernelManaged() const { return e_.offer.management == PEERBUF_MANAGED_BY_KERNEL; }

	template <typename... Parts>
	void refuse(peerbuf_flow flow, Errc code, int err, const std::string &who,
		    const std::string &capability, const Parts &...parts)
	{
		answer_.refusals.push_back(
			Refusal{flow, code, err, who, capability, text(parts...)});
	}
	/** Not a failure: the better flow would gain nothing, or was not asked for. */
	template <typename... Parts>
	void needless(peerbuf_flow flow, const std::string &who, const std::string &capability,
		      const Parts &...parts)
	{
		refuse(flow, PEERBUF_OK, 0, who, capability, parts...);
	}

	/**
	 * What the importer does about this exporter's Invalidate. A hardware NIC obeys only the
	 * kernel: told by an exporter in user space, its region would stay on the old memory.
	 */
	void honoured()
	{
		const uint32_t by =
			kernelManaged() ? PEERBUF_NOTIFIED_BY_KERNEL : PEERBUF_NOTIFIED_BY_USER;
		if (i_.offer.notified_by & by)
			plan_.invalidation = i_.offer.invalidation;
		else if (i_.offer.invalidation)
			lacking_ =
				kernelManaged()
					? "its data path does not obey the kernel's Invalidate, "
					  "and a kernel driver manages this memory"
					: "its data path obeys only the kernel's Invalidate, and "
					  "this exporter moves its memory itself";
	}

	std::string importerLacks(const char *capability) const
	{
		std::string why = text("the importer lacks ", capability);
		if (!lacking_.empty())
			why += ": " + lacking_;
		else if (i_.offer.why[0])
			why += text(": ", i_.offer.why);
		return why;
	}

	/*
	 * The gates before the table. One that fails is told with flow "none": it refuses them all.
	 */
	bool accessGate()
	{
		uint32_t access = demand_.access;
		// Optional flags are about how the importer works, not about what the memory
		// allows.
		plan_.droppedAccess = access & ~i_.offer.access & PEERBUF_ACCESS_OPTIONAL_MASK;
		access &= ~plan_.droppedAccess;
		plan_.access = access;
		const uint32_t missing = access & ~(e_.offer.access & i_.offer.access) &
					 ~PEERBUF_ACCESS_OPTIONAL_MASK;
		if (!missing)
			return true;
		const uint32_t byExporter = missing & ~e_.offer.access;
		refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_ACCESS, EACCES,
		       byExporter ? e_.name : i_.name, "access",
		       byExporter ? "the memory does not allow " : "the importer does not know ",
		       accessText(byExporter ? byExporter : missing), "; asked for ",
		       accessText(demand_.access));
		return false;
	}

	bool limitGates()
	{
		if (demand_.range.length > i_.offer.max_length) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_DEVICE_LIMIT, EINVAL, i_.name,
			       "max_length", "length ", demand_.range.length,
			       " is more than its longest region, ", i_.offer.max_length);
			return false;
		}
		if (!i_.offer.keys_left) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_DEVICE_RESOURCES, ENOSPC, i_.name,
			       "keys", "no memory key is left");
			return false;
		}
		return true;
	}

	bool handleGate()
	{
		const uint32_t handles = e_.offer.handles & i_.offer.handles;
		// The device's own view first. A CPU's is the one that software uses; to a device
		// it is host memory to be locked, where a dma-buf would be the memory itself.
		const bool viewFirst = i_.offer.software;
		for (const uint32_t kind :
		     {PEERBUF_HANDLE_SEGMENTS, viewFirst ? PEERBUF_HANDLE_CPU : PEERBUF_HANDLE_FD,
		      viewFirst ? PEERBUF_HANDLE_FD : PEERBUF_HANDLE_CPU})
			if ((handles & kind) && !plan_.handleKind)
				plan_.handleKind = kind;
		if (!plan_.handleKind) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP,
			       i_.name, "handle", "the exporter hands memory out by ",
			       handleText(e_.offer.handles), ", the importer takes it by ",
			       handleText(i_.offer.handles));
			return false;
		}
		const uint32_t variants = variants_ & i_.offer.variants;
		plan_.variant = variants & (~variants + 1); // the lowest: host before pcie
		if (!variants) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP,
			       i_.name, "variant", "the exporter maps by ", variantText(variants_),
			       ", the importer takes ", variantText(i_.offer.variants));
			return false;
		}
		return true;
	}

	/** Why device memory is out of this importer's reach; empty if it is not. */
	std::string deviceOutOfReach(std::string &capability) const
	{
		capability = "peer2peer";
		if (!i_.offer.peer2peer)
			return "the importer takes only memory with struct pages, not another "
			       "device's";
		if (i_.distance == PEERBUF_DISTANCE_NO_PATH &&
		    plan_.handleKind != PEERBUF_HANDLE_CPU) // a CPU's loads need no such path
			return "there is no peer-to-peer path between the two devices";
		std::string narrow = maskTooNarrow();
		if (!narrow.empty())
			capability = "dma_mask";
		return narrow;
	}

	/** Empty if the importer's addresses reach all of the memory. */
	std::string maskTooNarrow() const
	{
		const unsigned need = bitsNeeded(e_.offer.dma_addr_max);
		if (plan_.handleKind == PEERBUF_HANDLE_CPU || need <= i_.offer.dma_mask_bits)
			return "";
		return text("the memory's highest bus address ", hex(e_.offer.dma_addr_max),
			    " needs ", need, " bits, the importer has ", i_.offer.dma_mask_bits);
	}

	bool placementGate()
	{
		const uint32_t placements = e_.offer.placements;
		if (placements == PEERBUF_PLACEMENT_HOST) { // it is host memory to begin with
			const std::string narrow = maskTooNarrow();
			if (!narrow.empty()) {
				refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP,
				       i_.name, "dma_mask", narrow);
				return false;
			}
			plan_.placement = PEERBUF_PLACEMENT_HOST;
			return true;
		}
		std::string capability;
		const std::string why = deviceOutOfReach(capability);
		if (why.empty() && !onlyHost_) {
			plan_.placement = PEERBUF_PLACEMENT_DEVICE;
			plan_.peer2peer = true;
			return true;
		}
		if (e_.offer.needs_peer2peer || !(placements & PEERBUF_PLACEMENT_HOST)) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_NO_P2P_PATH, EOPNOTSUPP, i_.name,
			       capability, why,
			       e_.offer.needs_peer2peer
				       ? "; the exporter needs peer-to-peer"
				       : "; the exporter has no place in host memory");
			return false;
		}
		if (!policy_.hostPlacementOk) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_NOT_P2P_PLACEMENT, EOPNOTSUPP,
			       i_.name, capability, why,
			       "; the memory could be put into host memory, which the policy "
			       "(placement device_only) forbids");
			return false;
		}
		plan_.placement = PEERBUF_PLACEMENT_HOST;
		return true;
	}

	/** The table, best flow first. @return whether there is a plan. */
	bool climb()
	{
		if (kernelManaged())
			return kernelChooses() && finish();
		return (tryMovable() || tryRevocable() || tryRekey() || tryPinned()) && finish();
	}

	bool belowCeiling(peerbuf_flow flow)
	{
		if (policy_.ceiling == PEERBUF_FLOW_NONE || flow >= policy_.ceiling)
			return true;
		needless(flow, "policy", "ceiling", "the policy asks for ",
			 flowName(policy_.ceiling), " at most");
		return false;
	}

	bool tryMovable()
	{
		if (!moves() && !mayRevoke()) {
			if (!refusesPin()) {
				needless(PEERBUF_FLOW_MOVABLE, e_.name, "moves",
					 "the memory never moves: there is nothing to follow");
				return false;
			}
		}
		if (!belowCeiling(PEERBUF_FLOW_MOVABLE))
			return false;
		if (!(plan_.invalidation & REFAULT)) {
			refuse(PEERBUF_FLOW_MOVABLE, PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP,
			       i_.name, "refault", importerLacks("refault"));
			return false;
		}
		plan_.flow = PEERBUF_FLOW_MOVABLE;
		return true;
	}

	/** Opted in to: instead of a pin, or of nothing. A static pair has no use for it. */
	bool tryRekey()
	{
		if (!policy_.rekeyOk)
			return false;
		if (!moves()) {
			needless(PEERBUF_FLOW_REKEY, e_.name, "moves",
				 "the memory never moves: keys need not change");
			return false;
		}
		plan_.flow = PEERBUF_FLOW_REKEY;
		return true;
	}

	bool mayPin(peerbuf_flow flow)
	{
		if (refusesPin()) {
			refuse(flow, PEERBUF_ERR_PIN_REFUSED, EOPNOTSUPP, e_.name, "pin",
			       "the exporter refuses to pin",
			       e_.offer.why[0] ? text(": ", e_.offer.why) : std::string());
			return false;
		}
		return true;
	}

	/** Static memory needs no keeping in place and is not charged. */
	bool canPay(peerbuf_flow flow)
	{
		if (!moves())
			return true;
		const uint64_t used = ledger_.pins.used;
		const uint64_t limit = ledger_.pins.limit;
		if (!policy_.dedicated && (used > limit || demand_.pinBytes > limit - used)) {
			refuse(flow, PEERBUF_ERR_QUOTA, EDQUOT, "ledger", "pins", "tenant '",
			       policy_.tenant, "' on ", e_.offer.device, ": need ",
			       demand_.pinBytes, ", used ", used, ", limit ", limit, "; held by ",
			       ledger_.pins.holders.empty() ? "nobody" : ledger_.pins.holders);
			return false;
		}
		return true;
	}

	/** With such an exporter this is the pinned attachment, so a ceiling of Pinned allows it.
	 */
	bool tryRevocable()
	{
		if (!mayRevoke()) {
			needless(PEERBUF_FLOW_REVOCABLE, e_.name, "revoke",
				 "the exporter never revokes: a pinned attachment loses nothing");
			return false;
		}
		if (!mayPin(PEERBUF_FLOW_REVOCABLE))
			return false;
		if (!(plan_.invalidation & REVOCABLE)) {
			refuse(PEERBUF_FLOW_REVOCABLE, PEERBUF_ERR_REVOKE_UNSUPPORTED, EOPNOTSUPP,
			       i_.name, "revocable", importerLacks("revocable"),
			       "; the exporter may revoke and accepts no attachment that cannot "
			       "stop");
			return false;
		}
		if (!canPay(PEERBUF_FLOW_REVOCABLE))
			return false;
		plan_.flow = PEERBUF_FLOW_REVOCABLE;
		return true;
	}

	bool tryPinned()
	{
		if (mayRevoke()) {
			needless(PEERBUF_FLOW_PINNED, e_.name, "revoke",
				 "the exporter may revoke: Revocable is the only pinned "
				 "attachment it accepts");
			return false;
		}
		if (!mayPin(PEERBUF_FLOW_PINNED) || !canPay(PEERBUF_FLOW_PINNED))
			return false;
		plan_.flow = PEERBUF_FLOW_PINNED;
		return true;
	}

	/**
	 * A dma-buf whose driver moves it: the kernel negotiates in one call and does not say what
	 * it took, so the answer is the set of what it may take.
	 */
	bool kernelChooses()
	{
		const bool evidence = i_.offer.notified_by & PEERBUF_NOTIFIED_BY_KERNEL;
		uint32_t set = 0;
		for (const uint32_t invalidation : {REFAULT | REVOCABLE, REVOCABLE, 0u}) {
			if (evidence && invalidation != plan_.invalidation)
				continue;
			const bool follows = invalidation & REFAULT;
			const bool idle = !moves() && !mayRevoke(); // nothing to follow
			if (follows && (!idle || refusesPin()))
				set |= PEERBUF_FLOW_BIT(PEERBUF_FLOW_MOVABLE);
			else if (!refusesPin() && !mayRevoke())
				set |= PEERBUF_FLOW_BIT(PEERBUF_FLOW_PINNED);
			else if (!refusesPin() && (invalidation & REVOCABLE))
				set |= PEERBUF_FLOW_BIT(PEERBUF_FLOW_REVOCABLE);
		}
		if (!set) {
			refuse(PEERBUF_FLOW_MOVABLE,
			       refusesPin() ? PEERBUF_ERR_PIN_REFUSED
					    : PEERBUF_ERR_REVOKE_UNSUPPORTED,
			       EOPNOTSUPP, refusesPin() ? e_.name : i_.name,
			       refusesPin() ? "pin" : "revocable",
			       importerLacks(refusesPin() ? "refault" : "revocable"),
			       refusesPin() ? "; the exporter refuses to pin"
					    : "; the exporter may revoke");
			return false;
		}
		plan_.flowsPossible = set;
		plan_.howKnown = PEERBUF_KNOWN_POSSIBLE;
		for (const auto flow :
		     {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE, PEERBUF_FLOW_PINNED})
			if (set & PEERBUF_FLOW_BIT(flow))
				plan_.flow = flow; // the least of the set is what can be promised
		plan_.flowUnsaid = plan_.flow;
		const bool idle = !moves() && !mayRevoke() && !refusesPin(); // nothing to ask for
		const bool asked = i_.offer.asks_flow && !idle;
		if (asked ? !askKernel() : !belowCeilingInKernel())
			return false;
		for (const auto better : {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE}) {
			if (better >= plan_.flow || (asked && better < policy_.ceiling))
				continue; // the ceiling has said so
			if (set & PEERBUF_FLOW_BIT(better))
				needless(better, "kernel", "flow",
					 "the kernel and the NIC's driver choose the flow and do "
					 "not say which");
			else
				needless(better, e_.name,
					 better == PEERBUF_FLOW_MOVABLE ? "moves" : "revoke",
					 "not among the flows that the kernel may choose for this "
					 "pair");
		}
		return true;
	}

	/**
	 * The importer asks the driver for a flow and reads back what was taken: so the best is
	 * asked for, and a ceiling can be kept to.
	 */
	bool askKernel()
	{
		if (!belowCeiling(PEERBUF_FLOW_MOVABLE)) {
			// what stays in place for the kernel is what can be revoked
			if (!mayPin(PEERBUF_FLOW_REVOCABLE))
				return false;
			plan_.flow = PEERBUF_FLOW_REVOCABLE;
		} else if (plan_.flowsPossible & PEERBUF_FLOW_BIT(PEERBUF_FLOW_MOVABLE)) {
			plan_.flow = PEERBUF_FLOW_MOVABLE;
		}
		plan_.flowsPossible |= PEERBUF_FLOW_BIT(plan_.flow);
		return true;
	}

	/** The kernel cannot be asked for less than it would take. */
	bool belowCeilingInKernel()
	{
		const bool pinned = plan_.flow == PEERBUF_FLOW_REVOCABLE && mayRevoke();
		if (policy_.ceiling == PEERBUF_FLOW_NONE || pinned || plan_.flow >= policy_.ceiling)
			return true;
		refuse(plan_.flow, PEERBUF_ERR_POLICY, EOPNOTSUPP, "policy", "ceiling",
		       "the policy asks for ", flowName(policy_.ceiling),
		       " at most, the kernel would take ", flowName(plan_.flow),
		       " and cannot be asked for less");
		return false;
	}

	/** The last resort: a copy through host memory, where the CPU reaches the memory. */
	void staged()
	{
		if (!(e_.offer.handles & PEERBUF_HANDLE_CPU)) {
			refuse(PEERBUF_FLOW_STAGED, PEERBUF_ERR_UNSUPPORTED_DRIVER, EOPNOTSUPP,
			       e_.name, "cpu",
			       "the CPU cannot reach the memory, so it cannot be copied");
			return;
		}
		if (!policy_.stagingOk) {
			refuse(PEERBUF_FLOW_STAGED, PEERBUF_ERR_POLICY, EOPNOTSUPP, "policy",
			       "staging",
			       "a copy through host memory would work; the policy (staging never) "
			       "forbids it");
			return;
		}
		plan_.flow = PEERBUF_FLOW_STAGED;
		plan_.flowsPossible = 0;
		plan_.howKnown = PEERBUF_KNOWN_NEGOTIATED;
		plan_.placement = PEERBUF_PLACEMENT_HOST;
		plan_.handleKind = PEERBUF_HANDLE_CPU; // by which it is copied
		plan_.invalidation = 0;		       // the importer holds host memory of ours
		plan_.peer2peer = false;
		finish();
	}

	/** Fill in what the flow implies. @return whether it can be paid for. */
	bool finish()
	{
		const bool inPlace = plan_.flow != PEERBUF_FLOW_STAGED;
		plan_.pin =
			inPlace && moves() && !kernelManaged() &&
			(plan_.flow == PEERBUF_FLOW_REVOCABLE || plan_.flow == PEERBUF_FLOW_PINNED);
		plan_.software = i_.offer.software;
		plan_.moves = moves();
		plan_.mayRevoke = mayRevoke();
		if (plan_.flow == PEERBUF_FLOW_REKEY ||
		    (plan_.invalidation && i_.offer.invalidate_scope == PEERBUF_SCOPE_WHOLE))
			plan_.scope = PEERBUF_SCOPE_WHOLE;
		plan_.placements = plan_.placement;
		if (policy_.hostPlacementOk)
			plan_.placements |= e_.offer.placements & PEERBUF_PLACEMENT_HOST;
		plan_.pinCharge = plan_.pin ? demand_.pinBytes : 0;
		// No kernel counts a dma-buf against memlock.
		const bool hostLocked = plan_.placement == PEERBUF_PLACEMENT_HOST &&
					(!inPlace || (i_.offer.locks_host_memory &&
						      plan_.handleKind != PEERBUF_HANDLE_FD));
		plan_.hostCharge = hostLocked ? demand_.pinBytes : 0;
		plan_.windowCharge = 0;
		if (!windowFits(inPlace) || !hostFits())
			return false;
		if (!plan_.flowsPossible)
			plan_.flowsPossible = PEERBUF_FLOW_BIT(plan_.flow);
		if (plan_.flow == PEERBUF_FLOW_PINNED && !moves() && !mayRevoke())
			plan_.invalidation = 0; // static: no callback, no guard
		answer_.plan = plan_;
		return true;
	}

	bool windowFits(bool inPlace)
	{
		if (!inPlace || !e_.offer.window_size ||
		    plan_.placement != PEERBUF_PLACEMENT_DEVICE)
			return true;
		const uint64_t usable = e_.offer.window_size - e_.offer.window_reserve;
		const uint64_t free =
			usable > e_.offer.window_used ? usable - e_.offer.window_used : 0;
		if (ledger_.windowNeed > free) {
			refuse(PEERBUF_FLOW_NONE, PEERBUF_ERR_WINDOW_EXHAUSTED, ENOSPC, e_.name,
			       "window", "window ", e_.offer.window_size, ", reserved ",
			       e_.offer.window_reserve, ", used ", e_.offer.window_used, ", free ",
			       free, ", need ", ledger_.windowNeed);
			return false;
		}
		plan_.usesWindow = true;
		plan_.windowCharge = ledger_.windowNeed;
		return true;
	}

	bool hostFits()
	{
		const uint64_t used = ledger_.host.used;
		const uint64_t limit = ledger_.host.limit;
		if (!plan_.hostCharge || (used <= limit && plan_.hostCharge <= limit - used))
			return true;
		refuse(plan_.flow == PEERBUF_FLOW_STAGED ? PEERBUF_FLOW_STAGED : PEERBUF_FLOW_NONE,
		       PEERBUF_ERR_QUOTA, EDQUOT, "ledger", "host", "tenant '", policy_.tenant,
		       "' on ", e_.offer.device, ": need ", plan_.hostCharge, ", used ", used,
		       ", limit ", limit, " of locked host memory; held by ",
		       ledger_.host.holders.empty() ? "nobody" : ledger_.host.holders);
		return false;
	}

	const ExporterSide &e_;
	const ImporterSide &i_;
	const Demand &demand_;
	const Policy &policy_;
	const LedgerView &ledger_;
	const uint32_t variants_;
	bool onlyHost_ = false;
	std::string lacking_;
	Plan plan_;
	Answer answer_;
};

} // namespace

Answer negotiate(const ExporterSide &exporter, const ImporterSide &importer, const Demand &demand,
		 const Policy &policy, const LedgerView &ledger, uint32_t variants)
{
	return Negotiation(exporter, importer, demand, policy, ledger, variants).run();
}

namespace
{

/** The variants to offer to all: one that serves everybody, or all of them. */
uint32_t commonVariant(const ExporterSide &exporter, const std::vector<ImporterSide> &importers)
{
	uint32_t common = exporter.offer.variants;
	for (const ImporterSide &importer : importers)
		common &= importer.offer.variants;
	return common & (~common + 1);
}

std::vector<Answer> negotiateEach(const ExporterSide &exporter,
				  const std::vector<ImporterSide> &importers, const Demand &demand,
				  const Policy &policy, LedgerView ledger, bool inHost)
{
	const uint32_t variant = commonVariant(exporter, importers);
	std::vector<Answer> answers;
	for (const ImporterSide &importer : importers) {
		Negotiation negotiation(exporter, importer, demand, policy, ledger, variant);
		if (inHost)
			negotiation.placeInHost();
		answers.push_back(negotiation.run());
		if (!answers.back().plan)
			continue;
		const Plan &plan = *answers.back().plan;
		ledger.pins.used += plan.pinCharge;
		ledger.host.used += plan.hostCharge;
		if (plan.windowCharge) // the same bytes are in the window once, whoever uses them
			ledger.windowNeed = 0;
	}
	return answers;
}

bool anyPlacedIn(const std::vector<Answer> &answers, uint32_t placement)
{
	return std::any_of(answers.begin(), answers.end(), [&](const Answer &a) {
		return a.plan && a.plan->flow != PEERBUF_FLOW_STAGED &&
		       a.plan->placement == placement;
	});
}

} // namespace

std::vector<Answer> negotiateAll(const ExporterSide &exporter,
				 const std::vector<ImporterSide> &importers, const Demand &demand,
				 const Policy &policy, const LedgerView &ledger)
{
	std::vector<Answer> answers =
		negotiateEach(exporter, importers, demand, policy, ledger, false);
	if (anyPlacedIn(answers, PEERBUF_PLACEMENT_HOST) &&
	    anyPlacedIn(answers, PEERBUF_PLACEMENT_DEVICE))
		answers = negotiateEach(exporter, importers, demand, policy, ledger, true);
	if (policy.partialOk)
		return answers;
	const auto failed = std::find_if(answers.begin(), answers.end(),
					 [](const Answer &a) { return !a.plan; });
	if (failed == answers.end())
		return answers;
	const Refusal *cause = decisive(failed->refusals);
	const std::string &who = importers[static_cast<size_t>(failed - answers.begin())].name;
	for (Answer &answer : answers) {
		if (answer.plan && cause)
			answer.refusals.push_back(Refusal{
				PEERBUF_FLOW_NONE, cause->code, cause->err, who, "all_or_nothing",
				text("another importer of the same call has no plan: ",
				     cause->why)});
		answer.withdrawn = answer.plan.has_value();
		answer.plan.reset();
	}
	return answers;
}

void observe(Plan &plan, uint32_t kernelFlow)
{
	if (!kernelFlow) {
		if (plan.flowUnsaid != PEERBUF_FLOW_NONE)
			plan.flow = plan.flowUnsaid;
		return;
	}
	const bool idle = !plan.moves && !plan.mayRevoke;
	plan.flow = PEERBUF_FLOW_PINNED;
	if (kernelFlow == PEERBUF_FLOW_MOVABLE && !idle)
		plan.flow = PEERBUF_FLOW_MOVABLE;
	if (kernelFlow == PEERBUF_FLOW_REVOCABLE && plan.mayRevoke)
		plan.flow = PEERBUF_FLOW_REVOCABLE;
	plan.flowsPossible = PEERBUF_FLOW_BIT(plan.flow);
	plan.howKnown = PEERBUF_KNOWN_OBSERVED;
}

const Refusal *decisive(const std::vector<Refusal> &refusals)
{
	const Refusal *last = nullptr;
	for (const Refusal &refusal : refusals)
		if (refusal.code != PEERBUF_OK && (refusal.flow != PEERBUF_FLOW_STAGED || !last))
			last = &refusal;
	return last;
}

} // namespace peerbuf
