/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file importer.h
 * The contract of an importer: whatever uses another device's memory in place.
 *
 * An importer makes a region (a memory key) from a mapping or a dma-buf that the core hands to it,
 * stops when it is told to, and asks for its translation again through host->map if it can. It
 * works on objects the application brought and never closes them.
 */
#ifndef PEERBUF_IMPORTER_H
#define PEERBUF_IMPORTER_H

#include <peerbuf/gate.h>
#include <peerbuf/plugin.h>
#include <peerbuf/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Capability bits, each with its slots; see exporter.h for the rule. */
#define PEERBUF_IMPORTER_CAP_INVALIDATE (1u << 0) /* invalidate */
#define PEERBUF_IMPORTER_CAP_RESUME (1u << 1)	  /* resume */
#define PEERBUF_IMPORTER_CAP_EVENTS (1u << 2)	  /* event_fd, progress */
#define PEERBUF_IMPORTER_CAP_OPS (1u << 3)	  /* open_ops */
#define PEERBUF_IMPORTER_CAP_GATE (1u << 4)	  /* gate */

/** What to make a region of. */
struct peerbuf_reg_request {
	uint32_t struct_size;
	uint32_t flow;	      /* enum peerbuf_flow */
	uint32_t access;      /* PEERBUF_ACCESS_* */
	uint32_t handle_kind; /* which of the two below is set; 0: neither (Movable, until map) */
	uint64_t attachment;  /* the core's id: for host->map, and named by invalidate and resume */
	uint64_t offset;      /* of the region's first byte in the buffer */
	uint64_t length;      /* of the region, exactly; not 0 */
	uint64_t iova;	      /* address of the region's first byte in requests */
	uint64_t granularity; /* of the exporter, bytes */
	/**
	 * Covers the region, maybe more at both ends: the region starts at offset - mapping->offset
	 * in it. Valid until the core has been told that the importer let go (dereg or invalidate).
	 */
	const struct peerbuf_mapping *mapping;
	/** The region starts at fd_export->offset in the dma-buf. The descriptor is borrowed. */
	const struct peerbuf_fd_export *fd_export;
	const char *name; /* of the buffer, for messages */
};

/** A region as applications and their peers use it. */
struct peerbuf_region {
	uint32_t struct_size;
	uint32_t lkey;	       /* 0 where the device has none */
	uint32_t rkey;	       /* likewise */
	uint32_t raw_key_size; /* 0: the key is key64; else the bytes of raw_key */
	uint64_t key64;
	uint8_t raw_key[PEERBUF_RAW_KEY_LEN];
	uint64_t remote_base; /* the address that a peer puts into a request for the first byte */
	void *native;	      /* struct ibv_mr *, struct fid_mr *, ...; owned by the region */
	void *desc;	      /* local descriptor, where the interface has one */
	uint64_t token;	      /* the importer's own, names the region in dereg */
	/**
	 * The flow that the kernel's driver says it took for a dma-buf: Movable, Revocable or
	 * Pinned; 0 where it does not say.
	 */
	uint32_t kernel_flow;
	uint32_t reserved;
};

/** An importer is told to let go. */
struct peerbuf_importer_invalidate {
	uint32_t struct_size;
	uint32_t reason;     /* enum peerbuf_reason */
	uint64_t attachment; /* as in reg */
	uint64_t offset;     /* in the buffer; may be more than the region, or not touch it */
	uint64_t length;
	uint64_t generation;  /* of the place that is being left */
	uint64_t ticket;      /* for host->ticket_done after -EINPROGRESS */
	uint64_t expected_ns; /* how long it will be away, about; 0: not known */
};

/** An importer may go on. */
struct peerbuf_importer_resume {
	uint32_t struct_size;
	uint32_t aborted; /* 1: the old place is still right; map again all the same */
	uint64_t attachment;
	uint64_t offset;
	uint64_t length;
	uint64_t generation; /* of the place that holds now */
};

/**
 * The importer plugin: `const struct peerbuf_importer_plugin peerbuf_importer_v1`.
 *
 * Slots called with the reservation held: reg, invalidate, resume. Slots called without it: all
 * others.
 */
struct peerbuf_importer_plugin {
	uint32_t struct_size;
	uint32_t abi_version;
	uint32_t capabilities; /* PEERBUF_IMPORTER_CAP_* */
	uint32_t reserved;
	const char *name;
	const char *description;
	const char *const *options;

	/**
	 * Open on the application's objects. @p objects is the structure of the plugin's own public
	 * header (fabric.h, ...), borrowed until close, or NULL when the plugin needs none.
	 */
	int (*open)(const struct peerbuf_host *host, const struct peerbuf_param *params,
		    size_t n_params, const void *objects, void **ret_importer);
	/** Every region is gone. The application's objects are left as they are. */
	void (*close)(void *importer);

	/** What it can do, now. Pure. @return -ENODEV: the device is gone. */
	int (*offer)(void *importer, struct peerbuf_importer_offer *ret_offer);

	/**
	 * Make a region. Under Movable request->mapping may be NULL: the importer maps at first
	 * touch. An invalidate for request->attachment may come as soon as reg has asked for a
	 * mapping, in particular before the caller has seen ret_region (rule 15).
	 * @return -EOPNOTSUPP: cannot import this kind (remembered for the pair); -EINVAL:
	 * geometry; -ENOSPC: no key left; -EACCES; -ENOMEM; -EFAULT. On an error nothing is left.
	 */
	int (*reg)(void *importer, const struct peerbuf_reg_request *request,
		   struct peerbuf_region *ret_region);
	/**
	 * End a region. When it returns no access through its key happens any more, and only now
	 * may the key be used again. Idempotent towards the device after a revoke or a removal.
	 */
	void (*dereg)(void *importer, uint64_t region);

	/**
	 * Stop using a range, synchronously if possible (rules 47, 48). Cannot be refused. It may
	 * come for something not mapped, twice, and before reg has returned; ranges may be larger
	 * than the region. Must not attach, detach, reg or dereg, and must not block on the peer.
	 *
	 * MOVE: what remote peers send meanwhile waits; it never fails and is never lost. REVOKE:
	 * accesses fail from now on; the key stays taken until dereg. While dereg runs, and after
	 * it, there is nothing to stop: answer 0.
	 *
	 * @return 0: stopped, nothing in flight. -EINPROGRESS: stopping; host->ticket_done follows
	 *   exactly once. Any other error is fatal for the attachment: it is revoked and its memory
	 *   goes to quarantine; -EOPNOTSUPP: this importer cannot stop at all.
	 */
	int (*invalidate)(void *importer, const struct peerbuf_importer_invalidate *inv);

	/**
	 * The range may be used again; map it when it is next touched. Must accept a range that was
	 * never stopped.
	 */
	void (*resume)(void *importer, const struct peerbuf_importer_resume *res);

	/** As in exporter.h. progress runs only inside peerbuf_progress, on the caller's thread. */
	int (*event_fd)(void *importer);
	int (*progress)(void *importer);

	/** As in exporter.h. */
	int (*open_ops)(void *importer, const char *name, const void **ret_ops);

	/**
	 * The gate between the application's calls into the data path and Invalidate (gate.h), for
	 * importers whose data path is software that runs inside those calls. It lives as long as
	 * the importer. @return -EOPNOTSUPP: opened in a way that needs none.
	 */
	int (*gate)(void *importer, struct peerbuf_gate **ret_gate);
};

#ifdef __cplusplus
}
#endif

#endif
