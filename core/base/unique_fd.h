// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_UNIQUE_FD_H
#define PEERBUF_CORE_BASE_UNIQUE_FD_H

#include <cerrno>
#include <utility>

#include "core/base/sys.h"

namespace peerbuf
{

/** A descriptor that somebody else owns. No implicit conversion either way. */
class BorrowedFd
{
public:
	explicit BorrowedFd(int fd) : fd_(fd) {}
	int get() const { return fd_; }
	bool none() const { return fd_ < 0; }

private:
	int fd_;
};

/** An owned descriptor; 0 is a valid one, -1 is none. Thread-bound. */
class UniqueFd
{
public:
	UniqueFd() = default;
	explicit UniqueFd(int fd) : fd_(fd) {}
	UniqueFd(UniqueFd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
	UniqueFd &operator=(UniqueFd &&other) noexcept
	{
		if (this != &other) {
			reset();
			fd_ = std::exchange(other.fd_, -1);
		}
		return *this;
	}
	UniqueFd(const UniqueFd &) = delete;
	UniqueFd &operator=(const UniqueFd &) = delete;
	~UniqueFd() { reset(); }

	BorrowedFd borrow() const { return BorrowedFd(fd_); }
	bool none() const { return fd_ < 0; }
	void reset()
	{
		if (fd_ < 0)
			return;
		const int saved = errno;
		sys().close(std::exchange(fd_, -1));
		errno = saved;
	}

private:
	int fd_ = -1;
};

} // namespace peerbuf

#endif
