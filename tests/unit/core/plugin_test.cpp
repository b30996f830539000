// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fake_devices.h"
#include "offers.h"

/** The search path and the checks of a table; tests/plugins tries real shared objects. */
namespace peerbuf
{
namespace
{

namespace fs = std::filesystem;
using test::FakeDevices;
using test::has;

class PluginTest : public testing::Test
{
protected:
	void SetUp() override
	{
		std::string name =
			(fs::temp_directory_path() / "peerbuf-plugin-test-XXXXXX").string();
		ASSERT_TRUE(mkdtemp(name.data()));
		root_ = name;
		if (const char *path = getenv("PEERBUF_PLUGIN_PATH"))
			path_ = path;
		unsetenv("PEERBUF_PLUGIN_PATH");
	}
	void TearDown() override
	{
		fs::remove_all(root_);
		if (path_)
			setenv("PEERBUF_PLUGIN_PATH", path_->c_str(), 1);
		else
			unsetenv("PEERBUF_PLUGIN_PATH");
	}

	std::string dir(const std::string &name)
	{
		fs::create_directories(root_ / name);
		return (root_ / name).string();
	}
	std::string file(const std::string &in, const std::string &name)
	{
		std::ofstream(root_ / in / name) << "not an object";
		return (root_ / in / name).string();
	}

	/** Those found under the test's folder; an installed peerbuf may add others. */
	std::vector<std::string> found(const std::string &extra)
	{
		std::vector<std::string> out;
		for (const PluginFile &f : listPlugins(extra))
			if (f.path.starts_with(root_.string()))
				out.push_back(
					text(f.kind == PEERBUF_PLUGIN_EXPORTER ? "exporter "
									       : "importer ",
					     f.name, " ",
					     fs::path(f.path).parent_path().filename().string()));
		return out;
	}

	fs::path root_;
	std::optional<std::string> path_;
};

TEST_F(PluginTest, GivenExtraAndEnvironmentThenExtraFirstAndTheInstalledLast)
{
	setenv("PEERBUF_PLUGIN_PATH", "/b:/c::", 1);
	const std::vector<std::string> dirs = pluginDirectories("/a");
	ASSERT_EQ(4u, dirs.size());
	EXPECT_EQ("/a", dirs[0]);
	EXPECT_EQ("/b", dirs[1]);
	EXPECT_EQ("/c", dirs[2]);
	EXPECT_FALSE(dirs[3].empty());
	unsetenv("PEERBUF_PLUGIN_PATH");
	EXPECT_EQ(1u, pluginDirectories("").size());
}

TEST_F(PluginTest, GivenFilesThenThoseWithThePatternSortedByKindAndName)
{
	const std::string a = dir("a");
	for (const char *name :
	     {"peerbuf-importer-b.so", "peerbuf-exporter-z.so", "peerbuf-exporter-a.so",
	      "peerbuf-exporter-a.so.1", "libother.so", "peerbuf-nothing-x.so", "README"})
		file("a", name);
	EXPECT_EQ((std::vector<std::string>{"exporter a a", "exporter z a", "importer b a"}),
		  found(a));
}

TEST_F(PluginTest, GivenTheSameNameTwiceThenTheFirstOfThePath)
{
	const std::string a = dir("a");
	const std::string b = dir("b");
	file("a", "peerbuf-exporter-x.so");
	file("b", "peerbuf-exporter-x.so");
	file("b", "peerbuf-importer-x.so"); // another kind: another plugin
	setenv("PEERBUF_PLUGIN_PATH", b.c_str(), 1);
	EXPECT_EQ((std::vector<std::string>{"exporter x a", "importer x b"}), found(a));
	EXPECT_EQ((std::vector<std::string>{"exporter x b", "importer x b"}), found(""));
}

TEST_F(PluginTest, GivenADirectoryThatIsNotThereThenSimplyEmpty)
{
	EXPECT_TRUE(found((root_ / "nowhere").string()).empty());
}

TEST_F(PluginTest, GivenAFileThatIsNoObjectThenAProblemWithNameAndReason)
{
	dir("a");
	const std::string path = file("a", "peerbuf-exporter-x.so");
	const Plugin plugin = loadPlugin({PEERBUF_PLUGIN_EXPORTER, "x", path});
	ASSERT_TRUE(plugin.problem);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, plugin.problem->code);
	EXPECT_TRUE(has(plugin.problem->what, "'x' does not load")) << plugin.problem->what;
	EXPECT_TRUE(has(plugin.problem->what, path)) << plugin.problem->what;
	EXPECT_EQ(path, plugin.path);
	EXPECT_EQ(0u, plugin.capabilities);
}

template <typename Table>
void expectBad(const Table &table, const std::vector<std::string> &facts,
	       const std::string &name = "fake")
{
	const Result<Table> checked = checkTable(&table, name);
	ASSERT_FALSE(checked);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, checked.error().code);
	EXPECT_TRUE(has(checked.error().what, "'" + name + "'")) << checked.error().what;
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(checked.error().what, fact))
			<< "'" << fact << "' is not in: " << checked.error().what;
}

