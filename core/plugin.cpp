// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <sstream>

#ifndef PEERBUF_PLUGIN_DIR
#error "PEERBUF_PLUGIN_DIR names the directory that plugins are installed in"
#endif

namespace peerbuf
{

namespace
{

struct SlotRule {
	uint32_t bit; /* 0: every plugin has it */
	const char *capability;
	const char *slot;
	size_t offset;
};

#define EXPORTER_SLOT(bit, slot)                                                                   \
	{                                                                                          \
		PEERBUF_EXPORTER_CAP_##bit, #bit, #slot, offsetof(peerbuf_exporter_plugin, slot)   \
	}
#define IMPORTER_SLOT(bit, slot)                                                                   \
	{                                                                                          \
		PEERBUF_IMPORTER_CAP_##bit, #bit, #slot, offsetof(peerbuf_importer_plugin, slot)   \
	}
#define MANDATORY(type, slot)                                                                      \
	{                                                                                          \
		0, "", #slot, offsetof(type, slot)                                                 \
	}

constexpr SlotRule EXPORTER_SLOTS[] = {
	MANDATORY(peerbuf_exporter_plugin, open),
	MANDATORY(peerbuf_exporter_plugin, close),
	MANDATORY(peerbuf_exporter_plugin, offer),
	MANDATORY(peerbuf_exporter_plugin, attach),
	MANDATORY(peerbuf_exporter_plugin, detach),
	EXPORTER_SLOT(ALLOC, alloc),
	EXPORTER_SLOT(ALLOC, free),
	EXPORTER_SLOT(GET, get),
	EXPORTER_SLOT(GET, put),
	EXPORTER_SLOT(PIN, pin),
	EXPORTER_SLOT(PIN, unpin),
	EXPORTER_SLOT(MAP, map),
	EXPORTER_SLOT(MAP, unmap),
	EXPORTER_SLOT(FD, export_fd),
	EXPORTER_SLOT(FD, release_fd),
	EXPORTER_SLOT(INVALIDATE, invalidate_done),
	EXPORTER_SLOT(EVENTS, event_fd),
	EXPORTER_SLOT(EVENTS, progress),
	EXPORTER_SLOT(OPS, open_ops),
};

constexpr SlotRule IMPORTER_SLOTS[] = {
	MANDATORY(peerbuf_importer_plugin, open),
	MANDATORY(peerbuf_importer_plugin, close),
	MANDATORY(peerbuf_importer_plugin, offer),
	MANDATORY(peerbuf_importer_plugin, reg),
	MANDATORY(peerbuf_importer_plugin, dereg),
	IMPORTER_SLOT(INVALIDATE, invalidate),
	IMPORTER_SLOT(RESUME, resume),
	IMPORTER_SLOT(EVENTS, event_fd),
	IMPORTER_SLOT(EVENTS, progress),
	IMPORTER_SLOT(OPS, open_ops),
	IMPORTER_SLOT(GATE, gate),
};

/** What differs between the two kinds, so that one piece of code checks both. */
template <typename Table> struct PluginKind;

template <> struct PluginKind<peerbuf_exporter_plugin> {
	static constexpr const char *WORD = "exporter";
	static constexpr const auto &SLOTS = EXPORTER_SLOTS;
	static constexpr uint32_t ALL_BITS = (PEERBUF_EXPORTER_CAP_OPS << 1) - 1;
	static bool serves(uint32_t capabilities, std::string &why)
	{
		if (!(capabilities & (PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET)))
			why = "it has neither ALLOC nor GET, so no buffer can come from it";
		else if (!(capabilities & (PEERBUF_EXPORTER_CAP_MAP | PEERBUF_EXPORTER_CAP_FD)))
			why = "it has neither MAP nor FD, so no memory can be handed out";
		return why.empty();
	}
};

template <> struct PluginKind<peerbuf_importer_plugin> {
	static constexpr const char *WORD = "importer";
	static constexpr const auto &SLOTS = IMPORTER_SLOTS;
	static constexpr uint32_t ALL_BITS = (PEERBUF_IMPORTER_CAP_GATE << 1) - 1;
	static bool serves(uint32_t capabilities, std::string &why)
	{
		if ((capabilities & PEERBUF_IMPORTER_CAP_RESUME) &&
		    !(capabilities & PEERBUF_IMPORTER_CAP_INVALIDATE))
			why = "it has RESUME without INVALIDATE";
		return why.empty();
	}
};

template <typename Table> void *slotAt(const Table &table, size_t offset)
{
	void *slot = nullptr;
	memcpy(&slot, reinterpret_cast<const char *>(&table) + offset, sizeof(slot));
	return slot;
}

template <typename Table> Result<Table> checkTableOf(const Table *given, const std::string &name)
{
	using K = PluginKind<Table>;
	const auto bad = [&](const auto &...parts) {
		return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, K::WORD, " plugin '", name,
			    "': ", parts...);
	};
	// The last mandatory slot is detach for exporters and dereg for importers.
	size_t least = 0;
	for (const SlotRule &rule : K::SLOTS)
		if (!rule.bit)
			least = std::max(least, rule.offset + sizeof(void *));
	if (given->struct_size < least)
		return bad("struct_size is ", given->struct_size, ", the mandatory slots need ",
			   least);
	if (given->abi_version != PEERBUF_ABI_VERSION)
		return bad("abi_version is ", given->abi_version, ", this peerbuf has ",
			   PEERBUF_ABI_VERSION);
	Table table = {};
	memcpy(static_cast<void *>(&table), given,
	       std::min<size_t>(given->struct_size, sizeof(table)));
	if (!table.name || name != table.name)
		return bad("its name is '", table.name ? table.name : "(null)",
			   "', its file is named for '", name, "'");
	if (!table.description)
		return bad("it has no description");
	if (table.capabilities & ~K::ALL_BITS)
		return bad("unknown capability bits ", hex(table.capabilities & ~K::ALL_BITS));
	for (const SlotRule &rule : K::SLOTS) {
		const bool present = slotAt(table, rule.offset);
		const bool wanted = !rule.bit || (table.capabilities & rule.bit);
		if (wanted && !present && !rule.bit)
			return bad("the mandatory slot ", rule.slot, " is missing");
		if (wanted && !present)
			return bad("capability ", rule.capability, " is set, its slot ", rule.slot,
				   " is missing");
		if (!wanted && present)
			return bad("slot ", rule.slot, " is there, its capability ",
				   rule.capability, " is not set");
	}
	std::string why;
	if (!K::serves(table.capabilities, why))
		return bad(why);
	return table;
}

template <typename Table> void take(Plugin &plugin, const void *symbol, Table Plugin::*place)
{
	Result<Table> table = checkTableOf(static_cast<const Table *>(symbol), plugin.name);
	if (!table) {
		plugin.problem = table.error();
		return;
	}
	plugin.*place = *table;
	plugin.description = table->description;
	plugin.capabilities = table->capabilities;
	plugin.options = table->options;
}

} // namespace

