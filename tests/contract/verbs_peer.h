// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_VERBS_PEER_H
#define PEERBUF_TESTS_CONTRACT_VERBS_PEER_H

#include <memory>
#include <string>

#include "peer.h"

namespace peerbuf::contract
{

/**
 * A protection domain on an RDMA device, as an application has it. @param device empty: the first
 * there is. @return null with the reason.
 */
std::unique_ptr<ImporterObjects> makeVerbsObjects(const std::string &device, std::string *ret_why);

/** A queue pair in this process, connected to another on @p target's protection domain. */
std::unique_ptr<Peer> makeVerbsPeer(ImporterObjects &target);

} // namespace peerbuf::contract

#endif
