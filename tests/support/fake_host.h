// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_FAKE_HOST_H
#define PEERBUF_TESTS_SUPPORT_FAKE_HOST_H

#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <peerbuf/plugin.h>

namespace peerbuf::test
{

/**
 * The host that a plugin under test is given in place of the core: it writes down what the plugin
 * says and answers as the test wants. Thread-safe; the hooks are set before other threads run.
 */
class FakeHost
{
public:
	struct Failure {
		uint32_t errc = 0;
		std::string message;
	};
	struct Logged {
		uint32_t level;
		std::string message;
	};
	struct Invalidated {
		uint64_t buffer;
		peerbuf_invalidate inv;
	};

	struct Resumed {
		uint64_t buffer;
		peerbuf_resume res;
	};

	/** Answers host->invalidate; without it: 0. */
	std::function<int(uint64_t buffer, const peerbuf_invalidate &inv)> onInvalidate;
	/** Answers host->map; without it: -EINVAL. */
	std::function<int(uint64_t attachment, uint64_t offset, uint64_t length,
			  peerbuf_mapping *ret_mapping)>
		onMap;

	FakeHost()
	{
		services_.host.struct_size = sizeof(services_.host);
		services_.host.log = logService;
		services_.host.now_ns = nowService;
		services_.host.fail = failService;
		services_.host.invalidate = invalidateService;
		services_.host.resume = resumeService;
		services_.host.map = mapService;
		services_.host.ticket_done = ticketService;
		services_.host.reservation_held = heldService;
		services_.self = this;
	}
	FakeHost(const FakeHost &) = delete;
	FakeHost &operator=(const FakeHost &) = delete;

	const peerbuf_host *raw() const { return &services_.host; }

	/** The last failure told on the calling thread. */
	Failure failure() const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = failures_.find(std::this_thread::get_id());
		return it == failures_.end() ? Failure() : it->second;
	}
	void forgetFailure()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		failures_.erase(std::this_thread::get_id());
	}
	std::vector<Invalidated> invalidated() const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return invalidated_;
	}
	std::vector<Resumed> resumed() const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return resumed_;
	}
	std::vector<uint64_t> tickets() const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return tickets_;
	}
	/** Lines at @p level or worse. */
	std::vector<std::string> log(uint32_t level) const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		std::vector<std::string> lines;
		for (const Logged &l : log_)
			if (l.level <= level)
				lines.push_back(l.message);
		return lines;
	}

private:
	struct Services {
		peerbuf_host host = {};
		FakeHost *self = nullptr;
	};

	static FakeHost &of(const peerbuf_host *host)
	{
		return *reinterpret_cast<const Services *>(host)->self;
	}
	static void logService(const peerbuf_host *host, uint32_t level, const char *message)
	{
		FakeHost &self = of(host);
		std::lock_guard<std::mutex> lock(self.mutex_);
		self.log_.push_back({level, message});
	}
	static uint64_t nowService(const peerbuf_host *)
	{
		return static_cast<uint64_t>(
			std::chrono::duration_cast<std::chrono::nanoseconds>(
				std::chrono::steady_clock::now().time_since_epoch())
				.count());
	}
	static void failService(const peerbuf_host *host, uint32_t errc, const char *message)
	{
		FakeHost &self = of(host);
		std::lock_guard<std::mutex> lock(self.mutex_);
		self.failures_[std::this_thread::get_id()] = {errc, message};
	}
	static int invalidateService(const peerbuf_host *host, uint64_t buffer,
				     const peerbuf_invalidate *inv)
	{
		FakeHost &self = of(host);
		{
			std::lock_guard<std::mutex> lock(self.mutex_);
			self.invalidated_.push_back({buffer, *inv});
		}
		return self.onInvalidate ? self.onInvalidate(buffer, *inv) : 0;
	}
	static int resumeService(const peerbuf_host *host, uint64_t buffer,
				 const peerbuf_resume *res)
	{
		FakeHost &self = of(host);
		std::lock_guard<std::mutex> lock(self.mutex_);
		self.resumed_.push_back({buffer, *res});
		return 0;
	}
	static int mapService(const peerbuf_host *host, uint64_t attachment, uint64_t offset,
			      uint64_t length, peerbuf_mapping *ret_mapping)
	{
		FakeHost &self = of(host);
		return self.onMap ? self.onMap(attachment, offset, length, ret_mapping) : -EINVAL;
	}
	static void ticketService(const peerbuf_host *host, uint64_t ticket)
	{
		FakeHost &self = of(host);
		std::lock_guard<std::mutex> lock(self.mutex_);
		self.tickets_.push_back(ticket);
	}
	static int heldService(const peerbuf_host *, uint64_t) { return 0; }

	Services services_;
	mutable std::mutex mutex_;
	std::map<std::thread::id, Failure> failures_;
	std::vector<Logged> log_;
	std::vector<Invalidated> invalidated_;
	std::vector<Resumed> resumed_;
	std::vector<uint64_t> tickets_;
};

} // namespace peerbuf::test

#endif
