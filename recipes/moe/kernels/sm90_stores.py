"""Stores of the grouped matmul on Hopper: tiles begin at any row and end where their group does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cudnn_aot.recipes.gemm.kernels.raster import Tile
from cudnn_aot.recipes.gemm.kernels.sm90_config import GROUP_ROWS, WARPGROUP, Config
from cudnn_aot.recipes.gemm.kernels.sm90_stores import Stores, View
from cudnn_aot.recipes.moe.kernels.sm90_tiles import RowTile

CHUNK_BYTES = 16  # of a row, that a thread copies at a time
NO_ROW = -1


@dataclass(frozen=True)
class RowView(View):
    """A view whose rows, tile and extents count from the tile's first row.

    Attributes:
        row0: that row.
        whole: whether TMA may store all of the warpgroup's rows.
        targets: the rows of the result that this thread stores to, row by row; negative for none.
    """

    row0: Int32
    whole: Boolean
    targets: tuple[Int32, ...]


class RowStores(Stores):
    """Of one configuration."""

    def __init__(self, config: Config, mode: str):
        super().__init__(config)
        self.blocks_unrolled = 1  # rows that no TMA stores are several times the code
        self.mode = mode
        (self.dtype,) = config.out_dtypes
        self.wide = CHUNK_BYTES * 8 // self.dtype.width  # elements of a chunk
        self.chunks = config.block_columns // self.wide  # of a row of a block
        self.passes = GROUP_ROWS * self.chunks // WARPGROUP

    def my_rows(self, row0: Int32, thread: Int32, group: Int32) -> list[Int32]:
        """The routed rows that this thread stores chunks of, of the tile from ``row0`` on."""
        first = row0 + group * GROUP_ROWS + thread % WARPGROUP // self.chunks
        return [first + i * (WARPGROUP // self.chunks) for i in range(self.passes)]

    def fetch_targets(self, tile: RowTile, route, thread: Int32, group: Int32) -> list[tuple]:
        """Issue the loads of what says where those rows go; past the end, of the last row."""
        if self.mode != "SCATTER":
            return [()] * self.passes
        rows = [cutlass.min(row, tile.end - 1) for row in self.my_rows(tile.row0, thread, group)]
        return [tuple(element(each, row) for each in route[:2]) for row in rows]

    def rows_view(self, tile: RowTile, route, fetched, out, thread, group) -> RowView:
        """What this thread finishes of a tile; ``fetched`` is what `fetch_targets` gave."""
        _, _, row0, column, end = tile
        zero, (rows, n) = Int32(0), (out.shape[0], out.shape[1])
        from_row0 = Tile(m=zero, n=column, batch=zero, number=zero)
        view = self.view(from_row0, (zero, zero, zero), thread, group, (end - row0, n))
        first = row0 + group * GROUP_ROWS
        # TMA clips at the end of the result.
        whole = (first + GROUP_ROWS <= end) | ((end == rows) & (first < end))
        mine = zip(self.my_rows(row0, thread, group), fetched, strict=True)
        targets = tuple(self.target(route, row, end, given, rows) for row, given in mine)
        return RowView(
            view.tile, view.group, view.band, view.lane, view.rows, view.block, view.extents,
            row0, whole, targets,
        )  # fmt: skip

    def target(self, route, row: Int32, end: Int32, fetched: tuple, rows: Int32) -> Int32:
        """The row of the result for a routed row; negative past the group, or for no row."""
        is_row, target = row < end, row
        if self.mode == "SCATTER":
            index, slot = (value.to(Int64) for value in fetched)
            place = index * route[2] + slot
            is_row = is_row & (place >= 0) & (place < rows.to(Int64))
            target = place.to(Int32)
        return Int32(cutlass.select_(is_row, target, Int32(NO_ROW)))

    @cute.jit
    def put(
        self,
        o: cutlass.Constexpr,
        staged,
        tma_outs,
        tma_targets,
        outs,
        view: cutlass.Constexpr,
        index,
    ):
        """Store a staged block."""
        if cutlass.const_expr(self.config.store == "tma" and self.mode != "SCATTER"):
            if view.whole & self.clips(view, index, self.dtype):
                rows = cute.domain_offset((view.row0, 0, 0), tma_targets[o])
                self.store_tma(tma_outs[o], rows, staged, view, index)
            else:
                self.store_rows(outs[o], staged, view, index)
        else:
            self.store_rows(outs[o], staged, view, index)

    @cute.jit
    def store_rows(self, out: cute.Tensor, staged: cute.Tensor, view: cutlass.Constexpr, index):
        """Store the rows of a staged block that have a target, a chunk of a row per thread."""
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=8 * CHUNK_BYTES
        )
        parts = row_chunks(atom, self.chunks, self.wide).get_slice(view.lane).partition_S(staged)
        n = view.extents[1]
        column = (view.block + index) * self.config.block_columns
        column += view.lane % self.chunks * self.wide
        for i in cutlass.range_constexpr(self.passes):
            to = view.targets[i]
            if (to >= 0) & (column < n):
                part = parts[None, i, 0, 0]
                chunk = cute.make_rmem_tensor(part.layout.shape, self.dtype)
                cute.copy(atom, part, chunk)
                place = to.to(Int64) * out.stride[0] + column.to(Int64) * out.stride[1]
                if cutlass.const_expr(self.config.store == "tma"):
                    if column + self.wide <= n:
                        target = (out.iterator + place).align(CHUNK_BYTES)
                        cute.copy(atom, chunk, cute.make_tensor(target, part.layout))
                    else:
                        self.store_some(out, chunk, place, n - column)
                else:
                    self.store_some(out, chunk, place, n - column)

    @cute.jit
    def store_some(self, out: cute.Tensor, chunk: cute.Tensor, place: Int64, count: Int32):
        """Store the first ``count`` elements of a chunk, or all."""
        for e in cutlass.range_constexpr(self.wide):
            if e < count:
                target = out.iterator + (place + e * out.stride[1])
                cute.make_tensor(target, cute.make_layout(1))[0] = chunk[e]


def row_chunks(atom: cute.CopyAtom, chunks: int, wide: int) -> cute.TiledCopy:
    """A warpgroup's copy of rows of ``chunks`` pieces of ``wide`` elements, a piece per thread."""
    threads = cute.make_layout((WARPGROUP // chunks, chunks), stride=(chunks, 1))
    return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, wide)))


def element(vector: cute.Tensor, at: Int32) -> Any:
    place = vector.iterator + at.to(Int64) * vector.stride[0]
    return cute.make_tensor(place, cute.make_layout(1))[0]
