"""What `doctor` says of a store's life: its size, who uses it, what a killed build left."""

import os
from pathlib import Path

import toy_store
from cli_process import run_cli

from cudnn_aot import runtime
from cudnn_aot.cache.writer import StoreWriter


def findings(store: Path) -> dict[str, str]:
    done = run_cli("doctor", "--store", store)
    assert done.returncode == 0, done.stdout
    lines = (line for line in done.stdout.splitlines() if "store" in line or "build" in line[:20])
    return {line[2:22].strip(): line[0] + line[23:] for line in lines}


def test_size_users_and_leftovers_of_a_store(store_copy: Path) -> None:
    quiet = findings(store_copy)
    assert quiet["store size"].endswith(" KiB on the disk")
    assert quiet["store in use"] == " 0 graphs held by living processes"
    assert "unfinished build" not in quiet
    plan = runtime.open(store_copy).plan("up")
    with StoreWriter(store_copy) as writer, writer.scratch():
        used = findings(store_copy)
    assert used["store in use"] == " 1 graph held by living processes, somebody builds"
    assert "unfinished build" not in used and plan.name == "up"
    left = store_copy.parent / ".store.building"
    (left / "stage" / "dead").mkdir(parents=True)
    assert findings(store_copy)["unfinished build"].startswith(f"!{left} (the next build removes")


def test_a_store_that_any_user_may_change(store_copy: Path, tmp_path: Path) -> None:
    """As a folder and as a pack; a build makes neither, whatever its umask."""
    assert run_cli("pack", "--store", store_copy, "-o", tmp_path / "pack").returncode == 0
    for store, mode in ((store_copy, 0o755), (tmp_path / "pack", 0o444)):
        assert "store writers" not in findings(store)
        store.chmod(mode | 0o002)
        said = findings(store)["store writers"]
        assert said.startswith("!any user may change it (") and f"chmod -R o-w {store}" in said


def test_what_is_written_with_an_open_umask_is_closed(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with StoreWriter(tmp_path / "store") as writer:
            toy_store.fill(writer)
    finally:
        os.umask(before)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        assert path.stat().st_mode & 0o022 == 0, path
    assert "store writers" not in findings(tmp_path / "store")


def test_files_that_are_not_the_store_s_own(store_copy: Path) -> None:
    for name in ("kernels/.x.json.swp", "blobs/sha256/ab/tmp1234.tmp", "plans/cpu/x.tmp", "old/a"):
        (store_copy / name).parent.mkdir(parents=True, exist_ok=True)
        (store_copy / name).write_bytes(b"half of something")
    done = run_cli("doctor", "--store", store_copy)
    (line,) = (line for line in done.stdout.splitlines() if "foreign files" in line)
    assert "4 files: blobs/sha256/ab/tmp1234.tmp, kernels/.x.json.swp, old/a, ... (ignored)" in line
    for command in (("verify",), ("run", "--all"), ("ls",)):
        assert run_cli(*command, "--store", store_copy).returncode == 0
