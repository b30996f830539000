// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_PLUGIN_SPEC_H
#define PEERBUF_TOOLS_PLUGIN_SPEC_H

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbuf/types.h>

namespace peerbuf::tools
{

/** A plugin with its options, as on the command line: NAME[:key=value[,key=value...]]. */
struct PluginSpec {
	std::string name;
	std::vector<std::pair<std::string, std::string>> options;

	/** @param ret_why set where it returns nothing. */
	static std::optional<PluginSpec> parse(const std::string &text, std::string *ret_why);

	std::string text() const;
	/** The value of an option, or NULL. */
	const std::string *option(const std::string &key) const;
	PluginSpec with(const std::string &key, const std::string &value) const;
	PluginSpec without(const std::string &key) const;
	/** For the open calls; points into this object. */
	std::vector<peerbuf_param> params() const;
};

} // namespace peerbuf::tools

#endif
