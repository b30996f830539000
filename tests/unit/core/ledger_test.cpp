// SPDX-License-Identifier: BSD-3-Clause
#include "core/ledger.h"

#include <cerrno>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "offers.h"

namespace peerbuf
{
namespace
{

using test::has;

const Ledger::Account TRAIN = {"train", "hbm0"};
const Ledger::Account SERVE = {"serve", "hbm0"};
const Ledger::Account OTHER_DEVICE = {"train", "hbm1"};

class LedgerTest : public testing::Test
{
protected:
	/** Every test gives back what it took. */
	void TearDown() override
	{
		for (const auto column :
		     {PEERBUF_LEDGER_PINS, PEERBUF_LEDGER_WINDOW, PEERBUF_LEDGER_HOST}) {
			const Ledger::Usage all = ledger_.usage("", "", column);
			EXPECT_EQ(0u, all.used);
			EXPECT_EQ(0u, all.holders);
			EXPECT_EQ("", all.holdersText);
		}
	}

	uint64_t used(const Ledger::Account &a, peerbuf_ledger_column c = PEERBUF_LEDGER_PINS)
	{
		return ledger_.usage(a.tenant, a.device, c).used;
	}

	Ledger ledger_;
};

Charge taken(Result<Charge> charge)
{
	EXPECT_TRUE(charge) << charge.error().what;
	return charge ? std::move(*charge) : Charge();
}

void expectQuota(const Result<Charge> &charge, const std::vector<std::string> &facts)
{
	ASSERT_FALSE(charge);
	EXPECT_EQ(PEERBUF_ERR_QUOTA, charge.error().code);
	EXPECT_EQ(EDQUOT, charge.error().sysErrno);
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(charge.error().what, fact))
			<< "'" << fact << "' is not in: " << charge.error().what;
}

/* ---- pins and host memory ---------------------------------------------------------------- */

TEST_F(LedgerTest, GivenChargeThenUsedUntilItGoes)
{
	{
		const Charge charge =
			taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 1", true));
		EXPECT_EQ(4096u, charge.bytes());
		EXPECT_EQ(4096u, used(TRAIN));
		EXPECT_EQ(0u, used(SERVE));
		EXPECT_EQ(0u, used(OTHER_DEVICE));
		EXPECT_EQ(0u, used(TRAIN, PEERBUF_LEDGER_HOST)) << "columns are separate";
	}
	EXPECT_EQ(0u, used(TRAIN));
}

TEST_F(LedgerTest, GivenReleaseTwiceThenGivenBackOnce)
{
	const Charge stays = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 1", true));
	Charge goes = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 2", true));
	goes.release();
	goes.release();
	EXPECT_EQ(0u, goes.bytes());
	EXPECT_EQ(4096u, used(TRAIN));
}

TEST_F(LedgerTest, GivenMoveThenOneOwnerAndTheOverwrittenChargeIsGivenBack)
{
	Charge a = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 1000, "reg 1", true));
	Charge b = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 2000, "reg 2", true));
	b = std::move(a);
	EXPECT_EQ(1000u, used(TRAIN));
	EXPECT_EQ(1000u, b.bytes());
	EXPECT_EQ(0u, a.bytes()); // NOLINT(bugprone-use-after-move): it is what is tested
	Charge &same = b;
	b = std::move(same);
	EXPECT_EQ(1000u, used(TRAIN));
	const Charge c(std::move(b));
	EXPECT_EQ(1000u, c.bytes());
}

TEST_F(LedgerTest, GivenNothingToChargeThenNoHolder)
{
	const Charge charge = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 0, "reg 1", true));
	EXPECT_EQ(0u, charge.bytes());
	EXPECT_EQ(0u, ledger_.usage("train", "hbm0", PEERBUF_LEDGER_PINS).holders);
}

