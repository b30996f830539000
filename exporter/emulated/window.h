// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_WINDOW_H
#define PEERBUF_EXPORTER_EMULATED_WINDOW_H

#include <cstdint>
#include <vector>

#include "frames.h"

namespace peerbuf::emulated
{

/**
 * A buffer as one contiguous range of this process, over frames that lie scattered in the device's
 * memory. The range stays for the window's life; what is behind it changes. Thread-bound.
 */
class Window
{
public:
	Window() = default;
	Window(const Window &) = delete;
	Window &operator=(const Window &) = delete;
	~Window();

	/** Take @p size bytes of address space, behind which there is nothing yet. */
	int reserve(uint64_t size);
	/** Put @p runs of @p memory behind it. On an error there is nothing behind it. */
	int place(int memory, const std::vector<Run> &runs);
	/** Put one run behind the part that begins at @p offset; the rest stays. */
	int placePart(int memory, uint64_t offset, const Run &run);
	/**
	 * Take a part out of the page tables: page by page, which is most of what it costs to put
	 * another run there. The same memory stays behind it, and whoever touches it gets it back.
	 */
	void forget(uint64_t offset, uint64_t length);
	/**
	 * Put private zeroes behind it: of a buffer taken back, the application can still touch
	 * its pointers, and hits nobody.
	 */
	int blank();

	uint64_t address() const { return reinterpret_cast<uintptr_t>(base_); }
	uint64_t size() const { return size_; }

private:
	uint8_t *base_ = nullptr;
	uint64_t size_ = 0;
};

} // namespace peerbuf::emulated

#endif
