// SPDX-License-Identifier: BSD-3-Clause
#include "core/session.h"

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace peerbuf
{

namespace
{

constexpr unsigned KIND_SHIFT = 56;
/** Watched descriptors of the session itself; device ids have a kind and are never this small. */
constexpr uint64_t WORK_FD = 1;
constexpr uint64_t QUEUE_FD = 2;
/** Suspended and resumed events beyond this are dropped, oldest first; the others never are. */
constexpr size_t MAX_QUIET_EVENTS = 4096;
/** How long a registration or allocation waits for a move that is in its way. */
constexpr uint64_t MOVE_PATIENCE_NS = 5'000'000'000;

const char *kindName(Kind kind)
{
	switch (kind) {
	case Kind::Exporter:
		return "exporter";
	case Kind::Importer:
		return "importer";
	case Kind::Buffer:
		return "buffer";
	case Kind::Registration:
		return "registration";
	}
	return "object";
}

std::string idText(uint64_t id)
{
	return std::to_string(id & ((uint64_t{1} << KIND_SHIFT) - 1));
}

/** The part of a policy's flow that this version can run. */
bool canRun(peerbuf_flow flow)
{
	return flow == PEERBUF_FLOW_MOVABLE || flow == PEERBUF_FLOW_REVOCABLE ||
	       flow == PEERBUF_FLOW_PINNED || flow == PEERBUF_FLOW_REKEY;
}

/** A driver that was asked and cannot: an answer to be negotiated about, not a failure. */
bool isRefusal(Errc code)
{
	return code == PEERBUF_ERR_UNSUPPORTED_KERNEL || code == PEERBUF_ERR_UNSUPPORTED_DRIVER ||
	       code == PEERBUF_ERR_NOT_HOST_MEMORY || code == PEERBUF_ERR_PIN_REFUSED ||
	       code == PEERBUF_ERR_REVOKE_UNSUPPORTED || code == PEERBUF_ERR_NO_P2P_PATH;
}

} // namespace

/* ---- life ---------------------------------------------------------------------------------- */

Session::Session(Options options)
    : options_(std::move(options)),
      log_(options_.log, secure_getenv("PEERBUF_LOG"))
{
}

Result<std::unique_ptr<Session>> Session::create(Options options)
{
	std::unique_ptr<Session> session(new Session(std::move(options)));
	if (Result<void> opened = session->open(); !opened)
		return fail(opened.error());
	return session;
}

Result<void> Session::open()
{
	epoll_ = UniqueFd(sys().epollCreate());
	work_ = UniqueFd(epoll_.none() ? -1 : sys().eventFd());
	queued_ = UniqueFd(work_.none() ? -1 : sys().eventFd());
	if (queued_.none()) {
		const int err = errno;
		return fail(errcFor(err), err,
			    "open: ", epoll_.none() ? "epoll_create1" : "eventfd", ": ",
			    errnoText(err));
	}
	if (Result<void> done = watch(work_.borrow(), WORK_FD); !done)
		return done;
	return watch(queued_.borrow(), QUEUE_FD);
}

Session::~Session()
{
	std::map<uint64_t, std::shared_ptr<Registration>> registrations;
	{
		MutexLock lock(tablesMutex_);
		registrations.swap(registrations_);
	}
	for (auto &[id, reg] : registrations)
		endRegistration(*reg);
	registrations.clear();
	std::map<uint64_t, std::shared_ptr<Importer>> importers;
	std::map<uint64_t, std::shared_ptr<Buffer>> buffers;
	std::map<uint64_t, std::shared_ptr<Exporter>> exporters;
	{
		MutexLock lock(tablesMutex_);
		importers.swap(importers_);
		buffers.swap(buffers_);
		exporters.swap(exporters_);
	}
	importers.clear();
	for (const auto &[id, buffer] : buffers)
		endCpuAccess(*buffer);
	buffers.clear();
	{
		MutexLock lock(queueMutex_);
		finished_.clear();
	}
	exporters.clear();
}

uint64_t Session::newId(Kind kind)
{
	MutexLock lock(tablesMutex_);
	return (static_cast<uint64_t>(kind) << KIND_SHIFT) | ++lastId_;
}

/** Of a table that the caller has locked. */
template <typename T>
Result<T> Session::lookUp(std::map<uint64_t, T> &table, uint64_t id,
			  Kind kind) NO_THREAD_SAFETY_ANALYSIS
{
	const auto it = table.find(id);
	if (it != table.end())
		return it->second;
	const auto actual = static_cast<Kind>(id >> KIND_SHIFT);
	const uint64_t number = id & ((uint64_t{1} << KIND_SHIFT) - 1);
	if (!number || number > lastId_ || actual < Kind::Exporter || actual > Kind::Registration)
		return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, "there is no ", kindName(kind),
			    " with id ", hex(id));
	if (actual != kind)
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "id ", hex(id), " is of ",
			    kindName(actual), " ", number, ", not of a ", kindName(kind));
	return fail(PEERBUF_ERR_STALE, ESTALE, kindName(kind), " ", number, " is gone");
}

Result<void> Session::watch(BorrowedFd fd, uint64_t id)
{
	if (fd.none())
		return {};
	epoll_event event = {};
	event.events = EPOLLIN;
	event.data.u64 = id;
	if (!sys().epollCtl(epoll_.borrow().get(), EPOLL_CTL_ADD, fd.get(), &event))
		return {};
	const int err = errno;
	return fail(errcFor(err), err, "epoll_ctl: descriptor ", fd.get(), ": ", errnoText(err));
}

void Session::unwatch(BorrowedFd fd)
{
	if (!fd.none())
		sys().epollCtl(epoll_.borrow().get(), EPOLL_CTL_DEL, fd.get(), nullptr);
}

bool Session::wake(const UniqueFd &fd)
{
	const uint64_t one = 1;
	return sys().write(fd.borrow().get(), &one, sizeof(one)) == sizeof(one);
}

void Session::calm(const UniqueFd &fd)
{
	uint64_t count = 0;
	static_cast<void>(!sys().read(fd.borrow().get(), &count, sizeof(count)));
}

/* ---- plugins and devices ------------------------------------------------------------------- */

void Session::addPlugin(Plugin plugin)
{
	MutexLock lock(tablesMutex_);
	builtIn_.push_back(std::move(plugin));
}

std::vector<PluginFile> Session::pluginFiles()
{
	return listPlugins(options_.pluginPath);
}

