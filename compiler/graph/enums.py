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

    __hash__ = object.__hash__  # by identity, as members are compared; the default is slow

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


class reduction_mode(enum.Enum):  # noqa: N801
    """What a reduction folds with."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN = 3
    MAX = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9


class norm_forward_phase(enum.Enum):  # noqa: N801
    """Whether a normalisation also gives the statistics that its backward reads."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2


class reshape_mode(enum.Enum):  # noqa: N801
    """Whether a reshape keeps the memory as it is, or the logical order of the elements."""

    VIEW_ONLY = 1
    LOGICAL = 2


class convolution_mode(enum.Enum):  # noqa: N801
    """Whether the filter is flipped (convolution) or not (cross-correlation)."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2


class moe_grouped_matmul_mode(enum.Enum):  # noqa: N801
    """How the tokens of the experts lie, and where their results go."""

    NONE = 1
    GATHER = 2
    SCATTER = 3
    COMBINE = 4


class diagonal_alignment(enum.Enum):  # noqa: N801
    """Where the diagonal of an attention mask starts."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1


class attention_implementation(enum.Enum):  # noqa: N801
    """How the cuDNN backend builds an attention node."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2


class cuda_graph_retention(enum.Enum):  # noqa: N801
    """Whether a CUDA graph keeps the plan that it was filled from."""

    PER_GRAPH = 0
    NONE = 1


class behavior_note(enum.Enum):  # noqa: N801
    """What running a plan entails."""

    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5


class numerical_note(enum.Enum):  # noqa: N801
    """What a plan does to the numbers."""

    TENSOR_CORE = 1
    DOWN_CONVERT_INPUTS = 2
    REDUCED_PRECISION_REDUCTION = 3
    FFT = 4
    NONDETERMINISTIC = 5
    WINOGRAD = 6
    WINOGRAD_TILE_4x4 = 7
    WINOGRAD_TILE_6x6 = 8
    WINOGRAD_TILE_13x13 = 9
    STRICT_NAN_PROP = 10
