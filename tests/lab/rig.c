// SPDX-License-Identifier: BSD-3-Clause
#include "rig.h"

#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Younger than the headers that this is built with; the numbers are ABI. */
enum {
	METHOD_REG_MR = UVERBS_METHOD_REG_DMABUF_MR + 1,
	REG_MR_HANDLE = 0,
	REG_MR_PD_HANDLE,
	REG_MR_DMA_HANDLE,
	REG_MR_IOVA,
	REG_MR_ADDR,
	REG_MR_LENGTH,
	REG_MR_ACCESS_FLAGS,
	REG_MR_FD,
	REG_MR_FD_OFFSET,
	REG_MR_RESP_LKEY,
	REG_MR_RESP_RKEY,
	/* of the rxe driver, after the two that stand for udata: kernel-patches */
	RXE_REG_DMABUF_FLAGS = (1 << UVERBS_ID_NS_SHIFT) + 2,
	RXE_REG_DMABUF_RESP_FLOW,
	RXE_REG_DMABUF_REVOCABLE = 1,
};

static int failures;

void rig_die(const char *format, ...)
{
	va_list args;

	printf("not ok - ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(": %s\n", strerror(errno));
	exit(1);
}

bool rig_check(bool good, const char *format, ...)
{
	va_list args;

	printf("%s - ", good ? "ok" : "not ok");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	failures += !good;
	return good;
}

void rig_skip(const char *format, ...)
{
	va_list args;

	printf("skip - ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

int rig_status(void)
{
	return failures ? 1 : 0;
}

double rig_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- queue pairs ------------------------------------------------------------------------- */

void rig_open(struct rig *rig)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	memset(rig, 0, sizeof(*rig));
	if (!list || !list[0])
		rig_die("there is no RDMA device");
	rig->context = ibv_open_device(list[0]);
	if (!rig->context)
		rig_die("ibv_open_device");
	ibv_free_device_list(list);
	rig->pd = ibv_alloc_pd(rig->context);
	if (!rig->pd)
		rig_die("ibv_alloc_pd");
	if (ibv_query_port(rig->context, 1, &port))
		rig_die("ibv_query_port");
	rig->mtu = port.active_mtu;
	for (rig->gid_index = 0; rig->gid_index < port.gid_tbl_len; rig->gid_index++) {
		static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

		if (!ibv_query_gid(rig->context, 1, rig->gid_index, &rig->gid) &&
		    !memcmp(rig->gid.raw, mapped, sizeof(mapped)))
			return;
	}
	errno = ENOENT;
	rig_die("no GID of an IPv4 address");
}

static struct ibv_qp *make_qp(struct rig *rig, struct ibv_cq *cq, enum ibv_qp_type type, bool srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq ? rig->srq : NULL,
		.cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2},
		.qp_type = type,
	};
	struct ibv_qp *qp = ibv_create_qp(rig->pd, &init);

	if (!qp)
		rig_die("ibv_create_qp");
	return qp;
}

static void to_rts(struct rig *rig, struct ibv_qp *qp, struct ibv_qp *peer)
{
	const bool rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 0x1234,
		.qp_access_flags = RIG_ACCESS,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (ibv_modify_qp(qp, &attr, mask | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		rig_die("ibv_modify_qp to INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = rig->mtu,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 8,
		.min_rnr_timer = 12,
		.ah_attr =
			{
				.is_global = 1,
				.port_num = 1,
				.grh = {.dgid = rig->gid,
					.sgid_index = (uint8_t)rig->gid_index,
					.hop_limit = 64},
			},
	};
	mask = IBV_QP_STATE;
	if (!ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(qp, &attr, mask))
		rig_die("ibv_modify_qp to RTR");
	/* 16: a quarter of a second; an emulated machine is slow */
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 8,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	if (ibv_modify_qp(qp, &attr, mask))
		rig_die("ibv_modify_qp to RTS");
}

void rig_connect(struct rig *rig, struct rig_pair *pair, enum ibv_qp_type type)
{
	pair->cq = ibv_create_cq(rig->context, 256, NULL, NULL, 0);
	if (!pair->cq)
		rig_die("ibv_create_cq");
	pair->requester = make_qp(rig, pair->cq, type, false);
	pair->responder = make_qp(rig, pair->cq, type, rig->srq != NULL);
	to_rts(rig, pair->requester, pair->responder);
	to_rts(rig, pair->responder, pair->requester);
}

void rig_disconnect(struct rig_pair *pair)
{
	if (!pair->cq)
		return;
	/* looped back, a request holds its sender until the responder is done with it */
	if (ibv_destroy_qp(pair->responder) || ibv_destroy_qp(pair->requester) ||
	    ibv_destroy_cq(pair->cq))
		rig_die("a queue pair cannot be destroyed");
	memset(pair, 0, sizeof(*pair));
}

void rig_close(struct rig *rig)
{
	for (int i = 0; i < RIG_PAIRS; i++)
		rig_disconnect(&rig->pair[i]);
	if (rig->srq && ibv_destroy_srq(rig->srq))
		rig_die("ibv_destroy_srq");
	if (ibv_dealloc_pd(rig->pd) || ibv_close_device(rig->context))
		rig_die("something still uses the protection domain");
}

void rig_post(struct rig_pair *pair, enum ibv_wr_opcode opcode, struct rig_span local,
	      struct rig_span remote)
{
	struct ibv_sge sge = {.addr = local.address, .length = local.length, .lkey = local.key};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = remote.address, .rkey = remote.key},
	};
	struct ibv_send_wr *bad;
	int err = ibv_post_send(pair->requester, &wr, &bad);

	if (err) {
		errno = err;
		rig_die("ibv_post_send");
	}
}

