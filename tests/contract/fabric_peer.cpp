// SPDX-License-Identifier: BSD-3-Clause
#include "fabric_peer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

#include <peerbuf/fabric.h>

#include "tools/peerbuf/rma.h"

namespace peerbuf::contract
{

namespace
{

using tools::RmaEndpoint;
using tools::RmaMemory;
using tools::RmaOp;
using tools::RmaOptions;
using tools::RmaTransfer;

/* long enough for a loaded machine; a transfer that takes longer is a failure, not an answer */
constexpr std::chrono::milliseconds transfer_limit(20000);

class FabricObjects : public ImporterObjects
{
public:
	FabricObjects(std::string provider, bool bracketed, std::unique_ptr<RmaEndpoint> endpoint)
	    : provider_(std::move(provider)),
	      bracketed_(bracketed),
	      endpoint_(std::move(endpoint))
	{
		objects_.flags = bracketed ? PEERBUF_FABRIC_BRACKETED : 0;
		objects_.struct_size = sizeof(objects_);
		objects_.domain = endpoint_->domain();
		objects_.info = endpoint_->info();
		objects_.ep = endpoint_->ep();
	}

	const void *objects() const override { return &objects_; }
	void opened(peerbuf_context *ctx, peerbuf_importer_t importer) override
	{
		if (!bracketed_)
			return;
		ctx_ = ctx;
		EXPECT_PB_OK(peerbuf_importer_gate(ctx, importer, &gate_));
	}
	void progress() override
	{
		tools::RmaCompletion ignored; // a peer's mistake is the peer's to report
		if (!gate_) {
			endpoint_->pollOnce(&ignored);
			return;
		}
		if (peerbuf_progress_enter(gate_) == 0) {
			endpoint_->pollOnce(&ignored);
			peerbuf_progress_leave(gate_);
		}
		EXPECT_PB_OK(peerbuf_progress(ctx_));
	}
	const std::string &provider() const { return provider_; }
	const RmaEndpoint &endpoint() const { return *endpoint_; }

private:
	std::string provider_;
	bool bracketed_;
	std::unique_ptr<RmaEndpoint> endpoint_;
	peerbuf_fabric_objects objects_ = {};
	peerbuf_context *ctx_ = nullptr;
	peerbuf_gate *gate_ = nullptr;
};

class FabricPeer : public Peer
{
public:
	explicit FabricPeer(FabricObjects &target) : target_(target) {}

	int connect(std::string *ret_why)
	{
		RmaOptions options;
		options.provider = target_.provider();
		endpoint_ = RmaEndpoint::create(options, *ret_why);
		return endpoint_ ? endpoint_->addPeer(target_.endpoint().name(), &peer_, *ret_why)
				 : -EIO;
	}

	int write(const RegionInfo &region, uint64_t offset, const void *data,
		  size_t length) override
	{
		return transfer(RmaOp::Write, region, offset, const_cast<void *>(data), length);
	}
	int read(const RegionInfo &region, uint64_t offset, void *data, size_t length) override
	{
		return transfer(RmaOp::Read, region, offset, data, length);
	}
	std::string whyNoRefusals() const override
	{
		// seen with libfabric 1.17: the target notices, and the initiator waits for ever
		return target_.provider() == "shm"
			       ? "provider shm does not tell the initiator of a refused transfer"
			       : "";
	}

private:
	int transfer(RmaOp op, const RegionInfo &region, uint64_t offset, void *data, size_t length)
	{
		std::string why;
		if (!endpoint_) {
			if (const int rc = connect(&why)) {
				ADD_FAILURE() << "no second connection: " << why;
				return rc;
			}
		}
		RmaTransfer transfer;
		transfer.op = op;
		transfer.peer = peer_;
		transfer.data = data;
		transfer.length = length;
		transfer.remoteAddr = region.remote_base + offset;
		transfer.key = region.key64;
		if (region.raw_key_size != 0) {
			const int rc =
				endpoint_->mapRawKey(region.remote_base, region.raw_key,
						     region.raw_key_size, &transfer.key, why);
			if (rc)
				return rc;
		}
		RmaMemory local;
		if (endpoint_->info()->domain_attr->mr_mode & FI_MR_LOCAL) {
			const int rc =
				endpoint_->expose(data, length, FI_READ | FI_WRITE, &local, why);
			if (rc)
				return rc;
			transfer.desc = local.desc;
		}
		const int rc = endpoint_->transfer(
			transfer, transfer_limit, [&] { target_.progress(); }, why);
		if (rc == -ETIMEDOUT)
			ADD_FAILURE() << why;
		if (rc)
			endpoint_.reset(); // an error may have ended the connection
		return rc;
	}

	FabricObjects &target_;
	std::unique_ptr<RmaEndpoint> endpoint_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

} // namespace

std::vector<std::string> defaultFabricProviders()
{
	const std::vector<std::string> there = tools::rmaProviders();
	const auto has = [&](const char *name) {
		return std::find(there.begin(), there.end(), name) != there.end();
	};
	std::vector<std::string> chosen;
	// one over sockets, under the name it has in this version, and one over shared memory
	if (has("tcp"))
		chosen.emplace_back("tcp");
	else if (has("tcp;ofi_rxm"))
		chosen.emplace_back("tcp;ofi_rxm");
	if (has("shm"))
		chosen.emplace_back("shm");
	return chosen;
}

std::unique_ptr<ImporterObjects> makeFabricObjects(const std::string &provider, bool bracketed,
						   std::string *ret_why)
{
	if (provider.empty()) {
		*ret_why = "importer fabric needs provider=NAME";
		return nullptr;
	}
	RmaOptions options;
	options.provider = provider;
	std::unique_ptr<RmaEndpoint> endpoint = RmaEndpoint::create(options, *ret_why);
	if (!endpoint)
		return nullptr;
	return std::make_unique<FabricObjects>(provider, bracketed, std::move(endpoint));
}

std::unique_ptr<Peer> makeFabricPeer(ImporterObjects &target, std::string *ret_why)
{
	auto *objects = dynamic_cast<FabricObjects *>(&target);
	if (!objects) {
		*ret_why = "not libfabric's objects";
		return nullptr;
	}
	auto peer = std::make_unique<FabricPeer>(*objects);
	if (peer->connect(ret_why))
		return nullptr;
	return peer;
}

} // namespace peerbuf::contract
