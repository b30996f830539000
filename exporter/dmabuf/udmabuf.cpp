// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file udmabuf.cpp
 * Pages of a memfd as a dma-buf (drivers/dma-buf/udmabuf.c).
 */
#include <cerrno>
#include <cstddef>
#include <vector>

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#include "source.h"

namespace peerbuf::dmabuf
{

namespace
{

using plugin::text;

/* list_limit, a parameter of the kernel's module; this is its default */
constexpr uint64_t mostRanges = 1024;

class Udmabuf final : public Source
{
public:
	void options(plugin::Options &options) override
	{
		node_ = options.string("node", "/dev/udmabuf");
		ranges_ = options.number("ranges", 1, 1, mostRanges);
	}

	int start(const plugin::Host &host, Calls &calls) override
	{
		const int fd = calls.open(node_.c_str());
		if (fd < 0)
			return failNode(host, node_, "CONFIG_UDMABUF", fd);
		device_ = Fd(calls, fd);
		return 0;
	}

	int make(const plugin::Host &host, Calls &calls, uint64_t size,
		 Backing *retBacking) override
	{
		const auto failed = [&](const char *what, int rc, const char *hint = "") {
			return host.fail(-rc, text(device(), ": ", what, " for ", size,
						   " bytes: ", errnoText(rc), hint));
		};
		Backing b;
		const int memfd = calls.memfd("peerbuf-udmabuf");
		if (memfd < 0)
			return failed("memfd_create", memfd);
		b.memfd = Fd(calls, memfd);
		if (const int rc = calls.resize(memfd, size))
			return failed("ftruncate of the memfd", rc);
		/* the driver takes no memfd that could lose its pages */
		if (const int rc = calls.seal(memfd, F_SEAL_SHRINK))
			return failed("F_ADD_SEALS of the memfd", rc);
		cut(size, &b.pieces);
		const int dmabuf = create(calls, memfd, b.pieces);
		if (dmabuf < 0)
			return failed(
				b.pieces.size() > 1 ? "UDMABUF_CREATE_LIST" : "UDMABUF_CREATE",
				dmabuf,
				dmabuf == -EINVAL ? "; the driver has a limit for one dma-buf, "
						    "size_limit_mb (64 if nobody set it), and "
						    "one for ranges, list_limit"
						  : "");
		b.dmabuf = Fd(calls, dmabuf);
		*retBacking = std::move(b);
		return 0;
	}

	std::string device() const override { return "udmabuf"; }
	bool owns(const std::string &exporter) const override { return exporter == "udmabuf"; }

private:
	/** From the last range of the memfd to the first, so that who mixes them up is found out.
	 */
	void cut(uint64_t size, std::vector<Backing::Piece> *retPieces) const
	{
		const uint64_t pages = size / pageSize;
		const uint64_t n = std::min(ranges_, pages);
		uint64_t end = pages;
		for (uint64_t i = n; i > 0; i--) {
			const uint64_t begin = pages * (i - 1) / n;
			retPieces->push_back({begin * pageSize, (end - begin) * pageSize});
			end = begin;
		}
	}

	int create(Calls &calls, int memfd, const std::vector<Backing::Piece> &pieces) const
	{
		if (pieces.size() == 1) {
			udmabuf_create one = {};
			one.memfd = static_cast<uint32_t>(memfd);
			one.flags = UDMABUF_FLAGS_CLOEXEC;
			one.offset = pieces[0].memfdOffset;
			one.size = pieces[0].length;
			return calls.ioctl("create", device_.get(), UDMABUF_CREATE, &one);
		}
		const size_t bytes =
			sizeof(udmabuf_create_list) + pieces.size() * sizeof(udmabuf_create_item);
		std::vector<uint64_t> memory((bytes + 7) / 8);
		auto *list = reinterpret_cast<udmabuf_create_list *>(memory.data());
		list->flags = UDMABUF_FLAGS_CLOEXEC;
		list->count = static_cast<uint32_t>(pieces.size());
		for (size_t i = 0; i < pieces.size(); i++) {
			list->list[i].memfd = static_cast<uint32_t>(memfd);
			list->list[i].offset = pieces[i].memfdOffset;
			list->list[i].size = pieces[i].length;
		}
		return calls.ioctl("create", device_.get(), UDMABUF_CREATE_LIST, list);
	}

	std::string node_;
	uint64_t ranges_ = 1;
	Fd device_;
};

} // namespace

std::unique_ptr<Source> makeUdmabuf()
{
	return std::make_unique<Udmabuf>();
}

} // namespace peerbuf::dmabuf
