// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_ERROR_H
#define PEERBUF_CORE_BASE_ERROR_H

#include <string>
#include <vector>

#include <peerbuf/types.h>

namespace peerbuf
{

/** The closed list of the public contract; core adds nothing to it. */
using Errc = peerbuf_errc;

/** Why one flow was not possible. Value type. */
struct Refusal {
	peerbuf_flow flow = PEERBUF_FLOW_NONE;
	Errc code = PEERBUF_OK;
	int err = 0; /* positive errno, 0: none applies */
	std::string who;
	std::string capability;
	std::string why;
};

/** A failure: its class, the errno to return (positive), and a sentence that names the facts. */
struct Error {
	Errc code = PEERBUF_ERR_INTERNAL;
	int sysErrno = 0;
	std::string what;
	std::vector<Refusal> refusals = {};
};

/** The class that an errno has when nobody says better. @param err positive. */
Errc errcFor(int err);

/** "ENOENT (2)"; also for the kernel-private 524. @param err positive. */
std::string errnoText(int err);

const char *errcName(uint32_t errc);
const char *flowName(uint32_t flow);
const char *howKnownName(uint32_t howKnown);

/** "device", "host", "device+host". */
std::string placementText(uint32_t placement);
std::string variantText(uint32_t variants);
std::string handleText(uint32_t handles);
std::string accessText(uint32_t access);

/** "0x1000". */
std::string hex(uint64_t value);

} // namespace peerbuf

#endif
