"""`cudnn-aot verify` of a store of many kernels: every byte read and hashed, references followed.

    python bench/verify.py [--kernels 1000] [--repeat 5] [--folder FOLDER]

Each plan has a kernel of its own with whole records, as a build for a GPU leaves them; the
libraries are 15 to 60 KB of random bytes, since nobody loads them here. Prints the milliseconds of
the whole process from its start to its exit, as a folder and as a pack, and how many files a kernel
takes. Fails if verification finds a fault, or finds none after one byte of one library was changed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import many_kernels
from program import positive, run_main

from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader


def verify(store: Path) -> tuple[float, float, dict]:
    """Milliseconds by the clock and of processors, and the document that it printed."""
    script = str(Path(sys.executable).with_name("cudnn-aot"))
    before, began = os.times(), time.perf_counter()
    command = [script, "verify", "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    took, after = time.perf_counter() - began, os.times()
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return 1e3 * took, 1e3 * (sum(after[2:4]) - sum(before[2:4])), json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=positive, default=1000)
    parser.add_argument("--repeat", type=positive, default=5)
    parser.add_argument("--folder", type=Path, help="where the store is made (default: temporary)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        store, pack = Path(name, "store"), Path(name, "store.pack")
        many_kernels.fill(store, given.kernels)
        write_pack(StoreReader(store), pack, 0)
        files = many_kernels.files_of_kernels(store)
        libraries = sum((store / path).stat().st_size for path in files)
        print(
            f"{given.kernels} kernels, {len(files) / given.kernels:.2f} files for each, "
            f"{libraries / 1e6:.0f} MB; {os.cpu_count()} processors, "
            f"load {os.getloadavg()[0]:.1f}; milliseconds"
        )
        for place in (store, pack):
            clock, used = [], []
            for _ in range(given.repeat):
                took_ms, processor_ms, document = verify(place)
                if document["problems"] or document["kernels"] != given.kernels:
                    sys.exit(f"{place.name}: {document['kernels']} kernels, {document['problems']}")
                clock.append(took_ms)
                used.append(processor_ms)
            print(
                f"{place.name:10} clock {statistics.median(clock):6.0f}  least {min(clock):6.0f}  "
                f"processor {statistics.median(used):6.0f}",
                flush=True,
            )
        victim = store / random.Random(1).choice([path for path in files if path.startswith("b")])
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.chmod(0o644)
        victim.write_bytes(data)
        if len(verify(store)[2]["problems"]) != 1:
            sys.exit(f"{victim} was changed, and verification did not say so")


if __name__ == "__main__":
    run_main(main)
