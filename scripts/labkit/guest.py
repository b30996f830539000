# SPDX-License-Identifier: BSD-3-Clause
"""The machine: its initramfs, its boot, and what is read of it."""
import contextlib
import glob
import gzip
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time

from .base import LAB, Failed, Unavailable, output_of
from .kernel import BUILT, OURS

# Seconds: a guest from which nothing is heard for so long hangs, and one that runs on for so long as
# well. A loaded machine is ten times slower than an idle one.
QUIET_TIMEOUT = float(os.environ.get('PEERBUF_LAB_QUIET_TIMEOUT') or 240)
BOOT_TIMEOUT = 1200
# Bytes: a guest that says more is in a loop.
LOG_LIMIT = 64 << 20
# How much longer a kernel takes that watches itself.
DEBUG_FACTOR = 4
LOADED = ('dummy', 'ib_uverbs', 'rdma_ucm', 'rdma_rxe')


# Of this project, by its build folder.
OWN = (('tools/peerbuf/peerbuf', 'lab'), ('tests/contract/peerbuf_contract_suite', 'lab'),
       ('exporter/*/peerbuf-*-device', 'lab'), ('exporter/*/peerbuf-*.so', 'lab/plugins'),
       ('importer/*/peerbuf-*.so', 'lab/plugins'))


class Image:
    """An initramfs: a cpio archive of the format newc."""

    def __init__(self):
        self.entries = {}

    def add(self, name, data=b'', mode=stat.S_IFREG | 0o755):
        parent = os.path.dirname(name)
        if parent and parent not in self.entries:
            self.add(parent, mode=stat.S_IFDIR | 0o755)
        self.entries[name] = (mode, data)

    def add_file(self, path, name=None):
        with open(path, 'rb') as f:
            self.add((name or path).lstrip('/'), f.read())

    def add_program(self, path, name=None):
        """With the libraries that it was linked with. Its debug information stays here."""
        self.add((name or path).lstrip('/'), stripped(path))
        listed = subprocess.run(['ldd', path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r'(?:=> )?(/\S+) \(0x', listed):
            # what is found by where the program is lies elsewhere in the guest
            where = library if library.startswith(('/lib', '/usr/lib')) else \
                'lab/lib/' + os.path.basename(library)
            if where.lstrip('/') not in self.entries:
                self.add_file(library, where)

    def write(self, path):
        with gzip.open(path, 'wb', compresslevel=1) as out:
            entries = [*self.entries.items(), ('TRAILER!!!', (0, b''))]
            for inode, (name, (mode, data)) in enumerate(entries, 1):
                header = '070701' + ''.join(f'{n:08x}' for n in (
                    inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0))
                block = header.encode() + name.encode() + b'\0'
                out.write(block + b'\0' * (-len(block) % 4))
                out.write(data + b'\0' * (-len(data) % 4))


INIT = '''#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
export HOME=/tmp LD_LIBRARY_PATH=/lab/lib GTEST_COLOR=no FI_SHM_DISABLE_CMA=1
export PEERBUF_PLUGIN_PATH=/lab/plugins PEERBUF_EMULATED_DEVICE=/lab/peerbuf-emulated-device
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /run
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp
exec >/dev/ttyS1 2>&1 </dev/null
stty -onlcr -F /dev/ttyS1 2>/dev/null
ulimit -l unlimited
while read -r module; do insmod "/modules/$module" || echo "not ok - insmod $module"; done </modules/order
ip link set lo up
ip link add dum0 type dummy; ip addr add 10.9.0.1/24 dev dum0; ip link set dum0 mtu 4500 up
rdma link add rxe0 type rxe netdev dum0
echo "uname $(uname -r)"
while read -r seconds program arguments; do
	echo "begin $program $arguments"
	echo "lab: begin $program $arguments" >/dev/kmsg
	timeout -s KILL "$seconds" "/lab/$program" $arguments
	echo "end $program $arguments: $?"
done </lab/plan
echo "lab: done" >/dev/kmsg
echo done
sync
poweroff -f
'''


def module_order(folder, release, names):
    """The files to load, each after those it needs."""
    env = {**os.environ, 'PATH': os.environ.get('PATH', '') + ':/usr/sbin:/sbin'}
    order = []
    for name in names:
        out = output_of(['modprobe', '-d', folder, '-S', release, '--show-depends', name], env=env)
        for path in re.findall(r'^insmod (\S+)', out, re.M):
            if path not in order:
                order.append(path)
    return order


def stripped(path):
    with open(path, 'rb') as f:
        data = f.read()
    if not data.startswith(b'\x7fELF'):
        return data
    with tempfile.NamedTemporaryFile() as smaller:
        output_of(['strip', '--strip-debug', '-o', smaller.name, path])
        with open(smaller.name, 'rb') as f:
            return f.read()


class Machine:
    """What boots: a kernel, the modules it loads and those that lie beside for what wants them."""

    def __init__(self, release, vmlinuz):
        self.release = release
        self.vmlinuz = vmlinuz
        self.loaded = []  # (name, bytes) in order
        self.beside = []
        self.memory = '1536M'
        self.factor = 1
        self.options = ''


def distribution_machine(kernel, patched, ours):
    """With its own modules, or the patched ones in their place."""
    machine = Machine(kernel.release, os.path.join(kernel.dir, 'image/usr/lib/modules',
                                                   kernel.release, 'vmlinuz'))
    with tempfile.TemporaryDirectory(prefix='peerbuf-lab-') as folder:
        stage_modules(kernel, patched, folder)
        machine.loaded = read_modules(module_order(folder, kernel.release, LOADED))
    machine.beside = read_modules(os.path.join(ours, name + '.ko') for name in OURS)
    return machine


def debug_machine(debug):
    machine = Machine(debug.release, debug.vmlinuz)
    machine.loaded = read_modules(module_order(debug.dir, debug.release, LOADED))
    machine.beside = read_modules(module_order(debug.dir, debug.release, (*OURS, 'dmabuf_kunit')))
    machine.beside.append(('mistaken.ko', read_module(debug.mistaken)))
    machine.memory = '2G'
    machine.factor = DEBUG_FACTOR
    machine.options = 'printk.time=1'
    return machine


def stage_modules(kernel, patched, folder):
    """A modules folder of this boot: the distribution's, with the patched ones put in their place."""
    source = os.path.join(kernel.dir, 'image/usr/lib/modules', kernel.release)
    target = os.path.join(folder, 'lib/modules', kernel.release)
    os.makedirs(target)
    for name in os.listdir(source):
        if name.startswith('modules.'):
            shutil.copy(os.path.join(source, name), target)
    wanted = ('drivers/infiniband/core', 'drivers/infiniband/sw/rxe', 'net/ipv4', 'net/ipv6',
              'net/core', 'fs/configfs', 'lib', 'crypto', 'drivers/net/dummy.ko.xz')
    for name in wanted:
        path = os.path.join(source, 'kernel', name)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(target, 'kernel', name))
        elif os.path.exists(path):
            os.makedirs(os.path.dirname(os.path.join(target, 'kernel', name)), exist_ok=True)
            shutil.copy(path, os.path.join(target, 'kernel', name))
    if patched:
        for name in BUILT:
            for old in glob.glob(f'{target}/kernel/drivers/infiniband/**/{name}.ko*',
                                 recursive=True):
                os.unlink(old)
            os.makedirs(os.path.join(target, 'updates'), exist_ok=True)
            shutil.copy(os.path.join(patched, name + '.ko'), os.path.join(target, 'updates'))
    env = {**os.environ, 'PATH': os.environ.get('PATH', '') + ':/usr/sbin:/sbin'}
    output_of(['depmod', '-b', folder, kernel.release], env=env)


