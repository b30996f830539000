// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_FABRIC_DOMAIN_GATE_H
#define PEERBUF_IMPORTER_FABRIC_DOMAIN_GATE_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include <peerbuf/gate.h>
#include <peerbuf/testing.h>

namespace peerbuf::fabric
{

/**
 * The gate of one domain: closed while anything of it is suspended, since a provider call may reach
 * every region. Thread-safe; calls @p answer and the clock with no lock held.
 */
class DomainGate
{
public:
	using Answer = std::function<void(uint64_t ticket)>;
	using Clock = std::function<uint64_t()>;

	DomainGate(Answer answer, Clock clock);
	DomainGate(const DomainGate &) = delete;
	DomainGate &operator=(const DomainGate &) = delete;

	peerbuf_gate *gate() { return &shared_.gate; }

	/**
	 * One more reason to stay closed, counted by @p holder. @return true: nobody is inside;
	 * false: @p ticket is answered when the last one has left.
	 */
	bool close(uint64_t holder, uint64_t ticket);
	/**
	 * One reason less. Opens at the last, also when somebody is still inside (a move that was
	 * given up): then the tickets come back now, too late to count.
	 * @return false: the holder had none.
	 */
	bool open(uint64_t holder);
	/** All reasons of a holder that ends. */
	void forget(uint64_t holder);

	/** The pauses since the last call, oldest first; at most the last 65536 are kept. */
	size_t takePauses(peerbuf_pause *to, size_t most);
	uint64_t pauses() const;

private:
	static constexpr size_t keptPauses = 65536;

	struct Shared {
		peerbuf_gate gate;
		DomainGate *self;
	};

	void drained();
	/** mutex_ is held. @return tickets to answer once it is not. */
	std::vector<uint64_t> reopen();

	const Answer answer_;
	const Clock clock_;
	Shared shared_;

	mutable std::mutex mutex_;	/* of all below */
	std::vector<uint64_t> holders_; /* one entry a reason */
	bool drained_ = false;
	std::vector<uint64_t> tickets_;
	uint64_t closedAt_ = 0;
	long closedBy_ = 0; /* thread */
	long switches_ = 0; /* involuntary, of that thread, when it closed */
	uint64_t pauses_ = 0;
	std::deque<peerbuf_pause> kept_;
};

} // namespace peerbuf::fabric

#endif
