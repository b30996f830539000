// SPDX-License-Identifier: BSD-3-Clause
#include "provider.h"

namespace peerbuf::fabric
{

namespace
{

constexpr const char *progressNotOurs =
	"provider calls that reach the memory are not under peerbuf's control";
constexpr const char *ownThread = "a thread of the provider reaches the memory at any time";
constexpr const char *peersCopy = "peers may copy by CMA past any gate";
constexpr const char *untestedGate = "not on the list of providers whose gate is tested";
constexpr const char *kernelDecides = "its region stays on the memory it was made of";

constexpr Provider providers[] = {
	{"tcp", true, false, true, progressNotOurs},
	{"tcp;ofi_rxm", true, false, true, progressNotOurs},
	{"net", true, false, false, untestedGate},
	{"shm", true, true, true, peersCopy},
	{"sm2", true, true, false, peersCopy},
	{"sockets", true, false, false, ownThread},
	{"udp;ofi_rxd", true, false, false, untestedGate},
	{"verbs", false, false, false, kernelDecides},
	{"verbs;ofi_rxm", false, false, false, kernelDecides},
	{"efa", false, false, false, kernelDecides},
	{"cxi", false, false, false, kernelDecides},
	{"opx", false, false, false, kernelDecides},
};

} // namespace

const Provider *findProvider(std::string_view name)
{
	for (const Provider &provider : providers) {
		if (name == provider.name)
			return &provider;
	}
	return nullptr;
}

std::string providerList()
{
	std::string list;
	for (const Provider &provider : providers)
		list += (list.empty() ? "" : ", ") + std::string(provider.name);
	return list;
}

} // namespace peerbuf::fabric