Result<Plugin> Session::pluginAt(size_t index)
{
	const std::vector<PluginFile> files = pluginFiles();
	if (index >= files.size())
		return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, "there are ", files.size(), " plugins");
	return loadPlugin(files[index]);
}

Result<Plugin> Session::pluginNamed(peerbuf_plugin_kind kind, const std::string &name)
{
	{
		MutexLock lock(tablesMutex_);
		for (const Plugin &plugin : builtIn_)
			if (plugin.kind == kind && plugin.name == name)
				return plugin;
	}
	std::string list;
	for (const PluginFile &file : pluginFiles()) {
		if (file.kind != kind)
			continue;
		if (file.name != name) {
			list += (list.empty() ? "" : ", ") + file.name;
			continue;
		}
		Plugin plugin = loadPlugin(file);
		if (plugin.problem)
			return fail(*plugin.problem);
		return plugin;
	}
	std::string where;
	for (const std::string &dir : pluginDirectories(options_.pluginPath))
		where += (where.empty() ? "" : ", ") + dir;
	const char *word = kind == PEERBUF_PLUGIN_EXPORTER ? "exporter" : "importer";
	return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, "there is no ", word, " '", name,
		    "'; there are: ", list.empty() ? "none" : list, " (searched ", where, ")");
}

Result<uint64_t> Session::openExporter(const std::string &name,
				       const std::vector<peerbuf_param> &params)
{
	const Result<Plugin> plugin = pluginNamed(PEERBUF_PLUGIN_EXPORTER, name);
	if (!plugin)
		return fail(plugin.error());
	const uint64_t id = newId(Kind::Exporter);
	const Result<std::shared_ptr<Exporter>> exporter =
		Exporter::create(*plugin, id, *this, log_, params);
	if (!exporter)
		return fail(exporter.error());
	const Result<peerbuf_exporter_offer> offer = (*exporter)->offer(0);
	if (!offer)
		return fail(offer.error());
	// Pinning memory that moves takes it from everybody else, so half of it is the default.
	if (offer->stability == PEERBUF_STABILITY_MOVES && offer->memory_size)
		ledger_.setDefaultLimit(offer->device, PEERBUF_LEDGER_PINS, offer->memory_size / 2);
	{
		MutexLock lock(tablesMutex_);
		exporters_[id] = *exporter;
	}
	if (Result<void> watched = watch((*exporter)->eventFd(), id); !watched) {
		MutexLock lock(tablesMutex_);
		exporters_.erase(id);
		return fail(watched.error());
	}
	return id;
}

Result<uint64_t> Session::openImporter(const std::string &name,
				       const std::vector<peerbuf_param> &params,
				       const void *objects)
{
	const Result<Plugin> plugin = pluginNamed(PEERBUF_PLUGIN_IMPORTER, name);
	if (!plugin)
		return fail(plugin.error());
	const uint64_t id = newId(Kind::Importer);
	const Result<std::shared_ptr<Importer>> importer =
		Importer::create(*plugin, id, *this, log_, params, objects);
	if (!importer)
		return fail(importer.error());
	{
		MutexLock lock(tablesMutex_);
		importers_[id] = *importer;
	}
	if (Result<void> watched = watch((*importer)->eventFd(), id); !watched) {
		MutexLock lock(tablesMutex_);
		importers_.erase(id);
		return fail(watched.error());
	}
	return id;
}

Result<void> Session::closeExporter(uint64_t id)
{
	// Taken out under the lock, destroyed (which calls the plugin) without it.
	std::shared_ptr<Exporter> exporter;
	std::vector<std::shared_ptr<Buffer>> buffers;
	{
		MutexLock lock(tablesMutex_);
		const Result<std::shared_ptr<Exporter>> found =
			lookUp(exporters_, id, Kind::Exporter);
		if (!found)
			return fail(found.error());
		exporter = *found;
		if (const unsigned users = exporter->users)
			return fail(PEERBUF_ERR_BUSY, EBUSY, exporter->name(), ": ", users,
				    " registrations use its memory; deregister them first");
		for (auto it = buffers_.begin(); it != buffers_.end();) {
			if (it->second->exporter() != exporter) {
				++it;
				continue;
			}
			buffers.push_back(std::move(it->second));
			it = buffers_.erase(it);
		}
		exporters_.erase(id);
	}
	for (std::shared_ptr<Buffer> &buffer : buffers) {
		endCpuAccess(*buffer);
		dropBuffer(std::move(buffer));
	}
	if (!exporter->gone())
		unwatch(exporter->eventFd());
	return {};
}

Result<void> Session::closeImporter(uint64_t id)
{
	std::shared_ptr<Importer> importer;
	{
		MutexLock lock(tablesMutex_);
		const Result<std::shared_ptr<Importer>> found =
			lookUp(importers_, id, Kind::Importer);
		if (!found)
			return fail(found.error());
		importer = *found;
		if (const unsigned users = importer->users)
			return fail(PEERBUF_ERR_BUSY, EBUSY, importer->name(), ": ", users,
				    " registrations use it; deregister them first");
		importers_.erase(id);
	}
	unwatch(importer->eventFd());
	return {};
}

Result<std::shared_ptr<Exporter>> Session::exporter(uint64_t id)
{
	MutexLock lock(tablesMutex_);
	return lookUp(exporters_, id, Kind::Exporter);
}

Result<std::shared_ptr<Importer>> Session::importer(uint64_t id)
{
	MutexLock lock(tablesMutex_);
	return lookUp(importers_, id, Kind::Importer);
}

/* ---- memory -------------------------------------------------------------------------------- */

Result<uint64_t> Session::alloc(uint64_t exporterId, uint64_t size)
{
	const Result<std::shared_ptr<Exporter>> exporter = this->exporter(exporterId);
	if (!exporter)
		return fail(exporter.error());
	if (!size)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, (*exporter)->name(),
			    ": alloc of 0 bytes");
	const auto desc = untilMoved([&] { return (*exporter)->alloc(size); });
	if (!desc)
		return fail(desc.error());
	auto buffer = std::make_shared<Buffer>(*exporter, *desc, Buffer::Origin::Alloc);
	const uint64_t id = newId(Kind::Buffer);
	MutexLock lock(tablesMutex_);
	buffers_[id] = buffer;
	known_[{(*exporter)->id(), desc->handle}] = buffer;
	return id;
}

