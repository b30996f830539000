// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include "exporter/emulated/settings.h"
#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

struct Row {
	const char *profile;
	uint32_t stability;
	uint32_t pin;
	uint32_t revoke;
};

class Profile : public ::testing::TestWithParam<Row>
{
};

struct Bad {
	const char *spec;
	std::vector<const char *> words;
};

} // namespace

TEST_P(Profile, GivenARowOfTheTableThenItIsOffered)
{
	Device device(std::string("hbm=1M,profile=") + GetParam().profile);
	const auto o = device.offer();
	EXPECT_EQ(GetParam().stability, o.stability);
	EXPECT_EQ(GetParam().pin, o.pin);
	EXPECT_EQ(GetParam().revoke, o.revoke);
	EXPECT_EQ(PEERBUF_MANAGED_BY_USER, o.management);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, o.placements);
	EXPECT_EQ(4096u, o.granularity);
	EXPECT_EQ(1u << 20, o.memory_size);
	EXPECT_EQ(0u, std::string(o.device).find("emulated:"));
	EXPECT_CONTAINS(o.why, "emulated");
	const auto buffer = device.alloc(4096);
	auto of = cleared<peerbuf_exporter_offer>();
	EXPECT_EQ(0, device.slots.offer(device.handle, buffer.handle, &of));
	EXPECT_EQ(0, memcmp(&o, &of, sizeof(o)));
	EXPECT_ERRNO(ENOENT, device.slots.offer(device.handle, buffer.handle + 1, &of));
	of.struct_size = 4;
	EXPECT_ERRNO(EINVAL, device.slots.offer(device.handle, 0, &of));
}

INSTANTIATE_TEST_SUITE_P(
	Every, Profile,
	::testing::Values(
		Row{"static", PEERBUF_STABILITY_STATIC, PEERBUF_PIN_NOT_NEEDED,
		    PEERBUF_REVOKE_NEVER},
		Row{"moves", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_CAN, PEERBUF_REVOKE_NEVER},
		Row{"revokes", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_CAN, PEERBUF_REVOKE_MAY},
		Row{"nopin", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_REFUSES, PEERBUF_REVOKE_NEVER}),
	[](const auto &param_info) { return std::string(param_info.param.profile); });

TEST(Options, GivenOverridesThenTheyHold)
{
	Device device("profile=static,revoke=may,variants=pcie,handles=fd+cpu,access=remote_read,"
		      "peer2peer=required,placements=host+device,hbm=2M,host=1M,granularity=64K,"
		      "window=1M,window_reserve=64K,dma_base=0x10000,tenant=me,seed=7");
	const auto o = device.offer();
	EXPECT_EQ(PEERBUF_STABILITY_STATIC, o.stability);
	EXPECT_EQ(PEERBUF_REVOKE_MAY, o.revoke);
	EXPECT_EQ(PEERBUF_VARIANT_PCIE, o.variants);
	EXPECT_EQ(PEERBUF_HANDLE_FD | PEERBUF_HANDLE_CPU, o.handles);
	EXPECT_EQ(PEERBUF_ACCESS_REMOTE_READ, o.access);
	EXPECT_EQ(1u, o.needs_peer2peer);
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST | PEERBUF_PLACEMENT_DEVICE, o.placements);
	EXPECT_EQ(64u << 10, o.granularity);
	EXPECT_EQ(0x10000u + (3u << 20) - 1, o.dma_addr_max);
}

TEST(Options, GivenBadOnesThenRefusedByNameAndNothingIsStarted)
{
	const Bad all[] = {
		{"colour=red", {"colour", "granularity"}},
		{"profile=fast", {"profile", "fast", "nopin"}},
		{"variants=host+usb", {"usb", "host+pcie"}},
		{"variants=", {"variants"}},
		{"access=everything", {"everything"}},
		{"hbm=lots", {"hbm", "lots"}},
		{"hbm=-1", {"hbm"}},
		{"hbm=4097", {"4097", "granularity=4096"}},
		{"hbm=0", {"hbm=0"}},
		{"granularity=5000,hbm=0", {"5000", "power of two"}},
		{"granularity=512", {"granularity"}},
		{"window=4K,window_reserve=8K", {"8192", "4096"}},
		{"dma_base=1", {"dma_base"}},
		{"dma_base=0xfffffffffffff000", {"end of the address space"}},
		{"stability=moves,pin=not_needed", {"not_needed"}},
		{"placements=host,host=0", {"host=0"}},
		{"fault_rate=1001", {"fault_rate"}},
		{"tenant=", {"tenant"}},
		{"timeout=soon", {"timeout"}},
		{"hbm=1M,hbm=2M", {"twice"}},
	};
	const size_t fds = openFds(getpid());
	for (const Bad &bad : all) {
		SCOPED_TRACE(bad.spec);
		peerbuf::test::FakeHost host;
		EXPECT_ERRNO(EINVAL, Device::tryOpen(host, bad.spec));
		EXPECT_EQ(PEERBUF_ERR_INVALID_ARGUMENT, host.failure().errc);
		for (const char *word : bad.words)
			EXPECT_CONTAINS(host.failure().message, word);
	}
	EXPECT_EQ(fds, openFds(getpid()));
	EXPECT_TRUE(children().empty());
}

