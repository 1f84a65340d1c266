"""Commands among other users: homes and folders that are closed, files that are not theirs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import NO_HOME, UNSET, assert_one_line_error, run_cli
from other_user import NOBODY, run_as_nobody

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may look into, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="cudnn-aot-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def store(place: Path, built_store: Path) -> Path:
    return shutil.copytree(built_store, place / "store", copy_function=shutil.copy2)


def as_nobody(*args: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """``cudnn-aot ARGS`` as a user of no name, with none of the caller's settings."""
    clean = {name: value for name, value in os.environ.items() if name not in UNSET} | NO_HOME
    command = [sys.executable, "-m", "cudnn_aot.cli.main", *map(str, args)]
    return run_as_nobody(command, cwd, clean | env, needs_closed_folders=True)


@pytest.mark.parametrize("closed", ["home", "config", "parent", "library"])
def test_what_is_closed_counts_as_absent(closed: str, place: Path, store: Path) -> None:
    """The home of somebody else, a folder above the working one, one that libraries may be in."""
    secret = place / "secret"
    inner = secret / "inner"
    inner.mkdir(parents=True)
    (secret / "cudnn-aot.toml").write_text("jobs = 7")
    secret.chmod(0o700)
    env = {
        "home": {"HOME": str(secret), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""},
        "config": {"XDG_CONFIG_HOME": str(secret)},
        "parent": {},
        "library": {"LD_LIBRARY_PATH": str(inner)},
    }[closed]
    for command in (("ls",), ("run", "up"), ("doctor",), ("show", "up")):
        cwd = inner if closed == "parent" else place
        done = as_nobody(*command, "--store", store, cwd=cwd, **env)
        assert (done.returncode, done.stderr) == (0, ""), (command, done.stderr)


def test_a_graph_that_is_closed_fails_alone(
    place: Path, store: Path, graph_files: list[Path]
) -> None:
    up, down = (shutil.copy(path, place) for path in graph_files)
    secret = place / "secret"
    secret.mkdir(mode=0o700)
    closed = Path(shutil.copy(up, secret))
    listed = place / "list"
    listed.write_text(f"{up}\n{closed}\n{down}\n")
    out = place / "out"
    out.mkdir()
    os.chown(out, NOBODY, NOBODY)
    done = as_nobody("convert", closed, down, "-o", out, cwd=place)
    assert done.returncode == 1 and [path.name for path in out.iterdir()] == ["down.json"]
    assert f"{closed}: cannot read the graph file: permission denied" in done.stdout + done.stderr
    done = as_nobody("verify", "--complete", listed, "--store", store, "--json", cwd=place)
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert [graph["state"] for graph in document["graphs"]] == ["whole", "whole"]
    assert document["failures"] == [f"{closed}: there is no such graph file"]


def test_a_store_that_is_closed_is_one_line(place: Path, built_store: Path) -> None:
    secret = place / "secret"
    secret.mkdir(mode=0o700)
    store = shutil.copytree(built_store, secret / "store", copy_function=shutil.copy2)
    for command in (("ls",), ("verify",), ("run", "up"), ("ls", "--stats")):
        done = as_nobody(*command, "--store", store, cwd=place)
        assert_one_line_error(done, 2, f"cannot read '{store}", "Permission denied")
    done = as_nobody("doctor", "--store", store, cwd=place)
    assert done.returncode == 1 and f"cannot read '{store}" in done.stdout
    assert "config file" in done.stdout


def test_a_plan_that_is_closed_is_unreadable(place: Path, store: Path) -> None:
    """Not damaged: nothing is known of its bytes. What is cut is damaged."""
    closed, cut = (store / "names/cpu" / f"{name}.json" for name in ("up", "down"))
    closed.chmod(0)
    cut.chmod(0o644)
    cut.write_bytes(cut.read_bytes()[:-1])
    done = as_nobody("ls", "--store", store, "--json", cwd=place)
    states = {plan["name"]: plan["status"] for plan in json.loads(done.stdout)["plans"]}
    assert done.returncode == 1
    assert states.items() >= {"up": "unreadable", "down": "damaged"}.items()


@pytest.mark.parametrize("folder", ["blobs", "plans/cpu", "classes", "names/cpu", "kernels"])
def test_a_folder_that_cannot_be_listed_is_one_problem(
    folder: str, place: Path, store: Path
) -> None:
    """`verify` finds other faults beside it, `report` makes its page, `doctor` says the rest."""
    other = next((store / ("kernels" if folder == "blobs" else "blobs")).rglob("??/*"))
    other.chmod(0o644)
    other.write_bytes(other.read_bytes()[:-1])
    (store / "notes").touch()
    closed = min((store / "blobs/sha256").iterdir()) if folder == "blobs" else store / folder
    relative = str(closed.relative_to(store))
    closed.chmod(0)
    out = place / "out"
    out.mkdir()
    os.chown(out, NOBODY, NOBODY)
    done = as_nobody("verify", "--store", store, "--json", cwd=place)
    document = json.loads(done.stdout)
    problems = {problem["path"]: problem for problem in document["problems"]}
    assert done.returncode == 1 and document["foreign"] == ["notes"], done.stderr
    assert problems[relative]["unreadable"]
    assert problems[relative]["what"] == f"cannot list {closed}: Permission denied"
    assert not problems[str(other.relative_to(store))]["unreadable"]
    assert document["plans"] == (0 if folder == "plans/cpu" else 2)
    lines = as_nobody("verify", "--store", store, cwd=place).stdout.splitlines()
    assert f"unreadable: {relative}: {problems[relative]['what']}" in lines
    done = as_nobody("report", "-o", out / "page.html", "--store", store, "--json", cwd=place)
    reported = json.loads(done.stdout)
    assert done.returncode == 1 and reported["problems"] == document["problems"]
    assert relative in (out / "page.html").read_text()
    done = as_nobody("doctor", "--store", store, cwd=place)
    assert done.returncode == 1 and done.stderr == ""
    assert f"! store                cannot list {closed}" in done.stdout
    assert "foreign files        1 file: notes" in done.stdout and "config file" in done.stdout


