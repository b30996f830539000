// SPDX-License-Identifier: BSD-3-Clause
#include "device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <linux/dma-buf.h>

namespace peerbuf::dmabuf
{

using plugin::hex;
using plugin::text;

int failNode(const plugin::Host &host, const std::string &node, const char *cause, int rc)
{
	if (rc == -EACCES || rc == -EPERM)
		return host.fail(-rc,
				 text(node, ": ", errnoText(rc), ": this user may not open it"),
				 PEERBUF_ERR_ACCESS);
	if (rc == -ENOENT || rc == -ENODEV || rc == -ENXIO)
		return host.fail(-rc,
				 text(node, ": ", errnoText(rc),
				      ": the kernel has no such device (", cause,
				      "), or it is not shown here"),
				 PEERBUF_ERR_NOT_FOUND);
	return host.fail(-rc, text(node, ": ", errnoText(rc)));
}

int Device::create(const peerbuf_host *host, const peerbuf_param *params, size_t nParams,
		   std::unique_ptr<Source> source, System &system,
		   std::unique_ptr<Device> *retDevice)
{
	plugin::Options options(host, params, nParams);
	source->options(options);
	if (const int rc = options.finish())
		return rc;
	std::unique_ptr<Device> device(new Device(host, std::move(source), system));
	if (const int rc = device->source_->start(device->host_, device->calls_))
		return rc;
	*retDevice = std::move(device);
	return 0;
}

int Device::noSuch(const char *what, uint64_t number)
{
	return host_.fail(ENOENT,
			  text("there is no ", what, " ", number, " of ", source_->device()));
}

Device::BlockPtr Device::find(uint64_t buffer)
{
	std::lock_guard<std::mutex> lock(mutex_);
	const auto it = blocks_.find(buffer);
	return it == blocks_.end() ? nullptr : it->second;
}

int Device::checkRange(const Block &block, uint64_t offset, uint64_t length)
{
	if (length && offset <= block.size && length <= block.size - offset)
		return 0;
	return host_.fail(EINVAL,
			  text("offset ", hex(offset), " length ", hex(length), " of buffer ",
			       block.id, " of ", source_->device(), ": size is ", hex(block.size)),
			  PEERBUF_ERR_BAD_GEOMETRY);
}

int Device::offer(uint64_t buffer, peerbuf_exporter_offer *retOffer)
{
	if (const int rc = calls_.due("offer"))
		return host_.fail(-rc,
				  text("offer of ", source_->device(), ": a test made it fail"));
	if (buffer && !find(buffer))
		return noSuch("buffer", buffer);
	retOffer->stability = PEERBUF_STABILITY_STATIC;
	retOffer->pin = PEERBUF_PIN_NOT_NEEDED;
	retOffer->revoke = PEERBUF_REVOKE_NEVER;
	retOffer->management = PEERBUF_MANAGED_BY_USER;
	retOffer->placements = PEERBUF_PLACEMENT_HOST;
	retOffer->variants = PEERBUF_VARIANT_HOST;
	retOffer->handles = PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD;
	retOffer->access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
			   PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC |
			   PEERBUF_ACCESS_RELAXED_ORDERING;
	retOffer->granularity = pageSize;
	source_->describe(retOffer);
	plugin::copyName(retOffer->device, source_->device());
	return 0;
}

/** A dma-buf becomes a block: with an identity and a view by the CPU. */
int Device::finish(Backing backing, uint64_t size, BlockPtr *retBlock)
{
	auto block = std::make_shared<Block>(calls_);
	const int fd = backing.dmabuf.get();
	block->backing = std::move(backing);
	block->size = size;
	if (const int rc = calls_.identity(fd, &block->inode))
		return host_.fail(-rc, text(source_->device(), ": fstat of dma-buf ", fd, ": ",
					    errnoText(rc)));
	const int rc = block->backing.view ? calls_.map(fd, size, &block->base) : 0;
	if (rc)
		return host_.fail(-rc, text(source_->device(), ": mmap of dma-buf ", fd, ", ", size,
					    " bytes: ", errnoText(rc)));
	*retBlock = std::move(block);
	return 0;
}

/** With mutex_ held. */
void Device::handOut(const BlockPtr &block, peerbuf_buffer_desc *retDesc)
{
	if (!block->id) {
		block->id = ++lastId_;
		blocks_[block->id] = block;
	}
	block->references++;
	retDesc->handle = block->id;
	retDesc->allocation_id = block->id;
	retDesc->generation = 1;
	retDesc->address = block->address();
	retDesc->size = block->size;
}

int Device::alloc(uint64_t size, peerbuf_buffer_desc *retDesc)
{
	if (const int rc = calls_.due("alloc"))
		return host_.fail(-rc,
				  text("alloc of ", source_->device(), ": a test made it fail"));
	const uint64_t rounded = (size + pageSize - 1) & ~(pageSize - 1);
	if (!size || rounded < size || rounded > INT64_MAX)
		return host_.fail(size ? ENOMEM : EINVAL,
				  text(source_->device(), ": alloc of ", size, " bytes"));
	Backing backing;
	if (const int rc = source_->make(host_, calls_, rounded, &backing))
		return rc;
	BlockPtr block;
	if (const int rc = finish(std::move(backing), rounded, &block))
		return rc;
	std::lock_guard<std::mutex> lock(mutex_);
	handOut(block, retDesc);
	return 0;
}

int Device::put(uint64_t buffer)
{
	BlockPtr last; /* ends without the lock */
	std::lock_guard<std::mutex> lock(mutex_);
	const auto it = blocks_.find(buffer);
	if (it == blocks_.end())
		return -ENOENT;
	if (--it->second->references)
		return 0;
	last = std::move(it->second);
	blocks_.erase(it);
	return 0;
}

int Device::free(uint64_t buffer)
{
	if (put(buffer) == 0)
		return 0;
	violations_++;
	return noSuch("buffer", buffer);
}

int Device::get(const peerbuf_get_request &request, peerbuf_buffer_desc *retDesc)
{
	if (const int rc = calls_.due("get"))
		return host_.fail(-rc, text("get of ", source_->device(), ": a test made it fail"));
	if (request.fd < 0) {
		std::lock_guard<std::mutex> lock(mutex_);
		for (const auto &[id, block] : blocks_) {
			const uint64_t in = request.address - block->address();
			if (!block->base || request.address < block->address() || in >= block->size)
				continue;
			if (request.length > block->size - in)
				return host_.fail(EINVAL,
						  text(request.length, " bytes at ",
						       hex(request.address),
						       " pass the end of buffer ", id, " of ",
						       source_->device()),
						  PEERBUF_ERR_BAD_GEOMETRY);
			handOut(block, retDesc);
			return 0;
		}
		return -ENOENT; /* no failure: the core asks the next exporter */
	}
	const std::string exporter = calls_.exporterOf(request.fd);
	if (exporter.empty())
		return host_.fail(EINVAL, text("descriptor ", request.fd, " is no dma-buf"));
	uint64_t inode = 0;
	if (const int rc = calls_.identity(request.fd, &inode))
		return host_.fail(-rc, text("fstat of dma-buf ", request.fd, ": ", errnoText(rc)));
	const auto known = [&] {
		for (const auto &entry : blocks_)
			if (entry.second->inode == inode)
				return entry.second;
		return BlockPtr();
	};
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (const BlockPtr block = known()) {
			handOut(block, retDesc);
			return 0;
		}
	}
	if (!source_->owns(exporter))
		return -ENOENT;
	/* somebody else's dma-buf of the same driver: all that is known of it is itself */
	uint64_t size = 0;
	if (const int rc = calls_.size(request.fd, &size))
		return host_.fail(-rc, text("size of dma-buf ", request.fd, ": ", errnoText(rc)));
	Backing backing;
	const int fd = calls_.dup(request.fd);
	if (fd < 0)
		return host_.fail(-fd, text("dup of dma-buf ", request.fd, ": ", errnoText(fd)));
	backing.dmabuf = Fd(calls_, fd);
	BlockPtr block;
	if (const int rc = finish(std::move(backing), size, &block))
		return rc;
	std::lock_guard<std::mutex> lock(mutex_);
	const BlockPtr before = known();
	handOut(before ? before : block, retDesc);
	return 0;
}

