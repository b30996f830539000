// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_CONTRACT_WORLD_H
#define PEERBUF_TESTS_CONTRACT_WORLD_H

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <peerbuf/peerbuf.h>
#include <peerbuf/testing.h>

#include "support/errors.h"
#include "support/leak_check.h"
#include "support/log_capture.h"
#include "support/plugin_spec.h"

namespace peerbuf::contract
{

/** Whether a slot of a table of operations is there. */
#define HAS_OP(ops, slot)                                                                          \
	((ops) != nullptr &&                                                                       \
	 offsetof(std::remove_reference_t<decltype(*(ops))>, slot) + sizeof((ops)->slot) <=        \
		 (ops)->struct_size &&                                                             \
	 (ops)->slot != nullptr)

/** Everything usual: what a communication library asks for. */
constexpr uint32_t usual_access =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;

using RegionInfo = peerbuf_reg_importer_info;
using RegInfo = peerbuf_reg_info;

/** The application's own objects for an importer that needs some. */
class ImporterObjects
{
public:
	virtual ~ImporterObjects() = default;
	virtual const void *objects() const = 0;
	/** The importer is open on them. */
	virtual void opened(peerbuf_context *ctx, peerbuf_importer_t importer)
	{
		(void)ctx;
		(void)importer;
	}
	/** Let the target side of the data path go on; called while the peer waits. */
	virtual void progress() {}
};

struct Exporter {
	test::PluginSpec spec;
	peerbuf_exporter_t id = 0;
	uint32_t capabilities = 0;
	const peerbuf_exporter_test_ops *ops = nullptr;
	void *device = nullptr;
	peerbuf_exporter_offer offer = {};
	bool gone = false; /* on purpose: nothing more can be asked of the device */
	int process = 0;   /* of the device, where it is a child of ours */

	/** @pre HAS_OP(ops, stats). */
	peerbuf_exporter_stats stats() const;
};

struct Importer {
	test::PluginSpec spec;
	peerbuf_importer_t id = 0;
	const peerbuf_importer_test_ops *ops = nullptr;
	void *device = nullptr;
	peerbuf_importer_offer offer = {};
	std::unique_ptr<ImporterObjects> objects;

	peerbuf_importer_stats stats() const;
};

struct Buffer {
	peerbuf_buffer_t id = 0;
	uint64_t handle = 0;
	uint64_t size = 0;
	void *address = nullptr;
};

/**
 * A context with devices, and everything that a test makes with them. close() gives all back and
 * fails the running test if anything is left anywhere.
 */
class World
{
public:
	World();
	~World();
	World(const World &) = delete;
	World &operator=(const World &) = delete;

	peerbuf_context *ctx() const { return ctx_; }
	test::LogCapture &log() { return log_; }

	/** @return null with a failure of the test. The pointers live as long as this. */
	Exporter *addExporter(const test::PluginSpec &spec);
	Importer *addImporter(const test::PluginSpec &spec);
	/** The same without a failure; for finding out what there is. */
	Exporter *tryExporter(const test::PluginSpec &spec, std::string *ret_why);
	Importer *tryImporter(const test::PluginSpec &spec, std::string *ret_why);

	/** @return id 0 with a failure of the test. */
	Buffer alloc(const Exporter &exporter, uint64_t size);
	int free(const Buffer &buffer);

	/** As peerbuf_register; what it makes is deregistered by close(). */
	int registerRange(const Buffer &buffer, uint64_t offset, uint64_t length,
			  const std::vector<peerbuf_importer_t> &importers, uint32_t access,
			  const peerbuf_policy *policy, peerbuf_reg_t *ret_reg, uint64_t iova = 0);
	int registerSource(const peerbuf_source &source,
			   const std::vector<peerbuf_importer_t> &importers, uint32_t access,
			   const peerbuf_policy *policy, peerbuf_reg_t *ret_reg);
	int deregister(peerbuf_reg_t reg);
	/** Everything that is registered, newest first. */
	void deregisterAll();

	RegInfo regInfo(peerbuf_reg_t reg) const;
	RegionInfo region(peerbuf_reg_t reg, size_t index = 0) const;

	/** Events that have come since the last call. */
	std::vector<peerbuf_event> events();
	/**
	 * Progress until @p done, collecting events into @p ret_events. Waits on the context's
	 * event descriptor, so that a device in another process has its time.
	 * @return false when nothing came of it for 10 seconds.
	 */
	bool progressUntil(const std::function<bool()> &done,
			   std::vector<peerbuf_event> *ret_events = nullptr);

	/** Ledger and both sides' counts as they are before anything is registered. */
	testing::AssertionResult nothingHeld() const;

	/** Deregister, free, close; check at each step that it came back to nothing. */
	void close();

	/** Close the context with everything still in it; the same is checked of the process. */
	void closeAtOnce();

private:
	test::ProcessState before_;
	test::LogCapture log_;
	peerbuf_context *ctx_ = nullptr;
	std::vector<std::unique_ptr<Exporter>> exporters_;
	std::vector<std::unique_ptr<Importer>> importers_;
	std::vector<std::pair<Buffer, const Exporter *>> buffers_;
	std::vector<peerbuf_reg_t> regs_;
};

} // namespace peerbuf::contract

#endif
