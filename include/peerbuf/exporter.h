/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file exporter.h
 * The contract of an exporter: whatever hands out memory of a device.
 *
 * An exporter gives buffers, says what may happen to them (its offer), lets importers attach, and
 * calls host->invalidate before it moves memory or takes it back. It never learns who the importer
 * is beyond what an attach request says. docs/plugin-guide.md writes one in under 100 lines.
 */
#ifndef PEERBUF_EXPORTER_H
#define PEERBUF_EXPORTER_H

#include <peerbuf/plugin.h>
#include <peerbuf/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Capability bits. Each stands for the slots named beside it: a bit without its slots, or slots
 * without their bit, and the plugin is refused at load, naming both.
 */
#define PEERBUF_EXPORTER_CAP_ALLOC (1u << 0)	  /* alloc, free */
#define PEERBUF_EXPORTER_CAP_GET (1u << 1)	  /* get, put */
#define PEERBUF_EXPORTER_CAP_PIN (1u << 2)	  /* pin, unpin */
#define PEERBUF_EXPORTER_CAP_MAP (1u << 3)	  /* map, unmap */
#define PEERBUF_EXPORTER_CAP_FD (1u << 4)	  /* export_fd, release_fd */
#define PEERBUF_EXPORTER_CAP_INVALIDATE (1u << 5) /* invalidate_done; it calls host->invalidate */
#define PEERBUF_EXPORTER_CAP_EVENTS (1u << 6)	  /* event_fd, progress */
#define PEERBUF_EXPORTER_CAP_OPS (1u << 7)	  /* open_ops */

/** A buffer as its exporter knows it. */
struct peerbuf_buffer_desc {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t handle; /* the exporter's own, not 0; names the buffer in every later call */
	uint64_t allocation_id; /* identity: never used again for another allocation */
	uint64_t generation;	/* of the place */
	uint64_t address;	/* in this process, or 0 when the application cannot touch it */
	uint64_t size; /* never changes (kernel-semantics rule 4); multiple of granularity */
};

/** By what an application names memory it already has. */
struct peerbuf_get_request {
	uint32_t struct_size;
	int32_t fd;	  /* a dma-buf, borrowed; -1: by address */
	uint64_t address; /* any address inside the allocation */
	uint64_t length;  /* of what will be used, from address; 0 with a descriptor: all of it */
};

/** What an importer that is about to attach can do, and wants. */
struct peerbuf_attach_request {
	uint32_t struct_size;
	uint32_t allow_peer2peer; /* the exporter may lower it, never raise it (rule 12) */
	uint32_t invalidation;	  /* PEERBUF_INVALIDATION_* the importer will honour */
	uint32_t variant;	  /* one PEERBUF_VARIANT_* */
	uint32_t access;	  /* PEERBUF_ACCESS_* */
	uint32_t handle_kind;	  /* one PEERBUF_HANDLE_* */
	uint64_t offset;	  /* of the range the importer will use */
	uint64_t length;
	uint64_t attachment;  /* the core's id */
	const char *importer; /* name, for messages */
	/**
	 * PEERBUF_PLACEMENT_* that this attachment may be served from while it is used in place. An
	 * importer that refaults by segments may be invalidated and find the memory elsewhere for a
	 * while; one with a CPU view keeps using it, so the memory must stay inside this set.
	 */
	uint32_t placements;
	uint32_t
		invalidate_scope; /* enum peerbuf_scope: WHOLE gets moves of the whole range only */
};

/** What the exporter made of it. */
struct peerbuf_attach_reply {
	uint32_t struct_size;
	uint32_t peer2peer; /* what is left of allow_peer2peer */
	uint32_t placement; /* PEERBUF_PLACEMENT_* where the memory will be for this attachment */
	uint32_t reserved;
	uint64_t token; /* the exporter's own; names the attachment in every later call */
};

/**
 * The exporter plugin: `const struct peerbuf_exporter_plugin peerbuf_exporter_v1`.
 *
 * Slots called with the reservation held: pin, unpin, map, unmap. Slots called without it: all
 * others. A slot may be missing (NULL, or past struct_size); its capability bit must then be off.
 */
struct peerbuf_exporter_plugin {
	uint32_t struct_size;
	uint32_t abi_version;  /* PEERBUF_ABI_VERSION */
	uint32_t capabilities; /* PEERBUF_EXPORTER_CAP_* */
	uint32_t reserved;
	const char *name;	    /* as in the file's name */
	const char *description;    /* one line; says "emulated" or "stand-in" where that is true */
	const char *const *options; /* NULL terminated "key: meaning" lines, or NULL */

	/**
	 * Open a device. @p host lives until close returns.
	 * @return -EINVAL: an unknown option or a bad value, named through host->fail; -ENODEV.
	 */
	int (*open)(const struct peerbuf_host *host, const struct peerbuf_param *params,
		    size_t n_params, void **ret_device);
	/** Close it. Nothing is attached any more; buffers that were not freed are dropped. */
	void (*close)(void *device);

