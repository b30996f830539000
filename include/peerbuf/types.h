/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file types.h
 * Values shared by every side of peerbuf: applications, exporters, importers.
 *
 * Rules that hold for every structure and function of the ABI:
 *
 * - A structure that crosses the ABI begins with `uint32_t struct_size`. Whoever allocates it sets
 *   struct_size to the sizeof it was compiled with; the other side reads and writes no byte past
 *   it. Fields are only ever appended.
 * - Every enumeration that a plugin must fill starts at 1, so that a forgotten field is found and
 *   refused instead of being read as the first choice.
 * - Functions return 0 or a negative errno. Outputs are the last arguments, named `ret_...`, and
 *   are written on success only.
 * - Sizes, lengths and offsets are bytes in uint64_t. Times are nanoseconds in uint64_t.
 * - A file descriptor that is returned is transferred to the caller; one that is passed is
 * borrowed. Every descriptor is close-on-exec from birth; 0 is a valid descriptor, -1 is none.
 * - Strings are UTF-8, NUL terminated, owned by whoever passes them and copied by whoever keeps
 * them.
 */
#ifndef PEERBUF_TYPES_H
#define PEERBUF_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the plugin ABI. It changes only when a plugin built against the old one would break.
 */
#define PEERBUF_ABI_VERSION 1u

/** Room for a short name, NUL included. */
#define PEERBUF_NAME_LEN 64
/** Room for one reason in words, NUL included. */
#define PEERBUF_WHY_LEN 256
/** Longest raw memory key, bytes. */
#define PEERBUF_RAW_KEY_LEN 64
/** "No limit" and "not known" where a field says so. */
#define PEERBUF_UNLIMITED UINT64_MAX

/**
 * Handles given to applications are ids, never pointers: an id of something that is gone is
 * recognised as such. 0 is never a valid id.
 */
typedef uint64_t peerbuf_exporter_t;
typedef uint64_t peerbuf_importer_t;
typedef uint64_t peerbuf_buffer_t;
typedef uint64_t peerbuf_reg_t;

/**
 * What went wrong, as a closed list. The errno beside it is the one the failing call gave (or the
 * customary one when peerbuf itself decided). docs/errors.md explains each.
 */
enum peerbuf_errc {
	PEERBUF_OK = 0,
	PEERBUF_ERR_INVALID_ARGUMENT = 1,   /* a call that can never be right */
	PEERBUF_ERR_BAD_GEOMETRY = 2,	    /* empty, overflowing, misaligned or beyond the end */
	PEERBUF_ERR_NOT_FOUND = 3,	    /* no such plugin, object or option */
	PEERBUF_ERR_BAD_PLUGIN = 4,	    /* a plugin that breaks the contract */
	PEERBUF_ERR_UNSUPPORTED_KERNEL = 5, /* the kernel lacks the method */
	PEERBUF_ERR_UNSUPPORTED_DRIVER = 6, /* the driver or provider lacks the operation */
	PEERBUF_ERR_KERNEL_INTERNAL = 7,    /* an errno that should never reach user space (524) */
	PEERBUF_ERR_NOT_HOST_MEMORY = 8,    /* device memory registered as if it were host memory */
	PEERBUF_ERR_PIN_REFUSED = 9, /* the exporter does not pin and the importer needs it */
	PEERBUF_ERR_REVOKE_UNSUPPORTED = 10, /* the exporter may revoke, the importer cannot stop */
	PEERBUF_ERR_NO_P2P_PATH = 11, /* no peer-to-peer route, or the DMA mask is too narrow */
	PEERBUF_ERR_NOT_P2P_PLACEMENT = 12, /* only host memory would be reached; policy forbids */
	PEERBUF_ERR_WINDOW_EXHAUSTED = 13,  /* the device's PCIe window (BAR) is full */
	PEERBUF_ERR_QUOTA = 14,		    /* a limit of the ledger */
	PEERBUF_ERR_DEVICE_RESOURCES = 15,  /* no memory key left, and the like */
	PEERBUF_ERR_DEVICE_LIMIT = 16,	    /* longer than the device's longest region */
	PEERBUF_ERR_FD_EXHAUSTED = 17,
	PEERBUF_ERR_STALE = 18,		/* the handle's object was freed or replaced */
	PEERBUF_ERR_REVOKED = 19,	/* the exporter took the memory back for good */
	PEERBUF_ERR_MISCLASSIFIED = 20, /* a pointer to another kind of memory than was said */
	PEERBUF_ERR_ACCESS = 21, /* access not allowed by the memory or unknown to the device */
	PEERBUF_ERR_BUSY = 22,
	PEERBUF_ERR_UNTRANSLATED = 23, /* bus addresses that the importer's IOMMU cannot know */
	PEERBUF_ERR_FORKED = 24,       /* used in a child of the process that made it */
	PEERBUF_ERR_NO_MEMORY = 25,
	PEERBUF_ERR_DEVICE_GONE = 26, /* removed, or its process died */
	PEERBUF_ERR_PROTOCOL = 27,    /* garbage on a connection */
	PEERBUF_ERR_TIMEOUT = 28,
	PEERBUF_ERR_POLICY = 29,   /* possible, but the caller's policy forbids it */
	PEERBUF_ERR_SYSTEM = 30,   /* a system call failed; see the errno */
	PEERBUF_ERR_INTERNAL = 31, /* a bug in peerbuf; please report it */
};

