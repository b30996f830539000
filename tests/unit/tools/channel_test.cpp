// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tools/peerbuf/channel.h"
#include "tools/peerbuf/demo.h"
#include "tools/peerbuf/demo_protocol.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;
using namespace peerbuf::tools;

class ChannelPair : public ::testing::Test
{
protected:
	void SetUp() override
	{
		UniqueFd one;
		UniqueFd two;
		ASSERT_TRUE(Channel::pair(&one, &two));
		here_ = std::make_unique<Channel>(std::move(one), "other");
		there_ = std::make_unique<Channel>(std::move(two), "tester");
	}
	void sendRaw(const std::string &text) const
	{
		ASSERT_EQ(send(there_->fd(), text.data(), text.size(), 0),
			  static_cast<ssize_t>(text.size()));
	}
	std::unique_ptr<Channel> here_;
	std::unique_ptr<Channel> there_;
};

TEST_F(ChannelPair, GivenMessagesThenTheyArriveWholeAndInOrder)
{
	for (int i = 0; i < 3; i++)
		ASSERT_TRUE(there_->send({{"type", "n"}, {"value", i}}));
	for (int i = 0; i < 3; i++) {
		const auto message = here_->receive();
		ASSERT_TRUE(message);
		EXPECT_EQ(messageType(*message), "n");
		EXPECT_EQ((*message)["value"], i);
	}
	EXPECT_FALSE(here_->receive());
	EXPECT_TRUE(here_->open());
	EXPECT_EQ(here_->problem(), "");
}

TEST_F(ChannelPair, GivenTheOtherEndClosedThenWhatWasSentStillArrivesAndThenTheEnd)
{
	ASSERT_TRUE(there_->send({{"type", "last"}}));
	there_.reset();
	EXPECT_TRUE(here_->receive());
	EXPECT_FALSE(here_->receive());
	EXPECT_FALSE(here_->open());
	EXPECT_FALSE(here_->garbage());
	EXPECT_THAT(here_->problem(), HasSubstr("the other closed its socket"));
	EXPECT_FALSE(here_->send({{"type", "late"}}));
}

TEST_F(ChannelPair, GivenTheOtherEndLeftWithoutReadingThenWhatItSentStillArrives)
{
	ASSERT_TRUE(here_->send({{"type", "unread"}}));
	ASSERT_TRUE(there_->send({{"type", "last"}}));
	there_.reset();
	const auto message = here_->receive();
	ASSERT_TRUE(message) << here_->problem();
	EXPECT_EQ(messageType(*message), "last");
	EXPECT_FALSE(here_->receive());
	EXPECT_FALSE(here_->open());
}

TEST_F(ChannelPair, GivenGarbageThenItIsClosedAndQuoted)
{
	sendRaw(std::string("\x00\xff{", 3) + std::string(100, 'z'));
	EXPECT_FALSE(here_->receive());
	EXPECT_FALSE(here_->open());
	EXPECT_TRUE(here_->garbage());
	EXPECT_THAT(here_->problem(), HasSubstr("garbage from the other: '?"
						"?{zzz"));
	EXPECT_LT(here_->problem().size(), 120u);
}

TEST_F(ChannelPair, GivenAPacketOfTheGreatestLengthThenItArrivesAndOneMoreByteDoesNot)
{
	std::string text = R"({"type":"x","v":""})";
	text.insert(text.size() - 2, std::string(Channel::longest - text.size(), 'v'));
	ASSERT_EQ(text.size(), Channel::longest);
	sendRaw(text);
	EXPECT_TRUE(here_->receive());
	text.insert(text.size() - 2, "v");
	sendRaw(text);
	EXPECT_FALSE(here_->receive());
	EXPECT_THAT(here_->problem(), HasSubstr("65537 bytes"));
}

