// SPDX-License-Identifier: BSD-3-Clause
// Plugins with one fault each: refused where the fault shows, with both facts in the message, and
// nothing is left behind. Only peerbuf.h is used, as an application would.
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include <peerbuf/exporter.h>
#include <peerbuf/peerbuf.h>
#include <peerbuf/testing.h>

#include "support/errors.h"
#include "support/leak_check.h"
#include "support/log_capture.h"

namespace
{

namespace fs = std::filesystem;
using peerbuf::test::LastError;
using peerbuf::test::mentions;

constexpr uint64_t PAGE = 4096;
constexpr uint64_t BUFFER_SIZE = 4 * PAGE;
// the middle of the buffer, so that too low and too high can be told apart
constexpr uint64_t OFFSET = PAGE;
constexpr uint64_t LENGTH = 2 * PAGE;
constexpr uint64_t SENTINEL = 0xfeedULL;

/** The call that finds the fault. Offers are looked at when a device is opened. */
enum class Stage { Load, Open, Alloc, Register };

struct Case {
	const char *fault;
	Stage stage;
	std::vector<std::string> words; /* that the message must have, the two facts among them */
	std::vector<uint64_t> numbers = {};
	const char *handles = "segments"; /* what the good importer takes */
	bool peer2peer = true;
};

void PrintTo(const Case &c, std::ostream *out)
{
	*out << c.fault;
}

std::string moduleName(const std::string &fault)
{
	std::string name = "bad-" + fault;
	std::replace(name.begin(), name.end(), '_', '-');
	return name;
}

std::string testName(const testing::TestParamInfo<Case> &info)
{
	std::string out;
	bool upper = true;
	for (const char c : std::string(info.param.fault)) {
		if (c == '_')
			upper = true;
		else
			out += upper ? static_cast<char>(toupper(c)) : c;
		if (c != '_')
			upper = false;
	}
	return out;
}

const std::vector<Case> EXPORTERS = {
	{"wrong_abi_version", Stage::Load, {"abi_version"}, {2, PEERBUF_ABI_VERSION}},
	{"abi_version_0", Stage::Load, {"abi_version"}, {0, PEERBUF_ABI_VERSION}},
	{"size_0", Stage::Load, {"struct_size"}, {0}},
	{"size_short", Stage::Load, {"struct_size"}, {16}},
	{"size_cuts_slot", Stage::Load, {"OPS", "open_ops"}},
	{"no_symbol", Stage::Load, {"peerbuf_exporter_v1"}},
	{"needs_core_symbol", Stage::Load, {"peerbuf_no_such_function"}},
	{"null_name", Stage::Load, {"name", "null"}},
	{"empty_name", Stage::Load, {"name", "''"}},
	{"name_differs", Stage::Load, {"somebody-else", "bad-name-differs"}},
	{"null_description", Stage::Load, {"description"}},
	{"no_open", Stage::Load, {"open", "missing"}},
	{"no_close", Stage::Load, {"close", "missing"}},
	{"no_offer", Stage::Load, {"offer", "missing"}},
	{"no_attach", Stage::Load, {"attach", "missing"}},
	{"no_detach", Stage::Load, {"detach", "missing"}},

	{"bit_alloc_no_slot", Stage::Load, {"ALLOC", "alloc"}},
	{"bit_get_no_slot", Stage::Load, {"GET", "get"}},
	{"bit_pin_no_slot", Stage::Load, {"PIN", "pin"}},
	{"bit_map_no_slot", Stage::Load, {"MAP", "map"}},
	{"bit_fd_no_slot", Stage::Load, {"FD", "export_fd"}},
	{"bit_invalidate_no_slot", Stage::Load, {"INVALIDATE", "invalidate_done"}},
	{"bit_events_no_slot", Stage::Load, {"EVENTS", "event_fd"}},
	{"bit_ops_no_slot", Stage::Load, {"OPS", "open_ops"}},
	{"bit_alloc_no_free", Stage::Load, {"ALLOC", "free"}},
	{"bit_get_no_put", Stage::Load, {"GET", "put"}},
	{"bit_pin_no_unpin", Stage::Load, {"PIN", "unpin"}},
	{"bit_map_no_unmap", Stage::Load, {"MAP", "unmap"}},
	{"bit_fd_no_release_fd", Stage::Load, {"FD", "release_fd"}},
	{"bit_events_no_progress", Stage::Load, {"EVENTS", "progress"}},
	{"slot_alloc_no_bit", Stage::Load, {"ALLOC", "alloc"}},
	{"slot_get_no_bit", Stage::Load, {"GET", "get"}},
	{"slot_pin_no_bit", Stage::Load, {"PIN", "pin"}},
	{"slot_map_no_bit", Stage::Load, {"MAP", "map"}},
	{"slot_fd_no_bit", Stage::Load, {"FD", "export_fd"}},
	{"slot_invalidate_no_bit", Stage::Load, {"INVALIDATE", "invalidate_done"}},
	{"slot_events_no_bit", Stage::Load, {"EVENTS", "event_fd"}},
	{"slot_ops_no_bit", Stage::Load, {"OPS", "open_ops"}},

	{"open_null", Stage::Open, {"open", "0", "no device"}},
	{"open_positive", Stage::Open, {"open"}, {1}},

	{"offer_unset", Stage::Open, {"stability", "not set"}},
	{"offer_positive", Stage::Open, {"offer"}, {1}},
	{"offer_stability_0", Stage::Open, {"stability"}, {0}},
	{"offer_stability_9", Stage::Open, {"stability"}, {9}},
	{"offer_pin_0", Stage::Open, {"pin"}, {0}},
	{"offer_revoke_0", Stage::Open, {"revoke"}, {0}},
	{"offer_management_0", Stage::Open, {"management"}, {0}},
	{"offer_placements_0", Stage::Open, {"placements"}, {0}},
	{"offer_placements_unknown", Stage::Open, {"placements", "unknown"}, {0x80}},
	{"offer_variants_0", Stage::Open, {"variants"}, {0}},
	{"offer_handles_0", Stage::Open, {"handles"}, {0}},
	{"offer_moves_pin_not_needed", Stage::Open, {"moves", "pin", "not needed"}},
	{"offer_pin_without_cap", Stage::Open, {"pin", "PIN"}},
	{"offer_map_without_cap", Stage::Open, {"handles", "MAP"}},
	{"offer_fd_without_cap", Stage::Open, {"handles", "FD"}},
	{"offer_revoke_without_cap", Stage::Open, {"revoked", "INVALIDATE"}},
	{"offer_granularity_0", Stage::Open, {"granularity"}, {0}},
	{"offer_granularity_12288", Stage::Open, {"granularity", "power of two"}, {12288}},
	{"offer_granularity_2048", Stage::Open, {"granularity"}, {2048, PAGE}},
	{"offer_no_device", Stage::Open, {"device", "name"}},
	{"offer_device_unterminated", Stage::Open, {"device", "name"}},
	{"offer_reserve_over_window",
	 Stage::Open,
	 {"window_reserve", "window_size"},
	 {2 << 20, 1 << 20}},

	{"alloc_positive", Stage::Alloc, {"alloc"}, {1}},
	{"alloc_handle_0", Stage::Alloc, {"alloc", "handle 0"}},
	{"alloc_size_0", Stage::Alloc, {"alloc", "size 0"}},
	{"alloc_size_short", Stage::Alloc, {"alloc"}, {BUFFER_SIZE - PAGE, BUFFER_SIZE}},
	{"alloc_size_unaligned", Stage::Alloc, {"alloc", "granularity"}, {BUFFER_SIZE + 100, PAGE}},

	{"attach_positive", Stage::Register, {"attach"}, {1}},
	{"attach_raises_peer2peer",
	 Stage::Register,
	 {"attach", "peer2peer"},
	 {0, 1},
	 "segments",
	 false},
	{"attach_placement_0", Stage::Register, {"attach", "placement"}, {0}},
	{"pin_positive", Stage::Register, {"pin"}, {1}},

	{"map_positive", Stage::Register, {"map"}, {1}},
	{"map_length_0", Stage::Register, {"map", "length"}, {0, LENGTH}},
	{"map_overflow", Stage::Register, {"map", "2^64"}, {OFFSET, UINT64_MAX - PAGE + 1}},
	{"map_unaligned_offset", Stage::Register, {"map", "granularity"}, {OFFSET - 8, PAGE}},
	{"map_unaligned_length", Stage::Register, {"map", "granularity"}, {LENGTH + 8, PAGE}},
	{"map_beyond_end", Stage::Register, {"map", "end"}, {OFFSET, BUFFER_SIZE}},
	{"map_starts_late", Stage::Register, {"map", "cover"}, {OFFSET + PAGE, OFFSET}},
	{"map_too_short", Stage::Register, {"map", "cover"}, {OFFSET + PAGE, OFFSET + LENGTH}},
	{"map_placement_0", Stage::Register, {"map", "placement"}, {0}},
	{"map_no_segments", Stage::Register, {"map", "n_segments", "handle"}, {0}},
	{"map_null_segments", Stage::Register, {"map", "segments", "NULL"}, {2}},
	{"map_many_segments", Stage::Register, {"map", "n_segments"}, {1ULL << 40, LENGTH}},
	{"map_segments_short", Stage::Register, {"map", "sum"}, {PAGE, LENGTH}},
	{"map_segments_long", Stage::Register, {"map", "segment 1"}, {2 * PAGE, LENGTH}},
	{"map_segment_empty", Stage::Register, {"map", "segment 0", "empty"}},
	{"map_segment_overflow",
	 Stage::Register,
	 {"map", "segment 1", "overflow"},
	 {UINT64_MAX - PAGE + 1, PAGE}},
	{"map_segment_unaligned", Stage::Register, {"map", "segment 1", "aligned"}},
	{"map_no_cpu_addr", Stage::Register, {"map", "cpu_addr", "handle"}, {}, "cpu"},

	{"fd_positive", Stage::Register, {"export_fd"}, {1}, "fd"},
	{"fd_minus_1", Stage::Register, {"export_fd", "-1"}, {}, "fd"},
	{"fd_offset_beyond",
	 Stage::Register,
	 {"export_fd", "end"},
	 {BUFFER_SIZE + PAGE, BUFFER_SIZE},
	 "fd"},
	{"fd_overflow", Stage::Register, {"export_fd", "2^64"}, {UINT64_MAX - 8, LENGTH}, "fd"},
	{"fd_too_small",
	 Stage::Register,
	 {"export_fd", "end"},
	 {OFFSET, LENGTH, OFFSET + LENGTH - 1},
	 "fd"},
	{"fd_size_0", Stage::Register, {"export_fd", "end"}, {0, LENGTH}, "fd"},
};

const std::vector<Case> IMPORTERS = {
	{"wrong_abi_version", Stage::Load, {"abi_version"}, {2, PEERBUF_ABI_VERSION}},
	{"size_short", Stage::Load, {"struct_size"}, {16}},
	{"no_symbol", Stage::Load, {"peerbuf_importer_v1"}},
	{"null_name", Stage::Load, {"name", "null"}},
	{"name_differs", Stage::Load, {"somebody-else", "bad-name-differs"}},
	{"no_open", Stage::Load, {"open", "missing"}},
	{"no_close", Stage::Load, {"close", "missing"}},
	{"no_offer", Stage::Load, {"offer", "missing"}},
	{"no_reg", Stage::Load, {"reg", "missing"}},
	{"no_dereg", Stage::Load, {"dereg", "missing"}},
	{"bit_invalidate_no_slot", Stage::Load, {"INVALIDATE", "invalidate"}},
	{"bit_resume_no_slot", Stage::Load, {"RESUME", "resume"}},
	{"bit_events_no_slot", Stage::Load, {"EVENTS", "event_fd"}},
	{"bit_ops_no_slot", Stage::Load, {"OPS", "open_ops"}},
	{"bit_gate_no_slot", Stage::Load, {"GATE", "gate"}},
	{"bit_events_no_progress", Stage::Load, {"EVENTS", "progress"}},
	{"slot_invalidate_no_bit", Stage::Load, {"INVALIDATE", "invalidate"}},
	{"slot_resume_no_bit", Stage::Load, {"RESUME", "resume"}},
	{"slot_events_no_bit", Stage::Load, {"EVENTS", "event_fd"}},
	{"slot_ops_no_bit", Stage::Load, {"OPS", "open_ops"}},
	{"slot_gate_no_bit", Stage::Load, {"GATE", "gate"}},

	{"open_null", Stage::Open, {"open", "0", "no object"}},
	{"open_positive", Stage::Open, {"open"}, {1}},
	{"offer_unset", Stage::Open, {"variants"}, {0}},
	{"offer_positive", Stage::Open, {"offer"}, {1}},
	{"offer_refault_not_revocable", Stage::Open, {"refault", "revocable"}},
	{"offer_refault_without_resume", Stage::Open, {"refault", "RESUME"}},
	{"offer_revocable_without_cap", Stage::Open, {"revocable", "INVALIDATE"}},
	{"offer_scope_0", Stage::Open, {"invalidate_scope"}, {0}},
	{"offer_notified_by_0", Stage::Open, {"invalidation", "notified_by"}, {0}},
	{"offer_variants_0", Stage::Open, {"variants"}, {0}},
	{"offer_handles_0", Stage::Open, {"handles"}, {0}},
	{"offer_mask_0", Stage::Open, {"dma_mask_bits"}, {0}},
	{"offer_mask_65", Stage::Open, {"dma_mask_bits"}, {65, 64}},
	{"offer_page_sizes_0", Stage::Open, {"page_sizes"}, {0}},
	{"offer_max_length_0", Stage::Open, {"max_length"}, {0}},

	{"reg_positive", Stage::Register, {"reg"}, {1}},
	{"reg_raw_key_too_long",
	 Stage::Register,
	 {"reg", "key"},
	 {PEERBUF_RAW_KEY_LEN + 1, PEERBUF_RAW_KEY_LEN}},
};

/** A context that sees the templates; and that everything is as before when the test ends. */
class BadPlugins : public testing::Test
{
protected:
	void open(const std::string &plugin_path)
	{
		peerbuf_open_attr attr = {};
		attr.struct_size = sizeof(attr);
		attr.plugin_path = plugin_path.c_str();
		log_.attach(&attr);
		ASSERT_PB_OK(peerbuf_open(&attr, &ctx_));
	}

