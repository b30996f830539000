// SPDX-License-Identifier: BSD-3-Clause
// Unwind_: whichever step fails, everything before it is undone, once.
#include <cerrno>
#include <functional>

#include "pair_test.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;

class Unwind_ : public PairTest
{
protected:
	using Fault = std::function<int(const char *step, uint32_t skip, uint32_t count, int err)>;

	Fault exporterFault()
	{
		return [this](const char *step, uint32_t skip, uint32_t count, int err) {
			return exporter().ops->fault(exporter().device, step, skip, count, err, 0);
		};
	}
	Fault importerFault()
	{
		return [this](const char *step, uint32_t skip, uint32_t count, int err) {
			return importer().ops->fault(importer().device, step, skip, count, err, 0);
		};
	}

	/* more calls of one step than any registration makes */
	static constexpr uint32_t too_many = 64;

	/**
	 * Make the n'th call of @p step fail, for n from 0 until none is left to fail.
	 * @return how many there were; 0 also where the plugin has no such step.
	 */
	uint32_t sweep(const Fault &fault, const char *step, int err,
		       const std::vector<peerbuf_importer_t> &importers, const Buffer &buffer)
	{
		SCOPED_TRACE(std::string("step ") + step);
		for (uint32_t n = 0; n < too_many; n++) {
			const int known = fault(step, n, 1, err);
			if (known == -ENOENT)
				return 0;
			EXPECT_EQ(0, known);
			const test::ProcessState before = test::ProcessState::now();
			peerbuf_reg_t reg = 0;
			const int rc = world().registerRange(buffer, 0x2010, 0x4000, importers,
							     usual_access, nullptr, &reg);
			EXPECT_EQ(0, fault(step, 0, 0, 0));
			if (rc == 0) {
				EXPECT_PB_OK(world().deregister(reg));
				EXPECT_TRUE(world().nothingHeld());
				return n;
			}
			SCOPED_TRACE("call " + std::to_string(n));
			const LastError error = LastError::take();
			EXPECT_EQ(test::errnoName(err), test::errnoName(rc)) << error.text();
			EXPECT_EQ(rc, error.err);
			EXPECT_NE(PEERBUF_OK, error.errc) << error.text();
			EXPECT_FALSE(error.what.empty());
			EXPECT_EQ(0u, reg);
			EXPECT_TRUE(world().nothingHeld());
			EXPECT_TRUE(test::nothingLeaked(before));
		}
		ADD_FAILURE() << "still failing after " << too_many << " calls";
		return too_many;
	}

	/** By which kind of handle a registration is made. */
	uint32_t handedOver(const std::vector<peerbuf_importer_t> &importers, const Buffer &buffer)
	{
		peerbuf_reg_t reg = 0;
		const int rc = world().registerRange(buffer, 0, 0x4000, importers, usual_access,
						     nullptr, &reg);
		EXPECT_TRUE(test::succeeded("peerbuf_register", rc));
		if (rc < 0)
			return 0;
		const uint32_t kind = world().region(reg).handle_kind;
		EXPECT_PB_OK(world().deregister(reg));
		return kind;
	}

	void sweepAll(const std::vector<peerbuf_importer_t> &importers)
	{
		const Buffer buffer = filledBuffer();
		const bool byFd = handedOver(importers, buffer) == PEERBUF_HANDLE_FD;
		const bool both = HAS_OP(exporter().ops, fault) && HAS_OP(importer().ops, fault);
		if (HAS_OP(exporter().ops, fault)) {
			for (const char *step : {"offer", "get"})
				sweep(exporterFault(), step, -ENOMEM, importers, buffer);
			// one dma-buf for all, however many importers there are
			EXPECT_EQ(byFd ? 1u : 0u,
				  sweep(exporterFault(), "export_fd", -ENOMEM, importers, buffer));
			// and those that are sure to be used: the sweep must have found them
			EXPECT_EQ(importers.size(),
				  sweep(exporterFault(), "attach", -ENOMEM, importers, buffer));
			EXPECT_EQ(verdict().charged_pin ? importers.size() : 0u,
				  sweep(exporterFault(), "pin", -ENOMEM, importers, buffer));
			const uint32_t maps =
				sweep(exporterFault(), "map", -ENOMEM, importers, buffer);
			if (byFd) { // the kernel maps
				EXPECT_EQ(0u, maps);
			} else if (verdict().flow != PEERBUF_FLOW_MOVABLE) {
				EXPECT_LE(1u, maps);
			}
		}
		if (HAS_OP(importer().ops, fault)) {
			sweep(importerFault(), "offer", -ENOMEM, importers, buffer);
			EXPECT_LE(1u, sweep(importerFault(), "reg", -ENOMEM, importers, buffer));
		}
		// after all that it works as ever
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(world().registerRange(buffer, 0, 0x4000, importers, usual_access,
						   nullptr, &reg));
		NEEDS(both, "one side of " + GetParam().label() + " has no fault operation");
	}
};

TEST_P(Unwind_, GivenOneImporterWhenAnyStepFailsThenNothingIsLeft)
{
	NEEDS(HAS_OP(exporter().ops, fault) || HAS_OP(importer().ops, fault),
	      "neither side has a fault operation");
	sweepAll({importer().id});
}

TEST_P(Unwind_, GivenTwoImportersWhenAnyStepFailsThenNothingIsLeftOfEither)
{
	NEEDS(HAS_OP(exporter().ops, fault) || HAS_OP(importer().ops, fault),
	      "neither side has a fault operation");
	const Importer *second = world().addImporter(GetParam().importer);
	ASSERT_NE(nullptr, second);
	sweepAll({importer().id, second->id});
}

TEST_P(Unwind_, GivenAnAllocationThatFailsThenNothingIsLeft)
{
	NEEDS_EXPORTER_OP(fault);
	NEEDS_EXPORTER_OP(stats);
	NEEDS(exporterFault()("alloc", 0, 1, -ENOMEM) == 0, "no step 'alloc'");
	peerbuf_buffer_t id = 0;
	EXPECT_EQ(-ENOMEM, peerbuf_alloc(world().ctx(), exporter().id, 0x10000, &id));
	EXPECT_EQ(0u, id);
	EXPECT_EQ(0u, exporter().stats().buffers);
	EXPECT_EQ(0u, exporter().stats().memory_used);
	EXPECT_NE(0u, world().alloc(exporter(), 0x10000).id);
}

TEST_P(Unwind_, GivenOneUnsupportedAnswerThenOnlyThatIsRememberedAndOnlyForThePair)
{
	NEEDS_IMPORTER_OP(fault);
	const Buffer buffer = filledBuffer();
	// an error that says nothing of the pair is not held against it
	ASSERT_EQ(0, importerFault()("reg", 0, 1, -EIO));
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EIO, registerRange(buffer, 0, 0x4000, &reg));
	EXPECT_EQ(0, importerFault()("reg", 0, 0, 0));
	ASSERT_PB_OK(registerRange(buffer, 0, 0x4000, &reg));
	EXPECT_EQ(verdict().flow, world().regInfo(reg).flow);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Unwind_);
INSTANTIATE_TEST_SUITE_P(Pairs, Unwind_, testing::ValuesIn(workingPairs()), pairName);

} // namespace

} // namespace peerbuf::contract
