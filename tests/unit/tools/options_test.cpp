// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/peerbuf/plugin_spec.h"
#include "tools/peerbuf/policy_option.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;
using namespace peerbuf::tools;

TEST(PluginSpec, GivenANameAndOptionsThenTheyAreTakenApartAndPutTogether)
{
	std::string why;
	for (const char *text : {"emulated", "emulated:profile=moves",
				 "fabric:provider=tcp;ofi_rxm,key_base=7", "a:k=", "a:k=v=w"}) {
		const auto spec = PluginSpec::parse(text, &why);
		ASSERT_TRUE(spec) << why;
		EXPECT_EQ(spec->text(), text);
		EXPECT_EQ(spec->params().size(), spec->options.size());
	}
	const auto spec = PluginSpec::parse("a:k=v=w,l=2", &why);
	EXPECT_EQ(*spec->option("k"), "v=w");
	EXPECT_EQ(spec->option("x"), nullptr);
	EXPECT_EQ(spec->with("k", "9").text(), "a:l=2,k=9");
	EXPECT_EQ(spec->without("l").text(), "a:k=v=w");
	EXPECT_STREQ(spec->params()[1].key, "l");
}

TEST(PluginSpec, GivenWhatIsNoneThenItSaysWhy)
{
	const std::pair<const char *, const char *> cases[] = {
		{"", "no name"},	  {":k=v", "no name"},	     {"a:", "not key=value"},
		{"a:k", "not key=value"}, {"a:=v", "not key=value"}, {"a:k=v,", "not key=value"},
		{"a:k=1,k=2", "twice"},
	};
	for (const auto &[text, said] : cases) {
		std::string why;
		EXPECT_FALSE(PluginSpec::parse(text, &why)) << text;
		EXPECT_THAT(why, HasSubstr(said));
	}
}

TEST(PolicyOption, GivenEachWordThenItsFieldIsSet)
{
	peerbuf_policy policy = {};
	for (const char *text : {"placement=host_ok", "staging=allow", "pins=dedicated",
				 "rekey=yes", "ceiling=Revocable"})
		EXPECT_EQ(readPolicyOption(text, &policy), "");
	EXPECT_EQ(policy.host_placement_ok, 1u);
	EXPECT_EQ(policy.staging_ok, 1u);
	EXPECT_EQ(policy.pins, static_cast<uint32_t>(PEERBUF_PINS_DEDICATED));
	EXPECT_EQ(policy.rekey_ok, 1u);
	EXPECT_EQ(policy.ceiling, static_cast<uint32_t>(PEERBUF_FLOW_REVOCABLE));
	EXPECT_EQ(readPolicyOption("rekey=no", &policy), "");
	EXPECT_EQ(policy.rekey_ok, 0u);
	EXPECT_THAT(readPolicyOption("pins", &policy), HasSubstr("pins=within_limit|dedicated"));
	EXPECT_THAT(readPolicyOption("ceiling=Staged", &policy), HasSubstr("ceiling=Movable|"));
}

} // namespace
} // namespace peerbuf::test
