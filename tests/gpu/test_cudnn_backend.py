"""cuDNN's own plans on the device: found, stored, loaded and run as any other plan.

Needs the cuDNN frontend and a cuDNN beside torch. The store of the GPU tests is copied, and cuDNN's
plans are added to the copy. What was found is printed: run with ``-s`` to see it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch  # before the frontend: it brings cuDNN with it
from torch_reference import TOLERANCE, TORCH_DTYPE, empty, execute, operands, reference

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.build import driver
from cudnn_aot.compiler.build.summary import GraphResult, Status
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.to_frontend import to_frontend
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import backend
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import LaunchError, RefusedError, RequirementError

pytest.importorskip("cudnn", reason="the cuDNN frontend's wheel is not installed on this host")

H200 = load_target("h200")
# Plain, batched, broadcast, both majors, unaligned extents, epilogues, scalars of both kinds.
GEMMS = (
    "bench_512x4096x4096",
    "half_batch",
    "broadcast_b",
    "m_major_n_major",
    "odd_m_n",
    "tanh_half",
    "swish",
    "column_and_scalars",
)
MUST_BUILD = ("bench_512x4096x4096", "half_batch", "attention", "norm", "conv")


def attention() -> Graph:
    """Training forward with statistics, heads inside rows."""
    g = Graph("attention", "BFLOAT16", "FLOAT", "FLOAT")
    b, h, s, d = 2, 4, 256, 64
    rows = [s * h * d, d, h * d, 1]
    q, k, v = (g.tensor([b, h, s, d], rows, name=name) for name in "qkv")
    o, stats = g.sdpa(q, k, v, is_inference=False, attn_scale=0.125, use_causal_mask=True)
    o.set_output(True).set_stride(rows).set_name("o")
    stats.set_output(True).set_data_type("FLOAT").set_name("stats")
    return g


def norm() -> Graph:
    """Epsilon is a number that each call gives."""
    g = Graph("norm", "BFLOAT16", "FLOAT", "FLOAT")
    x = g.tensor([512, 1024, 1, 1], name="x")
    scale = g.tensor([1, 1024, 1, 1], name="scale")
    epsilon = g.tensor([1, 1, 1, 1], None, "FLOAT", is_pass_by_value=True, name="epsilon")
    y, inverse = g.rmsnorm(
        input=x, scale=scale, epsilon=epsilon, norm_forward_phase="TRAINING", name="rms"
    )
    y.set_output(True).set_name("y")
    inverse.set_output(True).set_data_type("FLOAT").set_name("inv_var")
    return g


def conv() -> Graph:
    g = Graph("conv", "HALF", "FLOAT", "FLOAT")
    n, c, size, k = 4, 64, 28, 128
    last = lambda c, h, w: [c * h * w, 1, c * w, c]  # noqa: E731  (channels last)
    x = g.tensor([n, c, size, size], last(c, size, size), name="x")
    w = g.tensor([k, c, 3, 3], last(c, 3, 3), name="w")
    bias = g.tensor([1, k, 1, 1], [k, 1, k, k], name="bias")
    y = g.relu(g.add(g.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1]), bias))
    y.set_output(True).set_stride(last(k, size, size)).set_name("y")
    return g


def recurrent() -> Graph:
    """An op that cuDNN does not have."""
    g = Graph("recurrent", "BFLOAT16", "FLOAT", "FLOAT")
    q, k, v = (g.tensor([64, 4, 128], name=name) for name in "qkv")
    gate, beta = (g.tensor([64, 4], None, "FLOAT", name=name) for name in ("g", "beta"))
    starts = g.tensor([3], None, "INT32", name="starts")
    g.gdn(q, k, v, gate, beta, starts)[0].set_output(True)
    return g


@dataclass(frozen=True)
class Built:
    path: Path
    store: Any
    graphs: dict[str, Graph]
    rows: dict[str, GraphResult]

    def plan(self, name: str) -> Any:
        """cuDNN's plan; skips where cuDNN declined the graph."""
        row = self.rows[name]
        if row.status is Status.DECLINED:
            pytest.skip(f"cuDNN declined {name}: {row.reasons}")
        assert row.status in (Status.BUILT, Status.CACHED), row.reasons
        return self.store.plan(name, provider="cudnn")


