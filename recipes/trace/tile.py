"""What kernels on the CUDA cores share: 256 threads compute a 64 x 64 tile, 4 x 4 outputs each.

16 of K at a time lie in shared memory, in rows padded to 68 so that reads of four stay aligned.

The functions run while a kernel is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from cudnn_aot.recipes.trace import dtypes

THREADS = 256
TILE, TILE_K = 64, 16
BLOCK = 4  # outputs of a thread along each axis
LANES = TILE // BLOCK
PITCH = TILE + 4
LOADS = TILE * TILE_K // THREADS  # elements of an operand that a thread loads at a time
SMEM_BYTES = TILE_K * PITCH * 4  # of each operand


def smem_layout() -> Any:
    """Of ``(TILE, TILE_K)`` elements of an operand."""
    return cute.make_layout((TILE, TILE_K), stride=(1, PITCH))


def corner(thread: Int32) -> tuple[Int32, Int32]:
    """The first row and column in the tile of a thread's outputs."""
    return thread // LANES * BLOCK, thread % LANES * BLOCK


def lanes(t: cute.Tensor, thread: Int32) -> list[tuple[Int32, Int32]]:
    """Tile coordinates (row, k) of the elements that a thread loads, consecutive lanes along
    whichever axis has the smaller stride.
    """
    along_k = Boolean(t.stride[1] < t.stride[0])
    places = []
    for i in range(LOADS):
        e = thread + i * THREADS
        row = cutlass.select_(along_k, e // TILE_K, e % TILE)
        k = cutlass.select_(along_k, e % TILE_K, e // TILE)
        places.append((Int32(row), Int32(k)))
    return places


def multiply(
    s_a: cute.Tensor, s_bs: Sequence[cute.Tensor], accs: Sequence[cute.Tensor], thread: Int32
) -> None:
    """Add the products of what shared memory holds to a thread's accumulators ``(BLOCK, BLOCK)``;
    each B has its own.
    """
    row, column = (first // BLOCK for first in corner(thread))
    for p in range(TILE_K):
        x = _four(s_a, p, row)
        for acc, s_b in zip(accs, s_bs, strict=True):
            y = _four(s_b, p, column)
            for r in range(BLOCK):
                for c in range(BLOCK):
                    acc[r, c] = dtypes.multiply_add(x[r], y[c], acc[r, c])


def _four(s: cute.Tensor, p: int, at: Int32) -> cute.Tensor:
    values = cute.make_rmem_tensor((BLOCK,), s.element_type)
    cute.autovec_copy(cute.local_tile(s[None, p], (BLOCK,), (at,)), values)
    return values
