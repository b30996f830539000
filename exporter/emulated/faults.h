// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_FAULTS_H
#define PEERBUF_EXPORTER_EMULATED_FAULTS_H

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace peerbuf::emulated
{

/** Which steps are to fail, when and how. Thread-bound: its owner locks. */
class FaultPlan
{
public:
	struct Fault {
		int err; /* negative errno, or 0 */
		uint64_t delayNs;
	};

	/** The calls after the next @p skip, @p count of them. count 0 clears the step. */
	void set(const std::string &step, uint32_t skip, uint32_t count, Fault fault)
	{
		if (count == 0)
			steps_.erase(step);
		else
			steps_[step] = {skip, count, fault};
	}

	/** Called once for each call of @p step. */
	std::optional<Fault> take(const std::string &step)
	{
		if (steps_.empty())
			return std::nullopt;
		auto it = steps_.find(step);
		if (it == steps_.end())
			return std::nullopt;
		if (it->second.skip) {
			it->second.skip--;
			return std::nullopt;
		}
		const Fault fault = it->second.fault;
		if (--it->second.count == 0)
			steps_.erase(it);
		return fault;
	}

private:
	struct Planned {
		uint32_t skip;
		uint32_t count;
		Fault fault;
	};
	std::map<std::string, Planned> steps_;
};

} // namespace peerbuf::emulated

#endif
