// SPDX-License-Identifier: BSD-3-Clause
#include "promises.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <sstream>

namespace peerbuf::test
{

namespace
{

template <typename... Parts> std::string say(const Parts &...parts)
{
	std::ostringstream out;
	(out << ... << parts);
	return out.str();
}

std::string firstDifference(const Bytes &got, const Bytes &wanted)
{
	const auto [a, b] = std::mismatch(got.begin(), got.end(), wanted.begin(), wanted.end());
	if (a == got.end() && b == wanted.end())
		return "";
	return say("first wrong byte at ", a - got.begin(), " of ", wanted.size());
}

Params with(Params params, const Params &more)
{
	params.insert(params.end(), more.begin(), more.end());
	return params;
}

} // namespace

std::string bytesGoWhereTheyBelong(const Params &params, uint64_t chunk, bool movable)
{
	ServingHost host(40, chunk);
	OpenNic nic(host, params);
	if (nic.rc())
		return host.lastFailure();
	// an interior offset whose sub-page part the address shares, inside a larger mapping
	constexpr uint64_t offset = 5 * page + 1536;
	constexpr uint64_t length = 29 * page + 777;
	constexpr uint64_t iova = 0x7f1234501000 + 1536;
	Bytes model = pattern(host.size(), chunk);
	host.write(0, model);
	peerbuf_reg_request request = nic.request(offset, length, iova);
	if (!movable) {
		request.flow = PEERBUF_FLOW_PINNED;
		request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
		request.mapping = host.mapping(page, 38 * page);
	}
	peerbuf_region region;
	if (nic.reg(request, region))
		return host.lastFailure();

	std::mt19937_64 random(chunk);
	for (int i = 0; i < 60; i++) {
		const uint64_t size = i < 4 ? length : 1 + random() % (i % 2 ? 100 : 6 * page);
		const uint64_t at = i < 4 ? 0 : random() % (length - size + 1);
		Bytes bytes = pattern(size, random());
		if (i % 2) {
			if (const int rc = nic.transfer(Write, region.key64, iova + at, bytes))
				return say("write of ", size, " at ", at, ": ", rc);
			std::copy(bytes.begin(), bytes.end(),
				  model.begin() + static_cast<std::ptrdiff_t>(offset + at));
			continue;
		}
		if (const int rc = nic.transfer(Read, region.key64, iova + at, bytes))
			return say("read of ", size, " at ", at, ": ", rc);
		const auto from = model.begin() + static_cast<std::ptrdiff_t>(offset + at);
		const std::string wrong = firstDifference(
			bytes, Bytes(from, from + static_cast<std::ptrdiff_t>(size)));
		if (!wrong.empty())
			return say("read of ", size, " at ", at, ": ", wrong);
	}
	nic.drain();
	const std::string wrong = firstDifference(host.read(0, host.size()), model);
	if (!wrong.empty())
		return "in memory: " + wrong;
	if (const uint64_t stray = host.strayBytes())
		return say(stray, " bytes beside the buffer written");
	if (nic.stats().violations)
		return say(nic.stats().violations, " violations");
	return "";
}

std::string oneTicketAfterTheLastPacket(const Params &params, uint32_t reason)
{
	ServingHost host(8);
	OpenNic nic(host, with(params, {{"mtu", "512"}, {"trace", "yes"}}));
	peerbuf_region region;
	if (nic.reg(nic.request(0, host.size(), 0), region))
		return host.lastFailure();
	Bytes bytes = pattern(page, 1);
	if (nic.post(Write, region.key64, 0, bytes, 1))
		return "cannot post";
	if (!nic.stepIntoFlight())
		return "nothing was ever in flight";
	host.suspend(0, host.size());
	if (const int rc = nic.invalidate(reason, 0, host.size()); rc != -EINPROGRESS)
		return say("invalidate: ", rc);
	const uint64_t ticket = nic.lastTicket();
	if (nic.stats().translations)
		return "translations are kept";
	const Bytes atStop = host.read(0, page);
	const uint64_t early = host.ticketsDone(ticket);
	nic.drain();
	if (early && host.read(0, page) != atStop)
		return "memory was written after the ticket";
	if (early)
		return "the ticket came before the last packet";
	if (host.read(0, page) == atStop)
		return "nothing was in flight after all";
	if (host.ticketsDone(ticket) != 1)
		return say(host.ticketsDone(ticket), " tickets");
	nic.dereg(region);
	if (host.ticketsDone(ticket) != 1)
		return say(host.ticketsDone(ticket), " tickets after dereg");
	if (nic.stats().violations)
		return say(nic.stats().violations, " violations");
	return "";
}

std::string resumeUsesTheNewPlace(const Params &params)
{
	ServingHost host(8);
	OpenNic nic(host, params);
	peerbuf_region region;
	if (nic.reg(nic.request(0, host.size(), 0), region))
		return host.lastFailure();
	Bytes bytes = pattern(host.size(), 1);
	if (nic.transfer(Write, region.key64, 0, bytes))
		return "the first write failed";
	nic.drain();
	nic.move(page, 3 * page);
	if (host.read(0, host.size()) != bytes)
		return "the move itself lost bytes";
	Bytes got(bytes.size());
	if (nic.transfer(Read, region.key64, 0, got))
		return "the read failed";
	std::string wrong = firstDifference(got, bytes);
	if (!wrong.empty())
		return "read after the move: " + wrong;
	bytes = pattern(host.size(), 2);
	if (nic.transfer(Write, region.key64, 0, bytes))
		return "the second write failed";
	nic.drain();
	wrong = firstDifference(host.read(0, host.size()), bytes);
	if (!wrong.empty())
		return "write after the move: " + wrong;
	if (const uint64_t stray = host.strayBytes())
		return say(stray, " bytes of the old place written");
	if (nic.stats().violations)
		return say(nic.stats().violations, " violations");
	return "";
}

std::string resumeAfterAbortGoesOn(const Params &params)
{
	ServingHost host(8);
	OpenNic nic(host, params);
	peerbuf_region region;
	if (nic.reg(nic.request(0, host.size(), 0), region))
		return host.lastFailure();
	Bytes bytes = pattern(host.size(), 1);
	if (nic.transfer(Write, region.key64, 0, bytes))
		return "the first write failed";
	nic.drain();
	host.suspend(0, host.size());
	if (nic.invalidate(PEERBUF_REASON_MOVE, 0, host.size()))
		return "something was in flight";
	if (nic.transfer(Write, region.key64, 0, bytes) != -EBUSY)
		return "a write went on while suspended";
	host.release(0, host.size());
	nic.resume(0, host.size(), true);
	bytes = pattern(host.size(), 2);
	if (const int rc = nic.transfer(Write, region.key64, 0, bytes))
		return say("write after the aborted move: ", rc);
	nic.drain();
	return firstDifference(host.read(0, host.size()), bytes);
}

std::string revokedKeyStaysTaken(const Params &params)
{
	ServingHost host(8);
	OpenNic nic(host, with(params, {{"keys", "2"}}));
	peerbuf_region revoked;
	if (nic.reg(nic.request(0, page, 0), revoked))
		return host.lastFailure();
	if (nic.invalidate(PEERBUF_REASON_REVOKE, 0, page))
		return "something was in flight";
	Bytes bytes = pattern(page, 1);
	if (nic.transfer(Write, revoked.key64, 0, bytes) != -EACCES)
		return "the revoked key still works";
	if (nic.stats().keys_used != 1)
		return say(nic.stats().keys_used, " keys used after the revoke, 1 expected");
	peerbuf_reg_request request = nic.request(2 * page, page, 0);
	peerbuf_region other;
	if (nic.reg(request, other))
		return host.lastFailure();
	if (other.key64 == revoked.key64)
		return "another region got the key";
	if (nic.transfer(Write, revoked.key64, 0, bytes) != -EACCES)
		return "the revoked key reaches another region";
	if (nic.reg(request, other) != -ENOSPC)
		return "there are more keys than there are";
	nic.dereg(revoked);
	if (nic.reg(request, other))
		return "dereg did not free the key";
	return "";
}

std::string peerMemoryIsRefused(const Params &params)
{
	ServingHost host(8);
	OpenNic nic(host, with(params, {{"peer2peer", "no"}}));
	if (nic.offer().peer2peer)
		return "the offer claims peer-to-peer";
	peerbuf_reg_request request = nic.request(0, page, 0);
	request.flow = PEERBUF_FLOW_PINNED;
	request.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	request.mapping = host.mapping(0, page);
	peerbuf_region region;
	if (nic.reg(request, region) != -EOPNOTSUPP)
		return "a peer-to-peer mapping is taken";
	host.peer2peer = 0;
	request.mapping = host.mapping(0, page);
	if (nic.reg(request, region))
		return host.lastFailure();
	return "";
}

std::string domainAddressesAreUsed(const Params &params)
{
	ServingHost host(8);
	OpenNic nic(host, with(params, {{"iommu", "translating"}}));
	peerbuf_region region;
	if (nic.reg(nic.request(0, host.size(), 0), region))
		return host.lastFailure();
	Bytes bytes = pattern(host.size(), 1);
	const int rc = nic.transfer(Write, region.key64, 0, bytes);
	nic.drain();
	const bool arrived = host.read(0, host.size()) == bytes;
	if (!rc && !arrived)
		return "a dropped write was reported as a success";
	if (rc)
		return say("write: ", rc, arrived ? ", yet it arrived" : "");
	return "";
}

std::string movesUnderTraffic(const Params &params, uint64_t seed)
{
	constexpr uint64_t pages = 24;
	ServingHost host(pages, 1 + seed % 4);
	OpenNic nic(host, with(params, {{"seed", std::to_string(seed)},
					{"mtu", seed % 2 ? "1500" : "4096"},
					{"fault_window", seed % 3 ? "4K" : "32K"},
					{"early_completion", seed % 5 < 2 ? "yes" : "no"},
					{"iommu", seed % 7 < 3 ? "translating" : "identity"}}));
	if (nic.rc())
		return host.lastFailure();
	std::mt19937_64 random(seed);
	Bytes model = pattern(host.size(), seed);
	host.write(0, model);
	peerbuf_region region;
	if (nic.reg(nic.request(512, host.size() - 1024, 512), region))
		return host.lastFailure();

	struct Posted {
		peerbuf_transfer_op op;
		uint64_t at;
		Bytes bytes;
		bool outstanding = false;
	};
	// one request at a time for each slot of four pages, so that the order never matters
	constexpr uint64_t slots = pages / 4;
	std::vector<Posted> posted(slots);
	// moves under way: with a ticket to come, or let go
	struct Move {
		uint64_t offset;
		uint64_t length;
		uint64_t ticket; // 0: let go at once
		bool aborted;
	};
	std::vector<Move> moves;
	std::vector<uint64_t> tickets;

	const auto end = [&](size_t i) {
		const Move move = moves[i];
		moves.erase(moves.begin() + static_cast<std::ptrdiff_t>(i));
		if (!move.aborted)
			host.relocate(move.offset, move.length);
		host.release(move.offset, move.length);
		nic.resume(move.offset, move.length, move.aborted);
	};
	const auto reap = [&]() -> std::string {
		peerbuf_completion completion = {};
		completion.struct_size = sizeof(completion);
		while (nic.ops().poll(nic.raw(), &completion) == 1) {
			Posted &p = posted[completion.context];
			p.outstanding = false;
			if (completion.status || completion.bytes != p.bytes.size())
				return say("slot ", completion.context, ": ", completion.status);
			const auto at = model.begin() + static_cast<std::ptrdiff_t>(p.at);
			if (p.op == Write) {
				std::copy(p.bytes.begin(), p.bytes.end(), at);
				continue;
			}
			const std::string wrong = firstDifference(
				p.bytes,
				Bytes(at, at + static_cast<std::ptrdiff_t>(p.bytes.size())));
			if (!wrong.empty())
				return say("read in slot ", completion.context, ": ", wrong);
		}
		return "";
	};

	for (int round = 0; round < 600; round++) {
		const uint64_t dice = random() % 10;
		if (dice < 4) {
			Posted &p = posted[random() % slots];
			if (p.outstanding)
				continue;
			const auto slot = static_cast<uint64_t>(&p - posted.data());
			const uint64_t low = std::max<uint64_t>(512, slot * 4 * page);
			const uint64_t high = std::min(host.size() - 512, (slot + 1) * 4 * page);
			p.op = random() % 2 ? Write : Read;
			p.at = low + random() % (high - low);
			p.bytes = pattern(1 + random() % (high - p.at), random());
			p.outstanding = true;
			if (nic.post(p.op, region.key64, p.at, p.bytes, slot))
				return "cannot post";
		} else if (dice < 7) {
			nic.ops().step(nic.raw(), static_cast<uint32_t>(random() % 6));
		} else if (dice < 8) {
			const uint64_t first = random() % pages;
			const uint64_t count = 1 + random() % std::min<uint64_t>(4, pages - first);
			const uint64_t offset = first * page;
			const uint64_t length = count * page;
			if (std::any_of(moves.begin(), moves.end(), [&](const Move &m) {
				    return offset < m.offset + m.length &&
					   m.offset < offset + length;
			    }))
				continue;
			host.suspend(offset, length);
			const int rc = nic.invalidate(PEERBUF_REASON_MOVE, offset, length);
			if (rc && rc != -EINPROGRESS)
				return say("invalidate: ", rc);
			moves.push_back(
				{offset, length, rc ? nic.lastTicket() : 0, random() % 4 == 0});
			if (rc)
				tickets.push_back(nic.lastTicket());
		} else if (!moves.empty()) {
			// an aborted move does not wait for its ticket
			const size_t i = random() % moves.size();
			if (!moves[i].ticket || moves[i].aborted ||
			    host.ticketsDone(moves[i].ticket))
				end(i);
		}
		const std::string wrong = reap();
		if (!wrong.empty())
			return say("round ", round, ": ", wrong);
	}
	nic.drain();
	while (!moves.empty()) {
		if (moves[0].ticket && !moves[0].aborted && !host.ticketsDone(moves[0].ticket))
			return say("ticket ", moves[0].ticket, " never came");
		end(0);
	}
	nic.drain();
	std::string wrong = reap();
	if (!wrong.empty())
		return wrong;
	if (nic.stats().in_flight)
		return say(nic.stats().in_flight, " requests never ended");
	for (const uint64_t ticket : tickets) {
		if (host.ticketsDone(ticket) != 1)
			return say("ticket ", ticket, " came ", host.ticketsDone(ticket), " times");
	}
	wrong = firstDifference(host.read(0, host.size()), model);
	if (!wrong.empty())
		return "in memory: " + wrong;
	if (const uint64_t stray = host.strayBytes())
		return say(stray, " bytes of left places written");
	if (nic.stats().violations)
		return say(nic.stats().violations, " violations");
	nic.dereg(region);
	if (nic.stats().translations || nic.stats().keys_used)
		return "something is left after dereg";
	return "";
}

} // namespace peerbuf::test
