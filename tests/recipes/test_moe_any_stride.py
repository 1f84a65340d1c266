"""The grouped kernel for any layout on Hopper without a GPU: every mode compiles clean."""

from __future__ import annotations

import re
import subprocess

import pytest

from cudnn_aot.recipes.moe.kernels import simt

# mode, types of token, weight, output and offsets, and of what routes rows.
KERNELS = {
    "none": ("NONE", "FP8_E4M3", "FP8_E5M2", "FP8_E4M3", "INT32", ()),
    "gather": ("GATHER", "BFLOAT16", "BFLOAT16", "BFLOAT16", "INT32", ("INT64",)),
    "scatter": ("SCATTER", "HALF", "HALF", "FLOAT", "INT64", ("INT32", "INT64")),
}


def params(row):
    names = ("mode", "token_dtype", "weight_dtype", "out_dtype", "offset_dtype", "route_dtypes")
    return dict(zip(names, row, strict=True))


@pytest.fixture(scope="module")
def compiled(compile_kernels, tmp_path_factory):
    """The folder of the objects, and the compiler's output by name."""
    templates = {"grouped_matmul": {name: params(row) for name, row in KERNELS.items()}}
    templates["zero"] = {"zero": {"out_dtype": "BFLOAT16"}}
    jobs = [
        {
            "name": name,
            "template": f"moe.kernels.simt:{template}",
            "params": given,
            "arch": "sm_90a",
            "options": " remarks{ptx}",
        }
        for template, rows in templates.items()
        for name, given in rows.items()
    ]
    out = tmp_path_factory.mktemp("moe_simt")
    report = compile_kernels(jobs, out)
    return out, {name: row["log"] for name, row in report.items()}


def test_every_mode_compiles_to_one_entry_and_spills_nothing(compiled):
    out, logs = compiled
    for name in (*KERNELS, "zero"):
        path = out / f"{name}.o"
        listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        assert " T __tvm_ffi_kernel" in listing, name
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", logs[name])]
        assert spills == [0], name  # one kernel, whose launches the executor can learn


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "COMBINE"}, "mode: got 'COMBINE', want one of NONE, GATHER, SCATTER"),
        ({"token_dtype": "INT8"}, "dtype: got 'INT8', want one of FLOAT, HALF, BFLOAT16, FP8"),
        ({"offset_dtype": "FLOAT"}, "dtype: got 'FLOAT', want one of INT32, INT64"),
        ({"route_dtypes": ["INT32"]}, "route_dtypes: got 1, want 0 for mode NONE"),
    ],
)
def test_params_off_the_menu_are_refused(change, message):
    with pytest.raises(ValueError) as caught:
        simt.grouped_matmul({**params(KERNELS["none"]), **change})
    assert str(caught.value).startswith(message)
