// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file open_test.cpp
 * What the importer is opened on, what it offers, and host memory.
 */
#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_kernel.h"

namespace peerbuf::test
{
namespace
{

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome {
	int err = 0;
	std::string why;
};

Outcome tryOpen(FakeKernel &kernel, const peerbuf_verbs_objects *objects, const Params &params = {})
{
	FakeHost host;
	std::vector<peerbuf_param> raw;
	for (const auto &[key, value] : params)
		raw.push_back({key.c_str(), value.c_str()});
	std::unique_ptr<verbs::Importer> importer;
	Outcome o;
	o.err = verbs::Importer::create(host.raw(), raw.data(), raw.size(), objects, kernel,
					&importer);
	o.why = host.failure().message;
	return o;
}

TEST(VerbsOpen, GivenIncompleteObjectsThenTheFieldIsNamed)
{
	FakeKernel kernel;
	Outcome o = tryOpen(kernel, nullptr);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("peerbuf_verbs_objects with pd"));
	peerbuf_verbs_objects objects = kernel.objects();
	objects.struct_size = 8;
	o = tryOpen(kernel, &objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("struct_size is 8"), HasSubstr("at least 16")));
	objects = kernel.objects();
	objects.pd = nullptr;
	o = tryOpen(kernel, &objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("pd is NULL"));
	ibv_pd empty = {};
	objects.pd = &empty;
	o = tryOpen(kernel, &objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("ibv_alloc_pd"));
}

