// SPDX-License-Identifier: BSD-3-Clause
#include "log_capture.h"

#include <algorithm>
#include <iostream>

#include <gtest/gtest.h>

#include <peerbuf/plugin.h>

namespace peerbuf::test
{

void LogCapture::attach(peerbuf_open_attr *attr)
{
	attr->log = onLine;
	attr->log_data = this;
}

void LogCapture::onLine(void *data, uint32_t level, const char *category, const char *message)
{
	auto *self = static_cast<LogCapture *>(data);
	const std::string text =
		std::to_string(level) + " " + (category ? category : "") + ": " + message;
	const std::lock_guard<std::mutex> lock(self->mutex_);
	self->lines_.push_back({level, text});
}

void LogCapture::allow(const std::string &part)
{
	const std::lock_guard<std::mutex> lock(mutex_);
	allowed_.push_back(part);
}

std::vector<std::string> LogCapture::lines() const
{
	const std::lock_guard<std::mutex> lock(mutex_);
	std::vector<std::string> all;
	for (const Line &line : lines_)
		all.push_back(line.text);
	return all;
}

bool LogCapture::has(const std::string &part) const
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return std::any_of(lines_.begin(), lines_.end(), [&](const Line &line) {
		return line.text.find(part) != std::string::npos;
	});
}

void LogCapture::check() const
{
	const std::lock_guard<std::mutex> lock(mutex_);
	for (const Line &line : lines_) {
		const bool allowed =
			std::any_of(allowed_.begin(), allowed_.end(), [&](const std::string &part) {
				return line.text.find(part) != std::string::npos;
			});
		if (line.level <= PEERBUF_LOG_WARN && !allowed)
			ADD_FAILURE() << "unexpected in the log: " << line.text;
	}
	// PEERBUF_LOG=*:debug in the environment makes this the story of the failure
	if (testing::Test::HasFailure()) {
		for (const Line &line : lines_)
			std::cout << "log: " << line.text << "\n";
	}
}

} // namespace peerbuf::test
