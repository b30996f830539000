// SPDX-License-Identifier: BSD-3-Clause
#include "window.h"

#include <cerrno>
#include <sys/mman.h>

#include "pages.h"

namespace peerbuf::emulated
{

Window::~Window()
{
	if (base_)
		::munmap(base_, size_);
}

int Window::reserve(uint64_t size)
{
	/* As the device's memory is aligned, so that pages that are huge there can be here. */
	base_ = reserveAddresses(size);
	if (!base_)
		return -errno;
	size_ = size;
	return 0;
}

int Window::place(int memory, const std::vector<Run> &runs)
{
	uint64_t at = 0;
	for (const Run &run : runs) {
		if (const int rc = placePart(memory, at, run)) {
			(void)blank();
			return rc;
		}
		at += run.length;
	}
	return 0;
}

int Window::placePart(int memory, uint64_t offset, const Run &run)
{
	if (::mmap(base_ + offset, run.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		   memory, static_cast<off_t>(run.offset)) == MAP_FAILED)
		return -errno;
	return 0;
}

void Window::forget(uint64_t offset, uint64_t length)
{
	/* It is shared memory, so nothing of it is lost; a refusal costs time and nothing else. */
	(void)::madvise(base_ + offset, length, MADV_DONTNEED);
}

int Window::blank()
{
	if (::mmap(base_, size_, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return 0;
}

} // namespace peerbuf::emulated
