"""What pointwise ops cost a kernel: instructions, seconds of its compile and bytes of its object.

    python bench/chains.py [--ops tan "cast INT8"] [--nodes 4 16] [--kernel simt sm90]

A chain is a bias and one op so many times over, behind the matmul of two kernels for h200: that on
the CUDA cores, whose threads compute 16 elements each, and the cooperative tile 128x256x64 with
cluster 2x1x1, which takes fewer columns at a time the more a chain computes. Prints for each chain
what `instructions` of `recipes/trace/pointwise.py` says of an element; what the machine code has,
which is its growth from the kernel with the bias alone by the elements that there is code for (of
the tile roughly: a wider block has other code of its own); all instructions of the kernel; the
seconds of tracing and compiling it; and its linked object. One process does all. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

TILE, CLUSTER = (128, 256, 64), (2, 1, 1)
ARCH, FLAVOR = "sm_90a", "cu12"  # of h200


def kernel_of(kind: str, chain: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Its parameters, and the elements of a thread that it has code for."""
    import kernel_menu
    import op_chains

    from cudnn_aot.recipes.gemm.kernels import sm90_config, sm90_stores

    if kind == "simt":
        return op_chains.simt(chain), op_chains.SIMT_ELEMENTS
    params = kernel_menu.params(TILE, CLUSTER, e=chain)
    config = sm90_config.Config.parse(params)
    columns = config.block_columns * sm90_stores.Stores(config).blocks_unrolled
    return params, columns * sm90_config.GROUP_ROWS // sm90_config.WARPGROUP


def compiled(kind: str, params: dict[str, Any], folder: Path) -> tuple[bytes, float]:
    """The linked object, and the seconds of all but linking."""
    from cudnn_aot.cache import export
    from cudnn_aot.cache.link import link
    from cudnn_aot.compiler.target.host import DEFAULT_LEVELS, this_triple

    module, level = f"cudnn_aot.recipes.gemm.kernels.{kind}", DEFAULT_LEVELS[this_triple()]
    began = time.perf_counter()
    export.export(module, "matmul", params, ARCH, level, (), folder / "kernel.o")
    took = time.perf_counter() - began
    return link(folder / "kernel.o", folder / "kernel.so", FLAVOR, True, level).data, took


def measure(links: list[str], counts: list[int], kinds: list[str]) -> None:
    from cudnn_aot.cache import export
    from cudnn_aot.cache.toolchain import dsl_folder

    export.bind_environment(ARCH)
    libraries = dsl_folder() / "dsl_packages" / "cutlass" / "_mlir" / "_mlir_libs"
    export.bind_flavor(FLAVOR, libraries)
    import op_chains

    from cudnn_aot.recipes.trace.pointwise import instructions

    if unknown := [link for link in links if link not in op_chains.LINKS]:
        sys.exit(f"error: --ops: got {unknown[0]!r}, want some of {', '.join(op_chains.LINKS)}")
    rows = [("identity", 0), *((link, n) for link in links or op_chains.LINKS for n in counts)]
    print(f"{'chain':<31}{'kernel':>7}{'said':>7}{'code':>7}{'in all':>9}{'s':>8}{'KB':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            bare = 0
            for link, count in rows:
                chain = op_chains.epilogue(link, count)
                params, elements = kernel_of(kind, chain)
                data, took = compiled(kind, params, Path(folder))
                code = op_chains.machine_code(data)
                bare = bare or code
                print(f"{f'{count} {link}':<31}{kind:>7}{instructions(chain['nodes'][1:]):7}"
                      f"{(code - bare) / elements:7.0f}{code:9}{took:8.1f}"
                      f"{len(data) / 1024:7.0f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", nargs="+", default=[], help="default: all")
    parser.add_argument("--nodes", nargs="+", type=positive, default=[4])
    parser.add_argument("--kernel", nargs="+", choices=("simt", "sm90"), default=["simt"])
    given = parser.parse_args()
    measure(given.ops, given.nodes, given.kernel)


if __name__ == "__main__":
    run_main(main)
