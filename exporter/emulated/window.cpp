// SPDX-License-Identifier: BSD-3-Clause
#include "window.h"

#include <cerrno>
#include <sys/mman.h>

namespace peerbuf::emulated
{

Window::~Window()
{
	if (base_)
		::munmap(base_, size_);
}

int Window::reserve(uint64_t size)
{
	void *base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			    -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	base_ = static_cast<uint8_t *>(base);
	size_ = size;
	return 0;
}

int Window::place(int memory, const std::vector<Run> &runs)
{
	uint64_t at = 0;
	for (const Run &run : runs) {
		if (::mmap(base_ + at, run.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			   memory, static_cast<off_t>(run.offset)) == MAP_FAILED) {
			const int err = errno;
			(void)blank();
			return -err;
		}
		at += run.length;
	}
	return 0;
}

int Window::blank()
{
	if (::mmap(base_, size_, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return 0;
}

} // namespace peerbuf::emulated
