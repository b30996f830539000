// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file drm_source.cpp
 * Dumb buffers of a DRM driver, by PRIME (drivers/gpu/drm/drm_prime.c).
 */
#include "drm_source.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace peerbuf::dmabuf
{

namespace
{

using plugin::text;

/* Of these a dumb buffer is pages of the host that stay where they are. Drivers that move their
 * buffers would have to be said to: by what this exporter says, they never do. */
constexpr const char *stillDrivers[] = {"vgem", "virtio_gpu", "vkms"};
constexpr int mostNodes = 16;

class DrmSource final : public Source
{
public:
	explicit DrmSource(std::unique_ptr<Drm> drm) : drm_(std::move(drm)) {}

	void options(plugin::Options &options) override { node_ = options.string("node", ""); }

	int start(const plugin::Host &host, Calls &calls) override
	{
		if (!node_.empty())
			return tryNode(host, calls, node_);
		std::string seen;
		int first = 0;
		for (int i = 0; i < mostNodes; i++) {
			const std::string node = "/dev/dri/card" + std::to_string(i);
			const int fd = calls.open(node.c_str());
			if (fd < 0) {
				first = first ? first : fd;
				continue;
			}
			device_ = Fd(calls, fd);
			if (driverOf(calls) == 0 && isStill()) {
				node_ = node;
				return 0;
			}
			seen += (seen.empty() ? "" : ", ") + node + " (" + driver_ + ")";
			device_.reset();
		}
		if (seen.empty())
			return failNode(host, "/dev/dri/card*", "CONFIG_DRM_VGEM, for one", first);
		return host.fail(ENODEV,
				 text("no DRM device whose buffers stay where they are (", list(),
				      "); there are: ", seen),
				 PEERBUF_ERR_NOT_FOUND);
	}

	int make(const plugin::Host &host, Calls &calls, uint64_t size,
		 Backing *retBacking) override
	{
		const auto failed = [&](const char *what, int rc) {
			return host.fail(-rc, text(device(), ": ", what, " for ", size,
						   " bytes: ", errnoText(rc)));
		};
		if (size / pageSize > UINT32_MAX)
			return failed("a dumb buffer", -EINVAL);
		uint32_t handle = 0;
		uint64_t made = 0;
		int rc = calls.due("create");
		if (rc == 0)
			rc = drm_->createDumb(device_.get(), static_cast<uint32_t>(size / pageSize),
					      &handle, &made);
		if (rc)
			return failed("DRM_IOCTL_MODE_CREATE_DUMB", rc);
		int fd = -1;
		rc = made < size ? -ENOSPC : calls.due("prime");
		if (rc == 0)
			rc = drm_->prime(device_.get(), handle, &fd);
		/* the dma-buf keeps the memory, and nobody needs the handle */
		const int destroyed = drm_->destroyDumb(device_.get(), handle);
		if (rc)
			return failed("DRM_IOCTL_PRIME_HANDLE_TO_FD", rc);
		retBacking->dmabuf = Fd(calls, fd);
		if (destroyed) {
			retBacking->dmabuf.reset();
			return failed("DRM_IOCTL_MODE_DESTROY_DUMB", destroyed);
		}
		return 0;
	}

	std::string device() const override { return text("drm:", driver_, ":", node_); }
	/** All drivers' dma-bufs have one name, and those of others may move. */
	bool owns(const std::string &) const override { return false; }

private:
	static std::string list()
	{
		std::string names;
		for (const char *name : stillDrivers)
			names += (names.empty() ? "" : ", ") + std::string(name);
		return names;
	}
	bool isStill() const
	{
		return std::find(std::begin(stillDrivers), std::end(stillDrivers), driver_) !=
		       std::end(stillDrivers);
	}
	int driverOf(Calls &calls)
	{
		driver_ = "?";
		const int rc = calls.due("driver");
		return rc ? rc : drm_->driver(device_.get(), &driver_);
	}
	int tryNode(const plugin::Host &host, Calls &calls, const std::string &node)
	{
		const int fd = calls.open(node.c_str());
		if (fd < 0)
			return failNode(host, node, "CONFIG_DRM_VGEM, for one", fd);
		device_ = Fd(calls, fd);
		int rc = driverOf(calls);
		if (rc)
			rc = host.fail(-rc, text(node, ": DRM_IOCTL_VERSION: ", errnoText(rc)));
		else if (!isStill())
			rc = host.fail(EOPNOTSUPP,
				       text(node, ": buffers of its driver '", driver_,
					    "' may move; those of ", list(), " do not"),
				       PEERBUF_ERR_UNSUPPORTED_DRIVER);
		if (rc)
			device_.reset();
		return rc;
	}

	const std::unique_ptr<Drm> drm_;
	std::string node_;
	std::string driver_;
	Fd device_;
};

} // namespace

std::unique_ptr<Source> makeDrm(std::unique_ptr<Drm> drm)
{
	return std::make_unique<DrmSource>(std::move(drm));
}

} // namespace peerbuf::dmabuf
