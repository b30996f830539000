// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file garbage_test.cpp
 * Nonsense on every socket between the demo's processes. This program is itself what the demo
 * starts, so that it can play each of them badly.
 */
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "command.h"
#include "roles.h"
#include "tools/peerbuf/channel.h"
#include "tools/peerbuf/child.h"
#include "tools/peerbuf/demo.h"
#include "tools/peerbuf/demo_protocol.h"
#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/fabric_side.h"
#include "tools/peerbuf/rma.h"
#include "tools/peerbuf/socket_place.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;
using namespace peerbuf::tools;
using std::chrono::milliseconds;
using std::chrono::seconds;

/* ---- the parent ---------------------------------------------------------------------------- */

struct Bad {
	const char *role;
	const char *said; /* by the parent */
};

class BadProcess : public ::testing::TestWithParam<Bad>
{
protected:
	void TearDown() override { unsetenv(roleVariable); }
};

TEST_P(BadProcess, ThenTheDemoNamesItAndEndsInOrder)
{
	const NoProcessLeft none;
	const TemporaryFolder folder;
	Program::Options options;
	options.environment = {{roleVariable, GetParam().role}, {"TMPDIR", folder.path()}};
	if (std::string(GetParam().role).starts_with("device"))
		options.environment["PEERBUF_EMULATED_DEVICE"] =
			std::filesystem::read_symlink("/proc/self/exe").string();
	Program demo({"/proc/self/exe", "demo"}, options);
	const Ended ended = demo.wait();
	EXPECT_TRUE(ended.onTime);
	EXPECT_EQ(ended.code(), exitChildDied) << ended.text();
	EXPECT_THAT(ended.err, HasSubstr(GetParam().said));
	EXPECT_EQ(ended.json()["exit_code"], exitChildDied);
}

std::string badName(const ::testing::TestParamInfo<Bad> &info)
{
	std::string name = info.param.role;
	std::replace(name.begin(), name.end(), ' ', '_');
	return name;
}

INSTANTIATE_TEST_SUITE_P(
	Demo, BadProcess,
	::testing::Values(Bad{"target says no JSON", "'?? garbage' is not a JSON object"},
			  Bad{"target says an unknown type", "message 'dance'"},
			  Bad{"target says a wrong field", "message 'progress': blocks"},
			  Bad{"target says too much", "70000 bytes"},
			  Bad{"target leaves without a word", "exited with 0 before it was done"},
			  Bad{"target leaves with 7", "exited with 7"},
			  Bad{"target reports and fails", "exited with 1 after its report"},
			  Bad{"device leaves at once", "exited with 1 before it was ready"},
			  Bad{"device says garbage", "a packet of the wrong size"}),
	badName);

struct Report {
	const char *role;
	int code;
};

class Verdict : public ::testing::TestWithParam<Report>
{
};

TEST_P(Verdict, GivenWhatTheRolesReportThenTheDemoEndsAccordingly)
{
	const NoProcessLeft none;
	Program::Options options;
	options.environment = {{roleVariable, GetParam().role}};
	Program demo({"/proc/self/exe", "demo"}, options);
	const Ended ended = demo.wait();
	EXPECT_EQ(ended.code(), GetParam().code) << ended.text();
	EXPECT_EQ(ended.json()["exit_code"], GetParam().code);
	EXPECT_TRUE(ended.json()["error"].is_null());
}

std::string reportName(const ::testing::TestParamInfo<Report> &info)
{
	std::string name = info.param.role;
	std::replace(name.begin(), name.end(), ' ', '_');
	return name;
}

INSTANTIATE_TEST_SUITE_P(Demo, Verdict,
			 ::testing::Values(Report{"reports all right", exitOk},
					   Report{"reports a lost block", exitBad},
					   Report{"reports a stale block", exitBad},
					   Report{"reports no move", exitBad},
					   Report{"reports a changed key", exitBad},
					   Report{"reports no block", exitBad},
					   Report{"reports an unchecked block", exitBad},
					   Report{"reports a charge", exitBad},
					   Report{"reports a leak", exitBad},
					   Report{"reports a quota not refused", exitBad},
					   Report{"reports an access after the revoke", exitBad},
					   Report{"reports a fault", exitBad}),
			 reportName);

