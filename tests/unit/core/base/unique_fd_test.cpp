// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/unique_fd.h"

#include <cerrno>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace peerbuf
{
namespace
{

std::vector<int> closed;

/** Records what is closed instead of closing it, so that made-up numbers can be used. */
class UniqueFdTest : public testing::Test
{
protected:
	void SetUp() override
	{
		closed.clear();
		sys().close = [](int fd) {
			closed.push_back(fd);
			errno = EIO; // a failing close must not disturb the error being reported
			return -1;
		};
	}
	void TearDown() override { sys() = realSys(); }
};

static_assert(!std::is_copy_constructible_v<UniqueFd>);
static_assert(!std::is_convertible_v<int, UniqueFd> && !std::is_convertible_v<UniqueFd, int>);
static_assert(!std::is_convertible_v<int, BorrowedFd> && !std::is_convertible_v<BorrowedFd, int>);
static_assert(std::is_nothrow_move_constructible_v<UniqueFd>);

TEST_F(UniqueFdTest, GivenScopeEndsThenClosedOnce)
{
	{
		const UniqueFd fd(100);
		EXPECT_FALSE(fd.none());
		EXPECT_EQ(100, fd.borrow().get());
	}
	EXPECT_EQ(std::vector<int>{100}, closed);
}

TEST_F(UniqueFdTest, GivenNoneThenNothingClosed)
{
	{
		UniqueFd fd;
		EXPECT_TRUE(fd.none());
		EXPECT_TRUE(fd.borrow().none());
		fd.reset();
		const UniqueFd bad(-1);
		EXPECT_TRUE(bad.none());
	}
	EXPECT_TRUE(closed.empty());
}

TEST_F(UniqueFdTest, GivenZeroThenItIsAValidDescriptor)
{
	{
		const UniqueFd fd(0);
		EXPECT_FALSE(fd.none());
		EXPECT_FALSE(fd.borrow().none());
	}
	EXPECT_EQ(std::vector<int>{0}, closed);
}

TEST_F(UniqueFdTest, GivenMoveThenTheNewOwnerCloses)
{
	UniqueFd from(100);
	{
		const UniqueFd to(std::move(from));
		EXPECT_TRUE(from.none()); // NOLINT(bugprone-use-after-move): it is what is tested
		EXPECT_EQ(100, to.borrow().get());
		EXPECT_TRUE(closed.empty());
	}
	from.reset();
	EXPECT_EQ(std::vector<int>{100}, closed);
}

TEST_F(UniqueFdTest, GivenMoveAssignmentThenTheOldDescriptorIsClosedFirst)
{
	{
		UniqueFd fd(100);
		fd = UniqueFd(101);
		EXPECT_EQ(std::vector<int>{100}, closed);
		EXPECT_EQ(101, fd.borrow().get());
	}
	EXPECT_EQ((std::vector<int>{100, 101}), closed);
}

TEST_F(UniqueFdTest, GivenSelfMoveThenItKeepsItsDescriptor)
{
	UniqueFd fd(100);
	UniqueFd &same = fd;
	fd = std::move(same);
	EXPECT_EQ(100, fd.borrow().get()); // NOLINT(bugprone-use-after-move): it is what is tested
	EXPECT_TRUE(closed.empty());
}

TEST_F(UniqueFdTest, GivenResetTwiceThenClosedOnce)
{
	UniqueFd fd(100);
	fd.reset();
	EXPECT_TRUE(fd.none());
	fd.reset();
	EXPECT_EQ(std::vector<int>{100}, closed);
}

TEST_F(UniqueFdTest, GivenCloseFailsThenErrnoOfTheCallerIsKept)
{
	UniqueFd fd(100);
	errno = EDQUOT;
	fd.reset();
	EXPECT_EQ(EDQUOT, errno);
}

TEST_F(UniqueFdTest, GivenBorrowThenNothingIsClosed)
{
	UniqueFd fd(100);
	{
		const BorrowedFd borrowed = fd.borrow();
		EXPECT_EQ(100, borrowed.get());
	}
	EXPECT_TRUE(closed.empty());
}

TEST(Sys, GivenTheRealTableThenDescriptorsAreCloseOnExecFromBirth)
{
	for (int (*make)() : {realSys().eventFd, realSys().epollCreate}) {
		const UniqueFd fd(make());
		ASSERT_FALSE(fd.none());
		EXPECT_EQ(1, realSys().fcntlGetFd(fd.borrow().get()) & 1); // FD_CLOEXEC
	}
}

TEST(Sys, GivenAReplacedMemberThenRealSysBringsItBack)
{
	sys().nowNs = [] { return uint64_t{42}; };
	EXPECT_EQ(42u, sys().nowNs());
	sys() = realSys();
	const uint64_t first = sys().nowNs();
	EXPECT_GT(first, 42u);
	EXPECT_GE(sys().nowNs(), first);
}

} // namespace
} // namespace peerbuf
