// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file geometry.h
 * Whether a device can take a region, decided from values before anything is touched.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_GEOMETRY_H
#define PEERBUF_IMPORTER_EMULATED_GEOMETRY_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <peerbuf/importer.h>

#include "options.h"

namespace peerbuf::emulated
{

/** Page size of the ABI's addresses (kernel-semantics rule 27). */
constexpr uint64_t basePage = 4096;

/** Why not. A value. */
struct Failure {
	int err; // positive
	uint32_t errc;
	std::string why;
};

/** Bytes of a buffer and where a peer finds the first of them. */
struct Extent {
	uint64_t offset; // in the buffer
	uint64_t length;
	uint64_t iova;
};

/** A piece of a mapping that one run of addresses reaches. */
struct Run {
	uint64_t offset; // in the buffer
	uint64_t length;
	uint64_t dmaAddr;
	unsigned char *cpu;
};

/** A mapping as the device sees it, with what its page size has to obey. */
struct Layout {
	std::vector<Run> runs; // those that reach the extent, in buffer order
	uint64_t pageMask = 0; // a page size is usable if no bit below it is set here
};

/** Everything about a request that does not depend on a mapping. */
std::optional<Failure> checkRequest(const NicOptions &nic, const peerbuf_reg_request &request);

/** Everything about a mapping that is to serve @p extent, for a region called @p name. */
std::optional<Failure> checkMapping(const NicOptions &nic, const Extent &extent,
				    const peerbuf_mapping &mapping, const std::string &name,
				    Layout &ret_layout);

/** Largest page size of the device that fits the layout. */
std::optional<Failure> choosePageSize(const NicOptions &nic, const Layout &layout,
				      const std::string &name, uint64_t &ret_size);

/**
 * Page size of a region whose places are not known yet: the smallest, which must fit every place
 * that the exporter's granularity allows.
 */
std::optional<Failure> chooseMovablePageSize(const NicOptions &nic, const Extent &extent,
					     uint64_t granularity, const std::string &name,
					     uint64_t &ret_size);

} // namespace peerbuf::emulated

#endif
