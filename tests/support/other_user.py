"""Commands run as a user of no name: no passwd entry, no home, no group but its own."""

from __future__ import annotations

import functools
import pwd
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

NOBODY = 64_123  # a number that no passwd entry has
_AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# Where an interpreter lies in a folder of root's, the user is let read it, and everything else.
# What it may write, which is what these tests are about, stays what a user of no name may write.
_READING = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


@functools.cache
def _prefix() -> tuple[str, ...]:
    try:
        pwd.getpwuid(NOBODY)
    except KeyError:
        pass
    else:
        raise AssertionError(f"{NOBODY} is a user here")
    probe = (sys.executable, "-c", "import cudnn_aot._native")
    for prefix in (_AS_NOBODY, (*_AS_NOBODY, *_READING)):
        if subprocess.run((*prefix, *probe), capture_output=True, cwd="/").returncode == 0:
            return prefix
    pytest.skip("another user cannot read this installation")


def need_closed_folders() -> None:
    """Skip a test of what nobody may look at, where the user is let read everything."""
    if _prefix() != _AS_NOBODY:
        pytest.skip("another user reads this installation by a capability alone")


def run_as_nobody(
    command: Sequence[str | Path], cwd: Path | str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command as user `NOBODY`; skip the test where this installation is closed to it."""
    return subprocess.run(
        (*_prefix(), *map(str, command)), capture_output=True, text=True, cwd=cwd, env=env
    )
