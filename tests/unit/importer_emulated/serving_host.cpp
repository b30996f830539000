// SPDX-License-Identifier: BSD-3-Clause
#include "serving_host.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

namespace peerbuf::test
{

namespace
{

ServingHost &self(const peerbuf_host *host)
{
	return *const_cast<ServingHost *>(static_cast<const ServingHost *>(host));
}

uint64_t now(const peerbuf_host *)
{
	return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

bool overlap(uint64_t a, uint64_t aLength, uint64_t b, uint64_t bLength)
{
	return a < b + bLength && b < a + aLength;
}

} // namespace

Bytes pattern(uint64_t length, uint64_t seed)
{
	std::mt19937_64 random(seed);
	Bytes bytes(length);
	for (uint64_t i = 0; i < length; i += sizeof(uint64_t)) {
		const uint64_t word = random();
		std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), length - i));
	}
	return bytes;
}

ServingHost::ServingHost(uint64_t pages, uint64_t chunk)
    : peerbuf_host(),
      memory_(3 * pages * page, poison),
      taken_(3 * pages)
{
	struct_size = sizeof(peerbuf_host);
	log = [](const peerbuf_host *host, uint32_t, const char *line) {
		ServingHost &h = self(host);
		const std::lock_guard<std::mutex> lock(h.mutex_);
		h.lines_.emplace_back(line);
	};
	now_ns = now;
	fail = [](const peerbuf_host *host, uint32_t errc, const char *message) {
		ServingHost &h = self(host);
		const std::lock_guard<std::mutex> lock(h.mutex_);
		h.failure_ = message;
		h.errc_ = errc;
	};
	peerbuf_host::map = mapSlot;
	ticket_done = [](const peerbuf_host *host, uint64_t ticket) {
		ServingHost &h = self(host);
		{
			const std::lock_guard<std::mutex> lock(h.mutex_);
			h.tickets_[ticket]++;
		}
		h.ticket_.notify_all();
	};
	// chunks go down through memory, every second one in the upper half of it
	for (uint64_t i = 0; i < pages; i++) {
		const uint64_t group = i / chunk;
		const uint64_t groups = (pages + chunk - 1) / chunk;
		const uint64_t slot = groups - 1 - group;
		uint64_t place = slot * chunk + i % chunk;
		if (group % 2)
			place += pages + chunk;
		places_.push_back(place);
		taken_[place] = true;
		std::fill_n(at(place), page, 0);
	}
}

unsigned char *ServingHost::cpuOf(uint64_t offset)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	return at(places_[offset / page]) + offset % page;
}

Bytes ServingHost::read(uint64_t offset, uint64_t length)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	Bytes bytes(length);
	for (uint64_t done = 0; done < length;) {
		const uint64_t n = std::min(length - done, page - (offset + done) % page);
		std::memcpy(bytes.data() + done, cpuOf(offset + done), n);
		done += n;
	}
	return bytes;
}

void ServingHost::write(uint64_t offset, const Bytes &bytes)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	for (uint64_t done = 0; done < bytes.size();) {
		const uint64_t n = std::min(bytes.size() - done, page - (offset + done) % page);
		std::memcpy(cpuOf(offset + done), bytes.data() + done, n);
		done += n;
	}
}

uint64_t ServingHost::strayBytes()
{
	uint64_t stray = 0;
	for (uint64_t i = 0; i < taken_.size(); i++) {
		if (!taken_[i])
			stray += page -
				 static_cast<uint64_t>(std::count(at(i), at(i) + page, poison));
	}
	return stray;
}

ServingHost::Served &ServingHost::serve(uint64_t offset, uint64_t length)
{
	const uint64_t begin = offset - offset % granularity;
	const uint64_t end = (offset + length + granularity - 1) / granularity * granularity;
	Served served = {begin, end - begin, {}, {}};
	for (uint64_t at = begin; at < end; at += page) {
		unsigned char *const cpu = cpuOf(at);
		const uint64_t bus = busBase + static_cast<uint64_t>(cpu - memory_.data());
		if (!adjacentSegments && !served.segments.empty()) {
			peerbuf_segment &last = served.segments.back();
			if (last.dma_addr + last.length == bus) {
				last.length += page;
				continue;
			}
		}
		served.segments.push_back({bus, page, cpu});
	}
	served_.push_back(std::move(served));
	Served &kept = served_.back();
	kept.mapping.struct_size = sizeof(peerbuf_mapping);
	kept.mapping.placement = PEERBUF_PLACEMENT_DEVICE;
	kept.mapping.peer2peer = peer2peer;
	kept.mapping.offset = begin;
	kept.mapping.length = end - begin;
	kept.mapping.generation = generation_;
	kept.mapping.n_segments = kept.segments.size();
	kept.mapping.segments = kept.segments.data();
	return kept;
}

