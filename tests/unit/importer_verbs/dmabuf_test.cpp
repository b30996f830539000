// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file dmabuf_test.cpp
 * Who is asked for a region of a dma-buf, in which order, and what is said when nobody makes one.
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
using ::testing::Not;

constexpr uint32_t rxe = 14;
constexpr uint32_t siw = 18;

class VerbsDmabuf : public ::testing::Test
{
protected:
	~VerbsDmabuf() override
	{
		importer_.reset();
		EXPECT_EQ(kernel_.breaches, 0u);
		EXPECT_EQ(kernel_.regions, 0u);
		EXPECT_EQ(kernel_.libraryRegions, 0u);
	}
	void open(const Params &params = {})
	{
		ASSERT_EQ(openImporter(host_, kernel_, params, &importer_), 0)
			<< host_.failure().message;
	}
	int reg(const DmabufRequest &r = DmabufRequest())
	{
		region_ = {};
		host_.forgetFailure();
		const int rc = importer_->reg(r.request, &region_);
		why_ = host_.failure().message;
		errc_ = host_.failure().errc;
		return rc;
	}
	void dereg() { importer_->dereg(region_.token); }
	peerbuf_importer_stats stats() const
	{
		peerbuf_importer_stats s = {};
		importer_->stats(&s);
		return s;
	}
	peerbuf_importer_offer offer()
	{
		peerbuf_importer_offer o = {};
		o.struct_size = sizeof(o);
		EXPECT_EQ(importer_->offer(&o), 0);
		return o;
	}

	FakeKernel kernel_;
	FakeHost host_;
	std::unique_ptr<verbs::Importer> importer_;
	peerbuf_region region_ = {};
	std::string why_;
	uint32_t errc_ = 0;
};

TEST_F(VerbsDmabuf, GivenALibraryWithoutTheCallThenTheKernelMakesTheRegionExactly)
{
	open();
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_EQ(kernel_.last.offset, 0x3100u) << "where the range starts in the dma-buf";
	EXPECT_EQ(kernel_.last.length, 0x2001u);
	EXPECT_EQ(kernel_.last.iova, 0x7f0000001100u);
	EXPECT_EQ(kernel_.last.fd, 7);
	EXPECT_EQ(kernel_.last.access,
		  static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
					IBV_ACCESS_REMOTE_WRITE));
	EXPECT_EQ(region_.rkey, region_.key64);
	EXPECT_EQ(region_.lkey + 1, region_.rkey);
	EXPECT_EQ(region_.remote_base, 0x7f0000001100u);
	const auto *mr = static_cast<const ibv_mr *>(region_.native);
	EXPECT_EQ(mr->rkey, region_.rkey);
	EXPECT_EQ(mr->pd, kernel_.pd());
	EXPECT_EQ(mr->length, 0x2001u);
	EXPECT_EQ(kernel_.regions, 1u);
	EXPECT_EQ(kernel_.libraryAsked, 0u) << "it could not pass the flow on";
	dereg();
	EXPECT_EQ(kernel_.regions, 0u);
}

TEST_F(VerbsDmabuf, GivenADriverThatDoesNotSayThenTheLibraryIsAskedFirst)
{
	kernel_.driver = siw;
	kernel_.libraryDmabuf = true;
	open();
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_EQ(kernel_.kernelAsked, 0u);
	EXPECT_EQ(kernel_.libraryRegions, 1u);
	EXPECT_EQ(region_.kernel_flow, 0u);
	dereg();
}

TEST_F(VerbsDmabuf, GivenANewerLibraryThenItsNewerCallAndTheOlderWhereThatLacksIt)
{
	kernel_.driver = siw;
	kernel_.libraryEx = true;
	kernel_.libraryDmabuf = true;
	open();
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_THAT(kernel_.calls, ElementsAre("ibv_reg_mr_ex"));
	dereg();
	kernel_.libraryDmabuf = false;
	kernel_.calls.clear();
	ASSERT_EQ(reg(), 0) << "the kernel does it: " << why_;
	EXPECT_THAT(kernel_.calls, ElementsAre("ibv_reg_mr_ex", "ibv_reg_dmabuf_mr"));
	EXPECT_EQ(kernel_.regions, 1u);
	dereg();
}

