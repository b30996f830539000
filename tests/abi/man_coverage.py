#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every public function and every command has its place in a man page, and no page tells of one
that is not there.

    man_coverage.py functions HEADER PAGE
    man_coverage.py commands TOOL_FOLDER PAGE
"""
import glob
import os
import re
import sys


def read(path):
    with open(path, encoding='utf-8') as f:
        return f.read()


def compare(what, there, described, page):
    for name in sorted(there - described):
        print(f'{what} {name} has no entry in {page}')
    for name in sorted(described - there):
        print(f'{page} describes {what} {name}, which is not there')
    print(f'{len(there)} {what}s, {len(described)} described')
    return there == described and bool(there)


def main():
    mode, source, page = sys.argv[1:]
    text = read(page)
    if mode == 'functions':
        header = re.sub(r'/\*.*?\*/', ' ', read(source), flags=re.S)
        there = set(re.findall(r'^PEERBUF_API[^;(]*?\b(peerbuf_\w+)\s*\(', header, flags=re.M))
        # an entry is a line of its own that begins with the function in bold
        described = set(re.findall(r'^\*(peerbuf_\w+)\*', text, flags=re.M))
        return 0 if compare('function', there, described, page) else 1

    code = ''.join(read(p) for p in glob.glob(os.path.join(source, '**', '*.cpp'), recursive=True))
    commands = set(re.findall(r'add_subcommand\(\s*"(\w+)"', code))
    good = compare('command', commands, set(re.findall(r'^## (\w+)', text, flags=re.M)), page)
    # the parser adds --help by itself
    calls = re.findall(r'(?:add_option|add_flag|set_version_flag)\w*\(\s*"([^"]*)"', code)
    options = {'help'} | {o for call in calls for o in re.findall(r'--([\w-]+)', call)}
    described = set(re.findall(r'^\*--([\w-]+)\*', text, flags=re.M))
    return 0 if compare('option', options, described, page) and good else 1


if __name__ == '__main__':
    sys.exit(main())
