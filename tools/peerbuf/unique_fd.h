// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_UNIQUE_FD_H
#define PEERBUF_TOOLS_UNIQUE_FD_H

#include <utility>

#include <unistd.h>

namespace peerbuf::tools
{

/** An owned descriptor; 0 is a valid one, -1 is none. Thread-bound. */
class UniqueFd
{
public:
	UniqueFd() = default;
	explicit UniqueFd(int fd) : fd_(fd) {}
	UniqueFd(UniqueFd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
	UniqueFd &operator=(UniqueFd &&other) noexcept
	{
		std::swap(fd_, other.fd_);
		return *this;
	}
	UniqueFd(const UniqueFd &) = delete;
	UniqueFd &operator=(const UniqueFd &) = delete;
	~UniqueFd() { reset(); }

	int get() const { return fd_; }
	explicit operator bool() const { return fd_ >= 0; }
	void reset()
	{
		if (fd_ >= 0)
			::close(std::exchange(fd_, -1));
	}

private:
	int fd_ = -1;
};

} // namespace peerbuf::tools

#endif
