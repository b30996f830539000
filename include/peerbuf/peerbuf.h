/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file peerbuf.h
 * The application's interface: from memory of one device to a region on another, with reasons.
 *
 *     peerbuf_open(NULL, &ctx);
 *     peerbuf_exporter_open(ctx, "emulated", NULL, 0, &hbm);
 *     peerbuf_importer_open(ctx, "fabric", NULL, 0, &objects, &nic);
 *     peerbuf_register(ctx, &source, &nic, 1, access, NULL, &reg);
 *     peerbuf_query_reg_importer(ctx, reg, 0, &info);     // key, base, flow
 *     ... peers read and write; call peerbuf_progress(ctx) ...
 *     peerbuf_deregister(ctx, reg);
 *     peerbuf_close(ctx);
 *
 * Threads: a context may be used from several threads at once. peerbuf makes no thread of its own
 * and touches an application's object only on a thread that is inside a peerbuf call; whatever has
 * to be done later is done in peerbuf_progress, and peerbuf_event_fd says when.
 *
 * Errors: every function returns 0 (or what it says) or a negative errno, and peerbuf_last_error
 * then says more: a class of peerbuf_errc, a sentence that names the object, the numbers and the
 * cause, and the refusals. A call that fails leaves nothing behind: no attachment, charge, key or
 * descriptor. Every function: -EINVAL for a NULL that is not allowed or a struct_size that is too
 * small, -ENOENT for an id that never was, -ESTALE for the id of something gone.
 */
#ifndef PEERBUF_PEERBUF_H
#define PEERBUF_PEERBUF_H

#include <peerbuf/gate.h>
#include <peerbuf/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(PEERBUF_BUILD) && defined(__GNUC__)
#define PEERBUF_API __attribute__((visibility("default")))
#else
#define PEERBUF_API
#endif

/** All of one user of peerbuf in a process: devices, regions, ledger, events. */
struct peerbuf_context;

/** The last failure on the calling thread. */
struct peerbuf_error {
	uint32_t struct_size;
	uint32_t errc; /* enum peerbuf_errc */
	int32_t err;   /* the negative errno that was returned */
	uint32_t reserved;
	const char *what;
	size_t n_refusals;
	const struct peerbuf_refusal *refusals;
};

/**
 * @return never NULL; owned by peerbuf, valid until the next call of peerbuf on this thread. After
 * a call that succeeded its contents are those of the failure before it.
 */
PEERBUF_API const struct peerbuf_error *peerbuf_last_error(void);

/** Version of the library, "MAJOR.MINOR.PATCH". */
PEERBUF_API const char *peerbuf_version(void);

/* Names as they appear in every message and in JSON; "unknown" beyond the list. */
PEERBUF_API const char *peerbuf_flow_name(uint32_t flow);
PEERBUF_API const char *peerbuf_errc_name(uint32_t errc);
PEERBUF_API const char *peerbuf_how_known_name(uint32_t how_known);

/** Options of peerbuf_open. */
struct peerbuf_open_attr {
	uint32_t struct_size;
	uint32_t reserved;
	const char *tenant;	 /* who pays in the ledger; NULL: "default" */
	const char *plugin_path; /* searched before all others; NULL: none */
	/**
	 * Takes every log line instead of standard error; any thread, must not call peerbuf. NULL:
	 * standard error. PEERBUF_LOG=CATEGORY:LEVEL,... chooses, default *:warn.
	 */
	void (*log)(void *data, uint32_t level, const char *category, const char *message);
	void *log_data;
};

/** @param attr NULL for defaults. */
PEERBUF_API int peerbuf_open(const struct peerbuf_open_attr *attr,
			     struct peerbuf_context **ret_ctx);

/**
 * Deregister all that is registered, close the devices, free the context. May be given NULL. No
 * other thread may be using the context. @return 0, or the first error met; all is closed anyway.
 */
