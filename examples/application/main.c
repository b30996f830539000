/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From a pointer into device memory to a key that another process uses: what a communication
 * library does with peerbuf, on its own libfabric domain.
 *
 *     application [EXPORTER [PROVIDER]]
 *
 * The target registers memory of the exporter and tells the peer, over a socket pair, an endpoint
 * address, a key and a base. The peer writes a pattern and reads it back by RMA. Exit 0: both saw
 * every byte.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <peerbuf/fabric.h>
#include <peerbuf/peerbuf.h>

/* The region starts in the middle of a page: an offset that is dropped would be seen. */
enum { OFFSET = 4096 + 64, LENGTH = 300000, BUFFER = 1 << 20 };

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 7 + i / 251 + 1);
}

/* ---- the application's own libfabric objects ---------------------------------------------- */

struct endpoint {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	unsigned char name[128]; /* for the peer's fi_av_insert */
	size_t name_size;
};

static int failed(const char *call, long rc)
{
	fprintf(stderr, "application: %s: %s\n", call, fi_strerror((int)-rc));
	return -1;
}

static int find_provider(const char *provider, struct fi_info **ret_info)
{
	/* those that name themselves by socket addresses stay on this machine */
	const int network = strncmp(provider, "shm", 3) != 0;
	struct fi_info *hints = fi_allocinfo();
	int rc;

	if (!hints)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | (network ? FI_MR_VIRT_ADDR : 0);
	/* a completed write has arrived, so that it can be looked at without another message */
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	hints->fabric_attr->prov_name = strdup(provider);
	rc = fi_getinfo(FI_VERSION(1, 17), network ? "127.0.0.1" : NULL, NULL,
			network ? FI_SOURCE : 0, hints, ret_info);
	fi_freeinfo(hints);
	return rc;
}

/* What was opened is closed by close_endpoint, also after an error. */
static int open_endpoint(struct endpoint *e, const char *provider)
{
	struct fi_cq_attr cq_attr;
	struct fi_av_attr av_attr;
	int rc;

	memset(&cq_attr, 0, sizeof(cq_attr));
	cq_attr.format = FI_CQ_FORMAT_CONTEXT;
	memset(&av_attr, 0, sizeof(av_attr));
	if ((rc = find_provider(provider, &e->info)))
		return failed("fi_getinfo", rc);
	if ((rc = fi_fabric(e->info->fabric_attr, &e->fabric, NULL)))
		return failed("fi_fabric", rc);
	if ((rc = fi_domain(e->fabric, e->info, &e->domain, NULL)))
		return failed("fi_domain", rc);
	if ((rc = fi_av_open(e->domain, &av_attr, &e->av, NULL)))
		return failed("fi_av_open", rc);
	if ((rc = fi_cq_open(e->domain, &cq_attr, &e->cq, NULL)))
		return failed("fi_cq_open", rc);
	if ((rc = fi_endpoint(e->domain, e->info, &e->ep, NULL)))
		return failed("fi_endpoint", rc);
	if ((rc = fi_ep_bind(e->ep, &e->av->fid, 0)))
		return failed("fi_ep_bind", rc);
	if ((rc = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)))
		return failed("fi_ep_bind", rc);
	if ((rc = fi_enable(e->ep)))
		return failed("fi_enable", rc);
	e->name_size = sizeof(e->name);
	if ((rc = fi_getname(&e->ep->fid, e->name, &e->name_size)))
		return failed("fi_getname", rc);
	return 0;
}

static void close_endpoint(struct endpoint *e)
{
	struct fid *fids[5];
	size_t i;

	/* what uses comes before what is used */
	fids[0] = e->ep ? &e->ep->fid : NULL;
	fids[1] = e->cq ? &e->cq->fid : NULL;
	fids[2] = e->av ? &e->av->fid : NULL;
	fids[3] = e->domain ? &e->domain->fid : NULL;
	fids[4] = e->fabric ? &e->fabric->fid : NULL;
	for (i = 0; i < 5; i++)
		if (fids[i])
			fi_close(fids[i]);
	fi_freeinfo(e->info);
}

/** Let the provider work. @return 1: an operation of ours has completed; 0: none; -1: error. */
static int poll_endpoint(struct endpoint *e)
{
	struct fi_cq_err_entry error;
	struct fi_cq_entry entry;
	const ssize_t n = fi_cq_read(e->cq, &entry, 1);

	if (n == 1)
		return 1;
	if (n == -FI_EAGAIN)
		return 0;
	memset(&error, 0, sizeof(error));
	if (n == -FI_EAVAIL && fi_cq_readerr(e->cq, &error, 0) == 1)
		return failed("completion", -error.err);
	return failed("fi_cq_read", (long)n);
}

