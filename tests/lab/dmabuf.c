// SPDX-License-Identifier: BSD-3-Clause
/*
 * dmabuf udmabuf|dma_heap: rxe imports the exporter's memory, by both methods and with both flows;
 * every operation moves bytes into it or out of it, and each byte is looked at through a mapping
 * that RDMA has no part in. What is wrong or not supported is refused and leaves nothing changed.
 */
#include "rig.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define SIZE (64 * PAGE)
#define IOVA 0x7000000000ull
#define GRH 40
#define UNTOUCHED 0xa5

struct bench {
	struct rig rig;
	struct rig_buffer buffer;
	struct ibv_mr *host;
	uint8_t *bytes; /**< of the host's region */
	struct rig_region region;
	uint64_t iova;
	const char *how;
	size_t verified, bad;
};

static struct rig_span local(struct bench *b, uint64_t offset, size_t length)
{
	return (struct rig_span){(uintptr_t)b->bytes + offset, (uint32_t)length, b->host->lkey};
}

static struct rig_span remote(struct bench *b, uint64_t offset, size_t length)
{
	return (struct rig_span){b->iova + offset, (uint32_t)length, b->region.rkey};
}

static struct rig_span local_buffer(struct bench *b, uint64_t offset, size_t length)
{
	return (struct rig_span){b->iova + offset, (uint32_t)length, b->region.lkey};
}

static struct rig_span remote_host(struct bench *b, uint64_t offset, size_t length)
{
	return (struct rig_span){(uintptr_t)b->bytes + offset, (uint32_t)length, b->host->rkey};
}

/** Judges the bytes that one operation should have brought, and those that it should not touch. */
static void judge(struct bench *b, const char *what, int status, const uint8_t *bytes,
		  size_t offset, size_t length, unsigned round, bool untouched)
{
	size_t bad = rig_differ(bytes + offset, length, offset, round);

	for (size_t i = 0; untouched && i < SIZE; i++)
		if (i < offset || i >= offset + length)
			bad += bytes[i] != UNTOUCHED;
	b->verified += untouched ? SIZE : length;
	b->bad += bad;
	rig_check(!status && !bad, "%s, %s, %s: status %d, %zu bytes wrong", b->buffer.exporter,
		  b->how, what, status, bad);
}

static void one_sided(struct bench *b)
{
	struct rig_pair *pair = &b->rig.pair[0];
	int status;

	rig_fill(b->bytes, SIZE, 1);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(pair, IBV_WR_RDMA_WRITE, local(b, 0, SIZE), remote(b, 0, SIZE), 0, 0);
	judge(b, "written from afar", status, b->buffer.bytes, 0, SIZE, 1, true);

	rig_fill(b->buffer.bytes, SIZE, 2);
	memset(b->bytes, UNTOUCHED, SIZE);
	status = rig_do(pair, IBV_WR_RDMA_READ, local(b, 0, SIZE), remote(b, 0, SIZE), 0, 0);
	judge(b, "read from afar", status, b->bytes, 0, SIZE, 2, true);

	rig_fill(b->buffer.bytes, SIZE, 3);
	memset(b->bytes, UNTOUCHED, SIZE);
	status = rig_do(pair, IBV_WR_RDMA_WRITE, local_buffer(b, 0, SIZE), remote_host(b, 0, SIZE),
			0, 0);
	judge(b, "source of a write", status, b->bytes, 0, SIZE, 3, true);

	rig_fill(b->bytes, SIZE, 4);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(pair, IBV_WR_RDMA_READ, local_buffer(b, 0, SIZE), remote_host(b, 0, SIZE),
			0, 0);
	judge(b, "target of a read", status, b->buffer.bytes, 0, SIZE, 4, true);

	rig_fill(b->bytes, SIZE, 5);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(pair, IBV_WR_RDMA_WRITE, local(b, 4000, 9001), remote(b, 4000, 9001), 0, 0);
	judge(b, "written from inside a page into another", status, b->buffer.bytes, 4000, 9001, 5,
	      true);
}

static void post_recv(struct bench *b, struct ibv_qp *qp, struct rig_span to)
{
	struct ibv_sge sge = {.addr = to.address, .length = to.length, .lkey = to.key};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	int err = b->rig.srq ? ibv_post_srq_recv(b->rig.srq, &wr, &bad)
			     : ibv_post_recv(qp, &wr, &bad);

	if (err) {
		errno = err;
		rig_die("ibv_post_recv");
	}
}

