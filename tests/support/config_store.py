"""A store with one plan per schedule of the engines for Hopper, each under the names of its graph
and plan.

``python tests/support/config_store.py STORE [--jobs N] [--splits 1,2,4]`` compiles what is
missing, on a machine without a GPU. ``tests/gpu/test_every_config.py`` runs them all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import batch_graphs
import gemm_graphs
import moe_graphs

from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.compile import CompilerPool, compile_cached
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.knobs import plan_name
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.config import (
    CLUSTER_SPLITS,
    SM90_CLUSTERS,
    SM90_TILES,
    GemmConfig,
    GemvConfig,
    TileClass,
)
from cudnn_aot.recipes.gemm.heuristics import SM90_GEMV
from cudnn_aot.recipes.gemm.sm90 import FEW_ROWS
from cudnn_aot.recipes.moe.config import MoeConfig
from cudnn_aot.recipes.moe.heuristics import SM90_PERSISTENT as MOE_PERSISTENT

TARGET = "h200"
ENGINE = 20_000
SPLITS = (1, *CLUSTER_SPLITS)
# So many steps of 64 that tiles have pieces of more than one length: 65.
DEPTH = 4160


def graphs() -> dict[str, Graph]:
    """By name, of each class of tiles one: any M, an N of no whole tiles, and a K of `DEPTH`; one
    of few rows, whose A comes in smaller loads; and one whose batch axes do not merge. Of grouped
    matmuls one of each mode and size of elements.
    """
    any_m, few = {"M": {"min": 0, "max": 4096}}, {"M": {"min": 0, "max": FEW_ROWS}}
    e4m3, e5m2 = gemm_graphs.E4M3, gemm_graphs.E5M2
    made = (
        gemm_graphs.chain("chain", "M", 328, DEPTH, "gelu", symbols=any_m),
        gemm_graphs.chain("few", "M", 328, DEPTH, "gelu", symbols=few),
        gemm_graphs.scaled("fp8", "M", 328, DEPTH, (e4m3, e5m2), symbols=any_m),
        gemm_graphs.dequantized("int8", "M", 328, DEPTH, symbols=any_m),
        gemm_graphs.gated_int8("gated_int8", "M", 328, DEPTH, symbols=any_m),
        gemm_graphs.gated("gated", "M", 328, DEPTH, symbols=any_m),
        gemm_graphs.gated("gated_fp8", "M", 336, DEPTH, io=e4m3, symbols=any_m),
        gemm_graphs.reduced("folds", "M", 328, DEPTH, gemm_graphs.EVERY_AXES, symbols=any_m),
        gemm_graphs.gated_amax("gated_folds", "M", 328, DEPTH, symbols=any_m),
        gemm_graphs.quantized("folds_fp8", "M", 336, DEPTH, io=e4m3, symbols=any_m),
        gemm_graphs.block_scaled("blocks", "M", 328, DEPTH, symbols=any_m),
        gemm_graphs.block_scaled("blocks_of_32", "M", 328, DEPTH, rows=(1, 32), symbols=any_m),
        gemm_graphs.block_scaled("blocks_of_a", "M", 328, DEPTH, rows=(1, None), symbols=any_m),
        gemm_graphs.block_gated("blocks_gated", "M", 328, DEPTH, symbols=any_m),
        batch_graphs.scores("heads", "M", 328, DEPTH, symbols=any_m),
        *(
            moe_graphs.grouped(
                mode,
                name=name,
                rows="M",
                n=328,
                k=832,
                experts=5,
                offsets=6,
                tokens=700,
                io=moe_graphs.E4M3 if size == 1 else moe_graphs.BF16,
                out=moe_graphs.BF16,
                weight_major="k",
                top_k=1,
                symbols=any_m,
            )
            for name, (mode, size) in GROUPED.items()
        ),
    )
    return {graph.name: graph for graph in made}


# Mode, and bytes of an element.
GROUPED = {
    f"grouped_{mode.lower()}{'_fp8' * (size == 1)}": (mode, size)
    for mode in ("NONE", "GATHER", "SCATTER")
    for size in (2, 1)
}
TILE_CLASSES = {
    "chain": TileClass(2, 1),
    "fp8": TileClass(1, 1),
    "int8": TileClass(1, 1, is_integer=True),
    "gated_int8": TileClass(1, 2, is_integer=True),
    "gated": TileClass(2, 2),
    "gated_fp8": TileClass(1, 2),
    "folds": TileClass(2, 1, folds_rows=True),
    "gated_folds": TileClass(2, 2, folds_rows=True),
    "folds_fp8": TileClass(1, 1, folds_rows=True),
    "blocks": TileClass(1, 1, 128),
    "blocks_of_32": TileClass(1, 1, 32),
    "blocks_of_a": TileClass(1, 1, 0),
    "blocks_gated": TileClass(1, 2, 128),
}


def configs(
    splits: tuple[int, ...] = SPLITS, tiles: TileClass = TILE_CLASSES["chain"]
) -> list[GemmConfig]:
    """Every tile and cluster, each with every way to split K."""
    every = (
        GemmConfig(*tile, *cluster, count, stream_k, pingpong)
        for tile in SM90_TILES[tiles.element_bytes]
        for cluster in SM90_CLUSTERS
        for count in splits
        for stream_k in (0, 1)
        for pingpong in (0, 1)
    )
    return [
        config for config in every if config.why_not() is None and config.why_not_for(tiles) is None
    ]


def gemvs() -> list[GemvConfig]:
    """Of the engine for few rows each value of every knob, with and without warps that share K."""
    every = ((1, 2, 1, 4), (1, 1, 8, 4), (2, 2, 4, 2), (4, 1, 2, 2), (4, 4, 8, 2), (2, 4, 1, 1))
    return [GemvConfig(*each) for each in every]


def every(splits: tuple[int, ...] = SPLITS) -> list[tuple[str, int, Any]]:
    """The graph's name, engine and schedule of each plan."""
    plans: list[tuple[str, int, Any]] = [
        (name, ENGINE, config)
        for name, tiles in TILE_CLASSES.items()
        for config in configs(splits, tiles)
    ]
    plans += [
        ("few", ENGINE, config)
        for config in configs(splits)
        if config.cluster_n == 1 and not config.stream_k
    ]
    plans += [
        (name, MOE_PERSISTENT, config)
        for name, (_, size) in GROUPED.items()
        for config in MoeConfig.measured(size)
    ]
    plans += [("heads", ENGINE, config) for config in configs(splits) if config.tile_n == 96]
    plans += [(name, SM90_GEMV, config) for name in ("chain", "heads") for config in gemvs()]
    return plans


