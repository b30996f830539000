// SPDX-License-Identifier: BSD-3-Clause
#include "recorder.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <peerbuf/plugin_support.hpp>

namespace
{

using namespace peerbuf::plugin;

/** Memory of a device that is a memfd, mapped once for its whole life. */
struct Memory {
	uint64_t handle = 0;
	uint64_t size = 0;
	int fd = -1;
	uint8_t *at = nullptr;
	std::atomic<bool> revoked = false;

	~Memory()
	{
		if (at)
			munmap(at, size);
		if (fd >= 0)
			close(fd);
	}
};

struct Attachment {
	std::shared_ptr<Memory> memory;
	uint64_t core_id = 0;
	bool peer2peer = false;
	std::atomic<int> pins = 0;
	std::atomic<int> mappings = 0;
};

struct Mapping {
	uint64_t attachment = 0;
	std::vector<peerbuf_segment> segments;
};

constexpr uint64_t granule = 4096;
constexpr uint64_t bus_base = 0x4000000000;

struct Device {
	explicit Device(const peerbuf_host *h) : host(h) {}

	Host host;
	peerbuf_exporter_offer offer = {};
	Tokens<Memory> buffers;
	Tokens<Attachment> attachments;
	Tokens<Mapping> mappings;
	Tokens<int> exports;
	std::atomic<uint64_t> violations = 0;
	std::mutex mutex;
	recorder_hook hook = nullptr;
	void *hook_data = nullptr;

	int tell(recorder_call call)
	{
		recorder_hook run = nullptr;
		void *data = nullptr;
		{
			const std::lock_guard<std::mutex> lock(mutex);
			run = hook;
			data = hook_data;
		}
		call.held = host.raw()->reservation_held(host.raw(), call.buffer);
		return run ? run(data, &call) : 0;
	}
	void breach(const std::string &what)
	{
		violations++;
		host.warn("breach of the contract: " + what);
	}
};

Device &dev(void *device)
{
	return *static_cast<Device *>(device);
}

recorder_call callOf(uint32_t slot, const std::shared_ptr<Attachment> &attachment, uint64_t token)
{
	recorder_call call = {};
	call.slot = slot;
	call.buffer = attachment->memory->handle;
	call.attachment = attachment->core_id;
	call.token = token;
	return call;
}

int openDevice(const peerbuf_host *host, const peerbuf_param *params, size_t n_params,
	       void **ret_device) noexcept
{
	return guarded(host, [&] {
		auto device = std::make_unique<Device>(host);
		Options options(host, params, n_params);
		peerbuf_exporter_offer &offer = device->offer;
		offer.stability =
			options.choice("stability", {"static", "moves"}, "static") == "static"
				? PEERBUF_STABILITY_STATIC
				: PEERBUF_STABILITY_MOVES;
		const std::string pin =
			options.choice("pin", {"not_needed", "can", "refuses"}, "not_needed");
		offer.pin = pin == "can"       ? PEERBUF_PIN_CAN
			    : pin == "refuses" ? PEERBUF_PIN_REFUSES
					       : PEERBUF_PIN_NOT_NEEDED;
		offer.revoke = options.choice("revoke", {"never", "may"}, "never") == "may"
				       ? PEERBUF_REVOKE_MAY
				       : PEERBUF_REVOKE_NEVER;
		offer.management = PEERBUF_MANAGED_BY_USER;
		offer.placements =
			options.choice("placements", {"device", "both"}, "device") == "both"
				? PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST
				: PEERBUF_PLACEMENT_DEVICE;
		offer.variants = PEERBUF_VARIANT_HOST;
		const std::string handles =
			options.choice("handles", {"segments", "cpu", "fd"}, "segments");
		offer.handles = handles == "segments" ? PEERBUF_HANDLE_SEGMENTS
				: handles == "cpu"    ? PEERBUF_HANDLE_CPU
						      : PEERBUF_HANDLE_FD;
		offer.needs_peer2peer = options.flag("needs_peer2peer", false);
		offer.access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
			       PEERBUF_ACCESS_REMOTE_WRITE;
		offer.granularity = granule;
		offer.memory_size = 64 << 20;
		copyName(offer.device, "recorder");
		if (const int rc = options.finish())
			return rc;
		*ret_device = device.release();
		return 0;
	});
}

void closeDevice(void *device) noexcept
{
	delete &dev(device);
}

int offerOf(void *device, uint64_t buffer, peerbuf_exporter_offer *ret_offer) noexcept
{
	if (buffer != 0 && !dev(device).buffers.find(buffer))
		return -ENOENT;
	const uint32_t size = ret_offer->struct_size;
	*ret_offer = dev(device).offer;
	ret_offer->struct_size = size;
	return 0;
}

void describe(const Memory &memory, peerbuf_buffer_desc *ret_desc)
{
	ret_desc->handle = memory.handle;
	ret_desc->allocation_id = memory.handle;
	ret_desc->generation = 1;
	ret_desc->address = reinterpret_cast<uintptr_t>(memory.at);
	ret_desc->size = memory.size;
}

int alloc(void *device, uint64_t size, peerbuf_buffer_desc *ret_desc) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		auto memory = std::make_shared<Memory>();
		memory->size = (size + granule - 1) & ~(granule - 1);
		memory->fd = memfd_create("recorder", MFD_CLOEXEC);
		if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(memory->size)) != 0)
			return -ENOMEM;
		void *at = mmap(nullptr, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED,
				memory->fd, 0);
		if (at == MAP_FAILED)
			return -ENOMEM;
		memory->at = static_cast<uint8_t *>(at);
		memory->handle = dev(device).buffers.add(memory);
		describe(*memory, ret_desc);
		return 0;
	});
}

