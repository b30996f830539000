// SPDX-License-Identifier: BSD-3-Clause
#include "demo_mover.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <rdma/fi_domain.h>

#include "words.h"

namespace peerbuf::tools::demo
{

namespace
{

/* Each look is a question to the device, which has moves to make. */
constexpr std::chrono::microseconds lookEvery(200);
/* Moves begin at most so often: the traffic is to be seen, not only the moves. */
constexpr std::chrono::milliseconds startEvery(20);
/* One move in so many leaves for the host tier, one is of the large part. */
constexpr uint64_t evictEvery = 8;
constexpr uint64_t largeEvery = 256;

} // namespace

RegionMover::RegionMover(const Context &ctx, const ExporterSide &device, std::vector<Part> parts,
			 const Options &options)
    : ctx_(ctx),
      device_(device),
      parts_(std::move(parts)),
      options_(options),
      random_(static_cast<std::minstd_rand::result_type>(options.seed))
{
	ask(&before_);
}

void RegionMover::fail(const std::string &what, int rc)
{
	deviceGone_ = deviceGone_ || rc == -ENODEV;
	if (problem_.empty())
		problem_ = what + ": " + errnoWord(rc);
}

bool RegionMover::ask(peerbuf_exporter_stats *ret_stats)
{
	*ret_stats = sized<peerbuf_exporter_stats>();
	const int rc = device_.ops->stats(device_.device, ret_stats);
	if (rc)
		fail("the device does not say how much it moved", rc);
	return rc == 0;
}

void RegionMover::step()
{
	if (!problem_.empty())
		return;
	const auto now = Clock::now();
	if (stage_ == Stage::Idle) {
		if (!resting_ && now >= nextStart_) {
			nextStart_ = now + startEvery;
			startNext();
		}
		return;
	}
	if (now < nextLook_)
		return;
	nextLook_ = now + lookEvery;
	if (stage_ == Stage::Refaulting && !touched_) {
		touched_ = touch();
		return;
	}
	auto status = sized<peerbuf_move_status>();
	const int rc = device_.ops->move_status(device_.device, parts_[at_].handle, &status);
	if (rc)
		fail("the device does not say how the move goes", rc);
	else if (!status.running)
		ended(status);
}

void RegionMover::startNext()
{
	turn_++;
	const size_t large = parts_.size() - 1;
	if (options_.nic && turn_ % evictEvery == 1)
		start(0, PEERBUF_PLACEMENT_HOST);
	else if (large == 0 || turn_ % largeEvery == largeEvery / 2)
		start(large, 0);
	else
		start(random_() % large, 0);
}

void RegionMover::move(size_t part)
{
	start(part, 0);
}

void RegionMover::start(size_t part, uint32_t placement)
{
	auto request = sized<peerbuf_move_request>();
	request.placement = placement;
	request.flags = options_.notify ? 0 : PEERBUF_MOVE_NO_NOTIFY;
	const int rc = device_.ops->move(device_.device, parts_[part].handle, &request);
	if (rc) {
		fail("a move of part " + std::to_string(part) + " was refused", rc);
		return;
	}
	at_ = part;
	stage_ = placement == PEERBUF_PLACEMENT_HOST ? Stage::Evicting : Stage::Moving;
	nextLook_ = Clock::now() + lookEvery;
}

/** The NIC reads some of what is in the host tier. @return whether it got it. */
bool RegionMover::touch()
{
	constexpr uint64_t length = 4096;
	std::vector<uint8_t> data(length);
	auto t = sized<peerbuf_transfer>();
	t.op = PEERBUF_TRANSFER_READ;
	t.key64 = options_.nicRegion.key64;
	t.remote_addr = options_.nicRegion.remote_base + random_() % Block::most / length * length;
	t.data = data.data();
	t.length = length;
	const int rc = options_.nic->ops->transfer(options_.nic->device, &t);
	if (rc && rc != -EBUSY) /* busy: it waits for the memory */
		fail("the NIC could not read what had been evicted", rc);
	return rc == 0;
}

void RegionMover::ended(const peerbuf_move_status &status)
{
	moves_.effectiveMaxPauseNs =
		std::max(moves_.effectiveMaxPauseNs, status.effective_max_pause_ns);
	const Stage was = std::exchange(stage_, Stage::Idle);
	if (status.result) {
		if (status.result == -ENODEV)
			fail("a move ended", status.result);
		return; /* rolled back; the device counts it */
	}
	seen_++;
	compareKeys();
	const uint32_t wanted =
		was == Stage::Evicting ? PEERBUF_PLACEMENT_HOST : PEERBUF_PLACEMENT_DEVICE;
	if (status.placement != wanted)
		problem_ = "a move to " + placementWords(wanted) + " memory ended in " +
			   placementWords(status.placement);
	if (was == Stage::Evicting && problem_.empty()) {
		stage_ = Stage::Refaulting;
		touched_ = false;
	}
}

void RegionMover::compareKeys()
{
	const Part &part = parts_[at_];
	auto now = sized<peerbuf_reg_importer_info>();
	if (peerbuf_query_reg_importer(ctx_.get(), part.reg, 0, &now)) {
		problem_ = std::string("asking for the key after a move: ") + lastError().what;
		return;
	}
	const auto &told = part.told;
	/* also what libfabric itself says, where a key is a number */
	const bool same =
		now.key64 == told.key64 && now.remote_base == told.remote_base &&
		now.raw_key_size == told.raw_key_size &&
		std::memcmp(now.raw_key, told.raw_key, told.raw_key_size) == 0 &&
		(told.raw_key_size || fi_mr_key(static_cast<fid_mr *>(now.native)) == told.key64);
	moves_.keyChanges += !same;
	if (now.flow != told.flow && problem_.empty())
		problem_ = std::string("the flow of a region became ") +
			   peerbuf_flow_name(now.flow) + " while its key was out";
}

Moves RegionMover::counted()
{
	peerbuf_exporter_stats now = {};
	if (ask(&now)) {
		moves_.moves = now.moves - before_.moves;
		moves_.aborted = now.aborted - before_.aborted;
		moves_.slices = now.slices - before_.slices;
		moves_.evictions = now.evictions - before_.evictions;
		moves_.refaults = now.refaults - before_.refaults;
	}
	if (!busy() && problem_.empty() && moves_.moves != seen_)
		problem_ = "the device counts " + std::to_string(moves_.moves) +
			   " moves, the target saw " + std::to_string(seen_);
	return moves_;
}

} // namespace peerbuf::tools::demo
