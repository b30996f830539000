// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_UNIT_IMPORTER_VERBS_FAKE_KERNEL_H
#define PEERBUF_TESTS_UNIT_IMPORTER_VERBS_FAKE_KERNEL_H

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <peerbuf/verbs.h>

#include "importer/verbs/importer.h"
#include "tests/support/fake_host.h"

struct ib_uverbs_ioctl_hdr;

namespace peerbuf::test
{

/**
 * A kernel and an rdma-core with nothing behind them. The kernel's side follows uverbs_ioctl.c: it
 * serves only who names its driver, refuses an attribute that is mandatory and unknown, ignores one
 * that is only unknown, and returns handles and outputs where the attributes point. What breaks its
 * rules is counted. Thread-bound.
 */
class FakeKernel : public verbs::System
{
public:
	FakeKernel();

	/* behaviour */
	uint32_t driver = 14;	      /* rxe */
	int openError = 0;	      /* of every ioctl: a kernel without uverbs ioctls */
	bool kernelMethod = true;     /* UVERBS_METHOD_REG_DMABUF_MR is there */
	bool kernelDmabuf = true;     /* and the driver implements it */
	bool driverAttributes = true; /* of the flow */
	uint32_t takes = 0;	      /* a flow that the driver takes, whatever was asked */
	bool libraryDmabuf = false;   /* the provider library passes ibv_reg_dmabuf_mr on */
	bool libraryEx = false;	      /* ibv_reg_mr_ex is there */
	bool dataDirect = false;      /* mlx5dv_reg_dmabuf_mr is there */
	int refuseFd = 0;	      /* what the driver says of any descriptor that is open */
	int destroyError = 0;
	int deregError = 0;
	int regHostError = 0;
	int queryError = 0;
	uint64_t locked = UINT64_MAX; /* that may be */
	std::set<int> dmabufs = {7};  /* open descriptors that are some */
	std::set<int> others = {1};   /* open descriptors that are none */
	ibv_device_attr attr = {};

	/* what was seen */
	size_t regions = 0; /* of the kernel's making */
	size_t libraryRegions = 0;
	size_t breaches = 0;
	size_t kernelAsked = 0; /* REG_DMABUF_MR, whatever came of it */
	size_t libraryAsked = 0;
	verbs::DmabufRange last;
	bool lastRevocable = false;
	void *lastAddress = nullptr;
	size_t lastLength = 0;
	uint64_t lastIova = 0;
	unsigned lastAccess = 0;
	std::vector<std::string> calls; /* of the library */

	ibv_pd *pd() { return &pd_; }
	peerbuf_verbs_objects objects();

	int ioctl(int fd, unsigned long request, void *arg) override;
	int queryDevice(ibv_context *context, ibv_device_attr *retAttr) override;
	int regMr(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
		  ibv_mr **retMr) override;
	int regDmabufMr(ibv_pd *pd, const verbs::DmabufRange &range, ibv_mr **retMr) override;
	int regMrEx(ibv_pd *pd, const verbs::DmabufRange &range, ibv_mr **retMr) override;
	int regDataDirect(ibv_pd *pd, const verbs::DmabufRange &range, ibv_mr **retMr) override;
	bool hasDataDirect() override { return dataDirect; }
	int deregMr(ibv_mr *mr) override;
	uint64_t lockLimit() override { return locked; }
	std::string exporterOf(int fd) override { return dmabufs.count(fd) ? "udmabuf" : ""; }

private:
	int regByIoctl(ib_uverbs_ioctl_hdr *hdr);
	int destroy(ib_uverbs_ioctl_hdr *hdr);
	int importDmabuf(const verbs::DmabufRange &range) const;
	int library(const char *call, const verbs::DmabufRange &range, ibv_mr **retMr);
	int hand(ibv_mr **retMr);
	int breach(int rc)
	{
		breaches++;
		return rc;
	}

	ibv_device ibvDevice_ = {};
	ibv_context context_ = {};
	ibv_pd pd_ = {};
	uint32_t nextKey_ = 0x100;
	std::set<uint32_t> handles_;
	std::map<ibv_mr *, std::unique_ptr<ibv_mr>> mrs_;
};

using Params = std::vector<std::pair<std::string, std::string>>;

/** @return 0 with an importer. */
int openImporter(const FakeHost &host, FakeKernel &kernel, const Params &params,
		 std::unique_ptr<verbs::Importer> *retImporter);

/** A region of a dma-buf, descriptor 7 unless changed. Keeps what the request points to. */
struct DmabufRequest {
	peerbuf_fd_export exported = {};
	peerbuf_reg_request request = {};

	explicit DmabufRequest(int fd = 7);
};

inline constexpr uint32_t readWrite =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;

} // namespace peerbuf::test

#endif
