"""Start of a serving process: importing the runtime, opening a store, loading its CPU plans.

    python bench/startup.py [--plans 1000] [--repeat 7] [--folder FOLDER]

Builds one CPU plan (which compiles its kernel) and copies it, each copy with a kernel library of
its own (tests/support/many_plans.py): 1000 plans are 1000 files of some 30 KiB that are read,
hashed and loaded. Every run is a process of its own; its store is in the page cache. Prints medians
and the least of the runs, by the clock and of the processor. ``open + load`` lists the names, and
opens, verifies and loads every plan, all at once (`Store.plans`) or one by one (`Store.plan`), in
turns; CPU plans need no ``prepare``, which is timed apart. The floor is what the system takes for
the files alone, in C on one thread: reading each, a sealed memory file of it, and ``dlopen``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from program import positive, run_main

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
store = runtime.open(sys.argv[1], target="cpu")
if sys.argv[2] == "all at once":
    plans = list(store.plans().values())
else:
    plans = [store.plan(name) for _, name in store.names()]
mark("open + load, " + sys.argv[2])
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

_FLOOR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* The arguments are libraries that kernels need; standard input has a path on each line. */
int main(int count, char **names) {
  static char data[1 << 20];
  char line[4096], path[256];
  for (int i = 1; i < count; ++i) dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
  double clock = now(CLOCK_MONOTONIC), processor = now(CLOCK_PROCESS_CPUTIME_ID);
  for (unsigned serial = 1; fgets(line, sizeof line, stdin) != NULL; ++serial) {
    line[strcspn(line, "\n")] = 0;
    int file = open(line, O_RDONLY), memory = memfd_create("kernel", MFD_ALLOW_SEALING);
    ssize_t size = read(file, data, sizeof data);
    if (size <= 0 || write(memory, data, size) != size || fcntl(memory, F_ADD_SEALS, 15) != 0) {
      return perror(line), 1;
    }
    strcpy(path, "/proc/self/fd");  /* another path each time, or dlopen takes it for the last */
    for (unsigned bits = serial; bits != 0; bits >>= 1) strcat(path, (bits & 1) ? "/." : "/");
    sprintf(path + strlen(path), "/%d", memory);
    if (dlopen(path, RTLD_LAZY | RTLD_LOCAL) == NULL) return puts(dlerror()), 1;
    close(file), close(memory);
  }
  printf("{\"floor, in C\": [%f, %f]}", now(CLOCK_MONOTONIC) - clock,
         now(CLOCK_PROCESS_CPUTIME_ID) - processor);
}
"""


def build(folder: Path, count: int) -> Path:
    from class_graphs import build_store
    from many_plans import copy_plan

    source = folder / "source"
    source.mkdir(parents=True)
    return copy_plan(build_store(source), "linear", "cpu", folder / "store", count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plans", type=positive, default=1000)
    parser.add_argument("--repeat", type=positive, default=7, help="processes for each row")
    parser.add_argument("--folder", type=Path, help="where the store is built, and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        store = folder / "store"
        if not store.exists():
            build(folder, options.plans)
        print(f"{options.plans} plans, ms {'':18} {'clock':>15} {'processor':>15}")
        print(f"{'':34} {'median':>8} {'least':>6} {'median':>8} {'least':>6}")
        measures = [partial(_run, store, how) for how in ("all at once", "one by one")]
        measures.append(_floor(store, Path(scratch)))
        runs: list[dict[str, list[float]]] = [{} for _ in range(options.repeat)]
        for run in runs:
            for measure in measures:
                run |= measure()
        for name in runs[0]:
            row = f"{name:34}"
            for side in (0, 1):
                times = [1e3 * run[name][side] for run in runs]
                row += f" {statistics.median(times):8.1f} {min(times):6.1f}"
            print(row)


def _run(store: Path, how: str) -> dict[str, list[float]]:
    command = [sys.executable, "-c", _RUN, str(store), how]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _floor(store: Path, folder: Path) -> Callable[[], dict[str, list[float]]]:
    """Compiles the program of the floor; the result runs it."""
    from cudnn_aot import runtime
    from cudnn_aot.runtime.plan import find_ffi

    plans = runtime.open(store, target="cpu").plans()
    digests = [
        kernel["blob"] for plan in plans.values() for kernel in plan._record.document["kernels"]
    ]
    paths = "".join(f"{store}/blobs/sha256/{digest[:2]}/{digest}\n" for digest in digests)
    program, source = folder / "floor", folder / "floor.c"
    source.write_text(_FLOOR)
    subprocess.run(["cc", "-O2", source, "-o", program, "-ldl"], check=True)
    native = Path(sys.modules["cudnn_aot._native"].__file__ or "")
    command = [program, find_ffi(), native.parent / "lib" / "libcudnn_aot.so"]

    def run() -> dict[str, list[float]]:
        done = subprocess.run(command, input=paths, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


if __name__ == "__main__":
    run_main(main)
