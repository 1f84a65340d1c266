"""The order in which a persistent grid walks the output tiles.

Work items are numbered so that items in flight together share operands in L2: tiles are walked in
bands of about ``BAND_ROWS`` output rows, down a band before across it. A wave of 132 CTAs with
128 x 256 tiles then covers about 2048 x 2048 outputs, the square that reads the fewest operand
bytes. Batches are outermost.

A cluster is the unit: items count clusters, and every CTA of a cluster gets the tile at its own
place in the cluster's block of tiles. CTAs past the last tile of a ragged edge compute on zeros and
store nothing.

Stream-K: where the tiles are no whole waves, those of the last two waves, or of the only one, are
streamed. Their k tiles are a line of units, tile by tile, and each cluster gets an even share of
it: a run of segments, each a tile or a piece of one. The pieces of a tile belong to consecutive
clusters, and only the first and the last segment of a run are pieces, so a cluster has partial sums
of two at most. All of it follows from the tiles, the k tiles and the clusters alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32

from cudnn_aot.recipes.gemm.kernels import batching

BAND_ROWS = 2048
# Of stream-K, in k tiles, of which a piece costs some: its sums are written, and read again.
MIN_SHARE = 16  # of a tile that is shared out among clusters
MIN_GAIN = 8  # for which a share ends within a tile
# Of a tile that is split evenly: one block reads those of all others.
MAX_PIECES = 8


@dataclass(frozen=True)
class Tile:
    """One item of work: tile coordinates of this CTA, the place of its matrix in the batch, and its
    number among all tiles.
    """

    m: Int32
    n: Int32
    batch: Any
    number: Int32


@dataclass(frozen=True)
class Raster:
    """Item numbers to tiles. ``tile`` and ``cluster`` are static; the rest are values of a call.
    ``batches`` are the extents of the batch, as `batching` has them.
    """

    tile: cutlass.Constexpr[tuple[int, int]]
    cluster: cutlass.Constexpr[tuple[int, int]]
    clusters_m: Int32
    clusters_n: Int32
    batches: Any

    @staticmethod
    def of(
        tile: tuple[int, int],
        cluster: tuple[int, int],
        extents: tuple[Int32, Int32, Any],
    ) -> Raster:
        """The raster of an ``(m, n, batch)`` result."""
        m, n, batches = extents
        clusters_m = cute.ceil_div(m, tile[0] * cluster[0])
        clusters_n = cute.ceil_div(n, tile[1] * cluster[1])
        return Raster(tile, cluster, clusters_m, clusters_n, batches)

    @property
    def items(self) -> Int32:
        return self.clusters_m * self.clusters_n * batching.count(self.batches)

    def locate(self, item: Int32, place: tuple[Int32, ...]) -> Tile:
        """The tile of an item for the CTA at ``place = (m, n, ...)`` in its cluster."""
        area = self.clusters_m * self.clusters_n
        batch = _quotient(item, area)
        rest = item - batch * area
        band_height = max(BAND_ROWS // (self.tile[0] * self.cluster[0]), 1)
        band = _quotient(rest, band_height * self.clusters_n)
        top = band * band_height
        height = cutlass.min(self.clusters_m - top, band_height)
        rest = rest - top * self.clusters_n
        column = _quotient(rest, height)
        row = top + rest - column * height
        size_m, size_n = self.cluster
        return Tile(
            m=row * size_m + place[0],
            n=column * size_n + place[1],
            batch=batching.place(batch, self.batches),
            number=item * (size_m * size_n) + place[1] * size_m + place[0],
        )


@dataclass(frozen=True)
class Segment:
    """What a cluster multiplies at a time: k tiles ``begin`` to ``end`` of a tile, by its number in
    the raster.
    """

    tile: Int32
    begin: Int32
    end: Int32


@dataclass(frozen=True)
class Pieces:
    """Of a tile: ``count`` of them, of consecutive clusters from ``first`` on.

    Attributes:
        is_behind: whether (1) or not (0) the first of them is the second piece of its cluster.
    """

    first: Int32
    count: Int32
    is_behind: Int32

    def slot(self, piece: Int32) -> Int32:
        """Where the partial sums of the ``piece``-th lie: each cluster has two slots."""
        return 2 * (self.first + piece) + self.is_behind * cutlass.max(1 - piece, 0)


@dataclass(frozen=True)
class StreamK:
    """Tiles, counted in whole clusters, to the clusters of a grid, see the module's docstring.

    Attributes:
        k_tiles: of a tile.
        whole: tiles that are not streamed: the first ones, an item each.
        shares: clusters that the streamed ones are shared out among.
    """

    tiles: Int32
    k_tiles: Int32
    clusters: Int32
    whole: Int32
    shares: Int32

    @staticmethod
    def of(tiles: Int32, k_tiles: Int32, clusters: Int32) -> StreamK:
        """Of a grid of at most so many clusters.

        Shares that are even parts of a tile leave some clusters idle and have fewer pieces: they
        are taken where the others are not ``MIN_GAIN`` shorter.
        """
        rest = tiles % clusters
        last = _either(tiles < clusters, rest, rest + clusters)
        streamed = _either(rest == 0, 0, last)
        parts = cutlass.max(cutlass.min(k_tiles // MIN_SHARE, MAX_PIECES), 1)
        most = cutlass.max(cutlass.min(clusters, streamed * parts), 1)
        splits = cutlass.max(most // cutlass.max(streamed, 1), 1)
        is_two_waves = streamed > clusters
        even = cute.ceil_div(k_tiles, splits) * _either(is_two_waves, 2, 1)
        gain = even - cute.ceil_div(streamed * k_tiles, most)
        kept = _either(is_two_waves, 0, streamed)  # streamed where shares are even
        streamed = _either(gain >= MIN_GAIN, streamed, kept)
        shares = _either(gain >= MIN_GAIN, most, cutlass.max(splits * kept, 1))
        grid = cutlass.min(clusters, cutlass.max(tiles, shares))
        return StreamK(tiles, k_tiles, grid, tiles - streamed, shares)

    def run(self, cluster: Int32) -> Run:
        """What a cluster multiplies."""
        units = (self.tiles - self.whole) * self.k_tiles
        length = _quotient(units, self.shares)
        rest = units - length * self.shares
        # Of share * units // shares, without a product of 64 bits.
        begin, end = (
            share * length + _quotient(share * rest, self.shares)
            for share in (cutlass.min(cluster + i, self.shares) for i in (0, 1))
        )
        waves = cute.ceil_div(self.whole - cluster, self.clusters)
        tile = _quotient(begin, self.k_tiles)
        items = waves + cute.ceil_div(end, self.k_tiles) - tile
        return Run(self, cluster, waves, tile, begin, end, items)

    def pieces(self, tile: Int32) -> Pieces:
        """Of a tile, by its number; one that is not streamed is one piece."""
        is_streamed = tile >= self.whole
        streamed = cutlass.max(self.tiles - self.whole, 1)
        tile = cutlass.max(tile - self.whole, 0)
        # The last share that begins ahead of the tile or where it does. The next one is that where
        # only rounding down to a whole unit brings it there.
        first = _quotient(tile * self.shares, streamed)
        rest = tile * self.shares - first * streamed
        is_next = (streamed - rest) * self.k_tiles < self.shares
        last = _quotient((tile + 1) * self.shares - 1, streamed)
        is_behind = _either(is_next, 0, cutlass.min(rest, 1))
        first = first + _either(is_next, 1, 0)
        return Pieces(first, _either(is_streamed, last - first + 1, 1), is_behind)


@dataclass(frozen=True)
class Run:
    """What a cluster multiplies, in order: tiles of whole waves, and its share of the units.

    Attributes:
        waves: of those tiles.
        tile: of the streamed ones that in which its share begins.
        begin: the first unit of its share; ``end`` is the one behind the last.
        items: segments.
    """

    stream_k: StreamK
    cluster: Int32
    waves: Int32
    tile: Int32
    begin: Int32
    end: Int32
    items: Int32

    def segment(self, item: Int32) -> Segment:
        of = self.stream_k
        is_whole = item < self.waves
        tile = self.tile + item - self.waves
        start = tile * of.k_tiles
        return Segment(
            _either(is_whole, self.cluster + item * of.clusters, of.whole + tile),
            _either(is_whole, 0, cutlass.max(self.begin - start, 0)),
            _either(is_whole, of.k_tiles, cutlass.min(self.end - start, of.k_tiles)),
        )


@dataclass(frozen=True)
class Walk:
    """How a CTA walks over items, ``range(first, stop, step)``: its producers and its math
    warpgroups alike.

    Attributes:
        k_tiles: of a tile.
        place: the CTA's in its cluster along M, along N, and among the ``splits`` CTAs that share
            out the k tiles.
        cluster: the number of its cluster, of ``clusters`` of the grid.
        run: what stream-K has the cluster multiply, in place of every ``clusters``-th tile.
    """

    raster: Raster
    k_tiles: Int32
    place: tuple[Int32, Int32, Int32]
    splits: int
    cluster: Int32
    clusters: Int32
    run: Run | None

    @property
    def first(self) -> Int32 | int:
        return self.cluster if self.run is None else 0

    @property
    def stop(self) -> Int32:
        return self.raster.items if self.run is None else self.run.items

    @property
    def step(self) -> Int32 | int:
        return self.clusters if self.run is None else 1

    def segment(self, item: Int32) -> Segment:
        """The tile of an item, and its k tiles that this CTA multiplies."""
        if self.run is not None:
            return self.run.segment(item)
        if self.splits == 1:
            return Segment(item, Int32(0), self.k_tiles)
        split, splits = self.place[2], Int32(self.splits)
        share, extra = self.k_tiles // splits, self.k_tiles % splits
        begin = split * share + cutlass.min(split, extra)
        return Segment(item, begin, begin + share + Int32(split < extra))

    def tile(self, segment: Segment) -> Tile:
        """That which this CTA has of a cluster's."""
        return self.raster.locate(segment.tile, self.place)


def _either(condition, then, otherwise):
    """One of two numbers, of a call or of Python."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    return Int32(cutlass.select_(condition, Int32(then), Int32(otherwise)))


def _quotient(dividend, divisor):
    """Of numbers of a call or of Python, none below 0: signed ones are rounded down, at a cost."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    return (Int32(dividend).to(Uint32) // Int32(divisor).to(Uint32)).to(Int32)
