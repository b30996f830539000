#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Install into a folder, then live there as a stranger does: only installed headers, libraries and
plugins, sources outside the tree.

    outoftree_test.py --build BUILD --source SOURCE --meson MESON --cc CC --cxx CXX
                      --sanitize NAMES [--fabric]

The example exporter is built and put through the installed contract suite, the example application
is built and run, and a C99 program with pedantic warnings is compiled, linked and run.

The suite's results go where GTEST_OUTPUT says, else to meson-logs/outoftree.xml of the build
folder, and are announced as scripts/run-tests wants it.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

MARK = 'peerbuf-results: '

# Families that no pair of the example has are no mistake, though GoogleTest takes them for one.
FILTER = '-GoogleTestVerification.*'

C99 = r'''
#include <peerbuf/exporter.h>
#include <peerbuf/fabric.h>
#include <peerbuf/importer.h>
#include <peerbuf/peerbuf.h>
#include <peerbuf/plugin.h>
#include <peerbuf/testing.h>
#include <peerbuf/types.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
	struct peerbuf_context *ctx;
	struct peerbuf_plugin_info plugin;
	peerbuf_exporter_t heap;
	peerbuf_buffer_t buffer;
	size_t i, heaps = 0;

	if (peerbuf_open(NULL, &ctx)) {
		printf("peerbuf_open: %s\n", peerbuf_last_error()->what);
		return 1;
	}
	memset(&plugin, 0, sizeof(plugin));
	plugin.struct_size = sizeof(plugin);
	for (i = 0; peerbuf_query_plugin(ctx, i, &plugin) == 0; i++) {
		printf("  %s %s %s\n", plugin.name, plugin.path, plugin.why);
		if (plugin.err)
			return 1;
		heaps += strcmp(plugin.name, "heap") == 0;
	}
	if (heaps != 1 || peerbuf_exporter_open(ctx, "heap", NULL, 0, &heap) ||
	    peerbuf_alloc(ctx, heap, 5000, &buffer) || peerbuf_free(ctx, buffer)) {
		printf("%d times heap; %s\n", (int)heaps, peerbuf_last_error()->what);
		return 1;
	}
	printf("peerbuf %s: %d plugins\n", peerbuf_version(), (int)i);
	return peerbuf_close(ctx) ? 1 : 0;
}
'''


class Stop(Exception):
    """What went wrong, in words."""