int Device::attach(uint64_t buffer, const peerbuf_attach_request &request,
		   peerbuf_attach_reply *retReply)
{
	if (const int rc = calls_.due("attach"))
		return host_.fail(-rc,
				  text("attach of ", source_->device(), ": a test made it fail"));
	const BlockPtr block = find(buffer);
	if (!block)
		return noSuch("buffer", buffer);
	if (const int rc = checkRange(*block, request.offset, request.length))
		return rc;
	peerbuf_exporter_offer offer = {};
	offer.placements = PEERBUF_PLACEMENT_HOST;
	source_->describe(&offer);
	if (offer.needs_peer2peer && !request.allow_peer2peer)
		return host_.fail(EOPNOTSUPP,
				  text("attach of ", request.importer ? request.importer : "",
				       " to ", source_->device(), ": it needs peer-to-peer"),
				  PEERBUF_ERR_NO_P2P_PATH);
	retReply->peer2peer = offer.needs_peer2peer; /* host memory: whatever was allowed */
	retReply->placement = offer.placements;
	retReply->token = attachments_.add(block); /* keeps it until detach */
	return 0;
}

int Device::detach(uint64_t attachment)
{
	if (attachments_.take(attachment))
		return 0;
	violations_++;
	return -ENOENT;
}

/** Caches that are not coherent with devices are the kernel's to look after. */
int Device::sync(const Block &block, uint64_t flags)
{
	constexpr int mostTries = 100; /* it may be interrupted (kernel-semantics rule 59) */
	int rc = 0;
	for (int i = 0; i < mostTries; i++) {
		dma_buf_sync request = {};
		request.flags = flags;
		rc = calls_.ioctl("sync", block.backing.dmabuf.get(), DMA_BUF_IOCTL_SYNC, &request);
		if (rc != -EINTR && rc != -EAGAIN)
			break;
	}
	return rc < 0 ? rc : 0;
}

