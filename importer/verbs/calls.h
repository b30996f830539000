// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_VERBS_CALLS_H
#define PEERBUF_IMPORTER_VERBS_CALLS_H

#include <string>

#include <peerbuf/plugin_support.hpp>

#include "system.h"

namespace peerbuf::verbs
{

/** The one way from this plugin to System, with testing.h's faults in it. Thread-safe. */
class Calls final : public System, public plugin::FaultPlan
{
public:
	explicit Calls(System &system);

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

private:
	System &system_;
};

} // namespace peerbuf::verbs

#endif
