// SPDX-License-Identifier: BSD-3-Clause
/*
 * An on-demand region of rxe whose iova is not its address is used by its iova, and nothing outside
 * it can be prefetched. A kernel that takes the iova for the address dies of it.
 */
#include "rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE ((size_t)4 * 4096)
#define IOVA 0x7300000000ull

int main(void)
{
	struct ibv_mr *plain_mr, *paged_mr;
	struct rig_span from, to;
	uint8_t *plain, *paged;
	uint64_t value = 41;
	struct rig rig;
	size_t bad;
	int status, err;

	rig_open(&rig);
	rig_connect(&rig, &rig.pair[0], IBV_QPT_RC);
	plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	paged = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (plain == MAP_FAILED || paged == MAP_FAILED)
		rig_die("mmap");
	plain_mr = ibv_reg_mr(rig.pd, plain, SIZE, RIG_ACCESS);
	paged_mr = ibv_reg_mr_iova(rig.pd, paged + 100, SIZE - 200, IOVA + 100,
				   RIG_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!plain_mr || !paged_mr)
		rig_die("registering");
	from = (struct rig_span){(uintptr_t)plain + 100, SIZE - 200, plain_mr->lkey};
	to = (struct rig_span){IOVA + 100, SIZE - 200, paged_mr->rkey};

	rig_fill(plain, SIZE, 1);
	status = rig_do(&rig.pair[0], IBV_WR_RDMA_WRITE, from, to, 0, 0);
	bad = rig_differ(paged + 100, SIZE - 200, 100, 1);
	rig_check(!status && !bad, "written: status %d, %zu bytes wrong", status, bad);

	rig_fill(paged, SIZE, 2);
	status = rig_do(&rig.pair[0], IBV_WR_RDMA_READ, from, to, 0, 0);
	bad = rig_differ(plain + 100, SIZE - 200, 100, 2);
	rig_check(!status && !bad, "read: status %d, %zu bytes wrong", status, bad);

	memcpy(paged + 4096 + 8, &value, sizeof(value));
	from.length = to.length = sizeof(value);
	to.address = IOVA + 4096 + 8;
	status = rig_do(&rig.pair[0], IBV_WR_ATOMIC_FETCH_AND_ADD, from, to, 1, 0);
	memcpy(&value, paged + 4096 + 8, sizeof(value));
	rig_check(!status && value == 42, "added to: status %d, %llu", status,
		  (unsigned long long)value);

	err = rig_advise_write(&rig, paged_mr->lkey, IOVA + 100, 8192, true);
	rig_check(!err, "advice on it is taken: %d", err);
	err = rig_advise_write(&rig, paged_mr->lkey, IOVA + 100, SIZE, true);
	rig_check(err == -EFAULT, "advice past its end is refused: %d", err);
	err = rig_advise_write(&rig, paged_mr->lkey, UINT64_MAX - 4095, 8192, true);
	rig_check(err == -EFAULT, "advice that wraps is refused: %d", err);
	if (ibv_dereg_mr(plain_mr) || ibv_dereg_mr(paged_mr))
		rig_die("ibv_dereg_mr");
	rig_close(&rig);
	return rig_status();
}
