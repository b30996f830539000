/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file verbs.h
 * The application's verbs objects, for `peerbuf_importer_open(ctx, "verbs", ...)`.
 */
#ifndef PEERBUF_VERBS_H
#define PEERBUF_VERBS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_pd;

/**
 * All borrowed until peerbuf_importer_close. peerbuf makes memory regions on the protection domain
 * and ends them; it makes no QP, CQ or context and changes none.
 *
 * `native` of peerbuf_reg_importer_info is a `struct ibv_mr *` whose lkey, rkey, pd, addr and
 * length are for reading. It must not be given to ibv_dereg_mr, ibv_rereg_mr or ibv_bind_mw: the
 * region may be one that the provider library knows nothing of.
 */
struct peerbuf_verbs_objects {
	uint32_t struct_size;
	uint32_t reserved; /* 0 */
	struct ibv_pd *pd;
};

#ifdef __cplusplus
}
#endif

#endif
