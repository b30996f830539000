// SPDX-License-Identifier: BSD-3-Clause
#include "demo.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/signalfd.h>

#include "child.h"
#include "demo_protocol.h"
#include "exit_code.h"
#include "fabric_side.h"
#include "pair.h"
#include "socket_place.h"
#include "words.h"

namespace peerbuf::tools
{

namespace
{

using namespace demo;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/* From the first trouble on, how long the others may take to end by themselves. */
constexpr milliseconds grace(15000);
constexpr milliseconds deviceGrace(5000);
constexpr milliseconds deviceStart(20000);
/* HBM beyond the region: for the small buffers of the other sections, and to move the region's. */
constexpr uint64_t spareHbm = 64 << 20;
constexpr uint64_t hbmGrain = 2 << 20;
/* Of the host tier, for what is evicted and for scratch memory. */
constexpr uint64_t spareHost = 16 << 20;

/** The target or the peer, as the parent sees it. */
struct Role {
	explicit Role(const char *roleName) : name(roleName) {}

	const char *name;
	Child child;
	std::unique_ptr<Channel> channel;
	Clock::time_point lastHeard;
	bool reported = false; /* it has said its last word */
	bool judged = false;   /* its end was looked at */
	bool finished() const { return !child.running() && judged; }
};

/** Signals that end the demo, as something to poll. Blocked for everybody until it goes. */
class EndSignals
{
public:
	EndSignals()
	{
		sigemptyset(&set_);
		for (const int number : {SIGINT, SIGTERM, SIGHUP})
			sigaddset(&set_, number);
		pthread_sigmask(SIG_BLOCK, &set_, &before_);
		fd_ = UniqueFd(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
	}
	~EndSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
	EndSignals(const EndSignals &) = delete;
	EndSignals &operator=(const EndSignals &) = delete;

	int fd() const { return fd_.get(); }
	/** @return its number, or 0. */
	int take() const
	{
		signalfd_siginfo info = {};
		return read(fd_.get(), &info, sizeof(info)) == sizeof(info)
			       ? static_cast<int>(info.ssi_signo)
			       : 0;
	}

private:
	sigset_t set_ = {};
	sigset_t before_ = {};
	UniqueFd fd_;
};

/**
 * What the provider shm has in /dev/shm for a process, named PID:UID:N. It removes them itself,
 * but not when it is killed. @param pid of a process that we have reaped.
 */
void removeSharedMemory(pid_t pid)
{
	namespace fs = std::filesystem;
	const std::string prefix = std::to_string(pid) + ":";
	std::vector<fs::path> left;
	std::error_code error;
	for (fs::directory_iterator it("/dev/shm", error), end; !error && it != end;
	     it.increment(error))
		if (it->path().filename().string().starts_with(prefix))
			left.push_back(it->path());
	for (const fs::path &path : left)
		::unlink(path.c_str());
}

class Demo
{
public:
	Demo(const DemoOptions &options, std::string provider, uint64_t seed)
	    : options_(options),
	      provider_(std::move(provider)),
	      seed_(seed),
	      output_(Output::reportFile(options.json))
	{
	}

	/** Start all, listen until all have ended. */
	void run();
	/** The verdict, for people or as JSON. @return the final exit code. */
	int report();

private:
	uint64_t region() const { return (options_.size + hbmGrain - 1) / hbmGrain * hbmGrain; }
	uint64_t hbm() const { return region() + std::max(region(), spareHbm); }
	/** What peers reach by CMA has to be host memory. */
	uint64_t hostTier() const { return spareHost + (options_.cma ? region() : 0); }
	/** The region is to be moved all the time. */
	bool movesAsked() const { return canFollowMoves(provider_) && !options_.cma; }
	bool startDevice();
	bool startRoles();
	void listen();
	void hear(Role *role);
	void take(Role *role, const Json &message);
	void showProgress();
	void noticeEnds();
	void awaitEnds(const Role &reporter);
	void judge(Role *role);
	void watch();
	void endDevice();
	void checkDeviceMemory();
	void countLeaks();
	void trouble(int code, const std::string &who, const std::string &how);
	void fault(const std::string &what);
	void headline();
	Json json(int code) const;
	Json movesJson() const;
	bool allRight() const;

