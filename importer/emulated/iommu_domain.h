// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file iommu_domain.h
 * The address space that a translating IOMMU gives a device of its own.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_IOMMU_DOMAIN_H
#define PEERBUF_IMPORTER_EMULATED_IOMMU_DOMAIN_H

#include <cstdint>
#include <map>
#include <optional>

namespace peerbuf::emulated
{

/** Pages mapped at addresses that mean nothing outside. Thread-bound. */
class IommuDomain
{
public:
	explicit IommuDomain(uint64_t lastAddress) : last_(lastAddress) {}

	/** Room for @p length bytes at a multiple of @p align; nothing is mapped yet. */
	std::optional<uint64_t> findSpace(uint64_t length, uint64_t align)
	{
		for (const uint64_t start : {next_, firstAddress}) {
			if (const std::optional<uint64_t> found = findFrom(start, length, align)) {
				next_ = *found + length;
				return found;
			}
		}
		return std::nullopt;
	}

	/** Map a page; it has one holder. */
	void map(uint64_t address, uint64_t length, uintptr_t cpu)
	{
		pages_[address] = {length, cpu, 1};
	}
	void hold(uint64_t address)
	{
		auto it = find(address);
		if (it != pages_.end())
			it->second.holders++;
	}
	/** The last holder unmaps. */
	void release(uint64_t address)
	{
		auto it = find(address);
		if (it != pages_.end() && --it->second.holders == 0)
			pages_.erase(it);
	}
	/** @return 0: not in the domain, the access is dropped. */
	uintptr_t translate(uint64_t address, uint64_t length)
	{
		auto it = find(address);
		if (it == pages_.end() || length > it->first + it->second.length - address)
			return 0;
		return it->second.cpu + (address - it->first);
	}
	bool empty() const { return pages_.empty(); }

private:
	// nothing at 0: a register that was never written must not hit memory
	static constexpr uint64_t firstAddress = 0x100000;

	struct Page {
		uint64_t length;
		uintptr_t cpu;
		uint64_t holders;
	};
	using Pages = std::map<uint64_t, Page>;

	Pages::iterator find(uint64_t address)
	{
		auto it = pages_.upper_bound(address);
		if (it == pages_.begin())
			return pages_.end();
		--it;
		return address - it->first < it->second.length ? it : pages_.end();
	}

	std::optional<uint64_t> findFrom(uint64_t start, uint64_t length, uint64_t align) const
	{
		uint64_t at = start;
		for (;;) {
			if (at > UINT64_MAX - (align - 1))
				return std::nullopt;
			at = (at + align - 1) & ~(align - 1);
			if (at > last_ || length - 1 > last_ - at)
				return std::nullopt;
			auto it = pages_.upper_bound(at);
			if (it != pages_.begin()) {
				auto before = it;
				--before;
				const uint64_t end = before->first + before->second.length;
				if (end > at) {
					at = end;
					continue;
				}
			}
			if (it == pages_.end() || it->first - at >= length)
				return at;
			at = it->first + it->second.length;
		}
	}

	const uint64_t last_;
	uint64_t next_ = firstAddress;
	Pages pages_;
};

} // namespace peerbuf::emulated

#endif
