// SPDX-License-Identifier: BSD-3-Clause
/*
 * What the programs of the lab share: pairs of queue pairs on the guest's only RDMA device, regions
 * of dma-bufs asked of the kernel itself, and buffers with a mapping that RDMA has no part in.
 *
 * A program prints "ok - WHAT" or "not ok - WHAT: WHY" for each thing it looked at, "skip - WHY"
 * for what this kernel cannot do, and ends with a status other than 0 if anything was not ok.
 */
#ifndef PEERBUF_TESTS_LAB_RIG_H
#define PEERBUF_TESTS_LAB_RIG_H

#include <infiniband/verbs.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RIG_PAIRS 4
#define RIG_ACCESS                                                                                 \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |               \
	 IBV_ACCESS_REMOTE_ATOMIC)

/** Ends the program: without these nothing can be looked at. */
void rig_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/** Prints the line of one thing that was looked at; returns good. */
bool rig_check(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rig_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The program's exit status. */
int rig_status(void);

double rig_seconds(void);

/** One requester and one responder, connected to each other. */
struct rig_pair {
	struct ibv_cq *cq;
	struct ibv_qp *requester;
	struct ibv_qp *responder;
};

struct rig {
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int gid_index;
	enum ibv_mtu mtu;
	struct ibv_srq *srq;
	struct rig_pair pair[RIG_PAIRS];
};

void rig_open(struct rig *rig);
void rig_connect(struct rig *rig, struct rig_pair *pair, enum ibv_qp_type type);
void rig_disconnect(struct rig_pair *pair);
void rig_close(struct rig *rig);

/** What of memory a key gives access to. */
struct rig_span {
	uint64_t address;
	uint32_t length;
	uint32_t key;
};

/**
 * Posts one request and waits for it. Returns an enum ibv_wc_status, or -1 after ten seconds
 * without a completion. compare_add and swap are for atomics.
 */
int rig_do(struct rig_pair *pair, enum ibv_wr_opcode opcode, struct rig_span local,
	   struct rig_span remote, uint64_t compare_add, uint64_t swap);

/** Posts without waiting; rig_wait() waits for that many and returns the first bad status. */
void rig_post(struct rig_pair *pair, enum ibv_wr_opcode opcode, struct rig_span local,
	      struct rig_span remote);
int rig_wait(struct rig_pair *pair, unsigned count);

/** ---- regions of dma-bufs, through the ioctl, since librxe has no call for it ---- */

enum rig_method { RIG_REG_DMABUF_MR, RIG_REG_MR };

enum rig_flow { RIG_FLOW_UNSAID = 0, RIG_FLOW_MOVABLE = 1, RIG_FLOW_REVOCABLE = 2 };

struct rig_region {
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t flow; /**< what the kernel says was taken; 0 if it was not asked */
};

struct rig_request {
	uint64_t offset;
	uint64_t length;
	uint64_t iova;
	int fd;
	uint32_t access;
	bool revocable; /**< asks for it; the kernel's default otherwise */
	bool ask_flow;
};

/** Returns 0 or -errno. */
int rig_reg_dmabuf(struct rig *rig, enum rig_method method, const struct rig_request *request,
		   struct rig_region *ret_region);
int rig_dereg_dmabuf(struct rig *rig, const struct rig_region *region);
/** IB_USER_VERBS_CMD_REREG_MR for new access; librxe has a call for its own regions only. */
int rig_rereg_dmabuf(struct rig *rig, const struct rig_region *region, uint32_t access);

/** IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, past a library that does not pass it on. */
int rig_advise_write(struct rig *rig, uint32_t lkey, uint64_t address, uint32_t length, bool wait);

/** ---- exporters ---- */

struct rig_buffer {
	const char *exporter;
	int fd; /**< of the dma-buf */
	int memfd;
	size_t size;
	uint8_t *bytes; /**< mapped by the CPU, past RDMA */
};

/** Return 0 or -errno. */
int rig_export_udmabuf(size_t size, struct rig_buffer *ret_buffer);
int rig_export_heap(size_t size, struct rig_buffer *ret_buffer);
void rig_drop(struct rig_buffer *buffer);

/** A byte that depends on where it stands and on the round, so that a shifted copy is seen. */
uint8_t rig_byte(uint64_t at, unsigned round);
void rig_fill(uint8_t *bytes, size_t size, unsigned round);
/** How many bytes differ from the pattern that began at `from`. */
size_t rig_differ(const uint8_t *bytes, size_t size, uint64_t from, unsigned round);

#endif