TEST_F(PluginTest, GivenAGoodTableThenItself)
{
	FakeDevices fake;
	const peerbuf_exporter_plugin exporter = fake.exporterPlugin().exporter;
	const auto checked = checkTable(&exporter, "fake");
	ASSERT_TRUE(checked) << checked.error().what;
	EXPECT_EQ(exporter.map, checked->map);
	const peerbuf_importer_plugin importer = fake.importerPlugin().importer;
	EXPECT_TRUE(checkTable(&importer, "fake"));
}

TEST_F(PluginTest, GivenVersionSizeOrNameWrongThenBothFactsNamed)
{
	FakeDevices fake;
	const peerbuf_exporter_plugin good = fake.exporterPlugin().exporter;
	peerbuf_exporter_plugin t = good;
	t.abi_version = PEERBUF_ABI_VERSION + 1;
	expectBad(t, {text(PEERBUF_ABI_VERSION + 1), text(PEERBUF_ABI_VERSION)});
	t = good;
	t.struct_size = 8;
	expectBad(t, {"struct_size is 8"});
	expectBad(good, {"'fake'", "'another'"}, "another");
	t = good;
	t.name = nullptr;
	expectBad(t, {"name"});
	t = good;
	t.description = nullptr;
	expectBad(t, {"description"});
	t = good;
	t.capabilities |= 1u << 30;
	expectBad(t, {"unknown capability", "0x40000000"});
}

TEST_F(PluginTest, GivenACapabilityWithoutItsSlotOrASlotWithoutItThenBothNamed)
{
	FakeDevices fake;
	const peerbuf_exporter_plugin good = fake.exporterPlugin().exporter;
	peerbuf_exporter_plugin t = good;
	t.unpin = nullptr; // rule 2: pin and unpin come together
	expectBad(t, {"PIN", "unpin"});
	t = good;
	t.capabilities &= ~PEERBUF_EXPORTER_CAP_PIN;
	expectBad(t, {"PIN", "pin"});
	t = good;
	t.attach = nullptr;
	expectBad(t, {"mandatory", "attach"});

	peerbuf_importer_plugin i = fake.importerPlugin().importer;
	i.capabilities &= ~PEERBUF_IMPORTER_CAP_INVALIDATE;
	i.invalidate = nullptr;
	expectBad(i, {"RESUME", "INVALIDATE"});
	i = fake.importerPlugin().importer;
	i.gate = nullptr;
	expectBad(i, {"GATE", "gate"});
	i = fake.importerPlugin().importer;
	i.capabilities &= ~PEERBUF_IMPORTER_CAP_GATE;
	expectBad(i, {"GATE", "gate"});
}

/** A plugin built against an older header: what its size does not cover must not be read. */
TEST_F(PluginTest, GivenATableThatEndsBeforeASlotThenTheSlotIsNotRead)
{
	FakeDevices fake;
	peerbuf_exporter_plugin t = fake.exporterPlugin().exporter;
	t.struct_size = offsetof(peerbuf_exporter_plugin, open_ops);
	t.open_ops = [](void *, const char *, const void **) { return -1; };
	const auto checked = checkTable(&t, "fake");
	ASSERT_TRUE(checked) << checked.error().what;
	EXPECT_EQ(nullptr, checked->open_ops);
	t.struct_size = sizeof(t) + 64; // a newer one
	t.open_ops = nullptr;
	EXPECT_TRUE(checkTable(&t, "fake"));
}

} // namespace
} // namespace peerbuf
