// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_CORE_FAKE_DEVICES_H
#define PEERBUF_TESTS_UNIT_CORE_FAKE_DEVICES_H

#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/host.h"
#include "core/plugin.h"
#include "offers.h"

namespace peerbuf::test
{

/** Nobody on the other side of peerbuf_host. */
class NoServices final : public HostServices
{
public:
	int hostInvalidate(uint64_t, uint64_t, const peerbuf_invalidate &) noexcept override
	{
		return -ENOENT;
	}
	int hostResume(uint64_t, uint64_t, const peerbuf_resume &) noexcept override
	{
		return -ENOENT;
	}
	int hostMap(uint64_t, const Range &, peerbuf_mapping *) noexcept override
	{
		return -ENODEV;
	}
	void hostTicketDone(uint64_t) noexcept override {}
	bool hostReservationHeld(bool, uint64_t, uint64_t) noexcept override { return false; }
};

/**
 * An exporter and an importer that write down every call in one list, and fail where they are told
 * to. Thread-bound.
 */
struct FakeDevices {
	ExporterSide exporter = movingExporter();
	ImporterSide importer = refaultImporter();
	uint64_t size = 0x100000;

	std::vector<std::string> calls;
	std::map<std::string, int> failing;	 /* step → negative errno */
	std::map<std::string, unsigned> times;	 /* how often it still fails; none: for ever */
	std::map<std::string, std::string> said; /* step → its words */
	/** Runs inside a slot, before it answers. */
	std::map<std::string, std::function<void()>> inside;

	/* answers that tests spoil */
	uint32_t replyPlacement = PEERBUF_PLACEMENT_DEVICE;
	uint32_t raisePeer2peer = 0;
	uint32_t kernelFlow = 0;
	std::function<void(peerbuf_mapping &)> spoilMapping;
	std::function<void(peerbuf_fd_export &)> spoilExport;

	peerbuf_attach_request lastAttach = {};
	peerbuf_reg_request lastReg = {};
	peerbuf_importer_invalidate lastInvalidate = {};
	peerbuf_importer_resume lastResume = {};
	struct Done {
		uint64_t cookie;
		int status;
	};
	std::vector<Done> dones; /* what invalidate_done said */
	uint64_t nextKey = 5;
	peerbuf_gate gate = {.struct_size = sizeof(peerbuf_gate)};
	bool givesGate = true;
	std::vector<peerbuf_mapping> unmapped;
	peerbuf_segment segment = {};
	const peerbuf_host *exporterHost = nullptr;
	const peerbuf_host *importerHost = nullptr;

	int step(const std::string &name, const peerbuf_host *host = nullptr)
	{
		calls.push_back(name);
		if (const auto it = inside.find(name); it != inside.end())
			it->second();
		const auto fails = failing.find(name);
		if (fails == failing.end())
			return 0;
		if (const auto left = times.find(name); left != times.end() && !left->second--) {
			times.erase(left);
			failing.erase(fails);
			return 0;
		}
		if (host && said.count(name))
			host->fail(host, PEERBUF_OK, said[name].c_str());
		return fails->second;
	}

