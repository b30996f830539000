// SPDX-License-Identifier: BSD-3-Clause
#include "core/session.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "session_harness.h"

/** What only shows against plugins that misbehave on purpose; the contract suite has the rest. */
namespace peerbuf
{
namespace
{

using namespace test;

TEST_F(SessionTest, GivenInvalidateOfNonsenseThenRefusedAndNobodyIsTold)
{
	const uint64_t reg = registered();
	fake_.calls.clear();
	EXPECT_EQ(-ENOENT, invalidate(PEERBUF_REASON_MOVE, {0, 0x1000}, 12345));
	EXPECT_EQ(-EINVAL, invalidate(PEERBUF_REASON_MOVE, {0, 0}));
	EXPECT_EQ(-EINVAL, invalidate(PEERBUF_REASON_MOVE, {fake_.size, 1}));
	EXPECT_EQ(-EINVAL, invalidate(PEERBUF_REASON_MOVE, {UINT64_MAX, 2}));
	EXPECT_EQ(-EINVAL, invalidate(static_cast<peerbuf_reason>(7), {0, 0x1000}));
	EXPECT_TRUE(fake_.calls.empty());
	EXPECT_TRUE(session_->deregister(reg));
}

TEST_F(SessionTest, GivenInvalidateBesideTheRangeThenNobodyIsTold)
{
	const uint64_t reg = registered();
	fake_.calls.clear();
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_REVOKE, {0x10000, 0x1000}));
	EXPECT_EQ(0, count("invalidate"));
	EXPECT_TRUE(session_->deregister(reg));
}

TEST_F(SessionTest, GivenADriverThatRefusesWhatWasNegotiatedThenThatIsARefusalAndAFailureIsNone)
{
	Source source;
	source.buffer = buffer_;
	source.length = 0x1000;
	Policy policy;
	policy.tenant = "train";
	fake_.failing["reg"] = -EOPNOTSUPP;
	auto reg = session_->registerMemory(source, {importer_}, READ_WRITE, policy);
	ASSERT_FALSE(reg);
	ASSERT_FALSE(reg.error().refusals.empty());
	const Refusal &last = reg.error().refusals.back();
	EXPECT_EQ(PEERBUF_ERR_UNSUPPORTED_DRIVER, last.code);
	EXPECT_EQ(EOPNOTSUPP, last.err);
	EXPECT_TRUE(has(last.who, "fake")) << last.who;
	EXPECT_TRUE(has(last.why, "reg")) << last.why;
	fake_.failing["reg"] = -EIO;
	reg = session_->registerMemory(source, {importer_}, READ_WRITE, policy);
	ASSERT_FALSE(reg);
	for (const Refusal &refusal : reg.error().refusals)
		EXPECT_NE(EIO, refusal.err) << refusal.why;
	fake_.failing.clear();
}

// rule 21; the exporter is told, once, that it may not
TEST_F(SessionTest, GivenAMoveOfPinnedMemoryThenRefusedThroughInvalidateDone)
{
	const uint64_t reg = registered(pinned());
	fake_.calls.clear();
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, {0x1000, 0x1000}));
	EXPECT_EQ(0, count("invalidate"));
	drain();
	EXPECT_EQ(1, count("invalidate_done"));
	EXPECT_TRUE(std::any_of(lines_.begin(), lines_.end(), [](const std::string &line) {
		return has(line, "Pinned");
	})) << "nobody was warned";
	EXPECT_TRUE(session_->deregister(reg));
}

TEST_F(SessionTest, GivenAMoveOfPinnedMemoryWasRefusedThenTheDeviceStillClosesAtOnce)
{
	const uint64_t reg = registered(pinned());
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, {0x1000, 0x1000}));
	drain();
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_TRUE(session_->free(buffer_));
	EXPECT_TRUE(session_->closeExporter(exporter_));
	EXPECT_EQ(1, count("close")) << "something still holds the device";
}

TEST_F(SessionTest, GivenRevokeThenToldOnceUnwoundAndFreeToClose)
{
	const uint64_t reg = registered(pinned());
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_REVOKE, {0x1000, 0x1000}));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_REVOKE, {0x1000, 0x1000}));
	EXPECT_EQ(1, count("invalidate"));
	EXPECT_EQ(1, count("unmap"));
	EXPECT_EQ(1, count("unpin"));
	EXPECT_EQ(0u, session_->ledger().usage("", "", PEERBUF_LEDGER_PINS).used);
	const auto event = session_->nextEvent();
	ASSERT_TRUE(event);
	EXPECT_EQ(uint32_t{PEERBUF_EVENT_REVOKED}, event->type);
	EXPECT_EQ(reg, event->reg);
	EXPECT_FALSE(session_->nextEvent());
	EXPECT_TRUE(session_->deregister(reg));
	EXPECT_EQ(1, count("dereg"));
	EXPECT_TRUE(session_->free(buffer_));
	EXPECT_TRUE(session_->closeExporter(exporter_));
	EXPECT_EQ(1, count("close"));
}

TEST_F(SessionTest, GivenTheImporterNeverAnswersItsTicketThenDeregisterAnswersForIt)
{
	const uint64_t reg = registered(pinned());
	fake_.failing["invalidate"] = -EINPROGRESS;
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_REVOKE, {0x1000, 0x1000}));
	drain();
	EXPECT_EQ(0, count("invalidate_done"));
	EXPECT_EQ(0, count("unmap")) << "unmapped under an importer that has not let go";
	EXPECT_TRUE(session_->deregister(reg));
	drain();
	EXPECT_EQ(1, count("invalidate_done"));
	EXPECT_EQ(1, count("unmap"));
	EXPECT_EQ(1, count("unpin"));
	EXPECT_TRUE(session_->free(buffer_));
	EXPECT_TRUE(session_->closeExporter(exporter_));
	EXPECT_EQ(1, count("close"));
}

TEST_F(SessionTest, GivenInUseThenBusyWithoutAnyEffect)
{
	const uint64_t reg = registered();
	for (const Result<void> &busy :
	     {session_->free(buffer_), session_->closeExporter(exporter_),
	      session_->closeImporter(importer_)}) {
		ASSERT_FALSE(busy);
		EXPECT_EQ(PEERBUF_ERR_BUSY, busy.error().code);
		EXPECT_EQ(EBUSY, busy.error().sysErrno);
	}
	EXPECT_EQ(0, count("free") + count("close") + count("importer close"));
	EXPECT_TRUE(session_->deregister(reg));
	const Result<void> again = session_->deregister(reg);
	ASSERT_FALSE(again);
	EXPECT_EQ(PEERBUF_ERR_STALE, again.error().code);
	EXPECT_EQ(1, count("dereg"));
}

TEST_F(SessionTest, GivenTheSessionEndsWithEverythingOpenThenEverythingIsGivenBackOnce)
{
	registered(pinned());
	registered();
	session_.reset();
	EXPECT_EQ(2, count("dereg"));
	EXPECT_EQ(count("attach"), count("detach"));
	EXPECT_EQ(count("pin"), count("unpin"));
	EXPECT_EQ(count("map"), count("unmap"));
	EXPECT_EQ(1, count("free"));
	EXPECT_EQ(1, count("close"));
	EXPECT_EQ(1, count("importer close"));
}

} // namespace
} // namespace peerbuf
