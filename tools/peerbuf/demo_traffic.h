// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_TRAFFIC_H
#define PEERBUF_TOOLS_DEMO_TRAFFIC_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "demo_mover.h"
#include "demo_target_base.h"
#include "pauses.h"
#include "rma.h"

namespace peerbuf::tools::demo
{

/**
 * The section in which the peer writes and reads the device's memory while that moves. The target
 * brackets its provider's calls, which is all that it does for it.
 */
class TrafficTarget : public TargetBase
{
protected:
	using TargetBase::TargetBase;
	~TrafficTarget() = default;

	void traffic();

	ImporterSide refault_; /* an emulated NIC that follows moves */

private:
	/** How far a write that is to be in flight during a move has got. */
	enum class Hold { None, Asked, Held, Behind };

	bool openRegion();
	bool shareWithNic();
	void makeMover();
	void sendRegion();
	void serve();
	void waitForGate();
	bool answerPeer();
	void answerCheck(const Check &check);
	void seeToHold();
	std::string deviceHas(const Block &block);
	std::string windowHas(const Block &block);
	void tryToMove();
	void takePauses();
	void sayMoves();
	void noteMoverProblem();
	void settleMover();
	void closeRegion();
	std::vector<std::string> lines(const std::string &flow) const;

	std::unique_ptr<RmaEndpoint> endpoint_;
	ImporterHandle importer_;
	const peerbuf_importer_test_ops *importerOps_ = nullptr;
	void *importerDevice_ = nullptr;
	peerbuf_gate *gate_ = nullptr; /* NULL: nothing has to be bracketed */
	std::vector<uint64_t> lengths_;
	std::vector<Registered> parts_;
	Registration nicReg_; /* the first part with the NIC */
	peerbuf_reg_importer_info nicRegion_ = sized<peerbuf_reg_importer_info>();
	std::unique_ptr<RegionMover> mover_; /* null: the region does not follow moves */
	bool moverFailed_ = false;
	Hold hold_ = Hold::None;
	size_t held_ = 0; /* the part that is moved behind a write */
	Pauses pauses_;
	Progress progress_;
	bool revoked_ = false;
	std::vector<uint8_t> seen_; /* what the device read for us */
};

} // namespace peerbuf::tools::demo

#endif
