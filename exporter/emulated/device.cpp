// SPDX-License-Identifier: BSD-3-Clause
#include "device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "pages.h"

namespace peerbuf::emulated
{

using plugin::text;

namespace
{

/* epoll data of what is not a client; clients' ids start above. */
constexpr uint64_t signalSource = 1;
constexpr uint64_t listenSource = 2;
constexpr uint64_t firstId = 16;

/* Beyond this many unread replies a client is not listened to until it reads. */
constexpr size_t maxRepliesQueued = 64;
/* Events a client may leave unread: far more than it has buffers. Then it is cut off. */
constexpr size_t maxQueued = 65536;

/** Requests whose fault can be an error; the others can only be slow. */
bool canFail(Op op)
{
	switch (op) {
	case Op::Offer:
	case Op::Alloc:
	case Op::Get:
	case Op::Layout:
	case Op::Attach:
	case Op::Pin:
	case Op::Map:
	case Op::ExportFd:
	case Op::Read:
	case Op::Write:
	case Op::Revoke:
	case Op::Restore:
	case Op::Move:
	case Op::Pool:
	case Op::SetLimits:
		return true;
	default:
		return false;
	}
}

/* Steps inside requests. */
constexpr const char *innerSteps[] = {"device.frames", "device.clear", "device.identity",
				      "device.populate", "device.copy"};

bool knownStep(const std::string &step, int err)
{
	for (const char *inner : innerSteps)
		if (step == inner)
			return true;
	for (uint16_t op = static_cast<uint16_t>(Op::Offer); op < static_cast<uint16_t>(Op::Ack);
	     op++)
		if (step == text("device.", opName(op)))
			return err == 0 || canFail(static_cast<Op>(op));
	return false;
}

bool inside(uint64_t offset, uint64_t length, uint64_t size)
{
	return length != 0 && offset <= size && length <= size - offset;
}

} // namespace

Device::Device(Options options, uint64_t id)
    : options_(std::move(options)),
      settings_(options_.settings),
      id_(id),
      deviceFrames_(0, settings_.hbm, settings_.granularity, settings_.seed,
		    settings_.contiguous != 0),
      hostFrames_(settings_.hbm, settings_.host, settings_.granularity, ~settings_.seed,
		  settings_.contiguous != 0),
      lastId_(firstId),
      pools_{settings_.pool, settings_.pool},
      faultRandom_(settings_.seed)
{
	char name[PEERBUF_NAME_LEN];
	snprintf(name, sizeof(name), "emulated:%08x", static_cast<unsigned>(id_));
	name_ = name;
}

Device::~Device()
{
	if (memory_)
		::munmap(memory_, settings_.total());
	if (!options_.socketPath.empty() && listener_) {
		struct stat st = {};
		if (::lstat(options_.socketPath.c_str(), &st) == 0 &&
		    std::pair<uint64_t, uint64_t>(st.st_dev, st.st_ino) == socketKey_)
			::unlink(options_.socketPath.c_str());
	}
}

std::unique_ptr<Device> Device::create(Options options, std::string *ret_why)
{
	uint64_t id = 0;
	if (::getrandom(&id, sizeof(id), 0) != static_cast<ssize_t>(sizeof(id))) {
		*ret_why = text("getrandom: ", errnoText(errno));
		return nullptr;
	}
	std::unique_ptr<Device> device(new Device(std::move(options), id));
	if (!device->open(ret_why))
		return nullptr;
	return device;
}

bool Device::open(std::string *ret_why)
{
	const uint64_t total = settings_.total();
	const int fd = makeScratch("peerbuf-emulated-hbm", total);
	if (fd < 0) {
		*ret_why = text("memory of ", total, " bytes: ", errnoText(-fd));
		return false;
	}
	hbm_.reset(fd);
	memory_ = mapWhole(hbm_.get(), total);
	if (!memory_) {
		*ret_why = text("mapping of ", total, " bytes: ", errnoText(errno));
		return false;
	}
	used_.resize(total / settings_.granularity);
	hugeOnes_.resize(total / hugePage);
	const bool wanted = settings_.hugePages == HugePages::Require ||
			    (settings_.hugePages == HugePages::Auto && settings_.contiguous);
	std::string why;
	if (wanted && !tryHugePages(&why)) {
		chat(text("no huge pages: ", why));
		if (settings_.hugePages == HugePages::Require) {
			refusal_ = text("huge_pages=require: ", why);
			if (options_.clientFd < 0) { /* else the client is told */
				*ret_why = refusal_;
				return false;
			}
		}
	}

	epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
	deaths_.reset(::epoll_create1(EPOLL_CLOEXEC));
	spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
	if (!epoll_ || !deaths_ || !spare_) {
		*ret_why = text("epoll: ", errnoText(errno));
		return false;
	}
	sigset_t ours;
	sigemptyset(&ours);
	sigaddset(&ours, SIGTERM);
	sigaddset(&ours, SIGINT);
	if (const int err = ::pthread_sigmask(SIG_BLOCK, &ours, nullptr)) {
		*ret_why = text("signals: ", errnoText(err));
		return false;
	}
	signals_.reset(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
	struct epoll_event event = {};
	event.events = EPOLLIN;
	event.data.u64 = signalSource;
	if (!signals_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, signals_.get(), &event) < 0) {
		*ret_why = text("signalfd: ", errnoText(errno));
		return false;
	}
	if (options_.clientFd >= 0)
		addClient(UniqueFd(options_.clientFd));
	else if (!listen(ret_why))
		return false;
	return true;
}

/** Nothing tells whether there are any but to take one. */
bool Device::tryHugePages(std::string *ret_why)
{
	if (settings_.total() < hugePage) {
		*ret_why = text("the memory of ", settings_.total(), " bytes is smaller than one");
		return false;
	}
	if (const int rc = fetchPages(memory_, hugePage, true)) {
		*ret_why = text("memory: ", errnoText(-rc));
		return false;
	}
	huge_ = hugeBytesOf(memory_) >= hugePage;
	if (!huge_)
		*ret_why =
			"the host gave small ones (MADV_COLLAPSE of a memfd needs Linux 6.1, and "
			"is refused where shmem_enabled says deny)";
	hugeOnes_[0] = huge_;
	return huge_;
}

/** Fetch the pages of @p runs; on huge ones where they are tried for. Adds to @p ret_huge. */
bool Device::populate(const std::vector<Run> &runs, uint64_t *ret_huge, std::string *ret_why)
{
	if (const auto fault = faults_.take("device.populate"); fault && fault->err) {
		*ret_why = "fault injected at step device.populate";
		return false;
	}
	/* The kernel counts all of the mapping, so what is new is told by the difference. */
	const auto pagesIn = [](const Run &run, auto &&use) {
		for (uint64_t n = (run.offset + hugePage - 1) / hugePage;
		     (n + 1) * hugePage <= run.offset + run.length; n++)
			use(n);
	};
	std::vector<uint64_t> fresh;
	if (huge_)
		for (const Run &run : runs)
			pagesIn(run, [&](uint64_t n) {
				if (!hugeOnes_[n])
					fresh.push_back(n);
			});
	const bool large = !fresh.empty();
	const uint64_t before = large ? hugeBytesOf(memory_) : 0;
	for (const Run &run : runs) {
		if (const int rc = fetchPages(at(run.offset), run.length, large)) {
			*ret_why = text("the host has no memory for ", run.length, " bytes at ",
					plugin::hex(run.offset), ": ", errnoText(-rc));
			return false;
		}
	}
	if (large && hugeBytesOf(memory_) == before + fresh.size() * hugePage)
		for (const uint64_t n : fresh)
			hugeOnes_[n] = true;
	if (huge_)
		for (const Run &run : runs)
			pagesIn(run, [&](uint64_t n) { *ret_huge += hugeOnes_[n] ? hugePage : 0; });
	return true;
}

bool Device::listen(std::string *ret_why)
{
	const std::string &path = options_.socketPath;
	struct sockaddr_un address = {};
	address.sun_family = AF_UNIX;
	if (path.empty() || path.size() >= sizeof(address.sun_path)) {
		*ret_why = text("socket '", path, "': a path of 1 to ",
				sizeof(address.sun_path) - 1, " bytes");
		return false;
	}
	path.copy(address.sun_path, path.size());
	const auto *generic = reinterpret_cast<const struct sockaddr *>(&address);

	UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (!fd) {
		*ret_why = text("socket: ", errnoText(errno));
		return false;
	}
	const mode_t mask = ::umask(0077);
	int rc = ::bind(fd.get(), generic, sizeof(address));
	if (rc < 0 && errno == EADDRINUSE) {
		/* A socket that nobody listens on was left by a device that was killed. */
		UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
		struct stat st = {};
		if (::lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) && probe &&
		    ::connect(probe.get(), generic, sizeof(address)) < 0 && errno == ECONNREFUSED &&
		    ::unlink(path.c_str()) == 0)
			rc = ::bind(fd.get(), generic, sizeof(address));
		else
			errno = EADDRINUSE;
	}
	const int err = errno;
	::umask(mask);
	if (rc < 0) {
		*ret_why = text("socket '", path, "': ", errnoText(err));
		return false;
	}
	struct stat st = {};
	if (::lstat(path.c_str(), &st) == 0)
		socketKey_ = {st.st_dev, st.st_ino};
	struct epoll_event event = {};
	event.events = EPOLLIN;
	event.data.u64 = listenSource;
	if (::listen(fd.get(), 64) < 0 ||
	    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) < 0) {
		*ret_why = text("socket '", path, "': ", errnoText(errno));
		return false;
	}
	listener_ = std::move(fd);
	return true;
}