peerbuf_mapping *ServingHost::mapping(uint64_t offset, uint64_t length)
{
	return &serve(offset, length).mapping;
}

/** The importer let go: what it was given is no longer there. */
void ServingHost::forget(uint64_t offset, uint64_t length)
{
	served_.remove_if([&](const Served &served) {
		return overlap(served.offset, served.length, offset, length);
	});
}

int ServingHost::mapSlot(const peerbuf_host *host, uint64_t whose, uint64_t offset, uint64_t length,
			 peerbuf_mapping *ret_mapping)
{
	ServingHost &h = self(host);
	{
		const std::lock_guard<std::mutex> lock(h.mutex_);
		h.mapCalls_.emplace_back(offset, length);
	}
	if (h.onMap) {
		if (const int rc = h.onMap(offset, length))
			return rc;
	}
	{
		const std::lock_guard<std::recursive_mutex> lock(h.reservation);
		if (whose != ServingHost::attachment || offset + length > h.size())
			return -EINVAL;
		if (h.revoked_)
			return -ENODEV;
		for (const auto &[from, bytes] : h.suspended_) {
			if (overlap(from, bytes, offset, length))
				return -EAGAIN;
		}
		*ret_mapping = h.serve(offset, length).mapping;
	}
	if (h.onMapped)
		h.onMapped(*ret_mapping);
	return 0;
}

std::vector<std::pair<uint64_t, uint64_t>> ServingHost::mapCalls()
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return mapCalls_;
}

uint64_t ServingHost::ticketsDone(uint64_t ticket)
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return tickets_[ticket];
}

bool ServingHost::waitTicket(uint64_t ticket)
{
	std::unique_lock<std::mutex> lock(mutex_);
	return ticket_.wait_for(lock, std::chrono::seconds(60),
				[&] { return tickets_[ticket] > 0; });
}

std::string ServingHost::lastFailure()
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return failure_;
}

uint32_t ServingHost::lastErrc()
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return errc_;
}

std::vector<std::string> ServingHost::lines()
{
	const std::lock_guard<std::mutex> lock(mutex_);
	return lines_;
}

void ServingHost::suspend(uint64_t offset, uint64_t length)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	suspended_.emplace_back(offset, length);
}

void ServingHost::release(uint64_t offset, uint64_t length)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	std::erase(suspended_, std::make_pair(offset, length));
}

void ServingHost::markRevoked()
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	revoked_ = true;
}

void ServingHost::relocate(uint64_t offset, uint64_t length)
{
	const std::lock_guard<std::recursive_mutex> lock(reservation);
	forget(offset, length);
	generation_++;
	for (uint64_t i = offset / page; i < (offset + length) / page; i++) {
		const uint64_t old = places_[i];
		// anywhere but where it was: the next free one, going round
		uint64_t place = (old + 1) % taken_.size();
		while (taken_[place])
			place = (place + 1) % taken_.size();
		std::memcpy(at(place), at(old), page);
		std::fill_n(at(old), page, poison);
		taken_[old] = false;
		taken_[place] = true;
		places_[i] = place;
	}
}

