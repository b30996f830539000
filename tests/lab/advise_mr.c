// SPDX-License-Identifier: BSD-3-Clause
/*
 * Advice to prefetch a region that is not on demand is refused, whoever asks and however: there is
 * nothing to prefetch. "async" asks without waiting, which a worker of the kernel carries out.
 */
#include "rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE ((size_t)4 * 4096)

int main(int argc, char **argv)
{
	const bool wait = argc < 2 || strcmp(argv[1], "async") != 0;
	struct ibv_mr *plain, *paged;
	struct rig rig;
	uint8_t *bytes;
	int err;

	rig_open(&rig);
	bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		rig_die("mmap");
	plain = ibv_reg_mr(rig.pd, bytes, SIZE, RIG_ACCESS);
	paged = ibv_reg_mr(rig.pd, bytes, SIZE, RIG_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!plain || !paged)
		rig_die("ibv_reg_mr");
	err = rig_advise_write(&rig, paged->lkey, (uintptr_t)bytes, SIZE, wait);
	rig_check(!err, "advice on an on-demand region is taken: %d", err);
	err = rig_advise_write(&rig, plain->lkey, (uintptr_t)bytes, SIZE, wait);
	rig_check(err == -EINVAL, "advice on another region is refused with EINVAL: %d", err);
	/* what a worker was given to do is done by then, or the kernel's log tells */
	if (!wait)
		sleep(1);
	if (ibv_dereg_mr(plain) || ibv_dereg_mr(paged))
		rig_die("ibv_dereg_mr");
	rig_close(&rig);
	return rig_status();
}
