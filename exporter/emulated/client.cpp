// SPDX-License-Identifier: BSD-3-Clause
#include "client.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "pages.h"

extern char **environ;

namespace peerbuf::emulated
{

using plugin::copyOut;
using plugin::text;

namespace
{

constexpr long dmaBufMagic = 0x444d4142; /* linux/magic.h: DMA_BUF_MAGIC */

bool inside(uint64_t offset, uint64_t length, uint64_t size)
{
	return length != 0 && offset <= size && length <= size - offset;
}

bool oneBit(uint32_t value)
{
	return value && !(value & (value - 1));
}

struct Step {
	const char *name;
	bool canFail; /* else it can only be slow */
};

constexpr Step steps[] = {
	{"offer", true},       {"alloc", true},		{"free", true},		{"get", true},
	{"put", false},	       {"attach", true},	{"detach", false},	{"pin", true},
	{"unpin", false},      {"map", true},		{"unmap", false},	{"export_fd", true},
	{"release_fd", false}, {"client.window", true}, {"client.place", true},
};

/** Why it does not offer more, for reports. */
const char *whyNotMore(const Settings &s)
{
	if (s.stability == PEERBUF_STABILITY_STATIC)
		return s.revoke == PEERBUF_REVOKE_MAY
			       ? "emulated: the memory never moves but may be taken back"
			       : "emulated: the memory never moves, so there is nothing to follow";
	if (s.pin == PEERBUF_PIN_REFUSES)
		return "emulated: the memory moves and this device refuses to pin it";
	if (s.revoke == PEERBUF_REVOKE_MAY)
		return "emulated: the memory moves and may be taken back";
	return "emulated: the memory moves";
}

} // namespace

Client::Client(const peerbuf_host *host) : host_(host), owner_(::getpid()) {}

/* ---- open and close ------------------------------------------------------------------------ */

int Client::open(const peerbuf_host *host, const peerbuf_param *params, size_t n,
		 Client **ret_client)
{
	std::unique_ptr<Client> client(new Client(host));
	plugin::Options options(host, params, n);
	if (const int rc = client->connect(options, params, n))
		return rc;
	*ret_client = client.release();
	return 0;
}

int Client::connect(plugin::Options &options, const peerbuf_param *params, size_t n)
{
	const Settings wanted = readSettings(options);
	const std::string path = options.string("socket", "");
	const std::string tenant = options.string("tenant", "default");
	const char *fromEnvironment = ::secure_getenv("PEERBUF_EMULATED_DEVICE");
	const std::string binary =
		options.string("binary", fromEnvironment && *fromEnvironment ? fromEnvironment
									     : PEERBUF_LIBEXEC_DIR
						 "/peerbuf-emulated-device");
	const uint64_t timeout = options.number("timeout", 30000, 0, 86400000) * 1000000;
	if (tenant.empty() || tenant.size() >= PEERBUF_NAME_LEN)
		options.complain(text("option tenant='", tenant, "': 1 to ", PEERBUF_NAME_LEN - 1,
				      " bytes"));
	struct sockaddr_un address = {};
	if (path.size() >= sizeof(address.sun_path))
		options.complain(text("option socket='", path, "': longer than ",
				      sizeof(address.sun_path) - 1, " bytes"));
	if (const int rc = options.finish())
		return rc;

	UniqueFd socket;
	std::string where;
	if (path.empty()) {
		where = text("the device process ", binary);
		if (const int rc = spawn(binary, params, n, &socket))
			return rc;
	} else {
		where = text("the running device at ", path);
		address.sun_family = AF_UNIX;
		path.copy(address.sun_path, path.size());
		socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
		if (!socket)
			return host_.fail(errno, text("socket: ", errnoText(errno)),
					  PEERBUF_ERR_SYSTEM);
		if (::connect(socket.get(), reinterpret_cast<struct sockaddr *>(&address),
			      sizeof(address)) < 0)
			return host_.fail(
				ENODEV, text("no device answers at ", path, ": ", errnoText(errno)),
				PEERBUF_ERR_DEVICE_GONE);
	}
	if (const int rc = Connection::create(std::move(socket), timeout, &connection_))
		return host_.fail(-rc, text("connection: ", errnoText(-rc)), PEERBUF_ERR_SYSTEM);

	std::vector<std::string> given;
	if (!path.empty())
		for (size_t i = 0; i < n; i++)
			given.emplace_back(params[i].key);
	Message hello = makeMessage(Kind::Request, Op::Hello);
	plugin::copyName(hello.body.hello.tenant, tenant);
	Message reply;
	if (const int rc = call(&hello, &reply, -1, &hbm_))
		return rc;
	settings_ = reply.body.hello.settings;
	deviceId_ = reply.body.hello.deviceId;
	device_ = std::string(reply.body.hello.device,
			      strnlen(reply.body.hello.device, PEERBUF_NAME_LEN));
	return greet(wanted, given, where);
}

/** What the device said of itself: compare with what was asked for, and map its memory. */
int Client::greet(const Settings &wanted, const std::vector<std::string> &given,
		  const std::string &where)
{
	for (const std::string &key : given) {
		for (const std::string &decided : settingsDecidedBy(key)) {
			if (decided != key &&
			    std::find(given.begin(), given.end(), decided) != given.end())
				continue; /* said again, and compared, by itself */
			const std::string mine = settingText(wanted, decided);
			const std::string theirs = settingText(settings_, decided);
			if (mine != theirs)
				return host_.fail(
					EINVAL,
					text("option ", key, "=", settingText(wanted, key),
					     decided == key ? text("")
							    : text(" (", decided, "=", mine, ")"),
					     " contradicts ", where, ", which has ", decided, "=",
					     theirs),
					PEERBUF_ERR_INVALID_ARGUMENT);
		}
	}
	const uint64_t total = settings_.total();
	if (!isScratch(hbm_.get(), total))
		return host_.fail(EPROTO,
				  text(where, " sent a descriptor that is not its memory of ",
				       total, " bytes"),
				  PEERBUF_ERR_PROTOCOL);
	memory_ = mapWhole(hbm_.get(), total);
	if (!memory_)
		return host_.fail(
			errno,
			text("mapping the ", total, " bytes of ", device_, ": ", errnoText(errno)),
			PEERBUF_ERR_SYSTEM);
	return 0;
}

int Client::spawn(const std::string &binary, const peerbuf_param *params, size_t n,
		  UniqueFd *ret_socket)
{
	constexpr int childFd = 3;
	int pair[2];
	if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return host_.fail(errno, text("socketpair: ", errnoText(errno)),
				  PEERBUF_ERR_SYSTEM);
	UniqueFd ours(pair[0]);
	const UniqueFd theirs(pair[1]);

	std::vector<std::string> words = {binary, "--fd", std::to_string(childFd)};
	for (size_t i = 0; i < n; i++)
		for (const SettingKey &key : settingKeys())
			if (strcmp(params[i].key, key.key) == 0)
				words.push_back(text("--", key.key, "=", params[i].value));
	std::vector<char *> argv;
	argv.reserve(words.size() + 1);
	for (std::string &word : words)
		argv.push_back(word.data());
	argv.push_back(nullptr);

	/* Nothing of ours but the socket and standard error; away from our terminal's signals. */
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	sigset_t all;
	sigemptyset(&none);
	sigfillset(&all);
	int rc = ::posix_spawn_file_actions_init(&actions);
	if (rc)
		return host_.fail(rc, text("spawn: ", errnoText(rc)), PEERBUF_ERR_SYSTEM);
	rc = ::posix_spawnattr_init(&attr);
	if (rc) {
		::posix_spawn_file_actions_destroy(&actions);
		return host_.fail(rc, text("spawn: ", errnoText(rc)), PEERBUF_ERR_SYSTEM);
	}
	pid_t pid = -1;
	const auto step = [&rc](int result) { rc = rc ? rc : result; };
	step(::posix_spawn_file_actions_adddup2(&actions, theirs.get(), childFd));
	step(::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0));
	step(::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0));
	step(::posix_spawn_file_actions_addclosefrom_np(&actions, childFd + 1));
	step(::posix_spawnattr_setsigmask(&attr, &none));
	step(::posix_spawnattr_setsigdefault(&attr, &all));
	step(::posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						       POSIX_SPAWN_SETSID));
	if (!rc)
		step(::posix_spawn(&pid, binary.c_str(), &actions, &attr, argv.data(), environ));
	::posix_spawnattr_destroy(&attr);
	::posix_spawn_file_actions_destroy(&actions);
	if (rc)
		return host_.fail(ENODEV,
				  text("cannot start the emulated device ", binary, ": ",
				       errnoText(rc),
				       " (option binary= or PEERBUF_EMULATED_DEVICE names it)"),
				  PEERBUF_ERR_NOT_FOUND);
	child_ = pid;
	*ret_socket = std::move(ours);
	return 0;
}

