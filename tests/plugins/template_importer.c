/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An importer that is right in everything but one: FAULT. With FAULT=none it is a valid plugin.
 *
 * Options: handles (segments, cpu, fd; what it takes memory by), peer2peer (yes, no). Nothing reads
 * or writes through its keys. The tests that load it use one thread, so it has no locks.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <peerbuf/importer.h>
#include <peerbuf/testing.h>

enum fault {
	none,

	/* the table */
	wrong_abi_version,
	size_short,
	no_symbol, /* SYMBOL is another */
	null_name,
	name_differs, /* NAME is another */
	no_open,
	no_close,
	no_offer,
	no_reg,
	no_dereg,
	bit_invalidate_no_slot,
	bit_resume_no_slot,
	bit_events_no_slot,
	bit_ops_no_slot,
	bit_gate_no_slot,
	bit_events_no_progress,
	slot_invalidate_no_bit,
	slot_resume_no_bit,
	slot_events_no_bit,
	slot_ops_no_bit,
	slot_gate_no_bit,

	/* open */
	open_null,
	open_positive,

	/* offer */
	offer_unset,
	offer_positive,
	offer_refault_not_revocable,
	offer_refault_without_resume,
	offer_revocable_without_cap,
	offer_scope_0,
	offer_notified_by_0,
	offer_variants_0,
	offer_handles_0,
	offer_mask_0,
	offer_mask_65,
	offer_page_sizes_0,
	offer_max_length_0,

	/* reg */
	reg_positive,
	reg_raw_key_too_long
};

#ifndef FAULT
#define FAULT none
#endif
#ifndef NAME
#define NAME "good"
#endif
#ifndef SYMBOL
#define SYMBOL peerbuf_importer_v1
#endif

#define IS(f) (FAULT == (f))

struct importer {
	const struct peerbuf_host *host;
	int event_fd;
	uint32_t handles;
	uint32_t peer2peer;
	uint64_t last_key;
	struct peerbuf_importer_stats stats;
};

static int bad_option(const struct peerbuf_host *host, const char *why)
{
	host->fail(host, PEERBUF_ERR_INVALID_ARGUMENT, why);
	return -EINVAL;
}

static int do_open(const struct peerbuf_host *host, const struct peerbuf_param *params,
		   size_t n_params, const void *objects, void **ret_importer)
{
	struct importer *imp;
	uint32_t handles = PEERBUF_HANDLE_SEGMENTS, peer2peer = 1;
	size_t i;

	(void)objects; /* needs none */
	for (i = 0; i < n_params; i++) {
		const char *key = params[i].key, *value = params[i].value;

		if (strcmp(key, "handles") == 0) {
			if (strcmp(value, "segments") == 0)
				handles = PEERBUF_HANDLE_SEGMENTS;
			else if (strcmp(value, "cpu") == 0)
				handles = PEERBUF_HANDLE_CPU;
			else if (strcmp(value, "fd") == 0)
				handles = PEERBUF_HANDLE_FD;
			else
				return bad_option(host, "handles is segments, cpu or fd");
		} else if (strcmp(key, "peer2peer") == 0) {
			peer2peer = strcmp(value, "yes") == 0;
		} else {
			return bad_option(host, "the options are handles and peer2peer");
		}
	}
	if (IS(open_null)) {
		*ret_importer = NULL;
		return 0;
	}
	if (IS(open_positive))
		return 1;
	imp = calloc(1, sizeof(*imp));
	if (!imp)
		return -ENOMEM;
	imp->host = host;
	imp->handles = handles;
	imp->peer2peer = peer2peer;
	imp->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (imp->event_fd < 0) {
		free(imp);
		return -EMFILE;
	}
	*ret_importer = imp;
	return 0;
}

static void do_close(void *importer)
{
	struct importer *imp = importer;

	close(imp->event_fd);
	free(imp);
}

static int do_offer(void *importer, struct peerbuf_importer_offer *ret_offer)
{
	const struct importer *imp = importer;
	const uint32_t size = ret_offer->struct_size;
	struct peerbuf_importer_offer o;

	if (IS(offer_unset))
		return 0;
	if (IS(offer_positive))
		return 1;
	memset(&o, 0, sizeof(o));
	o.struct_size = size;
	o.peer2peer = imp->peer2peer;
	o.variants = PEERBUF_VARIANT_HOST;
	o.handles = imp->handles;
	o.access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
		   PEERBUF_ACCESS_REMOTE_WRITE;
	o.dma_mask_bits = 64;
	o.page_sizes = 1u << 12;
	o.max_length = PEERBUF_UNLIMITED;
	o.keys_left = PEERBUF_UNLIMITED;
	strcpy(o.device, "template1");
	strcpy(o.why, "a template for tests");

	if (IS(offer_refault_not_revocable) || IS(offer_refault_without_resume) ||
	    IS(offer_revocable_without_cap) || IS(offer_scope_0) || IS(offer_notified_by_0)) {
		o.invalidation = PEERBUF_INVALIDATION_REVOCABLE;
		o.invalidate_scope = PEERBUF_SCOPE_RANGE;
		o.notified_by = PEERBUF_NOTIFIED_BY_USER;
	}
	if (IS(offer_refault_not_revocable))
		o.invalidation = PEERBUF_INVALIDATION_REFAULT;
	if (IS(offer_refault_without_resume))
		o.invalidation |= PEERBUF_INVALIDATION_REFAULT;
	if (IS(offer_scope_0))
		o.invalidate_scope = 0;
	if (IS(offer_notified_by_0))
		o.notified_by = 0;
	if (IS(offer_variants_0))
		o.variants = 0;
	if (IS(offer_handles_0))
		o.handles = 0;
	if (IS(offer_mask_0))
		o.dma_mask_bits = 0;
	if (IS(offer_mask_65))
		o.dma_mask_bits = 65;
	if (IS(offer_page_sizes_0))
		o.page_sizes = 0;
	if (IS(offer_max_length_0))
		o.max_length = 0;
	memcpy(ret_offer, &o, size < sizeof(o) ? size : sizeof(o));
	return 0;
}

