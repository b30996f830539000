// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file move_test.cpp
 * Memory that moves under the traffic of real providers: the importer's half of the protocol, with
 * this test as the exporter. Every provider that is Movable is here twice: as it must be, and with
 * moves that nobody was told of, where the damage must show.
 */
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"
#include "tools/peerbuf/rma.h"

namespace peerbuf::test
{
namespace
{

using ::testing::IsEmpty;
using tools::RmaCompletion;
using tools::RmaEndpoint;
using tools::RmaOp;
using tools::RmaOptions;
using tools::RmaTransfer;

constexpr size_t blockSize = 64 << 10; // above what any provider sends at one go
constexpr size_t blocks = 16;	       // one each of a window
constexpr uint64_t attachment = 3;
constexpr uint8_t poison = 0xdb;

std::string nameOf(const ::testing::TestParamInfo<std::string> &info)
{
	std::string name = info.param;
	std::replace_if(
		name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
	return name;
}

/** What block @p block holds after its @p version'th write. */
void fill(uint8_t *to, size_t block, uint64_t version)
{
	std::mt19937_64 words(block << 32 | version); // NOLINT(cert-msc51-cpp): replays
	for (size_t i = 0; i < blockSize; i += sizeof(uint64_t)) {
		const uint64_t word = words();
		std::memcpy(to + i, &word, sizeof(word));
	}
}

class FabricMovesOn : public ::testing::TestWithParam<std::string>
{
protected:
	void SetUp() override
	{
		std::string error;
		RmaOptions options;
		options.provider = GetParam();
		options.window = blocks;
		target_ = RmaEndpoint::create(options, error);
		if (!target_)
			GTEST_SKIP() << "provider " << GetParam() << " is not here: " << error;
		initiator_ = RmaEndpoint::create(options, error);
		ASSERT_NE(initiator_, nullptr) << error;
		ASSERT_EQ(initiator_->addPeer(target_->name(), &peer_, error), 0) << error;
		auto objects = objectsOf(target_->domain(), target_->info(), target_->ep());
		// the environment of the tests turns CMA off in every process
		objects.flags = PEERBUF_FABRIC_BRACKETED | PEERBUF_FABRIC_PEERS_WITHOUT_CMA;
		int err = 0;
		importer_ = OpenImporter::open(host_, &objects, {}, &err);
		ASSERT_EQ(err, 0) << host_.why();
		gate_ = importer_->gate();
		ASSERT_NE(gate_, nullptr) << host_.why();
		auto request = memory_.request(0, memory_.size(), readWrite);
		request.attachment = attachment;
		request.flow = PEERBUF_FLOW_MOVABLE;
		ASSERT_EQ(importer_->reg(request, &region_), 0) << host_.why();
		deadline_ = std::chrono::steady_clock::now() + limit;
		// the first transfer makes the connection
		uint8_t zero = 0;
		RmaTransfer first = transferOf(RmaOp::Write, 0, &zero);
		first.length = 1;
		ASSERT_EQ(initiator_->transfer(
				  first, limit, [this] { serve(); }, error),
			  0)
			<< error;
	}
	void TearDown() override
	{
		if (!importer_)
			return;
		importer_->dereg(region_.token);
		EXPECT_EQ(importer_->stats().keys_used, 0u);
		importer_.reset();
		EXPECT_THAT(host_.warnings(), IsEmpty());
	}
	bool timeLeft() const { return std::chrono::steady_clock::now() < deadline_; }

	/** Serve the peer once, as an application that brackets its calls. */
	void serve()
	{
		if (peerbuf_progress_enter(gate_))
			return;
		RmaCompletion completion;
		const int rc = target_->pollOnce(&completion);
		peerbuf_progress_leave(gate_);
		EXPECT_EQ(rc, 0) << completion.what;
	}

	RmaTransfer transferOf(RmaOp op, size_t block, void *data) const
	{
		RmaTransfer t;
		t.op = op;
		t.peer = peer_;
		t.data = data;
		t.length = blockSize;
		t.remoteAddr = region_.remote_base + block * blockSize;
		t.key = region_.key64;
		t.context = block;
		return t;
	}

	/** The exporter's half: suspend, copy and remap, resume. */
	void move()
	{
		ASSERT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, attachment, 0, memory_.size(),
						++ticket_),
			  0);
		seen_ = memory_.move(poison);
		importer_->resume(attachment, 0, memory_.size());
		moves_++;
	}

