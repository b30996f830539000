// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_H
#define PEERBUF_TOOLS_DEMO_H

#include <cstdint>
#include <optional>
#include <string>

#include "blocks.h"

namespace peerbuf::tools
{

struct DemoOptions {
	static constexpr double longest = 86400;
	static constexpr uint64_t leastSize = Block::most;
	static constexpr uint64_t mostSize = uint64_t{64} << 30;

	bool json = false;
	bool verbose = false;
	double seconds = 5;	      /* of traffic */
	std::string provider;	      /* "": the default one */
	std::optional<uint64_t> seed; /* nothing: by chance */
	uint64_t size = 64 << 20;     /* of the region */
	bool notify = true;	      /* false: moves tell no importer, so blocks must be lost */
	bool cma = false;	      /* with shm: let the peer copy by CMA */
};

/** Names of the commands by which the demo starts itself; not for people. */
inline constexpr const char *demoTargetCommand = "demo-target";
inline constexpr const char *demoPeerCommand = "demo-peer";

/** `peerbuf demo`: starts the processes and judges what they did. @return an ExitCode. */
int runDemo(const DemoOptions &options);

} // namespace peerbuf::tools

#endif