/* ---- the target: memory, region, key ------------------------------------------------------ */

/** All that a peer needs to know. It knows nothing of peerbuf. */
struct ticket {
	uint64_t key;
	uint64_t base;
	uint64_t name_size;
	unsigned char name[128];
};

static int complain(const char *call)
{
	const struct peerbuf_error *error = peerbuf_last_error();
	size_t i;

	fprintf(stderr, "application: %s: %s\n", call, error->what);
	for (i = 0; i < error->n_refusals; i++)
		fprintf(stderr, "  %s: %s\n", error->refusals[i].who, error->refusals[i].why);
	return -1;
}

/** Device memory, or NULL. Where it comes from does not matter, only its address does. */
static unsigned char *find_memory(struct peerbuf_context *ctx, const char *name)
{
	struct peerbuf_buffer_info info;
	peerbuf_exporter_t exporter;
	peerbuf_buffer_t buffer;

	memset(&info, 0, sizeof(info));
	info.struct_size = sizeof(info);
	if (peerbuf_exporter_open(ctx, name, NULL, 0, &exporter))
		complain("peerbuf_exporter_open");
	else if (peerbuf_alloc(ctx, exporter, BUFFER, &buffer))
		complain("peerbuf_alloc");
	else if (peerbuf_query_buffer(ctx, buffer, &info))
		complain("peerbuf_query_buffer");
	else if (!info.address)
		fprintf(stderr, "application: this process cannot reach memory of %s\n", name);
	return info.address;
}

/** A region of [pointer, pointer + LENGTH) on our own domain. */
static int register_memory(struct peerbuf_context *ctx, struct endpoint *e, void *pointer,
			   struct peerbuf_reg_importer_info *ret_region)
{
	struct peerbuf_fabric_objects objects;
	struct peerbuf_source source;
	peerbuf_importer_t importer;
	peerbuf_reg_t reg;

	memset(&objects, 0, sizeof(objects));
	objects.struct_size = sizeof(objects);
	objects.domain = e->domain;
	objects.info = e->info;
	objects.ep = e->ep;
	if (peerbuf_importer_open(ctx, "fabric", NULL, 0, &objects, &importer))
		return complain("peerbuf_importer_open");

	memset(&source, 0, sizeof(source));
	source.struct_size = sizeof(source);
	source.fd = -1;
	source.address = pointer;
	source.length = LENGTH;
	if (peerbuf_register(ctx, &source, &importer, 1,
			     PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE, NULL, &reg))
		return complain("peerbuf_register");

	if (peerbuf_query_reg_importer(ctx, reg, 0, ret_region))
		return complain("peerbuf_query_reg_importer");
	return 0;
}

/** Serve the peer until it has told how it went, or is gone. */
static int serve(struct peerbuf_context *ctx, struct endpoint *e, int socket)
{
	char verdict = 'x';

	for (;;) {
		ssize_t n;

		if (poll_endpoint(e) < 0)
			return -1;
		if (peerbuf_progress(ctx) < 0)
			return complain("peerbuf_progress");
		n = recv(socket, &verdict, 1, MSG_DONTWAIT);
		if (n == 1)
			return verdict == 'y' ? 0 : -1;
		if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
			fprintf(stderr, "application: the peer is gone\n");
			return -1;
		}
	}
}

static int target_with(struct peerbuf_context *ctx, struct endpoint *e, const char *exporter,
		       int socket)
{
	struct peerbuf_reg_importer_info region;
	struct ticket ticket;
	unsigned char *memory;
	size_t i, bad = 0;

	memset(&region, 0, sizeof(region));
	region.struct_size = sizeof(region);
	memory = find_memory(ctx, exporter);
	if (!memory || register_memory(ctx, e, memory + OFFSET, &region))
		return -1;
	printf("%u bytes at %p of %s: %s, key %#llx, base %#llx\n", (unsigned)LENGTH,
	       (void *)(memory + OFFSET), exporter, peerbuf_flow_name(region.flow),
	       (unsigned long long)region.key64, (unsigned long long)region.remote_base);
	fflush(stdout);

	memset(&ticket, 0, sizeof(ticket));
	ticket.key = region.key64; /* raw keys were not asked for in mr_mode */
	ticket.base = region.remote_base;
	ticket.name_size = e->name_size;
	memcpy(ticket.name, e->name, e->name_size);
	if (send(socket, &ticket, sizeof(ticket), MSG_NOSIGNAL) != (ssize_t)sizeof(ticket)) {
		perror("application: send");
		return -1;
	}
	if (serve(ctx, e, socket))
		return -1;

	/* every byte of the region, and none beside it */
	for (i = 0; i < BUFFER; i++) {
		const int inside = i >= OFFSET && i < OFFSET + LENGTH;

		if (memory[i] != (inside ? pattern(i - OFFSET) : 0))
			bad++;
	}
	printf("target: %u bytes written by the peer, %u wrong\n", (unsigned)LENGTH, (unsigned)bad);
	return bad ? -1 : 0;
}