def run(argv, env=None, cwd=None, show=False):
    """@return the output. It is printed only where it is wanted, or where the command failed."""
    print('+ ' + shlex.join(argv), flush=True)
    done = subprocess.run(argv, env=env, cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if show or done.returncode:
        print(done.stdout, flush=True)
    if done.returncode:
        raise Stop(f'{os.path.basename(argv[0])} ended with status {done.returncode}')
    return done.stdout


def find_one(root, name):
    found = [os.path.join(d, n) for d, _, names in os.walk(root) for n in names if n == name]
    if len(found) != 1:
        raise Stop(f'{len(found)} files called {name} are installed: {found}')
    return found[0]


class Stranger:
    """Somebody who has peerbuf installed under `root` and has never seen its sources."""

    def __init__(self, args, top):
        self.args = args
        self.root = os.path.join(top, 'root')
        self.sources = os.path.join(top, 'src')
        self.builds = os.path.join(top, 'build')
        run([args.meson, 'install', '--no-rebuild', '-C', args.build, '--destdir', self.root])
        pc = find_one(self.root, 'peerbuf.pc')
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(('PEERBUF_', 'MESON', 'LD_LIBRARY_PATH'))}
        self.env.update({
            'CC': args.cc, 'CXX': args.cxx,
            'PKG_CONFIG_PATH': os.path.dirname(pc),
            'PKG_CONFIG_SYSROOT_DIR': self.root,
            'LD_LIBRARY_PATH': os.path.dirname(os.path.dirname(pc)),
        })
        # what a user of an installation does not need: it knows its own prefix
        plugins = os.path.dirname(find_one(self.root, 'peerbuf-importer-emulated.so'))
        examples = [os.path.join(self.builds, n) for n in ('exporter-heap', 'importer-checksum')]
        self.env['PEERBUF_PLUGIN_PATH'] = ':'.join([*examples, plugins])
        self.env['PEERBUF_EMULATED_DEVICE'] = find_one(self.root, 'peerbuf-emulated-device')
        self.suite = find_one(self.root, 'peerbuf_contract_suite')
        said = self.pkg_config('--variable=plugindir')
        if said not in (plugins, plugins[len(self.root):]):
            raise Stop(f'pkg-config says plugindir={said}, plugins are in {plugins}')

    def pkg_config(self, *words):
        return run(['pkg-config', *words, 'peerbuf'], self.env).strip()

    def build_example(self, name):
        """By its own meson.build, from a copy."""
        source, build = os.path.join(self.sources, name), os.path.join(self.builds, name)
        shutil.copytree(os.path.join(self.args.source, 'examples', name), source)
        run([self.args.meson, 'setup', build, source, '-Dwerror=true',
             f'-Db_sanitize={self.args.sanitize}', '-Db_lundef=false'], self.env)
        with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as f:
            commands = [c['command'] for c in json.load(f)]
        if not commands:
            raise Stop(f'{name} compiles nothing')
        for command in commands:
            folders = re.findall(r'-(?:I|isystem) ?(\S+)', command)
            if not any(f.startswith(self.root) for f in folders):
                raise Stop(f'{name} is not compiled with the installed headers: {command}')
            if self.args.source in command:
                raise Stop(f'{name} is compiled with the tree: {command}')
        run([self.args.meson, 'compile', '-C', build], self.env)
        return build

    def compile_c99(self):
        source, program = (os.path.join(self.builds, n) for n in ('c99.c', 'c99'))
        with open(source, 'w', encoding='utf-8') as f:
            f.write(C99)
        sanitize = [] if self.args.sanitize == 'none' else ['-fsanitize=' + self.args.sanitize]
        run([*shlex.split(self.args.cc), '-std=c99', '-Wall', '-Wextra', '-Wpedantic', '-Wshadow',
             '-Werror', *sanitize, '-o', program, source,
             *shlex.split(self.pkg_config('--cflags', '--libs'))], self.env)
        return program

    def contract(self, *plugins, kind='xml', path):
        """@return the names of the cases, and how many failed and were skipped."""
        if os.path.exists(path):
            os.unlink(path)
        ended = None
        try:
            run([self.suite, *plugins, f'--gtest_output={kind}:{path}',
                 '--gtest_filter=' + FILTER], self.env)
        except Stop as why:
            ended = why
            if not os.path.exists(path):
                raise
        if kind == 'json':
            with open(path, encoding='utf-8') as f:
                cases = [c for s in json.load(f)['testsuites'] for c in s['testsuite']]
            failed = sum('failures' in c for c in cases)
            skipped = sum(c.get('result') == 'SKIPPED' for c in cases)
        else:
            cases = list(xml.parse(path).iter('testcase'))
            failed = sum(c.find('failure') is not None for c in cases)
            skipped = sum(c.find('skipped') is not None for c in cases)
        names = [f"{c.get('classname')}.{c.get('name')}" for c in cases]
        print(f'contract suite {shlex.join(plugins)}: {len(cases)} tests, '
              f'{len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped',
              flush=True)
        if ended or failed or len(cases) == skipped:
            raise ended or Stop('the contract suite did not pass')
        return names


    def providers(self):
        """Those of libfabric that the suite found for the exporter, its favourite first."""
        listing = run([self.suite, '--exporter', 'heap', '--gtest_list_tests'], self.env)
        found = list(dict.fromkeys(re.findall(r'heap x fabric:provider=([^\s,]+)', listing)))
        if not found:
            raise Stop('the suite found no provider of libfabric: ' + listing[:2000])
        return found


def results(args):
    """@return (format, path) of where the suite's results are wanted."""
    kind, _, path = os.environ.get('GTEST_OUTPUT', '').partition(':')
    if kind in ('xml', 'json') and path and not path.endswith('/'):
        return kind, path
    return 'xml', os.path.join(args.build, 'meson-logs', 'outoftree.xml')


def live(args, top):
    me = Stranger(args, top)
    me.build_example('exporter-heap')
    me.build_example('importer-checksum')
    print(run([me.compile_c99()], me.env))

    kind, path = results(args)
    if kind == 'xml':
        print(MARK + path, file=sys.stderr, flush=True)
    names = me.contract('--exporter', 'heap', kind=kind, path=path)
    for importer in ['refault', 'revocable', 'neither'] + (['fabric'] if args.fabric else []):
        if not any(re.search(f'/heap__.*{importer}', n) for n in names):
            raise Stop(f'no test of the suite has heap with {importer}')
    me.contract('--exporter', 'heap', '--importer', 'checksum', path=os.path.join(top, 'own.xml'))

    if args.fabric:
        program = os.path.join(me.build_example('application'), 'application')
        providers = me.providers()
        print('providers here:', ', '.join(providers))
        for provider in providers:
            print(run([program, 'heap', provider], me.env))
        print(run([program, 'emulated', providers[0]], me.env))


def main():
    parser = argparse.ArgumentParser(description='live out of tree')
    for name in ('build', 'source', 'meson', 'cc', 'cxx', 'sanitize'):
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--fabric', action='store_true')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix='peerbuf-outoftree.') as top:
        try:
            live(args, top)
        except Stop as why:
            print(f'FAILED: {why}', flush=True)
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
