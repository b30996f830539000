// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_PLUGIN_SPEC_H
#define PEERBUF_TESTS_SUPPORT_PLUGIN_SPEC_H

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbuf/types.h>

namespace peerbuf::test
{

/** A plugin with its options, as on a command line: NAME[:key=value[,key=value...]]. */
struct PluginSpec {
	std::string name;
	std::vector<std::pair<std::string, std::string>> options;

	/** @param ret_why set where it returns nothing. */
	static std::optional<PluginSpec> parse(const std::string &text, std::string *ret_why);

	std::string text() const;
	/** For the name of a test: letters, digits and underscores. */
	std::string label() const;
	/** The value of an option, or "". */
	std::string option(const std::string &key) const;
	/** The same spec with one option set. */
	PluginSpec with(const std::string &key, const std::string &value) const;
	PluginSpec without(const std::string &key) const;
	/** For the open calls; points into this object. */
	std::vector<peerbuf_param> params() const;
};

} // namespace peerbuf::test

#endif
