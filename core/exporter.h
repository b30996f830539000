// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_EXPORTER_H
#define PEERBUF_CORE_EXPORTER_H

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/exporter.h>

#include "core/base/unique_fd.h"
#include "core/host.h"
#include "core/offer.h"
#include "core/plugin.h"

namespace peerbuf
{

/**
 * An open device of an exporter plugin. Every method is the slot of its name with its answer
 * checked: what a plugin gets wrong ends here, as BAD_PLUGIN, with what it had given undone. The
 * device is closed with the last reference. Thread-safe.
 */
class Exporter
{
public:
	static Result<std::shared_ptr<Exporter>> create(const Plugin &plugin, uint64_t id,
							HostServices &services, const Log &log,
							const std::vector<peerbuf_param> &params);
	~Exporter();
	Exporter(const Exporter &) = delete;
	Exporter &operator=(const Exporter &) = delete;

	uint64_t id() const { return id_; }
	const std::string &name() const { return name_; }
	bool has(uint32_t capability) const { return ops_.capabilities & capability; }

	Result<peerbuf_exporter_offer> offer(uint64_t buffer) const;
	Result<peerbuf_buffer_desc> alloc(uint64_t size);
	void free(uint64_t buffer);
	Result<peerbuf_buffer_desc> get(const peerbuf_get_request &request);
	void put(uint64_t buffer);
	Result<peerbuf_attach_reply> attach(uint64_t buffer, const peerbuf_attach_request &request);
	void detach(uint64_t attachment);
	Result<void> pin(uint64_t attachment);
	void unpin(uint64_t attachment);
	/** @param size of the buffer, @param granularity of its offer: what the answer must obey.
	 */
	Result<peerbuf_mapping> map(uint64_t attachment, const Range &range, uint64_t size,
				    uint64_t granularity, uint32_t handleKind);
	void unmap(uint64_t attachment, const peerbuf_mapping &mapping);
	Result<peerbuf_fd_export> exportFd(uint64_t attachment, const Range &range,
					   uint32_t variant);
	void releaseFd(uint64_t attachment, const peerbuf_fd_export &exported);
	void invalidateDone(uint64_t buffer, uint64_t cookie, int status);
	/** -1: it has none. Borrowed. */
	BorrowedFd eventFd() const;
	/** @return events handled, or the Error of a device that is gone. */
	Result<int> progress();
	Result<const void *> openOps(const std::string &name) const;
	void *device() const { return device_; }

	/** Set once the device has been seen to be gone. @return whether this call was the first.
	 */
	bool markGone() { return !gone_.exchange(true); }
	bool gone() const { return gone_; }

	/** Buffers that registrations hold at the moment. */
	std::atomic<unsigned> users{0};

private:
	Exporter(const Plugin &plugin, uint64_t id, HostServices &services, const Log &log);

	Error slotError(const char *slot, int rc) const { return host_.slotError(name_, slot, rc); }
	Result<peerbuf_buffer_desc> checkedDesc(const peerbuf_buffer_desc &desc, const char *slot);

	const peerbuf_exporter_plugin ops_;
	const uint64_t id_;
	const std::string name_;
	const Log &log_;
	Host host_;
	void *device_ = nullptr;
	std::atomic<bool> gone_{false};
};

} // namespace peerbuf

#endif