uint64_t Device::now() const
{
	struct timespec ts = {};
	::clock_gettime(CLOCK_MONOTONIC, &ts);
	return static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
}

void Device::say(const std::string &line) const
{
	dprintf(STDERR_FILENO, "peerbuf-emulated-device: %s: %s\n", name_.c_str(), line.c_str());
}

void Device::chat(const std::string &line) const
{
	if (options_.verbose)
		say(line);
}

/* ---- the loop ------------------------------------------------------------------------------ */

int Device::run()
{
	if (options_.readyFd >= 0) {
		const char ready = '\n';
		if (::write(options_.readyFd, &ready, 1) < 0)
			chat("nobody waits for us to be ready");
		::close(options_.readyFd);
	}
	chat(text("ready, ", settings_.hbm, " bytes of HBM"));
	while (!ending_) {
		struct epoll_event events[32];
		const int n = wait(events, 32);
		if (n < 0 && errno != EINTR) {
			say(text("epoll_wait: ", errnoText(errno)));
			return 1;
		}
		for (int i = 0; i < n && !ending_; i++) {
			const uint64_t source = events[i].data.u64;
			if (source == signalSource) {
				ending_ = true;
			} else if (source == listenSource) {
				acceptClients();
			} else if (auto it = clients_.find(source); it != clients_.end()) {
				Client &client = *it->second;
				if (events[i].events & EPOLLOUT)
					flush(client);
				if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
					receive(client);
			}
			sweepClients();
		}
		if (listeningPaused_ && now() >= listenAgain_)
			pauseListening(false);
		serveParked();
		driveMoves();
		sweepClients();
		if (options_.clientFd >= 0 && clients_.empty())
			ending_ = true;
	}
	chat("ends");
	return 0;
}

uint64_t Device::nextDue() const
{
	const uint64_t parked = parked_.empty() ? UINT64_MAX : parked_.begin()->first;
	const uint64_t listening = listeningPaused_ ? listenAgain_ : UINT64_MAX;
	return std::min({parked, listening, nextMoveDue()});
}

/**
 * Until something happens or is due; pauses are shorter than a millisecond. While an importer is
 * stopped its answer is looked out for awake at first: to sleep and be woken would take longer than
 * most answers, and be part of the pause.
 */
int Device::wait(struct epoll_event *events, int most)
{
	constexpr uint64_t awakeNs = 50'000;
	const uint64_t due = nextDue();
	const bool stopped = std::any_of(moving_.begin(), moving_.end(), [](const auto &entry) {
		return entry.second.mover.away(0, UINT64_MAX);
	});
	for (const uint64_t until = stopped ? std::min(due, now() + awakeNs) : 0; now() < until;) {
		if (const int n = ::epoll_wait(epoll_.get(), events, most, 0))
			return n;
		::sched_yield(); /* it may need this very CPU to answer */
	}
	if (due == UINT64_MAX)
		return ::epoll_wait(epoll_.get(), events, most, -1);
	const uint64_t t = now();
	const uint64_t ns = due <= t ? 0 : due - t;
	const struct timespec timeout = {static_cast<time_t>(ns / 1000000000),
					 static_cast<long>(ns % 1000000000)};
	const int n = ::epoll_pwait2(epoll_.get(), events, most, &timeout, nullptr);
	if (n >= 0 || errno != ENOSYS)
		return n;
	return ::epoll_wait(epoll_.get(), events, most,
			    static_cast<int>(std::min<uint64_t>((ns + 999999) / 1000000, 60000)));
}

void Device::serveParked()
{
	while (!parked_.empty() && parked_.begin()->first <= now() && !ending_) {
		auto node = parked_.extract(parked_.begin());
		Parked &parked = node.mapped();
		auto it = clients_.find(parked.client);
		if (it != clients_.end() && !it->second->doomed)
			serve(*it->second, parked.message, std::move(parked.fd), true);
	}
}

void Device::acceptClients()
{
	for (;;) {
		UniqueFd socket(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (socket) {
			addClient(std::move(socket));
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		if (errno != EMFILE && errno != ENFILE)
			return;
		/* Turn it away instead of spinning on a connection that cannot be accepted. */
		spare_.reset();
		socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
		const bool turnedAway = static_cast<bool>(socket);
		socket.reset();
		spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
		if (!turnedAway) {
			pauseListening(true);
			return;
		}
		say("a client was turned away: no descriptor left");
	}
}

/** For a while, so that a client that cannot even be turned away does not make us spin. */
void Device::pauseListening(bool pause)
{
	if (!listener_ || pause == listeningPaused_)
		return;
	constexpr uint64_t listenAgainNs = 100'000'000;
	listenAgain_ = now() + listenAgainNs;
	struct epoll_event event = {};
	event.events = pause ? 0u : static_cast<uint32_t>(EPOLLIN);
	event.data.u64 = listenSource;
	if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0)
		listeningPaused_ = pause;
}

Device::Id Device::addClient(UniqueFd socket)
{
	auto client = std::make_unique<Client>();
	client->id = ++lastId_;
	client->socket = std::move(socket);
	const Id id = client->id;
	struct epoll_event event = {};
	event.events = client->polled = EPOLLIN;
	event.data.u64 = id;
	struct epoll_event death = event;
	death.events = EPOLLRDHUP;
	if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client->socket.get(), &event) < 0 ||
	    ::epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, client->socket.get(), &death) < 0) {
		say(text("a client was turned away: epoll_ctl: ", errnoText(errno)));
		return 0;
	}
	chat(text("client ", id, " connects"));
	clients_.emplace(id, std::move(client));
	return id;
}