/* ---- the roles ----------------------------------------------------------------------------- */

/** A role of the demo between two sockets of ours. */
class Role : public ::testing::Test
{
protected:
	/** @param more becomes the descriptors behind the two channels. */
	void start(const char *command, std::vector<int> more = {})
	{
		UniqueFd fds[4];
		ASSERT_TRUE(Channel::pair(&fds[0], &fds[1]));
		ASSERT_TRUE(Channel::pair(&fds[2], &fds[3]));
		more.insert(more.begin(), {fds[1].get(), fds[3].get()});
		Program::Options options;
		options.fds = more;
		program_ = std::make_unique<Program>(
			std::vector<std::string>{"/proc/self/exe", command}, options);
		parent_ = std::make_unique<Channel>(std::move(fds[0]), "role");
		other_ = std::make_unique<Channel>(std::move(fds[2]), "role");
	}

	static demo::Start words()
	{
		demo::Start start;
		start.provider = defaultProvider();
		start.seed = 1;
		start.seconds = 30;
		start.size = DemoOptions::leastSize;
		start.hbm = 64 << 20;
		start.moves = true;
		return start;
	}

	/** The next message of @p type from the role; others are skipped. */
	static std::optional<Json> await(Channel *channel, const std::string &type)
	{
		/* nothing is timed here: what hangs is ended by the time limit of the test */
		while (auto message = demo::await(channel, [] { return true; }))
			if (messageType(*message) == type)
				return message;
		ADD_FAILURE() << "no '" << type << "': " << channel->problem();
		return std::nullopt;
	}

	static void sendRaw(const Channel &channel, const std::string &text)
	{
		ASSERT_EQ(send(channel.fd(), text.data(), text.size(), MSG_NOSIGNAL),
			  static_cast<ssize_t>(text.size()));
	}

	std::unique_ptr<Program> program_;
	std::unique_ptr<Channel> parent_;
	std::unique_ptr<Channel> other_;
};

TEST_F(Role, GivenGarbageInsteadOfAStartThenItEndsAndNamesIt)
{
	Json tooSmall = words().json();
	tooSmall["size"] = 5;
	Json noProvider = words().json();
	noProvider.erase("provider");
	const std::pair<std::string, std::string> cases[] = {
		{"garbage", "'garbage' is not a JSON object"},
		{"[1, 2]", "is not a JSON object"},
		{"{}", "has no type"},
		{R"({"type":7})", "has no type"},
		{R"({"type":"dance"})", "message 'dance' before 'start'"},
		{tooSmall.dump(), "size is no number, or out of range"},
		{noProvider.dump(), "provider is missing"},
	};
	for (const char *command : {demoTargetCommand, demoPeerCommand}) {
		for (const auto &[text, said] : cases) {
			SCOPED_TRACE(text);
			start(command);
			sendRaw(*parent_, text);
			const Ended ended = program_->wait();
			EXPECT_EQ(ended.code(), exitUsage) << ended.text();
			EXPECT_THAT(ended.err, HasSubstr(said));
		}
	}
}

TEST_F(Role, GivenNoSocketsThenItEndsWithUsage)
{
	for (const char *command : {demoTargetCommand, demoPeerCommand}) {
		Program program({"/proc/self/exe", command});
		EXPECT_EQ(program.wait().code(), exitUsage);
	}
}