Client::~Client()
{
	if (owner_ == ::getpid()) {
		if (connection_)
			connection_->hangUp();
		connection_.reset();
		reap();
	}
	if (memory_)
		::munmap(memory_, settings_.total());
}

/** A private device ends by itself when we leave; one that hangs is ended. */
void Client::reap()
{
	if (child_ < 0)
		return;
	constexpr int patienceMs = 5000;
	const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
	struct pollfd p = {process.get(), POLLIN, 0};
	int rc = 0;
	do {
		rc = process ? ::poll(&p, 1, patienceMs) : 1;
	} while (rc < 0 && errno == EINTR);
	if (rc == 0) {
		host_.warn(text("the device process ", child_, " did not end in ", patienceMs,
				" ms and is killed"));
		::kill(child_, SIGKILL);
	}
	/* ECHILD: the application reaps everything itself. */
	while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
	}
	child_ = -1;
}

/* ---- asking the device --------------------------------------------------------------------- */

int Client::deviceGone(const std::string &what)
{
	uint32_t errc = PEERBUF_ERR_DEVICE_GONE;
	const std::string why = connection_->whyGone(&errc);
	return host_.fail(ENODEV,
			  text(what, ": the device ", device_.empty() ? "emulated" : device_,
			       " is gone: ", why),
			  errc);
}

int Client::call(Message *request, Message *ret_reply, int fd, UniqueFd *ret_fd)
{
	const int rc = connection_->call(request, fd, ret_reply, ret_fd);
	if (rc == -ENODEV)
		return deviceGone(opName(request->op));
	if (rc < 0)
		return host_.fail(-rc,
				  text(opName(request->op), ": a descriptor between us and ",
				       device_, " was lost: ", errnoText(-rc)),
				  PEERBUF_ERR_FD_EXHAUSTED);
	if (ret_reply->status < 0) {
		FailureBody &failure = ret_reply->body.failure;
		failure.why[sizeof(failure.why) - 1] = '\0';
		return host_.fail(-ret_reply->status, failure.why, failure.errc);
	}
	return 0;
}

int Client::injected(const char *step)
{
	std::optional<FaultPlan::Fault> fault;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		fault = faults_.take(step);
	}
	if (!fault)
		return 0;
	if (fault->delayNs) {
		struct timespec left = {static_cast<time_t>(fault->delayNs / 1000000000),
					static_cast<long>(fault->delayNs % 1000000000)};
		while (::nanosleep(&left, &left) < 0 && errno == EINTR) {
		}
	}
	return fault->err ? host_.fail(-fault->err,
				       text("fault injected at step ", step, " of ", device_))
			  : 0;
}

int Client::tooShort(const char *what, uint32_t has, size_t needs)
{
	return host_.fail(EINVAL,
			  text(what, ": struct_size is ", has, ", at least ", needs, " is needed"),
			  PEERBUF_ERR_INVALID_ARGUMENT);
}

int Client::noBuffer(uint64_t id)
{
	return host_.fail(connection_->gone() ? ENODEV : ENOENT,
			  text("no buffer ", id, " of ", device_), PEERBUF_ERR_NOT_FOUND);
}

/** A breach of the contract by whoever called. Once the device is gone, everything is excused. */
void Client::violation(const std::string &what)
{
	if (connection_->gone())
		return;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		violations_++;
	}
	host_.warn(text("breach of the contract towards ", device_, ": ", what));
}

std::string Client::name(const Buffer &buffer) const
{
	return text("buffer ", buffer.id, " of ", device_);
}

Client::BufferPtr Client::findBuffer(uint64_t id)
{
	std::lock_guard<std::mutex> lock(mutex_);
	auto it = buffers_.find(id);
	return it == buffers_.end() ? nullptr : it->second;
}

/** Also a buffer that was freed here and that attachments still use. */
Client::BufferPtr Client::findKnown(uint64_t id)
{
	std::lock_guard<std::mutex> lock(mutex_);
	auto it = known_.find(id);
	return it == known_.end() ? nullptr : it->second.lock();
}

Client::AttachmentPtr Client::findAttachment(uint64_t token)
{
	std::lock_guard<std::mutex> lock(mutex_);
	auto it = attachments_.find(token);
	return it == attachments_.end() ? nullptr : it->second;
}

