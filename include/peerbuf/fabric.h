/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file fabric.h
 * The application's libfabric objects, for `peerbuf_importer_open(ctx, "fabric", ...)`.
 */
#ifndef PEERBUF_FABRIC_H
#define PEERBUF_FABRIC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Every call that may move data on this domain (posting, polling, progress of any of its endpoints
 * and queues) is made between peerbuf_progress_enter and leave of the importer's gate. Without it
 * peerbuf cannot stop the data path, and nothing is Movable.
 */
#define PEERBUF_FABRIC_BRACKETED (1u << 0)
/**
 * Every peer of this domain is known to run without cross-memory attach (FI_SHM_DISABLE_CMA=1 set
 * before its fi_getinfo). Without it a peer may copy past any gate, and shm is never Movable.
 */
#define PEERBUF_FABRIC_PEERS_WITHOUT_CMA (1u << 1)

struct fid_domain;
struct fid_ep;
struct fi_info;

/** All borrowed until peerbuf_importer_close; peerbuf closes none and makes no EP, CQ or AV on
 * them. */
struct peerbuf_fabric_objects {
	uint32_t struct_size;
	uint32_t flags; /* PEERBUF_FABRIC_* */
	struct fid_domain *domain;
	const struct fi_info *info; /* the one the domain was opened with: mr_mode, provider */
	struct fid_ep *ep;	    /* needed when mr_mode has FI_MR_ENDPOINT; else may be NULL */
};

#ifdef __cplusplus
}
#endif

#endif
