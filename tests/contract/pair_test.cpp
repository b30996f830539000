// SPDX-License-Identifier: BSD-3-Clause
#include "pair_test.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

namespace peerbuf::contract
{

void PrintTo(const Pair &pair, std::ostream *out)
{
	*out << pair.exporter.text() << " x " << pair.importer.text() << " ("
	     << (pair.verdict.works() ? peerbuf_flow_name(pair.verdict.flow)
				      : pair.verdict.why.c_str())
	     << ")";
}

Bench &bench()
{
	static Bench bench;
	return bench;
}

namespace
{

std::vector<Pair> pairsThat(const std::function<bool(const Pair &)> &condition)
{
	std::vector<Pair> chosen;
	std::copy_if(bench().pairs.begin(), bench().pairs.end(), std::back_inserter(chosen),
		     condition);
	return chosen;
}

} // namespace

std::vector<Pair> allPairs()
{
	return bench().pairs;
}

std::vector<Pair> workingPairs()
{
	return pairsThat([](const Pair &pair) { return pair.verdict.works() && !pair.narrow; });
}

std::vector<Pair> limitedPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.works() && !pair.narrow &&
		       pair.importer_offer.max_length < pair.exporter_offer.memory_size;
	});
}

std::vector<Pair> windowPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.works() && pair.exporter_offer.window_size != 0;
	});
}

std::vector<Pair> deafPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.errc == PEERBUF_ERR_REVOKE_UNSUPPORTED;
	});
}

std::vector<Pair> hostPairs()
{
	return pairsThat([](const Pair &pair) {
		Request request;
		request.access = usual_access;
		request.host_placement_ok = true;
		return !pair.verdict.works() &&
		       judge(pair.exporter_offer, pair.importer_offer, request).works();
	});
}

std::vector<Pair> revokingPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.works() && !pair.narrow &&
		       pair.exporter_offer.revoke == PEERBUF_REVOKE_MAY;
	});
}

std::vector<Pair> movablePairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.flow == PEERBUF_FLOW_MOVABLE && !pair.narrow;
	});
}

std::vector<Pair> evictingPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.flow == PEERBUF_FLOW_MOVABLE &&
		       pair.exporter_offer.placements ==
			       (PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST);
	});
}

std::vector<Pair> fixedPairs()
{
	return pairsThat([](const Pair &pair) {
		return pair.verdict.works() && pair.verdict.flow != PEERBUF_FLOW_MOVABLE &&
		       !pair.narrow && pair.exporter_offer.stability == PEERBUF_STABILITY_MOVES;
	});
}

std::vector<Pair> chargedPairs()
{
	return pairsThat([](const Pair &pair) { return pair.verdict.charged_pin && !pair.narrow; });
}

std::string pairName(const testing::TestParamInfo<Pair> &info)
{
	return info.param.label();
}

void PairTest::SetUp()
{
	const testing::TestInfo *test = testing::UnitTest::GetInstance()->current_test_info();
	watchdog_ = std::make_unique<test::Watchdog>(std::string(test->test_suite_name()) + "." +
						     test->name());
	world_ = std::make_unique<World>();
	ASSERT_NE(nullptr, world_->ctx());
	exporter_ = world_->addExporter(GetParam().exporter);
	ASSERT_NE(nullptr, exporter_);
	importer_ = world_->addImporter(GetParam().importer);
	ASSERT_NE(nullptr, importer_);
}

void PairTest::TearDown()
{
	peer_.reset();
	if (world_)
		world_->close();
	world_.reset();
	watchdog_.reset();
}

Peer *PairTest::peer()
{
	if (!peer_)
		peer_ = makePeer(importer(), &why_no_peer_);
	return peer_.get();
}

Buffer PairTest::filledBuffer(uint64_t size, uint64_t seed)
{
	const Buffer buffer = world().alloc(exporter(), size);
	if (buffer.id != 0 && canSeeDevice(buffer))
		setDeviceBytes(buffer, 0, test::pattern(0, size, seed));
	return buffer;
}

int PairTest::registerRange(const Buffer &buffer, uint64_t offset, uint64_t length,
			    peerbuf_reg_t *ret_reg, uint32_t access, const peerbuf_policy *policy,
			    uint64_t iova)
{
	return world().registerRange(buffer, offset, length, {importer().id}, access, policy,
				     ret_reg, iova);
}

bool PairTest::canSeeDevice(const Buffer &buffer) const
{
	return (HAS_OP(exporter_->ops, device_read) && HAS_OP(exporter_->ops, device_write)) ||
	       buffer.address != nullptr;
}

std::vector<uint8_t> PairTest::deviceBytes(const Buffer &buffer, uint64_t offset, uint64_t length)
{
	std::vector<uint8_t> bytes(length);
	if (HAS_OP(exporter().ops, device_read)) {
		const int rc = exporter().ops->device_read(exporter().device, buffer.handle, offset,
							   bytes.data(), length);
		EXPECT_EQ(0, rc) << "device_read at " << offset << ": " << test::errnoName(rc);
	} else {
		memcpy(bytes.data(), static_cast<const uint8_t *>(buffer.address) + offset, length);
	}
	return bytes;
}

