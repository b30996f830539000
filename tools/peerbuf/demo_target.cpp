// SPDX-License-Identifier: BSD-3-Clause
#include "demo_target.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <poll.h>

#include "demo_traffic.h"
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

class Target : public TrafficTarget
{
public:
	Target(Channel &parent, Channel &peer, const Start &start)
	    : TrafficTarget(parent, peer, start)
	{
	}

	/** All sections, then give everything back. */
	void run();

private:
	bool open();
	void negotiation();
	void pinFallback();
	void quota();
	void revoke();
	void giveBack();

	bool openShared(ExporterSide *side);

	ExporterSide revoking_;
	ImporterSide revocable_;
	ImporterSide neither_;
};

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
	countFlows();
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
