// SPDX-License-Identifier: BSD-3-Clause
#include "core/attachment.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fake_devices.h"
#include "offers.h"

namespace peerbuf
{
namespace
{

using namespace test;
using Calls = std::vector<std::string>;

constexpr Range RANGE = {0x1800, 0x2000}; // [0x1800, 0x3800)
constexpr Range REACH = {0x1000, 0x3000}; // its pages
constexpr uint64_t PIN_BYTES = 0x3000;

class AttachmentTest : public testing::Test
{
public:
	/** Whatever happened, nothing is charged and nobody is on the list. */
	~AttachmentTest() override
	{
		attachment_.reset();
		for (const auto column :
		     {PEERBUF_LEDGER_PINS, PEERBUF_LEDGER_WINDOW, PEERBUF_LEDGER_HOST}) {
			EXPECT_EQ(0u, used(column));
		}
		ReservationLock lock(buffer_->reservation);
		EXPECT_TRUE(buffer_->attachments.empty());
	}

protected:
	AttachmentTest()
	    : log_([](uint32_t, const char *, const char *) {}, nullptr),
	      exporter_(*Exporter::create(fake_.exporterPlugin(), 1, services_, log_, {})),
	      importer_(*Importer::create(fake_.importerPlugin(), 2, services_, log_, {}, nullptr))
	{
		buffer_ = std::make_shared<Buffer>(exporter_, *exporter_->alloc(fake_.size),
						   Buffer::Origin::Alloc);
		fake_.calls.clear();
	}

	uint64_t used(peerbuf_ledger_column column) { return ledger_.usage("", "", column).used; }

	static Plan plan(peerbuf_flow flow, uint32_t handle)
	{
		Plan p;
		p.flow = flow;
		p.handleKind = handle;
		p.variant = PEERBUF_VARIANT_HOST;
		p.placement = PEERBUF_PLACEMENT_DEVICE;
		p.peer2peer = true;
		p.access = READ_WRITE;
		p.usesWindow = true;
		p.windowCharge = PIN_BYTES;
		if (flow == PEERBUF_FLOW_PINNED) {
			p.pin = true;
			p.pinCharge = PIN_BYTES;
		} else {
			p.invalidation =
				PEERBUF_INVALIDATION_REFAULT | PEERBUF_INVALIDATION_REVOCABLE;
		}
		return p;
	}

	Attachment &make(const Plan &p)
	{
		AttachmentSetup setup;
		setup.id = 42;
		setup.reg = 4;
		setup.buffer = buffer_;
		setup.importer = importer_;
		setup.plan = p;
		setup.range = RANGE;
		setup.iova = RANGE.offset;
		setup.granularity = 4096;
		setup.tenant = "train";
		setup.device = "hbm0";
		setup.holder = "registration 4";
		setup.hostPlacementOk = hostPlacementOk_;
		attachment_ = std::make_unique<Attachment>(std::move(setup), ledger_);
		return *attachment_;
	}

	Attachment &built(const Plan &p)
	{
		Attachment &a = make(p);
		const Result<void> done = a.build();
		EXPECT_TRUE(done) << done.error().what;
		return a;
	}

	Calls takeCalls() { return std::exchange(fake_.calls, {}); }

	static peerbuf_invalidate invalidation(peerbuf_reason reason, const Range &range)
	{
		peerbuf_invalidate inv = {};
		inv.struct_size = sizeof(inv);
		inv.reason = reason;
		inv.offset = range.offset;
		inv.length = range.length;
		inv.generation = 1;
		return inv;
	}

	static peerbuf_resume resumption(const Range &range)
	{
		peerbuf_resume res = {};
		res.struct_size = sizeof(res);
		res.offset = range.offset;
		res.length = range.length;
		res.generation = 2;
		return res;
	}