def read_module(path):
    with open(path, 'rb') as f:
        data = f.read()
    if path.endswith('.xz'):
        import lzma
        return lzma.decompress(data)
    if path.endswith('.ko'):
        return data
    raise Failed(f'{path}: modules packed like this are not known here')


def read_modules(paths):
    return [(os.path.basename(path).split('.')[0] + '.ko', read_module(path)) for path in paths]


def guest_programs(build, plan):
    """[(path, where in the guest)] of what was built for the guest and, if the plan has a line with
    it, of this project's command, plugins and contract suite."""
    def built(pattern):
        return [p for p in glob.glob(os.path.join(build, pattern))
                if os.path.isfile(p) and os.access(p, os.X_OK)]

    found = [(p, 'lab') for p in glob.glob(os.path.join(LAB, '*.sh')) + built('tests/lab/*')]
    if any('peerbuf' in line.program for line in plan):
        for pattern, where in OWN:
            paths = built(pattern)
            if not paths:
                raise Failed(f'{pattern} is not built in {build}')
            found += [(p, where) for p in paths]
    return [(path, f'{where}/{os.path.basename(path)}') for path, where in found]


def host_programs():
    """What of this machine runs in the guest."""
    tools = {}
    for name in ('ip', 'rdma', 'busybox', 'rping', 'ib_write_bw', 'ib_read_bw', 'ib_send_bw'):
        path = shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin')
        if not path:
            raise Unavailable(f'there is no {name} on this machine')
        tools[name] = path
    providers = glob.glob('/usr/lib/*/libibverbs/librxe-*.so')
    if not providers:
        raise Unavailable('rdma-core\'s rxe provider is missing (package ibverbs-providers)')
    return tools, providers


def make_image(machine, programs, plan, path):
    tools, providers = host_programs()
    image = Image()
    for name in ('bin', 'dev', 'proc', 'sys', 'tmp', 'run', 'lab', 'modules'):
        image.add(name, mode=stat.S_IFDIR | 0o755)
    image.add('init', INIT.encode())
    for name, tool in tools.items():
        image.add_program(tool, 'bin/' + name)
    for provider in providers:
        image.add_program(provider)
    # what the C library loads by itself when a thread ends
    for library in glob.glob('/usr/lib/x86_64-linux-gnu/libgcc_s.so.1'):
        image.add_file(library)
    for driver in glob.glob('/etc/libibverbs.d/rxe.driver'):
        image.add_file(driver)
    for program, name in programs:
        image.add_program(program, name)
    image.add('lab/plan', ''.join(f'{line.seconds * machine.factor} {line.program}\n'
                                  for line in plan).encode())
    for name, data in machine.loaded + machine.beside:
        image.add('modules/' + name, data)
    image.add('modules/order', ''.join(f'{name}\n' for name, _ in machine.loaded).encode())
    image.write(path)


