#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""scripts/run-tests counts what happened, above all when a program did not end as it should.

    run_tests_test.py RUN_TESTS
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

LOADER = importlib.machinery.SourceFileLoader('run_tests', sys.argv[1])
RUN = importlib.util.module_from_spec(importlib.util.spec_from_loader('run_tests', LOADER))
sys.dont_write_bytecode = True
LOADER.exec_module(RUN)

XML = '''<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" name="AllTests"><testsuite name="A">
  <testcase name="Skip" status="run" result="skipped" classname="A">
    <skipped message="g.cpp:2&#x0A;no such device"/></testcase>
  {fail}
  <testcase name="Ok" status="run" result="completed" classname="A" />
  <testcase name="DISABLED_X" status="notrun" result="suppressed" classname="A" />
</testsuite></testsuites>
'''
FAIL = '''<testcase name="Fail" status="run" result="completed" classname="A">
    <failure message="g.cpp:3&#x0A;one is not two" type=""/></testcase>'''
CONSOLE = '''[ RUN      ] A.One
[       OK ] A.One (0 ms)
[ RUN      ] A.Two
half a line[  SKIPPED ] A.Two (0 ms)
[ RUN      ] A.Three
'''


class Counting(unittest.TestCase):
    def count(self, status, xml=None, output='', code=0):
        with tempfile.TemporaryDirectory() as folder:
            if xml is not None:
                path = os.path.join(folder, 'x.xml')
                with open(path, 'w', encoding='utf-8') as f:
                    f.write(xml)
                output = RUN.MARK + path + '\n' + output
            return RUN.count_result('plain', {
                'name': 'peerbuf:unit / a', 'result': status, 'returncode': code, 'duration': 1.0,
                'stdout': output})

    def test_cases(self):
        count = self.count('OK', XML.format(fail=''))
        self.assertEqual(str(count), '1 passed, 0 failed, 2 skipped')
        self.assertEqual([s[2] for s in count.skips], ['no such device', 'disabled in the source'])

    def test_failed_case(self):
        count = self.count('FAIL', XML.format(fail=FAIL), code=1)
        self.assertEqual(str(count), '1 passed, 1 failed, 2 skipped')
        self.assertEqual(count.failures[0][1], 'A.Fail')
        self.assertIn('one is not two', count.failures[0][2])

    def test_failed_after_the_last_case(self):
        count = self.count('FAIL', XML.format(fail=''), 'LeakSanitizer: leaks', code=23)
        self.assertEqual(str(count), '1 passed, 1 failed, 2 skipped')
        self.assertIn('status 23', count.failures[0][2])
        self.assertIn('LeakSanitizer', count.failures[0][2])

    def test_crash_names_the_case(self):
        count = self.count('FAIL', '', CONSOLE, code=-11)
        self.assertEqual(str(count), '1 passed, 1 failed, 1 skipped')
        self.assertEqual(count.failures[0][1], 'A.Three')
        self.assertIn('signal 11', count.failures[0][2])

    def test_timeout(self):
        count = self.count('TIMEOUT', '', CONSOLE, code=-15)
        self.assertEqual(count.failures[0][1], 'A.Three')
        self.assertIn('ran out of time', count.failures[0][2])

    def test_silent_exit_is_a_failure(self):
        count = self.count('OK', '', '', code=0)
        self.assertEqual(str(count), '0 passed, 1 failed, 0 skipped')

    def test_no_cases_is_a_failure(self):
        count = self.count('OK', '<testsuites/>')
        self.assertEqual(str(count), '0 passed, 1 failed, 0 skipped')

    def test_other_programs_count_as_one(self):
        self.assertEqual(str(self.count('OK')), '1 passed, 0 failed, 0 skipped')
        self.assertEqual(str(self.count('FAIL', output='why', code=1)),
                         '0 passed, 1 failed, 0 skipped')
        count = self.count('SKIP', output='no hardware', code=RUN.SKIP_STATUS)
        self.assertEqual(str(count), '0 passed, 0 failed, 1 skipped')
        self.assertEqual(count.skips[0][2], 'no hardware')


