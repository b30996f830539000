// SPDX-License-Identifier: BSD-3-Clause
#include "core/host.h"

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/sys.h"
#include "offers.h"

namespace peerbuf
{
namespace
{

using test::has;

/** Answers with numbers of its own, and remembers what it was asked. */
class Recorder final : public HostServices
{
public:
	int hostInvalidate(uint64_t from, uint64_t handle,
			   const peerbuf_invalidate &inv) noexcept override
	{
		asked = "invalidate";
		device = from;
		object = handle;
		range = {inv.offset, inv.length};
		return -EINPROGRESS;
	}
	int hostResume(uint64_t from, uint64_t handle, const peerbuf_resume &) noexcept override
	{
		asked = "resume";
		device = from;
		object = handle;
		return 0;
	}
	int hostMap(uint64_t attachment, const Range &wanted, peerbuf_mapping *) noexcept override
	{
		asked = "map";
		object = attachment;
		range = wanted;
		return -EAGAIN;
	}
	void hostTicketDone(uint64_t ticket) noexcept override
	{
		asked = "ticket";
		object = ticket;
	}
	bool hostReservationHeld(bool exporterSide, uint64_t, uint64_t what) noexcept override
	{
		asked = exporterSide ? "held by exporter" : "held by importer";
		object = what;
		return true;
	}

	std::string asked;
	uint64_t device = 0;
	uint64_t object = 0;
	Range range;
};

class HostTest : public testing::Test
{
protected:
	HostTest()
	    : log_([this](uint32_t, const char *category,
			  const char *line) { lines_.push_back(text(category, ": ", line)); },
		   "*:debug"),
	      exporter_(services_, log_, true, 3, "exporter.fake"),
	      importer_(services_, log_, false, 4, "importer.fake")
	{
		Host::clearSaid();
	}

	const peerbuf_host *exporter() const { return exporter_.table(); }
	const peerbuf_host *importer() const { return importer_.table(); }