int Device::map(uint64_t attachment, uint64_t offset, uint64_t length, peerbuf_mapping *retMapping)
{
	if (const int rc = calls_.due("map"))
		return host_.fail(-rc, text("map of ", source_->device(), ": a test made it fail"));
	const BlockPtr block = attachments_.find(attachment);
	if (!block)
		return noSuch("attachment", attachment);
	if (const int rc = checkRange(*block, offset, length))
		return rc;
	if (!block->base)
		return host_.fail(EOPNOTSUPP,
				  text("map of ", source_->device(), ": no way for the CPU"),
				  PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (const int rc = sync(*block, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW))
		return host_.fail(-rc, text("DMA_BUF_IOCTL_SYNC of buffer ", block->id, " of ",
					    source_->device(), ": ", errnoText(rc)));
	retMapping->placement = PEERBUF_PLACEMENT_HOST;
	retMapping->peer2peer = 0;
	retMapping->offset = offset & ~(pageSize - 1);
	retMapping->length =
		((offset + length + pageSize - 1) & ~(pageSize - 1)) - retMapping->offset;
	retMapping->generation = 1;
	retMapping->n_segments = 0;
	retMapping->segments = nullptr;
	retMapping->cpu_addr = static_cast<char *>(block->base) + retMapping->offset;
	retMapping->token = mappings_.add(block);
	return 0;
}

int Device::unmap(uint64_t, const peerbuf_mapping &mapping)
{
	const BlockPtr block = mappings_.take(mapping.token);
	if (!block) {
		violations_++;
		return -ENOENT;
	}
	const int rc = sync(*block, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
	if (rc)
		host_.warn(text("DMA_BUF_IOCTL_SYNC at the end of a mapping of buffer ", block->id,
				" of ", source_->device(), ": ", errnoText(rc)));
	return rc;
}

int Device::exportFd(uint64_t attachment, uint64_t offset, uint64_t length,
		     peerbuf_fd_export *retExport)
{
	if (const int rc = calls_.due("export_fd"))
		return host_.fail(
			-rc, text("export_fd of ", source_->device(), ": a test made it fail"));
	const BlockPtr block = attachments_.find(attachment);
	if (!block)
		return noSuch("attachment", attachment);
	if (const int rc = checkRange(*block, offset, length))
		return rc;
	const int fd = calls_.dup(block->backing.dmabuf.get());
	if (fd < 0)
		return host_.fail(-fd, text("dup of the dma-buf of buffer ", block->id, " of ",
					    source_->device(), ": ", errnoText(fd)));
	auto made = std::make_shared<Export>();
	made->block = block;
	made->attachment = attachment;
	made->fd = Fd(calls_, fd);
	retExport->fd = fd; /* the core's until release_fd, which closes it */
	retExport->offset = offset;
	retExport->size = block->size;
	retExport->token = exports_.add(std::move(made));
	return 0;
}

int Device::releaseFd(uint64_t attachment, const peerbuf_fd_export &exported)
{
	const std::shared_ptr<Export> made = exports_.take(exported.token);
	if (made && made->attachment == attachment)
		return 0;
	violations_++;
	return -ENOENT;
}

/** By a mapping of its own, of the dma-buf or of whatever else has its bytes. */
int Device::throughMapping(const Block &block, uint64_t offset, void *data, uint64_t length,
			   bool write)
{
	const Backing &b = block.backing;
	const bool byDoor = b.door >= 0;
	const int fd = byDoor ? b.door : b.dmabuf.get();
	void *base = nullptr;
	if (const int rc = calls_.map(fd, block.size, &base, byDoor ? b.doorOffset : 0))
		return host_.fail(-rc, text("mmap of buffer ", block.id, " of ", source_->device(),
					    ": ", errnoText(rc)));
	const uint64_t way = write ? DMA_BUF_SYNC_WRITE : DMA_BUF_SYNC_READ;
	int rc = byDoor ? 0 : sync(block, DMA_BUF_SYNC_START | way);
	if (rc == 0) {
		auto *at = static_cast<char *>(base) + offset;
		std::memcpy(write ? at : data, write ? data : at, length);
		rc = byDoor ? 0 : sync(block, DMA_BUF_SYNC_END | way);
	}
	calls_.unmap(base, block.size);
	return rc ? host_.fail(-rc, text("DMA_BUF_IOCTL_SYNC of buffer ", block.id, " of ",
					 source_->device(), ": ", errnoText(rc)))
		  : 0;
}

int Device::transfer(uint64_t buffer, uint64_t offset, void *data, uint64_t length, bool write)
{
	const BlockPtr block = find(buffer);
	if (!block)
		return noSuch("buffer", buffer);
	if (const int rc = checkRange(*block, offset, length))
		return rc;
	if (block->backing.memfd.none())
		return throughMapping(*block, offset, data, length, write);
	auto *at = static_cast<char *>(data);
	uint64_t begin = 0; /* of the piece, in the dma-buf */
	for (const Backing::Piece &piece : block->backing.pieces) {
		if (offset >= begin && offset < begin + piece.length && length) {
			const uint64_t in = offset - begin;
			const uint64_t n = std::min(length, piece.length - in);
			const int rc = calls_.transfer(block->backing.memfd.get(),
						       piece.memfdOffset + in, at, n, write);
			if (rc)
				return host_.fail(-rc,
						  text("memfd of buffer ", buffer, " of ",
						       source_->device(), ": ", errnoText(rc)));
			at += n;
			offset += n;
			length -= n;
		}
		begin += piece.length;
	}
	return 0;
}

void Device::stats(peerbuf_exporter_stats *retStats)
{
	*retStats = {};
	{
		std::lock_guard<std::mutex> lock(mutex_);
		retStats->buffers = blocks_.size();
		for (const auto &entry : blocks_)
			retStats->memory_used += entry.second->size;
	}
	retStats->attachments = attachments_.size();
	retStats->mappings = static_cast<int64_t>(mappings_.size());
	retStats->exports = static_cast<int64_t>(exports_.size());
	retStats->violations = violations_;
}

} // namespace peerbuf::dmabuf
