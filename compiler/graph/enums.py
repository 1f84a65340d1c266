"""The closed sets of the graph API, with the names and integers of the cuDNN frontend."""

from __future__ import annotations

import enum


class data_type(enum.Enum):  # noqa: N801  (the public name, spelled as programs spell it)
    """Element type of a tensor or of a node's arithmetic."""

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    INT8 = 4
    INT32 = 5
    INT8x4 = 6
    UINT8 = 7
    UINT8x4 = 8
    INT8x32 = 9
    BFLOAT16 = 10
    INT64 = 11
    BOOLEAN = 12
    FP8_E4M3 = 14
    FP8_E5M2 = 15
    FAST_FLOAT_FOR_FP8 = 16
    FP8_E8M0 = 17
    FP8_E5M3 = 18
    FP4_E2M1 = 19
    INT4 = 20

    def __int__(self) -> int:
        return int(self.value)


class scalar_type(enum.Enum):  # noqa: N801
    """What the value of a pass-by-value tensor is: a default, or part of the program."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1


class heur_mode(enum.Enum):  # noqa: N801
    """Which ranked list of plans to ask for."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class build_plan_policy(enum.Enum):  # noqa: N801
    """Build the first plan that works, or all of them."""

    HEURISTICS_CHOICE = 0
    ALL = 1


class tensor_reordering(enum.Enum):  # noqa: N801
    """Physical reordering of a tensor's elements."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3
