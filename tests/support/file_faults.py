"""Building on a file system that refuses: at every call, with every error that one may give.

``file_faults.py FOLDER ERRNO STEP`` in a process with the library of file_faults.c preloaded fills
a store again and again, the disk failing from the first call on, then from a later one, by STEP.
After each it looks at the store with the fault gone, and fills it once more. It prints a JSON
document: the calls, the refusals and whatever else there was.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

OPEN, WRITE, SYNC, RENAME, MAKE_FOLDER, LOCK = (1 << bit for bit in range(6))
CHANGES = WRITE | SYNC | RENAME | MAKE_FOLDER


def library(folder: Path) -> Path:
    """The compiled file layer."""
    path = folder / "file_faults.so"
    source = Path(__file__).with_name("file_faults.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return path


def environment(
    layer: Path, calls: int, error: int, below: Path, start: int = 1, most: int | None = None
) -> Mapping[str, str]:
    """Of a process for which these calls fail: all from call ``start`` on, or ``most`` of them."""
    return {
        **os.environ,
        "LD_PRELOAD": str(layer),
        "FILE_FAULTS": f"{start}:{error}:{calls}:{below}",
        **({} if most is None else {"FILE_FAULTS_MOST": str(most)}),
    }


def every_call(layer: Path, folder: Path, error: int, step: int = 1) -> dict:
    """What became of the store for each first call to fail, as the script prints it."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(error), str(step)],
        env={**os.environ, "LD_PRELOAD": str(layer)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    import toy_store

    from cudnn_aot.cache import layout
    from cudnn_aot.cache.reader import StoreReader
    from cudnn_aot.cache.writer import StoreWriter
    from cudnn_aot.errors import StoreError

    folder, error, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    layer = ctypes.CDLL(None)
    calls = CHANGES | (OPEN if error == errno.ESTALE else 0)

    def fill(store: Path) -> None:
        with StoreWriter(store) as writer:
            toy_store.fill(writer, 1)

    def fail_from(call: int) -> None:
        layer.file_faults_from(ctypes.c_long(call), error, calls, os.fsencode(folder))

    fail_from(0)
    fill(folder / "whole")
    whole = toy_store.snapshot(folder / "whole")
    store, messages, unexpected, call = folder / "store", set(), [], 1 - step
    while True:
        call += step
        fail_from(call)
        outcome = ""
        try:
            fill(store)
        except StoreError as refusal:
            messages.add(str(refusal).replace(str(folder), ""))
        except BaseException as other:
            outcome = f"raised {other!r}"
        is_over = layer.file_faults_seen() < call
        fail_from(0)
        if (store / layout.STORE_FILE).exists():
            problems = StoreReader(store).verify()
            outcome = outcome or (f"left {problems}" if problems else "")
        fill(store)
        if toy_store.snapshot(store) != whole:
            outcome = outcome or "the repetition ends in another store"
        left = sorted({path.name for path in folder.iterdir()} - {"whole", "store"})
        outcome = outcome or (f"left {left}" if left else "")
        if outcome:
            unexpected.append(f"call {call}: {outcome}")
        shutil.rmtree(store)
        if is_over:
            break
    print(json.dumps({"calls": call, "messages": sorted(messages), "unexpected": unexpected}))


if __name__ == "__main__":
    main()
