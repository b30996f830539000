// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_EXIT_CODE_H
#define PEERBUF_TOOLS_EXIT_CODE_H

namespace peerbuf::tools
{

/** What the command ends with; peerbuf(1) documents them. Ended by signal N is 128 + N. */
enum ExitCode {
	exitOk = 0,
	exitBad = 1,	   /* it ran and the answer is no: wrong bytes, a leak, a broken plugin */
	exitUsage = 2,	   /* unknown command, option, exporter, importer or provider */
	exitMissing = 3,   /* something that is needed is not on this machine */
	exitChildDied = 4, /* a process of the demo died or stopped answering */
};

} // namespace peerbuf::tools

#endif
