#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A public header compiles alone, twice, as C99 and as C++20, without a warning.

    header_alone.py INCLUDE_DIR HEADER NAME=COMPILER...

NAME is c or c++. An .hpp is shown to the C++ compilers only. clang is used where it is there.
"""
import os
import shutil
import subprocess
import sys

WARNINGS = ['-Wall', '-Wextra', '-Wpedantic', '-Wshadow', '-Werror']
STANDARD = {'c': ['-std=c99', '-Wstrict-prototypes'],
            'c++': ['-std=c++20', '-Wold-style-cast', '-Wzero-as-null-pointer-constant']}


def main():
    include, header, *pairs = sys.argv[1:]
    compilers = [p.split('=', 1) for p in pairs]
    for language, names in (('c', ('clang-14', 'clang')), ('c++', ('clang++-14', 'clang++'))):
        found = next((n for n in names if shutil.which(n)), None)
        if found:
            compilers.append((language, found))
    # twice, so that the guard is tested; not as a main file, where "unused" means less
    text = f'#include <{header}>\n#include <{header}>\nint header_alone(void);\n' \
           'int header_alone(void) { return 0; }\n'
    bad = ran = 0
    for language, compiler in compilers:
        if header.endswith('.hpp') and language == 'c':
            continue
        argv = [*compiler.split(), '-x', language, *STANDARD[language], *WARNINGS, '-I', include,
                '-fsyntax-only', '-']
        done = subprocess.run(argv, input=text, text=True, capture_output=True, check=False)
        ran += 1
        print(f"{header} as {STANDARD[language][0][5:]} by {os.path.basename(compiler)}: "
              f"{'ok' if done.returncode == 0 else 'FAILED'}")
        if done.returncode:
            bad += 1
            print(done.stderr)
    return 1 if bad or not ran else 0


if __name__ == '__main__':
    sys.exit(main())
