# SPDX-License-Identifier: BSD-3-Clause
"""The distribution's kernel, and its RDMA modules built with a series of kernel-patches."""
import contextlib
import filecmp
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
from .base import CACHE, LAB, PATCHES, Failed, Unavailable, appearing, output_of, say

# What of the kernel's source a series may touch. Their commit is the base that the series name, so
# it must come out the same everywhere: another list is another base.
SOURCES = ('drivers/infiniband/core', 'drivers/infiniband/sw/rxe', 'drivers/dma-buf',
           'include/rdma', 'include/uapi/rdma', 'include/linux/dma-buf.h',
           'include/linux/dma-buf-mapping.h', 'include/uapi/linux/dma-buf.h',
           'Documentation/infiniband', 'Documentation/driver-api/dma-buf.rst',
           'tools/testing/selftests/rdma')
# Used as they are and never patched.
TOOLS = ('scripts/checkpatch.pl', 'scripts/spelling.txt', 'scripts/const_structs.checkpatch',
         'scripts/checker-valid.sh',
         'scripts/kernel-doc', 'scripts/kernel-doc.py', 'scripts/lib/kdoc', 'tools/lib/python',
         'Documentation/dev-tools/checkpatch.rst')
# Two thirds of the source, not even unpacked.
UNUSED = ('arch', 'sound', 'drivers/gpu', 'drivers/media', 'drivers/net', 'drivers/staging',
          'Documentation/devicetree')
BUILD_PACKAGES = ('base-files', 'bash', 'dash', 'coreutils', 'sed', 'grep', 'findutils', 'mawk',
                  'diffutils', 'gcc-14', 'make', 'libc6-dev', 'kmod', 'sparse')
BUILT = ('ib_core', 'ib_cm', 'iw_cm', 'rdma_cm', 'rdma_ucm', 'ib_umad', 'ib_uverbs',
         'ib_uverbs_support', 'rdma_rxe')
OURS = ('lab_exporter',)
NO_SIGNING = {'GIT_CONFIG_NOSYSTEM': '1', 'GIT_CONFIG_GLOBAL': '/dev/null'}
SOMEBODY = {f'GIT_{role}_{what}': value for role in ('AUTHOR', 'COMMITTER')
            for what, value in (('NAME', 'lab'), ('EMAIL', 'lab@localhost'),
                                ('DATE', '2000-01-01T00:00:00Z'))}


