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

/*
 * CMA (process_vm_writev) takes struct pages, so the providers that use it do not reach a mapped
 * BAR; the others copy by system call or memcpy through the mapping and do.
 */
constexpr Provider providers[] = {
	{"tcp", true, true, true, progressNotOurs},
	{"tcp;ofi_rxm", true, true, true, progressNotOurs},
	{"net", true, true, false, untestedGate},
	{"shm", true, false, false, peersCopy},
	{"sm2", true, false, false, peersCopy},
	{"sockets", true, true, false, ownThread},
	{"udp;ofi_rxd", true, true, false, untestedGate},
	{"verbs", false, true, false, kernelDecides},
	{"verbs;ofi_rxm", false, true, false, kernelDecides},
	{"efa", false, true, false, kernelDecides},
	{"cxi", false, true, false, kernelDecides},
	{"opx", false, true, false, kernelDecides},
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
