"""Compares the executor's pack rules with a plain Python statement of them, over random calls.

    python bench/pack.py [--cases 100000] [--seed 1]

A case is a table of one to three operands and a call of it: declarations with symbols, 4-bit types,
reordered scales; buffers of any type, layout, device; addresses, overrides. Both sides must give the
same symbols, extents, strides and bytes, or the same rule and operand. Prints how many cases were of
each kind; the first that differs is printed whole and fails.
"""  # noqa: E501

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))


def main() -> None:
    import pack_cases

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=positive, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    seen: Counter[str] = Counter()
    for number in range(options.cases):
        case = pack_cases.case(random.Random(f"{options.seed}/{number}"))
        got, want = pack_cases.executed(case), pack_cases.stated(case)
        if got != want:
            print(f"case {number} of seed {options.seed}: got {got}, want {want}")
            raise SystemExit(f"{case}")
        seen.update(pack_cases.features(case, got))
    print(f"{options.cases} cases in {time.monotonic() - began:.0f} s, no difference")
    for name, count in sorted(seen.items()):
        print(f"  {count:8} {name}")


if __name__ == "__main__":
    run_main(main)
