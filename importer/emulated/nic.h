// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file nic.h
 * An emulated RDMA NIC: keys, regions, a cached translation, and an engine that moves packets.
 *
 * A packet is worked on twice. When it is fetched its translation is looked up and, for a write,
 * its bytes leave the peer; when it lands the bytes reach memory. Between the two it is in flight,
 * and nothing can call it back: that is what an invalidate has to wait for.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_NIC_H
#define PEERBUF_IMPORTER_EMULATED_NIC_H

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <peerbuf/importer.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "fault_plan.h"
#include "geometry.h"
#include "iommu_domain.h"
#include "mutex.h"
#include "options.h"
#include "region.h"

namespace peerbuf::emulated
{

/**
 * Thread-safe. One mutex guards everything. It is a leaf towards the host: map, ticket_done, fail
 * and log are called without it, so that slots which run under the reservation may take it.
 */
class Nic
{
public:
	Nic(const peerbuf_host *host, NicOptions options);
	/** No other call may be under way. */
	~Nic();
	Nic(const Nic &) = delete;
	Nic &operator=(const Nic &) = delete;

	/** Start the thread of engine=thread. */
	void start();

	bool threaded() const { return options_.threaded; }
	const peerbuf_host *host() const { return host_.raw(); }
	FaultPlan &faults() { return faults_; }

	int offer(peerbuf_importer_offer &ret_offer) NIC_EXCLUDES(mutex_);
	int reg(const peerbuf_reg_request &request, peerbuf_region &ret_region)
		NIC_EXCLUDES(mutex_);
	void dereg(uint64_t token) NIC_EXCLUDES(mutex_);
	int invalidate(const peerbuf_importer_invalidate &inv) NIC_EXCLUDES(mutex_);
	void resume(const peerbuf_importer_resume &res) NIC_EXCLUDES(mutex_);

	/**
	 * A stepped engine is driven until the transfer is complete. If all that is left waits for
	 * a resume the transfer is taken back, what was in flight lands, and the answer is -EBUSY;
	 * part of the bytes may have been moved. With a thread it waits for as long as it takes.
	 */
	int transfer(const peerbuf_transfer &transfer) NIC_EXCLUDES(mutex_);
	int post(const peerbuf_transfer &transfer) NIC_EXCLUDES(mutex_);
	/** @return how many actions were done: a fetch, a landing or a refault each. */
	int step(uint32_t actions) NIC_EXCLUDES(mutex_);
	bool poll(peerbuf_completion &ret_completion) NIC_EXCLUDES(mutex_);
	void stats(peerbuf_importer_stats &ret_stats) NIC_EXCLUDES(mutex_);

private:
	using RegionPtr = std::shared_ptr<Region>;
	using RequestPtr = std::shared_ptr<Request>;

	/**
	 * What is told to the host once the mutex is free. Declared before the lock, it delivers
	 * when the lock is gone.
	 */
	class After
	{
	public:
		explicit After(const plugin::Host &host) : host_(host) {}
		~After() { deliver(); }
		After(const After &) = delete;
		After &operator=(const After &) = delete;

		void ticket(uint64_t ticket) { tickets_.push_back(ticket); }
		void log(uint32_t level, std::string line)
		{
			lines_.emplace_back(level, std::move(line));
		}
		bool empty() const { return tickets_.empty() && lines_.empty(); }
		void deliver() noexcept;

	private:
		const plugin::Host &host_;
		std::vector<uint64_t> tickets_;
		std::vector<std::pair<uint32_t, std::string>> lines_;
	};

	struct Stop {
		RegionPtr region;
		PageRange pages;
	};
	/** An invalidate that was answered -EINPROGRESS. */
	struct Ticket {
		uint64_t id;
		uint64_t upTo; // serial: later packets are not its business
		std::vector<Stop> stops;
	};
	enum class ActionKind { Fetch, LandWrite, LandRead };
	struct Action {
		ActionKind kind;
		size_t index;
	};

	// keys
	bool takeKey(Region &region) NIC_REQUIRES(mutex_);
	void freeKey(Region &region) NIC_REQUIRES(mutex_);
	void freeKeyTooEarly(const RegionPtr &region) NIC_REQUIRES(mutex_);