Result<void> Session::free(uint64_t id)
{
	std::shared_ptr<Buffer> buffer;
	{
		MutexLock lock(tablesMutex_);
		const Result<std::shared_ptr<Buffer>> found = lookUp(buffers_, id, Kind::Buffer);
		if (!found)
			return fail(found.error());
		buffer = *found;
		const auto users = bufferUsers_.find(id);
		if (users != bufferUsers_.end())
			return fail(PEERBUF_ERR_BUSY, EBUSY, buffer->name(), ": ", users->second,
				    " registrations use it; deregister them first");
	}
	{
		ReservationLock lock(buffer->reservation);
		if (buffer->cpuUsers)
			return fail(PEERBUF_ERR_BUSY, EBUSY, buffer->name(), ": ", buffer->cpuUsers,
				    " cpu_begin without cpu_end");
	}
	{
		MutexLock lock(tablesMutex_);
		if (bufferUsers_.count(id))
			return fail(PEERBUF_ERR_BUSY, EBUSY, buffer->name(),
				    ": it was registered meanwhile");
		if (!buffers_.erase(id))
			return fail(PEERBUF_ERR_STALE, ESTALE, buffer->name(),
				    " was freed meanwhile");
	}
	endCpuAccess(*buffer);
	dropBuffer(std::move(buffer));
	return {};
}

Result<std::shared_ptr<Buffer>> Session::buffer(uint64_t id)
{
	MutexLock lock(tablesMutex_);
	return lookUp(buffers_, id, Kind::Buffer);
}

Result<void> Session::cpuBegin(uint64_t id, uint64_t timeoutNs)
{
	const Result<std::shared_ptr<Buffer>> found = buffer(id);
	if (!found)
		return fail(found.error());
	Buffer &memory = **found;
	const uint64_t now = sys().nowNs();
	const uint64_t deadline = timeoutNs > UINT64_MAX - now ? UINT64_MAX : now + timeoutNs;
	do {
		if (memory.exporter()->gone())
			return fail(PEERBUF_ERR_DEVICE_GONE, ENODEV, memory.name(),
				    ": its device is gone");
		ReservationLock lock(memory.reservation);
		if (memory.revoked)
			return fail(PEERBUF_ERR_REVOKED, ENODEV, memory.name(), " was revoked");
		const auto self = memory.cpuThreads.find(std::this_thread::get_id());
		// The move that is under way waits for this thread's own end.
		if (memory.moving.empty() || self != memory.cpuThreads.end()) {
			memory.cpuUsers++;
			memory.cpuThreads[std::this_thread::get_id()]++;
			return {};
		}
	} while (waitForProgress(deadline));
	return fail(PEERBUF_ERR_TIMEOUT, ETIMEDOUT, memory.name(),
		    ": a move was still under way after ", timeoutNs, " ns");
}

Result<void> Session::cpuEnd(uint64_t id)
{
	const Result<std::shared_ptr<Buffer>> found = buffer(id);
	if (!found)
		return fail(found.error());
	Buffer &memory = **found;
	std::vector<std::shared_ptr<Operation>> waiting;
	{
		ReservationLock lock(memory.reservation);
		if (!memory.cpuUsers)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, memory.name(),
				    ": cpu_end without cpu_begin");
		auto began = memory.cpuThreads.find(std::this_thread::get_id());
		if (began == memory.cpuThreads.end()) // one thread may end what another began
			began = memory.cpuThreads.begin();
		if (!--began->second)
			memory.cpuThreads.erase(began);
		if (!--memory.cpuUsers)
			waiting.swap(memory.awaitCpu);
	}
	for (const std::shared_ptr<Operation> &operation : waiting)
		finishOperation(operation, 0);
	return {};
}

/** The buffer goes: nobody can end its CPU access any more, and no move may wait for that. */
void Session::endCpuAccess(Buffer &buffer)
{
	std::vector<std::shared_ptr<Operation>> waiting;
	{
		ReservationLock lock(buffer.reservation);
		buffer.cpuUsers = 0;
		buffer.cpuThreads.clear();
		waiting.swap(buffer.awaitCpu);
	}
	for (const std::shared_ptr<Operation> &operation : waiting)
		finishOperation(operation, 0);
}

std::shared_ptr<Buffer> Session::knownBuffer(uint64_t exporter, uint64_t handle)
{
	MutexLock lock(tablesMutex_);
	const auto it = known_.find({exporter, handle});
	return it == known_.end() ? nullptr : it->second.lock();
}

/** Let go of a reference, and of the table's entry when it was the last. */
void Session::dropBuffer(std::shared_ptr<Buffer> buffer)
{
	const BufferKey key{buffer->exporter()->id(), buffer->desc().handle};
	buffer.reset(); // may call the exporter
	MutexLock lock(tablesMutex_);
	const auto it = known_.find(key);
	if (it != known_.end() && it->second.expired())
		known_.erase(it);
}

/** One Buffer for one handle, whoever asked; the reference that get took is kept once. */
std::shared_ptr<Buffer> Session::adopt(const std::shared_ptr<Exporter> &exporter,
				       const peerbuf_buffer_desc &desc)
{
	auto fresh = std::make_shared<Buffer>(exporter, desc, Buffer::Origin::Get);
	// Declared before the lock, so that the loser, whose destructor calls put, dies after it.
	std::shared_ptr<Buffer> before;
	MutexLock lock(tablesMutex_);
	std::weak_ptr<Buffer> &slot = known_[{exporter->id(), desc.handle}];
	before = slot.lock();
	if (before)
		fresh.swap(before);
	else
		slot = fresh;
	return fresh;
}

Result<std::shared_ptr<Buffer>> Session::findByAddress(const Source &source, Range &range)
{
	std::vector<std::shared_ptr<Exporter>> exporters;
	{
		MutexLock lock(tablesMutex_);
		for (const auto &[id, exporter] : exporters_)
			exporters.push_back(exporter);
	}
	peerbuf_get_request request = {};
	request.struct_size = sizeof(request);
	request.fd = -1;
	request.address = source.address;
	request.length = source.length;
	std::string asked;
	for (const auto &exporter : exporters) {
		asked += (asked.empty() ? "" : ", ") + exporter->name();
		const Result<peerbuf_buffer_desc> desc = exporter->get(request);
		if (!desc && desc.error().sysErrno == ENOENT)
			continue;
		if (!desc)
			return fail(desc.error());
		std::shared_ptr<Buffer> buffer = adopt(exporter, *desc);
		if (source.address < desc->address || source.address - desc->address >= desc->size)
			return fail(PEERBUF_ERR_BAD_PLUGIN, EINVAL, exporter->name(),
				    ": get answered ", hex(desc->address), " of size ",
				    hex(desc->size), " for address ", hex(source.address));
		range.offset = source.address - desc->address;
		return buffer;
	}
	return fail(PEERBUF_ERR_MISCLASSIFIED, ENOENT, "address ", hex(source.address), " length ",
		    hex(source.length), " is no open exporter's memory; asked: ",
		    asked.empty() ? "none is open" : asked);
}