	FakeDevices fake_;
	NoServices services_;
	Log log_;
	Ledger ledger_;
	std::shared_ptr<Exporter> exporter_;
	std::shared_ptr<Importer> importer_;
	std::shared_ptr<Buffer> buffer_;
	std::unique_ptr<Attachment> attachment_;
	bool hostPlacementOk_ = false;
};

/* ---- up and down -------------------------------------------------------------------------- */

TEST_F(AttachmentTest, GivenPinnedThenPinBeforeMapBeforeRegisterAndBackInReverse)
{
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	EXPECT_EQ((Calls{"attach", "pin", "map", "reg"}), takeCalls());
	EXPECT_EQ(PIN_BYTES, used(PEERBUF_LEDGER_PINS));
	EXPECT_EQ(REACH.length, used(PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(PIN_BYTES, a.charged().pins);
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unmap", "unpin", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenMovableBySegmentsThenMappedAtFirstTouchOnly)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	EXPECT_EQ((Calls{"attach", "reg"}), takeCalls());
	EXPECT_EQ(nullptr, fake_.lastReg.mapping);
	EXPECT_EQ(0u, used(PEERBUF_LEDGER_PINS));
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenMovableByCpuThenTheViewIsThereFromTheStart)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_CPU));
	EXPECT_EQ((Calls{"attach", "map", "reg"}), takeCalls());
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unmap", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenDmaBufThenExportedAndReleasedOnce)
{
	Plan p = plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_FD);
	Attachment &a = built(p);
	EXPECT_EQ((Calls{"attach", "export_fd", "pin", "reg"}), takeCalls());
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unpin", "release_fd", "detach"}), takeCalls());
}

/** A dma-buf of the whole buffer, whatever was asked for. */
class SharedExportTest : public AttachmentTest
{
protected:
	SharedExportTest()
	{
		fake_.spoilExport = [this](peerbuf_fd_export &e) {
			e.offset += lead_;
			e.size = fake_.size + lead_;
		};
	}
	std::unique_ptr<Attachment> another(const Range &range)
	{
		Attachment &base = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_FD));
		AttachmentSetup setup = base.setup();
		setup.range = range;
		setup.iova = range.offset;
		auto a = std::make_unique<Attachment>(std::move(setup), ledger_);
		const Result<void> done = a->build();
		EXPECT_TRUE(done) << done.error().what;
		return a;
	}
	static size_t count(const Calls &calls, const std::string &what)
	{
		return static_cast<size_t>(std::count(calls.begin(), calls.end(), what));
	}

	uint64_t lead_ = 0; /* of the dma-buf, before the buffer */
};

TEST_F(SharedExportTest, GivenSeveralAttachmentsThenOneDmaBufEachAtItsOwnOffset)
{
	lead_ = 0x20000;
	const auto a = another({0x1800, 0x2000});
	EXPECT_EQ(lead_ + 0x1800, fake_.lastReg.fd_export->offset);
	const auto b = another({0x800, 0x100}); // before the first
	EXPECT_EQ(lead_ + 0x800, fake_.lastReg.fd_export->offset);
	const auto c = another({fake_.size - 0x1000, 0x1000}); // to the last byte
	EXPECT_EQ(lead_ + fake_.size - 0x1000, fake_.lastReg.fd_export->offset);
	EXPECT_EQ(1u, count(takeCalls(), "export_fd"));
	b->teardown();
	c->teardown();
	EXPECT_EQ(0u, count(takeCalls(), "release_fd"));
	a->teardown();
	EXPECT_EQ((Calls{"dereg", "unpin", "release_fd", "detach"}), takeCalls());
}

TEST_F(SharedExportTest, GivenTheFirstGoesThenItsAttachmentIsDetachedAfterTheLast)
{
	const auto a = another({0x1000, 0x1000});
	const auto b = another({0x3000, 0x1000});
	takeCalls();
	a->teardown();
	EXPECT_EQ((Calls{"dereg", "unpin"}), takeCalls()) << "its export is in use";
	b->teardown();
	EXPECT_EQ((Calls{"dereg", "unpin", "release_fd", "detach", "detach"}), takeCalls());
	const auto c = another({0x1000, 0x1000});
	EXPECT_EQ(1u, count(takeCalls(), "export_fd")) << "a new one";
	c->teardown();
}

TEST_F(SharedExportTest, GivenADmaBufThatDoesNotCoverItThenAnother)
{
	fake_.spoilExport = nullptr; // it ends with the range
	const auto a = another({0x1000, 0x1000});
	const auto inside = another({0x1800, 0x800});
	EXPECT_EQ(1u, count(takeCalls(), "export_fd"));
	const auto longer = another({0x1800, 0x801});
	EXPECT_EQ(1u, count(takeCalls(), "export_fd"));
	longer->teardown();
	inside->teardown();
	a->teardown();
	EXPECT_EQ(2u, count(takeCalls(), "release_fd"));
}