	FakeHost host_;
	Memory memory_{blocks * blockSize};
	std::unique_ptr<RmaEndpoint> target_;
	std::unique_ptr<RmaEndpoint> initiator_;
	std::unique_ptr<OpenImporter> importer_;
	peerbuf_gate *gate_ = nullptr;
	peerbuf_region region_ = {};
	fi_addr_t peer_ = FI_ADDR_UNSPEC;
	uint64_t ticket_ = 0;
	unsigned moves_ = 0;
	const uint8_t *seen_ = nullptr; /* the memory as the device sees it */
	std::chrono::steady_clock::time_point deadline_;
};

/**
 * A full window of writes, again and again; a move after every few polls falls into the middle of
 * whatever is on its way. Every block is then compared where the device would look, and read back.
 */
TEST_P(FabricMovesOn, GivenAWindowOfWritesThenNoByteIsLostWhateverIsInFlight)
{
	constexpr unsigned rounds = 16;
	constexpr unsigned pollsBetweenMoves = 7; // a round takes some hundred
	std::vector<uint8_t> out(blocks * blockSize);
	std::vector<uint8_t> in(blockSize);
	unsigned inTheMiddle = 0;
	for (unsigned round = 1; round <= rounds; round++) {
		for (size_t block = 0; block < blocks; block++)
			fill(out.data() + block * blockSize, block, round);
		std::string error;
		size_t posted = 0;
		size_t done = 0;
		for (unsigned polls = 1; done < blocks; polls++) {
			ASSERT_TRUE(timeLeft())
				<< done << " of " << blocks << " in round " << round;
			if (posted < blocks) {
				const int rc = initiator_->post(
					transferOf(RmaOp::Write, posted,
						   out.data() + posted * blockSize),
					error);
				ASSERT_TRUE(rc == 0 || rc == -EAGAIN) << error;
				posted += rc == 0;
			}
			RmaCompletion completion;
			const int rc = initiator_->pollOnce(&completion);
			ASSERT_GE(rc, 0) << completion.what;
			if (rc == 1) {
				ASSERT_EQ(completion.status, 0) << completion.what;
				done++;
			}
			serve();
			if (polls % pollsBetweenMoves == 0) {
				inTheMiddle += initiator_->inFlight() > 0;
				ASSERT_NO_FATAL_FAILURE(move());
			}
		}
		ASSERT_NO_FATAL_FAILURE(move());
		ASSERT_EQ(std::memcmp(seen_, out.data(), out.size()), 0) << "round " << round;
		const size_t block = round % blocks;
		ASSERT_EQ(initiator_->transfer(
				  transferOf(RmaOp::Read, block, in.data()), limit,
				  [this] { serve(); }, error),
			  0)
			<< error;
		ASSERT_EQ(std::memcmp(in.data(), out.data() + block * blockSize, blockSize), 0);
	}
	EXPECT_GT(inTheMiddle, rounds);
	EXPECT_EQ(importer_->stats().pauses, moves_);
	EXPECT_EQ(importer_->pauses().size(), moves_);
	EXPECT_EQ(fi_mr_key(static_cast<fid_mr *>(region_.native)), region_.key64);
}

/** The control: one write is begun, the memory moves without a word, the write ends. */
TEST_P(FabricMovesOn, GivenAMoveThatNobodyIsToldOfThenTheBytesAreLost)
{
	std::vector<uint8_t> out(blockSize);
	fill(out.data(), 0, 1);
	std::string error;
	ASSERT_EQ(initiator_->post(transferOf(RmaOp::Write, 0, out.data()), error), 0) << error;
	seen_ = memory_.move(poison, true);
	int rc = 0;
	RmaCompletion completion;
	while (rc == 0 && timeLeft()) {
		serve();
		rc = initiator_->pollOnce(&completion);
	}
	ASSERT_EQ(rc, 1) << completion.what;
	ASSERT_EQ(completion.status, 0) << completion.what;
	// the initiator was told that all is well
	EXPECT_NE(std::memcmp(seen_, out.data(), out.size()), 0);
}

/** While the gate is closed peers wait; nothing arrives and nothing fails. */
TEST_P(FabricMovesOn, GivenAClosedGateThenAPeerSeesDelayAndNeverAnError)
{
	constexpr unsigned manyPolls = 5000;
	std::vector<uint8_t> out(blockSize);
	fill(out.data(), 0, 1);
	std::string error;
	ASSERT_EQ(importer_->invalidate(PEERBUF_REASON_MOVE, attachment, 0, memory_.size(), 1), 0);
	ASSERT_EQ(initiator_->post(transferOf(RmaOp::Write, 0, out.data()), error), 0) << error;
	RmaCompletion completion;
	for (unsigned i = 0; i < manyPolls; i++) {
		ASSERT_EQ(initiator_->pollOnce(&completion), 0) << completion.what;
		serve();
	}
	const std::vector<uint8_t> zeroes(memory_.size());
	EXPECT_EQ(std::memcmp(memory_.data(), zeroes.data(), zeroes.size()), 0);
	seen_ = memory_.move(poison);
	importer_->resume(attachment, 0, memory_.size());
	int rc = 0;
	while (rc == 0 && timeLeft()) {
		serve();
		rc = initiator_->pollOnce(&completion);
	}
	ASSERT_EQ(rc, 1) << completion.what;
	EXPECT_EQ(completion.status, 0) << completion.what;
	EXPECT_EQ(std::memcmp(seen_, out.data(), out.size()), 0);
}

/**
 * The memory is the local side: this thread posts from it, polls the queue itself and moves it in
 * between. Nothing of that may wait for an operation to end.
 */
TEST_P(FabricMovesOn, GivenTheApplicationsOwnOperationsThenTheirSourceMoves)
{
	std::vector<uint8_t> remote(memory_.size());
	tools::RmaMemory exposed;
	std::string error;
	ASSERT_EQ(initiator_->expose(remote.data(), remote.size(), FI_REMOTE_WRITE | FI_REMOTE_READ,
				     &exposed, error),
		  0)
		<< error;
	fi_addr_t back = FI_ADDR_UNSPEC;
	ASSERT_EQ(target_->addPeer(initiator_->name(), &back, error), 0) << error;
	for (size_t block = 0; block < blocks; block++)
		fill(memory_.data() + block * blockSize, block, 1);
	size_t posted = 0;
	size_t done = 0;
	unsigned inTheMiddle = 0;
	while (done < blocks) {
		ASSERT_TRUE(timeLeft()) << done << " of " << blocks;
		ASSERT_EQ(peerbuf_progress_enter(gate_), 0);
		while (posted < blocks) {
			RmaTransfer t = transferOf(RmaOp::Write, posted,
						   memory_.data() + posted * blockSize);
			t.peer = back;
			t.remoteAddr = exposed.remoteBase + posted * blockSize;
			t.key = exposed.key;
			const int rc = target_->post(t, error);
			ASSERT_TRUE(rc == 0 || rc == -EAGAIN) << error;
			if (rc)
				break;
			posted++;
		}
		RmaCompletion completion;
		const int rc = target_->pollOnce(&completion);
		peerbuf_progress_leave(gate_);
		ASSERT_GE(rc, 0) << completion.what;
		if (rc == 1) {
			ASSERT_EQ(completion.status, 0) << completion.what;
			done++;
		}
		inTheMiddle += target_->inFlight() > 0;
		ASSERT_NO_FATAL_FAILURE(move());
		ASSERT_EQ(initiator_->pollOnce(&completion), 0) << completion.what;
	}
	EXPECT_EQ(std::memcmp(remote.data(), seen_, remote.size()), 0);
	EXPECT_GT(inTheMiddle, 0u);
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricMovesOn, ::testing::Values("tcp", "shm"), nameOf);

} // namespace
} // namespace peerbuf::test
