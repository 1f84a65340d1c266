"""Compiles kernel templates in a process of its own: ``python compile_kernels.py JOBS.json OUT``.

JOBS is a list of ``{"name", "template", "params", "arch"}``, with ``keep_ptx`` if wanted, and
``stored`` for a host kernel as a store has it; OUT gets ``<name>.o`` of each and ``report.json``.
One process for many kernels, because importing the DSL costs more than most compiles; never
threads.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

from cudnn_aot.cache import export
from cudnn_aot.compiler.target.host import DEFAULT_LEVELS, this_triple


def redirect_output(path: Path) -> None:
    """Send what the compiler writes, ptxas included, to a file: it writes to the descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def main(jobs_path: str, out_path: str) -> None:
    jobs, out = json.loads(Path(jobs_path).read_text()), Path(out_path)
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    import cutlass.cute as cute

    report = {}
    for job in jobs:
        log = out / f"{job['name']}.log"
        redirect_output(log)
        module, function = job["template"].split(":")
        template = getattr(importlib.import_module(f"cudnn_aot.recipes.{module}"), function)(
            job["params"]
        )
        options = (
            "--enable-tvm-ffi"
            + (f" --gpu-arch {job['arch']}" if job["arch"] else "")
            + (" --keep-ptx" if job.get("keep_ptx") else "")
            + job.get("options", "")
        )
        start = time.perf_counter()
        compiled = cute.compile(template.function, *template.args, options=options)
        path = out / f"{job['name']}.o"
        if job["arch"] or job.get("stored"):
            export.write_object(compiled, DEFAULT_LEVELS[this_triple()], path)
        else:  # as the DSL writes it, for the processor that the tests run on
            compiled.export_to_c(str(path), function_name=export.SYMBOL)
        report[job["name"]] = {
            "smem_bytes": template.smem_bytes,
            "seconds": time.perf_counter() - start,
            "ptx": getattr(compiled, "__ptx__", None) if job.get("keep_ptx") else None,
            "log": log.read_text(errors="replace"),
        }
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
