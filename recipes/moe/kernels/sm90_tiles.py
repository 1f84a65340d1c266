"""The tiles of the grouped matmul on Hopper, as a warp finds them in the offsets."""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from cudnn_aot.recipes.gemm.kernels.raster import Raster
from cudnn_aot.recipes.gemm.kernels.sm90_config import Config
from cudnn_aot.recipes.moe.kernels import segments
from cudnn_aot.recipes.moe.kernels.segments import WARP

NO_GROUP = -1


class Tiles(NamedTuple):
    """What there are: those of the result ``out``, whose rows ``offsets`` cut to ``groups``. Each
    of ``blocks`` CTAs takes every ``blocks``-th.
    """

    offsets: cute.Tensor
    groups: Int32
    out: cute.Tensor
    blocks: Int32


class Cursor(NamedTuple):
    """How far a warp has come, which looks at 32 segments at a time, one a lane.

    Attributes:
        item: the number of its tile.
        first, end: rows of the lane's segment, of the 32 from ``base`` - 32 on.
        through: how many tiles there are up to its end.
        start: the first row behind the 32.
        before: how many tiles there are up to there.
    """

    item: Int32
    first: Int32
    end: Int32
    through: Int32
    base: Int32
    start: Int32
    before: Int32


class RowTile(NamedTuple):
    """A tile: rows from ``row0`` on, and no further than its group's ``end``.

    Attributes:
        exists: whether it does; if not, none that comes after does.
        group: negative for rows of none.
        column: its place among the tiles of columns.
    """

    exists: Boolean
    group: Int32
    row0: Int32
    column: Int32
    end: Int32


class TileWalk:
    """A warp's walk over the tiles of its CTA, of one configuration. All lanes call it together."""

    def __init__(self, config: Config, mode: str):
        self.config, self.mode = config, mode

    def first(self, tiles: Tiles):
        """A cursor at the CTA's first tile, and that tile."""
        ahead = (Int32(0) for _ in Cursor._fields[1:])
        return self.find(Cursor(cute.arch.block_idx()[0], *ahead), tiles)

    def next(self, cursor: Cursor, tiles: Tiles):
        """The same for the one after."""
        return self.find(cursor._replace(item=cursor.item + tiles.blocks), tiles)

    @cute.jit
    def find(self, cursor: Cursor, tiles: Tiles):
        """The cursor with the segments that its item is in, and the item's tile."""
        tile_m, tile_n, _ = self.config.tile
        item, first, end, through, base, start, before = cursor
        offsets, groups = tiles.offsets, tiles.groups
        lane = cute.arch.lane_idx()
        rows, tiles_n = tiles.out.shape[0], cute.ceil_div(tiles.out.shape[1], tile_n)
        while (before <= item) & (base <= offsets.shape[0]):
            first, end = segments.bounds(offsets, rows, base, start, lane)
            items = cute.ceil_div(end - first, tile_m) * tiles_n
            if cutlass.const_expr(self.mode == "SCATTER"):
                group = base + lane - 1
                if (group < 0) | (group >= groups):
                    items = Int32(0)
            through = segments.running_sum(items, lane) + before
            start = cute.arch.shuffle_sync(end, WARP - 1)
            before = cute.arch.shuffle_sync(through, WARP - 1)
            base = base + WARP
        cursor = Cursor(item, first, end, through, base, start, before)

        at = cute.arch.popc(cute.arch.vote_ballot_sync(through <= item))
        # What all lanes get alike, but the compiler is told so by this alone.
        of_first, of_end, of_through, total = (
            cute.arch.make_warp_uniform(value)
            for value in (*(cute.arch.shuffle_sync(v, at) for v in (first, end, through)), before)
        )
        at = cute.arch.make_warp_uniform(at)
        tiles_m = cute.ceil_div(of_end - of_first, tile_m)
        among = item - (of_through - tiles_m * tiles_n)
        raster = Raster((tile_m, tile_n), (1, 1), tiles_m, tiles_n, Int32(1))
        tile = raster.locate(among, (0, 0))
        group = base - WARP + at - 1
        if group >= groups:
            group = Int32(NO_GROUP)
        return cursor, RowTile(item < total, group, of_first + tile.m * tile_m, tile.n, of_end)

    def k_tiles(self, group: Int32, k: Int32) -> Int32:
        """Of a tile: none for rows of no group."""
        tiles = cute.ceil_div(k, self.config.tile[2])
        return Int32(cutlass.select_(group >= 0, tiles, Int32(0)))
