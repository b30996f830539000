// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file figures.h
 * The figures, each measured by a function of its own. All of them compare two things in one run:
 * short blocks of one and of the other take turns, each pair of neighbours gives one ratio, and the
 * median of the ratios is reported. What disturbs the machine for longer than a block then strikes
 * both sides of a ratio.
 *
 * A harness of our own, since Google Benchmark runs one benchmark after the other, or shuffles
 * their repetitions, but pairs none with its neighbour and gives means and deviations, not
 * intervals of a median.
 */
#ifndef PEERBUF_BENCH_FIGURES_H
#define PEERBUF_BENCH_FIGURES_H

#include <string>
#include <vector>

#include "estimate.h"
#include "world.h"

namespace peerbuf::bench
{

using tools::Json;

/** A line of the table, and whether its goal was reached. */
struct Row {
	std::string figure;
	std::string value;
	std::string interval; /* may be empty */
	std::string goal;     /* may be empty */
	std::string verdict;  /* met, missed, open (the interval holds the goal); may be empty */
};

/** What a figure adds to the report. */
struct Report {
	Json json = Json::object();
	Json more = Json::object(); /* keys of their own, beside the figure's */
	std::vector<Row> rows;
};

struct Bench {
	World &world;
	tools::Output &output;
	Effort effort;
};

/** The goal is a bound of the median; where the interval holds the bound nothing is decided. */
std::string verdictAtMost(const Estimate &e, double goal);
std::string verdictAtLeast(const Estimate &e, double goal);
std::string number(double value, int digits);
std::string interval(const Estimate &e, int digits);
/** {median under @p name, low, high, pairs}. */
Json ratioJson(const char *name, const Estimate &e);
/** {p50, p99} in microseconds. */
Json percentilesUs(const std::vector<double> &ns);

bool benchRma(const Bench &bench, Report *ret_report, Failure *ret_failure);
bool benchGuard(const Bench &bench, Report *ret_report, Failure *ret_failure);
bool benchBlackout(const Bench &bench, Report *ret_report, Failure *ret_failure);
bool benchSliced(const Bench &bench, Report *ret_report, Failure *ret_failure);
bool benchSuspend(const Bench &bench, Report *ret_report, Failure *ret_failure);
bool benchAttach(const Bench &bench, Report *ret_report, Failure *ret_failure);

/** HBM that the moves need. */
uint64_t hbmNeeded(const Effort &effort);

/** The other end of the descriptor round trip: a process of its own, on @p fd. @return exit code.
 */
int echoDescriptors(int fd);
inline constexpr const char *echoCommand = "echo-descriptors";

} // namespace peerbuf::bench

#endif
