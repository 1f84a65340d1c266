"""How offsets cut the rows: what a warp knows of 32 segments at a time.

The offsets and the end of the rows cut ``R`` rows into ``C + 1`` segments: segment s ends at
``offsets[s]``, the last one at R, and it is group s - 1, if there is such a group. Offsets are
clamped to ``0..R`` and to those before them, so that segments are disjoint.

The functions run while a kernel is traced; all lanes of a warp call them together.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

WARP = 32
STEPS = 5  # of a running sum or maximum over a warp


@cute.jit
def bounds(offsets: cute.Tensor, rows: Int32, base: Int32, start: Int32, lane: Int32):
    """The first row and the end of segment ``base + lane``, where segment ``base`` starts at row
    ``start``. Segments behind the last are empty.
    """
    end = rows
    if base + lane < offsets.shape[0]:
        offset = offsets[base + lane].to(Int64)
        end = cutlass.min(cutlass.max(offset, Int64(0)), rows.to(Int64)).to(Int32)
    end = cutlass.max(end, start)
    for step in cutlass.range_constexpr(STEPS):
        end = cutlass.max(end, cute.arch.shuffle_sync_up(end, 1 << step))
    first = cute.arch.shuffle_sync_up(end, 1)
    if lane == 0:
        first = start
    return first, end


@cute.jit
def running_sum(value: Int32, lane: Int32):
    """Of the lanes up to this one."""
    for step in cutlass.range_constexpr(STEPS):
        other = cute.arch.shuffle_sync_up(value, 1 << step)
        if lane >= 1 << step:
            value = value + other
    return value
