// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_SESSION_H
#define PEERBUF_CORE_SESSION_H

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerbuf/peerbuf.h>

#include "core/attachment.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/buffer.h"
#include "core/host.h"
#include "core/importer.h"
#include "core/ledger.h"
#include "core/negotiate.h"
#include "core/plugin.h"
#include "core/tickets.h"

namespace peerbuf
{

/** What the ids of the ABI name; the kind is part of the id, so that a mix-up is recognised. */
enum class Kind : uint64_t { Exporter = 1, Importer = 2, Buffer = 3, Registration = 4 };

/** Memory to register, as the application named it. */
struct Source {
	uint64_t buffer = 0;
	uint64_t address = 0;
	int fd = -1;
	uint64_t offset = 0;
	uint64_t length = 0;
	uint64_t iova = 0;
};

/**
 * One context: the one knot that ties devices, memory, registrations, ledger and events together.
 * Thread-safe. Lock order: progressMutex_ → a buffer's reservation → tablesMutex_ → leaves
 * (tickets, ledger, events). No plugin is called with tablesMutex_ or a leaf held.
 */
class Session final : public HostServices
{
public:
	struct Options {
		std::string tenant = "default";
		std::string pluginPath;
		Log::Sink log; /* empty: standard error */
	};
	static Result<std::unique_ptr<Session>> create(Options options);
	~Session() override;
	Session(const Session &) = delete;
	Session &operator=(const Session &) = delete;

	/* plugins and devices */
	Result<Plugin> pluginAt(size_t index);
	/** Tests: a plugin that is part of the program. */
	void addPlugin(Plugin plugin);
	Result<uint64_t> openExporter(const std::string &name,
				      const std::vector<peerbuf_param> &params);
	Result<uint64_t> openImporter(const std::string &name,
				      const std::vector<peerbuf_param> &params,
				      const void *objects);
	Result<void> closeExporter(uint64_t id);
	Result<void> closeImporter(uint64_t id);
	Result<std::shared_ptr<Exporter>> exporter(uint64_t id);
	Result<std::shared_ptr<Importer>> importer(uint64_t id);

	/* memory */
	Result<uint64_t> alloc(uint64_t exporter, uint64_t size);
	Result<void> free(uint64_t buffer);
	Result<std::shared_ptr<Buffer>> buffer(uint64_t id);
	/** The application's own CPU access: makes progress until no move is under way. */
	Result<void> cpuBegin(uint64_t buffer, uint64_t timeoutNs);
	Result<void> cpuEnd(uint64_t buffer);

	/* registrations */
	struct Member {
		std::shared_ptr<Importer> importer;
		std::shared_ptr<Attachment> attachment; /* null: see error */
		Plan plan;
		Error error;
	};
	struct Registration {
		uint64_t id = 0;
		uint64_t bufferId = 0; /* 0: named by address or descriptor */
		std::shared_ptr<Buffer> buffer;
		Range range;
		std::vector<Member> members;
		std::vector<Refusal> refusals;
	};
	Result<uint64_t> registerMemory(const Source &source,
					const std::vector<uint64_t> &importers, uint32_t access,
					const Policy &policy);
	Result<void> deregister(uint64_t reg);
	/** Rekey: the application has let go of the old keys. */
	Result<void> rekeyReady(uint64_t reg);
	Result<std::shared_ptr<const Registration>> registration(uint64_t id);
	/** The answer a registration would start from; nothing is touched. */
	Result<Answer> negotiateOnly(uint64_t exporter, uint64_t importer, uint32_t access,
				     const Policy &policy);

	/* progress and events */
	Result<int> progress();
	BorrowedFd eventFd() const { return epoll_.borrow(); }
	std::optional<peerbuf_event> nextEvent();

	Ledger &ledger() { return ledger_; }
	const std::string &tenant() const { return options_.tenant; }

	/* HostServices */
	int hostInvalidate(uint64_t exporter, uint64_t handle,
			   const peerbuf_invalidate &inv) noexcept override;
	int hostResume(uint64_t exporter, uint64_t handle,
		       const peerbuf_resume &res) noexcept override;
	int hostMap(uint64_t attachment, const Range &range,
		    peerbuf_mapping *retMapping) noexcept override NO_THREAD_SAFETY_ANALYSIS;
	void hostTicketDone(uint64_t ticket) noexcept override;
	bool hostReservationHeld(bool exporterSide, uint64_t device,
				 uint64_t object) noexcept override;

private:
	using BufferKey = std::pair<uint64_t, uint64_t>; /* exporter, handle */

