#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""scripts/check-layers finds what it is there for: each bad line by itself, and nothing in a good
tree.

    check_layers_test.py CHECK_LAYERS CC
"""
import os
import subprocess
import sys
import tempfile
import unittest

CHECK, CC = sys.argv[1], sys.argv[2].split()

GOOD = {
    'include/peerbuf/types.h': '#include <stdint.h>\n#include <stddef.h>\n',
    'include/peerbuf/peerbuf.h': '#include <peerbuf/types.h>\n',
    'include/peerbuf/peerbuf.hpp': '#include <vector>\n#include <peerbuf/peerbuf.h>\n',
    'include/peerbuf/plugin_support.hpp': '#include <string>\n#include <peerbuf/types.h>\n',
    'core/base/sys.h': '#include <sys/mman.h>\n',
    'core/session.cpp': '#include "core/session.h"\n#include <tl/expected.hpp>\n'
                        '#include "core/base/sys.h"\n#include <peerbuf/peerbuf.h>\n',
    'core/session.h': '/* #include "exporter/emulated/device.h" */\n',
    'exporter/emulated/device.h': '#include <peerbuf/types.h>\n',
    'exporter/emulated/device.cpp': '#include "device.h"\n#include <sys/socket.h>\n'
                                    '#include <peerbuf/plugin_support.hpp>\n'
                                    '#include <peerbuf/mover.hpp>\n',
    'include/peerbuf/mover.hpp': '#include <cstdint>\n',
    'exporter/emulated/process/main.cpp': '#include "exporter/emulated/device.h"\n',
    'importer/fabric/fabric.cpp': '#include <rdma/fabric.h>\n#include <peerbuf/types.h>\n',
    'topology/pci.cpp': '#include "pci.h"\n#include <dirent.h>\n',
    'topology/pci.h': '#include <string>\n',
    'doctor/doctor.cpp': '#include "topology/pci.h"\n#include "core/session.h"\n'
                         '#include <peerbuf/peerbuf.h>\n',
    'tools/peerbuf/main.cpp': '#include "core/session.h"\n#include "doctor/doctor.cpp"\n',
}

# file, its bad line, a word of the complaint
BAD = [
    ('exporter/emulated/device.cpp', '#include "core/session.h"', 'core/'),
    ('exporter/emulated/device.cpp', '#include <core/session.h>', 'core/'),
    ('exporter/emulated/device.cpp', '#include "../../core/session.h"', 'core/'),
    ('exporter/emulated/device.cpp', '  #  include   "core/session.h"', 'core/'),
    ('exporter/emulated/device.cpp', '#inc\\\nlude "core/session.h"', 'core/'),
    ('exporter/emulated/device.cpp', '#include "importer/fabric/fabric.cpp"', 'importer/'),
    ('exporter/emulated/device.cpp', '#include <peerbuf/peerbuf.hpp>', 'peerbuf.hpp'),
    ('exporter/emulated/device.cpp', '#include "peerbuf/types.h"', 'write the contract'),
    ('exporter/emulated/device.cpp', '#include "nowhere.h"', 'not in exporter/emulated/'),
    ('exporter/emulated/device.cpp', '#define X "device.h"\n#include X', 'cannot be checked'),
    ('exporter/cuda/cuda.cpp', '#include "exporter/emulated/device.h"', 'exporter/'),
    ('exporter/cuda/cuda.cpp', '#include "../emulated/device.h"', 'exporter/'),
    ('exporter/common.h', '#include <string>', 'between plugins'),
    ('importer/fabric/fabric.cpp', '#include "exporter/emulated/device.h"', 'exporter/'),
    ('importer/fabric/fabric.cpp', '#include "topology/pci.h"', 'topology/'),
    ('importer/fabric/fabric.cpp', '#include "tools/peerbuf/main.cpp"', 'tools/'),
    ('core/session.cpp', '#include "exporter/emulated/device.h"', 'exporter/'),
    ('core/session.cpp', '#include "importer/fabric/fabric.cpp"', 'importer/'),
    ('core/session.cpp', '#include "topology/pci.h"', 'topology/'),
    ('core/session.cpp', '#include "doctor/doctor.cpp"', 'doctor/'),
    ('core/session.cpp', '#include "tools/peerbuf/main.cpp"', 'tools/'),
    ('core/session.cpp', '#include "tests/support/fixture.h"', 'tests/'),
    ('core/session.cpp', '#include "nowhere.h"', 'no file of ours'),
    ('include/peerbuf/types.h', '#include <sys/types.h>', 'C99'),
    ('include/peerbuf/types.h', '#include <vector>', 'C99'),
    ('include/peerbuf/types.h', '#include <peerbuf/peerbuf.hpp>', 'a C header'),
    ('include/peerbuf/types.h', '#include "peerbuf/peerbuf.h"', 'write <...>'),
    ('include/peerbuf/peerbuf.hpp', '#include <tl/expected.hpp>', 'C or C++'),
    ('include/peerbuf/peerbuf.hpp', '#include <core/session.h>', 'core/'),
    ('topology/pci.cpp', '#include <peerbuf/types.h>', 'leaf'),
    ('topology/pci.cpp', '#include "core/session.h"', 'leaf'),
    ('doctor/doctor.cpp', '#include "exporter/emulated/device.h"', 'exporter/'),
    ('doctor/doctor.cpp', '#include "tools/peerbuf/main.cpp"', 'tools/'),
]

PLUGIN = '''
#define EXPORT __attribute__((visibility("default")))
struct table { unsigned size; };
'''


def run(*args):
    return subprocess.run([CHECK, *args], capture_output=True, text=True, check=False)


class Layers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        for name, text in GOOD.items():
            self.write(name, text)

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)

    def test_good_tree(self):
        done = run('--root', self.root)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_empty_tree(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertNotEqual(run('--root', empty).returncode, 0)

    def test_each_bad_line(self):
        for name, line, word in BAD:
            with self.subTest(file=name, line=line):
                self.write(name, GOOD.get(name, '') + line + '\n')
                done = run('--root', self.root)
                os.unlink(os.path.join(self.root, name))
                if name in GOOD:
                    self.write(name, GOOD[name])
                self.assertEqual(done.returncode, 1, done.stdout)
                complaints = done.stdout.strip().splitlines()
                self.assertEqual(len(complaints), 1, done.stdout)
                self.assertTrue(complaints[0].startswith(name + ':'), done.stdout)
                self.assertIn(word, complaints[0])


class Objects(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def check(self, text, *flags):
        path = os.path.join(self.folder.name, 'peerbuf-exporter-x.so')
        subprocess.run([*CC, '-x', 'c', '-', '-shared', '-fPIC', '-fvisibility=hidden', '-o', path,
                        *flags], input=PLUGIN + text, text=True, check=True)
        return run('--plugins', self.folder.name)

    def test_good(self):
        done = self.check('EXPORT const struct table peerbuf_exporter_v1 = {4};')
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_core_symbol(self):
        done = self.check('int peerbuf_progress(void *);\n'
                          'int use(void);\nEXPORT int use(void) { return peerbuf_progress(0); }\n'
                          'EXPORT const struct table peerbuf_exporter_v1 = {4};')
        self.assertEqual(done.returncode, 1)
        self.assertIn('needs the symbol peerbuf_progress', done.stdout)

    def test_no_table(self):
        done = self.check('EXPORT const struct table something_else = {4};')
        self.assertEqual(done.returncode, 1)
        self.assertIn('does not export peerbuf_exporter_v1', done.stdout)

    def test_second_symbol(self):
        done = self.check('EXPORT const struct table peerbuf_exporter_v1 = {4}, peerbuf_more;')
        self.assertEqual(done.returncode, 1)
        self.assertIn('exports peerbuf_more', done.stdout)

    def test_static_constructor(self):
        done = self.check('__attribute__((constructor)) static void early(void) {}\n'
                          'EXPORT const struct table peerbuf_exporter_v1 = {4};')
        self.assertEqual(done.returncode, 1)
        self.assertIn('static constructor', done.stdout)

    def test_nothing_there(self):
        self.assertNotEqual(run('--plugins', self.folder.name).returncode, 0)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
