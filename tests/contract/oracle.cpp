// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

#include <algorithm>
#include <cerrno>

namespace peerbuf::contract
{

namespace
{

/* Rows and columns as they are printed in the documentation. */
enum Row { STATIC_ROW, MOVES_ROW, REVOKES_ROW, NOPIN_ROW, ROWS };
enum Column { REFAULT_COLUMN, REVOCABLE_COLUMN, NEITHER_COLUMN, COLUMNS };

struct Cell {
	uint32_t flow; /* the best */
	uint32_t errc; /* where flow is NONE */
};

constexpr Cell movable = {PEERBUF_FLOW_MOVABLE, PEERBUF_OK};
constexpr Cell revocable = {PEERBUF_FLOW_REVOCABLE, PEERBUF_OK};
constexpr Cell pinned = {PEERBUF_FLOW_PINNED, PEERBUF_OK};
constexpr Cell no_revoke = {PEERBUF_FLOW_NONE, PEERBUF_ERR_REVOKE_UNSUPPORTED};
constexpr Cell no_pin = {PEERBUF_FLOW_NONE, PEERBUF_ERR_PIN_REFUSED};

constexpr Cell table[ROWS][COLUMNS] = {
	/*              refault    revocable only   neither */
	/* static  */ {pinned, pinned, pinned},
	/* moves   */ {movable, pinned, pinned},
	/* revokes */ {movable, revocable, no_revoke},
	/* no pin  */ {movable, no_pin, no_pin},
};

Row rowOf(const peerbuf_exporter_offer &exporter)
{
	if (exporter.pin == PEERBUF_PIN_REFUSES)
		return NOPIN_ROW;
	if (exporter.revoke == PEERBUF_REVOKE_MAY)
		return REVOKES_ROW;
	return exporter.stability == PEERBUF_STABILITY_STATIC ? STATIC_ROW : MOVES_ROW;
}

Column columnOf(const peerbuf_exporter_offer &exporter, const peerbuf_importer_offer &importer)
{
	// an importer that hears another's Invalidate than this exporter's does not hear at all
	const uint32_t voice = exporter.management == PEERBUF_MANAGED_BY_USER
				       ? PEERBUF_NOTIFIED_BY_USER
				       : PEERBUF_NOTIFIED_BY_KERNEL;
	if (importer.invalidation == 0 || (importer.notified_by & voice) == 0)
		return NEITHER_COLUMN;
	return importer.invalidation & PEERBUF_INVALIDATION_REFAULT ? REFAULT_COLUMN
								    : REVOCABLE_COLUMN;
}

Verdict refuse(uint32_t errc, int err, const std::string &why)
{
	Verdict verdict;
	verdict.errc = errc;
	verdict.err = err;
	verdict.why = why;
	return verdict;
}

/** Whether @p flow, worse than the cell's best, is right for the pair all the same. */
bool lesserFlowAllowed(uint32_t flow, Row row, Column column)
{
	switch (flow) {
	case PEERBUF_FLOW_MOVABLE:
		return table[row][column].flow == PEERBUF_FLOW_MOVABLE;
	case PEERBUF_FLOW_REVOCABLE:
		// refault implies revocable
		return row == REVOKES_ROW && column != NEITHER_COLUMN;
	case PEERBUF_FLOW_PINNED:
		return row == STATIC_ROW || row == MOVES_ROW;
	default:
		return false;
	}
}

} // namespace

Verdict judge(const peerbuf_exporter_offer &exporter, const peerbuf_importer_offer &importer,
	      const Request &request)
{
	// gates before the table
	const uint32_t required = request.access & ~PEERBUF_ACCESS_OPTIONAL_MASK;
	if (required & ~exporter.access)
		return refuse(PEERBUF_ERR_ACCESS, -EACCES, "the memory does not allow the access");
	if (required & ~importer.access)
		return refuse(PEERBUF_ERR_ACCESS, -EACCES, "the importer does not know the access");
	if (request.length > importer.max_length)
		return refuse(PEERBUF_ERR_DEVICE_LIMIT, 0, "longer than the importer's regions");
	if ((exporter.variants & importer.variants) == 0)
		return refuse(PEERBUF_OK, 0, "no mapping variant in common");
	if ((exporter.handles & importer.handles) == 0)
		return refuse(PEERBUF_OK, 0, "no kind of handle in common");
	if (!importer.peer2peer) {
		if (exporter.needs_peer2peer)
			return refuse(PEERBUF_ERR_NO_P2P_PATH, -EOPNOTSUPP,
				      "the exporter needs peer-to-peer, the importer cannot");
		if ((exporter.placements & PEERBUF_PLACEMENT_HOST) == 0)
			return refuse(PEERBUF_OK, -EOPNOTSUPP,
				      "an importer without peer-to-peer reaches host memory only, "
				      "and the exporter has none");
		if ((exporter.placements & PEERBUF_PLACEMENT_DEVICE) && !request.host_placement_ok)
			return refuse(PEERBUF_ERR_NOT_P2P_PLACEMENT, -EOPNOTSUPP,
				      "host memory would be reached, which the policy forbids");
	}
	if (importer.dma_mask_bits < 64 &&
	    (exporter.handles & importer.handles) == PEERBUF_HANDLE_SEGMENTS &&
	    (exporter.dma_addr_max >> importer.dma_mask_bits) != 0)
		return refuse(PEERBUF_ERR_NO_P2P_PATH, -EOPNOTSUPP, "the DMA mask is too narrow");

	const Row row = rowOf(exporter);
	const Column column = columnOf(exporter, importer);
	const Cell &best = table[row][column];
	if (best.flow == PEERBUF_FLOW_NONE)
		return refuse(best.errc, -EOPNOTSUPP, "the table of flows refuses this pair");

	Verdict verdict;
	verdict.flow = best.flow;
	if (request.ceiling > best.flow) {
		verdict.flow = PEERBUF_FLOW_NONE;
		// of memory that may be revoked the Revocable attachment is the pinned one
		uint32_t flow = request.ceiling;
		if (row == REVOKES_ROW)
			flow = std::min(flow, uint32_t{PEERBUF_FLOW_REVOCABLE});
		for (; flow <= PEERBUF_FLOW_PINNED; flow++) {
			if (lesserFlowAllowed(flow, row, column)) {
				verdict.flow = flow;
				break;
			}
		}
		if (verdict.flow == PEERBUF_FLOW_NONE)
			return refuse(PEERBUF_OK, -EOPNOTSUPP,
				      "nothing at or below the ceiling is right for this pair");
	}
	// static memory loses nothing by staying, so there is no pin to take or to pay for
	verdict.charged_pin = verdict.flow != PEERBUF_FLOW_MOVABLE &&
			      exporter.stability == PEERBUF_STABILITY_MOVES &&
			      exporter.pin == PEERBUF_PIN_CAN;
	return verdict;
}

} // namespace peerbuf::contract
