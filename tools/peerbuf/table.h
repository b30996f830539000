// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_TABLE_H
#define PEERBUF_TOOLS_TABLE_H

#include <string>
#include <vector>

namespace peerbuf::tools
{

/**
 * Text in columns, for a terminal. A cell may have several lines. When the columns do not fit side
 * by side, those behind go into a further table below, each with the first column again.
 */
class Table
{
public:
	explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
	/** As many cells as the header has. */
	void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
	/** Lines without trailing spaces, each ended by a newline. */
	std::string text(size_t width) const;

private:
	std::vector<std::vector<std::string>> rows_;
};

} // namespace peerbuf::tools

#endif
