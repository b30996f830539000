// SPDX-License-Identifier: BSD-3-Clause
#include "demo_peer.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <thread>

#include <sched.h>

#include "blocks.h"
#include "demo_protocol.h"
#include "exit_code.h"
#include "rma.h"

namespace peerbuf::tools
{

namespace
{

using namespace demo;
using Clock = std::chrono::steady_clock;

/* Blocks on their way at once; each has two buffers of Block::most. */
constexpr size_t window = 4;
/* Without notice of moves, one write in so many is in flight for certain while its place moves. */
constexpr uint64_t holdEvery = 64;

class Peer
{
public:
	Peer(Channel &parent, Channel &target, const Start &start, const Region &region)
	    : parent_(parent),
	      target_(target),
	      start_(start),
	      region_(region),
	      lengths_(region.lengths()),
	      blocks_(start.seed, lengths_),
	      leastHeld_(start.moves && !start.notify ? 1 : 0)
	{
	}

	/** @return "", or why it cannot begin. */
	std::string open();
	/** Write, check and read until the time is up or somebody is gone. */
	void run();
	const PeerResult &result() const { return result_; }
	/** An error of RMA while everybody is there. */
	const std::string &failure() const { return failure_; }

private:
	enum class Stage { Free, Write, Writing, Checking, Read, Reading };
	/** Whether a write is to be begun while the target serves nobody. */
	enum class Hold { None, Draining, Asked, Held };
	struct Slot {
		Stage stage = Stage::Free;
		Block block;
		std::vector<uint8_t> data;
		std::vector<uint8_t> back;
		RmaMemory dataMemory;
		RmaMemory backMemory;
		std::string wrong; /* seen by the device */
		std::string first; /* what was wrong at the first look; "": this is it */
	};

	bool going() const { return failure_.empty() && result_.trouble.empty(); }
	bool timeIsUp() const;
	bool startNext();
	void startHeld();
	void seeToHold();
	bool post(size_t index, RmaOp op);
	bool pollEndpoint();
	bool pollTarget();
	void askTarget(const Json &message);
	void afterRead(Slot *slot);
	void judge(const std::string &first, const std::string &again);
	void sweep();
	std::optional<size_t> readPiece(const Written::Piece &piece);
	void say();
	void lostTarget();
	bool idle() const;
	std::string expose(std::vector<uint8_t> *buffer, RmaMemory *memory);

	Channel &parent_;
	Channel &target_;
	const Start start_;
	const Region region_;
	const std::vector<uint64_t> lengths_; /* of its parts */
	const BlockSequence blocks_;
	std::vector<uint64_t> keys_;	  /* of its parts */
	std::vector<Slot> slots_{window}; /* outlive the endpoint, which may still use them */
	std::unique_ptr<RmaEndpoint> endpoint_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;

