// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file demo_protocol.h
 * What the processes of the demo tell each other. Nothing that arrives is believed before it was
 * read by one of these.
 *
 *     parent → target, peer   start
 *     target → peer           region, checked, held, stop
 *     peer → target           check, hold, begun, done
 *     target, peer → parent   note, section, progress, moves, result, failed
 *
 * hold, held, begun: for moves that tell nobody. The peer asks the target to stop serving; once it
 * has, the peer begins a write, which is in flight from then on; the target moves the memory behind
 * it and serves on. So that write goes to the old place, whatever the machine is busy with.
 */
#ifndef PEERBUF_TOOLS_DEMO_PROTOCOL_H
#define PEERBUF_TOOLS_DEMO_PROTOCOL_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "channel.h"
#include "child.h"
#include "pauses.h"

namespace peerbuf::tools::demo
{

/* Descriptors of a role. */
inline constexpr int parentFd = Child::firstFd;	    /* Channel to the parent */
inline constexpr int otherFd = Child::firstFd + 1;  /* Channel between target and peer */
inline constexpr int deviceFd = Child::firstFd + 2; /* target only: the device's socket, O_PATH */

/** Whoever says nothing for so long counts as hung; all say something several times a second. */
inline constexpr std::chrono::seconds patience(30);
inline constexpr std::chrono::milliseconds progressEvery(200);

/** To both roles. */
struct Start {
	std::string provider;
	uint64_t seed = 0;
	double seconds = 0;
	uint64_t size = 0;
	uint64_t hbm = 0;
	bool verbose = false;
	bool moves = false; /* the region is moved all the time, and is Movable */
	bool notify = true; /* false: moves tell no importer: damage on purpose */
	bool cma = false;   /* peers may copy by CMA */

	Json json() const;
	static std::optional<Start> from(const Json &message, std::string *ret_problem);
};

/** All that a peer has to know. */
struct Region {
	static constexpr size_t mostParts = 64;

	/** One buffer; offsets in the region count through all of them. */
	struct Part {
		uint64_t base = 0;
		uint64_t length = 0;
		uint64_t key = 0;
		std::vector<uint8_t> rawKey; /* empty: key is enough */
	};

	std::vector<uint8_t> address; /* of the target's endpoint */
	std::vector<Part> parts;

	std::vector<uint64_t> lengths() const;
	Json json() const;
	static std::optional<Region> from(const Json &message, std::string *ret_problem);
};

/** A block was written; is it in the device's memory? As "begun": its write has begun. */
struct Check {
	Block block;

	Json json(const char *type = "check") const;
	/** @param parts of the region; a block is inside one of them. */
	static std::optional<Check> from(const Json &message, const std::vector<uint64_t> &parts,
					 std::string *ret_problem);
};

struct Checked {
	uint64_t number = 0; /* of the block */
	std::string wrong;   /* "": all its bytes are there */

	Json json() const;
	static std::optional<Checked> from(const Json &message, std::string *ret_problem);
};

struct Section {
	std::string title;
	std::vector<std::string> lines;

	Json json() const;
	static std::optional<Section> from(const Json &message, std::string *ret_problem);
};

struct Progress {
	uint64_t blocks = 0;
	uint64_t bytes = 0;
	uint64_t bad = 0;

	Json json() const;
	static std::optional<Progress> from(const Json &message, std::string *ret_problem);
};

/** What moved under the traffic and what it was like; while it runs and at the end. */
struct Moves {
	uint64_t moves = 0;	 /* counted by the device, and as many seen by the target */
	uint64_t aborted = 0;	 /* rolled back */
	uint64_t slices = 0;	 /* of those moves */
	uint64_t evictions = 0;	 /* to the host tier */
	uint64_t refaults = 0;	 /* back because somebody touched it */
	uint64_t keyChanges = 0; /* of a key or base that the peer had; looked at after each move */
	uint64_t effectiveMaxPauseNs = 0; /* the largest */
	PauseSummary pauses;

	Json json() const;
	static std::optional<Moves> from(const Json &message, std::string *ret_problem);
};

/** A region that cannot follow: what it is instead, why, and what a move of it answers. */
struct Fixed {
	std::string flow; /* "": it follows */
	std::string why;
	std::string moveErrno;

	Json json() const;
};

/** How the traffic went; from the peer. */
struct PeerResult {
	uint64_t blocksVerified = 0;
	uint64_t blocksLost = 0;  /* wrong, and wrong when looked at again */
	uint64_t blocksStale = 0; /* wrong at the first look only */
	uint64_t bytesVerified = 0;
	uint64_t bytesSwept = 0;    /* read again at the end, all that was ever written */
	uint64_t deviceChecked = 0; /* blocks of which the target answered */
	double seconds = 0;
	std::string firstBad;
	uint64_t fdsLeaked = 0;
	std::string trouble; /* "": it came to its end; else who of the others is gone */

	uint64_t blocksBad() const { return blocksLost + blocksStale; }
	Json json() const;
	static std::optional<PeerResult> from(const Json &message, std::string *ret_problem);
};

/** How all else went; from the target. */
struct TargetResult {
	std::vector<std::pair<std::string, uint64_t>> flows;
	Json pairs = Json::array(); /* of PairResult */
	uint64_t pairsRefused = 0;
	uint64_t pinFallbacks = 0;
	uint64_t quotaRefused = 0;
	uint64_t revokedAccessFailed = 0;
	uint64_t deviceChecked = 0; /* blocks read by the device itself */
	Moves moves;
	Fixed fixed;
	uint64_t ledgerBytesAfter = 0;
	uint64_t fdsLeaked = 0;
	std::vector<std::string> faults; /* what was not as it should be */
	std::string trouble;

	Json json() const;
	static std::optional<TargetResult> from(const Json &message, std::string *ret_problem);
};

/** A role cannot go on, for a reason of its own. */
struct Failed {
	int exitCode = 0;
	std::string what;

	Json json() const;
	static std::optional<Failed> from(const Json &message, std::string *ret_problem);
};

Json note(const std::string &text);
/** A message that is no more than its type: "done", "hold", "held". */
Json word(const char *type);
Json stop(const std::string &why);

/**
 * Wait for the next message, at most as long as patience. A closed channel says why.
 * @param meanwhile called now and then; while it returns true there is no limit.
 */
std::optional<Json> await(Channel *channel, const std::function<bool()> &meanwhile = nullptr);
/** The first message of a role. */
std::optional<Start> awaitStart(Channel *parent);

/** Descriptors of this process: number and what it is. */
std::vector<std::pair<int, std::string>> openFds();
/** How many there are now that were not in @p before; their names go to @p ret_names. */
size_t leakedFds(const std::vector<std::pair<int, std::string>> &before,
		 std::vector<std::string> *ret_names);

} // namespace peerbuf::tools::demo

#endif
