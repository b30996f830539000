// SPDX-License-Identifier: BSD-3-Clause
#include "demo_target.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include <poll.h>
#include <sched.h>

#include <peerbuf/fabric.h>

#include "blocks.h"
#include "demo_protocol.h"
#include "exit_code.h"
#include "pair.h"
#include "rma.h"
#include "words.h"

namespace peerbuf::tools
{

namespace
{

using namespace demo;
using Clock = std::chrono::steady_clock;

constexpr uint32_t readWrite =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;
constexpr const char *tenant = "demo";
/* of the device that all processes share; a device that does not answer counts as gone */
constexpr const char *deviceTimeoutMs = "10000";
constexpr const char *smallHbm = "16M";
constexpr uint64_t smallSize = 2 << 20;
constexpr std::chrono::seconds eventPatience(10);

/** The device process died, hangs, or talks nonsense. */
bool deviceIsLost(uint32_t errc)
{
	return errc == PEERBUF_ERR_DEVICE_GONE || errc == PEERBUF_ERR_TIMEOUT ||
	       errc == PEERBUF_ERR_PROTOCOL;
}

/** A buffer and its registration, in the order in which they may end. */
struct Registered {
	BufferHandle buffer;
	Registration reg;
	peerbuf_buffer_info info = sized<peerbuf_buffer_info>();
	peerbuf_reg_info all = sized<peerbuf_reg_info>();
	peerbuf_reg_importer_info region = sized<peerbuf_reg_importer_info>();
};

class Target
{
public:
	Target(Channel &parent, Channel &peer, const Start &start)
	    : parent_(parent),
	      peer_(peer),
	      start_(start)
	{
	}

	/** All sections, then give everything back. */
	void run();
	const TargetResult &result() const { return result_; }
	const Failure &failure() const { return failure_; }

private:
	bool going() const { return failure_.why.empty() && result_.trouble.empty(); }
	bool open();
	void negotiation();
	void traffic();
	void pinFallback();
	void quota();
	void revoke();
	void giveBack();

	bool openShared(ExporterSide *side);
	bool registerMemory(const ExporterSide &exporter, peerbuf_importer_t importer,
			    uint64_t size, Registered *made);
	bool serve(const Registered &made);
	bool answerPeer(const Registered &made);
	std::string deviceHas(const Registered &made, const Block &block);
	void readEvents(peerbuf_reg_t reg, bool *ret_revoked);
	void broken(const std::string &step);
	void fault(const std::string &what);
	void tell(const std::string &title, std::vector<std::string> lines);
	void say();
	void count(uint32_t flow);
	uint64_t ledgerUsed(const char *device) const;

	Channel &parent_;
	Channel &peer_;
	const Start start_;
	TargetResult result_;
	Failure failure_;
	std::map<std::string, uint64_t> flows_;
	Progress progress_;
	Clock::time_point nextWord_;
	std::vector<uint8_t> seen_; /* what the device read for us */

