// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file serving_host.h
 * A host that serves map from memory of its own, and an open NIC on it.
 */
#ifndef PEERBUF_TESTS_IMPORTER_EMULATED_SERVING_HOST_H
#define PEERBUF_TESTS_IMPORTER_EMULATED_SERVING_HOST_H

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <peerbuf/importer.h>
#include <peerbuf/testing.h>

namespace peerbuf::test
{

constexpr auto Write = PEERBUF_TRANSFER_WRITE;
constexpr auto Read = PEERBUF_TRANSFER_READ;

constexpr uint64_t page = 4096;
/** What memory holds that nobody may have written since it was left. */
constexpr unsigned char poison = 0xDD;

using Bytes = std::vector<unsigned char>;
using Params = std::vector<std::pair<std::string, std::string>>;

Bytes pattern(uint64_t length, uint64_t seed);

/**
 * One buffer whose pages lie anywhere in a memory that has room for three of it. Thread-safe.
 * Plays the core and the exporter: reservation, suspended ranges, moves, tickets.
 */
class ServingHost : public peerbuf_host
{
public:
	/** @param chunk pages that stay together in memory; the one after lies elsewhere. */
	explicit ServingHost(uint64_t pages = 64, uint64_t chunk = 3);

	static constexpr uint64_t attachment = 77;

	uint64_t size() const { return places_.size() * page; }
	/** The buffer's bytes, as the exporter sees them. */
	Bytes read(uint64_t offset, uint64_t length);
	void write(uint64_t offset, const Bytes &bytes);
	/** Bytes of memory that is not the buffer's and is not poison any more. */
	uint64_t strayBytes();
	/** Where a page of the buffer is. */
	unsigned char *cpuOf(uint64_t offset);

	/** A mapping that lives as long as the host, or until what it covers is let go. */
	peerbuf_mapping *mapping(uint64_t offset, uint64_t length);

	/* map's behaviour, under the reservation */
	uint64_t granularity = page;
	uint64_t busBase = uint64_t{1} << 40;
	uint32_t peer2peer = 1;
	bool adjacentSegments = false; // every page a segment, though they are adjacent
	/** Called first, with nothing held; a result other than 0 is the answer. */
	std::function<int(uint64_t offset, uint64_t length)> onMap;
	/** Called on a mapping about to be returned, with nothing held. */
	std::function<void(peerbuf_mapping &)> onMapped;

	/* what happened */
	std::vector<std::pair<uint64_t, uint64_t>> mapCalls();
	uint64_t ticketsDone(uint64_t ticket);
	bool waitTicket(uint64_t ticket);
	std::string lastFailure();
	uint32_t lastErrc();
	std::vector<std::string> lines();

	/* the core's part of moves; the reservation is held around the slots, as by the core */
	void suspend(uint64_t offset, uint64_t length);
	void release(uint64_t offset, uint64_t length);
	void markRevoked();
	/** Copy a range to new places, poison the old. Every page must have been let go. */
	void relocate(uint64_t offset, uint64_t length);
	std::recursive_mutex reservation;

private:
	struct Served {
		uint64_t offset;
		uint64_t length;
		std::vector<peerbuf_segment> segments;
		peerbuf_mapping mapping;
	};
	Served &serve(uint64_t offset, uint64_t length);
	void forget(uint64_t offset, uint64_t length);
	unsigned char *at(uint64_t place) { return memory_.data() + place * page; }

	static int mapSlot(const peerbuf_host *host, uint64_t whose, uint64_t offset,
			   uint64_t length, peerbuf_mapping *ret_mapping);

	Bytes memory_;
	std::vector<uint64_t> places_; // by page of the buffer: page of the memory
	std::vector<bool> taken_;      // by page of the memory
	uint64_t generation_ = 1;
	std::list<Served> served_;
	std::vector<std::pair<uint64_t, uint64_t>> suspended_;
	bool revoked_ = false;

	std::mutex mutex_; // of what follows
	std::condition_variable ticket_;
	std::vector<std::pair<uint64_t, uint64_t>> mapCalls_;
	std::map<uint64_t, uint64_t> tickets_;
	std::string failure_;
	uint32_t errc_ = 0;
	std::vector<std::string> lines_;
};

/** The plugin, loaded once. */
const peerbuf_importer_plugin &emulatedPlugin();

/** An open NIC. Thread-safe as the plugin is. */
class OpenNic
{
public:
	OpenNic(ServingHost &host, const Params &params);
	~OpenNic();
	OpenNic(const OpenNic &) = delete;
	OpenNic &operator=(const OpenNic &) = delete;

	int rc() const { return rc_; }
	void *raw() const { return nic_; }
	const peerbuf_importer_test_ops &ops() const { return *ops_; }

	peerbuf_importer_offer offer();
	peerbuf_importer_stats stats();
	/** A request for [offset, offset + length), flow Movable, that maps later. */
	peerbuf_reg_request request(uint64_t offset, uint64_t length, uint64_t iova);
	int reg(const peerbuf_reg_request &request, peerbuf_region &ret_region);
	void dereg(const peerbuf_region &region);

	/** @return what the slot said; tickets are numbered from 1. */
	int invalidate(uint32_t reason, uint64_t offset, uint64_t length,
		       uint64_t attachment = ServingHost::attachment);
	uint64_t lastTicket() const { return ticket_; }
	void resume(uint64_t offset, uint64_t length, bool aborted = false,
		    uint64_t attachment = ServingHost::attachment);
	/** Suspend, let go (stepping where that is possible), relocate, resume. */
	void move(uint64_t offset, uint64_t length);

	int transfer(peerbuf_transfer_op op, uint64_t key, uint64_t address, Bytes &bytes);
	int post(peerbuf_transfer_op op, uint64_t key, uint64_t address, Bytes &bytes,
		 uint64_t context);
	void drain();
	/** Step until a packet is fetched and not landed. Needs trace=yes. @return whether one is.
	 */
	bool stepIntoFlight();

private:
	ServingHost &host_;
	void *nic_ = nullptr;
	const peerbuf_importer_test_ops *ops_ = nullptr;
	int rc_ = 0;
	uint64_t ticket_ = 0;
};

} // namespace peerbuf::test

#endif