@pytest.fixture(scope="module")
def built(stored, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A copy of the store with cuDNN's plans added."""
    folder = tmp_path_factory.mktemp("cudnn")
    path = folder / "store"
    shutil.copytree(stored.path, path)
    graphs = {name: stored.graph(name) for name in (*GEMMS, "dynamic_m")}
    for make in (attention, norm, conv, recurrent):
        graph = make()
        graph.validate()
        graphs[graph.name] = graph
    files = []
    for name, graph in graphs.items():
        files.append(folder / f"{name}.json")
        files[-1].write_text(graph_json.dumps(graph))
    print(f"\ntorch {torch.__version__}, its cuDNN {torch.backends.cudnn.version()}")
    print("found:", backend.find_backend(H200))
    summary = driver.build(files, ["h200"], path, engines=("cudnn",))
    for row in summary.graphs:
        print(f"{row.status.value:9}{row.name:22}{row.engines} {row.knobs} {row.seconds:.2f} s "
              f"{[size for _, size in row.blobs]} {'; '.join(row.reasons)[:400]}")  # fmt: skip
    rows = {row.name: row for row in summary.graphs}
    return Built(path, runtime.open(path, target="h200"), graphs, rows)


def stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def bind(graph: Graph, seed: int = 0) -> dict[int, Any]:
    """Random inputs, numbers, and outputs of NaN, by uid."""
    if any(node.op == "matmul" for node in graph.nodes):
        return operands(graph, {}, seed)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    bound: dict[int, Any] = {}
    for tensor in graph.inputs():
        if tensor.is_pass_by_value:
            bound[tensor.uid] = 1e-3
            continue
        bound[tensor.uid] = empty(tensor, {})
        bound[tensor.uid].copy_(torch.randn(tensor.dim, generator=generator, device="cuda"))
    return bound | {tensor.uid: empty(tensor, {}) for tensor in graph.outputs()}


def assert_close(graph: Graph, bound: dict[int, Any]) -> None:
    """Every output beside the fp32 reference; cuDNN's activations are its own approximations."""
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = reference(graph, bound)
    for tensor in graph.outputs():
        got, (rtol, _) = bound[tensor.uid], TOLERANCE[tensor.data_type.name]
        want = expected[tensor.uid].expand(got.shape)
        close(got, want, f"{graph.name}: {tensor.name}", 2 * rtol, 2e-3)


def named(graph: Graph, bound: dict[int, Any]) -> dict[str, Any]:
    return {name: bound[uid] for name, uid in graph.uids().items() if uid in bound}


def close(got: torch.Tensor, want: torch.Tensor, what: str, rtol: float, atol: float) -> None:
    error = (got.float() - want.float()).abs() - (atol + rtol * want.float().abs())
    worst = error.nan_to_num(math.inf).max().item()
    assert worst <= 0, f"{what}: worst excess {worst:.3g}, {got.isnan().sum().item()} NaN"


# --- building ------------------------------------------------------------------------------------


def test_what_was_built(built: Built) -> None:
    failed = {name: row.reasons for name, row in built.rows.items() if row.status is Status.FAILED}
    assert not failed
    declined = {n: built.rows[n].reasons for n in MUST_BUILD
                if built.rows[n].status is Status.DECLINED}  # fmt: skip
    assert not declined
    assert "cuDNN has no such op" in built.rows["recurrent"].reasons[0]
    assert "symbolic extents (M)" in built.rows["dynamic_m"].reasons[0]
    assert StoreReader(built.path).verify() == []


def test_the_record(built: Built) -> None:
    plan = built.plan("bench_512x4096x4096")
    row = built.rows["bench_512x4096x4096"]
    print(plan, plan.requirements, plan.workspace_bytes())
    assert 0 <= plan.engine_id < 10_000 and plan.engine == f"cudnn.eng{plan.engine_id}"
    assert dict(plan.knobs) == row.knobs
    assert plan.requirements.gpu_arch == "sm_90a" and plan.requirements.sm_count == 132
    assert plan.requirements.cudnn and plan.requirements.driver_min >= 12000


def test_a_second_build_finds_them(built: Built, tmp_path: Path) -> None:
    """Through the command, in a process that has cuDNN from where torch has it."""
    graph = built.graphs["half_batch"]
    file = tmp_path / "half_batch.json"
    file.write_text(graph_json.dumps(graph))
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = {str(Path(line.split()[-1]).parent) for line in maps if "/libcudnn.so" in line}
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", str(file), "-t", "h200"]
    command += ["--store", str(built.path), "--engines", "native,cudnn", "--json"]
    path = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": path}
    )
    rows = {row["provider"]: row for row in json.loads(done.stdout)["graphs"]}
    print({name: (row["status"], row["reasons"]) for name, row in rows.items()}, done.stderr)
    assert rows["cudnn"]["status"] == "cached", done.stderr


