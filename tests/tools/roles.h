// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TESTS_TOOLS_ROLES_H
#define PEERBUF_TESTS_TOOLS_ROLES_H

namespace peerbuf::test
{

/** In the environment: what this program does when the demo starts it in a role. */
inline constexpr const char *roleVariable = "PEERBUF_TEST_ROLE";

/**
 * Started by the code under test, this program plays a process that behaves badly.
 * @return its exit status, or -1: it was started to run tests.
 */
int playRole(int argc, char **argv);

} // namespace peerbuf::test

#endif
