"""Where the package is installed is in no key: what one installation built another one takes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cli_process import UNSET, tree_digest

import cudnn_aot._native

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cache", "cli", "compiler", "recipes", "runtime")


def install(folder: Path) -> Path:
    """Interpreter of an environment of its own with a copy of the package, and all that this
    interpreter finds beside it.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    copy = packages / "cudnn_aot"
    shutil.copytree(ROOT / "native" / "cudnn_aot", copy)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    native = Path(str(cudnn_aot._native.__file__))
    shutil.copy2(native, copy / native.name)
    others = [path for path in sys.path if "site-packages" in path and Path(path).is_dir()]
    (packages / "others.pth").write_text("\n".join(others))
    return folder / "bin" / "python"


def run(python: Path, *args: object, **env: str) -> dict:
    clean = {name: value for name, value in os.environ.items() if name not in UNSET}
    done = subprocess.run(
        [python, "-m", "cudnn_aot.cli.main", *map(str, args), "--json"],
        env=clean | env,
        cwd=python.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_what_one_built_another_takes(tmp_path: Path, graph_files: list[Path]) -> None:
    here, there = install(tmp_path / "here"), install(tmp_path / "in" / "there")
    store = tmp_path / "store"
    build = ("build", graph_files[0], "-t", "cpu", "-o")
    first = run(here, *build, store)
    assert first["kernels"]["compiled"] == 1
    findings = {f["topic"]: f["found"] for f in run(here, "doctor")["findings"]}
    assert str(tmp_path / "here") in findings["cudnn-aot"]  # and not what the tests import
    assert str(tmp_path / "here") in findings["native part"]
    for path in store.rglob("*"):  # the bytes that are compiled, too
        assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), path
    moved = store.rename(tmp_path / "moved")
    before = tree_digest(moved)
    shutil.rmtree(tmp_path / "here")
    again = run(there, *build, moved, CUDNN_AOT_FORBID_COMPILE="1")
    assert (again["kernels"]["compiled"], again["files_written"]) == (0, 0)
    assert [graph["status"] for graph in again["graphs"]] == ["cached"]
    assert tree_digest(moved) == before
    assert len(run(there, "run", "--all", "--store", moved)["runs"]) == 1