int Client::offer(uint64_t buffer, peerbuf_exporter_offer *ret_offer)
{
	if (ret_offer->struct_size < sizeof(*ret_offer))
		return tooShort("offer", ret_offer->struct_size, sizeof(*ret_offer));
	if (const int rc = injected("offer"))
		return rc;
	if (buffer && !findBuffer(buffer))
		return host_.fail(ENOENT, text("no buffer ", buffer, " of ", device_),
				  PEERBUF_ERR_NOT_FOUND);
	/* The buffer itself changes nothing, and it may be freed while we ask. */
	Message request = makeMessage(Kind::Request, Op::Offer);
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	peerbuf_exporter_offer o = {};
	o.stability = settings_.stability;
	o.pin = settings_.pin;
	o.revoke = settings_.revoke;
	o.management = PEERBUF_MANAGED_BY_USER;
	o.placements = settings_.placements;
	o.variants = settings_.variants;
	o.handles = settings_.handles;
	o.needs_peer2peer = settings_.needsPeer2peer;
	o.access = settings_.access;
	o.granularity = settings_.granularity;
	o.memory_size = settings_.hbm;
	o.window_size = settings_.window;
	o.window_used = reply.body.offer.windowUsed;
	o.window_reserve = settings_.windowReserve;
	o.dma_addr_max = settings_.dmaBase + settings_.total() - 1;
	plugin::copyName(o.device, device_);
	plugin::copyName(o.why, whyNotMore(settings_));
	copyOut(o, ret_offer);
	return 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

/**
 * Put the buffer's window where the device says; @p first is its answer, with the first runs.
 * buffer->mutex is held, so that an invalidate that comes after the answer waits for us and one
 * that came before it shows in the answer.
 */
int Client::learnPlace(const BufferPtr &buffer, const Message &first)
{
	std::vector<Run> runs;
	Message answer = first;
	for (;;) {
		const BufferBody &body = answer.body.buffer;
		uint64_t sum = 0;
		if (body.revoked) {
			buffer->placed = false;
			buffer->generation = body.generation;
			buffer->runs.clear();
			const int rc = buffer->window.blank();
			return rc ? host_.fail(-rc, text(name(*buffer), ": ", errnoText(-rc)),
					       PEERBUF_ERR_SYSTEM)
				  : 0;
		}
		if (body.first != runs.size() || body.count > runsPerMessage ||
		    body.total > 2 * Frames::maxRuns || body.first + body.count > body.total)
			return host_.fail(EPROTO, text(name(*buffer), ": a nonsensical layout"),
					  PEERBUF_ERR_PROTOCOL);
		runs.insert(runs.end(), body.runs, body.runs + body.count);
		if (runs.size() < body.total && body.count) {
			const uint64_t generation = body.generation;
			Message request = makeMessage(Kind::Request, Op::Layout);
			request.body.buffer.buffer = buffer->id;
			request.body.buffer.first = static_cast<uint32_t>(runs.size());
			if (const int rc = call(&request, &answer))
				return rc;
			if (answer.body.buffer.generation != generation) {
				runs.clear(); /* it moved between two answers */
				request.body.buffer.first = 0;
				if (const int rc = call(&request, &answer))
					return rc;
			}
			continue;
		}
		for (const Run &run : runs) {
			if (!inside(run.offset, run.length, settings_.total()))
				sum = UINT64_MAX - run.length;
			sum += run.length;
		}
		if (sum != buffer->size)
			return host_.fail(EPROTO,
					  text(name(*buffer), ": the layout is not its ",
					       buffer->size, " bytes"),
					  PEERBUF_ERR_PROTOCOL);
		break;
	}
	if (const int rc = injected("client.place"))
		return rc;
	if (const int rc = buffer->window.place(hbm_.get(), runs))
		return host_.fail(-rc,
				  text(name(*buffer), ": mapping ", runs.size(), " runs: ",
				       errnoText(-rc), " (vm.max_map_count limits how many)"),
				  PEERBUF_ERR_NO_MEMORY);
	buffer->generation = answer.body.buffer.generation;
	buffer->runs = std::move(runs);
	buffer->placed = true;
	return 0;
}

/** Make sure the window is at generation @p generation or a later one. buffer->mutex is held. */
int Client::syncPlace(const BufferPtr &buffer, uint64_t generation)
{
	if (buffer->placed && buffer->generation >= generation)
		return 0;
	Message request = makeMessage(Kind::Request, Op::Layout);
	request.body.buffer.buffer = buffer->id;
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	return learnPlace(buffer, reply);
}

void Client::fillDesc(const BufferPtr &buffer, peerbuf_buffer_desc *ret_desc)
{
	peerbuf_buffer_desc d = {};
	d.handle = buffer->id;
	d.allocation_id = buffer->id;
	{
		std::lock_guard<std::mutex> lock(buffer->mutex);
		d.generation = buffer->generation;
	}
	d.address = buffer->window.address();
	d.size = buffer->size;
	copyOut(d, ret_desc);
}

/** A buffer the device has just given us a hold on. On an error the hold is given back. */
int Client::adopt(const Message &reply, bool byAlloc, peerbuf_buffer_desc *ret_desc)
{
	const BufferBody &body = reply.body.buffer;
	BufferPtr buffer = findKnown(body.buffer);
	BufferPtr fresh;
	if (!buffer) {
		fresh = std::make_shared<Buffer>();
		fresh->id = body.buffer;
		fresh->size = body.size;
		int rc = injected("client.window");
		if (!rc && (rc = fresh->window.reserve(body.size)))
			rc = host_.fail(-rc,
					text(name(*fresh), ": ", body.size,
					     " bytes of addresses: ", errnoText(-rc)),
					PEERBUF_ERR_NO_MEMORY);
		if (rc) {
			dropHolds(body.buffer, 1);
			return rc;
		}
	}
	{
		/* Known before its place is asked for: an invalidate must find it. */
		std::lock_guard<std::mutex> lock(mutex_);
		std::erase_if(known_, [](const auto &entry) { return entry.second.expired(); });
		if (!buffer) {
			auto it = known_.find(body.buffer);
			if (it != known_.end())
				buffer = it->second.lock(); /* another thread was faster */
			if (!buffer)
				buffer = fresh;
		}
		known_[body.buffer] = buffer;
		buffers_[body.buffer] = buffer;
		byAddress_[buffer->window.address()] = buffer;
		buffer->holds++;
		(byAlloc ? buffer->allocRefs : buffer->getRefs)++;
	}
	int rc = 0;
	{
		std::lock_guard<std::mutex> lock(buffer->mutex);
		rc = byAlloc ? learnPlace(buffer, reply) : syncPlace(buffer, 0);
	}
	if (rc) {
		(void)giveUp(buffer, byAlloc);
		return rc;
	}
	fillDesc(buffer, ret_desc);
	return 0;
}

void Client::dropHolds(uint64_t id, uint64_t count)
{
	Message request = makeMessage(Kind::Request, Op::Drop);
	request.body.range.object = id;
	request.body.range.token = count;
	Message reply;
	(void)connection_->call(&request, -1, &reply, nullptr);
}

/** @return -ENOENT: there is no such reference. */
int Client::giveUp(const BufferPtr &buffer, bool byFree)
{
	uint64_t holds = 0;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		uint64_t &refs = byFree ? buffer->allocRefs : buffer->getRefs;
		if (refs == 0)
			return -ENOENT;
		if (--refs || buffer->allocRefs || buffer->getRefs)
			return 0;
		holds = buffer->holds;
		buffer->holds = 0;
		buffers_.erase(buffer->id);
		byAddress_.erase(buffer->window.address());
	}
	dropHolds(buffer->id, holds);
	return 0;
}