void Device::receive(Client &client)
{
	/* A bound, so that one busy client does not shut out the others. */
	for (int i = 0; i < 64 && !client.doomed && !ending_; i++) {
		if (client.repliesQueued > maxRepliesQueued)
			return;
		Message request;
		std::vector<UniqueFd> fds;
		const int rc = receiveMessage(client.socket.get(), &request, &fds);
		if (rc == -EAGAIN)
			return;
		if (rc == 0 || rc == -ECONNRESET) {
			client.doomed = true;
			chat(text("client ", client.id, " leaves"));
			return;
		}
		if (rc == -EMFILE && headerProblem(request) == nullptr && request.serial) {
			Message reply = makeMessage(Kind::Reply, static_cast<Op>(request.op),
						    request.serial);
			failed(reply, EMFILE, PEERBUF_ERR_FD_EXHAUSTED,
			       text("the device ", name_,
				    " has no descriptor left for the one that ", opName(request.op),
				    " sent"));
			post(client, reply, UniqueFd());
			continue;
		}
		if (rc < 0) {
			doom(client,
			     rc == -EBADMSG ? "a packet of the wrong size" : errnoText(-rc));
			return;
		}
		if (const char *problem = headerProblem(request)) {
			doom(client, problem);
			return;
		}
		const Op op = static_cast<Op>(request.op);
		const bool wantsFd = op == Op::Get || op == Op::Read || op == Op::Write;
		if (request.kind != static_cast<uint16_t>(Kind::Request) || op < Op::Hello ||
		    op > Op::Ack) {
			doom(client, text("message type ", request.kind, "/", request.op));
			return;
		}
		if (fds.size() != (wantsFd ? 1 : 0)) {
			doom(client, text(fds.size(), " descriptors with ", opName(request.op)));
			return;
		}
		if (client.greeted == (op == Op::Hello)) {
			doom(client,
			     text(opName(request.op), client.greeted ? " twice" : " before hello"));
			return;
		}
		serve(client, request, wantsFd ? std::move(fds[0]) : UniqueFd(), false);
	}
}

void Device::serve(Client &client, const Message &request, UniqueFd fd, bool delayed)
{
	buryDead(client);
	const Op op = static_cast<Op>(request.op);
	Message reply = makeMessage(Kind::Reply, op, request.serial);
	UniqueFd replyFd;
	std::optional<FaultPlan::Fault> fault;
	const std::string step = text("device.", opName(request.op));
	if (delayed) /* what was due after the delay was noted in the message itself */
		fault = FaultPlan::Fault{request.status, 0};
	else
		fault = faults_.take(step);
	if (!fault && settings_.faultRate && canFail(op) &&
	    faultRandom_() % 1000 < settings_.faultRate)
		fault = FaultPlan::Fault{-ENOMEM, 0};
	if (fault && fault->delayNs) {
		Message later = request;
		later.status = fault->err;
		parked_.emplace(now() + fault->delayNs, Parked{client.id, later, std::move(fd)});
		return;
	}
	Outcome outcome = Outcome::Answered;
	if (fault && fault->err) {
		outcome = failed(reply, -fault->err, PEERBUF_OK,
				 text("fault injected at step ", step, " of ", name_));
	} else {
		try {
			outcome = dispatch(client, request, fd, reply, replyFd);
		} catch (const std::bad_alloc &) {
			outcome = failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY,
					 text("the device process ", name_, " is out of memory"));
		}
	}
	switch (outcome) {
	case Outcome::Answered:
		post(client, reply, std::move(replyFd));
		break;
	case Outcome::Silent:
		break;
	case Outcome::Garbage:
		doom(client, garbage_);
		break;
	}
}

Device::Outcome Device::dispatch(Client &client, const Message &request, UniqueFd &fd,
				 Message &reply, UniqueFd &replyFd)
{
	switch (static_cast<Op>(request.op)) {
	case Op::Hello:
		return hello(client, request, reply, replyFd);
	case Op::Offer:
		return offer(client, request, reply);
	case Op::Alloc:
		return alloc(client, request, reply);
	case Op::Get:
		return get(client, fd, reply);
	case Op::Drop:
		return drop(client, request);
	case Op::Layout:
		return layout(client, request, reply);
	case Op::Attach:
		return attach(client, request, reply);
	case Op::Detach:
		return detach(client, request);
	case Op::Pin:
		return pin(client, request, reply);
	case Op::Unpin:
		return unpin(client, request);
	case Op::Map:
		return map(client, request, reply);
	case Op::Unmap:
		return unmap(client, request);
	case Op::ExportFd:
		return exportFd(client, request, reply, replyFd);
	case Op::ReleaseFd:
		return releaseFd(client, request);
	case Op::Read:
	case Op::Write:
		return bulk(client, request, fd, reply);
	case Op::Revoke:
		return revoke(client, request, reply);
	case Op::Restore:
		return restore(client, request, reply);
	case Op::Remove:
		/* No goodbye: that is what makes it a surprise. */
		chat("removed by surprise");
		ending_ = true;
		return Outcome::Silent;
	case Op::Fault:
		return fault(request, reply);
	case Op::Stats:
		return stats(client, reply);
	case Op::Move:
		return move(client, request, reply);
	case Op::MoveStatus:
		return moveStatus(client, request, reply);
	case Op::Pool:
		return pool(request, reply);
	case Op::SetLimits:
		return setLimits(request, reply);
	case Op::TenantStatus:
		return tenantStatus(request, reply);
	case Op::Ack:
		return ack(client, request);
	default:
		return garbage(text("message type ", request.op));
	}
}

void Device::post(Client &client, const Message &message, UniqueFd fd)
{
	if (client.doomed)
		return;
	if (client.queue.empty()) {
		const int rc = sendMessage(client.socket.get(), message, fd.get());
		if (rc == 0)
			return;
		if (rc != -EAGAIN) {
			client.doomed = true;
			chat(text("client ", client.id, " is gone: ", errnoText(-rc)));
			return;
		}
	}
	if (client.queue.size() >= maxQueued) {
		doom(client, text("it leaves ", maxQueued, " messages unread"));
		return;
	}
	if (message.kind == static_cast<uint16_t>(Kind::Reply))
		client.repliesQueued++;
	client.queue.push_back({message, std::move(fd)});
	updatePolling(client);
}

void Device::flush(Client &client)
{
	while (!client.queue.empty() && !client.doomed) {
		Client::Queued &first = client.queue.front();
		const int rc = sendMessage(client.socket.get(), first.message, first.fd.get());
		if (rc == -EAGAIN)
			break;
		if (rc < 0) {
			client.doomed = true;
			return;
		}
		if (first.message.kind == static_cast<uint16_t>(Kind::Reply))
			client.repliesQueued--;
		client.queue.pop_front();
	}
	updatePolling(client);
}

void Device::updatePolling(Client &client)
{
	/* Acks have no replies, so a client that only acknowledges is always listened to. */
	const uint32_t wanted =
		(client.queue.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT)) |
		(client.repliesQueued > maxRepliesQueued ? 0u : static_cast<uint32_t>(EPOLLIN));
	if (wanted == client.polled)
		return;
	struct epoll_event event = {};
	event.events = wanted;
	event.data.u64 = client.id;
	if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.socket.get(), &event) == 0)
		client.polled = wanted;
	else
		doom(client, text("epoll_ctl: ", errnoText(errno)));
}

void Device::doom(Client &client, const std::string &why)
{
	if (client.doomed)
		return;
	client.doomed = true;
	say(text("client ", client.id, ": ", why, "; the connection is closed"));
}

/**
 * Who asks after another has died finds all that the dead one left; the order in which epoll
 * reports them does not promise it. What the dead asked last is void.
 */
void Device::buryDead(const Client &asking)
{
	struct epoll_event events[16];
	const int n = ::epoll_wait(deaths_.get(), events, 16, 0);
	bool any = false;
	for (int i = 0; i < n; i++) {
		auto it = clients_.find(events[i].data.u64);
		if (it == clients_.end() || it->second.get() == &asking)
			continue;
		chat(text("client ", it->first, " leaves"));
		it->second->doomed = any = true;
	}
	if (any)
		sweepClients();
}

void Device::sweepClients()
{
	for (auto it = clients_.begin(); it != clients_.end();) {
		if (it->second->doomed) {
			const std::unique_ptr<Client> client = std::move(it->second);
			it = clients_.erase(it);
			endClient(*client);
		} else {
			++it;
		}
	}
}

