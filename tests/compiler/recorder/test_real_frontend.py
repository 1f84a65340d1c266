"""Programs that use the cuDNN frontend's own wheel, as far as they run without a GPU.

Planning fails there for want of a driver; a graph is recorded before it can fail.
"""

import json
from pathlib import Path

import pytest
from recorded import environment, run_program

from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.recorder.collection import collect, write_recording
from cudnn_aot.compiler.recorder.spool import read_spool

PROGRAM = """
import multiprocessing, os, subprocess, sys, threading
import cudnn
types = cudnn.data_type
def gemm(m, name="test_graph"):
    g = cudnn.pygraph(name, io_data_type=types.BFLOAT16, intermediate_data_type=types.FLOAT,
                      compute_data_type=types.FLOAT)
    a = g.tensor(name="A", dim=[1, m, 64], stride=[m * 64, 64, 1])
    b = g.tensor(name="B", dim=[1, 64, 256], stride=[64 * 256, 256, 1])
    bias = g.tensor(name="bias", dim=[1, 1, 256], stride=[256, 256, 1])
    g.relu(g.bias(g.matmul(a, b), bias)).set_output(True).set_uid(100)
    return g
def attention(s, **kwargs):
    g = cudnn.pygraph(io_data_type=types.HALF, intermediate_data_type=types.FLOAT,
                      compute_data_type=types.FLOAT)
    q, k, v = (g.tensor(name=n, dim=[2, 8, s, 64], stride=[512 * s, 64, 512, 1]) for n in "qkv")
    o, _ = g.sdpa(q=q, k=k, v=v, is_inference=True, **kwargs)
    o.set_output(True).set_dim([2, 8, s, 64]).set_stride([512 * s, 64, 512, 1])
    return g
def build(g):
    try:
        g.build()
    except Exception as error:
        return type(error).__name__
"""


def record(script: str, tmp_path: Path, spool: Path, frontend: Path, *flags: str):
    done = run_program(PROGRAM + script, tmp_path, environment(spool, frontend), *flags)
    return done, collect(read_spool(spool))


def values(recording, op: str, symbol: str) -> list[int]:
    found = [graph for graph in recording.graphs if graph.graph.nodes[0].op == op]
    return sorted(shape.symbols[symbol] for graph in found for shape in graph.shapes)


def test_children_of_every_kind(tmp_path: Path, spool: Path, real_frontend: Path) -> None:
    script = """
def work(m):
    build(gemm(m))
    os.kill(os.getpid(), 9)
if __name__ == "__main__":
    for m, method in ((3, "spawn"), (5, "fork")):
        child = multiprocessing.get_context(method).Process(target=work, args=(m,))
        child.start(); child.join()
    threads = [threading.Thread(target=lambda m=m: build(gemm(m))) for m in (7, 11, 13)]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    build(attention(128, use_causal_mask=True)); build(attention(512, use_causal_mask=True))
    sys.exit(7)
"""
    done, recording = record(script, tmp_path, spool, real_frontend)
    assert done.returncode == 7, done.stderr
    spooled = recording.spool
    assert (recording.unread, recording.notes, spooled.failures, spooled.damaged) == ([], [], [], 0)
    assert spooled.modules == {"cudnn": "1.32.0"}
    assert values(recording, "matmul", "M") == [3, 5, 7, 11, 13]
    assert values(recording, "sdpa", "S_q") == [128, 512]
    (tmp_path / "graphs").mkdir()
    write_recording(recording, tmp_path / "graphs")
    written = [load_graphs(path)[0] for path in (tmp_path / "graphs").glob("*.json")]
    assert len(written) == 2 and all(graph.symbols for graph in written)


def test_records_are_the_graph_part_of_the_plan_blob(
    tmp_path: Path, spool: Path, real_frontend: Path
) -> None:
    """What the frontend itself would write of these graphs, but for what it has guessed."""
    script = """
import json
from cudnn._plan_serdes import _encode_graph
written = []
for g in (gemm(16, "named"), attention(128, attn_scale=0.125, diagonal_alignment=
          cudnn.diagonal_alignment.BOTTOM_RIGHT, diagonal_band_right_bound=0)):
    written.append(_encode_graph(g))
    build(g)
json.dump(written, open("written.json", "w"))
"""
    done, recording = record(script, tmp_path, spool, real_frontend)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "written.json").read_text())
    recorded = [graph.document for graph in recording.spool.graphs]
    assert len(written) == len(recorded) == 2
    for theirs, ours in zip(written, recorded, strict=True):
        for field in ("context", "graph_kwargs", "nodes", "is_cuda_graph_replay_expected"):
            assert ours[field] == theirs[field]
        for left, right in zip(ours["tensors"], theirs["tensors"], strict=True):
            skipped = {"dim", "stride", "data_type"}  # inference fills these while it plans
            assert left.keys() == right.keys()
            assert {k: v for k, v in left.items() if k not in skipped} == {
                k: v for k, v in right.items() if k not in skipped
            }
            if right["dim_assigned"]:
                assert (left["dim"], left["stride"]) == (right["dim"], right["stride"])


def test_a_score_mod_is_kept_with_its_reason(
    tmp_path: Path, spool: Path, real_frontend: Path
) -> None:
    done, recording = record(
        "build(attention(128, score_mod=lambda graph, score: score))",
        tmp_path,
        spool,
        real_frontend,
    )
    assert done.returncode == 0, done.stderr
    (unread,) = recording.unread
    assert "score_mod holds a builtins.function" in unread.reason
    assert recording.graphs == []


def test_slices_are_recorded_and_read(tmp_path: Path, spool: Path, real_frontend: Path) -> None:
    script = """
g = cudnn.pygraph(io_data_type=types.HALF, compute_data_type=types.FLOAT)
x = g.tensor(name="x", dim=[4, 10, 6], stride=[60, 6, 1])
g.slice(x, slices=[slice(1, 3), slice(None, None, 2), slice(-4, None)]).set_output(True)
build(g)
"""
    done, recording = record(script, tmp_path, spool, real_frontend)
    assert done.returncode == 0, done.stderr
    assert recording.unread == []
    (merged,) = recording.graphs
    (node,) = merged.graph.nodes
    assert node.attrs["slices"] == ((1, 3, 1), (0, None, 2), (-4, None, 1))
    assert node.outputs["OUT_0"].dim == (2, 5, 4)


@pytest.mark.parametrize("flags", [(), ("-W", "error"), ("-O",), ("-B",)])
def test_the_program_prints_what_it_prints_without_us(
    tmp_path: Path, spool: Path, real_frontend: Path, flags: tuple[str, ...]
) -> None:
    script = """
import inspect
g = gemm(16)
print(build(g), g, len(g.nodes), inspect.signature(cudnn.pygraph.execute))
print(cudnn.pygraph.validate.__doc__, cudnn.__spec__.origin, type(cudnn.__loader__))
try:
    cudnn.pygraph().execute({})
except Exception as error:
    print(type(error), error)
"""
    env = environment(spool, real_frontend, recording=False)
    plain = run_program(PROGRAM + script, tmp_path, env, *flags)
    recorded = run_program(PROGRAM + script, tmp_path, environment(spool, real_frontend), *flags)
    assert (recorded.stdout, recorded.stderr) == (plain.stdout, plain.stderr)
    assert len(read_spool(spool).graphs) == 1
