// SPDX-License-Identifier: BSD-3-Clause
#include "demo_protocol.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <poll.h>

#include "demo.h"
#include "exit_code.h"
#include "words.h"

namespace peerbuf::tools::demo
{

namespace
{

constexpr size_t longestAddress = 1024;
constexpr size_t longestKey = 1024;
constexpr size_t longestText = 32 << 10;

Json orNull(const std::string &text)
{
	return text.empty() ? Json(nullptr) : Json(text);
}

/** The value, if all fields were right. */
template <typename T>
std::optional<T> checked(const Fields &fields, T value, std::string *ret_problem)
{
	if (fields.problem().empty())
		return value;
	*ret_problem = fields.problem();
	return std::nullopt;
}

std::optional<std::vector<uint8_t>> bytes(Fields *fields, const char *key, size_t most,
					  std::string *ret_problem)
{
	auto got = fromHex(fields->string(key, 2 * most), most);
	if (!got)
		*ret_problem = std::string(key) + " is not a hexadecimal string";
	return got;
}

Json pausesJson(const PauseSummary &pauses)
{
	return {{"count", pauses.count},  {"preempted", pauses.preempted},
		{"p50_ns", pauses.p50Ns}, {"p99_ns", pauses.p99Ns},
		{"max_ns", pauses.maxNs}, {"octaves", pauses.octaves}};
}

PauseSummary pausesFrom(const Json &message, std::string *ret_problem)
{
	constexpr size_t mostOctaves = 64;
	Fields fields(message);
	PauseSummary pauses;
	pauses.count = fields.number("count");
	pauses.preempted = fields.number("preempted");
	pauses.p50Ns = fields.number("p50_ns");
	pauses.p99Ns = fields.number("p99_ns");
	pauses.maxNs = fields.number("max_ns");
	for (const Json &n : fields.list("octaves")) {
		if (!n.is_number_unsigned() || pauses.octaves.size() == mostOctaves) {
			*ret_problem = "octaves are no numbers, or too many";
			return pauses;
		}
		pauses.octaves.push_back(n);
	}
	if (ret_problem->empty())
		*ret_problem = fields.problem();
	return pauses;
}

} // namespace

Json Start::json() const
{
	return {{"type", "start"},    {"provider", provider}, {"seed", seed},
		{"seconds", seconds}, {"size", size},	      {"hbm", hbm},
		{"verbose", verbose}, {"moves", moves},	      {"notify", notify},
		{"cma", cma}};
}

std::optional<Start> Start::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Start start;
	start.provider = fields.string("provider", 64);
	start.seed = fields.number("seed");
	start.seconds = fields.real("seconds", 0, DemoOptions::longest);
	start.size = fields.number("size", DemoOptions::leastSize, DemoOptions::mostSize);
	start.hbm = fields.number("hbm", DemoOptions::leastSize);
	start.verbose = fields.flag("verbose");
	start.moves = fields.flag("moves");
	start.notify = fields.flag("notify");
	start.cma = fields.flag("cma");
	return checked(fields, start, ret_problem);
}

std::vector<uint64_t> Region::lengths() const
{
	std::vector<uint64_t> lengths;
	for (const Part &part : parts)
		lengths.push_back(part.length);
	return lengths;
}

Json Region::json() const
{
	Json list = Json::array();
	for (const Part &part : parts)
		list.push_back({{"base", part.base},
				{"length", part.length},
				{"key", part.key},
				{"raw_key", toHex(part.rawKey)}});
	return {{"type", "region"}, {"address", toHex(address)}, {"parts", list}};
}

std::optional<Region> Region::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Region region;
	const auto address = bytes(&fields, "address", longestAddress, ret_problem);
	if (!address)
		return std::nullopt;
	region.address = *address;
	const Json list = fields.list("parts");
	if (!fields.problem().empty() || list.empty() || list.size() > mostParts) {
		*ret_problem =
			fields.problem().empty() ? "parts are none, or too many" : fields.problem();
		return std::nullopt;
	}
	uint64_t total = 0;
	for (const Json &one : list) {
		Fields of(one);
		Part part;
		const auto rawKey = bytes(&of, "raw_key", longestKey, ret_problem);
		if (!rawKey)
			return std::nullopt;
		part.rawKey = *rawKey;
		part.length = of.number("length", Block::most, DemoOptions::mostSize - total);
		part.base = of.number("base", 0, UINT64_MAX - part.length);
		part.key = of.number("key");
		if (!of.problem().empty()) {
			*ret_problem = of.problem();
			return std::nullopt;
		}
		total += part.length;
		region.parts.push_back(std::move(part));
	}
	return region;
}