/** All that a client held goes back; its death is its consent to everything it was asked. */
void Device::endClient(Client &client)
{
	std::vector<Id> cookies;
	for (const auto &[cookie, leaving] : leavings_)
		if (leaving.waiting.count(client.id))
			cookies.push_back(cookie);
	while (!client.attachments.empty()) {
		const Id id = *client.attachments.begin();
		client.attachments.erase(client.attachments.begin());
		Attachment &attachment = *attachments_.at(id);
		const Id buffer = attachment.buffer;
		endAttachment(attachment);
		reap(buffer);
	}
	while (!client.holds.empty())
		dropHolds(client, client.holds.begin()->first, client.holds.begin()->second);
	for (const Id cookie : cookies)
		acknowledge(cookie, client.id, 0);
	forgetSlices(client.id);
	if (const auto tenant = tenants_.find(client.tenant);
	    client.greeted && tenant != tenants_.end()) {
		tenant->second.clients--;
		forgetTenant(client.tenant);
	}
}

/* ---- answers ------------------------------------------------------------------------------- */

std::string Device::sentName(const char *name, size_t room)
{
	std::string out(name, strnlen(name, room));
	for (char &c : out)
		if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
			c = '?';
	return out;
}

Device::Outcome Device::failed(Message &reply, int err, uint32_t errc, const std::string &why)
{
	reply.status = -err;
	reply.body = Body{};
	reply.body.failure.errc = errc;
	plugin::copyName(reply.body.failure.why, why);
	return Outcome::Answered;
}

Device::Outcome Device::garbage(const std::string &why)
{
	garbage_ = why;
	return Outcome::Garbage;
}

Device::Buffer *Device::heldBuffer(const Client &client, Id id)
{
	return client.holds.count(id) ? buffers_.at(id).get() : nullptr;
}

Device::Attachment *Device::ownAttachment(const Client &client, Id id)
{
	return client.attachments.count(id) ? attachments_.at(id).get() : nullptr;
}

std::string Device::bufferName(const Buffer &buffer) const
{
	return text("buffer ", buffer.id, " of ", name_);
}

void Device::describe(const Buffer &buffer, uint32_t first, Message &reply) const
{
	BufferBody &body = reply.body.buffer;
	body.buffer = buffer.id;
	body.size = buffer.size;
	body.generation = buffer.generation;
	body.revoked = buffer.revoked;
	body.first = first;
	body.total = static_cast<uint32_t>(buffer.runs.size());
	while (body.count < runsPerMessage && first + body.count < body.total) {
		body.runs[body.count] = buffer.runs[first + body.count];
		body.count++;
	}
}

Device::Outcome Device::hello(Client &client, const Message &request, Message &reply,
			      UniqueFd &replyFd)
{
	UniqueFd copy(::fcntl(hbm_.get(), F_DUPFD_CLOEXEC, 0));
	if (!copy)
		return failed(reply, errno, PEERBUF_ERR_FD_EXHAUSTED,
			      text("the device ", name_, " has no descriptor left"));
	if (!refusal_.empty())
		return failed(reply, EOPNOTSUPP, PEERBUF_ERR_UNSUPPORTED_DRIVER,
			      text(name_, ": ", refusal_));
	const std::string tenant =
		sentName(request.body.hello.tenant, sizeof(request.body.hello.tenant));
	std::string why;
	if (!admit(tenant, &why))
		return failed(reply, ENOMEM, PEERBUF_ERR_QUOTA, text("not admitted: ", why));
	client.tenant = tenant;
	client.greeted = true;
	HelloBody &body = reply.body.hello;
	plugin::copyName(body.tenant, client.tenant);
	plugin::copyName(body.device, name_);
	body.deviceId = id_;
	body.settings = settings_;
	replyFd = std::move(copy);
	chat(text("client ", client.id, " is tenant '", client.tenant, "'"));
	return Outcome::Answered;
}

Device::Outcome Device::offer(Client &client, const Message &request, Message &reply)
{
	const Id id = request.body.offer.buffer;
	if (id && !heldBuffer(client, id))
		return garbage(text("offer of buffer ", id, ", which it does not hold"));
	reply.body.offer.windowUsed = windowUsed_;
	return Outcome::Answered;
}

/* ---- memory -------------------------------------------------------------------------------- */

/** Whether another buffer may have its frames: everybody has left and nothing is mapped. */
bool Device::reclaimable(const Buffer &buffer) const
{
	if (settings_.mutant == Mutant::EarlyReuse)
		return buffer.revoked;
	return buffer.revoked && !buffer.leaving && buffer.mappings == 0;
}

/** @param as what the frames are for: bytes of a move overwrite all that is there. */
bool Device::takeFrames(uint32_t placement, uint64_t length, Frame as, std::vector<Run> *ret_runs,
			std::string *ret_why)
{
	if (!poolOpen(placement, ret_why))
		return false;
	const bool host = placement == PEERBUF_PLACEMENT_HOST;
	Frames &frames = host ? hostFrames_ : deviceFrames_;
	if (const auto fault = faults_.take("device.frames"); fault && fault->err) {
		*ret_why = "fault injected at step device.frames";
		return false;
	}
	std::string why;
	bool got = frames.allocate(length, ret_runs, &why);
	for (auto it = buffers_.begin(); !got && it != buffers_.end(); ++it) {
		Buffer &buffer = *it->second;
		if (!(buffer.placement & placement) || buffer.runs.empty() || !reclaimable(buffer))
			continue;
		chat(text("the memory of ", bufferName(buffer), ", revoked, is used again"));
		giveFrames(buffer.runs);
		buffer.runs.clear();
		got = frames.allocate(length, ret_runs, &why);
	}
	if (got && as == Frame::Zeroed && !clear(*ret_runs, &why)) {
		giveFrames(*ret_runs);
		ret_runs->clear();
		got = false;
	}
	if (!got)
		*ret_why = text(host ? "host tier of " : "HBM of ", name_, ": ", why);
	return got;
}

void Device::giveFrames(const std::vector<Run> &runs)
{
	/* The pages stay, as HBM does: fetching them anew took more than a move itself. */
	for (const Run &run : runs) {
		const uint64_t page = settings_.granularity;
		std::fill_n(used_.begin() + static_cast<ptrdiff_t>(run.offset / page),
			    run.length / page, true);
		(run.offset < settings_.hbm ? deviceFrames_ : hostFrames_).release({run});
	}
}

/** Nobody sees what another has left there. What was never used is zero already. */
bool Device::clear(const std::vector<Run> &runs, std::string *ret_why)
{
	if (const auto fault = faults_.take("device.clear"); fault && fault->err) {
		*ret_why = "fault injected at step device.clear";
		return false;
	}
	const uint64_t page = settings_.granularity;
	for (const Run &run : runs)
		for (uint64_t at = run.offset; at < run.offset + run.length; at += page)
			if (used_[at / page])
				std::memset(memory_ + at, 0, page);
	return true;
}

Device::Outcome Device::alloc(Client &client, const Message &request, Message &reply)
{
	const uint64_t asked = request.body.range.length;
	const uint64_t page = settings_.granularity;
	if (asked == 0)
		return failed(reply, EINVAL, PEERBUF_ERR_BAD_GEOMETRY, "allocation of 0 bytes");
	if (asked > settings_.total())
		return failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY,
			      text(name_, ": ", asked, " bytes needed, the device has ",
				   settings_.hbm, " of HBM and ", settings_.host,
				   " in its host tier"));
	auto buffer = std::make_unique<Buffer>();
	buffer->size = (asked + page - 1) / page * page;
	const uint64_t has = allocatedBytes(client.tenant);
	const uint64_t may = limitsOf(client.tenant).bytes;
	if (has > may || buffer->size > may - has)
		return failed(reply, ENOMEM, PEERBUF_ERR_QUOTA,
			      text("allocation on ", name_, ": tenant '", client.tenant, "' needs ",
				   buffer->size, ", has allocated ", has, ", may allocate ", may,
				   " bytes"));

	std::string why;
	std::vector<uint32_t> places = {PEERBUF_PLACEMENT_DEVICE, PEERBUF_PLACEMENT_HOST};
	if (!wanted_.empty()) /* the HBM that gets free is waited for */
		std::swap(places[0], places[1]);
	for (const uint32_t place : places) {
		std::string whyHere;
		if (!(settings_.placements & place))
			continue;
		if ((place != PEERBUF_PLACEMENT_HOST || leavesRoomToSwap(buffer->size, &whyHere)) &&
		    takeFrames(place, buffer->size, Frame::Zeroed, &buffer->runs, &whyHere)) {
			buffer->placement = place;
			break;
		}
		why += (why.empty() ? "" : "; ") + whyHere;
	}
	if (!buffer->placement)
		return failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY, why);
	if (huge_ && !populate(buffer->runs, &buffer->huge, &why)) {
		giveFrames(buffer->runs);
		return failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY, why);
	}
	buffer->id = ++lastId_;
	buffer->tenant = client.tenant;
	buffer->lastUse = buffer->arrivedAt = now();
	buffer->holds[client.id] = 1;
	client.holds[buffer->id] = 1;
	chat(text(bufferName(*buffer), ": ", buffer->size, " bytes in ", buffer->runs.size(),
		  " runs for client ", client.id));
	describe(*buffer, 0, reply);
	buffers_.emplace(buffer->id, std::move(buffer));
	return Outcome::Answered;
}

