"""Programs for the recorder: a stand-in for the cuDNN frontend, and child processes that use it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from cudnn_aot.compiler.recorder.launch import recording_environment
from cudnn_aot.compiler.recorder.spool import RecordedGraph, Spool, read_spool

# What the recorder reads of a graph class, and a matmul: no more of the frontend than that.
FAKE_FRONTEND = '''
import enum
__version__ = "fake"
class data_type(enum.Enum):
    FLOAT = 1
    BFLOAT16 = 10
class NodeType(enum.Enum):
    MATMUL = 1
    SDPA = 2
class Tensor:
    def __init__(self, uid, name, dim, stride, **fields):
        self.__dict__.update(
            uid=uid, name=name, dim=list(dim), stride=list(stride), data_type=None,
            is_virtual=False, is_pass_by_value=False, pass_by_value=None, uid_assigned=False,
            dim_assigned=True, stride_assigned=bool(stride), reordering_type=None,
            ragged_offset=None, ragged_offset_multiplier=1, alignment_value=1, scalar_type=None)
        self.__dict__.update(fields)
class Node:
    def __init__(self, name, node_type, inputs, outputs, params):
        self.name, self.node_type, self.compute_data_type = name, node_type, data_type.FLOAT
        self.inputs, self.outputs, self.params = inputs, outputs, params
class Context:
    io_data_type = data_type.BFLOAT16
    intermediate_data_type = compute_data_type = data_type.FLOAT
class pygraph:
    """A graph."""
    def __init__(self, name="test_graph", **kwargs):
        self._context = Context()
        self._cpp_graph_kwargs = {"name": name, **kwargs}
        self._nodes, self._tensor_by_uid, self._planning_done = [], {}, False
    def tensor(self, dim, stride=(), name="", **fields):
        uid = len(self._tensor_by_uid) + 1
        self._tensor_by_uid[uid] = tensor = Tensor(uid, name, dim, stride, **fields)
        return tensor
    def matmul(self, a, b, **params):
        c = self.tensor((), name="mm::C")
        c.dim_assigned = False
        params = {"padding": 0.0, **params}
        self._nodes.append(Node("mm", NodeType.MATMUL, {"A": a, "B": b}, {"C": c}, params))
        return c
    def validate(self):
        """Check."""
        if not self._nodes:
            raise ValueError("an empty graph")
    def create_execution_plans(self, heuristics=None):
        self.validate()
        self._planning_done = True
    def build(self, heuristics=None):
        self.create_execution_plans(heuristics)
    def execute(self, tensor_dict, workspace=None, handle=None, override_uids=None,
                override_shapes=None, override_strides=None, tensor_uids=None):
        if tensor_dict == "fail":
            raise RuntimeError("launch failed")
        return "executed"
def mm(m, k=64, n=32, name="test_graph", **params):
    g = pygraph(name)
    g.matmul(g.tensor([1, m, k], [m * k, k, 1], "A"), g.tensor([1, k, n], [k * n, n, 1], "B"),
             **params)
    return g
'''


def write_fake_frontend(folder: Path) -> Path:
    """A folder for PYTHONPATH in which ``import cudnn`` finds the stand-in."""
    package = folder / "fake_frontend" / "cudnn"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(FAKE_FRONTEND)
    return package.parent


def environment(spool: Path, *paths: Path, recording: bool = True, **extra: str) -> dict[str, str]:
    """The environment of a child that finds packages in `paths`, recorded or not."""
    base = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | extra
    if paths:
        base["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return recording_environment(spool, base) if recording else base


def run_program(
    script: str, folder: Path, env: dict[str, str], *flags: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in its own process."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, *flags, str(path)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def rows_of(graph: RecordedGraph) -> int:
    """M of the stand-in's matmul."""
    m: int = graph.document["tensors"][0]["dim"][1]
    return m


def counts(spool: Path) -> dict[int, tuple[int, int]]:
    """(built, executions) by M, of everything recorded without any trouble."""
    found: Spool = read_spool(spool)
    assert (found.failed, found.failures, found.dropped, found.damaged) == (0, [], 0, 0)
    return {rows_of(graph): (graph.built, graph.executions) for graph in found.graphs}
