// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_LOG_H
#define PEERBUF_CORE_BASE_LOG_H

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <peerbuf/plugin.h>

#include "core/base/result.h"

namespace peerbuf
{

/**
 * Where a context's log lines go, and which of them. Levels come from a specification
 * "CATEGORY:LEVEL[,...]" with '*' for all others, as PEERBUF_LOG has it. Thread-safe once made.
 */
class Log
{
public:
	using Sink = std::function<void(uint32_t level, const char *category, const char *message)>;

	/** @param sink empty: standard error. An unreadable @p spec is reported to the sink and
	 * skipped. */
	explicit Log(Sink sink, const char *spec);

	bool wants(const std::string &category, uint32_t level) const;
	void line(uint32_t level, const std::string &category, const std::string &message) const;

	template <typename... Parts>
	void debug(const std::string &category, const Parts &...parts) const
	{
		if (wants(category, PEERBUF_LOG_DEBUG))
			line(PEERBUF_LOG_DEBUG, category, text(parts...));
	}
	template <typename... Parts>
	void warn(const std::string &category, const Parts &...parts) const
	{
		if (wants(category, PEERBUF_LOG_WARN))
			line(PEERBUF_LOG_WARN, category, text(parts...));
	}

private:
	Sink sink_;
	std::map<std::string, uint32_t> levels_;
	uint32_t otherwise_ = PEERBUF_LOG_WARN;
};

const char *logLevelName(uint32_t level);

} // namespace peerbuf

#endif
