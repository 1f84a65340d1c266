"""The GPU kernels without a GPU: every row of the menu compiles clean, and the raster is a
bijection.

What they compute is checked on a GPU host (tests/gpu).
"""

from __future__ import annotations

import itertools
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from kernel_menu import (
    BARE,
    CHAIN,
    FEW,
    FORMS,
    GEMV,
    MATRICES,
    PAIR_B,
    PINGPONG,
    QUARTERS,
    RESIDUAL,
    STREAM,
    SUM,
    TEMPLATES,
    TILE_K,
    menu,
    params,
    piped,
)

from cudnn_aot.cache.link import link
from cudnn_aot.compiler.target.host import DEFAULT_LEVELS, this_triple
from cudnn_aot.recipes.gemm import any_stride
from cudnn_aot.recipes.gemm.kernels import operands, simt, sm90, sm90_config, sm90_loads
from cudnn_aot.recipes.trace import tile as simt_tile

# Bytes, of a few addresses: in the exchange of a tile's sums, of a chain of five operands, and
# beside as many sums as there can be.
SPILLS = {"128x160x128_halves": 12, "gemv_chain": 4, "pingpong_full_folds_chain": 64}
# Compiled by both processes: the bytes may not depend on which.
TWICE = "64x64x64"
RUNTIME_SYMBOL = re.compile(
    r"(TVMFFI|CuteDSLRT_TVMFFI|_cuda|_cu|cuda_dialect_)\w+|_GLOBAL_OFFSET_TABLE_|mem\w+|printf"
)


def test_every_tile_has_a_form():
    for dtype, forms in FORMS.items():
        tiles = tuple((m, n, TILE_K[dtype]) for m, n in forms)
        assert tiles == sm90_config.TILES[operands.named_dtype(dtype).width]
    values = {}
    for row in menu().values():
        for name, value in row.items():
            values.setdefault(name, set()).add(str(value))
    assert values["cluster"] == {str(list(cluster)) for cluster in sm90_config.CLUSTERS}
    assert values["a_boxes"] == {str(list(boxes)) for boxes in sm90_config.A_BOXES}


@pytest.fixture(scope="module")
def compiled(compile_kernels, tmp_path_factory):
    """(name -> object path, reports, compiler output) of the menu, compiled by two processes."""
    jobs = [
        {"name": name, "template": f"gemm.kernels.{template}", "params": p, "arch": "sm_90a"}
        for template, rows in TEMPLATES.items()
        for name, p in rows.items()
    ]
    for job in jobs:
        job["options"] = " remarks{ptx}"
    again = next(job for job in jobs if job["name"] == TWICE)
    halves = [jobs[0::2], jobs[1::2]]
    halves[again in halves[0]].append(again)
    folders = [tmp_path_factory.mktemp("menu") for _ in halves]
    with ThreadPoolExecutor(len(halves)) as executor:
        reports = list(executor.map(compile_kernels, halves, folders))
    objects = {
        job["name"]: f / f"{job['name']}.o"
        for h, f in zip(halves, folders, strict=True)
        for job in h
    }
    return objects, reports, folders


def test_every_kernel_exports_one_entry_and_needs_only_the_runtime(compiled):
    objects, _, _ = compiled
    assert set(objects) == {name for rows in TEMPLATES.values() for name in rows}
    for name, path in objects.items():
        listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        symbols = [line.split()[-2:] for line in listing.splitlines()]
        assert ["T", "__tvm_ffi_kernel"] in symbols, name
        undefined = [symbol for kind, symbol in symbols if kind == "U"]
        assert all(RUNTIME_SYMBOL.fullmatch(symbol) for symbol in undefined), (name, undefined)


def test_no_kernel_spills_or_serialises_its_matrix_instructions(compiled):
    _, reports, _ = compiled
    for report in reports:
        for name, row in report.items():
            assert "bytes spill stores" in row["log"], name
            assert not re.search(r"C75(08|11|14|17)", row["log"]), (name, row["log"])
            spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", row["log"])]
            assert max(spills) <= SPILLS.get(name, 0), name


# What reads or writes memory that kernels share.
MEMORY = re.compile(r"\b(cp\.async\.bulk\.tensor|(ld|st|atom|red)\.(\w+\.)*global)")


def test_nothing_touches_memory_ahead_of_the_end_of_the_kernel_before(compile_kernels, tmp_path):
    """A dependent launch starts early: what comes ahead of its wait races with what it follows."""
    rows = {
        "sm90_few": params((64, 64, 64), **FEW, e=CHAIN),
        "sm90_pingpong": params((128, 128, 64), **PAIR_B, **PINGPONG, e=CHAIN),
        "gemv": GEMV["gemv_chain"],
    }
    jobs = [
        {
            "name": name,
            "template": f"gemm.kernels.{name.partition('_')[0]}:matmul",
            "params": row,
            "arch": "sm_90a",
            "keep_ptx": True,
        }
        for name, row in rows.items()
    ]
    for name, report in compile_kernels(jobs, tmp_path).items():
        ptx = report["ptx"]
        wait = ptx.index("griddepcontrol.wait")
        touched = [found.start() for found in MEMORY.finditer(ptx)]
        assert touched and wait < min(touched), name
        # What is asked of L2 alone is of no account.
        assert ("cp.async.bulk.prefetch.tensor" in ptx[:wait]) is (name == "sm90_few"), name
        # Nor is B of few rows worth the room in L2.
        assert (str(sm90_loads.EVICT_FIRST) in ptx) is (name == "sm90_few"), name