/**
 * How an importer holds an exporter's memory, best first.
 *
 * Movable: not pinned; the importer follows moves. Revocable: pinned where pinning means anything,
 * and the importer stops when the exporter takes the memory back. Pinned: the memory stays where it
 * is until the importer lets go. Staged: traffic goes through host memory. Rekey: the region is
 * made anew, with new keys, whenever the memory moves.
 */
enum peerbuf_flow {
	PEERBUF_FLOW_NONE = 0,
	PEERBUF_FLOW_MOVABLE = 1,
	PEERBUF_FLOW_REVOCABLE = 2,
	PEERBUF_FLOW_PINNED = 3,
	PEERBUF_FLOW_STAGED = 4,
	PEERBUF_FLOW_REKEY = 5,
};

/** The bit of one flow in a set of flows. */
#define PEERBUF_FLOW_BIT(flow) (1u << (flow))

/** How peerbuf knows the flow it reports. */
enum peerbuf_how_known {
	PEERBUF_KNOWN_NEGOTIATED = 1, /* peerbuf runs the protocol itself, so it is a fact */
	PEERBUF_KNOWN_OBSERVED = 2,   /* the kernel or driver said which it took */
	PEERBUF_KNOWN_POSSIBLE = 3,   /* the kernel chose and does not say: flows_possible */
};

/** Whether memory can change its place while attached. */
enum peerbuf_stability {
	PEERBUF_STABILITY_STATIC = 1, /* never moves: pinning loses nothing and is not charged */
	PEERBUF_STABILITY_MOVES = 2,
};

/** Whether memory can be made to stay. */
enum peerbuf_pin_support {
	PEERBUF_PIN_NOT_NEEDED = 1, /* static memory; an exporter that moves may not say this */
	PEERBUF_PIN_CAN = 2,
	PEERBUF_PIN_REFUSES = 3,
};

/** Whether the exporter may take memory back for good while it is attached. */
enum peerbuf_revoke_support {
	PEERBUF_REVOKE_NEVER = 1,
	PEERBUF_REVOKE_MAY = 2,
};

/** Who moves and revokes: the exporter itself, through peerbuf, or a kernel driver behind a
 * dma-buf. */
enum peerbuf_management {
	PEERBUF_MANAGED_BY_USER = 1,
	PEERBUF_MANAGED_BY_KERNEL = 2,
};

/* Bits of peerbuf_exporter_offer.placements, peerbuf_mapping.placement, ... Both: mixed. */
#define PEERBUF_PLACEMENT_DEVICE (1u << 0)
#define PEERBUF_PLACEMENT_HOST (1u << 1)

/* Mapping variants (bits): by which route the exporter's memory is reached. */
#define PEERBUF_VARIANT_HOST (1u << 0) /* the default, host-coherent route */
#define PEERBUF_VARIANT_PCIE (1u << 1) /* the PCIe window, also where another fabric exists */

