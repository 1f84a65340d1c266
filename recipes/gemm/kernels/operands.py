"""Fake tensors of the GEMM kernels: the argument types that the tvm-ffi wrapper checks at every
call.

Every tensor is rank 3 with 32-bit extents and 64-bit strides in elements: A (M, K, La), B (N, K,
Lb), aux and outputs (M, N, L). ``La`` and ``Lb`` are L or 1. Equal letters are one symbol, so the
wrapper refuses operands that disagree. With the parameter ``batch_runs`` every tensor has as many
axes in place of L, see `batching`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_tensor

from cudnn_aot.recipes.gemm.kernels import batching
from cudnn_aot.recipes.trace.dtypes import DTYPES

# Axes along which an output that is reduced is one value, by its ``axes``.
REDUCED_AXES = {"m": (0,), "n": (1,), "mn": (0, 1)}

# Axes along which an epilogue input of a kind is one value: a static stride 0, checked at every
# call.
BROADCAST_AXES = {"full": (), "row": (0,), "col": (1,), "scalar": (0, 1)}

TMA_ALIGN_BYTES = 16  # base addresses and the byte strides of every axis but the innermost


@dataclass(frozen=True)
class Extents:
    """The symbols that the operands of one kernel share; the batch has one for each of ``runs``."""

    runs: int = 1
    m: Any = field(default_factory=cute.sym_int)
    n: Any = field(default_factory=cute.sym_int)
    k: Any = field(default_factory=cute.sym_int)
    batch: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.own_batch())

    def own_batch(self) -> tuple[Any, ...]:
        """Symbols of a batch that need not be that of the result."""
        return tuple(cute.sym_int() for _ in range(self.runs))

    @property
    def result(self) -> tuple[Any, ...]:
        return (self.m, self.n, *self.batch)


def any_stride(dtype: type, shape: tuple[Any, ...], space: AddressSpace) -> Any:
    """A tensor of any strides, aligned to its element."""
    return make_fake_tensor(dtype, shape, tuple(cute.sym_int64() for _ in shape), memspace=space)


def matrices(params: Mapping[str, Any], extents: Extents, space: AddressSpace) -> list[Any]:
    """A of ``a_dtype``, then the ``products`` B of ``b_dtype``, of any strides."""
    a_dtype, b_dtype = (named_dtype(params[name]) for name in ("a_dtype", "b_dtype"))
    a = any_stride(a_dtype, (extents.m, extents.k, *extents.own_batch()), space)
    batch_b = extents.own_batch()
    bs = [
        any_stride(b_dtype, (extents.n, extents.k, *batch_b), space)
        for _ in range(params["products"])
    ]
    return [a, *bs]


@dataclass(frozen=True)
class Scales:
    """Scales of blocks of A and of every B: of ``depth`` elements of K, and of so many rows of each
    matrix, None where it has none. Tensors of them are fp32 ``(M or N, K, L)``, in blocks.
    """

    depth: int
    rows: tuple[int | None, ...]

    @staticmethod
    def parse(params: Mapping[str, Any]) -> Scales | None:
        """Parameter ``scales``, which is absent where no matrix has some."""
        given = params.get("scales")
        return None if given is None else Scales(given["depth"], tuple(given["rows"]))

    @property
    def count(self) -> int:
        return sum(rows is not None for rows in self.rows)

    def tensors(self, space: AddressSpace, runs: int) -> list[Any]:
        """An argument for each matrix that has scales."""
        shapes = [tuple(cute.sym_int() for _ in range(2 + runs)) for _ in range(self.count)]
        return [any_stride(Float32, shape, space) for shape in shapes]

    def of_each(self, tensors: Sequence[cute.Tensor]) -> list[cute.Tensor | None]:
        """The arguments, by matrix."""
        left = iter(tensors)
        return [None if rows is None else next(left) for rows in self.rows]

    def read(self, tensor: cute.Tensor, matrix: int, row: Int32, block: Int32, batch: Any) -> Any:
        """The scale of a row of a matrix (0 is A) in a block of K; 1 where it has none."""
        if self.rows[matrix] is None:
            return Float32(1.0)
        place = self.of_row(tensor, matrix, row, batch) + block.to(Int64) * tensor.stride[1]
        return cute.make_tensor(tensor.iterator + place, cute.make_layout(1))[0]

    def of_row(self, tensor: cute.Tensor, matrix: int, row: Int32, batch: Any) -> Int64:
        """Where the scales of a row of a matrix (0 is A) start, in elements."""
        rows = self.rows[matrix]
        assert rows is not None
        batch = batching.inside(batch, tensor.shape[2])
        first = (row // rows).to(Int64) * tensor.stride[0]
        return first + batching.offset(batch, tensor.stride[2])


def aligned(pointer: cute.Pointer, size_bytes: int) -> cute.Pointer:
    """An address that is a multiple of ``size_bytes``; ``align`` rounds up, with instructions."""
    return cute.make_ptr(pointer.dtype, pointer.toint(), pointer.memspace, assumed_align=size_bytes)


def tma_stride(dtype: type, shape: tuple[Any, ...], unit_axis: int) -> Any:
    """A tensor that TMA can describe: unit stride on one axis, the others and the base multiples of
    16 bytes.
    """
    step = TMA_ALIGN_BYTES * 8 // dtype.width
    stride = tuple(
        1 if axis == unit_axis else cute.sym_int64(divisibility=step) for axis in range(len(shape))
    )
    return make_fake_tensor(dtype, shape, stride, assumed_align=TMA_ALIGN_BYTES)


def epilogue_inputs(
    epilogue: Mapping[str, Any], extents: Extents, space: AddressSpace
) -> list[Any]:
    """One argument per epilogue input: a tensor of (M, N, L), row-major and described by TMA where
    it is piped, or a Float32 for a pass-by-value scalar.
    """
    arguments = []
    for entry in epilogue["inputs"]:
        kind = entry["kind"]
        if kind == "value":
            arguments.append(Float32(0.0))
            continue
        if kind == "piped":
            arguments.append(tma_stride(dtype_of(entry), extents.result, 1))
            continue
        if kind not in BROADCAST_AXES:
            raise ValueError(
                f"epilogue input: got kind {kind!r}, want {', '.join(BROADCAST_AXES)} or value"
            )
        axes = BROADCAST_AXES[kind]
        arguments.append(folded(dtype_of(entry), extents.result, axes, space))
    return arguments


def epilogue_outputs(
    epilogue: Mapping[str, Any], extents: Extents, space: AddressSpace, tma: bool
) -> list[Any]:
    """One tensor of (M, N, L) per epilogue output; with ``tma``, row-major and described by TMA.
    One that is reduced has a static stride 0 on the axes that it is reduced along instead.
    """
    shape = extents.result
    return [
        tma_stride(dtype_of(entry), shape, 1)
        if tma and "reduce" not in entry
        else folded(dtype_of(entry), shape, reduced_axes(entry), space)
        for entry in epilogue["outputs"]
    ]


def reduced_axes(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """The axes of (M, N) along which an epilogue output is reduced; none for most."""
    if "reduce" not in entry:
        return ()
    axes = entry["reduce"]["axes"]
    if axes not in REDUCED_AXES:
        raise ValueError(f"reduce: got axes {axes!r}, want one of {', '.join(REDUCED_AXES)}")
    return REDUCED_AXES[axes]


def folded(dtype: type, shape: tuple[Any, ...], axes: tuple[int, ...], space: AddressSpace) -> Any:
    """A tensor of any strides that is one value along some axes."""
    stride = tuple(0 if axis in axes else cute.sym_int64() for axis in range(len(shape)))
    return make_fake_tensor(dtype, shape, stride, memspace=space)


def tiled_outputs(
    epilogue: Mapping[str, Any], extents: Extents, space: AddressSpace, tma: bool
) -> list[Any]:
    """What a kernel of tiles writes: as `epilogue_outputs`, but in place of an output that is
    reduced its partial values.
    """
    outs = epilogue_outputs(epilogue, extents, space, tma)
    for position, entry in enumerate(epilogue["outputs"]):
        if axes := reduced_axes(entry):
            kept = {(0,): extents.n, (1,): extents.m, (0, 1): cute.sym_int()}[axes]
            outs[position] = partials((cute.sym_int(), kept, *extents.batch), space)
    return outs


def partials(shape: tuple[Any, ...], space: AddressSpace) -> Any:
    """What tiles leave of a reduction: fp32 (T, R, L), contiguous along T."""
    stride = (1, *(cute.sym_int64() for _ in shape[1:]))
    return make_fake_tensor(Float32, shape, stride, memspace=space)


def dtype_of(entry: Mapping[str, Any]) -> type:
    """The DSL type of an epilogue input or output."""
    return named_dtype(entry["dtype"])


def named_dtype(name: str) -> type:
    """The DSL type of a cuDNN data type name; ValueError lists what the GEMM kernels take."""
    if name not in DTYPES:
        raise ValueError(f"dtype: got {name!r}, want one of {', '.join(DTYPES)}")
    return DTYPES[name]
