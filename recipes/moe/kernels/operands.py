"""Fake tensors of the grouped kernels: the argument types that the tvm-ffi wrapper checks at every
call.

Extents are 32-bit and strides 64-bit, in elements: token (T, K), weight (N, K, E), offsets (C,),
out (R, N); token_index (R,) for GATHER and SCATTER, and token_ks (R,) and the number top_k after it
for SCATTER. T is R but for GATHER. Equal letters are one symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_tensor

from cudnn_aot.recipes.gemm.kernels.operands import tma_stride
from cudnn_aot.recipes.trace.dtypes import DTYPES

FLOATS = {name: DTYPES[name] for name in ("FLOAT", "HALF", "BFLOAT16", "FP8_E4M3", "FP8_E5M2")}
MODES = ("NONE", "GATHER", "SCATTER")
INTEGERS = {"INT32": Int32, "INT64": Int64}


def arguments(params: Mapping[str, Any], space: AddressSpace) -> tuple[list[Any], list[Any]]:
    """``[token, weight, offsets]``, and the mode's routing followed by the output; of any strides.

    ``params`` has ``mode``, ``token_dtype``, ``weight_dtype``, ``out_dtype``, ``offset_dtype``, and
    in ``route_dtypes`` those of what routes rows.

    Raises:
        ValueError: a parameter is off the menu.
    """
    return _arguments(params, space, lambda dtype, shape, _: _any_stride(dtype, shape, space))


def tma_arguments(params: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """As `arguments` has them; TMA can describe token along K, weight along its ``b_major`` (k or
    n), and the output along N if ``store`` is tma.
    """
    space = AddressSpace.gmem
    along = {"token": 1, "weight": 1 if params["b_major"] == "k" else 0}
    if params["store"] == "tma":
        along["out"] = 1

    def make(dtype: type, shape: tuple[Any, ...], name: str) -> Any:
        if name in along:
            return tma_stride(dtype, shape, along[name])
        return _any_stride(dtype, shape, space)

    return _arguments(params, space, make)


def _arguments(
    params: Mapping[str, Any],
    space: AddressSpace,
    make: Callable[[type, tuple[Any, ...], str], Any],
) -> tuple[list[Any], list[Any]]:
    mode, route_dtypes = params["mode"], params["route_dtypes"]
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}, want one of {', '.join(MODES)}")
    if len(route_dtypes) != MODES.index(mode):
        raise ValueError(
            f"route_dtypes: got {len(route_dtypes)}, want {MODES.index(mode)} for mode {mode}"
        )
    rows, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    tokens = cute.sym_int() if mode == "GATHER" else rows
    head = [
        make(_named(params["token_dtype"], FLOATS), (tokens, k), "token"),
        make(_named(params["weight_dtype"], FLOATS), (n, k, cute.sym_int()), "weight"),
        _any_stride(_named(params["offset_dtype"], INTEGERS), (cute.sym_int(),), space),
    ]
    tail = [_any_stride(_named(name, INTEGERS), (rows,), space) for name in route_dtypes]
    tail += [Int64(1)] * (mode == "SCATTER")
    return head, [*tail, make(_named(params["out_dtype"], FLOATS), (rows, n), "out")]


def output(params: Mapping[str, Any], shape: tuple[Any, Any], space: AddressSpace) -> Any:
    """The output ``(R, N)`` of ``out_dtype``; raises ValueError for a type off the menu."""
    return _any_stride(_named(params["out_dtype"], FLOATS), shape, space)


def _named(name: str, dtypes: Mapping[str, type]) -> type:
    if name not in dtypes:
        raise ValueError(f"dtype: got {name!r}, want one of {', '.join(dtypes)}")
    return dtypes[name]


def _any_stride(dtype: type, shape: tuple[Any, ...], space: AddressSpace) -> Any:
    """A tensor of any strides, aligned to its element."""
    return make_fake_tensor(dtype, shape, tuple(cute.sym_int64() for _ in shape), memspace=space)
