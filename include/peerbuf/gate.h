/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file gate.h
 * Mutual exclusion between an application's calls into a software data path and memory that moves.
 *
 * A software provider copies with the CPU, inside the calls that the application makes: posting,
 * polling. Memory may move between two such calls, never during one, however long the operations
 * take that they serve. So the application brackets each of them:
 *
 *     if (!peerbuf_progress_enter(gate)) {
 *             n = fi_cq_read(cq, entries, count);
 *             peerbuf_progress_leave(gate);
 *     }
 *     peerbuf_progress(ctx);        // outside: this is what opens a closed gate again
 *
 * enter never blocks. While it says -EAGAIN the application goes on with whatever else it has and
 * with peerbuf_progress; what peers send waits in the network. The price is two atomic additions.
 */
#ifndef PEERBUF_GATE_H
#define PEERBUF_GATE_H

#include <errno.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Made by an importer; applications only hand it to enter and leave. Thread-safe. */
struct peerbuf_gate {
	uint32_t struct_size;
	uint32_t reserved;
	/** Bit 0: closed. The rest counts, in steps of 2, the threads inside or being turned away.
	 */
	uint64_t word;
	/**
	 * The gate is closed and nobody is inside. Called by the thread that left last, and perhaps
	 * again by one that was turned away: the importer answers its ticket at the first call.
	 */
	void (*drained)(struct peerbuf_gate *gate);
	/** A thread was turned away. May be NULL. */
	void (*refused)(struct peerbuf_gate *gate);
};

#define PEERBUF_GATE_CLOSED UINT64_C(1)
#define PEERBUF_GATE_INSIDE UINT64_C(2)

/** Leave; exactly once for each enter that returned 0, on any thread. */
static inline void peerbuf_progress_leave(struct peerbuf_gate *gate)
{
	const uint64_t left =
		__atomic_sub_fetch(&gate->word, PEERBUF_GATE_INSIDE, __ATOMIC_ACQ_REL);

	if (__builtin_expect(left == PEERBUF_GATE_CLOSED, 0))
		gate->drained(gate);
}

/** @return 0: inside, until leave; -EAGAIN: closed, nothing to leave. Never blocks. */
static inline int peerbuf_progress_enter(struct peerbuf_gate *gate)
{
	const uint64_t before =
		__atomic_fetch_add(&gate->word, PEERBUF_GATE_INSIDE, __ATOMIC_ACQUIRE);

	if (__builtin_expect(!(before & PEERBUF_GATE_CLOSED), 1))
		return 0;
	peerbuf_progress_leave(gate);
	if (gate->refused)
		gate->refused(gate);
	return -EAGAIN;
}

/**
 * Importers: close an open gate.
 * @return 1: nobody is inside; 0: somebody is, and drained follows.
 */
static inline int peerbuf_gate_close(struct peerbuf_gate *gate)
{
	return !__atomic_fetch_or(&gate->word, PEERBUF_GATE_CLOSED, __ATOMIC_ACQ_REL);
}

/** Importers: open a closed gate that nobody is inside of. */
static inline void peerbuf_gate_open(struct peerbuf_gate *gate)
{
	__atomic_fetch_and(&gate->word, ~PEERBUF_GATE_CLOSED, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#endif

#endif