	std::vector<std::string> lines_;
	Recorder services_;
	Log log_;
	Host exporter_;
	Host importer_;
};

TEST_F(HostTest, GivenCallsThenPassedOnWithTheDevice)
{
	peerbuf_invalidate inv = {};
	inv.struct_size = sizeof(inv);
	inv.offset = 0x1000;
	inv.length = 0x2000;
	EXPECT_EQ(-EINPROGRESS, exporter()->invalidate(exporter(), 9, &inv));
	EXPECT_EQ("invalidate", services_.asked);
	EXPECT_EQ(3u, services_.device);
	EXPECT_EQ(9u, services_.object);
	EXPECT_EQ((Range{0x1000, 0x2000}), services_.range);

	peerbuf_resume res = {};
	res.struct_size = sizeof(res);
	EXPECT_EQ(0, exporter()->resume(exporter(), 9, &res));
	EXPECT_EQ("resume", services_.asked);

	peerbuf_mapping mapping = {};
	mapping.struct_size = sizeof(mapping);
	EXPECT_EQ(-EAGAIN, importer()->map(importer(), 42, 0x10, 0x20, &mapping));
	EXPECT_EQ("map", services_.asked);
	EXPECT_EQ((Range{0x10, 0x20}), services_.range);

	importer()->ticket_done(importer(), 11);
	EXPECT_EQ("ticket", services_.asked);
	EXPECT_EQ(11u, services_.object);
	EXPECT_EQ(1, exporter()->reservation_held(exporter(), 9));
	EXPECT_EQ("held by exporter", services_.asked);
	EXPECT_EQ(1, importer()->reservation_held(importer(), 42));
	EXPECT_EQ("held by importer", services_.asked);
}

TEST_F(HostTest, GivenNullShortOrTheWrongSideThenInvalidAndNotPassedOn)
{
	peerbuf_invalidate inv = {};
	inv.struct_size = sizeof(inv) - 1;
	peerbuf_resume res = {};
	res.struct_size = sizeof(res) - 1;
	peerbuf_mapping mapping = {};
	mapping.struct_size = sizeof(mapping) - 1;
	EXPECT_EQ(-EINVAL, exporter()->invalidate(exporter(), 9, nullptr));
	EXPECT_EQ(-EINVAL, exporter()->invalidate(exporter(), 9, &inv));
	EXPECT_EQ(-EINVAL, exporter()->resume(exporter(), 9, nullptr));
	EXPECT_EQ(-EINVAL, exporter()->resume(exporter(), 9, &res));
	EXPECT_EQ(-EINVAL, importer()->map(importer(), 42, 0, 1, nullptr));
	EXPECT_EQ(-EINVAL, importer()->map(importer(), 42, 0, 1, &mapping));
	inv.struct_size = sizeof(inv);
	res.struct_size = sizeof(res);
	mapping.struct_size = sizeof(mapping);
	EXPECT_EQ(-EINVAL, importer()->invalidate(importer(), 9, &inv));
	EXPECT_EQ(-EINVAL, importer()->resume(importer(), 9, &res));
	EXPECT_EQ(-EINVAL, exporter()->map(exporter(), 42, 0, 1, &mapping));
	EXPECT_EQ("", services_.asked);
}

TEST_F(HostTest, GivenALogLineThenUnderTheCategoryOfTheDevice)
{
	exporter()->log(exporter(), PEERBUF_LOG_DEBUG, "hello");
	importer()->log(importer(), PEERBUF_LOG_WARN, nullptr);
	importer()->log(importer(), PEERBUF_LOG_TRACE, "not wanted");
	EXPECT_EQ((std::vector<std::string>{"exporter.fake: hello", "importer.fake: "}), lines_);
}

TEST_F(HostTest, GivenNothingWasSaidThenSlotAndErrno)
{
	const Error e = exporter_.slotError("exporter fake", "pin", -ENOMEM);
	EXPECT_EQ(PEERBUF_ERR_NO_MEMORY, e.code);
	EXPECT_EQ(ENOMEM, e.sysErrno);
	EXPECT_EQ("exporter fake: pin: ENOMEM (12)", e.what);
}

TEST_F(HostTest, GivenTheSlotSaidWhyThenItsWordsAndClassOnce)
{
	exporter()->fail(exporter(), PEERBUF_ERR_WINDOW_EXHAUSTED, "need 5, free 3");
	const Error e = exporter_.slotError("exporter fake", "pin", -ENOMEM);
	EXPECT_EQ(PEERBUF_ERR_WINDOW_EXHAUSTED, e.code);
	EXPECT_EQ(ENOMEM, e.sysErrno);
	EXPECT_TRUE(has(e.what, "pin")) << e.what;
	EXPECT_TRUE(has(e.what, "ENOMEM (12)")) << e.what;
	EXPECT_TRUE(has(e.what, "need 5, free 3")) << e.what;
	const Error next = exporter_.slotError("exporter fake", "map", -EIO);
	EXPECT_FALSE(has(next.what, "need 5")) << "words of an older failure: " << next.what;
	EXPECT_EQ(PEERBUF_ERR_SYSTEM, next.code);
}

TEST_F(HostTest, GivenOnlyWordsOrAnUnknownClassThenTheErrnoChoosesTheClass)
{
	exporter()->fail(exporter(), PEERBUF_OK, "busy elsewhere");
	EXPECT_EQ(PEERBUF_ERR_BUSY, exporter_.slotError("e", "attach", -EBUSY).code);
	exporter()->fail(exporter(), 9999, nullptr);
	EXPECT_EQ(PEERBUF_ERR_BUSY, exporter_.slotError("e", "attach", -EBUSY).code);
}

TEST_F(HostTest, GivenAPositiveAnswerThenThePluginsFault)
{
	const Error e = exporter_.slotError("exporter fake", "pin", 7);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, e.code);
	EXPECT_EQ(EINVAL, e.sysErrno);
	EXPECT_TRUE(has(e.what, "pin returned 7")) << e.what;
}

TEST_F(HostTest, GivenClearedThenWhatWasSaidBeforeIsForgotten)
{
	exporter()->fail(exporter(), PEERBUF_ERR_QUOTA, "old");
	Host::clearSaid();
	const Error e = exporter_.slotError("e", "pin", -EIO);
	EXPECT_EQ(PEERBUF_ERR_SYSTEM, e.code);
	EXPECT_FALSE(has(e.what, "old"));
}

TEST_F(HostTest, GivenAnotherThreadFailsThenItsWordsStayThere)
{
	std::thread([this] {
		exporter()->fail(exporter(), PEERBUF_ERR_QUOTA, "elsewhere");
	}).join();
	EXPECT_FALSE(has(exporter_.slotError("e", "pin", -EIO).what, "elsewhere"));
}

TEST_F(HostTest, GivenTheClockThenTheOneOfTheSeam)
{
	sys().nowNs = [] { return uint64_t{123}; };
	EXPECT_EQ(123u, exporter()->now_ns(exporter()));
	sys() = realSys();
}

} // namespace
} // namespace peerbuf
