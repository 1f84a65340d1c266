"""The schedules of ``gemm.sm90.persistent`` that are ranked, and a rough time for each.

The time is a count of SM cycles for a work item, the slower of math and operand traffic, plus what
a tile costs besides its main loop; the waves of items over the SMs give that of the launch, unless
memory takes longer. It orders schedules; it does not predict. The menu and its numbers were fitted
to what was measured on an H200 (bench/NOTES.md, "Schedules by measurement" and "Ping-pong and what
else was tried"): over 53 cases, of the large ones at boost clocks and in the power limit, the first
of the ranking took 1.007 times as long as the best. FP8 was fitted less, to a few squares;
INT8 goes by a multiple of what 16 bits take, which was right on six shapes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cudnn_aot.recipes.gemm.config import (
    STREAM_MAX_PIECES,
    STREAM_MIN_GAIN,
    STREAM_MIN_SHARE,
    GemmConfig,
    TileClass,
)

Extents = Mapping[str, int]  # batch, m, n, k
Row: TypeAlias = tuple[int, int, int, int, int, int, int]  # of a menu, see `MENU`

TILE_K_BYTES = 128
# Multiply-adds per SM and cycle that a tile reaches, by the bytes of an element, the tile's rows
# and the columns of all of its products; the peak is 2048, and 4096 of FP8.
MATH_MACS_PER_CYCLE: Mapping[int, Mapping[int, Mapping[int, float]]] = {
    2: {
        64: {
            32: 710,
            48: 1130,
            64: 925,
            96: 1475,
            128: 1395,
            160: 1495,
            192: 1525,
            224: 1510,
            256: 1630,
        },
        128: {32: 870, 64: 1400, 96: 1500, 128: 1740, 160: 1725, 192: 1755, 224: 1735, 256: 1775},
    },
    1: {
        # One math warpgroup: while it promotes its sums, the tensor cores wait. An estimate.
        64: {
            32: 875,
            48: 1125,
            64: 1360,
            96: 1660,
            128: 1825,
            160: 1910,
            192: 1975,
            224: 2010,
            256: 2050,
        },
        128: {32: 1150, 64: 2300, 96: 2600, 128: 2790, 160: 2650, 192: 2870, 224: 2700, 256: 2780},
    },
}
# The same of INT8, whose sums are not promoted, is so many times that of 16-bit elements: with it
# the first choice was the fastest or within 1 % of it, on six shapes.
INT8_SPEED = 1.7
# The same of FP8 with scales, whose sums are scaled and added after every tile of K. What shared
# memory gives is the limit: fewer columns take more of it.
SCALED_MACS_PER_CYCLE: Mapping[int, Mapping[int, float]] = {
    64: {
        32: 750,
        48: 960,
        64: 1150,
        96: 1400,
        128: 1550,
        160: 1620,
        192: 1680,
        224: 1710,
        256: 1740,
    },
    128: {32: 950, 64: 1800, 96: 2050, 128: 2250, 160: 2400, 192: 2570, 224: 2500, 256: 2560},
}
# The same of warpgroups that take every second tile.
PINGPONG_MACS_PER_CYCLE: Mapping[int, Mapping[int, float]] = {
    64: {128: 1390, 256: 1540},
    128: {64: 1400, 96: 1560, 128: 1720, 160: 1750, 192: 1775},
}
# (tile_m, tile_n, cluster_m, cluster_n, splits, stream_k, pingpong); two math warpgroups for 128
# rows and for ping-pong. What wins ties first: smaller tiles, and to share B, which is read from
# memory, before A.
COOPERATIVE = (
    *((64, tile_n, 1, 1, 1, 0) for tile_n in (32, 48, 64, 96, 128, 160, 192, 224)),
    *((64, tile_n, 2, 1, 1, 0) for tile_n in (96, 128, 192)),
    *((128, tile_n, 1, 1, 1, 0) for tile_n in (64, 96, 128, 160)),
    *((128, tile_n, 2, 1, 1, 0) for tile_n in (64, 96, 128, 160, 192, 224, 256)),
    *((128, tile_n, 1, 2, 1, 0) for tile_n in (128, 256)),
    *((64, tile_n, 1, 1, 2, 0) for tile_n in (64, 96, 128)),
    *((128, tile_n, 1, 1, 2, 0) for tile_n in (64, 96, 128)),
    *((64, tile_n, 1, 1, 4, 0) for tile_n in (64, 128, 192)),
    (128, 64, 1, 1, 4, 0),
    *((64, tile_n, 1, 1, 1, 1) for tile_n in (64, 128)),
)
PINGPONG = (
    (64, 128, 1, 1),
    (64, 128, 2, 1),
    (128, 128, 1, 1),
    *((128, tile_n, 2, 1) for tile_n in (64, 96, 128, 160, 192)),
)
MENU: tuple[Row, ...] = (
    *((*row, 0) for row in COOPERATIVE),
    *((*row, 1, 0, 1) for row in PINGPONG),
)
# FP8 asks L2 for no more bytes a cycle than it gives, in tiles of so many columns.
PROMOTED: tuple[Row, ...] = (*MENU, *((128, tile_n, 1, 1, 1, 0, 0) for tile_n in (192, 256)))
# With scales, blocks that load for each other are slower than those that do not.
SCALED: tuple[Row, ...] = tuple(row for row in PROMOTED if row[2:4] == (1, 1))
# A split in a cluster is not worth its sums with fewer elements of K, in tiles.
MIN_SPLIT_TILES = 4
# Accumulators of a thread, beyond which a chain or a reduction of ping-pong has too few registers.
PINGPONG_CHAIN_ACCUMULATORS = 160
# Operand bytes that one SM asks of L2 per cycle.
OPERAND_BYTES_PER_CYCLE = 46.5
PINGPONG_OPERAND_BYTES_PER_CYCLE = 52.0  # loads go on while a tile is finished
# All SMs together take this much from memory per cycle (3.2 TB/s at 1.755 GHz).
MEMORY_BYTES_PER_CYCLE = 1800.0
# Pipeline fill, epilogue and store of a tile: of any, and of each column of 64 rows.
TILE_CYCLES, COLUMN_CYCLES = 830.0, 4.2
# Partial sums over a workspace: bytes written per cycle, half of the cycles to read them, and the
# fill that zeroes the counters.
WORKSPACE_BYTES_PER_CYCLE, FILL_CYCLES = 12.0, 3000.0
# Partial sums to the other blocks of a cluster.
CLUSTER_BYTES_PER_CYCLE = 7.8
# Of the SMs, that clusters of four leave idle: a GPC has a few more than a multiple of four.
IDLE_SHARE_OF_FOUR = 8
# Of the shorter of SM and memory time, that the longer does not hide.
UNHIDDEN = 0.23
LAUNCH_CYCLES = 2000.0
SHARING_CYCLES = 2560.0  # more of a launch of clusters whose blocks load for each other
CYCLES_PER_US = 1755.0

_NEVER = (math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Menu:
    """The schedules to rank for a class of tiles, see `tile_class`; earlier ones win ties.

    Attributes:
        rows: of each schedule what its time takes from it alone: its row of `MENU`, cycles of math
            per element of K, and cycles of a tile besides its main loop.
        fallback: serves every graph, whatever its extents.
    """

    element_bytes: int
    products: int
    configs: tuple[GemmConfig, ...]
    rows: tuple[tuple[int, int, int, int, int, int, int, float, float], ...]
    fallback: GemmConfig


@functools.lru_cache(maxsize=16)
def menu_for(
    tiles: TileClass, has_chain: bool = False, schedules: tuple[Row, ...] | None = None
) -> Menu:
    """The menu of a class of tiles, for plain results or, with ``has_chain``, for what a chain is
    applied to or a reduction reads; of ``schedules``, or of all.
    """
    if schedules is None:
        schedules = PROMOTED if tiles.promotes else MENU
        if tiles.scaled_columns is not None:
            schedules = SCALED
    tile_k = TILE_K_BYTES // tiles.element_bytes
    configs, rows = [], []
    for row in schedules:
        config = GemmConfig(*row[:2], tile_k, *row[2:])
        if has_chain and config.pingpong:
            accumulators = tiles.products * config.tile_m * config.tile_n // 128
            if accumulators > PINGPONG_CHAIN_ACCUMULATORS:
                continue
        if config.why_not_for(tiles) is None:
            configs.append(config)
            cycles = _math_cycles(config, tiles), _tail_cycles(config, tiles.products)
            rows.append((*row, *cycles))
    fallback = next(
        config
        for config in (GemmConfig(64, tile_n, tile_k, 1, 1, 1) for tile_n in (128, 64, 32))
        if config.tile_n == 32 or not config.why_not_for(tiles)
    )
    return Menu(tiles.element_bytes, tiles.products, tuple(configs), tuple(rows), fallback)


def _math_cycles(config: GemmConfig, tiles: TileClass) -> float:
    columns = tiles.products * config.tile_n
    table = MATH_MACS_PER_CYCLE[1 if tiles.promotes else 2]
    if config.pingpong:
        table = PINGPONG_MACS_PER_CYCLE
    elif tiles.scaled_columns is not None:
        table = SCALED_MACS_PER_CYCLE
    rate = table[config.tile_m][min(columns, 256)] * (INT8_SPEED if tiles.is_integer else 1.0)
    return config.tile_m * columns / rate


def _tail_cycles(config: GemmConfig, products: int) -> float:
    splits, partial_bytes = config.splits, 4 * config.tile_m * config.tile_n
    columns = products * config.tile_n * config.tile_m / 64 / config.cluster_k
    cycles = TILE_CYCLES + COLUMN_CYCLES * columns * (config.tile_m // 64 if config.pingpong else 1)
    return cycles + partial_bytes / CLUSTER_BYTES_PER_CYCLE * (splits - 1) / splits


def stream_k(tiles: int, k_tiles: int, clusters: int) -> tuple[int, int, int] | None:
    """How clusters share tiles out: the k tiles of the longest share, those of whole waves among
    them; the pieces of a tile; and the partial tiles that a block writes. None where nothing is
    split: what the kernel does then (`kernels.raster.StreamK`), a plain schedule does without its
    counters.
    """
    rest = tiles % clusters
    if not rest:
        return None
    if tiles > clusters:  # the last two waves: a block ends one tile and begins another
        waves, streamed = tiles // clusters - 1, clusters + rest
        length = -(-streamed * k_tiles // clusters)
        if 2 * k_tiles - length < STREAM_MIN_GAIN:
            return None
        return waves * k_tiles + length, 2, 1
    most = min(clusters, tiles * max(min(k_tiles // STREAM_MIN_SHARE, STREAM_MAX_PIECES), 1))
    splits = most // tiles
    even, length = -(-k_tiles // splits), -(-tiles * k_tiles // most)
    if even - length >= STREAM_MIN_GAIN:
        return length, splits + 1, 2
    return (even, splits, 1) if splits > 1 else None


PLAIN = menu_for(TileClass(2, 1))  # of one matmul of 16-bit elements


def modelled_cycles(menu: Menu, extents: Extents, sm_count: int) -> list[tuple[float, float]]:
    """Modelled time of one launch of each row of the menu, in SM cycles; then, for ties, that of
    the SMs alone. Infinite where a split would leave blocks without work, or nothing is split.

    A symbolic graph asks for some hundred of them: what they share is computed once.
    """
    m, n, k, batch = (extents[name] or 1 for name in ("m", "n", "k", "batch"))
    element_bytes, products = menu.element_bytes, menu.products
    moved = element_bytes * k * (m + products * n) + 2 * m * n
    memory = batch * moved / MEMORY_BYTES_PER_CYCLE
    few_rows = -(-m // 16) * 16  # of A, that loads bring where there is less than a tile of them
    tile_k = TILE_K_BYTES // element_bytes
    longest_split = k // (MIN_SPLIT_TILES * tile_k)
    modelled = []
    for row in menu.rows:
        tile_m, tile_n, cluster_m, cluster_n, splits, stream, pingpong, math_cycles, tail = row
        tiles_m, tiles_n = -(-m // tile_m), -(-n // tile_n)
        # A cluster shares what its blocks have in common; alone, a block shares nothing.
        rows: float = few_rows if m < tile_m else tile_m
        columns: float = tile_n
        if cluster_m > 1:
            if tiles_m > 1:
                columns = tile_n / cluster_m
            tiles_m = -(-tiles_m // cluster_m) * cluster_m
        elif cluster_n > 1:
            rows = tile_m / cluster_n if tiles_n > 1 else tile_m
            tiles_n = -(-tiles_n // cluster_n) * cluster_n
        tiles = tiles_m * tiles_n * batch
        rate = PINGPONG_OPERAND_BYTES_PER_CYCLE if pingpong else OPERAND_BYTES_PER_CYCLE
        per_k = element_bytes * (rows + products * columns) / rate
        if per_k < math_cycles:
            per_k = math_cycles
        sms, length, launch = sm_count, k, LAUNCH_CYCLES
        if cluster_m > 1 or cluster_n > 1:
            launch += SHARING_CYCLES
        if stream:
            blocks = cluster_m * cluster_n
            clusters, tiles = max(sm_count // blocks, 1), tiles // blocks
            shared = stream_k(tiles, -(-k // tile_k), clusters)
            if shared is None:
                modelled.append(_NEVER)
                continue
            k_tiles, pieces, written = shared
            partial = 4 * tile_n * min(few_rows, tile_m) / WORKSPACE_BYTES_PER_CYCLE
            sums = partial * (written + (pieces - 1) / 2)
            launch += FILL_CYCLES
            cycles = k_tiles * tile_k * per_k + tail * -(-tiles // clusters) + sums
            tail += sums
        elif pingpong:  # a tile is finished while the next is multiplied
            waves = -(-tiles // sms)
            cycles = waves * length * per_k + tail
            pairs = -(-waves // 2) * (length * per_k + tail)
            if cycles < pairs:
                cycles = pairs
        else:
            if splits > 1:
                if splits > longest_split:
                    modelled.append(_NEVER)
                    continue
                length = -(-k // splits)
                if splits == 4:
                    sms -= sm_count // IDLE_SHARE_OF_FOUR
            cycles = (length * per_k + tail) * -(-tiles * splits // sms)
        waits = memory + tail
        if cycles > waits:
            modelled.append((cycles + UNHIDDEN * waits + launch, cycles))
        else:
            modelled.append((waits + UNHIDDEN * cycles + launch, cycles))
    return modelled


def rank_sm90(
    extents: Extents, sm_count: int, menu: Menu = PLAIN
) -> list[tuple[GemmConfig, float]]:
    """The menu by modelled microseconds, best first; ties keep the menu's order."""
    modelled = modelled_cycles(menu, extents, sm_count)
    pairs = zip(menu.configs, modelled, strict=True)
    worth = [pair for pair in pairs if pair[1] is not _NEVER]
    return [(c, t[0] / CYCLES_PER_US) for c, t in sorted(worth, key=operator.itemgetter(1))]


def best_sm90(cases: Sequence[Extents], sm_count: int, menu: Menu = PLAIN) -> GemmConfig:
    """The first of `rank_sm90`; for several cases, by the sum over them of how much slower than the
    best a schedule is.
    """
    modelled = [modelled_cycles(menu, extents, sm_count) for extents in cases]
    if len(cases) == 1:
        return menu.configs[modelled[0].index(min(modelled[0]))]
    lags = [0.0] * len(menu.configs)
    for times in modelled:
        fastest = min(times)[0]
        lags = [lag + time / fastest for lag, (time, _) in zip(lags, times, strict=True)]
    return menu.configs[lags.index(min(lags))]
