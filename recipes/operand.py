"""What a graph declares of what a call binds, as facts of every family have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.graph.enums import scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, make
from cudnn_aot.compiler.graph.tensor import Tensor

INT32_MAX = 2**31 - 1
ALIGN_BYTES = 16  # of what TMA moves: its address, and its steps on all axes but one
DTYPE_BYTES = {
    "FLOAT": 4,
    "HALF": 2,
    "BFLOAT16": 2,
    "FP8_E4M3": 1,
    "FP8_E5M2": 1,
    "INT8": 1,
    "INT32": 4,
}
FP8_DTYPES = ("FP8_E4M3", "FP8_E5M2")


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that the caller binds, with its declaration."""

    uid: int
    name: str
    dtype: str
    dim: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    optional: bool = False
    value: float | None = None  # default of a pass-by-value scalar
    constant: bool = False  # a number that no call can change
    is_transposed: bool = False  # whether its last axis is the rows of what kernels compute

    @staticmethod
    def of(tensor: Tensor) -> Operand:
        value = tensor.pass_by_value
        return Operand(
            uid=tensor.uid,
            name=tensor.name,
            dtype=dtype_name(tensor.data_type),
            dim=tuple(tensor.dim),
            stride=tuple(tensor.stride),
            optional=bool(tensor.is_optional),
            value=None if value is None else float(value),
            constant=tensor.scalar_type is scalar_type.COMPILE_TIME_CONST,
        )

    @property
    def batch_axes(self) -> list[int]:
        """Its batch axes that are more than a unit axis, outermost first."""
        return [axis for axis in range(len(self.dim) - 2) if self.dim[axis] != 1]

    def axis(self, of: int) -> int:
        """Which of its axes is the rows, -2, or the columns, -1, of what kernels see; below 0 where
        it has no such axis.
        """
        return len(self.dim) + (-3 - of if self.is_transposed else of)

    def __str__(self) -> str:
        return f"{self.dtype} {in_words(self.dim)} stride {in_words(self.stride)}"


def why_not_strided(tensors: Iterable[Tensor]) -> str | None:
    """The reason why strides do not say where the elements of these tensors lie, or None."""
    for tensor in tensors:
        if tensor.reordering_type is not tensor_reordering.NONE:
            reordering = tensor.reordering_type.name
            return f"{tensor.name!r} has the reordering {reordering}, want strides alone"
        if tensor.ragged_offset is not None:
            return f"{tensor.name!r} has a ragged offset, want rows of one extent"
    return None


def dtype_name(data_type: Any) -> str:
    return str(data_type.name)


def in_words(extents: Iterable[Extent]) -> str:
    return "[" + ", ".join(str(extent) for extent in extents) + "]"


def bounds(extent: Extent, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Smallest and largest value of an extent over the declared ranges of its symbols."""
    if not isinstance(extent, SymExpr):
        return extent, extent
    low = high = extent.coef
    for name in extent.symbols:
        low *= symbols[name].min
        high *= symbols[name].max
    return low, high


def pinned(extent: Extent, symbols: Mapping[str, Symbol]) -> Extent:
    """``extent`` with numbers for the symbols that have one value."""
    if not isinstance(extent, SymExpr):
        return extent
    coef, left = extent.coef, []
    for name in extent.symbols:
        if symbols[name].min == symbols[name].max:
            coef *= symbols[name].min
        else:
            left.append(name)
    return make(coef, left)


def is_multiple(extent: Extent, of: int, symbols: Mapping[str, Symbol]) -> bool:
    """Whether every value of ``extent`` in the declared domain is a multiple of ``of``."""
    if not isinstance(extent, SymExpr):
        return extent % of == 0
    known = extent.coef
    for name in extent.symbols:
        known *= symbols[name].multiple_of
    return known % of == 0


def solve(
    told: Iterable[tuple[Extent, int | None]], symbols: Mapping[str, Symbol]
) -> dict[str, int] | None:
    """The values of all symbols as extents with known values tell them, in their domains or not;
    None where they do not tell one, and where an extent is another number.
    """
    values: dict[str, int] = {}
    for extent, value in told:
        if isinstance(extent, int) and value is not None and value != extent:
            return None  # most of a tuning file is about other graphs
        if isinstance(extent, SymExpr) and len(extent.symbols) == 1 and value is not None:
            values.setdefault(extent.symbols[0], value // extent.coef)
    return values if values.keys() == symbols.keys() else None
