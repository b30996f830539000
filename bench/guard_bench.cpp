// SPDX-License-Identifier: BSD-3-Clause
/*
 * What enter and leave cost on an open gate that nobody else uses, beside an empty loop.
 */
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "figures.h"
#include "tools/peerbuf/exit_code.h"

namespace peerbuf::bench
{

namespace
{

constexpr double goalNs = 20;

/** Exists and does nothing: without a second thread the C library leaves locks out. */
class Bystander
{
public:
	Bystander()
	    : thread_([this] {
		      std::unique_lock<std::mutex> lock(mutex_);
		      changed_.wait(lock, [this] { return ending_; });
	      })
	{
	}
	~Bystander()
	{
		{
			std::lock_guard<std::mutex> lock(mutex_);
			ending_ = true;
		}
		changed_.notify_one();
		thread_.join();
	}
	Bystander(const Bystander &) = delete;
	Bystander &operator=(const Bystander &) = delete;

private:
	std::mutex mutex_;
	std::condition_variable changed_;
	bool ending_ = false;
	std::thread thread_;
};

/** The compiler keeps one turn of the loop apart from the next. */
inline void turn()
{
	__asm__ __volatile__("" : : : "memory");
}

uint64_t emptyLoop(uint64_t turns)
{
	const uint64_t started = nowNs();
	for (uint64_t i = 0; i < turns; i++)
		turn();
	return nowNs() - started;
}

/** @return 0: the gate was closed. */
uint64_t guardedLoop(peerbuf_gate *gate, uint64_t turns)
{
	const uint64_t started = nowNs();
	for (uint64_t i = 0; i < turns; i++) {
		if (peerbuf_progress_enter(gate))
			return 0;
		turn();
		peerbuf_progress_leave(gate);
	}
	return nowNs() - started;
}

} // namespace

bool benchGuard(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	const Bystander bystander;
	const size_t pairs = bench.effort.pairs(201);
	const uint64_t turns = bench.effort.quick ? 10'000 : 200'000;
	std::vector<double> each;
	for (size_t i = 0; i < pairs; i++) {
		bench.output.progress(
			{"guard: pair " + std::to_string(i + 1) + " of " + std::to_string(pairs)});
		const uint64_t empty = emptyLoop(turns);
		const uint64_t guarded = guardedLoop(bench.world.gate, turns);
		if (!guarded) {
			*ret_failure = {tools::exitBad, "the gate is closed, and nothing moves"};
			return false;
		}
		each.push_back((static_cast<double>(guarded) - static_cast<double>(empty)) /
			       static_cast<double>(turns));
	}
	const Estimate e = estimate(each);
	/* one number, and beside it what belongs to it */
	Json guard = ratioJson("median", e);
	ret_report->json = guard["median"];
	guard["least"] = e.least;
	ret_report->more["guard"] = std::move(guard);
	ret_report->rows.push_back({"guard alone, ns", number(e.median, 1), interval(e, 1), "<= 20",
				    verdictAtMost(e, goalNs)});
	return true;
}

} // namespace peerbuf::bench
