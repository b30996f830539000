# SPDX-License-Identifier: BSD-3-Clause
"""What all of the lab shares: its folders, what goes wrong, how others' programs are run."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
PATCHES = os.path.join(ROOT, 'kernel-patches')
LAB = os.path.join(ROOT, 'tests', 'lab')
CACHE = os.environ.get('PEERBUF_LAB_CACHE') or os.path.join(
    os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'peerbuf', 'lab')

SKIP_STATUS = 77


class Unavailable(Exception):
    """This machine cannot do it: nothing is wrong with what would have been tested."""


class Failed(Exception):
    pass


def say(text):
    print(f'lab: {text}', file=sys.stderr, flush=True)


def output_of(argv, **kwargs):
    done = subprocess.run(argv, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **kwargs)
    if done.returncode:
        tail = '\n'.join((done.stdout + done.stderr).splitlines()[-25:])
        raise Failed(f'{" ".join(argv[:4])}... failed with status {done.returncode}:\n{tail}')
    return done.stdout


@contextlib.contextmanager
def appearing(path):
    """A folder that is there only once it is whole."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = tempfile.mkdtemp(prefix=os.path.basename(path) + '.', dir=os.path.dirname(path))
    os.chmod(partial, 0o755)
    try:
        yield partial
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
