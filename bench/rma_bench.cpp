// SPDX-License-Identifier: BSD-3-Clause
/*
 * RMA into the device's memory, registered and polled through peerbuf, against the same memory
 * registered by fi_mr_reg and polled without a gate. Both registrations exist all the time, on the
 * same domain, endpoint, connection and window of memory; what differs is the key the peer writes
 * with and the target's loop.
 */
#include <algorithm>
#include <array>

#include "figures.h"
#include "initiator.h"
#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::bench
{

namespace
{

constexpr double goal = 0.97;
constexpr uint64_t region = 64 << 20;
constexpr uint64_t source = 32 << 20;
constexpr uint64_t patienceNs = 30'000'000'000;
/* An application asks peerbuf for news now and then, not between any two polls; so does the demo.
 */
constexpr uint64_t pollsPerProgress = 64;

struct Size {
	uint64_t bytes;
	size_t window;
};
constexpr std::array<Size, 4> sizes = {
	{{4 << 10, 16}, {64 << 10, 16}, {1 << 20, 16}, {16 << 20, 2}}};

class Rma
{
public:
	Rma(World &world, Held &held)
	    : world_(world),
	      held_(held),
	      initiator_(world.target->provider(), world.target->name(), source)
	{
	}

	bool open(Failure *ret_failure);
	/** @return ns of so many operations, 0 with a failure. */
	double block(bool throughPeerbuf, const Size &size, uint64_t operations,
		     Failure *ret_failure);

private:
	bool serve(bool throughPeerbuf, Failure *ret_failure);

	World &world_;
	Held &held_;
	Initiator initiator_;
	tools::RmaMemory raw_;
};

bool Rma::open(Failure *ret_failure)
{
	std::string why;
	if (world_.target->expose(held_.bytes(), region, FI_REMOTE_READ | FI_REMOTE_WRITE, &raw_,
				  why) == 0)
		return true;
	*ret_failure = {tools::exitBad, why};
	return false;
}

bool Rma::serve(bool throughPeerbuf, Failure *ret_failure)
{
	const uint64_t deadline = nowNs() + patienceNs;
	int rc = 0;
	tools::RmaCompletion completion;
	for (uint64_t turn = 1; rc == 0 && !initiator_.done(); turn++) {
		if (throughPeerbuf) {
			rc = world_.poll(&completion);
			if (turn % pollsPerProgress == 0)
				world_.progress();
		} else {
			rc = world_.target->pollOnce(&completion);
		}
		if (turn % 65536 == 0 && nowNs() > deadline) {
			*ret_failure = {tools::exitBad, "a block of RMA did not end"};
			return false;
		}
	}
	if (rc)
		*ret_failure = {tools::exitBad, "the target's endpoint: " + completion.what};
	else if (!initiator_.error().empty())
		*ret_failure = {tools::exitBad, "the peer: " + initiator_.error()};
	else
		return true;
	return false;
}

double Rma::block(bool throughPeerbuf, const Size &size, uint64_t operations, Failure *ret_failure)
{
	Initiator::Job job;
	job.key = throughPeerbuf ? held_.region.key64 : raw_.key;
	job.base = throughPeerbuf ? held_.region.remote_base : raw_.remoteBase;
	job.reach = region;
	job.size = size.bytes;
	job.operations = operations;
	job.window = size.window;
	initiator_.begin(job);
	return serve(throughPeerbuf, ret_failure) ? static_cast<double>(initiator_.ns()) : 0;
}

/** As many operations as make a block long enough to be timed, and short enough to have pairs. */
uint64_t operationsPerBlock(Rma *rma, const Size &size, double ns, Failure *ret_failure)
{
	uint64_t operations = size.window;
	for (;;) {
		const double took = rma->block(false, size, operations, ret_failure);
		if (took == 0)
			return 0;
		if (took >= ns / 2)
			return std::max<uint64_t>(
				static_cast<uint64_t>(static_cast<double>(operations) * ns / took),
				size.window);
		operations *= 2;
	}
}

} // namespace

bool benchRma(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	Held held;
	if (!bench.world.alloc(region, &held, ret_failure) ||
	    !bench.world.registerWith(&held, ret_failure) ||
	    !populate(held.bytes(), region, ret_failure))
		return false;
	Rma rma(bench.world, held);
	/* the first block connects, and warms up what it goes through */
	constexpr Size first = {1 << 20, 16};
	if (!rma.open(ret_failure) || rma.block(false, first, 256, ret_failure) == 0)
		return false;
	const size_t pairs = bench.effort.pairs(101);
	const double blockNs = bench.effort.quick ? 2e6 : 40e6;
	for (const Size &size : sizes) {
		const std::string name = tools::bytesWords(size.bytes);
		const uint64_t operations = operationsPerBlock(&rma, size, blockNs, ret_failure);
		if (!operations)
			return false;
		std::vector<double> ratios;
		std::vector<double> rates;
		while (ratios.size() < pairs) {
			bench.output.progress({"rma " + name + ": pair " +
					       std::to_string(ratios.size() + 1) + " of " +
					       std::to_string(pairs)});
			/* who goes first changes, so that a drift favours nobody */
			const bool rawFirst = ratios.size() % 2 == 0;
			double ns[2] = {}; /* raw, through peerbuf */
			for (const bool throughPeerbuf : {!rawFirst, rawFirst}) {
				ns[throughPeerbuf] =
					rma.block(throughPeerbuf, size, operations, ret_failure);
				if (ns[throughPeerbuf] == 0)
					return false;
			}
			ratios.push_back(ns[0] / ns[1]);
			rates.push_back(static_cast<double>(operations * size.bytes) / ns[1]);
		}
		const Estimate ratio = estimate(ratios);
		Json entry = ratioJson("bandwidth_ratio", ratio);
		entry["provider"] = bench.world.target->provider();
		entry["operation"] = "write";
		entry["window"] = size.window;
		entry["operations_per_block"] = operations;
		entry["gb_per_s"] = estimate(rates).median;
		ret_report->json[std::to_string(size.bytes)] = std::move(entry);
		ret_report->rows.push_back({"RMA " + name + ", peerbuf / raw",
					    number(ratio.median, 3), interval(ratio, 3), ">= 0.97",
					    verdictAtLeast(ratio, goal)});
	}
	return true;
}

} // namespace peerbuf::bench
