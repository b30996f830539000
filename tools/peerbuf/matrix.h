// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_MATRIX_H
#define PEERBUF_TOOLS_MATRIX_H

#include <string>
#include <vector>

namespace peerbuf::tools
{

struct MatrixOptions {
	bool json = false;
	std::vector<std::string> exporters; /* NAME[:k=v,...]; none: all there are */
	std::vector<std::string> importers;
	std::vector<std::string> policy; /* k=v */
};

/** `peerbuf matrix`. @return an ExitCode. */
int runMatrix(const MatrixOptions &options);

} // namespace peerbuf::tools

#endif