class Kernel:
    """One kernel of the distribution: its image, its modules, its source, and what builds modules."""

    def __init__(self, archive, release):
        self.archive = archive
        self.release = release  # 7.3.4+deb13-amd64, as uname -r says
        self.numbers = re.match(r'(\d+)\.(\d+)\.(\d+)', release).groups()
        self.series_version = '.'.join(self.numbers[:2])
        self.dir = os.path.join(CACHE, release)
        self.tree = os.path.join(self.dir, 'tree')
        self.root = os.path.join(self.dir, 'root')

    def fetch(self):
        if os.path.isdir(os.path.join(self.dir, 'image')) and os.path.isdir(self.tree) \
                and os.path.isdir(self.root):
            return
        debs = os.path.join(self.dir, 'debs')
        packages = [f'linux-binary-{self.release}', f'linux-modules-{self.release}',
                    f'linux-source-{self.series_version}']
        say(f'fetching Linux {self.release}')
        shutil.rmtree(debs, ignore_errors=True)
        self.archive.download(packages, debs)
        source = glob.glob(os.path.join(debs, 'linux-source-*.deb'))[0]
        image = glob.glob(os.path.join(debs, 'linux-binary-*.deb'))[0]
        if source.split('_')[1] != image.split('_')[1]:
            raise Unavailable(f'the registry has the source of another version than {image}')
        if not os.path.isdir(os.path.join(self.dir, 'image')):
            with appearing(os.path.join(self.dir, 'image')) as folder:
                unpack(image, folder)
                unpack(glob.glob(os.path.join(debs, 'linux-modules-*.deb'))[0], folder)
        if not os.path.isdir(self.tree):
            self._make_tree(source)
        if not os.path.isdir(self.root):
            self._make_root()
        shutil.rmtree(debs)

    def _make_tree(self, deb):
        say('unpacking its source')
        with tempfile.TemporaryDirectory(prefix='unpacked-', dir=self.dir) as folder:
            unpack(deb, folder)
            packed = glob.glob(os.path.join(folder, 'usr/src/*.tar.*'))[0]
            output_of(['tar', 'xf', packed, '-C', folder, '--strip-components=1',
                       *(f'--exclude=*/{name}' for name in UNUSED)])
            with appearing(self.tree) as tree:
                for name in SOURCES + TOOLS:
                    if not os.path.exists(os.path.join(folder, name)):
                        continue
                    target = os.path.join(tree, '.lab' if name in TOOLS else '', name)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    copy = shutil.copytree if os.path.isdir(os.path.join(folder, name)) \
                        else shutil.copy
                    copy(os.path.join(folder, name), target)
                with open(os.path.join(tree, '.gitignore'), 'w', encoding='utf-8') as f:
                    f.write('/.gitignore\n/.lab/\n*.o\n*.ko\n*.mod\n*.mod.c\n*.cmd\n'
                            '*.order\nModule.symvers\n/drivers/infiniband/Kbuild\n'
                            '/drivers/infiniband/lab/\n')
                git(tree, 'init', '-q', '-b', 'lab')
                git(tree, 'add', '-f', *[n for n in SOURCES
                                         if os.path.exists(os.path.join(tree, n))])
                git(tree, 'commit', '-q', '-m', f'Linux {".".join(self.numbers)}\n\n'
                    f'The parts that the series touch, of the Debian package '
                    f'{os.path.basename(deb).split("_")[1].replace("%3a", ":")}.')
                git(tree, 'tag', 'base')

    def _make_root(self):
        """The distribution's compiler and headers, unpacked; the headers that a series may change
        are those of the source, which is mounted on /src."""
        say('unpacking its compiler and headers')
        with appearing(self.root) as root:
            for deb in self.archive.download_with_dependencies(
                    [*BUILD_PACKAGES, f'linux-headers-{self.release}']):
                output_of(['dpkg-deb', '-x', deb, root])
            common = f'{root}/usr/src/linux-headers-{self.release.rsplit("-", 1)[0]}-common'
            for name in ('include/rdma', 'include/uapi/rdma'):
                shutil.rmtree(os.path.join(common, name))
                os.symlink('/src/' + name, os.path.join(common, name))
            # the headers' package has no use for it, and sparse does not run without
            shutil.copy(os.path.join(self.tree, '.lab/scripts/checker-valid.sh'),
                        os.path.join(common, 'scripts'))
            # the tracepoints of the CM name their header from the top of the source
            os.makedirs(os.path.join(common, 'drivers'), exist_ok=True)
            os.symlink('/src/drivers/infiniband', os.path.join(common, 'drivers/infiniband'))
            if not os.path.exists(f'{root}/usr/bin/awk'):
                os.symlink('mawk', f'{root}/usr/bin/awk')
            os.makedirs(f'{root}/src')

    def make(self, tree, args, log=None):
        """make, of the modules in tree, in the distribution's environment."""
        # for kbuild alone, which takes it before a Makefile
        with open(os.path.join(tree, 'drivers/infiniband/Kbuild'), 'w', encoding='utf-8') as f:
            f.write('obj-y += core/ sw/rxe/ $(if $(wildcard $(src)/lab),lab/)\n')
        return self.make_in_root(
            [(tree, 'src')], ['-C', f'/usr/src/linux-headers-{self.release}',
                              'M=/src/drivers/infiniband', 'CONFIG_DEBUG_INFO_BTF_MODULES=',
                              'KCFLAGS=-g0', *args], log)

    def make_in_root(self, mounts, args, log=None, timeout=None, watch=lambda: None):
        """make with (folder, where) mounted; watch is called about every second. TimeoutExpired
        leaves none of its processes."""
        script = 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift'
        operands = []
        for folder, where in mounts:
            os.makedirs(os.path.join(self.root, where), exist_ok=True)
            script += f' && mount --bind "$1" "$root/{where}" && shift'
            operands.append(folder)
        # --kill-child: what still runs in there ends with the one that is waited for
        alone = ['unshare', *([] if os.geteuid() == 0 else ['--map-root-user']), '--mount', '--pid',
                 '--fork', '--kill-child']
        try:
            output_of([*alone, 'mount', '-t', 'proc', 'proc', os.path.join(self.root, 'proc')])
        except Failed as e:
            raise Unavailable('this machine does not let it mount, not even in a namespace of its '
                              f'own: {str(e).splitlines()[-1]}') from e
        argv = [*alone, 'sh', '-c', script + ' && exec chroot "$root" "$@"', 'sh',
                self.root, *operands, 'make', *args]
        env = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C'}
        started = time.monotonic()
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                              env=env) as process:
            while True:
                try:
                    return process.wait(1)
                except subprocess.TimeoutExpired:
                    watch()
                    if timeout and time.monotonic() - started > timeout:
                        process.kill()
                        raise
                except BaseException:
                    process.kill()
                    raise