/**
 * HBM is full, so this goes to the host tier and will have to change places with others. One that
 * comes back finds room as long as the largest that goes out for it finds room: with what is free
 * in HBM and yet too little for the one, that makes nearly two of the largest.
 */
bool Device::leavesRoomToSwap(uint64_t size, std::string *ret_why) const
{
	if (!(settings_.placements & PEERBUF_PLACEMENT_DEVICE) ||
	    settings_.stability != PEERBUF_STABILITY_MOVES)
		return true;
	uint64_t largest = size;
	uint64_t smallest = size;
	for (const auto &[id, buffer] : buffers_) {
		largest = std::max(largest, buffer->size);
		smallest = std::min(smallest, buffer->size);
	}
	const uint64_t kept = smallest == largest ? largest + settings_.hbm % largest
						  : 2 * largest - settings_.granularity;
	const uint64_t free = deviceFrames_.available() + hostFrames_.available();
	if (size <= free && kept <= free - size)
		return true;
	*ret_why = text("host tier of ", name_, ": ", size, " bytes needed, ", free,
			" free there and in HBM, of which ", kept,
			" are kept so that buffers can change places");
	return false;
}

Device::Outcome Device::get(Client &client, const UniqueFd &fd, Message &reply)
{
	struct stat st = {};
	if (::fstat(fd.get(), &st) < 0)
		return failed(reply, errno, PEERBUF_OK, text("fstat: ", errnoText(errno)));
	auto it = identities_.find({st.st_dev, st.st_ino});
	if (it == identities_.end())
		return failed(
			reply, ENOENT, PEERBUF_ERR_STALE,
			text("the descriptor names no buffer of ", name_, ", or one that is gone"));
	Buffer &buffer = *buffers_.at(it->second);
	/* Whoever joins now was not told that a part of it is away. */
	if (const auto moving = moving_.find(buffer.id); moving != moving_.end() &&
							 !client.holds.count(buffer.id) &&
							 moving->second.mover.away(0, buffer.size))
		return failed(reply, EAGAIN, PEERBUF_ERR_BUSY,
			      text(bufferName(buffer), " is just being moved"));
	buffer.holds[client.id]++;
	client.holds[buffer.id]++;
	describe(buffer, 0, reply);
	return Outcome::Answered;
}

Device::Outcome Device::drop(Client &client, const Message &request)
{
	const Id id = request.body.range.object;
	const uint64_t count = request.body.range.token;
	auto it = client.holds.find(id);
	if (it == client.holds.end() || count == 0 || count > it->second)
		return garbage(text("dropping buffer ", id, " ", count, " times, held ",
				    it == client.holds.end() ? 0 : it->second));
	dropHolds(client, id, count);
	return Outcome::Answered;
}

void Device::dropHolds(Client &client, Id id, uint64_t count)
{
	auto mine = client.holds.find(id);
	if ((mine->second -= count) == 0)
		client.holds.erase(mine);
	auto &holds = buffers_.at(id)->holds;
	auto it = holds.find(client.id);
	if ((it->second -= count) == 0)
		holds.erase(it);
	reap(id);
}

/** End a buffer that nobody refers to any more and whose memory nobody may still touch. */
void Device::reap(Id id)
{
	auto it = buffers_.find(id);
	if (it == buffers_.end())
		return;
	Buffer &buffer = *it->second;
	if (!buffer.holds.empty() || !buffer.attachments.empty())
		return;
	if (buffer.identity) {
		identities_.erase(buffer.identityKey);
		buffer.identity.reset();
	}
	if (buffer.leaving)
		return;
	cancelMove(buffer, -ENODEV);
	giveFrames(buffer.runs);
	chat(text(bufferName(buffer), " is gone"));
	const std::string tenant = buffer.tenant;
	buffers_.erase(it);
	forgetTenant(tenant);
}

Device::Outcome Device::layout(Client &client, const Message &request, Message &reply)
{
	const Id id = request.body.buffer.buffer;
	auto it = buffers_.find(id);
	bool known = it != buffers_.end() && client.holds.count(id) != 0;
	for (const Id attachment : client.attachments)
		known = known || attachments_.at(attachment)->buffer == id;
	if (!known)
		return garbage(text("layout of buffer ", id, ", which it does not use"));
	const Buffer &buffer = *it->second;
	if (request.body.buffer.first > buffer.runs.size())
		return garbage(text("layout of buffer ", id, " from run ",
				    request.body.buffer.first, " of ", buffer.runs.size()));
	describe(buffer, request.body.buffer.first, reply);
	return Outcome::Answered;
}

Device::Outcome Device::bulk(Client &client, const Message &request, const UniqueFd &scratch,
			     Message &reply)
{
	const RangeBody &range = request.body.range;
	const Buffer *buffer = heldBuffer(client, range.object);
	if (!buffer)
		return garbage(text(opName(request.op), " of buffer ", range.object,
				    ", which it does not hold"));
	if (!isScratch(scratch.get(), range.length))
		return garbage(text(opName(request.op),
				    " with a descriptor that is no sealed memfd of ", range.length,
				    " bytes"));
	if (!inside(range.offset, range.length, buffer->size) || range.length > bulkChunk)
		return failed(reply, EINVAL, PEERBUF_ERR_BAD_GEOMETRY,
			      text(opName(request.op), " of ", range.length, " bytes at ",
				   range.offset, " of ", bufferName(*buffer), ", which has ",
				   buffer->size));
	if (buffer->runs.empty())
		return failed(reply, ENODEV, PEERBUF_ERR_REVOKED,
			      text(bufferName(*buffer),
				   " was revoked and its memory has been used again"));
	uint64_t done = 0;
	uint64_t start = 0; /* of the run, in the buffer */
	for (const Run &run : buffer->runs) {
		const uint64_t from = std::max(start, range.offset + done);
		const uint64_t to = std::min(start + run.length, range.offset + range.length);
		start += run.length;
		if (from >= to)
			continue;
		uint8_t *memory = at(run.offset + run.length - (start - from));
		const auto position = static_cast<off_t>(done);
		const ssize_t n = static_cast<Op>(request.op) == Op::Read
					  ? ::pwrite(scratch.get(), memory, to - from, position)
					  : ::pread(scratch.get(), memory, to - from, position);
		if (n != static_cast<ssize_t>(to - from))
			return failed(reply, n < 0 ? errno : EIO, PEERBUF_ERR_SYSTEM,
				      text(opName(request.op), " through the scratch memfd: ",
					   n < 0 ? errnoText(errno) : "cut short"));
		done += to - from;
	}
	return Outcome::Answered;
}

/* ---- attachments --------------------------------------------------------------------------- */

