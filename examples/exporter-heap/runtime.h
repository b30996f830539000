// SPDX-License-Identifier: BSD-3-Clause
/*
 * What stands for a device's runtime, which an exporter finds ready made: it allocates memory, and
 * it finds an allocation by an address in it. It knows nothing of peerbuf.
 */
#ifndef HEAP_RUNTIME_H
#define HEAP_RUNTIME_H

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

namespace heap
{

constexpr uint64_t page = 4096;

/** An allocation: zeroed pages of a memfd, which go when the last reference does. */
struct Block {
	explicit Block(uint64_t bytes) : size(bytes), fd(memfd_create("heap", MFD_CLOEXEC))
	{
		if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) < 0)
			return;
		// shared, so that a fork leaves the pages to the devices that use them
		base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	~Block()
	{
		if (base != MAP_FAILED)
			munmap(base, size);
		if (fd >= 0)
			::close(fd);
	}
	Block(const Block &) = delete;
	Block &operator=(const Block &) = delete;

	uint64_t address() const { return reinterpret_cast<uintptr_t>(base); }

	const uint64_t size;
	const int fd;
	void *base = MAP_FAILED;
	uint64_t id = 0; /* never used again for another block */
};

/** Thread-safe. */
class Runtime
{
public:
	/** @return null with errno. */
	std::shared_ptr<Block> allocate(uint64_t bytes)
	{
		const uint64_t size = (bytes + page - 1) & ~(page - 1);
		if (size < bytes || size > INT64_MAX) {
			errno = ENOMEM;
			return nullptr;
		}
		auto block = std::make_shared<Block>(size);
		if (block->base == MAP_FAILED)
			return nullptr;
		const std::lock_guard<std::mutex> lock(mutex_);
		std::erase_if(blocks_, [](const auto &entry) { return entry.second.expired(); });
		block->id = ++last_;
		blocks_[block->address()] = block;
		return block;
	}

	/** The block that has @p address in it, or null. */
	std::shared_ptr<Block> find(uint64_t address)
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		const auto next = blocks_.upper_bound(address);
		const auto block =
			next == blocks_.begin() ? nullptr : std::prev(next)->second.lock();
		return block && address - block->address() < block->size ? block : nullptr;
	}

	/** Bytes allocated now. */
	uint64_t used()
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		uint64_t sum = 0;
		for (const auto &[address, entry] : blocks_) {
			const std::shared_ptr<Block> block = entry.lock();
			sum += block ? block->size : 0;
		}
		return sum;
	}

private:
	std::mutex mutex_;
	uint64_t last_ = 0;
	std::map<uint64_t, std::weak_ptr<Block>> blocks_; /* by address; some have gone */
};

} // namespace heap

#endif
