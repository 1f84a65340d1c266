"""The schedules of the GEMM engines: their domains, and their public knobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.operand import DTYPE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

# What the kernel is written for (tile_m, tile_n, tile_k), by the bytes of an element of A and B;
# two math warpgroups for 128 rows, and 128 bytes of a row along K.
SM90_COLUMNS = {
    128: (256, 224, 192, 160, 128, 96, 64, 32),
    64: (256, 224, 192, 160, 128, 96, 64, 48, 32),
}
SM90_TILES = {
    size: tuple((m, n, 128 // size) for m, columns in SM90_COLUMNS.items() for n in columns)
    for size in (2, 1)
}
# Registers of a thread that hold sums: the rest of 232 are addresses and the epilogue.
SM90_MAX_ACCUMULATORS = 192
# Shared memory of a block, what of it is for barriers, and for stores per math warpgroup; how many
# stages of operands must fit in the rest; and what a warpgroup needs where it reduces along M.
SM90_SMEM_BYTES, SM90_BARRIER_BYTES, SM90_STAGING_BYTES, SM90_MIN_STAGES = 232448, 384, 16384, 4
SM90_FOLD_BYTES, SM90_SWIZZLE_BYTES = 1024, 1024  # the latter, that operands are aligned to
# Bytes that the scales of a stage are a multiple of, and columns of a tile that have one scale.
SM90_SCALE_ALIGN, SM90_SCALE_COLUMNS = 16, 32
SM90_CLUSTERS = ((1, 1), (2, 1), (1, 2))
# Of a tile with stream-K: more of them were slower than whole tiles, and kernels beyond 80 KB.
STREAM_COLUMNS = 128
# Of K over the blocks of a cluster; what leaves each so many k tiles is measured.
CLUSTER_SPLITS, MEASURED_SPLIT_TILES = (2, 4), 4
# Of stream-K, as its kernel has them (kernels/raster.py): the least share of a tile that is shared
# out among clusters, in k tiles, the gain for which a share ends within a tile, and the most pieces
# of a tile that is split evenly.
STREAM_MIN_SHARE, STREAM_MIN_GAIN, STREAM_MAX_PIECES = 16, 8, 8
# Blocks that split K in a cluster share the columns of a tile out by multiples of these.
COLUMNS_STEP = 16


class TileClass(NamedTuple):
    """What the tiles of ``gemm.sm90.persistent`` depend on.

    Attributes:
        element_bytes: of A and B.
        products: how many matmuls of one A there are.
        scaled_columns: how many columns have one scale; None without scales, and 0 with those of A
            alone.
        folds_rows: whether something is reduced along M, for which warps need shared memory.
        is_integer: whether A and B are INT8.
    """

    element_bytes: int
    products: int
    scaled_columns: int | None = None
    folds_rows: bool = False
    is_integer: bool = False

    @property
    def promotes(self) -> bool:
        """Whether threads add up what the tensor cores sum: of FP8, whose sums there are short."""
        return self.element_bytes == 1 and not self.is_integer


def tile_class(facts: GemmFacts) -> TileClass:
    columns = math.gcd(*(scale.rows for scale in facts.scales[1:] if scale is not None))
    return TileClass(
        DTYPE_BYTES[facts.a.dtype],
        facts.epilogue.products,
        columns if facts.is_scaled else None,
        any("m" in reduction.axes for reduction in facts.epilogue.reductions),
        facts.a.dtype == "INT8",
    )


class Schedule:
    """A frozen record of integers, each of which is a public knob.

    Attributes:
        KNOBS: in the order of the fields.
    """

    __slots__ = ()
    KNOBS: ClassVar[tuple[knob_type, ...]]

    def __init__(self, *values: int) -> None:
        raise NotImplementedError

    def why_not(self) -> str | None:
        """None for a schedule that the kernel has, else the knob that is off, in a sentence."""
        raise NotImplementedError

    def to_public(self) -> dict[knob_type, int]:
        names: tuple[str, ...] = self.__slots__
        return dict(zip(self.KNOBS, [getattr(self, name) for name in names], strict=True))

    @classmethod
    def from_public(cls, knobs: Mapping[knob_type, int]) -> Self:
        """The schedule that the knobs spell.

        Raises:
            ValueError: a knob is missing, unknown, or off the menu.
        """
        if missing := [knob.name for knob in cls.KNOBS if knob not in knobs]:
            raise ValueError(f"knob {missing[0]} is missing")
        if unknown := [knob.name for knob in knobs if knob not in cls.KNOBS]:
            raise ValueError(f"it has no knob {unknown[0]}")
        config = cls(*(knobs[knob] for knob in cls.KNOBS))
        if reason := config.why_not():
            raise ValueError(reason)
        return config


@dataclass(frozen=True, slots=True)
class GemmConfig(Schedule):
    """A schedule of ``gemm.sm90.persistent``: tile and cluster in elements and blocks, the number
    of blocks of a cluster that split K, whether clusters share tiles out to the k tile, in pieces
    whose sums go through a workspace (1), or have whole tiles (0), and whether the math warpgroups
    of a block share each tile (0) or take every second one: ping-pong (1).
    """

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    splits: int
    stream_k: int = 0
    pingpong: int = 0

    KNOBS: ClassVar[tuple[knob_type, ...]] = (
        knob_type.TILE_M,
        knob_type.TILE_N,
        knob_type.TILEK,
        knob_type.TILE_CGA_M,
        knob_type.TILE_CGA_N,
        knob_type.SPLIT_K_SLC,
        knob_type.STREAM_K,
        knob_type.WARP_SPEC_CFG,
    )

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.tile_m, self.tile_n, self.tile_k

    @property
    def cluster_k(self) -> int:
        """Blocks of a cluster that split K."""
        return self.splits

    def why_not(self) -> str | None:
        every = tuple(dict.fromkeys(itertools.chain(*SM90_TILES.values())))
        if self.tile not in every:
            return f"tile {_x(self.tile)} is not one of {', '.join(map(_x, every))}"
        cluster = (self.cluster_m, self.cluster_n)
        if cluster not in SM90_CLUSTERS:
            return f"cluster {_x(cluster)} is not one of {', '.join(map(_x, SM90_CLUSTERS))}"
        if self.stream_k not in (0, 1):
            return f"STREAM_K is {self.stream_k}, want 0 or 1"
        if self.pingpong not in (0, 1):
            return f"WARP_SPEC_CFG is {self.pingpong}, want 0 (cooperative) or 1 (ping-pong)"
        if self.pingpong and (self.stream_k or self.splits != 1):
            return "WARP_SPEC_CFG is 1, want 0 where K is split"
        return self._why_not_in_cluster() if self.splits != 1 else None

    def _why_not_in_cluster(self) -> str | None:
        if self.splits not in CLUSTER_SPLITS:
            wanted = " or ".join(map(str, (1, *CLUSTER_SPLITS)))
            return f"{self.splits} splits of K in a cluster, want {wanted}"
        if self.stream_k:
            return f"SPLIT_K_SLC is {self.splits} and STREAM_K is 1, want one way to split K"
        if (self.cluster_m, self.cluster_n) != (1, 1):
            return "a cluster splits K or shares operands, not both: want TILE_CGA_M and _N 1"
        if self.tile_n % (COLUMNS_STEP * self.splits):
            return f"TILE_N is {self.tile_n}, want a multiple of {COLUMNS_STEP} per block"
        return None

    def why_not_for(self, tiles: TileClass) -> str | None:
        """None where the kernel has the schedule for a class of tiles, else the reason."""
        element_bytes, products = tiles.element_bytes, tiles.products
        menu = SM90_TILES[element_bytes]
        if self.tile not in menu:
            every = ", ".join(map(_x, menu))
            return f"tile {_x(self.tile)} of {element_bytes}-byte elements is not one of {every}"
        columns = products * self.tile_n
        if self.pingpong:
            if tiles.promotes:
                return "WARP_SPEC_CFG is 1, want 0: sums of FP8 take two warpgroups to promote"
            columns = columns * self.tile_m // 64
        if tiles.promotes:  # and sums of the tensor cores, of all columns or half of them
            fits = columns + self.tile_n <= 2 * SM90_MAX_ACCUMULATORS
            promoted = self.tile_n if fits else self.tile_n // 2
            columns += promoted
        if tiles.scaled_columns is not None and (each := self._scaled(tiles)) % SM90_SCALE_COLUMNS:
            return (
                f"tile {_x(self.tile)} has one scale for {each} columns, "
                f"want a multiple of {SM90_SCALE_COLUMNS}"
            )
        if columns // 2 > SM90_MAX_ACCUMULATORS:
            return (
                f"tile {_x(self.tile)} of {products} matmuls takes {columns // 2} accumulators per "
                f"thread, want at most {SM90_MAX_ACCUMULATORS}"
            )
        if (stages := self._stages(tiles)) < SM90_MIN_STAGES:
            return (
                f"of tile {_x(self.tile)} of {products} matmuls, {self.splits} splits of K, "
                f"{stages} stages fit, want at least {SM90_MIN_STAGES}"
            )
        if products > 1 and self.splits > 1:
            return f"{self.splits} splits of K of {products} matmuls, want 1"
        if self.stream_k and (products > 1 or self.tile_n > STREAM_COLUMNS):
            return (
                f"STREAM_K is 1 with {products} matmuls and tile {_x(self.tile)}, "
                f"want 1 and at most {STREAM_COLUMNS} columns"
            )
        return None

    def _scaled(self, tiles: TileClass) -> int:
        """Neighbouring columns of a tile that have one scale."""
        return math.gcd(self.tile_n, tiles.scaled_columns or 0)

    def _stages(self, tiles: TileClass) -> int:
        """How many stages of operands fit into shared memory."""
        products = tiles.products
        stage = (self.tile_m + products * self.tile_n) * self.tile_k * tiles.element_bytes
        scales = 0  # of a stage: the rows', and those of the columns of each matmul
        if tiles.scaled_columns is not None:
            count = self.tile_m + products * (self.tile_n // self._scaled(tiles))
            scales = _rounded_up(4 * count, SM90_SCALE_ALIGN)
        warpgroups = 2 if self.pingpong else self.tile_m // 64
        room = SM90_SMEM_BYTES - warpgroups * SM90_STAGING_BYTES
        room -= warpgroups * SM90_FOLD_BYTES * tiles.folds_rows
        # What the other blocks of a cluster send of their sums.
        room -= (self.cluster_k - 1) * self.tile_m * self.tile_n // self.cluster_k * 4
        stages = (room - SM90_BARRIER_BYTES) // (stage + scales)
        head = _rounded_up(SM90_BARRIER_BYTES + stages * scales, SM90_SWIZZLE_BYTES)
        return stages if head + stages * stage <= room else stages - 1

    @classmethod
    def measured(cls, longest_k: int, tiles: TileClass) -> Iterator[GemmConfig]:
        """Every tile with every cluster, and with the splits of K that leave each block work."""
        for tile in SM90_TILES[tiles.element_bytes]:
            k_tiles = longest_k // tile[2]
            every = [
                cls(*tile, *cluster, 1, pingpong=pingpong)
                for pingpong in (0, 1)
                for cluster in SM90_CLUSTERS
            ]
            for splits in CLUSTER_SPLITS:
                config = cls(*tile, 1, 1, splits)
                if splits * MEASURED_SPLIT_TILES <= k_tiles and config.why_not() is None:
                    every.append(config)
            if k_tiles >= STREAM_MIN_SHARE:
                every += [cls(*tile, *cluster, 1, 1) for cluster in SM90_CLUSTERS]
            for config in every:
                if config.why_not_for(tiles) is None:
                    yield config


@dataclass(frozen=True, slots=True)
class GemvConfig(Schedule):
    """A schedule of ``gemm.sm90.gemv``: rows and columns of a warp, the warps that share them along
    K, and the steps of K whose loads are in flight.

    Attributes:
        MENU: the values of each field.
    """

    rows: int
    columns: int
    k_warps: int
    unroll: int

    KNOBS: ClassVar[tuple[knob_type, ...]] = (
        knob_type.TILE_ROWS,
        knob_type.TILE_COLS,
        knob_type.SPLIT_K_SLC,
        knob_type.STAGES,
    )
    MENU: ClassVar[tuple[tuple[int, ...], ...]] = ((1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4))

    def why_not(self) -> str | None:
        for (knob, value), menu in zip(self.to_public().items(), self.MENU, strict=True):
            if value not in menu:
                return f"{knob.name} is {value}, want one of {', '.join(map(str, menu))}"
        return None

    @property
    def is_measured(self) -> bool:
        """Whether `tune` measures it; others can be asked for by knobs."""
        return 2 <= self.columns * self.unroll <= 8  # loads of B in flight per lane

    @classmethod
    def measured(cls) -> list[GemvConfig]:
        every = (cls(*values) for values in itertools.product(*cls.MENU))
        return [each for each in every if each.is_measured]


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _x(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))
