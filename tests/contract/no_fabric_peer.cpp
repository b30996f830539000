// SPDX-License-Identifier: BSD-3-Clause
// In place of fabric_peer.cpp where libfabric is missing.
#include "fabric_peer.h"

namespace peerbuf::contract
{

std::vector<std::string> defaultFabricProviders()
{
	return {};
}

std::unique_ptr<ImporterObjects> makeFabricObjects(const std::string &, bool, std::string *ret_why)
{
	*ret_why = "this suite was built without libfabric";
	return nullptr;
}

std::unique_ptr<Peer> makeFabricPeer(ImporterObjects &, std::string *ret_why)
{
	*ret_why = "this suite was built without libfabric";
	return nullptr;
}

} // namespace peerbuf::contract