int freeBuffer(void *device, uint64_t buffer) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		const auto memory = dev(device).buffers.take(buffer);
		if (!memory)
			return -ENOENT;
		recorder_call call = {};
		call.slot = RECORDER_FREE;
		call.buffer = buffer;
		dev(device).tell(call);
		return 0;
	});
}

int get(void *device, const peerbuf_get_request *request, peerbuf_buffer_desc *ret_desc) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		Device &d = dev(device);
		if (request->fd < 0)
			return -ENOENT;
		struct stat status = {};
		if (fstat(request->fd, &status) != 0)
			return d.host.fail(EBADF, text("descriptor ", request->fd, " is not open"));
		// what stands for a dma-buf here is a memfd of ours
		for (uint64_t handle = 1; handle <= 64; handle++) {
			const auto memory = d.buffers.find(handle);
			struct stat own = {};
			if (memory && fstat(memory->fd, &own) == 0 && own.st_ino == status.st_ino &&
			    own.st_dev == status.st_dev) {
				describe(*memory, ret_desc);
				recorder_call call = {};
				call.slot = RECORDER_GET;
				call.buffer = handle;
				d.tell(call);
				return 0;
			}
		}
		return d.host.fail(EINVAL, text("descriptor ", request->fd, " is not a dma-buf"));
	});
}

void put(void *device, uint64_t buffer) noexcept
{
	recorder_call call = {};
	call.slot = RECORDER_PUT;
	call.buffer = buffer;
	dev(device).tell(call);
}

int attach(void *device, uint64_t buffer, const peerbuf_attach_request *request,
	   peerbuf_attach_reply *ret_reply) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		Device &d = dev(device);
		const auto memory = d.buffers.find(buffer);
		if (!memory)
			return -ENOENT;
		if (memory->revoked)
			return d.host.fail(ENODEV, "the buffer was revoked", PEERBUF_ERR_REVOKED);
		auto attachment = std::make_shared<Attachment>();
		attachment->memory = memory;
		attachment->core_id = request->attachment;
		attachment->peer2peer = request->allow_peer2peer != 0;
		const uint64_t token = d.attachments.add(attachment);
		ret_reply->peer2peer = request->allow_peer2peer;
		ret_reply->placement =
			attachment->peer2peer ? PEERBUF_PLACEMENT_DEVICE : PEERBUF_PLACEMENT_HOST;
		ret_reply->token = token;
		recorder_call call = callOf(RECORDER_ATTACH, attachment, token);
		call.offset = request->offset;
		call.length = request->length;
		call.request = request;
		call.reply = ret_reply;
		const int rc = d.tell(call);
		if (rc)
			d.attachments.take(token);
		return rc;
	});
}

void detach(void *device, uint64_t token) noexcept
{
	guardedVoid([&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.take(token);
		if (!attachment) {
			d.breach(text("detach of ", token, ", which is no attachment"));
			return;
		}
		if (attachment->pins != 0 || attachment->mappings != 0)
			d.breach(text("detach with ", attachment->pins.load(), " pins and ",
				      attachment->mappings.load(), " mappings"));
		d.tell(callOf(RECORDER_DETACH, attachment, token));
	});
}

