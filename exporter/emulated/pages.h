// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_PAGES_H
#define PEERBUF_EXPORTER_EMULATED_PAGES_H

#include <cstdint>
#include <string>

namespace peerbuf::emulated
{

/** What a page table's upper entry covers, and so where mappings of it have to begin. */
inline constexpr uint64_t hugePage = 2ull << 20;

/**
 * Take @p size bytes of address space that begin on a huge page's boundary; nothing is behind them.
 * @return NULL with errno.
 */
uint8_t *reserveAddresses(uint64_t size);
/** Map all @p size bytes of @p fd, shared, on such a boundary. @return NULL with errno. */
uint8_t *mapWhole(int fd, uint64_t size);

/** Bytes of the mapping at @p address that huge pages back, as the kernel says (smaps). */
uint64_t hugeBytesOf(const void *address);

/**
 * Fetch the pages of [memory, memory + length), a part of a shared mapping, and on huge pages where
 * @p huge says so and one fits. That they can be had is no promise: see hugeBytesOf.
 * @return 0 or negative errno: the host has no memory.
 */
int fetchPages(uint8_t *memory, uint64_t length, bool huge);

} // namespace peerbuf::emulated

#endif
