// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file settings.h
 * The properties of an emulated device, as the plugin's options and the device's command line name
 * them. One reader for both, so that they cannot differ.
 */
#ifndef PEERBUF_EXPORTER_EMULATED_SETTINGS_H
#define PEERBUF_EXPORTER_EMULATED_SETTINGS_H

#include <span>
#include <string>
#include <vector>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::emulated
{

/** Deliberate faults, so that tests can show that they would be caught. */
enum class Mutant : uint32_t {
	None,
	EarlyReuse,    /* memory is used again before those who were told have let go */
	Peer2peerKept, /* peer-to-peer is promised also where host memory is handed out */
};

enum class HugePages : uint32_t { Auto, Never, Require };

/** Plain values: the device sends them to its clients as they are. */
struct Settings {
	uint32_t profile; /* index into profiles() */
	uint32_t stability;
	uint32_t pin;
	uint32_t revoke;
	uint32_t needsPeer2peer;
	uint32_t variants;
	uint32_t handles;
	uint32_t access;
	uint32_t placements;
	uint32_t faultRate; /* of 1000 requests, how many fail */
	Mutant mutant;
	uint32_t pool;	     /* enum peerbuf_pool_state at the start */
	uint32_t contiguous; /* the allocator's layout */
	HugePages hugePages;
	uint64_t hbm;
	uint64_t host;
	uint64_t granularity;
	uint64_t window;
	uint64_t windowReserve;
	uint64_t dmaBase;
	uint64_t seed;
	uint64_t tenantBytes; /* bytes a tenant may allocate */
	uint64_t tenantPins;  /* bytes a tenant may pin */
	uint64_t tenantMin;   /* bytes of a tenant that are never evicted for another */

	/** HBM and, above it, the host tier: one range of offsets, one range of bus addresses. */
	uint64_t total() const { return hbm + host; }
};

struct SettingKey {
	const char *key;
	const char *meaning;
};

/** Every key readSettings takes. */
std::span<const SettingKey> settingKeys();

/** Take the device's properties out of @p options; what is wrong is complained there. */
Settings readSettings(plugin::Options &options);

/** The value of one key, spelled in the one canonical way. */
std::string settingText(const Settings &settings, const std::string &key);

/** The keys that key=... decides: itself, and for profile the row of the table. */
std::vector<std::string> settingsDecidedBy(const std::string &key);

} // namespace peerbuf::emulated

#endif