def git(tree, *argv):
    return output_of(['git', '-C', tree, *argv], env={**os.environ, **NO_SIGNING, **SOMEBODY})

# ---- the patched modules ---------------------------------------------------------------------


def series_for(kernel):
    """The series of its version or, newest first, of older ones."""
    def key(version):
        return tuple(int(n) for n in version.split('.'))
    versions = [n for n in os.listdir(PATCHES) if re.fullmatch(r'\d+\.\d+', n)]
    return sorted((v for v in versions if key(v) <= key(kernel.series_version)), key=key,
                  reverse=True)


def copy_if_other(source, target):
    """Whether it was copied. What is as it should be keeps its time, so that nothing is built of it
    again."""
    if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
        return False
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy(source, target)
    return True


def our_modules():
    return sorted(glob.glob(os.path.join(LAB, 'kernel', '*')))


def patches_of(version):
    return sorted(p for p in glob.glob(os.path.join(PATCHES, version, '[0-9]*.patch'))
                  if not p.endswith('0000-cover-letter.patch'))


def apply(kernel, patches):
    """Why the patches do not apply, or None. Those that did are remembered by what they are, so that
    nothing is written, and so built, again."""
    key = hashlib.sha256()
    for path in patches:
        with open(path, 'rb') as f:
            key.update(f.read())
    applied = f'refs/lab/{key.hexdigest()[:16]}'
    with contextlib.suppress(Failed):
        git(kernel.tree, 'checkout', '-q', '-f', '--detach', applied)
        return None
    git(kernel.tree, 'checkout', '-q', '-f', '--detach', 'base')
    try:
        if patches:
            git(kernel.tree, 'am', '-q', '--keep-cr', *patches)
        git(kernel.tree, 'update-ref', applied, 'HEAD')
    except Failed as e:
        with contextlib.suppress(Failed):
            git(kernel.tree, 'am', '--abort')
        return str(e)
    return None


def choose(archive):
    """The newest kernel that a series applies to, with the series applied."""
    refused = []
    for release in archive.kernels() or cached_kernels():
        kernel = Kernel(archive, release)
        for version in series_for(kernel):
            kernel.fetch()
            why = apply(kernel, patches_of(version))
            if not why:
                return kernel, version
            refused.append(f'kernel-patches/{version} does not apply to {release}')
            say(f'{refused[-1]}: {why}')
    raise Unavailable('; '.join(refused) or 'there is no kernel that a series was made for')


def cached_kernels():
    return sorted((os.path.basename(os.path.dirname(p))
                   for p in glob.glob(os.path.join(CACHE, '*', 'tree'))), reverse=True)


def build(kernel, version, jobs):
    """The folder of the patched modules, from the cache if they were built before."""
    key = hashlib.sha256(kernel.release.encode())
    for path in patches_of(version) + our_modules():
        with open(path, 'rb') as f:
            key.update(f.read())
    key.update(git(kernel.tree, 'rev-parse', 'base^{tree}').encode())
    folder = os.path.join(kernel.dir, 'modules-' + key.hexdigest()[:16])
    if os.path.isdir(folder):
        return folder
    say(f'building RDMA/core and rxe of {kernel.release} with kernel-patches/{version}')
    log_path = os.path.join(kernel.dir, 'build.log')
    ours = os.path.join(kernel.tree, 'drivers/infiniband/lab')
    os.makedirs(ours, exist_ok=True)
    for path in our_modules():
        shutil.copy2(path, ours)
    with open(log_path, 'w', encoding='utf-8') as log:
        status = kernel.make(kernel.tree, ['modules', f'-j{jobs}'], log)
    if status:
        with open(log_path, encoding='utf-8', errors='replace') as f:
            sys.stderr.write(''.join(f.readlines()[-40:]))
        raise Failed(f'the modules do not build; all of it is in {log_path}')
    with appearing(folder) as partial:
        for name in BUILT + OURS:
            built = glob.glob(f'{kernel.tree}/drivers/infiniband/**/{name}.ko', recursive=True)
            if not built:
                raise Failed(f'the build left no {name}.ko')
            output_of(['strip', '--strip-debug', '-o', f'{partial}/{name}.ko', built[0]])
    return folder
