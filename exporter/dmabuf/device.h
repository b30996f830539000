// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_DMABUF_DEVICE_H
#define PEERBUF_EXPORTER_DMABUF_DEVICE_H

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "source.h"
#include "system.h"

namespace peerbuf::dmabuf
{

/**
 * Dma-bufs of one source. Most are host memory that never moves and is never taken back, so peerbuf
 * knows all about them although the kernel made them; a source says what of it is not. Thread-safe.
 */
class Device
{
public:
	/** @return 0, or a negative errno after telling the host why. */
	static int create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
			  std::unique_ptr<Source> source, System &system,
			  std::unique_ptr<Device> *retDevice);
	Device(const Device &) = delete;
	Device &operator=(const Device &) = delete;

	const peerbuf_host *host() const { return host_.raw(); }
	const plugin::Host &say() const { return host_; }
	Calls &calls() { return calls_; }

	int offer(uint64_t buffer, peerbuf_exporter_offer *retOffer);
	int alloc(uint64_t size, peerbuf_buffer_desc *retDesc);
	int free(uint64_t buffer);
	int get(const peerbuf_get_request &request, peerbuf_buffer_desc *retDesc);
	int attach(uint64_t buffer, const peerbuf_attach_request &request,
		   peerbuf_attach_reply *retReply);
	int detach(uint64_t attachment);
	int map(uint64_t attachment, uint64_t offset, uint64_t length, peerbuf_mapping *retMapping);
	int unmap(uint64_t attachment, const peerbuf_mapping &mapping);
	int exportFd(uint64_t attachment, uint64_t offset, uint64_t length,
		     peerbuf_fd_export *retExport);
	int releaseFd(uint64_t attachment, const peerbuf_fd_export &exported);

	/** By the memfd where there is one, else by a mapping made for just that. */
	int transfer(uint64_t buffer, uint64_t offset, void *data, uint64_t length, bool write);
	void stats(peerbuf_exporter_stats *retStats);

private:
	/** A dma-buf and its view by the CPU; it ends with the last who uses it. */
	struct Block {
		explicit Block(Calls &owner) : calls(owner) {}
		~Block()
		{
			if (base)
				calls.unmap(base, size);
		}
		Block(const Block &) = delete;
		Block &operator=(const Block &) = delete;
		uint64_t address() const { return reinterpret_cast<uintptr_t>(base); }

		Calls &calls;
		Backing backing;
		uint64_t size = 0;
		uint64_t inode = 0;
		uint64_t id = 0; /* never used again; the handle too */
		void *base = nullptr;
		unsigned references = 0; /* of alloc and get */
	};
	using BlockPtr = std::shared_ptr<Block>;
	struct Export {
		BlockPtr block;
		uint64_t attachment = 0;
		Fd fd;
	};

	Device(const peerbuf_host *host, std::unique_ptr<Source> source, System &system)
	    : host_(host),
	      calls_(system),
	      source_(std::move(source))
	{
	}
	int finish(Backing backing, uint64_t size, BlockPtr *retBlock);
	void handOut(const BlockPtr &block, peerbuf_buffer_desc *retDesc);
	BlockPtr find(uint64_t buffer);
	int put(uint64_t buffer);
	int noSuch(const char *what, uint64_t number);
	int checkRange(const Block &block, uint64_t offset, uint64_t length);
	int sync(const Block &block, uint64_t flags);
	int throughMapping(const Block &block, uint64_t offset, void *data, uint64_t length,
			   bool write);

	const plugin::Host host_;
	Calls calls_;
	const std::unique_ptr<Source> source_;

	std::mutex mutex_; /* blocks_, references, lastId_ */
	uint64_t lastId_ = 0;
	std::map<uint64_t, BlockPtr> blocks_; /* by handle */
	plugin::Tokens<Block> attachments_;
	plugin::Tokens<Block> mappings_;
	plugin::Tokens<Export> exports_;
	std::atomic<uint64_t> violations_ = 0;
};

} // namespace peerbuf::dmabuf

#endif
