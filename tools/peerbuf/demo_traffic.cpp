// SPDX-License-Identifier: BSD-3-Clause
#include "demo_traffic.h"

#include <array>
#include <cerrno>

#include <poll.h>

#include <peerbuf/fabric.h>

#include "exit_code.h"
#include "fabric_side.h"
#include "words.h"

namespace peerbuf::tools::demo
{

namespace
{

using Clock = std::chrono::steady_clock;

/* A move that does not end, or does not let the CPU in. */
constexpr std::chrono::seconds movePatience(10);

} // namespace

/* ---- the region ---------------------------------------------------------------------------- */

bool TrafficTarget::openRegion()
{
	RmaOptions options;
	options.provider = start_.provider;
	std::string why;
	endpoint_ = RmaEndpoint::create(options, why);
	if (!endpoint_) {
		failure_ = {exitMissing, why};
		return false;
	}
	auto objects = sized<peerbuf_fabric_objects>();
	objects.flags = PEERBUF_FABRIC_BRACKETED; /* see serve() */
	if (peersMayUseCma(endpoint_->provider()) && !start_.cma)
		objects.flags |= PEERBUF_FABRIC_PEERS_WITHOUT_CMA; /* our peer is started so */
	objects.domain = endpoint_->domain();
	objects.info = endpoint_->info();
	objects.ep = endpoint_->ep();
	if (importer_.open(ctx_, "fabric", {}, &objects)) {
		broken("opening the fabric importer");
		return false;
	}
	if (peerbuf_importer_gate(ctx_.get(), importer_.id(), &gate_))
		gate_ = nullptr;
	const void *table = nullptr;
	if (peerbuf_importer_open_ops(ctx_.get(), importer_.id(), PEERBUF_IMPORTER_TEST_OPS, &table,
				      &importerDevice_) == 0)
		importerOps_ = static_cast<const peerbuf_importer_test_ops *>(table);

	auto policy = sized<peerbuf_policy>();
	policy.pins = PEERBUF_PINS_WITHIN_LIMIT;
	policy.host_placement_ok = 1; /* or nothing of it could be evicted */
	lengths_ = regionParts(start_.size);
	for (const uint64_t length : lengths_) {
		parts_.emplace_back();
		if (!registerMemory(device_, importer_.id(), length, &parts_.back(), &policy)) {
			broken("registering " + bytesWords(length) + " for traffic");
			return false;
		}
		count(parts_.back().region.flow);
	}
	return true;
}

/** The first part with a NIC too, which needs it in the device's memory whenever it touches it. */
bool TrafficTarget::shareWithNic()
{
	auto source = sized<peerbuf_source>();
	source.fd = -1;
	source.buffer = parts_[0].buffer.id();
	source.length = lengths_[0];
	if (nicReg_.make(ctx_, source, {refault_.handle.id()}, readWrite) == 0 &&
	    peerbuf_query_reg_importer(ctx_.get(), nicReg_.id(), 0, &nicRegion_) == 0)
		return true;
	broken("registering the first buffer with the NIC as well");
	return false;
}

void TrafficTarget::makeMover()
{
	RegionMover::Options options;
	options.seed = start_.seed;
	options.notify = start_.notify;
	if (start_.notify) {
		if (!shareWithNic())
			return;
		options.nic = &refault_;
		options.nicRegion = nicRegion_;
	}
	std::vector<RegionMover::Part> parts;
	for (const Registered &part : parts_)
		parts.push_back({part.info.handle, part.reg.id(), part.region});
	mover_ = std::make_unique<RegionMover>(ctx_, device_, std::move(parts), options);
	/* without notice the first move is one behind a write in flight: before it everything is
	 * still where importers believe it to be, so the damage is certain */
	mover_->rest(!start_.notify);
}

void TrafficTarget::sendRegion()
{
	Region region;
	region.address = endpoint_->name();
	for (const Registered &part : parts_) {
		const peerbuf_reg_importer_info &info = part.region;
		region.parts.push_back({info.remote_base,
					part.all.length,
					info.key64,
					{info.raw_key, info.raw_key + info.raw_key_size}});
	}
	peer_.send(region.json());
}

/** First the users of the memory, then the memory, then the importer, then what it borrows. */
void TrafficTarget::closeRegion()
{
	mover_.reset();
	bool bad = nicReg_.reset() != 0;
	for (Registered &part : parts_) {
		bad = part.reg.reset() != 0 || bad;
		bad = part.buffer.reset() != 0 || bad;
	}
	parts_.clear();
	bad = importer_.reset() != 0 || bad;
	if (bad)
		broken("giving the region back");
	gate_ = nullptr;
	importerOps_ = nullptr;
	endpoint_.reset();
}

/* ---- looking at blocks --------------------------------------------------------------------- */

/** @return "" or the first byte of the block that the device itself does not see. */
std::string TrafficTarget::deviceHas(const Block &block)
{
	const PartAt at = partAt(lengths_, block.offset);
	seen_.resize(Block::most); /* once: it is not cleared again */
	const int rc = device_.ops->device_read(device_.device, parts_[at.index].info.handle,
						at.offset, seen_.data(), block.length);
	if (rc == -ENODEV) {
		result_.trouble = "the device is gone: it no longer answers reads";
		return result_.trouble;
	}
	if (rc)
		return "the device's own read failed: " + errnoWord(rc);
	result_.deviceChecked++;
	const auto wrong = firstWrong(start_.seed, block.number, 0, seen_.data(), block.length);
	return wrong ? "byte " + std::to_string(*wrong) + " is not in the device's memory" : "";
}

/** The same by the addresses that this process has. */
std::string TrafficTarget::windowHas(const Block &block)
{
	const PartAt at = partAt(lengths_, block.offset);
	const Registered &part = parts_[at.index];
	if (peerbuf_cpu_begin(ctx_.get(), part.buffer.id(),
			      std::chrono::nanoseconds(movePatience).count())) {
		if (lastError().errc == PEERBUF_ERR_TIMEOUT)
			fault(std::string("looking at the region's memory: ") + lastError().what);
		else
			broken("looking at the region's memory");
		return "";
	}
	const auto *memory = static_cast<const uint8_t *>(part.info.address) + at.offset;
	const auto wrong = firstWrong(start_.seed, block.number, 0, memory, block.length);
	peerbuf_cpu_end(ctx_.get(), part.buffer.id());
	return wrong ? "byte " + std::to_string(*wrong) + " is not in the target's window" : "";
}

void TrafficTarget::answerCheck(const Check &check)
{
	Checked answer;
	answer.number = check.block.number;
	answer.wrong = deviceHas(check.block);
	if (answer.wrong.empty() && going())
		answer.wrong = windowHas(check.block);
	progress_.blocks++;
	progress_.bytes += check.block.length;
	progress_.bad += !answer.wrong.empty();
	if (going())
		peer_.send(answer.json());
	if (!mover_ && result_.fixed.moveErrno.empty() && going())
		tryToMove();
}

/** Memory that cannot follow has to stay: the device must say so, while the peer is at work. */
void TrafficTarget::tryToMove()
{
	Fixed &fixed = result_.fixed;
	auto request = sized<peerbuf_move_request>();
	const int rc = device_.ops->move(device_.device, parts_[0].info.handle, &request);
	fixed.flow = peerbuf_flow_name(parts_[0].region.flow);
	fixed.moveErrno = errnoWord(rc);
	for (const peerbuf_refusal &refusal : refusalsOf(ctx_, parts_[0].reg.id()))
		if (refusal.flow == PEERBUF_FLOW_MOVABLE && fixed.why.empty())
			fixed.why = refusal.why;
	if (rc != -EBUSY)
		fault("a move of memory that is " + fixed.flow + " answered " + fixed.moveErrno +
		      ", not EBUSY");
}

/* ---- serving ------------------------------------------------------------------------------- */

/** @return whether there was a message. */
bool TrafficTarget::answerPeer()
{
	const auto message = peer_.receive();
	if (!message)
		return false;
	const std::string type = messageType(*message);
	std::string problem = "message '" + type + "', which is none of a peer's";
	if (type == "done") {
		peer_.close("done");
		return true;
	}
	std::optional<Check> check;
	const bool mayHold = mover_ && !start_.notify;
	if (type == "hold" && mayHold && hold_ == Hold::None) {
		hold_ = Hold::Asked;
		mover_->rest(true);
		return true;
	}
	if (type == "check" || (type == "begun" && hold_ == Hold::Held))
		check = Check::from(*message, lengths_, &problem);
	if (!check) {
		peer_.refuse(problem);
	} else if (type == "begun") {
		held_ = partAt(lengths_, check->block.offset).index;
		mover_->move(held_);
		hold_ = Hold::Behind;
	} else {
		answerCheck(*check);
	}
	return true;
}

/** From here the peer's writes wait in the network, until a move has taken their place away. */
void TrafficTarget::seeToHold()
{
	if (mover_->busy())
		return;
	if (hold_ == Hold::Asked) {
		hold_ = Hold::Held;
		peer_.send(word("held"));
	} else if (hold_ == Hold::Behind) {
		hold_ = Hold::None;
		mover_->rest(false);
	}
}

/** The gate is closed for a slice: what opens it is progress, and the device needs a CPU. */
void TrafficTarget::waitForGate()
{
	pollfd p = {ctx_.eventFd(), POLLIN, 0};
	if (readEvents(0, &revoked_) == 0 && ::poll(&p, 1, 1) == 0)
		say();
}

void TrafficTarget::takePauses()
{
	std::array<peerbuf_pause, 256> some = {};
	int n = 0;
	while (importerOps_ && importerOps_->pauses &&
	       (n = importerOps_->pauses(importerDevice_, some.data(), some.size())) > 0)
		for (int i = 0; i < n; i++)
			pauses_.add(some[static_cast<size_t>(i)].ns,
				    some[static_cast<size_t>(i)].preempted);
}

void TrafficTarget::sayMoves()
{
	takePauses();
	Moves moves = mover_->counted();
	moves.pauses = pauses_.summary();
	send(moves.json());
}

void TrafficTarget::serve()
{
	auto lastHeard = Clock::now();
	auto nextMoves = lastHeard;
	Idler idler;
	while (going() && peer_.open()) {
		int rc = 0;
		if (hold_ == Hold::None || hold_ == Hold::Asked) {
			if (gate_ && peerbuf_progress_enter(gate_)) {
				waitForGate();
				continue;
			}
			RmaCompletion completion;
			rc = endpoint_->pollOnce(&completion);
			if (gate_)
				peerbuf_progress_leave(gate_);
			if (rc != 0) {
				fault("the target's endpoint: " + completion.what);
				break;
			}
		}
		const int did = readEvents(0, &revoked_);
		const bool heard = answerPeer();
		const auto now = Clock::now();
		if (heard)
			lastHeard = now;
		if (mover_) {
			mover_->step();
			if (hold_ != Hold::None)
				seeToHold();
			noteMoverProblem();
			if (now >= nextMoves) {
				sayMoves();
				nextMoves = now + progressEvery;
			}
		}
		say();
		if (now - lastHeard > patience)
			peer_.close("the peer asked nothing for " +
				    std::to_string(patience.count()) + " s");
		if (heard || did)
			idler.busy();
		else
			idler.rest({ctx_.eventFd(), peer_.fd()});
	}
}

/** The traffic goes on without. */
void TrafficTarget::noteMoverProblem()
{
	if (mover_->problem().empty() || moverFailed_ || !going())
		return;
	moverFailed_ = true;
	if (mover_->deviceGone())
		result_.trouble = "the device is gone (" + mover_->problem() + ")";
	else
		fault(mover_->problem());
}

/** Let the last move end, and take the figures. */
void TrafficTarget::settleMover()
{
	mover_->rest(true);
	const auto end = Clock::now() + movePatience;
	while (mover_->busy() && going() && Clock::now() < end) {
		readEvents(0, &revoked_);
		mover_->step();
		say();
	}
	if (going() && mover_->busy())
		fault("the last move did not end");
	readEvents(0, &revoked_); /* its last notice is here, and opens the gate */
	takePauses();
	result_.moves = mover_->counted();
	result_.moves.pauses = pauses_.summary();
	noteMoverProblem();
}

std::vector<std::string> TrafficTarget::lines(const std::string &flow) const
{
	std::vector<std::string> lines = {
		"moves x software RMA (" + endpoint_->provider() + "): " + flow + ", " +
		bytesWords(start_.size) + " in " + std::to_string(lengths_.size()) + " buffers; " +
		std::to_string(progress_.blocks) +
		" times a block was read by the device itself and looked at through the target's "
		"window, " +
		std::to_string(progress_.bad) + " times wrong"};
	const Moves &m = result_.moves;
	if (!mover_) {
		lines.push_back("a move of it answers " + result_.fixed.moveErrno +
				"; not Movable: " + result_.fixed.why);
		return lines;
	}
	if (!start_.notify)
		lines.emplace_back("the moves told no importer, on purpose: blocks will be lost");
	lines.push_back(std::to_string(m.moves) + " moves in " + std::to_string(m.slices) +
			" slices, " + std::to_string(m.evictions) + " of them to the host tier, " +
			std::to_string(m.refaults) + " back from there when a NIC touched it, " +
			std::to_string(m.aborted) +
			" rolled back; keys or addresses changed: " + std::to_string(m.keyChanges));
	if (!m.pauses.count)
		return lines;
	lines.push_back(std::to_string(m.pauses.count) + " pauses: half of them up to " +
			durationWords(m.pauses.p50Ns) + ", 99 % up to " +
			durationWords(m.pauses.p99Ns) + ", the longest " +
			durationWords(m.pauses.maxNs) + "; wanted at most " +
			durationWords(m.effectiveMaxPauseNs) + "; in " +
			std::to_string(m.pauses.preempted) + " the target lost its CPU");
	for (const std::string &line : histogramLines(m.pauses))
		lines.push_back(line);
	return lines;
}

void TrafficTarget::traffic()
{
	if (!openRegion()) {
		closeRegion();
		return;
	}
	const std::string flow = peerbuf_flow_name(parts_[0].region.flow);
	if (parts_[0].region.flow == PEERBUF_FLOW_MOVABLE)
		makeMover();
	else if (start_.moves)
		fault("the region is " + flow + ", not Movable, and cannot be moved");
	if (going())
		sendRegion();
	serve();
	if (mover_)
		settleMover();
	if (going() && !peer_.open() && peer_.problem() != "done")
		result_.trouble = peer_.problem();
	if (peer_.open())
		peer_.send(stop(result_.trouble.empty() ? "the target ends" : result_.trouble));
	if (revoked_ && going())
		fault("the region was revoked during traffic");
	const std::vector<std::string> report = lines(flow);
	closeRegion();
	tell("traffic: RMA by a peer into the device's memory" +
		     std::string(result_.moves.moves ? ", which moves" : ""),
	     report);
}

} // namespace peerbuf::tools::demo
