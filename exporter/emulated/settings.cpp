// SPDX-License-Identifier: BSD-3-Clause
#include "settings.h"

#include <algorithm>
#include <bit>

#include <peerbuf/testing.h>

#include "pages.h"

namespace peerbuf::emulated
{

namespace
{

struct Word {
	const char *word;
	uint32_t value;
};

struct Profile {
	const char *name;
	uint32_t stability;
	uint32_t pin;
	uint32_t revoke;
};

/* The rows of the negotiation table. */
constexpr Profile profiles[] = {
	{"static", PEERBUF_STABILITY_STATIC, PEERBUF_PIN_NOT_NEEDED, PEERBUF_REVOKE_NEVER},
	{"moves", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_CAN, PEERBUF_REVOKE_NEVER},
	{"revokes", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_CAN, PEERBUF_REVOKE_MAY},
	{"nopin", PEERBUF_STABILITY_MOVES, PEERBUF_PIN_REFUSES, PEERBUF_REVOKE_NEVER},
};

constexpr Word stabilityWords[] = {{"static", PEERBUF_STABILITY_STATIC},
				   {"moves", PEERBUF_STABILITY_MOVES}};
constexpr Word pinWords[] = {{"not_needed", PEERBUF_PIN_NOT_NEEDED},
			     {"can", PEERBUF_PIN_CAN},
			     {"refuses", PEERBUF_PIN_REFUSES}};
constexpr Word revokeWords[] = {{"never", PEERBUF_REVOKE_NEVER}, {"may", PEERBUF_REVOKE_MAY}};
constexpr Word peer2peerWords[] = {{"optional", 0}, {"required", 1}};
constexpr Word variantWords[] = {{"host", PEERBUF_VARIANT_HOST}, {"pcie", PEERBUF_VARIANT_PCIE}};
constexpr Word handleWords[] = {{"segments", PEERBUF_HANDLE_SEGMENTS},
				{"cpu", PEERBUF_HANDLE_CPU},
				{"fd", PEERBUF_HANDLE_FD}};
constexpr Word accessWords[] = {{"local_write", PEERBUF_ACCESS_LOCAL_WRITE},
				{"remote_read", PEERBUF_ACCESS_REMOTE_READ},
				{"remote_write", PEERBUF_ACCESS_REMOTE_WRITE},
				{"remote_atomic", PEERBUF_ACCESS_REMOTE_ATOMIC}};
constexpr Word placementWords[] = {{"device", PEERBUF_PLACEMENT_DEVICE},
				   {"host", PEERBUF_PLACEMENT_HOST}};

constexpr Word mutantWords[] = {{"none", static_cast<uint32_t>(Mutant::None)},
				{"early_reuse", static_cast<uint32_t>(Mutant::EarlyReuse)},
				{"peer2peer_kept", static_cast<uint32_t>(Mutant::Peer2peerKept)}};

constexpr Word poolWords[] = {{"offline", PEERBUF_POOL_OFFLINE},
			      {"isolated", PEERBUF_POOL_ISOLATED},
			      {"online", PEERBUF_POOL_ONLINE}};
constexpr Word layoutWords[] = {{"scattered", 0}, {"contiguous", 1}};
constexpr Word hugeWords[] = {{"auto", static_cast<uint32_t>(HugePages::Auto)},
			      {"never", static_cast<uint32_t>(HugePages::Never)},
			      {"require", static_cast<uint32_t>(HugePages::Require)}};

constexpr SettingKey keys[] = {
	{"profile", "static | moves | revokes | nopin: a row of the negotiation table (moves)"},
	{"stability", "static | moves"},
	{"pin", "not_needed | can | refuses"},
	{"revoke", "never | may"},
	{"peer2peer", "required | optional (optional)"},
	{"variants", "host, pcie, joined by + (host+pcie)"},
	{"handles", "segments, cpu, fd, joined by + (all)"},
	{"access", "local_write, remote_read, remote_write, remote_atomic, joined by + (all)"},
	{"placements", "device, host, joined by + (device)"},
	{"hbm", "bytes of emulated HBM (256M)"},
	{"host", "bytes of the host tier (as hbm where placements has host, else 0)"},
	{"granularity", "bytes of a page, a power of two from 4096 (4096)"},
	{"window", "bytes of the PCIe window; 0: none that limits (0)"},
	{"window_reserve", "bytes of the window never given out (0)"},
	{"dma_base", "bus address of the first byte of HBM (0x1000000000)"},
	{"seed", "of the scattering allocator and of fault_rate (1)"},
	{"layout", "scattered | contiguous: where the allocator puts what belongs together "
		   "(scattered)"},
	{"huge_pages", "auto | never | require: pages of 2 MiB, for large pieces; auto tries where "
		       "layout=contiguous (auto)"},
	{"pool", "offline | isolated | online: what the pools of memory begin as (online)"},
	{"tenant_bytes", "bytes that one tenant may allocate (no limit)"},
	{"tenant_pins",
	 "bytes that one tenant may pin (half of the HBM; without, of the host tier)"},
	{"tenant_min", "bytes of HBM up to which nothing of a tenant makes room for others (0)"},
	{"fault_rate", "of 1000 requests that can fail, how many are made to (0)"},
	{"mutant", "a deliberate fault, for tests of tests: none | early_reuse | peer2peer_kept "
		   "(none)"},
};

std::string joined(std::span<const Word> words, uint32_t bits)
{
	std::string list;
	for (const Word &w : words)
		if (bits & w.value)
			list += (list.empty() ? "" : "+") + std::string(w.word);
	return list;
}

std::string wordOf(std::span<const Word> words, uint32_t value)
{
	for (const Word &w : words)
		if (w.value == value)
			return w.word;
	return plugin::text(value);
}

uint32_t readWord(plugin::Options &options, const char *key, std::span<const Word> words,
		  uint32_t fallback)
{
	std::vector<std::string> choices;
	for (const Word &w : words)
		choices.emplace_back(w.word);
	const std::string value = options.choice(key, choices, wordOf(words, fallback));
	for (const Word &w : words)
		if (value == w.word)
			return w.value;
	return fallback;
}

uint32_t readBits(plugin::Options &options, const char *key, std::span<const Word> words,
		  uint32_t fallback)
{
	const std::string value = options.string(key, joined(words, fallback));
	uint32_t bits = 0;
	size_t from = 0;
	while (from <= value.size()) {
		const size_t to = std::min(value.find('+', from), value.size());
		const std::string_view one = std::string_view(value).substr(from, to - from);
		bool known = false;
		for (const Word &w : words) {
			if (one == w.word) {
				bits |= w.value;
				known = true;
			}
		}
		if (!known) {
			options.complain(plugin::text("option ", key, "='", value, "': '", one,
						      "' is none of ", joined(words, UINT32_MAX)));
			return fallback;
		}
		from = to + 1;
	}
	return bits;
}

void check(plugin::Options &options, const Settings &s)
{
	using plugin::text;
	if (s.stability == PEERBUF_STABILITY_MOVES && s.pin == PEERBUF_PIN_NOT_NEEDED)
		options.complain("stability=moves with pin=not_needed: memory that moves either "
				 "can be pinned or refuses");
	if (!std::has_single_bit(s.granularity))
		options.complain(text("option granularity=", s.granularity, ": a power of two"));
	else if (s.hbm % s.granularity || s.host % s.granularity)
		options.complain(text("hbm=", s.hbm, ", host=", s.host,
				      ": not multiples of granularity=", s.granularity));
	if (s.windowReserve > s.window)
		options.complain(text("window_reserve=", s.windowReserve,
				      " is more than window=", s.window));
	if (s.dmaBase % s.granularity)
		options.complain(text("dma_base=", plugin::hex(s.dmaBase),
				      ": not a multiple of granularity=", s.granularity));
	if (s.dmaBase > UINT64_MAX - s.total())
		options.complain(text("dma_base=", plugin::hex(s.dmaBase), " with ", s.total(),
				      " bytes passes the end of the address space"));
	if ((s.placements & PEERBUF_PLACEMENT_DEVICE) && s.hbm == 0)
		options.complain("placements has device, but hbm=0");
	if (s.tenantMin > (s.hbm ? s.hbm : s.host))
		options.complain(text("tenant_min=", s.tenantMin,
				      " is more than there is: hbm=", s.hbm, ", host=", s.host));
	if (s.hugePages == HugePages::Require && s.total() < hugePage)
		options.complain(text("huge_pages=require with ", s.total(),
				      " bytes of memory: one "
				      "has ",
				      hugePage));
	if ((s.placements & PEERBUF_PLACEMENT_HOST) && s.host == 0)
		options.complain("placements has host, but host=0");
}

} // namespace

std::span<const SettingKey> settingKeys()
{
	return keys;
}

Settings readSettings(plugin::Options &options)
{
	constexpr uint64_t largest = 1ull << 44;
	Settings s{};

	std::vector<std::string> names;
	for (const Profile &p : profiles)
		names.emplace_back(p.name);
	const std::string profile = options.choice("profile", names, "moves");
	while (profile != profiles[s.profile].name)
		s.profile++;

	const Profile &row = profiles[s.profile];
	s.stability = readWord(options, "stability", stabilityWords, row.stability);
	s.pin = readWord(options, "pin", pinWords, row.pin);
	s.revoke = readWord(options, "revoke", revokeWords, row.revoke);
	s.needsPeer2peer = readWord(options, "peer2peer", peer2peerWords, 0);
	s.variants = readBits(options, "variants", variantWords,
			      PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE);
	s.handles = readBits(options, "handles", handleWords,
			     PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD);
	s.access = readBits(options, "access", accessWords,
			    PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
				    PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC);
	s.placements = readBits(options, "placements", placementWords, PEERBUF_PLACEMENT_DEVICE);
	s.granularity = options.bytes("granularity", 4096, 4096, 1ull << 30);
	s.hbm = options.bytes("hbm", 256ull << 20, 0, largest);
	s.host = options.bytes("host", (s.placements & PEERBUF_PLACEMENT_HOST) ? s.hbm : 0, 0,
			       largest);
	s.window = options.bytes("window", 0, 0, largest);
	s.windowReserve = options.bytes("window_reserve", 0, 0, largest);
	s.dmaBase = options.bytes("dma_base", 0x1000000000);
	s.seed = options.number("seed", 1);
	s.contiguous = readWord(options, "layout", layoutWords, 0);
	s.hugePages = static_cast<HugePages>(readWord(options, "huge_pages", hugeWords, 0));
	s.pool = readWord(options, "pool", poolWords, PEERBUF_POOL_ONLINE);
	s.tenantBytes = options.bytes("tenant_bytes", PEERBUF_UNLIMITED);
	s.tenantPins = options.bytes("tenant_pins", (s.hbm ? s.hbm : s.host) / 2, 0, largest);
	s.tenantMin = options.bytes("tenant_min", 0, 0, largest);
	s.faultRate = static_cast<uint32_t>(options.number("fault_rate", 0, 0, 1000));
	s.mutant = static_cast<Mutant>(readWord(options, "mutant", mutantWords, 0));
	check(options, s);
	return s;
}

std::string settingText(const Settings &s, const std::string &key)
{
	if (key == "profile")
		return profiles[s.profile].name;
	if (key == "stability")
		return wordOf(stabilityWords, s.stability);
	if (key == "pin")
		return wordOf(pinWords, s.pin);
	if (key == "revoke")
		return wordOf(revokeWords, s.revoke);
	if (key == "peer2peer")
		return wordOf(peer2peerWords, s.needsPeer2peer);
	if (key == "variants")
		return joined(variantWords, s.variants);
	if (key == "handles")
		return joined(handleWords, s.handles);
	if (key == "access")
		return joined(accessWords, s.access);
	if (key == "placements")
		return joined(placementWords, s.placements);
	if (key == "hbm")
		return plugin::text(s.hbm);
	if (key == "host")
		return plugin::text(s.host);
	if (key == "granularity")
		return plugin::text(s.granularity);
	if (key == "window")
		return plugin::text(s.window);
	if (key == "window_reserve")
		return plugin::text(s.windowReserve);
	if (key == "dma_base")
		return plugin::hex(s.dmaBase);
	if (key == "seed")
		return plugin::text(s.seed);
	if (key == "layout")
		return wordOf(layoutWords, s.contiguous);
	if (key == "huge_pages")
		return wordOf(hugeWords, static_cast<uint32_t>(s.hugePages));
	if (key == "pool")
		return wordOf(poolWords, s.pool);
	if (key == "tenant_bytes")
		return plugin::text(s.tenantBytes);
	if (key == "tenant_pins")
		return plugin::text(s.tenantPins);
	if (key == "tenant_min")
		return plugin::text(s.tenantMin);
	if (key == "fault_rate")
		return plugin::text(s.faultRate);
	if (key == "mutant")
		return wordOf(mutantWords, static_cast<uint32_t>(s.mutant));
	return "";
}

std::vector<std::string> settingsDecidedBy(const std::string &key)
{
	if (key == "profile")
		return {"stability", "pin", "revoke"};
	return {key};
}

} // namespace peerbuf::emulated
