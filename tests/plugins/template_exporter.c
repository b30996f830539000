/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An exporter that is right in everything but one: FAULT. With FAULT=none it is a valid plugin.
 *
 * Its memory is a memfd for each buffer, its bus addresses are made up. The tests that load it use
 * one thread, so it has no locks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <peerbuf/exporter.h>
#include <peerbuf/testing.h>

enum fault {
	none,

	/* the table */
	wrong_abi_version,
	abi_version_0,
	size_0,
	size_short,	   /* ends before open */
	size_cuts_slot,	   /* ends before open_ops, whose capability is on */
	size_older,	   /* right: ends before event_fd, and those capabilities are off */
	size_newer,	   /* right: longer than this ABI knows */
	no_symbol,	   /* SYMBOL is another */
	needs_core_symbol, /* cannot be linked */
	null_name,
	empty_name,
	name_differs, /* NAME is another */
	null_description,
	no_open,
	no_close,
	no_offer,
	no_attach,
	no_detach,
	bit_alloc_no_slot,
	bit_get_no_slot,
	bit_pin_no_slot,
	bit_map_no_slot,
	bit_fd_no_slot,
	bit_invalidate_no_slot,
	bit_events_no_slot,
	bit_ops_no_slot,
	bit_alloc_no_free,
	bit_get_no_put,
	bit_pin_no_unpin,
	bit_map_no_unmap,
	bit_fd_no_release_fd,
	bit_events_no_progress,
	slot_alloc_no_bit,
	slot_get_no_bit,
	slot_pin_no_bit,
	slot_map_no_bit,
	slot_fd_no_bit,
	slot_invalidate_no_bit,
	slot_events_no_bit,
	slot_ops_no_bit,

	/* open */
	open_null,
	open_positive,

	/* offer */
	offer_unset,
	offer_positive,
	offer_stability_0,
	offer_stability_9,
	offer_pin_0,
	offer_revoke_0,
	offer_management_0,
	offer_placements_0,
	offer_placements_unknown,
	offer_variants_0,
	offer_handles_0,
	offer_moves_pin_not_needed,
	offer_pin_without_cap,
	offer_map_without_cap,
	offer_fd_without_cap,
	offer_revoke_without_cap,
	offer_granularity_0,
	offer_granularity_12288,
	offer_granularity_2048,
	offer_no_device,
	offer_device_unterminated,
	offer_reserve_over_window,

	/* alloc */
	alloc_positive,
	alloc_handle_0,
	alloc_size_0,
	alloc_size_short,
	alloc_size_unaligned,

	/* attach, pin */
	attach_positive,
	attach_raises_peer2peer,
	attach_placement_0,
	pin_positive,

	/* map */
	map_positive,
	map_length_0,
	map_overflow,
	map_unaligned_offset,
	map_unaligned_length,
	map_beyond_end,
	map_starts_late,
	map_too_short,
	map_placement_0,
	map_no_segments,
	map_null_segments,
	map_many_segments,
	map_segments_short,
	map_segments_long,
	map_segment_empty,
	map_segment_overflow,
	map_segment_unaligned,
	map_no_cpu_addr,

	/* export_fd */
	fd_positive,
	fd_minus_1,
	fd_offset_beyond,
	fd_overflow,
	fd_too_small,
	fd_size_0
};

#ifndef FAULT
#define FAULT none
#endif
#ifndef NAME
#define NAME "good"
#endif
#ifndef SYMBOL
#define SYMBOL peerbuf_exporter_v1
#endif

#define IS(f) (FAULT == (f))

enum { GRANULARITY = 4096, MAX_OBJECTS = 32 };

struct buffer {
	uint64_t size; /* 0: free entry */
	uint64_t id;
	int fd;
	int references;
	void *memory;
};

struct attachment {
	uint64_t buffer; /* 0: free entry */
	uint32_t peer2peer;
	uint32_t placement;
};

struct device {
	const struct peerbuf_host *host;
	int event_fd;
	uint64_t last_id;
	struct buffer buffers[MAX_OBJECTS]; /* handle: index + 1 */
	struct attachment attachments[MAX_OBJECTS];
	struct peerbuf_exporter_stats stats;
};

#if defined(NEEDS_CORE_SYMBOL)
int peerbuf_no_such_function(void);
#endif

static int fail(const struct device *dev, int err, const char *why)
{
	dev->host->fail(dev->host, PEERBUF_OK, why);
	return -err;
}

