// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file fault_plan.h
 * The NIC's steps that fail or take their time because a test wants it.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_FAULT_PLAN_H
#define PEERBUF_IMPORTER_EMULATED_FAULT_PLAN_H

#include <cerrno>
#include <cstdint>
#include <string_view>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::emulated
{

/** Thread-safe; its lock is a leaf. */
class FaultPlan : public plugin::FaultPlan
{
public:
	FaultPlan() : plugin::FaultPlan(steps) {}

	/** @return -ENOENT: no such step; -EINVAL: not a negative errno, or one where none can be.
	 */
	int set(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
	{
		const bool onlySlow = step == "dereg" || step == "resume";
		if (knows(step) && (err > 0 || (err && onlySlow)))
			return -EINVAL;
		return fault(step, skip, count, err, delayNs);
	}

private:
	// reg.* are the stages inside reg: the table made, the key taken, the addresses programmed
	static constexpr const char *steps[] = {"offer",      "reg",	     "reg.table",
						"reg.key",    "reg.program", "dereg",
						"invalidate", "resume",	     "map"};
};

} // namespace peerbuf::emulated

#endif
