// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file device.h
 * The emulated accelerator: what a driver and its hardware are to real clients.
 *
 * One thread, one epoll loop, state machines that never wait for a client. A reply depends on the
 * device alone; whatever needs a client's consent (memory that is being left) is a Leaving, which
 * ends when the last client has acknowledged or died.
 */
#ifndef PEERBUF_EXPORTER_EMULATED_DEVICE_H
#define PEERBUF_EXPORTER_EMULATED_DEVICE_H

#include <sys/epoll.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <peerbuf/mover.hpp>

#include "faults.h"
#include "frames.h"
#include "settings.h"
#include "unique_fd.h"
#include "window_use.h"
#include "wire.h"

namespace peerbuf::emulated
{

/** Thread-bound. */
class Device
{
public:
	struct Options {
		Settings settings;
		std::string socketPath; /* listen there; or */
		int clientFd = -1;	/* serve the one client behind it, and end when it leaves */
		int readyFd = -1;	/* written to and closed once the device answers */
		bool verbose = false;
	};

	/** @return null with the reason in ret_why. */
	static std::unique_ptr<Device> create(Options options, std::string *ret_why);
	~Device();

	/** Until SIGTERM, SIGINT, removal, or the end of the only client. @return exit status. */
	int run();

private:
	using Id = uint64_t;

	struct Client {
		Id id = 0;
		UniqueFd socket;
		bool greeted = false;
		bool doomed = false;
		std::string tenant;
		std::map<Id, uint64_t> holds; /* buffer → how often */
		std::set<Id> attachments;
		struct Queued {
			Message message;
			UniqueFd fd;
		};
		std::deque<Queued> queue; /* what the socket would not take yet */
		size_t repliesQueued = 0;
		uint32_t polled = 0;	/* epoll events asked for */
		uint64_t restUntil = 0; /* no slice of any move stops it before that, ns */
	};

	struct Buffer {
		Id id = 0;
		uint64_t size = 0;
		uint64_t generation = 1;
		uint32_t placement = 0;
		std::vector<Run> runs;	      /* empty: it lies nowhere */
		std::map<Id, uint64_t> holds; /* client → how often */
		std::set<Id> attachments;
		uint64_t mappings = 0;
		bool revoked = false;
		Id leaving = 0;		/* the Leaving that waits for clients; 0: none */
		std::string tenant;	/* who allocated it */
		uint64_t lastUse = 0;	/* ns */
		uint64_t arrivedAt = 0; /* in HBM, ns */
		uint64_t huge = 0;	/* bytes of it on huge pages, when it was put there */
		peerbuf_move_status moved = {}; /* the last move */
		WindowUse window;
		UniqueFd identity;
		std::pair<uint64_t, uint64_t> identityKey;
	};

	struct Mapping {
		uint64_t offset;
		uint64_t length;
		bool inWindow;
	};

	struct Attachment {
		Id id = 0;
		Id buffer = 0;
		Id client = 0;
		uint32_t variant = 0;
		uint32_t handleKind = 0;
		uint32_t invalidation = 0;
		uint32_t placements = 0; /* where it can use the memory */
		bool peer2peer = false;
		bool follows = false; /* it can wait while the memory is elsewhere */
		bool whole = false;   /* can only be stopped as a whole */
		uint64_t length = 0;  /* whole pages */
		bool revoked = false;
		uint64_t pins = 0;
		std::map<Id, Mapping> mappings;
		std::map<Id, Mapping> exports;
	};

	/** Memory that clients are still told to leave. */
	struct Leaving {
		Id buffer = 0;
		std::set<Id> waiting;  /* clients */
		int status = 0;	       /* the worst that came back */
		std::vector<Run> runs; /* the place left behind; empty: the buffer's own (revoke) */
		uint64_t deadline = 0; /* ns; what is held past it is never used again; 0: none */
	};

	/** Memory on its way; buffer->runs always say where each byte is right now. */
	struct Move {
		Move(Id id, plugin::Mover rules) : buffer(id), mover(rules) {}

		Id buffer;
		plugin::Mover mover;
		std::vector<Run> from; /* whole buffer, each */
		std::vector<Run> to;
		uint32_t fromPlacement = 0;
		uint32_t toPlacement = 0;
		bool silent = false; /* nobody is told: damage on purpose */
		bool refault = false;
		uint64_t prepared = 0; /* bytes of the destination that have their pages */
		uint64_t toHuge = 0;   /* of these, on huge ones */
		Id cookie = 0;	       /* of the slice that is being stopped; 0: none */
		std::set<Id> waiting;
		std::set<Id> told;
		uint64_t deadlineNs = 0;
		uint64_t startedAt = 0;
	};

