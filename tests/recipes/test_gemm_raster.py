"""How tiles are walked on Hopper: the traced arithmetic, on Python integers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cudnn_aot.recipes.gemm import model
from cudnn_aot.recipes.gemm.config import STREAM_MAX_PIECES, STREAM_MIN_GAIN, STREAM_MIN_SHARE
from cudnn_aot.recipes.gemm.kernels import raster
from cudnn_aot.recipes.gemm.kernels.raster import Raster, StreamK, Walk
from cudnn_aot.recipes.gemm.kernels.sm90_config import A_PARTS
from cudnn_aot.recipes.gemm.kernels.sm90_loads import load_counts

# (M, N, L, cluster, tile): ragged both ways, one tile, bands cut short, a band of one row.
RASTERS = [
    (5000, 3000, 2, (2, 1), (128, 256)),
    (1, 1, 1, (1, 2), (64, 64)),
    (4096, 4096, 1, (1, 1), (128, 128)),
    (2049, 100, 1, (1, 2), (128, 128)),
    (130, 5000, 3, (2, 1), (64, 256)),
]


@pytest.mark.parametrize(("m", "n", "batches", "cluster", "tile"), RASTERS)
def test_raster_visits_every_tile_once(m, n, batches, cluster, tile):
    """The traced arithmetic, on Python integers: tiles are counted in whole clusters."""
    walked = Raster.of(tile, cluster, (m, n, batches))
    places = list(itertools.product(range(cluster[0]), range(cluster[1])))
    tiles = [walked.locate(item, place) for item in range(walked.items) for place in places]
    tiles_m = -(-m // (tile[0] * cluster[0])) * cluster[0]
    tiles_n = -(-n // (tile[1] * cluster[1])) * cluster[1]
    want = itertools.product(range(tiles_m), range(tiles_n), range(batches))
    assert sorted((t.m, t.n, t.batch) for t in tiles) == sorted(want)


@pytest.mark.parametrize("tile_m", [64, 128])
def test_a_tile_of_few_rows_comes_in_as_few_loads_as_bring_little_else(tile_m):
    """Of 64 rows and of 16; none for a tile behind the matrix."""
    for rows in range(-300, tile_m + 1):
        counts, brought = load_counts(A_PARTS, rows)
        assert brought == sum(n * box for n, box in zip(counts, A_PARTS, strict=True)) <= tile_m
        assert max(rows, 0) <= brought < max(rows, 0) + A_PARTS[-1]
        assert counts[-1] < A_PARTS[0] // A_PARTS[-1] and all(count >= 0 for count in counts)


def test_the_walks_of_a_grid_are_of_every_item_once():
    raster_of_10 = Raster.of((128, 128), (1, 1), (1280, 128, 1))
    walks = [Walk(raster_of_10, 8, (0, 0, 0), 1, cluster, 4, None) for cluster in range(4)]
    items = [item for walk in walks for item in range(walk.first, walk.stop, walk.step)]
    assert sorted(items) == list(range(10))


def test_a_walk_of_stream_k_is_its_run():
    whole, streamed = StreamK.of(10, 300, 4), []
    raster_of_10 = Raster.of((128, 128), (1, 1), (1280, 128, 1))
    for cluster in range(whole.clusters):
        run = whole.run(cluster)
        walk = Walk(raster_of_10, 300, (0, 0, 0), 1, cluster, whole.clusters, run)
        items = range(walk.first, walk.stop, walk.step)
        assert [walk.segment(item) for item in items] == list(map(run.segment, range(run.items)))
        streamed += [walk.tile(walk.segment(item)).m for item in items]
    assert set(streamed) == set(range(10))


# Of stream-K: no more tiles than two waves and some, as more are whole; few clusters, as what a
# GPU has takes the arithmetic long on Python integers.
TILES, K_TILES, CLUSTERS = st.integers(1, 40), st.integers(1, 300), st.integers(1, 15)


@settings(max_examples=60, deadline=None)
@given(TILES, K_TILES, CLUSTERS)
@example(1, 1, 15)
@example(1, 300, 15)  # the most pieces
@example(8, 33, 15)  # a k tile more than even parts
@example(10, 300, 15)  # uneven parts
@example(15, 300, 15)  # a whole wave
@example(16, 4, 15)  # two waves, too short to stream
@example(16, 5, 15)
@example(29, 299, 15)
@example(40, 17, 1)
def test_stream_k_multiplies_every_k_tile_once(tiles, k_tiles, clusters):
    """The traced arithmetic, on Python integers."""
    walk = StreamK.of(tiles, k_tiles, clusters)
    assert 1 <= walk.clusters <= clusters and walk.shares <= walk.clusters
    done: dict[int, list[tuple[int, int, int]]] = {tile: [] for tile in range(tiles)}
    lengths = []
    for cluster in range(walk.clusters):
        run = walk.run(cluster)
        segments = [run.segment(item) for item in range(run.items)]
        for each in segments:
            assert 0 <= each.begin < each.end <= k_tiles
            done[each.tile].append((each.begin, each.end, cluster))
        lengths.append(sum(each.end - each.begin for each in segments))
    slots: list[int] = []
    most = 1
    for tile, found in done.items():
        found.sort()
        ends = [0, *(end for _, end, _ in found)]
        assert [begin for begin, _, _ in found] == ends[:-1] and ends[-1] == k_tiles
        # Every CTA of a tile counts the same arrivals, and finds the sums of the others.
        pieces = walk.pieces(tile)
        assert pieces.count == len(found)
        if pieces.count > 1:
            most = max(most, pieces.count)
            assert [cluster for *_, cluster in found] == [
                pieces.first + piece for piece in range(pieces.count)
            ]
            slots += map(pieces.slot, range(pieces.count))
            assert tile - walk.whole in range(min(2 * clusters, tiles))  # the counters
    assert len(set(slots)) == len(slots)
    bound = min(clusters, tiles * min(-(-k_tiles // STREAM_MIN_SHARE), STREAM_MAX_PIECES))
    assert all(0 <= slot < 2 * bound for slot in slots)
    # The model knows what the kernel does.
    modelled = model.stream_k(tiles, k_tiles, clusters)
    assert (modelled is None) is (not slots)
    if modelled is not None:
        assert modelled[0] == max(lengths)
        assert max(lengths) - min(lengths) <= 1 or walk.clusters < clusters or walk.whole == 0


def test_stream_k_is_planned_as_it_is_walked():
    assert (STREAM_MIN_SHARE, STREAM_MIN_GAIN, STREAM_MAX_PIECES) == (
        raster.MIN_SHARE,
        raster.MIN_GAIN,
        raster.MAX_PIECES,
    )
    # 48 tiles for 66 clusters of two blocks, of which each gets 0.73 of one.
    walk = StreamK.of(48, 64, 66)
    assert (walk.whole, walk.shares) == (0, 66)
    assert {walk.pieces(tile).count for tile in range(48)} == {2, 3}
    # 768 tiles of 128 x 256, in 384 clusters: the last 120 of them are shared out.
    walk = StreamK.of(384, 64, 66)
    assert (walk.whole, walk.shares, walk.run(65).end) == (264, 66, 120 * 64)


def test_neighbouring_items_share_operands():
    """A wave of 132 CTAs of the large tile covers a square of about 2048 x 2048 outputs."""
    walked = Raster.of((128, 256), (1, 1), (8192, 8192, 1))
    wave = [walked.locate(item, (0, 0)) for item in range(128)]
    assert {t.m for t in wave} == set(range(16))
    assert {t.n for t in wave} == set(range(8))
