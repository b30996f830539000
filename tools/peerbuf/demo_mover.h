// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_MOVER_H
#define PEERBUF_TOOLS_DEMO_MOVER_H

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "demo_protocol.h"
#include "pair.h"

namespace peerbuf::tools::demo
{

/**
 * Has the device move the buffers of a region, one at a time, and sees to what becomes of it.
 * It asks the device only; those who use the memory are told by peerbuf. Thread-bound.
 */
class RegionMover
{
public:
	struct Part {
		uint64_t handle; /* the exporter's */
		peerbuf_reg_t reg;
		peerbuf_reg_importer_info told; /* the key that the peer has */
	};
	struct Options {
		uint64_t seed = 0;
		bool notify = true; /* false: tell no importer, and stay in the HBM */
		/* An emulated NIC with the first part registered; what was evicted comes back when
		 * it touches it. NULL: nothing is evicted. */
		const ImporterSide *nic = nullptr;
		peerbuf_reg_importer_info nicRegion = {};
	};

	RegionMover(const Context &ctx, const ExporterSide &device, std::vector<Part> parts,
		    const Options &options);

	/** Look after the move that runs, or start the next. Not while a gate is closed: it asks
	 * the device, which takes longer than a pause. */
	void step();
	/** Start none but those that are asked for. */
	void rest(bool on) { resting_ = on; }
	bool busy() const { return stage_ != Stage::Idle && problem_.empty(); }
	/** Move this one now; only while not busy. */
	void move(size_t part);

	/** Counted so far, without the pauses. Asks the device. */
	Moves counted();
	/** "" or why it cannot go on. */
	const std::string &problem() const { return problem_; }
	bool deviceGone() const { return deviceGone_; }

private:
	enum class Stage { Idle, Moving, Evicting, Refaulting };
	using Clock = std::chrono::steady_clock;

	void startNext();
	void start(size_t part, uint32_t placement);
	bool touch();
	void ended(const peerbuf_move_status &status);
	void compareKeys();
	bool ask(peerbuf_exporter_stats *ret_stats);
	void fail(const std::string &what, int rc);

	const Context &ctx_;
	const ExporterSide &device_;
	const std::vector<Part> parts_;
	const Options options_;
	std::minstd_rand random_;
	peerbuf_exporter_stats before_ = {};
	Moves moves_;
	uint64_t seen_ = 0; /* moves that ended well, by their status */
	uint64_t turn_ = 0;
	Stage stage_ = Stage::Idle;
	size_t at_ = 0; /* the part that moves */
	bool touched_ = false;
	bool resting_ = false;
	Clock::time_point nextStart_;
	Clock::time_point nextLook_;
	std::string problem_; /* nothing is started or looked at any more */
	bool deviceGone_ = false;
};

} // namespace peerbuf::tools::demo

#endif
