// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_SUPPORT_ERRORS_H
#define PEERBUF_TESTS_SUPPORT_ERRORS_H

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <peerbuf/peerbuf.h>

namespace peerbuf::test
{

/** "-EDQUOT (-122)". */
std::string errnoName(int rc);

/** A copy of peerbuf_last_error, taken before another call overwrites it. */
struct LastError {
	uint32_t errc = PEERBUF_OK;
	int err = 0;
	std::string what;
	std::vector<peerbuf_refusal> refusals;

	static LastError take();
	/** Everything on one line, refusals included. */
	std::string text() const;
};

/** True for 0 and above; else says what peerbuf_last_error says. */
testing::AssertionResult succeeded(const char *expression, int rc);

/** That @p rc is @p err, the last error agrees, has the class @p errc and explains itself. */
testing::AssertionResult failedWith(const char *rc_expression, const char *err_expression,
				    const char *errc_expression, int rc, int err, uint32_t errc);

/** That @p text has the number, decimal, hexadecimal or as a whole count of KiB, MiB, GiB. */
testing::AssertionResult mentions(const std::string &text, uint64_t number);

} // namespace peerbuf::test

#define EXPECT_PB_OK(call) EXPECT_TRUE(::peerbuf::test::succeeded(#call, (call)))
#define ASSERT_PB_OK(call) ASSERT_TRUE(::peerbuf::test::succeeded(#call, (call)))
/* err is the negative errno, errc the class that peerbuf_last_error must give */
#define EXPECT_PB_ERROR(call, err, errc)                                                           \
	EXPECT_PRED_FORMAT3(::peerbuf::test::failedWith, call, err, errc)
#define ASSERT_PB_ERROR(call, err, errc)                                                           \
	ASSERT_PRED_FORMAT3(::peerbuf::test::failedWith, call, err, errc)

#endif