int Client::alloc(uint64_t size, peerbuf_buffer_desc *ret_desc)
{
	if (ret_desc->struct_size < sizeof(*ret_desc))
		return tooShort("alloc", ret_desc->struct_size, sizeof(*ret_desc));
	if (const int rc = injected("alloc"))
		return rc;
	Message request = makeMessage(Kind::Request, Op::Alloc);
	request.body.range.length = size;
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	return adopt(reply, true, ret_desc);
}

int Client::free(uint64_t id)
{
	if (const int rc = injected("free"))
		return rc;
	const BufferPtr buffer = findBuffer(id);
	const int rc = buffer ? giveUp(buffer, true) : -ENOENT;
	if (rc == 0 || connection_->gone())
		return 0;
	return host_.fail(
		ENOENT,
		text("free of buffer ", id, " of ", device_, ": ",
		     buffer ? "it was not allocated here, or has been freed" : "there is none"),
		PEERBUF_ERR_NOT_FOUND);
}

int Client::get(const peerbuf_get_request *request, peerbuf_buffer_desc *ret_desc)
{
	if (request->struct_size < sizeof(*request))
		return tooShort("get", request->struct_size, sizeof(*request));
	if (ret_desc->struct_size < sizeof(*ret_desc))
		return tooShort("get", ret_desc->struct_size, sizeof(*ret_desc));
	if (const int rc = injected("get"))
		return rc;

	if (request->fd < 0) {
		BufferPtr buffer;
		{
			std::lock_guard<std::mutex> lock(mutex_);
			auto it = byAddress_.upper_bound(request->address);
			if (it != byAddress_.begin() &&
			    request->address - std::prev(it)->first < std::prev(it)->second->size)
				buffer = std::prev(it)->second;
			if (buffer) {
				if (!inside(request->address - buffer->window.address(),
					    request->length, buffer->size))
					return host_.fail(
						EINVAL,
						text(request->length, " bytes at ",
						     plugin::hex(request->address),
						     request->length ? " pass the end of " : " of ",
						     name(*buffer), ", ", buffer->size,
						     " bytes at ",
						     plugin::hex(buffer->window.address())),
						PEERBUF_ERR_BAD_GEOMETRY);
				if (connection_->gone())
					return deviceGone("get");
				buffer->getRefs++;
			}
		}
		if (!buffer)
			return host_.fail(ENOENT,
					  text("address ", plugin::hex(request->address),
					       " is not of ", device_),
					  PEERBUF_ERR_NOT_FOUND);
		fillDesc(buffer, ret_desc);
		return 0;
	}

	const int fd = request->fd;
	struct statfs fs = {};
	if (::fcntl(fd, F_GETFD) < 0)
		return host_.fail(EBADF, text("descriptor ", fd, " is not open"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (::fstatfs(fd, &fs) == 0 && fs.f_type == dmaBufMagic)
		return host_.fail(
			ENOENT, text("descriptor ", fd, " is a kernel's dma-buf, not of ", device_),
			PEERBUF_ERR_NOT_FOUND);
	IdentityMark mark = {};
	if (!readIdentity(fd, &mark))
		return host_.fail(EINVAL, text("descriptor ", fd, " is not a dma-buf"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (mark.deviceId != deviceId_)
		return host_.fail(
			ENOENT,
			text("descriptor ", fd, " is of another emulated device than ", device_),
			PEERBUF_ERR_NOT_FOUND);
	Message ask = makeMessage(Kind::Request, Op::Get);
	Message reply;
	if (const int rc = call(&ask, &reply, fd))
		return rc;
	const uint64_t size = reply.body.buffer.size;
	const uint64_t id = reply.body.buffer.buffer;
	if (request->length > size) {
		dropHolds(id, 1);
		return host_.fail(EINVAL,
				  text(request->length, " bytes pass the end of buffer ", id,
				       " of ", device_, ", which has ", size),
				  PEERBUF_ERR_BAD_GEOMETRY);
	}
	return adopt(reply, false, ret_desc);
}

void Client::put(uint64_t id)
{
	(void)injected("put");
	const BufferPtr buffer = findBuffer(id);
	if (!buffer || giveUp(buffer, false) != 0)
		violation(text("put of buffer ", id, ", to which there is no reference"));
}

/* ---- attachments --------------------------------------------------------------------------- */

int Client::attach(uint64_t id, const peerbuf_attach_request *request,
		   peerbuf_attach_reply *ret_reply)
{
	if (request->struct_size < sizeof(*request))
		return tooShort("attach", request->struct_size, sizeof(*request));
	if (ret_reply->struct_size < sizeof(*ret_reply))
		return tooShort("attach", ret_reply->struct_size, sizeof(*ret_reply));
	if (const int rc = injected("attach"))
		return rc;
	const BufferPtr buffer = findBuffer(id);
	if (!buffer) {
		if (connection_->gone())
			return deviceGone("attach");
		return host_.fail(ENOENT, text("no buffer ", id, " of ", device_),
				  PEERBUF_ERR_NOT_FOUND);
	}
	const std::string importer = request->importer ? request->importer : "an importer";
	const std::string who = text("attach of ", importer, " to ", name(*buffer));
	if (!inside(request->offset, request->length, buffer->size))
		return host_.fail(EINVAL,
				  text(who, ": ", request->length, " bytes at ", request->offset,
				       " of ", buffer->size),
				  PEERBUF_ERR_BAD_GEOMETRY);
	if (!oneBit(request->variant) || !oneBit(request->handle_kind))
		return host_.fail(EINVAL,
				  text(who, ": variant ", plugin::hex(request->variant),
				       " and handle kind ", plugin::hex(request->handle_kind),
				       " must each be one bit"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (!(request->variant & settings_.variants))
		return host_.fail(EOPNOTSUPP,
				  text(who, ": variant ", plugin::hex(request->variant),
				       " of variants=", settingText(settings_, "variants")),
				  PEERBUF_ERR_UNSUPPORTED_DRIVER);
	if (!(request->handle_kind & settings_.handles))
		return host_.fail(EOPNOTSUPP,
				  text(who, ": handle kind ", plugin::hex(request->handle_kind),
				       " of handles=", settingText(settings_, "handles")),
				  PEERBUF_ERR_UNSUPPORTED_DRIVER);
	const uint32_t refused =
		request->access & ~(settings_.access | PEERBUF_ACCESS_OPTIONAL_MASK);
	if (refused)
		return host_.fail(EACCES,
				  text(who, ": access ", plugin::hex(refused),
				       " is not in access=", settingText(settings_, "access")),
				  PEERBUF_ERR_ACCESS);

	Message ask = makeMessage(Kind::Request, Op::Attach);
	AttachBody &body = ask.body.attach;
	body.buffer = id;
	body.offset = request->offset;
	body.length = request->length;
	body.allowPeer2peer = request->allow_peer2peer;
	body.invalidation = request->invalidation;
	body.variant = request->variant;
	body.access = request->access;
	body.handleKind = request->handle_kind;
	body.placements = request->placements;
	body.invalidateScope = request->invalidate_scope;
	plugin::copyName(body.importer, importer);
	Message reply;
	const auto attachment = std::make_shared<Attachment>();
	if (const int rc = call(&ask, &reply))
		return rc;
	const AttachBody &answer = reply.body.attach;
	attachment->token = answer.attachment;
	attachment->buffer = buffer;
	attachment->handleKind = request->handle_kind;
	int rc = 0;
	if (answer.cookie) {
		/* It was put elsewhere for this importer: leave the old place, then say so. */
		std::lock_guard<std::mutex> lock(buffer->mutex);
		rc = syncPlace(buffer, answer.generation);
		Message ack = makeMessage(Kind::Request, Op::Ack);
		ack.body.notice.buffer = id;
		ack.body.notice.cookie = answer.cookie;
		(void)connection_->say(ack);
	}
	if (!rc) {
		std::lock_guard<std::mutex> lock(mutex_);
		if (lossHandled_)
			rc = -ENODEV; /* too late to be told that it is gone */
		else
			attachments_.emplace(attachment->token, attachment);
	}
	if (rc == -ENODEV && connection_->gone())
		return deviceGone(who);
	if (rc) {
		Message undo = makeMessage(Kind::Request, Op::Detach);
		undo.body.range.object = answer.attachment;
		(void)connection_->call(&undo, -1, &reply, nullptr);
		return rc;
	}
	peerbuf_attach_reply r = {};
	r.peer2peer = answer.allowPeer2peer;
	r.placement = answer.placement;
	r.token = answer.attachment;
	copyOut(r, ret_reply);
	return 0;
}

void Client::detach(uint64_t token)
{
	(void)injected("detach");
	AttachmentPtr attachment;
	std::string left;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = attachments_.find(token);
		if (it != attachments_.end()) {
			attachment = it->second;
			attachments_.erase(it);
			if (!attachment->mappings.empty() || !attachment->exports.empty() ||
			    attachment->pins)
				left = text(attachment->mappings.size(), " mappings, ",
					    attachment->exports.size(), " exports and ",
					    attachment->pins, " pins");
			for (const uint64_t mapping : attachment->mappings)
				mappings_.erase(mapping);
			attachment->mappings.clear();
			attachment->pins = 0;
		}
	}
	if (!attachment) {
		violation(text("detach of unknown attachment ", token));
		return;
	}
	if (!left.empty())
		violation(text("detach from ", name(*attachment->buffer), " with ", left));
	Message request = makeMessage(Kind::Request, Op::Detach);
	request.body.range.object = token;
	Message reply;
	(void)connection_->call(&request, -1, &reply, nullptr);
}

int Client::pin(uint64_t token)
{
	if (const int rc = injected("pin"))
		return rc;
	const AttachmentPtr attachment = findAttachment(token);
	if (!attachment) {
		violation(text("pin of unknown attachment ", token));
		return host_.fail(EINVAL, text("no attachment ", token, " of ", device_),
				  PEERBUF_ERR_NOT_FOUND);
	}
	Message request = makeMessage(Kind::Request, Op::Pin);
	request.body.range.object = token;
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	std::lock_guard<std::mutex> lock(mutex_);
	attachment->pins++;
	return 0;
}

void Client::unpin(uint64_t token)
{
	(void)injected("unpin");
	bool pinned = false;
	const bool gone = connection_->gone();
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = attachments_.find(token);
		if (it != attachments_.end() && it->second->pins > 0) {
			it->second->pins--;
			pinned = true;
		} else if (!gone) {
			excessUnpins_++;
		}
	}
	if (!pinned) {
		violation(text("unpin of attachment ", token, ", which has no pin"));
		return;
	}
	Message request = makeMessage(Kind::Request, Op::Unpin);
	request.body.range.object = token;
	Message reply;
	(void)connection_->call(&request, -1, &reply, nullptr);
}

void Client::addSegments(const Buffer &buffer, uint64_t offset, uint64_t length,
			 std::vector<peerbuf_segment> *segments) const
{
	uint64_t start = 0; /* of the run, in the buffer */
	for (const Run &run : buffer.runs) {
		const uint64_t from = std::max(start, offset);
		const uint64_t to = std::min(start + run.length, offset + length);
		if (from < to) {
			const uint64_t at = run.offset + (from - start);
			segments->push_back({settings_.dmaBase + at, to - from, memory_ + at});
		}
		start += run.length;
	}
}

int Client::map(uint64_t token, uint64_t offset, uint64_t length, peerbuf_mapping *ret_mapping)
{
	if (ret_mapping->struct_size < sizeof(*ret_mapping))
		return tooShort("map", ret_mapping->struct_size, sizeof(*ret_mapping));
	if (const int rc = injected("map"))
		return rc;
	const AttachmentPtr attachment = findAttachment(token);
	if (!attachment) {
		violation(text("map of unknown attachment ", token));
		return host_.fail(EINVAL, text("no attachment ", token, " of ", device_),
				  PEERBUF_ERR_NOT_FOUND);
	}
	Buffer &buffer = *attachment->buffer;
	Message request = makeMessage(Kind::Request, Op::Map);
	request.body.range.object = token;
	request.body.range.offset = offset;
	request.body.range.length = length;
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	const RangeBody &answer = reply.body.range;

	peerbuf_mapping m = {};
	Mapping kept;
	kept.attachment = attachment;
	int rc = 0;
	{
		std::lock_guard<std::mutex> lock(buffer.mutex);
		rc = syncPlace(attachment->buffer, answer.generation);
		if (!rc && !buffer.placed)
			rc = host_.fail(ENODEV, text("map of ", name(buffer), ": it was revoked"),
					PEERBUF_ERR_REVOKED);
		if (!rc && (attachment->handleKind & PEERBUF_HANDLE_SEGMENTS))
			addSegments(buffer, answer.offset, answer.length, &kept.segments);
		m.generation = buffer.generation;
	}
	if (rc) {
		Message undo = makeMessage(Kind::Request, Op::Unmap);
		undo.body.range.object = token;
		undo.body.range.token = answer.token;
		(void)connection_->call(&undo, -1, &reply, nullptr);
		return rc;
	}
	m.placement = answer.placement;
	m.peer2peer = answer.placement == PEERBUF_PLACEMENT_DEVICE;
	m.offset = answer.offset;
	m.length = answer.length;
	m.n_segments = kept.segments.size();
	m.segments = kept.segments.empty() ? nullptr : kept.segments.data();
	if (settings_.handles & PEERBUF_HANDLE_CPU)
		m.cpu_addr = reinterpret_cast<void *>(buffer.window.address() + answer.offset);
	m.token = answer.token;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		attachment->mappings.insert(answer.token);
		mappings_.emplace(answer.token, std::move(kept)); /* the array stays where it is */
	}
	copyOut(m, ret_mapping);
	return 0;
}

void Client::unmap(uint64_t token, const peerbuf_mapping *mapping)
{
	(void)injected("unmap");
	Mapping kept;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = mapping ? mappings_.find(mapping->token) : mappings_.end();
		if (it != mappings_.end() && it->second.attachment->token == token) {
			kept = std::move(it->second);
			kept.attachment->mappings.erase(mapping->token);
			mappings_.erase(it);
		}
	}
	if (!kept.attachment) {
		violation(text("unmap of mapping ", mapping ? mapping->token : 0, " of attachment ",
			       token, ", which there is not"));
		return;
	}
	Message request = makeMessage(Kind::Request, Op::Unmap);
	request.body.range.object = token;
	request.body.range.token = mapping->token;
	Message reply;
	(void)connection_->call(&request, -1, &reply, nullptr);
}

int Client::exportFd(uint64_t token, uint64_t offset, uint64_t length, uint32_t variant,
		     peerbuf_fd_export *ret_export)
{
	if (ret_export->struct_size < sizeof(*ret_export))
		return tooShort("export_fd", ret_export->struct_size, sizeof(*ret_export));
	if (const int rc = injected("export_fd"))
		return rc;
	const AttachmentPtr attachment = findAttachment(token);
	if (!attachment) {
		violation(text("export of unknown attachment ", token));
		return host_.fail(EINVAL, text("no attachment ", token, " of ", device_),
				  PEERBUF_ERR_NOT_FOUND);
	}
	const std::string who = text("export of ", name(*attachment->buffer));
	if (!oneBit(variant))
		return host_.fail(EINVAL, text(who, ": variant ", plugin::hex(variant)),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (!(variant & settings_.variants) || !(settings_.handles & PEERBUF_HANDLE_FD))
		return host_.fail(EOPNOTSUPP,
				  text(who, ": variant ", plugin::hex(variant),
				       " of variants=", settingText(settings_, "variants"),
				       ", fd of handles=", settingText(settings_, "handles")),
				  PEERBUF_ERR_UNSUPPORTED_DRIVER);
	Message request = makeMessage(Kind::Request, Op::ExportFd);
	request.body.range.object = token;
	request.body.range.offset = offset;
	request.body.range.length = length;
	request.body.range.variant = variant;
	Message reply = {};
	Export kept;
	kept.attachment = attachment;
	const int rc = call(&request, &reply, -1, &kept.fd);
	if (rc) {
		if (rc == -EMFILE && reply.status == 0 && reply.body.range.token) {
			/* It was made, only we had no room for the descriptor. */
			Message undo = makeMessage(Kind::Request, Op::ReleaseFd);
			undo.body.range.object = token;
			undo.body.range.token = reply.body.range.token;
			(void)connection_->call(&undo, -1, &reply, nullptr);
		}
		return rc;
	}
	peerbuf_fd_export e = {};
	e.fd = kept.fd.get();
	e.offset = reply.body.range.offset;
	e.size = reply.body.range.length;
	e.token = reply.body.range.token;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		attachment->exports.insert(e.token);
		exports_.emplace(e.token, std::move(kept));
	}
	copyOut(e, ret_export);
	return 0;
}

void Client::releaseFd(uint64_t token, const peerbuf_fd_export *exported)
{
	(void)injected("release_fd");
	Export kept;
	bool attached = false;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = exported ? exports_.find(exported->token) : exports_.end();
		if (it != exports_.end() && it->second.attachment->token == token) {
			kept = std::move(it->second);
			kept.attachment->exports.erase(exported->token);
			exports_.erase(it);
			attached = attachments_.count(token) != 0;
		}
	}
	if (!kept.attachment) {
		violation(text("release of export ", exported ? exported->token : 0,
			       " of attachment ", token, ", which there is not"));
		return;
	}
	if (!attached)
		return; /* the device let go of it when it was detached */
	Message request = makeMessage(Kind::Request, Op::ReleaseFd);
	request.body.range.object = token;
	request.body.range.token = exported->token;
	Message reply;
	(void)connection_->call(&request, -1, &reply, nullptr);
}

/* ---- what the device tells ----------------------------------------------------------------- */

int Client::progress()
{
	connection_->pump();
	int handled = 0;
	Message event;
	while (connection_->nextEvent(&event))
		handled += handleEvent(event);
	if (!connection_->gone())
		return handled;
	/* Said at once: the descriptor is silent from here on. */
	handleLoss();
	return deviceGone("progress");
}

int Client::handleEvent(const Message &event)
{
	const NoticeBody &notice = event.body.notice;
	const BufferPtr buffer = findKnown(notice.buffer);
	if (static_cast<Op>(event.op) == Op::Placed) {
		if (buffer) {
			std::lock_guard<std::mutex> lock(buffer->mutex);
			if (syncPlace(buffer, notice.generation) != 0)
				host_.debug(text(name(*buffer), ": its new place was not mapped"));
		}
		return 1;
	}
	if (static_cast<Op>(event.op) == Op::Moved)
		return buffer ? moved(buffer, event.body.moved) : 1;
	if (buffer) {
		invalidate(buffer, notice, true);
		return 1;
	}
	/* Gone from here, or not here yet: whoever adopts it asks for its place first. */
	Message ack = makeMessage(Kind::Request, Op::Ack);
	ack.body.notice.buffer = notice.buffer;
	ack.body.notice.cookie = notice.cookie;
	(void)connection_->say(ack);
	return 1;
}

/** Tell the host. No lock of ours is held, since it takes the reservation. */
void Client::invalidate(const BufferPtr &buffer, const NoticeBody &notice, bool acknowledge)
{
	const uint64_t cookie = notice.cookie;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		Pending &pending = pending_[cookie];
		pending.buffer = buffer;
		pending.acknowledge = acknowledge;
		pending.reason = notice.reason;
		pending.offset = notice.offset;
		pending.length = notice.length;
	}
	peerbuf_invalidate inv = {};
	inv.struct_size = sizeof(inv);
	inv.reason = notice.reason;
	inv.offset = notice.offset;
	inv.length = notice.length;
	inv.generation = notice.generation;
	inv.cookie = cookie;
	inv.expected_ns = notice.expectedNs;
	const int rc = host()->invalidate(host(), buffer->id, &inv);
	{
		std::lock_guard<std::mutex> lock(mutex_);
		Pending &pending = pending_[cookie];
		if (rc == -EINPROGRESS && !pending.answered) {
			pending.waiting = true;
			return;
		}
		if (rc != -EINPROGRESS)
			pending.status = rc == -ENOENT ? 0 : rc;
	}
	finish(cookie);
}