	/** Sees that plugin and the good ones alone: to load all for each would take a minute. */
	void openOne(const std::string &kind, const std::string &name)
	{
		std::string pattern = testing::TempDir() + "peerbuf-one-plugin.XXXXXX";
		ASSERT_NE(mkdtemp(pattern.data()), nullptr);
		links_ = pattern;
		for (const std::string &file : {"peerbuf-" + kind + "-" + name + ".so",
						std::string("peerbuf-exporter-good.so"),
						std::string("peerbuf-importer-good.so")}) {
			ASSERT_TRUE(fs::exists(directory() / file)) << file;
			fs::create_symlink(directory() / file, links_ / file);
		}
		open(links_.string());
	}

	void TearDown() override
	{
		if (ctx_) {
			EXPECT_TRUE(peerbuf::test::ledgerIsZero(ctx_));
			EXPECT_PB_OK(peerbuf_close(ctx_));
			log_.check();
		}
		if (!links_.empty())
			fs::remove_all(links_);
	}

	static fs::path directory() { return PEERBUF_BAD_PLUGIN_DIR; }

	int openExporter(const std::string &name, peerbuf_exporter_t *ret)
	{
		return peerbuf_exporter_open(ctx_, name.c_str(), nullptr, 0, ret);
	}

	int openImporter(const std::string &name, const char *handles, bool peer2peer,
			 peerbuf_importer_t *ret)
	{
		const std::array<peerbuf_param, 2> params = {
			{{"handles", handles}, {"peer2peer", peer2peer ? "yes" : "no"}}};
		return peerbuf_importer_open(ctx_, name.c_str(), params.data(), params.size(),
					     nullptr, ret);
	}

