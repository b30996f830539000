// SPDX-License-Identifier: BSD-3-Clause
#include "system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

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
	std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
	const std::string key = "exp_name:";
	for (std::string line; std::getline(info, line);) {
		if (line.compare(0, key.size(), key) != 0)
			continue;
		const size_t at = line.find_first_not_of(" \t", key.size());
		return at == std::string::npos ? "" : line.substr(at);
	}
	return "";
}

int Calls::due(const std::string &step)
{
	Fault now;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto it = faults_.find(step);
		if (it == faults_.end())
			return 0;
		if (it->second.skip > 0) {
			it->second.skip--;
			return 0;
		}
		now = it->second;
		if (--it->second.count == 0)
			faults_.erase(it);
	}
	if (now.delayNs) {
		const timespec delay = {static_cast<time_t>(now.delayNs / 1000000000),
					static_cast<long>(now.delayNs % 1000000000)};
		nanosleep(&delay, nullptr);
	}
	return now.err;
}

int Calls::fault(const std::string &step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
{
	const auto same = [&](const char *name) { return step == name; };
	if (std::none_of(std::begin(stepNames), std::end(stepNames), same))
		return -ENOENT;
	std::lock_guard<std::mutex> lock(mutex_);
	if (count)
		faults_[step] = {skip, count, err, delayNs};
	else
		faults_.erase(step);
	return 0;
}

std::string Calls::stepList()
{
	std::string list;
	for (const char *name : stepNames)
		list += (list.empty() ? "" : ", ") + std::string(name);
	return list;
}

std::string errnoText(int rc)
{
	const char *name = strerrorname_np(-rc);
	return name ? std::string(name) + " (" + strerrordesc_np(-rc) + ")"
		    : "errno " + std::to_string(-rc);
}

} // namespace peerbuf::dmabuf
