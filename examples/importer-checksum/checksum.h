/* SPDX-License-Identifier: BSD-3-Clause */
/**
 * @file checksum.h
 * What the importer "checksum" does with a region, for peerbuf_importer_open_ops.
 */
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CHECKSUM_OPS "checksum.v1"

struct checksum_ops {
	uint32_t struct_size;
	uint32_t reserved;
	/**
	 * FNV-1a of bytes of the region with that key; address as told in remote_base.
	 * @return 0; -EACCES: no such key, revoked, or past the region's ends.
	 */
	int (*checksum)(void *importer, uint64_t key, uint64_t address, uint64_t length,
			uint64_t *ret_sum);
};

#ifdef __cplusplus
}
#endif

#endif
