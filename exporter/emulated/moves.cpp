// SPDX-License-Identifier: BSD-3-Clause
/*
 * How the emulated device moves memory: between places of its HBM, out to the host tier and back.
 * What is next is plugin::Mover's to decide; here it is done.
 */
#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include "copy.h"
#include "device.h"
#include "pages.h"

namespace peerbuf::emulated
{

using plugin::MovePolicy;
using plugin::Mover;
using plugin::text;

namespace
{

/* What has just come to HBM stays a while, or two that are wanted would chase each other out. */
constexpr uint64_t residenceNs = 2'000'000;
/* How often somebody who waits for room is looked after when nothing else happens. */
constexpr uint64_t demandTickNs = 1'000'000;

MovePolicy policyOf(const peerbuf_move_request &request)
{
	MovePolicy policy;
	if (request.max_pause_ns)
		policy.maxPauseNs = request.max_pause_ns;
	if (request.duty_percent)
		policy.dutyPercent = std::min<uint32_t>(request.duty_percent, 100);
	if (request.deadline_ns)
		policy.deadlineNs = request.deadline_ns;
	if (request.past_deadline == PEERBUF_PAST_DEADLINE_WAIT)
		policy.past = MovePolicy::Past::Wait;
	else if (request.past_deadline == PEERBUF_PAST_DEADLINE_REVOKE)
		policy.past = MovePolicy::Past::Revoke;
	policy.whole = request.flags & PEERBUF_MOVE_UNSLICED;
	return policy;
}

} // namespace

bool Device::pinned(const Buffer &buffer) const
{
	return std::any_of(buffer.attachments.begin(), buffer.attachments.end(),
			   [&](Id id) { return attachments_.at(id)->pins != 0; });
}

/** Whether everybody who uses the buffer can do with it at @p place, or without it. */
bool Device::mayBeAt(const Buffer &buffer, uint32_t place) const
{
	return std::all_of(buffer.attachments.begin(), buffer.attachments.end(), [&](Id id) {
		const Attachment &a = *attachments_.at(id);
		return (a.placements & place) || (a.follows && a.peer2peer);
	});
}

/** Where the bytes of a range are right now; more than one bit in the middle of a move. */
uint32_t Device::placementOf(const Buffer &buffer, uint64_t offset, uint64_t length) const
{
	uint32_t places = 0;
	for (const Run &run : partOf(buffer.runs, offset, length))
		places |= run.offset < settings_.hbm ? PEERBUF_PLACEMENT_DEVICE
						     : PEERBUF_PLACEMENT_HOST;
	return places;
}

Device::Outcome Device::move(Client &client, const Message &request, Message &reply)
{
	const MoveBody &ask = request.body.move;
	Buffer *buffer = heldBuffer(client, ask.buffer);
	if (!buffer)
		return garbage(text("move of buffer ", ask.buffer, ", which it does not hold"));
	std::string why;
	const int rc = startMove(*buffer, ask.request, false, &why);
	if (rc)
		return failed(reply, -rc,
			      rc == -EBUSY    ? PEERBUF_ERR_BUSY
			      : rc == -ENOMEM ? PEERBUF_ERR_NO_MEMORY
			      : rc == -ENODEV ? PEERBUF_ERR_REVOKED
					      : PEERBUF_ERR_INVALID_ARGUMENT,
			      text("move of ", bufferName(*buffer), ": ", why));
	return Outcome::Answered;
}

Device::Outcome Device::moveStatus(Client &client, const Message &request, Message &reply)
{
	Buffer *buffer = heldBuffer(client, request.body.range.object);
	if (!buffer)
		return garbage(text("move status of buffer ", request.body.range.object,
				    ", which it does not hold"));
	if (const auto it = moving_.find(buffer->id); it != moving_.end())
		noteMove(it->second, true);
	reply.body.moveStatus = buffer->moved;
	peerbuf_move_status &s = reply.body.moveStatus;
	s.struct_size = sizeof(s);
	s.placement = buffer->placement;
	s.generation = buffer->generation;
	const bool huge =
		buffer->size >= hugePage && buffer->huge >= buffer->size / hugePage * hugePage;
	s.page_size = huge ? hugePage : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
	return Outcome::Answered;
}

/**
 * The destination is reserved before anybody is stopped: if there is no room nothing has happened.
 */
int Device::startMove(Buffer &buffer, const peerbuf_move_request &request, bool refault,
		      std::string *ret_why)
{
	constexpr uint32_t knownFlags = PEERBUF_MOVE_UNSLICED | PEERBUF_MOVE_NO_NOTIFY;
	const auto refuse = [&](int rc, const std::string &why) {
		*ret_why = why;
		return rc;
	};
	uint32_t place = request.placement ? request.placement : buffer.placement;
	if (!request.placement && (place & settings_.placements & PEERBUF_PLACEMENT_DEVICE))
		place = PEERBUF_PLACEMENT_DEVICE; /* it may be at two places */
	if (settings_.stability != PEERBUF_STABILITY_MOVES)
		return refuse(-EOPNOTSUPP, "this device said that its memory is static");
	if (request.flags & ~knownFlags)
		return refuse(-EINVAL, text("unknown flags ", plugin::hex(request.flags)));
	if (request.duty_percent > 100)
		return refuse(-EINVAL, text("a duty of ", request.duty_percent, " of 100"));
	if (request.past_deadline > PEERBUF_PAST_DEADLINE_REVOKE)
		return refuse(-EINVAL, text("unknown past_deadline ", request.past_deadline));
	if (request.past_deadline == PEERBUF_PAST_DEADLINE_REVOKE &&
	    settings_.revoke == PEERBUF_REVOKE_NEVER)
		return refuse(-EOPNOTSUPP, "this device said that it never revokes (revoke=never)");
	if ((place != PEERBUF_PLACEMENT_DEVICE && place != PEERBUF_PLACEMENT_HOST) ||
	    !(place & settings_.placements))
		return refuse(-EINVAL, text("placement ", place, " is none of placements=",
					    settingText(settings_, "placements")));
	if (buffer.revoked)
		return refuse(-ENODEV, "it was revoked");
	if (buffer.leaving || moving_.count(buffer.id))
		return refuse(-EBUSY, "it is being moved already");
	if (pinned(buffer))
		return refuse(-EBUSY, "it is pinned");
	if (!mayBeAt(buffer, place))
		return refuse(
			-EBUSY,
			text("an importer uses it where it is and could not reach it in ",
			     place == PEERBUF_PLACEMENT_HOST ? "the host tier" : "device memory"));

	MovePolicy policy = policyOf(request);
	for (const Id id : buffer.attachments)
		policy.whole = policy.whole || attachments_.at(id)->whole;
	std::vector<Run> to;
	std::string why;
	if (!takeFrames(place, buffer.size, Frame::Overwritten, &to, &why))
		return refuse(-ENOMEM, why);
	Move move{buffer.id, Mover(buffer.size, settings_.granularity, policy)};
	move.from = buffer.runs;
	move.to = std::move(to);
	move.fromPlacement = buffer.placement;
	move.toPlacement = place;
	move.silent = (request.flags & PEERBUF_MOVE_NO_NOTIFY) != 0;
	move.refault = refault;
	move.deadlineNs = policy.deadlineNs;
	move.startedAt = now();
	moving_.emplace(buffer.id, std::move(move));
	return 0;
}

uint64_t Device::nextMoveDue() const
{
	uint64_t due = UINT64_MAX;
	for (const auto &[id, move] : moving_)
		due = std::min(due, move.prepared < buffers_.at(id)->size ? 0
				    : move.mover.resting()
					    ? std::max(move.mover.due(), mayStop(move))
					    : move.mover.due());
	for (const auto &[cookie, leaving] : leavings_)
		if (leaving.deadline)
			due = std::min(due, leaving.deadline);
	if (!wanted_.empty())
		due = std::min(due, now() + demandTickNs);
	return due;
}

void Device::driveMoves()
{
	for (auto it = moving_.begin(); it != moving_.end();) {
		const Id id = it->first;
		const bool over = driveMove(it->second);
		it = moving_.upper_bound(id); /* what was driven may have ended others */
		if (!over)
			continue;
		const auto ended = moving_.find(id);
		if (ended == moving_.end())
			continue;
		const Move move = std::move(ended->second);
		moving_.erase(ended);
		finishMove(move);
		reap(id);
	}
	endLateLeavings();
	serveDemands();
}

/**
 * When the next slice of a move may begin. A gate that one move has just opened must not be closed
 * by the next one, or two moves together would starve the traffic that each of them spares.
 */
uint64_t Device::mayStop(const Move &move) const
{
	uint64_t from = 0;
	if (move.silent)
		return from;
	for (const Id id : usersOf(*buffers_.at(move.buffer)))
		if (const auto it = clients_.find(id); it != clients_.end())
			from = std::max(from, it->second->restUntil);
	return from;
}

void Device::letRest(const Move &move, uint64_t until)
{
	for (const Id id : move.told)
		if (const auto it = clients_.find(id); it != clients_.end())
			it->second->restUntil = until;
}

/** As far as it goes now. @return true: it is over. */
bool Device::driveMove(Move &move)
{
	if (move.prepared < buffers_.at(move.buffer)->size) {
		prepare(move);
		return move.mover.over(); /* others are served between two parts */
	}
	for (;;) {
		if (move.mover.resting() && now() < mayStop(move))
			return false;
		const Mover::Step step = move.mover.step(now());
		switch (step.what) {
		case Mover::Do::Invalidate:
			tellSlice(move, step);
			break;
		case Mover::Do::Copy:
			if (const int rc = copySlice(move, step))
				move.mover.copyFailed(rc);
			else
				move.mover.copied(now());
			break;
		case Mover::Do::Resume:
			resumeSlice(move, step);
			move.mover.resumed(now());
			letRest(move, move.mover.restUntilNs());
			slices_++;
			/* One slice a turn: others are served between two of them. */
			return move.mover.over();
		case Mover::Do::Wait:
			return false;
		case Mover::Do::Revoke:
			say(text(bufferName(*buffers_.at(move.buffer)), ": ", move.waiting.size(),
				 " clients did not let go of [", step.offset, ", +", step.length,
				 ") in time; it is revoked"));
			abandon(move);
			return true;
		case Mover::Do::Done:
			return true;
		}
	}
}

/**
 * Fetch the pages of the destination, part by part, before anybody is stopped: none is looked for
 * while somebody waits, and a host that has none left fails a move that has not begun.
 */
void Device::prepare(Move &move)
{
	constexpr uint64_t part = 8ull << 20;
	const uint64_t size = buffers_.at(move.buffer)->size;
	const uint64_t n = std::min(part, size - move.prepared);
	std::string why;
	if (populate(partOf(move.to, move.prepared, n), &move.toHuge, &why)) {
		move.prepared += n;
		return;
	}
	chat(text("move of ", bufferName(*buffers_.at(move.buffer)), ": ", why));
	move.prepared = size;
	move.mover.abort(-ENOMEM);
}

void Device::tellSlice(Move &move, const Mover::Step &step)
{
	Buffer &buffer = *buffers_.at(move.buffer);
	move.told = move.silent ? std::set<Id>() : usersOf(buffer);
	move.waiting = move.told;
	if (move.waiting.empty()) {
		move.mover.letGo(now());
		return;
	}
	move.cookie = ++lastId_;
	Message notice = makeMessage(Kind::Event, Op::Invalidate);
	NoticeBody &body = notice.body.notice;
	body.buffer = buffer.id;
	body.cookie = move.cookie;
	body.offset = step.offset;
	body.length = step.length;
	body.generation = buffer.generation;
	body.reason = PEERBUF_REASON_MOVE;
	body.expectedNs = move.mover.expectedPauseNs();
	for (const Id id : move.told)
		if (auto it = clients_.find(id); it != clients_.end())
			post(*it->second, notice, UniqueFd());
	/* For as long as it should take and no longer: who never lets go holds up nobody else. */
	const uint64_t bound = move.mover.effectiveMaxPauseNs();
	letRest(move, move.mover.restAfter(now() + bound, bound));
	if (settings_.mutant == Mutant::EarlyReuse)
		move.mover.letGo(now());
}

/** Nobody waits for the slice's acknowledgements any more; those to come are late. */
void Device::abandon(Move &move)
{
	if (move.cookie && !move.waiting.empty())
		abandoned_.emplace(move.cookie, std::move(move.waiting));
	move.waiting.clear();
	move.cookie = 0;
}

/** @return false: nobody asked this client for it. */
bool Device::acknowledgeSlice(Id cookie, Id client, int status)
{
	if (const auto late = abandoned_.find(cookie); late != abandoned_.end()) {
		const bool asked = late->second.erase(client);
		if (late->second.empty())
			abandoned_.erase(late);
		return asked;
	}
	for (auto &[id, move] : moving_) {
		if (move.cookie != cookie || !move.waiting.erase(client))
			continue;
		if (status < 0) {
			abandon(move);
			move.mover.refused(status);
		} else if (move.waiting.empty()) {
			move.cookie = 0;
			move.mover.letGo(now());
		}
		return true;
	}
	return false;
}

/** What @p client was asked for and will not answer any more. */
void Device::forgetSlices(Id client)
{
	for (auto it = abandoned_.begin(); it != abandoned_.end();) {
		it->second.erase(client);
		it = it->second.empty() ? abandoned_.erase(it) : std::next(it);
	}
	std::vector<Id> cookies;
	for (const auto &[id, move] : moving_)
		if (move.waiting.count(client))
			cookies.push_back(move.cookie);
	for (const Id cookie : cookies)
		acknowledgeSlice(cookie, client, 0);
}

void Device::copyRuns(const std::vector<Run> &from, const std::vector<Run> &to)
{
	size_t target = 0;
	uint64_t used = 0; /* of to[target] */
	for (const Run &run : from) {
		for (uint64_t done = 0; done < run.length;) {
			const uint64_t n = std::min(run.length - done, to[target].length - used);
			copyMemory(at(to[target].offset + used), at(run.offset + done), n);
			done += n;
			used += n;
			if (used == to[target].length) {
				target++;
				used = 0;
			}
		}
	}
}

int Device::copySlice(const Move &move, const Mover::Step &step)
{
	if (const auto fault = faults_.take("device.copy"); fault && fault->err) {
		chat(text("move of ", bufferName(*buffers_.at(move.buffer)),
			  ": fault injected at step device.copy"));
		return fault->err;
	}
	copyRuns(partOf(step.back ? move.to : move.from, step.offset, step.length),
		 partOf(step.back ? move.from : move.to, step.offset, step.length));
	return 0;
}

/** The bytes of the slice are where they belong; tell everybody who was stopped. */
void Device::resumeSlice(Move &move, const Mover::Step &step)
{
	Buffer &buffer = *buffers_.at(move.buffer);
	abandon(move);
	std::vector<Run> part;
	if (!step.aborted) {
		const uint64_t boundary = step.back ? step.offset : step.offset + step.length;
		std::vector<Run> runs;
		for (const Run &run : partOf(move.to, 0, boundary))
			append(&runs, run);
		for (const Run &run : partOf(move.from, boundary, buffer.size - boundary))
			append(&runs, run);
		buffer.runs = std::move(runs);
		buffer.generation++;
		buffer.placement = placementOf(buffer, 0, buffer.size);
		part = partOf(buffer.runs, step.offset, step.length);
	}
	uint64_t offset = step.offset;
	size_t sent = 0;
	do {
		Message message = makeMessage(Kind::Event, Op::Moved);
		MovedBody &body = message.body.moved;
		body.buffer = buffer.id;
		body.offset = offset;
		body.sliceOffset = step.offset;
		body.sliceLength = step.length;
		body.generation = buffer.generation;
		body.aborted = step.aborted;
		body.placement = buffer.placement;
		while (body.count < movedRuns && sent < part.size()) {
			offset += part[sent].length;
			body.runs[body.count++] = part[sent++];
		}
		body.last = sent == part.size();
		for (const Id id : move.told)
			if (auto it = clients_.find(id); it != clients_.end())
				post(*it->second, message, UniqueFd());
	} while (sent < part.size());
}

void Device::noteMove(const Move &move, bool running)
{
	peerbuf_move_status &s = buffers_.at(move.buffer)->moved;
	s.running = running;
	s.result = move.mover.result();
	s.moved = move.mover.moved();
	s.slices = move.mover.slices();
	s.effective_max_pause_ns = move.mover.effectiveMaxPauseNs();
	s.copy_ns = move.mover.copyNs();
	s.wall_ns = now() - move.startedAt;
}

/** Frames that the buffer is not in go back: everybody has let go of them, or never knew them. */
void Device::leaveFrames(const Move &move)
{
	const Buffer &buffer = *buffers_.at(move.buffer);
	const uint64_t moved = move.mover.moved();
	giveFrames(partOf(move.from, 0, moved));
	giveFrames(partOf(move.to, moved, buffer.size - moved));
}

void Device::finishMove(const Move &move)
{
	Buffer &buffer = *buffers_.at(move.buffer);
	noteMove(move, false);
	leaveFrames(move);
	if (move.mover.result()) {
		aborted_++;
		chat(text("move of ", bufferName(buffer),
			  " ended: ", errnoText(-move.mover.result()), "; ", move.mover.moved(),
			  " bytes are at the new place"));
		if (move.mover.stuck()) {
			/* As it is at two places it can still be used, and moved again. */
			say(text(bufferName(buffer), " could not go back and stays at two places"));
			buffer.huge = 0;
		} else if (!move.mover.rollingBack()) {
			beginRevoke(buffer, move.deadlineNs);
			return;
		}
		/* Who waits for it still does, and is told by nothing but the next move. */
		if (move.refault)
			want(buffer);
		return;
	}
	moves_++;
	buffer.huge = move.toHuge;
	if (move.toPlacement == PEERBUF_PLACEMENT_HOST && move.fromPlacement != move.toPlacement)
		evictions_++;
	if (move.toPlacement == PEERBUF_PLACEMENT_DEVICE &&
	    move.fromPlacement != move.toPlacement) {
		buffer.arrivedAt = now();
		if (move.refault)
			refaults_++;
	}
}

/** The buffer ends or is revoked: it stays as it is, at two places if need be. */
void Device::cancelMove(Buffer &buffer, int why)
{
	wanted_.erase(std::remove(wanted_.begin(), wanted_.end(), buffer.id), wanted_.end());
	const auto it = moving_.find(buffer.id);
	if (it == moving_.end())
		return;
	Move &move = it->second;
	abandon(move);
	noteMove(move, false);
	buffer.moved.result = why;
	buffer.huge = 0;
	aborted_++;
	leaveFrames(move);
	moving_.erase(it);
}

/** Who did not let go of what was revoked for being late: it is never used again. */
void Device::endLateLeavings()
{
	std::vector<Id> late;
	for (const auto &[cookie, leaving] : leavings_)
		if (leaving.deadline && leaving.deadline <= now())
			late.push_back(cookie);
	for (const Id cookie : late) {
		Leaving &leaving = leavings_.at(cookie);
		leaving.status = -ETIMEDOUT;
		abandoned_.emplace(cookie, leaving.waiting);
		finishLeaving(cookie);
	}
}

/* ---- more memory than there is HBM --------------------------------------------------------- */

void Device::want(const Buffer &buffer)
{
	if (std::find(wanted_.begin(), wanted_.end(), buffer.id) == wanted_.end())
		wanted_.push_back(buffer.id);
}

/**
 * Somebody needs the buffer in HBM. @return -EAGAIN: it comes, and whoever was stopped is resumed
 * when it is there; -ENOMEM: it cannot come as things are.
 */
int Device::demand(const Buffer &buffer, std::string *ret_why)
{
	if (!(settings_.placements & PEERBUF_PLACEMENT_DEVICE) || buffer.size > settings_.hbm) {
		*ret_why = text(bufferName(buffer), ": ", buffer.size, " bytes never fit into ",
				settings_.hbm, " of HBM");
		return -ENOMEM;
	}
	const auto moving = moving_.find(buffer.id);
	if (moving != moving_.end() && !moving->second.mover.rollingBack() &&
	    moving->second.toPlacement == PEERBUF_PLACEMENT_DEVICE) {
		*ret_why = text(bufferName(buffer), ": it is on its way back");
		return -EAGAIN;
	}
	if (buffer.placement == PEERBUF_PLACEMENT_DEVICE && moving == moving_.end()) {
		*ret_why = text(bufferName(buffer), " is in device memory, which is out of reach");
		return -EBUSY;
	}
	if (!poolOpen(PEERBUF_PLACEMENT_DEVICE, ret_why))
		return -ENOMEM;
	const Room room = roomFor(buffer);
	if (room.free + room.leaving + room.evictable < buffer.size) {
		*ret_why = text(bufferName(buffer),
				" is in the host tier and cannot come back: ", buffer.size,
				" bytes needed, ", room.free + room.leaving, " of ", settings_.hbm,
				" of HBM free, ", room.evictable, " can be evicted with ",
				hostFrames_.available(),
				" free in the host tier; pinned: ", pinHolders());
		return -ENOMEM;
	}
	*ret_why = text(bufferName(buffer), ": it is in the host tier and is being brought back");
	want(buffer);
	return -EAGAIN;
}

/**
 * In the order in which they were asked for: a large buffer that waits for room is not passed by
 * small ones that would eat it up. One for which no room can be made holds up nobody.
 */
void Device::serveDemands()
{
	for (size_t i = 0; i < wanted_.size();) {
		const auto found = buffers_.find(wanted_[i]);
		if (found == buffers_.end() || found->second->revoked ||
		    found->second->placement == PEERBUF_PLACEMENT_DEVICE) {
			wanted_.erase(wanted_.begin() + static_cast<ptrdiff_t>(i));
			continue;
		}
		Buffer &buffer = *found->second;
		if (moving_.count(buffer.id)) { /* out, perhaps; it comes back afterwards */
			i++;
			continue;
		}
		peerbuf_move_request request = {};
		request.placement = PEERBUF_PLACEMENT_DEVICE;
		std::string why;
		const int rc = startMove(buffer, request, true, &why);
		if (rc == 0) {
			wanted_.erase(wanted_.begin() + static_cast<ptrdiff_t>(i));
			continue;
		}
		if (rc == -ENOMEM && makeRoom(buffer))
			return;
		i++;
	}
}

/**
 * What is to be had in HBM for @p wanted, now or once the moves under way have ended; candidates
 * are in the order of their last use.
 */
Device::Room Device::roomFor(const Buffer &wanted)
{
	constexpr uint32_t hbm = PEERBUF_PLACEMENT_DEVICE;
	Room room;
	std::map<std::string, uint64_t> resident;
	uint64_t host = hostFrames_.available();
	for (const auto &[id, buffer] : buffers_) {
		if (buffer->runs.empty())
			continue;
		if (reclaimable(*buffer)) {
			room.leaving += buffer->placement & hbm ? buffer->size : 0;
			continue;
		}
		bool comes = false;
		if (const auto moving = moving_.find(id); moving != moving_.end()) {
			/* Where it will be; the frames of the other place get free. */
			const Move &move = moving->second;
			const bool back = move.mover.rollingBack();
			const uint32_t to = back ? move.fromPlacement : move.toPlacement;
			const uint32_t from = back ? move.toPlacement : move.fromPlacement;
			(from & hbm ? room.leaving : host) += buffer->size;
			comes = (to & hbm) != 0;
			if (!comes)
				continue;
		} else if (!(buffer->placement & hbm)) {
			continue;
		}
		resident[buffer->tenant] += buffer->size;
		if (id != wanted.id && !buffer->revoked && !buffer->leaving && !pinned(*buffer) &&
		    mayBeAt(*buffer, PEERBUF_PLACEMENT_HOST) && (comes || buffer->placement == hbm))
			room.candidates.push_back(buffer.get());
	}
	room.free = deviceFrames_.available();
	std::sort(room.candidates.begin(), room.candidates.end(),
		  [](const Buffer *a, const Buffer *b) { return a->lastUse < b->lastUse; });
	/* Of a tenant that has no more than its minimum nothing goes, unless it is its own memory
	 * that it needs more. And what goes out must fit into the host tier, where each that goes
	 * leaves less for the next. */
	std::string why;
	const bool open = poolOpen(PEERBUF_PLACEMENT_HOST, &why);
	std::erase_if(room.candidates, [&](const Buffer *candidate) {
		uint64_t &left = resident[candidate->tenant];
		const bool kept = candidate->tenant != wanted.tenant &&
				  left <= limitsOf(candidate->tenant).min_resident;
		if (kept || !open || candidate->size > host)
			return true;
		left -= candidate->size;
		host -= candidate->size;
		room.evictable += candidate->size;
		return false;
	});
	return room;
}

/** Send out what was used longest ago. @return whether room comes, now or soon. */
bool Device::makeRoom(const Buffer &wanted)
{
	Room room = roomFor(wanted);
	/* Enough, and yet it was refused: free in too many pieces. More is sent out. */
	const uint64_t need = room.free >= wanted.size ? room.free + wanted.size : wanted.size;
	if (room.free + room.leaving + room.evictable < need)
		return false;
	uint64_t coming = room.free + room.leaving;
	const uint64_t t = now();
	for (Buffer *victim : room.candidates) {
		if (coming >= need)
			break;
		if (moving_.count(victim->id) || t - victim->arrivedAt < residenceNs)
			continue; /* soon */
		peerbuf_move_request request = {};
		request.placement = PEERBUF_PLACEMENT_HOST;
		std::string why;
		if (startMove(*victim, request, false, &why) == 0)
			coming += victim->size;
	}
	return true;
}

} // namespace peerbuf::emulated
