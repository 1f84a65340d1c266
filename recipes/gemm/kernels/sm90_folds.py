"""Reductions of the result on Hopper: the partial values that a tile leaves, for ``fold.py``.

A warpgroup leaves one for its 64 rows along M, a block that finishes a tile, or a share of it, one
for those columns along N, and both ways one for these places: ``(T, R, L)`` with T of ceil_div(M,
64), of ceil_div(N, tile_n / cluster_k), or of their product, rows first. Every one is written by
one thread. All is fp32, in an order that depends on nothing but the shape; places outside of the
result, which hold anything, count as the mode's identity.

Along N a thread folds its columns of a block, keeps a value for each of its two rows from block to
block, and meets the three others of its rows at the end of the tile. Along M it folds its two rows
of a block; the eight threads that have the same columns halve them between them three times (14
shuffles for 64 columns of a block, where a sum of each takes 48), and the four warps meet in shared
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from cudnn_aot.recipes.gemm.kernels.epilogue import write_partial
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    GROUP_BARRIER,
    GROUP_ROWS,
    GROUP_WARPS,
    WARPGROUP,
    Config,
    block_pattern,
)
from cudnn_aot.recipes.trace import reductions
from cudnn_aot.recipes.trace.pointwise import DEVICE

if TYPE_CHECKING:
    from cudnn_aot.recipes.gemm.kernels.sm90_stores import View

QUAD = 4  # lanes that have a row's columns; those of a column lie so far apart


class Folds:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config = config
        entries = [config.epilogue["outputs"][o]["reduce"] for o in config.folded]
        self.folds = [reductions.fold(entry["mode"]) for entry in entries]
        self.axes = [entry["axes"] for entry in entries]

    def start(self) -> list[cute.Tensor]:
        """What there is of each reduction before the first block: values of a thread's two rows."""
        running = [cute.make_rmem_tensor((2,), Float32) for _ in self.folds]
        self.reset(running)
        return running

    def reset(self, running: Sequence[cute.Tensor]) -> None:
        for each, fold in zip(running, self.folds, strict=True):
            each.fill(fold.identity)

    @cute.jit
    def take(self, values, running, partials, scratch, view: cutlass.Constexpr, index):
        """Fold the outputs' values in block ``index``, and write what that leaves along M."""
        for f in cutlass.range_constexpr(len(self.folds)):
            fold, value = self.folds[f], values[self.config.folded[f]]
            mapped = cute.make_rmem_tensor((self.config.block_columns // 2,), Float32)
            mapped.store(fold.map(DEVICE, value))
            if cutlass.const_expr(self.axes[f] == "m"):
                self.along_m(fold, mapped, partials[f], scratch, view, index)
            else:
                self.along_n(fold, mapped, running[f], view, index)

    @cute.jit
    def along_n(
        self,
        fold: cutlass.Constexpr,
        mapped: cute.Tensor,
        running: cute.Tensor,
        view: cutlass.Constexpr,
        index,
    ):
        """Fold a block's columns into the values of a thread's two rows."""
        columns, extent = self.config.block_columns, view.extents[1]
        pattern = block_pattern(columns)
        first = (view.block + index) * columns
        if first + columns <= extent:
            for r in cutlass.range_constexpr(2):
                row = [mapped[e] for e in range(len(pattern)) if pattern[e][0] == r]
                running[r] = _combined(fold, [running[r], _combined(fold, row)])
        else:
            mine = first + view.lane % QUAD * 2
            inside = [
                mine + 8 * eight + c < extent for eight in range(columns // 8) for c in range(2)
            ]
            for r in cutlass.range_constexpr(2):
                row = [
                    DEVICE.select(inside[pattern[e][1]], mapped[e], fold.identity)
                    for e in range(len(pattern))
                    if pattern[e][0] == r
                ]
                running[r] = _combined(fold, [running[r], _combined(fold, row)])

    @cute.jit
    def along_m(
        self,
        fold: cutlass.Constexpr,
        mapped: cute.Tensor,
        partials: cute.Tensor,
        scratch,
        view: cutlass.Constexpr,
        index,
    ):
        """Fold a block's 64 rows, and write a value for each of its columns."""
        columns, (m, n) = self.config.block_columns, view.extents
        pattern = block_pattern(columns)
        left = cute.make_rmem_tensor((columns // QUAD,), Float32)
        pairs = [
            [e for e, place in enumerate(pattern) if place[1] == c] for c in range(columns // QUAD)
        ]
        if view.band * GROUP_ROWS + GROUP_ROWS <= m:
            for c in cutlass.range_constexpr(len(pairs)):
                left[c] = _combined(fold, [mapped[e] for e in pairs[c]])
        else:
            inside = [row < m for row in view.rows]
            for c in cutlass.range_constexpr(len(pairs)):
                both = [
                    DEVICE.select(inside[pattern[e][0]], mapped[e], fold.identity) for e in pairs[c]
                ]
                left[c] = _combined(fold, both)
        lane = view.lane % 32
        kept = _halved(fold, [left[c] for c in range(len(pairs))], lane)
        slots = self.slots(scratch, view)
        self.meet(view)
        # With fewer columns than 32 two lanes have each.
        if (lane % (2 * QUAD) < QUAD) | Boolean(columns >= 32):
            for i in cutlass.range_constexpr(len(kept)):
                c = lane // QUAD * len(pairs) // 8 + i
                slots[c // 2 * 8 + lane % QUAD * 2 + c % 2, view.lane // 32] = kept[i]
        self.meet(view)
        if view.lane < columns:
            column = (view.block + index) * columns + view.lane
            total = _combined(fold, [slots[view.lane, w] for w in range(GROUP_WARPS)])
            if (column < n) & (view.band * GROUP_ROWS < m):
                write_partial(partials, view.band, column, view.tile.batch, total)

    @cute.jit
    def leave(self, running, partials, scratch, view: cutlass.Constexpr):
        """Write what a finished tile leaves along N, and along both axes."""
        config, (m, n) = self.config, view.extents
        share = view.block // (config.columns // config.block_columns)
        has_columns = view.block * config.block_columns < n
        for f in cutlass.range_constexpr(len(self.folds)):
            fold = self.folds[f]
            if cutlass.const_expr(self.axes[f] == "n"):
                for r in cutlass.range_constexpr(2):
                    total = _across(fold, running[f][r], QUAD)
                    if (view.lane % QUAD == 0) & (view.rows[r] < m) & has_columns:
                        write_partial(partials[f], share, view.rows[r], view.tile.batch, total)
            elif cutlass.const_expr(self.axes[f] == "mn"):
                rows = [
                    DEVICE.select(view.rows[r] < m, running[f][r], fold.identity) for r in range(2)
                ]
                total = _across(fold, _combined(fold, rows), 32)
                slots = self.slots(scratch, view)
                self.meet(view)
                if view.lane % 32 == 0:
                    slots[0, view.lane // 32] = total
                self.meet(view)
                if (view.lane == 0) & (view.band * GROUP_ROWS < m) & has_columns:
                    total = _combined(fold, [slots[0, w] for w in range(GROUP_WARPS)])
                    tile = view.band * cute.ceil_div(n, config.columns) + share
                    write_partial(partials[f], tile, Int32(0), view.tile.batch, total)

    def slots(self, scratch: cute.Pointer, view: View) -> cute.Tensor:
        """The warpgroup's shared memory: a value for each column of a block and warp."""
        layout = cute.make_layout((self.config.block_columns, GROUP_WARPS))
        return cute.make_tensor(scratch + view.group * cute.size(layout), layout)

    def meet(self, view: View) -> None:
        """Wait for the warpgroup: what others left is there, or was read."""
        cute.arch.barrier(barrier_id=GROUP_BARRIER + view.group, number_of_threads=WARPGROUP)


def _combined(fold: reductions.Fold, values: Sequence[Any]) -> Float32:
    """Of neighbours first: short chains of dependent instructions."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [fold.combine(DEVICE, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return Float32(values[0])


def _across(fold: reductions.Fold, value: Float32, lanes: int) -> Float32:
    """Of neighbouring lanes, each of which gets it."""
    combine = lambda x, y: Float32(fold.combine(DEVICE, x, y))  # noqa: E731
    return Float32(cute.arch.warp_reduction(value, combine, threads_in_group=lanes))


def _halved(fold: reductions.Fold, values: list[Float32], lane: Int32) -> list[Float32]:
    """Fold the values of the eight lanes a quad apart: each gets an eighth of them, in the order of
    the lanes, or one that another has too.
    """
    for offset in (16, 8, 4):
        is_upper, half = lane & offset != 0, len(values) // 2
        sent = values
        if half:
            lower, upper = values[:half], values[half:]
            values = [DEVICE.select(is_upper, u, v) for v, u in zip(lower, upper, strict=True)]
            sent = [DEVICE.select(is_upper, v, u) for v, u in zip(lower, upper, strict=True)]
        values = [
            Float32(fold.combine(DEVICE, mine, cute.arch.shuffle_sync_bfly(theirs, offset=offset)))
            for mine, theirs in zip(values, sent, strict=True)
        ]
    return values
