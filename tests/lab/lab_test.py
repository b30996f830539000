#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""scripts/lab judges what its machines said, above all when they did not end as they should.

    lab_test.py SCRIPTS/lab
"""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(sys.argv[1]))
LOADER = importlib.machinery.SourceFileLoader('lab', sys.argv[1])
LAB = importlib.util.module_from_spec(importlib.util.spec_from_loader('lab', LOADER))
LOADER.exec_module(LAB)
from labkit import debug, guest, kernel  # pylint: disable=wrong-import-position

MACHINE = guest.Machine('7.3.4', 'vmlinuz')


def empty_result():
    return {'pairs': [], 'controls_caught': [], 'skipped': [], 'passed': 0, 'failed': []}


def booted(tests, console='', timed_out=None):
    return guest.Boot(tests.splitlines(), console.splitlines(), '', timed_out)


def lines(*programs, where='patched', expected=None):
    pattern = expected and LAB.re.compile(expected)
    return [LAB.Line(where, 10, program, pattern) for program in programs]


def quietly(function, *args):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        function(*args)
    return said.getvalue()


class Plan(unittest.TestCase):
    def plan(self, text):
        with tempfile.NamedTemporaryFile('w', suffix='.plan') as f:
            f.write(text)
            f.flush()
            return LAB.read_plan(f.name)

    def test_ours(self):
        plan = LAB.read_plan()
        self.assertEqual({line.where for line in plan}, set(LAB.WHERE))
        programs = {line.program.split()[0] for line in plan}
        for name in (p for p in programs if p.endswith('.sh')):
            self.assertTrue(os.access(os.path.join(LAB.LAB, name), os.X_OK), name)

    def test_line(self):
        plan = self.plan('# what\n\npatched 60 a b  c\nmistaken 5 d e => WARN.* at x\n')
        self.assertEqual([line[:3] for line in plan],
                         [('patched', 60, 'a b  c'), ('mistaken', 5, 'd e')])
        self.assertEqual(plan[1].expected.pattern, 'WARN.* at x')

    def test_bad_lines(self):
        for text in ('nowhere 60 a', 'patched soon a', 'patched 60', 'mistaken 60 a',
                     'patched 60 a => b'):
            with self.subTest(text), self.assertRaisesRegex(LAB.Failed, ':1 is no line of a plan'):
                self.plan(text)


class Passing(unittest.TestCase):
    def judge(self, tests, console='', programs=('a',), timed_out=None):
        result = empty_result()
        said = quietly(LAB.judge_passing, booted(tests, console, timed_out), MACHINE,
                       lines(*programs), result)
        return result, said

    def test_counts(self):
        result, _ = self.judge('uname 7.3.4\nbegin a \nok - one\nskip - no such heap\n'
                               'pair {"bytes_bad": 0}\nfact {"kunit": {"passed": 3}}\n'
                               'end a : 0\ndone\n')
        self.assertEqual((result['passed'], result['failed'], result['dmesg_clean']), (1, [], True))
        self.assertEqual(result['skipped'], [{'what': 'a', 'why': 'no such heap'}])
        self.assertEqual(result['pairs'], [{'bytes_bad': 0}])
        self.assertEqual(result['kunit'], {'passed': 3})

    def test_failures(self):
        for what, tests, why in (
                ('said so', 'begin a\nok - x\nnot ok - y: 3\nend a: 1', 'a: y: 3'),
                ('died', 'begin a\nok - x\nend a: 139', 'a: ended with status 139 after: ok - x'),
                ('looked at nothing', 'begin a\nend a: 0', 'a: ended with status 0 after: nothing'),
                ('did not run', '', 'a: ended with status None after: nothing'),
                ('a module', 'not ok - insmod x.ko\nbegin a\nok - x\nend a: 0', 'insmod x.ko')):
            with self.subTest(what):
                result, _ = self.judge(f'uname 7.3.4\n{tests}\ndone\n')
                self.assertEqual(result['failed'], [why])

    def test_log_that_is_not_clean(self):
        result, said = self.judge('uname 7.3.4\nbegin a\nok - x\nend a: 0\ndone\n',
                                  '[ 1.0] lab: begin a\n[ 1.1] BUG: KASAN: slab-use-after-free\n')
        self.assertFalse(result['dmesg_clean'])
        self.assertIn('is not clean: [ 1.1] BUG: KASAN', result['failed'][0])
        self.assertIn('lab: begin a', said)

    def test_log_with_what_is_allowed(self):
        tests = 'uname 7.3.4\nbegin a\nok - x\nend a: 0\ndone\n'
        known = '[1] DMA-API: exceeded 7 overlapping mappings of cacheline 0x1\n[1] WARNING: at y\n'
        result, _ = self.judge(tests, known)
        self.assertTrue(result['dmesg_clean'])
        self.assertEqual(len(result['log_allowed']), 1)
        result, _ = self.judge(tests, known + '[1] WARNING: at z\n')
        self.assertIn('is not clean: [1] WARNING: at z', result['failed'][0])

    def test_death_hang_and_another_kernel(self):
        for what, args, why in (
                ('death', ('uname 7.3.4\nbegin a\n', '[ 2.0] Kernel panic'), 'died(.|\n)*panic'),
                ('hang', ('uname 7.3.4\nbegin a\n', '[ 2.0] last', ('a',), 9.0),
                 'hung; it was ended after 9 s(.|\n)*last'),
                ('kernel', ('uname 6.1\nbegin a\nok - x\nend a: 0\ndone\n',), 'not 7.3.4 but 6.1')):
            with self.subTest(what), self.assertRaisesRegex(LAB.Failed, why):
                self.judge(*args)

    def test_googletest(self):
        result, _ = self.judge('uname 7.3.4\nbegin a\n[ RUN      ] A.One\n[       OK ] A.One (0 ms)\n'
                               'x.cpp:3: Failure\nno fd left\n[  FAILED  ] A.Two (1 ms)\n'
                               'x.cpp:9: Skipped\nno heap\n[  SKIPPED ] A.Three (0 ms)\n'
                               '[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.Two\n'
                               'end a: 1\ndone\n')
        self.assertEqual(result['passed'], 1)
        self.assertEqual(result['failed'], ['a: A.Two: no fd left'])
        self.assertEqual(result['skipped'], [{'what': 'a', 'why': 'A.Three: no heap'}])


class Controls(unittest.TestCase):
    def stock(self, tests, console):
        result = empty_result()
        LAB.judge_stock(booted(tests, console), lines('a', 'control.sh warning'), result)
        return result

    WARNED = '[1.0] lab: begin control.sh warning\n[1.1] WARNING: at x\n'
    CONTROL = 'begin control.sh warning\nend control.sh warning: 0\ndone\n'

    def test_stock(self):
        result = self.stock('begin a\nnot ok - bytes\nend a: 1\n' + self.CONTROL, self.WARNED)
        self.assertEqual(result['failed'], [])
        self.assertEqual(len(result['controls_caught']), 2)

    def test_control_that_passes(self):
        result = self.stock('begin a\nok - bytes\nend a: 0\n' + self.CONTROL, self.WARNED)
        self.assertEqual(result['failed'], ['control: a passes with the stock modules'])

    def test_warning_that_is_not_seen(self):
        result = self.stock('begin a\nnot ok - b\nend a: 1\n' + self.CONTROL, '')
        self.assertIn('was not seen in its log', result['failed'][0])

    def mistaken(self, console, timed_out=None):
        result = empty_result()
        quietly(LAB.judge_mistaken, booted('', console, timed_out),
                lines('a x', 'b', where='mistaken', expected='KASAN: '), result)
        return result

    def test_mistakes(self):
        result = self.mistaken('[1] lab: begin a x\n[2] BUG: KASAN: y\n[3] lab: begin b \n'
                               '[4] BUG: KASAN: z\n[5] lab: done\n')
        self.assertEqual(result['failed'], [])
        self.assertEqual([c['how'] for c in result['controls_caught']],
                         ['[2] BUG: KASAN: y', '[4] BUG: KASAN: z'])

    def test_mistake_that_only_another_program_made(self):
        result = self.mistaken('[1] lab: begin a x\n[2] BUG: KASAN: y\n[3] lab: begin b\n'
                               '[4] lab: done\n[5] BUG: KASAN: z\n')
        self.assertEqual(result['failed'], ['control: b: the log has nothing of "KASAN: "'])

    def test_mistake_that_was_not_made(self):
        result = self.mistaken('[1] lab: begin a x\n[2] BUG: KASAN: y\n', timed_out=3.0)
        self.assertEqual(result['failed'],
                         ['control: b: did not run before "KASAN: "',
                          'control: the guest hung; it was ended after 3 s'])


class Machines(unittest.TestCase):
    def boot(self, script):
        with tempfile.TemporaryDirectory() as folder:
            qemu = os.path.join(folder, 'qemu-system-x86_64')
            with open(qemu, 'w', encoding='utf-8') as f:
                f.write('#!/bin/sh\nfor a; do case $a in file:*console*) c=${a#file:} ;; esac; done\n'
                        + script)
            os.chmod(qemu, 0o755)
            path = folder + os.pathsep + os.environ['PATH']
            with mock.patch.dict(os.environ, {'PATH': path}), \
                    mock.patch.object(guest, 'QUIET_TIMEOUT', 0.6):
                return guest.boot(MACHINE, 'image', folder)

    def test_hang(self):
        boot = self.boot('echo last words >"$c"; exec sleep 60')
        self.assertGreater(boot.timed_out, 0.5)
        with self.assertRaisesRegex(LAB.Failed, 'hung(.|\n)*last words'):
            LAB.judge_passing(boot, MACHINE, lines('a'), empty_result())

    def test_endless_log(self):
        with mock.patch.object(guest, 'LOG_LIMIT', 4096):
            boot = self.boot('while :; do echo "BUG: again" >>"$c"; done')
        self.assertIsNotNone(boot.timed_out)
        self.assertIn('BUG: again', boot.tail())

    def test_machine_that_does_not_start(self):
        boot = self.boot('echo "no such file" >&2; exit 1')
        self.assertIsNone(boot.timed_out)
        self.assertFalse(boot.finished)
        self.assertIn('no such file', boot.tail())

    def test_own_programs(self):
        with tempfile.TemporaryDirectory() as build:
            for name in ('tests/lab/moves', 'tools/peerbuf/peerbuf', 'importer/x/peerbuf-x.so',
                         'exporter/x/peerbuf-x.so', 'exporter/x/peerbuf-x-device'):
                os.makedirs(os.path.dirname(os.path.join(build, name)), exist_ok=True)
                shutil.copy('/bin/true', os.path.join(build, name))
            names = {name for _, name in guest.guest_programs(build, lines('moves'))}
            self.assertTrue({'lab/moves', 'lab/moves.sh'} < names)
            self.assertNotIn('lab/peerbuf', names)
            with self.assertRaisesRegex(LAB.Failed, 'contract_suite is not built in'):
                guest.guest_programs(build, lines('peerbuf list'))
            os.makedirs(os.path.join(build, 'tests/contract'))
            shutil.copy('/bin/true', os.path.join(build, 'tests/contract/peerbuf_contract_suite'))
            names = {name for _, name in guest.guest_programs(build, lines('peerbuf list'))}
            self.assertTrue({'lab/peerbuf', 'lab/plugins/peerbuf-x.so', 'lab/peerbuf-x-device',
                             'lab/peerbuf_contract_suite'} < names)

    def test_image(self):
        if not shutil.which('busybox'):
            self.skipTest('there is no busybox, whose cpio the guest uses')
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'i')
            image = guest.Image()
            image.add('a/b/c', b'text')
            image.write(path)
            out = subprocess.run(f'gzip -dc {path} | busybox cpio -t 2>/dev/null', shell=True, check=True,
                                 capture_output=True, text=True).stdout
        self.assertEqual(out.split(), ['a', 'a/b', 'a/b/c'])


class Debug(unittest.TestCase):
    def test_options(self):
        with tempfile.NamedTemporaryFile('w') as f:
            f.write('# x\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D="a=b"\n')
            f.flush()
            got = debug.options_of(f.name)
        self.assertEqual(got, {'CONFIG_A': 'y', 'CONFIG_B': 'm', 'CONFIG_D': '"a=b"'})
        self.assertEqual(debug.not_taken({'CONFIG_A': 'y', 'CONFIG_B': 'y', 'CONFIG_C': 'y'}, got),
                         ['CONFIG_B=y (now m)', 'CONFIG_C=y (now n)'])

    def test_copy(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, 'a'), os.path.join(folder, 'new/b')
            for text, copied in (('1', True), ('1', False), ('2', True)):
                with open(source, 'w', encoding='utf-8') as f:
                    f.write(text)
                self.assertEqual(kernel.copy_if_other(source, target), copied)

    def run_debug(self, cache, **options):
        args = argparse.Namespace(**{'if_changed': False, 'jobs': '1', 'build': cache,
                                     'plan': os.path.join(LAB.LAB, 'plan'), **options})
        fake = types.SimpleNamespace(key='k', release='7.3.4', build=lambda jobs: None,
                                     kernel=types.SimpleNamespace(release='stock'))
        machine = mock.Mock(return_value=MACHINE)
        good = booted('uname 7.3.4\nbegin a\nok - x\nend a: 0\ndone\n')
        mistaken = booted('', '[1] lab: begin b\n[2] BUG: KASAN: y\n')
        plan = lines('a') + lines('b', where='mistaken', expected=options.get('expected', 'KASAN'))
        result = empty_result()
        with mock.patch.object(LAB, 'CACHE', cache), \
                mock.patch.object(LAB, 'debug_machine', machine), \
                mock.patch.object(LAB, 'boot_with', side_effect=[good, mistaken]) as boots:
            quietly(LAB.run_debug, args, fake, plan, cache, result)
        return result, boots.call_count

    def test_passes_are_kept_and_failures_are_not(self):
        with tempfile.TemporaryDirectory() as cache:
            result, _ = self.run_debug(cache, expected='something else')
            self.assertEqual(len(result['failed']), 1)
            _, boots = self.run_debug(cache, if_changed=True)
            self.assertEqual(boots, 2)
            result, boots = self.run_debug(cache, if_changed=True)
            self.assertEqual((boots, result['unchanged'], result['passed']), (0, True, 1))
            _, boots = self.run_debug(cache)
            self.assertEqual(boots, 2)


class Namespaces(unittest.TestCase):
    def test_none(self):
        with tempfile.TemporaryDirectory() as folder:
            unshare = os.path.join(folder, 'unshare')
            with open(unshare, 'w', encoding='utf-8') as f:
                f.write('#!/bin/sh\necho "unshare: Operation not permitted" >&2; exit 1\n')
            os.chmod(unshare, 0o755)
            fake = types.SimpleNamespace(root=folder)
            with mock.patch.dict(os.environ, {'PATH': folder}), \
                    self.assertRaisesRegex(LAB.Unavailable, 'does not let it mount.*not permitted'):
                kernel.Kernel.make_in_root(fake, [], ['modules'])


class Registry(unittest.TestCase):
    def test_none(self):
        for tool in ('apt-get', 'qemu-system-x86_64', 'busybox', 'rping', 'ib_write_bw'):
            if not shutil.which(tool):
                self.skipTest(f'there is no {tool}, for which the lab would be skipped already')
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [sys.executable, sys.argv[1], 'run', '--json'], capture_output=True, text=True,
                check=False, env={**os.environ, 'PEERBUF_LAB_CACHE': cache,
                                  'PEERBUF_LAB_MIRROR': 'http://127.0.0.1:9/debian'})
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn('lab: SKIPPED: the package registry does not answer', done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])['skipped'],
                         [{'what': 'lab', 'why': 'the package registry does not answer'}])


class ContinuousIntegration(unittest.TestCase):
    """.ci/run with another ./dev."""

    def run_with(self, test='5 passed, 0 failed, 1 skipped', lab='', status=0, test_status=0, wanted='yes'):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, '.ci'))
            shutil.copy(os.path.join(LAB.ROOT, '.ci/run'), os.path.join(root, '.ci'))
            with open(os.path.join(root, 'dev'), 'w', encoding='utf-8') as f:
                f.write(f'#!/bin/sh\ncase $* in\ntest) echo "{test}"; exit {test_status} ;;\n'
                        f'"lab --debug --if-changed") echo "{lab}"; exit {status} ;;\nesac\n')
            os.chmod(os.path.join(root, 'dev'), 0o755)
            done = subprocess.run([os.path.join(root, '.ci/run')], capture_output=True, text=True,
                                  check=False, env={**os.environ, 'PEERBUF_CI_TIER2': wanted})
        return done.stdout.splitlines()[-1], done.returncode

    def test_lab(self):
        for what, kwargs, counts, status in (
                ('passed', {'lab': '7 passed, 0 failed, 2 skipped'},
                 '12 passed, 0 failed, 3 skipped', 0),
                ('unchanged', {'lab': 'unchanged since it passed: 7 passed then'},
                 '5 passed, 0 failed, 1 skipped', 0),
                ('skipped', {'lab': '0 passed, 0 failed, 1 skipped', 'status': 77},
                 '5 passed, 0 failed, 2 skipped', 0),
                ('failed', {'lab': '6 passed, 1 failed, 0 skipped', 'status': 1},
                 '11 passed, 1 failed, 1 skipped', 1),
                ('ended', {'lab': 'building', 'status': 124}, '5 passed, 1 failed, 1 skipped', 1),
                ('not wanted', {'lab': '6 passed, 1 failed, 0 skipped', 'status': 1, 'wanted': 'no'},
                 '5 passed, 0 failed, 1 skipped', 0),
                ('not reached', {'test': '4 passed, 1 failed, 0 skipped', 'test_status': 1,
                                 'lab': '7 passed, 0 failed, 0 skipped'},
                 '4 passed, 1 failed, 0 skipped', 1)):
            with self.subTest(what):
                self.assertEqual(self.run_with(**kwargs), (counts, status))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
