// SPDX-License-Identifier: BSD-3-Clause
#include "stack.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace peerbuf::moves
{

using tools::RmaCompletion;
using tools::RmaEndpoint;
using tools::RmaOptions;
using tools::RmaTransfer;

constexpr auto limit = std::chrono::seconds(60);

void fill(uint8_t *to, size_t length, uint64_t block, uint64_t version)
{
	std::mt19937_64 words(block << 32 | version); // NOLINT(cert-msc51-cpp): replays
	for (size_t i = 0; i < length; i += sizeof(uint64_t)) {
		const uint64_t word = words();
		std::memcpy(to + i, &word, std::min(sizeof(word), length - i));
	}
}

Stack::~Stack()
{
	close();
}

bool Stack::open(const Options &options)
{
	options_ = options;
	std::string error;
	RmaOptions rma;
	rma.provider = options.provider;
	rma.window = 64;
	{
		// what libfabric opens at the first use, and keeps
		const auto first = RmaEndpoint::create(rma, error);
		const auto second = RmaEndpoint::create(rma, error);
		if (!first || !second)
			return false;
	}
	before_ = test::ProcessState::now();
	endpoint_ = RmaEndpoint::create(rma, error);
	peer_ = RmaEndpoint::create(rma, error);
	if (!endpoint_ || !peer_)
		return false;
	openEndpoints();
	if (!testing::Test::HasFatalFailure())
		openDevice();
	return true;
}

void Stack::openEndpoints()
{
	std::string error;
	ASSERT_EQ(peer_->addPeer(endpoint_->name(), &toEndpoint_, error), 0) << error;
	ASSERT_EQ(endpoint_->addPeer(peer_->name(), &toPeer_, error), 0) << error;
}

void Stack::openDevice()
{
	peerbuf_open_attr attr = {};
	attr.struct_size = sizeof(attr);
	log_.attach(&attr);
	ASSERT_PB_OK(peerbuf_open(&attr, &ctx_));
	ASSERT_PB_OK(peerbuf_exporter_open(ctx_, "emulated", options_.device.data(),
					   options_.device.size(), &exporter_));
	peerbuf_fabric_objects objects = {};
	objects.struct_size = sizeof(objects);
	objects.domain = endpoint_->domain();
	objects.info = endpoint_->info();
	objects.ep = endpoint_->ep();
	// the environment of the tests turns CMA off in every process
	objects.flags = PEERBUF_FABRIC_PEERS_WITHOUT_CMA |
			(options_.bracketed ? PEERBUF_FABRIC_BRACKETED : 0);
	ASSERT_PB_OK(peerbuf_importer_open(ctx_, "fabric", nullptr, 0, &objects, &importer_));
	if (options_.bracketed) {
		ASSERT_PB_OK(peerbuf_importer_gate(ctx_, importer_, &gate_));
	}
	const void *ops = nullptr;
	ASSERT_PB_OK(peerbuf_exporter_open_ops(ctx_, exporter_, PEERBUF_EXPORTER_TEST_OPS, &ops,
					       &device_));
	deviceOps_ = static_cast<const peerbuf_exporter_test_ops *>(ops);
	ASSERT_PB_OK(peerbuf_importer_open_ops(ctx_, importer_, PEERBUF_IMPORTER_TEST_OPS, &ops,
					       &importerDevice_));
	importerOps_ = static_cast<const peerbuf_importer_test_ops *>(ops);

	ASSERT_PB_OK(peerbuf_alloc(ctx_, exporter_, options_.size, &buffer_));
	peerbuf_buffer_info info = {};
	info.struct_size = sizeof(info);
	ASSERT_PB_OK(peerbuf_query_buffer(ctx_, buffer_, &info));
	handle_ = info.handle;
	address_ = static_cast<uint8_t *>(info.address);
	ASSERT_NE(address_, nullptr);
	peerbuf_source source = {};
	source.struct_size = sizeof(source);
	source.fd = -1;
	source.buffer = buffer_;
	source.length = options_.size;
	options_.policy.struct_size = sizeof(options_.policy);
	ASSERT_PB_OK(peerbuf_register(ctx_, &source, &importer_, 1, options_.access,
				      &options_.policy, &reg_));
}

void Stack::close()
{
	if (ctx_) {
		if (reg_) {
			EXPECT_PB_OK(peerbuf_deregister(ctx_, reg_));
		}
		EXPECT_TRUE(test::ledgerIsZero(ctx_));
		if (deviceOps_) {
			const peerbuf_exporter_stats s = stats();
			EXPECT_EQ(s.attachments, 0u);
			EXPECT_EQ(s.pins, 0);
			EXPECT_EQ(s.mappings, 0);
			EXPECT_EQ(s.violations, 0u);
			EXPECT_EQ(s.quarantined, 0u);
		}
		if (buffer_) {
			EXPECT_PB_OK(peerbuf_free(ctx_, buffer_));
		}
		if (deviceOps_) {
			EXPECT_EQ(stats().memory_used, 0u);
		}
		EXPECT_EQ(peerbuf_close(std::exchange(ctx_, nullptr)), 0);
		log_.check();
	}
	endpoint_.reset();
	peer_.reset();
	if (before_) {
		EXPECT_TRUE(test::nothingLeaked(*before_));
	}
	before_.reset();
}

peerbuf_reg_importer_info Stack::region() const
{
	peerbuf_reg_importer_info info = {};
	info.struct_size = sizeof(info);
	EXPECT_PB_OK(peerbuf_query_reg_importer(ctx_, reg_, 0, &info));
	return info;
}

bool Stack::inside(const std::function<void()> &call)
{
	if (gate_ && peerbuf_progress_enter(gate_))
		return false;
	call();
	if (gate_)
		peerbuf_progress_leave(gate_);
	return true;
}

void Stack::serve()
{
	inside([this] {
		RmaCompletion completion;
		EXPECT_EQ(endpoint_->pollOnce(&completion), 0) << completion.what;
	});
}

int Stack::move(uint32_t placement, uint32_t flags, uint64_t deadlineNs)
{
	peerbuf_move_request request = {};
	request.struct_size = sizeof(request);
	request.placement = placement;
	request.flags = flags;
	request.deadline_ns = deadlineNs;
	return deviceOps_->move(device_, handle_, &request);
}

peerbuf_move_status Stack::moveStatus() const
{
	peerbuf_move_status status = {};
	status.struct_size = sizeof(status);
	EXPECT_EQ(deviceOps_->move_status(device_, handle_, &status), 0);
	return status;
}

void Stack::finishMove()
{
	const auto end = std::chrono::steady_clock::now() + limit;
	do {
		ASSERT_GE(peerbuf_progress(ctx_), 0);
		ASSERT_LT(std::chrono::steady_clock::now(), end) << "the move does not end";
	} while (moveStatus().running);
	// the last slice's resume may still be on its way
	ASSERT_GE(peerbuf_progress(ctx_), 0);
}

std::vector<uint8_t> Stack::deviceBytes() const
{
	std::vector<uint8_t> bytes(options_.size);
	EXPECT_EQ(deviceOps_->device_read(device_, handle_, 0, bytes.data(), bytes.size()), 0);
	return bytes;
}

peerbuf_exporter_stats Stack::stats() const
{
	peerbuf_exporter_stats stats = {};
	stats.struct_size = sizeof(stats);
	EXPECT_EQ(deviceOps_->stats(device_, &stats), 0);
	return stats;
}

std::vector<peerbuf_pause> Stack::pauses() const
{
	std::vector<peerbuf_pause> pauses(65536);
	const int n = importerOps_->pauses(importerDevice_, pauses.data(),
					   static_cast<uint32_t>(pauses.size()));
	EXPECT_GE(n, 0);
	pauses.resize(static_cast<size_t>(std::max(n, 0)));
	return pauses;
}

std::vector<peerbuf_event> Stack::events()
{
	std::vector<peerbuf_event> events;
	for (;;) {
		peerbuf_event event = {};
		event.struct_size = sizeof(event);
		const int rc = peerbuf_next_event(ctx_, &event);
		EXPECT_GE(rc, 0);
		if (rc != 1)
			return events;
		events.push_back(event);
	}
}

std::optional<peerbuf_event> Stack::waitFor(peerbuf_event_type type)
{
	const auto end = std::chrono::steady_clock::now() + limit;
	while (std::chrono::steady_clock::now() < end) {
		EXPECT_GE(peerbuf_progress(ctx_), 0);
		for (const peerbuf_event &event : events())
			if (event.type == static_cast<uint32_t>(type))
				return event;
	}
	ADD_FAILURE() << "no event of type " << type;
	return std::nullopt;
}

int Stack::byPeer(tools::RmaOp op, uint64_t offset, void *data, size_t length, uint64_t key,
		  std::string *retError)
{
	RmaTransfer t;
	t.op = op;
	t.peer = toEndpoint_;
	t.data = data;
	t.length = length;
	t.remoteAddr = region().remote_base + offset;
	t.key = key;
	return peer_->transfer(
		t, limit,
		[this] {
			serve();
			EXPECT_GE(peerbuf_progress(ctx_), 0);
		},
		*retError);
}

} // namespace peerbuf::moves
