// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_VERBS_CALLS_H
#define PEERBUF_IMPORTER_VERBS_CALLS_H

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "system.h"

namespace peerbuf::verbs
{

/** The steps of making and ending a region, each of which a test can make fail. */
enum class Step {
	Offer,
	Reg,
	Ioctl,
	RegMr,
	RegDmabufMr,
	RegMrEx,
	RegDataDirect,
	DeregMr,
};

/** The one way from this plugin to System, with testing.h's faults in it. Thread-safe. */
class Calls final : public System
{
public:
	explicit Calls(System &system) : system_(system) {}

	int ioctl(int fd, unsigned long request, void *arg) override;
	int queryDevice(ibv_context *context, ibv_device_attr *retAttr) override;
	int regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		  ibv_mr **retMr) override;
	int regDmabufMr(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr) override;
	int regMrEx(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr) override;
	int regDataDirect(ibv_pd *pd, const DmabufRange &range, ibv_mr **retMr) override;
	bool hasDataDirect() override { return system_.hasDataDirect(); }
	int deregMr(ibv_mr *mr) override;
	uint64_t lockLimit() override { return system_.lockLimit(); }
	std::string exporterOf(int fd) override { return system_.exporterOf(fd); }

	/** The fault that is due for @p step now: 0 or a negative errno, after its delay. */
	int due(Step step);
	/** testing.h: skip, then fail. @return -ENOENT: no such step. */
	int fault(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs);
	static std::string stepList();

private:
	struct Fault {
		uint32_t skip = 0;
		uint32_t count = 0;
		int err = 0;
		uint64_t delayNs = 0;
	};

	static constexpr size_t nSteps = static_cast<size_t>(Step::DeregMr) + 1;

	System &system_;
	std::atomic<uint32_t> armed_{0}; /* steps with a fault, so that real work takes no lock */
	std::mutex mutex_;
	std::array<Fault, nSteps> faults_; /* under mutex_ */
};

} // namespace peerbuf::verbs

#endif