TEST_F(LedgerTest, GivenNoLimitThenUnlimited)
{
	EXPECT_EQ(PEERBUF_UNLIMITED, ledger_.usage("train", "hbm0", PEERBUF_LEDGER_PINS).limit);
	const Charge huge =
		taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, uint64_t{1} << 60, "reg 1", true));
}

TEST_F(LedgerTest, GivenLimitThenTheLastByteFitsAndOneMoreDoesNot)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_PINS, 8192);
	const Charge first =
		taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 1 of buffer 7", true));
	expectQuota(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4097, "reg 2", true),
		    {"'train'", "hbm0", "need 4097", "used 4096", "limit 8192",
		     "reg 1 of buffer 7 (4096)"});
	EXPECT_EQ(4096u, used(TRAIN)) << "a refused charge leaves nothing";
	const Charge second =
		taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 2", true));
	EXPECT_EQ(8192u, used(TRAIN));
}

TEST_F(LedgerTest, GivenLimitThenOthersAreNotTouchedByIt)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_PINS, 0);
	expectQuota(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 1, "reg 1", true), {"nobody"});
	const Charge a = taken(ledger_.charge(SERVE, PEERBUF_LEDGER_PINS, 1, "reg 1", true));
	const Charge b = taken(ledger_.charge(OTHER_DEVICE, PEERBUF_LEDGER_PINS, 1, "reg 1", true));
	const Charge c = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_HOST, 1, "reg 1", true));
}

TEST_F(LedgerTest, GivenDefaultLimitThenForAllTenantsUntilTheyHaveTheirOwn)
{
	ledger_.setDefaultLimit("hbm0", PEERBUF_LEDGER_PINS, 100);
	EXPECT_EQ(100u, ledger_.usage("train", "hbm0", PEERBUF_LEDGER_PINS).limit);
	expectQuota(ledger_.charge(SERVE, PEERBUF_LEDGER_PINS, 101, "reg 1", true),
		    {"'serve'", "limit 100"});
	ledger_.setLimit(SERVE, PEERBUF_LEDGER_PINS, PEERBUF_UNLIMITED);
	const Charge charge = taken(ledger_.charge(SERVE, PEERBUF_LEDGER_PINS, 101, "reg 1", true));
	EXPECT_EQ(PEERBUF_UNLIMITED, ledger_.usage("train", "hbm1", PEERBUF_LEDGER_PINS).limit);
}

TEST_F(LedgerTest, GivenLimitLoweredBelowUseThenWhatIsChargedStaysAndNothingIsAdded)
{
	const Charge held = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 1", true));
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_PINS, 1000);
	EXPECT_EQ(4096u, used(TRAIN));
	expectQuota(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 1, "reg 2", true),
		    {"used 4096", "limit 1000"});
}

TEST_F(LedgerTest, GivenNotLimitedThenCountedAllTheSame)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_PINS, 10);
	const Charge charge =
		taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 4096, "reg 1", false));
	EXPECT_EQ(4096u, used(TRAIN));
}

TEST_F(LedgerTest, GivenUseOfAllThenSummedWithoutALimit)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_PINS, 5000);
	const Charge a = taken(ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, 1000, "reg 1", true));
	const Charge b = taken(ledger_.charge(SERVE, PEERBUF_LEDGER_PINS, 200, "reg 2", true));
	const Charge c =
		taken(ledger_.charge(OTHER_DEVICE, PEERBUF_LEDGER_PINS, 30, "reg 3", true));
	EXPECT_EQ(1230u, ledger_.usage("", "", PEERBUF_LEDGER_PINS).used);
	EXPECT_EQ(1030u, ledger_.usage("train", "", PEERBUF_LEDGER_PINS).used);
	EXPECT_EQ(1200u, ledger_.usage("", "hbm0", PEERBUF_LEDGER_PINS).used);
	EXPECT_EQ(3u, ledger_.usage("", "", PEERBUF_LEDGER_PINS).holders);
	EXPECT_EQ(2u, ledger_.usage("", "hbm0", PEERBUF_LEDGER_PINS).holders);
	EXPECT_EQ(PEERBUF_UNLIMITED, ledger_.usage("train", "", PEERBUF_LEDGER_PINS).limit);
	EXPECT_EQ(5000u, ledger_.usage("train", "hbm0", PEERBUF_LEDGER_PINS).limit);
}

