// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_LOG_CAPTURE_H
#define PEERBUF_TESTS_SUPPORT_LOG_CAPTURE_H

#include <mutex>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.h>

namespace peerbuf::test
{

/**
 * Takes the log of a context. Warnings and errors that no test allowed are failures of the test
 * that is running when check() is called. Thread-safe.
 */
class LogCapture
{
public:
	/** Point @p attr to it. It must outlive the context. */
	void attach(peerbuf_open_attr *attr);

	/** Lines with @p part in them are expected. */
	void allow(const std::string &part);

	/** All lines so far, "LEVEL CATEGORY: MESSAGE". */
	std::vector<std::string> lines() const;
	bool has(const std::string &part) const;

	/** Fail the running test for every warning or error not allowed. */
	void check() const;

private:
	static void onLine(void *data, uint32_t level, const char *category, const char *message);

	struct Line {
		uint32_t level;
		std::string text;
	};

	mutable std::mutex mutex_;
	std::vector<Line> lines_;
	std::vector<std::string> allowed_;
};

} // namespace peerbuf::test

#endif