	const DemoOptions options_;
	const std::string provider_;
	const uint64_t seed_;
	Output output_;
	EndSignals signals_;
	const std::vector<std::pair<int, std::string>> fdsBefore_ = openFds();
	SocketPlace place_;
	Child device_;
	bool deviceJudged_ = false;
	Role target_{"target"};
	Role peer_{"peer"};

	Progress progress_; /* of the peer, the latest */
	Moves moves_;	    /* the latest */
	std::optional<TargetResult> targetResult_;
	std::optional<PeerResult> peerResult_;
	int code_ = exitOk;
	std::string who_; /* whose trouble it was */
	std::string how_;
	std::optional<Clock::time_point> graceEnds_;
	std::vector<std::string> faults_;
	uint64_t fdsLeaked_ = 0;
	std::optional<bool> memoryReturned_;
	int section_ = 0;
};

/* ---- trouble ------------------------------------------------------------------------------- */

/** The first trouble decides what the demo ends with; the others get time to end in order. */
void Demo::trouble(int code, const std::string &who, const std::string &how)
{
	output_.clear();
	fprintf(stderr, "peerbuf demo: the %s %s\n", who.c_str(), how.c_str());
	if (!graceEnds_)
		graceEnds_ = Clock::now() + grace;
	if (code_ != exitOk)
		return;
	code_ = code;
	who_ = who;
	how_ = how;
}

void Demo::fault(const std::string &what)
{
	faults_.push_back(what);
	output_.clear();
	fprintf(stderr, "peerbuf demo: %s\n", what.c_str());
}

/* ---- start --------------------------------------------------------------------------------- */

bool Demo::startDevice()
{
	const char *named = secure_getenv("PEERBUF_EMULATED_DEVICE");
	const std::string binary =
		named && *named ? named : PEERBUF_LIBEXEC_DIR "/peerbuf-emulated-device";
	std::string why = place_.create();
	int ready[2] = {-1, -1};
	if (why.empty() && pipe2(ready, O_CLOEXEC) < 0)
		why = "pipe: " + errnoWord(errno);
	if (!why.empty()) {
		trouble(exitMissing, "device process", "cannot be started: " + why);
		return false;
	}
	const UniqueFd reader(ready[0]);
	UniqueFd writer(ready[1]);
	std::vector<std::string> argv = {binary,
					 "--socket",
					 place_.path(),
					 "--ready-fd",
					 std::to_string(Child::firstFd),
					 "--profile",
					 "moves",
					 "--hbm",
					 std::to_string(hbm()),
					 "--placements",
					 "device+host",
					 "--host",
					 std::to_string(hostTier()),
					 "--seed",
					 std::to_string(seed_)};
	if (options_.verbose)
		argv.emplace_back("--verbose");
	if (const int rc = device_.start(argv, {writer.get()})) {
		trouble(exitMissing, "device process",
			"cannot be started: " + binary + ": " + errnoWord(rc) +
				" (PEERBUF_EMULATED_DEVICE names another one)");
		return false;
	}
	writer.reset();

	pollfd p[] = {{reader.get(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
	const auto deadline = Clock::now() + deviceStart;
	while (::poll(p, 2, 100) >= 0 || errno == EINTR) {
		if (p[1].revents) {
			const int number = signals_.take();
			trouble(128 + number, "demo",
				"was told to end by signal " + std::to_string(number));
			return false;
		}
		if (p[0].revents || Clock::now() > deadline)
			break;
	}
	char byte = 0;
	if (!p[0].revents) {
		trouble(exitChildDied, "device process",
			"was not ready after " + std::to_string(deviceStart.count()) + " ms");
		return false;
	}
	if (read(reader.get(), &byte, 1) != 1) {
		/* it closed the pipe without a word: it has ended, or is about to */
		const bool ended = device_.wait(deviceGrace);
		deviceJudged_ = true;
		trouble(exitChildDied, "device process",
			(ended ? endingWords(*device_.status()) : "closed its pipe") +
				" before it was ready");
		return false;
	}
	why = place_.hold();
	if (!why.empty())
		trouble(exitMissing, "device process", "has no socket: " + why);
	return why.empty();
}

bool Demo::startRoles()
{
	UniqueFd targetToPeer;
	UniqueFd peerToTarget;
	if (!Channel::pair(&targetToPeer, &peerToTarget)) {
		trouble(exitMissing, "demo", "has no socket left: " + errnoWord(errno));
		return false;
	}
	const struct {
		Role *role;
		const char *command;
		std::vector<int> fds;
	} starts[] = {
		{&target_, demoTargetCommand, {targetToPeer.get(), place_.fd()}},
		{&peer_, demoPeerCommand, {peerToTarget.get()}},
	};
	for (const auto &start : starts) {
		UniqueFd ours;
		UniqueFd theirs;
		int rc = Channel::pair(&ours, &theirs) ? 0 : -errno;
		std::vector<int> fds = {theirs.get()};
		fds.insert(fds.end(), start.fds.begin(), start.fds.end());
		std::vector<std::string> line = {"/proc/self/exe", start.command};
		if (options_.cma)
			line.emplace_back("--cma");
		if (rc == 0)
			rc = start.role->child.start(line, fds);
		if (rc) {
			trouble(exitMissing, start.role->name,
				"cannot be started: " + errnoWord(rc));
			return false;
		}
		start.role->channel = std::make_unique<Channel>(std::move(ours), start.role->name);
		start.role->lastHeard = Clock::now();
		Start words;
		words.provider = provider_;
		words.seed = seed_;
		words.seconds = options_.seconds;
		words.size = options_.size;
		words.hbm = hbm();
		words.verbose = options_.verbose;
		words.moves = movesAsked();
		words.notify = options_.notify;
		words.cma = options_.cma;
		start.role->channel->send(words.json()); /* a death shows when it is listened to */
	}
	return true;
}

void Demo::headline()
{
	output_.line("peerbuf demo: provider " + provider_ + " (software RMA), seed " +
		     std::to_string(seed_));
	output_.line("  device  pid " + std::to_string(device_.pid()) + ", " + bytesWords(hbm()) +
		     " of emulated HBM that moves and can be pinned, and a host tier of " +
		     bytesWords(hostTier()));
	output_.line("  target  pid " + std::to_string(target_.child.pid()) +
		     ", registers the device's memory on its own libfabric domain");
	output_.line("  peer    pid " + std::to_string(peer_.child.pid()) +
		     ", an ordinary libfabric program" +
		     (options_.cma ? ", which may copy by CMA" : ""));
}

/* ---- listen -------------------------------------------------------------------------------- */

void Demo::take(Role *role, const Json &message)
{
	const std::string type = messageType(message);
	std::string problem = "message '" + type + "', which is none of a " + role->name;
	role->lastHeard = Clock::now();
	if (role->reported) {
		problem = "message '" + type + "' after its last one";
	} else if (type == "note") {
		Fields fields(message);
		const std::string text = fields.string("text");
		problem = fields.problem();
		if (problem.empty())
			fault(text);
	} else if (type == "section") {
		if (const auto section = Section::from(message, &problem)) {
			output_.line("\n" + std::to_string(++section_) + ". " + section->title);
			for (const std::string &line : section->lines) {
				const size_t indent =
					std::min(line.find_first_not_of(' '), line.size());
				output_.line("   " + line.substr(0, indent) +
					     wrapped(line.substr(indent), 94 - indent, 5 + indent));
			}
			return;
		}
	} else if (type == "progress") {
		if (const auto progress = Progress::from(message, &problem)) {
			if (role == &peer_ && progress->blocks) {
				progress_ = *progress;
				showProgress();
			}
			return;
		}
	} else if (type == "moves" && role == &target_) {
		if (const auto moves = Moves::from(message, &problem)) {
			moves_ = *moves;
			showProgress();
			return;
		}
	} else if (type == "failed") {
		if (const auto failed = Failed::from(message, &problem)) {
			role->reported = true;
			awaitEnds(*role);
			trouble(failed->exitCode, role->name, "cannot go on: " + failed->what);
			return;
		}
	} else if (type == "result") {
		role->reported = true;
		if (role == &target_)
			targetResult_ = TargetResult::from(message, &problem);
		else
			peerResult_ = PeerResult::from(message, &problem);
		if (role == &target_ ? targetResult_.has_value() : peerResult_.has_value()) {
			const std::string &seen =
				role == &target_ ? targetResult_->trouble : peerResult_->trouble;
			if (seen.empty())
				return;
			awaitEnds(*role);
			trouble(exitChildDied, role->name, "gave up: " + seen);
			return;
		}
	}
	if (!problem.empty())
		role->channel->refuse(problem);
}

void Demo::showProgress()
{
	if (!progress_.blocks)
		return;
	std::vector<std::string> lines = {"   " + std::to_string(progress_.blocks) + " blocks, " +
					  bytesWords(progress_.bytes) +
					  " written and read back right, " +
					  std::to_string(progress_.bad) + " bad"};
	if (!moves_.moves) {
		output_.progress(lines);
		return;
	}
	const PauseSummary &pauses = moves_.pauses;
	lines.push_back("   " + std::to_string(moves_.moves) + " moves, " +
			std::to_string(moves_.evictions) + " of them out to the host tier and " +
			std::to_string(moves_.refaults) + " back; " + std::to_string(pauses.count) +
			" pauses" +
			(pauses.count ? ", p50 " + durationWords(pauses.p50Ns) + ", p99 " +
						durationWords(pauses.p99Ns) + ", longest " +
						durationWords(pauses.maxNs)
				      : ""));
	for (const std::string &line : histogramLines(pauses))
		lines.push_back("   " + line);
	output_.progress(lines, 2);
}

void Demo::hear(Role *role)
{
	if (!role->channel)
		return;
	while (const auto message = role->channel->receive())
		take(role, *message);
	if (role->channel->garbage() && !role->judged) {
		role->judged = true;
		trouble(exitChildDied, role->name, "is cut off: " + role->channel->problem());
	}
}

/** A role that has ended: did it say its last word, and end well? */
void Demo::judge(Role *role)
{
	hear(role);
	if (role->judged)
		return;
	role->judged = true;
	const int status = *role->child.status();
	if (!role->reported || status != 0)
		trouble(exitChildDied, role->name,
			"(pid " + std::to_string(role->child.pid()) + ") " + endingWords(status) +
				(role->reported ? " after its report" : " before it was done"));
}

void Demo::noticeEnds()
{
	if (!deviceJudged_ && device_.poll()) {
		deviceJudged_ = true;
		trouble(exitChildDied, "device process",
			"(pid " + std::to_string(device_.pid()) + ") " +
				endingWords(*device_.status()));
	}
	for (Role *role : {&target_, &peer_})
		if (role->child.pid() > 0 && !role->judged && role->child.poll())
			judge(role);
}

/**
 * A role reports trouble: it may be what the end of another looks like from there. The kernel
 * closes the sockets of a process before it counts as ended, so that may take a moment.
 */
void Demo::awaitEnds(const Role &reporter)
{
	hear(&reporter == &target_ ? &peer_ : &target_);
	if (code_ != exitOk)
		return;
	pollfd p[3];
	nfds_t n = 0;
	for (const Child *child : {&device_, &target_.child, &peer_.child})
		if (child->pidfd() >= 0 && child != &reporter.child)
			p[n++] = {child->pidfd(), POLLIN, 0};
	::poll(p, n, 500);
	noticeEnds();
}

/** Nobody may be silent for long, and after the first trouble nobody may stay for long. */
void Demo::watch()
{
	const auto now = Clock::now();
	for (Role *role : {&target_, &peer_}) {
		if (!role->child.running())
			continue;
		const bool late = graceEnds_ && now > *graceEnds_;
		const bool silent = !role->reported && now - role->lastHeard > patience;
		if (!late && !silent)
			continue;
		role->judged = true;
		trouble(exitChildDied, role->name,
			silent ? "said nothing for " + std::to_string(patience.count()) +
					 " s and is killed"
			       : "did not end by itself and is killed");
		role->child.end();
	}
}

void Demo::listen()
{
	while (!(target_.finished() && peer_.finished())) {
		pollfd p[6];
		nfds_t n = 0;
		const auto add = [&](int fd) {
			if (fd >= 0)
				p[n++] = {fd, POLLIN, 0};
		};
		add(signals_.fd());
		if (!deviceJudged_)
			add(device_.pidfd());
		for (const Role *role : {&target_, &peer_}) {
			add(role->child.pidfd());
			if (role->channel)
				add(role->channel->fd());
		}
		::poll(p, n, 200);
		if (const int number = signals_.take()) {
			trouble(128 + number, "demo",
				"was told to end by signal " + std::to_string(number));
			return;
		}
		hear(&target_);
		hear(&peer_);
		noticeEnds();
		for (Role *role : {&target_, &peer_})
			role->child.poll();
		watch();
	}
}

/* ---- the end ------------------------------------------------------------------------------- */

/** What its clients had, dead or alive, the device must have back: only empty pools go offline. */
void Demo::checkDeviceMemory()
{
	Context ctx;
	ExporterSide side;
	Failure failure;
	const PluginSpec spec{
		"emulated",
		{{"socket", "/proc/self/fd/" + std::to_string(place_.fd())}, {"timeout", "10000"}}};
	if (ctx.open() || !side.open(ctx, spec, &failure)) {
		noticeEnds();
		if (!deviceJudged_)
			fault("the device answers nobody: " +
			      (failure.why.empty() ? std::string(lastError().what) : failure.why));
		return;
	}
	memoryReturned_ = true;
	for (const uint32_t pool : {PEERBUF_PLACEMENT_DEVICE, PEERBUF_PLACEMENT_HOST}) {
		for (const uint32_t state : {PEERBUF_POOL_ISOLATED, PEERBUF_POOL_OFFLINE}) {
			const int rc = side.ops->pool(side.device, pool, state);
			if (rc == 0)
				continue;
			memoryReturned_ = false;
			fault(std::string("the device did not get all its memory back: the pool "
					  "of its ") +
			      (pool == PEERBUF_PLACEMENT_HOST ? "host tier" : "HBM") +
			      " does not go offline: " + errnoWord(-rc));
			break;
		}
	}
}

void Demo::endDevice()
{
	if (!device_.running())
		return;
	device_.signal(SIGTERM);
	if (!device_.wait(deviceGrace))
		trouble(exitChildDied, "device process", "did not end when told to and is killed");
	else if (*device_.status() != 0)
		trouble(exitChildDied, "device process",
			"(pid " + std::to_string(device_.pid()) + ") " +
				endingWords(*device_.status()) + " when told to end");
	device_.end();
}

void Demo::run()
{
	adoptOrphans();
	if (startDevice() && startRoles()) {
		headline();
		listen();
	}
	output_.clear();
	for (Role *role : {&target_, &peer_}) {
		role->child.end();
		role->channel.reset();
		if (role->child.status().value_or(0) != 0)
			removeSharedMemory(role->child.pid());
	}
	if (code_ < 128)
		noticeEnds();
	if (device_.running() && place_.fd() >= 0 && code_ < 128)
		checkDeviceMemory();
	endDevice();
	if (const int killed = reapOrphans(deviceGrace))
		trouble(exitChildDied, "demo",
			"had to kill " + std::to_string(killed) + " processes left behind");
	place_.release();
	countLeaks();
}

void Demo::countLeaks()
{
	std::vector<std::string> names;
	fdsLeaked_ = leakedFds(fdsBefore_, &names);
	for (const std::string &name : names)
		fault("parent: descriptor left open: " + name);
}

/** Nanoseconds as microseconds with one decimal. */
Json micros(uint64_t ns)
{
	return std::round(static_cast<double>(ns) / 100) / 10;
}

Json Demo::movesJson() const
{
	const auto &t = targetResult_;
	const auto counted = [&](uint64_t Moves::*field) {
		return t ? Json(t->moves.*field) : Json(nullptr);
	};
	const bool paused = t && t->moves.pauses.count;
	const auto pause = [&](uint64_t PauseSummary::*field) {
		return paused ? micros(t->moves.pauses.*field) : Json(nullptr);
	};
	Json out = {{"moves", counted(&Moves::moves)},
		    {"moves_aborted", counted(&Moves::aborted)},
		    {"slices", counted(&Moves::slices)},
		    {"evictions", counted(&Moves::evictions)},
		    {"refaults", counted(&Moves::refaults)},
		    {"key_changes", counted(&Moves::keyChanges)},
		    {"pauses", t ? Json(t->moves.pauses.count) : Json(nullptr)},
		    {"pauses_with_preemption", t ? Json(t->moves.pauses.preempted) : Json(nullptr)},
		    {"pause_us",
		     {{"p50", pause(&PauseSummary::p50Ns)},
		      {"p99", pause(&PauseSummary::p99Ns)},
		      {"max", pause(&PauseSummary::maxNs)}}},
		    {"effective_max_pause_us", t && t->moves.effectiveMaxPauseNs
						       ? micros(t->moves.effectiveMaxPauseNs)
						       : Json(nullptr)},
		    {"cma", nullptr}};
	if (options_.cma && t)
		out["cma"] = t->fixed.json();
	return out;
}

Json Demo::json(int code) const
{
	const auto &t = targetResult_;
	const auto &p = peerResult_;
	/* null: whoever would know it did not live to tell */
	const auto fromTarget = [&](uint64_t TargetResult::*field) {
		return t ? Json((*t).*field) : Json(nullptr);
	};
	const auto fromPeer = [&](auto PeerResult::*field) {
		return p ? Json((*p).*field) : Json(nullptr);
	};
	Json flows = Json::object();
	if (t)
		for (const auto &[flow, count] : t->flows)
			flows[flow] = count;
	Json out = {{"provider", provider_},
		    {"software", true},
		    {"seed", seed_},
		    {"notify", options_.notify},
		    {"seconds", p ? Json(std::round(p->seconds * 1000) / 1000) : Json(nullptr)},
		    {"region_bytes", options_.size},
		    {"blocks_verified", fromPeer(&PeerResult::blocksVerified)},
		    {"blocks_bad", p ? Json(p->blocksBad()) : Json(nullptr)},
		    {"blocks_lost", fromPeer(&PeerResult::blocksLost)},
		    {"blocks_stale", fromPeer(&PeerResult::blocksStale)},
		    {"bytes_verified", fromPeer(&PeerResult::bytesVerified)},
		    {"bytes_swept", fromPeer(&PeerResult::bytesSwept)},
		    {"device_side_checked", fromTarget(&TargetResult::deviceChecked)},
		    {"flows", flows},
		    {"pairs", t ? t->pairs : Json::array()},
		    {"pairs_refused", fromTarget(&TargetResult::pairsRefused)},
		    {"pin_fallbacks", fromTarget(&TargetResult::pinFallbacks)},
		    {"quota_refused", fromTarget(&TargetResult::quotaRefused)},
		    {"revoked_access_failed", fromTarget(&TargetResult::revokedAccessFailed)}};
	out.update(movesJson());
	out.update({{"ledger_bytes_after", fromTarget(&TargetResult::ledgerBytesAfter)},
		    {"fds_leaked", fdsLeaked_ + (t ? t->fdsLeaked : 0) + (p ? p->fdsLeaked : 0)},
		    {"device_memory_returned",
		     memoryReturned_ ? Json(*memoryReturned_) : Json(nullptr)},
		    {"first_bad", p && !p->firstBad.empty() ? Json(p->firstBad) : Json(nullptr)},
		    {"faults", faults_},
		    {"error", who_.empty() ? Json(nullptr) : Json{{"who", who_}, {"what", how_}}},
		    {"exit_code", code}});
	return out;
}

/** Whether what both roles reported is as it should be. */
bool Demo::allRight() const
{
	const TargetResult &t = *targetResult_;
	const PeerResult &p = *peerResult_;
	const bool blocks = p.blocksBad() == 0 && p.blocksVerified > 0 &&
			    p.deviceChecked == t.deviceChecked &&
			    t.deviceChecked >= p.blocksVerified;
	const bool moved = t.moves.keyChanges == 0 && (!movesAsked() || t.moves.moves > 0);
	const bool stayed = !options_.cma ||
			    (t.fixed.flow == "Pinned" && t.fixed.moveErrno == errnoWord(EBUSY));
	return blocks && moved && stayed && t.ledgerBytesAfter == 0 && t.pinFallbacks == 1 &&
	       t.quotaRefused == 1 && t.revokedAccessFailed == 1;
}

int Demo::report()
{
	if (targetResult_) {
		for (const std::string &what : targetResult_->faults) {
			/* after a death they are but its consequences */
			if (code_ == exitOk)
				fault("target: " + what);
			else
				faults_.push_back("target: " + what);
		}
	}
	const uint64_t leaks = fdsLeaked_ + (targetResult_ ? targetResult_->fdsLeaked : 0) +
			       (peerResult_ ? peerResult_->fdsLeaked : 0);
	bool good = faults_.empty() && leaks == 0;
	if (code_ == exitOk) {
		/* both have reported, or there would have been trouble */
		const TargetResult &t = *targetResult_;
		const PeerResult &p = *peerResult_;
		good = good && allRight();
		output_.line("\n" + std::to_string(++section_) +
			     ". the end: everything given back");
		output_.line("   ledger " + std::to_string(t.ledgerBytesAfter) +
			     " bytes, descriptors left open " + std::to_string(leaks) +
			     ", the device has all its memory back: " +
			     (memoryReturned_.value_or(false) ? "yes" : "no"));
		char text[256];
		snprintf(text, sizeof(text),
			 "\n%s: %lu blocks (%s) written, read back and compared in %.1f s, %lu of "
			 "them seen by the device itself; %lu lost, %lu stale. At the end %s read "
			 "again.",
			 good ? "every byte was right" : "NOT AS IT SHOULD BE",
			 static_cast<unsigned long>(p.blocksVerified),
			 bytesWords(p.bytesVerified).c_str(), p.seconds,
			 static_cast<unsigned long>(t.deviceChecked),
			 static_cast<unsigned long>(p.blocksLost),
			 static_cast<unsigned long>(p.blocksStale),
			 bytesWords(p.bytesSwept).c_str());
		output_.line(text);
		if (!p.firstBad.empty())
			output_.line("first bad: " + p.firstBad);
	}
	const int code = code_ != exitOk ? code_ : good ? exitOk : exitBad;
	if (options_.json)
		printJson(json(code));
	return code;
}

int fail(int code, const std::string &why)
{
	fprintf(stderr, "peerbuf demo: %s\n", why.c_str());
	return code;
}

} // namespace

int runDemo(const DemoOptions &options)
{
	std::string provider = defaultProvider();
	if (!options.provider.empty()) {
		provider = findProvider(options.provider);
		if (provider.empty())
			return fail(exitUsage, "there is no provider '" + options.provider +
						       "' of libfabric for RMA here; there are: " +
						       joined(fabricProviders()));
	}
	if (provider.empty())
		return fail(exitMissing, "libfabric has no provider tcp here; there are: " +
						 joined(fabricProviders()) +
						 " (--provider takes one)");
	if (options.cma && !peersMayUseCma(provider))
		return fail(exitUsage, "--cma: peers of provider " + provider +
					       " have no CMA; shm's do (--provider shm)");
	if (!options.notify && (options.cma || !canFollowMoves(provider)))
		return fail(exitUsage, "--no-notify: memory registered with provider " + provider +
					       (options.cma ? " and CMA" : "") + " does not move");
	{
		Context ctx;
		Failure failure;
		if (ctx.open())
			return fail(exitMissing, lastError().what);
		if (!findPlugin(ctx, PEERBUF_PLUGIN_EXPORTER, "emulated", &failure) ||
		    !findPlugin(ctx, PEERBUF_PLUGIN_IMPORTER, "emulated", &failure) ||
		    !findPlugin(ctx, PEERBUF_PLUGIN_IMPORTER, "fabric", &failure))
			return fail(failure.exitCode == exitUsage ? exitMissing : failure.exitCode,
				    failure.why);
	}
	uint64_t seed = options.seed.value_or(0);
	if (!options.seed &&
	    getrandom(&seed, sizeof(seed), 0) != static_cast<ssize_t>(sizeof(seed)))
		return fail(exitMissing, "getrandom: " + errnoWord(errno));
	if (!options.seed)
		seed >>= 32; /* short enough to be typed */

	Demo demo(options, provider, seed);
	demo.run();
	return demo.report();
}

} // namespace peerbuf::tools