/** A revoke that this process has to say by itself; the device waits for no answer. */
void Client::revokeHere(const BufferPtr &buffer, uint64_t cookie, uint64_t generation)
{
	NoticeBody notice = {};
	notice.cookie = cookie;
	notice.length = buffer->size;
	notice.generation = generation;
	notice.reason = PEERBUF_REASON_REVOKE;
	invalidate(buffer, notice, false);
}

/** A slice may be used again: put its new place under the window, then let importers go on. */
int Client::moved(const BufferPtr &buffer, const MovedBody &body)
{
	if (!inside(body.sliceOffset, body.sliceLength, buffer->size) || body.count > movedRuns) {
		host_.debug(text(name(*buffer), ": a nonsensical notice of a move"));
		return 1;
	}
	bool lost = false;
	{
		std::lock_guard<std::mutex> lock(buffer->mutex);
		/* A newer layout that was asked for meanwhile has it already. */
		if (buffer->placed && !body.aborted && body.generation > buffer->generation) {
			std::vector<Run> runs = partOf(buffer->runs, 0, body.offset);
			uint64_t at = body.offset;
			int rc = injected("client.place");
			for (uint32_t i = 0; i < body.count && !rc; i++) {
				const Run &run = body.runs[i];
				if (!inside(run.offset, run.length, settings_.total()) ||
				    !inside(at, run.length, buffer->size)) {
					rc = -EPROTO;
					break;
				}
				rc = buffer->window.placePart(hbm_.get(), at, run);
				append(&runs, run);
				at += run.length;
			}
			for (const Run &run : partOf(buffer->runs, at, buffer->size - at))
				append(&runs, run);
			buffer->runs = std::move(runs);
			if (body.last)
				buffer->generation = body.generation;
			if (rc) {
				host_.warn(text(name(*buffer), ": its new place was not mapped: ",
						errnoText(-rc)));
				buffer->placed = false;
				buffer->runs.clear();
				(void)buffer->window.blank();
				lost = true;
			}
		}
	}
	if (lost) {
		/* An error for who uses it from here; resumed, they would use blank memory. */
		uint64_t cookie = 0;
		{
			std::lock_guard<std::mutex> lock(mutex_);
			cookie = ++lossCookies_;
		}
		revokeHere(buffer, cookie, body.generation);
		return 1;
	}
	if (!body.last)
		return 1;
	peerbuf_resume res = {};
	res.struct_size = sizeof(res);
	res.aborted = body.aborted;
	res.offset = body.sliceOffset;
	res.length = body.sliceLength;
	res.generation = body.generation;
	(void)host()->resume(host(), buffer->id, &res);
	return 1;
}

