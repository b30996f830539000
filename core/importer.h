// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_IMPORTER_H
#define PEERBUF_CORE_IMPORTER_H

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/importer.h>

#include "core/base/unique_fd.h"
#include "core/host.h"
#include "core/plugin.h"

namespace peerbuf
{

/** An open device of an importer plugin; as Exporter. Thread-safe. */
class Importer
{
public:
	static Result<std::shared_ptr<Importer>> create(const Plugin &plugin, uint64_t id,
							HostServices &services, const Log &log,
							const std::vector<peerbuf_param> &params,
							const void *objects);
	~Importer();
	Importer(const Importer &) = delete;
	Importer &operator=(const Importer &) = delete;

	uint64_t id() const { return id_; }
	const std::string &name() const { return name_; }
	bool has(uint32_t capability) const { return ops_.capabilities & capability; }

	Result<peerbuf_importer_offer> offer() const;
	Result<peerbuf_region> reg(const peerbuf_reg_request &request);
	void dereg(uint64_t region);
	/** 0, -EINPROGRESS or a fatal negative errno; -EOPNOTSUPP without the slot. */
	int invalidate(const peerbuf_importer_invalidate &inv);
	void resume(const peerbuf_importer_resume &res);
	BorrowedFd eventFd() const;
	Result<int> progress();
	Result<const void *> openOps(const std::string &name) const;
	Result<peerbuf_gate *> gate() const;
	void *device() const { return device_; }

	/** Regions at the moment. */
	std::atomic<unsigned> users{0};

private:
	Importer(const Plugin &plugin, uint64_t id, HostServices &services, const Log &log);

	Error slotError(const char *slot, int rc) const { return host_.slotError(name_, slot, rc); }

	const peerbuf_importer_plugin ops_;
	const uint64_t id_;
	const std::string name_;
	Host host_;
	void *device_ = nullptr;
};

} // namespace peerbuf

#endif
