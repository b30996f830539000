// SPDX-License-Identifier: BSD-3-Clause
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "tools/peerbuf/output.h"

namespace peerbuf::test
{
namespace
{

using peerbuf::tools::Output;

/** What is written to @p file by @p work, which is a terminal if @p rows is not 0. */
template <typename Work> std::string written(unsigned short rows, const Work &work)
{
	int fds[2] = {-1, -1};
	if (rows) {
		winsize size = {};
		size.ws_col = 80;
		size.ws_row = rows;
		EXPECT_EQ(openpty(&fds[0], &fds[1], nullptr, nullptr, &size), 0);
	} else {
		EXPECT_EQ(pipe(fds), 0);
	}
	FILE *file = fdopen(fds[1], "w");
	work(file);
	fclose(file);
	std::string text;
	char buffer[4096];
	for (ssize_t n = 0; (n = read(fds[0], buffer, sizeof(buffer))) > 0;)
		text.append(buffer, static_cast<size_t>(n));
	close(fds[0]);
	return text;
}

TEST(Output, GivenATerminalThenChangingLinesAreErasedBeforeALine)
{
	EXPECT_EQ(written(25,
			  [](FILE *file) {
				  Output output(file);
				  output.progress({"one", "two", "three"});
				  output.line("done");
			  }),
		  "\rone\x1b[K\r\ntwo\x1b[K\r\nthree\x1b[K\r\x1b[2A\x1b[Jdone\r\n");
}

TEST(Output, GivenALowTerminalThenTheLinesThatFitAreShown)
{
	EXPECT_EQ(written(3,
			  [](FILE *file) {
				  Output output(file);
				  output.progress({"one", "two", "three"});
			  }),
		  "\rone\x1b[K\r\ntwo\x1b[K\r\x1b[1A\x1b[J");
}

TEST(Output, GivenNoTerminalThenTheFirstProgressIsNotALine)
{
	EXPECT_EQ(written(0,
			  [](FILE *file) {
				  Output output(file);
				  output.progress({"one", "two"});
				  output.line("done");
			  }),
		  "done\n");
}

TEST(Output, GivenNoFileThenNothingHappens)
{
	Output output(nullptr);
	output.progress({"one"});
	output.line("two");
	output.clear();
}

} // namespace
} // namespace peerbuf::test
