# SPDX-License-Identifier: BSD-3-Clause
"""The kernel of tier 2: the source of the distribution's with a series of kernel-patches, built with
tests/lab/debug.config, so that it looks for mistakes itself."""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from .archive import unpack
from .base import LAB, Failed, Unavailable, appearing, output_of, say
from .kernel import copy_if_other, git, our_modules, patches_of

CONFIG = os.path.join(LAB, 'debug.config')
MISTAKES = os.path.join(LAB, 'mistakes.patch')
# What it takes beyond what modules are built with.
BUILD_PACKAGES = ('flex', 'bison', 'bc', 'libelf-dev', 'perl-base', 'gzip')
# Seconds. A build that was ended goes on where it was the next time.
BUILD_TIMEOUT = int(os.environ.get('PEERBUF_LAB_BUILD_TIMEOUT') or 1500)
PROGRESS = 30
RXE = 'drivers/infiniband/sw/rxe'


def options_of(path):
    """{'CONFIG_X': 'y'} of a configuration or a part of one."""
    with open(path, encoding='utf-8') as f:
        return dict(line.strip().split('=', 1) for line in f if re.match(r'CONFIG_\w+=', line))


def not_taken(wanted, got):
    """What Kconfig dropped or changed, as 'CONFIG_X=y (now m)'."""
    return [f'{name}={value} (now {got.get(name, "n")})' for name, value in wanted.items()
            if got.get(name, 'n') != value]