def test_a_target_that_is_not_this_device() -> None:
    for target in (replace(H200, sm_count=1), replace(H200, gpu_arch="sm_100a")):
        assert isinstance(backend.find_backend(target), Refusal)


# --- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GEMMS)
def test_gemm(built: Built, name: str) -> None:
    """Against the fp32 reference, and against the project's own kernel on the same operands."""
    plan, graph = built.plan(name), built.graphs[name]
    for seed in range(2):
        bound = operands(graph, {}, seed)
        execute(plan, bound, {})
        assert_close(graph, bound)
        own = dict(bound) | {t.uid: empty(t, {}) for t in graph.outputs()}
        best = built.store.plan(name)
        assert best.engine.startswith("gemm.")
        execute(best, own, {})
        for tensor in graph.outputs():
            dtype = TORCH_DTYPE[tensor.data_type.name]
            step = torch.finfo(dtype).eps * 2
            close(bound[tensor.uid], own[tensor.uid], f"{name} beside ours", step, 2e-3)


def test_attention(built: Built) -> None:
    plan, graph = built.plan("attention"), built.graphs["attention"]
    bound = bind(graph)
    execute(plan, bound, {})
    t = named(graph, bound)
    q, k, v = (t[name].double() for name in "qkv")
    scores = q @ k.transpose(-1, -2) * 0.125
    mask = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, -math.inf)
    close(t["o"], torch.softmax(scores, -1) @ v, "o", 2**-6, 2e-2)
    close(t["stats"], scores.logsumexp(-1, keepdim=True), "stats", 1e-3, 1e-3)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
def test_norm_takes_its_epsilon_from_the_call(built: Built, epsilon: float) -> None:
    plan, graph = built.plan("norm"), built.graphs["norm"]
    bound = bind(graph)
    bound[graph.uids()["epsilon"]] = epsilon
    execute(plan, bound, {})
    t = named(graph, bound)
    x = t["x"].double()
    inverse = (x.square().mean(1, keepdim=True) + epsilon).rsqrt()
    close(t["inv_var"], inverse, "inv_var", 1e-4, 1e-5)
    close(t["y"], x * inverse * t["scale"].double(), "y", 2**-6, 1e-2)


def test_conv(built: Built) -> None:
    plan, graph = built.plan("conv"), built.graphs["conv"]
    bound = bind(graph)
    execute(plan, bound, {})
    t = named(graph, bound)
    want = torch.nn.functional.conv2d(t["x"].double(), t["w"].double(), padding=1)
    close(t["y"], torch.relu(want + t["bias"].double()), "y", 2**-8, 5e-2)


def test_a_store_of_cudnn_s_plans_alone(built: Built, tmp_path: Path) -> None:
    """Without a provider named, the best plan is then cuDNN's."""
    graph = built.graphs["half_batch"]
    (tmp_path / "half_batch.json").write_text(graph_json.dumps(graph))
    store = tmp_path / "store"
    summary = driver.build([tmp_path / "half_batch.json"], ["h200"], store, engines=("cudnn",))
    assert summary.exit_code() == 0, summary.graphs
    plan = runtime.open(store).plan("half_batch")
    assert plan.engine.startswith("cudnn.")
    bound = operands(graph, {})
    execute(plan, bound, {})
    assert_close(graph, bound)


def test_a_fresh_process_serves_it_without_the_compiler(built: Built) -> None:
    script = f"""
import sys
import torch
from cudnn_aot import runtime
plan = runtime.open({str(built.path)!r}, target="h200").plan("half_batch", provider="cudnn")
plan.prepare(0)
a = torch.randn(5, 100, 72, device="cuda", dtype=torch.half)
b = torch.randn(5, 136, 72, device="cuda", dtype=torch.half)
y = torch.full((5, 100, 136), float("nan"), device="cuda", dtype=torch.half)
room = torch.empty(max(plan.workspace_bytes(), 1), device="cuda", dtype=torch.uint8)
(out,) = set(plan.uids.values()) - {{plan.uids["A"], plan.uids["B"]}}
plan.execute({{plan.uids["A"]: a, plan.uids["B"]: b.transpose(1, 2), out: y}}, room,
             stream=torch.cuda.current_stream())
torch.cuda.synchronize()
torch.testing.assert_close(y, a @ b.transpose(1, 2), rtol=2e-3, atol=5e-2)
bad = [m for m in sys.modules if m.startswith(("cudnn_aot.compiler", "cudnn_aot.recipes"))]
assert not bad, bad
"""
    built.plan("half_batch")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


