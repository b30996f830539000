// SPDX-License-Identifier: BSD-3-Clause
/*
 * How long a move stops an importer, against memcpy of as many bytes between two buffers of the
 * same device: the same kind of memory, in the same pages, all of them present before.
 */
#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include <poll.h>

#include "figures.h"
#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::bench
{

namespace
{

constexpr uint64_t patienceNs = 60'000'000'000;
constexpr uint64_t hugePage = 2 << 20;
constexpr double closedGoal = 1.25;
constexpr uint64_t slicedBytes = 1 << 30;
constexpr uint64_t slicedBytesQuick = 32 << 20;
constexpr uint32_t dutyPercent = 50;

double goalOf(uint64_t pageSize)
{
	return pageSize >= hugePage ? 1.05 : 1.25;
}

struct Pause {
	double ns;
	bool preempted; /* whoever holds the gate, or the device, lost its CPU meanwhile */
};

struct Moved {
	std::vector<Pause> pauses;
	double wallNs = 0; /* from the request to the last resume, the reservation included */
	peerbuf_move_status status = {};

	double closedNs() const
	{
		return std::accumulate(pauses.begin(), pauses.end(), 0.0,
				       [](double sum, const Pause &p) { return sum + p.ns; });
	}
};

/** One buffer that moves and another that memcpy fills from it. */
class Mover
{
public:
	Mover(World &world, uint64_t bytes)
	    : world_(world),
	      bytes_(bytes),
	      deviceSwitches_(world.devicePid)
	{
	}

	bool open(Failure *ret_failure);
	bool move(uint32_t flags, Moved *ret_moved, Failure *ret_failure);
	/** @return ns, 0 with a failure. */
	double copy(Failure *ret_failure);

private:
	bool ready(Failure *ret_failure);
	bool verify(Failure *ret_failure);
	void takePauses(Moved *moved);

	World &world_;
	const uint64_t bytes_;
	Switches deviceSwitches_;
	uint64_t switchesSeen_ = 0;
	Held from_;
	Held to_;
	uint64_t generation_ = 0;
};

/** What the word at @p offset holds; no two are alike. */
uint64_t mark(uint64_t offset)
{
	return offset * 0x9e3779b97f4a7c15 + 1;
}

/* One word of every 4 KiB is enough to see that a page is missing or is another's. */
constexpr uint64_t markEvery = 4096;

bool Mover::open(Failure *ret_failure)
{
	if (!world_.alloc(bytes_, &from_, ret_failure) ||
	    !world_.registerWith(&from_, ret_failure) || !world_.alloc(bytes_, &to_, ret_failure) ||
	    !ready(ret_failure))
		return false;
	std::memset(from_.bytes(), 0x5a, bytes_);
	for (uint64_t at = 0; at < bytes_; at += markEvery) {
		const uint64_t word = mark(at);
		std::memcpy(from_.bytes() + at, &word, sizeof(word));
	}
	return true;
}

/** Nothing of it faults from here on until it moves. */
bool Mover::ready(Failure *ret_failure)
{
	return populate(from_.bytes(), bytes_, ret_failure) &&
	       populate(to_.bytes(), bytes_, ret_failure);
}

bool Mover::verify(Failure *ret_failure)
{
	for (uint64_t at = 0; at < bytes_; at += markEvery) {
		uint64_t word = 0;
		std::memcpy(&word, from_.bytes() + at, sizeof(word));
		if (word != mark(at)) {
			*ret_failure = {tools::exitBad,
					"after a move byte " + std::to_string(at) + " is wrong"};
			return false;
		}
	}
	return true;
}

double Mover::copy(Failure *ret_failure)
{
	if (!ready(ret_failure))
		return 0;
	const uint64_t started = nowNs();
	std::memcpy(to_.bytes(), from_.bytes(), bytes_);
	const uint64_t ns = nowNs() - started;
	/* also keeps the compiler from leaving the copy out */
	if (std::memcmp(to_.bytes(), from_.bytes(), sizeof(uint64_t)) != 0) {
		*ret_failure = {tools::exitBad, "memcpy did not copy"};
		return 0;
	}
	return static_cast<double>(std::max<uint64_t>(ns, 1));
}

void Mover::takePauses(Moved *moved)
{
	peerbuf_pause pauses[64];
	const int n = world_.nic->pauses(world_.nicObject, pauses, 64);
	if (n <= 0)
		return;
	/* a pause is too short to ask for each; what is between two of them counts as well */
	const uint64_t switches = deviceSwitches_.involuntary();
	const bool device = switches != switchesSeen_;
	switchesSeen_ = switches;
	for (int i = 0; i < n; i++)
		moved->pauses.push_back(
			{static_cast<double>(pauses[i].ns), device || pauses[i].preempted != 0});
}

bool Mover::move(uint32_t flags, Moved *ret_moved, Failure *ret_failure)
{
	Moved moved;
	takePauses(&moved);
	moved.pauses.clear();
	switchesSeen_ = deviceSwitches_.involuntary();
	auto request = sized<peerbuf_move_request>();
	request.flags = flags;
	request.duty_percent = dutyPercent;
	const uint64_t started = nowNs();
	if (world_.device->move(world_.deviceObject, from_.info.handle, &request)) {
		*ret_failure = brokenCall("move of " + tools::bytesWords(bytes_));
		return false;
	}
	/* While the device makes the new place ready there is nothing to look out for awake. */
	pollfd news = {world_.ctx.eventFd(), POLLIN, 0};
	(void)::poll(&news, 1, static_cast<int>(patienceNs / 1'000'000));
	/* The device is not asked how far it is: while it copied we would wait for its answer. */
	for (uint64_t resumed = 0; resumed < bytes_;) {
		const uint64_t now = world_.progress();
		resumed += now;
		if (now)
			takePauses(&moved);
		else if (flags & PEERBUF_MOVE_UNSLICED)
			/* Looking out awake takes from the copy where CPUs share a core. */
			(void)::poll(&news, 1, 1);
		if (nowNs() - started > patienceNs) {
			*ret_failure = {tools::exitBad,
					"a move of " + tools::bytesWords(bytes_) + " did not end"};
			return false;
		}
	}
	moved.wallNs = static_cast<double>(nowNs() - started);
	moved.status = sized<peerbuf_move_status>();
	do {
		if (world_.device->move_status(world_.deviceObject, from_.info.handle,
					       &moved.status)) {
			*ret_failure = brokenCall("move status");
			return false;
		}
	} while (moved.status.running);
	const peerbuf_move_status &s = moved.status;
	if (s.result || s.moved != bytes_ || s.generation == generation_ || moved.pauses.empty()) {
		*ret_failure = {tools::exitBad,
				"a move ended with " + tools::errnoWord(s.result) + " after " +
					std::to_string(s.moved) + " of " + std::to_string(bytes_) +
					" bytes and " + std::to_string(moved.pauses.size()) +
					" pauses, generation " + std::to_string(s.generation)};
		return false;
	}
	generation_ = s.generation;
	*ret_moved = std::move(moved);
	return verify(ret_failure);
}

/** Memory for the buffer, its next place, and the one that memcpy fills. */
bool roomFor(uint64_t bytes, Failure *ret_failure)
{
	std::ifstream in("/proc/meminfo");
	std::string key;
	uint64_t kib = 0;
	for (std::string unit; in >> key >> kib;) {
		std::getline(in, unit);
		if (key == "MemAvailable:")
			break;
	}
	const uint64_t needed = 3 * bytes + (256 << 20);
	if (key != "MemAvailable:" || kib * 1024 >= needed)
		return true;
	*ret_failure = {tools::exitMissing, "moves of " + tools::bytesWords(bytes) + " need " +
						    tools::bytesWords(needed) +
						    " of memory, available are " +
						    tools::bytesWords(kib * 1024)};
	return false;
}

std::string pagesWords(uint64_t pageSize)
{
	return tools::bytesWords(pageSize) + " pages";
}

} // namespace

uint64_t hbmNeeded(const Effort &effort)
{
	/* the allocator scatters, and wants some air for it */
	return effort.bytes(slicedBytes, slicedBytesQuick) * 7 / 2;
}

namespace
{

struct Blackout {
	uint64_t bytes;
	size_t pairs;
};

/** @param ret_page what the device says its memory is in. */
bool blackout(const Bench &bench, World &world, const Blackout &size, Report *ret_report,
	      uint64_t *ret_page, Failure *ret_failure)
{
	const std::string name = tools::bytesWords(size.bytes);
	if (!roomFor(size.bytes, ret_failure))
		return false;
	Mover mover(world, size.bytes);
	if (!mover.open(ret_failure))
		return false;
	std::vector<double> ratios;
	std::vector<double> pauses;
	std::vector<double> copies; /* the part of a pause that the device copies in */
	size_t preempted = 0;
	for (size_t i = 0; i < size.pairs; i++) {
		bench.output.progress({"blackout " + name + ": pair " + std::to_string(i + 1) +
				       " of " + std::to_string(size.pairs)});
		Moved moved;
		const double copy = mover.copy(ret_failure);
		if (copy == 0 || !mover.move(PEERBUF_MOVE_UNSLICED, &moved, ret_failure))
			return false;
		if (moved.pauses.size() != 1) {
			*ret_failure = {tools::exitBad,
					"a move in one piece made " +
						std::to_string(moved.pauses.size()) + " pauses"};
			return false;
		}
		*ret_page = moved.status.page_size;
		preempted += moved.pauses.front().preempted;
		pauses.push_back(moved.pauses.front().ns / 1e6);
		copies.push_back(static_cast<double>(moved.status.copy_ns) / copy);
		ratios.push_back(moved.pauses.front().ns / copy);
	}
	const Estimate ratio = estimate(ratios);
	Json entry = ratioJson("ratio", ratio);
	entry["page_size"] = *ret_page;
	entry["least"] = ratio.least;
	entry["copy_ratio"] = ratioJson("median", estimate(copies));
	entry["preempted"] = preempted;
	entry["pause_ms"] = estimate(pauses).median;
	ret_report->json[std::to_string(size.bytes)] = std::move(entry);
	const double goal = goalOf(*ret_page);
	ret_report->rows.push_back(
		{"blackout " + name + ", " + pagesWords(*ret_page) + ", pause / memcpy",
		 number(ratio.median, 3), interval(ratio, 3), "<= " + number(goal, 2),
		 verdictAtMost(ratio, goal)});
	return true;
}

bool blackouts(const Bench &bench, World &world, Report *ret_report, uint64_t *ret_page,
	       Failure *ret_failure)
{
	std::vector<Blackout> sizes = {{16 << 20, bench.effort.pairs(101)}};
	if (!bench.effort.quick) {
		sizes.push_back({256 << 20, 25});
		sizes.push_back({1 << 30, 11});
	}
	return std::all_of(sizes.begin(), sizes.end(), [&](const Blackout &size) {
		return blackout(bench, world, size, ret_report, ret_page, ret_failure);
	});
}

} // namespace

bool benchBlackout(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	uint64_t page = 0;
	if (!blackouts(bench, bench.world, ret_report, &page, ret_failure))
		return false;
	if (page < hugePage)
		return true;
	/* What it is like where the host has no large pages to give. */
	World small;
	Report more;
	if (!small.open(hbmNeeded(bench.effort), false, ret_failure) ||
	    !blackouts(bench, small, &more, &page, ret_failure))
		return false;
	ret_report->more["blackout_ratio_small_pages"] = std::move(more.json);
	ret_report->rows.insert(ret_report->rows.end(), more.rows.begin(), more.rows.end());
	return true;
}

bool benchSliced(const Bench &bench, Report *ret_report, Failure *ret_failure)
{
	const uint64_t bytes = bench.effort.bytes(slicedBytes, slicedBytesQuick);
	const size_t pairs = bench.effort.pairs(11);
	if (!roomFor(bytes, ret_failure))
		return false;
	Mover mover(bench.world, bytes);
	if (!mover.open(ret_failure))
		return false;
	std::vector<double> closed;
	std::vector<double> copies;
	std::vector<double> wall;
	std::vector<double> duty;
	std::vector<double> undisturbed;
	std::vector<double> all;
	double bound = 0;
	double slices = 0;
	uint64_t pageSize = 0;
	for (size_t i = 0; i < pairs; i++) {
		bench.output.progress({"sliced move: pair " + std::to_string(i + 1) + " of " +
				       std::to_string(pairs)});
		Moved moved;
		const double copy = mover.copy(ret_failure);
		if (copy == 0 || !mover.move(0, &moved, ret_failure))
			return false;
		closed.push_back(moved.closedNs() / copy);
		copies.push_back(static_cast<double>(moved.status.copy_ns) / copy);
		wall.push_back(moved.wallNs / copy);
		duty.push_back(moved.closedNs() / moved.wallNs);
		for (const Pause &pause : moved.pauses) {
			all.push_back(pause.ns);
			if (!pause.preempted)
				undisturbed.push_back(pause.ns);
		}
		bound = std::max(bound, static_cast<double>(moved.status.effective_max_pause_ns));
		slices += static_cast<double>(moved.status.slices);
		pageSize = moved.status.page_size;
	}
	const Estimate closedRatio = estimate(closed);
	const Estimate wallRatio = estimate(wall);
	Json &json = ret_report->json;
	json["bytes"] = bytes;
	json["page_size"] = pageSize;
	// null on a machine too busy for a single pause of which the length is peerbuf's doing
	json["pause_us"] = undisturbed.empty() ? Json() : percentilesUs(undisturbed);
	json["pauses"] = undisturbed.size();
	json["pauses_preempted"] = all.size() - undisturbed.size();
	json["pause_us_with_preempted"] = percentilesUs(all);
	json["pause_us_with_preempted"]["max"] = *std::max_element(all.begin(), all.end()) / 1e3;
	json["effective_max_pause_us"] = bound / 1e3;
	json["slices_per_move"] = slices / static_cast<double>(pairs);
	json["closed_ratio"] = closedRatio.median;
	json["closed_ratio_interval"] = ratioJson("median", closedRatio);
	json["copy_ratio"] = ratioJson("median", estimate(copies));
	json["wall_ratio"] = wallRatio.median;
	json["wall_ratio_interval"] = ratioJson("median", wallRatio);
	json["duty"] = estimate(duty).median;
	json["duty_limit"] = dutyPercent / 100.0;
	const std::string name = "sliced " + tools::bytesWords(bytes) + ", ";
	const std::string goal = "<= " + number(bound / 1e3, 0);
	if (undisturbed.empty()) {
		ret_report->rows.push_back(
			{name + "pause p99, us", "", "", goal, "every pause lost its CPU"});
	} else {
		const double p99 = percentile(undisturbed, 99);
		ret_report->rows.push_back({name + "pause p99, us", number(p99 / 1e3, 0), "", goal,
					    p99 <= bound ? "met" : "missed"});
	}
	ret_report->rows.push_back({name + "closed / memcpy", number(closedRatio.median, 3),
				    interval(closedRatio, 3), "<= 1.25",
				    verdictAtMost(closedRatio, closedGoal)});
	ret_report->rows.push_back({name + "wall / memcpy", number(wallRatio.median, 2),
				    interval(wallRatio, 2), "", ""});
	return true;
}

} // namespace peerbuf::bench