	uint64_t next_ = 0; /* number of the block to start next */
	Hold hold_ = Hold::None;
	uint64_t held_ = 0;	   /* writes that were in flight during a move */
	const uint64_t leastHeld_; /* where damage has to be certain: one */
	Written written_;
	Clock::time_point began_;
	Clock::time_point lastHeard_;
	Clock::time_point nextWord_;
	PeerResult result_;
	std::string failure_;
};

std::string Peer::expose(std::vector<uint8_t> *buffer, RmaMemory *memory)
{
	buffer->resize(Block::most);
	std::string error;
	if (endpoint_->info()->domain_attr->mr_mode & FI_MR_LOCAL)
		endpoint_->expose(buffer->data(), buffer->size(), FI_READ | FI_WRITE, memory,
				  error);
	return error;
}

std::string Peer::open()
{
	RmaOptions options;
	options.provider = start_.provider;
	options.window = window;
	std::string error;
	endpoint_ = RmaEndpoint::create(options, error);
	if (!endpoint_)
		return error;
	if (endpoint_->addPeer(region_.address, &peer_, error))
		return error;
	for (const Region::Part &part : region_.parts) {
		uint64_t key = part.key;
		if (!part.rawKey.empty() && endpoint_->mapRawKey(part.base, part.rawKey.data(),
								 part.rawKey.size(), &key, error))
			return error;
		keys_.push_back(key);
	}
	for (Slot &slot : slots_) {
		error = expose(&slot.data, &slot.dataMemory);
		if (error.empty())
			error = expose(&slot.back, &slot.backMemory);
		if (!error.empty())
			return error;
	}
	return "";
}

bool Peer::timeIsUp() const
{
	return held_ >= leastHeld_ &&
	       Clock::now() - began_ >= std::chrono::duration<double>(start_.seconds);
}

/** Blocks begin in their order, each as soon as it overlaps none that is on its way. */
bool Peer::startNext()
{
	if (hold_ != Hold::None || timeIsUp())
		return false;
	if (leastHeld_ && next_ % holdEvery == 1) {
		hold_ = Hold::Draining;
		return true;
	}
	Slot *free = nullptr;
	const Block block = blocks_.at(next_);
	for (Slot &slot : slots_) {
		if (slot.stage == Stage::Free)
			free = &slot;
		else if (slot.block.overlaps(block))
			return false;
	}
	if (!free)
		return false;
	free->block = block;
	free->stage = Stage::Write;
	free->wrong.clear();
	free->first.clear();
	fillBlock(start_.seed, block.number, 0, free->data.data(), block.length);
	next_++;
	return true;
}

/** The target serves nobody now, and nothing else is on its way. */
void Peer::startHeld()
{
	Slot &slot = slots_[0];
	slot.block = blocks_.at(next_++);
	slot.wrong.clear();
	slot.first.clear();
	fillBlock(start_.seed, slot.block.number, 0, slot.data.data(), slot.block.length);
	hold_ = Hold::Held;
	slot.stage = Stage::Write;
}

void Peer::seeToHold()
{
	if (hold_ == Hold::Draining && idle()) {
		hold_ = Hold::Asked;
		askTarget(word("hold"));
	} else if (hold_ == Hold::Held && slots_[0].stage != Stage::Write) {
		hold_ = Hold::None;
		held_++;
		askTarget(Check{slots_[0].block}.json("begun"));
	}
}

void Peer::askTarget(const Json &message)
{
	if (!target_.send(message))
		lostTarget();
}

bool Peer::post(size_t index, RmaOp op)
{
	Slot &slot = slots_[index];
	RmaTransfer t;
	t.op = op;
	t.peer = peer_;
	t.data = op == RmaOp::Write ? slot.data.data() : slot.back.data();
	t.desc = op == RmaOp::Write ? slot.dataMemory.desc : slot.backMemory.desc;
	t.length = slot.block.length;
	const PartAt at = partAt(lengths_, slot.block.offset);
	t.remoteAddr = region_.parts[at.index].base + at.offset;
	t.key = keys_[at.index];
	t.context = index;
	std::string error;
	const int rc = endpoint_->post(t, error);
	if (rc == -EAGAIN)
		return false;
	if (rc)
		failure_ = error;
	else
		slot.stage = op == RmaOp::Write ? Stage::Writing : Stage::Reading;
	return true;
}

bool Peer::pollEndpoint()
{
	RmaCompletion completion;
	const int rc = endpoint_->pollOnce(&completion);
	if (rc == 0)
		return false;
	if (rc < 0 || completion.status) {
		failure_ = completion.what;
		return true;
	}
	Slot &slot = slots_[completion.context];
	if (slot.stage == Stage::Writing) {
		slot.stage = Stage::Checking;
		askTarget(Check{slot.block}.json());
	} else {
		afterRead(&slot);
	}
	return true;
}

/** All have looked. What is wrong is looked at once more: it may be lost, or only late. */
void Peer::afterRead(Slot *slot)
{
	const Block &block = slot->block;
	std::string wrong = slot->wrong;
	const auto at = firstWrong(start_.seed, block.number, 0, slot->back.data(), block.length);
	if (at)
		wrong += (wrong.empty() ? "byte " : ", byte ") + std::to_string(*at) +
			 " was read back wrong";
	if (slot->first.empty() && !wrong.empty()) {
		slot->first = wrong;
		slot->wrong.clear();
		slot->stage = Stage::Checking;
		askTarget(Check{block}.json());
		return;
	}
	slot->stage = Stage::Free;
	if (slot->first.empty()) {
		result_.blocksVerified++;
		result_.bytesVerified += block.length;
		written_.add(block);
		return;
	}
	written_.remove(block.offset, block.end());
	judge("block " + std::to_string(block.number) + " at [" + std::to_string(block.offset) +
		      ", +" + std::to_string(block.length) + "): " + slot->first,
	      wrong);
}

/** @param again what was wrong at the second look, or "". */
void Peer::judge(const std::string &first, const std::string &again)
{
	(again.empty() ? result_.blocksStale : result_.blocksLost)++;
	if (result_.firstBad.empty())
		result_.firstBad = first + (again.empty() ? "; at a second look all was right"
							  : "; at a second look " + again);
}

void Peer::lostTarget()
{
	if (result_.trouble.empty())
		result_.trouble = target_.problem();
}

bool Peer::pollTarget()
{
	const auto message = target_.receive();
	if (!message) {
		if (!target_.open())
			lostTarget();
		return false;
	}
	lastHeard_ = Clock::now();
	std::string problem;
	if (messageType(*message) == "stop") {
		Fields fields(*message);
		result_.trouble = fields.string("why");
		return true;
	}
	if (messageType(*message) == "held" && hold_ == Hold::Asked) {
		startHeld();
		return true;
	}
	if (messageType(*message) != "checked") {
		problem = "message '" + messageType(*message) + "', which is none of a target's";
	} else if (const auto answer = Checked::from(*message, &problem)) {
		problem = "an answer about block " + std::to_string(answer->number) +
			  ", which was not asked about";
		for (Slot &slot : slots_) {
			if (slot.stage != Stage::Checking || slot.block.number != answer->number)
				continue;
			slot.wrong = answer->wrong;
			slot.stage = Stage::Read;
			result_.deviceChecked++;
			problem.clear();
		}
	}
	if (!problem.empty()) {
		target_.refuse(problem);
		lostTarget();
	}
	return true;
}

bool Peer::idle() const
{
	for (const Slot &slot : slots_)
		if (slot.stage != Stage::Free)
			return false;
	return true;
}

void Peer::say()
{
	const auto now = Clock::now();
	if (now < nextWord_)
		return;
	nextWord_ = now + progressEvery;
	Progress progress;
	progress.blocks = result_.blocksVerified + result_.blocksBad();
	progress.bytes = result_.bytesVerified;
	progress.bad = result_.blocksBad();
	if (!parent_.send(progress.json()) || (parent_.receive(), !parent_.open()))
		result_.trouble = parent_.problem();
}

/** @return the first byte of it that is wrong now. */
std::optional<size_t> Peer::readPiece(const Written::Piece &piece)
{
	Slot &slot = slots_[0];
	slot.block = {piece.number, piece.offset, piece.length};
	lastHeard_ = Clock::now();
	bool posted = false;
	bool arrived = false;
	while (going() && !arrived) {
		posted = posted || post(0, RmaOp::Read);
		RmaCompletion completion;
		const int rc = endpoint_->pollOnce(&completion);
		if (rc < 0 || (rc == 1 && completion.status))
			failure_ = completion.what;
		arrived = rc == 1;
		if (rc == 0)
			sched_yield();
		pollTarget();
		say();
		if (Clock::now() - lastHeard_ > patience)
			result_.trouble = "the target serves no more";
	}
	slot.stage = Stage::Free;
	if (!going())
		return std::nullopt;
	return firstWrong(start_.seed, piece.number, piece.from, slot.back.data(), piece.length);
}

/** Whatever was ever written is still there. */
void Peer::sweep()
{
	for (const Written::Piece &piece : written_.pieces(Block::most)) {
		const auto at = readPiece(piece);
		const auto again = at ? readPiece(piece) : std::nullopt;
		if (!going())
			return;
		if (!at) {
			result_.bytesSwept += piece.length;
			continue;
		}
		judge("byte " + std::to_string(piece.from + *at) + " of block " +
			      std::to_string(piece.number) +
			      " was right when written and is wrong at the end",
		      again ? "byte " + std::to_string(piece.from + *again) + " is wrong" : "");
	}
}

void Peer::run()
{
	began_ = lastHeard_ = Clock::now();
	Idler idler;
	while (going() && !(timeIsUp() && idle() && hold_ == Hold::None)) {
		bool did = startNext();
		for (size_t i = 0; i < slots_.size() && going(); i++) {
			if (slots_[i].stage == Stage::Write)
				did |= post(i, RmaOp::Write);
			else if (slots_[i].stage == Stage::Read)
				did |= post(i, RmaOp::Read);
		}
		seeToHold();
		if (going())
			did |= pollEndpoint();
		if (going())
			did |= pollTarget();
		say();
		if (did)
			idler.busy();
		else
			idler.rest({target_.fd()});
		if (Clock::now() - lastHeard_ > patience)
			result_.trouble = "the target answered nothing for " +
					  std::to_string(patience.count()) + " s";
	}
	result_.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
	if (going())
		sweep();
	/* an error of RMA may be the first sign of a target that is gone */
	for (int i = 0; !failure_.empty() && result_.trouble.empty() && i < 50; i++) {
		pollTarget();
		if (target_.open())
			std::this_thread::sleep_for(std::chrono::milliseconds(10));
	}
	if (!result_.trouble.empty())
		failure_.clear();
}

std::optional<Region> awaitRegion(Channel *parent, Channel *target, std::string *ret_trouble)
{
	/* the target has much to do first; a hung one is the parent's to notice */
	const auto message = await(target, [&] { return parent->send(Progress().json()); });
	std::optional<Region> region;
	if (message) {
		std::string problem = "message '" + messageType(*message) + "' before 'region'";
		if (messageType(*message) == "stop")
			target->close(Fields(*message).string("why"));
		else if (messageType(*message) == "region")
			region = Region::from(*message, &problem);
		if (!region && target->open())
			target->refuse(problem);
	}
	if (!region)
		*ret_trouble = target->problem();
	return region;
}

} // namespace

int runDemoPeer()
{
	Channel parent(UniqueFd(parentFd), "parent");
	Channel target(UniqueFd(otherFd), "target");
	const auto start = awaitStart(&parent);
	if (!start) {
		fprintf(stderr, "peerbuf demo, peer: %s\n", parent.problem().c_str());
		return exitUsage;
	}
	{
		/* what libfabric opens at the first use, and keeps, is no leak */
		RmaOptions options;
		options.provider = start->provider;
		std::string error;
		const auto first = RmaEndpoint::create(options, error);
	}
	const auto fdsBefore = openFds();
	PeerResult result;
	const auto region = awaitRegion(&parent, &target, &result.trouble);
	if (region) {
		Peer peer(parent, target, *start, *region);
		const std::string why = peer.open();
		if (!why.empty()) {
			parent.send(Failed{exitMissing, why}.json());
			return exitOk;
		}
		peer.run();
		if (!peer.failure().empty()) {
			parent.send(Failed{exitBad, peer.failure()}.json());
			return exitOk;
		}
		result = peer.result();
	}
	std::vector<std::string> leaks;
	const bool targetOpen = target.open();
	result.fdsLeaked = leakedFds(fdsBefore, &leaks);
	for (const std::string &leak : leaks)
		parent.send(note("peer: descriptor left open: " + leak));
	if (targetOpen && !target.send(word("done")) && result.trouble.empty())
		result.trouble = target.problem();
	return parent.send(result.json()) ? exitOk : exitBad;
}

} // namespace peerbuf::tools