# --- identity ------------------------------------------------------------------------------------


def test_modes_and_identity(built: Built) -> None:
    graph = built.graphs["bench_512x4096x4096"]
    entries = backend.backend_entries(graph, H200)
    assert isinstance(entries, list), entries
    for entry in entries:
        print(entry)
    identities = [(entry.engine_id, entry.knobs) for entry in entries]
    assert len(set(identities)) == len(identities)
    assert {entry.mode for entry in entries} <= {"A", "FALLBACK"} and entries[0].mode == "A"
    assert all(0 <= entry.engine_id < 10_000 for entry in entries)
    for mode in ("A", "B", "FALLBACK"):
        alone = backend.backend_entries(graph, H200, (mode,))
        print(mode, len(alone) if isinstance(alone, list) else alone)
        assert isinstance(alone, Refusal) or {entry.mode for entry in alone} == {mode}


def test_replay_by_engine_and_knobs(built: Built) -> None:
    """Each plan of the list, built again from its identity, is that plan and is right."""
    graph = built.graphs["bench_512x4096x4096"]
    found = backend.find_backend(H200)
    assert isinstance(found, backend.Backend), found
    entries = backend.entries_of(found, graph)
    assert isinstance(entries, list), entries
    ran = 0
    for entry in entries[:5]:
        made = backend.backend_plan(graph, H200, entry.engine_id, dict(entry.knobs))
        if isinstance(made, Refusal):
            print("declined:", entry.name, made.reason)
            continue
        print(made.name, made.notes, len(made.blob), made.workspace_bytes)
        assert (made.engine_id, made.knobs, made.name) == (
            entry.engine_id, entry.knobs, entry.name)  # fmt: skip
        record = {
            "graph_key": graph.key(),
            "target": "h200",
            "engine": {"id": made.engine_id, "name": "cudnn"},
            "knobs": dict(made.knobs),
            "table": backend.backend_table(graph, made),
            "kernels": [],
            "blobs": [{"blob": "b", "bytes": len(made.blob)}],
            "requirements": backend.backend_requirements(found, H200),
        }
        plan = runtime.Plan("replayed", {}, record, lambda digest, blob=made.blob: blob)
        bound = operands(graph, {}, seed=ran)
        execute(plan, bound, {})
        assert_close(graph, bound)
        ran += 1
    assert ran
    refused = backend.backend_plan(graph, H200, 9_999, {})
    assert isinstance(refused, Refusal), "there is no such engine"


def test_another_cudnn_is_refused_before_its_blob_is_read(built: Built) -> None:
    plan = built.plan("half_batch")
    reader = StoreReader(built.path)
    pointer = reader.pointer("h200", plan.graph_key)
    record = json.loads(reader.blob(pointer["providers"]["cudnn"]["records"][0]))
    record["requirements"]["cudnn"] = "9.0.1"

    def read(digest: str) -> bytes:
        raise AssertionError("the blob was read")

    with pytest.raises(RequirementError, match="cuDNN: requires 9.0.1 exactly"):
        runtime.Plan("half_batch", {}, record, read)


# --- calls ---------------------------------------------------------------------------------------


def test_refusals_are_those_of_the_native_plan(built: Built) -> None:
    name = "half_batch"
    theirs, ours, graph = built.plan(name), built.store.plan(name), built.graphs[name]
    good = operands(graph, {})
    a, out = graph.inputs()[0].uid, graph.outputs()[0].uid
    half = good[a]
    wrong: dict[str, dict[int, Any]] = {
        "missing": {uid: value for uid, value in good.items() if uid != a},
        "dtype": {**good, a: half.to(torch.bfloat16)},
        "short": {**good, a: half[:, :50]},
        "small": {**good, out: torch.empty(16, device="cuda", dtype=torch.half)},
        "host": {**good, a: half.cpu()},
        "address": {**good, a: half.data_ptr() + 1},
    }
    for what, pack in wrong.items():
        seen = []
        for plan in (ours, theirs):
            with pytest.raises(RefusedError) as refused:
                room = torch.empty(plan.workspace_bytes() + 1, dtype=torch.uint8, device="cuda")
                plan.execute(pack, room, stream=stream())
            seen.append((refused.value.rule, refused.value.operand))
        print(what, seen)
        assert seen[0] == seen[1], what
    assert out in good and good[out].isnan().all()  # nothing ran