	/** What is to be had in HBM for one buffer, bytes. */
	struct Room {
		uint64_t free = 0;
		uint64_t leaving = 0;	/* being evicted, or of what was revoked */
		uint64_t evictable = 0; /* the candidates together */
		std::vector<Buffer *> candidates;
	};

	struct Tenant {
		peerbuf_tenant_limits limits = {};
		size_t clients = 0;
		bool set = false; /* by somebody: stays without clients */
	};

	struct Parked {
		Id client;
		Message message;
		UniqueFd fd;
	};

	/* What became of a request. */
	enum class Outcome { Answered, Silent, Garbage };

	Device(Options options, uint64_t id);
	bool open(std::string *ret_why);
	bool listen(std::string *ret_why);

	Id addClient(UniqueFd socket);
	void acceptClients();
	void pauseListening(bool pause);
	void receive(Client &client);
	void serve(Client &client, const Message &request, UniqueFd fd, bool delayed);
	Outcome dispatch(Client &client, const Message &request, UniqueFd &fd, Message &reply,
			 UniqueFd &replyFd);
	void post(Client &client, const Message &message, UniqueFd fd);
	void flush(Client &client);
	void updatePolling(Client &client);
	void doom(Client &client, const std::string &why);
	void buryDead(const Client &asking);
	void sweepClients();
	void endClient(Client &client);

	Outcome hello(Client &client, const Message &request, Message &reply, UniqueFd &replyFd);
	Outcome offer(Client &client, const Message &request, Message &reply);
	Outcome alloc(Client &client, const Message &request, Message &reply);
	Outcome get(Client &client, const UniqueFd &fd, Message &reply);
	Outcome drop(Client &client, const Message &request);
	Outcome layout(Client &client, const Message &request, Message &reply);
	Outcome attach(Client &client, const Message &request, Message &reply);
	Outcome detach(Client &client, const Message &request);
	Outcome pin(Client &client, const Message &request, Message &reply);
	Outcome unpin(Client &client, const Message &request);
	Outcome map(Client &client, const Message &request, Message &reply);
	Outcome unmap(Client &client, const Message &request);
	Outcome exportFd(Client &client, const Message &request, Message &reply, UniqueFd &replyFd);
	Outcome releaseFd(Client &client, const Message &request);
	Outcome bulk(Client &client, const Message &request, const UniqueFd &scratch,
		     Message &reply);
	Outcome revoke(Client &client, const Message &request, Message &reply);
	Outcome restore(Client &client, const Message &request, Message &reply);
	Outcome fault(const Message &request, Message &reply);
	Outcome stats(const Client &client, Message &reply);
	Outcome ack(Client &client, const Message &request);
	Outcome move(Client &client, const Message &request, Message &reply);
	Outcome moveStatus(Client &client, const Message &request, Message &reply);

	/* Failures: fill the reply, and return Answered. */
	static Outcome failed(Message &reply, int err, uint32_t errc, const std::string &why);
	Outcome garbage(const std::string &why);

	Buffer *heldBuffer(const Client &client, Id id);
	Attachment *ownAttachment(const Client &client, Id id);
	std::string bufferName(const Buffer &buffer) const;
	void describe(const Buffer &buffer, uint32_t first, Message &reply) const;
	enum class Frame { Zeroed, Overwritten };
	bool takeFrames(uint32_t placement, uint64_t length, Frame as, std::vector<Run> *ret_runs,
			std::string *ret_why);
	void giveFrames(const std::vector<Run> &runs);
	bool clear(const std::vector<Run> &runs, std::string *ret_why);
	bool leavesRoomToSwap(uint64_t size, std::string *ret_why) const;
	bool reclaimable(const Buffer &buffer) const;
	bool takeWindow(Buffer &buffer, uint64_t offset, uint64_t length, std::string *ret_why);
	void giveWindow(Buffer &buffer, const Mapping &mapping);
	Outcome placeInHost(Client &client, Buffer &buffer, Message &reply, Id *ret_cookie);
	void endAttachment(Attachment &attachment);
	void dropHolds(Client &client, Id buffer, uint64_t count);
	void reap(Id buffer);
	void acknowledge(Id cookie, Id client, int status);
	void finishLeaving(Id cookie);
	void beginRevoke(Buffer &buffer, uint64_t deadlineNs = 0);
	std::set<Id> usersOf(const Buffer &buffer) const;

