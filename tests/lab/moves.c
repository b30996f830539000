// SPDX-License-Identifier: BSD-3-Clause
/*
 * rxe and an exporter that takes its memory back: it moves under traffic, with and without a fence
 * that the importer has to wait for; it refuses for a while; it revokes. Each byte is looked at by
 * the exporter's own way to it.
 */
#include "rig.h"

#include "kernel/lab_exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define SIZE (16 * PAGE)
#define IOVA 0x7100000000ull
#define MOVES 120

static struct rig rig;
static struct ibv_mr *host;
static uint8_t *bytes; /* of the host's region: one half to send from, one to receive in */

struct moving {
	int device; /* of the exporter; the bytes and the requests */
	int fd;	    /* the dma-buf */
	struct rig_region region;
};

static void export_as(struct moving *m, uint64_t size, uint32_t period)
{
	const struct lab_exporter_export request = {.size = size, .period = period};

	m->device = open("/dev/lab_exporter", O_RDWR | O_CLOEXEC);
	if (m->device < 0)
		rig_die("/dev/lab_exporter");
	m->fd = ioctl(m->device, LAB_EXPORTER_EXPORT, &request);
	if (m->fd < 0)
		rig_die("LAB_EXPORTER_EXPORT");
}

static void export_one(struct moving *m)
{
	export_as(m, SIZE, 0);
}

static void drop(struct moving *m)
{
	close(m->fd);
	close(m->device);
}

static int import_as(struct moving *m, uint64_t size, bool revocable)
{
	const struct rig_request request = {.length = size,
					    .iova = IOVA,
					    .fd = m->fd,
					    .access = RIG_ACCESS,
					    .revocable = revocable};

	return rig_reg_dmabuf(&rig, RIG_REG_DMABUF_MR, &request, &m->region);
}

static int import(struct moving *m, bool revocable)
{
	return import_as(m, SIZE, revocable);
}

static int move(struct moving *m, uint32_t delay_ms)
{
	const struct lab_exporter_move request = {.delay_ms = delay_ms};

	return ioctl(m->device, LAB_EXPORTER_MOVE, &request) ? -errno : 0;
}

static void refuse(struct moving *m, uint32_t count, int error)
{
	const struct lab_exporter_refuse request = {.count = count, .error = error};

	if (ioctl(m->device, LAB_EXPORTER_REFUSE, &request))
		rig_die("LAB_EXPORTER_REFUSE");
}

static struct lab_exporter_stats stats_of(struct moving *m)
{
	struct lab_exporter_stats stats;

	if (ioctl(m->device, LAB_EXPORTER_STATS, &stats))
		rig_die("LAB_EXPORTER_STATS");
	return stats;
}

static void load(struct moving *m, uint8_t *to)
{
	if (pread(m->device, to, SIZE, 0) != (ssize_t)SIZE)
		rig_die("reading the exporter's memory");
}

static void store(struct moving *m, const uint8_t *from)
{
	if (pwrite(m->device, from, SIZE, 0) != (ssize_t)SIZE)
		rig_die("writing the exporter's memory");
}

static struct rig_span in_host(size_t offset, size_t length)
{
	return (struct rig_span){(uintptr_t)bytes + offset, (uint32_t)length, host->lkey};
}

static struct rig_span in_buffer(struct moving *m, size_t offset, size_t length)
{
	return (struct rig_span){IOVA + offset, (uint32_t)length, m->region.rkey};
}