int pin(void *device, uint64_t token) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		if (!attachment) {
			d.breach(text("pin of ", token, ", which is no attachment"));
			return -EINVAL;
		}
		attachment->pins++;
		const int rc = d.tell(callOf(RECORDER_PIN, attachment, token));
		if (rc)
			attachment->pins--;
		return rc;
	});
}

void unpin(void *device, uint64_t token) noexcept
{
	guardedVoid([&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		if (!attachment || attachment->pins == 0) {
			d.breach(text("unpin of ", token, ", which is not pinned"));
			return;
		}
		attachment->pins--;
		d.tell(callOf(RECORDER_UNPIN, attachment, token));
	});
}

int map(void *device, uint64_t token, uint64_t offset, uint64_t length,
	peerbuf_mapping *ret_mapping) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		if (!attachment) {
			d.breach(text("map of ", token, ", which is no attachment"));
			return -EINVAL;
		}
		Memory &memory = *attachment->memory;
		if (memory.revoked)
			return d.host.fail(ENODEV, "the buffer was revoked", PEERBUF_ERR_REVOKED);
		const uint64_t begin = offset & ~(granule - 1);
		const uint64_t end = (offset + length + granule - 1) & ~(granule - 1);
		if (length == 0 || end > memory.size)
			return d.host.fail(EINVAL, text("range ", offset, "+", length));
		// one segment a granule, each elsewhere on the bus, so that none may be forgotten
		auto mapping = std::make_shared<Mapping>();
		mapping->attachment = token;
		for (uint64_t at = begin; at < end; at += granule)
			mapping->segments.push_back({bus_base + 2 * at, granule, memory.at + at});
		ret_mapping->placement =
			attachment->peer2peer ? PEERBUF_PLACEMENT_DEVICE : PEERBUF_PLACEMENT_HOST;
		ret_mapping->peer2peer = attachment->peer2peer;
		ret_mapping->offset = begin;
		ret_mapping->length = end - begin;
		ret_mapping->generation = 1;
		ret_mapping->n_segments = mapping->segments.size();
		ret_mapping->segments = mapping->segments.data();
		ret_mapping->cpu_addr = memory.at + begin;
		ret_mapping->token = d.mappings.add(mapping);
		attachment->mappings++;
		recorder_call call = callOf(RECORDER_MAP, attachment, token);
		call.mapping = ret_mapping->token;
		call.offset = offset;
		call.length = length;
		call.reply = ret_mapping;
		const int rc = d.tell(call);
		if (rc) {
			d.mappings.take(call.mapping);
			attachment->mappings--;
		}
		return rc;
	});
}

void unmap(void *device, uint64_t token, const peerbuf_mapping *mapping) noexcept
{
	guardedVoid([&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		const auto own = d.mappings.take(mapping->token);
		if (!attachment || !own || own->attachment != token) {
			d.breach(text("unmap of ", mapping->token, " of attachment ", token));
			return;
		}
		// rule 31: the very same
		if (mapping->segments != own->segments.data() ||
		    mapping->n_segments != own->segments.size())
			d.breach(text("unmap of ", mapping->token, " with other segments"));
		attachment->mappings--;
		recorder_call call = callOf(RECORDER_UNMAP, attachment, token);
		call.mapping = mapping->token;
		call.offset = mapping->offset;
		call.length = mapping->length;
		d.tell(call);
	});
}

