// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_RMA_H
#define PEERBUF_TOOLS_RMA_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

namespace peerbuf::tools
{

/** Closes what libfabric opened. */
struct FidClose {
	template <typename Fid> void operator()(Fid *fid) const { fi_close(&fid->fid); }
};
template <typename Fid> using FidPtr = std::unique_ptr<Fid, FidClose>;

struct RmaOptions {
	/** Every way of registering memory that RmaEndpoint copes with. */
	static constexpr int everyMrMode = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR |
					   FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	/** The deprecated FI_MR_BASIC, alone: virtual addresses and provider keys are forced. */
	static constexpr int basicMrMode = 1 << 0;
	static constexpr int defaultMrMode = -1;

	std::string provider = "tcp;ofi_rxm";
	/**
	 * The mr_mode bits that the provider may ask for; fi_getinfo returns those it does. By
	 * default every one, but no virtual addresses for providers that would take them as leave
	 * to copy by CMA without asking for a key.
	 */
	int mrMode = defaultMrMode;
	uint64_t extraCaps = 0; /* beyond FI_MSG | FI_RMA */
	size_t window = 64;	/* operations in flight, at most */
	uint64_t firstKey = 1;	/* of expose(), where the application chooses keys */
};

enum class RmaOp { Write, Read };

/** One transfer between local memory and a peer's region. */
struct RmaTransfer {
	RmaOp op = RmaOp::Write;
	fi_addr_t peer = FI_ADDR_UNSPEC;
	void *data = nullptr; /* left alone by the caller until completion */
	size_t length = 0;
	void *desc = nullptr; /* of data, where info()->domain_attr->mr_mode has FI_MR_LOCAL */
	uint64_t remoteAddr = 0;
	uint64_t key = 0;
	uint64_t context = 0; /* comes back in the completion */
};

struct RmaCompletion {
	uint64_t context = 0;
	int status = 0;	  /* 0 or a negative error of libfabric */
	std::string what; /* the error in words: provider, operation, libfabric's own text */
};

/** Memory registered by the application itself, for comparison with peerbuf. */
struct RmaMemory {
	FidPtr<fid_mr> mr;
	uint64_t key = 0;
	uint64_t remoteBase = 0;
	void *desc = nullptr;
};

/**
 * A reliable-datagram endpoint for RMA, made of plain libfabric: what an application has before it
 * meets peerbuf. Addresses of network providers are loopback addresses only.
 *
 * Progress is manual: a target serves its peers only inside pollOnce. shm copies between processes
 * by CMA unless FI_SHM_DISABLE_CMA=1 is in the environment before the first fi_getinfo of a
 * process; only whoever starts the process can decide that, so nothing here sets it.
 *
 * Thread-bound, except that the domain is FI_THREAD_SAFE: others may register memory on it.
 */
class RmaEndpoint
{
public:
	/** @return null, with @p error naming provider, call and libfabric's reason. */
	static std::unique_ptr<RmaEndpoint> create(const RmaOptions &options, std::string &error);
	~RmaEndpoint();
	RmaEndpoint(const RmaEndpoint &) = delete;
	RmaEndpoint &operator=(const RmaEndpoint &) = delete;

	/** Name of the provider that was obtained ("tcp" may give "tcp;ofi_rxm"). */
	const std::string &provider() const { return provider_; }
	fid_domain *domain() const { return domain_.get(); }
	const fi_info *info() const { return info_.get(); }
	fid_ep *ep() const { return ep_.get(); }
	/** Writes complete once the target's memory has the bytes, not before. */
	bool deliveryComplete() const { return deliveryComplete_; }

	/** This endpoint's address, for the peer's addPeer. */
	const std::vector<uint8_t> &name() const { return name_; }
	/** @return 0 or a negative errno. */
	int addPeer(const std::vector<uint8_t> &name, fi_addr_t *retPeer, std::string &error);
	/** A raw key of the peer's as the 64-bit key to post with (FI_MR_RAW). */
	int mapRawKey(uint64_t remoteBase, const uint8_t *rawKey, size_t size, uint64_t *retKey,
		      std::string &error);

	/**
	 * Start a transfer. @return 0; -EAGAIN: the window or the provider's queue is full, poll
	 * and try again; else a negative error, with @p error.
	 */
	int post(const RmaTransfer &transfer, std::string &error);
	/**
	 * Serve peers and collect at most one completion. @return 1: *retCompletion; 0: none;
	 * negative: an error that belongs to no transfer, with retCompletion->what.
	 */
	int pollOnce(RmaCompletion *retCompletion);
	size_t inFlight() const { return inFlight_; }

	/**
	 * Do one transfer to its end; nothing else may be in flight. @p meanwhile is called between
	 * polls, e.g. to serve a target on the same thread. @return 0, or a negative error;
	 * -ETIMEDOUT leaves it in flight.
	 */
	int transfer(const RmaTransfer &transfer, std::chrono::milliseconds limit,
		     const std::function<void()> &meanwhile, std::string &error);

	/** Register memory of the application itself; @p access as in fi_mr_reg. */
	int expose(void *base, size_t length, uint64_t access, RmaMemory *retMemory,
		   std::string &error);

private:
	/** One place of the window; the provider may keep its own notes in the first field. */
	struct Slot {
		fi_context2 scratch; /* some providers ask for it (FI_CONTEXT2) */
		uint64_t context;
		RmaOp op;
	};
	struct InfoFree {
		void operator()(fi_info *info) const { fi_freeinfo(info); }
	};

	RmaEndpoint() = default;
	std::string failure(const char *call, int rc) const;
	int open(const RmaOptions &options, std::string &error);
	int openObjects(std::string &error);
	int readError(RmaCompletion *retCompletion);

	std::string provider_;
	bool deliveryComplete_ = false;
	uint64_t nextKey_ = 1;
	std::vector<uint8_t> name_;
	std::vector<Slot> slots_;
	std::vector<size_t> free_; /* indexes into slots_ */
	size_t inFlight_ = 0;

	/* closed from the last to the first */
	std::unique_ptr<fi_info, InfoFree> info_;
	FidPtr<fid_fabric> fabric_;
	FidPtr<fid_domain> domain_;
	FidPtr<fid_av> av_;
	FidPtr<fid_cq> cq_;
	FidPtr<fid_ep> ep_;
};

/** Providers on this machine that RmaEndpoint can use, the preferred one first. */
std::vector<std::string> rmaProviders();

} // namespace peerbuf::tools

#endif
