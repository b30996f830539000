// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_PLUGIN_H
#define PEERBUF_CORE_PLUGIN_H

#include <optional>
#include <string>
#include <vector>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>
#include <peerbuf/peerbuf.h>

#include "core/base/result.h"

namespace peerbuf
{

/** A plugin as found on disk or handed in by a test, checked before any slot of it is called. */
struct Plugin {
	peerbuf_plugin_kind kind = PEERBUF_PLUGIN_EXPORTER;
	std::string name;
	std::string description;
	std::string path;
	const char *const *options = nullptr;
	uint32_t capabilities = 0;
	/** What is wrong with it; nothing: usable. */
	std::optional<Error> problem;
	/** Whole tables: slots that the plugin's struct_size does not cover are NULL. */
	peerbuf_exporter_plugin exporter = {};
	peerbuf_importer_plugin importer = {};
};

/**
 * Check a table: version, size, name, mandatory slots, and that every capability bit has its slots
 * and every slot its bit. @return the table with every slot it does not cover set to NULL.
 */
Result<peerbuf_exporter_plugin> checkTable(const peerbuf_exporter_plugin *table,
					   const std::string &name);
Result<peerbuf_importer_plugin> checkTable(const peerbuf_importer_plugin *table,
					   const std::string &name);

/** A plugin's file. */
struct PluginFile {
	peerbuf_plugin_kind kind = PEERBUF_PLUGIN_EXPORTER;
	std::string name;
	std::string path;
};

/**
 * The plugins of the search path, the first of a kind and name winning, sorted by kind and name.
 * Nothing is loaded.
 *
 * @param extra searched first; may be empty.
 */
std::vector<PluginFile> listPlugins(const std::string &extra);

/**
 * Load and check one. It is never unloaded: its threads and thread-local data may outlive any
 * moment the host could know. What is wrong with it is in Plugin::problem.
 */
Plugin loadPlugin(const PluginFile &file);

/** The directories, in order: @p extra, PEERBUF_PLUGIN_PATH unless set-user-ID, the installed one.
 */
std::vector<std::string> pluginDirectories(const std::string &extra);

} // namespace peerbuf

#endif