static struct buffer *find_buffer(struct device *dev, uint64_t handle)
{
	if (handle < 1 || handle > MAX_OBJECTS || !dev->buffers[handle - 1].size)
		return NULL;
	return &dev->buffers[handle - 1];
}

static struct attachment *find_attachment(struct device *dev, uint64_t token)
{
	if (token < 1 || token > MAX_OBJECTS || !dev->attachments[token - 1].buffer) {
		dev->stats.violations++;
		return NULL;
	}
	return &dev->attachments[token - 1];
}

static int do_open(const struct peerbuf_host *host, const struct peerbuf_param *params,
		   size_t n_params, void **ret_device)
{
	struct device *dev;

	(void)params; /* none are known */
	if (n_params) {
		host->fail(host, PEERBUF_ERR_INVALID_ARGUMENT, "there are no options");
		return -EINVAL;
	}
	if (IS(open_null)) {
		*ret_device = NULL;
		return 0;
	}
	if (IS(open_positive))
		return 1;
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return -ENOMEM;
	dev->host = host;
	dev->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (dev->event_fd < 0) {
		free(dev);
		return -EMFILE;
	}
#if defined(NEEDS_CORE_SYMBOL)
	dev->last_id = (uint64_t)peerbuf_no_such_function();
#endif
	*ret_device = dev;
	return 0;
}

static void drop_buffer(struct device *dev, struct buffer *buffer)
{
	if (--buffer->references > 0)
		return;
	munmap(buffer->memory, buffer->size);
	close(buffer->fd);
	dev->stats.buffers--;
	dev->stats.memory_used -= buffer->size;
	memset(buffer, 0, sizeof(*buffer));
}

static void do_close(void *device)
{
	struct device *dev = device;
	size_t i;

	for (i = 0; i < MAX_OBJECTS; i++) {
		if (dev->buffers[i].size) {
			dev->buffers[i].references = 1;
			drop_buffer(dev, &dev->buffers[i]);
		}
	}
	close(dev->event_fd);
	free(dev);
}

static int do_offer(void *device, uint64_t handle, struct peerbuf_exporter_offer *ret_offer)
{
	struct device *dev = device;
	const uint32_t size = ret_offer->struct_size;
	struct peerbuf_exporter_offer o;

	if (handle && !find_buffer(dev, handle))
		return fail(dev, ENOENT, "no such buffer");
	if (IS(offer_unset))
		return 0;
	if (IS(offer_positive))
		return 1;
	memset(&o, 0, sizeof(o));
	o.struct_size = size;
	o.stability = PEERBUF_STABILITY_MOVES;
	o.pin = PEERBUF_PIN_CAN;
	o.revoke = PEERBUF_REVOKE_NEVER;
	o.management = PEERBUF_MANAGED_BY_USER;
	o.placements = PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST;
	o.variants = PEERBUF_VARIANT_HOST;
	o.handles = PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	o.access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
		   PEERBUF_ACCESS_REMOTE_WRITE;
	o.granularity = GRANULARITY;
	o.memory_size = 64 << 20;
	strcpy(o.device, "template0");
	strcpy(o.why, "a template for tests");

	if (IS(offer_stability_0))
		o.stability = 0;
	if (IS(offer_stability_9))
		o.stability = 9;
	if (IS(offer_pin_0))
		o.pin = 0;
	if (IS(offer_revoke_0))
		o.revoke = 0;
	if (IS(offer_management_0))
		o.management = 0;
	if (IS(offer_placements_0))
		o.placements = 0;
	if (IS(offer_placements_unknown))
		o.placements |= 1u << 7;
	if (IS(offer_variants_0))
		o.variants = 0;
	if (IS(offer_handles_0))
		o.handles = 0;
	if (IS(offer_moves_pin_not_needed))
		o.pin = PEERBUF_PIN_NOT_NEEDED;
	if (IS(offer_revoke_without_cap)) {
		o.stability = PEERBUF_STABILITY_STATIC;
		o.revoke = PEERBUF_REVOKE_MAY;
	}
	if (IS(offer_granularity_0))
		o.granularity = 0;
	if (IS(offer_granularity_12288))
		o.granularity = 12288;
	if (IS(offer_granularity_2048))
		o.granularity = 2048;
	if (IS(offer_no_device))
		o.device[0] = '\0';
	if (IS(offer_device_unterminated))
		memset(o.device, 'x', sizeof(o.device));
	if (IS(offer_reserve_over_window)) {
		o.window_size = 1 << 20;
		o.window_reserve = 2 << 20;
	}
	memcpy(ret_offer, &o, size < sizeof(o) ? size : sizeof(o));
	return 0;
}

