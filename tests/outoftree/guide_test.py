#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The code in docs/plugin-guide.md is the file it says it is, and as short as it says.

    guide_test.py [--write] SOURCE
"""
import os
import re
import sys

GUIDE = os.path.join('docs', 'plugin-guide.md')
EXPORTER = 'examples/exporter-heap/exporter.cpp'
MOST_LINES = 99
BLOCK = re.compile(r'^(<!-- (examples/\S+) -->\n```\w*\n)(.*?)^```$', re.M | re.S)


def read(*names):
    with open(os.path.join(*names), encoding='utf-8') as f:
        return f.read()


def lines_of_code(text):
    """Without blank lines and comments."""
    text = re.sub(r'/\*.*?\*/', '', text, flags=re.S)
    return sum(bool(re.sub(r'//.*', '', line).strip()) for line in text.splitlines())


def main():
    write = '--write' in sys.argv[1:]
    root = next(a for a in sys.argv[1:] if a != '--write')
    guide = read(root, GUIDE)
    if write:
        guide = BLOCK.sub(lambda m: m[1] + read(root, m[2]) + '```', guide)
        with open(os.path.join(root, GUIDE), 'w', encoding='utf-8') as f:
            f.write(guide)
    blocks = {m[2]: m[3] for m in BLOCK.finditer(guide)}
    problems = [f'{GUIDE} shows another {name} than there is; {sys.argv[0]} --write puts it right'
                for name, text in blocks.items() if text != read(root, name)]
    if EXPORTER not in blocks:
        problems.append(f'{GUIDE} does not show {EXPORTER}')
    n = lines_of_code(read(root, EXPORTER))
    if n > MOST_LINES:
        problems.append(f'{EXPORTER} has {n} lines of code, the guide promises under 100')
    for path in re.findall(r'`((?:examples|exporter|importer)/[\w./-]+)`', guide):
        if not os.path.exists(os.path.join(root, path)):
            problems.append(f'{GUIDE} names {path}, which is not there')
    print('\n'.join(problems) or f'{len(blocks)} block, {n} lines of code')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
