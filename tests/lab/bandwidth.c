// SPDX-License-Identifier: BSD-3-Clause
/*
 * Bandwidth of RDMA writes into a region of a dma-buf, relative to that into a region of host
 * memory in the same machine: over one pair of queue pairs, and over four at once. The two take
 * turns, and the best turn of each counts, as a guest does not have its processors to itself.
 */
#include "rig.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#define CHUNK ((size_t)65536)
#define SIZE (RIG_PAIRS * CHUNK)
#define IOVA 0x7200000000ull
#define DEPTH 8
#define ROUNDS 12
#define TURNS 5

static double turn(struct rig *rig, int pairs, struct rig_span from, struct rig_span to)
{
	const double began = rig_seconds();

	from.length = CHUNK;
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < DEPTH * pairs; i++) {
			struct rig_span part = to;

			part.address += (uint64_t)(i % pairs) * CHUNK;
			rig_post(&rig->pair[i % pairs], IBV_WR_RDMA_WRITE, from, part);
		}
		for (int i = 0; i < pairs; i++)
			if (rig_wait(&rig->pair[i], DEPTH))
				rig_die("a write failed");
	}
	return (double)(ROUNDS * DEPTH * pairs) * CHUNK / (rig_seconds() - began) / 1e6;
}

int main(void)
{
	struct rig_request request = {.length = SIZE, .iova = IOVA, .access = RIG_ACCESS};
	struct rig_span from, host_to, buffer_to;
	struct ibv_mr *source_mr, *host_mr;
	struct rig_region region;
	struct rig_buffer buffer;
	uint8_t *source, *host;
	struct rig rig;
	int err;

	rig_open(&rig);
	for (int i = 0; i < RIG_PAIRS; i++)
		rig_connect(&rig, &rig.pair[i], IBV_QPT_RC);
	source = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	host = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (source == MAP_FAILED || host == MAP_FAILED)
		rig_die("mmap");
	source_mr = ibv_reg_mr(rig.pd, source, SIZE, RIG_ACCESS);
	host_mr = ibv_reg_mr(rig.pd, host, SIZE, RIG_ACCESS);
	err = rig_export_udmabuf(SIZE, &buffer);
	request.fd = buffer.fd;
	if (!err)
		err = rig_reg_dmabuf(&rig, RIG_REG_DMABUF_MR, &request, &region);
	if (!source_mr || !host_mr || err) {
		errno = -err;
		rig_die("registering");
	}
	from = (struct rig_span){(uintptr_t)source, 0, source_mr->lkey};
	host_to = (struct rig_span){(uintptr_t)host, 0, host_mr->rkey};
	buffer_to = (struct rig_span){IOVA, 0, region.rkey};
	rig_fill(source, CHUNK, 1);
	for (int pairs = 1; pairs <= RIG_PAIRS; pairs *= RIG_PAIRS) {
		double plain = 0, dmabuf = 0, mbs;

		for (int i = 0; i < TURNS; i++) {
			mbs = turn(&rig, pairs, from, host_to);
			plain = mbs > plain ? mbs : plain;
			mbs = turn(&rig, pairs, from, buffer_to);
			dmabuf = mbs > dmabuf ? mbs : dmabuf;
		}
		printf("fact {\"bandwidth_%dqp\": {\"host_mbs\": %.1f, \"dmabuf_mbs\": %.1f, "
		       "\"ratio\": "
		       "%.2f}}\n",
		       pairs, plain, dmabuf, dmabuf / plain);
		/* what a loaded machine cannot tell from one is not judged here */
		rig_check(dmabuf > plain / 2, "bandwidth over %d pairs: %.1f of %.1f MB/s", pairs,
			  dmabuf, plain);
		for (int i = 0; i < pairs; i++)
			rig_check(!rig_differ(buffer.bytes + i * CHUNK, CHUNK, 0, 1),
				  "the bytes of pair %d of %d arrived", i + 1, pairs);
	}
	err = rig_dereg_dmabuf(&rig, &region);
	rig_check(!err, "deregistering: %d", err);
	rig_drop(&buffer);
	ibv_dereg_mr(source_mr);
	ibv_dereg_mr(host_mr);
	rig_close(&rig);
	return rig_status();
}