	int registerMiddle(peerbuf_buffer_t buffer, peerbuf_importer_t importer, peerbuf_reg_t *ret)
	{
		peerbuf_source source = {};
		source.struct_size = sizeof(source);
		source.fd = -1;
		source.buffer = buffer;
		source.offset = OFFSET;
		source.length = LENGTH;
		peerbuf_policy policy = {};
		policy.struct_size = sizeof(policy);
		policy.host_placement_ok = 1;
		return peerbuf_register(ctx_, &source, &importer, 1,
					PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE,
					&policy, ret);
	}

	/** What the two devices hold, as they count it themselves. */
	std::string held(peerbuf_exporter_t exporter, peerbuf_importer_t importer)
	{
		std::string out;
		const void *ops = nullptr;
		void *device = nullptr;
		if (exporter && peerbuf_exporter_open_ops(ctx_, exporter, PEERBUF_EXPORTER_TEST_OPS,
							  &ops, &device) == 0) {
			peerbuf_exporter_stats s = {};
			s.struct_size = sizeof(s);
			static_cast<const peerbuf_exporter_test_ops *>(ops)->stats(device, &s);
			out += "buffers " + std::to_string(s.buffers) + " attachments " +
			       std::to_string(s.attachments) + " pins " + std::to_string(s.pins) +
			       " mappings " + std::to_string(s.mappings) + " exports " +
			       std::to_string(s.exports) + " bytes " +
			       std::to_string(s.memory_used) + " violations " +
			       std::to_string(s.violations);
		}
		if (importer && peerbuf_importer_open_ops(ctx_, importer, PEERBUF_IMPORTER_TEST_OPS,
							  &ops, &device) == 0) {
			peerbuf_importer_stats s = {};
			s.struct_size = sizeof(s);
			static_cast<const peerbuf_importer_test_ops *>(ops)->stats(device, &s);
			out += " regions " + std::to_string(s.regions) + " keys " +
			       std::to_string(s.keys_used) + " violations " +
			       std::to_string(s.violations);
		}
		return out;
	}

