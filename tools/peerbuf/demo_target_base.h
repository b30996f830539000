// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_DEMO_TARGET_BASE_H
#define PEERBUF_TOOLS_DEMO_TARGET_BASE_H

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "demo_protocol.h"
#include "pair.h"

namespace peerbuf::tools::demo
{

/** A buffer and its registration, in the order in which they may end. */
struct Registered {
	BufferHandle buffer;
	Registration reg;
	peerbuf_buffer_info info = sized<peerbuf_buffer_info>();
	peerbuf_reg_info all = sized<peerbuf_reg_info>();
	peerbuf_reg_importer_info region = sized<peerbuf_reg_importer_info>();
};

/** What every section of the target works with and reports through. Thread-bound. */
class TargetBase
{
public:
	TargetBase(const TargetBase &) = delete;
	TargetBase &operator=(const TargetBase &) = delete;

	const TargetResult &result() const { return result_; }
	const Failure &failure() const { return failure_; }

protected:
	static constexpr const char *tenant = "demo";
	static constexpr uint32_t readWrite = PEERBUF_ACCESS_LOCAL_WRITE |
					      PEERBUF_ACCESS_REMOTE_READ |
					      PEERBUF_ACCESS_REMOTE_WRITE;

	TargetBase(Channel &parent, Channel &peer, const Start &start)
	    : parent_(parent),
	      peer_(peer),
	      start_(start)
	{
	}
	~TargetBase() = default;

	bool going() const { return failure_.why.empty() && result_.trouble.empty(); }
	/** A call of peerbuf that should have worked: a device that is gone, or a fault of ours. */
	void broken(const std::string &step);
	void fault(const std::string &what) { result_.faults.push_back(what); }
	void tell(const std::string &title, std::vector<std::string> lines);
	/** A sign of life, at most now and then, and a look at whether the parent still lives. */
	void say();
	void send(const Json &word);
	void count(uint32_t flow);
	void countFlows();
	uint64_t ledgerUsed(const char *device) const;
	/**
	 * Progress of peerbuf, and what it has to say.
	 * @param reg whose revocation is noted; 0: anybody's. @return how much was done.
	 */
	int readEvents(peerbuf_reg_t reg, bool *ret_revoked);
	bool registerMemory(const ExporterSide &exporter, peerbuf_importer_t importer,
			    uint64_t size, Registered *made,
			    const peerbuf_policy *policy = nullptr);

	Channel &parent_;
	Channel &peer_;
	const Start start_;
	TargetResult result_;
	Failure failure_;
	Context ctx_;
	ExporterSide device_; /* the process of its own that the demo started */

private:
	std::map<std::string, uint64_t> flows_;
	std::chrono::steady_clock::time_point nextWord_;
};

} // namespace peerbuf::tools::demo

#endif