TEST_F(SharedExportTest, GivenARevokeOrAMoveInBetweenThenAnother)
{
	const auto a = another({0x1000, 0x1000});
	{
		ReservationLock lock(buffer_->reservation);
		buffer_->revokes++;
	}
	const auto b = another({0x1000, 0x1000});
	{
		ReservationLock lock(buffer_->reservation);
		buffer_->generation = 7;
	}
	const auto c = another({0x1000, 0x1000});
	EXPECT_EQ(3u, count(takeCalls(), "export_fd"));
	a->teardown();
	b->teardown();
	c->teardown();
	EXPECT_EQ(3u, count(takeCalls(), "release_fd"));
}

TEST_F(SharedExportTest, GivenOneThatFailsAfterTheExportThenTheOthersKeepIt)
{
	const auto a = another({0x1000, 0x1000});
	fake_.failing = {{"reg", -EIO}};
	takeCalls();
	EXPECT_FALSE(make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_FD)).build());
	EXPECT_EQ((Calls{"attach", "pin", "reg", "unpin", "detach"}), takeCalls());
	fake_.failing.clear();
	a->teardown();
	EXPECT_EQ((Calls{"dereg", "unpin", "release_fd", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenAKernelThatSaysWhatItTookThenThePlanSaysSo)
{
	Plan p = plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_FD);
	p.moves = true;
	p.howKnown = PEERBUF_KNOWN_POSSIBLE;
	p.flowUnsaid = PEERBUF_FLOW_PINNED;
	p.flowsPossible =
		PEERBUF_FLOW_BIT(PEERBUF_FLOW_MOVABLE) | PEERBUF_FLOW_BIT(PEERBUF_FLOW_PINNED);
	fake_.kernelFlow = PEERBUF_FLOW_MOVABLE;
	Attachment &said = built(p);
	EXPECT_EQ(PEERBUF_FLOW_MOVABLE, said.plan().flow);
	EXPECT_EQ(PEERBUF_KNOWN_OBSERVED, said.plan().howKnown);
	said.teardown();
	fake_.kernelFlow = 0;
	Attachment &unsaid = built(p);
	EXPECT_EQ(PEERBUF_FLOW_PINNED, unsaid.plan().flow);
	EXPECT_EQ(PEERBUF_KNOWN_POSSIBLE, unsaid.plan().howKnown);
	unsaid.teardown();
	fake_.kernelFlow = PEERBUF_FLOW_STAGED; // what no kernel takes
	takeCalls();
	const Result<void> nonsense = make(p).build();
	ASSERT_FALSE(nonsense);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, nonsense.error().code);
	EXPECT_TRUE(has(nonsense.error().what, "kernel_flow 4")) << nonsense.error().what;
	EXPECT_EQ((Calls{"attach", "export_fd", "reg", "dereg", "release_fd", "detach"}),
		  takeCalls());
}

TEST_F(AttachmentTest, GivenARangeThenTheImporterGetsItExactlyAndTheExporterToo)
{
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	EXPECT_EQ(RANGE.offset, fake_.lastReg.offset);
	EXPECT_EQ(RANGE.length, fake_.lastReg.length);
	EXPECT_EQ(RANGE.offset, fake_.lastReg.iova);
	EXPECT_EQ(42u, fake_.lastReg.attachment);
	EXPECT_EQ(uint32_t{PEERBUF_FLOW_PINNED}, fake_.lastReg.flow);
	EXPECT_EQ(42u, fake_.lastAttach.attachment);
	EXPECT_EQ(RANGE.offset, fake_.lastAttach.offset);
	EXPECT_EQ(RANGE.length, fake_.lastAttach.length);
	EXPECT_EQ(READ_WRITE, fake_.lastAttach.access);
	a.teardown();
}

/* ---- every step fails --------------------------------------------------------------------- */

/** What undoes a step. */
std::string undoOf(const std::string &step)
{
	return step == "attach"	     ? "detach"
	       : step == "export_fd" ? "release_fd"
	       : step == "pin"	     ? "unpin"
	       : step == "map"	     ? "unmap"
				     : "dereg";
}

