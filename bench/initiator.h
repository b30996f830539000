// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_BENCH_INITIATOR_H
#define PEERBUF_BENCH_INITIATOR_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/peerbuf/pair.h"
#include "tools/peerbuf/rma.h"

namespace peerbuf::bench
{

/**
 * A peer that writes, on a thread of its own: an ordinary libfabric program that knows nothing of
 * peerbuf. It sleeps between two jobs. Its functions are called by one other thread.
 */
class Initiator
{
public:
	static constexpr uint64_t untilStopped = UINT64_MAX;

	struct Job {
		uint64_t key = 0;
		uint64_t base = 0;
		uint64_t reach = 0; /* bytes of the region; operations walk through it */
		uint64_t size = 0;  /* of one operation; divides reach */
		uint64_t operations = 0;
		size_t window = 1;   /* of them in flight */
		bool yields = false; /* its CPU while there is nothing to do */
	};

	/** @param source bytes of its own memory that operations walk through. */
	Initiator(std::string provider, std::vector<uint8_t> target, uint64_t source);
	~Initiator();
	Initiator(const Initiator &) = delete;
	Initiator &operator=(const Initiator &) = delete;

	void begin(const Job &job);
	/** Post no more; what is in flight completes. */
	void stop() { stop_.store(true, std::memory_order_relaxed); }
	/** Until then the target has to be served by whoever asks. */
	bool done() const { return done_.load(std::memory_order_acquire); }
	size_t inFlight() const { return inFlight_.load(std::memory_order_relaxed); }

	/** Of the job that is done: from the first post to the last completion. */
	uint64_t ns() const { return ns_; }
	/** "" or what went wrong, for good. */
	const std::string &error() const { return error_; }

private:
	void run();
	void open();
	void work(const Job &job);

	const std::string provider_;
	const std::vector<uint8_t> targetName_;
	std::vector<uint8_t> source_;
	std::unique_ptr<tools::RmaEndpoint> endpoint_;
	tools::RmaMemory memory_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;

	std::mutex mutex_;
	std::condition_variable changed_;
	bool ending_ = false;  /* under mutex_, as the next two */
	bool waiting_ = false; /* a job that was not begun */
	Job job_;
	std::atomic<bool> stop_{false};
	std::atomic<bool> abandon_{false}; /* also what is in flight */
	std::atomic<bool> done_{true};
	std::atomic<size_t> inFlight_{0};
	uint64_t ns_ = 0;   /* the thread's until done_ */
	std::string error_; /* the thread's until done_ */
	std::thread thread_;
};

} // namespace peerbuf::bench

#endif