void Client::invalidateDone(uint64_t buffer, uint64_t cookie, int status)
{
	bool known = false;
	bool due = false;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = pending_.find(cookie);
		known = it != pending_.end() && it->second.buffer->id == buffer &&
			!it->second.answered;
		if (known) {
			it->second.answered = true;
			it->second.status = status;
			due = it->second.waiting; /* else the invalidate is still running */
		}
	}
	if (!known)
		violation(text("invalidate_done for buffer ", buffer, " with cookie ", cookie,
			       ", which nobody waits for"));
	else if (due)
		finish(cookie);
}

void Client::finish(uint64_t cookie)
{
	Pending pending;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = pending_.find(cookie);
		pending = it->second;
		pending_.erase(it);
	}
	if (!pending.acknowledge)
		return;
	int status = std::min(pending.status, 0);
	if (pending.reason == PEERBUF_REASON_REVOKE) {
		/* From the acknowledgement on these frames may be another's. */
		std::lock_guard<std::mutex> lock(pending.buffer->mutex);
		pending.buffer->placed = false;
		pending.buffer->runs.clear();
		if (const int rc = pending.buffer->window.blank(); rc && !status)
			status = rc;
	}
	Message ack = makeMessage(Kind::Request, Op::Ack);
	ack.body.notice.buffer = pending.buffer->id;
	ack.body.notice.cookie = cookie;
	ack.body.notice.status = status;
	(void)connection_->say(ack);
	if (pending.reason != PEERBUF_REASON_MOVE || status)
		return;
	/* While the device copies, what the window has to forget of the old place. */
	std::lock_guard<std::mutex> lock(pending.buffer->mutex);
	if (pending.buffer->placed)
		pending.buffer->window.forget(pending.offset, pending.length);
}