TEST(Fields, GivenEachKindOfMistakeThenTheFirstIsNamed)
{
	const Json message = {{"type", "m"}, {"n", 5},		{"s", "text"},
			      {"b", true},   {"o", {{"x", 1}}}, {"l", Json::array({"a"})},
			      {"z", nullptr}};
	const auto problem = [&](auto take) {
		Fields fields(message);
		take(fields);
		return fields.problem();
	};
	EXPECT_EQ(problem([](Fields &f) {
			  EXPECT_EQ(f.number("n"), 5u);
			  EXPECT_EQ(f.real("n", 0, 9), 5);
			  EXPECT_EQ(f.string("s"), "text");
			  EXPECT_EQ(f.stringOrNull("z"), "");
			  EXPECT_TRUE(f.flag("b"));
			  EXPECT_EQ(f.counts("o").at(0).second, 1u);
			  EXPECT_EQ(f.strings("l").at(0), "a");
			  EXPECT_EQ(f.list("l").size(), 1u);
			  EXPECT_EQ(f.object("o")["x"], 1);
		  }),
		  "");
	EXPECT_THAT(problem([](Fields &f) { f.number("missing"); }),
		    HasSubstr("missing is missing"));
	EXPECT_THAT(problem([](Fields &f) { f.number("s"); }), HasSubstr("'m': s"));
	EXPECT_THAT(problem([](Fields &f) { f.number("n", 6); }), HasSubstr("range"));
	EXPECT_THAT(problem([](Fields &f) { f.number("n", 0, 4); }), HasSubstr("range"));
	EXPECT_THAT(problem([](Fields &f) { f.real("n", 0, 4); }), HasSubstr("range"));
	EXPECT_THAT(problem([](Fields &f) { f.string("s", 3); }), HasSubstr("too long"));
	EXPECT_THAT(problem([](Fields &f) { f.string("n"); }), HasSubstr("no string"));
	EXPECT_THAT(problem([](Fields &f) { f.flag("n"); }), HasSubstr("neither"));
	EXPECT_THAT(problem([](Fields &f) { f.counts("l"); }), HasSubstr("no object"));
	EXPECT_THAT(problem([](Fields &f) { f.strings("o"); }), HasSubstr("no list"));
	EXPECT_THAT(problem([](Fields &f) { f.object("l"); }), HasSubstr("no object"));
	EXPECT_THAT(problem([](Fields &f) {
			    f.flag("n");
			    f.number("s");
		    }),
		    HasSubstr(": n "));
}

/* Every structure of the protocol survives the way there, and a hole in it is noticed. */
template <typename T, typename From> void expectStrict(const T &value, From from)
{
	const Json json = value.json();
	std::string problem;
	const auto back = from(json, &problem);
	ASSERT_TRUE(back) << problem;
	EXPECT_EQ(back->json(), json);
	for (const auto &item : json.items()) {
		if (item.key() == "type")
			continue;
		Json hole = json;
		hole.erase(item.key());
		problem.clear();
		EXPECT_FALSE(from(hole, &problem)) << "without " << item.key();
		EXPECT_NE(problem, "");
		Json wrong = json;
		wrong[item.key()] = Json::array({Json::array()});
		if (item.key() != "pairs") {
			EXPECT_FALSE(from(wrong, &problem)) << "wrong " << item.key();
		}
	}
}

TEST(DemoProtocol, GivenEachStructureThenItArrivesWholeOrNotAtAll)
{
	demo::Start start;
	start.provider = "tcp";
	start.size = start.hbm = DemoOptions::leastSize;
	start.seconds = 1.5;
	expectStrict(start, demo::Start::from);

	demo::Region region;
	region.address = {1, 2, 255};
	constexpr uint64_t length = DemoOptions::leastSize;
	region.parts = {{UINT64_MAX - length, length, UINT64_MAX, {0, 16}}, {4096, length, 7, {}}};
	expectStrict(region, demo::Region::from);

	demo::Check check;
	check.block = {5, DemoOptions::leastSize - 65536, 65536};
	expectStrict(check, [](const Json &message, std::string *problem) {
		return demo::Check::from(message, {DemoOptions::leastSize}, problem);
	});
	std::string twoParts;
	EXPECT_FALSE(demo::Check::from(check.json(), {length - 65536, 65536 - 1, 1}, &twoParts));
	EXPECT_THAT(twoParts, HasSubstr("is in two parts"));
	expectStrict(demo::Checked{3, "byte 5"}, demo::Checked::from);
	expectStrict(demo::Section{"title", {"a", "b"}}, demo::Section::from);
	expectStrict(demo::Progress{1, 2, 3}, demo::Progress::from);
	expectStrict(demo::Failed{3, "why"}, demo::Failed::from);

	demo::Moves moves;
	moves.moves = 7;
	moves.effectiveMaxPauseNs = 500000;
	moves.pauses = {3, 1, 400, 500, 600, {0, 1, 2}};
	expectStrict(moves, demo::Moves::from);

	demo::PeerResult peer;
	peer.seconds = 2.25;
	peer.firstBad = "block 7";
	expectStrict(peer, demo::PeerResult::from);
	demo::TargetResult target;
	target.flows = {{"Pinned", 2}};
	target.faults = {"one"};
	target.trouble = "gone";
	target.moves = moves;
	target.fixed = {"Pinned", "why", "EBUSY"};
	expectStrict(target, demo::TargetResult::from);
}

} // namespace
} // namespace peerbuf::test
