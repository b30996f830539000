// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file options.h
 * What the emulated NIC is told to be.
 */
#ifndef PEERBUF_IMPORTER_EMULATED_OPTIONS_H
#define PEERBUF_IMPORTER_EMULATED_OPTIONS_H

#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbuf/plugin.h>
#include <peerbuf/types.h>

namespace peerbuf::emulated
{

enum class Profile {
	Refault,   // stops, asks for the translation again, goes on
	Revocable, // stops and stays stopped
	Neither,   // cannot stop
};

/** Deliberate faults. The tests of peerbuf are worth what they find of these. */
enum class Mutant {
	None,
	TicketLost,	   // answers -EINPROGRESS and never tells that it has let go
	TicketDouble,	   // tells it twice
	TicketBeforeDrain, // tells it while packets are still on their way
	OffsetDropped,	   // takes the start of the mapping for the start of the region
	FirstSegmentOnly,  // translates every page through the first segment
	KeyReuseAfterRevoke,
	P2pFlagIgnored,		  // claims and takes peer-to-peer memory that it cannot reach
	StaleTranslationOnResume, // goes on with the old translation
	NoResumeAfterAbort,	  // does not go on when a move was given up
	Untranslated,		  // programs bus addresses although its IOMMU translates
};

/** A value; thread-safe once parsed. */
struct NicOptions {
	std::string name;
	bool threaded = false;
	uint64_t seed = 1;
	uint64_t mtu = 4096;
	uint64_t queueDepth = 64;
	uint64_t postedWrites = 16;
	uint64_t faultWindow = uint64_t{256} << 10;
	bool prefault = false;
	bool earlyCompletion = false;
	Profile profile = Profile::Refault;
	bool wholeScope = false;
	bool peer2peer = true;
	uint32_t variants = 0;
	uint32_t access = 0;
	uint64_t pageSizes = 0; // bit n: pages of 2^n bytes
	uint64_t maxLength = PEERBUF_UNLIMITED;
	uint32_t dmaMaskBits = 64;
	bool mergesSegments = true;
	uint32_t maxSegments = 0;
	uint64_t keys = 0;
	bool iommuTranslates = false;
	bool locksHostMemory = false;
	bool trace = false;
	Mutant mutant = Mutant::None;

	uint64_t dmaMask() const
	{
		return dmaMaskBits >= 64 ? UINT64_MAX : (uint64_t{1} << dmaMaskBits) - 1;
	}
	uint64_t smallestPage() const { return pageSizes & (~pageSizes + 1); }
};

/** @return 0, or -EINVAL with the reason told to the host. */
int parseNicOptions(const peerbuf_host *host, const peerbuf_param *params, size_t count,
		    NicOptions &ret_options);

/** "key: meaning" lines, NULL terminated, for the plugin's table. */
extern const char *const nicOptionLines[];

} // namespace peerbuf::emulated

#endif
