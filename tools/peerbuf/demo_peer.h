// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_PEER_H
#define PEERBUF_TOOLS_DEMO_PEER_H

namespace peerbuf::tools
{

/**
 * The demo's peer process: an ordinary program of libfabric that knows nothing of peerbuf. Its
 * descriptors are those of demo_protocol.h.
 * @return an ExitCode.
 */
int runDemoPeer();

} // namespace peerbuf::tools

#endif
