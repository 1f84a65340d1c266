"""How long graphs take: reading and validating a file of 200 nodes, and the first graph of a process.

    python bench/graph_speed.py [--repeat 30] [--profile]

Prints medians of processor time (user and system), which other processes on the machine disturb
less than the clock, the least of it, and the clock's median. A fresh interpreter's own start is
printed beside the time of the import and of the first graph, and not subtracted.
"""  # noqa: E501

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from program import positive, run_main

import cudnn_aot
from cudnn_aot.compiler.graph.graph import Graph

BLOCKS = 20  # of ten nodes each

FIRST_GRAPH = """
import cudnn_aot as cudnn
dt = cudnn.data_type
g = cudnn.pygraph(io_data_type=dt.BFLOAT16, intermediate_data_type=dt.FLOAT,
                  compute_data_type=dt.FLOAT)
a = g.tensor(name="A", dim=[1, 32, 64], stride=[2048, 64, 1])
b = g.tensor(name="B", dim=[1, 64, 48], stride=[3072, 48, 1])
g.matmul(a, b).set_output(True)
g.validate()
"""
PROGRAMS = {
    "a fresh interpreter that does nothing": "pass",
    "a fresh interpreter, import cudnn_aot": "import cudnn_aot",
    "a fresh interpreter, import and a matmul graph": FIRST_GRAPH,
}


def transformer(blocks: int = BLOCKS) -> Graph:
    """A graph of ten nodes per block: a norm, two products and what stands around them."""
    g = cudnn_aot.pygraph("blocks", "BFLOAT16", "FLOAT", "FLOAT", symbols={"M": {"max": 8192}})
    x = g.tensor([1, "M", 512], name="x", uid=1, alignment_value=16)
    for block in range(blocks):

        def weight(name: str, *dim: int, block: int = block) -> object:
            return g.tensor(list(dim), name=f"{name}.{block}", alignment_value=16)

        epsilon = g.tensor_scalar(1e-5)
        y, _ = g.rmsnorm(x, weight("norm", 1, 1, 512), None, epsilon, "INFERENCE")
        up = g.bias(g.matmul(y, weight("up", 1, 512, 1024)), weight("up_bias", 1, 1, 1024))
        gate = g.swish(g.matmul(y, weight("gate", 1, 512, 1024)), swish_beta=1.0)
        down = g.matmul(g.mul(up, gate), weight("down", 1, 1024, 512))
        x = g.relu(g.add(g.scale(down, g.tensor_scalar(0.5)), x), upper_clip=6.0)
    x.set_output(True)
    g.validate()
    return g


Times = tuple[float, float, float]  # milliseconds: median and least of the processor, the clock's


def times_of(used: list[float], passed: list[float]) -> Times:
    return statistics.median(used) * 1e3, min(used) * 1e3, statistics.median(passed) * 1e3


def call_ms(work: Callable[[], object], repeat: int) -> Times:
    """The times of a call, after one to warm up."""
    work()
    used, passed = [], []
    for _ in range(repeat):
        clock, cpu = time.perf_counter(), time.process_time()
        work()
        used.append(time.process_time() - cpu)
        passed.append(time.perf_counter() - clock)
    return times_of(used, passed)


def process_ms(program: str, repeat: int) -> Times:
    """The times of a program in an interpreter of its own, from start to end.

    Modules are compiled once, in a folder for this, as an installed package's are: an environment
    that forbids Python to write bytecode would make every start compile all of them.
    """
    used, passed = [], []
    with tempfile.TemporaryDirectory() as cache:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = cache
        command = [sys.executable, "-c", program]
        subprocess.run(command, check=True, env=env)
        for _ in range(repeat):
            before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, env=env)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            passed.append(time.perf_counter() - clock)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return times_of(used, passed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=positive, default=30)
    parser.add_argument("--profile", action="store_true", help="profile reading the file instead")
    options = parser.parse_args()
    graph = transformer()
    text = cudnn_aot.dumps(graph)
    assert len(graph.nodes) == 200 and cudnn_aot.loads(text).key() == graph.key()
    if options.profile:
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(options.repeat):
            cudnn_aot.loads(text)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    size = f"{len(graph.nodes)} nodes, {len(graph.tensors)} tensors, {len(text) // 1024} KiB"
    rows = {
        f"read and validate a file ({size})": call_ms(
            lambda: cudnn_aot.loads(text), options.repeat
        ),
        "write it": call_ms(lambda: cudnn_aot.dumps(graph), options.repeat),
        "build the same with its methods": call_ms(transformer, options.repeat),
    }
    for name, program in PROGRAMS.items():
        rows[name] = process_ms(program, options.repeat)
    print(f"{f'{options.repeat} times, ms':60} {'processor':>9} {'least':>9} {'clock':>9}")
    for name, figures in rows.items():
        print(f"{name:60}" + "".join(f"{figure:10.1f}" for figure in figures))


if __name__ == "__main__":
    run_main(main)