TEST_F(Role, GivenAPeerWhenTheTargetTalksGarbageThenItReportsThatAndEnds)
{
	demo::Region tooLong;
	/* base + length overflows */
	tooLong.parts.push_back({UINT64_MAX, DemoOptions::leastSize, 0, {}});
	demo::Region tooShort;
	tooShort.parts.push_back({0, DemoOptions::leastSize, 0, {}});
	tooShort.parts.push_back({0, Block::most - 1, 0, {}});
	demo::Region tooMany;
	tooMany.parts.assign(demo::Region::mostParts + 1, tooShort.parts[0]);
	const std::pair<std::string, std::string> cases[] = {
		{"garbage", "garbage from the target: 'garbage'"},
		{R"({"type":"checked","block":0,"wrong":null})", "'checked' before 'region'"},
		{R"({"type":"held"})", "'held' before 'region'"},
		{R"({"type":"region","address":"zz","parts":[]})", "address is not a hexa"},
		{R"({"type":"region","address":"00","parts":7})", "parts is no list"},
		{R"({"type":"region","address":"00","parts":[7]})", "raw_key is missing"},
		{demo::Region().json().dump(), "parts are none, or too many"},
		{tooMany.json().dump(), "parts are none, or too many"},
		{tooShort.json().dump(), "length is no number, or out of range"},
		{tooLong.json().dump(), "base is no number, or out of range"},
	};
	for (const auto &[text, said] : cases) {
		SCOPED_TRACE(text);
		start(demoPeerCommand);
		parent_->send(words().json());
		sendRaw(*other_, text);
		const auto result = await(parent_.get(), "result");
		ASSERT_TRUE(result);
		EXPECT_THAT((*result)["trouble"].get<std::string>(), HasSubstr(said));
		EXPECT_EQ((*result)["fds_leaked"], 0);
		EXPECT_EQ(program_->wait().code(), exitOk);
	}
}

/** A real peer; this test is its target, with memory of its own. */
class RolePeer : public Role
{
protected:
	/** What the target says of a block: "" or what is wrong. */
	using Answer = std::function<std::string(const Block &)>;

	void begin(bool notify)
	{
		RmaOptions options;
		options.provider = defaultProvider();
		std::string error;
		endpoint_ = RmaEndpoint::create(options, error);
		ASSERT_TRUE(endpoint_) << error;
		ASSERT_EQ(endpoint_->expose(memory_.data(), memory_.size(),
					    FI_REMOTE_READ | FI_REMOTE_WRITE, &exposed_, error),
			  0)
			<< error;
		start(demoPeerCommand);
		auto words = Role::words();
		words.seconds = 0.3;
		words.notify = notify;
		parent_->send(words.json());
		demo::Region region;
		region.address = endpoint_->name();
		region.parts.push_back({exposed_.remoteBase, memory_.size(), exposed_.key, {}});
		other_->send(region.json());
	}

	void poll()
	{
		RmaCompletion completion;
		EXPECT_EQ(endpoint_->pollOnce(&completion), 0) << completion.what;
	}

	/** Serve the peer to its end. @return its result. */
	Json serve(const Answer &answer)
	{
		while (parent_->open()) {
			if (!held_)
				poll();
			const auto message = other_->receive();
			if (message && messageType(*message) == "check") {
				if (const auto block = blockOf(*message))
					other_->send(demo::Checked{block->number, answer(*block)}
							     .json());
			} else if (message && messageType(*message) == "hold") {
				holds_++;
				held_ = true;
				before_ = memory_;
				other_->send(demo::word("held"));
			} else if (message && messageType(*message) == "begun") {
				EXPECT_TRUE(held_);
				EXPECT_EQ(memory_, before_) << "it was served in spite of the hold";
				begun_ = blockOf(*message);
				held_ = false;
			}
			if (auto word = parent_->receive(); word && messageType(*word) == "result")
				return *word;
		}
		ADD_FAILURE() << parent_->problem();
		return Json::object();
	}

	std::optional<Block> blockOf(const Json &message)
	{
		std::string problem;
		const auto check = demo::Check::from(message, {memory_.size()}, &problem);
		EXPECT_TRUE(check) << problem;
		return check ? std::optional(check->block) : std::nullopt;
	}

