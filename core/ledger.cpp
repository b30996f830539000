// SPDX-License-Identifier: BSD-3-Clause
#include "core/ledger.h"

#include <algorithm>
#include <cerrno>

#include "core/base/mutant.h"

namespace peerbuf
{

namespace
{

const char *columnName(peerbuf_ledger_column column)
{
	switch (column) {
	case PEERBUF_LEDGER_PINS:
		return "pinned device memory";
	case PEERBUF_LEDGER_WINDOW:
		return "window";
	default:
		return "locked host memory";
	}
}

bool matches(const std::string &wanted, const std::string &value)
{
	return wanted.empty() || wanted == value;
}

} // namespace

Charge &Charge::operator=(Charge &&other) noexcept
{
	if (this != &other) {
		release();
		ledger_ = std::exchange(other.ledger_, nullptr);
		id_ = std::exchange(other.id_, 0);
	}
	return *this;
}

void Charge::release()
{
	if (Ledger *ledger = std::exchange(ledger_, nullptr))
		ledger->release(std::exchange(id_, 0));
}

uint64_t Charge::bytes() const
{
	return ledger_ ? ledger_->bytesOf(id_) : 0;
}

void Ledger::setDefaultLimit(const std::string &device, peerbuf_ledger_column column,
			     uint64_t bytes)
{
	MutexLock lock(mutex_);
	defaults_[{device, column}] = bytes;
}

void Ledger::setLimit(const Account &account, peerbuf_ledger_column column, uint64_t bytes)
{
	MutexLock lock(mutex_);
	limits_[{account.tenant, account.device, column}] = bytes;
}

uint64_t Ledger::limitOf(const Account &account, peerbuf_ledger_column column) const
{
	const auto own = limits_.find({account.tenant, account.device, column});
	if (own != limits_.end())
		return own->second;
	const auto general = defaults_.find({account.device, column});
	return general == defaults_.end() ? PEERBUF_UNLIMITED : general->second;
}

std::string Ledger::holdersOf(const std::string &tenant, const std::string &device,
			      peerbuf_ledger_column column) const
{
	constexpr size_t SHOWN = 3;
	std::vector<const Holder *> found;
	for (const auto &[id, holder] : holders_)
		if (holder.column == column && holder.bytes &&
		    matches(tenant, holder.account.tenant) &&
		    matches(device, holder.account.device))
			found.push_back(&holder);
	std::sort(found.begin(), found.end(),
		  [](const Holder *a, const Holder *b) { return a->bytes > b->bytes; });
	std::string out;
	for (size_t i = 0; i < found.size() && i < SHOWN; i++)
		out += text(out.empty() ? "" : ", ", found[i]->name, " (", found[i]->bytes, ")");
	if (found.size() > SHOWN)
		out += text(" and ", found.size() - SHOWN, " more");
	return out;
}

Result<Charge> Ledger::charge(const Account &account, peerbuf_ledger_column column, uint64_t bytes,
			      const std::string &holder, bool limited)
{
	if (!bytes)
		return Charge();
	MutexLock lock(mutex_);
	const uint64_t limit = limitOf(account, column);
	const uint64_t used = used_[{account.tenant, account.device, column}];
	if (limited && (used > limit || bytes > limit - used)) {
		const std::string by = holdersOf(account.tenant, account.device, column);
		return fail(PEERBUF_ERR_QUOTA, EDQUOT, columnName(column), " of tenant '",
			    account.tenant, "' on ", account.device, ": need ", bytes, ", used ",
			    used, ", limit ", limit, "; held by ", by.empty() ? "nobody" : by);
	}
	const uint64_t id = ++lastId_;
	holders_[id] = Holder{account, column, holder, 0, 0, {}};
	pay(id, bytes);
	return Charge(this, id);
}

void Ledger::splitAt(Parts &parts, uint64_t at)
{
	auto it = parts.upper_bound(at);
	if (it == parts.begin())
		return;
	--it;
	if (it->first >= at || it->second.end <= at)
		return;
	parts[at] = Part{it->second.end, it->second.holders};
	it->second.end = at;
}

Result<Charge> Ledger::chargeWindow(const Account &account, uint64_t allocation, const Range &range,
				    const std::string &holder)
{
	MutexLock lock(mutex_);
	const uint64_t limit = limitOf(account, PEERBUF_LEDGER_WINDOW);
	Parts &parts = windows_[{account.device, allocation}];
	splitAt(parts, range.offset);
	splitAt(parts, range.end());

	uint64_t fresh = range.length;
	for (auto it = parts.lower_bound(range.offset);
	     it != parts.end() && it->first < range.end(); ++it)
		fresh -= it->second.end - it->first;
	const uint64_t used = used_[{account.tenant, account.device, PEERBUF_LEDGER_WINDOW}];
	if (used > limit || fresh > limit - used) {
		if (parts.empty())
			windows_.erase({account.device, allocation});
		const std::string by =
			holdersOf(account.tenant, account.device, PEERBUF_LEDGER_WINDOW);
		return fail(PEERBUF_ERR_QUOTA, EDQUOT, "window of tenant '", account.tenant,
			    "' on ", account.device, ": need ", fresh, ", used ", used, ", limit ",
			    limit, "; held by ", by.empty() ? "nobody" : by);
	}

	const uint64_t id = ++lastId_;
	holders_[id] = Holder{account, PEERBUF_LEDGER_WINDOW, holder, 0, allocation, range};
	uint64_t at = range.offset;
	for (auto it = parts.lower_bound(at); at < range.end();) {
		if (it != parts.end() && it->first == at) { // already in the window
			it->second.holders.push_back(id);
			at = it->second.end;
			++it;
			continue;
		}
		const uint64_t end =
			it == parts.end() ? range.end() : std::min(it->first, range.end());
		it = std::next(parts.emplace_hint(it, at, Part{end, {id}}));
		pay(id, end - at);
		at = end;
	}
	return Charge(this, id);
}

uint64_t Ledger::windowNeed(const std::string &device, uint64_t allocation,
			    const Range &range) const
{
	MutexLock lock(mutex_);
	uint64_t need = range.length;
	const auto parts = windows_.find({device, allocation});
	if (parts == windows_.end())
		return need;
	for (const auto &[start, part] : parts->second) {
		const uint64_t from = std::max(start, range.offset);
		const uint64_t to = std::min(part.end, range.end());
		if (from < to)
			need -= to - from;
	}
	return need;
}

void Ledger::pay(uint64_t id, uint64_t bytes)
{
	Holder &holder = holders_[id];
	holder.bytes += bytes;
	used_[{holder.account.tenant, holder.account.device, holder.column}] += bytes;
}

void Ledger::unpay(uint64_t id, uint64_t bytes)
{
	Holder &holder = holders_[id];
	holder.bytes -= bytes;
	used_[{holder.account.tenant, holder.account.device, holder.column}] -= bytes;
}

void Ledger::release(uint64_t id)
{
	if (PEERBUF_MUTANT("missed_uncharge"))
		return;
	MutexLock lock(mutex_);
	const Holder &holder = holders_[id];
	if (holder.column != PEERBUF_LEDGER_WINDOW) {
		unpay(id, holder.bytes);
		holders_.erase(id);
		return;
	}
	const auto window = windows_.find({holder.account.device, holder.allocation});
	Parts &parts = window->second;
	const Range range = holder.range;
	for (auto it = parts.lower_bound(range.offset);
	     it != parts.end() && it->first < range.end();) {
		Part &part = it->second;
		const uint64_t bytes = part.end - it->first;
		const bool paid = part.holders.front() == id;
		part.holders.erase(std::find(part.holders.begin(), part.holders.end(), id));
		if (paid)
			unpay(id, bytes);
		if (paid && !part.holders.empty())
			pay(part.holders.front(), bytes);
		it = part.holders.empty() ? parts.erase(it) : std::next(it);
	}
	if (parts.empty())
		windows_.erase(window);
	holders_.erase(id);
}

uint64_t Ledger::bytesOf(uint64_t id) const
{
	MutexLock lock(mutex_);
	const auto it = holders_.find(id);
	return it == holders_.end() ? 0 : it->second.bytes;
}

Ledger::Usage Ledger::usage(const std::string &tenant, const std::string &device,
			    peerbuf_ledger_column column) const
{
	MutexLock lock(mutex_);
	Usage usage;
	for (const auto &[key, bytes] : used_)
		if (matches(tenant, std::get<0>(key)) && matches(device, std::get<1>(key)) &&
		    std::get<2>(key) == column)
			usage.used += bytes;
	for (const auto &[id, holder] : holders_)
		if (holder.column == column && holder.bytes &&
		    matches(tenant, holder.account.tenant) &&
		    matches(device, holder.account.device))
			usage.holders++;
	if (!tenant.empty() && !device.empty())
		usage.limit = limitOf({tenant, device}, column);
	usage.holdersText = holdersOf(tenant, device, column);
	return usage;
}

} // namespace peerbuf
