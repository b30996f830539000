// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_CLIENT_H
#define PEERBUF_EXPORTER_EMULATED_CLIENT_H

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <peerbuf/exporter.h>
#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>

#include "connection.h"
#include "faults.h"
#include "settings.h"
#include "window.h"

namespace peerbuf::emulated
{

/**
 * A device as one process sees it: the object behind the plugin's slots. Thread-safe.
 *
 * Locks: mutex_ before Buffer::mutex; none of them is held while the host is called, and mutex_ is
 * not held while the device is asked.
 */
class Client
{
public:
	static int open(const peerbuf_host *host, const peerbuf_param *params, size_t n,
			Client **ret_client);
	~Client();
	Client(const Client &) = delete;
	Client &operator=(const Client &) = delete;

	const peerbuf_host *host() const { return host_.raw(); }

	int offer(uint64_t buffer, peerbuf_exporter_offer *ret_offer);
	int alloc(uint64_t size, peerbuf_buffer_desc *ret_desc);
	int free(uint64_t buffer);
	int get(const peerbuf_get_request *request, peerbuf_buffer_desc *ret_desc);
	void put(uint64_t buffer);
	int attach(uint64_t buffer, const peerbuf_attach_request *request,
		   peerbuf_attach_reply *ret_reply);
	void detach(uint64_t attachment);
	int pin(uint64_t attachment);
	void unpin(uint64_t attachment);
	int map(uint64_t attachment, uint64_t offset, uint64_t length,
		peerbuf_mapping *ret_mapping);
	void unmap(uint64_t attachment, const peerbuf_mapping *mapping);
	int exportFd(uint64_t attachment, uint64_t offset, uint64_t length, uint32_t variant,
		     peerbuf_fd_export *ret_export);
	void releaseFd(uint64_t attachment, const peerbuf_fd_export *exported);
	void invalidateDone(uint64_t buffer, uint64_t cookie, int status);
	int eventFd() const { return connection_->eventFd(); }
	int progress();

	int deviceRead(uint64_t buffer, uint64_t offset, void *data, uint64_t length);
	int deviceWrite(uint64_t buffer, uint64_t offset, const void *data, uint64_t length);
	int revoke(uint64_t buffer);
	int restore(uint64_t buffer);
	int remove();
	int fault(const char *step, uint32_t skip, uint32_t count, int err, uint64_t delayNs);
	int stats(peerbuf_exporter_stats *ret_stats);
	int move(uint64_t buffer, const peerbuf_move_request *request);
	int moveStatus(uint64_t buffer, peerbuf_move_status *ret_status);
	int pool(uint32_t placement, uint32_t state);
	int setLimits(const char *tenant, const peerbuf_tenant_limits *limits);
	int tenantStatus(const char *tenant, peerbuf_tenant_status *ret_status);

private:
	struct Buffer {
		uint64_t id = 0;
		uint64_t size = 0;
		uint64_t allocRefs = 0; /* these three under Client::mutex_ */
		uint64_t getRefs = 0;
		uint64_t holds = 0; /* what the device counts for us */

		std::mutex mutex; /* of what follows */
		Window window;
		bool placed = false; /* runs are what is behind the window */
		uint64_t generation = 0;
		std::vector<Run> runs;
	};
	using BufferPtr = std::shared_ptr<Buffer>;

	struct Attachment {
		uint64_t token = 0;
		BufferPtr buffer;
		uint32_t handleKind = 0;
		int64_t pins = 0;
		std::set<uint64_t> mappings;
		std::set<uint64_t> exports;
	};
	using AttachmentPtr = std::shared_ptr<Attachment>;

	struct Mapping {
		AttachmentPtr attachment;
		std::vector<peerbuf_segment> segments;
	};

	struct Export {
		AttachmentPtr attachment;
		UniqueFd fd;
	};

	/** An invalidate that the host was told of. */
	struct Pending {
		BufferPtr buffer;
		bool answered = false; /* invalidate_done came already */
		bool waiting = false;  /* the host answered -EINPROGRESS */
		int status = 0;
		bool acknowledge = false; /* the device waits for it; not once it is gone */
		uint32_t reason = PEERBUF_REASON_REVOKE;
		uint64_t offset = 0;
		uint64_t length = 0;
	};

	explicit Client(const peerbuf_host *host);

	int connect(plugin::Options &options, const peerbuf_param *params, size_t n);
	int spawn(const std::string &binary, const peerbuf_param *params, size_t n,
		  UniqueFd *ret_socket);
	int greet(const Settings &wanted, const std::vector<std::string> &given,
		  const std::string &where);
	void reap();

	/** Ask the device; a refusal of the device is passed on to the host in words. */
	int call(Message *request, Message *ret_reply, int fd = -1, UniqueFd *ret_fd = nullptr);
	int deviceGone(const std::string &what);
	int injected(const char *step);
	int tooShort(const char *what, uint32_t has, size_t needs);
	int noBuffer(uint64_t id);
	void violation(const std::string &what);

	BufferPtr findBuffer(uint64_t id);
	BufferPtr findKnown(uint64_t id);
	AttachmentPtr findAttachment(uint64_t token);
	int adopt(const Message &reply, bool byAlloc, peerbuf_buffer_desc *ret_desc);
	int learnPlace(const BufferPtr &buffer, const Message &first);
	int syncPlace(const BufferPtr &buffer, uint64_t generation);
	void fillDesc(const BufferPtr &buffer, peerbuf_buffer_desc *ret_desc);
	int giveUp(const BufferPtr &buffer, bool byFree);
	void dropHolds(uint64_t id, uint64_t count);
	std::string name(const Buffer &buffer) const;

	int handleEvent(const Message &event);
	void invalidate(const BufferPtr &buffer, const NoticeBody &notice, bool acknowledge);
	void revokeHere(const BufferPtr &buffer, uint64_t cookie, uint64_t generation);
	int moved(const BufferPtr &buffer, const MovedBody &body);
	void finish(uint64_t cookie);
	int handleLoss();
	int bulk(Op op, uint64_t buffer, uint64_t offset, uint8_t *data, uint64_t length);
	void addSegments(const Buffer &buffer, uint64_t offset, uint64_t length,
			 std::vector<peerbuf_segment> *segments) const;

	const plugin::Host host_;
	std::unique_ptr<Connection> connection_;
	const int owner_; /* the process that opened it; a forked child's copy is inert */
	int child_ = -1;  /* of a private device */
	std::string device_;
	uint64_t deviceId_ = 0;
	Settings settings_ = {};
	UniqueFd hbm_;
	uint8_t *memory_ = nullptr; /* all of the device's, at its own offsets */

	std::mutex mutex_;			/* of all below */
	std::map<uint64_t, BufferPtr> buffers_; /* that the application refers to */
	/* Also those that only attachments keep: one object and one window per buffer, always. */
	std::map<uint64_t, std::weak_ptr<Buffer>> known_;
	std::map<uint64_t, BufferPtr> byAddress_;
	std::map<uint64_t, AttachmentPtr> attachments_;
	std::map<uint64_t, Mapping> mappings_;
	std::map<uint64_t, Export> exports_;
	std::map<uint64_t, Pending> pending_;
	bool lossHandled_ = false;
	uint64_t lossCookies_ = 1ull
				<< 63; /* for revokes at the loss: the device uses none there */
	int64_t excessUnpins_ = 0;
	uint64_t violations_ = 0;
	FaultPlan faults_;
};

} // namespace peerbuf::emulated

#endif