def test_warpgroups_that_share_a_tile_take_turns(compile_kernels, tmp_path):
    """Where both add sums of FP8 at once, or finish at once, the tensor cores idle."""
    tile, fp8 = (128, 128, 64), {"tile": (128, 128, 128), "ab": "FP8_E4M3"}
    rows = {
        "turns": params(tile),
        "turns_fp8": params(**fp8),
        "scaled": params(**fp8, scales=[1, 128]),
        "few": params(tile, few=True),
        "one": params((64, 128, 64)),
    }
    jobs = [
        {"name": name, "template": "gemm.kernels.sm90:matmul", "params": row, "arch": "sm_90a"}
        | {"keep_ptx": True}
        for name, row in rows.items()
    ]
    passed = {
        name: report["ptx"].count("bar.arrive")
        for name, report in compile_kernels(jobs, tmp_path).items()
    }
    # Of FP8 the first turn too is passed, ahead of all.
    assert passed == {"turns": 1, "turns_fp8": 2, "scaled": 0, "few": 0, "one": 0}


def test_sums_of_int8_are_integers_all_through(compile_kernels, tmp_path):
    rows = {
        "int8_stream": params((64, 64, 128), **STREAM, ab="INT8", e=SUM),
        "int8_quarters": params((64, 64, 128), **QUARTERS, ab="INT8", e=SUM),
    }
    jobs = [
        {"name": name, "template": "gemm.kernels.sm90:matmul", "params": row, "arch": "sm_90a"}
        | {"keep_ptx": True}
        for name, row in rows.items()
    ]
    for name, report in compile_kernels(jobs, tmp_path).items():
        used = set(re.findall(r"wgmma\.mma_async\S+", report["ptx"]))
        assert used == {"wgmma.mma_async.sync.aligned.m64n64k32.satfinite.s32.s8.s8"}, name
        assert not re.search(r"\.(f32|rn|rz)\b", report["ptx"]), name


def test_a_linked_kernel_is_small(compiled, tmp_path):
    objects, _, _ = compiled
    level = DEFAULT_LEVELS[this_triple()]
    for name in TEMPLATES["sm90:matmul"]:
        linked = link(objects[name], tmp_path / f"{name}.so", "cu12", True, level)
        assert len(linked.data) <= 80 << 10, name


def test_shared_memory_is_what_the_config_says(compiled):
    _, reports, _ = compiled
    rows = TEMPLATES["sm90:matmul"]
    for report in reports:
        for name, row in report.items():
            if name in rows:
                config = sm90_config.Config.parse(rows[name])
                assert row["smem_bytes"] == config.smem_bytes <= sm90_config.SMEM_BYTES, name
                assert config.stages >= 4, name


def test_what_the_simt_kernel_says_of_its_tiles_is_what_the_plan_counts():
    assert any_stride.TILE == simt_tile.TILE
    for products in (1, 2):
        params = {"a_dtype": "HALF", "b_dtype": "HALF", "products": products, "epilogue": BARE}
        template = simt.matmul(params)
        assert template.smem_bytes == (1 + products) * simt_tile.SMEM_BYTES