Result<std::shared_ptr<Buffer>> Session::findByFd(const Source &source)
{
	if (sys().fcntlGetFd(source.fd) < 0) // kernel-semantics rule 8
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EBADF, "descriptor ", source.fd,
			    " is not open");
	std::vector<std::shared_ptr<Exporter>> exporters;
	{
		MutexLock lock(tablesMutex_);
		for (const auto &[id, exporter] : exporters_)
			exporters.push_back(exporter);
	}
	peerbuf_get_request request = {};
	request.struct_size = sizeof(request);
	request.fd = source.fd;
	std::string asked;
	for (const auto &exporter : exporters) {
		asked += (asked.empty() ? "" : ", ") + exporter->name();
		const auto desc = untilMoved([&] { return exporter->get(request); });
		if (desc)
			return adopt(exporter, *desc);
		if (desc.error().sysErrno != ENOENT && desc.error().sysErrno != EINVAL)
			return fail(desc.error());
	}
	return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "descriptor ", source.fd,
		    " is not a dma-buf of an open exporter; asked: ",
		    asked.empty() ? "none is open" : asked);
}

Result<std::shared_ptr<Buffer>> Session::resolve(const Source &source, Range &range)
{
	range = Range{source.offset, source.length};
	if (!source.length)
		return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL,
			    "register: empty: length 0 at offset ", hex(source.offset));
	Result<std::shared_ptr<Buffer>> found;
	if (source.buffer) {
		MutexLock lock(tablesMutex_);
		found = lookUp(buffers_, source.buffer, Kind::Buffer);
		if (found)
			bufferUsers_[source.buffer]++;
	} else if (source.address) {
		if (source.offset)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "register: address ",
				    hex(source.address), " with offset ", hex(source.offset),
				    ": add it to the address");
		found = findByAddress(source, range);
	} else {
		found = findByFd(source);
	}
	if (found)
		(*found)->exporter()->users++;
	return found;
}

/* ---- registration -------------------------------------------------------------------------- */

LedgerView Session::ledgerView(const peerbuf_exporter_offer &offer, const Policy &policy,
			       uint64_t allocation, const Range &reach)
{
	LedgerView view;
	const Ledger::Usage pins = ledger_.usage(policy.tenant, offer.device, PEERBUF_LEDGER_PINS);
	const Ledger::Usage host = ledger_.usage(policy.tenant, offer.device, PEERBUF_LEDGER_HOST);
	view.pins = {pins.used, pins.limit, pins.holdersText};
	view.host = {host.used, host.limit, host.holdersText};
	view.windowNeed = ledger_.windowNeed(offer.device, allocation, reach);
	return view;
}

Error Session::noPlan(const Registration &reg, const Answer &answer, const Importer &importer) const
{
	const Refusal *why = decisive(answer.refusals);
	Error error;
	error.code = why ? why->code : PEERBUF_ERR_INTERNAL;
	error.sysErrno = why ? why->err : EIO;
	error.what = text("register ", reg.buffer->name(), " offset ", hex(reg.range.offset),
			  " length ", hex(reg.range.length), " with ", importer.name(), ": ",
			  why ? text(why->who, " (", why->capability, "): ", why->why)
			      : "no flow is possible");
	error.refusals = answer.refusals;
	return error;
}

/** Make progress, or wait for something to do it about. @return false: the time is over. */
bool Session::waitForProgress(uint64_t deadline)
{
	constexpr int POLL_MS = 1;
	const Result<int> done = progress();
	if (!done || sys().nowNs() >= deadline)
		return false;
	epoll_event ready = {};
	if (!*done)
		sys().epollWait(epoll_.borrow().get(), &ready, 1, POLL_MS);
	return true;
}

/**
 * What @p call answers once no move is in its way: an exporter in the middle of one says -EAGAIN,
 * and the move may be waiting for a ticket of this very process.
 */
template <typename Call> std::invoke_result_t<Call &> Session::untilMoved(Call &&call)
{
	const uint64_t deadline = sys().nowNs() + MOVE_PATIENCE_NS;
	auto result = call();
	while (!result && result.error().sysErrno == EAGAIN && waitForProgress(deadline))
		result = call();
	return result;
}

/** One attachment; one that meets a move is undone whole and begun anew. */
Result<std::shared_ptr<Attachment>> Session::attach(const Registration &reg, size_t index,
						    const Plan &plan,
						    const peerbuf_exporter_offer &offer,
						    uint64_t iova, const Policy &policy)
{
	return untilMoved([&]() -> Result<std::shared_ptr<Attachment>> {
		AttachmentSetup setup;
		setup.id = newId(Kind::Registration); // never handed out; one id space will do
		setup.reg = reg.id;
		setup.index = static_cast<uint32_t>(index);
		setup.buffer = reg.buffer;
		setup.importer = reg.members[index].importer;
		setup.plan = plan;
		setup.range = reg.range;
		setup.iova = iova;
		setup.granularity = offer.granularity;
		setup.tenant = policy.tenant;
		setup.holder = text("registration ", idText(reg.id), " of ", reg.buffer->name());
		setup.device = offer.device;
		setup.dedicated = policy.dedicated;
		setup.hostPlacementOk =
			policy.hostPlacementOk || offer.placements == PEERBUF_PLACEMENT_HOST;
		auto attachment = std::make_shared<Attachment>(std::move(setup), ledger_);
		{
			MutexLock lock(tablesMutex_);
			attachments_[attachment->id()] = attachment;
		}
		const Result<void> built = attachment->build();
		if (built)
			return attachment;
		for (const Ticket &ticket : tickets_.forget(attachment->id()))
			finishOperation(ticket.operation, 0);
		{
			MutexLock lock(tablesMutex_);
			attachments_.erase(attachment->id());
		}
		return fail(built.error());
	});
}