Json Check::json(const char *type) const
{
	return {{"type", type},
		{"block", block.number},
		{"offset", block.offset},
		{"length", block.length}};
}

std::optional<Check> Check::from(const Json &message, const std::vector<uint64_t> &parts,
				 std::string *ret_problem)
{
	Fields fields(message);
	Check check;
	uint64_t size = 0;
	for (const uint64_t length : parts)
		size += length;
	check.block.number = fields.number("block");
	check.block.length = fields.number("length", 1, std::min(Block::most, size));
	check.block.offset = fields.number("offset", 0, size - check.block.length);
	if (fields.problem().empty() &&
	    check.block.length > partAt(parts, check.block.offset).room) {
		*ret_problem = "message '" + messageType(message) + "': the block at " +
			       std::to_string(check.block.offset) + " is in two parts";
		return std::nullopt;
	}
	return checked(fields, check, ret_problem);
}

Json Checked::json() const
{
	return {{"type", "checked"}, {"block", number}, {"wrong", orNull(wrong)}};
}

std::optional<Checked> Checked::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Checked answer;
	answer.number = fields.number("block");
	answer.wrong = fields.stringOrNull("wrong");
	return checked(fields, answer, ret_problem);
}

Json Section::json() const
{
	return {{"type", "section"}, {"title", title}, {"lines", lines}};
}

std::optional<Section> Section::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Section section;
	section.title = fields.string("title");
	section.lines = fields.strings("lines");
	return checked(fields, section, ret_problem);
}

Json Progress::json() const
{
	return {{"type", "progress"}, {"blocks", blocks}, {"bytes", bytes}, {"bad", bad}};
}

std::optional<Progress> Progress::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Progress progress;
	progress.blocks = fields.number("blocks");
	progress.bytes = fields.number("bytes");
	progress.bad = fields.number("bad");
	return checked(fields, progress, ret_problem);
}

Json Moves::json() const
{
	return {{"type", "moves"},
		{"moves", moves},
		{"aborted", aborted},
		{"slices", slices},
		{"evictions", evictions},
		{"refaults", refaults},
		{"key_changes", keyChanges},
		{"effective_max_pause_ns", effectiveMaxPauseNs},
		{"pauses", pausesJson(pauses)}};
}

std::optional<Moves> Moves::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Moves m;
	m.moves = fields.number("moves");
	m.aborted = fields.number("aborted");
	m.slices = fields.number("slices");
	m.evictions = fields.number("evictions");
	m.refaults = fields.number("refaults");
	m.keyChanges = fields.number("key_changes");
	m.effectiveMaxPauseNs = fields.number("effective_max_pause_ns");
	std::string problem;
	m.pauses = pausesFrom(fields.object("pauses"), &problem);
	if (!problem.empty() && fields.problem().empty()) {
		*ret_problem = problem;
		return std::nullopt;
	}
	return checked(fields, m, ret_problem);
}

Json Fixed::json() const
{
	return {{"flow", flow}, {"why", why}, {"move_errno", moveErrno}};
}

Json PeerResult::json() const
{
	return {{"type", "result"},
		{"blocks_verified", blocksVerified},
		{"blocks_lost", blocksLost},
		{"blocks_stale", blocksStale},
		{"bytes_verified", bytesVerified},
		{"bytes_swept", bytesSwept},
		{"device_checked", deviceChecked},
		{"seconds", seconds},
		{"first_bad", orNull(firstBad)},
		{"fds_leaked", fdsLeaked},
		{"trouble", orNull(trouble)}};
}

std::optional<PeerResult> PeerResult::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	PeerResult result;
	result.blocksVerified = fields.number("blocks_verified");
	result.blocksLost = fields.number("blocks_lost");
	result.blocksStale = fields.number("blocks_stale");
	result.bytesVerified = fields.number("bytes_verified");
	result.bytesSwept = fields.number("bytes_swept");
	result.deviceChecked = fields.number("device_checked");
	result.seconds = fields.real("seconds", 0, 10 * DemoOptions::longest);
	result.firstBad = fields.stringOrNull("first_bad", longestText);
	result.fdsLeaked = fields.number("fds_leaked");
	result.trouble = fields.stringOrNull("trouble", longestText);
	return checked(fields, result, ret_problem);
}

