// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file fault_plan.h
 * Steps that fail or take their time because a test wants it.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_FAULT_PLAN_H
#define PEERBUF_IMPORTER_EMULATED_FAULT_PLAN_H

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace peerbuf::emulated
{

/** Thread-safe; its lock is a leaf. */
class FaultPlan
{
public:
	/** @return -ENOENT: no such step; -EINVAL: not a negative errno, or one where none can be.
	 */
	int set(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
	{
		for (const Step &known : steps) {
			if (step != known.name)
				continue;
			if (err > 0 || (err && !known.canFail))
				return -EINVAL;
			const std::lock_guard<std::mutex> lock(mutex_);
			if (count)
				faults_[std::string(step)] = {skip, count, err, delayNs};
			else
				faults_.erase(std::string(step));
			return 0;
		}
		return -ENOENT;
	}

	/** A step is reached. May sleep: call it with no lock held. @return 0 or what to fail with.
	 */
	int reach(std::string_view step)
	{
		Fault fault;
		{
			const std::lock_guard<std::mutex> lock(mutex_);
			auto it = faults_.find(step);
			if (it == faults_.end())
				return 0;
			if (it->second.skip) {
				it->second.skip--;
				return 0;
			}
			fault = it->second;
			if (--it->second.count == 0)
				faults_.erase(it);
		}
		if (fault.delayNs)
			std::this_thread::sleep_for(std::chrono::nanoseconds(fault.delayNs));
		return fault.err;
	}

private:
	struct Step {
		const char *name;
		bool canFail;
	};
	// reg.* are the stages inside reg: the table made, the key taken, the addresses programmed
	static constexpr Step steps[] = {
		{"offer", true},      {"reg", true},	     {"reg.table", true},
		{"reg.key", true},    {"reg.program", true}, {"dereg", false},
		{"invalidate", true}, {"resume", false},     {"map", true},
	};
	struct Fault {
		uint32_t skip = 0;
		uint32_t count = 0;
		int err = 0;
		uint64_t delayNs = 0;
	};

	std::mutex mutex_;
	std::map<std::string, Fault, std::less<>> faults_;
};

} // namespace peerbuf::emulated

#endif