int rig_wait(struct rig_pair *pair, unsigned count)
{
	const double until = rig_seconds() + 10;
	int status = IBV_WC_SUCCESS;

	while (count) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(pair->cq, 1, &wc);

		if (n < 0)
			rig_die("ibv_poll_cq");
		if (n) {
			count--;
			if (status == IBV_WC_SUCCESS)
				status = (int)wc.status;
		} else if (rig_seconds() > until) {
			return -1;
		} else {
			/* the driver's own thread needs the processor */
			usleep(100);
		}
	}
	return status;
}

int rig_do(struct rig_pair *pair, enum ibv_wr_opcode opcode, struct rig_span local,
	   struct rig_span remote, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge = {.addr = local.address, .length = local.length, .lkey = local.key};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;
	int err;

	if (opcode != IBV_WR_ATOMIC_CMP_AND_SWP && opcode != IBV_WR_ATOMIC_FETCH_AND_ADD) {
		rig_post(pair, opcode, local, remote);
		return rig_wait(pair, 1);
	}
	wr.wr.atomic.remote_addr = remote.address;
	wr.wr.atomic.rkey = remote.key;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	err = ibv_post_send(pair->requester, &wr, &bad);
	if (err) {
		errno = err;
		rig_die("ibv_post_send");
	}
	return rig_wait(pair, 1);
}

/* ---- regions ----------------------------------------------------------------------------- */

#define MAX_ATTRS 16

struct command {
	uint64_t memory[(sizeof(struct ib_uverbs_ioctl_hdr) +
			 MAX_ATTRS * sizeof(struct ib_uverbs_attr)) /
			sizeof(uint64_t)];
};

static struct ib_uverbs_ioctl_hdr *header(struct command *command)
{
	return (struct ib_uverbs_ioctl_hdr *)command->memory;
}

static struct ib_uverbs_attr *add(struct command *command, uint16_t id, uint16_t length,
				  uint64_t data)
{
	struct ib_uverbs_attr *attr = &header(command)->attrs[header(command)->num_attrs++];

	attr->attr_id = id;
	attr->len = length;
	attr->flags = UVERBS_ATTR_F_MANDATORY;
	attr->data = data;
	return attr;
}

static int submit(struct rig *rig, struct command *command, uint16_t method)
{
	struct ib_uverbs_ioctl_hdr *hdr = header(command);

	hdr->object_id = UVERBS_OBJECT_MR;
	hdr->method_id = method;
	hdr->driver_id = RDMA_DRIVER_RXE;
	hdr->length = (uint16_t)(sizeof(*hdr) + hdr->num_attrs * sizeof(hdr->attrs[0]));
	return ioctl(rig->context->cmd_fd, RDMA_VERBS_IOCTL, hdr) ? -errno : 0;
}

int rig_reg_dmabuf(struct rig *rig, enum rig_method method, const struct rig_request *request,
		   struct rig_region *ret_region)
{
	struct rig_region region = {0};
	struct command command = {0};
	struct ib_uverbs_attr *handle;
	int err;

	if (method == RIG_REG_DMABUF_MR) {
		handle = add(&command, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0, 0);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, 0, rig->pd->handle);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8, request->offset);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8, request->length);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8, request->iova);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_FD, 4, (uint32_t)request->fd);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, 4, request->access);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, 4, (uintptr_t)&region.lkey);
		add(&command, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, 4, (uintptr_t)&region.rkey);
	} else {
		handle = add(&command, REG_MR_HANDLE, 0, 0);
		add(&command, REG_MR_PD_HANDLE, 0, rig->pd->handle);
		add(&command, REG_MR_IOVA, 8, request->iova);
		add(&command, REG_MR_LENGTH, 8, request->length);
		add(&command, REG_MR_ACCESS_FLAGS, 4, request->access);
		add(&command, REG_MR_FD, 0, (uint32_t)request->fd);
		add(&command, REG_MR_FD_OFFSET, 8, request->offset);
		add(&command, REG_MR_RESP_LKEY, 4, (uintptr_t)&region.lkey);
		add(&command, REG_MR_RESP_RKEY, 4, (uintptr_t)&region.rkey);
	}
	if (request->revocable)
		add(&command, RXE_REG_DMABUF_FLAGS, 4, RXE_REG_DMABUF_REVOCABLE);
	if (request->ask_flow)
		add(&command, RXE_REG_DMABUF_RESP_FLOW, 4, (uintptr_t)&region.flow);
	err = submit(rig, &command,
		     method == RIG_REG_MR ? METHOD_REG_MR : UVERBS_METHOD_REG_DMABUF_MR);
	if (err)
		return err;
	region.handle = (uint32_t)handle->data;
	*ret_region = region;
	return 0;
}

