// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/error.h"

#include <cerrno>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/base/result.h"

namespace peerbuf
{
namespace
{

// The classes that an errno alone has, as docs/errors.md lists them.
TEST(Error, GivenErrnoThenTheClassOfTheTableInTheDocs)
{
	const std::map<int, Errc> table = {
		{EINVAL, PEERBUF_ERR_INVALID_ARGUMENT},
		{ENOENT, PEERBUF_ERR_NOT_FOUND},
		{EPROTONOSUPPORT, PEERBUF_ERR_UNSUPPORTED_KERNEL},
		{ENOTTY, PEERBUF_ERR_UNSUPPORTED_KERNEL},
		{EOPNOTSUPP, PEERBUF_ERR_UNSUPPORTED_DRIVER},
		{ENOSYS, PEERBUF_ERR_UNSUPPORTED_DRIVER},
		{524, PEERBUF_ERR_KERNEL_INTERNAL},
		{EFAULT, PEERBUF_ERR_NOT_HOST_MEMORY},
		{ENOSPC, PEERBUF_ERR_DEVICE_RESOURCES},
		{EAGAIN, PEERBUF_ERR_DEVICE_RESOURCES},
		{EDQUOT, PEERBUF_ERR_QUOTA},
		{EMFILE, PEERBUF_ERR_FD_EXHAUSTED},
		{ENFILE, PEERBUF_ERR_FD_EXHAUSTED},
		{ESTALE, PEERBUF_ERR_STALE},
		{EACCES, PEERBUF_ERR_ACCESS},
		{EPERM, PEERBUF_ERR_ACCESS},
		{EBUSY, PEERBUF_ERR_BUSY},
		{ENOMEM, PEERBUF_ERR_NO_MEMORY},
		{ENODEV, PEERBUF_ERR_DEVICE_GONE},
		{ENXIO, PEERBUF_ERR_DEVICE_GONE},
		{EPROTO, PEERBUF_ERR_PROTOCOL},
		{ETIMEDOUT, PEERBUF_ERR_TIMEOUT},
		{EIO, PEERBUF_ERR_SYSTEM},
		{EPIPE, PEERBUF_ERR_SYSTEM},
	};
	for (const auto &[err, errc] : table)
		EXPECT_EQ(errc, errcFor(err)) << errnoText(err) << " is " << errcName(errcFor(err));
}

// RB-06: a bot once read 524 as 121, EREMOTEIO.
TEST(Error, GivenTheKernelsPrivate524ThenItIsCalledEnotsupp)
{
	EXPECT_EQ("ENOTSUPP (524)", errnoText(524));
	EXPECT_EQ("EREMOTEIO (121)", errnoText(121));
}

TEST(Error, GivenErrnoThenNameAndNumber)
{
	EXPECT_EQ("EDQUOT (122)", errnoText(EDQUOT));
	EXPECT_EQ("EOPNOTSUPP (95)", errnoText(EOPNOTSUPP));
	EXPECT_EQ("errno (9999)", errnoText(9999));
}

TEST(Error, GivenEveryClassThenANameOfItsOwn)
{
	std::set<std::string> names;
	for (uint32_t errc = PEERBUF_OK; errc <= PEERBUF_ERR_INTERNAL; errc++) {
		const std::string name = errcName(errc);
		EXPECT_EQ(std::string::npos, name.find("unknown")) << errc;
		EXPECT_TRUE(names.insert(name).second) << name << " names two classes";
	}
	EXPECT_EQ(32u, names.size());
	EXPECT_EQ(0u, std::string(errcName(PEERBUF_ERR_INTERNAL + 1)).find("unknown"));
}

TEST(Error, GivenFlowsThenTheSpellingOfTheGlossary)
{
	EXPECT_STREQ("none", flowName(PEERBUF_FLOW_NONE));
	EXPECT_STREQ("Movable", flowName(PEERBUF_FLOW_MOVABLE));
	EXPECT_STREQ("Revocable", flowName(PEERBUF_FLOW_REVOCABLE));
	EXPECT_STREQ("Pinned", flowName(PEERBUF_FLOW_PINNED));
	EXPECT_STREQ("Staged", flowName(PEERBUF_FLOW_STAGED));
	EXPECT_STREQ("Rekey", flowName(PEERBUF_FLOW_REKEY));
	EXPECT_EQ(0u, std::string(flowName(PEERBUF_FLOW_REKEY + 1)).find("unknown"));
	EXPECT_STREQ("negotiated", howKnownName(PEERBUF_KNOWN_NEGOTIATED));
	EXPECT_STREQ("observed", howKnownName(PEERBUF_KNOWN_OBSERVED));
	EXPECT_STREQ("possible", howKnownName(PEERBUF_KNOWN_POSSIBLE));
	EXPECT_EQ(0u, std::string(howKnownName(0)).find("unknown"));
}

TEST(Error, GivenBitsThenAllOfThemNamedAndUnknownOnesInHex)
{
	EXPECT_EQ("none", placementText(0));
	EXPECT_EQ("device", placementText(PEERBUF_PLACEMENT_DEVICE));
	EXPECT_EQ("device+host", placementText(PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST));
	EXPECT_EQ("pcie", variantText(PEERBUF_VARIANT_PCIE));
	EXPECT_EQ("segments+cpu+dma-buf",
		  handleText(PEERBUF_HANDLE_SEGMENTS | PEERBUF_HANDLE_CPU | PEERBUF_HANDLE_FD));
	EXPECT_EQ("remote-read+relaxed-ordering",
		  accessText(PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_RELAXED_ORDERING));
	EXPECT_EQ("host+0x40", placementText(PEERBUF_PLACEMENT_HOST | 0x40));
}

TEST(Error, GivenNumbersThenHexHasItsPrefix)
{
	EXPECT_EQ("0x0", hex(0));
	EXPECT_EQ("0xffffffffffffffff", hex(UINT64_MAX));
}

TEST(Result, GivenFailThenClassErrnoAndSentence)
{
	const Result<int> result = fail(PEERBUF_ERR_QUOTA, EDQUOT, "need ", 10, ", limit ", 3u);
	ASSERT_FALSE(result);
	EXPECT_EQ(PEERBUF_ERR_QUOTA, result.error().code);
	EXPECT_EQ(EDQUOT, result.error().sysErrno);
	EXPECT_EQ("need 10, limit 3", result.error().what);
	EXPECT_TRUE(result.error().refusals.empty());
}

TEST(Result, GivenTextLongerThanTheFieldThenCutTerminatedAndNothingBehindIt)
{
	struct {
		char field[8];
		char guard = 'g';
	} s;
	copyText(s.field, "1234567890");
	EXPECT_STREQ("1234567", s.field);
	copyText(s.field, "ab");
	EXPECT_STREQ("ab", s.field);
	EXPECT_EQ('\0', s.field[7]); // no rest of the text before it
	copyText(s.field, "");
	EXPECT_STREQ("", s.field);
	EXPECT_EQ('g', s.guard);
}

} // namespace
} // namespace peerbuf