Result<void> Session::buildMembers(Registration &reg, const std::vector<Answer> &answers,
				   const peerbuf_exporter_offer &offer, uint64_t iova,
				   const Policy &policy)
{
	Error first;
	bool failed = false;
	bool any = false;
	for (size_t i = 0; i < answers.size(); i++) {
		Member &member = reg.members[i];
		reg.refusals.insert(reg.refusals.end(), answers[i].refusals.begin(),
				    answers[i].refusals.end());
		Result<void> built;
		if (!answers[i].plan) {
			built = fail(noPlan(reg, answers[i], *member.importer));
		} else if (!canRun(answers[i].plan->flow)) {
			const char *flow = flowName(answers[i].plan->flow);
			reg.refusals.push_back(
				Refusal{answers[i].plan->flow, PEERBUF_ERR_UNSUPPORTED_DRIVER,
					EOPNOTSUPP, "core", "flow",
					text(flow, " is negotiated, but this version "
						   "of peerbuf cannot run it")});
			Answer answer{std::nullopt, false, reg.refusals};
			built = fail(noPlan(reg, answer, *member.importer));
			built.error().code = PEERBUF_ERR_UNSUPPORTED_DRIVER;
			built.error().sysErrno = EOPNOTSUPP;
		} else {
			Result<std::shared_ptr<Attachment>> made =
				attach(reg, i, *answers[i].plan, offer, iova, policy);
			if (made) {
				member.attachment = std::move(*made);
				member.plan = member.attachment->plan();
				any = true;
				continue;
			}
			built = fail(made.error());
			if (isRefusal(built.error().code))
				reg.refusals.push_back(
					Refusal{answers[i].plan->flow, built.error().code,
						built.error().sysErrno, member.importer->name(),
						handleText(answers[i].plan->handleKind),
						built.error().what});
		}
		member.error = built.error();
		if (!failed)
			first = built.error();
		failed = true;
		if (!policy.partialOk)
			break;
	}
	if (!failed || (policy.partialOk && any))
		return {};
	first.refusals = reg.refusals;
	return fail(first);
}

Result<uint64_t> Session::registerMemory(const Source &source,
					 const std::vector<uint64_t> &importers, uint32_t access,
					 const Policy &given)
{
	Policy policy = given;
	if (policy.tenant.empty())
		policy.tenant = options_.tenant;
	auto reg = std::make_shared<Registration>();
	reg->bufferId = source.buffer;
	std::vector<ImporterSide> sides;
	for (const uint64_t id : importers) {
		const Result<std::shared_ptr<Importer>> importer = this->importer(id);
		if (!importer)
			return fail(importer.error());
		const Result<peerbuf_importer_offer> offer = (*importer)->offer();
		if (!offer)
			return fail(offer.error());
		reg->members.push_back(Member{*importer, nullptr, {}, {}});
		sides.push_back(
			ImporterSide{(*importer)->name(), *offer, PEERBUF_DISTANCE_UNKNOWN});
	}
	const Result<std::shared_ptr<Buffer>> buffer = resolve(source, reg->range);
	if (!buffer)
		return fail(buffer.error());
	reg->buffer = *buffer;
	reg->id = newId(Kind::Registration);
	{
		// A close of an importer between the look-up above and here finds it unused; the
		// reference keeps it open until this registration has failed or is undone.
		MutexLock lock(tablesMutex_);
		for (Member &member : reg->members)
			member.importer->users++;
	}
	const auto make = [&]() -> Result<void> {
		const std::string what = text("register ", reg->buffer->name());
		const Result<Range> range = checkRange(what, reg->range.offset, reg->range.length,
						       reg->buffer->desc().size);
		if (!range)
			return fail(range.error());
		const uint64_t own = reg->buffer->desc().address
					     ? reg->buffer->desc().address + reg->range.offset
					     : reg->range.offset;
		const uint64_t iova = source.iova ? source.iova : own;
		if ((iova ^ reg->range.offset) & (MIN_GRANULARITY - 1))
			return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, what, ": low bits: offset ",
				    hex(reg->range.offset), " and iova ", hex(iova),
				    " differ below the page size ", hex(MIN_GRANULARITY));
		if (iova > UINT64_MAX - reg->range.length)
			return fail(PEERBUF_ERR_BAD_GEOMETRY, EINVAL, what, ": overflow: iova ",
				    hex(iova), " + length ", hex(reg->range.length),
				    " passes 2^64");
		ExporterSide side{reg->buffer->exporter()->name(), {}};
		const Result<peerbuf_exporter_offer> offer =
			reg->buffer->exporter()->offer(reg->buffer->desc().handle);
		if (!offer)
			return fail(offer.error());
		side.offer = *offer;
		const Range reach = roundOut(reg->range, offer->granularity);
		const std::vector<Answer> answers = negotiateAll(
			side, sides, Demand{reg->range, access, reach.length}, policy,
			ledgerView(*offer, policy, reg->buffer->desc().allocation_id, reach));
		if (log_.wants("core", PEERBUF_LOG_TRACE))
			for (size_t i = 0; i < answers.size(); i++)
				log_.line(PEERBUF_LOG_TRACE, "core",
					  text("negotiated ", side.name, " x ", sides[i].name, ": ",
					       flowName(answers[i].plan ? answers[i].plan->flow
									: PEERBUF_FLOW_NONE),
					       ", ", answers[i].refusals.size(), " refusals"));
		// Without partial_ok all plans are gone if one is missing; say which one it was.
		for (size_t i = 0; i < answers.size() && !policy.partialOk; i++)
			if (!answers[i].plan && !answers[i].withdrawn)
				return fail(noPlan(*reg, answers[i], *reg->members[i].importer));
		return buildMembers(*reg, answers, *offer, iova, policy);
	};
	if (Result<void> made = make(); !made) {
		endRegistration(*reg);
		return fail(made.error());
	}
	MutexLock lock(tablesMutex_);
	registrations_[reg->id] = reg;
	return reg->id;
}

void Session::endAttachment(const std::shared_ptr<Attachment> &attachment)
{
	attachment->teardown();
	// Whatever the importer still owed, it has let go now; a late ticket_done finds nothing.
	for (const Ticket &ticket : tickets_.forget(attachment->id()))
		finishOperation(ticket.operation, 0);
	MutexLock lock(tablesMutex_);
	attachments_.erase(attachment->id());
}

void Session::endRegistration(Registration &reg)
{
	for (auto it = reg.members.rbegin(); it != reg.members.rend(); ++it) {
		if (it->attachment)
			endAttachment(it->attachment);
		it->attachment.reset();
		it->importer->users--;
	}
	reg.buffer->exporter()->users--;
	if (reg.bufferId) {
		MutexLock lock(tablesMutex_);
		const auto users = bufferUsers_.find(reg.bufferId);
		if (!--users->second)
			bufferUsers_.erase(users);
	}
	dropBuffer(std::move(reg.buffer));
}

