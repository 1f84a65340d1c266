"""Persistent warp-specialised matmul for Hopper: TMA in, WGMMA, a traced pointwise chain, stores.

Arguments: ``launch, sm_count, [splits], a (M, K, La), b (N, K, Lb)..., [partials, counters],
scales..., aux..., outs...``. BFLOAT16, HALF, or FP8 of either kind in, fp32 accumulation; M, N, K
and the batch are run-time values, one kernel serves every shape of a layout class. K >= 1. With
``products`` = 2 there are two B, alike, and the chain gets the accumulators of both; no split-K.

Roles of a CTA (threads):

* warpgroup 0: its warp 0 issues TMA loads of A and B tiles; the other three warps idle.
* warpgroups 1..G: math. Each owns 64 rows of the tile: G = 2 for tiles of 128 rows, 1 for 64.

Pipelines:

* operands: producer warp -> math warpgroups, ``stages`` deep. Full: 1 arrival and the bytes of all
  tiles. Empty: one arrival per math warp of every CTA that receives this CTA's multicast.
  With a cluster (2, 1, 1) two CTAs share B and each loads half of it for both; (1, 2, 1) shares A.
  ``a_box`` rows of A are a load: all of the tile's, or 16, where those outside the matrix, which
  take longer than others, are not loaded. Rows of the tile that are not there hold anything: what
  is computed of them is never stored.
* exchange: with a cluster (1, 1, W) its CTAs split K. Each writes its sums of the columns that
  another finishes into that one's shared memory; one barrier per CTA counts the bytes.
* stores: each math warpgroup has ``SLOTS`` staging slots of 64 rows x 128 bytes of its own and one
  named barrier; its warp 0 issues the TMA stores. No barrier spans the math warpgroups.

FP8: WGMMA reads it along K alone, and keeps about 14 bits of the sums. It sums a k tile (128) from
zero, of as many columns of one product at a time as registers allow, and the warpgroup adds that to
its fp32 accumulators; while it waits and adds, the tensor cores work for the other warpgroup. With
``scales`` the sums are scaled before they are added: the tile's columns lie in one block of columns
of B, a thread has two rows of A.

Registers: 384 threads start with 168 each; the producer drops to 40 and math rises to 232
(40 + 2 x 232 = 504 <= 512 per lane of the file). The accumulators are products x tile_n / 2 of
them, and for FP8 there are tile_n / 2 more for the sums to promote, or half as many: within 192
together. 256-thread CTAs (one math warpgroup) may use 255 and need no exchange.

Shared memory: barriers 1 KB, stages x (tile_m + products x tile_n) rows of 128 bytes, G x SLOTS x
8 KB of staging, (W - 1) / W of the tile in fp32 to exchange, within 232448 bytes: 4 stages at
128 x 256, 6 at 128 x 128, 8 at 64 x 128.

Epilogue: a block of output columns at a time, 64, or 32 with a FLOAT output: up to 128 bytes of a
row. The chain runs on accumulator registers and the results go to a staging slot (stmatrix for
16-bit outputs). ``store`` "tma": TMA stores the slot and clips at the edges, except where a row of
the result is no multiple of 16 bytes, whose last block is stored by elements; "direct": all blocks
are, to any strides.

Split-K in a cluster: a grid of one cluster per tile, so that nothing is exchanged twice. CTA r
finishes the r-th of W shares of the columns; sums are added in a fixed order. K >= W k tiles.

Split-K over a workspace (``split_k``): an item of work is (tile, split). With splits > 1 every CTA
writes its fp32 tile to ``partials`` and counts itself in ``counters[tile]``; the last to arrive
adds the partial sums in split order, so the result does not depend on who is last, and runs the
epilogue. Counters must be zero before the launch. Extents, with tiles_m =
round_up(ceil_div(M, tile_m), cluster_m) and tiles_n likewise:

    partials  FLOAT  tiles_m * tiles_n * L * splits * tile_m * tile_n   (16-byte aligned)
    counters  INT32  tiles_m * tiles_n * L

``splits`` is clamped to the number of k tiles, ceil_div(K, tile_k); splits = 1 touches neither.

Programmatic dependent launch (not with ``split_k``, which follows a fill): a kernel that comes
behind this one sets its barriers up while the last tiles are finished, and waits for its end before
it touches memory.

Preconditions, checked by the compiled wrapper: A, B and TMA-stored outputs have 16-byte aligned
bases, unit stride on their major axis and multiples of 16 bytes on the other two.

Floor, H200: 989 TFLOP/s dense bf16 at boost, about 790 sustained in the power limit on random data;
8192^3 takes 1.39 ms at that; FP8 does twice as many. Per 128 x 256 x 64 step a CTA reads 48 KB from
L2: 132 CTAs at 7.5 TFLOP/s each ask for 11 TB/s, halved for B by a cluster of two. A step of FP8 is
as many bytes and, 128 deep, as many cycles.

The structure follows the public CUTLASS Hopper GEMMs (NVIDIA/cutlass, dense_gemm_persistent.py) and
quack's gemm_sm90.py (Dao-AILab/quack); the code is our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.gemm.kernels.raster import Raster, Tile
from cudnn_aot.recipes.trace.pointwise import DEVICE
from cudnn_aot.recipes.trace.template import KernelTemplate

SMEM_BYTES = 232448  # opt-in limit of a block on compute capability 9.0
BARRIER_BYTES = 1024
WARPGROUP = 128
GROUP_ROWS = 64  # of a tile, per math warpgroup: the M of a WGMMA
STORE_BYTES = 128  # of a row, per staging slot: the widest swizzle
SLOTS = 2
MIN_STAGES, MAX_STAGES = 4, 12
PRODUCER_REGISTERS, MATH_REGISTERS = 40, 232
GROUP_BARRIER = 1  # named barrier of math warpgroup g: GROUP_BARRIER + g
SPLIT_BARRIER = 3

MAX_ACCUMULATORS = 192  # registers of a math thread: the rest of 232 are addresses and epilogue
PROMOTED_K_TILES = 1  # whose products of FP8 the tensor cores sum: no more than half of the stages
BLOCK_COLUMNS = 64  # of the tile, that the epilogue takes at a time at most
COLUMNS_STEP = 16  # of what a block finishes of a tile: of one stmatrix

# By the bits of an element of A and B. A row of 128 bytes along K is the widest swizzle.
TILES = {
    bits: tuple((m, n, 1024 // bits) for m in (128, 64) for n in range(256, 0, -32))
    for bits in (16, 8)
}
CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4))
A_BOXES = (16, 64, 128)


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
    a_box: int
    split_k: bool
    store: str
    epilogue: Mapping[str, Any]

    @staticmethod
    def parse(params: Mapping[str, Any]) -> Config:
        """Parameters of the template; ValueError names the first that is off the menu."""
        dtypes = ("BFLOAT16", "HALF", "FP8_E4M3", "FP8_E5M2")
        a_dtype = operands.named_dtype(_chosen(params, "a_dtype", dtypes))
        is_fp8 = a_dtype.width == 8
        same_unit = dtypes[2:] if is_fp8 else (params["a_dtype"],)
        config = Config(
            a_dtype=a_dtype,
            b_dtype=operands.named_dtype(_chosen(params, "b_dtype", same_unit)),
            products=_chosen(params, "products", (1, 2)),
            scales=operands.Scales.parse(params),
            # WGMMA reads 8-bit matrices along K alone.
            a_major=_chosen(params, "a_major", ("k",) if is_fp8 else ("k", "m")),
            b_major=_chosen(params, "b_major", ("k",) if is_fp8 else ("k", "n")),
            tile=_chosen(params, "tile", TILES[a_dtype.width]),
            cluster=_chosen(params, "cluster", CLUSTERS),
            a_box=_chosen(params, "a_box", A_BOXES),
            split_k=_chosen(
                params, "split_k", (False, True) if params["products"] == 1 else (False,)
            ),
            store=_chosen(params, "store", ("tma", "direct")),
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
            if self.mma_columns < self.tile[1]:
                return f"tile: got {self.tile} and scales, which take too many registers"
            if any(rows and rows % self.tile[1] for rows in self.scales.rows[1:]):
                rows = self.scales.rows[1:]
                return f"scales: got blocks of {rows} columns, want multiples of {self.tile[1]}"
        if self.columns % COLUMNS_STEP:
            return (
                f"tile: got {self.tile}, of which a block of {self.cluster[2]} finishes "
                f"{self.columns} columns, want a multiple of {COLUMNS_STEP}"
            )
        in_cluster = self.cluster[2] > 1
        if self.products > 1 and (self.split_k or in_cluster):
            return f"products: got {self.products} with K split, want 1"
        if self.split_k and in_cluster:
            return f"split_k: got True with cluster {self.cluster}, want one way to split K"
        may_be_part = self.a_major == "k" and self.cluster[1] == 1
        if self.a_box != self.tile[0] and not (self.a_box == A_BOXES[0] and may_be_part):
            return f"a_box: got {self.a_box} for tile {self.tile}, want the tile's rows"
        return None

    @property
    def promotes(self) -> bool:
        """Whether sums of the tensor cores are added up by the threads."""
        return self.a_dtype.width == 8

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
        return columns * GROUP_ROWS // WARPGROUP

    @property
    def math_groups(self) -> int:
        return self.tile[0] // GROUP_ROWS

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
    def out_dtypes(self) -> tuple[type, ...]:
        return tuple(operands.dtype_of(entry) for entry in self.epilogue["outputs"])

    @property
    def block_columns(self) -> int:
        """Columns of the tile that the epilogue takes at a time."""
        widest = max(dtype.width for dtype in self.out_dtypes)
        return math.gcd(min(STORE_BYTES * 8 // widest, BLOCK_COLUMNS), self.columns)

    @property
    def stage_bytes(self) -> int:
        rows = self.tile[0] + self.products * self.tile[1]
        return rows * self.tile[2] * self.a_dtype.width // 8

    @property
    def exchange_bytes(self) -> int:
        """Of the partial sums that a CTA gets from those it splits K with."""
        return (self.cluster[2] - 1) * self.tile[0] * self.columns * 4

    @property
    def staging_bytes(self) -> int:
        return self.math_groups * SLOTS * GROUP_ROWS * STORE_BYTES

    @property
    def stages(self) -> int:
        room = SMEM_BYTES - BARRIER_BYTES - self.staging_bytes - self.exchange_bytes
        return min(room // self.stage_bytes, MAX_STAGES)

    @property
    def smem_bytes(self) -> int:
        fixed = BARRIER_BYTES + self.staging_bytes + self.exchange_bytes
        return fixed + self.stages * self.stage_bytes


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


@dataclass(frozen=True)
class View:
    """A math thread's place: its tile and warpgroup, its two rows, and the columns it finishes."""

    tile: Tile
    group: Int32
    lane: Int32  # in the warpgroup
    rows: tuple[Int32, Int32]
    block: Int32  # the first block of columns, of those of the result
    extents: tuple[Int32, Int32]