	Plugin exporterPlugin();
	Plugin importerPlugin();

private:
	static FakeDevices &of(void *device) { return *static_cast<FakeDevices *>(device); }
};

/** The device that the next open gives; there is no other way into a C table. */
inline FakeDevices *fakeToOpen = nullptr;

inline Plugin FakeDevices::exporterPlugin()
{
	fakeToOpen = this;
	Plugin plugin;
	plugin.kind = PEERBUF_PLUGIN_EXPORTER;
	plugin.name = "fake";
	plugin.capabilities = PEERBUF_EXPORTER_CAP_ALLOC | PEERBUF_EXPORTER_CAP_PIN |
			      PEERBUF_EXPORTER_CAP_MAP | PEERBUF_EXPORTER_CAP_FD |
			      PEERBUF_EXPORTER_CAP_INVALIDATE;
	peerbuf_exporter_plugin &t = plugin.exporter;
	t.struct_size = sizeof(t);
	t.abi_version = PEERBUF_ABI_VERSION;
	t.capabilities = plugin.capabilities;
	t.name = "fake";
	t.description = "writes down every call";
	t.open = [](const peerbuf_host *host, const peerbuf_param *, size_t, void **ret) {
		fakeToOpen->exporterHost = host;
		*ret = fakeToOpen;
		return fakeToOpen->step("open", host);
	};
	t.close = [](void *d) { of(d).step("close"); };
	t.offer = [](void *d, uint64_t, peerbuf_exporter_offer *ret) {
		*ret = of(d).exporter.offer;
		return 0;
	};
	t.alloc = [](void *d, uint64_t bytes, peerbuf_buffer_desc *ret) {
		ret->handle = 9;
		ret->allocation_id = 9;
		ret->size = bytes;
		return of(d).step("alloc");
	};
	t.free = [](void *d, uint64_t) { return of(d).step("free"); };
	t.attach = [](void *d, uint64_t, const peerbuf_attach_request *request,
		      peerbuf_attach_reply *ret) {
		FakeDevices &f = of(d);
		f.lastAttach = *request;
		ret->token = 77;
		ret->placement = f.replyPlacement;
		ret->peer2peer = request->allow_peer2peer | f.raisePeer2peer;
		return f.step("attach", f.exporterHost);
	};
	t.detach = [](void *d, uint64_t token) {
		of(d).step(token == 77 ? "detach" : "detach of another");
	};
	t.pin = [](void *d, uint64_t) { return of(d).step("pin", of(d).exporterHost); };
	t.unpin = [](void *d, uint64_t) { of(d).step("unpin"); };
	t.map = [](void *d, uint64_t, uint64_t offset, uint64_t length, peerbuf_mapping *ret) {
		FakeDevices &f = of(d);
		const Range around = roundOut({offset, length}, f.exporter.offer.granularity);
		f.segment = {0x10000000 + around.offset, around.length, nullptr};
		ret->placement = f.replyPlacement;
		ret->offset = around.offset;
		ret->length = around.length;
		ret->n_segments = 1;
		ret->segments = &f.segment;
		ret->cpu_addr = &f;
		ret->token = f.calls.size();
		if (f.spoilMapping)
			f.spoilMapping(*ret);
		return f.step("map", f.exporterHost);
	};
	t.unmap = [](void *d, uint64_t, const peerbuf_mapping *mapping) {
		of(d).unmapped.push_back(*mapping);
		of(d).step("unmap");
	};
	t.export_fd = [](void *d, uint64_t, uint64_t offset, uint64_t length, uint32_t,
			 peerbuf_fd_export *ret) {
		FakeDevices &f = of(d);
		ret->fd = 0; // a valid one; nobody closes it but release_fd
		ret->offset = offset;
		ret->size = offset + length;
		if (f.spoilExport)
			f.spoilExport(*ret);
		return f.step("export_fd", f.exporterHost);
	};
	t.release_fd = [](void *d, uint64_t, const peerbuf_fd_export *) {
		of(d).step("release_fd");
	};
	t.invalidate_done = [](void *d, uint64_t, uint64_t cookie, int status) {
		of(d).dones.push_back({cookie, status});
		of(d).step("invalidate_done");
	};
	return plugin;
}

inline Plugin FakeDevices::importerPlugin()
{
	fakeToOpen = this;
	Plugin plugin;
	plugin.kind = PEERBUF_PLUGIN_IMPORTER;
	plugin.name = "fake";
	plugin.capabilities = PEERBUF_IMPORTER_CAP_INVALIDATE | PEERBUF_IMPORTER_CAP_RESUME |
			      PEERBUF_IMPORTER_CAP_GATE;
	peerbuf_importer_plugin &t = plugin.importer;
	t.struct_size = sizeof(t);
	t.abi_version = PEERBUF_ABI_VERSION;
	t.capabilities = plugin.capabilities;
	t.name = "fake";
	t.description = "writes down every call";
	t.open = [](const peerbuf_host *host, const peerbuf_param *, size_t, const void *,
		    void **ret) {
		fakeToOpen->importerHost = host;
		*ret = fakeToOpen;
		return fakeToOpen->step("importer open");
	};
	t.close = [](void *d) { of(d).step("importer close"); };
	t.offer = [](void *d, peerbuf_importer_offer *ret) {
		*ret = of(d).importer.offer;
		return 0;
	};
	t.reg = [](void *d, const peerbuf_reg_request *request, peerbuf_region *ret) {
		FakeDevices &f = of(d);
		f.lastReg = *request;
		ret->key64 = f.nextKey++;
		ret->token = 55;
		ret->kernel_flow = f.kernelFlow;
		return f.step("reg");
	};
	t.dereg = [](void *d, uint64_t token) {
		of(d).step(token == 55 ? "dereg" : "dereg of another");
	};
	t.invalidate = [](void *d, const peerbuf_importer_invalidate *inv) {
		of(d).lastInvalidate = *inv;
		return of(d).step("invalidate");
	};
	t.resume = [](void *d, const peerbuf_importer_resume *res) {
		of(d).lastResume = *res;
		of(d).step("resume");
	};
	t.gate = [](void *d, peerbuf_gate **ret) {
		*ret = of(d).givesGate ? &of(d).gate : nullptr;
		return of(d).step("gate");
	};
	return plugin;
}

} // namespace peerbuf::test

#endif
