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

void Output::progress(const std::string &text)
{
	const auto now = std::chrono::steady_clock::now();
	if (!file_ || now < next_)
		return;
	if (terminal_) {
		/* back to the start, and erase what the last one left behind */
		fprintf(file_, "\r%s\033[K", text.substr(0, width_ - 1).c_str());
		shown_ = true;
		next_ = now + onTerminal;
	} else {
		if (next_ != std::chrono::steady_clock::time_point())
			fprintf(file_, "%s\n", text.c_str());
		next_ = now + inLog;
	}
	fflush(file_);
}

void Output::clear()
{
	if (file_ && shown_)
		fprintf(file_, "\r\033[K");
	shown_ = false;
}

} // namespace peerbuf::tools