struct Ladder {
	const char *name;
	peerbuf_flow flow;
	uint32_t handle;
	Calls steps;
};

class Unwind_Attachment : public AttachmentTest, public testing::WithParamInterface<Ladder>
{
};

// RB-15: each step that was done is undone exactly once, whichever step fails.
TEST_P(Unwind_Attachment, GivenAStepFailsThenTheStepsBeforeItAreUndoneOnceEach)
{
	const Ladder &ladder = GetParam();
	for (size_t k = 0; k < ladder.steps.size(); k++) {
		const std::string &bad = ladder.steps[k];
		SCOPED_TRACE(bad);
		fake_.failing = {{bad, -EIO}};
		fake_.said = {{bad, "the device is on fire"}};
		Attachment &a = make(plan(ladder.flow, ladder.handle));
		const Result<void> done = a.build();
		ASSERT_FALSE(done);
		EXPECT_EQ(EIO, done.error().sysErrno);
		EXPECT_TRUE(has(done.error().what, bad)) << done.error().what;
		EXPECT_TRUE(bad == "reg" || has(done.error().what, "on fire")) << done.error().what;

		Calls calls = takeCalls();
		const Calls up(ladder.steps.begin(),
			       ladder.steps.begin() + static_cast<ptrdiff_t>(k) + 1);
		ASSERT_LE(up.size(), calls.size());
		EXPECT_EQ(up,
			  Calls(calls.begin(), calls.begin() + static_cast<ptrdiff_t>(up.size())));
		Calls down(calls.begin() + static_cast<ptrdiff_t>(up.size()), calls.end());
		Calls expected;
		for (size_t n = 0; n < k; n++)
			expected.push_back(undoOf(ladder.steps[n]));
		std::sort(down.begin(), down.end());
		std::sort(expected.begin(), expected.end());
		EXPECT_EQ(expected, down);
		EXPECT_EQ(0u, used(PEERBUF_LEDGER_PINS));
		EXPECT_EQ(0u, used(PEERBUF_LEDGER_WINDOW));
		{
			ReservationLock lock(buffer_->reservation);
			EXPECT_TRUE(buffer_->attachments.empty());
		}

		// and the next one works
		fake_.failing.clear();
		built(plan(ladder.flow, ladder.handle)).teardown();
		takeCalls();
	}
}

INSTANTIATE_TEST_SUITE_P(Ladders, Unwind_Attachment,
			 testing::Values(Ladder{"Pinned",
						PEERBUF_FLOW_PINNED,
						PEERBUF_HANDLE_SEGMENTS,
						{"attach", "pin", "map", "reg"}},
					 Ladder{"PinnedByDmaBuf",
						PEERBUF_FLOW_PINNED,
						PEERBUF_HANDLE_FD,
						{"attach", "export_fd", "pin", "reg"}},
					 Ladder{"MovableByCpu",
						PEERBUF_FLOW_MOVABLE,
						PEERBUF_HANDLE_CPU,
						{"attach", "map", "reg"}},
					 Ladder{"MovableBySegments",
						PEERBUF_FLOW_MOVABLE,
						PEERBUF_HANDLE_SEGMENTS,
						{"attach", "reg"}}),
			 [](const testing::TestParamInfo<Ladder> &param) {
				 return std::string(param.param.name);
			 });

TEST_F(AttachmentTest, GivenQuotaThenNoPluginIsCalled)
{
	ledger_.setLimit({"train", "hbm0"}, PEERBUF_LEDGER_PINS, PIN_BYTES - 1);
	Attachment &a = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	const Result<void> done = a.build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_QUOTA, done.error().code);
	EXPECT_TRUE(takeCalls().empty());
}

TEST_F(AttachmentTest, GivenALaterColumnDoesNotFitThenTheEarlierChargesAreGivenBack)
{
	ledger_.setLimit({"train", "hbm0"}, PEERBUF_LEDGER_WINDOW, REACH.length - 1);
	Attachment &a = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	ASSERT_FALSE(a.build());
	EXPECT_EQ(0u, used(PEERBUF_LEDGER_PINS));
	EXPECT_TRUE(takeCalls().empty());
}

