// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_NEGOTIATE_H
#define PEERBUF_CORE_NEGOTIATE_H

#include <optional>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.h>
#include <peerbuf/types.h>

#include "core/base/error.h"
#include "core/offer.h"

/**
 * Which attachment an exporter and an importer can both honour. Everything here is a pure function
 * of values: no plugin is called and nothing is remembered. docs/negotiation.md has the table.
 */
namespace peerbuf
{

struct ExporterSide {
	std::string name;
	peerbuf_exporter_offer offer = {};
};

struct ImporterSide {
	std::string name;
	peerbuf_importer_offer offer = {};
	peerbuf_distance distance = PEERBUF_DISTANCE_UNKNOWN;
};

/** What the application allows; the public structure's meaning, with its strings resolved. */
struct Policy {
	bool hostPlacementOk = false;
	bool stagingOk = false;
	bool dedicated = false;
	bool rekeyOk = false;
	bool partialOk = false;
	peerbuf_flow ceiling = PEERBUF_FLOW_NONE;
	std::string tenant;
};

/** What a tenant may still charge on the exporter's device, as the ledger saw it. */
struct LedgerView {
	struct Column {
		uint64_t used = 0;
		uint64_t limit = PEERBUF_UNLIMITED;
		std::string holders = {}; /* in words, for the refusal */
	};
	Column pins;
	Column host;
	/** Bytes of the request that nobody in this process has in the window yet. */
	uint64_t windowNeed = 0;
};

/** What is asked for. */
struct Demand {
	Range range;
	uint32_t access = 0;
	/** Bytes that pinning the range charges: the range, rounded out to the granularity. */
	uint64_t pinBytes = 0;
};

/** The attachment to make. */
struct Plan {
	peerbuf_flow flow = PEERBUF_FLOW_NONE;
	uint32_t flowsPossible = 0;
	peerbuf_how_known howKnown = PEERBUF_KNOWN_NEGOTIATED;
	/** Where the kernel is asked for flow: what can be promised if it does not say. */
	peerbuf_flow flowUnsaid = PEERBUF_FLOW_NONE;
	uint32_t placement = 0;
	uint32_t variant = 0;
	uint32_t handleKind = 0;
	uint32_t invalidation = 0; /* what the importer will honour for this exporter */
	peerbuf_scope scope = PEERBUF_SCOPE_RANGE; /* the smallest part it can be stopped by */
	uint32_t placements = 0; /* where the memory may be while it is used in place */
	bool peer2peer = false;
	bool moves = false;	/* the memory may */
	bool mayRevoke = false; /* its exporter */
	bool software = false;	/* the importer's data path is */
	bool pin = false;	/* call the exporter's pin */
	uint32_t access = 0;
	uint32_t droppedAccess = 0;
	uint64_t pinCharge = 0;
	bool usesWindow = false;
	uint64_t windowCharge = 0; /* of it, bytes not in the window yet */
	uint64_t hostCharge = 0;
};

/** A plan, or none; in both cases why nothing better was possible, best flow first. */
struct Answer {
	std::optional<Plan> plan;
	bool withdrawn = false; /* there was a plan, but another importer had none */
	std::vector<Refusal> refusals;
};

/** One importer. @param variants restricts the exporter's variants; 0: all of them. */
Answer negotiate(const ExporterSide &exporter, const ImporterSide &importer, const Demand &demand,
		 const Policy &policy, const LedgerView &ledger, uint32_t variants = 0);

/**
 * Several importers of one range. One variant for all where one serves all, else each its own; one
 * placement for all, since the memory can be in one place only; charges add up. Without
 * policy.partialOk one importer without a plan takes the plans of all away.
 */
std::vector<Answer> negotiateAll(const ExporterSide &exporter,
				 const std::vector<ImporterSide> &importers, const Demand &demand,
				 const Policy &policy, const LedgerView &ledger);

/**
 * The kernel chose, and its driver says how it holds the dma-buf (0: it does not say). Of memory
 * that never moves, or is never taken back, to follow that is worth no more than a pin.
 */
void observe(Plan &plan, uint32_t kernelFlow);

/** The refusal that explains best why there is no plan: the last one that is an error. */
const Refusal *decisive(const std::vector<Refusal> &refusals);

} // namespace peerbuf

#endif
