// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <bit>
#include <cerrno>
#include <string_view>
#include <vector>

#include <peerbuf/plugin_support.hpp>

namespace peerbuf::emulated
{

namespace
{

using plugin::Options;
using plugin::text;

struct Word {
	const char *name;
	uint32_t value;
};

constexpr Word variantWords[] = {
	{"host", PEERBUF_VARIANT_HOST},
	{"pcie", PEERBUF_VARIANT_PCIE},
};

constexpr Word accessWords[] = {
	{"local_write", PEERBUF_ACCESS_LOCAL_WRITE},
	{"remote_read", PEERBUF_ACCESS_REMOTE_READ},
	{"remote_write", PEERBUF_ACCESS_REMOTE_WRITE},
	{"remote_atomic", PEERBUF_ACCESS_REMOTE_ATOMIC},
	{"relaxed_ordering", PEERBUF_ACCESS_RELAXED_ORDERING},
};

struct MutantName {
	const char *name;
	Mutant mutant;
};

constexpr MutantName mutantNames[] = {
	{"none", Mutant::None},
	{"ticket_lost", Mutant::TicketLost},
	{"ticket_double", Mutant::TicketDouble},
	{"ticket_before_drain", Mutant::TicketBeforeDrain},
	{"offset_dropped", Mutant::OffsetDropped},
	{"first_segment_only", Mutant::FirstSegmentOnly},
	{"key_reuse_after_revoke", Mutant::KeyReuseAfterRevoke},
	{"p2p_flag_ignored", Mutant::P2pFlagIgnored},
	{"stale_translation_after_resume", Mutant::StaleTranslationOnResume},
	{"no_resume_after_abort", Mutant::NoResumeAfterAbort},
	{"untranslated", Mutant::Untranslated},
};

constexpr char mutantLine[] =
	"mutant: a deliberate fault, for tests of tests; ticket_lost, ticket_double, "
	"ticket_before_drain, offset_dropped, first_segment_only, key_reuse_after_revoke, "
	"p2p_flag_ignored, stale_translation_after_resume, no_resume_after_abort, untranslated; "
	"default none";

constexpr uint64_t leastPage = 4096;
constexpr uint64_t greatestPage = uint64_t{1} << 40;

std::vector<std::string> split(std::string_view list)
{
	std::vector<std::string> parts;
	for (;;) {
		const size_t plus = list.find('+');
		parts.emplace_back(list.substr(0, plus));
		if (plus == std::string_view::npos)
			return parts;
		list.remove_prefix(plus + 1);
	}
}

/** A sum of words, as bits. */
template <size_t N>
uint32_t words(Options &options, const std::string &key, const Word (&known)[N],
	       const std::string &fallback)
{
	const std::string value = options.string(key, fallback);
	uint32_t bits = 0;
	for (const std::string &part : split(value)) {
		uint32_t bit = 0;
		std::string list;
		for (const Word &word : known) {
			if (part == word.name)
				bit = word.value;
			list += text(list.empty() ? "" : ", ", word.name);
		}
		if (!bit)
			options.complain(text("option ", key, "='", value, "': '", part,
					      "' is not one of ", list, " (joined by +)"));
		bits |= bit;
	}
	return bits;
}

/** @return 0 for anything that is not a size of a page. */
uint64_t pageSize(std::string_view word)
{
	uint64_t n = 0;
	const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
	if (error != std::errc())
		return 0;
	const std::string_view rest(end, static_cast<size_t>(word.data() + word.size() - end));
	unsigned shift = 0;
	if (!rest.empty()) {
		const size_t power = std::string_view("KMG").find(rest[0]);
		if (rest.size() != 1 || power == std::string_view::npos)
			return 0;
		shift = 10 * (static_cast<unsigned>(power) + 1);
	}
	if (n > (greatestPage >> shift))
		return 0;
	n <<= shift;
	return std::has_single_bit(n) && n >= leastPage ? n : 0;
}

uint64_t pageSizes(Options &options)
{
	const std::string value = options.string("page_sizes", "4K+2M");
	uint64_t bits = 0;
	for (const std::string &part : split(value)) {
		const uint64_t size = pageSize(part);
		if (!size)
			options.complain(text("option page_sizes='", value, "': '", part,
					      "' is not a power of two from 4K to 1024G (sizes "
					      "joined by +)"));
		bits |= size;
	}
	return bits;
}

Mutant mutant(Options &options)
{
	std::vector<std::string> names;
	for (const MutantName &known : mutantNames)
		names.emplace_back(known.name);
	const std::string value = options.choice("mutant", names, "none");
	for (const MutantName &known : mutantNames) {
		if (value == known.name)
			return known.mutant;
	}
	return Mutant::None;
}

} // namespace

const char *const nicOptionLines[] = {
	"name: of the device; default emulated-nic",
	"engine: stepped (by the test operations, order chosen by seed) or thread; default stepped",
	"seed: of the order in which a stepped engine works; default 1",
	"mtu: longest packet, 64 to 1M; default 4096",
	"queue_depth: work requests posted and not polled; default 64",
	"posted_writes: packets that may be on their way to memory; default 16",
	"early_completion: yes reports a write before its last packet has landed; default no",
	"profile: refault, revocable or neither, when told to let go; default refault",
	"scope: range or whole, the least it can stop of a region; default range",
	"fault_window: longest range asked for at a refault; default 256K",
	"prefault: yes maps a Movable region when it is made, not when it is touched; default no",
	"peer2peer: no refuses memory that is another device's; default yes",
	"variants: host+pcie; default both",
	"access: local_write+remote_read+remote_write+remote_atomic+relaxed_ordering; default all",
	"page_sizes: of its translation, such as 4K+64K+2M; default 4K+2M",
	"max_length: longest region; default no limit",
	"dma_mask: address bits it drives, 1 to 64; default 64",
	"merges: no keeps adjacent segments apart; default yes",
	"max_segments: of a region, 0 for no limit; default 0",
	"keys: how many there are; default 4096",
	"iommu: identity or translating (all but its own addresses dropped); default identity",
	"locks_host_memory: yes counts host memory against memlock; default no",
	"trace: yes logs every packet at level trace; default no",
	mutantLine,
	nullptr,
};

int parseNicOptions(const peerbuf_host *host, const peerbuf_param *params, size_t count,
		    NicOptions &ret_options)
{
	Options options(host, params, count);
	NicOptions nic;

	nic.name = options.string("name", "emulated-nic");
	if (nic.name.empty() || nic.name.size() >= PEERBUF_NAME_LEN)
		options.complain(text("option name: ", nic.name.size(), " characters, 1 to ",
				      PEERBUF_NAME_LEN - 1, " are allowed"));
	nic.threaded = options.choice("engine", {"stepped", "thread"}, "stepped") == "thread";
	nic.seed = options.number("seed", 1);
	nic.mtu = options.bytes("mtu", 4096, 64, 1 << 20);
	nic.queueDepth = options.number("queue_depth", 64, 1, 1 << 20);
	nic.postedWrites = options.number("posted_writes", 16, 1, 1 << 16);
	nic.earlyCompletion = options.flag("early_completion", false);
	const std::string profile =
		options.choice("profile", {"refault", "revocable", "neither"}, "refault");
	nic.profile = profile == "refault"     ? Profile::Refault
		      : profile == "revocable" ? Profile::Revocable
					       : Profile::Neither;
	nic.wholeScope = options.choice("scope", {"range", "whole"}, "range") == "whole";
	nic.faultWindow = options.bytes("fault_window", nic.faultWindow, leastPage);
	nic.prefault = options.flag("prefault", false);
	nic.peer2peer = options.flag("peer2peer", true);
	nic.variants = words(options, "variants", variantWords, "host+pcie");
	nic.access = words(options, "access", accessWords,
			   "local_write+remote_read+remote_write+remote_atomic+relaxed_ordering");
	nic.pageSizes = pageSizes(options);
	nic.maxLength = options.bytes("max_length", PEERBUF_UNLIMITED, 1);
	nic.dmaMaskBits = static_cast<uint32_t>(options.number("dma_mask", 64, 1, 64));
	nic.mergesSegments = options.flag("merges", true);
	nic.maxSegments = static_cast<uint32_t>(options.number("max_segments", 0, 0, UINT32_MAX));
	nic.keys = options.number("keys", 4096, 1, (1 << 24) - 1);
	nic.iommuTranslates =
		options.choice("iommu", {"identity", "translating"}, "identity") == "translating";
	nic.locksHostMemory = options.flag("locks_host_memory", false);
	nic.trace = options.flag("trace", false);
	nic.mutant = mutant(options);

	if (const int rc = options.finish())
		return rc;
	ret_options = nic;
	return 0;
}

} // namespace peerbuf::emulated
