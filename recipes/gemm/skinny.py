"""``gemm.sm90.skinny``: up to 64 rows on Hopper, weights streamed once into the tensor cores.

The same plans as those of ``gemm.sm90.gemv``, with another kernel.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import lowering, tma
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.gemv import StreamCapability, lower_stream

TEMPLATE = "gemm.kernels.skinny:matmul"
K_MULTIPLE = 32  # what a warp takes in one step
MAX_ROWS = 64  # that a block takes at once; with more rows B is read again
MAX_LOADS = 20  # 16-byte loads in flight per lane


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """A schedule: rows and columns that a warp takes, the warps that share them along K, and the
    steps of K whose loads are in flight.
    """

    tile_rows: int
    tile_columns: int
    k_warps: int
    unroll: int

    def why_not(self) -> str | None:
        """None for a schedule that the kernel has, else the knob that is off, in a sentence."""
        for knob, menu, value in zip(KNOBS, MENU, _values(self), strict=True):
            if value not in menu:
                return f"{knob.name} is {value}, want one of {', '.join(map(str, menu))}"
        return None

    @property
    def loads(self) -> int:
        """16-byte loads in flight per lane."""
        return self.unroll * (self.tile_rows + self.tile_columns) // 8


_values = operator.attrgetter(*(field.name for field in fields(SkinnyConfig)))
# In the order of the fields.
KNOBS = (knob_type.TILE_ROWS, knob_type.TILE_COLS, knob_type.SPLIT_K_SLC, knob_type.STAGES)
MENU = ((8, 16, 32, MAX_ROWS), (16, 32), (1, 2, 4, 8), (1, 2, 4))


class GemmSm90Skinny(Engine):
    """One pass over B for up to 64 rows; ``mma.sync`` with fp32 accumulation."""

    name = "gemm.sm90.skinny"
    caps = (
        StreamCapability(
            kind="cuda",
            sm_lo=90,
            sm_hi=90,
            is_arch_specific=True,
            dtypes=("BFLOAT16", "HALF"),
            alignment_bytes=tma.ALIGN_BYTES,
            k_multiple=K_MULTIPLE,
        ),
    )

    def configs(self, facts: GemmFacts, target: Target) -> Iterable[SkinnyConfig]:
        if lowering.bounds(facts.m, facts.symbols)[0] > MAX_ROWS:
            return ()
        every = (SkinnyConfig(*values) for values in itertools.product(*MENU))
        # One warp alone per group of columns leaves most SMs without work at N of some thousands.
        return [each for each in every if each.loads <= MAX_LOADS and each.k_warps > 1]

    def knobs_to_public(self, knobs: SkinnyConfig) -> dict[knob_type, int]:
        return dict(zip(KNOBS, _values(knobs), strict=True))

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> SkinnyConfig:
        if knobs.keys() != set(KNOBS):
            got = ", ".join(sorted(knob.name for knob in knobs)) or "none"
            want = ", ".join(knob.name for knob in KNOBS)
            raise cudnnGraphNotSupportedError(f"engine {self.name}: got knobs {got}, want {want}")
        config = SkinnyConfig(*(knobs[knob] for knob in KNOBS))
        if reason := config.why_not():
            raise cudnnGraphNotSupportedError(f"engine {self.name}: {reason}")
        return config

    def lower(self, facts: GemmFacts, knobs: SkinnyConfig, target: Target) -> Lowering | Refusal:
        params = {
            "row_tiles": knobs.tile_rows // 8,
            "column_tiles": knobs.tile_columns // 16,
            "k_warps": knobs.k_warps,
            "unroll": knobs.unroll,
        }
        return lower_stream(facts, TEMPLATE, params, K_MULTIPLE, target)
