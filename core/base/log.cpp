// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/log.h"

#include <cstdio>
#include <sstream>

namespace peerbuf
{

const char *logLevelName(uint32_t level)
{
	switch (level) {
	case PEERBUF_LOG_ERROR:
		return "error";
	case PEERBUF_LOG_WARN:
		return "warn";
	case PEERBUF_LOG_INFO:
		return "info";
	case PEERBUF_LOG_DEBUG:
		return "debug";
	default:
		return "trace";
	}
}

Log::Log(Sink sink, const char *spec) : sink_(std::move(sink))
{
	if (!sink_)
		sink_ = [](uint32_t level, const char *category, const char *message) {
			fprintf(stderr, "peerbuf %s %s: %s\n", logLevelName(level), category,
				message);
		};
	if (!spec)
		return;
	std::istringstream in(spec);
	for (std::string item; std::getline(in, item, ',');) {
		if (item.empty())
			continue;
		const size_t colon = item.rfind(':');
		const std::string category = item.substr(0, colon);
		const std::string wanted = colon == std::string::npos ? "" : item.substr(colon + 1);
		uint32_t level = 0;
		for (uint32_t l = PEERBUF_LOG_ERROR; l <= PEERBUF_LOG_TRACE; l++)
			if (wanted == logLevelName(l))
				level = l;
		if (!level)
			sink_(PEERBUF_LOG_WARN, "core",
			      text("PEERBUF_LOG: '", item,
				   "' is not CATEGORY:LEVEL with a level of error, warn, info, "
				   "debug, "
				   "trace; skipped")
				      .c_str());
		else if (category == "*")
			otherwise_ = level;
		else
			levels_[category] = level;
	}
}

bool Log::wants(const std::string &category, uint32_t level) const
{
	const auto it = levels_.find(category);
	return level <= (it == levels_.end() ? otherwise_ : it->second);
}

void Log::line(uint32_t level, const std::string &category, const std::string &message) const
{
	if (wants(category, level))
		sink_(level, category.c_str(), message.c_str());
}

} // namespace peerbuf