int rig_dereg_dmabuf(struct rig *rig, const struct rig_region *region)
{
	struct command command = {0};

	add(&command, UVERBS_ATTR_DESTROY_MR_HANDLE, 0, region->handle);
	return submit(rig, &command, UVERBS_METHOD_MR_DESTROY);
}

int rig_rereg_dmabuf(struct rig *rig, const struct rig_region *region, uint32_t access)
{
	uint64_t memory[(sizeof(struct ib_uverbs_cmd_hdr) + sizeof(struct ib_uverbs_rereg_mr)) /
			sizeof(uint64_t)] = {0};
	struct ib_uverbs_cmd_hdr *hdr = (struct ib_uverbs_cmd_hdr *)memory;
	struct ib_uverbs_rereg_mr *cmd = (struct ib_uverbs_rereg_mr *)(hdr + 1);
	struct ib_uverbs_rereg_mr_resp response;

	hdr->command = IB_USER_VERBS_CMD_REREG_MR;
	hdr->in_words = sizeof(memory) / 4;
	hdr->out_words = sizeof(response) / 4;
	cmd->response = (uintptr_t)&response;
	cmd->mr_handle = region->handle;
	cmd->flags = IBV_REREG_MR_CHANGE_ACCESS;
	cmd->access_flags = access;
	return write(rig->context->cmd_fd, memory, sizeof(memory)) < 0 ? -errno : 0;
}

int rig_advise_write(struct rig *rig, uint32_t lkey, uint64_t address, uint32_t length, bool wait)
{
	struct ib_uverbs_sge sge = {.addr = address, .length = length, .lkey = lkey};
	struct command command = {0};

	add(&command, UVERBS_ATTR_ADVISE_MR_PD_HANDLE, 0, rig->pd->handle);
	add(&command, UVERBS_ATTR_ADVISE_MR_ADVICE, 8, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	add(&command, UVERBS_ATTR_ADVISE_MR_FLAGS, 4, wait ? IB_UVERBS_ADVISE_MR_FLAG_FLUSH : 0);
	add(&command, UVERBS_ATTR_ADVISE_MR_SGE_LIST, sizeof(sge), (uintptr_t)&sge);
	return submit(rig, &command, UVERBS_METHOD_ADVISE_MR);
}

/* ---- exporters --------------------------------------------------------------------------- */

static int udmabuf_of(int memfd, size_t size)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = size};
	const int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int fd;

	if (device < 0)
		return -errno;
	fd = ioctl(device, UDMABUF_CREATE, &create);
	if (fd < 0)
		fd = -errno;
	close(device);
	return fd;
}

int rig_export_udmabuf(size_t size, struct rig_buffer *ret_buffer)
{
	struct rig_buffer buffer = {.exporter = "udmabuf", .fd = -1, .size = size};
	int err;

	buffer.memfd = memfd_create("lab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (buffer.memfd < 0)
		return -errno;
	if (ftruncate(buffer.memfd, (off_t)size) ||
	    fcntl(buffer.memfd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		err = -errno;
		goto fail;
	}
	buffer.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.memfd, 0);
	if (buffer.bytes == MAP_FAILED) {
		err = -errno;
		goto fail;
	}
	buffer.fd = udmabuf_of(buffer.memfd, size);
	if (buffer.fd >= 0) {
		*ret_buffer = buffer;
		return 0;
	}
	err = buffer.fd;
	munmap(buffer.bytes, size);
fail:
	close(buffer.memfd);
	return err;
}

int rig_export_heap(size_t size, struct rig_buffer *ret_buffer)
{
	struct rig_buffer buffer = {.exporter = "dma_heap", .memfd = -1, .size = size};
	struct dma_heap_allocation_data data = {.len = size, .fd_flags = O_RDWR | O_CLOEXEC};
	const int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	int err = 0;

	if (heap < 0)
		return -errno;
	if (ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data))
		err = -errno;
	close(heap);
	if (err)
		return err;
	buffer.fd = (int)data.fd;
	buffer.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.fd, 0);
	if (buffer.bytes == MAP_FAILED) {
		err = -errno;
		close(buffer.fd);
		return err;
	}
	*ret_buffer = buffer;
	return 0;
}

void rig_drop(struct rig_buffer *buffer)
{
	munmap(buffer->bytes, buffer->size);
	close(buffer->fd);
	if (buffer->memfd >= 0)
		close(buffer->memfd);
}

uint8_t rig_byte(uint64_t at, unsigned round)
{
	return (uint8_t)(at * 31 + (at >> 8) * 17 + (at >> 16) * 7 + round * 101UL + 1);
}

void rig_fill(uint8_t *bytes, size_t size, unsigned round)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = rig_byte(i, round);
}

size_t rig_differ(const uint8_t *bytes, size_t size, uint64_t from, unsigned round)
{
	size_t bad = 0;

	for (size_t i = 0; i < size; i++)
		bad += bytes[i] != rig_byte(from + i, round);
	return bad;
}