/* Handles (bits): what an importer takes the memory by. */
#define PEERBUF_HANDLE_SEGMENTS (1u << 0) /* a list of bus addresses */
#define PEERBUF_HANDLE_CPU (1u << 1)	  /* one contiguous CPU mapping (software data paths) */
#define PEERBUF_HANDLE_FD (1u << 2)	  /* a dma-buf descriptor */

/* Access (bits). Reading by the importer itself is always allowed. */
#define PEERBUF_ACCESS_LOCAL_WRITE (1u << 0)
#define PEERBUF_ACCESS_REMOTE_READ (1u << 1)
#define PEERBUF_ACCESS_REMOTE_WRITE (1u << 2)
#define PEERBUF_ACCESS_REMOTE_ATOMIC (1u << 3)
/** Optional: dropped, and reported as dropped, where an importer does not know it. */
#define PEERBUF_ACCESS_RELAXED_ORDERING (1u << 20)
#define PEERBUF_ACCESS_OPTIONAL_MASK 0x3FF00000u

/* What an importer does when told to let go (bits). REFAULT implies REVOCABLE. */
#define PEERBUF_INVALIDATION_REVOCABLE (1u << 0) /* stops and stays stopped */
#define PEERBUF_INVALIDATION_REFAULT                                                               \
	(1u << 1) /* stops, asks for the translation again, goes on                                \
		   */

/* Whose Invalidate an importer's data path obeys (bits). */
#define PEERBUF_NOTIFIED_BY_USER (1u << 0)   /* peerbuf's invalidate slot */
#define PEERBUF_NOTIFIED_BY_KERNEL (1u << 1) /* the kernel's invalidate_mappings (move_notify) */

/** The smallest part of a region that an importer can stop. */
enum peerbuf_scope {
	PEERBUF_SCOPE_RANGE = 1,
	PEERBUF_SCOPE_WHOLE = 2,
};

/** Why an importer is told to let go. */
enum peerbuf_reason {
	PEERBUF_REASON_MOVE = 1,   /* resume follows, with the memory at its new (or old) place */
	PEERBUF_REASON_REVOKE = 2, /* final for this attachment */
};

/** Distance between two devices, as far as it decides anything. */
enum peerbuf_distance {
	PEERBUF_DISTANCE_UNKNOWN = 0,
	PEERBUF_DISTANCE_PATH = 1,
	PEERBUF_DISTANCE_NO_PATH = 2,
};

/** One reason why a better answer was not possible. */
struct peerbuf_refusal {
	uint32_t struct_size;
	uint32_t flow;		    /* enum peerbuf_flow that was refused */
	uint32_t errc;		    /* enum peerbuf_errc */
	int32_t err;		    /* negative errno, 0 when none applies */
	char who[PEERBUF_NAME_LEN]; /* the exporter, importer, policy or ledger that refused */
	char capability[PEERBUF_NAME_LEN]; /* what was missing, one word: "refault", "pin", ... */
	char why[PEERBUF_WHY_LEN];
};

/** What an exporter can do with one buffer (or, for handle 0, with its memory in general). */
struct peerbuf_exporter_offer {
	uint32_t struct_size;
	uint32_t stability;	  /* enum peerbuf_stability */
	uint32_t pin;		  /* enum peerbuf_pin_support */
	uint32_t revoke;	  /* enum peerbuf_revoke_support */
	uint32_t management;	  /* enum peerbuf_management */
	uint32_t placements;	  /* where the memory may be put, PEERBUF_PLACEMENT_* */
	uint32_t variants;	  /* PEERBUF_VARIANT_* it can be mapped by */
	uint32_t handles;	  /* PEERBUF_HANDLE_* it can be handed out as */
	uint32_t needs_peer2peer; /* 1: an importer without peer-to-peer cannot be served at all */
	uint32_t access;	  /* PEERBUF_ACCESS_* the memory allows */
	uint64_t granularity;	  /* bytes; a power of two, at least 4096 */
	uint64_t memory_size;	  /* of the device, bytes; 0: not known */
	uint64_t window_size;	  /* PCIe window, bytes; 0: none that limits */
	uint64_t window_used;	  /* by everybody, now */
	uint64_t window_reserve;  /* never given out */
	uint64_t dma_addr_max;	  /* highest bus address of any mapping; 0: not known */
	char device[PEERBUF_NAME_LEN]; /* the device, one name for all its clients: the ledger's key
					*/
	char why[PEERBUF_WHY_LEN];     /* why it does not offer more; may be empty */
};