static void describe(const struct device *dev, uint64_t handle, struct peerbuf_buffer_desc *desc)
{
	const struct buffer *buffer = &dev->buffers[handle - 1];

	desc->handle = handle;
	desc->allocation_id = buffer->id;
	desc->generation = 1;
	desc->address = (uint64_t)(uintptr_t)buffer->memory;
	desc->size = buffer->size;
}

static int do_alloc(void *device, uint64_t size, struct peerbuf_buffer_desc *ret_desc)
{
	struct device *dev = device;
	struct buffer *buffer;
	size_t i;

	if (!size)
		return fail(dev, EINVAL, "size 0");
	if (IS(alloc_positive))
		return 1;
	if (IS(alloc_handle_0)) { /* nothing that could be freed, so nothing is kept */
		ret_desc->handle = 0;
		ret_desc->allocation_id = 1;
		ret_desc->generation = 1;
		ret_desc->size = (size + GRANULARITY - 1) & ~(uint64_t)(GRANULARITY - 1);
		return 0;
	}
	if (size > 64 << 20)
		return fail(dev, ENOMEM, "more than the device has");
	for (i = 0; i < MAX_OBJECTS && dev->buffers[i].size; i++)
		;
	if (i == MAX_OBJECTS)
		return fail(dev, ENOMEM, "no entry is left");
	buffer = &dev->buffers[i];
	size = (size + GRANULARITY - 1) & ~(uint64_t)(GRANULARITY - 1);
	buffer->fd = memfd_create("peerbuf-template", MFD_CLOEXEC);
	if (buffer->fd < 0)
		return -errno;
	buffer->memory = MAP_FAILED;
	if (ftruncate(buffer->fd, (off_t)size) == 0)
		buffer->memory =
			mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, buffer->fd, 0);
	if (buffer->memory == MAP_FAILED) {
		close(buffer->fd);
		return fail(dev, ENOMEM, "no memory behind the buffer");
	}
	buffer->size = size;
	buffer->id = ++dev->last_id;
	buffer->references = 1;
	dev->stats.buffers++;
	dev->stats.memory_used += size;
	describe(dev, i + 1, ret_desc);
	if (IS(alloc_size_0))
		ret_desc->size = 0;
	if (IS(alloc_size_short))
		ret_desc->size = size - GRANULARITY;
	if (IS(alloc_size_unaligned))
		ret_desc->size = size + 100;
	return 0;
}

static int do_free(void *device, uint64_t handle)
{
	struct device *dev = device;
	struct buffer *buffer = find_buffer(dev, handle);

	if (!buffer) {
		dev->stats.violations++;
		return fail(dev, ENOENT, "no such buffer");
	}
	drop_buffer(dev, buffer);
	return 0;
}

static int do_get(void *device, const struct peerbuf_get_request *request,
		  struct peerbuf_buffer_desc *ret_desc)
{
	struct device *dev = device;
	size_t i;

	if (request->fd >= 0)
		return fail(dev, ENOENT, "descriptors are not looked up");
	for (i = 0; i < MAX_OBJECTS; i++) {
		struct buffer *buffer = &dev->buffers[i];
		const uint64_t start = (uint64_t)(uintptr_t)buffer->memory;

		if (!buffer->size || request->address < start ||
		    request->address - start >= buffer->size)
			continue;
		if (request->length > buffer->size - (request->address - start))
			return fail(dev, EINVAL, "passes the end of the buffer");
		buffer->references++;
		describe(dev, i + 1, ret_desc);
		return 0;
	}
	return fail(dev, ENOENT, "not this device's memory");
}

static void do_put(void *device, uint64_t handle)
{
	struct device *dev = device;
	struct buffer *buffer = find_buffer(dev, handle);

	if (buffer)
		drop_buffer(dev, buffer);
	else
		dev->stats.violations++;
}

static int do_attach(void *device, uint64_t handle, const struct peerbuf_attach_request *request,
		     struct peerbuf_attach_reply *ret_reply)
{
	struct device *dev = device;
	struct buffer *buffer = find_buffer(dev, handle);
	struct attachment *attachment;
	size_t i;

