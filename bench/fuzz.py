"""Reads very many broken files, of every form: graph JSON, plan-blob graph part, whole blob, lowered form.

    python bench/fuzz.py [--inputs 100000] [--engine atheris|random] [--seed 1]

Every input is read or refused in one line, in bounded time and memory (see tests/support/fuzz_inputs.py,
which holds for each of them). `atheris` (pip install atheris) chooses the changes by the code they
reach; `random` draws them. Half of the inputs of atheris are its own bytes, not changed documents.
The first fault is printed with its input, which goes into tests/compiler/formats/test_fuzz.py.
"""  # noqa: E501

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

MAX_SECONDS = 5.0  # for one input, which instrumented code reads several times slower
MAX_MIB = 4096  # of the process; the fuzzer's own tables are most of it


class Run:
    """Inputs read so far: how many, what became of them, the slowest."""

    def __init__(self, total: int) -> None:
        import fuzz_inputs

        self.inputs = fuzz_inputs
        self.seeds = fuzz_inputs.seeds()
        self.total = total
        self.seen: Counter[tuple[str, str]] = Counter()
        self.count = 0
        self.slowest = 0.0
        self.began = time.monotonic()

    def one(self, form: str, data: bytes) -> None:
        began = time.process_time()
        try:
            outcome = self.inputs.read(data)
        except BaseException:
            print(f"fault: {form}: {data[:2000]!r}")
            traceback.print_exc()
            raise
        used = time.process_time() - began
        self.slowest = max(self.slowest, used)
        assert used < MAX_SECONDS, f"{form}: {used:.1f} s: {data[:2000]!r}"
        self.seen[form, outcome] += 1
        self.count += 1
        if self.count == self.total:
            self.report()

    def document(self, below: Any) -> None:
        """One changed document."""
        form = self.inputs.FORMS[below(len(self.inputs.FORMS))]
        document = self.seeds[form][below(len(self.seeds[form]))]
        self.one(form, self.inputs.wrecked(form, document, below))

    def report(self) -> None:
        seconds = time.monotonic() - self.began
        slowest = f"slowest {self.slowest:.2f} s"
        print(f"{self.count} inputs in {seconds:.0f} s, no fault; {slowest}")
        for (form, outcome), count in sorted(self.seen.items()):
            print(f"  {form:8} {outcome:12} {count}")
        print(
            f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB",
            flush=True,
        )


def run_random(total: int, seed: int) -> None:
    run = Run(total)
    for number in range(total):
        run.document(run.inputs.from_random(seed * 1_000_003 + number))


def run_atheris(total: int, seed: int) -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("error: atheris is not installed: pip install atheris, or --engine random")
    with atheris.instrument_imports(include=["cudnn_aot.compiler", "json"]):
        run = Run(total)

    def below(provider: Any) -> Any:
        return lambda count: provider.ConsumeIntInRange(0, count - 1) if count > 0 else 0

    def test(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        if provider.ConsumeBool():
            run.document(below(provider))
        else:
            rest = provider.ConsumeBytes(len(data))
            run.one("bytes", run.inputs.MAGIC + rest if rest[:1] == b"\0" else rest)

    flags = [f"-runs={total}", f"-seed={seed}", f"-rss_limit_mb={MAX_MIB}", "-timeout=60"]
    with tempfile.TemporaryDirectory() as corpus:
        numbers = random.Random(seed)
        for name in range(64):  # of a length from the start that says where to change what
            Path(corpus, str(name)).write_bytes(numbers.randbytes(256))
        flags += ["-max_len=1024", "-len_control=0", "-verbosity=0", corpus]
        atheris.Setup([sys.argv[0], *flags], test)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=positive, default=100_000)
    parser.add_argument("--engine", choices=["atheris", "random"], default="atheris")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.engine == "atheris":
        run_atheris(options.inputs, options.seed)
    else:
        run_random(options.inputs, options.seed)


if __name__ == "__main__":
    run_main(main)
