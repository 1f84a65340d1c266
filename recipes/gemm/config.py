"""The schedules of the GEMM engines: their domains, and their public knobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.lowering import DTYPE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

# What the kernel is written for (tile_m, tile_n, tile_k), by the bytes of an element of A and B;
# two math warpgroups for 128 rows.
SM90_TILES = {
    2: (
        (128, 256, 64),
        (128, 128, 64),
        (64, 256, 64),
        (64, 128, 64),
        (64, 64, 64),
        (64, 128, 128),
        (64, 64, 128),
    ),
    1: (
        (128, 256, 128),
        (128, 128, 128),
        (64, 256, 128),
        (64, 128, 128),
        (64, 64, 128),
    ),
}
# Registers of a thread that hold sums: the rest of 232 are addresses and the epilogue.
SM90_MAX_ACCUMULATORS = 192
SM90_MAX_STAGE_BYTES = 48 << 10  # of operands: four stages fit in shared memory
SM90_PROMOTED_COLUMNS = 128  # whose sums of FP8 products are added to the tile's at a time, at most
SM90_CLUSTERS = ((1, 1), (2, 1), (1, 2))
MAX_SPLITS = 64
# Of K, as far as it is long enough: what is measured. Others between can be asked for by knobs.
MEASURED_SPLITS = (1, 2, 3, 4, 6, 8, 16)


def tile_class(facts: GemmFacts) -> tuple[int, int]:
    """What the tiles of ``gemm.sm90.persistent`` depend on: the bytes of an element of A and B, and
    how many matmuls of one A there are.
    """
    return DTYPE_BYTES[facts.a.dtype], facts.epilogue.products


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
    """A schedule of ``gemm.sm90.persistent``: tile and cluster in elements and blocks, and the
    number of K splits.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    splits: int

    KNOBS: ClassVar[tuple[knob_type, ...]] = (
        knob_type.TILE_M,
        knob_type.TILE_N,
        knob_type.TILEK,
        knob_type.TILE_CGA_M,
        knob_type.TILE_CGA_N,
        knob_type.SPLIT_K_SLC,
    )

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.tile_m, self.tile_n, self.tile_k

    def why_not(self) -> str | None:
        every = tuple(dict.fromkeys(itertools.chain(*SM90_TILES.values())))
        if self.tile not in every:
            return f"tile {_x(self.tile)} is not one of {', '.join(map(_x, every))}"
        cluster = (self.cluster_m, self.cluster_n)
        if cluster not in SM90_CLUSTERS:
            return f"cluster {_x(cluster)} is not one of {', '.join(map(_x, SM90_CLUSTERS))}"
        if not 1 <= self.splits <= MAX_SPLITS:
            return f"{self.splits} splits of K, want 1..{MAX_SPLITS}"
        return None

    def why_not_for(self, element_bytes: int, products: int) -> str | None:
        """None where the kernel has the schedule for so many bytes of an element of A and B and so
        many matmuls of one A, else the reason.
        """
        tiles = SM90_TILES[element_bytes]
        if self.tile not in tiles:
            every = ", ".join(map(_x, tiles))
            return f"tile {_x(self.tile)} of {element_bytes}-byte elements is not one of {every}"
        columns = products * self.tile_n
        if element_bytes == 1:  # their sums are promoted
            columns += min(self.tile_n, SM90_PROMOTED_COLUMNS)
        if columns // 2 > SM90_MAX_ACCUMULATORS:
            return (
                f"tile {_x(self.tile)} of {products} matmuls takes {columns // 2} accumulators per "
                f"thread, want at most {SM90_MAX_ACCUMULATORS}"
            )
        stage_bytes = (self.tile_m + products * self.tile_n) * self.tile_k * element_bytes
        if stage_bytes > SM90_MAX_STAGE_BYTES:
            return (
                f"tile {_x(self.tile)} of {products} matmuls takes {stage_bytes} bytes of operands "
                f"at a time, want at most {SM90_MAX_STAGE_BYTES}"
            )
        if products > 1 and self.splits > 1:
            return f"{self.splits} splits of K of {products} matmuls, want 1"
        return None

    @classmethod
    def measured(cls, longest_k: int, element_bytes: int, products: int) -> Iterator[GemmConfig]:
        """Every tile and cluster with the splits of K that leave each block work to do."""
        for tile, cluster, splits in itertools.product(
            SM90_TILES[element_bytes], SM90_CLUSTERS, MEASURED_SPLITS
        ):
            config = cls(*tile, *cluster, splits)
            if splits > 1 and splits * 4 * config.tile_k > longest_k:
                continue
            if config.why_not_for(element_bytes, products) is None:
                yield config


class StreamSchedule(Schedule):
    """Of the kernels that stream B: rows and columns of a warp, the warps that share them along K,
    and the steps of K whose loads are in flight.

    Attributes:
        MENU: the values of each field.
    """

    __slots__ = ()
    KNOBS: ClassVar[tuple[knob_type, ...]] = (
        knob_type.TILE_ROWS,
        knob_type.TILE_COLS,
        knob_type.SPLIT_K_SLC,
        knob_type.STAGES,
    )
    MENU: ClassVar[tuple[tuple[int, ...], ...]]

    def why_not(self) -> str | None:
        for (knob, value), menu in zip(self.to_public().items(), self.MENU, strict=True):
            if value not in menu:
                return f"{knob.name} is {value}, want one of {', '.join(map(str, menu))}"
        return None

    @property
    def is_measured(self) -> bool:
        """Whether `tune` measures it; others can be asked for by knobs."""
        raise NotImplementedError

    @classmethod
    def measured(cls) -> list[Self]:
        every = (cls(*values) for values in itertools.product(*cls.MENU))
        return [each for each in every if each.is_measured]


@dataclass(frozen=True, slots=True)
class GemvConfig(StreamSchedule):
    """A schedule of ``gemm.sm90.gemv``."""

    rows: int
    columns: int
    k_warps: int
    unroll: int

    MENU: ClassVar[tuple[tuple[int, ...], ...]] = ((1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4))

    @property
    def is_measured(self) -> bool:
        return 2 <= self.columns * self.unroll <= 8  # loads of B in flight per lane


@dataclass(frozen=True, slots=True)
class SkinnyConfig(StreamSchedule):
    """A schedule of ``gemm.sm90.skinny``."""

    tile_rows: int
    tile_columns: int
    k_warps: int
    unroll: int

    MENU: ClassVar[tuple[tuple[int, ...], ...]] = (
        (8, 16, 32, 64), (16, 32), (1, 2, 4, 8), (1, 2, 4),
    )  # fmt: skip

    @property
    def is_measured(self) -> bool:
        # One warp alone per group of columns leaves most SMs without work at N of some thousands,
        # and more loads in flight than 20 leave too few registers.
        return self.k_warps > 1 and self.unroll * (self.tile_rows + self.tile_columns) // 8 <= 20


def _x(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))