/* ---- answers that are nonsense, or lower ---------------------------------------------------- */

TEST_F(AttachmentTest, GivenTheExporterRaisesPeerToPeerThenRefusedAndDetached)
{
	fake_.raisePeer2peer = 1;
	Plan p = plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS);
	p.peer2peer = false;
	const Result<void> done = make(p).build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, done.error().code);
	EXPECT_TRUE(has(done.error().what, "peer2peer was raised")) << done.error().what;
	EXPECT_EQ((Calls{"attach", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenAMappingThatIsNonsenseThenRefusedAndUnmappedOnce)
{
	fake_.spoilMapping = [](peerbuf_mapping &m) { m.length = 0; };
	const Result<void> done = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS)).build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, done.error().code);
	EXPECT_EQ((Calls{"attach", "pin", "map", "unmap", "unpin", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenADmaBufTooSmallThenRefusedAndReleasedOnce)
{
	fake_.spoilExport = [](peerbuf_fd_export &e) { e.size--; };
	const Result<void> done = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_FD)).build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, done.error().code);
	EXPECT_TRUE(has(done.error().what, "beyond the end")) << done.error().what;
	EXPECT_EQ((Calls{"attach", "export_fd", "release_fd", "detach"}), takeCalls());
}

// RB-07: an attach that quietly moves the memory to the host
TEST_F(AttachmentTest, GivenTheExporterPlacesItInHostMemoryWhenForbiddenThenRefused)
{
	fake_.replyPlacement = PEERBUF_PLACEMENT_HOST;
	const Result<void> done = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS)).build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_NOT_P2P_PLACEMENT, done.error().code);
	EXPECT_EQ((Calls{"attach", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenTheExporterPlacesItInHostMemoryWhenAllowedThenReportedAndNoWindow)
{
	fake_.replyPlacement = PEERBUF_PLACEMENT_HOST;
	hostPlacementOk_ = true;
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, a.plan().placement);
	EXPECT_EQ(0u, used(PEERBUF_LEDGER_WINDOW));
	a.teardown();
}

// rule 54: a revoke that falls between attach and the list
TEST_F(AttachmentTest, GivenRevokedWhileAttachingThenRevokedAndUndone)
{
	fake_.inside["attach"] = [this] {
		ReservationLock lock(buffer_->reservation);
		buffer_->revokes++;
	};
	const Result<void> done = make(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS)).build();
	ASSERT_FALSE(done);
	EXPECT_EQ(PEERBUF_ERR_REVOKED, done.error().code);
	EXPECT_EQ(ENODEV, done.error().sysErrno);
	EXPECT_EQ((Calls{"attach", "detach"}), takeCalls());
}

// rules 13, 15
TEST_F(AttachmentTest, GivenAttachThenUnlockedAndNotOnTheListAndInsideRegBoth)
{
	bool checkedAttach = false;
	bool checkedReg = false;
	fake_.inside["attach"] = [&] {
		EXPECT_FALSE(buffer_->reservation.heldByMe());
		ReservationLock lock(buffer_->reservation);
		EXPECT_TRUE(buffer_->attachments.empty());
		checkedAttach = true;
	};
	fake_.inside["reg"] = [&]() NO_THREAD_SAFETY_ANALYSIS {
		EXPECT_TRUE(buffer_->reservation.heldByMe());
		EXPECT_EQ(1u, buffer_->attachments.size());
		checkedReg = true;
	};
	for (const char *locked : {"pin", "map", "unmap", "unpin"})
		fake_.inside[locked] = [&] { EXPECT_TRUE(buffer_->reservation.heldByMe()); };
	for (const char *unlocked : {"dereg", "detach"})
		fake_.inside[unlocked] = [&] { EXPECT_FALSE(buffer_->reservation.heldByMe()); };
	built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS)).teardown();
	EXPECT_TRUE(checkedAttach);
	EXPECT_TRUE(checkedReg);
}

/* ---- Invalidate{Revoke} --------------------------------------------------------------------- */

