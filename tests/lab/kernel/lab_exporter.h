/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause */
/*
 * /dev/lab_exporter: an exporter that does on request what others do when it suits them. One open
 * file is one buffer; its bytes are read and written by pread() and pwrite().
 */
#ifndef LAB_EXPORTER_H
#define LAB_EXPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

struct lab_exporter_export {
	__u64 size;
	__u32 period; /* in pages: the buffer repeats that many, and does not move; 0 for all its
			 own */
	__u32 reserved;
};

struct lab_exporter_move {
	__u32 delay_ms; /* until the content is at the new place; 0 for at once */
	__u32 reserved;
};

struct lab_exporter_refuse {
	__u32 count; /* of the next attempts to map */
	__s32 error; /* a negative errno */
};

struct lab_exporter_stats {
	__u32 maps, unmaps, vmaps, vunmaps, pins, unpins, moves;
	__u32 unmap_us; /* from the last notice of a move or revoke until all was unmapped */
};

/* Returns a dma-buf; once for each open file. */
#define LAB_EXPORTER_EXPORT _IOW('L', 1, struct lab_exporter_export)
/* -EBUSY if it is pinned. Does not wait for the content. */
#define LAB_EXPORTER_MOVE _IOW('L', 2, struct lab_exporter_move)
/* Returns when nothing is mapped any more; -ETIMEDOUT after five seconds. */
#define LAB_EXPORTER_REVOKE _IO('L', 3)
#define LAB_EXPORTER_REFUSE _IOW('L', 4, struct lab_exporter_refuse)
#define LAB_EXPORTER_STATS _IOR('L', 5, struct lab_exporter_stats)

#endif