/** What an importer can do with memory it is handed. */
struct peerbuf_importer_offer {
	uint32_t struct_size;
	uint32_t invalidation;	    /* PEERBUF_INVALIDATION_* */
	uint32_t invalidate_scope;  /* enum peerbuf_scope; read only if invalidation is not 0 */
	uint32_t notified_by;	    /* PEERBUF_NOTIFIED_BY_*; 0: by nobody, or not known */
	uint32_t peer2peer;	    /* 1: copes with memory that has no struct page */
	uint32_t variants;	    /* PEERBUF_VARIANT_* it takes */
	uint32_t handles;	    /* PEERBUF_HANDLE_* it takes, any one of them */
	uint32_t access;	    /* PEERBUF_ACCESS_* it knows */
	uint32_t dma_mask_bits;	    /* 1..64 */
	uint32_t merges_segments;   /* 1: adjacent segments make one */
	uint32_t max_segments;	    /* 0: no limit */
	uint32_t software;	    /* 1: its data path is software; reports say so */
	uint32_t locks_host_memory; /* 1: host memory it registers counts against memlock */
	/**
	 * 1: of a dma-buf it asks the kernel's driver for the flow of the request, and fails where
	 * the driver says that it took another.
	 */
	uint32_t asks_flow;
	uint64_t page_sizes;	 /* bit n: pages of 2^n bytes */
	uint64_t max_length;	 /* longest region; PEERBUF_UNLIMITED: no limit */
	uint64_t resume_cost_ns; /* what a resume costs, about; 0: not known */
	uint64_t keys_left;	 /* PEERBUF_UNLIMITED: not known */
	char device[PEERBUF_NAME_LEN];
	char why[PEERBUF_WHY_LEN]; /* why it does not offer more invalidation; may be empty */
};

/** An option of a plugin. */
struct peerbuf_param {
	const char *key;
	const char *value;
};

/** One piece of a mapping. */
struct peerbuf_segment {
	uint64_t dma_addr; /* bus address, for the device */
	uint64_t length;
	/**
	 * Where this process reaches the same bytes, or NULL. For software that plays a device's
	 * DMA engine; nobody may take it for the buffer's own address.
	 */
	void *cpu_addr;
};

/**
 * A mapping of a byte range of a buffer, made by the exporter's map and valid until its unmap.
 * The kernel's counterpart is the sg_table of dma_buf_map_attachment: addresses only, fresh for
 * every call, owned by whoever mapped until unmapped (kernel-semantics rules 26, 28).
 */
struct peerbuf_mapping {
	uint32_t struct_size;
	uint32_t placement; /* PEERBUF_PLACEMENT_* the bytes are at */
	uint32_t peer2peer; /* 1: the addresses are another device's, not host memory's */
	uint32_t reserved;
	uint64_t
		offset; /* in the buffer; multiple of the granularity, at or below what was asked */
	uint64_t length;     /* multiple of the granularity; covers what was asked */
	uint64_t generation; /* of the place; grows with every move */
	uint64_t n_segments; /* 0 if segments were not asked for */
	const struct peerbuf_segment *segments; /* in buffer order; they sum up to length */
	void *cpu_addr; /* contiguous view of [offset, offset + length), or NULL; stays over moves
			 */
	uint64_t token; /* the exporter's own */
};

/** A dma-buf made by the exporter's export_fd and valid until its release_fd. */
struct peerbuf_fd_export {
	uint32_t struct_size;
	int32_t fd;	 /* transferred to the core; release_fd says what happens to it */
	uint64_t offset; /* where the range that was asked for starts inside the dma-buf */
	uint64_t size;	 /* of the dma-buf: offset + the length asked for must not pass it */
	uint64_t token;	 /* the exporter's own */
};

#ifdef __cplusplus
}
#endif

#endif
