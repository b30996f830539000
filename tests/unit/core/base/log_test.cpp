// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/log.h"

#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace peerbuf
{
namespace
{

class LogTest : public testing::Test
{
protected:
	Log make(const char *spec)
	{
		return Log(
			[this](uint32_t level, const char *category, const char *message) {
				lines_.push_back(
					text(logLevelName(level), " ", category, ": ", message));
			},
			spec);
	}

	std::vector<std::string> lines_;
};

TEST_F(LogTest, GivenNoSpecThenWarningsAndErrorsOnly)
{
	const Log log = make(nullptr);
	EXPECT_TRUE(log.wants("core", PEERBUF_LOG_ERROR));
	EXPECT_TRUE(log.wants("core", PEERBUF_LOG_WARN));
	EXPECT_FALSE(log.wants("core", PEERBUF_LOG_INFO));
	log.debug("core", "not ", 1);
	log.warn("core", "yes ", 2);
	EXPECT_EQ(std::vector<std::string>{"warn core: yes 2"}, lines_);
}

TEST_F(LogTest, GivenCategoryAndStarThenEachHasItsLevel)
{
	const Log log = make("core:debug,exporter.emulated:error,*:info");
	EXPECT_TRUE(log.wants("core", PEERBUF_LOG_DEBUG));
	EXPECT_FALSE(log.wants("core", PEERBUF_LOG_TRACE));
	EXPECT_TRUE(log.wants("exporter.emulated", PEERBUF_LOG_ERROR));
	EXPECT_FALSE(log.wants("exporter.emulated", PEERBUF_LOG_WARN));
	EXPECT_TRUE(log.wants("importer.fabric", PEERBUF_LOG_INFO));
	EXPECT_FALSE(log.wants("importer.fabric", PEERBUF_LOG_DEBUG));
	EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, GivenStarFirstThenOrderDoesNotMatter)
{
	const Log log = make("*:error,core:trace");
	EXPECT_TRUE(log.wants("core", PEERBUF_LOG_TRACE));
	EXPECT_FALSE(log.wants("other", PEERBUF_LOG_WARN));
}

TEST_F(LogTest, GivenItemsThatCannotBeReadThenSaidAndSkippedAndTheRestHolds)
{
	const Log log = make("core:loud,,nonsense,importer.fabric:debug");
	ASSERT_EQ(2u, lines_.size());
	EXPECT_NE(std::string::npos, lines_[0].find("'core:loud'")) << lines_[0];
	EXPECT_NE(std::string::npos, lines_[1].find("'nonsense'")) << lines_[1];
	for (const std::string &line : lines_)
		EXPECT_EQ(0u, line.find("warn core: PEERBUF_LOG")) << line;
	EXPECT_TRUE(log.wants("importer.fabric", PEERBUF_LOG_DEBUG));
	EXPECT_FALSE(log.wants("core", PEERBUF_LOG_INFO)); // the default, not the bad item
}

/** Counts how often it is printed. */
struct Counted {
	int *printed;

	friend std::ostream &operator<<(std::ostream &out, const Counted &c)
	{
		++*c.printed;
		return out << "counted";
	}
};

TEST_F(LogTest, GivenLevelNotWantedThenTheTextIsNotMade)
{
	int printed = 0;
	const Log log = make("core:warn");
	log.debug("core", Counted{&printed});
	EXPECT_EQ(0, printed);
	log.warn("core", Counted{&printed});
	EXPECT_EQ(1, printed);
	EXPECT_EQ(std::vector<std::string>{"warn core: counted"}, lines_);
}

TEST_F(LogTest, GivenNoSinkThenStandardError)
{
	testing::internal::CaptureStderr();
	const Log log(nullptr, "core:debug");
	log.debug("core", "hello");
	log.debug("other", "not this");
	EXPECT_EQ("peerbuf debug core: hello\n", testing::internal::GetCapturedStderr());
}

TEST(LogLevel, GivenEveryLevelThenItsName)
{
	EXPECT_STREQ("error", logLevelName(PEERBUF_LOG_ERROR));
	EXPECT_STREQ("warn", logLevelName(PEERBUF_LOG_WARN));
	EXPECT_STREQ("info", logLevelName(PEERBUF_LOG_INFO));
	EXPECT_STREQ("debug", logLevelName(PEERBUF_LOG_DEBUG));
	EXPECT_STREQ("trace", logLevelName(PEERBUF_LOG_TRACE));
}

} // namespace
} // namespace peerbuf