	if (!buffer)
		return fail(dev, ENOENT, "no such buffer");
	if (IS(attach_positive))
		return 1;
	for (i = 0; i < MAX_OBJECTS && dev->attachments[i].buffer; i++)
		;
	if (i == MAX_OBJECTS)
		return fail(dev, ENOMEM, "no entry is left");
	attachment = &dev->attachments[i];
	attachment->buffer = handle;
	attachment->peer2peer = request->allow_peer2peer;
	attachment->placement =
		request->allow_peer2peer ? PEERBUF_PLACEMENT_DEVICE : PEERBUF_PLACEMENT_HOST;
	buffer->references++;
	dev->stats.attachments++;
	ret_reply->peer2peer = attachment->peer2peer;
	ret_reply->placement = attachment->placement;
	ret_reply->token = i + 1;
	if (IS(attach_raises_peer2peer))
		ret_reply->peer2peer = 1;
	if (IS(attach_placement_0))
		ret_reply->placement = 0;
	return 0;
}

static void do_detach(void *device, uint64_t token)
{
	struct device *dev = device;
	struct attachment *attachment = find_attachment(dev, token);

	if (!attachment)
		return;
	drop_buffer(dev, &dev->buffers[attachment->buffer - 1]);
	memset(attachment, 0, sizeof(*attachment));
	dev->stats.attachments--;
}

static int do_pin(void *device, uint64_t token)
{
	struct device *dev = device;

	if (!find_attachment(dev, token))
		return -EINVAL;
	if (IS(pin_positive))
		return 1;
	dev->stats.pins++;
	return 0;
}

static void do_unpin(void *device, uint64_t token)
{
	struct device *dev = device;

	if (find_attachment(dev, token))
		dev->stats.pins--;
}

static int do_map(void *device, uint64_t token, uint64_t offset, uint64_t length,
		  struct peerbuf_mapping *ret_mapping)
{
	struct device *dev = device;
	const struct attachment *attachment = find_attachment(dev, token);
	const struct buffer *buffer;
	struct peerbuf_segment *segments;
	uint64_t end, first;

	if (!attachment)
		return -EINVAL;
	if (IS(map_positive))
		return 1;
	buffer = &dev->buffers[attachment->buffer - 1];
	if (!length || offset > buffer->size || length > buffer->size - offset)
		return fail(dev, EINVAL, "outside the buffer");
	end = (offset + length + GRANULARITY - 1) & ~(uint64_t)(GRANULARITY - 1);
	offset &= ~(uint64_t)(GRANULARITY - 1);
	length = end - offset;
	segments = calloc(2, sizeof(*segments));
	if (!segments)
		return -ENOMEM;

	/* two pieces where there are two pages, with a hole between their bus addresses */
	first = length > GRANULARITY ? GRANULARITY : length;
	segments[0].dma_addr = (attachment->buffer << 32) + offset;
	segments[0].length = first;
	segments[0].cpu_addr = (char *)buffer->memory + offset;
	segments[1].dma_addr = (attachment->buffer << 32) + (1u << 30) + offset + first;
	segments[1].length = length - first;
	segments[1].cpu_addr = (char *)buffer->memory + offset + first;

	ret_mapping->placement = attachment->placement;
	ret_mapping->peer2peer = attachment->peer2peer;
	ret_mapping->offset = offset;
	ret_mapping->length = length;
	ret_mapping->generation = 1;
	ret_mapping->n_segments = length > first ? 2 : 1;
	ret_mapping->segments = segments;
	ret_mapping->cpu_addr = (char *)buffer->memory + offset;
	ret_mapping->token = (uint64_t)(uintptr_t)segments;
	dev->stats.mappings++;