/** The device is gone: all that is attached is revoked. @return how many the host was told of. */
int Client::handleLoss()
{
	std::map<uint64_t, BufferPtr> attached;
	std::vector<uint64_t> cookies;
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (lossHandled_)
			return 0;
		lossHandled_ = true;
		for (const auto &[token, attachment] : attachments_)
			attached.emplace(attachment->buffer->id, attachment->buffer);
		for (size_t i = 0; i < attached.size(); i++)
			cookies.push_back(++lossCookies_);
	}
	connection_->lossHandled();
	size_t i = 0;
	for (const auto &[id, buffer] : attached) {
		uint64_t generation = 0;
		{
			std::lock_guard<std::mutex> lock(buffer->mutex);
			generation = buffer->generation;
		}
		revokeHere(buffer, cookies[i++], generation);
	}
	return static_cast<int>(attached.size());
}

/* ---- for tests ----------------------------------------------------------------------------- */

int Client::bulk(Op op, uint64_t id, uint64_t offset, uint8_t *data, uint64_t length)
{
	const BufferPtr buffer = findBuffer(id);
	if (!buffer)
		return noBuffer(id);
	if (!inside(offset, length, buffer->size))
		return host_.fail(EINVAL,
				  text(length, " bytes at ", offset, " of ", name(*buffer),
				       ", which has ", buffer->size),
				  PEERBUF_ERR_BAD_GEOMETRY);
	const int fd = makeScratch("peerbuf-emulated-scratch", std::min(length, bulkChunk));
	if (fd < 0)
		return host_.fail(-fd, text("scratch memfd: ", errnoText(-fd)), PEERBUF_ERR_SYSTEM);
	const UniqueFd scratch(fd);
	for (uint64_t done = 0; done < length;) {
		const uint64_t n = std::min(length - done, bulkChunk);
		if (op == Op::Write &&
		    ::pwrite(scratch.get(), data + done, n, 0) != static_cast<ssize_t>(n))
			return host_.fail(EIO, "writing the scratch memfd", PEERBUF_ERR_SYSTEM);
		Message request = makeMessage(Kind::Request, op);
		request.body.range.object = id;
		request.body.range.offset = offset + done;
		request.body.range.length = n;
		Message reply;
		if (const int rc = call(&request, &reply, scratch.get()))
			return rc;
		if (op == Op::Read &&
		    ::pread(scratch.get(), data + done, n, 0) != static_cast<ssize_t>(n))
			return host_.fail(EIO, "reading the scratch memfd", PEERBUF_ERR_SYSTEM);
		done += n;
	}
	return 0;
}