PEERBUF_API int peerbuf_close(struct peerbuf_context *ctx);

/* ---- plugins and devices ------------------------------------------------------------------ */

enum peerbuf_plugin_kind {
	PEERBUF_PLUGIN_EXPORTER = 1,
	PEERBUF_PLUGIN_IMPORTER = 2,
};

/** A plugin that was found. */
struct peerbuf_plugin_info {
	uint32_t struct_size;
	uint32_t kind; /* enum peerbuf_plugin_kind */
	int32_t err;   /* 0: usable; else why says what is wrong with it */
	uint32_t capabilities;
	char name[PEERBUF_NAME_LEN];
	char description[PEERBUF_WHY_LEN];
	char path[PEERBUF_WHY_LEN];
	char why[PEERBUF_WHY_LEN * 2];
	const char *const *options; /* as the plugin has them; may be NULL */
};

/**
 * The @p index'th plugin in the search path, sorted by kind and name.
 * @return -ENOENT past the end.
 */
PEERBUF_API int peerbuf_query_plugin(struct peerbuf_context *ctx, size_t index,
				     struct peerbuf_plugin_info *ret_info);

/**
 * Open a device of the exporter plugin @p name.
 * @return -ENOENT: no such plugin (the error lists those there are); what its open said.
 */
PEERBUF_API int peerbuf_exporter_open(struct peerbuf_context *ctx, const char *name,
				      const struct peerbuf_param *params, size_t n_params,
				      peerbuf_exporter_t *ret_exporter);
/** @return -EBUSY: buffers of it are registered. Buffers that were allocated are freed. */
PEERBUF_API int peerbuf_exporter_close(struct peerbuf_context *ctx, peerbuf_exporter_t exporter);
PEERBUF_API int peerbuf_query_exporter(struct peerbuf_context *ctx, peerbuf_exporter_t exporter,
				       struct peerbuf_exporter_offer *ret_offer);

/**
 * Open the importer plugin @p name on the application's own objects, which are borrowed until
 * peerbuf_importer_close and never closed.
 * @param objects the structure of the plugin's public header (peerbuf/fabric.h), or NULL.
 */
PEERBUF_API int peerbuf_importer_open(struct peerbuf_context *ctx, const char *name,
				      const struct peerbuf_param *params, size_t n_params,
				      const void *objects, peerbuf_importer_t *ret_importer);
/** @return -EBUSY: regions of it are registered. */
PEERBUF_API int peerbuf_importer_close(struct peerbuf_context *ctx, peerbuf_importer_t importer);
PEERBUF_API int peerbuf_query_importer(struct peerbuf_context *ctx, peerbuf_importer_t importer,
				       struct peerbuf_importer_offer *ret_offer);

/**
 * A plugin's table of operations beyond the contract, and the object they take. Both live as long
 * as the device is open. @return -ENOENT: no such table.
 */
PEERBUF_API int peerbuf_exporter_open_ops(struct peerbuf_context *ctx, peerbuf_exporter_t exporter,
					  const char *ops, const void **ret_ops, void **ret_device);
PEERBUF_API int peerbuf_importer_open_ops(struct peerbuf_context *ctx, peerbuf_importer_t importer,
					  const char *ops, const void **ret_ops,
					  void **ret_importer);

/**
 * The gate that the application's calls into an importer's data path go through (gate.h:
 * peerbuf_progress_enter and leave). It is valid while the importer is open.
 * @return -EOPNOTSUPP: this importer has none: its data path is hardware, or it was not opened as
 *   bracketed (then it never follows moves, and nothing has to be bracketed).
 */
PEERBUF_API int peerbuf_importer_gate(struct peerbuf_context *ctx, peerbuf_importer_t importer,
				      struct peerbuf_gate **ret_gate);

/* ---- memory ------------------------------------------------------------------------------- */