TEST_F(LedgerTest, GivenManyHoldersThenTheLargestAreNamedAndTheRestCounted)
{
	std::vector<Charge> charges;
	for (const uint64_t bytes : {10u, 50u, 30u, 20u, 40u})
		charges.push_back(taken(
			ledger_.charge(TRAIN, PEERBUF_LEDGER_PINS, bytes, text("r", bytes), true)));
	EXPECT_EQ("r50 (50), r40 (40), r30 (30) and 2 more",
		  ledger_.usage("train", "hbm0", PEERBUF_LEDGER_PINS).holdersText);
}

/* ---- window ------------------------------------------------------------------------------- */

TEST_F(LedgerTest, GivenTheSameRangeTwiceThenInTheWindowOnceAndTheFirstPays)
{
	const Charge first = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x8000}, "reg 1"));
	EXPECT_EQ(0u, ledger_.windowNeed("hbm0", 7, {0, 0x8000}));
	const Charge second = taken(ledger_.chargeWindow(SERVE, 7, {0, 0x8000}, "reg 2"));
	EXPECT_EQ(0x8000u, first.bytes());
	EXPECT_EQ(0u, second.bytes());
	EXPECT_EQ(0x8000u, used(TRAIN, PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(0u, used(SERVE, PEERBUF_LEDGER_WINDOW));
}

TEST_F(LedgerTest, GivenThePayerGoesThenTheNextPays)
{
	Charge first = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x8000}, "reg 1"));
	Charge second = taken(ledger_.chargeWindow(SERVE, 7, {0, 0x8000}, "reg 2"));
	first.release();
	EXPECT_EQ(0u, used(TRAIN, PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(0x8000u, used(SERVE, PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(0x8000u, second.bytes());
	second.release();
	EXPECT_EQ(0x8000u, ledger_.windowNeed("hbm0", 7, {0, 0x8000}));
}

TEST_F(LedgerTest, GivenAFreeRiderGoesThenThePayerStillPays)
{
	const Charge first = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x8000}, "reg 1"));
	Charge second = taken(ledger_.chargeWindow(SERVE, 7, {0, 0x8000}, "reg 2"));
	second.release();
	EXPECT_EQ(0x8000u, first.bytes());
	EXPECT_EQ(0u, ledger_.windowNeed("hbm0", 7, {0, 0x8000}));
}

TEST_F(LedgerTest, GivenPartialOverlapThenOnlyTheFreshBytes)
{
	Charge first = taken(ledger_.chargeWindow(TRAIN, 7, {0x1000, 0x2000}, "reg 1"));
	EXPECT_EQ(0x2000u, ledger_.windowNeed("hbm0", 7, {0, 0x4000}));
	Charge second = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x4000}, "reg 2"));
	EXPECT_EQ(0x2000u, second.bytes());
	EXPECT_EQ(0x4000u, used(TRAIN, PEERBUF_LEDGER_WINDOW));
	first.release(); // the middle passes to the second
	EXPECT_EQ(0x4000u, second.bytes());
	EXPECT_EQ(0x4000u, used(TRAIN, PEERBUF_LEDGER_WINDOW));
}