Device::Outcome Device::attach(Client &client, const Message &request, Message &reply)
{
	const AttachBody &ask = request.body.attach;
	Buffer *buffer = heldBuffer(client, ask.buffer);
	if (!buffer)
		return garbage(text("attach to buffer ", ask.buffer, ", which it does not hold"));
	const std::string importer = sentName(ask.importer, sizeof(ask.importer));
	const std::string who = text(importer, " to ", bufferName(*buffer));

	if (buffer->revoked)
		return failed(reply, ENODEV, PEERBUF_ERR_REVOKED, text(who, ": it was revoked"));
	if (settings_.revoke == PEERBUF_REVOKE_MAY &&
	    !(ask.invalidation & (PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT)))
		return failed(
			reply, EOPNOTSUPP, PEERBUF_ERR_REVOKE_UNSUPPORTED,
			text(who, ": the memory may be revoked and the importer cannot stop"));
	if (settings_.needsPeer2peer && !ask.allowPeer2peer)
		return failed(reply, EOPNOTSUPP, PEERBUF_ERR_NO_P2P_PATH,
			      text(who, ": the memory is reached by peer-to-peer only and the "
					"importer has none"));
	const bool whole = ask.invalidateScope == PEERBUF_SCOPE_WHOLE;
	if (moving_.count(buffer->id))
		return failed(reply, EAGAIN, PEERBUF_ERR_BUSY,
			      text(who, ": it is just being moved"));
	/* Such an importer waits for the memory wherever it is; all others need it in reach now. */
	const bool follows = ask.handleKind == PEERBUF_HANDLE_SEGMENTS &&
			     (ask.invalidation & PEERBUF_INVALIDATION_REFAULT);
	uint32_t allowed = ask.placements ? ask.placements : UINT32_MAX;
	/* It has no way to the device's memory, once there is another place. */
	if (!ask.allowPeer2peer && (settings_.placements & PEERBUF_PLACEMENT_HOST))
		allowed = PEERBUF_PLACEMENT_HOST;
	if (!follows && ask.allowPeer2peer && (buffer->placement & ~allowed))
		return bringBack(reply, *buffer, text(who, ": "));
	Id cookie = 0;
	if (buffer->placement == PEERBUF_PLACEMENT_DEVICE && !ask.allowPeer2peer &&
	    (settings_.placements & PEERBUF_PLACEMENT_HOST)) {
		const Outcome outcome = placeInHost(client, *buffer, reply, &cookie);
		if (reply.status)
			return outcome;
	}

	auto attachment = std::make_unique<Attachment>();
	attachment->id = ++lastId_;
	attachment->buffer = buffer->id;
	attachment->client = client.id;
	attachment->variant = ask.variant;
	attachment->handleKind = ask.handleKind;
	attachment->invalidation = ask.invalidation;
	attachment->placements = allowed;
	attachment->peer2peer = ask.allowPeer2peer != 0;
	attachment->follows = follows;
	attachment->whole = whole;
	const uint64_t page = settings_.granularity;
	if (inside(ask.offset, ask.length, buffer->size))
		attachment->length = (ask.offset + ask.length + page - 1) / page * page -
				     ask.offset / page * page;
	AttachBody &answer = reply.body.attach;
	answer.buffer = buffer->id;
	answer.attachment = attachment->id;
	answer.generation = buffer->generation;
	answer.placement = buffer->placement & allowed ? buffer->placement & allowed
						       : PEERBUF_PLACEMENT_DEVICE;
	answer.allowPeer2peer =
		ask.allowPeer2peer && (answer.placement == PEERBUF_PLACEMENT_DEVICE ||
				       settings_.mutant == Mutant::Peer2peerKept);
	answer.cookie = cookie;
	buffer->attachments.insert(attachment->id);
	client.attachments.insert(attachment->id);
	attachments_.emplace(attachment->id, std::move(attachment));
	return Outcome::Answered;
}

/**
 * For an importer that cannot reach the device's memory: put the buffer where it can, as amdgpu
 * and xe do. Possible as long as nobody else relies on the place. The client acknowledges when its
 * own mappings have left the old one, so that even a late store of the application hits nobody.
 */
Device::Outcome Device::placeInHost(Client &client, Buffer &buffer, Message &reply, Id *ret_cookie)
{
	if (!buffer.attachments.empty() || buffer.holds.size() > 1 || buffer.leaving)
		return failed(reply, EBUSY, PEERBUF_ERR_BUSY,
			      text(bufferName(buffer),
				   " is in device memory, where an importer "
				   "without peer-to-peer cannot reach it, and has ",
				   buffer.attachments.size(), " attachments and ",
				   buffer.holds.size(), " clients that rely on its place"));
	std::vector<Run> runs;
	std::string why;
	if (!takeFrames(PEERBUF_PLACEMENT_HOST, buffer.size, Frame::Overwritten, &runs, &why))
		return failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY, why);
	copyRuns(buffer.runs, runs);
	Leaving leaving;
	leaving.buffer = buffer.id;
	leaving.waiting.insert(client.id);
	leaving.runs = std::move(buffer.runs);
	buffer.runs = std::move(runs);
	buffer.placement = PEERBUF_PLACEMENT_HOST;
	buffer.huge = 0;
	buffer.generation++;
	buffer.leaving = *ret_cookie = ++lastId_;
	leavings_.emplace(buffer.leaving, std::move(leaving));
	moves_++;
	return Outcome::Answered;
}

/** What is asked for is out of the asker's reach: have it brought back, and refuse until then. */
Device::Outcome Device::bringBack(Message &reply, const Buffer &buffer, const std::string &what)
{
	std::string why;
	const int rc = demand(buffer, &why);
	return failed(reply, -rc, rc == -ENOMEM ? PEERBUF_ERR_NO_MEMORY : PEERBUF_ERR_BUSY,
		      what + why);
}

Device::Outcome Device::detach(Client &client, const Message &request)
{
	Attachment *attachment = ownAttachment(client, request.body.range.object);
	if (!attachment)
		return garbage(text("detach of attachment ", request.body.range.object));
	const Id buffer = attachment->buffer;
	client.attachments.erase(attachment->id);
	endAttachment(*attachment);
	reap(buffer);
	return Outcome::Answered;
}

/** Also gives back what its client did not: mappings, exports, pins. */
void Device::endAttachment(Attachment &attachment)
{
	Buffer &buffer = *buffers_.at(attachment.buffer);
	for (const auto &[token, mapping] : attachment.mappings)
		giveWindow(buffer, mapping);
	for (const auto &[token, mapping] : attachment.exports)
		giveWindow(buffer, mapping);
	buffer.mappings -= attachment.mappings.size();
	buffer.attachments.erase(attachment.id);
	attachments_.erase(attachment.id);
}

Device::Outcome Device::pin(Client &client, const Message &request, Message &reply)
{
	Attachment *attachment = ownAttachment(client, request.body.range.object);
	if (!attachment)
		return garbage(text("pin of attachment ", request.body.range.object));
	const Buffer &buffer = *buffers_.at(attachment->buffer);
	if (settings_.pin == PEERBUF_PIN_REFUSES)
		return failed(reply, EOPNOTSUPP, PEERBUF_ERR_PIN_REFUSED,
			      text(bufferName(buffer), ": this device refuses to pin"));
	if (attachment->revoked)
		return failed(reply, ENODEV, PEERBUF_ERR_REVOKED,
			      text("pin of ", bufferName(buffer), ": it was revoked"));
	if (moving_.count(buffer.id))
		return failed(reply, EAGAIN, PEERBUF_ERR_BUSY,
			      text("pin of ", bufferName(buffer), ": it is just being moved"));
	std::string why;
	if (buffer.placement & ~attachment->placements)
		return bringBack(reply, buffer, "pin of ");
	/* Pins of memory that never moves, or of another tier, take nothing from anybody. */
	if (!attachment->pins && settings_.stability == PEERBUF_STABILITY_MOVES &&
	    buffer.placement == homePlacement()) {
		const uint64_t has = pinnedBytes(client.tenant);
		const peerbuf_tenant_limits limits = limitsOf(client.tenant);
		const std::string what = text("pin of ", bufferName(buffer), ": ");
		if (has > limits.pinned || attachment->length > limits.pinned - has)
			return failed(reply, ENOMEM, PEERBUF_ERR_QUOTA,
				      text(what, "tenant '", client.tenant, "' needs ",
					   attachment->length, ", has pinned ", has, ", may pin ",
					   limits.pinned, " bytes of ", name_,
					   "; holders: ", pinHolders()));
		if (!promisesFit(client.tenant, has + attachment->length, limits.min_resident,
				 &why))
			return failed(reply, ENOMEM, PEERBUF_ERR_QUOTA, text(what, why));
	}
	attachment->pins++;
	reply.body.range.generation = buffer.generation;
	return Outcome::Answered;
}