const peerbuf_importer_plugin &emulatedPlugin()
{
	static const peerbuf_importer_plugin *const plugin = [] {
		const char *path = std::getenv("PEERBUF_PLUGIN_PATH");
		std::istringstream dirs(path ? path : "");
		for (std::string dir; std::getline(dirs, dir, ':');) {
			void *const object = dlopen((dir + "/peerbuf-importer-emulated.so").c_str(),
						    RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
			if (object)
				return static_cast<const peerbuf_importer_plugin *>(
					dlsym(object, "peerbuf_importer_v1"));
		}
		std::fprintf(stderr, "no peerbuf-importer-emulated.so in PEERBUF_PLUGIN_PATH=%s\n",
			     path ? path : "");
		std::abort();
	}();
	return *plugin;
}

OpenNic::OpenNic(ServingHost &host, const Params &params) : host_(host)
{
	std::vector<peerbuf_param> raw;
	for (const auto &[key, value] : params)
		raw.push_back({key.c_str(), value.c_str()});
	rc_ = emulatedPlugin().open(&host, raw.data(), raw.size(), nullptr, &nic_);
	if (rc_)
		return;
	const void *table = nullptr;
	rc_ = emulatedPlugin().open_ops(nic_, PEERBUF_IMPORTER_TEST_OPS, &table);
	ops_ = static_cast<const peerbuf_importer_test_ops *>(table);
}

OpenNic::~OpenNic()
{
	if (nic_)
		emulatedPlugin().close(nic_);
}

peerbuf_importer_offer OpenNic::offer()
{
	peerbuf_importer_offer offer = {};
	offer.struct_size = sizeof(offer);
	EXPECT_EQ(emulatedPlugin().offer(nic_, &offer), 0);
	return offer;
}

peerbuf_importer_stats OpenNic::stats()
{
	peerbuf_importer_stats stats = {};
	stats.struct_size = sizeof(stats);
	EXPECT_EQ(ops_->stats(nic_, &stats), 0);
	return stats;
}

peerbuf_reg_request OpenNic::request(uint64_t offset, uint64_t length, uint64_t iova)
{
	peerbuf_reg_request request = {};
	request.struct_size = sizeof(request);
	request.flow = PEERBUF_FLOW_MOVABLE;
	request.access = PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;
	request.attachment = ServingHost::attachment;
	request.offset = offset;
	request.length = length;
	request.iova = iova;
	request.granularity = host_.granularity;
	request.name = "buf";
	return request;
}

int OpenNic::reg(const peerbuf_reg_request &request, peerbuf_region &ret_region)
{
	ret_region = {};
	ret_region.struct_size = sizeof(ret_region);
	const std::lock_guard<std::recursive_mutex> lock(host_.reservation);
	return emulatedPlugin().reg(nic_, &request, &ret_region);
}

void OpenNic::dereg(const peerbuf_region &region)
{
	emulatedPlugin().dereg(nic_, region.token);
}

int OpenNic::invalidate(uint32_t reason, uint64_t offset, uint64_t length, uint64_t attachment)
{
	peerbuf_importer_invalidate inv = {};
	inv.struct_size = sizeof(inv);
	inv.reason = reason;
	inv.attachment = attachment;
	inv.offset = offset;
	inv.length = length;
	inv.ticket = ++ticket_;
	const std::lock_guard<std::recursive_mutex> lock(host_.reservation);
	return emulatedPlugin().invalidate(nic_, &inv);
}

void OpenNic::resume(uint64_t offset, uint64_t length, bool aborted, uint64_t attachment)
{
	peerbuf_importer_resume res = {};
	res.struct_size = sizeof(res);
	res.aborted = aborted;
	res.attachment = attachment;
	res.offset = offset;
	res.length = length;
	const std::lock_guard<std::recursive_mutex> lock(host_.reservation);
	emulatedPlugin().resume(nic_, &res);
}

void OpenNic::move(uint64_t offset, uint64_t length)
{
	host_.suspend(offset, length);
	const int rc = invalidate(PEERBUF_REASON_MOVE, offset, length);
	const uint64_t ticket = ticket_;
	if (rc == -EINPROGRESS && ops_->step) {
		while (!host_.ticketsDone(ticket) && ops_->step(nic_, 1) > 0) {
		}
		EXPECT_EQ(host_.ticketsDone(ticket), 1u);
	} else if (rc == -EINPROGRESS) {
		EXPECT_TRUE(host_.waitTicket(ticket));
	} else {
		EXPECT_EQ(rc, 0) << host_.lastFailure();
	}
	host_.relocate(offset, length);
	host_.release(offset, length);
	resume(offset, length);
}

namespace
{

peerbuf_transfer make(peerbuf_transfer_op op, uint64_t key, uint64_t address, Bytes &bytes,
		      uint64_t context)
{
	peerbuf_transfer transfer = {};
	transfer.struct_size = sizeof(transfer);
	transfer.op = op;
	transfer.key64 = key;
	transfer.remote_addr = address;
	transfer.data = bytes.data();
	transfer.length = bytes.size();
	transfer.context = context;
	return transfer;
}

} // namespace

int OpenNic::transfer(peerbuf_transfer_op op, uint64_t key, uint64_t address, Bytes &bytes)
{
	const peerbuf_transfer transfer = make(op, key, address, bytes, 0);
	return ops_->transfer(nic_, &transfer);
}

int OpenNic::post(peerbuf_transfer_op op, uint64_t key, uint64_t address, Bytes &bytes,
		  uint64_t context)
{
	const peerbuf_transfer transfer = make(op, key, address, bytes, context);
	return ops_->post(nic_, &transfer);
}

void OpenNic::drain()
{
	while (ops_->step(nic_, 1000) > 0) {
	}
}

bool OpenNic::stepIntoFlight()
{
	for (;;) {
		int64_t inFlight = 0;
		for (const std::string &line : host_.lines()) {
			inFlight += line.starts_with("fetch ");
			inFlight -= line.starts_with("land ");
		}
		if (inFlight > 0)
			return true;
		if (ops_->step(nic_, 1) != 1)
			return false;
	}
}

} // namespace peerbuf::test