static int target(const char *exporter, const char *provider, int socket)
{
	struct peerbuf_context *ctx = NULL;
	struct endpoint e;
	int rc;

	memset(&e, 0, sizeof(e));
	rc = open_endpoint(&e, provider);
	if (rc == 0 && peerbuf_open(NULL, &ctx))
		rc = complain("peerbuf_open");
	if (rc == 0)
		rc = target_with(ctx, &e, exporter, socket);
	/* regions end, devices close; our own objects are still ours, and go after it */
	if (peerbuf_close(ctx) && rc == 0)
		rc = complain("peerbuf_close");
	close_endpoint(&e);
	return rc;
}

/* ---- the peer: libfabric and nothing else -------------------------------------------------- */

enum direction { WRITE, READ };

static int transfer(struct endpoint *e, fi_addr_t to, const struct ticket *t, enum direction dir,
		    void *data)
{
	struct fi_context context; /* the provider's until the operation completes */
	ssize_t rc;
	int done;

	do {
		rc = dir == WRITE
			     ? fi_write(e->ep, data, LENGTH, NULL, to, t->base, t->key, &context)
			     : fi_read(e->ep, data, LENGTH, NULL, to, t->base, t->key, &context);
		if (rc == -FI_EAGAIN && poll_endpoint(e) < 0) /* connecting, or the queue is full */
			return -1;
	} while (rc == -FI_EAGAIN);
	if (rc)
		return failed(dir == WRITE ? "fi_write" : "fi_read", (long)rc);
	do
		done = poll_endpoint(e);
	while (done == 0);
	return done < 0 ? -1 : 0;
}

static int peer_with(struct endpoint *e, const struct ticket *ticket)
{
	static unsigned char out[LENGTH], in[LENGTH];
	fi_addr_t to;
	size_t i, bad = 0;
	int n;

	n = fi_av_insert(e->av, ticket->name, 1, &to, 0, NULL);
	if (n != 1)
		return failed("fi_av_insert", n < 0 ? n : -FI_EINVAL);
	for (i = 0; i < LENGTH; i++)
		out[i] = pattern(i);
	if (transfer(e, to, ticket, WRITE, out) || transfer(e, to, ticket, READ, in))
		return -1;
	for (i = 0; i < LENGTH; i++)
		bad += in[i] != out[i];
	printf("peer: %u bytes read back, %u wrong\n", (unsigned)LENGTH, (unsigned)bad);
	return bad ? -1 : 0;
}

static int peer(const char *provider, int socket)
{
	struct endpoint e;
	struct ticket ticket;
	int rc;

	memset(&e, 0, sizeof(e));
	rc = open_endpoint(&e, provider);
	if (rc == 0 && recv(socket, &ticket, sizeof(ticket), MSG_WAITALL) != sizeof(ticket)) {
		fprintf(stderr, "application: the target is gone\n");
		rc = -1;
	}
	if (rc == 0)
		rc = peer_with(&e, &ticket);
	fflush(stdout);
	if (send(socket, rc == 0 ? "y" : "n", 1, MSG_NOSIGNAL) != 1)
		rc = -1;
	close_endpoint(&e);
	return rc;
}

int main(int argc, char **argv)
{
	const char *exporter = argc > 1 ? argv[1] : "emulated";
	const char *provider = argc > 2 ? argv[2] : "tcp;ofi_rxm";
	int sockets[2], status = 0, rc;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) {
		perror("application: socketpair");
		return 1;
	}
	child = fork(); /* before anything is opened: neither library is for a child's use */
	if (child < 0) {
		perror("application: fork");
		return 1;
	}
	alarm(60); /* each for itself: a partner that stops answering must not keep us */
	if (child == 0) {
		close(sockets[0]);
		return peer(provider, sockets[1]) ? 1 : 0;
	}
	close(sockets[1]);
	rc = target(exporter, provider, sockets[0]);
	close(sockets[0]);
	if (rc)
		kill(child, SIGTERM); /* it may be waiting for us */
	if (waitpid(child, &status, 0) != child || status != 0)
		rc = -1;
	return rc ? 1 : 0;
}