TEST_F(AttachmentTest, GivenRevokeThenNothingIsUnmappedBeforeTheImporterLetGo)
{
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	takeCalls();
	{
		ReservationLock lock(a.reservation());
		const auto say = a.prepare(invalidation(PEERBUF_REASON_REVOKE, {0x2000, 0x1000}));
		ASSERT_TRUE(say);
		EXPECT_EQ(uint32_t{PEERBUF_REASON_REVOKE}, say->reason);
		EXPECT_EQ(42u, say->attachment);
		EXPECT_EQ(REACH, (Range{say->offset, say->length}))
			<< "final for the attachment, whatever part was taken back";
		EXPECT_TRUE(a.revoked());
		EXPECT_TRUE(takeCalls().empty());
		EXPECT_EQ(PIN_BYTES, used(PEERBUF_LEDGER_PINS)) << "still held, still paid for";
		a.letGo(PEERBUF_REASON_REVOKE, REACH, a.stops());
		EXPECT_EQ((Calls{"unmap", "unpin"}), takeCalls());
	}
	EXPECT_EQ(0u, used(PEERBUF_LEDGER_PINS));
	EXPECT_EQ(0u, used(PEERBUF_LEDGER_WINDOW));
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenRevokeTwiceThenTheSecondHasNothingToSay)
{
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	{
		ReservationLock lock(a.reservation());
		EXPECT_TRUE(a.prepare(invalidation(PEERBUF_REASON_REVOKE, REACH)));
		EXPECT_FALSE(a.prepare(invalidation(PEERBUF_REASON_REVOKE, REACH)));
		a.letGo(PEERBUF_REASON_REVOKE, REACH, a.stops());
		a.letGo(PEERBUF_REASON_REVOKE, REACH, a.stops());
	}
	a.teardown();
	const Calls calls = takeCalls();
	EXPECT_EQ(1, std::count(calls.begin(), calls.end(), "unmap"));
	EXPECT_EQ(1, std::count(calls.begin(), calls.end(), "unpin"));
}

TEST_F(AttachmentTest, GivenRevokedThenNoMappingMore)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	takeCalls();
	{
		ReservationLock lock(a.reservation());
		EXPECT_TRUE(a.prepare(invalidation(PEERBUF_REASON_REVOKE, REACH)));
		const auto mapped = a.map(RANGE);
		ASSERT_FALSE(mapped);
		EXPECT_EQ(PEERBUF_ERR_REVOKED, mapped.error().code);
		EXPECT_EQ(ENODEV, mapped.error().sysErrno);
		a.letGo(PEERBUF_REASON_REVOKE, REACH, a.stops());
		a.resume(resumption(REACH));
	}
	EXPECT_TRUE(takeCalls().empty()) << "a revoked importer is not resumed";
	a.teardown();
}

TEST_F(AttachmentTest, GivenTheImporterCouldNotStopThenHeldAndChargedUntilDeregistered)
{
	Attachment &a = built(plan(PEERBUF_FLOW_PINNED, PEERBUF_HANDLE_SEGMENTS));
	takeCalls();
	{
		ReservationLock lock(a.reservation());
		EXPECT_TRUE(a.prepare(invalidation(PEERBUF_REASON_REVOKE, REACH)));
		a.quarantine();
		a.letGo(PEERBUF_REASON_REVOKE, REACH, a.stops());
	}
	EXPECT_TRUE(takeCalls().empty());
	EXPECT_EQ(PIN_BYTES, used(PEERBUF_LEDGER_PINS));
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unmap", "unpin", "detach"}), takeCalls());
}

/* ---- Invalidate{Move} ----------------------------------------------------------------------- */

TEST_F(AttachmentTest, GivenMoveThenSuspendedUnmappedResumedAndMappedAnew)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	{
		ReservationLock lock(a.reservation());
		ASSERT_TRUE(a.map(RANGE)); // first touch
		takeCalls();
		const auto say = a.prepare(invalidation(PEERBUF_REASON_MOVE, REACH));
		ASSERT_TRUE(say);
		EXPECT_EQ(uint32_t{PEERBUF_REASON_MOVE}, say->reason);
		EXPECT_EQ(REACH, (Range{say->offset, say->length}));
		EXPECT_FALSE(a.revoked());
		const auto during = a.map(RANGE);
		ASSERT_FALSE(during);
		EXPECT_EQ(EAGAIN, during.error().sysErrno);
		EXPECT_TRUE(takeCalls().empty()) << "the exporter is not even asked";
		a.letGo(PEERBUF_REASON_MOVE, REACH, a.stops());
		EXPECT_EQ(Calls{"unmap"}, takeCalls());
		a.resume(resumption(REACH));
		EXPECT_EQ(Calls{"resume"}, takeCalls());
		EXPECT_EQ(2u, fake_.lastResume.generation);
		EXPECT_TRUE(a.map(RANGE));
		EXPECT_EQ(Calls{"map"}, takeCalls());
	}
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unmap", "detach"}), takeCalls());
}

