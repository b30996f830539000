// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_TICKETS_H
#define PEERBUF_CORE_TICKETS_H

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/exporter.h"
#include "core/range.h"

namespace peerbuf
{

/**
 * One Invalidate on its way through all importers of a buffer. It is over when every one of them
 * has let go; then the exporter is told, once.
 */
struct Operation {
	std::shared_ptr<Exporter> exporter;
	uint64_t handle = 0;
	uint64_t cookie = 0;
	bool tell = true; /* false: nobody waits, the device is gone */
	/** Importers that have not let go, and one for the walk itself. Guarded by Tickets. */
	unsigned pending = 1;
	int status = 0; /* the first fatal answer */
};

/** What an importer's "I have let go" will be about. */
struct Ticket {
	std::shared_ptr<Operation> operation;
	uint64_t attachment = 0;
	peerbuf_reason reason = PEERBUF_REASON_MOVE;
	Range range;
	uint64_t stop = 0; /* number of the attachment's Invalidate */
};

/**
 * The tickets that importers hold. One is answered exactly once: by its importer, or by the end of
 * its attachment. Thread-safe; its lock is a leaf, so ticket_done may come from anywhere.
 */
class Tickets
{
public:
	/** The operation waits for one more finish(), without a ticket. */
	void hold(Operation &operation);
	/** A new ticket; its operation waits for it. @return the id. */
	uint64_t issue(Ticket ticket);

	enum class Answer {
		Fresh, /* the importer's word counts */
		Again, /* a second time: the importer breaks the contract */
		Late,  /* the attachment is gone, or there never was such a ticket */
	};
	/** ticket_done. */
	Answer done(uint64_t id);
	/** The invalidate itself answered, so no ticket_done is due. */
	void answered(uint64_t id);

	/** A ticket that is done, for processing; once each. */
	std::optional<Ticket> takeDone();
	bool anyDone() const;

	/** Forget an attachment; @return its tickets that were still open. */
	std::vector<Ticket> forget(uint64_t attachment);

	/** One holder of @p operation is finished. @param status 0 or a fatal negative errno.
	 *  @return true if it was the last. */
	bool finish(Operation &operation, int status);

private:
	/** How many closed tickets are remembered, so that one that is answered again shows. */
	static constexpr size_t REMEMBERED = 256;

	struct Entry {
		Ticket ticket;
		bool done = false;
	};
	void close(uint64_t id) REQUIRES(mutex_);

	mutable Mutex mutex_;
	uint64_t lastId_ GUARDED_BY(mutex_) = 0;
	std::map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);
	std::deque<uint64_t> done_ GUARDED_BY(mutex_);
	std::deque<uint64_t> closed_ GUARDED_BY(mutex_);
};

} // namespace peerbuf

#endif
