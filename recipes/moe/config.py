"""The schedules of ``moe.sm90.persistent``: the matmul's tiles, without clusters or splits of K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.recipes.gemm.config import SM90_TILES, GemmConfig, Schedule, TileClass

# A warpgroup stores rows in pieces: fewer columns are no piece for each thread.
COLUMNS_STEP = 32


@dataclass(frozen=True, slots=True)
class MoeConfig(Schedule):
    """A tile: rows of a group, columns, and elements of K of a stage."""

    tile_m: int
    tile_n: int
    tile_k: int

    KNOBS: ClassVar[tuple[knob_type, ...]] = (
        knob_type.TILE_M,
        knob_type.TILE_N,
        knob_type.TILEK,
    )

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.tile_m, self.tile_n, self.tile_k

    @property
    def of_matmul(self) -> GemmConfig:
        """The schedule of the matmul with this tile."""
        return GemmConfig(*self.tile, 1, 1, 1)

    def why_not(self) -> str | None:
        if self.tile_n % COLUMNS_STEP:
            return f"TILE_N is {self.tile_n}, want a multiple of {COLUMNS_STEP}"
        return self.of_matmul.why_not()

    def why_not_for(self, element_bytes: int) -> str | None:
        """None where the kernel has the tile for elements of so many bytes, else the reason."""
        return self.of_matmul.why_not_for(TileClass(element_bytes, 1))

    @classmethod
    def measured(cls, element_bytes: int) -> Iterator[MoeConfig]:
        """Every tile that the kernel has for elements of so many bytes."""
        for tile in SM90_TILES[element_bytes]:
            config = cls(*tile)
            if (config.why_not() or config.why_not_for(element_bytes)) is None:
                yield config
