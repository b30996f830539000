// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_PEER_H
#define PEERBUF_TESTS_CONTRACT_PEER_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "world.h"

namespace peerbuf::contract
{

/**
 * A remote peer: it knows the key and the base of a region and nothing else of it. Both calls end
 * when the transfer has; @return 0, or what the peer's completion said (-EACCES, -EIO, ...).
 */
class Peer
{
public:
	virtual ~Peer() = default;
	virtual int write(const RegionInfo &region, uint64_t offset, const void *data,
			  size_t length) = 0;
	virtual int read(const RegionInfo &region, uint64_t offset, void *data, size_t length) = 0;
	/** "", or why a transfer that the target refuses does not end with an error here. */
	virtual std::string whyNoRefusals() const { return ""; }
};

/** @return null with the reason where the importer offers no data path. */
std::unique_ptr<Peer> makePeer(Importer &importer, std::string *ret_why);

} // namespace peerbuf::contract

#endif
