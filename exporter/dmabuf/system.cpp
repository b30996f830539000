// SPDX-License-Identifier: BSD-3-Clause
#include "system.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace peerbuf::dmabuf
{

namespace
{

constexpr const char *stepNames[] = {
	/* slots */
	"offer", "alloc", "get", "attach", "map", "export_fd",
	/* what they are made of */
	"open", "dup", "memfd", "ftruncate", "seal", "create", "mmap", "sync", "transfer", "size",
	"identity", "driver", "prime", "region"};

int result(long rc)
{
	return rc < 0 ? -errno : static_cast<int>(rc);
}

} // namespace

int System::open(const char *path)
{
	return result(::open(path, O_RDWR | O_CLOEXEC));
}

int System::close(int fd)
{
	return result(::close(fd));
}

int System::dup(int fd)
{
	return result(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

int System::ioctl(int fd, unsigned long request, void *arg)
{
	return result(::ioctl(fd, request, arg));
}

int System::memfd(const char *name)
{
	return result(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

int System::resize(int fd, uint64_t size)
{
	return result(::ftruncate(fd, static_cast<off_t>(size)));
}

int System::seal(int fd, int seals)
{
	return result(::fcntl(fd, F_ADD_SEALS, seals));
}

int System::map(int fd, uint64_t size, void **retAddress, uint64_t offset)
{
	void *address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			       static_cast<off_t>(offset));
	if (address == MAP_FAILED)
		return -errno;
	*retAddress = address;
	return 0;
}

int System::unmap(void *address, uint64_t size)
{
	return result(::munmap(address, size));
}

int System::transfer(int fd, uint64_t offset, void *data, uint64_t size, bool write)
{
	auto *at = static_cast<char *>(data);
	while (size) {
		const auto where = static_cast<off_t>(offset);
		const ssize_t done =
			write ? ::pwrite(fd, at, size, where) : ::pread(fd, at, size, where);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done ? -errno : -EIO;
		at += done;
		offset += static_cast<uint64_t>(done);
		size -= static_cast<uint64_t>(done);
	}
	return 0;
}

int System::size(int fd, uint64_t *retSize)
{
	/* the one way that a dma-buf tells its size; its position is moved by nothing else */
	const off_t end = ::lseek(fd, 0, SEEK_END);
	if (end < 0)
		return -errno;
	*retSize = static_cast<uint64_t>(end);
	return 0;
}

int System::identity(int fd, uint64_t *retInode)
{
	struct stat st = {};
	if (::fstat(fd, &st) < 0)
		return -errno;
	*retInode = st.st_ino;
	return 0;
}

std::string System::exporterOf(int fd)
{
	return plugin::dmabufExporter(fd);
}

Calls::Calls(System &system) : FaultPlan(stepNames), system_(system) {}

} // namespace peerbuf::dmabuf
