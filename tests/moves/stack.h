// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_MOVES_STACK_H
#define PEERBUF_TESTS_MOVES_STACK_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <peerbuf/fabric.h>
#include <peerbuf/peerbuf.h>
#include <peerbuf/testing.h>

#include "support/errors.h"
#include "support/leak_check.h"
#include "support/log_capture.h"
#include "tools/peerbuf/rma.h"

namespace peerbuf::moves
{

/** After this a test hangs: everything takes far less. */
constexpr unsigned watchdog_seconds = 240;

/** Bytes that only this block in this version has. */
void fill(uint8_t *to, size_t length, uint64_t block, uint64_t version);

/**
 * An application with one buffer on an emulated device, registered on its own libfabric endpoint,
 * and a peer's endpoint of plain libfabric in the same process. Thread-bound.
 */
class Stack
{
public:
	struct Options {
		std::string provider = "tcp";
		std::vector<peerbuf_param> device; /* of the emulated exporter */
		bool bracketed = true;
		uint64_t size = 1 << 20;
		uint32_t access = PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
				  PEERBUF_ACCESS_REMOTE_WRITE;
		peerbuf_policy policy = {};
	};

	~Stack();
	Stack() = default;
	Stack(const Stack &) = delete;
	Stack &operator=(const Stack &) = delete;

	/** Fatal failure of the test, or all is there. @return false: the provider is missing. */
	bool open(const Options &options);
	/** Give all back, and check that nothing is left anywhere. */
	void close();

	peerbuf_context *ctx() const { return ctx_; }
	peerbuf_reg_t reg() const { return reg_; }
	peerbuf_buffer_t buffer() const { return buffer_; }
	/** Before close(), to see what becomes of the rest. */
	void deregister() { EXPECT_PB_OK(peerbuf_deregister(ctx_, std::exchange(reg_, 0))); }
	uint8_t *address() const { return address_; }
	uint64_t size() const { return options_.size; }
	tools::RmaEndpoint &endpoint() { return *endpoint_; }
	tools::RmaEndpoint &peer() { return *peer_; }
	/** How the peer names the endpoint, and the endpoint the peer. */
	fi_addr_t endpointAtPeer() const { return toEndpoint_; }
	fi_addr_t peerAtEndpoint() const { return toPeer_; }
	peerbuf_reg_importer_info region() const;

	/** @return false: the gate is closed, and @p call was not made. */
	bool inside(const std::function<void()> &call);
	/** Serve peers once, behind the gate. */
	void serve();

	/** Start a move. @return 0 or a negative errno. */
	int move(uint32_t placement = 0, uint32_t flags = 0, uint64_t deadlineNs = 0);
	peerbuf_move_status moveStatus() const;
	/** Progress until no move runs. */
	void finishMove();
	/** The buffer as its device sees it. */
	std::vector<uint8_t> deviceBytes() const;
	peerbuf_exporter_stats stats() const;
	std::vector<peerbuf_pause> pauses() const;

	/** Events since the last call. */
	std::vector<peerbuf_event> events();
	/** Progress until an event of @p type; others are dropped. */
	std::optional<peerbuf_event> waitFor(peerbuf_event_type type);

	/** A transfer by the peer, served meanwhile. @return libfabric's answer. */
	int byPeer(tools::RmaOp op, uint64_t offset, void *data, size_t length, uint64_t key,
		   std::string *retError);
	test::LogCapture &log() { return log_; }

private:
	void openDevice();
	void openEndpoints();

	Options options_;
	std::optional<test::ProcessState> before_;
	test::LogCapture log_;
	peerbuf_context *ctx_ = nullptr;
	peerbuf_exporter_t exporter_ = 0;
	peerbuf_importer_t importer_ = 0;
	peerbuf_buffer_t buffer_ = 0;
	peerbuf_reg_t reg_ = 0;
	uint64_t handle_ = 0;
	uint8_t *address_ = nullptr;
	const peerbuf_exporter_test_ops *deviceOps_ = nullptr;
	void *device_ = nullptr;
	const peerbuf_importer_test_ops *importerOps_ = nullptr;
	void *importerDevice_ = nullptr;
	peerbuf_gate *gate_ = nullptr;
	std::unique_ptr<tools::RmaEndpoint> endpoint_;
	std::unique_ptr<tools::RmaEndpoint> peer_;
	fi_addr_t toEndpoint_ = FI_ADDR_UNSPEC;
	fi_addr_t toPeer_ = FI_ADDR_UNSPEC;
};

} // namespace peerbuf::moves

#endif
