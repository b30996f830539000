// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file promises.h
 * What a NIC promises, each as a function that says how it is broken, or nothing. A good NIC keeps
 * them all; every mutant breaks the one that is named for it.
 */
#ifndef PEERBUF_TESTS_IMPORTER_EMULATED_PROMISES_H
#define PEERBUF_TESTS_IMPORTER_EMULATED_PROMISES_H

#include <string>

#include "serving_host.h"

namespace peerbuf::test
{

/** @param chunk pages that stay together; @param movable mapped at first touch, else given. */
std::string bytesGoWhereTheyBelong(const Params &params, uint64_t chunk, bool movable);

/** An in-flight invalidate is answered by one ticket, when all has landed and not before. */
std::string oneTicketAfterTheLastPacket(const Params &params, uint32_t reason);

/** After a move the new place is used and the old one never touched again. */
std::string resumeUsesTheNewPlace(const Params &params);

/** After a move that was given up traffic goes on. */
std::string resumeAfterAbortGoesOn(const Params &params);

/** A revoked region's key is nobody's before its dereg. */
std::string revokedKeyStaysTaken(const Params &params);

/** A device that cannot reach peer memory says so and refuses it. */
std::string peerMemoryIsRefused(const Params &params);

/** Behind a translating IOMMU nothing but what was mapped is reached. */
std::string domainAddressesAreUsed(const Params &params);

/** All of it under random traffic, moves, aborted moves; seeds replay. */
std::string movesUnderTraffic(const Params &params, uint64_t seed);

} // namespace peerbuf::test

#endif
