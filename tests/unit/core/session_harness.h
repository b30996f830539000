// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_CORE_SESSION_HARNESS_H
#define PEERBUF_TESTS_UNIT_CORE_SESSION_HARNESS_H

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/session.h"

#include "fake_devices.h"
#include "offers.h"

namespace peerbuf::test
{

/** A session with the fake pair open and one buffer allocated. */
class SessionTest : public testing::Test
{
protected:
	void SetUp() override
	{
		Session::Options options;
		options.log = [this](uint32_t, const char *, const char *line) {
			lines_.emplace_back(line);
		};
		auto session = Session::create(std::move(options));
		ASSERT_TRUE(session) << session.error().what;
		session_ = std::move(*session);
		session_->addPlugin(fake_.exporterPlugin());
		session_->addPlugin(fake_.importerPlugin());
		const auto exporter = session_->openExporter("fake", {});
		ASSERT_TRUE(exporter) << exporter.error().what;
		exporter_ = *exporter;
		const auto importer = session_->openImporter("fake", {}, nullptr);
		ASSERT_TRUE(importer) << importer.error().what;
		importer_ = *importer;
		const auto buffer = session_->alloc(exporter_, fake_.size);
		ASSERT_TRUE(buffer) << buffer.error().what;
		buffer_ = *buffer;
		fake_.calls.clear();
	}

	uint64_t registered(const Policy &policy = {})
	{
		Source source;
		source.buffer = buffer_;
		source.offset = 0x1000;
		source.length = 0x2000;
		Policy p = policy;
		p.tenant = "train";
		const auto reg = session_->registerMemory(source, {importer_}, READ_WRITE, p);
		EXPECT_TRUE(reg) << reg.error().what;
		return reg ? *reg : 0;
	}

	/** As the exporter would. @return what host->invalidate said. */
	int invalidate(peerbuf_reason reason, const Range &range, uint64_t handle = 9,
		       uint64_t cookie = 5)
	{
		peerbuf_invalidate inv = {};
		inv.struct_size = sizeof(inv);
		inv.reason = reason;
		inv.offset = range.offset;
		inv.length = range.length;
		inv.generation = 1;
		inv.cookie = cookie;
		inv.expected_ns = expectedNs_;
		return fake_.exporterHost->invalidate(fake_.exporterHost, handle, &inv);
	}
	int resume(const Range &range, uint64_t generation, bool aborted = false)
	{
		peerbuf_resume res = {};
		res.struct_size = sizeof(res);
		res.aborted = aborted;
		res.offset = range.offset;
		res.length = range.length;
		res.generation = generation;
		return fake_.exporterHost->resume(fake_.exporterHost, 9, &res);
	}

	long count(const std::string &call) const
	{
		return std::count(fake_.calls.begin(), fake_.calls.end(), call);
	}

	void drain()
	{
		while (*session_->progress() > 0) {
		}
	}

	std::vector<peerbuf_event> events()
	{
		std::vector<peerbuf_event> all;
		while (const auto event = session_->nextEvent())
			all.push_back(*event);
		return all;
	}
	bool warned(const std::string &part) const
	{
		return std::any_of(lines_.begin(), lines_.end(),
				   [&](const std::string &line) { return has(line, part); });
	}

	std::vector<std::string> lines_;
	FakeDevices fake_;
	std::unique_ptr<Session> session_;
	uint64_t exporter_ = 0;
	uint64_t importer_ = 0;
	uint64_t buffer_ = 0;
	uint64_t expectedNs_ = 0;
};

inline Policy pinned()
{
	Policy p;
	p.ceiling = PEERBUF_FLOW_PINNED;
	return p;
}

} // namespace peerbuf::test

#endif
