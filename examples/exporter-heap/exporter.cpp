// SPDX-License-Identifier: BSD-3-Clause
// Memory of this process as an exporter: it never moves and is never taken back.
#include "exporter.h"

namespace heap
{

using namespace peerbuf::plugin;

int open(const peerbuf_host *host, const peerbuf_param *params, size_t n, void **ret_device)
{
	return guarded(host, [&] {
		const int rc = Options(host, params, n).finish(); // there are none
		if (rc == 0)
			*ret_device = new Device(host);
		return rc;
	});
}

int offer(Device &dev, uint64_t buffer, peerbuf_exporter_offer *ret)
{
	if (buffer && !dev.buffers.find(buffer))
		return dev.host.fail(ENOENT, text("there is no buffer ", buffer));
	ret->stability = PEERBUF_STABILITY_STATIC;
	ret->pin = PEERBUF_PIN_NOT_NEEDED;
	ret->revoke = PEERBUF_REVOKE_NEVER;
	ret->management = PEERBUF_MANAGED_BY_USER;
	ret->placements = PEERBUF_PLACEMENT_HOST;
	ret->variants = PEERBUF_VARIANT_HOST;
	ret->handles = PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_SEGMENTS;
	ret->access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
		      PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC |
		      PEERBUF_ACCESS_RELAXED_ORDERING;
	ret->granularity = page;
	copyName(ret->device, "heap");
	return 0;
}

int handOut(Device &dev, const std::shared_ptr<Block> &block, peerbuf_buffer_desc *ret)
{
	ret->handle = dev.buffers.add(block);
	ret->allocation_id = block->id;
	ret->generation = 1;
	ret->address = block->address();
	ret->size = block->size;
	return 0;
}

int alloc(Device &dev, uint64_t size, peerbuf_buffer_desc *ret)
{
	const std::shared_ptr<Block> block = dev.runtime.allocate(size);
	return block ? handOut(dev, block, ret) : dev.host.fail(errno, text("no ", size, " bytes"));
}

int attach(Device &dev, uint64_t buffer, const peerbuf_attach_request *, peerbuf_attach_reply *ret)
{
	const std::shared_ptr<Block> block = dev.buffers.find(buffer);
	if (!block)
		return dev.host.fail(ENOENT, text("there is no buffer ", buffer));
	ret->peer2peer = 0; // host memory, whatever was allowed
	ret->placement = PEERBUF_PLACEMENT_HOST;
	ret->token = dev.attachments.add(block); // the block stays until detach
	return 0;
}

int map(Device &dev, uint64_t attachment, uint64_t offset, uint64_t length, peerbuf_mapping *ret)
{
	const std::shared_ptr<Block> block = dev.attachments.find(attachment);
	if (!block)
		return dev.host.fail(ENOENT, text("there is no attachment ", attachment));
	ret->placement = PEERBUF_PLACEMENT_HOST;
	ret->peer2peer = 0;
	ret->offset = offset & ~(page - 1);
	ret->length = ((offset + length + page - 1) & ~(page - 1)) - ret->offset;
	ret->generation = 1;
	ret->cpu_addr = static_cast<char *>(block->base) + ret->offset;
	// bus addresses are not known up here, so they are said to be those of this process
	auto segment = std::make_shared<peerbuf_segment>();
	*segment = {block->address() + ret->offset, ret->length, ret->cpu_addr};
	ret->segments = segment.get();
	ret->n_segments = 1;
	ret->token = dev.mappings.add(segment);
	return 0;
}

void unmap(void *device, uint64_t, const peerbuf_mapping *mapping) noexcept
{
	drop<&Device::mappings>(device, mapping->token);
}

extern "C" PEERBUF_PLUGIN_EXPORT const peerbuf_exporter_plugin peerbuf_exporter_v1 = {
	.struct_size = sizeof(peerbuf_exporter_plugin),
	.abi_version = PEERBUF_ABI_VERSION,
	.capabilities = PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET |
			PEERBUF_EXPORTER_CAP_MAP | PEERBUF_EXPORTER_CAP_OPS,
	.name = "heap",
	.description = "example: memory of this process, which never moves",
	.open = open,
	.close = [](void *device) { delete static_cast<Device *>(device); },
	.offer = slot<offer>,
	.alloc = slot<alloc>,
	.free = drop<&Device::buffers>,
	.get = slot<get>,
	.put = dropped<&Device::buffers>,
	.attach = slot<attach>,
	.detach = dropped<&Device::attachments>,
	.map = slot<map>,
	.unmap = unmap,
	.open_ops = slot<openOps>,
};

} // namespace heap