def boot(machine, image, folder):
    """The guest's own lines, or Failed with the end of the kernel's log. What QEMU exits with says
    nothing: it is 0 for a panic too."""
    qemu = shutil.which('qemu-system-x86_64')
    if not qemu:
        raise Unavailable('there is no qemu-system-x86_64 (package qemu-system-x86)')
    console, tests = os.path.join(folder, 'console.log'), os.path.join(folder, 'tests.log')
    # Without la57: while a kernel of 7.3 identifies its first CPU it forgets for a moment that it has five
    # levels of page tables, and KASAN takes what an interrupt touches then for wild.
    argv = [qemu, '-M', 'q35', '-accel', 'tcg,thread=multi', '-cpu', 'max,la57=off', '-smp', '2',
            '-m', machine.memory, '-display', 'none', '-no-reboot', '-nodefaults', '-monitor', 'none',
            '-serial', f'file:{console}', '-serial', f'file:{tests}',
            '-kernel', machine.vmlinuz, '-initrd', image,
            # Without no_timer_check a boot of twenty dies on a loaded host.
            '-append', 'console=ttyS0 loglevel=7 panic=-1 oops=panic mitigations=off '
            f'no_timer_check tsc=reliable module.sig_enforce=0 {machine.options}']
    started = heard = time.monotonic()
    size, timed_out = 0, None
    with tempfile.TemporaryFile('w+') as said:
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process, \
                killed_on_exit(process):
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                written = sum(os.path.getsize(p) for p in (tests, console) if os.path.exists(p))
                if written != size:
                    size, heard = written, now
                if now - heard > QUIET_TIMEOUT or now - started > BOOT_TIMEOUT \
                        or written > LOG_LIMIT:
                    process.kill()
                    timed_out = now - started
        said.seek(0)
        return Boot(read_lines(tests), read_lines(console), said.read().strip(), timed_out)


@contextlib.contextmanager
def killed_on_exit(process):
    try:
        yield
    finally:
        process.kill()


def read_lines(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as f:
            return f.read().replace('\r', '').splitlines()
    except FileNotFoundError:
        return []


def line_of_gtest(line, before):
    """What a GoogleTest program says of a case, in the words of the others. The list at its end names
    cases again, without their time."""
    found = re.fullmatch(r'\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(, where .*)? \(\d+ ms\)', line)
    if not found:
        return line
    return {'OK': f'ok - {found[2]}', 'FAILED': f'not ok - {found[2]}: {before}',
            'SKIPPED': f'skip - {found[2]}: {before}'}[found[1]]


class Boot:
    def __init__(self, tests, console, qemu, timed_out):
        self.console = console
        self.qemu = qemu
        self.timed_out = timed_out
        self.finished = 'done' in tests
        self.uname = next((line.split()[1] for line in tests if line.startswith('uname ')), None)
        self.tests = tests
        self.programs = {}  # 'program arguments' -> (status, lines)
        current = None
        for line in tests:
            if line.startswith('begin '):
                current = line.removeprefix('begin ').strip()
                self.programs[current] = (None, [])
            elif current and (end := re.fullmatch(r'end .*: (\d+)', line)):
                self.programs[current] = (int(end[1]), self.programs[current][1])
                current = None
            elif current:
                lines = self.programs[current][1]
                lines.append(line_of_gtest(line, lines[-1] if lines else ''))

    def bad_lines(self, patterns, allowed=(), program=None):
        """What of the kernel's log is not clean, from when the program began; a line that is allowed
        takes the next one with it, which only says where it came from."""
        begins = [i for i, line in enumerate(self.console)
                  if program and f'lab: begin {program}' in line]
        log = self.console[begins[0] if begins else 0:]
        spared = set()
        for i in self.lines_of(allowed, log):
            spared |= {i, i + 1}
        return [log[i] for i in self.lines_of(patterns, log) if i not in spared]

    @staticmethod
    def lines_of(patterns, log):
        return [i for i, line in enumerate(log) if any(p.search(line) for p in patterns)]

    def log_of(self, program):
        """The kernel's log from when the program began until the next one did."""
        log, inside = [], False
        for line in self.console:
            if found := re.search(r'\blab: (begin .*|done)', line):
                inside = found[1].removeprefix('begin ').strip() == program
            if inside:
                log.append(line)
        return log

    def passed(self, program):
        status, lines = self.programs.get(program, (None, []))
        return status == 0 and any(line.startswith('ok ') for line in lines) \
            and not any(line.startswith('not ok') for line in lines)

    def tail(self):
        return '\n'.join([*self.console[-40:], *self.tests[-20:], self.qemu])
