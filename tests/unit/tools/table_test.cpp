// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include "tools/peerbuf/table.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::test
{
namespace
{

using namespace peerbuf::tools;

TEST(Table, GivenCellsOfSeveralLinesThenColumnsStandBelowEachOther)
{
	Table table({"a\\b", "one\nmore", "two"});
	table.add({"first", "x", "y"});
	table.add({"second", "xxxxxx", "z"});
	EXPECT_EQ(table.text(80), "a\\b     one     two\n"
				  "        more\n"
				  "-------------------\n"
				  "first   x       y\n"
				  "second  xxxxxx  z\n");
}

TEST(Table, GivenTooLittleRoomThenTheRestFollowsBelowWithTheFirstColumnAgain)
{
	Table table({"", "one", "two"});
	table.add({"row", "1", "2"});
	EXPECT_EQ(table.text(9), "     one\n--------\nrow  1\n\n     two\n--------\nrow  2\n");
}

TEST(Wrapped, GivenALongTextThenItIsBrokenAtSpacesAndIndented)
{
	EXPECT_EQ(wrapped("aaa bbb ccc", 7, 2), "aaa bbb\n  ccc");
	EXPECT_EQ(wrapped("aaaaaaaaaa b", 4, 1), "aaaaaaaaaa\n b");
	EXPECT_EQ(wrapped("", 4, 1), "");
}

} // namespace
} // namespace peerbuf::test
