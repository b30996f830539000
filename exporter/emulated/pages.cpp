// SPDX-License-Identifier: BSD-3-Clause
#include "pages.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>

/* linux/mman.h has them from 5.14 and 6.1 on; older kernels say EINVAL. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace peerbuf::emulated
{

namespace
{

uint64_t alignUp(uint64_t value)
{
	return (value + hugePage - 1) / hugePage * hugePage;
}

} // namespace

uint8_t *reserveAddresses(uint64_t size)
{
	void *all = ::mmap(nullptr, size + hugePage, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return nullptr;
	auto *begin = static_cast<uint8_t *>(all);
	const auto address = reinterpret_cast<uintptr_t>(all);
	const uint64_t before = alignUp(address) - address;
	if (before)
		::munmap(begin, before);
	const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
	const uint64_t used = before + (size + page - 1) / page * page;
	if (used < size + hugePage)
		::munmap(begin + used, size + hugePage - used);
	return begin + before;
}

uint8_t *mapWhole(int fd, uint64_t size)
{
	uint8_t *base = reserveAddresses(size);
	if (!base)
		return nullptr;
	if (::mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
		   0) == MAP_FAILED) {
		const int err = errno;
		::munmap(base, size);
		errno = err;
		return nullptr;
	}
	return base;
}

uint64_t hugeBytesOf(const void *address)
{
	const auto wanted = reinterpret_cast<uintptr_t>(address);
	std::ifstream smaps("/proc/self/smaps");
	std::string line;
	bool inside = false;
	uint64_t bytes = 0;
	while (std::getline(smaps, line)) {
		uintptr_t from = 0;
		uintptr_t to = 0;
		uint64_t kib = 0;
		if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
			if (inside)
				break;
			inside = from <= wanted && wanted < to;
		} else if (inside && (sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kib) == 1 ||
				      sscanf(line.c_str(), "FilePmdMapped: %" SCNu64, &kib) == 1)) {
			bytes += kib << 10;
		}
	}
	return bytes;
}

int fetchPages(uint8_t *memory, uint64_t length, bool huge)
{
	const auto begin = reinterpret_cast<uintptr_t>(memory);
	const uint64_t before = std::min(alignUp(begin) - begin, length);
	const uint64_t whole = (length - before) / hugePage * hugePage;
	const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
	const auto populate = [](uint8_t *at, uint64_t n) {
		/* Before 5.14 they come at the first touch. */
		return !n || ::madvise(at, n, MADV_POPULATE_WRITE) == 0 || errno == EINVAL ? 0
											   : -errno;
	};
	if (huge && whole) {
		/* One page makes the rest of it come as one, also where sysfs says "never". */
		for (uint64_t at = before; at < before + whole; at += hugePage)
			if (const int rc = populate(memory + at, page))
				return rc;
		(void)::madvise(memory + before, whole, MADV_COLLAPSE);
	}
	return populate(memory, length);
}

} // namespace peerbuf::emulated