static int do_reg(void *importer, const struct peerbuf_reg_request *request,
		  struct peerbuf_region *ret_region)
{
	struct importer *imp = importer;

	if (IS(reg_positive))
		return 1;
	if (request->handle_kind != imp->handles ||
	    (imp->handles == PEERBUF_HANDLE_FD ? !request->fd_export : !request->mapping)) {
		imp->host->fail(imp->host, PEERBUF_OK, "not the handle that was offered for");
		return -EINVAL;
	}
	ret_region->key64 = ++imp->last_key;
	ret_region->lkey = (uint32_t)imp->last_key;
	ret_region->rkey = (uint32_t)imp->last_key;
	ret_region->raw_key_size = 0;
	ret_region->remote_base = request->iova;
	ret_region->token = imp->last_key;
	imp->stats.regions++;
	imp->stats.keys_used++;
	if (IS(reg_raw_key_too_long))
		ret_region->raw_key_size = PEERBUF_RAW_KEY_LEN + 1;
	return 0;
}

static void do_dereg(void *importer, uint64_t region)
{
	struct importer *imp = importer;

	if (!region || region > imp->last_key || !imp->stats.regions) {
		imp->stats.violations++;
		return;
	}
	imp->stats.regions--;
	imp->stats.keys_used--;
}

static int do_invalidate(void *importer, const struct peerbuf_importer_invalidate *inv)
{
	(void)importer;
	(void)inv;
	return 0;
}

static void do_resume(void *importer, const struct peerbuf_importer_resume *res)
{
	(void)importer;
	(void)res;
}

static int do_event_fd(void *importer)
{
	return ((struct importer *)importer)->event_fd;
}

static int do_progress(void *importer)
{
	(void)importer;
	return 0;
}

static int get_stats(void *importer, struct peerbuf_importer_stats *ret_stats)
{
	const struct importer *imp = importer;
	const uint32_t size = ret_stats->struct_size;
	struct peerbuf_importer_stats stats = imp->stats;

	stats.struct_size = size;
	memcpy(ret_stats, &stats, size < sizeof(stats) ? size : sizeof(stats));
	return 0;
}

static const struct peerbuf_importer_test_ops test_ops = {
	.struct_size = sizeof(test_ops),
	.stats = get_stats,
};

static int do_open_ops(void *importer, const char *name, const void **ret_ops)
{
	(void)importer;
	if (strcmp(name, PEERBUF_IMPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*ret_ops = &test_ops;
	return 0;
}

static void do_drained(struct peerbuf_gate *gate)
{
	(void)gate;
}

static int do_gate(void *importer, struct peerbuf_gate **ret_gate)
{
	static struct peerbuf_gate open_gate = {
		.struct_size = sizeof(open_gate),
		.drained = do_drained,
	};

	(void)importer;
	*ret_gate = &open_gate;
	return 0;
}

/* ---- the table ---------------------------------------------------------------------------- */

#define BIT(cap, off) ((off) ? 0 : PEERBUF_IMPORTER_CAP_##cap)
#define SLOT(slot, off) ((off) ? NULL : (slot))

extern PEERBUF_PLUGIN_EXPORT const struct peerbuf_importer_plugin SYMBOL;
PEERBUF_PLUGIN_EXPORT const struct peerbuf_importer_plugin SYMBOL = {
	.struct_size = IS(size_short) ? 16 : sizeof(struct peerbuf_importer_plugin),
	.abi_version = IS(wrong_abi_version) ? PEERBUF_ABI_VERSION + 1 : PEERBUF_ABI_VERSION,
	.capabilities =
		BIT(INVALIDATE, IS(slot_invalidate_no_bit) || IS(offer_revocable_without_cap)) |
		BIT(RESUME, IS(slot_resume_no_bit) || IS(offer_refault_without_resume) ||
				    IS(offer_revocable_without_cap)) |
		BIT(EVENTS, IS(slot_events_no_bit)) | BIT(OPS, IS(slot_ops_no_bit)) |
		BIT(GATE, IS(slot_gate_no_bit)),
	.name = IS(null_name) ? NULL : NAME,
	.description = "a template for tests, emulated",
	.open = SLOT(do_open, IS(no_open)),
	.close = SLOT(do_close, IS(no_close)),
	.offer = SLOT(do_offer, IS(no_offer)),
	.reg = SLOT(do_reg, IS(no_reg)),
	.dereg = SLOT(do_dereg, IS(no_dereg)),
	.invalidate =
		SLOT(do_invalidate, IS(bit_invalidate_no_slot) || IS(offer_revocable_without_cap)),
	.resume = SLOT(do_resume, IS(bit_resume_no_slot) || IS(offer_refault_without_resume) ||
					  IS(offer_revocable_without_cap)),
	.event_fd = SLOT(do_event_fd, IS(bit_events_no_slot)),
	.progress = SLOT(do_progress, IS(bit_events_no_slot) || IS(bit_events_no_progress)),
	.open_ops = SLOT(do_open_ops, IS(bit_ops_no_slot)),
	.gate = SLOT(do_gate, IS(bit_gate_no_slot)),
};
