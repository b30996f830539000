// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_DMABUF_SYSTEM_H
#define PEERBUF_EXPORTER_DMABUF_SYSTEM_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <sys/types.h>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::dmabuf
{

/**
 * All that these plugins ask of the kernel. Everything returns 0 (or a descriptor) or a negative
 * errno. Tests put another in its place. Thread-safe.
 */
class System
{
public:
	System() = default;
	virtual ~System() = default;
	System(const System &) = delete;
	System &operator=(const System &) = delete;

	virtual int open(const char *path);
	virtual int close(int fd);
	virtual int dup(int fd);
	/** @return what the ioctl returned. */
	virtual int ioctl(int fd, unsigned long request, void *arg);
	virtual int memfd(const char *name);
	virtual int resize(int fd, uint64_t size);
	virtual int seal(int fd, int seals);
	virtual int map(int fd, uint64_t size, void **retAddress, uint64_t offset);
	virtual int unmap(void *address, uint64_t size);
	/** @return 0 when all of it was moved. */
	virtual int transfer(int fd, uint64_t offset, void *data, uint64_t size, bool write);
	virtual int size(int fd, uint64_t *retSize);
	/** What tells one dma-buf from another, whatever descriptor it is named by. */
	virtual int identity(int fd, uint64_t *retInode);
	/** The kernel's name for who exported the dma-buf @p fd; "" where it is none. */
	virtual std::string exporterOf(int fd);
};

/** System, with testing.h's faults in it: one step a call, named as the call. Thread-safe. */
class Calls : public plugin::FaultPlan
{
public:
	explicit Calls(System &system);

	int open(const char *path)
	{
		return run("open", [&] { return system_.open(path); });
	}
	int close(int fd) { return system_.close(fd); } /* nobody could do anything about it */
	int dup(int fd)
	{
		return run("dup", [&] { return system_.dup(fd); });
	}
	int ioctl(const char *step, int fd, unsigned long request, void *arg)
	{
		return run(step, [&] { return system_.ioctl(fd, request, arg); });
	}
	int memfd(const char *name)
	{
		return run("memfd", [&] { return system_.memfd(name); });
	}
	int resize(int fd, uint64_t size)
	{
		return run("ftruncate", [&] { return system_.resize(fd, size); });
	}
	int seal(int fd, int seals)
	{
		return run("seal", [&] { return system_.seal(fd, seals); });
	}
	int map(int fd, uint64_t size, void **retAddress, uint64_t offset = 0)
	{
		return run("mmap", [&] { return system_.map(fd, size, retAddress, offset); });
	}
	int unmap(void *address, uint64_t size) { return system_.unmap(address, size); }
	int transfer(int fd, uint64_t offset, void *data, uint64_t size, bool write)
	{
		return run("transfer",
			   [&] { return system_.transfer(fd, offset, data, size, write); });
	}
	int size(int fd, uint64_t *retSize)
	{
		return run("size", [&] { return system_.size(fd, retSize); });
	}
	int identity(int fd, uint64_t *retInode)
	{
		return run("identity", [&] { return system_.identity(fd, retInode); });
	}
	std::string exporterOf(int fd) { return system_.exporterOf(fd); }

private:
	template <typename Call> int run(const char *step, Call &&call)
	{
		const int rc = due(step);
		return rc ? rc : std::forward<Call>(call)();
	}

	System &system_;
};

/** Owns a descriptor. Thread-bound. */
class Fd
{
public:
	Fd() = default;
	Fd(Calls &calls, int fd) : calls_(&calls), fd_(fd) {}
	Fd(Fd &&other) noexcept : calls_(other.calls_), fd_(std::exchange(other.fd_, -1)) {}
	Fd &operator=(Fd &&other) noexcept
	{
		reset();
		calls_ = other.calls_;
		fd_ = std::exchange(other.fd_, -1);
		return *this;
	}
	Fd(const Fd &) = delete;
	Fd &operator=(const Fd &) = delete;
	~Fd() { reset(); }

	int get() const { return fd_; }
	bool none() const { return fd_ < 0; }
	int release() { return std::exchange(fd_, -1); }
	void reset()
	{
		if (fd_ >= 0)
			calls_->close(std::exchange(fd_, -1));
	}

private:
	Calls *calls_ = nullptr;
	int fd_ = -1;
};

using plugin::errnoText;

} // namespace peerbuf::dmabuf

#endif
