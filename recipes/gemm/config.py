"""``GemmConfig``: the schedule of ``gemm.sm90.persistent``, its domain, and its public knobs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from cudnn_aot.compiler.planning.knobs import knob_type

# What the kernel is written for (tile_m, tile_n, tile_k); two math warpgroups for 128 rows.
SM90_TILES = (
    (128, 256, 64),
    (128, 128, 64),
    (64, 256, 64),
    (64, 128, 64),
    (64, 64, 64),
    (64, 128, 128),
    (64, 64, 128),
)
SM90_CLUSTERS = ((1, 1), (2, 1), (1, 2))
MAX_SPLITS = 64
# Of K, as far as it is long enough: what is measured. Others between can be asked for by knobs.
MEASURED_SPLITS = (1, 2, 3, 4, 6, 8, 16)


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """A schedule of the kernel: tile and cluster in elements and blocks, and the number of K
    splits.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    splits: int

    def why_not(self) -> str | None:
        """None for a schedule that the kernel has, else the knob that is off, in a sentence."""
        tile = (self.tile_m, self.tile_n, self.tile_k)
        if tile not in SM90_TILES:
            return f"tile {_x(tile)} is not one of {', '.join(map(_x, SM90_TILES))}"
        cluster = (self.cluster_m, self.cluster_n)
        if cluster not in SM90_CLUSTERS:
            return f"cluster {_x(cluster)} is not one of {', '.join(map(_x, SM90_CLUSTERS))}"
        if not 1 <= self.splits <= MAX_SPLITS:
            return f"{self.splits} splits of K, want 1..{MAX_SPLITS}"
        return None

    @classmethod
    def measured(cls, longest_k: int) -> Iterator[GemmConfig]:
        """Every tile and cluster with the splits of K that leave each block work to do."""
        for (tile_m, tile_n, tile_k), (cluster_m, cluster_n) in itertools.product(
            SM90_TILES, SM90_CLUSTERS
        ):
            for splits in MEASURED_SPLITS:
                if splits == 1 or splits * 4 * tile_k <= longest_k:
                    yield cls(tile_m, tile_n, tile_k, cluster_m, cluster_n, splits)

    def to_public(self) -> dict[knob_type, int]:
        return dict(zip(KNOBS, _values(self), strict=True))

    @classmethod
    def from_public(cls, knobs: Mapping[knob_type, int]) -> GemmConfig:
        """The schedule that the knobs spell.

        Raises:
            ValueError: a knob is missing, unknown, or off the menu.
        """
        if missing := [knob.name for knob in KNOBS if knob not in knobs]:
            raise ValueError(f"knob {missing[0]} is missing")
        if unknown := [knob.name for knob in knobs if knob not in KNOBS]:
            raise ValueError(f"it has no knob {unknown[0]}")
        config = cls(*(knobs[knob] for knob in KNOBS))
        if reason := config.why_not():
            raise ValueError(reason)
        return config


_values = operator.attrgetter(*(field.name for field in fields(GemmConfig)))
# In the order of GemmConfig's fields.
KNOBS = (
    knob_type.TILE_M,
    knob_type.TILE_N,
    knob_type.TILEK,
    knob_type.TILE_CGA_M,
    knob_type.TILE_CGA_N,
    knob_type.SPLIT_K_SLC,
)


def _x(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))
