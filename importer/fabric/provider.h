// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_IMPORTER_FABRIC_PROVIDER_H
#define PEERBUF_IMPORTER_FABRIC_PROVIDER_H

#include <string>
#include <string_view>

namespace peerbuf::fabric
{

/** What is known about one libfabric provider, by the name in fabric_attr->prov_name. */
struct Provider {
	const char *name;
	/** The CPU moves the bytes: registers by address, never imports a dma-buf. */
	bool software;
	/**
	 * Peers on the same machine may copy by CMA (process_vm_writev). It takes memory with
	 * struct pages only, and where peers know virtual addresses (FI_MR_VIRT_ADDR) it asks for
	 * no key: a peer reads on after the region is gone.
	 */
	bool cma;
	/** All remote access happens inside the target's own provider calls, so a gate around them
	 * could stop it. Necessary for following moves, not enough: somebody must own the gate. */
	bool gateable;
	/** Why a region of it is told nothing about moves and revokes. */
	const char *why;
};

/** @return null for a provider that is not on the list. */
const Provider *findProvider(std::string_view name);

/** "a, b, c": every name on the list. */
std::string providerList();

} // namespace peerbuf::fabric

#endif
