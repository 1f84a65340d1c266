"""Where a store may lie, who may read it, and that reading it leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import run_cli
from other_user import NOBODY, run_as_nobody
from served_store import small_store

from cudnn_aot import runtime
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader

SERVE = """
import array, os, sys
from cudnn_aot import runtime
for path in sys.argv[1:]:
    store = runtime.open(path, "cpu")
    plans = [*store.plans().values(), store.plan("scale")]
    assert len(plans) == 3 and all(plan.ok for plan in store.validity())
    for plan in plans:
        plan.prepare()
        x, y = array.array("f", range(12)), array.array("f", bytes(48))
        plan.execute({1: x, 3: 0.5, 9: y}, symbols={"M": 2})
        assert list(y) == [v / 2 for v in x]
    assert store.root_digests()
print("served", os.getuid())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may look into, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="cudnn-aot-"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def both(place: Path) -> list[Path]:
    """A store as a folder and as a pack."""
    store = small_store(place / "store")
    write_pack(StoreReader(store), place / "store.pack", 0)
    return [store, place / "store.pack"]


def serve(*paths: Path, **options) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *map(str, paths)], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listing(folder: Path) -> dict[str, tuple[int, ...]]:
    """Mode, inode, size and times of everything, but for the time of reading."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        s = path.lstat()
        found[str(path)] = (s.st_mode, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
    return found


def test_moved_and_reached_through_links(both: list[Path], place: Path) -> None:
    moved = place / "elsewhere" / "moved"
    moved.mkdir(parents=True)
    links = []
    for path in both:
        links.append(place / f"link-{path.name}")
        links[-1].symlink_to(path.rename(moved / path.name))
    serve(*links)
    serve(*moved.iterdir(), cwd="/")
    serve(*(Path(os.path.relpath(path, moved)) for path in moved.iterdir()), cwd=moved)
    for path in links:
        assert run_cli("verify", "--store", path).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_a_user_without_home_or_passwd_entry(both: list[Path], place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "TMPDIR": "/nonexistent"}
    before = listing(place)
    done = run_as_nobody([sys.executable, "-c", SERVE, *both], "/", env)
    assert done.stdout == f"served {NOBODY}\n", done.stderr
    command = [Path(sys.executable).with_name("cudnn-aot"), "verify", "--store", both[0]]
    done = run_as_nobody(command, "/", env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert listing(place) == before


def test_nothing_is_written(both: list[Path], place: Path) -> None:
    """Beside the store, in it, at home, where temporary files go, or where the program stands."""
    for name in ("home", "tmp", "cwd"):
        (place / name).mkdir()
    env = {
        **os.environ,
        "HOME": str(place / "home"),
        "XDG_CACHE_HOME": str(place / "home" / "cache"),
        "TMPDIR": str(place / "tmp"),
    }
    before = listing(place)
    serve(*both, cwd=place / "cwd", env=env)
    for command in (("ls",), ("verify",), ("show", "scale"), ("doctor",)):
        for store in both:
            assert run_cli(*command, "--store", store, cwd=place / "cwd", env=env).returncode == 0
    assert listing(place) == before


@pytest.mark.parametrize("option", ["noexec", "ro"])
def test_mounts(both: list[Path], place: Path, option: str) -> None:
    """What nobody may execute from, and what nobody may write to."""
    mounted = place / "mounted"
    mounted.mkdir()
    script = place / "try.sh"
    script.write_text("#!/bin/sh\necho executed\n")
    script.chmod(0o755)
    inside = [mounted / path.name for path in both]
    steps = [
        f"mount -t tmpfs none {mounted}",
        f"cp -a {shlex.join(map(str, [*both, script]))} {mounted}/",
        f"mount -o remount,{option} {mounted}",
        f"! {mounted}/try.sh 2>&1" if option == "noexec" else f"! touch {mounted}/x 2>&1",
        shlex.join([sys.executable, "-c", SERVE, *map(str, inside)]),
    ]
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    probe = subprocess.run([*unshare, steps[0]], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"mounting is not permitted here: {probe.stderr.strip()}")
    done = subprocess.run([*unshare, " && ".join(steps)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "denied" in done.stdout or "Read-only" in done.stdout
    assert "served" in done.stdout and "executed" not in done.stdout


def test_foreign_files_are_left_alone(both: list[Path], place: Path) -> None:
    store = both[0]
    digest = runtime.open(store).root_digests()
    key = StoreReader(store).pointers()[0][1]
    files = ["notes.txt", "names/cpu/.scale.json.swp", f"plans/cpu/{key}.json.tmp", "blobs/.tmp"]
    files += ["blobs/sha256/aa/junk", "kernels/.DS_Store", "classes", "store.json~", "pack.pack"]
    for path in files:
        (store / path).parent.mkdir(exist_ok=True)
        (store / path).write_text("junk")
    (store / "names/cpu/folder/below").mkdir(parents=True)
    (store / "names/cpu/folder/below/file").write_text("junk")
    (store / "elsewhere").symlink_to("/")
    os.mkfifo(store / "plans/cpu/fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(store / "plans")  # the path of a socket has 107 bytes at most
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
        special = ["elsewhere", "plans/cpu/fifo", "plans/socket", "names/cpu/folder/below/file"]
        foreign = sorted([*files, *special])
        serve(store)
        assert runtime.open(store).root_digests() == digest
        reader = StoreReader(store)
        assert [p.path for p in reader.verify()] == ["classes"]  # where only a folder can be
        (store / "classes").unlink()
        foreign.remove("classes")
        assert reader.verify() == [] and reader.foreign() == foreign
        done = run_cli("verify", "--store", store)
        assert done.returncode == 0 and f"; {len(foreign)} files not of the store" in done.stdout
        listed = [run_cli("ls", "--store", path) for path in both]
        assert listed[0].stdout == listed[1].stdout and "scale" in listed[0].stdout
        done = run_cli("doctor", "--store", store)
        assert done.returncode == 0
        assert f"{len(foreign)} files: {', '.join(foreign[:3])}, ... (ignored)" in done.stdout
