#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The benchmarks run to their end, and their JSON has every figure, well-formed. How fast anything
was is not looked at.

    quick_test.py BENCH
"""
import json
import math
import subprocess
import sys

SKIP = 77
MISSING = 3  # what the program ends with where the machine lacks something

problems = []


def expect(ok, what):
    if not ok:
        problems.append(what)


def number(where, of, key, least=0.0):
    value = of.get(key) if isinstance(of, dict) else None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    expect(good, f'{where}.{key} is {value!r}, no number')
    if good:
        expect(value >= least, f'{where}.{key} is {value}, below {least}')
    return value if good else math.nan


def interval(where, of, key, least=0.0):
    middle, low, high = (number(where, of, k, least) for k in (key, 'low', 'high'))
    expect(not low > middle and not middle > high, f'{where}: {low} {middle} {high} not in order')
    number(where, of, 'pairs', 1)


def percentiles(where, of):
    p50, p99 = (number(where, of, k, 0.001) for k in ('p50', 'p99'))
    expect(not p50 > p99, f'{where}: p50 {p50} above p99 {p99}')


def check(result):
    expect(result.get('quick') is True, 'it does not say that it was quick')
    expect(result.get('error') is None, f"error: {result.get('error')}")
    expect(result.get('exit_code') == 0, f"exit_code {result.get('exit_code')}")
    number('', result, 'seconds')
    number('', result, 'cpus', 2)

    rma = result.get('rma', {})
    expect(sorted(map(int, rma)) == [4096, 65536, 1 << 20, 16 << 20], f'rma of {sorted(rma)}')
    for size, entry in rma.items():
        interval(f'rma.{size}', entry, 'bandwidth_ratio', 1e-4)
        expect(entry.get('provider') == result.get('provider') and entry['provider'],
               f"rma.{size}: provider {entry.get('provider')}")

    number('', result, 'guard_ns', -1000)
    interval('guard', result.get('guard'), 'median', -1000)

    blackout = result.get('blackout_ratio', {})
    expect(blackout, 'no blackout_ratio')
    for size, entry in blackout.items():
        interval(f'blackout_ratio.{size}', entry, 'ratio', 1e-4)
        page = number(f'blackout_ratio.{size}', entry, 'page_size', 4096)
        expect(not page & (page - 1), f'blackout_ratio.{size}.page_size {page}')

    sliced = result.get('sliced', {})
    if number('sliced', sliced, 'pauses') > 0:
        percentiles('sliced.pause_us', sliced.get('pause_us'))
    else:  # the machine was too busy for one that kept its CPU
        percentiles('sliced.pause_us_with_preempted', sliced.get('pause_us_with_preempted'))
    for key in ('closed_ratio', 'wall_ratio', 'duty', 'effective_max_pause_us', 'slices_per_move'):
        number('sliced', sliced, key, 1e-4)
    for key in ('closed_ratio', 'wall_ratio'):
        interval(f'sliced.{key}', sliced.get(key + '_interval'), 'median', 1e-4)
    expect(not sliced.get('slices_per_move', 0) < 2, 'the sliced move was in one piece')

    percentiles('suspend_inflight16_us', result.get('suspend_inflight16_us'))
    attach = result.get('attach_us', {})
    percentiles('attach_us.register_deregister', attach.get('register_deregister'))
    percentiles('attach_us.fd_round_trip', attach.get('fd_round_trip'))
    interval('attach_us.ratio', attach.get('ratio'), 'median', 1e-4)


def main():
    done = subprocess.run([sys.argv[1], '--quick', '--json'], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    try:
        result = json.loads(lines[-1]) if lines else {}
    except ValueError as e:
        sys.exit(f'the last line is no JSON: {e}\n{lines[-1]}')
    if done.returncode == MISSING:
        print(result.get('error'))
        return SKIP
    expect(done.returncode == 0, f'it ended with status {done.returncode}')
    expect(len(lines) == 1, f'{len(lines)} lines on standard output')
    check(result)
    for problem in problems:
        print(problem)
    if problems:
        print(json.dumps(result, indent=1))
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
