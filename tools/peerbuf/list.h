// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_LIST_H
#define PEERBUF_TOOLS_LIST_H

namespace peerbuf::tools
{

/** `peerbuf list`. @return an ExitCode. */
int runList(bool json);

} // namespace peerbuf::tools

#endif