	/** The plugin's entry in the list says the same as opening it. */
	void expectListed(peerbuf_plugin_kind kind, const std::string &name, const Case &c)
	{
		peerbuf_plugin_info info = {};
		for (size_t i = 0;; i++) {
			info = {};
			info.struct_size = sizeof(info);
			const int rc = peerbuf_query_plugin(ctx_, i, &info);
			ASSERT_EQ(rc, 0) << "no entry of " << name << " in the list of plugins";
			if (info.kind == static_cast<uint32_t>(kind) && name == info.name)
				break;
		}
		EXPECT_LT(info.err, 0);
		for (const std::string &word : c.words)
			EXPECT_NE(std::string(info.why).find(word), std::string::npos)
				<< "'" << word << "' is not in: " << info.why;
		for (const uint64_t number : c.numbers)
			EXPECT_TRUE(mentions(info.why, number));
	}

	/**
	 * @p call fails three times with the same words, which have both facts; neither *output nor
	 * descriptors, ledger or what the devices hold changes.
	 */
	void expectRefused(const Case &c, const std::string &name, const std::function<int()> &call,
			   const uint64_t &output, peerbuf_exporter_t exporter = 0,
			   peerbuf_importer_t importer = 0)
	{
		const std::string before = held(exporter, importer);
		std::string first;
		for (int attempt = 0; attempt < 3; attempt++) {
			const peerbuf::test::LeakCheck leaks;
			ASSERT_PB_ERROR(call(), -EINVAL, PEERBUF_ERR_BAD_PLUGIN);
			const std::string what = LastError::take().what;
			EXPECT_NE(what.find(name), std::string::npos)
				<< "names no plugin: " << what;
			for (const std::string &word : c.words)
				EXPECT_NE(what.find(word), std::string::npos)
					<< "'" << word << "' is not in: " << what;
			for (const uint64_t number : c.numbers)
				EXPECT_TRUE(mentions(what, number));
			if (first.empty())
				first = what;
			EXPECT_EQ(what, first) << "the answer changed when asked again";
			EXPECT_EQ(output, SENTINEL) << "an output of a failed call was written";
			EXPECT_EQ(held(exporter, importer), before);
			EXPECT_TRUE(peerbuf::test::ledgerIsZero(ctx_));
		}
	}