class Sm90Matmul:
    """The traced host and device functions of one configuration."""

    def __init__(self, config: Config):
        self.config = config
        self.num_scales = config.scales.count if config.scales else 0
        self.num_inputs = len(config.epilogue["inputs"])

    @cute.jit
    def plain(self, launch: Int32, sm_count: Int32, a: cute.Tensor, stream, *rest):
        bs, tail = rest[: self.config.products], rest[self.config.products :]
        if launch != 0:
            self.launch(sm_count, Int32(1), a, bs, None, None, stream, tail)

    @cute.jit
    def split(
        self,
        launch: Int32,
        sm_count: Int32,
        splits: Int32,
        a: cute.Tensor,
        b: cute.Tensor,
        partials: cute.Tensor,
        counters: cute.Tensor,
        stream,
        *rest,
    ):
        if launch != 0:
            k_tiles = cute.ceil_div(a.shape[1], self.config.tile[2])
            splits = cutlass.max(cutlass.min(splits, k_tiles), 1)
            self.launch(sm_count, splits, a, (b,), partials, counters, stream, rest)

    @cute.jit
    def launch(self, sm_count: Int32, splits: Int32, a, bs, partials, counters, stream, rest):
        config = self.config
        scales, rest = rest[: self.num_scales], rest[self.num_scales :]
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        tile_m, tile_n, tile_k = config.tile
        size_m, size_n, size_k = config.cluster
        a_layout, b_layout = self.operand_layouts()
        a_box = self.operand_layout(config.a_box, config.a_major, config.a_dtype)
        tma_a, a_tma = self.tma_load(a, a_box, (config.a_box, tile_k), size_n)
        loads = [self.tma_load(b, b_layout, (tile_n, tile_k), size_m) for b in bs]
        tma_bs, bs_tma = tuple(load[0] for load in loads), tuple(load[1] for load in loads)
        tma_outs = tma_targets = ()
        if cutlass.const_expr(config.store == "tma"):
            made = [
                cpasync.make_tiled_tma_atom(
                    cpasync.CopyBulkTensorTileS2GOp(),
                    out,
                    cute.select(self.staging_layout(out.element_type), mode=[0, 1]),
                    (GROUP_ROWS, config.block_columns),
                )
                for out in outs
            ]
            tma_outs = tuple(info[0] for info in made)
            tma_targets = tuple(info[1] for info in made)
        raster = Raster.of((tile_m, tile_n), (size_m, size_n), outs[0].shape, splits)
        clusters = items = raster.items
        if cutlass.const_expr(size_k == 1):
            clusters = cutlass.min(items, cutlass.max(sm_count // config.cluster_size, 1))
        if items > 0:
            self.kernel(
                tma_a,
                a_tma,
                tma_bs,
                bs_tma,
                tma_outs,
                tma_targets,
                outs,
                aux,
                scales,
                partials,
                counters,
                (raster.clusters_m, raster.clusters_n, raster.batches, raster.splits),
                (outs[0].shape[0], outs[0].shape[1]),
                clusters,
            ).launch(
                grid=[clusters * size_m, size_n, size_k],
                block=[config.threads, 1, 1],
                cluster=[size_m, size_n, size_k],
                min_blocks_per_mp=1,
                stream=stream,
                use_pdl=not config.split_k,
            )

    def tma_load(self, tensor: cute.Tensor, layout: Any, box: tuple[int, int], sharers: int) -> Any:
        """TMA atom and coordinate tensor of an operand; ``sharers`` CTAs load a slice each."""
        op = (
            cpasync.CopyBulkTensorTileG2SOp()
            if sharers == 1
            else cpasync.CopyBulkTensorTileG2SMulticastOp()
        )
        stage = cute.select(layout, mode=[0, 1])
        info = cpasync.make_tiled_tma_atom(op, tensor, stage, box, num_multicast=sharers)
        return info[0], info[1]

    def operand_layouts(self) -> tuple[Any, Any]:
        """Swizzled shared-memory layouts (rows, tile_k, stages) of A and B."""
        tile_m, tile_n, _ = self.config.tile
        a = self.operand_layout(tile_m, self.config.a_major, self.config.a_dtype)
        return a, self.operand_layout(tile_n, self.config.b_major, self.config.b_dtype)

    def operand_layout(self, rows: int, major: str, dtype: type) -> Any:
        """Swizzled shared-memory layout (rows, tile_k, stages)."""
        config = self.config
        k_major = major == "k"
        order = LayoutEnum.ROW_MAJOR if k_major else LayoutEnum.COL_MAJOR
        kind = sm90_utils.get_smem_layout_atom(order, dtype, config.tile[2] if k_major else rows)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        shape = (rows, config.tile[2], config.stages)
        return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if k_major else (1, 0, 2))

    def staging_layout(self, dtype: type) -> Any:
        """Shared-memory layout (64, block columns, slots) of one math warpgroup's staged stores."""
        columns = self.config.block_columns
        kind = sm90_utils.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, columns)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        return cute.tile_to_shape(atom, (GROUP_ROWS, columns, 1), order=(0, 1, 2))

    def tiled_mma(self, accumulate: bool) -> cute.TiledMma:
        config = self.config
        mma = sm90_utils.make_trivial_tiled_mma(
            config.a_dtype,
            config.b_dtype,
            OperandMajorMode.K if config.a_major == "k" else OperandMajorMode.MN,
            OperandMajorMode.K if config.b_major == "k" else OperandMajorMode.MN,
            Float32,
            (config.math_groups, 1, 1),
            (GROUP_ROWS, config.mma_columns),
        )
        mma.set(warpgroup.Field.ACCUMULATE, accumulate)
        return mma

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        a: cute.Tensor,
        tma_bs,
        bs,
        tma_outs,
        tma_targets,
        outs,
        aux,
        scales,
        partials,
        counters,
        counts,
        extents,
        clusters: Int32,
    ):
        config = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            for atom in tma_bs + tma_outs:
                cpasync.prefetch_descriptor(atom)

        smem = SmemAllocator()
        barriers = smem.allocate_array(Int64, 2 * config.stages)
        flag = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        arrived = smem.allocate_array(Int64, 1)
        a_layout, b_layout = self.operand_layouts()
        s_a = smem.allocate_tensor(config.a_dtype, a_layout.outer, 1024, a_layout.inner)
        s_bs = [
            smem.allocate_tensor(config.b_dtype, b_layout.outer, 1024, b_layout.inner)
            for _ in tma_bs
        ]
        staging = smem.allocate(config.staging_bytes, 1024)
        exchange = None
        if cutlass.const_expr(config.cluster[2] > 1):
            slots = cute.recast_ptr(smem.allocate(config.exchange_bytes, 16), dtype=Int32)
            exchange = (slots, arrived)
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_init(arrived, 1)

        cluster_layout = cute.make_layout((*config.cluster, 1))
        sharing = config.cluster[0] + config.cluster[1] - 1
        pipe = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=config.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, sharing * config.math_groups * (WARPGROUP // 32)
            ),
            tx_count=config.stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, *config.cluster[:2], 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=config.cluster, is_relaxed=True)

        block_x, block_y, _ = cute.arch.block_idx()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = cluster_layout.get_flat_coord(rank)[:3]
        raster = Raster((config.tile[0], config.tile[1]), config.cluster[:2], *counts)
        first = block_x // config.cluster[0]
        k_tiles = cute.ceil_div(a.shape[1], config.tile[2])

        pipeline.pipeline_init_wait(cluster_shape_mn=config.cluster)
        if cutlass.const_expr(config.cluster[2] > 1):
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, config.exchange_bytes)
        if cutlass.const_expr(not config.split_k):
            # Nothing of what the kernel before wrote is read, and nothing that it reads is written,
            # ahead of this. The next one may set itself up on what SMs are free.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

        if warp < WARPGROUP // 32:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                masks = self.multicast_masks(cluster_layout, (*place, 0))
                self.produce(
                    pipe,
                    (tma_a, a, s_a),
                    tuple(zip(tma_bs, bs, s_bs, strict=True)),
                    masks,
                    raster,
                    place,
                    first,
                    clusters,
                    k_tiles,
                )
        else:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_increase(MATH_REGISTERS)
            self.consume(
                pipe,
                s_a,
                s_bs,
                staging,
                flag,
                tma_outs,
                tma_targets,
                outs,
                aux,
                scales,
                (partials, counters),
                exchange,
                raster,
                place,
                first,
                clusters,
                k_tiles,
                extents,
            )

    def multicast_masks(self, cluster_layout: cute.Layout, coordinate: tuple) -> tuple[Any, Any]:
        """Which CTAs of the cluster receive this CTA's slices of A (same rows) and of B."""
        mask_a = mask_b = 0
        if self.config.cluster[1] > 1:
            mask_a = cute.make_layout_image_mask(cluster_layout, coordinate, mode=1)
        if self.config.cluster[0] > 1:
            mask_b = cute.make_layout_image_mask(cluster_layout, coordinate, mode=0)
        return mask_a, mask_b

    def split_range(
        self, tile: Tile, place: tuple[Int32, Int32, Int32], splits: Int32, k_tiles: Int32
    ) -> tuple[Int32, Int32]:
        """The k tiles of an item: all of them, or its even share."""
        split = tile.split
        if self.config.cluster[2] > 1:
            split, splits = place[2], Int32(self.config.cluster[2])
        elif not self.config.split_k:
            return Int32(0), k_tiles
        share, extra = k_tiles // splits, k_tiles % splits
        begin = split * share + cutlass.min(split, extra)
        end = begin + share + Int32(split < extra)
        return begin, end

    @cute.jit
    def produce(self, pipe, operand_a, operands_b, masks, raster, place, first, step, k_tiles):
        """Producer warp: fill the operand stages of every item of this CTA, in order."""
        tile_m, tile_n, tile_k = self.config.tile
        row_bytes = tile_k * self.config.a_dtype.width // 8
        tma_a, a, s_a = operand_a
        a_box = self.config.a_box
        boxes_of_a = cute.local_tile(s_a, (a_box, tile_k), (None, 0, None))
        to_a, from_a = cpasync.tma_partition(
            tma_a,
            place[1],
            cute.make_layout(self.config.cluster[1]),
            cute.group_modes(boxes_of_a, 0, 2),
            cute.group_modes(cute.local_tile(a, (a_box, tile_k), (None, None, None)), 0, 2),
        )
        parts_b = [
            cpasync.tma_partition(
                tma_b,
                place[0],
                cute.make_layout(self.config.cluster[0]),
                cute.group_modes(s_b, 0, 2),
                cute.group_modes(cute.local_tile(b, (tile_n, tile_k), (None, None, None)), 0, 2),
            )
            for tma_b, b, s_b in operands_b
        ]
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        for item in range(first, raster.items, step):
            tile = raster.locate(item, place)
            begin, end = self.split_range(tile, place, raster.splits, k_tiles)
            batch_a = cutlass.min(tile.batch, a.shape[2] - 1)
            tile_a = from_a[None, None, None, batch_a]
            tiles_b = [
                from_b[None, tile.n, None, cutlass.min(tile.batch, b.shape[2] - 1)]
                for (_, b, _), (_, from_b) in zip(operands_b, parts_b, strict=True)
            ]
            first_box = tile.m * (tile_m // a_box)
            # A box outside the matrix takes longer than one inside. Where none is loaded, rows keep
            # what they held: their results are never stored.
            boxes = Int32(1)
            if cutlass.const_expr(a_box < tile_m):
                rows = cutlass.min(a.shape[0] - tile.m * tile_m, tile_m)
                boxes = cutlass.max(cute.ceil_div(rows, a_box), 0)
            for k in range(begin, end):
                full = pipe.producer_get_barrier(state)
                if cutlass.const_expr(a_box == tile_m):
                    pipe.producer_acquire(state)
                else:
                    pipe.sync_object_empty.wait(state.index, state.phase)
                    with cute.arch.elect_one():
                        brought = self.config.stage_bytes - (tile_m - boxes * a_box) * row_bytes
                        cute.arch.mbarrier_arrive_and_expect_tx(full, brought)
                for box in range(boxes):
                    cute.copy(
                        tma_a,
                        tile_a[None, first_box + box, k],
                        to_a[None, box, state.index],
                        tma_bar_ptr=full,
                        mcast_mask=masks[0],
                    )
                for p in cutlass.range_constexpr(len(operands_b)):
                    cute.copy(
                        operands_b[p][0],
                        tiles_b[p][None, k],
                        parts_b[p][0][None, state.index],
                        tma_bar_ptr=full,
                        mcast_mask=masks[1],
                    )
                state.advance()
        # A CTA may not exit while others of its cluster still signal its barriers.
        pipe.producer_tail(state)

    @cute.jit
    def consume(
        self,
        pipe,
        s_a,
        s_bs,
        staging,
        flag,
        tma_outs,
        tma_targets,
        outs,
        aux,
        scales,
        workspace,
        exchange,
        raster,
        place,
        first,
        step,
        k_tiles,
        extents,
    ):
        """Math warpgroups: multiply, then finish the tile."""
        config = self.config
        thread = cute.arch.thread_idx()[0] - WARPGROUP
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        start, accumulate = self.tiled_mma(False), self.tiled_mma(True)
        lane = accumulate.get_slice(group * WARPGROUP)
        r_a = accumulate.make_fragment_A(lane.partition_A(s_a))
        r_bs = [accumulate.make_fragment_B(lane.partition_B(s_b)) for s_b in s_bs]
        shape = accumulate.partition_shape_C(config.tile[:2])
        accs = [cute.make_rmem_tensor(shape, Float32) for _ in s_bs]
        steps = cute.size(r_a, mode=[2])
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)

        for item in range(first, raster.items, step):
            tile = raster.locate(item, place)
            begin, end = self.split_range(tile, place, raster.splits, k_tiles)
            view = self.view(tile, place, thread, group, extents)
            if cutlass.const_expr(config.promotes):
                k_range = (begin, end)
                read, release = self.promote(
                    pipe, start, accumulate, accs, r_a, r_bs, scales, view, k_range, read, release
                )
            else:
                pipe.consumer_wait(read)
                warpgroup.fence()
                for i in cutlass.range_constexpr(steps):
                    mma = start if i == 0 else accumulate
                    stage = (None, None, i, read.index)
                    for acc, r_b in zip(accs, r_bs, strict=True):
                        cute.gemm(mma, acc, r_a[stage], r_b[stage], acc)
                warpgroup.commit_group()
                read.advance()
                for _ in range(begin + 1, end):
                    pipe.consumer_wait(read)
                    warpgroup.fence()
                    for i in cutlass.range_constexpr(steps):
                        stage = (None, None, i, read.index)
                        for acc, r_b in zip(accs, r_bs, strict=True):
                            cute.gemm(accumulate, acc, r_a[stage], r_b[stage], acc)
                    warpgroup.commit_group()
                    read.advance()
                    # All but the step just issued is done: its predecessor's stage is free.
                    warpgroup.wait_group(1)
                    pipe.consumer_release(release)
                    release.advance()
            if cutlass.const_expr(not config.split_k):
                # The loads of the first block fly while the last steps multiply.
                fetched = device_epilogue.fetch(config.epilogue, aux, self.block(view, 0))
            if cutlass.const_expr(not config.promotes):
                warpgroup.wait_group(0)
                pipe.consumer_release(release)
                release.advance()

            if cutlass.const_expr(config.split_k):
                if self.reduce_splits(accs[0], workspace, flag, raster.splits, thread, view):
                    first_block = device_epilogue.fetch(config.epilogue, aux, self.block(view, 0))
                    self.finish(accs, first_block, staging, tma_outs, tma_targets, outs, aux, view)
            else:
                sums = accs
                if cutlass.const_expr(config.cluster[2] > 1):
                    sums = [self.reduce_cluster(accs[0], exchange, place[2], thread)]
                self.finish(sums, fetched, staging, tma_outs, tma_targets, outs, aux, view)
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def promote(
        self,
        pipe,
        start,
        accumulate,
        accs,
        r_a,
        r_bs,
        scales,
        view: cutlass.Constexpr,
        k_range: tuple[Int32, Int32],
        read,
        release,
    ):
        """Sum products of FP8 on the tensor cores over some k tiles, and those sums in fp32.

        The columns of one WGMMA go over the k tiles before the next, so that their sums take few
        registers. Returns the pipeline's states behind the last k tile.
        """
        config = self.config
        columns = config.mma_columns
        pieces = [(p, n) for p in range(config.products) for n in range(config.tile[1] // columns)]
        part = cute.make_rmem_tensor(
            accumulate.partition_shape_C((config.tile[0], columns)), Float32
        )
        flat = cute.make_tensor(part.iterator, cute.make_layout(cute.size(part)))
        pattern = block_pattern(columns)
        begin, end = k_range
        for acc in accs:
            acc.fill(0.0)
        for k in range(begin, end, config.promoted_k_tiles):
            last = cutlass.min(k + config.promoted_k_tiles, end)
            first = read.clone()
            of_a = of_b = ()
            if cutlass.const_expr(config.scales is not None):
                of_a, of_b = self.scales_at(scales, view, k)
            for index in cutlass.range_constexpr(len(pieces)):
                p, n = pieces[index]
                is_last = index == len(pieces) - 1
                read = first.clone()
                if cutlass.const_expr(index == 0):
                    pipe.consumer_wait(read)
                self.multiply(start, accumulate, part, r_a, r_bs[p], n, read.index)
                read.advance()
                for _ in range(k + 1, last):
                    if cutlass.const_expr(index == 0):
                        pipe.consumer_wait(read)
                    self.multiply(accumulate, accumulate, part, r_a, r_bs[p], n, read.index)
                    read.advance()
                    if cutlass.const_expr(is_last):
                        warpgroup.wait_group(1)
                        pipe.consumer_release(release)
                        release.advance()
                warpgroup.wait_group(0)
                if cutlass.const_expr(is_last):
                    pipe.consumer_release(release)
                    release.advance()
                mine = cute.make_tensor(accs[p].iterator + n * cute.size(part), flat.layout)
                if cutlass.const_expr(config.scales is None):
                    mine.store(mine.load() + flat.load())
                else:
                    scale = [row * of_b[p] for row in of_a]
                    for e in cutlass.range_constexpr(cute.size(part)):
                        mine[e] = cute.math.fma(flat[e], scale[pattern[e][0]], mine[e])
        return read, release

    def scales_at(self, scales, view: View, k_tile: Int32) -> tuple[list, list]:
        """The scales of a k tile: of a thread's two rows of A, and of each product's columns."""
        config = self.config
        assert config.scales is not None
        tensors, block = (
            config.scales.of_each(scales),
            k_tile // (config.scales.depth // config.tile[2]),
        )
        batch, (m, n) = view.tile.batch, view.extents
        of_a = [
            config.scales.read(tensors[0], 0, cutlass.min(row, m - 1), block, batch)
            for row in view.rows
        ]
        column = cutlass.min(view.tile.n * config.tile[1], n - 1)
        of_b = [
            config.scales.read(tensors[1 + p], 1 + p, column, block, batch)
            for p in range(config.products)
        ]
        return of_a, of_b

    def multiply(self, first, accumulate, part, r_a, r_b, n: int, stage: Int32) -> None:
        """Issue the WGMMA of a k tile and its ``n``-th columns; ``first`` is that of step 0."""
        warpgroup.fence()
        for i in range(cute.size(r_a, mode=[2])):
            a, b = r_a[None, None, i, stage], r_b[None, n, i, stage]
            b = cute.make_tensor(b.iterator, cute.append(b.layout, cute.make_layout(1)))
            cute.gemm(first if i == 0 else accumulate, part, a, b, part)
        warpgroup.commit_group()

    @cute.jit
    def reduce_splits(
        self, acc, workspace, flag, splits: Int32, thread: Int32, view: cutlass.Constexpr
    ):
        """Publish this split's accumulators; the last split of the tile gets the sum of all.

        A thread's accumulators lie 4 by 4 with those of the other threads in between, so that a
        warp moves 512 contiguous bytes. Threads whose rows lie past the result move nothing.
        Returns whether this CTA finishes the tile.
        """
        config = self.config
        partials, counters = workspace
        math_threads = WARPGROUP * config.math_groups
        tile_size = config.tile[0] * config.tile[1]
        quads = cute.size(acc) // 4
        flat = cute.make_tensor(acc.iterator, cute.make_layout((4, quads)))
        by_thread = cute.make_layout((4, quads), stride=(1, 4 * math_threads))
        has_rows = view.rows[0] < view.extents[0]
        is_last = splits == 1
        if splits > 1:
            tile = view.tile
            base = tile.number.to(Int64) * splits.to(Int64) * tile_size + thread * 4
            if has_rows:
                mine = (partials.iterator + (base + tile.split.to(Int64) * tile_size)).align(16)
                cute.autovec_copy(flat, cute.make_tensor(mine, by_thread))
            cute.arch.fence_acq_rel_gpu()
            cute.arch.barrier(barrier_id=SPLIT_BARRIER, number_of_threads=math_threads)
            if thread == 0:
                flag[0] = cute.arch.atomic_add(
                    counters.iterator + tile.number, Int32(1), sem="acq_rel", scope="gpu"
                )
            cute.arch.barrier(barrier_id=SPLIT_BARRIER, number_of_threads=math_threads)
            is_last = flag[0] == splits - 1
            if is_last & has_rows:
                cute.arch.fence_acq_rel_gpu()
                acc.fill(0.0)
                part = cute.make_rmem_tensor((4, quads), Float32)
                for split in range(splits):
                    theirs = (partials.iterator + (base + split.to(Int64) * tile_size)).align(16)
                    cute.autovec_copy(cute.make_tensor(theirs, by_thread), part)
                    flat.store(flat.load() + part.load())
        return is_last

    @cute.jit
    def reduce_cluster(self, acc, exchange, rank: Int32, thread: Int32):
        """Each CTA of those that split K gets the others' partial sums of the columns that it
        finishes; returns their sum.

        Added in the order of the ranks behind its own, whichever come first.
        """
        config = self.config
        ways, math_threads = config.cluster[2], WARPGROUP * config.math_groups
        slots, arrived = exchange
        size = cute.size(acc) // ways
        mine = cute.make_rmem_tensor((size,), Float32)
        bits = cute.recast_tensor(
            cute.make_tensor(acc.iterator, cute.make_layout(ways * size)), Int32
        )
        for r in cutlass.range_constexpr(ways):
            if rank == r:
                for e in cutlass.range_constexpr(size):
                    mine[e] = acc[r * size + e]
            else:
                # A peer keeps what comes from the next rank, around, in its first slot.
                slot = (rank - r - 1 + ways) % ways
                for quad in cutlass.range_constexpr(size // 4):
                    place = ((slot * (size // 4) + quad) * math_threads + thread) * 4
                    values = tuple(bits[r * size + 4 * quad + i] for i in range(4))
                    to = (slots + place).align(16)
                    cute.arch.store_async_dsmem(to, values, arrived, r)
        cute.arch.mbarrier_wait(arrived, 0)
        for slot in cutlass.range_constexpr(ways - 1):
            for quad in cutlass.range_constexpr(size // 4):
                place = ((slot * (size // 4) + quad) * math_threads + thread) * 4
                source = cute.recast_ptr((slots + place).align(16), dtype=Float32)
                part = cute.make_rmem_tensor((4,), Float32)
                cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), part)
                for i in cutlass.range_constexpr(4):
                    mine[4 * quad + i] = mine[4 * quad + i] + part[i]
        return mine

    def view(
        self,
        tile: Tile,
        place: tuple[Int32, Int32, Int32],
        thread: Int32,
        group: Int32,
        extents: Any,
    ) -> View:
        """What this thread finishes of the result."""
        config = self.config
        lane_in_group = thread % WARPGROUP
        warp, lane = lane_in_group // 32, lane_in_group % 32
        row = tile.m * config.tile[0] + group * GROUP_ROWS + warp * 16 + lane // 4
        block = tile.n * (config.tile[1] // config.block_columns)
        block += place[2] * (config.columns // config.block_columns)
        return View(tile, group, lane_in_group, (row, row + 8), block, extents)

    def block(self, view: View, index: int) -> device_epilogue.Block:
        """The thread's elements in block ``index`` of the columns that it finishes."""
        columns = self.config.block_columns
        first = (view.block + index) * columns + view.lane % 4 * 2
        places = [first + 8 * eight + c for eight in range(columns // 8) for c in (0, 1)]
        pattern = block_pattern(columns)
        return device_epilogue.Block(
            view.rows, places, view.tile.batch, pattern, view.extents, paired=True
        )

    @cute.jit
    def finish(
        self, accs, fetched, staging, tma_outs, tma_targets, outs, aux, view: cutlass.Constexpr
    ):
        """Run the epilogue on the accumulators and store the outputs, a block of columns at a time.

        The operands of a block are fetched while the one ahead of it is computed. A chain is traced
        once, in a loop that shifts the accumulators down by a block: unrolled, a chain such as GELU
        is more code than the instruction cache holds, and every warp would stream it per tile.
        """
        config = self.config
        blocks = config.columns // config.block_columns
        size = cute.size(accs[0]) // blocks
        bare = not config.epilogue["nodes"] and not config.epilogue["inputs"]
        layout = cute.make_layout(size)
        if cutlass.const_expr(bare or blocks == 1):
            for i in cutlass.range_constexpr(blocks):
                mine = [cute.make_tensor(acc.iterator + i * size, layout).load() for acc in accs]
                values = device_epilogue.run(config.epilogue, fetched, mine)
                self.store(values, staging, tma_outs, tma_targets, outs, view, i)
        else:
            for i in cutlass.range(blocks, unroll=1):
                mine = [cute.make_tensor(acc.iterator, layout).load() for acc in accs]
                ahead = self.block(view, i + 1)
                values = device_epilogue.run(config.epilogue, fetched, mine, aux, ahead)
                for acc in accs:
                    flat = cute.make_tensor(acc.iterator, cute.make_layout(cute.size(acc)))
                    for e in cutlass.range_constexpr(cute.size(acc) - size):
                        flat[e] = flat[e + size]
                self.store(values, staging, tma_outs, tma_targets, outs, view, i)

    @cute.jit
    def store(self, values, staging, tma_outs, tma_targets, outs, view: cutlass.Constexpr, index):
        """Narrow and store the output values of block ``index``."""
        config = self.config
        blocks = config.columns // config.block_columns
        turns = blocks * len(config.out_dtypes)
        for o in cutlass.range_constexpr(len(config.out_dtypes)):
            dtype = config.out_dtypes[o]
            narrow = cute.make_rmem_tensor((values[o].shape,), dtype)
            narrow.store(DEVICE.narrow(values[o], dtype))
            turn = index * len(config.out_dtypes) + o
            staged = self.stage(narrow, staging, turn, turns, view)
            if cutlass.const_expr(config.store == "tma"):
                if self.clips(view, index, dtype):
                    self.store_tma(tma_outs[o], tma_targets[o], staged, view, index)
                else:
                    self.store_elements(outs[o], staged, view, index)
            else:
                self.store_elements(outs[o], staged, view, index)
            if view.lane < 32:
                # A group per turn, empty where TMA stored nothing: ``stage`` counts turns.
                cute.arch.cp_async_bulk_commit_group()

    def clips(self, view: View, index: int, dtype: type) -> Boolean:
        """Whether a TMA store of a block stays inside the result.

        TMA clips stores at 16 bytes, not at elements: where the row length is no multiple of that,
        the block with the end of the row would overwrite up to 15 bytes behind it.
        """
        n = view.extents[1]
        end = (view.block + index + 1) * self.config.block_columns
        return (end <= n) | (n % (operands.TMA_ALIGN_BYTES * 8 // dtype.width) == 0)

    @cute.jit
    def stage(
        self,
        narrow: cute.Tensor,
        staging,
        turn,
        turns: cutlass.Constexpr,
        view: cutlass.Constexpr,
    ):
        """Write one block of one output to a staging slot; ``turn`` numbers a tile's blocks.

        Returns the (64, columns, 1) slot, complete and visible to TMA.
        """
        dtype = narrow.element_type
        layout = self.staging_layout(dtype)
        offset = (view.group * SLOTS + turn % SLOTS) * (GROUP_ROWS * STORE_BYTES)
        pointer = cute.recast_ptr((staging + offset).align(1024), layout.inner, dtype=dtype)
        staged = cute.make_tensor(pointer, layout.outer)
        # The slot's previous block must have been read out. Where a tile has an odd number of
        # turns, the last of one tile and the first of the next share a slot: wait for all.
        pending = SLOTS - 1 if turns % SLOTS == 0 else 0
        barrier = GROUP_BARRIER + view.group
        if view.lane < 32:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)
        self.to_shared(narrow, staged, dtype, view.lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)
        return staged

    @cute.jit
    def store_tma(
        self,
        tma: cute.CopyAtom,
        target: cute.Tensor,
        staged: cute.Tensor,
        view: cutlass.Constexpr,
        index,
    ):
        """Let TMA store a staged block."""
        config = self.config
        if view.lane < 32:
            boxes = cute.local_tile(target, (GROUP_ROWS, config.block_columns), (None, None, None))
            source, to = cpasync.tma_partition(
                tma,
                0,
                cute.make_layout(1),
                cute.group_modes(staged, 0, 2),
                cute.group_modes(boxes, 0, 2),
            )
            box_m = view.tile.m * config.math_groups + view.group
            cute.copy(tma, source[None, 0], to[None, box_m, view.block + index, view.tile.batch])

    @cute.jit
    def store_elements(
        self,
        out: cute.Tensor,
        staged: cute.Tensor,
        view: cutlass.Constexpr,
        index,
    ):
        """Store a staged block to a tensor of any strides, lanes along the rows of the result."""
        config = self.config
        columns = config.block_columns
        row0 = view.tile.m * config.tile[0] + view.group * GROUP_ROWS
        column0 = (view.block + index) * columns
        base = view.tile.batch.to(Int64) * out.stride[2]
        for e in cutlass.range(view.lane, GROUP_ROWS * columns, WARPGROUP, unroll=4):
            r, c = e // columns, e % columns
            row, column = row0 + r, column0 + c
            if (row < view.extents[0]) & (column < view.extents[1]):
                place = base + row.to(Int64) * out.stride[0] + column.to(Int64) * out.stride[1]
                cute.make_tensor(out.iterator + place, cute.make_layout(1))[0] = staged[r, c, 0]

    def to_shared(self, narrow: cute.Tensor, staged: cute.Tensor, dtype: type, in_group: Int32):
        """Registers of a block to its slot: stmatrix for 16-bit, pairs of columns for others."""
        mma = sm90_utils.make_trivial_tiled_mma(
            self.config.a_dtype,
            self.config.b_dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            (GROUP_ROWS, self.config.block_columns),
        )
        if dtype.width == 16:
            atom = cute.make_copy_atom(StMatrix8x8x16bOp(False, 4), dtype)
        else:
            pair = 2 * dtype.width
            atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=pair)
        tiled = cute.make_tiled_copy_C(atom, mma)
        to = tiled.get_slice(in_group).partition_D(staged)[None, None, None, 0]
        source = cute.make_tensor(narrow.iterator, cute.make_layout(to.shape))
        cute.copy(tiled, source, to)


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.sm90:matmul``; the module's docstring says what the params mean."""
    config = Config.parse(params)
    space, extents = AddressSpace.gmem, operands.Extents()
    a = operands.tma_stride(
        config.a_dtype, (extents.m, extents.k, cute.sym_int()), 1 if config.a_major == "k" else 0
    )
    batch_b = cute.sym_int()
    bs = [
        operands.tma_stride(
            config.b_dtype, (extents.n, extents.k, batch_b), 1 if config.b_major == "k" else 0
        )
        for _ in range(config.products)
    ]
    aux = operands.epilogue_inputs(config.epilogue, extents, space)
    if config.scales is not None:
        aux = [*config.scales.tensors(space), *aux]
    outs = operands.epilogue_outputs(config.epilogue, extents, space, config.store == "tma")
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel, one = Sm90Matmul(config), Int32(1)
    if not config.split_k:
        return KernelTemplate(
            kernel.plain, (one, one, a, stream, *bs, *aux, *outs), config.smem_bytes
        )
    partials = make_fake_tensor(Float32, (cute.sym_int64(),), (1,), assumed_align=16)
    counters = make_fake_tensor(Int32, (cute.sym_int(),), (1,))
    arguments = (one, one, one, a, *bs, partials, counters, stream, *aux, *outs)
    return KernelTemplate(kernel.split, arguments, config.smem_bytes)
