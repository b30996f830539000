// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_SHARED_EXPORT_H
#define PEERBUF_CORE_SHARED_EXPORT_H

#include <memory>
#include <optional>

#include "core/exporter.h"

namespace peerbuf
{

/** A dma-buf is of its buffer as the buffer was: not after a move, and not after a revoke. */
struct ExportKey {
	uint32_t variant = 0;
	uint64_t generation = 0;
	uint64_t revokes = 0;

	bool operator==(const ExportKey &other) const
	{
		return variant == other.variant && generation == other.generation &&
		       revokes == other.revokes;
	}
};

/**
 * A dma-buf of a buffer and the attachments that use it. The last of them releases it, and detaches
 * the one that it was exported for if that has gone before. Thread-safe except for adopt.
 */
class SharedExport
{
public:
	/** @param token the exporter's attachment, @param range of the buffer, inside it. */
	SharedExport(std::shared_ptr<Exporter> exporter, uint64_t token, const Range &range,
		     const peerbuf_fd_export &exported, const ExportKey &key)
	    : exporter_(std::move(exporter)),
	      token_(token),
	      range_(range),
	      exported_(exported),
	      key_(key)
	{
	}
	~SharedExport()
	{
		exporter_->releaseFd(token_, exported_);
		if (adopted_)
			exporter_->detach(token_);
	}
	SharedExport(const SharedExport &) = delete;
	SharedExport &operator=(const SharedExport &) = delete;

	/** The same dma-buf for another range of the buffer; nothing where it has not all of it. */
	std::optional<peerbuf_fd_export> of(const Range &range, const ExportKey &key) const
	{
		if (!(key == key_))
			return std::nullopt;
		const bool before = range.offset < range_.offset;
		const uint64_t step =
			before ? range_.offset - range.offset : range.offset - range_.offset;
		if (before ? step > exported_.offset : step > exported_.size - exported_.offset)
			return std::nullopt;
		peerbuf_fd_export same = exported_;
		same.offset = before ? exported_.offset - step : exported_.offset + step;
		if (range.length > same.size - same.offset)
			return std::nullopt;
		return same;
	}
	/** Its attachment goes while others use the export: detach it at the end. */
	void adopt() { adopted_ = true; }

private:
	const std::shared_ptr<Exporter> exporter_;
	const uint64_t token_;
	const Range range_;
	const peerbuf_fd_export exported_;
	const ExportKey key_;
	bool adopted_ = false;
};

} // namespace peerbuf

#endif
