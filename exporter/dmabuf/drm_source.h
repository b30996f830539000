// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_DMABUF_DRM_SOURCE_H
#define PEERBUF_EXPORTER_DMABUF_DRM_SOURCE_H

#include <cstdint>
#include <memory>
#include <string>

#include "source.h"

namespace peerbuf::dmabuf
{

/** What is asked of libdrm; 0 or a negative errno. Tests put another in its place. */
class Drm
{
public:
	Drm() = default;
	virtual ~Drm() = default;
	Drm(const Drm &) = delete;
	Drm &operator=(const Drm &) = delete;

	/** The name of the driver behind a node. */
	virtual int driver(int fd, std::string *retName) = 0;
	/** A dumb buffer: memory that any CPU can draw into. @param pages of 4 KiB, as its rows. */
	virtual int createDumb(int fd, uint32_t pages, uint32_t *retHandle, uint64_t *retSize) = 0;
	virtual int prime(int fd, uint32_t handle, int *retFd) = 0;
	virtual int destroyDumb(int fd, uint32_t handle) = 0;
};

std::unique_ptr<Source> makeDrm(std::unique_ptr<Drm> drm);
/** By the library; in plugins that are linked with it. */
std::unique_ptr<Drm> makeLibdrm();

} // namespace peerbuf::dmabuf

#endif