void PairTest::setDeviceBytes(const Buffer &buffer, uint64_t offset,
			      const std::vector<uint8_t> &bytes)
{
	if (HAS_OP(exporter().ops, device_write)) {
		const int rc = exporter().ops->device_write(exporter().device, buffer.handle,
							    offset, bytes.data(), bytes.size());
		EXPECT_EQ(0, rc) << "device_write at " << offset << ": " << test::errnoName(rc);
	} else {
		memcpy(static_cast<uint8_t *>(buffer.address) + offset, bytes.data(), bytes.size());
	}
}

std::vector<peerbuf_event> PairTest::revoke(const Buffer &buffer)
{
	const int rc = exporter().ops->revoke(exporter().device, buffer.handle);
	EXPECT_EQ(0, rc) << "revoke: " << test::errnoName(rc);
	std::vector<peerbuf_event> events;
	EXPECT_TRUE(world().progressUntil(
		[&] { return countEvents(events, PEERBUF_EVENT_REVOKED) > 0; }, &events))
		<< "no REVOKED event came";
	return events;
}

void PairTest::restore(const Buffer &buffer)
{
	int rc = -EBUSY;
	EXPECT_TRUE(world().progressUntil([&] {
		rc = exporter().ops->restore(exporter().device, buffer.handle);
		return rc != -EBUSY;
	}));
	EXPECT_EQ(0, rc) << test::errnoName(rc);
}

int PairTest::startMove(const Buffer &buffer, const MoveWish &wish)
{
	peerbuf_move_request request = {};
	request.struct_size = sizeof(request);
	request.placement = wish.placement;
	request.flags = wish.flags;
	request.duty_percent = wish.duty_percent;
	request.max_pause_ns = wish.max_pause_ns;
	request.deadline_ns = wish.deadline_ns;
	request.past_deadline = wish.past_deadline;
	return exporter().ops->move(exporter().device, buffer.handle, &request);
}

peerbuf_move_status PairTest::moveStatus(const Buffer &buffer)
{
	peerbuf_move_status status = {};
	status.struct_size = sizeof(status);
	const int rc = exporter().ops->move_status(exporter().device, buffer.handle, &status);
	EXPECT_EQ(0, rc) << "move_status: " << test::errnoName(rc);
	return status;
}

peerbuf_move_status PairTest::endMove(const Buffer &buffer, std::vector<peerbuf_event> *ret_events,
				      const std::function<void()> &meanwhile)
{
	peerbuf_move_status status = {};
	std::vector<peerbuf_event> &events = *ret_events;
	EXPECT_TRUE(world().progressUntil(
		[&] {
			if (meanwhile)
				meanwhile();
			status = moveStatus(buffer);
			return !status.running &&
			       countEvents(events, PEERBUF_EVENT_SUSPENDED) ==
				       countEvents(events, PEERBUF_EVENT_RESUMED) +
					       countEvents(events, PEERBUF_EVENT_REKEYED);
		},
		&events))
		<< "the move did not end: running " << status.running << ", moved " << status.moved
		<< ", " << status.slices << " slices, "
		<< countEvents(events, PEERBUF_EVENT_SUSPENDED) << " SUSPENDED, "
		<< countEvents(events, PEERBUF_EVENT_RESUMED) << " RESUMED";
	return status;
}

int PairTest::peerWrite(const RegionInfo &region, uint64_t offset, const void *data, size_t length)
{
	int rc = -EBUSY;
	EXPECT_TRUE(world().progressUntil([&] {
		rc = peer()->write(region, offset, data, length);
		return rc != -EBUSY;
	})) << "the range stays suspended";
	return rc;
}

int PairTest::peerRead(const RegionInfo &region, uint64_t offset, void *data, size_t length)
{
	int rc = -EBUSY;
	EXPECT_TRUE(world().progressUntil([&] {
		rc = peer()->read(region, offset, data, length);
		return rc != -EBUSY;
	})) << "the range stays suspended";
	return rc;
}

void PairTest::drainImporter()
{
	if (!HAS_OP(importer().ops, step) || !HAS_OP(importer().ops, poll))
		return;
	while (importer().ops->step(importer().device, 64) > 0) {
	}
	peerbuf_completion completion = {};
	completion.struct_size = sizeof(completion);
	while (importer().ops->poll(importer().device, &completion) == 1) {
	}
}

size_t countEvents(const std::vector<peerbuf_event> &events, uint32_t type, peerbuf_reg_t reg)
{
	return static_cast<size_t>(
		std::count_if(events.begin(), events.end(), [&](const peerbuf_event &event) {
			return event.type == type && (reg == 0 || event.reg == reg);
		}));
}

} // namespace peerbuf::contract