	peerbuf::test::LeakCheck leaks_;
	peerbuf::test::LogCapture log_;
	peerbuf_context *ctx_ = nullptr;
	fs::path links_;
};

class BadExporter : public BadPlugins, public testing::WithParamInterface<Case>
{
};

TEST_P(BadExporter, IsRefusedWhereItsFaultShows)
{
	const Case &c = GetParam();
	const std::string name = moduleName(c.fault);
	ASSERT_NO_FATAL_FAILURE(openOne("exporter", name));
	peerbuf_exporter_t exporter = SENTINEL;
	if (c.stage == Stage::Load || c.stage == Stage::Open) {
		expectRefused(
			c, name, [&] { return openExporter(name, &exporter); }, exporter);
		if (c.stage == Stage::Load)
			expectListed(PEERBUF_PLUGIN_EXPORTER, name, c);
		return;
	}
	ASSERT_PB_OK(openExporter(name, &exporter));
	peerbuf_buffer_t buffer = SENTINEL;
	const auto alloc = [&] { return peerbuf_alloc(ctx_, exporter, BUFFER_SIZE, &buffer); };
	if (c.stage == Stage::Alloc) {
		expectRefused(c, name, alloc, buffer, exporter);
		EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter));
		return;
	}
	ASSERT_PB_OK(alloc());
	peerbuf_importer_t importer = 0;
	ASSERT_PB_OK(openImporter("good", c.handles, c.peer2peer, &importer));
	peerbuf_reg_t reg = SENTINEL;
	expectRefused(
		c, name, [&] { return registerMiddle(buffer, importer, &reg); }, reg, exporter,
		importer);
	EXPECT_PB_OK(peerbuf_free(ctx_, buffer));
	EXPECT_PB_OK(peerbuf_importer_close(ctx_, importer));
	EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter));
}

