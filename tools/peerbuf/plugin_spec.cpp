// SPDX-License-Identifier: BSD-3-Clause
#include "plugin_spec.h"

#include <algorithm>

namespace peerbuf::tools
{

std::optional<PluginSpec> PluginSpec::parse(const std::string &text, std::string *ret_why)
{
	PluginSpec spec;
	const size_t colon = text.find(':');
	spec.name = text.substr(0, colon);
	if (spec.name.empty()) {
		*ret_why = "'" + text + "': no name; it is NAME[:key=value,...]";
		return std::nullopt;
	}
	if (colon == std::string::npos)
		return spec;
	for (size_t from = colon + 1; from <= text.size();) {
		const size_t to = std::min(text.find(',', from), text.size());
		const std::string one = text.substr(from, to - from);
		const size_t equals = one.find('=');
		if (equals == 0 || equals == std::string::npos) {
			*ret_why = "'" + text + "': '" + one + "' is not key=value";
			return std::nullopt;
		}
		const std::string key = one.substr(0, equals);
		if (spec.option(key)) {
			*ret_why = "'" + text + "': option '" + key + "' is given twice";
			return std::nullopt;
		}
		spec.options.emplace_back(key, one.substr(equals + 1));
		from = to + 1;
	}
	return spec;
}

std::string PluginSpec::text() const
{
	std::string text = name;
	for (const auto &[key, value] : options)
		text += (&key == &options.front().first ? ":" : ",") + key + "=" + value;
	return text;
}

const std::string *PluginSpec::option(const std::string &key) const
{
	for (const auto &[k, value] : options)
		if (k == key)
			return &value;
	return nullptr;
}

PluginSpec PluginSpec::with(const std::string &key, const std::string &value) const
{
	PluginSpec spec = without(key);
	spec.options.emplace_back(key, value);
	return spec;
}

PluginSpec PluginSpec::without(const std::string &key) const
{
	PluginSpec spec = *this;
	std::erase_if(spec.options, [&](const auto &option) { return option.first == key; });
	return spec;
}

std::vector<peerbuf_param> PluginSpec::params() const
{
	std::vector<peerbuf_param> params;
	for (const auto &[key, value] : options)
		params.push_back({key.c_str(), value.c_str()});
	return params;
}

} // namespace peerbuf::tools