TEST_F(VerbsDmabuf, GivenDataDirectThenOnlyThatPathIsTaken)
{
	kernel_.driver = siw;
	kernel_.dataDirect = true;
	kernel_.libraryDmabuf = true;
	open({{"data_direct", "yes"}});
	EXPECT_EQ(offer().variants, PEERBUF_VARIANT_PCIE);
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_THAT(kernel_.calls, ElementsAre("mlx5dv_reg_dmabuf_mr"));
	dereg();
	kernel_.libraryDmabuf = false;
	EXPECT_EQ(reg(), -EOPNOTSUPP);
	EXPECT_THAT(why_, HasSubstr("no data-direct path"));
	EXPECT_EQ(kernel_.kernelAsked, 0u);
}

/* ---- the flow ------------------------------------------------------------------------------ */

TEST_F(VerbsDmabuf, GivenRxeThenTheFlowThatWasTakenIsRead)
{
	open();
	EXPECT_EQ(offer().asks_flow, 1u);
	EXPECT_EQ(offer().notified_by, 0u) << "no evidence before the driver has said so";
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_FALSE(kernel_.lastRevocable);
	EXPECT_EQ(region_.kernel_flow, PEERBUF_FLOW_MOVABLE);
	dereg();
	EXPECT_EQ(offer().notified_by, PEERBUF_NOTIFIED_BY_KERNEL);
	EXPECT_EQ(offer().invalidation,
		  PEERBUF_INVALIDATION_REVOCABLE | PEERBUF_INVALIDATION_REFAULT);

	DmabufRequest r;
	r.request.flow = PEERBUF_FLOW_REVOCABLE;
	ASSERT_EQ(reg(r), 0) << why_;
	EXPECT_TRUE(kernel_.lastRevocable);
	EXPECT_EQ(region_.kernel_flow, PEERBUF_FLOW_REVOCABLE);
	dereg();
}

TEST_F(VerbsDmabuf, GivenTheOptionThenThatFlowIsAskedForWhateverWasNegotiated)
{
	open({{"flow", "revocable"}});
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_TRUE(kernel_.lastRevocable);
	dereg();
	importer_.reset();
	open({{"flow", "movable"}});
	DmabufRequest r;
	r.request.flow = PEERBUF_FLOW_REVOCABLE;
	ASSERT_EQ(reg(r), 0) << why_;
	EXPECT_EQ(region_.kernel_flow, PEERBUF_FLOW_MOVABLE);
	dereg();
}

TEST_F(VerbsDmabuf, GivenADriverThatTookAnotherFlowThenNothingIsLeftAndBothAreNamed)
{
	kernel_.takes = 1;
	open();
	DmabufRequest r;
	r.request.flow = PEERBUF_FLOW_REVOCABLE;
	EXPECT_EQ(reg(r), -EPROTO);
	EXPECT_THAT(why_, AllOf(HasSubstr("asked for flow 2"), HasSubstr("took 1")));
	EXPECT_EQ(kernel_.regions, 0u);
	EXPECT_EQ(stats().keys_used, 0u);
}

TEST_F(VerbsDmabuf, GivenARxeWithoutTheAttributesThenItImportsAndDoesNotSay)
{
	kernel_.driverAttributes = false;
	open();
	ASSERT_EQ(reg(), 0) << why_;
	EXPECT_EQ(region_.kernel_flow, 0u);
	EXPECT_EQ(offer().notified_by, 0u);
	dereg();
	DmabufRequest r;
	r.request.flow = PEERBUF_FLOW_REVOCABLE;
	EXPECT_EQ(reg(r), -EOPNOTSUPP);
	EXPECT_EQ(errc_, PEERBUF_ERR_UNSUPPORTED_KERNEL);
	EXPECT_THAT(why_, HasSubstr("cannot be asked for Revocable"));
	ASSERT_EQ(reg(), 0) << "which was not held against it: " << why_;
	dereg();
}

TEST(VerbsOpen, GivenAFlowWhenTheDriverCannotBeAskedThenRefused)
{
	FakeKernel kernel;
	FakeHost host;
	std::unique_ptr<verbs::Importer> importer;
	kernel.driver = siw;
	EXPECT_EQ(openImporter(host, kernel, {{"flow", "revocable"}}, &importer), -EOPNOTSUPP);
	EXPECT_THAT(host.failure().message, AllOf(HasSubstr("fake0"), HasSubstr("siw")));
}

