// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BUFFER_H
#define PEERBUF_CORE_BUFFER_H

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/shared_export.h"

namespace peerbuf
{

class Attachment;
struct Operation;

/**
 * One allocation of an exporter and all that is attached to it. It holds one reference of the
 * exporter's (of alloc or get) and gives it back when the last user here goes. Thread-safe.
 */
class Buffer
{
public:
	enum class Origin { Alloc, Get };

	Buffer(std::shared_ptr<Exporter> exporter, const peerbuf_buffer_desc &desc, Origin origin)
	    : exporter_(std::move(exporter)),
	      desc_(desc),
	      origin_(origin)
	{
	}
	~Buffer()
	{
		if (origin_ == Origin::Alloc)
			exporter_->free(desc_.handle);
		else
			exporter_->put(desc_.handle);
	}
	Buffer(const Buffer &) = delete;
	Buffer &operator=(const Buffer &) = delete;

	const std::shared_ptr<Exporter> &exporter() const { return exporter_; }
	const peerbuf_buffer_desc &desc() const { return desc_; }
	std::string name() const
	{
		return text("buffer ", desc_.handle, " of ", exporter_->name());
	}

	uint64_t currentGeneration() EXCLUDES(reservation)
	{
		ReservationLock lock(reservation);
		return generationLocked();
	}
	uint64_t generationLocked() REQUIRES(reservation)
	{
		return std::max(generation, desc_.generation);
	}

	/** One thread at a time exports or gives up an export; before the reservation. */
	Mutex exporting;
	/** Its dma-bufs; each lives as long as an attachment uses it. */
	std::vector<std::weak_ptr<SharedExport>> exports GUARDED_BY(exporting);

	/** Stands for the kernel's dma_resv lock of the dma-buf. */
	Reservation reservation;
	/** Newest first, as the kernel walks them. Not owned: each unlinks itself. */
	std::vector<Attachment *> attachments GUARDED_BY(reservation);
	uint64_t generation GUARDED_BY(reservation) = 0;
	/** Grows with every revoke, so that one that falls into the making of an attachment shows.
	 */
	uint64_t revokes GUARDED_BY(reservation) = 0;

	/** Taken back, and no attachment has been made since. */
	bool revoked GUARDED_BY(reservation) = false;

	/** The application's own access by the CPU, and the moves that wait for its end. */
	unsigned cpuUsers GUARDED_BY(reservation) = 0;
	/** How many of them each thread began: only they may go on while a move waits. */
	std::map<std::thread::id, unsigned> cpuThreads GUARDED_BY(reservation);
	RangeSet moving GUARDED_BY(reservation);
	std::vector<std::shared_ptr<Operation>> awaitCpu GUARDED_BY(reservation);

private:
	const std::shared_ptr<Exporter> exporter_;
	const peerbuf_buffer_desc desc_;
	const Origin origin_;
};

} // namespace peerbuf

#endif
