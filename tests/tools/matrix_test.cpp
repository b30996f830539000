// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file matrix_test.cpp
 * Every exporter with every importer, against the table of docs/negotiation.md.
 */
#include <sstream>

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
using Json = nlohmann::json;

const std::string exporters[] = {
	"emulated:profile=static",  "emulated:profile=moves",
	"emulated:profile=revokes", "emulated:profile=static,revoke=may",
	"emulated:profile=nopin",
};

/** The table, row by row: refault, revocable only, neither. */
const std::map<std::string, std::vector<std::string>> table = {
	{exporters[0], {"Pinned", "Pinned", "Pinned"}},
	{exporters[1], {"Movable", "Pinned", "Pinned"}},
	{exporters[2], {"Movable", "Revocable", ""}},
	{exporters[3], {"Movable", "Revocable", ""}},
	{exporters[4], {"Movable", "", ""}},
};

size_t columnOf(const std::string &importer)
{
	/* the command brackets its provider's calls; that helps where the list has the provider */
	const std::set<std::string> follow = {"emulated:profile=refault", "fabric:provider=tcp",
					      "fabric:provider=tcp;ofi_rxm", "fabric:provider=shm"};
	if (follow.count(importer))
		return 0;
	return importer == "emulated:profile=revocable" ? 1 : 2;
}

const Json *find(const Json &pairs, const std::string &exporter, const std::string &importer)
{
	for (const Json &pair : pairs)
		if (pair["exporter"] == exporter && pair["importer"] == importer)
			return &pair;
	return nullptr;
}

