// SPDX-License-Identifier: BSD-3-Clause
/*
 * How long it takes to stop a data path that has 16 operations in flight: from the device's notice
 * to the acknowledgement, on the one thread that polls the queue and makes progress. An operation
 * in flight is not waited for; only a provider call is, and this thread is in none then.
 */
#include <algorithm>
#include <cerrno>

#include "figures.h"
#include "initiator.h"
#include "tools/peerbuf/exit_code.h"

namespace peerbuf::bench
{

namespace
{

constexpr size_t window = 16;
constexpr uint64_t operation = 64 << 10;
constexpr uint64_t region = 16 << 20;
constexpr uint64_t patienceNs = 60'000'000'000;

bool closed(const peerbuf_gate *gate)
{
	return __atomic_load_n(&gate->word, __ATOMIC_ACQUIRE) & PEERBUF_GATE_CLOSED;
}

/** Start the next move. @return 0; -EBUSY: the last one is not over; else with a failure. */
int startMove(const World &world, uint64_t buffer, Failure *ret_failure)
{
	auto request = sized<peerbuf_move_request>();
	const int rc = world.device->move(world.deviceObject, buffer, &request);
	if (rc && rc != -EBUSY)
		*ret_failure = brokenCall("move under traffic");
	return rc;
}

} // namespace

bool benchSuspend(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	World &world = bench.world;
	const size_t wanted = bench.effort.quick ? 20 : 2000;
	/* On a busy machine they come slowly; so many say something. */
	const size_t enough = bench.effort.quick ? 1 : 200;
	Held held;
	if (!world.alloc(region, &held, ret_failure) || !world.registerWith(&held, ret_failure))
		return false;
	Initiator initiator(world.target->provider(), world.target->name(), region);
	Initiator::Job job;
	job.key = held.region.key64;
	job.base = held.region.remote_base;
	job.reach = region;
	job.size = operation;
	job.operations = Initiator::untilStopped;
	job.window = window;
	job.yields = true; /* the device is a third that wants a CPU */
	initiator.begin(job);

	std::vector<double> ns;
	const uint64_t started = nowNs();
	uint64_t resumed = region; /* of the move under way */
	int rc = 0;
	tools::RmaCompletion completion;
	while (rc == 0 && !initiator.done() && ns.size() < wanted) {
		if (resumed >= region) {
			bench.output.progress({"suspend: " + std::to_string(ns.size()) + " of " +
					       std::to_string(wanted)});
			const int begun = startMove(world, held.info.handle, ret_failure);
			if (begun == 0)
				resumed = 0;
			else if (begun != -EBUSY)
				break;
		}
		rc = world.poll(&completion);
		const bool full = initiator.inFlight() == window;
		const bool open = !closed(world.gate);
		const uint64_t before = nowNs();
		resumed += world.progress();
		const uint64_t after = nowNs();
		if (open && full && closed(world.gate))
			ns.push_back(static_cast<double>(after - before));
		if (after - started > patienceNs)
			break;
	}
	/* the last move ends, and what is in flight completes */
	initiator.stop();
	while (rc == 0 && (!initiator.done() || resumed < region)) {
		rc = world.poll(&completion);
		resumed += world.progress();
		if (nowNs() - started > 2 * patienceNs)
			rc = -ETIMEDOUT;
	}
	if (!ret_failure->why.empty())
		return false;
	if (rc || !initiator.error().empty() || ns.size() < enough) {
		*ret_failure = {
			tools::exitBad,
			"traffic under moves: " +
				(rc ? "the target: " + std::to_string(rc) + " " + completion.what
				    : "the peer: " + initiator.error()) +
				", " + std::to_string(ns.size()) + " samples"};
		return false;
	}
	ret_report->json = percentilesUs(ns);
	ret_report->json["least"] = *std::min_element(ns.begin(), ns.end()) / 1e3;
	ret_report->json["samples"] = ns.size();
	ret_report->rows.push_back(
		{"suspend, 16 in flight, p50 / p99, us",
		 number(percentile(ns, 50) / 1e3, 1) + " / " + number(percentile(ns, 99) / 1e3, 1),
		 "", "", ""});
	return true;
}

} // namespace peerbuf::bench