	/* moves.cpp */
	bool mayBeAt(const Buffer &buffer, uint32_t place) const;
	bool pinned(const Buffer &buffer) const;
	uint32_t placementOf(const Buffer &buffer, uint64_t offset, uint64_t length) const;
	int startMove(Buffer &buffer, const peerbuf_move_request &request, bool refault,
		      std::string *ret_why);
	void driveMoves();
	bool driveMove(Move &move);
	uint64_t mayStop(const Move &move) const;
	void letRest(const Move &move, uint64_t until);
	void prepare(Move &move);
	void tellSlice(Move &move, const plugin::Mover::Step &step);
	void copyRuns(const std::vector<Run> &from, const std::vector<Run> &to);
	int copySlice(const Move &move, const plugin::Mover::Step &step);
	void resumeSlice(Move &move, const plugin::Mover::Step &step);
	void abandon(Move &move);
	bool acknowledgeSlice(Id cookie, Id client, int status);
	void forgetSlices(Id client);
	void leaveFrames(const Move &move);
	void finishMove(const Move &move);
	void cancelMove(Buffer &buffer, int why);
	void noteMove(const Move &move, bool running);
	void endLateLeavings();
	uint64_t nextMoveDue() const;
	void want(const Buffer &buffer);
	int demand(const Buffer &buffer, std::string *ret_why);
	Outcome bringBack(Message &reply, const Buffer &buffer, const std::string &what);
	Room roomFor(const Buffer &wanted);
	bool makeRoom(const Buffer &wanted);
	void serveDemands();

	/* tenants.cpp */
	Outcome pool(const Message &request, Message &reply);
	Outcome setLimits(const Message &request, Message &reply);
	Outcome tenantStatus(const Message &request, Message &reply);
	uint32_t &poolState(uint32_t placement);
	bool poolOpen(uint32_t placement, std::string *ret_why);
	std::string tenantOf(Id client) const;
	peerbuf_tenant_limits limitsOf(const std::string &tenant) const;
	uint32_t homePlacement() const;
	uint64_t homeSize() const;
	uint64_t allocatedBytes(const std::string &tenant) const;
	uint64_t pinnedBytes(const std::string &tenant) const;
	std::string pinHolders() const;
	bool promisesFit(const std::string &tenant, uint64_t pinned, uint64_t minimum,
			 std::string *ret_why) const;
	bool admit(const std::string &tenant, std::string *ret_why);
	void forgetTenant(const std::string &tenant);

	/** A name that a client sent: terminated by us, printable. */
	static std::string sentName(const char *name, size_t room);
	bool tryHugePages(std::string *ret_why);
	bool populate(const std::vector<Run> &runs, uint64_t *ret_huge, std::string *ret_why);
	uint8_t *at(uint64_t offset) const { return memory_ + offset; }

	uint64_t now() const;
	uint64_t nextDue() const;
	int wait(struct epoll_event *events, int most);
	void serveParked();
	void say(const std::string &line) const;
	void chat(const std::string &line) const;

	Options options_;
	const Settings settings_;
	const uint64_t id_;
	std::string name_;
	UniqueFd hbm_;
	uint8_t *memory_ = nullptr;
	std::vector<bool> used_;     /* frames that may hold what somebody left there */
	std::vector<bool> hugeOnes_; /* huge pages that the kernel has said it gave */
	Frames deviceFrames_;
	Frames hostFrames_;
	UniqueFd epoll_;
	UniqueFd deaths_; /* an epoll that only sees clients hang up */
	UniqueFd signals_;
	UniqueFd listener_;
	UniqueFd spare_; /* given up for a moment to turn a client away when descriptors are out */
	std::pair<uint64_t, uint64_t> socketKey_; /* so that only our own socket is removed */
	bool listeningPaused_ = false;
	uint64_t listenAgain_ = 0; /* ns */
	bool ending_ = false;

	Id lastId_ = 0; /* one counter for everything: no id ever names two things */
	std::map<Id, std::unique_ptr<Client>> clients_;
	std::map<Id, std::unique_ptr<Buffer>> buffers_;
	std::map<Id, std::unique_ptr<Attachment>> attachments_;
	std::map<Id, Leaving> leavings_;
	std::map<std::pair<uint64_t, uint64_t>, Id> identities_;
	std::multimap<uint64_t, Parked> parked_;
	std::map<Id, Move> moving_; /* by buffer */
	std::deque<Id> wanted_;	    /* buffers that are needed in HBM and wait for room */
	/* Cookies whose acknowledgements come too late, and who still owes one. */
	std::map<Id, std::set<Id>> abandoned_;
	std::map<std::string, Tenant> tenants_;
	std::array<uint32_t, 2> pools_; /* enum peerbuf_pool_state of HBM and host tier */
	bool huge_ = false;		/* huge pages are tried for */
	std::string refusal_;		/* why no client can be served; empty: it can */
	uint64_t evictions_ = 0;
	uint64_t refaults_ = 0;
	uint64_t aborted_ = 0;
	uint64_t slices_ = 0;
	uint64_t windowUsed_ = 0;
	uint64_t quarantined_ = 0;
	uint64_t moves_ = 0;
	FaultPlan faults_;
	std::mt19937_64 faultRandom_;
	std::string garbage_; /* what was wrong with the request that is being served */
};

} // namespace peerbuf::emulated

#endif