INSTANTIATE_TEST_SUITE_P(Each, BadExporter, testing::ValuesIn(EXPORTERS), testName);

class BadImporter : public BadPlugins, public testing::WithParamInterface<Case>
{
};

TEST_P(BadImporter, IsRefusedWhereItsFaultShows)
{
	const Case &c = GetParam();
	const std::string name = moduleName(c.fault);
	ASSERT_NO_FATAL_FAILURE(openOne("importer", name));
	peerbuf_importer_t importer = SENTINEL;
	const auto openIt = [&] { return openImporter(name, c.handles, c.peer2peer, &importer); };
	if (c.stage == Stage::Load || c.stage == Stage::Open) {
		expectRefused(c, name, openIt, importer);
		if (c.stage == Stage::Load)
			expectListed(PEERBUF_PLUGIN_IMPORTER, name, c);
		return;
	}
	ASSERT_PB_OK(openIt());
	peerbuf_exporter_t exporter = 0;
	peerbuf_buffer_t buffer = 0;
	ASSERT_PB_OK(openExporter("good", &exporter));
	ASSERT_PB_OK(peerbuf_alloc(ctx_, exporter, BUFFER_SIZE, &buffer));
	peerbuf_reg_t reg = SENTINEL;
	expectRefused(
		c, name, [&] { return registerMiddle(buffer, importer, &reg); }, reg, exporter,
		importer);
	EXPECT_PB_OK(peerbuf_free(ctx_, buffer));
	EXPECT_PB_OK(peerbuf_importer_close(ctx_, importer));
	EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter));
}

INSTANTIATE_TEST_SUITE_P(Each, BadImporter, testing::ValuesIn(IMPORTERS), testName);

/* ---- the controls: the template without a fault, and two tables that look odd but are right - */

struct Good {
	const char *exporter;
	const char *handles;
	bool counts; /* it has the table of operations that tells what it holds */
};

void PrintTo(const Good &g, std::ostream *out)
{
	*out << g.exporter << " by " << g.handles;
}

class GoodExporter : public BadPlugins, public testing::WithParamInterface<Good>
{
};

TEST_P(GoodExporter, IsAccepted)
{
	const Good &g = GetParam();
	ASSERT_NO_FATAL_FAILURE(open(directory().string()));
	peerbuf_exporter_t exporter = 0;
	peerbuf_importer_t importer = 0;
	peerbuf_buffer_t buffer = 0;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(openExporter(g.exporter, &exporter));
	ASSERT_PB_OK(openImporter("good", g.handles, true, &importer));
	ASSERT_PB_OK(peerbuf_alloc(ctx_, exporter, BUFFER_SIZE, &buffer));
	const std::string before = held(exporter, importer);
	EXPECT_EQ(before.find("buffers 1 attachments 0") != std::string::npos, g.counts) << before;
	ASSERT_PB_OK(registerMiddle(buffer, importer, &reg));
	EXPECT_NE(held(exporter, importer), before);

	peerbuf_reg_info info = {};
	info.struct_size = sizeof(info);
	ASSERT_PB_OK(peerbuf_query_reg(ctx_, reg, &info));
	EXPECT_EQ(info.flow, static_cast<uint32_t>(PEERBUF_FLOW_PINNED));
	EXPECT_EQ(info.pinned_bytes, LENGTH);
	EXPECT_EQ(peerbuf::test::ledgerUsed(ctx_, PEERBUF_LEDGER_PINS), LENGTH);

	EXPECT_PB_OK(peerbuf_deregister(ctx_, reg));
	EXPECT_EQ(held(exporter, importer), before);
	EXPECT_PB_OK(peerbuf_free(ctx_, buffer));
	EXPECT_PB_OK(peerbuf_importer_close(ctx_, importer));
	EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter));
}

