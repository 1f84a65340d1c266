"""One store under the oldest and the newest tvm-ffi that the package index has of those we take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_aot.runtime.plan import FFI_MIN
from cudnn_aot.runtime.requirements import numbers

SERVE = """
import ctypes, sys
from cudnn_aot import errors, runtime
store = runtime.open(sys.argv[1])
for name in ("up", "down"):
    plan = store.plan(name)
    (found,) = {v for v in store.validity() if name in v.names}
    (ffi,) = [flag for flag in found.flags if flag.name == "tvm_ffi"]
    assert found.ok and ffi.got == sys.argv[2], found
    sizes = {op["uid"]: (op["kind"], op["dim"]) for op in plan.table["operands"]}
    buffers = {uid: ctypes.create_string_buffer(1 << 16) for uid in sizes}
    addresses = {uid: ctypes.addressof(buffer) for uid, buffer in buffers.items()}
    plan.prepare()
    for uid, (kind, _) in sizes.items():
        ctypes.memset(buffers[uid], 0xFF if kind == "output" else 0, 1 << 16)
    plan.execute(addresses, symbols={"M": 5})
    (out,) = [uid for uid, (kind, _) in sizes.items() if kind == "output"]
    assert buffers[out].raw[:5 * 40 * 2].count(0) == 400  # of nothing times nothing
    try: plan.execute({})
    except errors.RefusedError: pass
    else: raise AssertionError
maps = open("/proc/self/maps").read()
loaded = {line.split()[-1] for line in maps.splitlines() if "libtvm_ffi" in line}
assert len(loaded) == 1 and loaded.pop().startswith(sys.argv[3]), loaded
"""


def pip(*arguments: object) -> str:
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def versions() -> tuple[str, str]:
    """The oldest and the newest; of one release the posts count too."""
    listed = pip("index", "versions", "apache-tvm-ffi").partition("Available versions:")[2]
    found = [version.strip() for version in listed.splitlines()[0].split(",")]
    taken = [version for version in found if numbers(version) >= numbers(FFI_MIN)]
    assert taken, found
    return taken[-1], taken[0]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_a_store_is_served(
    versions: tuple[str, str], which: str, built_store: Path, tmp_path: Path
) -> None:
    version = versions[which == "newest"]
    folder = tmp_path / "packages"
    pip("install", "--no-deps", "--target", folder, f"apache-tvm-ffi=={version}")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(built_store), version, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