struct peerbuf_buffer_info {
	uint32_t struct_size;
	uint32_t reserved;
	peerbuf_exporter_t exporter;
	uint64_t handle; /* the exporter's own, for open_ops tables */
	uint64_t allocation_id;
	uint64_t generation;
	uint64_t size;
	void *address; /* in this process, or NULL */
};

/** Allocate memory of the device, zeroed; size is rounded up to its granularity. */
PEERBUF_API int peerbuf_alloc(struct peerbuf_context *ctx, peerbuf_exporter_t exporter,
			      uint64_t size, peerbuf_buffer_t *ret_buffer);
/** Free it. @return -EBUSY: it is registered, or between cpu_begin and cpu_end. */
PEERBUF_API int peerbuf_free(struct peerbuf_context *ctx, peerbuf_buffer_t buffer);
PEERBUF_API int peerbuf_query_buffer(struct peerbuf_context *ctx, peerbuf_buffer_t buffer,
				     struct peerbuf_buffer_info *ret_info);

/**
 * Bracket the application's own access to a buffer's address by the CPU, so that the memory does
 * not move meanwhile. begin makes progress (as peerbuf_progress) until no move is under way.
 * Nests, on one thread also while a move waits; keep it short: the move waits for it.
 * @param timeout_ns of begin. @return -ETIMEDOUT; -ENODEV: gone, or revoked and not registered
 *   anew since; end: -EINVAL: not begun.
 */
PEERBUF_API int peerbuf_cpu_begin(struct peerbuf_context *ctx, peerbuf_buffer_t buffer,
				  uint64_t timeout_ns);
PEERBUF_API int peerbuf_cpu_end(struct peerbuf_context *ctx, peerbuf_buffer_t buffer);

/* ---- registration ------------------------------------------------------------------------- */

/** Memory to register, named in one of three ways: buffer, fd, or address. */
struct peerbuf_source {
	uint32_t struct_size;
	int32_t fd;		 /* a dma-buf, borrowed; read if buffer is 0 and address NULL */
	peerbuf_buffer_t buffer; /* of peerbuf_alloc; 0: see address, fd */
	void *address;		 /* with buffer 0: of memory that some open exporter knows */
	uint64_t offset;	 /* into buffer or dma-buf; must be 0 with address */
	uint64_t length;	 /* not 0 */
	/**
	 * Address that peers use for the first byte, where the importer works with addresses; 0:
	 * the memory's own address, or the offset. Its low bits must be those of the offset (rule
	 * 33).
	 */
	uint64_t iova;
};

enum peerbuf_pin_policy {
	PEERBUF_PINS_WITHIN_LIMIT = 0,
	PEERBUF_PINS_DEDICATED =
		1, /* this machine's memory is ours: pins are counted, not limited */
};

/** What the caller allows. Zeroed (or NULL in a call) it is the default. */
struct peerbuf_policy {
	uint32_t struct_size;
	uint32_t host_placement_ok; /* 1: memory may be put into host memory for this importer */
	uint32_t staging_ok;	    /* 1: a copy through host memory is better than an error */
	uint32_t pins;		    /* enum peerbuf_pin_policy */
	uint32_t rekey_ok;	    /* 1: new keys after a move are acceptable */
	/**
	 * Best flow wanted, to ask for less than the pair can do (PEERBUF_FLOW_PINNED for the
	 * lowest latency); PEERBUF_FLOW_NONE: the best there is. One of Movable, Revocable, Pinned.
	 */
	uint32_t ceiling;
	uint32_t partial_ok; /* 1: with several importers, keep those that worked */
	uint32_t reserved;
	const char *tenant; /* who pays; NULL: the context's */
};

