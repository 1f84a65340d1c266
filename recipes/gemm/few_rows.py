"""Schedules for few rows, ranked by what they took on an H200.

The time of few rows is that of reading B: linear in K, and of N only the number of tiles or blocks
matters. The table has it at numbers of them around whole waves; ``bench/few_rows.py`` makes it.
More of them than the most take longer in proportion.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudnn_aot.recipes.gemm.config import (
    MEASURED_SPLIT_TILES,
    GemmConfig,
    GemvConfig,
    Schedule,
)
from cudnn_aot.recipes.gemm.model import Extents

# Of which matmuls a table is asked. It was measured at a K of 2048 and of 8192; with fewer
# columns, or a longer K, stream-K may be faster, which is not in it.
LEAST_COLUMNS, K_RANGE, SM_COUNT = 1024, (1024, 16384), 132
# Rows of A that were measured: a load of 16, and whole tiles; those between count as the next more.
# And the most that the GEMV was measured for.
MEASURED_ROWS, MOST_STREAMED = (16, 64, 128, 256), 2
MOST_ROWS = MEASURED_ROWS[-1]
LANE_ELEMENTS, WARP, BLOCK_WARPS = 8, 32, 8  # of the GEMV


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a schedule.

    Attributes:
        rows: of A: one of `MEASURED_ROWS`; for the GEMV those that it multiplies at once.
        points: of a number of tiles (times the blocks that split K) or blocks, the microseconds
            that do not depend on K, and those of 1024 elements of K.
    """

    rows: int
    config: GemmConfig | GemvConfig
    points: tuple[tuple[int, float, float], ...]

    def serves(self, m: int, k: int) -> bool:
        """Whether it was measured for such rows, and K is enough for all of a block."""
        config = self.config
        if isinstance(config, GemvConfig):
            pass_k = WARP * LANE_ELEMENTS * config.k_warps * config.unroll
            return m == self.rows and k >= pass_k
        return self.rows == _measured(m) and (
            config.splits == 1 or k >= config.splits * MEASURED_SPLIT_TILES * config.tile_k
        )

    def microseconds(self, n: int, k: int) -> float:
        """Between numbers of items that were measured on a line, but for a step where a wave of
        the SMs is full.
        """
        config = self.config
        if isinstance(config, GemvConfig):
            items = -(-n // (BLOCK_WARPS // config.k_warps * config.columns))
        else:
            items = max(self.rows // config.tile_m, 1) * -(-n // config.tile_n) * config.splits
        count = len(self.points)
        at = next((i for i in range(count) if self.points[i][0] >= items), count)
        if at == 0 or at == count:
            most, fixed, slope = self.points[min(at, count - 1)]
            return (fixed + slope * k / 1024) * max(items / most, 1.0)
        (low, *before), (high, *behind) = self.points[at - 1], self.points[at]
        first, last = (fixed + slope * k / 1024 for fixed, slope in (before, behind))
        if low % SM_COUNT == 0:
            return last
        return first + (last - first) * (items - low) / (high - low)


def is_measured(extents: Extents, sm_count: int) -> bool:
    """Whether tables are of such a matmul."""
    return (
        extents["batch"] == 1
        and extents["m"] <= MOST_ROWS
        and extents["n"] >= LEAST_COLUMNS
        and K_RANGE[0] <= extents["k"] <= K_RANGE[1]
        and sm_count == SM_COUNT
    )


class Table:
    """What was measured, of every schedule."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        # Every range of a plan asks for the same.
        self._times = functools.lru_cache(maxsize=256)(self._times_of)

    def _times_of(self, m: int, n: int, k: int) -> dict[Schedule, float]:
        return {row.config: row.microseconds(n, k) for row in self.rows if row.serves(m, k)}

    def times(self, m: int, n: int, k: int) -> Mapping[Schedule, float]:
        """Microseconds, by the schedules that were measured for as many rows."""
        return self._times(max(m, 1) if m <= MOST_STREAMED else _measured(m), n, k)

    def rank(self, cases: Sequence[Extents], kinds: tuple[type, ...]) -> list[Schedule]:
        """The schedules of some kinds that were measured for all of the cases, best first; for
        several cases, by the mean of how much slower than the best it is.
        """
        timed = [self.times(case["m"], case["n"], case["k"]) for case in cases]
        every = [
            config
            for config in timed[0]
            if isinstance(config, kinds) and all(config in times for times in timed)
        ]
        fastest = [min((times[config] for config in every), default=0.0) for times in timed]

        def lag(config: Schedule) -> tuple[float, float]:
            mine = [times[config] for times in timed]
            # Times that differ in their last bit may be as far behind, once divided.
            return sum(us / best for us, best in zip(mine, fastest, strict=True)), sum(mine)

        return sorted(every, key=lag)


def _measured(m: int) -> int:
    return next(rows for rows in MEASURED_ROWS if m <= rows)
