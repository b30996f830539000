// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_DMABUF_SOURCE_H
#define PEERBUF_EXPORTER_DMABUF_SOURCE_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>

#include "system.h"

namespace peerbuf::dmabuf
{

constexpr uint64_t pageSize = 4096;

/** A dma-buf that a source made, and what else it keeps of it. */
struct Backing {
	/** A part of the dma-buf, in its order, and where the memfd has it. */
	struct Piece {
		uint64_t memfdOffset = 0;
		uint64_t length = 0;
	};

	std::shared_ptr<void> keep; /* what has to last until the rest is closed */
	Fd dmabuf;
	Fd memfd; /* the same pages by another way; none where there is none */
	std::vector<Piece> pieces;
	bool view = true; /* the dma-buf can be mapped by the CPU */
	/** Another descriptor, borrowed, that has the same bytes from an offset on; -1: none. */
	int door = -1;
	uint64_t doorOffset = 0;
};

/** Where the kernel's dma-bufs come from. Thread-safe once started. */
class Source
{
public:
	Source() = default;
	virtual ~Source() = default;
	Source(const Source &) = delete;
	Source &operator=(const Source &) = delete;

	/** Take the options that are its own. */
	virtual void options(plugin::Options &options) = 0;
	/** Open the device. @return 0, or a negative errno after telling the host why. */
	virtual int start(const plugin::Host &host, Calls &calls) = 0;
	/** @param size whole pages. @return 0, or a negative errno after telling the host why. */
	virtual int make(const plugin::Host &host, Calls &calls, uint64_t size,
			 Backing *retBacking) = 0;
	/** The ledger's name for the device. */
	virtual std::string device() const = 0;
	/** What is not as of host memory that never moves and is never taken back. */
	virtual void describe(peerbuf_exporter_offer *) const {}
	/** Whether dma-bufs that the kernel says are of @p exporter are this source's. */
	virtual bool owns(const std::string &exporter) const = 0;
};

std::unique_ptr<Source> makeUdmabuf();
std::unique_ptr<Source> makeHeap();
std::unique_ptr<Source> makeVfio();

/** A device node that will not open: in words, with what is usually the cause. */
int failNode(const plugin::Host &host, const std::string &node, const char *cause, int rc);

} // namespace peerbuf::dmabuf

#endif
