// SPDX-License-Identifier: BSD-3-Clause
/*
 * Would the tests notice? Each deliberate fault is switched on in turn and the contract suite run
 * on a pair that shows it: the named cases pass without the fault and fail with it. Faults of the
 * core exist in a build with -Dmutants=true only; those of the emulated devices are options of
 * theirs.
 */
#include <cstdlib>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/seed.h"

namespace
{

struct Mutant {
	const char *title;
	const char *name;
	const char *exporter;
	const char *importer;
	const char *cases; /* a GoogleTest filter */
	enum class Where { Core, Exporter, Importer } where;
};

void PrintTo(const Mutant &mutant, std::ostream *out)
{
	*out << mutant.title;
}

constexpr const char *DEAF = "emulated:profile=neither";
constexpr const char *STOPS = "emulated:profile=revocable";
constexpr const char *MOVES = "emulated:profile=moves";
// With large pages a mapping begins well before its region.
constexpr const char *COARSE = "emulated:profile=moves,granularity=64K";
constexpr const char *REVOKES = "emulated:profile=revokes";
// So little memory that the next allocation needs what was revoked.
constexpr const char *SMALL = "emulated:profile=revokes,hbm=2M";
constexpr const char *FOLLOWS = "emulated:profile=refault";
constexpr const char *BLIND = "emulated:profile=refault,peer2peer=no";
constexpr const char *BEHIND = "emulated:profile=neither,iommu=translating";

constexpr const char *FLYING_REVOKE = "*Revoke*InFlight*";
constexpr const char *FLYING_MOVE = "*Move_.*InFlight*";

constexpr Mutant MUTANTS[] = {
	{"early_reuse_revoke", "early_reuse", SMALL, STOPS,
	 "*Revoke_.GivenATransferInFlightWhenRevokedThenNobodyElseGetsItsMemory*",
	 Mutant::Where::Exporter},
	{"early_reuse_move", "early_reuse", MOVES, FOLLOWS, FLYING_MOVE, Mutant::Where::Exporter},
	{"ticket_lost_revoke", "ticket_lost", REVOKES, STOPS, FLYING_REVOKE,
	 Mutant::Where::Importer},
	{"ticket_lost_move", "ticket_lost", MOVES, FOLLOWS, FLYING_MOVE, Mutant::Where::Importer},
	{"ticket_double_revoke", "ticket_double", REVOKES, STOPS, FLYING_REVOKE,
	 Mutant::Where::Importer},
	{"ticket_double_move", "ticket_double", MOVES, FOLLOWS, FLYING_MOVE,
	 Mutant::Where::Importer},
	{"ticket_before_drain_revoke", "ticket_before_drain", REVOKES, STOPS, FLYING_REVOKE,
	 Mutant::Where::Importer},
	{"ticket_before_drain_move", "ticket_before_drain", MOVES, FOLLOWS, FLYING_MOVE,
	 Mutant::Where::Importer},
	{"stale_translation_after_resume", "stale_translation_after_resume", MOVES, FOLLOWS,
	 "*Move_.GivenTransfersBeforeDuringAndAfter*", Mutant::Where::Importer},
	{"no_resume_after_abort", "no_resume_after_abort", MOVES, FOLLOWS, "*Move_.Rule51_*",
	 Mutant::Where::Importer},
	{"offset_dropped", "offset_dropped", COARSE, DEAF,
	 "*Offset_.GivenViewsOfOneAllocationWhenPeerReads*", Mutant::Where::Importer},
	{"first_segment_only", "first_segment_only", MOVES, DEAF,
	 "*Offset_.GivenARegionOfManySegments*", Mutant::Where::Importer},
	{"double_unpin", "double_unpin", MOVES, DEAF, "*Pin_.Rule21_*", Mutant::Where::Core},
	{"missed_uncharge", "missed_uncharge", MOVES, DEAF, "*Pin_.GivenARegistrationThenPins*",
	 Mutant::Where::Core},
	{"key_reuse_after_revoke", "key_reuse_after_revoke", REVOKES, STOPS,
	 "*Revoke_.Rule55_*KeyIsTaken*", Mutant::Where::Importer},
	{"p2p_flag_ignored", "p2p_flag_ignored", MOVES, BLIND, "*AccessReach_*",
	 Mutant::Where::Importer},
	{"untranslated", "untranslated", MOVES, BEHIND, "*AccessReach_*", Mutant::Where::Importer},
};

class Mutants : public testing::TestWithParam<Mutant>
{
protected:
	struct Outcome {
		int status;
		std::string output;
	};

