// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_IMPORTER_FABRIC_SUPPORT_H
#define PEERBUF_TESTS_UNIT_IMPORTER_FABRIC_SUPPORT_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <peerbuf/fabric.h>
#include <peerbuf/importer.h>
#include <peerbuf/testing.h>

namespace peerbuf::test
{

constexpr size_t page = 4096;
/** For what must happen: only a fault takes so long. */
constexpr auto limit = std::chrono::seconds(60);

/** What the core would lend: keeps what the plugin says. Thread-safe. */
class FakeHost
{
public:
	FakeHost();
	const peerbuf_host *raw() const { return &host_.host; }

	/** The last reason given on this thread. */
	std::string why() const;
	uint32_t errc() const;
	std::vector<std::string> warnings() const;
	/** Tickets that came back, in their order. */
	std::vector<uint64_t> tickets() const;

private:
	struct Failure {
		uint32_t errc = 0;
		std::string why;
	};
	struct WithSelf {
		peerbuf_host host;
		FakeHost *self;
	};

	WithSelf host_;
	mutable std::mutex mutex_;
	std::map<std::thread::id, Failure> failures_;
	std::vector<std::string> warnings_;
	std::vector<uint64_t> tickets_;
};

/** The plugin's table, loaded as the core loads it. @return null, with a failed expectation. */
const peerbuf_importer_plugin *loadPlugin();

/** Options of open, as pairs. */
using Params = std::vector<std::pair<std::string, std::string>>;

/** An open importer; closed at the end. */
class OpenImporter
{
public:
	/** @return null when open failed: *retErr and host.why() say why. */
	static std::unique_ptr<OpenImporter> open(FakeHost &host,
						  const peerbuf_fabric_objects *objects,
						  const Params &params, int *retErr);
	~OpenImporter();
	OpenImporter(const OpenImporter &) = delete;
	OpenImporter &operator=(const OpenImporter &) = delete;

	peerbuf_importer_offer offer() const;
	int reg(const peerbuf_reg_request &request, peerbuf_region *retRegion) const;
	void dereg(uint64_t token) const;
	int fault(const char *step, uint32_t skip, uint32_t count, int err) const;
	peerbuf_importer_stats stats() const;
	int invalidate(uint32_t reason, uint64_t attachment, uint64_t offset, uint64_t length,
		       uint64_t ticket) const;
	void resume(uint64_t attachment, uint64_t offset, uint64_t length) const;
	/** @return null where the importer has none: host.why() says why. */
	peerbuf_gate *gate() const;
	std::vector<peerbuf_pause> pauses() const;

private:
	OpenImporter(const peerbuf_importer_plugin *plugin, void *importer)
	    : plugin_(plugin),
	      importer_(importer)
	{
	}
	const peerbuf_importer_test_ops *ops() const;

	const peerbuf_importer_plugin *plugin_;
	void *importer_;
};

/** Objects for open. */
peerbuf_fabric_objects objectsOf(fid_domain *domain, const fi_info *info, fid_ep *ep);

/** A mapping as an exporter makes it, on a memfd of whole pages. */
class Memory
{
public:
	explicit Memory(size_t length, uint64_t offsetInBuffer = 0);
	~Memory();
	Memory(const Memory &) = delete;
	Memory &operator=(const Memory &) = delete;

	uint8_t *data() const { return static_cast<uint8_t *>(mapping_.cpu_addr); }
	size_t size() const { return mapping_.length; }
	const peerbuf_mapping &mapping() const { return mapping_; }
	/** Ask for [offset, offset + length) of the buffer. */
	peerbuf_reg_request request(uint64_t offset, uint64_t length, uint32_t access) const;
	/**
	 * Move it as an exporter does: other pages behind the same addresses, with the same bytes.
	 * The old place is filled with @p poison, as if somebody else had it now. With @p silent
	 * the addresses stay at the old place, which is what an importer that nobody told would
	 * use. @return the new place, through which the device would see it; valid until the next.
	 */
	const uint8_t *move(uint8_t poison, bool silent = false);

private:
	peerbuf_mapping mapping_ = {};
	int fd_ = -1;
	uint8_t *place_ = nullptr; /* the same pages at an address that does not move */
};

constexpr uint32_t readWrite =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;

/**
 * Why @p provider is not used in this build, or NULL. AddressSanitizer's leak check names libfabric
 * 1.17's net, which forgets a copy of fi_info with every endpoint and connection; the library has
 * no symbols by which to suppress just that.
 */
const char *leftOut(const std::string &provider);

/** Open descriptors of this process. */
size_t openFds();

} // namespace peerbuf::test

#endif
