// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_COPY_H
#define PEERBUF_EXPORTER_EMULATED_COPY_H

#include <cstddef>

namespace peerbuf::emulated
{

/** Ways to copy; Best is the last that this CPU has. */
enum class CopyEngine { Best, Plain, Sse2, Avx2 };

/** Whether this CPU has what the engine needs. */
bool copyEngineWorks(CopyEngine engine);

/**
 * The device's copy engine. Memory that moves is cold and large: stores that go around the cache
 * save the read of every line that is about to be overwritten. Small copies, those to an odd
 * address, and such that memcpy streams by itself go through memcpy.
 */
void copyMemory(void *to, const void *from, size_t length, CopyEngine engine = CopyEngine::Best);

} // namespace peerbuf::emulated

#endif