Result<void> Session::deregister(uint64_t id)
{
	std::shared_ptr<Registration> reg;
	{
		MutexLock lock(tablesMutex_);
		Result<std::shared_ptr<Registration>> found =
			lookUp(registrations_, id, Kind::Registration);
		if (!found)
			return fail(found.error());
		reg = std::move(*found);
		registrations_.erase(id);
	}
	endRegistration(*reg);
	return {};
}

Result<std::shared_ptr<const Session::Registration>> Session::registration(uint64_t id)
{
	MutexLock lock(tablesMutex_);
	Result<std::shared_ptr<Registration>> found =
		lookUp(registrations_, id, Kind::Registration);
	if (!found)
		return fail(found.error());
	return std::shared_ptr<const Registration>(*found);
}

Result<Answer> Session::negotiateOnly(uint64_t exporterId, uint64_t importerId, uint32_t access,
				      const Policy &given)
{
	Policy policy = given;
	if (policy.tenant.empty())
		policy.tenant = options_.tenant;
	const Result<std::shared_ptr<Exporter>> exporter = this->exporter(exporterId);
	if (!exporter)
		return fail(exporter.error());
	const Result<std::shared_ptr<Importer>> importer = this->importer(importerId);
	if (!importer)
		return fail(importer.error());
	const Result<peerbuf_exporter_offer> eo = (*exporter)->offer(0);
	if (!eo)
		return fail(eo.error());
	const Result<peerbuf_importer_offer> io = (*importer)->offer();
	if (!io)
		return fail(io.error());
	const Range granule{0, eo->granularity};
	LedgerView view = ledgerView(*eo, policy, 0, granule);
	view.windowNeed = granule.length; // of an allocation that does not exist yet
	return negotiate(ExporterSide{(*exporter)->name(), *eo},
			 ImporterSide{(*importer)->name(), *io, PEERBUF_DISTANCE_UNKNOWN},
			 Demand{granule, access, granule.length}, policy, view);
}

/* ---- Invalidate ---------------------------------------------------------------------------- */

std::shared_ptr<Attachment> Session::knownAttachment(uint64_t id)
{
	MutexLock lock(tablesMutex_);
	const auto it = attachments_.find(id);
	return it == attachments_.end() ? nullptr : it->second.lock();
}

int Session::hostInvalidate(uint64_t exporter, uint64_t handle,
			    const peerbuf_invalidate &inv) noexcept
try {
	const std::shared_ptr<Buffer> buffer = knownBuffer(exporter, handle);
	if (!buffer)
		return -ENOENT;
	if ((inv.reason != PEERBUF_REASON_MOVE && inv.reason != PEERBUF_REASON_REVOKE) ||
	    !checkRange("invalidate", inv.offset, inv.length, buffer->desc().size)) {
		log_.warn("core", buffer->name(), ": invalidate of reason ", inv.reason, " offset ",
			  hex(inv.offset), " length ", hex(inv.length), " refused; size ",
			  hex(buffer->desc().size));
		return -EINVAL;
	}
	return invalidateBuffer(*buffer, inv, true);
} catch (...) {
	return -ENOMEM;
}

int Session::invalidateBuffer(Buffer &buffer, const peerbuf_invalidate &inv, bool tellExporter)
{
	auto operation = std::make_shared<Operation>();
	operation->exporter = buffer.exporter();
	operation->handle = buffer.desc().handle;
	operation->cookie = inv.cookie;
	operation->tell = tellExporter;
	const Range range{inv.offset, inv.length};
	{
		ReservationLock lock(buffer.reservation);
		if (inv.reason == PEERBUF_REASON_REVOKE) {
			buffer.revokes++;
			buffer.revoked = true;
			buffer.moving.clear(); // no resume will follow
		} else {
			buffer.moving.add(range);
			if (buffer.cpuUsers) {
				tickets_.hold(*operation);
				buffer.awaitCpu.push_back(operation);
			}
		}
		// Nothing may attach or detach meanwhile: that needs the reservation (rules 16,
		// 47).
		for (Attachment *attachment : buffer.attachments)
			if (attachment->overlaps(range))
				tellAttachment(*attachment, inv, operation);
	}
	// The walk's own share. If it is the last and all went well, this call is the answer.
	if (!tickets_.finish(*operation, 0))
		return -EINPROGRESS;
	if (!operation->status)
		return 0;
	{
		MutexLock lock(queueMutex_);
		finished_.push_back(operation);
	}
	wake(work_);
	return -EINPROGRESS;
}

void Session::tellAttachment(Attachment &attachment, const peerbuf_invalidate &inv,
			     const std::shared_ptr<Operation> &operation)
{
	attachment.reservation().assertHeld();
	const auto reason = static_cast<peerbuf_reason>(inv.reason);
	if (attachment.rekeys()) {
		tellRekeyed(attachment, inv, operation);
		return;
	}
	if (reason == PEERBUF_REASON_MOVE && attachment.plan().flow != PEERBUF_FLOW_MOVABLE) {
		log_.warn("core", attachment.buffer().name(), ": its exporter wants to move it; ",
			  attachment.importer().name(), " holds it ",
			  flowName(attachment.plan().flow));
		tickets_.hold(*operation);
		tickets_.finish(*operation, -EBUSY);
		return;
	}
	std::optional<peerbuf_importer_invalidate> say = attachment.prepare(inv);
	if (!say)
		return;
	const Range range{say->offset, say->length};
	eventFor(attachment,
		 reason == PEERBUF_REASON_REVOKE ? PEERBUF_EVENT_REVOKED : PEERBUF_EVENT_SUSPENDED,
		 range, inv.generation, inv.expected_ns);
	const uint64_t stop = attachment.stops();
	say->ticket = tickets_.issue(Ticket{operation, attachment.id(), reason, range, stop});
	const int rc = attachment.importer().invalidate(*say);
	if (rc == -EINPROGRESS)
		return;
	tickets_.answered(say->ticket);
	if (rc) {
		if (attachment.quarantine())
			eventFor(attachment, PEERBUF_EVENT_REVOKED, range, inv.generation);
	} else {
		attachment.letGo(reason, range, stop);
	}
	tickets_.finish(*operation, rc);
}

