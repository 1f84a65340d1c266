"""SIGKILL at random moments of real builds, and what each leaves behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli_process import UNSET, tree_digest

from cudnn_aot.cache import layout
from cudnn_aot.cache.reader import StoreReader

# Kills that one store lives through before it is completed and compared.
KILLS_PER_STORE = 5


@dataclass(slots=True)
class Killed:
    """What the kills came to.

    Attributes:
        ended: builds that had ended when the kill came.
        files: documents that the store had when the kill came, of each kill.
        faults: whatever was not as it should be, in words.
    """

    ended: int = 0
    files: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def _count_documents(store: Path) -> int:
    return len(list(store.rglob("*.json"))) if (store / layout.STORE_FILE).exists() else 0


def kill_builds(
    files: Sequence[Path],
    undisturbed: Path,
    folder: Path,
    points: int,
    seed: int,
    build_s: float,
    hang_s: float = 120,
) -> Killed:
    """Kill a CPU build of ``files`` at ``points`` moments, whole process group.

    After each kill the store, if there is one by then, is verified. After `KILLS_PER_STORE` of them
    the build is repeated to its end, which must be that of ``undisturbed``, within ``hang_s``.

    Every other kill comes at a moment of the clock, and most of a build's time is compilation; the
    others come as soon as a number of documents are published.

    Args:
        build_s: what a whole build takes: kills by the clock come between its start and then.
    """
    dice, killed = random.Random(seed), Killed()
    store = folder / "store"
    most = _count_documents(undisturbed)
    for point in range(1, points + 1):
        process = start(files, store)
        if point % 2:
            time.sleep(dice.uniform(0.0, build_s))
        else:
            wanted = dice.randint(1, most)
            while process.poll() is None and _count_documents(store) < wanted:
                time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            killed.ended += 1
        process.communicate()
        is_there = (store / layout.STORE_FILE).exists()
        killed.files.append(_count_documents(store))
        if is_there:
            killed.faults += [f"point {point}: {p}" for p in StoreReader(store).verify()]
        if point % KILLS_PER_STORE and point != points:
            continue
        process = start(files, store)
        try:
            _, err = process.communicate(timeout=hang_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            killed.faults.append(f"point {point}: the repetition hangs")
            continue
        if process.returncode:
            killed.faults.append(f"point {point}: the repetition fails: {err.strip()}")
        elif tree_digest(store) != tree_digest(undisturbed):
            killed.faults.append(f"point {point}: the repetition ends in another store")
        left = sorted(path.name for path in folder.iterdir() if path != store)
        if left:
            killed.faults.append(f"point {point}: left {left}")
        shutil.rmtree(store)
    return killed


def start(files: Sequence[Path], store: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", *map(str, files)]
    return subprocess.Popen(
        [*command, "-t", "cpu", "-j", "2", "--store", str(store)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in UNSET},
        start_new_session=True,
    )