def name_of(graph: str, engine_id: int, config: Any) -> str:
    """The name under which a plan is stored."""
    _, slot = manifest.engine_for_id(engine_id)
    public = manifest.resolve(slot.factory)().knobs_to_public(config)
    knobs = tuple((knob.name, value) for knob, value in public.items())
    return f"{graph} {plan_name(slot.name, knobs)}"


def build(store: Path, jobs: int, splits: tuple[int, ...]) -> int:
    """Compile and publish; the number of plans."""
    made = graphs()
    plans = [(name_of(*each), made[each[0]], *each[1:]) for each in every(splits)]
    store_plans(store, plans, jobs)
    return len(plans)


def store_plans(
    store: Path, plans: Sequence[tuple[str, Graph, int, Any]], jobs: int | None = None
) -> None:
    """Compile and publish plans: each the name it gets, its graph, engine and schedule."""
    target = load_target(TARGET)
    lists = {id(graph): PlanList(graph, target) for _, graph, _, _ in plans}
    chosen: list[tuple[str, PlanList, Planned]] = []
    for name, graph, engine_id, config in plans:
        _, slot = manifest.engine_for_id(engine_id)
        engine = manifest.resolve(slot.factory)()
        of_graph = lists[id(graph)]
        index = of_graph.append(engine_id, engine.knobs_to_public(config))
        chosen.append((name, of_graph, of_graph.lower(index)))
    specs = {spec.key: spec for _, _, planned in chosen for spec in planned.kernels}
    jobs = jobs or os.cpu_count() or 1
    print(f"{len(chosen)} plans of {len(specs)} kernels, {jobs} at a time")
    with (
        StoreWriter(store, create=True) as writer,
        CompilerPool(jobs) as pool,
        ThreadPoolExecutor(jobs) as executor,
    ):
        compiled = executor.map(lambda spec: compile_cached(spec, writer, pool), specs.values())
        entries = dict(zip(specs, compiled, strict=True))
        for name, of_graph, planned in chosen:
            graph_blob = writer.put_blob(graph_json.dumps(of_graph.graph).encode())
            # A store has one best plan per graph: each schedule stands for a graph of its own.
            key = canonical_digest([of_graph.graph.key(), name])
            kernels = [entries[spec.key] for spec in planned.kernels]
            record = records.plan_record(key, TARGET, planned, kernels)
            blob = writer.put_blob(canonical_bytes(record))
            pointer = records.pointer(graph_blob, {"native": records.provider("", [blob])})
            writer.put_pointer(TARGET, key, pointer)
            writer.put_name(TARGET, name, key, of_graph.graph.uids())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--splits", default=",".join(map(str, SPLITS)))
    given = parser.parse_args()
    build(given.store, given.jobs, tuple(map(int, given.splits.split(","))))


if __name__ == "__main__":
    main()
