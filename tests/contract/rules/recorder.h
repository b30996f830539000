// SPDX-License-Identifier: BSD-3-Clause
/*
 * Two plugins that tell a test of every call that the core makes, and do or answer what the test
 * wants. They see what no black box shows: which lock is held, in which order, with which argument.
 */
#ifndef PEERBUF_TESTS_CONTRACT_RULES_RECORDER_H
#define PEERBUF_TESTS_CONTRACT_RULES_RECORDER_H

#include <stdint.h>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>

#define PEERBUF_RECORDER_OPS "peerbuf.test.recorder.v1"

enum recorder_slot {
	RECORDER_ATTACH = 1,
	RECORDER_DETACH,
	RECORDER_PIN,
	RECORDER_UNPIN,
	RECORDER_MAP,
	RECORDER_UNMAP,
	RECORDER_EXPORT_FD,
	RECORDER_RELEASE_FD,
	RECORDER_INVALIDATE_DONE,
	RECORDER_GET,
	RECORDER_PUT,
	RECORDER_FREE,
	RECORDER_REG,
	RECORDER_DEREG,
	RECORDER_INVALIDATE,
	RECORDER_RESUME,
};

struct recorder_call {
	uint32_t slot;	 /* enum recorder_slot */
	int32_t held;	 /* host->reservation_held, asked inside the slot; -1: nothing to ask for */
	int32_t status;	 /* of invalidate_done */
	uint32_t reason; /* of invalidate */
	uint64_t buffer; /* exporter's handle */
	uint64_t attachment; /* the core's id, on both sides */
	uint64_t token;	     /* of the attachment (exporter), the region (importer) */
	uint64_t mapping;    /* token of the mapping or of the export */
	uint64_t offset;
	uint64_t length;
	uint64_t ticket;     /* of invalidate */
	uint64_t cookie;     /* of invalidate_done */
	const void *request; /* what the slot was given, of its own type; for the hook only */
	void *reply;	     /* what the slot is about to give; for the hook only, may be changed */
};

/**
 * Called at the end of every slot with what it did, on the core's thread and under the core's
 * locks. @return 0, or the negative errno that the slot shall return after undoing what it did;
 * for invalidate any value, which becomes the answer.
 */
typedef int (*recorder_hook)(void *data, const struct recorder_call *call);

/** Of both plugins; what the other has is NULL. */
struct recorder_ops {
	uint32_t struct_size;
	uint32_t reserved;
	void (*set_hook)(void *device, recorder_hook hook, void *data);

	/* exporter: what its memory manager would do */
	int (*invalidate)(void *device, uint64_t buffer, const struct peerbuf_invalidate *inv);
	int (*resume)(void *device, uint64_t buffer, const struct peerbuf_resume *res);
	/** Exporter: the buffer is marked revoked, so that attach and map say -ENODEV; or not. */
	void (*set_revoked)(void *device, uint64_t buffer, int revoked);
	/** Exporter: things that are not as they should be: a foreign token, a second unmap, ... */
	uint64_t (*violations)(void *device);
	/** Exporter: attachments, pins and mappings there are. */
	uint64_t (*held)(void *device);

	/* importer */
	int (*map)(void *device, uint64_t attachment, uint64_t offset, uint64_t length,
		   struct peerbuf_mapping *ret_mapping);
	void (*ticket_done)(void *device, uint64_t ticket);
};

#endif
