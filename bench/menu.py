"""Seconds of compile and bytes of object, of every kernel of the menu for Hopper's tensor cores.

    python bench/menu.py [--slowest 10]

The kernels are those that the tests compile (`tests/support/kernel_menu.py`): every tile once of
each type of sums, and what is most code. One process compiles them, one after the other. Prints the
slowest and the largest, with their medians, in seconds of the clock (and of the processor, which
other work on the machine does not change much), and ends with exit code 1 if one takes more than 3
seconds of the processor or has more than 80 KB linked. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

ARCH, FLAVOR = "sm_90a", "cu12"  # of h200
SECONDS, BYTES = 3.0, 80 << 10  # of a kernel, at most


class Compiled(NamedTuple):
    name: str
    seconds: float
    processor: float
    size: int


def compile_menu(folder: Path) -> list[Compiled]:
    import kernel_menu

    from cudnn_aot.cache import export
    from cudnn_aot.cache.link import link
    from cudnn_aot.compiler.target.host import DEFAULT_LEVELS, this_triple

    level, found = DEFAULT_LEVELS[this_triple()], []
    source, target = folder / "kernel.o", folder / "kernel.so"
    rows = kernel_menu.TEMPLATES["sm90:matmul"]
    first = next(iter(rows))
    for name in (first, *rows):  # the first one also imports the compiler
        began, used = time.perf_counter(), time.process_time()
        module = "cudnn_aot.recipes.gemm.kernels.sm90"
        export.export(module, "matmul", rows[name], ARCH, level, (), source)
        took = time.perf_counter() - began, time.process_time() - used
        found.append(Compiled(name, *took, len(link(source, target, FLAVOR, True, level).data)))
    return found[1:]


def report(found: list[Compiled], shown: int) -> list[str]:
    """Prints the slowest and the largest; the names of those past a limit."""
    by_time = sorted(found, key=lambda each: -each.processor)[:shown]
    by_size = sorted(found, key=lambda each: -each.size)[:shown]
    for title, rows in (("slowest", by_time), ("largest", by_size)):
        print(f"{title:<34}{'seconds':>8}{'processor':>11}{'KB':>7}")
        for each in rows:
            print(
                f"  {each.name:<32}{each.seconds:8.2f}{each.processor:11.2f}{each.size / 1024:7.1f}"
            )
    seconds, processor, sizes = (
        statistics.median(getattr(each, name) for each in found)
        for name in ("seconds", "processor", "size")
    )
    print(f"{f'median of {len(found)}':<34}{seconds:8.2f}{processor:11.2f}{sizes / 1024:7.1f}")
    return [each.name for each in found if each.processor > SECONDS or each.size > BYTES]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slowest", type=positive, default=10, help="how many to print of each")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if past := report(compile_menu(Path(folder)), asked.slowest):
            sys.exit(f"error: past {SECONDS:g} s or {BYTES >> 10} KB: {', '.join(past)}")


if __name__ == "__main__":
    run_main(main)