Result<peerbuf_exporter_plugin> checkTable(const peerbuf_exporter_plugin *table,
					   const std::string &name)
{
	return checkTableOf(table, name);
}

Result<peerbuf_importer_plugin> checkTable(const peerbuf_importer_plugin *table,
					   const std::string &name)
{
	return checkTableOf(table, name);
}

std::vector<std::string> pluginDirectories(const std::string &extra)
{
	std::vector<std::string> out;
	const auto split = [&](const std::string &list) {
		std::istringstream in(list);
		for (std::string dir; std::getline(in, dir, ':');)
			if (!dir.empty())
				out.push_back(dir);
	};
	split(extra);
	if (const char *path = secure_getenv("PEERBUF_PLUGIN_PATH"))
		split(path);
	out.emplace_back(PEERBUF_PLUGIN_DIR);
	return out;
}

std::vector<PluginFile> listPlugins(const std::string &extra)
{
	namespace fs = std::filesystem;
	static constexpr std::pair<const char *, peerbuf_plugin_kind> PREFIXES[] = {
		{"peerbuf-exporter-", PEERBUF_PLUGIN_EXPORTER},
		{"peerbuf-importer-", PEERBUF_PLUGIN_IMPORTER},
	};
	std::map<std::pair<peerbuf_plugin_kind, std::string>, std::string> found;
	for (const std::string &dir : pluginDirectories(extra)) {
		std::error_code missing; // a directory that is not there is simply empty
		for (fs::directory_iterator it(dir, missing), end; !missing && it != end;
		     it.increment(missing)) {
			const std::string stem = it->path().stem().string();
			for (const auto &[prefix, kind] : PREFIXES)
				if (it->path().extension() == ".so" && stem.starts_with(prefix))
					found.emplace(std::pair(kind, stem.substr(strlen(prefix))),
						      it->path().string());
		}
	}
	std::vector<PluginFile> files;
	files.reserve(found.size());
	for (const auto &[key, path] : found)
		files.push_back(PluginFile{key.first, key.second, path});
	return files;
}

Plugin loadPlugin(const PluginFile &file)
{
	Plugin plugin;
	plugin.kind = file.kind;
	plugin.name = file.name;
	plugin.path = file.path;
	void *object = dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!object) {
		const char *why = dlerror();
		plugin.problem = Error{
			PEERBUF_ERR_BAD_PLUGIN, EINVAL,
			text("plugin '", file.name, "' does not load: ", why ? why : file.path)};
		return plugin;
	}
	const bool exporter = file.kind == PEERBUF_PLUGIN_EXPORTER;
	const char *symbolName = exporter ? "peerbuf_exporter_v1" : "peerbuf_importer_v1";
	const void *symbol = dlsym(object, symbolName);
	if (!symbol)
		plugin.problem = Error{
			PEERBUF_ERR_BAD_PLUGIN, EINVAL,
			text("plugin '", file.name, "': ", file.path, " has no symbol ", symbolName,
			     ": it was made for another ABI version, or is no plugin")};
	else if (exporter)
		take(plugin, symbol, &Plugin::exporter);
	else
		take(plugin, symbol, &Plugin::importer);
	dlclose(object); // the count only; RTLD_NODELETE keeps it
	return plugin;
}

} // namespace peerbuf
