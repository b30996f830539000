// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin_test.cpp
 * The table, as the core loads it, on the real rdma-core: as far as it goes without a device.
 */
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <peerbuf/importer.h>
#include <peerbuf/testing.h>
#include <peerbuf/verbs.h>

#include "importer/verbs/system.h"
#include "tests/support/fake_host.h"

namespace peerbuf::test
{
namespace
{

using ::testing::HasSubstr;

const peerbuf_importer_plugin *loadPlugin()
{
	const char *path = std::getenv("PEERBUF_PLUGIN_PATH");
	std::istringstream folders(path ? path : "");
	for (std::string folder; std::getline(folders, folder, ':');) {
		const std::string file = folder + "/peerbuf-importer-verbs.so";
		if (!std::filesystem::exists(file))
			continue;
		void *object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		EXPECT_NE(object, nullptr) << dlerror();
		return object ? static_cast<const peerbuf_importer_plugin *>(
					dlsym(object, "peerbuf_importer_v1"))
			      : nullptr;
	}
	ADD_FAILURE() << "no peerbuf-importer-verbs.so in PEERBUF_PLUGIN_PATH";
	return nullptr;
}

TEST(VerbsPlugin, TableKeepsTheRuleOfCapabilityAndSlot)
{
	const peerbuf_importer_plugin *plugin = loadPlugin();
	ASSERT_NE(plugin, nullptr);
	EXPECT_EQ(plugin->struct_size, sizeof(*plugin));
	EXPECT_EQ(plugin->abi_version, PEERBUF_ABI_VERSION);
	EXPECT_STREQ(plugin->name, "verbs");
	EXPECT_EQ(plugin->capabilities, PEERBUF_IMPORTER_CAP_OPS);
	EXPECT_EQ(plugin->invalidate, nullptr) << "the kernel alone tells the data path";
	const void *ops = nullptr;
	EXPECT_EQ(plugin->open_ops(nullptr, PEERBUF_IMPORTER_TEST_OPS, &ops), 0);
	EXPECT_NE(ops, nullptr);
	EXPECT_EQ(plugin->open_ops(nullptr, "dance", &ops), -ENOENT);
}

TEST(VerbsPlugin, GivenNoObjectsThenOpenSaysWhatIsNeeded)
{
	const peerbuf_importer_plugin *plugin = loadPlugin();
	ASSERT_NE(plugin, nullptr);
	FakeHost host;
	void *importer = nullptr;
	EXPECT_EQ(plugin->open(host.raw(), nullptr, 0, nullptr, &importer), -EINVAL);
	EXPECT_THAT(host.failure().message, HasSubstr("peerbuf_verbs_objects"));
	EXPECT_EQ(importer, nullptr);
}

/* rdma-core is real here; its context is of a descriptor that no RDMA device stands behind. */
TEST(VerbsSystem, GivenADescriptorThatIsNoDeviceThenTheKernelsErrno)
{
	verbs::System system;
	const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	uint64_t nothing[8] = {};
	EXPECT_EQ(system.ioctl(fd, 0xc0181b01 /* RDMA_VERBS_IOCTL */, nothing), -ENOTTY);
	EXPECT_EQ(system.exporterOf(fd), "");
	EXPECT_EQ(system.exporterOf(-1), "");
	EXPECT_EQ(system.ioctl(-1, 0xc0181b01, nothing), -EBADF);
	close(fd);
	EXPECT_FALSE(system.hasDataDirect()) << "libmlx5 is not loaded in this test";
	ibv_mr *mr = nullptr;
	EXPECT_EQ(system.regDataDirect(nullptr, {}, &mr), -ENOSYS);
}

} // namespace
} // namespace peerbuf::test
