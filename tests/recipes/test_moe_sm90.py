"""The grouped kernel for Hopper's tensor cores without a GPU: every tile compiles clean, in each
mode, type, layout of the weight and way to store.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from cudnn_aot.recipes.gemm.config import SM90_TILES
from cudnn_aot.recipes.gemm.kernels.sm90_config import SMEM_BYTES
from cudnn_aot.recipes.moe.kernels import sm90

ROUTES = {"NONE": [], "GATHER": ["INT32"], "SCATTER": ["INT64", "INT32"]}
FP8 = {"token": "FP8_E4M3", "weight": "FP8_E5M2"}
# By the bytes of an element, a form for every tile: those that take most registers in each mode.
FORMS = {
    2: {
        (128, 256): {"mode": "GATHER"},
        (128, 224): {"mode": "SCATTER", "out": "FLOAT"},
        (128, 192): {"mode": "NONE", "b_major": "n"},
        (128, 160): {"mode": "NONE", "store": "direct", "out": "FP8_E4M3"},
        (128, 128): {"mode": "SCATTER", "store": "direct"},
        (128, 96): {"mode": "GATHER", "out": "FLOAT"},
        (128, 64): {"mode": "NONE"},
        (128, 32): {"mode": "GATHER", "store": "direct"},
        (64, 256): {"mode": "GATHER", "b_major": "n"},
        (64, 224): {"mode": "NONE", "token": "HALF"},
        (64, 192): {"mode": "SCATTER", "b_major": "n"},
        (64, 160): {"mode": "NONE", "out": "FLOAT"},
        (64, 128): {"mode": "NONE", "offset": "INT64"},
        (64, 96): {"mode": "SCATTER", "token": "HALF"},
        (64, 64): {"mode": "GATHER", "token": "HALF", "out": "FP8_E5M2"},
        (64, 32): {"mode": "NONE"},
    },
    1: {
        (128, 256): {"mode": "GATHER", **FP8},
        (128, 224): {"mode": "SCATTER", **FP8},
        (128, 192): {"mode": "NONE", **FP8, "out": "FLOAT"},
        (128, 160): {"mode": "NONE", **FP8, "out": "FP8_E4M3"},
        (128, 128): {"mode": "GATHER", **FP8, "store": "direct"},
        (128, 96): {"mode": "NONE", **FP8},
        (128, 64): {"mode": "SCATTER", **FP8},
        (128, 32): {"mode": "NONE", **FP8, "out": "HALF"},
        (64, 256): {"mode": "SCATTER", **FP8},
        (64, 224): {"mode": "GATHER", **FP8},
        (64, 192): {"mode": "NONE", **FP8, "out": "FLOAT"},
        (64, 160): {"mode": "NONE", **FP8, "store": "direct"},
        (64, 128): {"mode": "NONE", **FP8},
        (64, 96): {"mode": "GATHER", **FP8, "out": "FP8_E5M2"},
        (64, 64): {"mode": "NONE", **FP8},
        (64, 32): {"mode": "SCATTER", **FP8, "out": "FP8_E4M3"},
    },
}


def params(tile, mode, token="BFLOAT16", weight=None, out=None, offset="INT32", **others):
    few = tile[0] == 64 and mode != "GATHER"
    return {
        "mode": mode,
        "token_dtype": token,
        "weight_dtype": weight or token,
        "out_dtype": out or "BFLOAT16",
        "offset_dtype": offset,
        "route_dtypes": ROUTES[mode],
        "b_major": "k",
        "tile": list(tile),
        "a_boxes": [64, 16] if few else [tile[0]],
        "store": "tma",
    } | others


KERNELS = {
    f"{mode_and_type['mode'].lower()}_{m}x{n}x{128 // size}": params(
        (m, n, 128 // size), **mode_and_type
    )
    for size, forms in FORMS.items()
    for (m, n), mode_and_type in forms.items()
}


def test_every_tile_has_a_form():
    assert {
        size: tuple((m, n, 128 // size) for m, n in forms) for size, forms in FORMS.items()
    } == {size: tuple(t for t in tiles if t[1] % 32 == 0) for size, tiles in SM90_TILES.items()}


@pytest.fixture(scope="module")
def compiled(compile_kernels, tmp_path_factory):
    """The folder of the objects, and what the compile says of each."""
    jobs = [
        {
            "name": name,
            "template": "moe.kernels.sm90:grouped_matmul",
            "params": given,
            "arch": "sm_90a",
            "options": " remarks{ptx}",
        }
        for name, given in KERNELS.items()
    ]
    out = tmp_path_factory.mktemp("moe_sm90")
    return out, compile_kernels(jobs, out)


def test_every_tile_compiles_to_one_entry_and_spills_nothing(compiled):
    out, report = compiled
    for name in KERNELS:
        path = out / f"{name}.o"
        listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        assert " T __tvm_ffi_kernel" in listing, name
        log = report[name]["log"]
        assert re.findall(r"(\d+) bytes spill stores", log) == ["0"], name
        assert not re.search(r"C75(08|11|14|17)", log), (name, log)
        assert path.stat().st_size <= 80 << 10, name


def test_shared_memory_is_that_of_a_block(compiled):
    _, report = compiled
    for name, given in KERNELS.items():
        config = sm90.configuration(given)
        assert report[name]["smem_bytes"] == config.smem_bytes <= SMEM_BYTES, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "COMBINE"}, "mode: got 'COMBINE', want one of NONE, GATHER, SCATTER"),
        ({"token_dtype": "FLOAT"}, "a_dtype: got 'FLOAT', want one of BFLOAT16, HALF, FP8_E4M3"),
        ({"weight_dtype": "HALF"}, "b_dtype: got 'HALF', want one of BFLOAT16"),
        ({"out_dtype": "INT8"}, "dtype: got 'INT8', want one of FLOAT, HALF, BFLOAT16, FP8"),
        ({"tile": [64, 48, 64]}, "tile: got [64, 48, 64], want a multiple of 32 columns"),
        ({"tile": [64, 288, 64]}, "tile: got (64, 288, 64), want one of"),
        ({"store": "bulk"}, "store: got 'bulk', want one of tma, direct"),
        ({"route_dtypes": ["INT32"]}, "route_dtypes: got 1, want 0 for mode NONE"),
    ],
)
def test_params_off_the_menu_are_refused(change, message):
    with pytest.raises(ValueError) as caught:
        sm90.grouped_matmul({**params((64, 64, 64), "NONE"), **change})
    assert str(caught.value).startswith(message)


def test_weights_of_fp8_lie_along_k():
    given = params((64, 64, 128), "NONE", **FP8, b_major="n")
    with pytest.raises(ValueError, match="b_major: got 'n', want one of k"):
        sm90.grouped_matmul(given)
