/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file plugin.h
 * What the host (peerbuf's core) lends to a plugin, and how a plugin is found.
 *
 * A plugin is a shared object named `peerbuf-exporter-NAME.so` or `peerbuf-importer-NAME.so` in
 * `LIBDIR/peerbuf/1/` or in a directory of PEERBUF_PLUGIN_PATH (colon separated; ignored for
 * set-user-ID programs). It has one read-only data symbol per ABI version, `peerbuf_exporter_v1`
 * or `peerbuf_importer_v1`, which is checked before any slot is called. It is loaded with
 * RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE and never unloaded; it links no symbol of the core.
 *
 * Threads. Unless a slot says otherwise it may be called from any thread, from several at once, and
 * may block for as long as its device takes. "Reservation held" means that the core holds the
 * buffer's lock, which stands for the kernel's dma_resv lock: the slot must not call a service that
 * takes it (each service says so) and must not wait for anything that needs it.
 *
 * Lock order: the reservation comes before every lock of a plugin. A plugin calls `invalidate`,
 * `resume` and `map` of the host with none of its own locks held that a slot called with the
 * reservation held would take.
 */
#ifndef PEERBUF_PLUGIN_H
#define PEERBUF_PLUGIN_H

#include <peerbuf/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PEERBUF_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define PEERBUF_PLUGIN_EXPORT
#endif

enum peerbuf_log_level {
	PEERBUF_LOG_ERROR = 1,
	PEERBUF_LOG_WARN = 2,
	PEERBUF_LOG_INFO = 3,
	PEERBUF_LOG_DEBUG = 4,
	PEERBUF_LOG_TRACE = 5,
};

/** An exporter tells that memory is about to move or is taken back. */
struct peerbuf_invalidate {
	uint32_t struct_size;
	uint32_t reason;      /* enum peerbuf_reason */
	uint64_t offset;      /* in the buffer */
	uint64_t length;      /* not 0 */
	uint64_t generation;  /* of the place that is being left */
	uint64_t cookie;      /* given back by invalidate_done */
	uint64_t expected_ns; /* how long the range will be away, about; 0: not known */
};

/** An exporter tells that the memory may be used again. */
struct peerbuf_resume {
	uint32_t struct_size;
	uint32_t aborted; /* 1: the move did not happen, the old place is still the right one */
	uint64_t offset;
	uint64_t length;
	uint64_t generation; /* of the place that holds now */
};

/**
 * Services of the host. Every function takes the host pointer that open was given. All of them may
 * be called from any thread; none throws.
 */
struct peerbuf_host {
	uint32_t struct_size;
	uint32_t reserved;

	/** Log one line. Library code logs at debug; warn only where nobody gets the error. */
	void (*log)(const struct peerbuf_host *host, uint32_t level, const char *message);

	/** CLOCK_MONOTONIC, ns, or the test's clock. */
	uint64_t (*now_ns)(const struct peerbuf_host *host);

	/**
	 * Say in words why the slot that is running is about to return a negative errno: the
	 * object, the numbers, the cause. Kept for this thread until the slot returns. @p errc
	 * refines the errno; PEERBUF_OK lets the core choose by errno.
	 */
	void (*fail)(const struct peerbuf_host *host, uint32_t errc, const char *message);

	/**
	 * Exporters: memory of @p buffer (the exporter's own handle) moves or is taken back.
	 *
	 * Call it before the place changes, and for a revoke after the buffer has been marked
	 * revoked, so that a racing map fails (kernel-semantics rules 46, 54). Takes the
	 * reservation; every importer attached to the range is told before it returns.
	 *
	 * @return 0: every importer has let go and every mapping of the range has been unmapped.
	 *   -EINPROGRESS: invalidate_done is called exactly once, with the cookie. Until then the
	 * old place may still be read and written and must not be reused. -EINVAL: the range is bad
	 * or empty; -ENOENT: the core knows no such buffer (nothing is attached: the same as 0).
	 */
	int (*invalidate)(const struct peerbuf_host *host, uint64_t buffer,
			  const struct peerbuf_invalidate *inv);

	/**
	 * Exporters: end of a move, done or aborted, for the range that was invalidated. Takes the
	 * reservation. @return 0, -EINVAL, -ENOENT.
	 */
	int (*resume)(const struct peerbuf_host *host, uint64_t buffer,
		      const struct peerbuf_resume *res);

	/**
	 * Importers: the one upward call. Ask for the translation of a byte range of an attachment,
	 * after a resume or at the first touch (refault). Takes the reservation unless the calling
	 * thread holds it already, that is, inside reg. The mapping belongs to the core, which
	 * unmaps it once the importer has let go.
	 *
	 * @return 0; -EAGAIN: suspended, wait for resume; -ENODEV: revoked or gone, for good;
	 *   -EINVAL: range outside the attachment; or what the exporter's map said.
	 */
	int (*map)(const struct peerbuf_host *host, uint64_t attachment, uint64_t offset,
		   uint64_t length, struct peerbuf_mapping *ret_mapping);

	/**
	 * Importers: "I have let go", the end of an invalidate that returned -EINPROGRESS. Exactly
	 * once per ticket; it may come before that invalidate has returned. Takes no lock that a
	 * slot could hold. A ticket that is late (its attachment is gone) or comes twice is
	 * dropped; the second is logged as a breach of the contract.
	 */
	void (*ticket_done)(const struct peerbuf_host *host, uint64_t ticket);

	/**
	 * 1 if the calling thread holds the reservation of @p buffer (exporters: their handle) or
	 * of
	 * @p attachment's buffer (importers); for assertions, like the kernel's
	 * dma_resv_assert_held.
	 */
	int (*reservation_held)(const struct peerbuf_host *host, uint64_t buffer_or_attachment);
};

#ifdef __cplusplus
}
#endif

#endif
