// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <csignal>

#include <gtest/gtest.h>

#include <peerbuf/exporter.h>
#include <peerbuf/peerbuf.h>

#include "tools/peerbuf/words.h"

namespace peerbuf::test
{
namespace
{

using namespace peerbuf::tools;

TEST(Words, GivenNumbersThenTheyHaveTheirNames)
{
	EXPECT_EQ(errnoWord(-EDQUOT), "EDQUOT");
	EXPECT_EQ(errnoWord(ENODEV), "ENODEV");
	EXPECT_EQ(errnoWord(-99999), "errno 99999");
	EXPECT_EQ(endingWords(3 << 8), "exited with 3");
	EXPECT_EQ(endingWords(SIGKILL), "was killed by signal 9 (SIGKILL)");
	EXPECT_EQ(placementWords(PEERBUF_PLACEMENT_DEVICE), "device");
	EXPECT_EQ(placementWords(3), "device+host");
	EXPECT_EQ(placementWords(8), "unknown(8)");
	EXPECT_EQ(joined(capabilityWords(PEERBUF_PLUGIN_EXPORTER,
					 PEERBUF_EXPORTER_CAP_PIN | PEERBUF_EXPORTER_CAP_FD)),
		  "pin, dma-buf");
	EXPECT_EQ(joined(capabilityWords(PEERBUF_PLUGIN_IMPORTER, 1u << 20)),
		  "unknown bits 1048576");
	EXPECT_EQ(joined({}), "none");
}

TEST(Words, GivenBytesThenTheyAreShownAndRead)
{
	EXPECT_EQ(bytesWords(0), "0 B");
	EXPECT_EQ(bytesWords(1023), "1023 B");
	EXPECT_EQ(bytesWords(1536), "1.5 KiB");
	EXPECT_EQ(bytesWords(256 << 20), "256 MiB");
	EXPECT_EQ(parseBytes("64M"), uint64_t{64} << 20);
	EXPECT_EQ(parseBytes("0x10K"), 16384u);
	EXPECT_EQ(parseBytes("18446744073709551615"), UINT64_MAX);
	for (const char *text :
	     {"", "M", "1Q", "1MB", "-1", "18446744073709551616", "16777216T", "1 M", "0x"})
		EXPECT_EQ(parseBytes(text), std::nullopt) << text;
	EXPECT_EQ(parseNumber("12"), 12u);
	EXPECT_EQ(parseNumber("12K"), std::nullopt);
}

TEST(Words, GivenHexadecimalThenOnlyWholeBytesWithinTheLimitAreTaken)
{
	const std::vector<uint8_t> bytes = {0, 127, 255};
	EXPECT_EQ(toHex(bytes), "007fff");
	EXPECT_EQ(fromHex("007fff", 3), bytes);
	EXPECT_EQ(fromHex("", 0), std::vector<uint8_t>());
	EXPECT_EQ(fromHex("007fff", 2), std::nullopt);
	EXPECT_EQ(fromHex("007ff", 3), std::nullopt);
	EXPECT_EQ(fromHex("0x", 3), std::nullopt);
	EXPECT_EQ(fromHex("g0", 3), std::nullopt);
}

} // namespace
} // namespace peerbuf::test