TEST_F(AttachmentTest, GivenMovesOfPartsThenAMappingGoesWhenAllOfItWasInvalidated)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	{
		ReservationLock lock(a.reservation());
		ASSERT_TRUE(a.map(RANGE)); // three pages
		takeCalls();
		const Range parts[] = {{0x1000, 0x1000}, {0x3000, 0x1000}, {0x2000, 0x1000}};
		for (const Range &part : parts) {
			EXPECT_TRUE(fake_.calls.empty()) << hex(part.offset);
			EXPECT_TRUE(a.prepare(invalidation(PEERBUF_REASON_MOVE, part)));
			a.letGo(PEERBUF_REASON_MOVE, part, a.stops());
		}
		EXPECT_EQ(Calls{"unmap"}, takeCalls());
		for (const Range &part : parts)
			a.resume(resumption(part));
	}
	a.teardown();
	const Calls calls = takeCalls();
	EXPECT_EQ(0, std::count(calls.begin(), calls.end(), "unmap"));
}

TEST_F(AttachmentTest, GivenMoveByCpuThenTheViewStays)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_CPU));
	takeCalls();
	{
		ReservationLock lock(a.reservation());
		EXPECT_TRUE(a.prepare(invalidation(PEERBUF_REASON_MOVE, REACH)));
		a.letGo(PEERBUF_REASON_MOVE, REACH, a.stops());
		EXPECT_TRUE(takeCalls().empty());
		a.resume(resumption(REACH));
		EXPECT_EQ(Calls{"resume"}, takeCalls());
	}
	a.teardown();
	EXPECT_EQ((Calls{"dereg", "unmap", "detach"}), takeCalls());
}

/* ---- the upward call ------------------------------------------------------------------------ */

TEST_F(AttachmentTest, GivenMapOutsideTheAttachmentThenGeometryAndTheExporterIsNotAsked)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	takeCalls();
	{
		ReservationLock lock(a.reservation());
		const Range outside[] = {{0, 0x1000}, {0xfff, 2},  {0x3fff, 2},
					 {0x4000, 1}, {0x2000, 0}, {UINT64_MAX, 2}};
		for (const Range &range : outside) {
			const auto mapped = a.map(range);
			ASSERT_FALSE(mapped) << hex(range.offset);
			EXPECT_EQ(PEERBUF_ERR_BAD_GEOMETRY, mapped.error().code);
			EXPECT_EQ(EINVAL, mapped.error().sysErrno);
		}
		EXPECT_TRUE(takeCalls().empty());
		EXPECT_TRUE(a.map(REACH)) << "the whole of its pages is inside";
	}
	a.teardown();
}

TEST_F(AttachmentTest, GivenManyMappingsThenEachUnmappedOnceAndAsItWasGiven)
{
	Attachment &a = built(plan(PEERBUF_FLOW_MOVABLE, PEERBUF_HANDLE_SEGMENTS));
	std::vector<uint64_t> tokens;
	{
		ReservationLock lock(a.reservation());
		for (const uint64_t offset : {0x1000u, 0x2000u, 0x3000u, 0x2000u}) {
			const auto mapped = a.map({offset, 0x1000});
			ASSERT_TRUE(mapped);
			tokens.push_back(mapped->token);
		}
	}
	a.teardown();
	std::vector<uint64_t> unmapped;
	for (const peerbuf_mapping &m : fake_.unmapped)
		unmapped.push_back(m.token);
	std::sort(tokens.begin(), tokens.end());
	std::sort(unmapped.begin(), unmapped.end());
	EXPECT_EQ(tokens, unmapped);
}

} // namespace
} // namespace peerbuf
