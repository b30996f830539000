// SPDX-License-Identifier: BSD-3-Clause
/*
 * The benchmarks: docs/benchmarks.md says what each figure is and what it is not.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <string>

#include <CLI/CLI.hpp>

#include "figures.h"
#include "tools/peerbuf/child.h"
#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/table.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::bench
{

std::string number(double value, int digits)
{
	char text[64];
	snprintf(text, sizeof(text), "%.*f", digits, value);
	return text;
}

std::string interval(const Estimate &e, int digits)
{
	return number(e.low, digits) + " .. " + number(e.high, digits);
}

std::string verdictAtMost(const Estimate &e, double goal)
{
	return e.high <= goal ? "met" : e.low > goal ? "missed" : "open";
}

std::string verdictAtLeast(const Estimate &e, double goal)
{
	return e.low >= goal ? "met" : e.high < goal ? "missed" : "open";
}

namespace
{

/** Three decimals more than anybody can tell apart, and no more. */
double rounded(double value)
{
	return std::round(value * 1e4) / 1e4;
}

} // namespace

Json ratioJson(const char *name, const Estimate &e)
{
	Json json = Json::object();
	json[name] = rounded(e.median);
	json["low"] = rounded(e.low);
	json["high"] = rounded(e.high);
	json["pairs"] = e.n;
	return json;
}

Json percentilesUs(const std::vector<double> &ns)
{
	Json json = Json::object();
	json["p50"] = rounded(percentile(ns, 50) / 1e3);
	json["p99"] = rounded(percentile(ns, 99) / 1e3);
	return json;
}

namespace
{

using namespace tools;

struct Options {
	bool json = false;
	Effort effort;
	std::vector<std::string> only;
};

struct Figure {
	const char *name; /* key in JSON */
	bool (*measure)(const Bench &, Report *, Failure *);
};

constexpr Figure figures[] = {
	{"rma", benchRma},
	{"guard_ns", benchGuard},
	{"blackout_ratio", benchBlackout},
	{"sliced", benchSliced},
	{"suspend_inflight16_us", benchSuspend},
	{"attach_us", benchAttach},
};

unsigned usableCpus()
{
	cpu_set_t set;
	CPU_ZERO(&set);
	return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set))
							    : 1;
}

double loadNow()
{
	std::ifstream in("/proc/loadavg");
	double load = 0;
	in >> load;
	return load;
}

bool chosen(const Options &options, const char *name)
{
	return options.only.empty() ||
	       std::find(options.only.begin(), options.only.end(), name) != options.only.end();
}

int measure(const Options &options)
{
	Output output(Output::reportFile(options.json));
	Json json = Json::object();
	json["quick"] = options.effort.quick;
	json["cpus"] = usableCpus();
	json["load_before"] = loadNow();
	json["confidence"] = options.effort.quick ? Json() : Json(0.95);
	Failure failure;
	Table table({"figure", "median", "95 % interval", "goal", ""});
	const uint64_t started = nowNs();
	{
		World world;
		/* Two threads of RMA that spin on one CPU measure the scheduler. */
		if (usableCpus() < 2)
			failure = {exitMissing, "two CPUs are needed, there is one"};
		else
			world.open(hbmNeeded(options.effort), true, &failure);
		if (failure.why.empty())
			json["provider"] = world.target->provider();
		const Bench bench{world, output, options.effort};
		for (const Figure &figure : figures) {
			if (!failure.why.empty() || !chosen(options, figure.name))
				continue;
			Report report;
			if (!figure.measure(bench, &report, &failure)) {
				failure.why = std::string(figure.name) + ": " + failure.why;
				break;
			}
			json[figure.name] = std::move(report.json);
			json.update(report.more);
			for (const Row &row : report.rows)
				table.add({row.figure, row.value, row.interval, row.goal,
					   row.verdict});
		}
	}
	json["seconds"] = rounded(static_cast<double>(nowNs() - started) / 1e9);
	json["error"] = failure.why.empty() ? Json() : Json(failure.why);
	json["exit_code"] = failure.exitCode;
	output.clear();
	if (!failure.why.empty())
		fprintf(stderr, "peerbuf-bench: %s\n", failure.why.c_str());
	if (options.json) {
		printJson(json);
		return failure.exitCode;
	}
	output.line(table.text(terminalWidth(stdout)));
	if (options.effort.quick)
		output.line("quick: this shows that everything runs; the figures mean nothing.");
	else
		output.line("met, missed: the whole interval lies on that side of the goal; open: "
			    "the goal lies inside.");
	return failure.exitCode;
}

int run(int argc, char **argv)
{
	CLI::App app("What peerbuf costs, as ratios measured side by side in one run.",
		     "peerbuf-bench");
	Options options;
	std::vector<std::string> names;
	for (const Figure &figure : figures)
		names.emplace_back(figure.name);
	app.add_flag("--json", options.json, "one JSON object on standard output");
	app.add_flag("--quick", options.effort.quick,
		     "as little as possible, to see that it works; the figures mean nothing");
	app.add_option("--only", options.only, "figures to measure: " + joined(names) + " (all)")
		->delimiter(',')
		->check(CLI::IsMember(names));
	CLI::App *echo = app.add_subcommand(echoCommand)->group("");
	try {
		app.parse(argc, argv);
	} catch (const CLI::CallForHelp &e) {
		return app.exit(e);
	} catch (const CLI::ParseError &e) {
		fprintf(stderr, "peerbuf-bench: %s (--help lists the options)\n", e.what());
		return exitUsage;
	}
	if (*echo)
		return echoDescriptors(Child::firstFd);
	return measure(options);
}

} // namespace

} // namespace peerbuf::bench

int main(int argc, char **argv)
{
	try {
		return peerbuf::bench::run(argc, argv);
	} catch (const std::exception &e) {
		fprintf(stderr, "peerbuf-bench: %s\n", e.what());
		return peerbuf::tools::exitBad;
	}
}
