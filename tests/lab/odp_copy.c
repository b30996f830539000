// SPDX-License-Identifier: BSD-3-Clause
/*
 * On-demand regions of rxe hold what was written to them, also where a copy begins inside a page or
 * goes on into the next: the other bytes stay as they were.
 */
#include "rig.h"

#include <string.h>
#include <sys/mman.h>

#define SIZE ((size_t)4 * 4096)
#define UNTOUCHED 0xa5

static const struct {
	const char *what;
	uint32_t offset, length;
} cases[] = {
	{"a whole page", 0, 4096},
	{"inside a page", 100, 1000},
	{"the last byte of a page and the first of the next", 4095, 2},
	{"over three pages from inside the first", 4000, 5000},
	{"all of it", 0, SIZE},
};

int main(void)
{
	struct rig rig;
	uint8_t *plain, *paged;
	struct ibv_mr *plain_mr, *paged_mr;

	rig_open(&rig);
	rig_connect(&rig, &rig.pair[0], IBV_QPT_RC);
	plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	paged = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (plain == MAP_FAILED || paged == MAP_FAILED)
		rig_die("mmap");
	plain_mr = ibv_reg_mr(rig.pd, plain, SIZE, RIG_ACCESS);
	paged_mr = ibv_reg_mr(rig.pd, paged, SIZE, RIG_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!plain_mr || !paged_mr)
		rig_die("ibv_reg_mr");

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const uint32_t offset = cases[i].offset, length = cases[i].length;
		const struct rig_span from = {(uintptr_t)plain + offset, length, plain_mr->lkey};
		const struct rig_span to = {(uintptr_t)paged + offset, length, paged_mr->rkey};
		size_t bad, outside = 0;
		int status;

		rig_fill(plain, SIZE, i);
		memset(paged, UNTOUCHED, SIZE);
		status = rig_do(&rig.pair[0], IBV_WR_RDMA_WRITE, from, to, 0, 0);
		bad = rig_differ(paged + offset, length, offset, i);
		for (size_t at = 0; at < SIZE; at++)
			if (at < offset || at >= offset + length)
				outside += paged[at] != UNTOUCHED;
		rig_check(!status && !bad && !outside,
			  "write, %s: status %d, %zu bytes wrong inside and %zu outside",
			  cases[i].what, status, bad, outside);

		memset(plain, UNTOUCHED, SIZE);
		rig_fill(paged, SIZE, i + 100);
		status = rig_do(&rig.pair[0], IBV_WR_RDMA_READ, from, to, 0, 0);
		bad = rig_differ(plain + offset, length, offset, i + 100);
		rig_check(!status && !bad, "read, %s: status %d, %zu bytes wrong", cases[i].what,
			  status, bad);
	}
	if (ibv_dereg_mr(plain_mr) || ibv_dereg_mr(paged_mr))
		rig_die("ibv_dereg_mr");
	rig_close(&rig);
	return rig_status();
}
