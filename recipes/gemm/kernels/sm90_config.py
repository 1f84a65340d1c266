"""What a kernel for Hopper's tensor cores is specialised on, and what it takes of an SM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cutlass import Float32

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.trace import dtypes
from cudnn_aot.recipes.trace.pointwise import instructions

SMEM_BYTES = 232448  # opt-in limit of a block on compute capability 9.0
BARRIER_BYTES = 384
SWIZZLE_BYTES = 1024  # that the operands of WGMMA are aligned to
WARP, WARPGROUP = 32, 128
GROUP_ROWS = 64  # of a tile, per math warpgroup: the M of a WGMMA
SCALE_COLUMNS_STEP = 32  # of a tile, that have one scale
SCALES_LAG = 1  # stages whose scales a warp copies ahead of those that it says are there
SCALE_ALIGN = 16  # bytes, of the scales of a stage
STORE_BYTES = 128  # of a row, per staging slot: the widest swizzle
SLOTS = 2
MIN_STAGES, MAX_STAGES = 4, 16
PRODUCER_REGISTERS, MATH_REGISTERS = 40, 232
GROUP_BARRIER = 1  # named barrier of math warpgroup g: GROUP_BARRIER + g
SPLIT_BARRIER = 3
TURN_BARRIER = 4  # that of math warpgroup g, before its turn to issue WGMMA: TURN_BARRIER + g

MAX_ACCUMULATORS = 192  # registers of a math thread: the rest of 232 are addresses and epilogue
PROMOTED_K_TILES = 2  # whose products of FP8 the tensor cores sum: no more than half of the stages
PIPED_BITS = 16  # of an element of a matrix that comes through the pipeline of the operands
PREFETCHED_K_TILES = 8  # of B, that are asked for ahead of the end of the kernel before
LAST_K_TILES = 4  # see `Config.last_k_tiles`
GROUP_WARPS = WARPGROUP // 32
A_WARP, SCALES_WARP, B_WARP = 0, 1, 2  # of the producer warpgroup: what each loads
BLOCK_COLUMNS = (64, 32, 16)  # of the tile, that the epilogue takes at a time
# Columns of a block, of all matrices that are read, for whose elements a thread has registers
# beside so many sums; beside more it has them for half as many.
MATRIX_COLUMNS, MATRIX_SUMS = 96, 128
# About how many instructions of code there are for an element: that is read, by kinds (of a matrix
# in both of the ways to read it), stored and folded. An object of 80 KB has room for so many of a
# block beside the rest of the kernel.
READ_CODE = {"full": 23, "row": 14, "col": 6, "scalar": 6, "value": 6, "piped": 5}
STORED_CODE, FOLDED_CODE = 14, 11
BLOCK_INSTRUCTIONS = 2200
# Chains of one product that read and store at most so many tensors: with more there is not enough
# room, in registers and in the object, for the code of more than one block.
UNROLLED_TENSORS = 2
# Such a chain is unrolled over so many of a thread's accumulators, as long as that is not more
# instructions than these.
UNROLLED_ELEMENTS, UNROLLED_INSTRUCTIONS = 64, 1800
STORE_INSTRUCTIONS = 3  # about, of an element that is loaded and stored
STREAM_COLUMNS = 128  # of a tile with stream-K
COLUMNS_STEP = 16  # of what a block finishes of a tile: of one stmatrix

# By the bits of an element of A and B. A row of 128 bytes along K is the widest swizzle. WGMMA has
# every width of them for every type: of INT8 those of 24, 32 and multiples of 16.
COLUMNS = {
    128: (256, 224, 192, 160, 128, 96, 64, 32),
    64: (256, 224, 192, 160, 128, 96, 64, 48, 32),
}
TILES = {
    bits: tuple((m, n, 1024 // bits) for m, columns in COLUMNS.items() for n in columns)
    for bits in (16, 8)
}
# By the type of A, those of B.
B_DTYPES = {
    "BFLOAT16": ("BFLOAT16",),
    "HALF": ("HALF",),
    "FP8_E4M3": ("FP8_E4M3", "FP8_E5M2"),
    "FP8_E5M2": ("FP8_E4M3", "FP8_E5M2"),
    "INT8": ("INT8",),
}
CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4))
# Rows of the loads of A: of a whole tile, or where it may not be full of 64 rows and, of what is
# left, of 16.
A_PARTS = (64, 16)
A_BOXES = ((64,), (128,), A_PARTS)


@dataclass(frozen=True)
class Config:
    """One kernel: its parameters, and the resources that follow from them."""

    a_dtype: type
    b_dtype: type
    products: int
    scales: operands.Scales | None
    a_major: str
    b_major: str
    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    a_boxes: tuple[int, ...]
    few_rows: bool
    stream_k: bool
    pingpong: bool
    store: str
    runs: int
    epilogue: Mapping[str, Any]

    @staticmethod
    def parse(params: Mapping[str, Any]) -> Config:
        """Parameters of the template; ValueError names the first that is off the menu."""
        a_dtype = operands.named_dtype(_chosen(params, "a_dtype", tuple(B_DTYPES)))
        is_byte = a_dtype.width == 8
        config = Config(
            a_dtype=a_dtype,
            b_dtype=operands.named_dtype(_chosen(params, "b_dtype", B_DTYPES[params["a_dtype"]])),
            products=_chosen(params, "products", (1, 2)),
            scales=operands.Scales.parse(params),
            # WGMMA reads 8-bit matrices along K alone.
            a_major=_chosen(params, "a_major", ("k",) if is_byte else ("k", "m")),
            b_major=_chosen(params, "b_major", ("k",) if is_byte else ("k", "n")),
            tile=_chosen(params, "tile", TILES[a_dtype.width]),
            cluster=_chosen(params, "cluster", CLUSTERS),
            a_boxes=_chosen(params, "a_boxes", A_BOXES),
            few_rows=_chosen(params, "few_rows", (False, True)),
            stream_k=_chosen(
                params, "stream_k", (False, True) if params["products"] == 1 else (False,)
            ),
            pingpong=_chosen(params, "pingpong", (False, True)),
            store=_chosen(params, "store", ("tma", "direct")),
            runs=batching.runs(params),
            epilogue=params["epilogue"],
        )
        if reason := config.why_not():
            raise ValueError(reason)
        return config

    def why_not(self) -> str | None:
        """None where the parameters fit each other, else which do not."""
        if self.accumulators > MAX_ACCUMULATORS:
            count = self.accumulators
            return (
                f"tile: got {self.tile} with {count} accumulators per thread, "
                f"want at most {MAX_ACCUMULATORS}"
            )
        if self.stages < MIN_STAGES:
            return (
                f"tile: got {self.tile}, of which {self.stages} stages fit, "
                f"want at least {MIN_STAGES}"
            )
        if self.scales is not None:
            if not self.promotes or self.scales.depth % self.tile[2]:
                depth = self.scales.depth
                return f"scales: got blocks of {depth} along K, want FP8 in whole tiles of K"
            if self.scale_columns % SCALE_COLUMNS_STEP:
                rows, step = self.scales.rows[1:], SCALE_COLUMNS_STEP
                return f"scales: got blocks of {rows} columns, want multiples of {step}"
        if self.columns % COLUMNS_STEP:
            return (
                f"tile: got {self.tile}, of which a block of {self.cluster[2]} finishes "
                f"{self.columns} columns, want a multiple of {COLUMNS_STEP}"
            )
        in_cluster = self.cluster[2] > 1
        if self.products > 1 and (self.stream_k or in_cluster):
            return f"products: got {self.products} with K split, want 1"
        if self.stream_k and self.tile[1] > STREAM_COLUMNS:
            return f"stream_k: got True for tile {self.tile}, want at most {STREAM_COLUMNS} columns"
        if self.stream_k and in_cluster:
            return f"stream_k: got True with cluster {self.cluster}, want one way to split K"
        if self.pingpong and (self.promotes or self.stream_k or in_cluster):
            return "pingpong: got True with FP8 or K split, want False"
        if reason := self._why_not_piped():
            return reason
        may_be_part = self.a_major == "k" and self.cluster[1] == 1
        if self.few_rows and self.stream_k:
            return "few_rows: got True with stream_k, which waits for a fill, want False"
        if self.a_boxes != (self.tile[0],) and not (self.a_boxes == A_PARTS and may_be_part):
            other = f" or {A_PARTS}" if may_be_part else ""
            return f"a_boxes: got {self.a_boxes} for tile {self.tile}, want its rows{other}"
        return None

    def _why_not_piped(self) -> str | None:
        if self.piped is None:
            return None
        kinds = [entry["kind"] for entry in self.epilogue["inputs"]]
        if kinds.count("piped") > 1:
            return f"epilogue: got {kinds.count('piped')} inputs that are piped, want at most one"
        if self.piped_dtype.width != PIPED_BITS:
            return f"epilogue: got a piped input of {self.piped_dtype}, want {PIPED_BITS} bits"
        if self.pingpong or self.stream_k or self.cluster[2] > 1 or self.scales is not None:
            return "epilogue: got a piped input with ping-pong, K split or scales, want none"
        return None

    @cached_property
    def piped(self) -> int | None:
        """Position of the epilogue's input that comes through the pipeline of the operands."""
        kinds = [entry["kind"] for entry in self.epilogue["inputs"]]
        return kinds.index("piped") if "piped" in kinds else None

    @property
    def piped_dtype(self) -> type:
        assert self.piped is not None
        return operands.dtype_of(self.epilogue["inputs"][self.piped])

    @property
    def piped_columns(self) -> int:
        """Of the tile, in a part of it that has the bytes of a stage of A."""
        return STORE_BYTES * 8 // PIPED_BITS

    @property
    def piped_parts(self) -> int:
        """Of a tile of the piped input."""
        return -(-self.tile[1] // self.piped_columns)

    @property
    def stage_parts(self) -> int:
        """Parts that a stage has room for: one where A is, others where the first B is."""
        return 1 + self.tile[1] // self.tile[0]

    @property
    def piped_stages(self) -> int:
        """Of a tile, behind those of K."""
        return 0 if self.piped is None else -(-self.piped_parts // self.stage_parts)

    def piped_at(self, stage: Any, part: Any) -> tuple[Any, Any]:
        """Where a part of a stage begins: bytes from the first stage of A, if it is the part 0, and
        from the first one of the first B.
        """
        a_bytes, b_bytes = (rows * STORE_BYTES for rows in self.tile[:2])
        return stage * a_bytes, stage * b_bytes + (part - 1) * a_bytes

    @property
    def acc_dtype(self) -> type:
        """Of all sums of products: those of the tensor cores, of parts of K, and what the epilogue
        gets.
        """
        return dtypes.accumulator(self.a_dtype)

    @property
    def promotes(self) -> bool:
        """Whether sums of the tensor cores are added up by the threads: those of FP8, which are
        not exact, as those of INT8 are.
        """
        return self.a_dtype.width == 8 and self.acc_dtype is Float32

    @property
    def takes_turns(self) -> bool:
        """Whether the math warpgroups of a tile issue what they promote in turns: not with scales,
        where a turn is one k tile, and turns are slower (bench/NOTES.md).
        """
        return self.promotes and self.scales is None and self.tile_groups == 2

    @property
    def last_k_tiles(self) -> int:
        """At the end of a tile, that one math warpgroup issues when the other has issued all of
        its own and goes on to finish; 0 where both end together. The stages of so many and of the
        one before are full meanwhile.
        """
        are_two = self.tile_groups == 2 and not (self.promotes or self.stream_k)
        # Of few rows, each k tile is multiplied when it comes.
        return min(LAST_K_TILES, self.stages - 2) if are_two and not self.few_rows else 0

    def are_apart(self, k_tiles: Any) -> Any:
        """Whether the warpgroups end a tile of so many k tiles one after the other. Of fewer than
        there are stages, the first could be a tile ahead and pass two turns for one.
        """
        return (k_tiles >= self.stages) & (self.last_k_tiles > 0)

    @property
    def promoted_k_tiles(self) -> int:
        """Whose products the tensor cores sum."""
        return PROMOTED_K_TILES if self.scales is None else 1

    @property
    def mma_columns(self) -> int:
        """Columns of a WGMMA: the tile's, or half of them where sums to promote would not fit."""
        columns = self.tile[1]
        fits = (self.products + 1) * columns * GROUP_ROWS // WARPGROUP <= MAX_ACCUMULATORS
        return columns if fits or not self.promotes else columns // 2

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums: those of the tile of each product, and those of
        the WGMMA whose sums are promoted.
        """
        columns = self.products * self.tile[1] + (self.mma_columns if self.promotes else 0)
        return self.bands * columns * GROUP_ROWS // WARPGROUP

    @property
    def math_groups(self) -> int:
        return 2 if self.pingpong else self.tile[0] // GROUP_ROWS

    @property
    def tile_groups(self) -> int:
        """Math warpgroups that share a tile."""
        return 1 if self.pingpong else self.math_groups

    @property
    def bands(self) -> int:
        """Of 64 rows of a tile, that a math warpgroup has."""
        return self.tile[0] // GROUP_ROWS // self.tile_groups

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.math_groups)

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def columns(self) -> int:
        """Of the tile, that a CTA finishes: those that split K share them out."""
        return self.tile[1] // self.cluster[2]

    @cached_property
    def folded(self) -> tuple[int, ...]:
        """Positions of the outputs that are reduced."""
        return tuple(o for o, entry in enumerate(self.epilogue["outputs"]) if "reduce" in entry)

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """Positions of the outputs that have a value at every place."""
        every = range(len(self.epilogue["outputs"]))
        return tuple(o for o in every if o not in self.folded)

    @cached_property
    def out_dtypes(self) -> tuple[type, ...]:
        """Of the outputs that are stored."""
        return tuple(operands.dtype_of(self.epilogue["outputs"][o]) for o in self.stored)

    @property
    def ends_full(self) -> bool:
        """Whether a thread begins the end of a tile with as many sums as there can be."""
        return self._last_sums == MAX_ACCUMULATORS

    @property
    def _last_sums(self) -> int:
        """Of a thread, when it begins the end of a tile."""
        return self.products * self.bands * self.columns * GROUP_ROWS // WARPGROUP

    @property
    def is_tight(self) -> bool:
        """Whether it has others beside them: elements that are read, or what is folded."""
        every = ("full", "piped", "row", "col")
        reads = any(entry["kind"] in every for entry in self.epilogue["inputs"])
        return self.ends_full and (reads or len(self.folded) > 0)

    @property
    def block_columns(self) -> int:
        """Columns of the tile that the epilogue takes at a time."""
        staged = (STORE_BYTES * 8 // dtype.width for dtype in self.out_dtypes)
        most = next((n for n in BLOCK_COLUMNS if self._has_room(n)), BLOCK_COLUMNS[-1])
        return math.gcd(min((most, *staged)), self.columns)

    def _has_room(self, columns: int) -> bool:
        """Whether registers and object have room for the chain on so many columns at a time."""
        kinds = [entry["kind"] for entry in self.epilogue["inputs"]]
        if self.is_tight:
            return False
        matrices = kinds.count("full") * (1 if self._last_sums <= MATRIX_SUMS else 2)
        code = sum(READ_CODE[kind] for kind in kinds) + instructions(self.epilogue["nodes"])
        code += STORED_CODE * len(self.stored) + FOLDED_CODE * len(self.folded)
        elements = columns * GROUP_ROWS // WARPGROUP
        return matrices * columns <= MATRIX_COLUMNS and elements * code <= BLOCK_INSTRUCTIONS

    @property
    def stage_bytes(self) -> int:
        rows = self.tile[0] + self.products * self.tile[1]
        return rows * self.tile[2] * self.a_dtype.width // 8

    @property
    def scale_bytes(self) -> int:
        """Of a stage: the scales of the tile's rows, and of the columns of each product."""
        if self.scales is None:
            return 0
        count = self.tile[0] + self.products * self.scale_groups
        return -(-4 * count // SCALE_ALIGN) * SCALE_ALIGN

    @property
    def scale_columns(self) -> int:
        """Neighbouring columns of a tile that have one scale, in each product."""
        assert self.scales is not None
        return math.gcd(self.tile[1], *(rows for rows in self.scales.rows[1:] if rows))

    @property
    def scale_groups(self) -> int:
        """Of columns of a tile, in each product."""
        return self.tile[1] // self.scale_columns

    @property
    def exchange_bytes(self) -> int:
        """Of the partial sums that a CTA gets from those it splits K with."""
        return (self.cluster[2] - 1) * self.tile[0] * self.columns * 4

    @property
    def staging_bytes(self) -> int:
        return self.math_groups * SLOTS * GROUP_ROWS * STORE_BYTES

    @property
    def fold_bytes(self) -> int:
        """Of what the warps leave of a block of columns that is reduced along M."""
        axes = [self.epilogue["outputs"][o]["reduce"]["axes"] for o in self.folded]
        needed = any("m" in each for each in axes)
        return self.math_groups * GROUP_WARPS * self.block_columns * 4 if needed else 0

    @cached_property
    def stages(self) -> int:
        """As many as fit."""
        every = range(MAX_STAGES, 0, -1)
        return next((n for n in every if self.bytes_with(n) <= SMEM_BYTES), 0)

    @property
    def smem_bytes(self) -> int:
        return self.bytes_with(self.stages)

    def bytes_with(self, stages: int) -> int:
        """Of shared memory, with so many stages of operands."""
        head = BARRIER_BYTES + stages * self.scale_bytes
        head = -(-head // SWIZZLE_BYTES) * SWIZZLE_BYTES
        behind = self.staging_bytes + self.exchange_bytes + self.fold_bytes
        return head + stages * self.stage_bytes + behind


def _chosen(params: Mapping[str, Any], name: str, menu: tuple[Any, ...]) -> Any:
    value = params[name]
    value = tuple(value) if isinstance(value, list) else value
    if value not in menu:
        raise ValueError(f"{name}: got {value!r}, want one of {', '.join(map(str, menu))}")
    return value


def block_pattern(columns: int) -> tuple[tuple[int, int], ...]:
    """(row index, column index) of a thread's accumulators over ``columns`` columns, in their
    order.

    A WGMMA accumulator gives a thread two neighbouring columns of two rows that lie 8 apart, in
    every 8 columns.
    """
    return tuple(
        (row, 2 * eight + column)
        for eight in range(columns // 8)
        for row in (0, 1)
        for column in (0, 1)
    )
