// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_FABRIC_SIDE_H
#define PEERBUF_TOOLS_FABRIC_SIDE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.h>

namespace peerbuf::tools
{

/**
 * An application's own libfabric objects in this process, to open the fabric importer on, and a
 * second endpoint that plays a peer of it. Thread-bound.
 */
class FabricSide
{
public:
	/** @return null, with @p error. */
	static std::unique_ptr<FabricSide> create(const std::string &provider, std::string &error);
	virtual ~FabricSide() = default;
	FabricSide(const FabricSide &) = delete;
	FabricSide &operator=(const FabricSide &) = delete;

	/** What was obtained; may be longer than what was asked for. */
	virtual const std::string &provider() const = 0;
	/** For peerbuf_importer_open. */
	virtual const void *objects() const = 0;
	/** The importer's gate, which all calls of the target's endpoint go through; or NULL. */
	virtual void useGate(peerbuf_gate *gate) = 0;
	/**
	 * The peer writes or reads the region at @p at.
	 * @return 0 or a negative errno, with @p error.
	 */
	virtual int transfer(const peerbuf_reg_importer_info &region, bool write, uint64_t at,
			     uint8_t *data, size_t length, std::string &error) = 0;

protected:
	FabricSide() = default;
};

/** Providers on this machine that the command can use, the preferred one first. */
const std::vector<std::string> &fabricProviders();

/** The one of fabricProviders() that @p name means, or "". */
std::string findProvider(const std::string &name);

/** What is used where none is named, or "" if it is not on this machine. */
std::string defaultProvider();

/** Memory registered with it can be Movable: its calls can be gated, and that is tested. */
bool canFollowMoves(const std::string &provider);

/** Its peers could copy by CMA, which nothing can gate, if they were not told otherwise. */
bool peersMayUseCma(const std::string &provider);
/** This process, and what it starts, was told not to. */
bool runsWithoutCma();

} // namespace peerbuf::tools

#endif
