// SPDX-License-Identifier: BSD-3-Clause
// Precompiled for tests: half the time that a test file took was reading these. A file includes all
// it uses regardless, as a build without precompiled headers (-Db_pch=false) shows.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