	void expectEnd(const Json &result, int lost, int stale)
	{
		EXPECT_EQ(result["blocks_lost"], lost) << result;
		EXPECT_EQ(result["blocks_stale"], stale) << result;
		EXPECT_TRUE(result["trouble"].is_null()) << result;
		EXPECT_EQ(result["fds_leaked"], 0);
		EXPECT_EQ(program_->wait().code(), exitOk);
	}

	std::vector<uint8_t> memory_ = std::vector<uint8_t>(DemoOptions::leastSize);
	std::unique_ptr<RmaEndpoint> endpoint_;
	RmaMemory exposed_;
	bool held_ = false;
	uint64_t holds_ = 0;
	std::vector<uint8_t> before_; /* when the hold began */
	std::optional<Block> begun_;  /* the last that was begun in a hold */
};

TEST_F(RolePeer, WhenAByteIsLostThenThatBlockIsAndTheOthersAreNot)
{
	std::optional<Block> spoiled;
	begin(true);
	const Json result = serve([&](const Block &block) {
		/* it was there when the device looked, and is not when it is read back */
		if (!spoiled) {
			spoiled = block;
			memory_[block.offset + 77] ^= 0x40;
		}
		return "";
	});
	ASSERT_TRUE(spoiled);
	const auto firstBad = result["first_bad"].get<std::string>();
	EXPECT_THAT(firstBad, HasSubstr("block " + std::to_string(spoiled->number) + " at [" +
					std::to_string(spoiled->offset)));
	EXPECT_THAT(firstBad, HasSubstr("byte 77 was read back wrong; at a second look byte 77"));
	expectEnd(result, 1, 0);
}

TEST_F(RolePeer, WhenAByteComesLateThenItsBlockWasStale)
{
	std::optional<Block> spoiled;
	bool restored = false;
	begin(true);
	const Json result = serve([&](const Block &block) {
		if (!spoiled) {
			spoiled = block;
			memory_[block.offset + 77] ^= 0x40;
		} else if (!restored && block.number == spoiled->number) {
			memory_[block.offset + 77] ^= 0x40;
			restored = true;
		}
		return "";
	});
	EXPECT_TRUE(restored);
	EXPECT_THAT(result["first_bad"].get<std::string>(),
		    HasSubstr("byte 77 was read back wrong; at a second look all was right"));
	expectEnd(result, 0, 1);
}

TEST_F(RolePeer, WhenTheDeviceMissesABlockOnceOrTwiceThenItIsStaleOrLost)
{
	std::map<uint64_t, int> looks;
	begin(true);
	const Json result = serve([&](const Block &block) {
		const int look = ++looks[block.number];
		return (block.number == 0 && look == 1) || block.number == 1 ? "not there" : "";
	});
	EXPECT_EQ(looks[0], 2);
	EXPECT_EQ(looks[1], 2);
	EXPECT_EQ(looks[2], 1);
	expectEnd(result, 1, 1);
}

TEST_F(RolePeer, GivenMovesThatTellNobodyThenAWriteIsInFlightWhileTheTargetServesNobody)
{
	begin(false);
	/* the move behind the write: what it wrote is not in the memory */
	const Json result = serve([&](const Block &block) {
		return begun_ && begun_->number == block.number ? "not there" : "";
	});
	ASSERT_TRUE(begun_);
	EXPECT_GE(holds_, 1u);
	EXPECT_EQ(begun_->number % 64, 1u);
	expectEnd(result, static_cast<int>(holds_), 0);
}

TEST_F(RolePeer, WhenTheTargetHoldsUnaskedThenItIsCutOff)
{
	begin(true);
	other_->send(demo::word("held"));
	const Json result = serve([](const Block &) { return ""; });
	EXPECT_THAT(result["trouble"].get<std::string>(),
		    HasSubstr("message 'held', which is none of a target's"));
	EXPECT_EQ(program_->wait().code(), exitOk);
}