Json TargetResult::json() const
{
	Json counts = Json::object();
	for (const auto &[flow, count] : flows)
		counts[flow] = count;
	return {{"type", "result"},
		{"flows", counts},
		{"pairs", pairs},
		{"pairs_refused", pairsRefused},
		{"pin_fallbacks", pinFallbacks},
		{"quota_refused", quotaRefused},
		{"revoked_access_failed", revokedAccessFailed},
		{"device_checked", deviceChecked},
		{"moves", moves.json()},
		{"fixed", fixed.json()},
		{"ledger_bytes_after", ledgerBytesAfter},
		{"fds_leaked", fdsLeaked},
		{"faults", faults},
		{"trouble", orNull(trouble)}};
}

std::optional<TargetResult> TargetResult::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	TargetResult result;
	result.flows = fields.counts("flows");
	result.pairs = fields.list("pairs");
	result.pairsRefused = fields.number("pairs_refused");
	result.pinFallbacks = fields.number("pin_fallbacks");
	result.quotaRefused = fields.number("quota_refused");
	result.revokedAccessFailed = fields.number("revoked_access_failed");
	result.deviceChecked = fields.number("device_checked");
	std::string problem;
	const auto moves = Moves::from(fields.object("moves"), &problem);
	const Json fixedJson = fields.object("fixed");
	Fields fixed(fixedJson);
	result.fixed.flow = fixed.string("flow");
	result.fixed.why = fixed.string("why");
	result.fixed.moveErrno = fixed.string("move_errno");
	if (fields.problem().empty() && (!moves || !fixed.problem().empty())) {
		*ret_problem = moves ? fixed.problem() : problem;
		return std::nullopt;
	}
	result.moves = moves.value_or(Moves());
	result.ledgerBytesAfter = fields.number("ledger_bytes_after");
	result.fdsLeaked = fields.number("fds_leaked");
	result.faults = fields.strings("faults");
	result.trouble = fields.stringOrNull("trouble", longestText);
	return checked(fields, result, ret_problem);
}

Json Failed::json() const
{
	return {{"type", "failed"}, {"exit", exitCode}, {"what", what}};
}

std::optional<Failed> Failed::from(const Json &message, std::string *ret_problem)
{
	Fields fields(message);
	Failed failed;
	failed.exitCode = static_cast<int>(fields.number("exit", exitBad, exitChildDied));
	failed.what = fields.string("what", longestText);
	return checked(fields, failed, ret_problem);
}

Json note(const std::string &text)
{
	return {{"type", "note"}, {"text", text}};
}

Json word(const char *type)
{
	return {{"type", type}};
}

Json stop(const std::string &why)
{
	return {{"type", "stop"}, {"why", why}};
}

std::optional<Json> await(Channel *channel, const std::function<bool()> &meanwhile)
{
	auto deadline = std::chrono::steady_clock::now() + patience;
	while (channel->open()) {
		if (auto message = channel->receive())
			return message;
		const auto now = std::chrono::steady_clock::now();
		if (meanwhile && meanwhile())
			deadline = now + patience;
		if (now >= deadline)
			channel->close("the " + channel->other() + " said nothing for " +
				       std::to_string(patience.count()) + " s");
		pollfd p = {channel->fd(), POLLIN, 0};
		if (channel->open())
			::poll(&p, 1, static_cast<int>(progressEvery.count()));
	}
	return std::nullopt;
}

std::optional<Start> awaitStart(Channel *parent)
{
	const auto message = await(parent);
	if (!message)
		return std::nullopt;
	std::string problem = "message '" + messageType(*message) + "' before 'start'";
	std::optional<Start> start;
	if (messageType(*message) == "start")
		start = Start::from(*message, &problem);
	if (!start)
		parent->refuse(problem);
	return start;
}

std::vector<std::pair<int, std::string>> openFds()
{
	namespace fs = std::filesystem;
	std::vector<std::pair<int, std::string>> fds;
	std::error_code error;
	for (fs::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
	     it.increment(error)) {
		std::error_code gone;
		const std::string what = fs::read_symlink(it->path(), gone).string();
		const auto number = parseNumber(it->path().filename().string());
		/* the one that this listing itself takes */
		if (number && what.find("/fd") == std::string::npos)
			fds.emplace_back(static_cast<int>(*number), what);
	}
	return fds;
}

size_t leakedFds(const std::vector<std::pair<int, std::string>> &before,
		 std::vector<std::string> *ret_names)
{
	size_t leaked = 0;
	for (const auto &fd : openFds()) {
		if (std::find(before.begin(), before.end(), fd) != before.end())
			continue;
		leaked++;
		ret_names->push_back(std::to_string(fd.first) + " " + fd.second);
	}
	return leaked;
}

} // namespace peerbuf::tools::demo
