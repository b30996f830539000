// SPDX-License-Identifier: BSD-3-Clause
// What an exporter may leave out: finding memory by its address, and the suite's operations.
#include <cstring>

#include <peerbuf/testing.h>

#include "exporter.h"

namespace heap
{

using namespace peerbuf::plugin;

int get(Device &device, const peerbuf_get_request *request, peerbuf_buffer_desc *ret)
{
	const auto block = request->fd < 0 ? device.runtime.find(request->address) : nullptr;
	if (!block)
		return -ENOENT; // no failure: the core asks the next exporter
	const uint64_t left = block->size - (request->address - block->address());
	if (request->length > left)
		return device.host.fail(EINVAL,
					text(request->length, " bytes at ", hex(request->address),
					     " pass the end of block ", block->id, ", which has ",
					     left, " there"));
	return handOut(device, block, ret);
}

/* From the device's side: through the file, not through the mapping that importers use. */

template <auto transfer, typename Data>
static int access(Device &device, uint64_t buffer, uint64_t offset, Data *data, uint64_t length)
{
	const std::shared_ptr<Block> block = device.buffers.find(buffer);
	if (!block || offset > block->size || length > block->size - offset)
		return device.host.fail(EINVAL, text(length, " bytes at ", offset, " of buffer ",
						     buffer, ": not there"));
	const ssize_t done = transfer(block->fd, data, length, static_cast<off_t>(offset));
	return done == static_cast<ssize_t>(length) ? 0 : -EIO;
}

static int stats(Device &device, peerbuf_exporter_stats *ret)
{
	const uint32_t size = ret->struct_size;
	*ret = {};
	ret->struct_size = size;
	ret->buffers = device.buffers.size();
	ret->attachments = device.attachments.size();
	ret->mappings = static_cast<int64_t>(device.mappings.size());
	ret->memory_used = device.runtime.used();
	ret->violations = device.violations;
	return 0;
}

static const peerbuf_exporter_test_ops testOps = {
	.struct_size = sizeof(peerbuf_exporter_test_ops),
	.device_read = slot<access<pread, void>>,
	.device_write = slot<access<pwrite, const void>>,
	.stats = slot<stats>,
};

int openOps(Device &device, const char *name, const void **ret_ops)
{
	if (strcmp(name, PEERBUF_EXPORTER_TEST_OPS) != 0)
		return device.host.fail(ENOENT, text("no operations called ", name));
	*ret_ops = &testOps;
	return 0;
}

} // namespace heap
