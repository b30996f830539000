// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>

#include <fcntl.h>
#include <xf86drm.h>
#include <xf86drmMode.h>

#include "drm_source.h"

namespace peerbuf::dmabuf
{

namespace
{

constexpr uint32_t rowPixels = 1024; /* of 4 bytes: a row is a page */
constexpr uint32_t bitsPerPixel = 32;

/** Some of its functions return a negative errno, the older ones -1 with errno. */
int result(int rc)
{
	if (rc >= 0)
		return 0;
	return rc == -1 && errno ? -errno : rc;
}

class Libdrm final : public Drm
{
public:
	int driver(int fd, std::string *retName) override
	{
		errno = 0;
		const drmVersionPtr version = drmGetVersion(fd);
		if (!version)
			return errno ? -errno : -ENODEV;
		retName->assign(version->name, static_cast<size_t>(version->name_len));
		drmFreeVersion(version);
		return 0;
	}
	int createDumb(int fd, uint32_t pages, uint32_t *retHandle, uint64_t *retSize) override
	{
		uint32_t pitch = 0;
		errno = 0;
		return result(drmModeCreateDumbBuffer(fd, rowPixels, pages, bitsPerPixel, 0,
						      retHandle, &pitch, retSize));
	}
	int prime(int fd, uint32_t handle, int *retFd) override
	{
		errno = 0;
		return result(drmPrimeHandleToFD(fd, handle, DRM_CLOEXEC | DRM_RDWR, retFd));
	}
	int destroyDumb(int fd, uint32_t handle) override
	{
		errno = 0;
		return result(drmModeDestroyDumbBuffer(fd, handle));
	}
};

} // namespace

std::unique_ptr<Drm> makeLibdrm()
{
	return std::make_unique<Libdrm>();
}

} // namespace peerbuf::dmabuf
