// SPDX-License-Identifier: BSD-3-Clause
#include "plugin_spec.h"

#include <algorithm>
#include <cctype>

namespace peerbuf::test
{

std::optional<PluginSpec> PluginSpec::parse(const std::string &text, std::string *ret_why)
{
	PluginSpec spec;
	const size_t colon = text.find(':');
	spec.name = text.substr(0, colon);
	if (spec.name.empty()) {
		*ret_why = "'" + text + "': NAME[:key=value[,key=value...]]";
		return std::nullopt;
	}
	size_t at = colon == std::string::npos ? text.size() : colon + 1;
	while (at < text.size()) {
		const size_t comma = std::min(text.find(',', at), text.size());
		const std::string item = text.substr(at, comma - at);
		const size_t equals = item.find('=');
		if (equals == std::string::npos || equals == 0) {
			*ret_why = "'" + text + "': '" + item + "' is not key=value";
			return std::nullopt;
		}
		spec.options.emplace_back(item.substr(0, equals), item.substr(equals + 1));
		at = comma + 1;
	}
	return spec;
}

std::string PluginSpec::text() const
{
	std::string all = name;
	char separator = ':';
	for (const auto &[key, value] : options) {
		all += separator + key + "=" + value;
		separator = ',';
	}
	return all;
}

std::string PluginSpec::label() const
{
	std::string label = name;
	for (const auto &[key, value] : options) {
		// the value says enough where it is a word
		const bool word =
			!value.empty() && std::isalpha(static_cast<unsigned char>(value[0]));
		label += "_" + (word && value != "yes" && value != "no" ? value : key + value);
	}
	std::replace_if(
		label.begin(), label.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
	return label;
}

std::string PluginSpec::option(const std::string &key) const
{
	for (const auto &[k, value] : options) {
		if (k == key)
			return value;
	}
	return "";
}

PluginSpec PluginSpec::with(const std::string &key, const std::string &value) const
{
	PluginSpec changed = without(key);
	changed.options.emplace_back(key, value);
	return changed;
}

PluginSpec PluginSpec::without(const std::string &key) const
{
	PluginSpec changed = *this;
	const auto has_key = [&](const auto &option) { return option.first == key; };
	changed.options.erase(
		std::remove_if(changed.options.begin(), changed.options.end(), has_key),
		changed.options.end());
	return changed;
}

std::vector<peerbuf_param> PluginSpec::params() const
{
	std::vector<peerbuf_param> all;
	for (const auto &[key, value] : options)
		all.push_back({key.c_str(), value.c_str()});
	return all;
}

} // namespace peerbuf::test