TEST(Matrix, GivenNothingThenEveryCellOfTheTableIsThereAndItsBytesAreRight)
{
	const Ended ended = runPeerbuf({"matrix", "--json"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	EXPECT_EQ(ended.err, "");
	const Json pairs = ended.json()["pairs"];
	std::set<std::string> importers;
	size_t onTable = 0;
	for (const Json &pair : pairs) {
		const std::string exporter = pair["exporter"];
		const std::string importer = pair["importer"];
		SCOPED_TRACE(exporter + " x " + importer);
		if (!table.count(exporter) || importer.starts_with("verbs:"))
			continue; /* real devices, where there are some: the lab's to judge */
		onTable++;
		importers.insert(importer);
		const std::string want = table.at(exporter)[columnOf(importer)];
		EXPECT_TRUE(pair["error"].is_null()) << pair;
		ASSERT_TRUE(pair["software"].is_boolean());
		for (const Json &refusal : pair["refusals"])
			for (const char *key : {"who", "capability", "why", "errc", "flow"})
				EXPECT_FALSE(refusal[key].get<std::string>().empty()) << refusal;
		if (want.empty()) {
			EXPECT_EQ(pair["flow"], "none");
			EXPECT_TRUE(pair["how_known"].is_null());
			EXPECT_FALSE(pair["refusals"].empty());
			continue;
		}
		EXPECT_EQ(pair["flow"], want);
		EXPECT_EQ(pair["how_known"], "negotiated");
		EXPECT_EQ(pair["placement"], "device");
		EXPECT_EQ(pair["verified"], true);
		EXPECT_EQ(pair["device_side_checked"], true);
		EXPECT_EQ(pair["refusals"].empty(), want == "Movable");
	}
	EXPECT_EQ(onTable, std::size(exporters) * importers.size());
	EXPECT_THAT(importers, ::testing::IsSupersetOf({"emulated:profile=refault",
							"emulated:profile=revocable",
							"emulated:profile=neither"}));
	const Json providers = runPeerbuf({"list", "--json"}).json()["rma_providers"];
	EXPECT_EQ(importers.size(), 3 + providers.size());
}

TEST(Matrix, GivenPluginsWithoutADeviceHereThenThatIsDataAndNoComplaint)
{
	const Ended ended =
		runPeerbuf({"matrix", "--json", "--importer", "emulated:profile=neither"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	EXPECT_EQ(ended.err, "");
	const Json json = ended.json();
	EXPECT_TRUE(json["left_out"].empty()) << json;
	std::set<std::string> seen;
	for (const Json &pair : json["pairs"])
		seen.insert(pair["exporter"].get<std::string>());
	for (const Json &absent : json["not_here"]) {
		EXPECT_EQ(absent["kind"], "exporter");
		EXPECT_THAT(absent["why"].get<std::string>(), HasSubstr("/dev/"));
		EXPECT_TRUE(seen.insert(absent["spec"].get<std::string>()).second) << absent;
	}
	EXPECT_THAT(seen, ::testing::IsSupersetOf({"udmabuf", "dma_heap"}));
}

bool hasPlugin(const std::string &kind, const std::string &name)
{
	const Json list = runPeerbuf({"list", "--json"}).json();
	for (const Json &plugin : list["plugins"])
		if (plugin["kind"] == kind && plugin["name"] == name)
			return true;
	return false;
}

TEST(Matrix, GivenANamedDeviceThatIsNotHereThenItIsAnError)
{
	std::vector<std::vector<std::string>> sides = {
		{"--exporter", "udmabuf:node=/dev/nonexistent"}};
	if (hasPlugin("importer", "verbs"))
		sides.push_back({"--importer", "verbs:device=nonexistent"});
	for (const std::vector<std::string> &side : sides) {
		std::vector<std::string> arguments = {"matrix"};
		arguments.insert(arguments.end(), side.begin(), side.end());
		const Ended ended = runPeerbuf(arguments);
		EXPECT_EQ(ended.code(), exitMissing) << ended.text();
		EXPECT_THAT(ended.err, HasSubstr("nonexistent"));
	}
}

TEST(Matrix, GivenPeopleThenTheTableFitsAndEveryReasonIsThereOnce)
{
	const Ended ended = runPeerbuf({"matrix"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	std::istringstream in(ended.out);
	std::set<std::string> reasons;
	size_t numbered = 0;
	std::string reason;
	for (std::string line; std::getline(in, line);) {
		EXPECT_LE(line.size(), 120u) << line;
		const bool starts = line.size() > 5 && line[4] == ' ' && isdigit(line[2]);
		const bool goesOn = line.starts_with("     ") && !reason.empty();
		if ((starts || !goesOn) && !reason.empty()) {
			EXPECT_TRUE(reasons.insert(reason).second) << "twice: " << reason;
			reason.clear();
		}
		if (starts) {
			numbered++;
			reason = line.substr(5);
		} else if (goesOn) {
			reason += line.substr(4);
		}
	}
	EXPECT_GT(numbered, 3u) << ended.out;
	for (const char *part : {"emulated static", "emulated nopin", "refault", "neither",
				 "Movable", "Revocable", "Pinned", "refused", "emulated NIC"})
		EXPECT_THAT(ended.out, HasSubstr(part));
}

TEST(Matrix, GivenNamedSidesThenOnlyThoseAreTriedWithTheirOptions)
{
	const Ended ended = runPeerbuf(
		{"matrix", "--json", "--exporter", "emulated:profile=moves,hbm=1M", "--exporter",
		 "emulated:profile=nopin", "--importer", "emulated:profile=neither"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	const Json pairs = ended.json()["pairs"];
	ASSERT_EQ(pairs.size(), 2u);
	EXPECT_TRUE(find(pairs, "emulated:profile=moves,hbm=1M", "emulated:profile=neither"));
}

TEST(Matrix, GivenAPolicyThenItIsObeyed)
{
	const Ended ended = runPeerbuf({"matrix", "--json", "--exporter", "emulated:profile=moves",
					"--importer", "emulated:profile=refault", "--policy",
					"ceiling=Pinned"});
	ASSERT_EQ(ended.code(), exitOk) << ended.text();
	const Json pair = ended.json()["pairs"][0];
	EXPECT_EQ(pair["flow"], "Pinned") << pair;
	EXPECT_EQ(pair["refusals"][0]["who"], "policy") << pair;
}

TEST(Matrix, GivenAnImporterThatKnowsOneSegmentOnlyThenTheBytesAreBadAndTheEndIsOne)
{
	const std::vector<std::string> sides = {"--exporter", "emulated:profile=static",
						"--importer", "emulated:mutant=first_segment_only"};
	std::vector<std::string> arguments = {"matrix", "--json"};
	arguments.insert(arguments.end(), sides.begin(), sides.end());
	const Ended machines = runPeerbuf(arguments);
	EXPECT_EQ(machines.code(), exitBad) << machines.text();
	const Json pair = machines.json()["pairs"][0];
	EXPECT_EQ(pair["verified"], false);
	EXPECT_THAT(pair["error"].get<std::string>(), HasSubstr("byte"));

	arguments.erase(arguments.begin() + 1);
	const Ended people = runPeerbuf(arguments);
	EXPECT_EQ(people.code(), exitBad);
	EXPECT_THAT(people.out, HasSubstr("BAD DATA"));
}

} // namespace
} // namespace peerbuf::test