	// regions and their translation
	std::optional<Failure> makeRegion(const peerbuf_reg_request &request, Layout &ret_layout,
					  RegionPtr &ret_region) const;
	std::optional<Failure> enter(const RegionPtr &region, const peerbuf_mapping *mapping,
				     const Layout &layout, int failKey, int failProgram,
				     After &after) NIC_REQUIRES(mutex_);
	std::optional<Failure> prefault(const RegionPtr &region, After &after) NIC_REQUIRES(mutex_);
	void remove(const RegionPtr &region) NIC_REQUIRES(mutex_);
	std::optional<Failure> program(Region &region, const Layout &layout,
				       const peerbuf_mapping &mapping, PageRange pages)
		NIC_REQUIRES(mutex_);
	std::optional<Failure> install(Region &region, const peerbuf_mapping &mapping,
				       PageRange pages) NIC_REQUIRES(mutex_);
	void drop(Region &region, PageRange pages) NIC_REQUIRES(mutex_);
	int fetchRange(const RegionPtr &region, PageRange pages, After &after) NIC_REQUIRES(mutex_);
	void refault(const RequestPtr &request, const RegionPtr &region, uint64_t page,
		     After &after) NIC_REQUIRES(mutex_);
	bool blocked(const Region &region, uint64_t page) const
	{
		return options_.wholeScope ? !region.stopped.empty()
					   : region.stopped.contains(page);
	}

	// letting go
	bool drained(const Ticket &ticket) const NIC_REQUIRES(mutex_);
	void acknowledge(const Ticket &ticket) NIC_REQUIRES(mutex_);
	void settleTickets(After &after) NIC_REQUIRES(mutex_);

	// engine
	void run();
	RegionPtr findKey(uint64_t key) const NIC_REQUIRES(mutex_);
	bool waits(const Request &request) const NIC_REQUIRES(mutex_);
	void listActions() NIC_REQUIRES(mutex_);
	bool stepOnce(After &after) NIC_REQUIRES(mutex_);
	void fetch(const RequestPtr &request, After &after) NIC_REQUIRES(mutex_);
	void land(const Packet &packet, After &after) NIC_REQUIRES(mutex_);
	void landWrite(size_t index, After &after) NIC_REQUIRES(mutex_);
	void landRead(size_t index, After &after) NIC_REQUIRES(mutex_);
	template <typename Match> void landAll(Match match, After &after) NIC_REQUIRES(mutex_);
	void settle(const RequestPtr &request) NIC_REQUIRES(mutex_);
	void complete(const RequestPtr &request, uint64_t bytes) NIC_REQUIRES(mutex_);
	RequestPtr enqueue(const peerbuf_transfer &transfer, bool direct) NIC_REQUIRES(mutex_);
	bool busy() const NIC_REQUIRES(mutex_);
	void deliver(After &after) NIC_REQUIRES(mutex_);
	void trace(After &after, const char *what, const Packet &packet) const;

	const plugin::Host host_;
	const NicOptions options_;
	FaultPlan faults_;

	Mutex mutex_;
	std::condition_variable_any changed_; // anything below that somebody may wait for
	std::mt19937_64 random_ NIC_GUARDED_BY(mutex_);
	IommuDomain domain_ NIC_GUARDED_BY(mutex_);
	uint64_t serial_ NIC_GUARDED_BY(mutex_) = 0;

	std::map<uint64_t, RegionPtr> regions_ NIC_GUARDED_BY(mutex_); // by token
	std::unordered_map<uint64_t, RegionPtr> keys_ NIC_GUARDED_BY(mutex_);
	std::multimap<uint64_t, RegionPtr> attachments_ NIC_GUARDED_BY(mutex_);
	uint64_t lastToken_ NIC_GUARDED_BY(mutex_) = 0;

	std::vector<uint8_t> generations_ NIC_GUARDED_BY(mutex_);  // by slot, for slots ever used
	std::deque<uint64_t> freeSlots_ NIC_GUARDED_BY(mutex_);	   // oldest first
	std::vector<uint64_t> leakedSlots_ NIC_GUARDED_BY(mutex_); // of a mutant
	uint64_t keysUsed_ NIC_GUARDED_BY(mutex_) = 0;

	std::vector<RequestPtr> requests_ NIC_GUARDED_BY(mutex_); // in the order of posting
	uint64_t lastRequest_ NIC_GUARDED_BY(mutex_) = 0;
	uint64_t queued_ NIC_GUARDED_BY(mutex_) = 0;	   // posted and not polled
	std::deque<Packet> writes_ NIC_GUARDED_BY(mutex_); // posted: land in order, as on PCIe
	std::deque<Packet> reads_ NIC_GUARDED_BY(mutex_);
	std::deque<peerbuf_completion> completions_ NIC_GUARDED_BY(mutex_);
	std::vector<Ticket> tickets_ NIC_GUARDED_BY(mutex_);
	std::vector<Action> actions_ NIC_GUARDED_BY(mutex_);

	uint64_t translations_ NIC_GUARDED_BY(mutex_) = 0;
	uint64_t refaults_ NIC_GUARDED_BY(mutex_) = 0;
	uint64_t refaultNs_ NIC_GUARDED_BY(mutex_) = 0;
	uint64_t violations_ NIC_GUARDED_BY(mutex_) = 0;

	bool stopping_ NIC_GUARDED_BY(mutex_) = false;
	std::thread thread_;
};

} // namespace peerbuf::emulated

#endif