TEST(VerbsOpen, GivenBadOptionsThenTheyAreNamed)
{
	FakeKernel kernel;
	const peerbuf_verbs_objects objects = kernel.objects();
	Outcome o = tryOpen(kernel, &objects, {{"colour", "red"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("'colour'"), HasSubstr("flow"), HasSubstr("odp")));
	o = tryOpen(kernel, &objects, {{"flow", "pinned"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("auto, movable, revocable"));
	o = tryOpen(kernel, &objects, {{"data_direct", "yes"}});
	EXPECT_EQ(o.err, -EOPNOTSUPP);
	EXPECT_THAT(o.why, HasSubstr("mlx5dv_reg_dmabuf_mr is not in this process"));
}

TEST(VerbsOpen, GivenADeviceThatCannotBeQueriedThenItIsNamed)
{
	FakeKernel kernel;
	kernel.queryError = -ENODEV;
	const peerbuf_verbs_objects objects = kernel.objects();
	const Outcome o = tryOpen(kernel, &objects);
	EXPECT_EQ(o.err, -ENODEV);
	EXPECT_THAT(o.why, AllOf(HasSubstr("fake0"), HasSubstr("ENODEV")));
}

class VerbsHost : public ::testing::Test
{
protected:
	~VerbsHost() override
	{
		importer_.reset();
		EXPECT_EQ(kernel_.breaches, 0u);
		EXPECT_EQ(kernel_.libraryRegions, 0u);
	}
	void open(const Params &params = {})
	{
		ASSERT_EQ(openImporter(host_, kernel_, params, &importer_), 0)
			<< host_.failure().message;
	}
	peerbuf_importer_offer offer()
	{
		peerbuf_importer_offer o = {};
		o.struct_size = sizeof(o);
		EXPECT_EQ(importer_->offer(&o), 0);
		return o;
	}
	/** [0x1100, +0x200) of a mapping that begins at 0x1000. */
	peerbuf_reg_request request()
	{
		mapping_.struct_size = sizeof(mapping_);
		mapping_.offset = 0x1000;
		mapping_.length = sizeof(memory_);
		mapping_.cpu_addr = memory_;
		peerbuf_reg_request r = {};
		r.struct_size = sizeof(r);
		r.flow = PEERBUF_FLOW_PINNED;
		r.access = readWrite;
		r.handle_kind = PEERBUF_HANDLE_CPU;
		r.offset = 0x1100;
		r.length = 0x200;
		r.iova = 0x9100;
		r.mapping = &mapping_;
		r.name = "buffer 3";
		return r;
	}

	FakeKernel kernel_;
	FakeHost host_;
	std::unique_ptr<verbs::Importer> importer_;
	char memory_[4096] = {};
	peerbuf_mapping mapping_ = {};
};

TEST_F(VerbsHost, OfferSaysWhatTheDeviceCan)
{
	kernel_.attr.max_mr_size = 1 << 30;
	open();
	const peerbuf_importer_offer o = offer();
	EXPECT_EQ(o.handles, PEERBUF_HANDLE_FD | PEERBUF_HANDLE_CPU);
	EXPECT_EQ(o.software, 0u);
	EXPECT_EQ(o.locks_host_memory, 1u);
	EXPECT_EQ(o.max_length, 1u << 30);
	EXPECT_EQ(o.keys_left, 100u);
	EXPECT_STREQ(o.device, "verbs:fake0");
	EXPECT_THAT(o.why, HasSubstr("rxe"));
	EXPECT_TRUE(o.access & PEERBUF_ACCESS_REMOTE_ATOMIC);
	importer_.reset();
	kernel_.attr.atomic_cap = IBV_ATOMIC_NONE;
	kernel_.driver = 63;
	open({{"odp", "yes"}});
	EXPECT_FALSE(offer().access & PEERBUF_ACCESS_REMOTE_ATOMIC);
	EXPECT_EQ(offer().locks_host_memory, 0u);
	EXPECT_EQ(offer().asks_flow, 0u);
	EXPECT_THAT(offer().why, HasSubstr("driver 63"));
	ASSERT_EQ(importer_->calls().fault("offer", 0, 1, -ENODEV, 0), 0);
	peerbuf_importer_offer bad = {};
	EXPECT_EQ(importer_->offer(&bad), -ENODEV);
}

TEST_F(VerbsHost, GivenHostMemoryThenExactlyTheRangeIsRegisteredAndNotOnDemand)
{
	open();
	peerbuf_region region = {};
	ASSERT_EQ(importer_->reg(request(), &region), 0) << host_.failure().message;
	EXPECT_EQ(kernel_.lastAddress, memory_ + 0x100);
	EXPECT_EQ(kernel_.lastLength, 0x200u);
	EXPECT_EQ(kernel_.lastIova, 0x9100u);
	EXPECT_FALSE(kernel_.lastAccess & IBV_ACCESS_ON_DEMAND);
	EXPECT_EQ(region.remote_base, 0x9100u);
	EXPECT_EQ(region.kernel_flow, 0u);
	importer_->dereg(region.token);
	EXPECT_EQ(kernel_.libraryRegions, 0u);
	importer_.reset();
	open({{"odp", "yes"}});
	ASSERT_EQ(importer_->reg(request(), &region), 0) << host_.failure().message;
	EXPECT_TRUE(kernel_.lastAccess & IBV_ACCESS_ON_DEMAND);
	importer_->dereg(region.token);
}

TEST_F(VerbsHost, GivenMemoryThatIsNotTheHostsThenItSaysSo)
{
	open();
	peerbuf_region region = {};
	kernel_.regHostError = -EFAULT;
	EXPECT_EQ(importer_->reg(request(), &region), -EFAULT);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_NOT_HOST_MEMORY);
	EXPECT_THAT(host_.failure().message, AllOf(HasSubstr("fake0"), HasSubstr("buffer 3"),
						   HasSubstr("0x1100"), HasSubstr("EFAULT")));
	kernel_.regHostError = 0;
	ASSERT_EQ(importer_->calls().fault("ibv_reg_mr", 0, 1, -ENOMEM, 0), 0);
	EXPECT_EQ(importer_->reg(request(), &region), -ENOMEM);
	EXPECT_THAT(host_.failure().message, HasSubstr("ENOMEM"));
	EXPECT_EQ(host_.failure().errc, PEERBUF_OK) << "for whatever reason";
	kernel_.locked = 0x1ff;
	ASSERT_EQ(importer_->calls().fault("ibv_reg_mr", 0, 1, -ENOMEM, 0), 0);
	EXPECT_EQ(importer_->reg(request(), &region), -ENOMEM);
	EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_QUOTA);
	EXPECT_THAT(host_.failure().message, HasSubstr("RLIMIT_MEMLOCK is 511 bytes"));
	peerbuf_importer_stats s = {};
	importer_->stats(&s);
	EXPECT_EQ(s.keys_used, 0u);
}

TEST_F(VerbsHost, GivenARangeOutsideTheMappingThenRefused)
{
	open();
	peerbuf_region region = {};
	peerbuf_reg_request r = request();
	r.length = 0xf01;
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	EXPECT_THAT(host_.failure().message, HasSubstr("0xf01"));
	r = request();
	r.offset = 0xfff;
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	r = request();
	r.offset = 0x2001;
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	r.mapping = nullptr;
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	r = request();
	r.handle_kind = PEERBUF_HANDLE_FD; // and no dma-buf
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	r.handle_kind = PEERBUF_HANDLE_SEGMENTS;
	EXPECT_EQ(importer_->reg(r, &region), -EINVAL);
	EXPECT_EQ(kernel_.libraryRegions, 0u);
}

TEST_F(VerbsHost, GivenAFlowThatLockedMemoryCannotDoThenRefused)
{
	open();
	peerbuf_region region = {};
	peerbuf_reg_request r = request();
	for (const uint32_t flow : {PEERBUF_FLOW_MOVABLE, PEERBUF_FLOW_REVOCABLE}) {
		r.flow = flow;
		EXPECT_EQ(importer_->reg(r, &region), -EOPNOTSUPP);
		EXPECT_EQ(host_.failure().errc, PEERBUF_ERR_UNSUPPORTED_DRIVER);
	}
}

TEST_F(VerbsHost, GivenAnUnknownStepThenTheListIsThere)
{
	open();
	EXPECT_EQ(importer_->calls().fault("dance", 0, 1, -EIO, 0), -ENOENT);
	EXPECT_THAT(importer_->calls().stepList(), HasSubstr("ibv_reg_dmabuf_mr"));
	ASSERT_EQ(importer_->calls().fault("reg", 1, 1, -EIO, 0), 0);
	peerbuf_region region = {};
	ASSERT_EQ(importer_->reg(request(), &region), 0);
	importer_->dereg(region.token);
	EXPECT_EQ(importer_->reg(request(), &region), -EIO);
}

} // namespace
} // namespace peerbuf::test