int exportFd(void *device, uint64_t token, uint64_t offset, uint64_t length, uint32_t,
	     peerbuf_fd_export *ret_export) noexcept
{
	return guarded(dev(device).host.raw(), [&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		if (!attachment) {
			d.breach(text("export_fd of ", token, ", which is no attachment"));
			return -EINVAL;
		}
		const int fd = fcntl(attachment->memory->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return -errno;
		ret_export->fd = fd;
		ret_export->offset = offset;
		ret_export->size = attachment->memory->size;
		ret_export->token = d.exports.add(std::make_shared<int>(fd));
		recorder_call call = callOf(RECORDER_EXPORT_FD, attachment, token);
		call.mapping = ret_export->token;
		call.offset = offset;
		call.length = length;
		call.reply = ret_export;
		const int rc = d.tell(call);
		if (rc) {
			d.exports.take(call.mapping);
			close(fd);
		}
		return rc;
	});
}

void releaseFd(void *device, uint64_t token, const peerbuf_fd_export *exported) noexcept
{
	guardedVoid([&] {
		Device &d = dev(device);
		const auto attachment = d.attachments.find(token);
		const auto fd = d.exports.take(exported->token);
		if (!attachment || !fd || *fd != exported->fd) {
			d.breach(text("release_fd of ", exported->token));
			return;
		}
		close(*fd);
		recorder_call call = callOf(RECORDER_RELEASE_FD, attachment, token);
		call.mapping = exported->token;
		d.tell(call);
	});
}

void invalidateDone(void *device, uint64_t buffer, uint64_t cookie, int status) noexcept
{
	guardedVoid([&] {
		recorder_call call = {};
		call.slot = RECORDER_INVALIDATE_DONE;
		call.buffer = buffer;
		call.cookie = cookie;
		call.status = status;
		dev(device).tell(call);
	});
}

int eventFd(void *) noexcept
{
	return -1;
}

int progress(void *) noexcept
{
	return 0;
}

const recorder_ops &table();

int openOps(void *, const char *name, const void **ret_ops) noexcept
{
	if (strcmp(name, PEERBUF_RECORDER_OPS) != 0)
		return -ENOENT;
	*ret_ops = &table();
	return 0;
}

void setHook(void *device, recorder_hook hook, void *data) noexcept
{
	const std::lock_guard<std::mutex> lock(dev(device).mutex);
	dev(device).hook = hook;
	dev(device).hook_data = data;
}

int invalidate(void *device, uint64_t buffer, const peerbuf_invalidate *inv) noexcept
{
	const peerbuf_host *host = dev(device).host.raw();
	return host->invalidate(host, buffer, inv);
}

int resume(void *device, uint64_t buffer, const peerbuf_resume *res) noexcept
{
	const peerbuf_host *host = dev(device).host.raw();
	return host->resume(host, buffer, res);
}

void setRevoked(void *device, uint64_t buffer, int revoked) noexcept
{
	if (const auto memory = dev(device).buffers.find(buffer))
		memory->revoked = revoked != 0;
}

uint64_t violations(void *device) noexcept
{
	return dev(device).violations;
}

uint64_t held(void *device) noexcept
{
	return dev(device).attachments.size() + dev(device).mappings.size() +
	       dev(device).exports.size();
}

const recorder_ops &table()
{
	static constexpr recorder_ops ops = {
		sizeof(recorder_ops), 0,	  setHook, invalidate, resume,
		setRevoked,	      violations, held,	   nullptr,    nullptr};
	return ops;
}

#ifdef RECORDER_NO_PIN
/* An exporter that has no notion of pinning at all (kernel-semantics rule 19). */
constexpr const char *plugin_name = "recorder_nopin";
constexpr uint32_t pin_capability = 0;
constexpr auto pin_slot = static_cast<int (*)(void *, uint64_t) noexcept>(nullptr);
constexpr auto unpin_slot = static_cast<void (*)(void *, uint64_t) noexcept>(nullptr);
[[maybe_unused]] constexpr auto unused_pin = pin;
[[maybe_unused]] constexpr auto unused_unpin = unpin;
#else
constexpr const char *plugin_name = "recorder";
constexpr uint32_t pin_capability = PEERBUF_EXPORTER_CAP_PIN;
constexpr auto pin_slot = pin;
constexpr auto unpin_slot = unpin;
#endif

} // namespace

extern "C" PEERBUF_PLUGIN_EXPORT const peerbuf_exporter_plugin peerbuf_exporter_v1;
const peerbuf_exporter_plugin peerbuf_exporter_v1 = {
	sizeof(peerbuf_exporter_plugin),
	PEERBUF_ABI_VERSION,
	PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_GET | pin_capability |
		PEERBUF_EXPORTER_CAP_MAP | PEERBUF_EXPORTER_CAP_FD |
		PEERBUF_EXPORTER_CAP_INVALIDATE | PEERBUF_EXPORTER_CAP_EVENTS |
		PEERBUF_EXPORTER_CAP_OPS,
	0,
	plugin_name,
	"records calls for the tests (emulated)",
	nullptr,
	openDevice,
	closeDevice,
	offerOf,
	alloc,
	freeBuffer,
	get,
	put,
	attach,
	detach,
	pin_slot,
	unpin_slot,
	map,
	unmap,
	exportFd,
	releaseFd,
	invalidateDone,
	eventFd,
	progress,
	openOps,
};
