"""The order in which a persistent grid walks the output tiles.

Work items are numbered so that items in flight together share operands in L2: tiles are walked in
bands of about ``BAND_ROWS`` output rows, down a band before across it. A wave of 132 CTAs with
128 x 256 tiles then covers about 2048 x 2048 outputs, the square that reads the fewest operand
bytes. Batches are outermost. With split-K the splits of a tile are consecutive items, so they run
together and the last of them finds the others' partial sums in L2.

A cluster is the unit: items count clusters, and every CTA of a cluster gets the tile at its own
place in the cluster's block of tiles. CTAs past the last tile of a ragged edge compute on zeros and
store nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

BAND_ROWS = 2048


@dataclass(frozen=True)
class Tile:
    """One item of work: tile coordinates of this CTA, and its number among all tiles."""

    m: Int32
    n: Int32
    batch: Int32
    split: Int32
    number: Int32


@dataclass(frozen=True)
class Raster:
    """Item numbers to tiles. ``tile`` and ``cluster`` are static; the rest are values of a call."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    clusters_m: Int32
    clusters_n: Int32
    batches: Int32
    splits: Int32

    @staticmethod
    def of(
        tile: tuple[int, int],
        cluster: tuple[int, int],
        extents: tuple[Int32, Int32, Int32],
        splits: Int32,
    ) -> Raster:
        """The raster of an ``(m, n, batch)`` result."""
        m, n, batches = extents
        clusters_m = cute.ceil_div(m, tile[0] * cluster[0])
        clusters_n = cute.ceil_div(n, tile[1] * cluster[1])
        return Raster(tile, cluster, clusters_m, clusters_n, batches, splits)

    @property
    def items(self) -> Int32:
        return self.clusters_m * self.clusters_n * self.batches * self.splits

    def locate(self, item: Int32, place: tuple[Int32, Int32]) -> Tile:
        """The tile of an item for the CTA at ``place = (m, n)`` in its cluster."""
        block = item // self.splits
        split = item - block * self.splits
        area = self.clusters_m * self.clusters_n
        batch = block // area
        rest = block - batch * area
        band_height = max(BAND_ROWS // (self.tile[0] * self.cluster[0]), 1)
        band = rest // (band_height * self.clusters_n)
        top = band * band_height
        height = cutlass.min(self.clusters_m - top, band_height)
        rest = rest - top * self.clusters_n
        column = rest // height
        row = top + rest - column * height
        size_m, size_n = self.cluster
        return Tile(
            m=row * size_m + place[0],
            n=column * size_n + place[1],
            batch=batch,
            split=split,
            number=block * (size_m * size_n) + place[1] * size_m + place[0],
        )