/** A message from host memory into the dma-buf, and back into host memory. */
static void two_sided(struct bench *b, struct rig_pair *pair, const char *in, const char *out)
{
	const size_t length = 3 * PAGE + 77, at = 500;
	int status;

	rig_fill(b->bytes, SIZE, 6);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	post_recv(b, pair->responder, local_buffer(b, at, length));
	rig_post(pair, IBV_WR_SEND, local(b, at, length), (struct rig_span){0});
	status = rig_wait(pair, 2);
	judge(b, in, status, b->buffer.bytes, at, length, 6, true);

	rig_fill(b->buffer.bytes, SIZE, 7);
	memset(b->bytes, UNTOUCHED, SIZE);
	post_recv(b, pair->responder, local(b, at, length));
	rig_post(pair, IBV_WR_SEND, local_buffer(b, at, length), (struct rig_span){0});
	status = rig_wait(pair, 2);
	judge(b, out, status, b->bytes, at, length, 7, true);
}

static void unreliable(struct bench *b)
{
	struct rig_pair uc = {0};
	int status;

	rig_connect(&b->rig, &uc, IBV_QPT_UC);
	rig_fill(b->bytes, SIZE, 8);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	/* a UC write is complete when it is sent; the message after it comes when it has landed */
	post_recv(b, uc.responder, local(b, SIZE - 8, 8));
	rig_post(&uc, IBV_WR_RDMA_WRITE, local(b, 4000, 5000), remote(b, 4000, 5000));
	rig_post(&uc, IBV_WR_SEND, local(b, 0, 8), (struct rig_span){0});
	status = rig_wait(&uc, 3);
	judge(b, "written over UC", status, b->buffer.bytes, 4000, 5000, 8, true);
	rig_disconnect(&uc);
}

static void datagram(struct bench *b)
{
	const size_t length = 1000, at = 700;
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = 1,
		.grh = {.dgid = b->rig.gid,
			.sgid_index = (uint8_t)b->rig.gid_index,
			.hop_limit = 64},
	};
	struct rig_span from = local(b, at + GRH, length);
	struct ibv_sge sge = {.addr = from.address, .length = from.length, .lkey = from.key};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct rig_pair ud = {0};
	int status;

	rig_connect(&b->rig, &ud, IBV_QPT_UD);
	wr.wr.ud.ah = ibv_create_ah(b->rig.pd, &attr);
	if (!wr.wr.ud.ah)
		rig_die("ibv_create_ah");
	wr.wr.ud.remote_qpn = ud.responder->qp_num;
	wr.wr.ud.remote_qkey = 0x1234;
	rig_fill(b->bytes, SIZE, 9);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	post_recv(b, ud.responder, local_buffer(b, at, GRH + length));
	if (ibv_post_send(ud.requester, &wr, &bad))
		rig_die("ibv_post_send");
	status = rig_wait(&ud, 2);
	judge(b, "a datagram received", status, b->buffer.bytes, at + GRH, length, 9, false);
	ibv_destroy_ah(wr.wr.ud.ah);
	rig_disconnect(&ud);
}

static uint64_t load(const uint8_t *bytes)
{
	uint64_t value;

	memcpy(&value, bytes, sizeof(value));
	return value;
}

static void atomics(struct bench *b)
{
	struct rig_pair *pair = &b->rig.pair[0];
	const uint64_t first = 0x1122334455667788ull, swapped = 0x8877665544332211ull;
	const size_t at = 2 * PAGE + 16;
	int status;

	memset(b->buffer.bytes, 0, SIZE);
	memcpy(b->buffer.bytes + at, &first, sizeof(first));
	status = rig_do(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, local(b, 0, 8), remote(b, at, 8), 5, 0);
	rig_check(!status && load(b->bytes) == first && load(b->buffer.bytes + at) == first + 5,
		  "%s, %s, fetch and add: status %d", b->buffer.exporter, b->how, status);
	status = rig_do(pair, IBV_WR_ATOMIC_CMP_AND_SWP, local(b, 0, 8), remote(b, at, 8),
			first + 5, swapped);
	rig_check(!status && load(b->bytes) == first + 5 && load(b->buffer.bytes + at) == swapped,
		  "%s, %s, compare and swap: status %d", b->buffer.exporter, b->how, status);
	status = rig_do(pair, IBV_WR_ATOMIC_CMP_AND_SWP, local(b, 0, 8), remote(b, at, 8), 1, 2);
	rig_check(!status && load(b->bytes) == swapped && load(b->buffer.bytes + at) == swapped,
		  "%s, %s, compare, not equal: status %d", b->buffer.exporter, b->how, status);
	b->verified += 6 * sizeof(uint64_t);
}

/** An operation that must end with a certain status; the pair of queue pairs is made anew. */
static void refused(struct bench *b, const char *what, enum ibv_wr_opcode opcode, uint64_t offset,
		    size_t length, int want)
{
	struct rig_pair pair = {0};
	size_t bad = 0;
	int status;

	rig_connect(&b->rig, &pair, IBV_QPT_RC);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(&pair, opcode, local(b, 0, length), remote(b, offset, length), 0, 1);
	for (size_t i = 0; i < SIZE; i++)
		bad += b->buffer.bytes[i] != UNTOUCHED;
	rig_check(status == want && !bad, "%s, %s, %s: status %d, %zu bytes changed",
		  b->buffer.exporter, b->how, what, status, bad);
	rig_disconnect(&pair);
}