	/** The cases, with the fault or without. */
	static Outcome run(const Mutant &mutant, bool faulty, uint64_t seed)
	{
		setenv(peerbuf::test::seed_variable, std::to_string(seed).c_str(), 1);
		const auto device = [&](const char *spec, Mutant::Where where) {
			std::string out = spec;
			if (faulty && mutant.where == where)
				out += std::string(",mutant=") + mutant.name;
			return out;
		};
		std::vector<std::string> words = {
			std::getenv("PEERBUF_CONTRACT_SUITE"),
			"--exporter",
			device(mutant.exporter, Mutant::Where::Exporter),
			"--importer",
			device(mutant.importer, Mutant::Where::Importer),
			std::string("--gtest_filter=") + mutant.cases,
		};
		std::vector<char *> argv;
		for (std::string &word : words)
			argv.push_back(word.data());
		argv.push_back(nullptr);
		if (faulty && mutant.where == Mutant::Where::Core)
			setenv("PEERBUF_MUTANT", mutant.name, 1);
		else
			unsetenv("PEERBUF_MUTANT");
		unsetenv("GTEST_OUTPUT");

		int pipe[2];
		EXPECT_EQ(0, pipe2(pipe, O_CLOEXEC));
		posix_spawn_file_actions_t actions;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
		posix_spawn_file_actions_adddup2(&actions, pipe[1], 2);
		pid_t pid = 0;
		EXPECT_EQ(0, posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ));
		posix_spawn_file_actions_destroy(&actions);
		close(pipe[1]);
		Outcome outcome = {};
		char buffer[4096];
		for (ssize_t n = 0; (n = read(pipe[0], buffer, sizeof(buffer))) > 0;)
			outcome.output.append(buffer, static_cast<size_t>(n));
		close(pipe[0]);
		EXPECT_EQ(pid, waitpid(pid, &outcome.status, 0));
		unsetenv("PEERBUF_MUTANT");
		return outcome;
	}

	/** How many cases were run and not skipped. */
	static bool ranAny(const Outcome &outcome)
	{
		return outcome.output.find("[       OK ]") != std::string::npos ||
		       outcome.output.find("[  FAILED  ]") != std::string::npos;
	}
};

TEST_P(Mutants, GivenTheFaultThenTheNamedCasesFailAndElsePass)
{
	const Mutant &mutant = GetParam();
	const uint64_t first = peerbuf::test::seed();
	constexpr uint64_t tries = 3;
	for (uint64_t seed = first; seed < first + tries; seed++) {
		const Outcome wrong = run(mutant, true, seed);
		ASSERT_TRUE(ranAny(wrong)) << "it failed before any case ran\n" << wrong.output;
		if (WIFEXITED(wrong.status) && WEXITSTATUS(wrong.status) == 0)
			continue;
		// the very same without the fault, and with the same choices
		const Outcome right = run(mutant, false, seed);
		EXPECT_TRUE(WIFEXITED(right.status) && WEXITSTATUS(right.status) == 0)
			<< right.output;
		EXPECT_TRUE(ranAny(right)) << "no case ran\n" << right.output;
		std::cout << mutant.name << ": caught by " << mutant.cases << " of "
			  << mutant.exporter << " x " << mutant.importer << " with "
			  << peerbuf::test::seed_variable << "=" << seed << "\n";
		setenv(peerbuf::test::seed_variable, std::to_string(first).c_str(), 1);
		return;
	}
	setenv(peerbuf::test::seed_variable, std::to_string(first).c_str(), 1);
	FAIL() << "not caught with " << peerbuf::test::seed_variable << "=" << first << " to "
	       << first + tries - 1;
}

std::string nameOf(const testing::TestParamInfo<Mutant> &info)
{
	return info.param.title;
}

INSTANTIATE_TEST_SUITE_P(All, Mutants, testing::ValuesIn(MUTANTS), nameOf);

} // namespace