/* ---- refusals ------------------------------------------------------------------------------ */

TEST_F(VerbsDmabuf, GivenADriverThatLacksItThenThatIsSaidAndRemembered)
{
	for (const uint32_t driver : {rxe, siw}) {
		kernel_.driver = driver;
		kernel_.kernelDmabuf = false;
		open();
		EXPECT_EQ(reg(), -EOPNOTSUPP);
		EXPECT_EQ(errc_, PEERBUF_ERR_UNSUPPORTED_DRIVER);
		EXPECT_THAT(why_,
			    AllOf(HasSubstr("buffer 9"), HasSubstr("fake0"),
				  HasSubstr("dma-buf 7 of 'udmabuf'"), HasSubstr("offset 0x3100"),
				  HasSubstr("length 0x2001"), HasSubstr("does not import dma-bufs"),
				  HasSubstr("library says EOPNOTSUPP"),
				  HasSubstr("kernel itself (REG_DMABUF_MR) says EOPNOTSUPP")));
		EXPECT_THAT(offer().why, HasSubstr("no dma-bufs"));
		const size_t kernelAsked = kernel_.kernelAsked;
		const size_t libraryAsked = kernel_.libraryAsked;
		const std::string first = why_;
		EXPECT_EQ(reg(), -EOPNOTSUPP);
		EXPECT_EQ(why_, first);
		EXPECT_EQ(kernel_.kernelAsked, kernelAsked) << "nobody is asked again";
		EXPECT_EQ(kernel_.libraryAsked, libraryAsked);
		importer_.reset();
	}
}

TEST_F(VerbsDmabuf, GivenAKernelWithoutTheMethodThenAnotherClassThanADriverWithoutIt)
{
	kernel_.kernelMethod = false;
	open();
	EXPECT_EQ(reg(), -EPROTONOSUPPORT);
	EXPECT_EQ(errc_, PEERBUF_ERR_UNSUPPORTED_KERNEL);
	EXPECT_THAT(why_, HasSubstr("this kernel has no method for dma-bufs"));
}

TEST_F(VerbsDmabuf, GivenADmaBufThatIsRefusedThenThatIsToldApartAndNotRemembered)
{
	kernel_.refuseFd = -EOPNOTSUPP;
	open();
	EXPECT_EQ(reg(), -EOPNOTSUPP);
	EXPECT_THAT(why_, AllOf(HasSubstr("registers dma-bufs, but not this one"),
				HasSubstr("'udmabuf'")));
	kernel_.refuseFd = 0;
	ASSERT_EQ(reg(), 0) << why_;
	dereg();
}

TEST_F(VerbsDmabuf, GivenAKernelThatCannotBeAskedThenTheLibraryAloneDecides)
{
	kernel_.openError = -ENOTTY;
	open();
	EXPECT_EQ(reg(), -EOPNOTSUPP);
	EXPECT_THAT(why_, AllOf(HasSubstr("library says EOPNOTSUPP"),
				HasSubstr("cannot be asked past it: ENOTTY")));
	kernel_.libraryDmabuf = true;
	importer_.reset();
	open();
	ASSERT_EQ(reg(), 0) << why_;
	dereg();
}

TEST_F(VerbsDmabuf, GivenNoDmaBufThenTheDescriptorIsNamed)
{
	open();
	EXPECT_EQ(reg(DmabufRequest(1)), -EINVAL);
	EXPECT_EQ(errc_, PEERBUF_ERR_UNSUPPORTED_DRIVER) << "of the pair, not of the caller";
	EXPECT_THAT(why_, HasSubstr("descriptor 1 is no dma-buf of the kernel"));
	EXPECT_EQ(reg(DmabufRequest(99)), -EBADF);
}

TEST_F(VerbsDmabuf, GivenBadGeometryThenTheNumbersAreNamed)
{
	open();
	DmabufRequest low;
	low.request.iova += 8;
	EXPECT_EQ(reg(low), -EINVAL);
	EXPECT_EQ(errc_, PEERBUF_ERR_BAD_GEOMETRY);
	EXPECT_THAT(why_, AllOf(HasSubstr("0x7f0000001108"), HasSubstr("differ inside the page")));
	EXPECT_EQ(kernel_.kernelAsked, 0u);
	DmabufRequest beyond;
	beyond.exported.offset = (1 << 20) + 0x100;
	EXPECT_EQ(reg(beyond), -EINVAL);
	EXPECT_EQ(errc_, PEERBUF_ERR_BAD_GEOMETRY);
	EXPECT_THAT(why_, HasSubstr("0x100100"));
}