	/* each has segments that sum up to its length, so that nothing else is wrong with it */
	if (IS(map_length_0))
		ret_mapping->length = 0;
	if (IS(map_overflow))
		ret_mapping->length = UINT64_MAX - GRANULARITY + 1;
	if (IS(map_unaligned_offset)) {
		ret_mapping->offset = offset - 8;
		ret_mapping->length = length + GRANULARITY;
		segments[1].length += GRANULARITY;
	}
	if (IS(map_unaligned_length)) {
		ret_mapping->length = length + 8;
		segments[1].length += 8;
	}
	if (IS(map_beyond_end)) {
		ret_mapping->length = buffer->size - offset + GRANULARITY;
		segments[1].length = ret_mapping->length - first;
	}
	if (IS(map_starts_late)) {
		ret_mapping->offset = offset + first;
		ret_mapping->length = length - first;
		ret_mapping->n_segments = 1;
		ret_mapping->segments = segments + 1;
	}
	if (IS(map_too_short)) {
		ret_mapping->length = first;
		ret_mapping->n_segments = 1;
	}
	if (IS(map_placement_0))
		ret_mapping->placement = 0;
	if (IS(map_no_segments)) {
		ret_mapping->n_segments = 0;
		ret_mapping->segments = NULL;
	}
	if (IS(map_null_segments))
		ret_mapping->segments = NULL;
	if (IS(map_many_segments))
		ret_mapping->n_segments = 1ull << 40;
	if (IS(map_segments_short))
		ret_mapping->n_segments = 1;
	if (IS(map_segments_long))
		segments[1].length += GRANULARITY;
	if (IS(map_segment_empty)) {
		segments[0].length = 0;
		segments[1].length = length;
	}
	if (IS(map_segment_overflow))
		segments[1].dma_addr = UINT64_MAX - GRANULARITY + 1;
	if (IS(map_segment_unaligned))
		segments[1].dma_addr += 8;
	if (IS(map_no_cpu_addr))
		ret_mapping->cpu_addr = NULL;
	return 0;
}

static void do_unmap(void *device, uint64_t token, const struct peerbuf_mapping *mapping)
{
	struct device *dev = device;

	if (!find_attachment(dev, token))
		return;
	free((void *)(uintptr_t)mapping->token);
	dev->stats.mappings--;
}

static int do_export_fd(void *device, uint64_t token, uint64_t offset, uint64_t length,
			uint32_t variant, struct peerbuf_fd_export *ret_export)
{
	struct device *dev = device;
	const struct attachment *attachment = find_attachment(dev, token);
	const struct buffer *buffer;

	(void)variant;
	if (!attachment)
		return -EINVAL;
	if (IS(fd_positive))
		return 1;
	buffer = &dev->buffers[attachment->buffer - 1];
	if (!length || offset > buffer->size || length > buffer->size - offset)
		return fail(dev, EINVAL, "outside the buffer");
	ret_export->fd = IS(fd_minus_1) ? -1 : fcntl(buffer->fd, F_DUPFD_CLOEXEC, 0);
	if (ret_export->fd < 0 && !IS(fd_minus_1))
		return -errno;
	ret_export->offset = offset;
	ret_export->size = buffer->size;
	ret_export->token = token;
	dev->stats.exports++;
	if (IS(fd_offset_beyond))
		ret_export->offset = buffer->size + GRANULARITY;
	if (IS(fd_overflow))
		ret_export->offset = UINT64_MAX - 8;
	if (IS(fd_too_small))
		ret_export->size = offset + length - 1;
	if (IS(fd_size_0))
		ret_export->size = 0;
	return 0;
}

static void do_release_fd(void *device, uint64_t token, const struct peerbuf_fd_export *exp)
{
	struct device *dev = device;

	if (!find_attachment(dev, token))
		return;
	if (exp->fd >= 0)
		close(exp->fd);
	dev->stats.exports--;
}

static void do_invalidate_done(void *device, uint64_t buffer, uint64_t cookie, int status)
{
	struct device *dev = device;

	(void)buffer;
	(void)cookie;
	(void)status;
	dev->stats.violations++; /* it never invalidates, so this can only be a mistake */
}

static int do_event_fd(void *device)
{
	return ((struct device *)device)->event_fd;
}

static int do_progress(void *device)
{
	(void)device;
	return 0;
}

static int get_stats(void *device, struct peerbuf_exporter_stats *ret_stats)
{
	const struct device *dev = device;
	const uint32_t size = ret_stats->struct_size;
	struct peerbuf_exporter_stats stats = dev->stats;

	stats.struct_size = size;
	memcpy(ret_stats, &stats, size < sizeof(stats) ? size : sizeof(stats));
	return 0;
}

static const struct peerbuf_exporter_test_ops test_ops = {
	.struct_size = sizeof(test_ops),
	.stats = get_stats,
};

static int do_open_ops(void *device, const char *name, const void **ret_ops)
{
	(void)device;
	if (strcmp(name, PEERBUF_EXPORTER_TEST_OPS) != 0)
		return -ENOENT;
	*ret_ops = &test_ops;
	return 0;
}

/* ---- the table ---------------------------------------------------------------------------- */

#define BIT(cap, off) ((off) ? 0 : PEERBUF_EXPORTER_CAP_##cap)
#define SLOT(slot, off) ((off) ? NULL : (slot))

struct newer_plugin {
	struct peerbuf_exporter_plugin known;
	void (*later[4])(void);
};

