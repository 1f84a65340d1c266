"""A store with one plan per schedule of the GEMM engines for Hopper, each under its plan's name.

``python tests/support/config_store.py STORE [--jobs N] [--splits 1,2,7]`` compiles what is missing,
on a machine without a GPU. ``tests/gpu/test_every_config.py`` runs them all.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gemm_graphs

from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.compile import CompilerPool, compile_cached
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.config import (
    SM90_CLUSTERS,
    SM90_TILES,
    GemmConfig,
    GemvConfig,
    SkinnyConfig,
)
from cudnn_aot.recipes.gemm.heuristics import SM90_GEMV, SM90_SKINNY

TARGET = "h200"
ENGINE = 20_000
# Not at all, in two, and in a number that does not divide the steps of K.
SPLITS = (1, 2, 7)


def graph() -> Graph:
    """Bias, activation and residual; any M, an N of no whole tiles, K of 13 steps of 64."""
    return gemm_graphs.chain("g", "M", 328, 832, "gelu", symbols={"M": {"min": 0, "max": 4096}})


def configs(splits: tuple[int, ...] = SPLITS) -> list[GemmConfig]:
    return [
        GemmConfig(*tile, *cluster, count)
        for tile in SM90_TILES[2]
        for cluster in SM90_CLUSTERS
        for count in splits
    ]


def streams() -> list[GemvConfig | SkinnyConfig]:
    """Of the engines for few rows each value of every knob, with and without warps that share K."""
    gemvs = ((1, 2, 1, 4), (1, 1, 8, 4), (2, 2, 4, 2), (4, 1, 2, 2), (4, 4, 8, 2), (2, 4, 1, 1))
    skinnies = (
        (8, 16, 8, 4), (16, 16, 8, 4), (32, 16, 4, 2), (64, 16, 8, 2), (64, 32, 2, 1),
        (8, 32, 1, 1), (16, 32, 2, 2), (8, 16, 4, 1),
    )  # fmt: skip
    return [*(GemvConfig(*each) for each in gemvs), *(SkinnyConfig(*each) for each in skinnies)]


def every(splits: tuple[int, ...] = SPLITS) -> list[tuple[int, Any]]:
    """Engine and schedule of each plan."""
    ids = {GemmConfig: ENGINE, GemvConfig: SM90_GEMV, SkinnyConfig: SM90_SKINNY}
    return [(ids[type(config)], config) for config in (*configs(splits), *streams())]


def build(store: Path, jobs: int, splits: tuple[int, ...]) -> int:
    """Compile and publish; the number of plans."""
    plans = PlanList(graph(), load_target(TARGET))
    indices = []
    for engine_id, config in every(splits):
        _, slot = manifest.engine_for_id(engine_id)
        engine = manifest.resolve(slot.factory)()
        indices.append(plans.append(engine_id, engine.knobs_to_public(config)))
    specs = {spec.key: spec for index in indices for spec in plans.lower(index).kernels}
    print(f"{len(indices)} plans of {len(specs)} kernels, {jobs} at a time")
    with (
        StoreWriter(store, create=True) as writer,
        CompilerPool(jobs) as pool,
        ThreadPoolExecutor(jobs) as executor,
    ):
        compiled = executor.map(lambda spec: compile_cached(spec, writer, pool), specs.values())
        entries = dict(zip(specs, compiled, strict=True))
        graph_blob = writer.put_blob(graph_json.dumps(plans.graph).encode())
        for index in indices:
            name, planned = plans.name(index), plans.lower(index)
            # A store has one best plan per graph: each schedule stands for a graph of its own.
            key = canonical_digest([plans.graph.key(), name])
            kernels = [entries[spec.key] for spec in planned.kernels]
            record = records.plan_record(key, TARGET, planned, kernels)
            blob = writer.put_blob(canonical_bytes(record))
            pointer = records.pointer(graph_blob, {"native": records.provider("", [blob])})
            writer.put_pointer(TARGET, key, pointer)
            writer.put_name(TARGET, name, key, plans.graph.uids())
    return len(indices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--splits", default=",".join(map(str, SPLITS)))
    given = parser.parse_args()
    build(given.store, given.jobs, tuple(map(int, given.splits.split(","))))


if __name__ == "__main__":
    main()
