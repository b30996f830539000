// SPDX-License-Identifier: BSD-3-Clause
// As test_pch.h, for tests that read JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
