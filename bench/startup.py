"""Start of a serving process: importing the runtime, opening a store, loading its CPU plans.

    python bench/startup.py [--plans 1000] [--threads 2] [--repeat 7] [--folder FOLDER]

Builds one CPU plan (which compiles its kernel) and copies it, each copy with a kernel library of
its own (tests/support/many_plans.py): 1000 plans are 1000 files of some 30 KiB that are read,
hashed and loaded. Every run is a process of its own; its store is in the page cache. Prints medians
and the least of the runs, by the clock and of the processor. ``open + load`` lists the names, and
opens, verifies and loads every plan; CPU plans need no ``prepare``, which is timed apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

_RUN = """
import sys, time
marks = {}
last = time.perf_counter(), time.process_time()
def mark(name):
    global last
    now = time.perf_counter(), time.process_time()
    marks[name] = [now[0] - last[0], now[1] - last[1]]
    last = now
import cudnn_aot.runtime
mark("import cudnn_aot.runtime")
runtime = cudnn_aot.runtime
runtime.open, runtime.Plan
mark("import of what open needs")
threads = int(sys.argv[2])
if threads > 1:
    from concurrent.futures import ThreadPoolExecutor
    last = time.perf_counter(), time.process_time()
store = runtime.open(sys.argv[1], target="cpu")
names = [name for _, name in store.names()]
if threads > 1:
    with ThreadPoolExecutor(threads) as pool:
        plans = list(pool.map(store.plan, names))
else:
    plans = [store.plan(name) for name in names]
mark("open + load")
for plan in plans:
    plan.prepare()
mark("prepare")
store.closure_digest()
mark("closure_digest")
valid = store.validity()
mark("validity")
libraries = {line.split()[4] for line in open("/proc/self/maps") if "cudnn_aot_kernel" in line}
assert len(libraries) == len(plans) == len(valid) and all(v.ok for v in valid), len(libraries)
import json
print(json.dumps(marks))
"""


def build(folder: Path, count: int) -> Path:
    from class_graphs import build_store
    from many_plans import copy_plan

    source = folder / "source"
    source.mkdir(parents=True)
    return copy_plan(build_store(source), "linear", "cpu", folder / "store", count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2, help="beside the runs with one thread")
    parser.add_argument("--repeat", type=int, default=7, help="processes for each row")
    parser.add_argument("--folder", type=Path, help="where the store is built, and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        store = folder / "store"
        if not store.exists():
            build(folder, options.plans)
        print(f"{options.plans} plans, ms {'':18} {'clock':>15} {'processor':>15}")
        print(f"{'':34} {'median':>8} {'least':>6} {'median':>8} {'least':>6}")
        for threads in dict.fromkeys((1, options.threads)):
            runs = [_run(store, threads) for _ in range(options.repeat)]
            for name in runs[0]:
                row = f"{f'{name}, {threads} threads' if name == 'open + load' else name:34}"
                for side in (0, 1):
                    times = [1e3 * run[name][side] for run in runs]
                    row += f" {statistics.median(times):8.1f} {min(times):6.1f}"
                print(row)


def _run(store: Path, threads: int) -> dict[str, list[float]]:
    command = [sys.executable, "-c", _RUN, str(store), str(threads)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
