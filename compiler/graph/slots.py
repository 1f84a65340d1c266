"""Storage slots: how the elements of a tensor lie in a buffer.

Every type of a byte or more has one element per slot. A 4-bit type packs two elements per slot
along the unit-stride axis, as ``torch.float4_e2m1fn_x2`` does: that extent halves, and every other
stride halves with it. Declarations and overrides speak of elements, buffers of slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, SymExpr


def elements_per_slot(dtype: data_type) -> int:
    """How many elements share one slot."""
    return max(1, 8 // DTYPES[dtype].bits)


def slot_bytes(dtype: data_type) -> int:
    """Bytes of one slot."""
    return max(1, DTYPES[dtype].bits // 8)


def slot_geometry(
    dim: Sequence[Extent], stride: Sequence[Extent], dtype: data_type
) -> tuple[tuple[Extent, ...], tuple[Extent, ...]] | None:
    """Extents and strides in slots of a geometry in elements.

    None where there is no spelling: no unit-stride axis of even extent, or a stride that cuts a
    slot. An axis of extent 1 is never stepped, so it is not the packed one and keeps a stride of 1.
    """
    count = elements_per_slot(dtype)
    if count == 1:
        return tuple(dim), tuple(stride)
    for packed, (extent, step) in enumerate(zip(dim, stride, strict=True)):
        part = _divided(extent, count)
        if step != 1 or extent == 1 or part is None:
            continue
        steps = [
            step if axis == packed or step == 1 else _divided(step, count)
            for axis, step in enumerate(stride)
        ]
        known = tuple(step for step in steps if step is not None)
        if len(known) == len(steps):
            return tuple(part if axis == packed else e for axis, e in enumerate(dim)), known
    return None


def _divided(extent: Extent, count: int) -> Extent | None:
    if isinstance(extent, SymExpr):
        coef = extent.coef
        return None if coef % count else SymExpr(coef // count, extent.symbols)
    return None if extent % count else extent // count
