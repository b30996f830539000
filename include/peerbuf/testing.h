/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file testing.h
 * What a plugin may offer through open_ops so that the contract suite can drive its device.
 *
 * None of it is needed for real work. A plugin without a table, or with NULL in a place of it, is
 * tested as far as possible without; the suite names what it skipped and why.
 */
#ifndef PEERBUF_TESTING_H
#define PEERBUF_TESTING_H

#include <peerbuf/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Name of struct peerbuf_exporter_test_ops for open_ops. */
#define PEERBUF_EXPORTER_TEST_OPS "peerbuf.test.exporter.v1"
/** Name of struct peerbuf_importer_test_ops for open_ops. */
#define PEERBUF_IMPORTER_TEST_OPS "peerbuf.test.importer.v1"

/** What a device holds for this client; all 0 once everything is given back. */
struct peerbuf_exporter_stats {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t buffers;
	uint64_t attachments;
	int64_t pins; /* signed, so that one unpin too many shows */
	int64_t mappings;
	int64_t exports;
	uint64_t memory_used; /* bytes of device memory */
	uint64_t window_used; /* bytes of the window */
	uint64_t violations;  /* breaches of the contract seen: unmap twice, unpin unpinned, ... */
	uint64_t moves;
	uint64_t quarantined; /* bytes never to be reused because an importer did not let go */
};

struct peerbuf_exporter_test_ops {
	uint32_t struct_size;
	uint32_t reserved;
	/** Read or write a buffer from the device's own side, by no mapping of this process. */
	int (*device_read)(void *device, uint64_t buffer, uint64_t offset, void *data,
			   uint64_t length);
	int (*device_write)(void *device, uint64_t buffer, uint64_t offset, const void *data,
			    uint64_t length);
	/** Take the buffer back. Tells importers through host->invalidate in the next progress. */
	int (*revoke)(void *device, uint64_t buffer);
	/** Un-revoke: the buffer can be attached and mapped anew. Old attachments stay revoked. */
	int (*restore)(void *device, uint64_t buffer);
	/** Surprise removal: every later call that needs the device says -ENODEV. */
	int (*remove)(void *device);
	/**
	 * Make @p step fail: skip @p skip calls, then @p count calls return @p err (negative errno;
	 * 0: delay only) after @p delay_ns. Steps are the names of slots: "alloc", "attach", "pin",
	 * "map", "export_fd", ...; count 0 clears. @return -ENOENT: no such step.
	 */
	int (*fault)(void *device, const char *step, uint32_t skip, uint32_t count, int err,
		     uint64_t delay_ns);
	int (*stats)(void *device, struct peerbuf_exporter_stats *ret_stats);
};

struct peerbuf_importer_stats {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t regions;
	uint64_t keys_used;
	uint64_t translations; /* entries fetched and not invalidated */
	uint64_t refaults;
	uint64_t in_flight;  /* work requests not completed */
	uint64_t violations; /* breaches seen: touched memory after letting go, ... */
};

enum peerbuf_transfer_op {
	PEERBUF_TRANSFER_WRITE = 1, /* into the region */
	PEERBUF_TRANSFER_READ = 2,  /* out of it */
};

/** Something a remote peer does, knowing only key and address. */
struct peerbuf_transfer {
	uint32_t struct_size;
	uint32_t op; /* enum peerbuf_transfer_op */
	uint64_t key64;
	uint64_t remote_addr;
	void *data; /* stays the caller's until completion */
	uint64_t length;
	uint64_t context; /* comes back in the completion */
};

struct peerbuf_completion {
	uint32_t struct_size;
	int32_t status; /* 0; -EACCES: remote access error; -EIO */
	uint64_t context;
	uint64_t bytes; /* moved */
};

struct peerbuf_importer_test_ops {
	uint32_t struct_size;
	uint32_t reserved;
	/**
	 * Do one transfer to its end. @return the completion's status; -EBUSY: its range is
	 * suspended and this engine would have to be stepped for ever: it was taken back.
	 */
	int (*transfer)(void *importer, const struct peerbuf_transfer *transfer);
	/** Queue one; NULL where the engine cannot be stepped. @return -EAGAIN: queue full. */
	int (*post)(void *importer, const struct peerbuf_transfer *transfer);
	/** Process up to @p packets packets. @return how many were processed. */
	int (*step)(void *importer, uint32_t packets);
	/** @return 1: a completion was written; 0: none. */
	int (*poll)(void *importer, struct peerbuf_completion *ret_completion);
	/** As in peerbuf_exporter_test_ops; steps "reg", "invalidate", "resume", ... */
	int (*fault)(void *importer, const char *step, uint32_t skip, uint32_t count, int err,
		     uint64_t delay_ns);
	int (*stats)(void *importer, struct peerbuf_importer_stats *ret_stats);
};

#ifdef __cplusplus
}
#endif

#endif
