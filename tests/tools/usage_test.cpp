// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file usage_test.cpp
 * What the command says when it cannot do what it was asked.
 */
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command.h"
#include "tools/peerbuf/exit_code.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;
using namespace peerbuf::tools;

struct Wrong {
	std::vector<std::string> arguments;
	std::vector<std::string> said; /* all of these on standard error */
};

class WrongUsage : public ::testing::TestWithParam<Wrong>
{
};

TEST_P(WrongUsage, EndsWithTwoAndListsWhatThereIs)
{
	const Ended ended = runPeerbuf(GetParam().arguments);
	EXPECT_EQ(ended.code(), exitUsage) << ended.text();
	EXPECT_EQ(ended.out, "");
	for (const std::string &part : GetParam().said)
		EXPECT_THAT(ended.err, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
	Command, WrongUsage,
	::testing::Values(
		Wrong{{}, {"list", "matrix", "demo"}},
		Wrong{{"dance"}, {"dance", "list", "matrix", "demo"}},
		Wrong{{"--dance"}, {"dance", "list", "matrix", "demo"}},
		Wrong{{"list", "--all"}, {"--all", "--json"}},
		Wrong{{"list", "more"}, {"more", "--json"}},
		Wrong{{"matrix", "--dance"}, {"--dance", "--exporter", "--importer", "--policy"}},
		Wrong{{"matrix", "--exporter", "warp"}, {"exporter 'warp'", "emulated"}},
		Wrong{{"matrix", "--importer", "warp"}, {"importer 'warp'", "emulated"}},
		Wrong{{"matrix", "--exporter", ":a=b"}, {"NAME[:key=value"}},
		Wrong{{"matrix", "--exporter", "emulated:profile"}, {"'profile'", "key=value"}},
		Wrong{{"matrix", "--exporter", "emulated:profile=static,profile=moves"},
		      {"profile", "twice"}},
		Wrong{{"matrix", "--exporter", "emulated:profile=warp"},
		      {"warp", "static, moves, revokes, nopin"}},
		Wrong{{"matrix", "--importer", "emulated:warp=1"}, {"'warp'", "profile", "keys"}},
		Wrong{{"matrix", "--policy", "warp=1"}, {"warp=1", "pins=within_limit|dedicated"}},
		Wrong{{"matrix", "--policy", "pins=7"}, {"pins=7", "pins=within_limit|dedicated"}},
		Wrong{{"demo", "--dance"}, {"--dance", "--seconds", "--provider", "--seed"}},
		Wrong{{"demo", "--seconds", "-1"}, {"--seconds", "-1"}},
		Wrong{{"demo", "--seconds", "soon"}, {"--seconds", "soon"}},
		Wrong{{"demo", "--size", "1Q"}, {"1Q", "K, M, G or T"}},
		Wrong{{"demo", "--size", "4K"}, {"--size", "1048576"}},
		Wrong{{"demo", "--seed", "x"}, {"--seed", "x"}},
		Wrong{{"demo", "--provider", "warp"}, {"provider 'warp'", "there are:"}},
		Wrong{{"demo", "--cma", "--provider", "tcp"}, {"--cma", "--provider shm"}},
		Wrong{{"demo", "--cma", "--no-notify", "--provider", "shm"},
		      {"--no-notify", "does not move"}}));

TEST(Command, GivenHelpThenEveryCommandIsNamedAndTheInternalOnesAreNot)
{
	const Ended ended = runPeerbuf({"--help"});
	EXPECT_EQ(ended.code(), 0) << ended.text();
	for (const char *name : {"list", "matrix", "demo", "--version"})
		EXPECT_THAT(ended.out, HasSubstr(name));
	EXPECT_THAT(ended.out, ::testing::Not(HasSubstr("demo-target")));
	EXPECT_EQ(runPeerbuf({"--version"}).code(), 0);
}

/** A folder with a file that has a plugin's name and is none. */
class BrokenPlugin : public ::testing::Test
{
public:
	~BrokenPlugin() override { std::filesystem::remove(file()); }

protected:
	BrokenPlugin()
	{
		std::ofstream(file()) << "no shared object\n";
		options_.environment["PEERBUF_PLUGIN_PATH"] =
			folder_.path() + ":" + getenv("PEERBUF_PLUGIN_PATH");
	}
	std::string file() const { return folder_.path() + "/peerbuf-exporter-broken.so"; }

	TemporaryFolder folder_;
	Program::Options options_;
};

TEST_F(BrokenPlugin, ThenListNamesItAndEndsWithOne)
{
	const Ended people = runPeerbuf({"list"}, options_);
	EXPECT_EQ(people.code(), exitBad) << people.text();
	EXPECT_THAT(people.out, HasSubstr("exporter broken  BROKEN"));
	EXPECT_THAT(people.out, HasSubstr(file()));

	const Ended machines = runPeerbuf({"list", "--json"}, options_);
	EXPECT_EQ(machines.code(), exitBad);
	bool found = false;
	const auto json = machines.json();
	ASSERT_TRUE(json.is_object()) << machines.text();
	for (const auto &plugin : json["plugins"]) {
		EXPECT_EQ(plugin["usable"], plugin["problem"].is_null());
		if (plugin["name"] == "broken") {
			found = true;
			EXPECT_THAT(plugin["problem"].get<std::string>(), HasSubstr("load"));
		}
	}
	EXPECT_TRUE(found);
}

TEST_F(BrokenPlugin, ThenMatrixGoesOnWithoutItAndEndsWithOne)
{
	const Ended ended = runPeerbuf(
		{"matrix", "--json", "--importer", "emulated:profile=neither"}, options_);
	EXPECT_EQ(ended.code(), exitBad) << ended.text();
	EXPECT_THAT(ended.err, HasSubstr("broken"));
	const auto json = ended.json();
	ASSERT_EQ(json["left_out"].size(), 1u) << json;
	EXPECT_EQ(json["left_out"][0]["spec"], "broken");
	EXPECT_EQ(json["pairs"].size(), 5u);
}

TEST_F(BrokenPlugin, WhenItIsNamedThenTheMatrixEndsWithOne)
{
	const Ended ended = runPeerbuf({"matrix", "--exporter", "broken"}, options_);
	EXPECT_EQ(ended.code(), exitBad) << ended.text();
	EXPECT_THAT(ended.err, HasSubstr(file()));
}

TEST(Command, GivenNoPluginsThenListIsEmptyAndTheOthersSayWhatIsMissing)
{
	const TemporaryFolder folder;
	Program::Options options;
	options.environment["PEERBUF_PLUGIN_PATH"] = folder.path();
	const Ended list = runPeerbuf({"list", "--json"}, options);
	if (list.json()["plugins"].size() != 0)
		GTEST_SKIP() << "plugins are installed on this machine";
	EXPECT_EQ(list.code(), exitOk);
	const Ended matrix = runPeerbuf({"matrix"}, options);
	EXPECT_EQ(matrix.code(), exitMissing) << matrix.text();
	EXPECT_THAT(matrix.err, HasSubstr("PEERBUF_PLUGIN_PATH"));
	const Ended demo = runPeerbuf({"demo"}, options);
	EXPECT_EQ(demo.code(), exitMissing) << demo.text();
	EXPECT_THAT(demo.err, HasSubstr("'emulated'"));
}

TEST(Command, GivenNoDeviceProgramThenItIsNamedAndTheEndIsThree)
{
	Program::Options options;
	options.environment["PEERBUF_EMULATED_DEVICE"] = "/nonexistent/device";
	for (const std::vector<std::string> &arguments :
	     {std::vector<std::string>{"demo"},
	      std::vector<std::string>{"matrix", "--exporter", "emulated"}}) {
		const Ended ended = runPeerbuf(arguments, options);
		EXPECT_EQ(ended.code(), exitMissing) << ended.text();
		EXPECT_THAT(ended.err, HasSubstr("/nonexistent/device"));
		EXPECT_THAT(ended.err, HasSubstr("ENOENT"));
	}
}

TEST(List, GivenThisTreeThenItsPluginsAreDescribed)
{
	const Ended ended = runPeerbuf({"list", "--json"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	EXPECT_EQ(ended.err, "");
	EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1);
	const auto json = ended.json();
	std::set<std::string> names;
	for (const auto &plugin : json["plugins"]) {
		names.insert(plugin["kind"].get<std::string>() + " " +
			     plugin["name"].get<std::string>());
		EXPECT_FALSE(plugin["description"].get<std::string>().empty());
		EXPECT_TRUE(plugin["capabilities"].is_array());
		EXPECT_THAT(plugin["capabilities"].dump(), ::testing::Not(HasSubstr("unknown")));
		EXPECT_TRUE(std::filesystem::exists(plugin["path"].get<std::string>()));
		for (const auto &option : plugin["options"])
			EXPECT_THAT(option.get<std::string>(), HasSubstr(": "));
	}
	EXPECT_THAT(names, ::testing::IsSupersetOf(
				   {"exporter emulated", "importer emulated", "importer fabric"}));
	EXPECT_TRUE(json["rma_providers"].is_array());
}

} // namespace
} // namespace peerbuf::test