class DebugKernel:
    def __init__(self, kernel, version):
        self.kernel = kernel
        self.version = version
        key = hashlib.sha256()
        # the base commit says which source it is
        for part in (kernel.release, git(kernel.tree, 'rev-parse', 'base')):
            key.update(part.encode())
        for path in [*patches_of(version), *our_modules(), CONFIG, MISTAKES]:
            with open(path, 'rb') as f:
                key.update(f.read())
        self.key = key.hexdigest()[:16]
        self.dir = os.path.join(kernel.dir, 'debug-' + self.key)
        self.vmlinuz = os.path.join(self.dir, 'vmlinuz')
        self.mistaken = os.path.join(self.dir, 'mistaken/rdma_rxe.ko')
        # These two stay, so that another patch does not build all of it again.
        self.source = os.path.join(kernel.dir, 'linux')
        self.objects = os.path.join(kernel.dir, 'linux-objects')

    @property
    def release(self):
        return os.listdir(os.path.join(self.dir, 'lib/modules'))[0]

    def build(self, jobs):
        if os.path.isdir(self.dir):
            return
        self._add_tools()
        self._make_source()
        os.makedirs(self.objects, exist_ok=True)
        self._configure()
        say(f'building Linux {self.kernel.release.split("+")[0]} with kernel-patches/{self.version} '
            'and tests/lab/debug.config: some twenty minutes of one CPU')
        self._make('the kernel', [f'-j{jobs}', 'bzImage', 'modules'])
        with appearing(self.dir) as folder:
            self._make('its installation', ['INSTALL_MOD_PATH=/result', 'modules_install'],
                       result=folder)
            for link in glob.glob(os.path.join(folder, 'lib/modules/*/build')):
                os.unlink(link)
            shutil.copy(os.path.join(self.objects, 'arch/x86/boot/bzImage'),
                        os.path.join(folder, 'vmlinuz'))
            shutil.copy(os.path.join(self.objects, '.config'), os.path.join(folder, 'config'))
            self._make_mistaken(folder)

    def _add_tools(self):
        done = os.path.join(self.kernel.root, '.builds-kernels')
        if os.path.exists(done):
            return
        say('unpacking what it takes to build a kernel')
        for deb in self.kernel.archive.download_with_dependencies(BUILD_PACKAGES):
            output_of(['dpkg-deb', '-x', deb, self.kernel.root])
        with open(done, 'w', encoding='utf-8'):
            pass

    def _make_source(self):
        if not os.path.isdir(self.source):
            say('unpacking all of its source')
            with appearing(self.source) as folder:
                self._unpack_source(folder)
        names = git(self.kernel.tree, 'ls-files').splitlines()
        files = {name: os.path.join(self.kernel.tree, name) for name in names}
        files |= {f'drivers/infiniband/lab/{os.path.basename(p)}': p for p in our_modules()}
        manifest = os.path.join(self.source, '.lab')
        if os.path.exists(manifest):
            with open(manifest, encoding='utf-8') as f:
                for name in set(f.read().splitlines()) - set(files):
                    os.unlink(os.path.join(self.source, name))
        # before they are there: what is copied is known, also by one that is ended in between
        with open(manifest, 'w', encoding='utf-8') as f:
            f.write(''.join(f'{name}\n' for name in files))
        for name, path in files.items():
            copy_if_other(path, os.path.join(self.source, name))
        # for kbuild, which takes it before the Makefile
        with open(os.path.join(self.source, 'drivers/infiniband/Kbuild'), 'w',
                  encoding='utf-8') as f:
            f.write('obj-$(CONFIG_INFINIBAND) += core/ sw/rxe/ lab/\n')

    def _unpack_source(self, folder):
        # what the base was made of
        version = re.search(r'Debian package (\S+)\.$', git(self.kernel.tree, 'log', '-1', 'base'),
                            re.M)[1]
        name = f'linux-source-{self.kernel.series_version}'
        debs = os.path.join(folder, '.debs')
        try:
            self.kernel.archive.download([f'{name}={version}'], debs)
        except Failed as e:
            raise Unavailable(f'the registry has no {name} {version}') from e
        unpack(glob.glob(os.path.join(debs, '*.deb'))[0], debs)
        packed = glob.glob(os.path.join(debs, 'usr/src/*.tar.*'))[0]
        output_of(['tar', 'xf', packed, '-C', folder, '--strip-components=1'])
        shutil.rmtree(debs)

    def _configure(self):
        wanted = os.path.join(self.objects, 'lab.config')
        config = os.path.join(self.objects, '.config')
        if not copy_if_other(CONFIG, wanted) and os.path.exists(config):
            return
        self._make('its configuration', ['KCONFIG_ALLCONFIG=/out/lab.config', 'allnoconfig'])
        if dropped := not_taken(options_of(wanted), options_of(config)):
            os.unlink(config)
            raise Failed('options of tests/lab/debug.config that this kernel does not take: '
                         + ', '.join(dropped))

    def _make_mistaken(self, folder):
        """rxe once more, with mistakes to choose from by a parameter: the lab has to see them."""
        source = os.path.join(self.objects, 'mistaken')
        with tempfile.TemporaryDirectory(prefix='mistaken-', dir=self.kernel.dir) as patched:
            shutil.copytree(os.path.join(self.source, RXE), patched, dirs_exist_ok=True)
            output_of(['git', 'apply', '-p5', MISTAKES], cwd=patched,
                      env={**os.environ, 'GIT_CEILING_DIRECTORIES': self.kernel.dir})
            for name in os.listdir(patched):
                copy_if_other(os.path.join(patched, name), os.path.join(source, name))
        self._make('rxe with mistakes', ['M=/out/mistaken', 'modules'])
        os.makedirs(os.path.join(folder, 'mistaken'))
        shutil.copy(os.path.join(source, 'rdma_rxe.ko'), os.path.join(folder, 'mistaken'))

    def _make(self, what, args, result=None):
        log_path = os.path.join(self.kernel.dir, 'debug-build.log')
        started = said = time.monotonic()
        mounts = [(self.source, 'src'), (self.objects, 'out')]
        if result:
            mounts.append((result, 'result'))

        def watch():
            nonlocal said
            now = time.monotonic()
            if now - said >= PROGRESS:
                said = now
                with open(log_path, encoding='utf-8', errors='replace') as f:
                    steps = len(re.findall(r'^  [A-Z]+ ', f.read(), re.M))
                say(f'{now - started:.0f} s: {steps} steps of building {what}')

        with open(log_path, 'w', encoding='utf-8') as log:
            try:
                status = self.kernel.make_in_root(
                    mounts, ['-C', '/src', 'O=/out', 'ARCH=x86_64', 'CC=gcc-14', 'HOSTCC=gcc-14',
                             'KBUILD_BUILD_USER=lab', 'KBUILD_BUILD_HOST=lab', 'KCFLAGS=-g0', *args],
                    log, BUILD_TIMEOUT, watch)
            except subprocess.TimeoutExpired as e:
                raise Failed(f'building {what} took more than {BUILD_TIMEOUT} s and was ended; the '
                             f'next run goes on from there. All of it is in {log_path}') from e
        if status:
            with open(log_path, encoding='utf-8', errors='replace') as f:
                sys.stderr.write(''.join(f.readlines()[-40:]))
            raise Failed(f'{what} does not build; all of it is in {log_path}')