/** A real device beside the target. */
class RoleTarget : public Role
{
protected:
	void SetUp() override
	{
		ASSERT_EQ(place_.create(), "");
		int ready[2];
		ASSERT_EQ(pipe(ready), 0);
		const int rc =
			device_.start({getenv("PEERBUF_EMULATED_DEVICE"), "--socket", place_.path(),
				       "--ready-fd", "3", "--profile", "moves", "--hbm", "64M",
				       "--placements", "device+host", "--host", "16M"},
				      {ready[1]});
		close(ready[1]);
		char byte = 0;
		EXPECT_EQ(read(ready[0], &byte, 1), 1);
		close(ready[0]);
		ASSERT_EQ(rc, 0);
		ASSERT_EQ(place_.hold(), "");
		start(demoTargetCommand, {place_.fd()});
		parent_->send(words().json());
		ASSERT_TRUE(await(other_.get(), "region"));
	}

	void expectTrouble(const std::string &said)
	{
		const auto result = await(parent_.get(), "result");
		ASSERT_TRUE(result);
		EXPECT_THAT((*result)["trouble"].get<std::string>(), HasSubstr(said));
		EXPECT_EQ((*result)["ledger_bytes_after"], 0);
		EXPECT_EQ((*result)["fds_leaked"], 0);
		EXPECT_EQ(program_->wait().code(), exitOk);
	}

	SocketPlace place_;
	Child device_;
};

TEST_F(RoleTarget, WhenThePeerTalksGarbageThenItIsCutOffAndNothingIsHeld)
{
	sendRaw(*other_, "garbage");
	expectTrouble("garbage from the peer: 'garbage'");
}

TEST_F(RoleTarget, WhenThePeerAsksBeyondTheRegionThenItIsCutOff)
{
	demo::Check check;
	check.block = {0, 1, DemoOptions::leastSize};
	other_->send(check.json());
	expectTrouble("garbage from the peer: message 'check': offset");
}

TEST_F(RoleTarget, WhenThePeerAsksForAHoldAndMovesTellThenItIsCutOff)
{
	other_->send(demo::word("hold"));
	expectTrouble("garbage from the peer: message 'hold', which is none of a peer's");
}

TEST_F(RoleTarget, WhenThePeerHasBegunWhatItDidNotAskForThenItIsCutOff)
{
	demo::Check check;
	check.block = {0, 0, 65536};
	other_->send(check.json("begun"));
	expectTrouble("garbage from the peer: message 'begun', which is none of a peer's");
}

TEST_F(RoleTarget, WhenThePeerAsksForWhatItDidNotWriteThenTheDeviceSaysSo)
{
	demo::Check check;
	check.block = {0, 4096, 65536};
	other_->send(check.json());
	const auto answer = await(other_.get(), "checked");
	ASSERT_TRUE(answer);
	EXPECT_THAT((*answer)["wrong"].get<std::string>(),
		    HasSubstr("is not in the device's memory"));
	other_->send(demo::word("done"));
	const auto result = await(parent_.get(), "result");
	ASSERT_TRUE(result);
	EXPECT_TRUE((*result)["trouble"].is_null()) << *result;
}

TEST_F(RoleTarget, WhenTheDeviceIsKilledThenThePeerIsToldAndNothingIsHeld)
{
	device_.end();
	const auto word = await(other_.get(), "stop");
	ASSERT_TRUE(word);
	EXPECT_THAT((*word)["why"].get<std::string>(), HasSubstr("the device is gone"));
	expectTrouble("the device is gone");
}

TEST_F(RoleTarget, WhenItsParentHangsUpThenItEnds)
{
	parent_->close("test");
	EXPECT_EQ(program_->wait().code(), exitBad);
}

} // namespace
} // namespace peerbuf::test

int main(int argc, char **argv)
{
	const int status = peerbuf::test::playRole(argc, argv);
	if (status >= 0)
		return status;
	if (argc > 1 && std::string(argv[1]) == "demo") {
		peerbuf::tools::DemoOptions options;
		options.json = true;
		options.seconds = 1;
		options.size = 8 << 20;
		return peerbuf::tools::runDemo(options);
	}
	::testing::InitGoogleTest(&argc, argv);
	return RUN_ALL_TESTS();
}
