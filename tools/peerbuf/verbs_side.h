// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_VERBS_SIDE_H
#define PEERBUF_TOOLS_VERBS_SIDE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.h>

namespace peerbuf::tools
{

/**
 * An application's own verbs objects in this process, to open the verbs importer on, and a peer: a
 * pair of RC queue pairs, one of which asks and one of which answers. Thread-bound.
 */
class VerbsSide
{
public:
	/** @param device its name; empty: the first there is. @return null, with @p error. */
	static std::unique_ptr<VerbsSide> create(const std::string &device, std::string &error);
	virtual ~VerbsSide() = default;
	VerbsSide(const VerbsSide &) = delete;
	VerbsSide &operator=(const VerbsSide &) = delete;

	virtual const std::string &device() const = 0;
	/** For peerbuf_importer_open. */
	virtual const void *objects() const = 0;
	/**
	 * The peer writes or reads the region at @p at.
	 * @return 0, -EACCES: remote access error, or another negative errno; with @p error.
	 */
	virtual int transfer(const peerbuf_reg_importer_info &region, bool write, uint64_t at,
			     uint8_t *data, size_t length, std::string &error) = 0;

protected:
	VerbsSide() = default;
};

/** The RDMA devices of this machine. */
std::vector<std::string> verbsDevices();

} // namespace peerbuf::tools

#endif
