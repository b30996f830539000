// SPDX-License-Identifier: BSD-3-Clause
#include "initiator.h"

#include <algorithm>
#include <cerrno>

#include <sched.h>

#include "world.h"

namespace peerbuf::bench
{

Initiator::Initiator(std::string provider, std::vector<uint8_t> target, uint64_t source)
    : provider_(std::move(provider)),
      targetName_(std::move(target)),
      source_(source, 0x5a),
      thread_([this] { run(); })
{
}

Initiator::~Initiator()
{
	abandon_.store(true, std::memory_order_relaxed);
	{
		std::lock_guard<std::mutex> lock(mutex_);
		ending_ = true;
	}
	changed_.notify_one();
	thread_.join();
}

void Initiator::begin(const Job &job)
{
	stop_.store(false, std::memory_order_relaxed);
	done_.store(false, std::memory_order_relaxed);
	{
		std::lock_guard<std::mutex> lock(mutex_);
		job_ = job;
		waiting_ = true;
	}
	changed_.notify_one();
}

void Initiator::open()
{
	tools::RmaOptions options;
	options.provider = provider_;
	endpoint_ = tools::RmaEndpoint::create(options, error_);
	if (!endpoint_ || endpoint_->addPeer(targetName_, &peer_, error_))
		return;
	if (endpoint_->info()->domain_attr->mr_mode & FI_MR_LOCAL)
		endpoint_->expose(source_.data(), source_.size(), FI_READ | FI_WRITE, &memory_,
				  error_);
}

void Initiator::run()
{
	for (;;) {
		Job job;
		{
			std::unique_lock<std::mutex> lock(mutex_);
			changed_.wait(lock, [this] { return ending_ || waiting_; });
			if (ending_)
				break;
			waiting_ = false;
			job = job_;
		}
		if (!endpoint_)
			open();
		if (error_.empty())
			work(job);
		done_.store(true, std::memory_order_release);
	}
	memory_.mr.reset();
	endpoint_.reset();
}

void Initiator::work(const Job &job)
{
	const uint64_t started = nowNs();
	uint64_t posted = 0;
	uint64_t completed = 0;
	size_t inFlight = 0;
	tools::RmaTransfer transfer;
	transfer.op = tools::RmaOp::Write;
	transfer.peer = peer_;
	transfer.length = job.size;
	transfer.desc = memory_.desc;
	transfer.key = job.key;
	for (;;) {
		const bool more = posted < job.operations && !stop_.load(std::memory_order_relaxed);
		if (!more && !inFlight)
			break;
		if (abandon_.load(std::memory_order_relaxed))
			return;
		if (more && inFlight < job.window) {
			transfer.data = source_.data() + posted * job.size % source_.size();
			transfer.remoteAddr = job.base + posted * job.size % job.reach;
			const int rc = endpoint_->post(transfer, error_);
			if (rc == 0) {
				posted++;
				inFlight_.store(++inFlight, std::memory_order_relaxed);
				continue;
			}
			if (rc != -EAGAIN)
				return;
		}
		tools::RmaCompletion completion;
		const int rc = endpoint_->pollOnce(&completion);
		if (rc < 0 || (rc == 1 && completion.status)) {
			error_ = completion.what;
			return;
		}
		if (rc == 1) {
			completed++;
			inFlight_.store(--inFlight, std::memory_order_relaxed);
		} else if (job.yields) {
			sched_yield();
		}
	}
	ns_ = std::max<uint64_t>(nowNs() - started, 1);
}

} // namespace peerbuf::bench