/** What was obtained, over all importers of a registration. */
struct peerbuf_reg_info {
	uint32_t struct_size;
	uint32_t flow;		 /* the least of the importers' */
	uint32_t flows_possible; /* bits; more than one only where the kernel chose */
	uint32_t how_known;	 /* enum peerbuf_how_known */
	uint32_t placement;	 /* PEERBUF_PLACEMENT_* */
	uint32_t revoked;	 /* 1: taken back; regions only wait to be deregistered */
	uint32_t n_importers;
	uint32_t n_refusals;
	peerbuf_buffer_t buffer; /* 0 when named by address or descriptor */
	uint64_t offset;
	uint64_t length;
	uint64_t generation;   /* of the memory's place */
	uint64_t pinned_bytes; /* charged */
	uint64_t window_bytes; /* charged; 0 if another registration already pays for the range */
	uint64_t host_bytes;   /* charged */
};

/** What one importer obtained. */
struct peerbuf_reg_importer_info {
	uint32_t struct_size;
	int32_t status; /* 0, or why this importer has no region (partial_ok) */
	peerbuf_importer_t importer;
	uint32_t flow;
	uint32_t flows_possible;
	uint32_t how_known;
	uint32_t placement;
	uint32_t variant;     /* PEERBUF_VARIANT_* */
	uint32_t handle_kind; /* PEERBUF_HANDLE_* the region was made from */
	uint32_t peer2peer;
	uint32_t software;	 /* 1: the data path is software: not a dma-buf import */
	uint32_t dropped_access; /* optional flags that were left out */
	uint32_t revoked;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t raw_key_size;
	/**
	 * How the kernel's driver says it holds the dma-buf, as enum peerbuf_flow; 0: it is none,
	 * or the kernel does not say. It may be better than flow where there is nothing to follow:
	 * of memory that never moves a movable attachment is as good as a pinned one.
	 */
	uint32_t kernel_flow;
	uint64_t key64;
	uint8_t raw_key[PEERBUF_RAW_KEY_LEN];
	uint64_t remote_base;
	void *native; /* struct ibv_mr *, struct fid_mr *, ...: valid until deregistered */
	void *desc;
};

/**
 * Register a range of memory with importers. All or nothing unless policy->partial_ok.
 *
 * @param n 1..64.
 * @param policy NULL: the default.
 * @return 0; -EINVAL geometry or arguments, -EOPNOTSUPP no flow that both sides and the policy
 *   allow, -EDQUOT the ledger's limit, -ENOSPC window or keys, -EACCES, -ENODEV revoked or gone,
 *   or what a plugin said. peerbuf_last_error has the refusals of every flow that was tried.
 */
PEERBUF_API int peerbuf_register(struct peerbuf_context *ctx, const struct peerbuf_source *source,
				 const peerbuf_importer_t *importers, size_t n, uint32_t access,
				 const struct peerbuf_policy *policy, peerbuf_reg_t *ret_reg);
/** Undo it, also after a revoke. Keys are invalid when it returns. */
PEERBUF_API int peerbuf_deregister(struct peerbuf_context *ctx, peerbuf_reg_t reg);

PEERBUF_API int peerbuf_query_reg(struct peerbuf_context *ctx, peerbuf_reg_t reg,
				  struct peerbuf_reg_info *ret_info);
/** @param index 0..n_importers-1, in the order of the call. */
PEERBUF_API int peerbuf_query_reg_importer(struct peerbuf_context *ctx, peerbuf_reg_t reg,
					   size_t index,
					   struct peerbuf_reg_importer_info *ret_info);
/** Why no better flow was obtained. @param index 0..n_refusals-1. */
PEERBUF_API int peerbuf_query_refusal(struct peerbuf_context *ctx, peerbuf_reg_t reg, size_t index,
				      struct peerbuf_refusal *ret_refusal);

/**
 * Negotiate without touching anything: the answer peerbuf_register would start from.
 * @param source NULL: memory of the exporter in general, one granule.
 * @param refusals filled with up to @p capacity of @p ret_n; may be NULL with capacity 0.
 * @return 0 with *ret_flow, or the error peerbuf_register would return; refusals in both cases.
 */