INSTANTIATE_TEST_SUITE_P(Each, GoodExporter,
			 testing::Values(Good{"good", "segments", true}, Good{"good", "cpu", true},
					 Good{"good", "fd", true}, Good{"older", "segments", false},
					 Good{"newer", "segments", true}),
			 [](const testing::TestParamInfo<Good> &param) {
				 return std::string(param.param.exporter) + "By" +
					param.param.handles;
			 });

/* ---- files that are no plugins at all ------------------------------------------------------- */

/** A directory of its own, gone at the end. */
class NoPlugin : public BadPlugins
{
protected:
	void SetUp() override
	{
		std::string pattern = testing::TempDir() + "peerbuf-no-plugin.XXXXXX";
		ASSERT_NE(mkdtemp(pattern.data()), nullptr);
		folder_ = pattern;
	}
	void TearDown() override
	{
		BadPlugins::TearDown();
		std::error_code ignored;
		fs::remove_all(folder_, ignored);
	}

	fs::path file(const std::string &name) const
	{
		return folder_ / ("peerbuf-exporter-" + name + ".so");
	}
	void write(const std::string &name, const std::string &text) const
	{
		std::ofstream(file(name), std::ios::binary) << text;
	}
	void expectNoPlugin(const std::string &name)
	{
		ASSERT_NO_FATAL_FAILURE(open(folder_.string()));
		const Case c = {"file", Stage::Load, {name}};
		peerbuf_exporter_t exporter = SENTINEL;
		expectRefused(
			c, name, [&] { return openExporter(name, &exporter); }, exporter);
		expectListed(PEERBUF_PLUGIN_EXPORTER, name, c);
	}

	fs::path folder_;
};

TEST_F(NoPlugin, GivenTextFileThenRefused)
{
	write("text", "this is not a shared object\n");
	expectNoPlugin("text");
}

TEST_F(NoPlugin, GivenEmptyFileThenRefused)
{
	write("empty", "");
	expectNoPlugin("empty");
}

TEST_F(NoPlugin, GivenCutOffSharedObjectThenRefused)
{
	std::ifstream in(directory() / "peerbuf-exporter-good.so", std::ios::binary);
	std::string head(300, '\0');
	in.read(head.data(), static_cast<std::streamsize>(head.size()));
	ASSERT_TRUE(in);
	write("cut", head);
	expectNoPlugin("cut");
}

TEST_F(NoPlugin, GivenDirectoryWithAPluginsNameThenRefused)
{
	fs::create_directory(file("folder"));
	expectNoPlugin("folder");
}

TEST_F(NoPlugin, GivenDanglingLinkThenRefused)
{
	fs::create_symlink(folder_ / "nowhere", file("link"));
	expectNoPlugin("link");
}

TEST_F(NoPlugin, GivenBadNeighboursThenTheGoodOneWorks)
{
	write("text", "this is not a shared object\n");
	fs::create_symlink(directory() / "peerbuf-exporter-good.so", file("good"));
	ASSERT_NO_FATAL_FAILURE(open(folder_.string()));
	peerbuf_exporter_t exporter = 0;
	ASSERT_PB_OK(openExporter("good", &exporter));
	EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter));
}

/* ---- the lists above are complete ----------------------------------------------------------- */

TEST(BadPluginList, GivenEveryBuiltModuleThenItHasATest)
{
	std::set<std::string> tested = {"peerbuf-exporter-good", "peerbuf-importer-good",
					"peerbuf-exporter-older", "peerbuf-exporter-newer"};
	for (const Case &c : EXPORTERS)
		tested.insert("peerbuf-exporter-" + moduleName(c.fault));
	for (const Case &c : IMPORTERS)
		tested.insert("peerbuf-importer-" + moduleName(c.fault));
	std::set<std::string> built;
	for (const auto &entry : fs::directory_iterator(PEERBUF_BAD_PLUGIN_DIR))
		if (entry.path().extension() == ".so")
			built.insert(entry.path().stem().string());
	EXPECT_EQ(built, tested);
}

} // namespace