/** Its region has to end: for a move when the application is ready, for a revoke in progress. */
void Session::tellRekeyed(Attachment &attachment, const peerbuf_invalidate &inv,
			  const std::shared_ptr<Operation> &operation)
{
	attachment.reservation().assertHeld();
	const auto reason = static_cast<peerbuf_reason>(inv.reason);
	const std::optional<peerbuf_importer_invalidate> say = attachment.prepare(inv);
	if (!say)
		return;
	const Range range{say->offset, say->length};
	const uint64_t stop = attachment.stops();
	const uint64_t ticket =
		tickets_.issue(Ticket{operation, attachment.id(), reason, range, stop});
	if (!attachment.awaitEnd(ticket)) { // between two regions: nothing to let go of
		tickets_.answered(ticket);
		attachment.letGo(reason, range, stop);
		tickets_.finish(*operation, 0);
		if (reason == PEERBUF_REASON_MOVE)
			return; // the application was told and waits for new keys as it is
	} else if (reason == PEERBUF_REASON_REVOKE) {
		MutexLock lock(queueMutex_);
		ending_.push_back(attachment.id());
		wake(work_);
	}
	eventFor(attachment,
		 reason == PEERBUF_REASON_REVOKE ? PEERBUF_EVENT_REVOKED : PEERBUF_EVENT_SUSPENDED,
		 range, inv.generation, inv.expected_ns);
}

Result<void> Session::rekeyReady(uint64_t id)
{
	std::shared_ptr<Registration> reg;
	{
		MutexLock lock(tablesMutex_);
		Result<std::shared_ptr<Registration>> found =
			lookUp(registrations_, id, Kind::Registration);
		if (!found)
			return fail(found.error());
		reg = std::move(*found);
	}
	bool any = false;
	for (const Member &member : reg->members) {
		const std::shared_ptr<Attachment> &attachment = member.attachment;
		if (!attachment)
			continue;
		{
			ReservationLock lock(attachment->reservation());
			if (!attachment->awaited())
				continue;
		}
		any = true;
		endRegion(*attachment);
	}
	if (any)
		return {};
	return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "registration ", idText(id),
		    ": rekey_ready, but no move of it waits for that");
}

void Session::endRegion(Attachment &attachment)
{
	attachment.endRegion();
	ReservationLock lock(attachment.reservation());
	for (const uint64_t ticket : attachment.takeAwaiting())
		hostTicketDone(ticket);
	// A move that was aborted meanwhile will not resume it again.
	if (const std::optional<peerbuf_event_type> type = renew(attachment))
		eventFor(attachment, *type, attachment.setup().range, attachment.generation());
}

/** A region with new keys, where the old one has ended and its memory is back. */
std::optional<peerbuf_event_type> Session::renew(Attachment &attachment)
{
	attachment.reservation().assertHeld();
	const Result<bool> renewed = attachment.renewRegion();
	if (renewed)
		return *renewed ? std::optional(PEERBUF_EVENT_REKEYED) : std::nullopt;
	if (renewed.error().sysErrno == EAGAIN)
		return std::nullopt; // moving again already; that move's resume comes here
	log_.warn("core", "rekey: ", renewed.error().what);
	peerbuf_invalidate gone = {};
	gone.struct_size = sizeof(gone);
	gone.reason = PEERBUF_REASON_REVOKE;
	if (attachment.prepare(gone))
		attachment.letGo(PEERBUF_REASON_REVOKE, attachment.setup().range,
				 attachment.stops());
	return PEERBUF_EVENT_REVOKED;
}

/** Regions under Rekey whose memory was revoked. */
int Session::endRegions()
{
	int ended = 0;
	for (;;) {
		uint64_t id = 0;
		{
			MutexLock lock(queueMutex_);
			if (ending_.empty())
				return ended;
			id = ending_.front();
			ending_.pop_front();
		}
		const std::shared_ptr<Attachment> attachment = knownAttachment(id);
		if (!attachment)
			continue;
		endRegion(*attachment);
		ended++;
	}
}

void Session::finishOperation(const std::shared_ptr<Operation> &operation, int status)
{
	if (!tickets_.finish(*operation, status))
		return;
	{
		MutexLock lock(queueMutex_);
		finished_.push_back(operation);
	}
	wake(work_); // the exporter is told from progress
}

int Session::hostResume(uint64_t exporter, uint64_t handle, const peerbuf_resume &res) noexcept
try {
	const std::shared_ptr<Buffer> buffer = knownBuffer(exporter, handle);
	if (!buffer)
		return -ENOENT;
	if (!checkRange("resume", res.offset, res.length, buffer->desc().size))
		return -EINVAL;
	const Range range{res.offset, res.length};
	ReservationLock lock(buffer->reservation);
	if (res.generation > buffer->generation)
		buffer->generation = res.generation;
	buffer->moving.remove(range);
	for (Attachment *attachment : buffer->attachments) {
		if (attachment->overlaps(range))
			resumeAttachment(*attachment, res);
	}
	return 0;
} catch (...) {
	return -ENOMEM;
}

void Session::resumeAttachment(Attachment &attachment, const peerbuf_resume &res)
{
	attachment.reservation().assertHeld();
	const Range range{res.offset, res.length};
	if (attachment.revoked())
		return; // reported as such, and nothing brings it back
	attachment.resume(res);
	if (!attachment.rekeys()) {
		eventFor(attachment, PEERBUF_EVENT_RESUMED, range, res.generation);
		return;
	}
	if (attachment.suspended())
		return; // another part of it is still away
	// The move is over for these tickets, whether the application came to answer or not.
	for (const uint64_t ticket : attachment.takeAwaiting())
		hostTicketDone(ticket);
	if (const std::optional<peerbuf_event_type> type = renew(attachment))
		eventFor(attachment, *type, range, res.generation);
	else if (attachment.hasRegion())
		eventFor(attachment, PEERBUF_EVENT_RESUMED, range, res.generation);
}

int Session::hostMap(uint64_t id, const Range &range,
		     peerbuf_mapping *retMapping) noexcept NO_THREAD_SAFETY_ANALYSIS
try {
	const std::shared_ptr<Attachment> attachment = knownAttachment(id);
	if (!attachment)
		return -ENODEV; // it ended: for good, as after a revoke
	Reservation &reservation = attachment->buffer().reservation;
	const bool held = reservation.heldByMe(); // inside reg
	if (!held)
		reservation.lock();
	const Result<peerbuf_mapping> mapping =
		attachment->linked() ? attachment->map(range)
				     : Result<peerbuf_mapping>(fail(PEERBUF_ERR_STALE, ENODEV, ""));
	if (!held)
		reservation.unlock();
	if (!mapping) {
		log_.debug("core", mapping.error().what);
		return -mapping.error().sysErrno;
	}
	const uint32_t size = retMapping->struct_size;
	*retMapping = *mapping;
	retMapping->struct_size = size;
	return 0;
} catch (...) {
	return -ENOMEM;
}

