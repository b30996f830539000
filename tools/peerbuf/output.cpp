// SPDX-License-Identifier: BSD-3-Clause
#include "output.h"

#include <algorithm>

#include <sys/ioctl.h>
#include <unistd.h>

namespace peerbuf::tools
{

namespace
{

/* How often the changing line changes, and how often it is a line of its own in a log. */
constexpr std::chrono::milliseconds onTerminal(100);
constexpr std::chrono::seconds inLog(2);

size_t terminalHeight(FILE *file)
{
	winsize size = {};
	const bool known = ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_row;
	return std::clamp<size_t>(known ? size.ws_row : 24, 2, 200);
}

} // namespace

void printJson(const Json &json)
{
	const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
	printf("%s\n", text.c_str());
	fflush(stdout);
}

size_t terminalWidth(FILE *file)
{
	winsize size = {};
	if (!isatty(fileno(file)) || ioctl(fileno(file), TIOCGWINSZ, &size) < 0 || !size.ws_col)
		return 100;
	return std::clamp<size_t>(size.ws_col, 80, 120);
}

Output::Output(FILE *file)
    : file_(file),
      terminal_(file && isatty(fileno(file))),
      width_(file ? terminalWidth(file) : 0)
{
}

FILE *Output::reportFile(bool json)
{
	if (!json)
		return stdout;
	return isatty(fileno(stderr)) ? stderr : nullptr;
}

void Output::line(const std::string &text)
{
	clear();
	if (!file_)
		return;
	fprintf(file_, "%s\n", text.c_str());
	fflush(file_);
}

/** To the start of the first changing line. */
void Output::home()
{
	fprintf(file_, "\r");
	if (shown_ > 1)
		fprintf(file_, "\033[%zuA", shown_ - 1);
}

void Output::progress(const std::vector<std::string> &lines, size_t logged)
{
	const auto now = std::chrono::steady_clock::now();
	if (!file_ || lines.empty() || now < next_)
		return;
	if (terminal_) {
		const size_t n = std::min(lines.size(), terminalHeight(file_) - 1);
		if (shown_)
			home();
		else
			fprintf(file_, "\r");
		for (size_t i = 0; i < n; i++) /* each erases what the last one left behind */
			fprintf(file_, "%s%s\033[K", i ? "\n" : "",
				lines[i].substr(0, width_ - 1).c_str());
		if (n < shown_)
			fprintf(file_, "\033[J");
		shown_ = n;
		next_ = now + onTerminal;
	} else {
		const bool first = next_ == std::chrono::steady_clock::time_point();
		for (size_t i = 0; i < std::min(lines.size(), logged) && !first; i++)
			fprintf(file_, "%s\n", lines[i].c_str());
		next_ = now + inLog;
	}
	fflush(file_);
}

void Output::clear()
{
	if (file_ && shown_) {
		home();
		fprintf(file_, "\033[J");
	}
	shown_ = 0;
}

} // namespace peerbuf::tools
