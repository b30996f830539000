# SPDX-License-Identifier: BSD-3-Clause
"""The distribution's packages."""
import contextlib
import fcntl
import glob
import os
import re
import shutil
import subprocess

from .base import CACHE, Failed, Unavailable, output_of, say

SUITE = 'trixie'
BACKPORTS = f'{SUITE}-backports'
KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'


class Archive:
    """Packages of a release that is not this machine's, through an apt of their own."""

    def __init__(self):
        self.dir = os.path.join(CACHE, 'apt')
        for tool in ('apt-get', 'apt-cache', 'dpkg-deb'):
            if not shutil.which(tool):
                raise Unavailable(f'there is no {tool}: the kernel comes as Debian packages')
        if not os.path.exists(KEYRING):
            raise Unavailable(f'{KEYRING} is missing (package debian-archive-keyring)')
        for name in ('lists/partial', 'archives/partial'):
            os.makedirs(os.path.join(self.dir, name), exist_ok=True)
        with open(os.path.join(self.dir, 'status'), 'w', encoding='utf-8'):
            pass
        conf = os.path.join(self.dir, 'apt.conf')
        with open(conf, 'w', encoding='utf-8') as f:
            f.write(f'Dir::State "{self.dir}";\nDir::State::status "{self.dir}/status";\n'
                    f'Dir::Cache "{self.dir}";\nDir::Etc::sourcelist "{self.dir}/sources.list";\n'
                    'Dir::Etc::sourceparts "/dev/null";\nDir::Etc::preferences "/dev/null";\n'
                    'Dir::Etc::preferencesparts "/dev/null";\nAPT::Sandbox::User "root";\n'
                    'APT::Architecture "amd64";\nAPT::Architectures {"amd64";};\n'
                    'Acquire::Languages "none";\nAcquire::Retries "2";\n'
                    'Acquire::http::Timeout "20";\nAcquire::https::Timeout "20";\n')
        self.env = dict(os.environ, APT_CONFIG=conf, LC_ALL='C.UTF-8')

    @contextlib.contextmanager
    def _alone(self):
        """apt refuses to run beside itself."""
        with open(os.path.join(self.dir, 'alone'), 'w', encoding='utf-8') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def update(self):
        with self._alone():
            self._update()

    def _update(self):
        mirror = self._mirror()
        with open(os.path.join(self.dir, 'sources.list'), 'w', encoding='utf-8') as f:
            for suite in (SUITE, BACKPORTS):
                f.write(f'deb [signed-by={KEYRING}] {mirror} {suite} main\n')
        try:
            output_of(['apt-get', 'update', '-q', '--error-on=any'], env=self.env)
        except Failed as e:
            say(str(e))
            raise Unavailable('the package registry does not answer') from e

    @staticmethod
    def _mirror():
        """Where this machine gets its own packages from, or where it is told to."""
        if mirror := os.environ.get('PEERBUF_LAB_MIRROR'):
            return mirror
        lines = output_of(['apt-get', 'indextargets', '--format', '$(LABEL) $(REPO_URI)',
                           'Created-By: Packages']).splitlines()
        for line in lines:
            label, _, uri = line.rpartition(' ')
            if label == 'Debian':
                return uri
        raise Unavailable('this machine\'s apt has no Debian archive')

    def kernels(self):
        """Versions as in package names, newest first: '7.3.4+deb13-amd64'."""
        names = output_of(['apt-cache', 'pkgnames', 'linux-binary-'], env=self.env).split()
        found = [n.removeprefix('linux-binary-') for n in names
                 if re.fullmatch(r'linux-binary-\d+\.\d+\.[\d.]+\+\S*deb\d+-amd64', n)]
        return sorted(found, key=lambda v: [int(n) for n in re.findall(r'\d+', v)], reverse=True)

    def download(self, packages, folder):
        os.makedirs(folder, exist_ok=True)
        with self._alone():
            output_of(['apt-get', 'download', '-q', '-t', BACKPORTS, *packages], env=self.env,
                      cwd=folder)

    def download_with_dependencies(self, packages):
        """The paths of the packages, and of all they need, as if nothing were installed."""
        argv = ['apt-get', 'install', '-q', '-y', '--no-install-recommends', '-t', BACKPORTS]
        with self._alone():
            output_of([*argv, '--download-only', *packages], env=self.env)
            out = output_of([*argv, '--simulate', *packages], env=self.env)
        paths = []
        for name, version in re.findall(r'^Inst (\S+) \((\S+) ', out, re.M):
            pattern = f'{name}_{version.replace(":", "%3a")}_*.deb'
            paths += glob.glob(glob.escape(os.path.join(self.dir, 'archives')) + '/' + pattern)
        return paths


def unpack(deb, folder, *members):
    with subprocess.Popen(['dpkg-deb', '--fsys-tarfile', deb], stdout=subprocess.PIPE) as source:
        done = subprocess.run(['tar', 'xf', '-', '-C', folder, '--no-same-owner', *members],
                              stdin=source.stdout, capture_output=True, text=True, check=False)
    if done.returncode or source.returncode:
        raise Failed(f'{os.path.basename(deb)} does not unpack: {done.stderr.strip()}')
