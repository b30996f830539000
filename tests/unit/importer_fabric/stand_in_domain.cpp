// SPDX-License-Identifier: BSD-3-Clause
#include "stand_in_domain.h"

#include <cstring>
#include <thread>

#include <sys/uio.h>

#include <rdma/fi_errno.h>

namespace peerbuf::test
{

StandInDomain::StandInDomain(const std::string &provider, int mrMode) : info_(fi_allocinfo())
{
	mrOps_.size = sizeof(mrOps_);
	mrOps_.regattr = regAttr;
	regionOps_.size = sizeof(regionOps_);
	regionOps_.close = close;
	regionOps_.bind = bind;
	regionOps_.control = control;
	domain_.fid.fid.fclass = FI_CLASS_DOMAIN;
	domain_.fid.mr = &mrOps_;
	domain_.self = this;
	ep_.fid.fclass = FI_CLASS_EP;

	info_->caps = FI_MSG | FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE;
	info_->fabric_attr->prov_name = strdup(provider.c_str());
	info_->fabric_attr->api_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
	info_->domain_attr->name = strdup("stand-in");
	info_->domain_attr->mr_mode = mrMode;
	info_->domain_attr->mr_key_size = 8;
	info_->domain_attr->threading = FI_THREAD_SAFE;
}

StandInDomain::~StandInDomain()
{
	fi_freeinfo(info_);
}

StandInDomain::Inside::Inside(StandInDomain *self) : self_(self)
{
	if (self->inside_++ != 0)
		self->breaches++;
	/* let whoever would come in do so */
	for (int i = 0; i < 20; i++)
		std::this_thread::yield();
	lock_ = std::unique_lock<std::mutex>(self->mutex_);
}

StandInDomain::Inside::~Inside()
{
	self_->inside_--;
}

StandInDomain *StandInDomain::of(fid *fid)
{
	return fid->fclass == FI_CLASS_DOMAIN ? reinterpret_cast<Domain *>(fid)->self
					      : reinterpret_cast<Region *>(fid)->self;
}

int StandInDomain::regAttr(fid *fid, const fi_mr_attr *attr, uint64_t flags, fid_mr **retMr)
{
	StandInDomain *self = of(fid);
	const Inside inside(self);
	if (self->regError)
		return self->regError;
	const unsigned mode = static_cast<unsigned>(self->info_->domain_attr->mr_mode);
	uint64_t key = attr->requested_key;
	if (mode & FI_MR_PROV_KEY)
		key = self->nextKey_++;
	else if (self->keys.count(key) || self->takenKeys.count(key))
		return -FI_ENOKEY;

	/* fields that fi_mr_attr got after the headers this is built with */
	uint64_t later[8];
	std::memcpy(later, reinterpret_cast<const char *>(attr) + sizeof(*attr), sizeof(later));
	for (const uint64_t word : later)
		self->laterFieldsZero = self->laterFieldsZero && word == 0;

	auto *region = new Region{};
	region->fid.fid.fclass = FI_CLASS_MR;
	region->fid.fid.ops = &self->regionOps_;
	region->fid.key = (mode & FI_MR_RAW) ? FI_KEY_NOTAVAIL : key;
	region->fid.mem_desc = region;
	region->self = self;
	region->enabled = !(mode & FI_MR_ENDPOINT);
	self->live++;
	self->enabled += region->enabled;
	self->keys.insert(key);
	self->lastAccess = attr->access;
	self->lastFlags = flags;
#ifdef FI_MR_DMABUF
	if (flags & FI_MR_DMABUF) {
		self->lastFd = attr->dmabuf->fd;
		self->lastFdOffset = attr->dmabuf->offset;
		self->lastBase = attr->dmabuf->base_addr;
		self->lastLength = attr->dmabuf->len;
		*retMr = &region->fid;
		return 0;
	}
#endif
	self->lastBase = attr->mr_iov->iov_base;
	self->lastLength = attr->mr_iov->iov_len;
	*retMr = &region->fid;
	return 0;
}

int StandInDomain::close(fid *fid)
{
	StandInDomain *self = of(fid);
	const Inside inside(self);
	if (self->closeError)
		return self->closeError;
	auto *region = reinterpret_cast<Region *>(fid);
	self->live--;
	self->enabled -= region->enabled;
	self->keys.erase(region->fid.key);
	delete region;
	return 0;
}

int StandInDomain::bind(fid *fid, struct fid *to, uint64_t)
{
	StandInDomain *self = of(fid);
	const Inside inside(self);
	auto *region = reinterpret_cast<Region *>(fid);
	if (to != &self->ep_.fid || region->bound || region->enabled)
		self->breaches++;
	region->bound = true;
	return 0;
}

int StandInDomain::control(fid *fid, int command, void *arg)
{
	StandInDomain *self = of(fid);
	const Inside inside(self);
	auto *region = reinterpret_cast<Region *>(fid);
	if (command == FI_ENABLE) {
		if (!region->bound || region->enabled)
			self->breaches++;
		region->enabled = true;
		self->enabled++;
		return 0;
	}
	if (command == FI_GET_RAW_MR) {
		auto *raw = static_cast<struct fi_mr_raw_attr *>(arg);
		const size_t room = *raw->key_size;
		*raw->key_size = self->rawKeySize;
		if (room < self->rawKeySize)
			return -FI_ETOOSMALL;
		if (!region->enabled)
			self->breaches++;
		*raw->base_addr = 0x5000;
		for (size_t i = 0; i < self->rawKeySize; i++)
			raw->raw_key[i] = static_cast<uint8_t>(i + 1);
		return 0;
	}
	return -FI_ENOSYS;
}

} // namespace peerbuf::test
