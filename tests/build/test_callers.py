"""Processes that call `build`: with threads, with the DSL loaded, forked, of users without a home.

Compile workers are started anew by a path and inherit nothing of the process that builds.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import tree_digest
from other_user import run_as_nobody

from cudnn_aot.cache.reader import StoreReader

# The parent has threads, compiles on some of them and has what the DSL has loaded.
FORKED = """
import os, sys, threading
import cutlass
from cudnn_aot.compiler.build.driver import build
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(8)]
for thread in threads:
    thread.start()
mine, child_s, *files = sys.argv[1:]
child = os.fork()
store = mine if child else child_s
summary = build(files, ["cpu"], store)
code = 0 if summary.kernels.compiled == 1 and summary.exit_code() == 0 else 1
if not child:
    os._exit(code)
stop.set()
_, status = os.waitpid(child, 0)
sys.exit(code or os.waitstatus_to_exitcode(status))
"""


def test_a_process_with_threads_and_its_forked_child(
    tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, tmp_path / "mine", tmp_path / "child", graph_files[0]],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert tree_digest(tmp_path / "mine") == tree_digest(tmp_path / "child")
    assert_built_as(tmp_path / "child", built_store)


def assert_built_as(store: Path, other: Path) -> None:
    """The kernel that a store has is the same, byte for byte, in the other one."""
    reader = StoreReader(store)
    (key,) = reader.kernels()
    assert reader.verify() == []
    assert reader.kernel(key) == StoreReader(other).kernel(key)


FAILING = """
import sys, toy_store
from cudnn_aot.cache.compile import CompilerPool, compile_cached
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import CompileError
toy_store.use_toys()
with StoreWriter(sys.argv[1]) as writer, CompilerPool(1) as pool:
    try:
        compile_cached(toy_store.toy_spec("raises", "faulty"), writer, pool)
    except CompileError as error:
        print(error.log)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may write to, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="cudnn-aot-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_a_user_without_home_or_passwd_entry_builds(
    place: Path, graph_files: list[Path], built_store: Path
) -> None:
    """Beside the store it leaves nothing; the log of a compile that fails is where it says."""
    file = place / graph_files[0].name
    file.write_bytes(graph_files[0].read_bytes())
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
        "TMPDIR": str(place),
    }
    script = Path(sys.executable).with_name("cudnn-aot")
    build = [script, "build", file, "-t", "cpu", "-o", place / "store"]
    done = run_as_nobody(build, place, env)
    assert done.returncode == 0, done.stderr
    assert_built_as(place / "store", built_store)
    assert sorted(p.name for p in place.iterdir()) == sorted([file.name, "store"])
    command = [sys.executable, "-c", FAILING, place / "store"]
    done = run_as_nobody(command, place, env)
    log = Path(done.stdout.strip())
    assert log.parent == place and log.read_text(), done.stderr
    assert log.stat().st_mode & 0o777 == 0o600
    again = Path(run_as_nobody(command, place, env).stdout.strip())
    assert again.parent == place and again != log  # no name that somebody else could expect
    assert not (place / "~").exists()
    closed = place / "closed"
    closed.mkdir(mode=0o755)
    build[-1] = closed / "store"
    done = run_as_nobody(build, place, env)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: cannot write {str(closed / 'store')!r}: permission denied")
    assert "--store" in line
