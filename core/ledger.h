// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_LEDGER_H
#define PEERBUF_CORE_LEDGER_H

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <peerbuf/peerbuf.h>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/offer.h"

namespace peerbuf
{

class Ledger;

/** Bytes that somebody pays for until the object goes. Move-only; thread-bound. */
class Charge
{
public:
	Charge() = default;
	Charge(Charge &&other) noexcept
	    : ledger_(std::exchange(other.ledger_, nullptr)),
	      id_(std::exchange(other.id_, 0))
	{
	}
	Charge &operator=(Charge &&other) noexcept;
	Charge(const Charge &) = delete;
	Charge &operator=(const Charge &) = delete;
	~Charge() { release(); }

	/** Give it back now. Idempotent. */
	void release();
	/** What it costs its tenant at this moment. */
	uint64_t bytes() const;

private:
	friend class Ledger;
	Charge(Ledger *ledger, uint64_t id) : ledger_(ledger), id_(id) {}

	Ledger *ledger_ = nullptr;
	uint64_t id_ = 0;
};

/**
 * Who holds how much: bytes by tenant, device and column, for this process. A charge is made before
 * the call it pays for and fails whole. Thread-safe; its lock is a leaf.
 *
 * Pins and host memory are charged once per attachment. A byte of the PCIe window is in it once,
 * however many attachments use it: the first to need it pays, and when that one goes the next.
 */
class Ledger
{
public:
	struct Account {
		std::string tenant;
		std::string device;
	};
	struct Usage {
		uint64_t used = 0;
		uint64_t limit = PEERBUF_UNLIMITED;
		uint32_t holders = 0;
		std::string holdersText = {}; /* the largest few, in words */
	};

	Ledger() = default;
	Ledger(const Ledger &) = delete;
	Ledger &operator=(const Ledger &) = delete;

	/** For tenants without a limit of their own on the device. */
	void setDefaultLimit(const std::string &device, peerbuf_ledger_column column,
			     uint64_t bytes);
	void setLimit(const Account &account, peerbuf_ledger_column column, uint64_t bytes);

	/**
	 * Pins or host memory. @param limited false: counted only (dedicated machines).
	 * @return PEERBUF_ERR_QUOTA with need, used, limit and holders.
	 */
	Result<Charge> charge(const Account &account, peerbuf_ledger_column column, uint64_t bytes,
			      const std::string &holder, bool limited);
	/** Bytes of the window that hold @p range of an allocation. */
	Result<Charge> chargeWindow(const Account &account, uint64_t allocation, const Range &range,
				    const std::string &holder);
	/** Bytes of @p range that nobody has in the window yet. */
	uint64_t windowNeed(const std::string &device, uint64_t allocation,
			    const Range &range) const;

	/** One tenant and device; an empty string stands for all (then without a limit). */
	Usage usage(const std::string &tenant, const std::string &device,
		    peerbuf_ledger_column column) const;

private:
	friend class Charge;
	using Key = std::tuple<std::string, std::string, peerbuf_ledger_column>;
	using Allocation = std::pair<std::string, uint64_t>;

	struct Holder {
		Account account;
		peerbuf_ledger_column column = PEERBUF_LEDGER_PINS;
		std::string name;
		uint64_t bytes = 0;
		/* window only */
		uint64_t allocation = 0;
		Range range;
	};
	/** A part of an allocation that is in the window, and who uses it; the first one pays. */
	struct Part {
		uint64_t end = 0;
		std::vector<uint64_t> holders;
	};
	using Parts = std::map<uint64_t, Part>;

	void release(uint64_t id);
	uint64_t bytesOf(uint64_t id) const;
	uint64_t limitOf(const Account &account, peerbuf_ledger_column column) const
		REQUIRES(mutex_);
	std::string holdersOf(const std::string &tenant, const std::string &device,
			      peerbuf_ledger_column column) const REQUIRES(mutex_);
	static void splitAt(Parts &parts, uint64_t at);
	void pay(uint64_t id, uint64_t bytes) REQUIRES(mutex_);
	void unpay(uint64_t id, uint64_t bytes) REQUIRES(mutex_);

	mutable Mutex mutex_;
	uint64_t lastId_ GUARDED_BY(mutex_) = 0;
	std::map<uint64_t, Holder> holders_ GUARDED_BY(mutex_);
	std::map<Key, uint64_t> used_ GUARDED_BY(mutex_);
	std::map<Key, uint64_t> limits_ GUARDED_BY(mutex_);
	std::map<std::pair<std::string, peerbuf_ledger_column>, uint64_t>
		defaults_ GUARDED_BY(mutex_);
	std::map<Allocation, Parts> windows_ GUARDED_BY(mutex_);
};

} // namespace peerbuf

#endif
