// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_FABRIC_PEER_H
#define PEERBUF_TESTS_CONTRACT_FABRIC_PEER_H

#include <memory>
#include <string>
#include <vector>

#include "peer.h"

namespace peerbuf::contract
{

/** The providers the suite tries where nobody says which. */
std::vector<std::string> defaultFabricProviders();

/**
 * The target's domain and endpoint, as an application has them. @param bracketed it makes its
 * provider calls inside the importer's gate, so that memory may move between them. @return null
 * with the reason.
 */
std::unique_ptr<ImporterObjects> makeFabricObjects(const std::string &provider, bool bracketed,
						   std::string *ret_why);

/** An ordinary libfabric initiator in this process, connected to @p target's endpoint. */
std::unique_ptr<Peer> makeFabricPeer(ImporterObjects &target, std::string *ret_why);

} // namespace peerbuf::contract

#endif