#define TABLE_SIZE                                                                                 \
	(IS(size_0)	      ? 0                                                                  \
	 : IS(size_short)     ? 16                                                                 \
	 : IS(size_cuts_slot) ? offsetof(struct peerbuf_exporter_plugin, open_ops)                 \
	 : IS(size_older)     ? offsetof(struct peerbuf_exporter_plugin, event_fd)                 \
	 : IS(size_newer)     ? sizeof(struct newer_plugin)                                        \
			      : sizeof(struct peerbuf_exporter_plugin))

#define TABLE                                                                                      \
	.struct_size = TABLE_SIZE,                                                                 \
	.abi_version = IS(wrong_abi_version) ? PEERBUF_ABI_VERSION + 1                             \
		       : IS(abi_version_0)   ? 0                                                   \
					     : PEERBUF_ABI_VERSION,                                  \
	.capabilities =                                                                            \
		BIT(ALLOC, IS(slot_alloc_no_bit)) | BIT(GET, IS(slot_get_no_bit)) |                \
		BIT(PIN, IS(slot_pin_no_bit) || IS(offer_pin_without_cap)) |                       \
		BIT(MAP, IS(slot_map_no_bit) || IS(offer_map_without_cap)) |                       \
		BIT(FD, IS(slot_fd_no_bit) || IS(offer_fd_without_cap)) |                          \
		BIT(INVALIDATE, IS(slot_invalidate_no_bit) || IS(offer_revoke_without_cap)) |      \
		BIT(EVENTS, IS(slot_events_no_bit) || IS(size_older)) |                            \
		BIT(OPS, IS(slot_ops_no_bit) || IS(size_older)),                                   \
	.name = IS(null_name)	 ? NULL                                                            \
		: IS(empty_name) ? ""                                                              \
				 : NAME,                                                           \
	.description = IS(null_description) ? NULL : "a template for tests, emulated",             \
	.open = SLOT(do_open, IS(no_open)), .close = SLOT(do_close, IS(no_close)),                 \
	.offer = SLOT(do_offer, IS(no_offer)), .alloc = SLOT(do_alloc, IS(bit_alloc_no_slot)),     \
	.free = SLOT(do_free, IS(bit_alloc_no_slot) || IS(bit_alloc_no_free)),                     \
	.get = SLOT(do_get, IS(bit_get_no_slot)),                                                  \
	.put = SLOT(do_put, IS(bit_get_no_slot) || IS(bit_get_no_put)),                            \
	.attach = SLOT(do_attach, IS(no_attach)), .detach = SLOT(do_detach, IS(no_detach)),        \
	.pin = SLOT(do_pin, IS(bit_pin_no_slot) || IS(offer_pin_without_cap)),                     \
	.unpin = SLOT(do_unpin,                                                                    \
		      IS(bit_pin_no_slot) || IS(bit_pin_no_unpin) || IS(offer_pin_without_cap)),   \
	.map = SLOT(do_map, IS(bit_map_no_slot) || IS(offer_map_without_cap)),                     \
	.unmap = SLOT(do_unmap,                                                                    \
		      IS(bit_map_no_slot) || IS(bit_map_no_unmap) || IS(offer_map_without_cap)),   \
	.export_fd = SLOT(do_export_fd, IS(bit_fd_no_slot) || IS(offer_fd_without_cap)),           \
	.release_fd = SLOT(do_release_fd, IS(bit_fd_no_slot) || IS(bit_fd_no_release_fd) ||        \
						  IS(offer_fd_without_cap)),                       \
	.invalidate_done = SLOT(do_invalidate_done,                                                \
				IS(bit_invalidate_no_slot) || IS(offer_revoke_without_cap)),       \
	.event_fd = SLOT(do_event_fd, IS(bit_events_no_slot)),                                     \
	.progress = SLOT(do_progress, IS(bit_events_no_slot) || IS(bit_events_no_progress)),       \
	.open_ops = SLOT(do_open_ops, IS(bit_ops_no_slot))

#if defined(NEWER)
extern PEERBUF_PLUGIN_EXPORT const struct newer_plugin SYMBOL;
PEERBUF_PLUGIN_EXPORT const struct newer_plugin SYMBOL = {.known = {TABLE}};
#else
extern PEERBUF_PLUGIN_EXPORT const struct peerbuf_exporter_plugin SYMBOL;
PEERBUF_PLUGIN_EXPORT const struct peerbuf_exporter_plugin SYMBOL = {TABLE};
#endif
