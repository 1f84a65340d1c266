"""Commands run as a user of no name: no passwd entry, no home, no group but its own."""

from __future__ import annotations

import functools
import os
import pwd
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NOBODY = 64_123  # a number that no passwd entry has
_AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# setpriv itself still finds what root may find: the command is looked for by a shell of the user's.
_BY_SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
# Where an interpreter lies in a folder of root's, the user is let read it, and everything else.
# What it may write, which is what these tests are about, stays what a user of no name may write.
_READING = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


_SYSTEM_PYTHON = "/usr/bin/python3"
_PROBE = ("-c", "import sys, cudnn_aot._native; print(*sys.version_info[:2])")


@dataclass(frozen=True, slots=True)
class _Way:
    """How commands are run: what stands before them, and in place of the tests' interpreter."""

    prefix: tuple[str, ...]
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, command: Sequence[str | Path], cwd: Path | str, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        words = [self.python if word == sys.executable else str(word) for word in command]
        whole = (*self.prefix, *_BY_SHELL, *words)
        return subprocess.run(
            whole, capture_output=True, text=True, cwd=cwd, env={**env, **self.env}
        )

    def works(self) -> bool:
        done = self.run((sys.executable, *_PROBE), "/", {})
        version = " ".join(map(str, sys.version_info[:2]))
        return done.returncode == 0 and done.stdout.strip() == version


def _ways(needs_closed_folders: bool) -> Iterator[_Way]:
    yield _Way(_AS_NOBODY)
    # An interpreter of the system's, where that of the tests lies in a folder of root's. It starts
    # no compile worker, so it is for what builds nothing.
    if needs_closed_folders:
        folders = {"SITE_OF_THE_TESTS": os.pathsep.join(site.getsitepackages())}
        place = {"PYTHONPATH": str(Path(__file__).with_name("nobody_site"))}
        yield _Way(_AS_NOBODY, _SYSTEM_PYTHON, folders | place)
    else:
        yield _Way((*_AS_NOBODY, *_READING))


@functools.cache
def _way(needs_closed_folders: bool) -> _Way | None:
    try:
        pwd.getpwuid(NOBODY)
    except KeyError:
        return next((way for way in _ways(needs_closed_folders) if way.works()), None)
    raise AssertionError(f"{NOBODY} is a user here")


def run_as_nobody(
    command: Sequence[str | Path],
    cwd: Path | str,
    env: Mapping[str, str],
    *,
    needs_closed_folders: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command as user `NOBODY`; skip the test where this installation is closed to it.

    With ``needs_closed_folders`` of what nobody may look at; else the user may be let read
    everything.
    """
    way = _way(needs_closed_folders)
    if way is None:
        pytest.skip("another user cannot read this installation")
    return way.run(command, cwd, env)