class Targets(unittest.TestCase):
    """What a sanitizer's tree has to build."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = os.path.join(folder.name, 'build')
        os.makedirs(os.path.join(self.build, 'meson-info'))
        self.root = folder.name

        def target(where, name):
            return {'id': name, 'defined_in': os.path.join(self.root, where, 'meson.build'),
                    'filename': [os.path.join(self.build, where, name)]}

        self.write('buildsystem_files', [os.path.join(self.root, n) for n in (
            'core/meson.build', 'meson.build', 'meson_options.txt')])
        self.write('targets', [target('core', 'libcore.a'), target('exporter/x', 'x.so'),
                               target('tests/threads', 'threads'), target('tests/threads', 'helper'),
                               target('tests/unit', 'unit')])
        self.write('tests', [
            {'suite': ['peerbuf:threads'], 'depends': ['helper'],
             'cmd': [os.path.join(self.build, 'tests/threads/threads')]},
            {'suite': ['peerbuf:unit'], 'depends': [],
             'cmd': [os.path.join(self.build, 'tests/unit/unit')]}])

    def write(self, what, value):
        with open(os.path.join(self.build, 'meson-info', f'intro-{what}.json'), 'w',
                  encoding='utf-8') as f:
            json.dump(value, f)

    def targets(self, *args):
        done = subprocess.run([sys.argv[1], 'targets', *args], capture_output=True, text=True,
                              check=True)
        return done.stdout.split()

    def test_folders(self):
        self.assertEqual(self.targets(self.build, 'core', 'exporter'),
                         ['core/libcore.a', 'exporter/x/x.so'])

    def test_suites(self):
        self.assertEqual(self.targets('--tests', 'threads,tsan', self.build, 'core'),
                         ['core/libcore.a', 'tests/threads/threads', 'tests/threads/helper'])


class Lab(unittest.TestCase):
    RESULT = {'passed': 3, 'failed': [], 'skipped': [], 'controls_caught': ['a']}

    def count(self, status, text):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'lab.json')
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text)
            with contextlib.redirect_stderr(io.StringIO()):
                return RUN.lab_count(status, path, os.path.join(folder, 'no.log'))

    def result(self, status, **other):
        return self.count(status, 'lines before\n' + json.dumps({**self.RESULT, **other}) + '\n')

    def test_counts(self):
        self.assertEqual(str(self.result(0)), '3 passed, 0 failed, 0 skipped')
        count = self.result(1, failed=['moves: byte 3: 1 is not 2'],
                            skipped=[{'what': 'dmabuf', 'why': 'no heap'}])
        self.assertEqual(count.failures, [('lab', 'moves', 'byte 3: 1 is not 2')])
        self.assertEqual(count.skips, [('lab', 'dmabuf', 'no heap')])
        count = self.result(77, passed=0, skipped=[{'what': 'lab', 'why': 'no registry'}])
        self.assertEqual(str(count), '0 passed, 0 failed, 1 skipped')

    def test_nothing_is_hidden(self):
        for status, text in ((1, ''), (-9, '{"passed": 3'), (0, ''), (0, '{}'),
                             (1, json.dumps(self.RESULT)), (-11, json.dumps(self.RESULT)),
                             (77, json.dumps(self.RESULT))):
            with self.subTest((status, text)):
                self.assertEqual(len(self.count(status, text).failures), 1)

    def test_says_what_it_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'lab.json')
            with open(path, 'w', encoding='utf-8') as f:
                f.write(json.dumps(self.RESULT))
            with contextlib.redirect_stdout(io.StringIO()) as said, \
                    contextlib.redirect_stderr(io.StringIO()):
                count = RUN.lab_result(f'1:{path}:{path}')
        self.assertEqual(str(count), '3 passed, 1 failed, 0 skipped')
        self.assertIn('lab: 3 passed, 1 failed', said.getvalue())


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
