// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file rma_test.cpp
 * The plain libfabric endpoint by itself, without peerbuf.
 */
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include <netinet/in.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rdma/fi_errno.h>

#include "support.h"
#include "tools/peerbuf/rma.h"

namespace peerbuf::test
{
namespace
{

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using tools::RmaCompletion;
using tools::RmaEndpoint;
using tools::RmaMemory;
using tools::RmaOp;
using tools::RmaOptions;
using tools::RmaTransfer;

TEST(RmaProviders, ListsOnlyWhatOpens)
{
	const auto names = tools::rmaProviders();
	ASSERT_FALSE(names.empty());
	for (const std::string &name : names) {
		if (leftOut(name))
			continue;
		RmaOptions options;
		options.provider = name;
		std::string error;
		const auto endpoint = RmaEndpoint::create(options, error);
		ASSERT_NE(endpoint, nullptr) << error;
		EXPECT_EQ(endpoint->provider(), name);
	}
}

TEST(RmaEndpoint, GivenUnknownProviderThenNamesItTheCallAndWhatThereIs)
{
	RmaOptions options;
	options.provider = "warp";
	std::string error;
	EXPECT_EQ(RmaEndpoint::create(options, error), nullptr);
	EXPECT_THAT(error, AllOf(HasSubstr("'warp'"), HasSubstr("fi_getinfo"),
				 HasSubstr(fi_strerror(FI_ENODATA)), HasSubstr("shm")));
}

TEST(RmaEndpoint, GivenANetworkProviderThenItsAddressIsLoopback)
{
	RmaOptions options;
	options.provider = "tcp";
	std::string error;
	const auto endpoint = RmaEndpoint::create(options, error);
	ASSERT_NE(endpoint, nullptr) << error;
	sockaddr_in address = {};
	ASSERT_GE(endpoint->name().size(), sizeof(address));
	std::memcpy(&address, endpoint->name().data(), sizeof(address));
	EXPECT_EQ(address.sin_family, AF_INET);
	EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
	EXPECT_NE(address.sin_port, 0);
}

TEST(RmaEndpoint, GivenRawKeysTheProviderDoesNotKnowThenNamesTheCall)
{
	RmaOptions options;
	options.provider = "tcp";
	std::string error;
	const auto endpoint = RmaEndpoint::create(options, error);
	ASSERT_NE(endpoint, nullptr) << error;
	const uint8_t raw[16] = {};
	uint64_t key = 0;
	EXPECT_LT(endpoint->mapRawKey(0, raw, sizeof(raw), &key, error), 0);
	EXPECT_THAT(error, HasSubstr("fi_mr_map_raw"));
}

class RmaPair : public ::testing::Test
{
protected:
	void SetUp() override
	{
		RmaOptions options;
		options.provider = "tcp";
		options.window = 8;
		target_ = RmaEndpoint::create(options, error_);
		ASSERT_NE(target_, nullptr) << error_;
		initiator_ = RmaEndpoint::create(options, error_);
		ASSERT_NE(initiator_, nullptr) << error_;
		ASSERT_EQ(initiator_->addPeer(target_->name(), &peer_, error_), 0) << error_;
	}
	void serve()
	{
		RmaCompletion completion;
		EXPECT_EQ(target_->pollOnce(&completion), 0) << completion.what;
	}

	std::string error_;
	std::unique_ptr<RmaEndpoint> target_;
	std::unique_ptr<RmaEndpoint> initiator_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

TEST_F(RmaPair, GivenOwnMemoryThenBytesArriveBothWaysAndTheWindowHolds)
{
	std::vector<uint8_t> remote(size_t{64} * 1024);
	std::vector<uint8_t> local(remote.size());
	for (size_t i = 0; i < local.size(); i++)
		local[i] = static_cast<uint8_t>(i * 7 + i / 251);
	RmaMemory memory;
	ASSERT_EQ(target_->expose(remote.data(), remote.size(), FI_REMOTE_READ | FI_REMOTE_WRITE,
				  &memory, error_),
		  0)
		<< error_;

	/* more than the window, in pieces */
	constexpr size_t piece = 4096;
	size_t posted = 0;
	size_t most = 0;
	std::set<uint64_t> done;
	const auto end = std::chrono::steady_clock::now() + limit;
	while (done.size() < local.size() / piece && std::chrono::steady_clock::now() < end) {
		if (posted < local.size()) {
			RmaTransfer t;
			t.peer = peer_;
			t.data = local.data() + posted;
			t.length = piece;
			t.remoteAddr = memory.remoteBase + posted;
			t.key = memory.key;
			t.context = posted;
			const int rc = initiator_->post(t, error_);
			ASSERT_TRUE(rc == 0 || rc == -EAGAIN) << error_;
			if (rc == 0)
				posted += piece;
		}
		most = std::max(most, initiator_->inFlight());
		RmaCompletion completion;
		const int rc = initiator_->pollOnce(&completion);
		ASSERT_GE(rc, 0) << completion.what;
		if (rc == 1) {
			ASSERT_EQ(completion.status, 0) << completion.what;
			EXPECT_TRUE(done.insert(completion.context).second) << "completed twice";
		}
		serve();
	}
	EXPECT_EQ(done.size(), local.size() / piece);
	EXPECT_LE(most, 8u);
	EXPECT_GT(most, 1u);
	EXPECT_EQ(remote, local);

	std::vector<uint8_t> back(local.size());
	RmaTransfer t;
	t.op = RmaOp::Read;
	t.peer = peer_;
	t.data = back.data();
	t.length = back.size();
	t.remoteAddr = memory.remoteBase;
	t.key = memory.key;
	ASSERT_EQ(initiator_->transfer(
			  t, limit, [this] { serve(); }, error_),
		  0)
		<< error_;
	EXPECT_EQ(back, local);
}

TEST_F(RmaPair, GivenATargetThatDoesNotServeThenTimeOutNamesTheTransfer)
{
	uint8_t byte = 0;
	RmaTransfer t;
	t.peer = peer_;
	t.data = &byte;
	t.length = 1;
	t.key = 1;
	EXPECT_EQ(initiator_->transfer(t, std::chrono::milliseconds(50), nullptr, error_),
		  -ETIMEDOUT);
	EXPECT_THAT(error_, AllOf(HasSubstr("write of 1 bytes"), HasSubstr("50 ms")));
}

} // namespace
} // namespace peerbuf::test