	/**
	 * What can be done with @p buffer, or with the device's memory in general when @p buffer is
	 * 0. Pure: asks nobody to do anything. Called at every negotiation, since window use
	 * changes.
	 * @return -ENOENT: no such buffer; -ENODEV: the device is gone.
	 */
	int (*offer)(void *device, uint64_t buffer, struct peerbuf_exporter_offer *ret_offer);

	/**
	 * Memory of the device, zeroed, for applications, tests and verification. The caller frees
	 * it.
	 * @return -EINVAL: size 0; -ENOMEM: does not fit; -EAGAIN: room is being made, which may
	 * need tickets of this very process: the core makes progress and tries again; -ENODEV.
	 */
	int (*alloc)(void *device, uint64_t size, struct peerbuf_buffer_desc *ret_desc);
	/** Give it back. Attachments keep the memory until they are detached (rule 9). */
	int (*free)(void *device, uint64_t buffer);

	/**
	 * Find the allocation that memory belongs to and take a reference to it.
	 * @return -ENOENT: not this exporter's memory (the core asks the next one); -EBADF: fd is
	 * not open; -EINVAL: fd is not a dma-buf (rule 8), or the range passes the end; -EAGAIN:
	 * a part of it is just being moved, and whoever came now would not know: as for alloc.
	 */
	int (*get)(void *device, const struct peerbuf_get_request *request,
		   struct peerbuf_buffer_desc *ret_desc);
	void (*put)(void *device, uint64_t buffer);

	/**
	 * An importer attaches. On an error nothing is left and detach is not called (rule 13).
	 * @return -EOPNOTSUPP: peer-to-peer needed, or revoke needed and the importer cannot (rule
	 *   14, 52); -ENODEV: revoked or gone; -EBUSY: already placed where this importer cannot
	 *   reach it; -EACCES: access not allowed.
	 */
	int (*attach)(void *device, uint64_t buffer, const struct peerbuf_attach_request *request,
		      struct peerbuf_attach_reply *ret_reply);
	/** Nothing of it is mapped, exported or pinned any more. Never from inside an invalidate.
	 */
	void (*detach)(void *device, uint64_t attachment);

	/**
	 * Keep the attachment's range where it is. When it returns the memory is resident and no
	 * move of it is under way (rule 20). Pins nest and balance; pinned memory may still be
	 * revoked.
	 * @return -EAGAIN: a move is under way and cannot be waited for here; the core tries again
	 *   after it has made progress; -ENOMEM, -ENODEV, -EINVAL; never -EBUSY (rule 23).
	 */
	int (*pin)(void *device, uint64_t attachment);
	void (*unpin)(void *device, uint64_t attachment);

	/**
	 * Addresses of [offset, offset + length) of the buffer. A fresh mapping every time. Fails
	 * once the buffer is revoked (rule 32). When it returns, the memory is resident at the
	 * place told.
	 * @return -ENODEV: revoked or gone; -ENOSPC: the window is full; -EPERM, -ENOMEM, -EAGAIN:
	 * a move of the range is under way.
	 */
	int (*map)(void *device, uint64_t attachment, uint64_t offset, uint64_t length,
		   struct peerbuf_mapping *ret_mapping);
	/** Exactly once for every map, with the same mapping (rule 31); also after a revoke. */
	void (*unmap)(void *device, uint64_t attachment, const struct peerbuf_mapping *mapping);

	/**
	 * A dma-buf that contains [offset, offset + length) of the buffer. What it has of the
	 * buffer around that range lies there in the buffer's order, so that other attachments
	 * whose range it covers share it. It is released with the token of the attachment it was
	 * exported for, which is detached after that.
	 */
	int (*export_fd)(void *device, uint64_t attachment, uint64_t offset, uint64_t length,
			 uint32_t variant, struct peerbuf_fd_export *ret_export);
	/**
	 * Exactly once for every export_fd, success or failure of what followed. It also ends the
	 * descriptor: the exporter closes it, or not, by its runtime's own rule.
	 */
	void (*release_fd)(void *device, uint64_t attachment, const struct peerbuf_fd_export *exp);

	/**
	 * Every importer has let go of what host->invalidate named, after it had answered
	 * -EINPROGRESS. @p status: 0, or the negative errno of an importer that could not stop,
	 * whose memory must then be quarantined. Called from peerbuf_progress.
	 */
	void (*invalidate_done)(void *device, uint64_t buffer, uint64_t cookie, int status);

	/** A descriptor that becomes readable when progress has something to do. Borrowed. */
	int (*event_fd)(void *device);
	/** Do what is due, without blocking. @return number of events handled, -ENODEV once gone.
	 */
	int (*progress)(void *device);

	/**
	 * A table of operations beyond the contract, by name (testing.h has the ones the contract
	 * suite asks for). The table lives as long as the device. @return -ENOENT.
	 */
	int (*open_ops)(void *device, const char *name, const void **ret_ops);
};

#ifdef __cplusplus
}
#endif

#endif