static int compare_times(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/** Writes one half of the buffer and reads the other while the buffer moves. */
static void under_traffic(void)
{
	const size_t half = SIZE / 2;
	static uint32_t us[MOVES];
	struct moving m;
	size_t bad = 0, verified = 0;
	int status = 0, err;
	struct lab_exporter_stats stats;
	static uint8_t seen[SIZE];

	export_one(&m);
	err = import(&m, false);
	if (!rig_check(!err, "a buffer that moves is imported: %d", err))
		return;
	for (unsigned round = 0; round < MOVES && !status; round++) {
		/* the half that is read keeps what the CPU stored */
		rig_fill(seen, SIZE, round);
		store(&m, seen);
		rig_fill(bytes, half, round + 1);
		memset(bytes + half, 0, half);
		for (size_t at = 0; at < half; at += half / 4) {
			rig_post(&rig.pair[0], IBV_WR_RDMA_WRITE, in_host(at, half / 4),
				 in_buffer(&m, at, half / 4));
			rig_post(&rig.pair[1], IBV_WR_RDMA_READ, in_host(half + at, half / 4),
				 in_buffer(&m, half + at, half / 4));
			if (at == half / 4) {
				err = move(&m, round % 3 ? round % 3 * 4 : 0);
				if (err)
					break;
			}
		}
		if (err)
			break;
		status = rig_wait(&rig.pair[0], 4);
		if (!status)
			status = rig_wait(&rig.pair[1], 4);
		us[round] = stats_of(&m).unmap_us;
		load(&m, seen);
		bad += rig_differ(seen, half, 0, round + 1) +
		       rig_differ(seen + half, half, half, round) +
		       rig_differ(bytes + half, half, half, round);
		verified += SIZE + half;
	}
	stats = stats_of(&m);
	rig_check(!err && !status && !bad && stats.moves == MOVES,
		  "%u moves under traffic: error %d, status %d, %zu of %zu bytes wrong",
		  stats.moves, err, status, bad, verified);
	rig_check(stats.maps > MOVES / 2, "the buffer was mapped anew: %u times", stats.maps);
	qsort(us, MOVES, sizeof(us[0]), compare_times);
	printf("fact {\"moves_under_traffic\": %u, \"invalidate_to_unmap_us\": {\"p50\": %u, "
	       "\"p99\": "
	       "%u}}\n",
	       stats.moves, us[MOVES / 2], us[MOVES * 99 / 100]);
	printf("pair {\"exporter\": \"lab_exporter\", \"importer\": \"rxe\", \"flow\": "
	       "\"Movable\", "
	       "\"how_known\": \"it moved %u times\", \"bytes_verified\": %zu, \"bytes_bad\": "
	       "%zu}\n",
	       stats.moves, verified, bad);
	err = rig_dereg_dmabuf(&rig, &m.region);
	stats = stats_of(&m);
	rig_check(!err && stats.maps == stats.unmaps && stats.vmaps == stats.vunmaps && !stats.pins,
		  "all is unmapped in the end: error %d, maps %u of %u, vmaps %u of %u, pins %u",
		  err, stats.unmaps, stats.maps, stats.vunmaps, stats.vmaps, stats.pins);
	drop(&m);
}

/** One write over a pair of queue pairs of its own; what it ends with. */
static int write_once(struct moving *m)
{
	struct rig_pair pair = {0};
	int status;

	rig_connect(&rig, &pair, IBV_QPT_RC);
	status = rig_do(&pair, IBV_WR_RDMA_WRITE, in_host(0, PAGE), in_buffer(m, 0, PAGE), 0, 0);
	rig_disconnect(&pair);
	return status;
}

/** One write whose source is the key's; what it ends with. */
static int send_once(struct rig_span from)
{
	const struct rig_span to = {(uintptr_t)bytes, from.length, host->rkey};
	struct rig_pair pair = {0};
	int status;

	rig_connect(&rig, &pair, IBV_QPT_RC);
	status = rig_do(&pair, IBV_WR_RDMA_WRITE, from, to, 0, 0);
	rig_disconnect(&pair);
	return status;
}

static void refused_for_a_while(int error, const char *name)
{
	struct moving m;
	int status;

	export_one(&m);
	if (import(&m, false))
		rig_die("importing");
	move(&m, 0);
	refuse(&m, 3, error);
	status = write_once(&m);
	rig_check(!status, "an exporter that says %s three times is asked again: status %d", name,
		  status);
	move(&m, 0);
	refuse(&m, 100000, error);
	status = write_once(&m);
	rig_check(status == IBV_WC_REM_ACCESS_ERR,
		  "one that goes on saying %s is given up: status %d", name, status);
	refuse(&m, 0, error);
	status = write_once(&m);
	rig_check(!status, "after %s all is well again: status %d", name, status);
	rig_dereg_dmabuf(&rig, &m.region);
	drop(&m);
}

static void revoked(bool revocable)
{
	const char *flow = revocable ? "revocable" : "movable";
	struct moving m, other;
	struct lab_exporter_stats stats;
	static uint8_t before[SIZE], after[SIZE];
	double began;
	int err, status, never;

	export_one(&m);
	err = import(&m, revocable);
	if (!rig_check(!err, "%s: imported: %d", flow, err))
		return;
	err = move(&m, 0);
	rig_check(err == (revocable ? -EBUSY : 0), "%s: to move it says %d", flow, err);
	status = write_once(&m);
	rig_check(!status, "%s: written before it is revoked: status %d", flow, status);
	load(&m, before);

	began = rig_seconds();
	err = ioctl(m.device, LAB_EXPORTER_REVOKE) ? -errno : 0;
	stats = stats_of(&m);
	rig_check(!err && stats.maps == stats.unmaps && stats.pins == stats.unpins,
		  "%s: revoked: %d, mapped %d, pinned %d, after %.3f s", flow, err,
		  (int)(stats.maps - stats.unmaps), (int)(stats.pins - stats.unpins),
		  rig_seconds() - began);
	rig_fill(bytes, SIZE, 50);
	for (int i = 0; i < 2; i++) {
		status = write_once(&m);
		rig_check(status == IBV_WC_REM_ACCESS_ERR,
			  "%s: written when it is revoked: status %d", flow, status);
		if (revocable && !i)
			printf("fact {\"revoke_status\": %d}\n", status);
	}
	/* rxe says WR_FLUSH_ERR where it should say LOC_PROT_ERR, of every local key */
	never = send_once((struct rig_span){IOVA, PAGE, m.region.lkey ^ 0x55});
	status = send_once((struct rig_span){IOVA, PAGE, m.region.lkey});
	rig_check(status && status == never,
		  "%s: its own key is as one that never was: status %d, %d", flow, status, never);
	load(&m, after);
	rig_check(!memcmp(before, after, SIZE), "%s: nothing arrived", flow);

	export_one(&other);
	err = import(&other, false);
	rig_check(!err && other.region.rkey >> 8 != m.region.rkey >> 8,
		  "%s: a revoked key is not given away: %d", flow, err);
	err = rig_dereg_dmabuf(&rig, &other.region);
	drop(&other);
	err = rig_dereg_dmabuf(&rig, &m.region);
	rig_check(!err, "%s: deregistered: %d", flow, err);
	err = import(&m, revocable);
	rig_check(err == -ENODEV, "%s: imported when it is revoked: %d", flow, err);
	drop(&m);
}

/** Nobody waits for a fence longer than what waits for it exists. */
static void given_up(void)
{
	struct rig_pair pair = {0};
	struct moving m;
	double took;
	int err;

	export_one(&m);
	if (import(&m, false))
		rig_die("importing");
	move(&m, 20000);
	rig_connect(&rig, &pair, IBV_QPT_RC);
	rig_post(&pair, IBV_WR_RDMA_WRITE, in_host(0, PAGE), in_buffer(&m, 0, PAGE));
	usleep(300000);
	took = rig_seconds();
	rig_disconnect(&pair);
	took = rig_seconds() - took;
	rig_check(took < 10, "queue pairs that wait for a fence of 20 s are destroyed in %.1f s",
		  took);

	rig_connect(&rig, &pair, IBV_QPT_RC);
	rig_post(&pair, IBV_WR_RDMA_WRITE, in_host(0, PAGE), in_buffer(&m, 0, PAGE));
	usleep(300000);
	took = rig_seconds();
	err = rig_dereg_dmabuf(&rig, &m.region);
	took = rig_seconds() - took;
	rig_check(!err && took < 10, "so is a region: %d, %.1f s", err, took);
	rig_disconnect(&pair);
	drop(&m);
}

/** Offsets that do not fit 32 bits: in a buffer of 5 GiB that repeats 17 pages, a lost bit shows.
 */
static void large(void)
{
	const uint64_t size = 5ull << 30;
	const uint64_t at[] = {12345, (4ull << 30) + 12345, size - 9001};
	static uint8_t seen[9001], was[17 * PAGE];
	const uint32_t length = sizeof(seen);
	struct moving m;
	int err, status;

	export_as(&m, size, 17);
	err = import_as(&m, size, false);
	if (!rig_check(!err, "a buffer of 5 GiB is imported: %d", err)) {
		drop(&m);
		return;
	}
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		struct rig_span to = in_buffer(&m, 0, length);
		size_t bad, changed = 0;

		to.address += at[i];
		memset(was, 0, sizeof(was));
		if (pwrite(m.device, was, sizeof(was), 0) != (ssize_t)sizeof(was))
			rig_die("writing the exporter's memory");
		for (size_t b = 0; b < length; b++)
			bytes[b] = (uint8_t)(rig_byte(b, i) | 1);
		status = rig_do(&rig.pair[0], IBV_WR_RDMA_WRITE, in_host(0, length), to, 0, 0);
		if (pread(m.device, seen, length, (off_t)at[i]) != (ssize_t)length ||
		    pread(m.device, was, sizeof(was), 0) != (ssize_t)sizeof(was))
			rig_die("reading the exporter's memory");
		bad = (size_t)memcmp(seen, bytes, length);
		for (size_t b = 0; b < sizeof(was); b++)
			changed += was[b] != 0;
		rig_check(!status && !bad && changed == length,
			  "written at %#llx of it: status %d, %zu bytes of %u changed",
			  (unsigned long long)at[i], status, changed, length);
		memset(bytes, 0, length);
		status = rig_do(&rig.pair[0], IBV_WR_RDMA_READ, in_host(0, length), to, 0, 0);
		rig_check(!status && !memcmp(seen, bytes, length), "read at %#llx of it: status %d",
			  (unsigned long long)at[i], status);
	}
	err = rig_dereg_dmabuf(&rig, &m.region);
	rig_check(!err, "it is deregistered: %d", err);
	drop(&m);
}

int main(void)
{
	rig_open(&rig);
	rig_connect(&rig, &rig.pair[0], IBV_QPT_RC);
	rig_connect(&rig, &rig.pair[1], IBV_QPT_RC);
	bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		rig_die("mmap");
	host = ibv_reg_mr(rig.pd, bytes, SIZE, RIG_ACCESS);
	if (!host)
		rig_die("ibv_reg_mr");
	under_traffic();
	large();
	refused_for_a_while(-EAGAIN, "EAGAIN");
	refused_for_a_while(-ENOMEM, "ENOMEM");
	revoked(true);
	revoked(false);
	given_up();
	if (ibv_dereg_mr(host))
		rig_die("ibv_dereg_mr");
	rig_close(&rig);
	return rig_status();
}
