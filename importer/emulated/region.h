// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file region.h
 * A memory region of the emulated NIC and what remote peers ask of it.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_REGION_H
#define PEERBUF_IMPORTER_EMULATED_REGION_H

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/testing.h>

#include "interval_set.h"

namespace peerbuf::emulated
{

/** One page of the translation, cached when it was fetched. */
struct Translation {
	uint64_t address = 0; // as the device drives it
	uintptr_t cpu = 0;    // of the page's first byte, which may lie before the region
	uint64_t serial = 0;  // grows with every fetch; what a ticket and the self-check go by
	bool valid = false;
	bool peer2peer = false;
};

/** Pages [begin, end) of a region. */
struct PageRange {
	uint64_t begin = 0;
	uint64_t end = 0;

	bool empty() const { return begin >= end; }
	bool overlaps(const PageRange &other) const
	{
		return begin < other.end && other.begin < end;
	}
};

/** A call of host->map that is under way. */
struct Fetch {
	uint64_t serial;
	PageRange pages;
	bool cancelled; // an invalidate came meanwhile: what map gives must not be used
	bool resumed;	// a resume came meanwhile: a refusal says nothing about now
};

/** All fields are guarded by the NIC's mutex; those above the line never change. */
struct Region {
	uint64_t token = 0;
	uint64_t key = 0;
	uint64_t slot = 0;
	uint64_t attachment = 0;
	uint64_t offset = 0; // in the buffer
	uint64_t length = 0;
	uint64_t iova = 0;
	uint64_t granularity = 0;
	uint64_t pageSize = 0;
	uint32_t access = 0;
	bool movable = false;
	std::string name;
	/* ---- */
	std::vector<Translation> pages;
	std::vector<uint64_t> letGo; // per page: no translation up to this serial may be used
	IntervalSet stopped;
	std::vector<Fetch *> fetches;
	bool revoked = false;
	bool gone = false;
	bool hasKey = false;

	uint64_t firstPage() const { return iova / pageSize; }
	uint64_t pageCount() const { return (iova + length - 1) / pageSize - firstPage() + 1; }
	uint64_t pageOf(uint64_t address) const { return address / pageSize - firstPage(); }
	/** First and one-past-last address of the region's bytes in a page. */
	uint64_t pageBegin(uint64_t page) const
	{
		return std::max(iova, (firstPage() + page) * pageSize);
	}
	uint64_t pageEnd(uint64_t page) const
	{
		const uint64_t start = (firstPage() + page) * pageSize;
		const uint64_t end = iova + length;
		return end - start < pageSize ? end : start + pageSize;
	}
	uint64_t bufferOffset(uint64_t address) const { return offset + (address - iova); }

	/** Pages that a range of the buffer touches; empty if none. */
	PageRange pagesOf(uint64_t from, uint64_t bytes) const
	{
		const uint64_t until = bytes > UINT64_MAX - from ? UINT64_MAX : from + bytes;
		const uint64_t low = std::max(from, offset);
		const uint64_t high = std::min(until, offset + length);
		if (low >= high)
			return {};
		return {pageOf(iova + (low - offset)), pageOf(iova + (high - 1 - offset)) + 1};
	}
	PageRange allPages() const { return {0, pages.size()}; }
};

/** A work request. Guarded by the NIC's mutex. */
struct Request {
	uint64_t id = 0;
	peerbuf_transfer transfer = {};
	uint64_t fetched = 0;  // bytes whose translation was fetched
	uint64_t landed = 0;   // bytes that reached their place
	uint64_t inFlight = 0; // packets
	int status = 0;
	bool busy = false;   // a thread is asking for its translation
	bool direct = false; // somebody waits in transfer; no completion is queued
	bool done = false;
	uint64_t bytes = 0; // as reported
};

/** Fetched and not landed: the bytes are on their way to, or from, memory. */
struct Packet {
	std::shared_ptr<Request> request;
	std::shared_ptr<Region> region;
	uint64_t serial = 0;
	uint64_t translation = 0; // its serial
	uint64_t page = 0;
	uint64_t address = 0; // as the device drives it
	uintptr_t cpu = 0;
	uint64_t length = 0;
	uint64_t at = 0; // in the request
	bool peer2peer = false;
	std::vector<unsigned char> bytes; // of a write: the peer may reuse its memory
};

} // namespace peerbuf::emulated

#endif