void Session::hostTicketDone(uint64_t ticket) noexcept
{
	switch (tickets_.done(ticket)) {
	case Tickets::Answer::Fresh:
		wake(work_);
		break;
	case Tickets::Answer::Again:
		log_.warn("core", "ticket ", ticket,
			  " was answered twice: an importer breaks the contract; ignored");
		break;
	case Tickets::Answer::Late:
		log_.debug("core", "ticket ", ticket, " is late: its attachment is gone; dropped");
		break;
	}
}

bool Session::hostReservationHeld(bool exporterSide, uint64_t device, uint64_t object) noexcept
{
	if (exporterSide) {
		const std::shared_ptr<Buffer> buffer = knownBuffer(device, object);
		return buffer && buffer->reservation.heldByMe();
	}
	const std::shared_ptr<Attachment> attachment = knownAttachment(object);
	return attachment && attachment->buffer().reservation.heldByMe();
}

/* ---- progress and events ------------------------------------------------------------------- */

Result<int> Session::progress()
{
	constexpr int BATCH = 32;
	MutexLock lock(progressMutex_);
	epoll_event ready[BATCH];
	const int n = sys().epollWait(epoll_.borrow().get(), ready, BATCH, 0);
	if (n < 0 && errno != EINTR) {
		const int err = errno;
		return fail(errcFor(err), err, "progress: epoll_wait: ", errnoText(err));
	}
	int done = 0;
	for (int i = 0; i < n; i++) {
		const uint64_t id = ready[i].data.u64;
		if (id == WORK_FD)
			calm(work_);
		else if (id != QUEUE_FD)
			done += deviceProgress(id);
	}
	// What devices did above may have settled more; one call leaves nothing that is due.
	done += endRegions();
	done += settleTickets();
	done += settleOperations();
	return done;
}

int Session::deviceProgress(uint64_t id)
{
	if (static_cast<Kind>(id >> KIND_SHIFT) == Kind::Importer) {
		const Result<std::shared_ptr<Importer>> importer = this->importer(id);
		if (!importer)
			return 0; // closed meanwhile
		const Result<int> done = (*importer)->progress();
		if (!done) {
			log_.warn("core", done.error().what);
			unwatch((*importer)->eventFd());
		}
		return done ? *done : 1;
	}
	const Result<std::shared_ptr<Exporter>> exporter = this->exporter(id);
	if (!exporter)
		return 0;
	const Result<int> done = (*exporter)->progress();
	if (done)
		return *done;
	log_.debug("core", done.error().what);
	exporterGone(*exporter);
	return 1;
}

/** Whatever the exporter managed to say itself, after this nothing of it is in use as live. */
void Session::exporterGone(const std::shared_ptr<Exporter> &exporter)
{
	if (!exporter->markGone())
		return;
	unwatch(exporter->eventFd());
	std::vector<std::shared_ptr<Buffer>> buffers;
	{
		MutexLock lock(tablesMutex_);
		for (const auto &[key, weak] : known_)
			if (key.first == exporter->id())
				if (std::shared_ptr<Buffer> buffer = weak.lock())
					buffers.push_back(std::move(buffer));
	}
	for (const std::shared_ptr<Buffer> &buffer : buffers) {
		peerbuf_invalidate inv = {};
		inv.struct_size = sizeof(inv);
		inv.reason = PEERBUF_REASON_REVOKE;
		inv.length = buffer->desc().size;
		invalidateBuffer(*buffer, inv, false);
	}
	peerbuf_event event = {};
	event.struct_size = sizeof(event);
	event.type = PEERBUF_EVENT_DEVICE_GONE;
	event.exporter = exporter->id();
	pushEvent(event);
}

int Session::settleTickets()
{
	int settled = 0;
	while (std::optional<Ticket> ticket = tickets_.takeDone()) {
		if (const std::shared_ptr<Attachment> attachment =
			    knownAttachment(ticket->attachment)) {
			ReservationLock lock(attachment->reservation());
			if (attachment->linked())
				attachment->letGo(ticket->reason, ticket->range, ticket->stop);
		}
		finishOperation(ticket->operation, 0);
		settled++;
	}
	return settled;
}

int Session::settleOperations()
{
	int settled = 0;
	for (;;) {
		std::shared_ptr<Operation> operation;
		{
			MutexLock lock(queueMutex_);
			if (finished_.empty())
				return settled;
			operation = std::move(finished_.front());
			finished_.pop_front();
		}
		if (operation->tell)
			operation->exporter->invalidateDone(operation->handle, operation->cookie,
							    operation->status);
		settled++;
	}
}

void Session::eventFor(const Attachment &attachment, peerbuf_event_type type, const Range &range,
		       uint64_t generation, uint64_t expectedNs)
{
	peerbuf_event event = {};
	event.struct_size = sizeof(event);
	event.type = type;
	event.reg = attachment.setup().reg;
	event.exporter = attachment.setup().buffer->exporter()->id();
	event.importer_index = attachment.setup().index;
	event.offset = range.offset;
	event.length = range.length;
	event.generation = generation;
	event.expected_ns = expectedNs;
	pushEvent(event);
}

void Session::pushEvent(const peerbuf_event &event)
{
	const auto quiet = [](const peerbuf_event &e) {
		return e.type == PEERBUF_EVENT_SUSPENDED || e.type == PEERBUF_EVENT_RESUMED;
	};
	MutexLock lock(queueMutex_);
	if (events_.size() >= MAX_QUIET_EVENTS) { // an application that does not listen
		const auto oldest = std::find_if(events_.begin(), events_.end(), quiet);
		if (oldest != events_.end())
			events_.erase(oldest);
	}
	events_.push_back(event);
	if (events_.size() == 1)
		wake(queued_);
}

std::optional<peerbuf_event> Session::nextEvent()
{
	MutexLock lock(queueMutex_);
	if (events_.empty())
		return std::nullopt;
	const peerbuf_event event = events_.front();
	events_.pop_front();
	if (events_.empty())
		calm(queued_);
	return event;
}

} // namespace peerbuf
