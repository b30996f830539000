// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_TARGET_H
#define PEERBUF_TOOLS_DEMO_TARGET_H

namespace peerbuf::tools
{

/**
 * The demo's target process: uses peerbuf. Its descriptors are those of demo_protocol.h.
 * @return an ExitCode.
 */
int runDemoTarget();

} // namespace peerbuf::tools

#endif
