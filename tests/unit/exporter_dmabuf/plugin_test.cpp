// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin_test.cpp
 * The tables as the core loads them, on the kernel that is here.
 */
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <peerbuf/exporter.h>
#include <peerbuf/testing.h>

#include "fake_kernel.h"
#include "tests/support/fake_host.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;

class DmabufPlugin : public ::testing::TestWithParam<const char *>
{
protected:
	void SetUp() override
	{
		const char *path = std::getenv("PEERBUF_PLUGIN_PATH");
		std::istringstream folders(path ? path : "");
		for (std::string folder; !plugin_ && std::getline(folders, folder, ':');) {
			const std::string file = folder + "/peerbuf-exporter-" + GetParam() + ".so";
			if (!std::filesystem::exists(file))
				continue;
			void *object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
			ASSERT_NE(object, nullptr) << dlerror();
			plugin_ = static_cast<const peerbuf_exporter_plugin *>(
				dlsym(object, "peerbuf_exporter_v1"));
		}
		ASSERT_NE(plugin_, nullptr) << "not in PEERBUF_PLUGIN_PATH";
	}
	const peerbuf_exporter_plugin *plugin_ = nullptr;
	FakeHost host_;
};

constexpr const char *kinds[] = {PEERBUF_TEST_KINDS}; /* those that were built */
INSTANTIATE_TEST_SUITE_P(Kinds, DmabufPlugin, ::testing::ValuesIn(kinds),
			 [](const auto &kind) { return std::string(kind.param); });

TEST_P(DmabufPlugin, TableKeepsTheRuleOfCapabilityAndSlot)
{
	EXPECT_EQ(plugin_->struct_size, sizeof(*plugin_));
	EXPECT_EQ(plugin_->abi_version, PEERBUF_ABI_VERSION);
	EXPECT_STREQ(plugin_->name, GetParam());
	EXPECT_NE(plugin_->options[0], nullptr);
	EXPECT_EQ(plugin_->capabilities,
		  PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET | PEERBUF_EXPORTER_CAP_MAP |
			  PEERBUF_EXPORTER_CAP_FD | PEERBUF_EXPORTER_CAP_OPS);
	EXPECT_EQ(plugin_->pin, nullptr);
	EXPECT_EQ(plugin_->invalidate_done, nullptr);
	const void *ops = nullptr;
	EXPECT_EQ(plugin_->open_ops(nullptr, "dance", &ops), -ENOENT);
}

TEST_P(DmabufPlugin, GivenThisKernelThenItWorksOrSaysWhichNodeIsMissing)
{
	const size_t fds = openFds();
	void *device = nullptr;
	const int rc = plugin_->open(host_.raw(), nullptr, 0, &device);
	if (rc) {
		EXPECT_EQ(device, nullptr);
		EXPECT_THAT(host_.failure().message, HasSubstr("/dev/"));
		EXPECT_EQ(host_.failure().errc,
			  rc == -EACCES ? PEERBUF_ERR_ACCESS : PEERBUF_ERR_NOT_FOUND);
		EXPECT_EQ(openFds(), fds);
		return;
	}
	peerbuf_buffer_desc desc = {};
	desc.struct_size = sizeof(desc);
	ASSERT_EQ(plugin_->alloc(device, 10000, &desc), 0) << host_.failure().message;
	const void *table = nullptr;
	ASSERT_EQ(plugin_->open_ops(device, PEERBUF_EXPORTER_TEST_OPS, &table), 0);
	const auto *ops = static_cast<const peerbuf_exporter_test_ops *>(table);
	const uint8_t wrote = 0x5a;
	ASSERT_EQ(ops->device_write(device, desc.handle, 9000, &wrote, 1), 0)
		<< host_.failure().message;
	EXPECT_EQ(reinterpret_cast<const uint8_t *>(desc.address)[9000], 0x5a);
	EXPECT_EQ(plugin_->free(device, desc.handle), 0);
	plugin_->close(device);
	EXPECT_EQ(openFds(), fds);
}

TEST_P(DmabufPlugin, GivenABadOptionThenItIsRefusedBeforeAnythingIsOpened)
{
	const peerbuf_param bad = {"colour", "red"};
	void *device = nullptr;
	EXPECT_EQ(plugin_->open(host_.raw(), &bad, 1, &device), -EINVAL);
	EXPECT_THAT(host_.failure().message, HasSubstr("'colour'"));
}

} // namespace
} // namespace peerbuf::test
