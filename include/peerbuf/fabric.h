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

struct fid_domain;
struct fid_ep;
struct fi_info;

/** All borrowed until peerbuf_importer_close; peerbuf closes none and makes no EP, CQ or AV on
 * them. */
struct peerbuf_fabric_objects {
	uint32_t struct_size;
	uint32_t reserved;
	struct fid_domain *domain;
	const struct fi_info *info; /* the one the domain was opened with: mr_mode, provider */
	struct fid_ep *ep;	    /* needed when mr_mode has FI_MR_ENDPOINT; else may be NULL */
};

#ifdef __cplusplus
}
#endif

#endif
