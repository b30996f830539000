// SPDX-License-Identifier: BSD-3-Clause
#ifndef HEAP_EXPORTER_H
#define HEAP_EXPORTER_H

#include <atomic>

#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>

#include "runtime.h"

namespace heap
{

/** What the exporter has handed out: by number, so that a number too many is found. */
struct Device {
	explicit Device(const peerbuf_host *lent) : host(lent) {}

	peerbuf::plugin::Host host;
	Runtime runtime;
	peerbuf::plugin::Tokens<Block> buffers;
	peerbuf::plugin::Tokens<Block> attachments;
	peerbuf::plugin::Tokens<peerbuf_segment> mappings;
	std::atomic<uint64_t> violations = 0;
};

/** A slot made of a function that may throw, which no slot may. */
template <auto function, typename... Args> int slot(void *device, Args... args) noexcept
{
	auto &self = *static_cast<Device *>(device);
	return peerbuf::plugin::guarded(self.host.raw(), [&] { return function(self, args...); });
}

/** A number comes back, for the last time; one that is not out is a breach of the contract. */
template <auto table> int drop(void *device, uint64_t token) noexcept
{
	auto &self = *static_cast<Device *>(device);
	if ((self.*table).take(token))
		return 0;
	self.violations++;
	return -ENOENT;
}
template <auto table> void dropped(void *device, uint64_t token) noexcept
{
	drop<table>(device, token);
}

int handOut(Device &device, const std::shared_ptr<Block> &block, peerbuf_buffer_desc *ret);

/* optional.cpp */
int get(Device &device, const peerbuf_get_request *request, peerbuf_buffer_desc *ret);
int openOps(Device &device, const char *name, const void **ret_ops);

} // namespace heap

#endif
