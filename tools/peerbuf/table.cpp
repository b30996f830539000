// SPDX-License-Identifier: BSD-3-Clause
#include "table.h"

#include <algorithm>
#include <sstream>

namespace peerbuf::tools
{

namespace
{

constexpr size_t gap = 2;

std::vector<std::string> linesOf(const std::string &cell)
{
	std::vector<std::string> lines;
	std::istringstream in(cell);
	for (std::string line; std::getline(in, line);)
		lines.push_back(line);
	return lines;
}

void appendLine(std::string &out, const std::string &line)
{
	const size_t end = line.find_last_not_of(' ');
	out += line.substr(0, end == std::string::npos ? 0 : end + 1) + "\n";
}

} // namespace

std::string Table::text(size_t width) const
{
	const size_t columns = rows_.front().size();
	std::vector<size_t> widths(columns);
	for (const auto &row : rows_)
		for (size_t c = 0; c < columns; c++)
			for (const std::string &line : linesOf(row[c]))
				widths[c] = std::max(widths[c], line.size());

	std::string out;
	for (size_t first = 1; first < columns || first == 1;) {
		size_t used = widths[0];
		size_t last = first;
		while (last < columns && (last == first || used + gap + widths[last] <= width))
			used += gap + widths[last++];

		if (!out.empty())
			out += "\n";
		for (const auto &row : rows_) {
			size_t height = 1;
			for (size_t c = 0; c < columns; c++)
				if (c == 0 || (c >= first && c < last))
					height = std::max(height, linesOf(row[c]).size());
			for (size_t y = 0; y < height; y++) {
				std::string line;
				const auto put = [&](size_t c) {
					const auto cell = linesOf(row[c]);
					std::string part = y < cell.size() ? cell[y] : "";
					part.resize(widths[c] + gap, ' ');
					line += part;
				};
				put(0);
				for (size_t c = first; c < last; c++)
					put(c);
				appendLine(out, line);
			}
			if (&row == &rows_.front())
				appendLine(out, std::string(std::min(used, width), '-'));
		}
		first = std::max(last, first + 1);
	}
	return out;
}

} // namespace peerbuf::tools
