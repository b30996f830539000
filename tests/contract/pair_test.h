// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_PAIR_TEST_H
#define PEERBUF_TESTS_CONTRACT_PAIR_TEST_H

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oracle.h"
#include "peer.h"
#include "support/pattern.h"
#include "support/watchdog.h"
#include "world.h"

namespace peerbuf::contract
{

/** One exporter and one importer, and what the table says of them. */
struct Pair {
	test::PluginSpec exporter;
	test::PluginSpec importer;
	peerbuf_exporter_offer exporter_offer = {};
	peerbuf_importer_offer importer_offer = {};
	Verdict verdict; /* with usual access and the default policy */
	/* here for one property only: in the families that are about it, not in all */
	bool narrow = false;

	std::string label() const { return exporter.label() + "__" + importer.label(); }
};

void PrintTo(const Pair &pair, std::ostream *out);

/** What the command line named, as it was found to be. Filled before the tests are listed. */
struct Bench {
	std::vector<test::PluginSpec> exporters; /* those that are not narrow */
	std::vector<test::PluginSpec> importers;
	std::vector<Pair> pairs;
};
Bench &bench();

/* The sets over which families run. */
std::vector<Pair> allPairs();
std::vector<Pair> workingPairs();  /* some flow is right */
std::vector<Pair> revokingPairs(); /* ... and the exporter may revoke */
std::vector<Pair> movablePairs();  /* ... and the flow is Movable */
std::vector<Pair> evictingPairs(); /* ... and the memory may be in two tiers */
std::vector<Pair> fixedPairs();	   /* ... and the memory moves, but not under this importer */
std::vector<Pair> chargedPairs();  /* ... and pins are charged */
std::vector<Pair> limitedPairs();  /* ... and the importer's regions are shorter than memory */
std::vector<Pair> windowPairs();   /* ... and the exporter has a window that limits */
std::vector<Pair> deafPairs();	   /* refused: one may revoke, the other cannot stop */
std::vector<Pair> hostPairs();	   /* work only where host placement is allowed */

std::string pairName(const testing::TestParamInfo<Pair> &info);

/** A pair opened in a world of its own, with a buffer. Everything is checked to be given back. */
class PairTest : public testing::TestWithParam<Pair>
{
protected:
	static constexpr uint64_t buffer_size = 1 << 20;

	void SetUp() override;
	void TearDown() override;

	/** A buffer with the pattern in it, position 0 at its first byte. */
	Buffer filledBuffer(uint64_t size = buffer_size, uint64_t seed = 0);

	/** Register with the one importer, usual access unless told otherwise. */
	int registerRange(const Buffer &buffer, uint64_t offset, uint64_t length,
			  peerbuf_reg_t *ret_reg, uint32_t access = usual_access,
			  const peerbuf_policy *policy = nullptr, uint64_t iova = 0);

	/** The bytes as the device has them, by no mapping of ours where it offers that. */
	std::vector<uint8_t> deviceBytes(const Buffer &buffer, uint64_t offset, uint64_t length);
	void setDeviceBytes(const Buffer &buffer, uint64_t offset,
			    const std::vector<uint8_t> &bytes);
	bool canSeeDevice(const Buffer &buffer) const;

	/** Take the buffer back and wait until the regions are told. */
	std::vector<peerbuf_event> revoke(const Buffer &buffer);

	/** The opposite; busy as long as an importer has not let go. */
	void restore(const Buffer &buffer);

	/** Everything still in flight at the importer is brought to its end. */
	void drainImporter();

	/* Moves, where the exporter has them: see NEEDS_MOVES. */
	struct MoveWish {
		uint64_t max_pause_ns = 1; /* page by page */
		uint32_t placement = 0;
		uint32_t flags = 0;
		uint32_t past_deadline = PEERBUF_PAST_DEADLINE_ABORT;
		uint64_t deadline_ns = 0;
		uint32_t duty_percent = 0;
	};
	/** @return what the exporter's move says. */
	int startMove(const Buffer &buffer, const MoveWish &wish);
	peerbuf_move_status moveStatus(const Buffer &buffer);
	/**
	 * Until it has ended and everybody who was stopped goes on. @p meanwhile is called over and
	 * over. @return its status.
	 */
	peerbuf_move_status endMove(const Buffer &buffer, std::vector<peerbuf_event> *ret_events,
				    const std::function<void()> &meanwhile = nullptr);
	/** As of the peer, through suspensions; progress is made meanwhile. */
	int peerWrite(const RegionInfo &region, uint64_t offset, const void *data, size_t length);
	int peerRead(const RegionInfo &region, uint64_t offset, void *data, size_t length);

	/** The data path, or null with why_no_peer_. */
	Peer *peer();

	World &world() { return *world_; }
	Exporter &exporter() { return *exporter_; }
	Importer &importer() { return *importer_; }
	const Verdict &verdict() const { return GetParam().verdict; }

	std::string why_no_peer_;

private:
	std::unique_ptr<test::Watchdog> watchdog_;
	std::unique_ptr<World> world_;
	Exporter *exporter_ = nullptr;
	Importer *importer_ = nullptr;
	std::unique_ptr<Peer> peer_;
};

/** Skip the running test with its reason unless @p condition. */
#define NEEDS(condition, reason)                                                                   \
	do {                                                                                       \
		if (!(condition))                                                                  \
			GTEST_SKIP() << (reason);                                                  \
	} while (false)
#define NEEDS_MOVES()                                                                              \
	do {                                                                                       \
		NEEDS_EXPORTER_OP(move);                                                           \
		NEEDS_EXPORTER_OP(move_status);                                                    \
		NEEDS_EXPORTER_OP(device_read);                                                    \
		NEEDS_EXPORTER_OP(device_write);                                                   \
		NEEDS_EXPORTER_OP(stats);                                                          \
	} while (false)
#define NEEDS_PEER() NEEDS(peer() != nullptr, why_no_peer_)
#define NEEDS_PEER_THAT_IS_REFUSED()                                                               \
	do {                                                                                       \
		NEEDS_PEER();                                                                      \
		NEEDS(peer()->whyNoRefusals().empty(), peer()->whyNoRefusals());                   \
	} while (false)
#define NEEDS_EXPORTER_OP(op)                                                                      \
	NEEDS(HAS_OP(exporter().ops, op), "exporter " + exporter().spec.text() +                   \
						  " has no '" #op                                  \
						  "' in its table " PEERBUF_EXPORTER_TEST_OPS)
#define NEEDS_IMPORTER_OP(op)                                                                      \
	NEEDS(HAS_OP(importer().ops, op), "importer " + importer().spec.text() +                   \
						  " has no '" #op                                  \
						  "' in its table " PEERBUF_IMPORTER_TEST_OPS)

/** How many events of a type. */
size_t countEvents(const std::vector<peerbuf_event> &events, uint32_t type, peerbuf_reg_t reg = 0);

} // namespace peerbuf::contract

#endif