PEERBUF_API int peerbuf_negotiate(struct peerbuf_context *ctx, peerbuf_exporter_t exporter,
				  peerbuf_importer_t importer, uint32_t access,
				  const struct peerbuf_policy *policy, uint32_t *ret_flow,
				  struct peerbuf_refusal *refusals, size_t capacity, size_t *ret_n);

/**
 * With the flow Rekey: the application has seen PEERBUF_EVENT_SUSPENDED, has stopped its peers and
 * has no operation with the old keys left. The regions are deregistered, the memory moves, and
 * PEERBUF_EVENT_REKEYED says that peerbuf_query_reg_importer has new keys.
 * @return -EINVAL: nothing of it is waiting for this.
 */
PEERBUF_API int peerbuf_rekey_ready(struct peerbuf_context *ctx, peerbuf_reg_t reg);

/* ---- progress and events ------------------------------------------------------------------ */

enum peerbuf_event_type {
	PEERBUF_EVENT_SUSPENDED =
		1, /* a range waits for a move; with Rekey see peerbuf_rekey_ready */
	PEERBUF_EVENT_RESUMED = 2,
	PEERBUF_EVENT_REKEYED = 3,
	PEERBUF_EVENT_REVOKED = 4,     /* taken back: keys fail; deregister */
	PEERBUF_EVENT_DEVICE_GONE = 5, /* the exporter's device; its regions are revoked */
};

struct peerbuf_event {
	uint32_t struct_size;
	uint32_t type;	   /* enum peerbuf_event_type */
	peerbuf_reg_t reg; /* 0 with DEVICE_GONE */
	peerbuf_exporter_t exporter;
	uint32_t importer_index;
	uint32_t reserved;
	uint64_t offset; /* in the buffer */
	uint64_t length;
	uint64_t generation;
	uint64_t expected_ns; /* SUSPENDED: how long, about; 0: not known */
};

/**
 * Do what is due: events of devices, tickets, unmapping after a revoke. Never blocks on a peer.
 * @return number of things done, 0 if none.
 */
PEERBUF_API int peerbuf_progress(struct peerbuf_context *ctx);
/** Readable when peerbuf_progress or peerbuf_next_event has something. Owned by the context. */
PEERBUF_API int peerbuf_event_fd(struct peerbuf_context *ctx);
/** @return 1: *ret_event was written; 0: none is queued. */
PEERBUF_API int peerbuf_next_event(struct peerbuf_context *ctx, struct peerbuf_event *ret_event);

/* ---- ledger ------------------------------------------------------------------------------- */

enum peerbuf_ledger_column {
	PEERBUF_LEDGER_PINS = 1,   /* device memory that cannot move because of us */
	PEERBUF_LEDGER_WINDOW = 2, /* bytes of the PCIe window */
	PEERBUF_LEDGER_HOST = 3,   /* host memory locked */
};

struct peerbuf_ledger_info {
	uint32_t struct_size;
	uint32_t holders; /* registrations that hold some of it */
	uint64_t used;	  /* bytes */
	uint64_t limit;	  /* PEERBUF_UNLIMITED: none */
};

/**
 * This process's ledger; other processes' charges are the device's to count.
 * @param tenant NULL: all tenants together (limit: unlimited).
 * @param device as in peerbuf_exporter_offer.device; NULL: all devices.
 */
PEERBUF_API int peerbuf_query_ledger(struct peerbuf_context *ctx, const char *tenant,
				     const char *device, uint32_t column,
				     struct peerbuf_ledger_info *ret_info);
/**
 * Set a tenant's limit on a device. What is already charged stays.
 * @param tenant NULL: the context's.
 * @param bytes PEERBUF_UNLIMITED: none.
 */
PEERBUF_API int peerbuf_ledger_set_limit(struct peerbuf_context *ctx, const char *tenant,
					 const char *device, uint32_t column, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
