// SPDX-License-Identifier: BSD-3-Clause
#include "core/tickets.h"

#include <algorithm>

namespace peerbuf
{

void Tickets::hold(Operation &operation)
{
	MutexLock lock(mutex_);
	operation.pending++;
}

uint64_t Tickets::issue(Ticket ticket)
{
	MutexLock lock(mutex_);
	ticket.operation->pending++;
	const uint64_t id = ++lastId_;
	entries_.emplace(id, Entry{std::move(ticket)});
	return id;
}

Tickets::Answer Tickets::done(uint64_t id)
{
	MutexLock lock(mutex_);
	const auto it = entries_.find(id);
	if (it == entries_.end())
		return std::find(closed_.begin(), closed_.end(), id) == closed_.end()
			       ? Answer::Late
			       : Answer::Again;
	if (it->second.done)
		return Answer::Again;
	it->second.done = true;
	done_.push_back(id);
	return Answer::Fresh;
}

void Tickets::close(uint64_t id)
{
	entries_.erase(id);
	closed_.push_back(id);
	if (closed_.size() > REMEMBERED)
		closed_.pop_front();
}

void Tickets::answered(uint64_t id)
{
	MutexLock lock(mutex_);
	close(id);
}

std::optional<Ticket> Tickets::takeDone()
{
	MutexLock lock(mutex_);
	while (!done_.empty()) {
		const uint64_t id = done_.front();
		done_.pop_front();
		const auto it = entries_.find(id);
		if (it == entries_.end())
			continue;
		Ticket ticket = std::move(it->second.ticket);
		close(id);
		return ticket;
	}
	return std::nullopt;
}

bool Tickets::anyDone() const
{
	MutexLock lock(mutex_);
	return !done_.empty();
}

std::vector<Ticket> Tickets::forget(uint64_t attachment)
{
	MutexLock lock(mutex_);
	std::vector<Ticket> open;
	for (auto it = entries_.begin(); it != entries_.end();) {
		if (it->second.ticket.attachment != attachment) {
			++it;
			continue;
		}
		open.push_back(std::move(it->second.ticket));
		it = entries_.erase(it);
	}
	return open;
}

bool Tickets::finish(Operation &operation, int status)
{
	MutexLock lock(mutex_);
	if (status && !operation.status)
		operation.status = status;
	return !--operation.pending;
}

} // namespace peerbuf