TEST(Options, GivenNoBinaryThenSaidWhereItWasLookedFor)
{
	const size_t fds = openFds(getpid());
	peerbuf::test::FakeHost host;
	EXPECT_ERRNO(ENODEV, Device::tryOpen(host, "binary=/nonexistent/device"));
	EXPECT_CONTAINS(host.failure().message, "/nonexistent/device");
	EXPECT_CONTAINS(host.failure().message, "PEERBUF_EMULATED_DEVICE");
	EXPECT_ERRNO(ENODEV, Device::tryOpen(host, "binary=/bin/true")); /* ends without a word */
	EXPECT_ERRNO(ENODEV, Device::tryOpen(host, "socket=/nonexistent/socket"));
	EXPECT_CONTAINS(host.failure().message, "/nonexistent/socket");
	EXPECT_EQ(fds, openFds(getpid()));
	EXPECT_TRUE(children().empty());
}

TEST(Options, GivenARunningDeviceThenItsOptionsHoldAndContradictionsNameBoth)
{
	RunningDevice running("profile=revokes,hbm=8M,window=1M");
	const std::string socket = "socket=" + running.path();
	{
		Device plain(socket);
		Device same(socket + ",hbm=8192K,profile=revokes,revoke=may,tenant=other");
		EXPECT_EQ(8u << 20, plain.offer().memory_size);
		EXPECT_EQ(PEERBUF_REVOKE_MAY, plain.offer().revoke);
		EXPECT_STREQ(plain.offer().device, same.offer().device);
	}
	const Bad all[] = {
		{"hbm=4M", {"hbm=4194304", "hbm=8388608"}},
		{"profile=static", {"profile=static", "stability=static", "stability=moves"}},
		{"profile=moves", {"revoke=never", "revoke=may"}},
		{"revoke=never", {"revoke=never", "revoke=may"}},
		{"window=0", {"window=0", "window=1048576"}},
		{"seed=9", {"seed=9", "seed=1"}},
	};
	for (const Bad &bad : all) {
		SCOPED_TRACE(bad.spec);
		peerbuf::test::FakeHost host;
		EXPECT_ERRNO(EINVAL, Device::tryOpen(host, socket + "," + bad.spec));
		for (const char *word : bad.words)
			EXPECT_CONTAINS(host.failure().message, word);
		EXPECT_CONTAINS(host.failure().message, running.path());
	}
}

TEST(Options, GivenEveryKeyThenThePluginsListNamesItAndItsTextCanBeReadBack)
{
	for (const SettingKey &key : settingKeys()) {
		SCOPED_TRACE(key.key);
		bool listed = false;
		for (const char *const *line = plugin().options; *line; line++)
			listed = listed || std::string(*line).find(std::string(key.key) + ":") == 0;
		EXPECT_TRUE(listed);
	}
	peerbuf::test::FakeHost host;
	plugin::Options none(host.raw(), nullptr, 0);
	const Settings defaults = readSettings(none);
	ASSERT_EQ(0, none.finish());
	std::vector<std::string> values;
	std::vector<peerbuf_param> params;
	values.reserve(settingKeys().size());
	for (const SettingKey &key : settingKeys()) {
		values.push_back(settingText(defaults, key.key));
		params.push_back({key.key, values.back().c_str()});
	}
	plugin::Options all(host.raw(), params.data(), params.size());
	const Settings again = readSettings(all);
	ASSERT_EQ(0, all.finish()) << host.failure().message;
	EXPECT_EQ(0, memcmp(&defaults, &again, sizeof(again)));
}

} // namespace peerbuf::emulated::test
