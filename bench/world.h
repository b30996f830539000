// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_BENCH_WORLD_H
#define PEERBUF_BENCH_WORLD_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include <peerbuf/peerbuf.hpp>
#include <peerbuf/testing.h>

#include "tools/peerbuf/output.h"
#include "tools/peerbuf/pair.h"
#include "tools/peerbuf/rma.h"
#include "tools/peerbuf/unique_fd.h"

namespace peerbuf::bench
{

using tools::Failure;

/** CLOCK_MONOTONIC. */
uint64_t nowNs();

/** How much of everything is measured. */
struct Effort {
	bool quick = false; /* as little as possible: shows that it works, says nothing */

	size_t pairs(size_t full) const { return quick ? 3 : full; }
	uint64_t bytes(uint64_t full, uint64_t small) const { return quick ? small : full; }
};

/** Memory of the device, and its registration if it has one. */
struct Held {
	BufferHandle buffer;
	Registration reg;
	peerbuf_buffer_info info = sized<peerbuf_buffer_info>();
	peerbuf_reg_importer_info region = sized<peerbuf_reg_importer_info>();

	uint8_t *bytes() const { return static_cast<uint8_t *>(info.address); }
};

/**
 * What is measured: an emulated device (a process of its own), and the fabric importer on a
 * libfabric domain of ours whose polling goes through the gate. Thread-bound.
 */
class World
{
public:
	World() = default;
	World(const World &) = delete;
	World &operator=(const World &) = delete;

	/** @param huge memory in pages of 2 MiB, if the device and the host can. */
	bool open(uint64_t hbm, bool huge, Failure *ret_failure);

	bool alloc(uint64_t size, Held *ret_held, Failure *ret_failure);
	/** Also with the importer. Anything but Movable is a failure: nothing else is measured. */
	bool registerWith(Held *held, Failure *ret_failure);

	/** A turn of an application that polls: provider calls inside the gate, progress outside.
	 */
	int poll(tools::RmaCompletion *ret_completion);
	/** peerbuf_progress, and the events it brought. @return bytes that were resumed. */
	uint64_t progress();

	Context ctx;
	ExporterHandle exporter;
	const peerbuf_exporter_test_ops *device = nullptr;
	void *deviceObject = nullptr;
	std::unique_ptr<tools::RmaEndpoint> target; /* outlives the importer on it */
	ImporterHandle importer;
	const peerbuf_importer_test_ops *nic = nullptr;
	void *nicObject = nullptr;
	peerbuf_gate *gate = nullptr;
	pid_t devicePid = -1;
};

/** The failure of the call of peerbuf that has just failed on this thread. */
Failure brokenCall(const std::string &what);

/** Make the pages behind [at, at + length) present and writable, so that nothing faults later. */
bool populate(void *at, uint64_t length, Failure *ret_failure);

/** How often a process has lost a CPU that it still wanted. Thread-bound. */
class Switches
{
public:
	explicit Switches(pid_t process);
	/** Since it started; 0 where the kernel does not say. */
	uint64_t involuntary() const;

private:
	tools::UniqueFd status_;
};

/** The same of the calling thread. */
uint64_t ownSwitches();

} // namespace peerbuf::bench

#endif