/** A region of a part of the buffer that begins and ends inside pages. */
static void part(struct bench *b, enum rig_method method, bool revocable)
{
	const size_t at = 3 * PAGE + 100, length = 2 * PAGE + 901;
	const struct rig_request request = {.offset = at,
					    .length = length,
					    .iova = IOVA + 100,
					    .fd = b->buffer.fd,
					    .access = RIG_ACCESS,
					    .revocable = revocable};
	struct rig_region whole = b->region, region;
	int err = rig_reg_dmabuf(&b->rig, method, &request, &region), status;

	if (!rig_check(!err, "%s, %s, registering a part: %d", b->buffer.exporter, b->how, err))
		return;
	b->region = region;
	b->iova = request.iova;
	rig_fill(b->bytes, SIZE, 10);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(&b->rig.pair[0], IBV_WR_RDMA_WRITE, local(b, at, length),
			remote(b, 0, length), 0, 0);
	judge(b, "a part written", status, b->buffer.bytes, at, length, 10, true);
	refused(b, "a byte past the part", IBV_WR_RDMA_WRITE, 1, length, IBV_WC_REM_ACCESS_ERR);
	b->region = whole;
	b->iova = IOVA;
	err = rig_dereg_dmabuf(&b->rig, &region);
	rig_check(!err, "%s, %s, deregistering the part: %d", b->buffer.exporter, b->how, err);
}

static void traffic(struct bench *b, enum rig_method method, bool revocable, bool all)
{
	static char how[64];
	const struct rig_request request = {.length = SIZE,
					    .iova = IOVA,
					    .fd = b->buffer.fd,
					    .access = RIG_ACCESS,
					    .revocable = revocable,
					    .ask_flow = true};
	const uint32_t want = revocable ? RIG_FLOW_REVOCABLE : RIG_FLOW_MOVABLE;
	const char *flow = revocable ? "Revocable" : "Movable";
	int err;

	snprintf(how, sizeof(how), "%s %s", method == RIG_REG_MR ? "REG_MR" : "REG_DMABUF_MR",
		 flow);
	b->how = how;
	b->iova = IOVA;
	b->verified = b->bad = 0;
	err = rig_reg_dmabuf(&b->rig, method, &request, &b->region);
	if (!rig_check(!err && b->region.flow == want, "%s, %s, registering: %d, flow %u",
		       b->buffer.exporter, b->how, err, err ? 0 : b->region.flow))
		return;
	one_sided(b);
	atomics(b);
	part(b, method, revocable);
	if (all) {
		struct ibv_srq_init_attr srq = {.attr = {.max_wr = 16, .max_sge = 1}};
		struct rig_pair shared = {0};

		two_sided(b, &b->rig.pair[0], "a message received", "a message sent");
		unreliable(b);
		datagram(b);
		b->rig.srq = ibv_create_srq(b->rig.pd, &srq);
		if (!b->rig.srq)
			rig_die("ibv_create_srq");
		rig_connect(&b->rig, &shared, IBV_QPT_RC);
		two_sided(b, &shared, "a message received through a shared queue",
			  "a message sent to a shared queue");
		rig_disconnect(&shared);
		ibv_destroy_srq(b->rig.srq);
		b->rig.srq = NULL;
		refused(b, "past the end", IBV_WR_RDMA_WRITE, SIZE - 8, 16, IBV_WC_REM_ACCESS_ERR);
	}
	err = rig_rereg_dmabuf(&b->rig, &b->region, IBV_ACCESS_LOCAL_WRITE);
	rig_check(err == -EOPNOTSUPP, "%s, %s, registering again is refused: %d",
		  b->buffer.exporter, b->how, err);
	err = rig_advise_write(&b->rig, b->region.lkey, IOVA, SIZE, true);
	rig_check(err == -EINVAL, "%s, %s, advice is refused: %d", b->buffer.exporter, b->how, err);
	err = rig_dereg_dmabuf(&b->rig, &b->region);
	rig_check(!err, "%s, %s, deregistering: %d", b->buffer.exporter, b->how, err);
	refused(b, "the key after it", IBV_WR_RDMA_WRITE, 0, 8, IBV_WC_REM_ACCESS_ERR);
	printf("pair {\"exporter\": \"%s\", \"importer\": \"rxe\", \"flow\": \"%s\", "
	       "\"how_known\": "
	       "\"attribute of the registration (%s)\", \"bytes_verified\": %zu, \"bytes_bad\": "
	       "%zu}\n",
	       b->buffer.exporter, flow, method == RIG_REG_MR ? "REG_MR" : "REG_DMABUF_MR",
	       b->verified, b->bad);
}

