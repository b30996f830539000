// SPDX-License-Identifier: BSD-3-Clause
#include "fabric_side.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <peerbuf/fabric.h>

#include "rma.h"

namespace peerbuf::tools
{

namespace
{

constexpr std::chrono::seconds patience(20);

class RealFabricSide : public FabricSide
{
public:
	int open(const std::string &provider, std::string &error)
	{
		RmaOptions options;
		options.provider = provider;
		target_ = RmaEndpoint::create(options, error);
		if (target_)
			initiator_ = RmaEndpoint::create(options, error);
		if (!initiator_)
			return -ENODEV;
		objects_.struct_size = sizeof(objects_);
		objects_.flags = PEERBUF_FABRIC_BRACKETED; /* see transfer() */
		if (runsWithoutCma())
			objects_.flags |= PEERBUF_FABRIC_PEERS_WITHOUT_CMA;
		objects_.domain = target_->domain();
		objects_.info = target_->info();
		objects_.ep = target_->ep();
		return initiator_->addPeer(target_->name(), &peer_, error);
	}

	const std::string &provider() const override { return target_->provider(); }
	const void *objects() const override { return &objects_; }
	void useGate(peerbuf_gate *gate) override { gate_ = gate; }

	int transfer(const peerbuf_reg_importer_info &region, bool write, uint64_t at,
		     uint8_t *data, size_t length, std::string &error) override
	{
		RmaTransfer t;
		t.op = write ? RmaOp::Write : RmaOp::Read;
		t.peer = peer_;
		t.data = data;
		t.length = length;
		t.remoteAddr = region.remote_base + at;
		t.key = region.key64;
		if (region.raw_key_size) {
			const int rc = initiator_->mapRawKey(region.remote_base, region.raw_key,
							     region.raw_key_size, &t.key, error);
			if (rc)
				return rc;
		}
		RmaMemory local;
		if (initiator_->info()->domain_attr->mr_mode & FI_MR_LOCAL) {
			const int rc =
				initiator_->expose(data, length, FI_READ | FI_WRITE, &local, error);
			if (rc)
				return rc;
			t.desc = local.desc;
		}
		int served = 0;
		const int rc = initiator_->transfer(
			t, patience,
			[&] {
				RmaCompletion completion;
				if (gate_ && peerbuf_progress_enter(gate_))
					return;
				const int polled = target_->pollOnce(&completion);
				if (gate_)
					peerbuf_progress_leave(gate_);
				if (polled != 0 && !served) {
					served = completion.status ? completion.status : -EIO;
					error = "the target's endpoint: " + completion.what;
				}
			},
			error);
		return rc ? rc : served;
	}

private:
	std::unique_ptr<RmaEndpoint> target_;
	std::unique_ptr<RmaEndpoint> initiator_;
	fi_addr_t peer_ = FI_ADDR_UNSPEC;
	peerbuf_fabric_objects objects_ = {};
	peerbuf_gate *gate_ = nullptr;
};

} // namespace

std::unique_ptr<FabricSide> FabricSide::create(const std::string &provider, std::string &error)
{
	auto side = std::make_unique<RealFabricSide>();
	if (side->open(provider, error))
		return nullptr;
	return side;
}

const std::vector<std::string> &fabricProviders()
{
	static const std::vector<std::string> names = rmaProviders();
	return names;
}

std::string findProvider(const std::string &name)
{
	const auto &names = fabricProviders();
	for (const std::string &full : {name, name + ";ofi_rxm", name + ";ofi_rxd"})
		if (std::find(names.begin(), names.end(), full) != names.end())
			return full;
	return "";
}

std::string defaultProvider()
{
	/* from 2.0 on tcp has reliable datagrams of its own */
	const bool two = FI_VERSION_GE(fi_version(), FI_VERSION(2, 0));
	const std::string first = findProvider(two ? "tcp" : "tcp;ofi_rxm");
	return first.empty() ? findProvider(two ? "tcp;ofi_rxm" : "tcp") : first;
}

bool canFollowMoves(const std::string &provider)
{
	return provider == "tcp" || provider == "tcp;ofi_rxm" || provider == "shm";
}

bool peersMayUseCma(const std::string &provider)
{
	return provider == "shm" || provider == "sm2";
}

bool runsWithoutCma()
{
	const char *disabled = getenv("FI_SHM_DISABLE_CMA");
	return disabled && strcmp(disabled, "1") == 0;
}

} // namespace peerbuf::tools
