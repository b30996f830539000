// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_LEAK_CHECK_H
#define PEERBUF_TESTS_SUPPORT_LEAK_CHECK_H

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <peerbuf/peerbuf.h>

namespace peerbuf::test
{

/** What a process has open; fd number → what it is, thread ids, child processes. */
struct ProcessState {
	std::map<int, std::string> fds;
	std::set<int> threads;
	std::set<int> children;

	static ProcessState now();
};

/** Nothing more than @p before had: descriptors, threads, children. Names what is left over. */
testing::AssertionResult nothingLeaked(const ProcessState &before);

/** All columns of the ledger, over all tenants and devices, are exactly zero. */
testing::AssertionResult ledgerIsZero(peerbuf_context *ctx);

/** Bytes used in one column by all tenants on all devices. */
uint64_t ledgerUsed(peerbuf_context *ctx, peerbuf_ledger_column column);

/** Takes the state when made and compares when gone; a leak is a failure of the running test. */
class LeakCheck
{
public:
	LeakCheck() : before_(ProcessState::now()) {}
	~LeakCheck() { EXPECT_TRUE(nothingLeaked(before_)); }
	LeakCheck(const LeakCheck &) = delete;
	LeakCheck &operator=(const LeakCheck &) = delete;

private:
	ProcessState before_;
};

/** Lowers a resource limit of this process and puts it back. */
class LowFdLimit
{
public:
	/** Leave room for @p spare descriptors above those that are open. */
	explicit LowFdLimit(unsigned spare);
	~LowFdLimit();
	LowFdLimit(const LowFdLimit &) = delete;
	LowFdLimit &operator=(const LowFdLimit &) = delete;

private:
	unsigned long soft_ = 0;
};

} // namespace peerbuf::test

#endif
