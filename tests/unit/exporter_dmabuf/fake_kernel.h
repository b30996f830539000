// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_EXPORTER_DMABUF_FAKE_KERNEL_H
#define PEERBUF_TESTS_UNIT_EXPORTER_DMABUF_FAKE_KERNEL_H

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exporter/dmabuf/system.h"

namespace peerbuf::test
{

/**
 * The kernel as it is, but with device nodes of its own. A dma-buf of it is a memfd: of the same
 * pages as the memfd it was made of where that is one range, else of fresh ones. Descriptors,
 * mappings and seals are real. What the drivers would refuse is refused. Thread-bound.
 */
class FakeKernel : public dmabuf::System
{
public:
	std::set<std::string> nodes = {"/dev/udmabuf", "/dev/dma_heap/system"};
	int openError = -2; /* ENOENT, of a node that is not there */
	uint64_t sizeLimit = 64 << 20;
	std::map<std::string, std::string> drivers; /* of DRM, by node */
	uint64_t dumbShort = 0;			    /* bytes that a dumb buffer lacks */
	int destroyError = 0;
	int busySyncs = 0; /* so many more are interrupted */

	/* what was seen */
	int mappings = 0;
	std::vector<std::pair<uint64_t, uint64_t>> lastRanges; /* offset, length in the memfd */
	int reading = 0;				       /* begins without end */
	int writing = 0;
	size_t breaches = 0;

	/** A VFIO device with one BAR, number 2, at offset barOffset of it. @return to be closed.
	 */
	int vfioDevice(uint64_t barSize);
	static constexpr uint64_t barOffset = 2 << 20;
	uint64_t barSize = 0;
	bool barMaps = true;
	bool vfioDmabuf = true;

	/** A dma-buf that somebody else made. @return its descriptor, to be closed. */
	int foreign(const std::string &exporter, uint64_t size);
	std::string nodeOf(int fd) const { return devices_.at(fd); }

	int open(const char *path) override;
	int close(int fd) override;
	int dup(int fd) override;
	int ioctl(int fd, unsigned long request, void *arg) override;
	int map(int fd, uint64_t size, void **retAddress, uint64_t offset) override;
	int unmap(void *address, uint64_t size) override;
	std::string exporterOf(int fd) override;

private:
	int create(const std::vector<std::pair<int, std::pair<uint64_t, uint64_t>>> &ranges,
		   uint64_t flags);
	int sync(int fd, uint64_t flags);
	int vfio(int fd, unsigned long request, void *arg);

	std::map<int, std::string> devices_;
	std::map<int, std::string> dmabufs_; /* descriptor → exporter */
};

/** Open descriptors of this process. */
size_t openFds();

} // namespace peerbuf::test

#endif
