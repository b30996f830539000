// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_OUTPUT_H
#define PEERBUF_TOOLS_OUTPUT_H

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace peerbuf::tools
{

/** Keys stay in the order they were given. */
using Json = nlohmann::ordered_json;

/** One line on standard output. Bytes that are no UTF-8 are replaced. */
void printJson(const Json &json);

/** Columns of the terminal, 80 to 120; 100 where there is none. */
size_t terminalWidth(FILE *file);

/**
 * Lines of a report, and below them, on a terminal, some that change. Thread-bound.
 */
class Output
{
public:
	/** @param file NULL: nothing is shown. */
	explicit Output(FILE *file);
	~Output() { clear(); }
	Output(const Output &) = delete;
	Output &operator=(const Output &) = delete;

	/** For a command that was given --json or not. */
	static FILE *reportFile(bool json);

	void line(const std::string &text);
	/**
	 * The changing lines; where there is no terminal the first @p logged of them are printed
	 * now and then.
	 */
	void progress(const std::vector<std::string> &lines, size_t logged = 1);
	void clear();

private:
	void home();

	FILE *file_;
	bool terminal_;
	size_t width_;
	size_t shown_ = 0; /* changing lines, the cursor is in the last of them */
	std::chrono::steady_clock::time_point next_;
};

} // namespace peerbuf::tools

#endif
