// SPDX-License-Identifier: BSD-3-Clause
#include "list.h"

#include <cstdio>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.hpp>

#include "exit_code.h"
#include "fabric_side.h"
#include "output.h"
#include "verbs_side.h"
#include "words.h"

namespace peerbuf::tools
{

namespace
{

const char *kindWord(uint32_t kind)
{
	return kind == PEERBUF_PLUGIN_EXPORTER ? "exporter" : "importer";
}

std::vector<std::string> optionLines(const peerbuf_plugin_info &info)
{
	std::vector<std::string> lines;
	for (const char *const *line = info.options; line && *line; line++)
		lines.emplace_back(*line);
	return lines;
}

Json jsonOf(const peerbuf_plugin_info &info)
{
	return {{"kind", kindWord(info.kind)},
		{"name", info.name},
		{"usable", info.err == 0},
		{"description", info.description},
		{"path", info.path},
		{"capabilities", capabilityWords(info.kind, info.capabilities)},
		{"options", optionLines(info)},
		{"problem", info.err ? Json(info.why) : Json(nullptr)}};
}

void print(const peerbuf_plugin_info &info, size_t width)
{
	printf("%s %s%s\n", kindWord(info.kind), info.name, info.err ? "  BROKEN" : "");
	const auto line = [&](const char *head, const std::string &text) {
		printf("  %-13s%s\n", head, wrapped(text, width - 15, 15).c_str());
	};
	if (info.err) {
		line("problem", info.why);
		line("file", info.path);
		return;
	}
	line("description", info.description);
	line("capabilities", joined(capabilityWords(info.kind, info.capabilities)));
	line("file", info.path);
	const char *head = "options";
	for (const std::string &option : optionLines(info)) {
		line(head, option);
		head = "";
	}
}

} // namespace

int runList(bool json)
{
	Context ctx;
	if (ctx.open()) {
		fprintf(stderr, "peerbuf list: %s\n", lastError().what);
		return exitMissing;
	}
	std::vector<peerbuf_plugin_info> plugins;
	bool broken = false;
	auto info = sized<peerbuf_plugin_info>();
	while (peerbuf_query_plugin(ctx.get(), plugins.size(), &info) == 0) {
		broken = broken || info.err;
		plugins.push_back(info);
	}
	if (json) {
		Json out = {{"version", peerbuf_version()},
			    {"plugins", Json::array()},
			    {"rma_providers", fabricProviders()},
			    {"rdma_devices", verbsDevices()}};
		for (const peerbuf_plugin_info &plugin : plugins)
			out["plugins"].push_back(jsonOf(plugin));
		printJson(out);
		return broken ? exitBad : exitOk;
	}
	for (const peerbuf_plugin_info &plugin : plugins)
		print(plugin, terminalWidth(stdout));
	if (plugins.empty())
		printf("no plugins were found (PEERBUF_PLUGIN_PATH names directories to search)\n");
	printf("libfabric providers for RMA: %s\n", joined(fabricProviders()).c_str());
	printf("RDMA devices: %s\n", joined(verbsDevices()).c_str());
	return broken ? exitBad : exitOk;
}

} // namespace peerbuf::tools
