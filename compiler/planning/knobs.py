"""The public knob vocabulary: names and numbers of cuDNN's ``knob_type``.

Backend values ``0..32`` and the frontend band from 1000 keep the numbers that programs have
recorded; both are append-only. Knobs change speed, never numerics.
"""

from __future__ import annotations

import enum

FRONTEND_KNOB_TYPE_BASE = 1000


class knob_type(enum.Enum):  # noqa: N801  (the public name in cuDNN's API)
    # The cuDNN backend's.
    NOT_SET = 0
    SWIZZLE = 1
    TILE_SIZE = 2
    EDGE = 3
    MULTIPLY = 4
    SPLIT_K_BUF = 5
    TILEK = 6
    STAGES = 7
    REDUCTION_MODE = 8
    SPLIT_K_SLC = 9
    IDX_MODE = 10
    SPECFILT = 11
    KERNEL_CFG = 12
    WORKSPACE = 13
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    BLOCK_SIZE = 16
    OCCUPANCY = 17
    ARRAY_SIZE_PER_THREAD = 18
    SPLIT_COLS = 19
    TILE_ROWS = 20
    TILE_COLS = 21
    LOAD_SIZE = 22
    CTA_COUNT = 23
    STREAM_K = 24
    SPLIT_P_SLC = 25
    TILE_M = 26
    TILE_N = 27
    WARP_SPEC_CFG = 28
    SWAP_AB = 29
    INPUT_TMA_ENABLE = 30
    OUTPUT_TMA_ENABLE = 31
    TILE_CGA = 32
    # Of engines above the backend.
    SCHED_POLICY = 1000
    PACK_GQA = 1001
    SPLIT_KV = 1002
    PIPELINE_ARCH = 1003
    MMA_TILE_M = 1004
    MMA_TILE_N = 1005
    MMA_TILE_K = 1006
    CTA_GROUP = 1007
    WARPS_M = 1008
    WARPS_N = 1009


def is_frontend_knob_type(knob: knob_type) -> bool:
    """Whether the cuDNN backend has no such knob."""
    return knob.value >= FRONTEND_KNOB_TYPE_BASE


def plan_name(engine: str, knobs: tuple[tuple[str, int], ...]) -> str:
    """Stable printed form of a plan: ``engine[KNOB=value, …]``, knobs in name order."""
    inside = ", ".join(f"{name}={value}" for name, value in sorted(knobs))
    return f"{engine}[{inside}]" if inside else engine
