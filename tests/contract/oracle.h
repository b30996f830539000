// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_ORACLE_H
#define PEERBUF_TESTS_CONTRACT_ORACLE_H

#include <cstdint>
#include <string>

#include <peerbuf/peerbuf.h>

namespace peerbuf::contract
{

/**
 * What must come of one exporter, one importer and a request. Written from the table in
 * docs/negotiation.md and from nothing of the core's, which is what it judges.
 */
struct Verdict {
	uint32_t flow = PEERBUF_FLOW_NONE; /* NONE: must be refused, as errc says */
	uint32_t errc = PEERBUF_OK;
	int err = 0; /* 0: any */
	bool charged_pin = false;
	std::string why; /* in words, for skips and failures */

	bool works() const { return flow != PEERBUF_FLOW_NONE; }
};

struct Request {
	uint64_t length = 4096;
	uint32_t access = 0;
	bool host_placement_ok = false;
	uint32_t ceiling = PEERBUF_FLOW_NONE;
};

Verdict judge(const peerbuf_exporter_offer &exporter, const peerbuf_importer_offer &importer,
	      const Request &request);

} // namespace peerbuf::contract

#endif
