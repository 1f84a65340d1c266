"""The real command line in its own process, small graphs for it, and what tests ask of both."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cudnn_aot.cli.settings import SETTINGS
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph

# What the caller's environment and home say must not decide what a test does. The variables that
# say where libraries are stay.
UNSET = {row.variable for row in SETTINGS} - {"CUDNN_AOT_CUDART", "CUDNN_AOT_TVM_FFI"}
NO_HOME = {"XDG_CONFIG_HOME": os.devnull}


def run_cli(
    *args: object,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """``cudnn-aot ARGS`` with none of the caller's settings but those in ``env``.

    ``prefix`` is a command that starts the command line.
    """
    script = Path(sys.executable).with_name("cudnn-aot")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "cudnn_aot.cli.main"]
    clean = {name: value for name, value in os.environ.items() if name not in UNSET} | NO_HOME
    return subprocess.run(
        [*prefix, *command, *map(str, args)],
        cwd=cwd,
        env=clean | (env or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


def linear_graph(
    name: str,
    n: int,
    *,
    op: str = "relu",
    k: int = 48,
    max_rows: int = 4096,
    io: data_type = data_type.BFLOAT16,
) -> Graph:
    """Y = op(A @ B), in bfloat16 unless said, with a symbolic row count."""
    graph = Graph(
        name,
        io_data_type=io,
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
        symbols={"M": {"min": 0, "max": max_rows, "hint": 33}},
    )
    a = graph.tensor([1, "M", k], [f"{k}*M", k, 1], uid=1, name="A")
    b = graph.tensor([1, k, n], [k * n, 1, k], uid=2, name="B")
    y = getattr(graph, op)(graph.matmul(a, b))
    y.set_uid(3).set_name("Y").set_output(True)
    return graph


def declined_graph(name: str) -> Graph:
    """One that no engine of ours takes, whatever the target: in fp64."""
    return linear_graph(name, 64, io=data_type.DOUBLE)


def write_graph(folder: Path, graph: Graph) -> Path:
    path = folder / f"{graph.name}.json"
    path.write_text(graph_json.dumps(graph))
    return path


def tree_digest(root: Path) -> str:
    """One digest over every name, byte, mode and modification time below ``root``."""
    digest = hashlib.sha256()
    if not root.exists():
        return "absent"
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(
            f"{path.relative_to(root)} {status.st_mode:o} {status.st_mtime_ns}\n".encode()
        )
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def assert_one_line_error(
    done: subprocess.CompletedProcess[str], code: int, *fragments: str
) -> None:
    """The failure is one ``error:`` line that says what, and no traceback."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "internal error" not in done.stderr, done.stderr
    for fragment in fragments:
        assert fragment in errors[0], errors[0]