def test_layouts_that_the_plan_was_not_made_for(built: Built) -> None:
    """cuDNN reads addresses only, so what it cannot see is refused."""
    plan, graph = built.plan("half_batch"), built.graphs["half_batch"]
    bound = operands(graph, {})
    a = graph.inputs()[0].uid
    room = torch.empty(max(plan.workspace_bytes(), 1), dtype=torch.uint8, device="cuda")
    wide = torch.zeros((*bound[a].shape[:2], 80), device="cuda", dtype=torch.half)
    with pytest.raises(RefusedError) as strided:
        plan.execute({**bound, a: wide[..., :72]}, room, stream=stream())
    assert (strided.value.rule, strided.value.operand) == ("equal", a)
    flat = torch.zeros(bound[a].numel() + 1, device="cuda", dtype=torch.half)
    with pytest.raises(RefusedError) as misaligned:
        plan.execute({**bound, a: flat[1:].view(bound[a].shape)}, room, stream=stream())
    assert (misaligned.value.rule, misaligned.value.operand) == ("alignment", a)
    with_room = [n for n in built.rows if built.rows[n].status is Status.BUILT
                 and built.plan(n).workspace_bytes() > 0]  # fmt: skip
    print("plans with a workspace:", with_room)
    for name in with_room[:1]:
        with pytest.raises(RefusedError, match="workspace: got none"):
            built.plan(name).execute(bind(built.graphs[name]), None, stream=stream())


def test_many_threads(built: Built) -> None:
    """Eight threads with their own streams and buffers share one plan."""
    plan, graph = built.plan("half_batch"), built.graphs["half_batch"]
    plan.prepare(0)
    failures: list[str] = []

    def work(seed: int) -> None:
        try:
            own = torch.cuda.Stream()
            with torch.cuda.stream(own):
                bound = operands(graph, {}, seed)
                out = bound[graph.outputs()[0].uid]
                room = torch.empty(plan.workspace_bytes() + 1, dtype=torch.uint8, device="cuda")
                for _ in range(50):
                    out.fill_(math.nan)
                    plan.execute(bound, room, stream=own)
                own.synchronize()
                assert_close(graph, bound)
        except BaseException as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures


def test_captured_into_a_cuda_graph(built: Built) -> None:
    plan, graph = built.plan("half_batch"), built.graphs["half_batch"]
    plan.prepare(0)
    bound = operands(graph, {})
    room = torch.empty(plan.workspace_bytes() + 1, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    refused: list[Exception] = []
    try:
        with torch.cuda.graph(captured):
            try:
                plan.execute(bound, room, stream=torch.cuda.current_stream())
            except LaunchError as error:
                refused.append(error)
    except RuntimeError as error:  # torch's, of a capture that is broken
        refused.append(error)
    if refused:
        pytest.skip(f"cuDNN does not capture this plan: {refused}")
    out = bound[graph.outputs()[0].uid]
    assert out.isnan().all()
    for seed in (1, 2):
        fresh = operands(graph, {}, seed)
        for tensor in graph.inputs():
            bound[tensor.uid].copy_(fresh[tensor.uid])
        out.fill_(math.nan)
        captured.replay()
        torch.cuda.synchronize()
        assert_close(graph, bound)


def test_the_time_of_a_call(built: Built) -> None:
    """Printed, not judged: host time of an execute beside the project's own plan."""
    name = "half_batch"
    graph = built.graphs[name]
    bound = operands(graph, {})
    for what, plan in (("cudnn", built.plan(name)), ("native", built.store.plan(name))):
        room = torch.empty(plan.workspace_bytes() + 1, dtype=torch.uint8, device="cuda")
        handle = stream()
        for _ in range(200):
            plan.execute(bound, room, stream=handle)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(1000):
            plan.execute(bound, room, stream=handle)
        took = time.perf_counter() - started
        torch.cuda.synchronize()
        print(f"{what}: {took * 1e3:.2f} us per execute, {plan}")


def test_the_frontend_builds_the_same_engine(built: Built) -> None:
    """The program's own way to the plan, beside ours."""
    import cudnn

    row = built.rows["half_batch"]
    built.plan("half_batch")
    graph = to_frontend(built.graphs["half_batch"], cudnn, handle=cudnn.create_handle())
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    engine, knobs = graph.get_engine_and_knobs_at_index(graph._plan_index)
    print("frontend:", engine, knobs, "stored:", row.engines, row.knobs)
    assert engine == int(row.engines[0].removeprefix("cudnn.eng"))
    assert {knob.name: value for knob, value in knobs.items()} == row.knobs
