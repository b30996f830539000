// SPDX-License-Identifier: BSD-3-Clause
// Precompiled for the command: reading it took most of the time that a file took.
#include <nlohmann/json.hpp>