Device::Outcome Device::unpin(Client &client, const Message &request)
{
	Attachment *attachment = ownAttachment(client, request.body.range.object);
	if (!attachment || attachment->pins == 0)
		return garbage(text("unpin of attachment ", request.body.range.object,
				    attachment ? ", which has no pin" : ""));
	attachment->pins--;
	return Outcome::Answered;
}

bool Device::takeWindow(Buffer &buffer, uint64_t offset, uint64_t length, std::string *ret_why)
{
	const uint64_t need = buffer.window.need(offset, length);
	const uint64_t usable = settings_.window - settings_.windowReserve;
	if (settings_.window && (windowUsed_ > usable || need > usable - windowUsed_)) {
		*ret_why = text("the PCIe window of ", name_, " is full: ", settings_.window,
				" bytes in all, ", settings_.windowReserve, " reserved, ",
				windowUsed_, " used, ", need, " needed for ", bufferName(buffer));
		return false;
	}
	buffer.window.add(offset, length);
	windowUsed_ += need;
	return true;
}

void Device::giveWindow(Buffer &buffer, const Mapping &mapping)
{
	if (mapping.inWindow)
		windowUsed_ -= buffer.window.remove(mapping.offset, mapping.length);
}

Device::Outcome Device::map(Client &client, const Message &request, Message &reply)
{
	const RangeBody &ask = request.body.range;
	Attachment *attachment = ownAttachment(client, ask.object);
	if (!attachment)
		return garbage(text("map of attachment ", ask.object));
	Buffer &buffer = *buffers_.at(attachment->buffer);
	if (attachment->revoked)
		return failed(reply, ENODEV, PEERBUF_ERR_REVOKED,
			      text("map of ", bufferName(buffer), ": it was revoked"));
	if (!inside(ask.offset, ask.length, buffer.size))
		return failed(reply, EINVAL, PEERBUF_ERR_BAD_GEOMETRY,
			      text("map of ", ask.length, " bytes at ", ask.offset, " of ",
				   bufferName(buffer), ", which has ", buffer.size));
	const uint64_t page = settings_.granularity;
	Mapping mapping = {};
	mapping.offset = ask.offset / page * page;
	mapping.length = (ask.offset + ask.length - mapping.offset + page - 1) / page * page;
	std::string why;
	if (const auto moving = moving_.find(buffer.id);
	    moving != moving_.end() && moving->second.mover.away(mapping.offset, mapping.length))
		return failed(reply, EAGAIN, PEERBUF_ERR_BUSY,
			      text("map of ", bufferName(buffer), ": it is just being moved"));
	/* In the middle of a move what has come can be used, and what has not left. */
	const uint32_t places = placementOf(buffer, mapping.offset, mapping.length);
	if (places & ~attachment->placements)
		return bringBack(reply, buffer, "map of ");
	buffer.lastUse = now();
	mapping.inWindow = (places & PEERBUF_PLACEMENT_DEVICE) != 0;
	if (mapping.inWindow && !takeWindow(buffer, mapping.offset, mapping.length, &why))
		return failed(reply, ENOSPC, PEERBUF_ERR_WINDOW_EXHAUSTED, why);
	RangeBody &answer = reply.body.range;
	answer.object = attachment->id;
	answer.token = ++lastId_;
	answer.offset = mapping.offset;
	answer.length = mapping.length;
	answer.generation = buffer.generation;
	answer.placement = places;
	attachment->mappings.emplace(answer.token, mapping);
	buffer.mappings++;
	return Outcome::Answered;
}

Device::Outcome Device::unmap(Client &client, const Message &request)
{
	Attachment *attachment = ownAttachment(client, request.body.range.object);
	if (!attachment)
		return garbage(text("unmap of attachment ", request.body.range.object));
	auto it = attachment->mappings.find(request.body.range.token);
	if (it == attachment->mappings.end())
		return garbage(text("unmap of mapping ", request.body.range.token));
	Buffer &buffer = *buffers_.at(attachment->buffer);
	giveWindow(buffer, it->second);
	attachment->mappings.erase(it);
	buffer.mappings--;
	return Outcome::Answered;
}

Device::Outcome Device::exportFd(Client &client, const Message &request, Message &reply,
				 UniqueFd &replyFd)
{
	const RangeBody &ask = request.body.range;
	Attachment *attachment = ownAttachment(client, ask.object);
	if (!attachment)
		return garbage(text("export of attachment ", ask.object));
	Buffer &buffer = *buffers_.at(attachment->buffer);
	if (attachment->revoked)
		return failed(reply, ENODEV, PEERBUF_ERR_REVOKED,
			      text("export of ", bufferName(buffer), ": it was revoked"));
	if (!inside(ask.offset, ask.length, buffer.size))
		return failed(reply, EINVAL, PEERBUF_ERR_BAD_GEOMETRY,
			      text("export of ", ask.length, " bytes at ", ask.offset, " of ",
				   bufferName(buffer), ", which has ", buffer.size));
	if (!buffer.identity) {
		IdentityMark mark = {};
		memcpy(mark.magic, identityMagic, sizeof(mark.magic));
		mark.deviceId = id_;
		mark.allocation = buffer.id;
		const auto fault = faults_.take("device.identity");
		UniqueFd identity;
		const int fd = fault && fault->err ? fault->err : makeIdentity(buffer.size, mark);
		struct stat st = {};
		if (fd >= 0)
			identity.reset(fd);
		if (fd < 0 || ::fstat(fd, &st) < 0) {
			const int err = fd < 0 ? -fd : errno;
			return failed(reply, err,
				      err == EMFILE ? PEERBUF_ERR_FD_EXHAUSTED : PEERBUF_ERR_SYSTEM,
				      text("dma-buf of ", bufferName(buffer), ": ", errnoText(err),
					   fault ? ", injected at step device.identity" : ""));
		}
		buffer.identityKey = {st.st_dev, st.st_ino};
		identities_.emplace(buffer.identityKey, buffer.id);
		buffer.identity = std::move(identity);
	}
	replyFd.reset(::fcntl(buffer.identity.get(), F_DUPFD_CLOEXEC, 0));
	if (!replyFd)
		return failed(reply, errno, PEERBUF_ERR_FD_EXHAUSTED,
			      text("dma-buf of ", bufferName(buffer), ": ", errnoText(errno)));
	const uint64_t page = settings_.granularity;
	Mapping mapping = {};
	mapping.offset = ask.offset / page * page;
	mapping.length = (ask.offset + ask.length - mapping.offset + page - 1) / page * page;
	mapping.inWindow = (buffer.placement & PEERBUF_PLACEMENT_DEVICE) != 0;
	std::string why;
	if (mapping.inWindow && !takeWindow(buffer, mapping.offset, mapping.length, &why)) {
		replyFd.reset();
		return failed(reply, ENOSPC, PEERBUF_ERR_WINDOW_EXHAUSTED, why);
	}
	RangeBody &answer = reply.body.range;
	answer.object = attachment->id;
	answer.token = ++lastId_;
	answer.offset = ask.offset;
	answer.length = buffer.size;
	attachment->exports.emplace(answer.token, mapping);
	return Outcome::Answered;
}

Device::Outcome Device::releaseFd(Client &client, const Message &request)
{
	Attachment *attachment = ownAttachment(client, request.body.range.object);
	if (!attachment)
		return garbage(text("release of attachment ", request.body.range.object));
	auto it = attachment->exports.find(request.body.range.token);
	if (it == attachment->exports.end())
		return garbage(text("release of export ", request.body.range.token));
	giveWindow(*buffers_.at(attachment->buffer), it->second);
	attachment->exports.erase(it);
	return Outcome::Answered;
}

/* ---- revoke -------------------------------------------------------------------------------- */

