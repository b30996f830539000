// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_MUTEX_H
#define PEERBUF_CORE_BASE_MUTEX_H

#include <atomic>
#include <cassert>
#include <mutex>
#include <thread>

#if defined(__clang__)
#define PEERBUF_TSA(x) __attribute__((x))
#else
#define PEERBUF_TSA(x)
#endif

#define CAPABILITY(x) PEERBUF_TSA(capability(x))
#define SCOPED_CAPABILITY PEERBUF_TSA(scoped_lockable)
#define GUARDED_BY(x) PEERBUF_TSA(guarded_by(x))
#define REQUIRES(...) PEERBUF_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) PEERBUF_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) PEERBUF_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) PEERBUF_TSA(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(x) PEERBUF_TSA(assert_capability(x))
#define RETURN_CAPABILITY(x) PEERBUF_TSA(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS PEERBUF_TSA(no_thread_safety_analysis)

namespace peerbuf
{

/** std::mutex that clang's thread-safety analysis understands. Thread-safe. */
class CAPABILITY("mutex") Mutex
{
public:
	Mutex() = default;
	Mutex(const Mutex &) = delete;
	Mutex &operator=(const Mutex &) = delete;

	void lock() ACQUIRE() { mutex_.lock(); }
	void unlock() RELEASE() { mutex_.unlock(); }

private:
	std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock
{
public:
	explicit MutexLock(Mutex &mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
	~MutexLock() RELEASE() { mutex_.unlock(); }
	MutexLock(const MutexLock &) = delete;
	MutexLock &operator=(const MutexLock &) = delete;

private:
	Mutex &mutex_;
};

/**
 * A buffer's lock, which stands for the kernel's dma_resv lock: it knows whether the calling thread
 * holds it, so that plugins can assert it and an importer may ask for a mapping from inside reg.
 * Thread-safe; not recursive.
 */
class CAPABILITY("reservation") Reservation
{
public:
	Reservation() = default;
	Reservation(const Reservation &) = delete;
	Reservation &operator=(const Reservation &) = delete;

	void lock() ACQUIRE()
	{
		mutex_.lock();
		owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
	}
	void unlock() RELEASE()
	{
		owner_.store(std::thread::id(), std::memory_order_relaxed);
		mutex_.unlock();
	}
	/** Only the answer "yes" of the calling thread about itself is ever stable, and only it is
	 * used. */
	bool heldByMe() const
	{
		return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
	}

	/** The kernel's dma_resv_assert_held. */
	void assertHeld() const ASSERT_CAPABILITY(this) { assert(heldByMe()); }

private:
	std::mutex mutex_;
	std::atomic<std::thread::id> owner_{};
};

class SCOPED_CAPABILITY ReservationLock
{
public:
	explicit ReservationLock(Reservation &reservation) ACQUIRE(reservation)
	    : reservation_(reservation)
	{
		reservation_.lock();
	}
	~ReservationLock() RELEASE() { reservation_.unlock(); }
	ReservationLock(const ReservationLock &) = delete;
	ReservationLock &operator=(const ReservationLock &) = delete;

private:
	Reservation &reservation_;
};

} // namespace peerbuf

#endif
