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
	uint64_t slices;      /* of finished moves */
	uint64_t evictions;
	uint64_t refaults;
	uint64_t aborted; /* moves that were rolled back */
};

/** What a move does when an importer has not let go of a slice in time. */
enum peerbuf_past_deadline {
	PEERBUF_PAST_DEADLINE_ABORT = 0, /* roll back by the same protocol */
	PEERBUF_PAST_DEADLINE_WAIT = 1,
	PEERBUF_PAST_DEADLINE_REVOKE = 2, /* take it back; what is still held goes to quarantine */
};

#define PEERBUF_MOVE_UNSLICED (1u << 0) /* in one piece, whatever the pause */
/** Damage on purpose, for controls that must fail: importers are not told. */
#define PEERBUF_MOVE_NO_NOTIFY (1u << 1)

struct peerbuf_move_request {
	uint32_t struct_size;
	uint32_t placement; /* PEERBUF_PLACEMENT_*; 0: another place of the same kind */
	uint32_t flags;
	uint32_t duty_percent;	/* most of the time that gates may be closed; 0: 50 */
	uint64_t max_pause_ns;	/* 0: 500,000 */
	uint64_t deadline_ns;	/* for a slice's tickets; 0: 1 s */
	uint32_t past_deadline; /* enum peerbuf_past_deadline */
	uint32_t reserved;
};

struct peerbuf_move_status {
	uint32_t struct_size;
	uint32_t running; /* 1: a move of the buffer is under way */
	int32_t result;	  /* of the last one: 0, -ETIMEDOUT (aborted), -EBUSY, -ENODEV, ... */
	uint32_t placement;
	uint64_t generation;
	uint64_t moved; /* bytes at the new place so far */
	uint64_t slices;
	uint64_t effective_max_pause_ns; /* what the bound came to: max(policy, one page) */
	uint64_t copy_ns;		 /* time spent copying */
	uint64_t wall_ns;		 /* of the whole move */
	uint64_t page_size; /* of the memory behind the buffer, as the kernel says; bytes */
};

/** What the memory of one placement is to the world; a step at a time. */
enum peerbuf_pool_state {
	PEERBUF_POOL_OFFLINE = 1,  /* not there */
	PEERBUF_POOL_ISOLATED = 2, /* limits can be set; nothing new goes into it */
	PEERBUF_POOL_ONLINE = 3,
};

/** What a tenant of a device may have. */
struct peerbuf_tenant_limits {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t bytes;	 /* allocated, wherever they are; PEERBUF_UNLIMITED */
	uint64_t pinned; /* of the device's memory */
	/** While it has no more of the device's memory than this, none of it makes room for others.
	 */
	uint64_t min_resident;
};

struct peerbuf_tenant_status {
	uint32_t struct_size;
	uint32_t clients; /* connected */
	struct peerbuf_tenant_limits limits;
	uint64_t bytes;	   /* allocated */
	uint64_t resident; /* of these, in the device's memory */
	uint64_t pinned;   /* by it, whoever allocated it */
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
	/**
	 * Start to move a whole buffer; it goes on while everybody makes progress.
	 * @return -EBUSY: pinned, a move is under way, or an importer cannot reach the
	 *   destination; -ENOMEM: no room there, nothing was suspended; -EINVAL; -EOPNOTSUPP: the
	 *   memory is static, or past_deadline revokes and the device never does; -ENODEV: revoked.
	 */
	int (*move)(void *device, uint64_t buffer, const struct peerbuf_move_request *request);
	int (*move_status)(void *device, uint64_t buffer, struct peerbuf_move_status *ret_status);
	/**
	 * Bring the pool of one PEERBUF_PLACEMENT_* to the next or the last enum
	 * peerbuf_pool_state.
	 * @return -EBUSY: something is in it still; -EINVAL: no such pool, or not one step.
	 */
	int (*pool)(void *device, uint32_t placement, uint32_t state);
	/**
	 * Also before the tenant's first client comes; they stay with the device.
	 * @return -ENODEV: the pool is offline; -EBUSY: it has more already; -ENOMEM: the minimum
	 *   cannot be promised beside what others were promised or have pinned.
	 */
	int (*set_limits)(void *device, const char *tenant,
			  const struct peerbuf_tenant_limits *limits);
	/** @return -ENOENT: no client and no limits of that name. */
	int (*tenant_status)(void *device, const char *tenant,
			     struct peerbuf_tenant_status *ret_status);
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
	uint64_t pauses;     /* times the data path was stopped and went on again */
};

/** One time that the data path was stopped. */
struct peerbuf_pause {
	uint64_t ns;
	uint32_t preempted; /* 1: the thread lost its CPU in the middle */
	uint32_t reserved;
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
	/** The pauses since the last call, oldest first. @return how many were written. */
	int (*pauses)(void *importer, struct peerbuf_pause *pauses, uint32_t capacity);
};

#ifdef __cplusplus
}
#endif

#endif