int Client::deviceRead(uint64_t buffer, uint64_t offset, void *data, uint64_t length)
{
	return bulk(Op::Read, buffer, offset, static_cast<uint8_t *>(data), length);
}

int Client::deviceWrite(uint64_t buffer, uint64_t offset, const void *data, uint64_t length)
{
	/* bulk only reads it */
	return bulk(Op::Write, buffer, offset,
		    const_cast<uint8_t *>(static_cast<const uint8_t *>(data)), length);
}

int Client::revoke(uint64_t id)
{
	if (!findBuffer(id))
		return noBuffer(id);
	Message request = makeMessage(Kind::Request, Op::Revoke);
	request.body.range.object = id;
	Message reply;
	return call(&request, &reply);
}

int Client::restore(uint64_t id)
{
	const BufferPtr buffer = findBuffer(id);
	if (!buffer)
		return noBuffer(id);
	Message request = makeMessage(Kind::Request, Op::Restore);
	request.body.range.object = id;
	Message reply;
	if (const int rc = call(&request, &reply))
		return rc;
	std::lock_guard<std::mutex> lock(buffer->mutex);
	return syncPlace(buffer, 0);
}

int Client::move(uint64_t id, const peerbuf_move_request *request)
{
	if (request->struct_size < sizeof(*request))
		return tooShort("move", request->struct_size, sizeof(*request));
	if (!findBuffer(id))
		return noBuffer(id);
	Message ask = makeMessage(Kind::Request, Op::Move);
	ask.body.move.buffer = id;
	ask.body.move.request = *request;
	Message reply;
	return call(&ask, &reply);
}

int Client::moveStatus(uint64_t id, peerbuf_move_status *ret_status)
{
	if (ret_status->struct_size < sizeof(*ret_status))
		return tooShort("move_status", ret_status->struct_size, sizeof(*ret_status));
	if (!findBuffer(id))
		return noBuffer(id);
	Message ask = makeMessage(Kind::Request, Op::MoveStatus);
	ask.body.range.object = id;
	Message reply;
	if (const int rc = call(&ask, &reply))
		return rc;
	copyOut(reply.body.moveStatus, ret_status);
	return 0;
}

int Client::pool(uint32_t placement, uint32_t state)
{
	Message ask = makeMessage(Kind::Request, Op::Pool);
	ask.body.pool.placement = placement;
	ask.body.pool.state = state;
	Message reply;
	return call(&ask, &reply);
}

int Client::setLimits(const char *tenant, const peerbuf_tenant_limits *limits)
{
	if (limits->struct_size < sizeof(*limits))
		return tooShort("set_limits", limits->struct_size, sizeof(*limits));
	if (!tenant || !*tenant || strlen(tenant) >= PEERBUF_NAME_LEN)
		return host_.fail(EINVAL,
				  text("set_limits: a tenant's name has 1 to ",
				       PEERBUF_NAME_LEN - 1, " bytes"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	Message ask = makeMessage(Kind::Request, Op::SetLimits);
	plugin::copyName(ask.body.tenant.name, tenant);
	ask.body.tenant.limits = *limits;
	Message reply;
	return call(&ask, &reply);
}

int Client::tenantStatus(const char *tenant, peerbuf_tenant_status *ret_status)
{
	if (ret_status->struct_size < sizeof(*ret_status))
		return tooShort("tenant_status", ret_status->struct_size, sizeof(*ret_status));
	Message ask = makeMessage(Kind::Request, Op::TenantStatus);
	plugin::copyName(ask.body.tenant.name, tenant ? tenant : "");
	Message reply;
	if (const int rc = call(&ask, &reply))
		return rc;
	copyOut(reply.body.tenantStatus, ret_status);
	return 0;
}

int Client::remove()
{
	Message request = makeMessage(Kind::Request, Op::Remove);
	Message reply;
	const int rc = connection_->call(&request, -1, &reply, nullptr);
	return rc == -ENODEV ? 0 : rc;
}

int Client::fault(const char *step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
{
	const std::string name = step ? step : "";
	if (err > 0)
		return host_.fail(EINVAL, text("fault ", name, ": ", err, " is no negative errno"),
				  PEERBUF_ERR_INVALID_ARGUMENT);
	if (name.starts_with("device.")) {
		Message request = makeMessage(Kind::Request, Op::Fault);
		FaultBody &body = request.body.fault;
		plugin::copyName(body.step, name);
		body.skip = skip;
		body.count = count;
		body.err = err;
		body.delayNs = delayNs;
		Message reply;
		return call(&request, &reply);
	}
	for (const Step &known : steps) {
		if (name != known.name)
			continue;
		if (err && !known.canFail)
			return host_.fail(EINVAL, text("step ", name, " cannot fail, only be slow"),
					  PEERBUF_ERR_INVALID_ARGUMENT);
		std::lock_guard<std::mutex> lock(mutex_);
		faults_.set(name, skip, count, {err, delayNs});
		return 0;
	}
	return host_.fail(ENOENT, text("no step '", name, "' of ", device_), PEERBUF_ERR_NOT_FOUND);
}

int Client::stats(peerbuf_exporter_stats *ret_stats)
{
	if (ret_stats->struct_size < sizeof(*ret_stats))
		return tooShort("stats", ret_stats->struct_size, sizeof(*ret_stats));
	peerbuf_exporter_stats s = {};
	Message request = makeMessage(Kind::Request, Op::Stats);
	Message reply;
	const int rc = connection_->call(&request, -1, &reply, nullptr);
	std::lock_guard<std::mutex> lock(mutex_);
	if (rc == 0 && reply.status == 0) {
		s = reply.body.stats;
	} else {
		/* A device that is gone holds nothing; what is left is ours to give back. */
		s.buffers = buffers_.size();
		s.attachments = attachments_.size();
		s.mappings = static_cast<int64_t>(mappings_.size());
		s.exports = static_cast<int64_t>(exports_.size());
		for (const auto &[token, attachment] : attachments_)
			s.pins += attachment->pins;
	}
	s.pins -= excessUnpins_;
	s.violations += violations_;
	copyOut(s, ret_stats);
	return 0;
}

} // namespace peerbuf::emulated