TEST_F(VerbsDmabuf, GivenAccessThatVerbsHasNotThenRefused)
{
	open();
	DmabufRequest r;
	r.request.access = PEERBUF_ACCESS_REMOTE_WRITE;
	EXPECT_EQ(reg(r), -EACCES);
	EXPECT_THAT(why_, HasSubstr("together with local write"));
	r.request.access = readWrite | 1u << 8;
	EXPECT_EQ(reg(r), -EACCES);
	EXPECT_THAT(why_, HasSubstr("0x100"));
	r.request.access =
		readWrite | PEERBUF_ACCESS_REMOTE_ATOMIC | PEERBUF_ACCESS_RELAXED_ORDERING;
	ASSERT_EQ(reg(r), 0) << why_;
	EXPECT_TRUE(kernel_.last.access & IBV_ACCESS_REMOTE_ATOMIC);
	EXPECT_TRUE(kernel_.last.access & IBV_ACCESS_RELAXED_ORDERING);
	dereg();
	EXPECT_FALSE(kernel_.last.access & IBV_ACCESS_ON_DEMAND);
}

/* ---- every call fails ---------------------------------------------------------------------- */

TEST_F(VerbsDmabuf, GivenAnErrnoOfTheIoctlThenItIsTheAnswerAndNothingIsLeft)
{
	open();
	for (const int err : {-ENOMEM, -EAGAIN, -ENOSPC, -EIO, -EFAULT, -EPERM, -ENODEV}) {
		ASSERT_EQ(importer_->calls().fault("ioctl", 0, 1, err, 0), 0);
		EXPECT_EQ(reg(), err);
		EXPECT_THAT(why_, AllOf(HasSubstr(strerrorname_np(-err)), HasSubstr("0x3100"),
					HasSubstr("fake0")));
		EXPECT_EQ(stats().keys_used, 0u);
		ASSERT_EQ(reg(), 0) << "not held against the pair: " << why_;
		dereg();
	}
}

TEST_F(VerbsDmabuf, GivenALibraryThatFailsThenTheKernelIsNotAskedToTryTheSame)
{
	kernel_.driver = siw;
	kernel_.libraryDmabuf = true;
	open();
	for (const char *step : {"ibv_reg_dmabuf_mr", "ibv_reg_mr_ex"}) {
		ASSERT_EQ(importer_->calls().fault(step, 0, 1, -ENOMEM, 0), 0);
		EXPECT_EQ(reg(), -ENOMEM) << step;
		EXPECT_THAT(why_, HasSubstr("library says ENOMEM"));
	}
	EXPECT_EQ(kernel_.kernelAsked, 0u);
}

TEST_F(VerbsDmabuf, GivenARegionThatWillNotEndThenItCountsAndIsTriedAgain)
{
	open();
	ASSERT_EQ(reg(), 0) << why_;
	kernel_.destroyError = -EBUSY;
	dereg();
	EXPECT_THAT(host_.log(PEERBUF_LOG_WARN),
		    ElementsAre(AllOf(HasSubstr("MR_DESTROY"), HasSubstr("EBUSY"))));
	EXPECT_EQ(stats().regions, 0u);
	EXPECT_EQ(stats().keys_used, 1u);
	EXPECT_EQ(offer().keys_left, 99u);
	kernel_.destroyError = 0;
	dereg(); // of nothing
	EXPECT_EQ(stats().keys_used, 0u);
	EXPECT_EQ(kernel_.regions, 0u);
}

TEST_F(VerbsDmabuf, GivenARegionOfTheLibraryThatWillNotEndThenTheSame)
{
	kernel_.driver = siw;
	kernel_.libraryDmabuf = true;
	open();
	ASSERT_EQ(reg(), 0) << why_;
	ASSERT_EQ(importer_->calls().fault("ibv_dereg_mr", 0, 1, -EBUSY, 0), 0);
	dereg();
	EXPECT_EQ(stats().keys_used, 1u);
	importer_.reset();
	EXPECT_EQ(kernel_.libraryRegions, 0u) << "the last try is at the close";
}

} // namespace
} // namespace peerbuf::test