Device::Outcome Device::revoke(Client &client, const Message &request, Message &reply)
{
	Buffer *buffer = heldBuffer(client, request.body.range.object);
	if (!buffer)
		return garbage(text("revoke of buffer ", request.body.range.object,
				    ", which it does not hold"));
	if (settings_.revoke == PEERBUF_REVOKE_NEVER)
		return failed(reply, EOPNOTSUPP, PEERBUF_ERR_INVALID_ARGUMENT,
			      text("revoke of ", bufferName(*buffer),
				   ": this device said that it never revokes (revoke=never)"));
	if (buffer->revoked)
		return Outcome::Answered;
	if (buffer->leaving)
		return failed(reply, EBUSY, PEERBUF_ERR_BUSY,
			      text("revoke of ", bufferName(*buffer), ": it is just being moved"));

	cancelMove(*buffer, -ENODEV);
	beginRevoke(*buffer);
	return Outcome::Answered;
}

/** Everybody who must be told when the buffer's memory goes elsewhere. */
std::set<Device::Id> Device::usersOf(const Buffer &buffer) const
{
	std::set<Id> users;
	for (const auto &[holder, count] : buffer.holds)
		users.insert(holder);
	for (const Id id : buffer.attachments)
		users.insert(attachments_.at(id)->client);
	return users;
}

void Device::beginRevoke(Buffer &buffer, uint64_t deadlineNs)
{
	/* First the mark, then the notice, so that a racing map fails (rule 54). */
	buffer.revoked = true;
	Leaving leaving;
	leaving.buffer = buffer.id;
	leaving.waiting = usersOf(buffer);
	if (deadlineNs)
		leaving.deadline = now() + deadlineNs;
	for (const Id id : buffer.attachments)
		attachments_.at(id)->revoked = true;
	const Id cookie = buffer.leaving = ++lastId_;
	Message notice = makeMessage(Kind::Event, Op::Invalidate);
	notice.body.notice.buffer = buffer.id;
	notice.body.notice.cookie = cookie;
	notice.body.notice.length = buffer.size;
	notice.body.notice.generation = buffer.generation;
	notice.body.notice.reason = PEERBUF_REASON_REVOKE;
	const std::set<Id> told = leaving.waiting;
	leavings_.emplace(cookie, std::move(leaving));
	for (const Id id : told)
		if (auto it = clients_.find(id); it != clients_.end())
			post(*it->second, notice, UniqueFd());
	chat(text(bufferName(buffer), " is revoked, ", told.size(), " clients are told"));
}

Device::Outcome Device::ack(Client &client, const Message &request)
{
	const NoticeBody &notice = request.body.notice;
	if (acknowledgeSlice(notice.cookie, client.id, notice.status))
		return Outcome::Silent;
	auto it = leavings_.find(notice.cookie);
	if (it == leavings_.end() || !it->second.waiting.count(client.id))
		return garbage(
			text("acknowledgement of ", notice.cookie, ", which it was not asked for"));
	acknowledge(notice.cookie, client.id, notice.status);
	return Outcome::Silent;
}

void Device::acknowledge(Id cookie, Id client, int status)
{
	auto it = leavings_.find(cookie);
	if (it == leavings_.end())
		return;
	it->second.waiting.erase(client);
	if (status < 0)
		it->second.status = status;
	if (it->second.waiting.empty())
		finishLeaving(cookie);
}

void Device::finishLeaving(Id cookie)
{
	const Leaving leaving = std::move(leavings_.at(cookie));
	leavings_.erase(cookie);
	Buffer &buffer = *buffers_.at(leaving.buffer);
	buffer.leaving = 0;
	if (leaving.status < 0) {
		/* An importer may still write there: never again anybody's memory. */
		const std::vector<Run> &runs = leaving.runs.empty() ? buffer.runs : leaving.runs;
		for (const Run &run : runs)
			quarantined_ += run.length;
		say(text("the memory of ", bufferName(buffer),
			 " goes to quarantine: an importer did not let go: ",
			 errnoText(-leaving.status)));
		if (leaving.runs.empty())
			buffer.runs.clear();
	} else if (!leaving.runs.empty()) {
		giveFrames(leaving.runs);
	}
	reap(leaving.buffer);
}

Device::Outcome Device::restore(Client &client, const Message &request, Message &reply)
{
	Buffer *buffer = heldBuffer(client, request.body.range.object);
	if (!buffer)
		return garbage(text("restore of buffer ", request.body.range.object,
				    ", which it does not hold"));
	if (!buffer->revoked)
		return Outcome::Answered;
	if (!reclaimable(*buffer))
		return failed(
			reply, EBUSY, PEERBUF_ERR_BUSY,
			text("restore of ", bufferName(*buffer), ": ",
			     buffer->leaving ? leavings_.at(buffer->leaving).waiting.size() : 0,
			     " clients have not let go yet, ", buffer->mappings,
			     " mappings are left"));
	if (buffer->runs.empty()) {
		std::string why;
		const uint32_t place = buffer->placement & PEERBUF_PLACEMENT_DEVICE
					       ? PEERBUF_PLACEMENT_DEVICE
					       : PEERBUF_PLACEMENT_HOST;
		if (!takeFrames(place, buffer->size, Frame::Zeroed, &buffer->runs, &why))
			return failed(reply, ENOMEM, PEERBUF_ERR_NO_MEMORY, why);
		buffer->placement = place;
		buffer->huge = 0;
	}
	buffer->generation++;
	buffer->revoked = false;
	describe(*buffer, 0, reply);
	Message notice = makeMessage(Kind::Event, Op::Placed);
	notice.body.notice.buffer = buffer->id;
	notice.body.notice.length = buffer->size;
	notice.body.notice.generation = buffer->generation;
	for (const auto &[holder, count] : buffer->holds)
		if (auto it = clients_.find(holder); it != clients_.end())
			post(*it->second, notice, UniqueFd());
	return Outcome::Answered;
}

/* ---- faults and figures -------------------------------------------------------------------- */

Device::Outcome Device::fault(const Message &request, Message &reply)
{
	const FaultBody &ask = request.body.fault;
	const std::string step = sentName(ask.step, sizeof(ask.step));
	if (ask.err > 0 || !knownStep(step, ask.err))
		return failed(
			reply, ENOENT, PEERBUF_ERR_NOT_FOUND,
			text("no step '", step, "' of ", name_, ask.err ? " that can fail" : ""));
	faults_.set(step, ask.skip, ask.count, {ask.err, ask.delayNs});
	return Outcome::Answered;
}

Device::Outcome Device::stats(const Client &client, Message &reply)
{
	peerbuf_exporter_stats &s = reply.body.stats;
	s.struct_size = sizeof(s);
	std::set<Id> buffers;
	for (const auto &[id, count] : client.holds)
		buffers.insert(id);
	s.buffers = buffers.size();
	s.attachments = client.attachments.size();
	std::map<Id, WindowUse> window;
	for (const Id id : client.attachments) {
		const Attachment &attachment = *attachments_.at(id);
		buffers.insert(attachment.buffer);
		s.pins += static_cast<int64_t>(attachment.pins);
		s.mappings += static_cast<int64_t>(attachment.mappings.size());
		s.exports += static_cast<int64_t>(attachment.exports.size());
		for (const auto *mappings : {&attachment.mappings, &attachment.exports}) {
			for (const auto &[token, mapping] : *mappings) {
				if (!mapping.inWindow)
					continue;
				WindowUse &use = window[attachment.buffer];
				s.window_used += use.need(mapping.offset, mapping.length);
				use.add(mapping.offset, mapping.length);
			}
		}
	}
	for (const Id id : buffers) {
		const Buffer &buffer = *buffers_.at(id);
		if (!buffer.runs.empty() && !reclaimable(buffer))
			s.memory_used += buffer.size;
		if (moving_.count(id)) /* the destination is taken from the start */
			s.memory_used += buffer.size;
	}
	s.moves = moves_;
	s.quarantined = quarantined_;
	s.slices = slices_;
	s.evictions = evictions_;
	s.refaults = refaults_;
	s.aborted = aborted_;
	return Outcome::Answered;
}

} // namespace peerbuf::emulated