def test_bytes_do_not_depend_on_the_process(compiled):
    _, _, folders = compiled
    assert len({(folder / f"{TWICE}.o").read_bytes() for folder in folders}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile": [96, 128, 64]}, "tile: got (96, 128, 64), want one of (128, 256, 64)"),
        ({"cluster": [2, 1]}, "cluster: got (2, 1), want one of (1, 1, 1), (2, 1, 1), (1, 2, 1)"),
        ({"cluster": [2, 1, 2]}, "cluster: got (2, 1, 2), want one of (1, 1, 1), (2, 1, 1)"),
        ({"cluster": [1, 1, 2]}, "tile: got (128, 256, 64), of which 2 stages fit, want at least"),
        (
            {"cluster": [1, 1, 4], "tile": (64, 96, 64), "a_boxes": [64]},
            "tile: got (64, 96, 64), of which a block of 4 finishes 24 columns, want a multiple of",
        ),
        (
            {"cluster": [1, 1, 2], "tile": (64, 96, 64), "a_boxes": [64], "stream_k": True},
            "stream_k: got True with cluster (1, 1, 2), want one way to split K",
        ),
        (
            {"cluster": [1, 1, 2], "tile": (64, 64, 64), "a_boxes": [64], "products": 2},
            "products: got 2 with K split, want 1",
        ),
        (
            {"pingpong": True},
            "tile: got (128, 256, 64) with 256 accumulators per thread, want at most",
        ),
        (
            {"pingpong": True, "tile": (128, 128, 64), "stream_k": True},
            "pingpong: got True with FP8 or K split, want False",
        ),
        (
            {"tile": (64, 64, 64), "stream_k": True, "few_rows": True},
            "few_rows: got True with stream_k, which waits for a fill, want False",
        ),
        ({"a_boxes": [16]}, "a_boxes: got (16,), want one of (64,), (128,), (64, 16)"),
        (
            {"a_boxes": [64]},
            "a_boxes: got (64,) for tile (128, 256, 64), want its rows or (64, 16)",
        ),
        (
            {"a_boxes": [64, 16], "a_major": "m"},
            "a_boxes: got (64, 16) for tile (128, 256, 64), want its rows",
        ),
        (
            {"a_boxes": [64, 16], "cluster": [1, 2, 1]},
            "a_boxes: got (64, 16) for tile (128, 256, 64), want its rows",
        ),
        ({"a_dtype": "FLOAT"}, "a_dtype: got 'FLOAT', want one of BFLOAT16, HALF, FP8_E4M3, FP8"),
        ({"b_dtype": "HALF"}, "b_dtype: got 'HALF', want one of BFLOAT16"),
        ({"a_major": "n"}, "a_major: got 'n', want one of k, m"),
        (
            {"products": 2},
            "tile: got (128, 256, 64) with 256 accumulators per thread, want at most",
        ),
        (
            {"products": 2, "tile": (64, 64, 64), "stream_k": True},
            "stream_k: got True, want one of False",
        ),
        (
            {"a_dtype": "FP8_E4M3", "b_dtype": "FP8_E5M2", "a_major": "m"},
            "a_major: got 'm', want one of k",
        ),
        (
            {"a_dtype": "INT8", "b_dtype": "INT8", "b_major": "n"},
            "b_major: got 'n', want one of k",
        ),
        ({"a_dtype": "INT8", "b_dtype": "FP8_E4M3"}, "b_dtype: got 'FP8_E4M3', want one of INT8"),
        (
            {"a_dtype": "INT8", "b_dtype": "INT8", "tile": (64, 64, 128), "a_boxes": [64]}
            | {"scales": {"depth": 128, "rows": [1, 128]}},
            "scales: got blocks of 128 along K, want FP8 in whole tiles of K",
        ),
        ({"store": "scatter"}, "store: got 'scatter', want one of tma, direct"),
        (
            {"epilogue": piped(RESIDUAL), "pingpong": True, "tile": (128, 128, 64)},
            "epilogue: got a piped input with ping-pong, K split or scales, want none",
        ),
        (
            {"epilogue": {**CHAIN, "inputs": [{"dtype": "FLOAT", "kind": "piped"}]}},
            "epilogue: got a piped input of Float32, want 16 bits",
        ),
        (
            {"epilogue": piped(piped(MATRICES))},
            "epilogue: got 2 inputs that are piped, want at most one",
        ),
    ],
)
def test_params_off_the_menu_are_refused(change, message):
    with pytest.raises(ValueError) as caught:
        sm90.matmul({**params((128, 256, 64)), **change})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("dtype", FORMS)
def test_the_parts_of_a_piped_input_have_a_place_each_in_stages_of_operands(dtype):
    """Of every tile: in the stage, and none over another."""
    for tile_m, tile_n in FORMS[dtype]:
        tile = (tile_m, tile_n, TILE_K[dtype])
        config = sm90_config.Config.parse(params(tile, ab=dtype, e=piped(RESIDUAL)))
        assert config.piped_parts * config.piped_columns >= tile_n
        assert (config.piped_stages - 1) * config.stage_parts < config.piped_parts
        size, stage = tile_m * sm90_config.STORE_BYTES, 3
        places = {"a": [], "b": []}
        for part in range(config.stage_parts):
            places["ab"[part > 0]].append(config.piped_at(stage, part)[part > 0])
        for matrix, rows in (("a", tile_m), ("b", tile_n)):
            first = stage * rows * sm90_config.STORE_BYTES
            end = first + rows * sm90_config.STORE_BYTES
            spans = [(at, at + size) for at in places[matrix]]
            assert all(first <= low and high <= end for low, high in spans)
            assert spans == sorted(spans)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
            assert all(low % sm90_config.SWIZZLE_BYTES == 0 for low, _ in spans)


def test_unknown_operands_are_refused():
    bad_kind = {**BARE, "inputs": [{"dtype": "FLOAT", "kind": "diagonal"}]}
    with pytest.raises(
        ValueError, match="got kind 'diagonal', want full, row, col, scalar or value"
    ):
        sm90.matmul(params((128, 256, 64), e=bad_kind))
    with pytest.raises(ValueError, match="dtype: got 'INT4', want one of FLOAT, HALF, BFLOAT16"):
        operands.named_dtype("INT4")
