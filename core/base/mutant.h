// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_MUTANT_H
#define PEERBUF_CORE_BASE_MUTANT_H

/**
 * Deliberate faults, so that the tests can show that they would be caught. They exist only in a
 * build with -Dmutants=true, where the environment variable PEERBUF_MUTANT chooses one by name;
 * everywhere else the condition is the constant false.
 */
#ifdef PEERBUF_MUTANTS
#include <cstdlib>
#include <cstring>
#define PEERBUF_MUTANT(name) (getenv("PEERBUF_MUTANT") && !strcmp(getenv("PEERBUF_MUTANT"), name))
#else
#define PEERBUF_MUTANT(name) false
#endif

#endif
