// SPDX-License-Identifier: BSD-3-Clause
#include "domain_gate.h"

#include <algorithm>

#include <sys/resource.h>
#include <unistd.h>

namespace peerbuf::fabric
{

namespace
{

/** How often the calling thread has lost its CPU without asking. */
long involuntarySwitches()
{
	rusage usage = {};
	return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

} // namespace

DomainGate::DomainGate(Answer answer, Clock clock)
    : answer_(std::move(answer)),
      clock_(std::move(clock)),
      shared_{}
{
	shared_.self = this;
	shared_.gate.struct_size = sizeof(shared_.gate);
	shared_.gate.drained = [](peerbuf_gate *gate) {
		reinterpret_cast<Shared *>(gate)->self->drained(); // its first member
	};
}

bool DomainGate::close(uint64_t holder, uint64_t ticket)
{
	const uint64_t now = clock_();
	std::lock_guard<std::mutex> lock(mutex_);
	holders_.push_back(holder);
	if (holders_.size() == 1) {
		closedAt_ = now;
		closedBy_ = ::gettid();
		switches_ = involuntarySwitches();
		drained_ = peerbuf_gate_close(&shared_.gate);
	}
	if (!drained_)
		tickets_.push_back(ticket);
	return drained_;
}

/** The last thread has left; or one that had left an earlier closed gate is late to say so. */
void DomainGate::drained()
{
	std::vector<uint64_t> due;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const uint64_t word = __atomic_load_n(&shared_.gate.word, __ATOMIC_ACQUIRE);
		if (drained_ || word != PEERBUF_GATE_CLOSED)
			return; // whoever is inside now says it when leaving
		drained_ = true;
		due.swap(tickets_);
	}
	for (const uint64_t ticket : due)
		answer_(ticket);
}

std::vector<uint64_t> DomainGate::reopen()
{
	drained_ = false;
	std::vector<uint64_t> due;
	due.swap(tickets_);
	peerbuf_gate_open(&shared_.gate);
	const bool sameThread = closedBy_ == ::gettid();
	peerbuf_pause pause = {};
	pause.ns = clock_() - closedAt_;
	pause.preempted = sameThread && involuntarySwitches() != switches_;
	pauses_++;
	kept_.push_back(pause);
	if (kept_.size() > keptPauses)
		kept_.pop_front();
	return due;
}

bool DomainGate::open(uint64_t holder)
{
	std::vector<uint64_t> late;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto it = std::find(holders_.begin(), holders_.end(), holder);
		if (it == holders_.end())
			return false;
		holders_.erase(it);
		if (holders_.empty())
			late = reopen();
	}
	for (const uint64_t ticket : late)
		answer_(ticket);
	return true;
}

void DomainGate::forget(uint64_t holder)
{
	std::vector<uint64_t> late;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (holders_.empty())
			return;
		holders_.erase(std::remove(holders_.begin(), holders_.end(), holder),
			       holders_.end());
		if (holders_.empty())
			late = reopen();
	}
	for (const uint64_t ticket : late)
		answer_(ticket);
}

size_t DomainGate::takePauses(peerbuf_pause *to, size_t most)
{
	std::lock_guard<std::mutex> lock(mutex_);
	const size_t n = std::min(most, kept_.size());
	std::copy_n(kept_.begin(), n, to);
	kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(n));
	return n;
}

uint64_t DomainGate::pauses() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	return pauses_;
}

} // namespace peerbuf::fabric