static void refusals(struct bench *b)
{
	const struct rig_request good = {
		.length = SIZE, .iova = IOVA, .fd = b->buffer.fd, .access = RIG_ACCESS};
	static const struct {
		const char *what;
		uint64_t offset, length, iova;
		int fd; /**< 0: the good one */
		uint32_t access;
		int want;
	} cases[] = {
		{"a length of 0", 0, 0, IOVA, 0, RIG_ACCESS, -EINVAL},
		{"a byte too many", 0, SIZE + 1, IOVA, 0, RIG_ACCESS, -EINVAL},
		{"an offset past the end", SIZE, PAGE, IOVA, 0, RIG_ACCESS, -EINVAL},
		{"an end past 2^64", UINT64_MAX - PAGE + 1, 2 * PAGE, IOVA, 0, RIG_ACCESS, -EINVAL},
		{"another part of a page", 8, PAGE, IOVA, 0, RIG_ACCESS, -EINVAL},
		{"no such descriptor", 0, SIZE, IOVA, 999, RIG_ACCESS, -EBADF},
		{"not a dma-buf", 0, SIZE, IOVA, 1, RIG_ACCESS, -EINVAL},
		{"on demand", 0, SIZE, IOVA, 0, RIG_ACCESS | IBV_ACCESS_ON_DEMAND, -EINVAL},
		{"memory windows", 0, SIZE, IOVA, 0, RIG_ACCESS | IBV_ACCESS_MW_BIND, -EINVAL},
		{"remote writes without local ones", 0, SIZE, IOVA, 0, IBV_ACCESS_REMOTE_WRITE,
		 -EINVAL},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig_request request = good;
		struct rig_region region;

		request.offset = cases[i].offset;
		request.length = cases[i].length;
		request.iova = cases[i].iova;
		request.access = cases[i].access;
		if (cases[i].fd)
			request.fd = cases[i].fd;
		for (int method = RIG_REG_DMABUF_MR; method <= RIG_REG_MR; method++) {
			int err =
				rig_reg_dmabuf(&b->rig, (enum rig_method)method, &request, &region);

			rig_check(err == cases[i].want, "%s, %s is refused: %d", b->buffer.exporter,
				  cases[i].what, err);
			if (!err)
				rig_dereg_dmabuf(&b->rig, &region);
		}
	}
}

/** A region is of the memory, not of the descriptor. */
static void closed(struct bench *b)
{
	const struct rig_request request = {
		.length = SIZE, .iova = IOVA, .fd = b->buffer.fd, .access = RIG_ACCESS};
	int err, status;

	b->how = "its descriptor closed";
	err = rig_reg_dmabuf(&b->rig, RIG_REG_DMABUF_MR, &request, &b->region);
	if (!rig_check(!err, "%s, registering: %d", b->buffer.exporter, err))
		return;
	close(b->buffer.fd);
	rig_fill(b->bytes, SIZE, 11);
	memset(b->buffer.bytes, UNTOUCHED, SIZE);
	status = rig_do(&b->rig.pair[0], IBV_WR_RDMA_WRITE, local(b, 0, SIZE), remote(b, 0, SIZE),
			0, 0);
	judge(b, "written from afar", status, b->buffer.bytes, 0, SIZE, 11, true);
	err = rig_dereg_dmabuf(&b->rig, &b->region);
	rig_check(!err, "%s, deregistering: %d", b->buffer.exporter, err);
}

int main(int argc, char **argv)
{
	struct bench b = {0};
	const bool heap = argc > 1 && !strcmp(argv[1], "dma_heap");
	int err = heap ? rig_export_heap(SIZE, &b.buffer) : rig_export_udmabuf(SIZE, &b.buffer);

	if (err) {
		errno = -err;
		rig_die("exporting");
	}
	rig_open(&b.rig);
	rig_connect(&b.rig, &b.rig.pair[0], IBV_QPT_RC);
	b.bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b.bytes == MAP_FAILED)
		rig_die("mmap");
	b.host = ibv_reg_mr(b.rig.pd, b.bytes, SIZE, RIG_ACCESS);
	if (!b.host)
		rig_die("ibv_reg_mr");
	traffic(&b, RIG_REG_DMABUF_MR, false, true);
	traffic(&b, RIG_REG_DMABUF_MR, true, true);
	traffic(&b, RIG_REG_MR, false, false);
	traffic(&b, RIG_REG_MR, true, false);
	refusals(&b);
	closed(&b);
	if (ibv_dereg_mr(b.host))
		rig_die("ibv_dereg_mr");
	rig_close(&b.rig);
	return rig_status();
}
