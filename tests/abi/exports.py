#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The library exports the functions of peerbuf.h, all of them and nothing else.

    exports.py LIBRARY HEADER
"""
import re
import subprocess
import sys


def main():
    library, header = sys.argv[1:]
    with open(header, encoding='utf-8') as f:
        text = re.sub(r'/\*.*?\*/', ' ', f.read(), flags=re.S)
    promised = set(re.findall(r'^PEERBUF_API[^;(]*?\b(peerbuf_\w+)\s*\(', text, flags=re.M))
    out = subprocess.run(['nm', '-D', '--defined-only', library], check=True, capture_output=True,
                         text=True).stdout
    exported = set()
    for line in out.splitlines():
        kind, name = line.split()[-2:]
        if kind != 'A':  # the name of a version
            exported.add(name.split('@')[0])
    bad = 0
    for name in sorted(promised - exported):
        bad += 1
        print(f'{name} is in the header, not in the library')
    for name in sorted(exported - promised):
        bad += 1
        print(f'{name} is exported, not in the header')
    print(f'{len(promised)} functions promised, {len(exported)} symbols exported')
    return 1 if bad or not promised else 0


if __name__ == '__main__':
    sys.exit(main())
