"""How long planning takes: a graph of ten nodes, and recognising that it is unchanged.

    python bench/planning.py [--repeat 200] [--target h200]

Builds the graph into a store of its own first, which compiles its kernels (seconds). Prints medians
of processor time, which other processes on the machine disturb less than the clock, the least of
it, and the clock's median. Every planning is of a graph that was not planned before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from program import positive, run_main

import cudnn_aot
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.build.stored import stored_plan
from cudnn_aot.compiler.build.summary import KernelResult, Status
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.target.target import Target, load_target

ROWS = {"10 nodes": 512, "10 nodes, rows symbolic": "M"}


def ten_nodes(rows: int | str) -> str:
    """A product and nine pointwise ops after it, as a graph file."""
    g = cudnn_aot.pygraph(
        "ten_nodes",
        "BFLOAT16",
        "FLOAT",
        "FLOAT",
        symbols={"M": {"max": 8192, "hint": 512}} if rows == "M" else None,
    )
    a = g.tensor([1, rows, 4096], name="A")
    b = g.tensor([1, 4096, 14336], [4096 * 14336, 1, 4096], name="B")
    bias = g.tensor([1, 1, 14336], name="bias")
    residual = g.tensor([1, rows, 14336], name="residual")
    y = g.scale(g.matmul(a, b), g.tensor_scalar(0.5))
    y = g.swish(g.bias(y, bias))
    y = g.mul(g.tanh(y), g.sigmoid(y))
    g.relu(g.add(g.gelu(y), residual)).set_output(True)
    assert len(g.nodes) == 10
    return cudnn_aot.dumps(g)


def measure(work: Callable[[int], object], repeat: int) -> tuple[float, float, float]:
    """Milliseconds: median and least of processor time, median of the clock; one call to warm
    up.
    """
    work(0)
    used, passed = [], []
    for number in range(1, repeat + 1):
        clock, cpu = time.perf_counter(), time.process_time()
        work(number)
        used.append((time.process_time() - cpu) * 1e3)
        passed.append((time.perf_counter() - clock) * 1e3)
    return statistics.median(used), min(used), statistics.median(passed)


def frozen(text: str, count: int) -> list[Graph]:
    graphs = [cudnn_aot.loads(text).freeze() for _ in range(count)]
    for graph in graphs:
        graph.key()  # known once a file is read
    return graphs


def rows_of(name: str, text: str, target: Target, repeat: int) -> dict[str, tuple[float, ...]]:
    graphs = frozen(text, repeat + 1)
    rows = {
        f"{name}: plan": measure(lambda i: plan_graph(graphs[i], target), repeat),
        f"{name}: plan key": measure(lambda i: plan_key(graphs[i], target), repeat),
    }
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder) / "ten_nodes.json", Path(folder) / "store"
        path.write_text(text)
        summary = build([path], [target.name], store)
        assert [result.status for result in summary.graphs] == [Status.BUILT], summary
        reader = StoreReader(store)
        known: dict[str, KernelResult] = {}

        def recognise(i: int, whole: dict[str, KernelResult]) -> None:
            key = plan_key(graphs[i], target)
            assert stored_plan(reader, target.name, graphs[i].key(), key, known=whole) is not None

        kernels = len(summary.graphs[0].kernels)
        rows[f"{name}: recognise, kernels checked before"] = measure(
            lambda i: recognise(i, known), repeat
        )
        rows[f"{name}: recognise, and check {kernels} kernels"] = measure(
            lambda i: recognise(i, {}), repeat
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=positive, default=200)
    parser.add_argument("--target", default="h200")
    options = parser.parse_args()
    target = load_target(options.target)
    print(f"{f'{options.repeat} times, ms':56} {'processor':>9} {'least':>9} {'clock':>9}")
    for name, extent in ROWS.items():
        for row, times in rows_of(name, ten_nodes(extent), target, options.repeat).items():
            print(f"{row:56}" + "".join(f"{figure:10.3f}" for figure in times), flush=True)


if __name__ == "__main__":
    run_main(main)