	Context ctx_;
	ExporterSide device_; /* the process of its own that the demo started */
	ExporterSide revoking_;
	ImporterSide refault_;
	ImporterSide revocable_;
	ImporterSide neither_;
};

/* ---- telling ------------------------------------------------------------------------------- */

void Target::tell(const std::string &title, std::vector<std::string> lines)
{
	if (!parent_.send(Section{title, std::move(lines)}.json()) && going())
		failure_ = {exitBad, parent_.problem()};
}

/** A sign of life, and a look at whether the parent still lives. */
void Target::say()
{
	const auto now = Clock::now();
	if (now < nextWord_)
		return;
	nextWord_ = now + progressEvery;
	if (!parent_.send(progress_.json()) || (parent_.receive(), !parent_.open()))
		failure_ = {exitBad, parent_.problem()};
}

void Target::fault(const std::string &what)
{
	result_.faults.push_back(what);
}

/** A call of peerbuf that should have worked: a device that is gone, or a fault of ours. */
void Target::broken(const std::string &step)
{
	const peerbuf_error &error = lastError();
	const std::string what = step + ": " + error.what;
	const bool gone =
		error.errc == PEERBUF_ERR_DEVICE_GONE || error.errc == PEERBUF_ERR_TIMEOUT;
	if (gone && going())
		result_.trouble = "the device is gone (" + what + ")";
	else if (going())
		fault(what);
}

void Target::count(uint32_t flow)
{
	if (flow)
		flows_[peerbuf_flow_name(flow)]++;
	else
		result_.pairsRefused++;
}

uint64_t Target::ledgerUsed(const char *device) const
{
	uint64_t used = 0;
	for (const uint32_t column :
	     {PEERBUF_LEDGER_PINS, PEERBUF_LEDGER_WINDOW, PEERBUF_LEDGER_HOST}) {
		auto info = sized<peerbuf_ledger_info>();
		if (peerbuf_query_ledger(ctx_.get(), nullptr, device, column, &info) == 0)
			used += info.used;
	}
	return used;
}

/* ---- 0: open ------------------------------------------------------------------------------- */

bool Target::openShared(ExporterSide *side)
{
	PluginSpec spec{"emulated",
			{{"socket", "/proc/self/fd/" + std::to_string(deviceFd)},
			 {"tenant", tenant},
			 {"timeout", deviceTimeoutMs}}};
	if (!side->open(ctx_, spec, &failure_)) {
		if (deviceIsLost(lastError().errc)) {
			result_.trouble = failure_.why;
			failure_ = {};
		}
		return false;
	}
	side->spec = PluginSpec{"emulated", {{"profile", "moves"}}}; /* what reports call it */
	return true;
}

bool Target::open()
{
	auto attr = sized<peerbuf_open_attr>();
	attr.tenant = tenant;
	if (ctx_.open(&attr)) {
		failure_ = {exitMissing, lastError().what};
		return false;
	}
	const auto emulated = [](const char *profile) {
		return PluginSpec{"emulated", {{"profile", profile}}};
	};
	return openShared(&device_) &&
	       revoking_.open(ctx_, emulated("revokes").with("hbm", smallHbm), &failure_) &&
	       refault_.open(ctx_, emulated("refault"), &failure_) &&
	       revocable_.open(ctx_, emulated("revocable"), &failure_) &&
	       neither_.open(ctx_, emulated("neither"), &failure_);
}

/* ---- 1: negotiation ------------------------------------------------------------------------ */

std::string profileOf(const PluginSpec &spec)
{
	const std::string *profile = spec.option("profile");
	const std::string *provider = spec.option("provider");
	return profile ? *profile : provider ? *provider : spec.name;
}

/** The one reason to show: why not the best flow, or, where there is none, why not the last. */
const peerbuf_refusal *decisive(const PairResult &pair)
{
	const peerbuf_refusal *found = nullptr;
	for (const peerbuf_refusal &refusal : pair.refusals) {
		if (pair.flow && !found)
			found = &refusal;
		if (!pair.flow && refusal.flow != PEERBUF_FLOW_STAGED &&
		    refusal.flow != PEERBUF_FLOW_REKEY)
			found = &refusal;
	}
	return found;
}

std::vector<std::string> pairLines(const PairResult &pair, const ExporterSide &exporter,
				   const ImporterSide &importer)
{
	char head[160];
	snprintf(head, sizeof(head), "%-8s x %-12s %-11s  %-9s  %s",
		 profileOf(exporter.spec).c_str(), importer.kind().c_str(),
		 profileOf(importer.spec).c_str(), pair.outcome().c_str(),
		 pair.verified == true ? "bytes verified" : "");
	std::vector<std::string> lines = {head};
	if (pair.bad())
		lines.push_back("    error: " + pair.error);
	if (const peerbuf_refusal *refusal = decisive(pair))
		lines.push_back("    " + refusalText(*refusal));
	return lines;
}

void Target::negotiation()
{
	ExporterSide fixed;
	ExporterSide nopin;
	ImporterSide fabric;
	const PluginSpec small{"emulated", {{"hbm", smallHbm}}};
	if (!fixed.open(ctx_, small.with("profile", "static"), &failure_) ||
	    !nopin.open(ctx_, small.with("profile", "nopin"), &failure_) ||
	    !fabric.open(ctx_, PluginSpec{"fabric", {{"provider", start_.provider}}}, &failure_))
		return;
	const std::pair<const ExporterSide *, const ImporterSide *> pairs[] = {
		{&fixed, &neither_}, {&device_, &refault_},	{&device_, &neither_},
		{&device_, &fabric}, {&revoking_, &revocable_}, {&revoking_, &neither_},
		{&nopin, &refault_}, {&nopin, &neither_},
	};
	std::vector<std::string> lines;
	for (const auto &[exporter, importer] : pairs) {
		const PairResult pair = tryPair(ctx_, *exporter, *importer, nullptr);
		if (!pair.bad())
			count(pair.flow);
		result_.pairs.push_back(pair.json());
		if (pair.bad())
			fault("pair " + pair.exporter + " x " + pair.importer + ": " + pair.error);
		for (std::string &line : pairLines(pair, *exporter, *importer))
			lines.push_back(std::move(line));
		say();
	}
	tell("negotiation: what each pair can do, and why not more", lines);
}

/* ---- 2: traffic ---------------------------------------------------------------------------- */

bool Target::registerMemory(const ExporterSide &exporter, peerbuf_importer_t importer,
			    uint64_t size, Registered *made)
{
	if (made->buffer.alloc(ctx_, exporter.handle, size) ||
	    peerbuf_query_buffer(ctx_.get(), made->buffer.id(), &made->info))
		return false;
	auto source = sized<peerbuf_source>();
	source.fd = -1;
	source.buffer = made->buffer.id();
	source.length = size;
	return made->reg.make(ctx_, source, {importer}, readWrite) == 0 &&
	       peerbuf_query_reg(ctx_.get(), made->reg.id(), &made->all) == 0 &&
	       peerbuf_query_reg_importer(ctx_.get(), made->reg.id(), 0, &made->region) == 0;
}

/** @return "" or the first byte of the block that the device itself does not see. */
std::string Target::deviceHas(const Registered &made, const Block &block)
{
	seen_.resize(block.length);
	const int rc = device_.ops->device_read(device_.device, made.info.handle, block.offset,
						seen_.data(), block.length);
	if (rc == -ENODEV) {
		result_.trouble = "the device is gone: it no longer answers reads";
		return result_.trouble;
	}
	if (rc)
		return "the device's own read failed: " + errnoWord(rc);
	result_.deviceChecked++;
	const auto at = firstWrong(start_.seed, block.number, 0, seen_.data(), block.length);
	return at ? "byte " + std::to_string(*at) + " is not in the device's memory" : "";
}

/** @return whether there was a message. */
bool Target::answerPeer(const Registered &made)
{
	const auto message = peer_.receive();
	if (!message)
		return false;
	std::string problem = "message '" + messageType(*message) + "', which is none of a peer's";
	if (messageType(*message) == "done") {
		peer_.close("done");
		return true;
	}
	std::optional<Check> check;
	if (messageType(*message) == "check")
		check = Check::from(*message, made.all.length, &problem);
	if (!check) {
		peer_.refuse(problem);
		return true;
	}
	Checked answer;
	answer.number = check->block.number;
	answer.wrong = deviceHas(made, check->block);
	progress_.blocks++;
	progress_.bytes += check->block.length;
	progress_.bad += !answer.wrong.empty();
	if (going())
		peer_.send(answer.json());
	return true;
}

void Target::readEvents(peerbuf_reg_t reg, bool *ret_revoked)
{
	peerbuf_progress(ctx_.get());
	peerbuf_event event = {};
	while (ctx_.nextEvent(event) == 1) {
		if (event.type == PEERBUF_EVENT_DEVICE_GONE &&
		    event.exporter == device_.handle.id() && going())
			result_.trouble = "the device is gone";
		if (event.type == PEERBUF_EVENT_REVOKED && event.reg == reg)
			*ret_revoked = true;
	}
}

void Target::traffic()
{
	RmaOptions options;
	options.provider = start_.provider;
	std::string why;
	const auto endpoint = RmaEndpoint::create(options, why);
	if (!endpoint) {
		failure_ = {exitMissing, why};
		return;
	}
	auto objects = sized<peerbuf_fabric_objects>();
	objects.domain = endpoint->domain();
	objects.info = endpoint->info();
	objects.ep = endpoint->ep();
	std::vector<peerbuf_param> params;
	if (peersMayUseCma(endpoint->provider()))
		params.push_back({"peers_without_cma", "yes"}); /* our peer is started so */
	ImporterHandle importer;
	Registered made;
	if (importer.open(ctx_, "fabric", params, &objects) ||
	    !registerMemory(device_, importer.id(), start_.size, &made)) {
		broken("registering " + bytesWords(start_.size) + " for traffic");
		return;
	}
	count(made.region.flow);
	const std::string flow = peerbuf_flow_name(made.region.flow);

	Region region;
	region.address = endpoint->name();
	region.base = made.region.remote_base;
	region.length = start_.size;
	region.key = made.region.key64;
	region.rawKey.assign(made.region.raw_key, made.region.raw_key + made.region.raw_key_size);
	peer_.send(region.json());

	bool revoked = false;
	auto lastHeard = Clock::now();
	for (uint64_t turn = 0; going() && peer_.open(); turn++) {
		RmaCompletion completion;
		const int rc = endpoint->pollOnce(&completion);
		if (rc != 0)
			fault("the target's endpoint: " + completion.what);
		const bool heard = answerPeer(made);
		if (heard)
			lastHeard = Clock::now();
		if (turn % 64 == 0) {
			readEvents(made.reg.id(), &revoked);
			say();
			if (Clock::now() - lastHeard > patience)
				peer_.close("the peer asked nothing for " +
					    std::to_string(patience.count()) + " s");
		}
		if (!heard && rc == 0)
			sched_yield();
		if (rc != 0)
			break;
	}
	if (going() && peer_.problem() != "done")
		result_.trouble = peer_.problem();
	if (peer_.open())
		peer_.send(stop(result_.trouble.empty() ? "the target ends" : result_.trouble));
	if (revoked && going())
		fault("the region was revoked during traffic");
	if (made.reg.reset() || made.buffer.reset())
		broken("giving the region back");
	tell("traffic: RMA by a peer into the device's memory",
	     {"moves x software RMA (" + endpoint->provider() + "): " + flow + ", " +
	      bytesWords(start_.size) + "; " + std::to_string(progress_.blocks) +
	      " blocks read by the device itself, " + std::to_string(progress_.bad) + " bad"});
}

/* ---- 3, 4, 5: a fallback, a refusal, a revoke ---------------------------------------------- */

void Target::pinFallback()
{
	Registered made;
	if (!registerMemory(device_, neither_.handle.id(), smallSize, &made)) {
		broken("registering for the pin fallback");
		return;
	}
	count(made.region.flow);
	std::vector<std::string> lines = {std::string("moves x emulated NIC that cannot stop: ") +
					  peerbuf_flow_name(made.region.flow) + ", " +
					  bytesWords(made.all.pinned_bytes) +
					  " charged to tenant " + tenant};
	bool explained = false;
	for (const peerbuf_refusal &refusal : refusalsOf(ctx_, made.reg.id())) {
		explained = explained || refusal.flow == PEERBUF_FLOW_MOVABLE;
		lines.push_back("    " + refusalText(refusal));
	}
	if (made.region.flow == PEERBUF_FLOW_PINNED && explained && made.all.pinned_bytes)
		result_.pinFallbacks++;
	else
		fault("no explained and charged fallback to Pinned");
	if (made.reg.reset())
		broken("deregistering");
	tell("pin fallback: the memory could move, the importer cannot follow", lines);
}

void Target::quota()
{
	const char *device = device_.offer.device;
	auto before = sized<peerbuf_ledger_info>();
	if (peerbuf_query_ledger(ctx_.get(), tenant, device, PEERBUF_LEDGER_PINS, &before) ||
	    peerbuf_ledger_set_limit(ctx_.get(), tenant, device, PEERBUF_LEDGER_PINS, smallSize)) {
		broken("setting a limit");
		return;
	}
	std::vector<std::string> lines;
	Registered held;
	if (!registerMemory(device_, neither_.handle.id(), smallSize / 2, &held)) {
		broken("a registration within the limit");
	} else {
		Registered made;
		const uint64_t usedBefore = ledgerUsed(nullptr);
		if (registerMemory(device_, neither_.handle.id(), smallSize, &made)) {
			fault("a registration beyond the limit was let through");
		} else if (lastError().err == -EDQUOT && lastError().errc == PEERBUF_ERR_QUOTA) {
			result_.quotaRefused++;
			lines.emplace_back(lastError().what);
			if (ledgerUsed(nullptr) != usedBefore)
				fault("the refused registration left a charge");
		} else {
			broken("a registration beyond the limit");
		}
	}
	if (peerbuf_ledger_set_limit(ctx_.get(), tenant, device, PEERBUF_LEDGER_PINS, before.limit))
		broken("setting the limit back");
	tell("quota: more pins than tenant " + std::string(tenant) + " may have (" +
		     bytesWords(smallSize) + ")",
	     lines);
}

/** Access of a peer through the emulated NIC. @return its status. */
int touch(const ImporterSide &nic, const peerbuf_reg_importer_info &region, uint8_t value)
{
	std::vector<uint8_t> data(4096, value);
	auto t = sized<peerbuf_transfer>();
	t.op = PEERBUF_TRANSFER_WRITE;
	t.key64 = region.key64;
	t.remote_addr = region.remote_base;
	t.data = data.data();
	t.length = data.size();
	return nic.ops->transfer(nic.device, &t);
}

void Target::revoke()
{
	Registered made;
	if (!registerMemory(revoking_, revocable_.handle.id(), smallSize, &made)) {
		broken("registering what will be revoked");
		return;
	}
	count(made.region.flow);
	const int before = touch(revocable_, made.region, 0x5a);
	if (before)
		fault("access before the revoke failed: " + errnoWord(before));
	if (revoking_.ops->revoke(revoking_.device, made.info.handle)) {
		fault("the device did not revoke");
		return;
	}
	bool revoked = false;
	for (const auto end = Clock::now() + eventPatience; !revoked && Clock::now() < end;) {
		pollfd p = {ctx_.eventFd(), POLLIN, 0};
		::poll(&p, 1, 100);
		readEvents(made.reg.id(), &revoked);
		say();
	}
	const int after = touch(revocable_, made.region, 0xa5);
	if (!revoked)
		fault("no event said that the memory was revoked");
	else if (after == 0)
		fault("access after the revoke went through");
	else
		result_.revokedAccessFailed++;
	std::vector<uint8_t> bytes(4096);
	if (revoked &&
	    revoking_.ops->device_read(revoking_.device, made.info.handle, 0, bytes.data(),
				       bytes.size()) == 0 &&
	    std::find(bytes.begin(), bytes.end(), 0xa5) != bytes.end())
		fault("bytes written after the revoke arrived");
	if (made.reg.reset())
		broken("deregistering what was revoked");
	tell("revoke: the device takes its memory back",
	     {std::string("revokes x emulated NIC that can stop: ") +
	      peerbuf_flow_name(made.region.flow) +
	      "; a write before: " + (before ? errnoWord(before) : "done") +
	      ", a write after: " + (after ? errnoWord(after) : "done")});
}

/* ---- 6: everything back -------------------------------------------------------------------- */

void Target::giveBack()
{
	result_.ledgerBytesAfter = ctx_ ? ledgerUsed(nullptr) : 0;
	for (const ExporterSide *side : {&device_, &revoking_}) {
		auto stats = sized<peerbuf_exporter_stats>();
		if (!side->handle || !side->ops || !side->ops->stats ||
		    side->ops->stats(side->device, &stats))
			continue;
		if (stats.attachments || stats.pins || stats.mappings || stats.exports ||
		    stats.violations)
			fault("the device still counts " + std::to_string(stats.attachments) +
			      " attachments, " + std::to_string(stats.pins) + " pins, " +
			      std::to_string(stats.mappings) + " mappings, " +
			      std::to_string(stats.exports) + " exports, " +
			      std::to_string(stats.violations) + " breaches");
	}
	for (const auto &[flow, count] : flows_)
		result_.flows.emplace_back(flow, count);
}

void Target::run()
{
	static constexpr void (Target::*sections[])() = {
		&Target::negotiation, &Target::traffic, &Target::pinFallback,
		&Target::quota,	      &Target::revoke,
	};
	if (open()) {
		for (const auto section : sections) {
			if (going())
				(this->*section)();
			/* a death that no call has met yet */
			bool revoked = false;
			if (going())
				readEvents(0, &revoked);
		}
	}
	giveBack();
	/* the reason first, so that it is known before the peer tells of its consequence */
	if (!failure_.why.empty())
		parent_.send(Failed{failure_.exitCode, failure_.why}.json());
	if (peer_.open())
		peer_.send(stop(failure_.why.empty() ? result_.trouble : failure_.why));
}

} // namespace

int runDemoTarget()
{
	Channel parent(UniqueFd(parentFd), "parent");
	Channel peer(UniqueFd(otherFd), "peer");
	const auto start = awaitStart(&parent);
	if (!start) {
		fprintf(stderr, "peerbuf demo, target: %s\n", parent.problem().c_str());
		return exitUsage;
	}
	{
		/* what libfabric opens at the first use, and keeps, is no leak */
		RmaOptions options;
		options.provider = start->provider;
		std::string error;
		const auto first = RmaEndpoint::create(options, error);
	}
	const auto fdsBefore = openFds();
	TargetResult result;
	{
		Target target(parent, peer, *start);
		target.run();
		if (!target.failure().why.empty())
			return parent.open() ? exitOk : exitBad; /* it has said so */
		result = target.result();
	}
	std::vector<std::string> leaks;
	result.fdsLeaked = leakedFds(fdsBefore, &leaks);
	for (const std::string &leak : leaks)
		parent.send(note("target: descriptor left open: " + leak));
	return parent.send(result.json()) ? exitOk : exitBad;
}

} // namespace peerbuf::tools