# how the file comes to be there: what the one line says
OFFERED = {
    "own": "",
    "file": f"it is user {NOBODY}'s, and this is user 0",
    "table": f"it is user {NOBODY}'s, and this is user 0",
    "link": f"it is user {NOBODY}'s, and this is user 0",
    "target": f"it is user {NOBODY}'s, and this is user 0",
    "folder": f"its folder is user {NOBODY}'s, and this is user 0",
    "open file": "any user may write it",
    "open folder": "any user may write into its folder",
}


@pytest.mark.parametrize("how", OFFERED)
def test_a_config_file_of_a_stranger_is_not_obeyed(how: str, place: Path, store: Path) -> None:
    """What nobody named, in a folder above, is read only if nobody else could have written it."""
    shared, elsewhere = place / "shared", place / "elsewhere"
    for folder in (shared, elsewhere, shared / "inner"):
        folder.mkdir()
    shared.chmod(0o1777)
    name = "pyproject.toml" if how == "table" else "cudnn-aot.toml"
    config = shared / name
    behind = elsewhere / "behind" if how in ("link", "target") else config
    behind.write_text(("[tool.cudnn-aot]\n" if how == "table" else "") + f'store = "{store}"\n')
    if behind != config:
        config.symlink_to(behind)
    if how in ("file", "table", "target"):
        os.chown(behind, NOBODY, NOBODY)
    elif how == "link":
        os.lchown(config, NOBODY, NOBODY)
    elif how == "folder":
        os.chown(shared, NOBODY, NOBODY)
    elif how == "open file":
        config.chmod(0o666)
    elif how == "open folder":
        shared.chmod(0o777)
    for command in (("ls",), ("run", "--all")):
        done = run_cli(*command, cwd=shared / "inner")
        if how == "own":
            assert done.returncode == 0, done.stderr
            continue
        assert_one_line_error(done, 2, f"config file '{config}' is not obeyed: {OFFERED[how]}")
        assert "CUDNN_AOT_CONFIG" in done.stderr
        named = run_cli(*command, cwd=shared / "inner", env={"CUDNN_AOT_CONFIG": str(config)})
        assert named.returncode == 0, named.stderr
        none = run_cli("ls", cwd=shared / "inner", env={"CUDNN_AOT_CONFIG": os.devnull})
        assert_one_line_error(none, 2, "no store at 'cudnn_aot_store'")
    if how == "file":  # whose it is may use it
        assert as_nobody("ls", cwd=shared / "inner").returncode == 0


def test_the_default_store_of_a_stranger_is_not_run(place: Path, built_store: Path) -> None:
    """What lies where somebody happens to work, as a config file may; who names it may run it."""
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    store = shutil.copytree(built_store, shared / "cudnn_aot_store", copy_function=shutil.copy2)
    assert run_cli("run", "--all", cwd=shared).returncode == 0
    for path in (store, *store.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    refused = f"store 'cudnn_aot_store' is user {NOBODY}'s, and this is user 0"
    for verb in (("run", "--all"), ("tune", "-o", "tuned.json")):
        assert_one_line_error(run_cli(*verb, cwd=shared), 2, refused, "--store")
    done = run_cli("run", "--all", "--store", "cudnn_aot_store", cwd=shared)
    assert (done.returncode, done.stderr) == (0, "")
    assert run_cli("ls", cwd=shared).returncode == 0


IN_PROCESS = """
import sys
import cudnn_aot as cudnn
g = cudnn.pygraph(target="cpu")
g.deserialize(open(sys.argv[1]).read())
g.build([cudnn.heur_mode.A])
print(g.get_plan_name())
"""


def test_a_program_whose_home_is_closed(place: Path, store: Path, graph_files: list[Path]) -> None:
    """What its own store would add is absent; the one that it was given has the plan."""
    home = place / "home"
    (home / ".cache").mkdir(parents=True)
    home.chmod(0o700)
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": "", "CUDNN_AOT_STORE": str(store)}
    graph = shutil.copy(graph_files[0], place)
    command = [sys.executable, "-c", IN_PROCESS, graph]
    done = run_as_nobody(command, place, env, needs_closed_folders=True)
    assert (done.returncode, done.stdout) == (0, "gemm.host.blocked\n"), done.stderr