	explicit Session(Options options);
	Result<void> open();
	uint64_t newId(Kind kind);
	template <typename T>
	Result<T> lookUp(std::map<uint64_t, T> &table, uint64_t id, Kind kind);
	Result<Plugin> pluginNamed(peerbuf_plugin_kind kind, const std::string &name);
	std::vector<PluginFile> pluginFiles();
	Result<void> watch(BorrowedFd fd, uint64_t id);
	void unwatch(BorrowedFd fd);
	static bool wake(const UniqueFd &fd);
	static void calm(const UniqueFd &fd);

	Result<std::shared_ptr<Buffer>> resolve(const Source &source, Range &range);
	Result<std::shared_ptr<Buffer>> findByAddress(const Source &source, Range &range);
	Result<std::shared_ptr<Buffer>> findByFd(const Source &source);
	std::shared_ptr<Buffer> adopt(const std::shared_ptr<Exporter> &exporter,
				      const peerbuf_buffer_desc &desc);
	std::shared_ptr<Buffer> knownBuffer(uint64_t exporter, uint64_t handle);
	void dropBuffer(std::shared_ptr<Buffer> buffer);
	void endCpuAccess(Buffer &buffer);
	std::shared_ptr<Attachment> knownAttachment(uint64_t id);
	Result<void> buildMembers(Registration &reg, const std::vector<Answer> &answers,
				  const peerbuf_exporter_offer &offer, uint64_t iova,
				  const Policy &policy);
	Result<std::shared_ptr<Attachment>> attach(const Registration &reg, size_t index,
						   const Plan &plan,
						   const peerbuf_exporter_offer &offer,
						   uint64_t iova, const Policy &policy);
	bool waitForProgress(uint64_t deadline);
	template <typename Call> std::invoke_result_t<Call &> untilMoved(Call &&call);
	Error noPlan(const Registration &reg, const Answer &answer, const Importer &importer) const;
	void endAttachment(const std::shared_ptr<Attachment> &attachment);
	void endRegistration(Registration &reg);
	LedgerView ledgerView(const peerbuf_exporter_offer &offer, const Policy &policy,
			      uint64_t allocation, const Range &reach);

	/** Tell every attachment of the range; @return what host->invalidate returns. */
	int invalidateBuffer(Buffer &buffer, const peerbuf_invalidate &inv, bool tellExporter);
	void tellAttachment(Attachment &attachment, const peerbuf_invalidate &inv,
			    const std::shared_ptr<Operation> &operation);
	void tellRekeyed(Attachment &attachment, const peerbuf_invalidate &inv,
			 const std::shared_ptr<Operation> &operation);
	void resumeAttachment(Attachment &attachment, const peerbuf_resume &res);
	void endRegion(Attachment &attachment);
	std::optional<peerbuf_event_type> renew(Attachment &attachment);
	int endRegions();
	void finishOperation(const std::shared_ptr<Operation> &operation, int status);
	int settleTickets();
	int settleOperations();
	int deviceProgress(uint64_t id);
	void exporterGone(const std::shared_ptr<Exporter> &exporter);
	void pushEvent(const peerbuf_event &event);
	void eventFor(const Attachment &attachment, peerbuf_event_type type, const Range &range,
		      uint64_t generation, uint64_t expectedNs = 0);

	const Options options_;
	const Log log_;
	Ledger ledger_;
	Tickets tickets_;
	UniqueFd epoll_;
	UniqueFd work_;	  /* eventfd: tickets or operations to settle */
	UniqueFd queued_; /* eventfd: readable while events_ is not empty */

	Mutex progressMutex_;

	mutable Mutex tablesMutex_;
	uint64_t lastId_ GUARDED_BY(tablesMutex_) = 0;
	std::vector<Plugin> builtIn_ GUARDED_BY(tablesMutex_);
	std::map<uint64_t, std::shared_ptr<Exporter>> exporters_ GUARDED_BY(tablesMutex_);
	std::map<uint64_t, std::shared_ptr<Importer>> importers_ GUARDED_BY(tablesMutex_);
	std::map<uint64_t, std::shared_ptr<Buffer>> buffers_ GUARDED_BY(tablesMutex_);
	std::map<BufferKey, std::weak_ptr<Buffer>> known_ GUARDED_BY(tablesMutex_);
	std::map<uint64_t, std::shared_ptr<Registration>> registrations_ GUARDED_BY(tablesMutex_);
	std::map<uint64_t, std::weak_ptr<Attachment>> attachments_ GUARDED_BY(tablesMutex_);
	/** Registrations being made or live, by buffer id: what makes free answer -EBUSY. */
	std::map<uint64_t, unsigned> bufferUsers_ GUARDED_BY(tablesMutex_);

	Mutex queueMutex_;
	std::deque<peerbuf_event> events_ GUARDED_BY(queueMutex_);
	std::deque<std::shared_ptr<Operation>> finished_ GUARDED_BY(queueMutex_);
	std::deque<uint64_t> ending_ GUARDED_BY(queueMutex_); /* attachments whose region ends */
};

} // namespace peerbuf

#endif
