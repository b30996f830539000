// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file mutex.h
 * A mutex that clang's -Wthread-safety understands, and that knows whether somebody waits for it.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_MUTEX_H
#define PEERBUF_IMPORTER_EMULATED_MUTEX_H

#include <atomic>
#include <mutex>

#if defined(__clang__)
#define NIC_ANNOTATE(x) __attribute__((x))
#else
#define NIC_ANNOTATE(x)
#endif
#define NIC_GUARDED_BY(m) NIC_ANNOTATE(guarded_by(m))
#define NIC_REQUIRES(m) NIC_ANNOTATE(requires_capability(m))
#define NIC_EXCLUDES(m) NIC_ANNOTATE(locks_excluded(m))

namespace peerbuf::emulated
{

/** Thread-safe. A BasicLockable, so that std::condition_variable_any can wait on it. */
class NIC_ANNOTATE(capability("mutex")) Mutex
{
public:
	void lock() NIC_ANNOTATE(acquire_capability())
	{
		wanted_.fetch_add(1, std::memory_order_relaxed);
		mutex_.lock();
		wanted_.fetch_sub(1, std::memory_order_relaxed);
	}
	void unlock() NIC_ANNOTATE(release_capability()) { mutex_.unlock(); }
	/** Somebody is waiting: a loop that takes the mutex all the time lets it pass first. */
	bool wanted() const { return wanted_.load(std::memory_order_relaxed) != 0; }

private:
	std::mutex mutex_;
	std::atomic<unsigned> wanted_{0};
};

class NIC_ANNOTATE(scoped_lockable) MutexLock
{
public:
	explicit MutexLock(Mutex &mutex) NIC_ANNOTATE(acquire_capability(mutex)) : mutex_(mutex)
	{
		mutex_.lock();
	}
	~MutexLock() NIC_ANNOTATE(release_capability()) { mutex_.unlock(); }
	MutexLock(const MutexLock &) = delete;
	MutexLock &operator=(const MutexLock &) = delete;

private:
	Mutex &mutex_;
};

} // namespace peerbuf::emulated

#endif