TEST_F(LedgerTest, GivenOtherAllocationsOrDevicesThenTheirOwnBytes)
{
	const Charge a = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x1000}, "reg 1"));
	EXPECT_EQ(0x1000u, ledger_.windowNeed("hbm0", 8, {0, 0x1000}));
	EXPECT_EQ(0x1000u, ledger_.windowNeed("hbm1", 7, {0, 0x1000}));
	const Charge b = taken(ledger_.chargeWindow(TRAIN, 8, {0, 0x1000}, "reg 2"));
	const Charge c = taken(ledger_.chargeWindow(OTHER_DEVICE, 7, {0, 0x1000}, "reg 3"));
	EXPECT_EQ(0x3000u, ledger_.usage("", "", PEERBUF_LEDGER_WINDOW).used);
}

TEST_F(LedgerTest, GivenWindowLimitThenRefusedWithNumbersAndHoldersAndNothingLeft)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_WINDOW, 0x3000);
	const Charge first = taken(ledger_.chargeWindow(TRAIN, 7, {0, 0x2000}, "reg 1"));
	expectQuota(ledger_.chargeWindow(TRAIN, 7, {0x1000, 0x3000}, "reg 2"),
		    {"'train'", "hbm0", "need 8192", "used 8192", "limit 12288", "reg 1 (8192)"});
	EXPECT_EQ(0x2000u, used(TRAIN, PEERBUF_LEDGER_WINDOW));
	EXPECT_EQ(0x2000u, ledger_.windowNeed("hbm0", 7, {0x1000, 0x3000}));
	// fresh bytes alone count
	const Charge second = taken(ledger_.chargeWindow(TRAIN, 7, {0x1000, 0x2000}, "reg 3"));
	EXPECT_EQ(0x1000u, second.bytes());
}

TEST_F(LedgerTest, GivenWindowLimitForTheFirstChargeOfAnAllocationThenNothingLeft)
{
	ledger_.setLimit(TRAIN, PEERBUF_LEDGER_WINDOW, 0);
	expectQuota(ledger_.chargeWindow(TRAIN, 9, {0, 1}, "reg 1"), {"need 1"});
	EXPECT_EQ(1u, ledger_.windowNeed("hbm0", 9, {0, 1}));
}

/** Against a count of users for every page: the bytes in the window are the pages with a user. */
TEST_F(LedgerTest, GivenManyRandomWindowChargesThenTheSumIsWhatIsInTheWindow)
{
	constexpr uint64_t PAGES = 32;
	constexpr uint64_t PAGE = 4096;
	std::mt19937_64 random(11);
	std::vector<unsigned> users(PAGES);
	struct Held {
		Charge charge;
		uint64_t first;
		uint64_t count;
	};
	std::vector<Held> held;
	for (int step = 0; step < 5000; step++) {
		if (held.size() < 12 && (random() & 1)) {
			const uint64_t first = random() % PAGES;
			const uint64_t count = 1 + random() % (PAGES - first);
			uint64_t fresh = 0;
			for (uint64_t n = first; n < first + count; n++)
				fresh += users[n]++ ? 0 : PAGE;
			const Range range{first * PAGE, count * PAGE};
			ASSERT_EQ(fresh, ledger_.windowNeed("hbm0", 7, range)) << "step " << step;
			held.push_back({taken(ledger_.chargeWindow(random() & 1 ? TRAIN : SERVE, 7,
								   range, "reg")),
					first, count});
			ASSERT_EQ(fresh, held.back().charge.bytes()) << "step " << step;
		} else if (!held.empty()) {
			const size_t victim = random() % held.size();
			std::swap(held[victim], held.back());
			for (uint64_t n = 0; n < held.back().count; n++)
				users[held.back().first + n]--;
			held.pop_back();
		}
		uint64_t inWindow = 0;
		for (const unsigned n : users)
			inWindow += n ? PAGE : 0;
		uint64_t paid = 0;
		for (const Held &h : held)
			paid += h.charge.bytes();
		ASSERT_EQ(inWindow, ledger_.usage("", "", PEERBUF_LEDGER_WINDOW).used)
			<< "step " << step;
		ASSERT_EQ(inWindow, paid) << "step " << step;
	}
}

} // namespace
} // namespace peerbuf
