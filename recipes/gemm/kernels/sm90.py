"""Persistent warp-specialised matmul for Hopper: TMA in, WGMMA, a traced pointwise chain, stores.

Arguments: ``launch, sm_count, a (M, K, La), b (N, K, Lb)..., [partials, counters],
scales..., aux..., outs...``. BFLOAT16, HALF, or FP8 of either kind in, fp32 accumulation, or INT8
and INT32; M, N, K and the batch are run-time values, one kernel serves every shape of a layout
class. K >= 1. With ``products`` = 2 there are two B, alike, and the chain gets the accumulators of
both; no split of K. In place of an output that is reduced stand its partial values (T, R, L), see
``sm90_folds.py``, which ``fold.py`` folds.

Roles of a CTA (threads):

* warpgroup 0: a warp issues the TMA loads of A and B; with ``few_rows`` another those of B, as to
  issue those of both takes longer than a k tile of few rows does to multiply. With ``scales``,
  another copies those. The others idle.
* warpgroups 1..G: math. Each owns 64 rows of the tile: G = 2 for tiles of 128 rows, 1 for 64. With
  ``pingpong`` G = 2 and each owns every second tile: one multiplies while the other finishes.

Pipelines:

* operands: producer warps -> math warpgroups, ``stages`` deep. Full: 1 arrival and the bytes of all
  tiles, which may come ahead of the arrival that says how many they are, and one of the warp that
  copies scales, when its copies (cp.async) are there. Empty: one arrival per math warp of a tile,
  of every CTA that gets this CTA's multicast. With a cluster (2, 1, 1) two CTAs share B and each
  loads half of it for both; (1, 2, 1) shares A. ``a_boxes`` are the rows of a load of A: all of the
  tile's, or 64 and, of what is left, 16, so that few rows outside the matrix are loaded, which take
  longer than others. Rows of the tile that are not there hold anything: what is computed of them is
  never stored.
  An input of the epilogue that is ``piped`` comes the same way, in stages of its own behind those
  of K: parts of the tile's rows and 128 bytes of them, one where a stage has A and others where it
  has the first B. The math warpgroups read them from there, block after block.
* exchange: with a cluster (1, 1, W) its CTAs split K. Each writes its sums of the columns that
  another finishes into that one's shared memory; one barrier per CTA counts the bytes.
* stores: each math warpgroup has ``SLOTS`` staging slots of 64 rows x 128 bytes of its own and one
  named barrier; its warp 0 issues the TMA stores.
* turns: with ``pingpong`` a math warpgroup waits before a main loop until the other has issued its
  own. Of two that share a tile the second waits with the last k tiles until the first has issued
  its own, so that one finishes while the other multiplies (not with ``few_rows`` or stream-K, nor
  of fewer k tiles than stages); where they promote sums of FP8, each waits until the other has
  issued what it adds next. In stream-K a barrier spans them around the
  count of a piece.

FP8: WGMMA reads it along K alone, and keeps about 14 bits of the sums. It sums two k tiles (256)
from zero, or one with ``scales``, of as many columns of one product at a time as registers allow,
and the warpgroup adds that to its fp32 accumulators; while it waits and adds, the tensor cores work
for the other warpgroup, as they take turns. With ``scales`` the sums are scaled before they are
added, and nobody waits for a turn: a thread has two rows of A, and 32 columns of B or more have one
scale.

INT8: along K too. WGMMA saturates where INT32 ends, which no sum of at most 131071 products comes
to, so sums are exact and nothing is promoted: the main loop is that of 16 bits. An output of the
sums is stored as they are; a chain, a fold or another type gets them rounded to fp32.

Registers: 384 threads start with 168 each; the producer drops to 40 and math rises to 232
(40 + 2 x 232 = 504 <= 512 per lane of the file). The accumulators are products x tile_n / 2 of
them for each 64 rows that a warpgroup has, and for FP8 there are tile_n / 2 more for the sums to
promote, or half as many: within 192 together. 256-thread CTAs (one math warpgroup) may use 255 and
need no exchange.

Shared memory: barriers and the scales of all stages, in whole KB; stages x (tile_m + products x
tile_n) rows of 128 bytes, G x SLOTS x 8 KB of staging, (W - 1) / W of the tile's sums to exchange,
and G x 1 KB where something is reduced along M, within 232448 bytes: 4 stages at 128 x 256, 6 at
128 x 128 (5 with scales), 8 at 64 x 128. The largest tiles leave 2 KB of it, with scales nothing.

Epilogue: a block of output columns at a time, 64, or 32 with a 4-byte output or a chain that reads
several matrices: up to 128 bytes of a row. Its operands are fetched to registers a block ahead, but
for one that is piped, whose latency and bytes are behind the main loop. The chain runs on
accumulator registers and the results go to a staging slot (stmatrix for 16-bit outputs). ``store``
"tma": TMA stores the slot and clips at the edges, except where a row of the result is no multiple
of 16 bytes, whose last block is stored by elements; "direct": all blocks are, to any strides.
Values to reduce are folded in fp32 ahead of that.

Split-K in a cluster: a grid of one cluster per tile, so that nothing is exchanged twice. CTA r
finishes the r-th of W shares of the columns; sums are added in a fixed order. K >= W k tiles.

Stream-K (``stream_k``): the tiles of the last waves are shared out to the k tile, see ``raster``. A
CTA of a piece of a tile writes its sums to ``partials`` and counts itself in ``counters``; the
last to arrive adds the sums of all pieces in the order of K, so the result does not depend on who
is last but on the SM count alone, and runs the epilogue. Nobody waits for another. Counters must be
zero before the launch. Extents, with clusters = max(sm_count // cluster_size, 1), and tiles =
ceil_div(M, tile_m * cluster_m) * ceil_div(N, tile_n * cluster_n) * L:

    partials  FLOAT or INT32  2 * min(clusters, tiles * min(ceil_div(K, 16 * tile_k), 8))
                       * cluster_size * tile_m * tile_n                 (16-byte aligned)
    counters  INT32  min(2 * clusters, tiles) * cluster_size

Programmatic dependent launch (not with ``stream_k``, which follows a fill): a kernel that comes
behind this one sets its barriers up while the last tiles are finished, and waits for its end before
it touches memory. With ``few_rows``, for matrices of which reading B is most of the time, it asks
L2 for its first tiles of B before that, and L2 evicts B first.

Preconditions, checked by the compiled wrapper: A, B, a piped input and TMA-stored outputs have
16-byte aligned bases, unit stride on their major axis and multiples of 16 bytes on the others.

Floor, H200: 989 TFLOP/s dense bf16 at boost, about 790 sustained in the power limit on random data;
8192^3 takes 1.39 ms at that; FP8 and INT8 do twice as many. Per 128 x 256 x 64 step a CTA reads 48
KB from L2: 132 CTAs at 7.5 TFLOP/s each ask for 11 TB/s, halved for B by a cluster of two. A step
of FP8 or INT8 is as many bytes and, 128 deep, as many cycles.

Where: ``sm90_config`` has the menu and what follows from a row of it, ``raster`` which tiles a CTA
computes, ``sm90_loads`` the producers, ``sm90_math`` the main loops, ``sm90_splits`` sums of parts
of K; the end of a tile is ``sm90_stores``, with ``epilogue`` and ``sm90_folds``.

The structure follows the public CUTLASS Hopper GEMMs (NVIDIA/cutlass, dense_gemm_persistent.py) and
quack's gemm_sm90.py (Dao-AILab/quack); the code is our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.gemm.kernels.raster import Raster, StreamK, Walk
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    A_WARP,
    B_WARP,
    GROUP_ROWS,
    GROUP_WARPS,
    MATH_REGISTERS,
    PRODUCER_REGISTERS,
    SCALE_ALIGN,
    SCALES_WARP,
    WARPGROUP,
    Config,
)
from cudnn_aot.recipes.gemm.kernels.sm90_loads import (
    Loads,
    Operand,
    operand_pipeline,
    piped_layout,
    tma_load,
)
from cudnn_aot.recipes.gemm.kernels.sm90_math import Math, pass_turn, start_turns, wait_for_turn
from cudnn_aot.recipes.gemm.kernels.sm90_splits import Splits
from cudnn_aot.recipes.gemm.kernels.sm90_stores import Stores
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel


class Outputs(NamedTuple):
    """Of the outputs that are stored, the atoms of TMA, the tensors as it sees them, and the
    tensors; of those that are reduced, the tensors of partial values.
    """

    tma: tuple[cute.CopyAtom, ...]
    targets: tuple[cute.Tensor, ...]
    stored: tuple[cute.Tensor, ...]
    partials: tuple[cute.Tensor, ...]


class Shared(NamedTuple):
    """Shared memory of a CTA, in its order; None for what the configuration needs none of.

    Attributes:
        barriers: of the operands' pipeline, full ones before empty ones.
        flag: what one math thread tells the others: how many pieces of a tile are there.
        arrived: the barrier of ``exchange``.
        scales: (scale, stage), those of the tile's rows before those of its columns.
        a, bs: stages of the operands (rows, k, stage).
        piped: the addresses of those of A and of the first B.
        staging: slots of the stores.
        exchange: sums that the CTAs which split K send this one.
        scratch: what the warps leave of a block of columns that is reduced.
    """

    barriers: cute.Pointer
    flag: cute.Tensor
    arrived: cute.Pointer
    scales: cute.Tensor | None
    a: cute.Tensor
    bs: list[cute.Tensor]
    piped: tuple[Int32, Int32]
    staging: cute.Pointer
    exchange: cute.Pointer | None
    scratch: cute.Pointer | None


class Sm90Matmul:
    """The traced host and device functions of one configuration."""

    def __init__(self, config: Config):
        self.config = config
        self.loads, self.math = Loads(config), Math(config)
        self.splits, self.stores = Splits(config), Stores(config)
        self.num_scales = config.scales.count if config.scales else 0
        self.num_inputs = len(config.epilogue["inputs"])

    @cute.jit
    def plain(self, launch: Int32, sm_count: Int32, a: cute.Tensor, stream, *rest):
        bs, tail = rest[: self.config.products], rest[self.config.products :]
        if launch != 0:
            self.launch(sm_count, a, bs, None, stream, tail)

    @cute.jit
    def stream_k(
        self,
        launch: Int32,
        sm_count: Int32,
        a: cute.Tensor,
        b: cute.Tensor,
        partials: cute.Tensor,
        counters: cute.Tensor,
        stream,
        *rest,
    ):
        if launch != 0:
            self.launch(sm_count, a, (b,), (partials, counters), stream, rest)

    @cute.jit
    def launch(self, sm_count: Int32, a, bs, workspace, stream, rest):
        """``workspace`` is stream-K's partials and counters; ``rest`` scales, aux and outputs."""
        config = self.config
        a, *bs = batching.nested((a, *bs))
        rest = batching.nested(rest)
        scales, rest = rest[: self.num_scales], rest[self.num_scales :]
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        stored = tuple(outs[o] for o in config.stored)
        folded = tuple(outs[o] for o in config.folded)
        tile_m, tile_n, tile_k = config.tile
        size_m, size_n, size_k = config.cluster
        a_layout, b_layout = self.math.operand_layouts()
        loads_a = [
            tma_load(
                a,
                self.math.operand_layout(box, config.a_major, config.a_dtype),
                (box, tile_k),
                size_n,
            )
            for box in config.a_boxes
        ]
        tma_as, a_tma = tuple(load[0] for load in loads_a), loads_a[0][1]
        loads = [tma_load(b, b_layout, (tile_n, tile_k), size_m) for b in bs]
        tma_bs, bs_tma = tuple(load[0] for load in loads), tuple(load[1] for load in loads)
        piped = ()
        if cutlass.const_expr(config.piped is not None):
            box = (tile_m, config.piped_columns)
            piped = tma_load(aux[config.piped], piped_layout(config, tile_m), box)
        tma_outs = tma_targets = ()
        if cutlass.const_expr(config.store == "tma"):
            made = [
                cpasync.make_tiled_tma_atom(
                    cpasync.CopyBulkTensorTileS2GOp(),
                    out,
                    cute.select(self.stores.layout(out.element_type), mode=[0, 1]),
                    (GROUP_ROWS, config.block_columns),
                )
                for out in stored
            ]
            tma_outs = tuple(info[0] for info in made)
            tma_targets = tuple(info[1] for info in made)
        extents = (a.shape[0], bs[0].shape[0])
        shape = (*extents, outs[0].shape[2])
        raster = Raster.of((tile_m, tile_n), (size_m, size_n), shape)
        clusters = items = raster.items
        if cutlass.const_expr(size_k == 1):
            clusters = cutlass.max(sm_count // config.cluster_size, 1)
            if cutlass.const_expr(not config.stream_k):
                clusters = cutlass.min(items, clusters)
        streamed = None
        if cutlass.const_expr(config.stream_k):
            stream_k = StreamK.of(items, cute.ceil_div(a.shape[1], tile_k), clusters)
            clusters, streamed = stream_k.clusters, (stream_k.whole, stream_k.shares)
        if items > 0:
            self.kernel(
                tma_as,
                a_tma,
                tma_bs,
                bs_tma,
                Outputs(tma_outs, tma_targets, stored, folded),
                aux,
                piped,
                scales,
                workspace,
                raster,
                extents,
                clusters,
                streamed,
            ).launch(
                grid=[clusters * size_m, size_n, size_k],
                block=[config.threads, 1, 1],
                cluster=[size_m, size_n, size_k],
                min_blocks_per_mp=1,
                stream=stream,
                use_pdl=not config.stream_k,
            )

    @cute.kernel
    def kernel(
        self,
        tma_as,
        a: cute.Tensor,
        tma_bs,
        bs,
        outputs: Outputs,
        aux,
        piped,
        scales,
        workspace,
        raster: Raster,
        extents,
        clusters: Int32,
        streamed,
    ):
        """Of a grid of so many ``clusters``; ``streamed`` is how many tiles stream-K leaves whole,
        and among how many clusters it shares out the others. ``extents`` are M and N.
        """
        config = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for atom in tma_as + tma_bs + piped[:1] + outputs.tma:
                cpasync.prefetch_descriptor(atom)

        smem = self.allocate()
        if cutlass.const_expr(config.cluster[2] > 1):
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_init(smem.arrived, 1)
        pipe = operand_pipeline(config, smem.barriers, 1 + (config.scales is not None))
        pipeline.pipeline_init_arrive(cluster_shape_mn=config.cluster, is_relaxed=True)

        operand_a = Operand(tma_as, a, smem.a)
        operands_b = tuple(Operand(*each) for each in zip(tma_bs, bs, smem.bs, strict=True))
        cluster = cute.arch.block_idx()[0] // config.cluster[0]
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = cute.make_layout((*config.cluster, 1)).get_flat_coord(rank)[:3]
        k_tiles = cute.ceil_div(a.shape[1], config.tile[2])
        run = None
        if cutlass.const_expr(config.stream_k):
            run = StreamK(raster.items, k_tiles, clusters, *streamed).run(cluster)
        walk = Walk(raster, k_tiles, place, config.cluster[2], cluster, clusters, run)

        pipeline.pipeline_init_wait(cluster_shape_mn=config.cluster)
        if cutlass.const_expr(config.cluster[2] > 1):
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(smem.arrived, config.exchange_bytes)
        if cutlass.const_expr(not config.stream_k):
            # Nothing of what the kernel before wrote is read, and nothing that it reads is written,
            # ahead of this.
            if cutlass.const_expr(config.few_rows):
                if warp == B_WARP:
                    self.loads.prefetch_b(operands_b, walk)
            cute.arch.griddepcontrol_wait()

        if warp < GROUP_WARPS:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == A_WARP:
                others = () if config.few_rows else operands_b
                self.loads.produce_a(
                    pipe, operand_a, others, (*piped, smem.piped), walk, aux, extents
                )
            if cutlass.const_expr(config.few_rows):
                if warp == B_WARP:
                    self.loads.produce_b(pipe, operands_b, walk)
            if cutlass.const_expr(config.scales is not None):
                if warp == SCALES_WARP:
                    self.loads.produce_scales(pipe, scales, smem.scales, walk, extents)
        else:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_increase(MATH_REGISTERS)
            self.consume(pipe, smem, walk, aux, extents, outputs, workspace)

    name_kernel(kernel, "gemm_sm90")

    def allocate(self) -> Shared:
        config, allocator = self.config, SmemAllocator()
        barriers = allocator.allocate_array(Int64, 2 * config.stages)
        flag = allocator.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        arrived = allocator.allocate_array(Int64, 1)
        scales = exchange = scratch = None
        if config.scales is not None:
            layout = cute.make_layout((config.scale_bytes // 4, config.stages))
            scales = allocator.allocate_tensor(Float32, layout, SCALE_ALIGN)
        a_layout, b_layout = self.math.operand_layouts()
        a = allocator.allocate_tensor(config.a_dtype, a_layout.outer, 1024, a_layout.inner)
        bs = [
            allocator.allocate_tensor(config.b_dtype, b_layout.outer, 1024, b_layout.inner)
            for _ in range(config.products)
        ]
        staging = allocator.allocate(config.staging_bytes, 1024)
        if config.cluster[2] > 1:
            exchange = cute.recast_ptr(allocator.allocate(config.exchange_bytes, 16), dtype=Int32)
        if config.fold_bytes > 0:
            scratch = cute.recast_ptr(allocator.allocate(config.fold_bytes, 16), dtype=Float32)
        piped = (a.iterator.toint(), bs[0].iterator.toint())
        return Shared(barriers, flag, arrived, scales, a, bs, piped, staging, exchange, scratch)

    @cute.jit
    def consume(self, pipe, smem: Shared, walk: Walk, aux, extents, outputs: Outputs, workspace):
        """Math warpgroups: multiply, then finish the tile."""
        config = self.config
        thread = cute.arch.thread_idx()[0] - WARPGROUP
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        mma = self.math.mma(smem.a, smem.bs, group)
        accs = self.math.accumulators(mma)
        exchange, epilogue_smem = (smem.exchange, smem.arrived), (smem.staging, smem.scratch)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)

        first, stop, step = walk.first, walk.stop, walk.step
        if cutlass.const_expr(config.pingpong):
            first, step = first + group * step, 2 * step
            read.advance(group * walk.k_tiles)
            release.advance(group * walk.k_tiles)
        if cutlass.const_expr(config.takes_turns):
            start_turns(group)
        for item in range(first, stop, step):
            segment = walk.segment(item)
            tile = walk.tile(segment)
            if cutlass.const_expr(config.pingpong):
                if item > walk.first:
                    wait_for_turn(group)
            view = self.stores.view(tile, walk.place, thread, group, extents)
            if cutlass.const_expr(config.promotes):
                k_range = (segment.begin, segment.end)
                read, release = self.math.promote(
                    pipe, mma, accs, smem.scales, view, k_range, read, release
                )
            else:
                k_tiles = segment.end - segment.begin
                read, release = self.math.accumulate(
                    pipe, mma, accs, k_tiles, read, release, config.last_k_tiles
                )
            if cutlass.const_expr(config.pingpong):
                if item + step // 2 < stop:
                    pass_turn(group)
            if cutlass.const_expr(not config.stream_k):
                # The loads of the first block fly while the last steps multiply.
                fetched = self.stores.fetch(aux, view)
            if cutlass.const_expr(not config.promotes):
                warpgroup.wait_group(0)
                pipe.consumer_release(release)
                release.advance()
            if cutlass.const_expr(config.pingpong):
                read.advance(walk.k_tiles)
                release.advance(walk.k_tiles)

            if cutlass.const_expr(config.stream_k):
                if self.splits.over_workspace(
                    accs[0], workspace, smem.flag, walk.run, segment, thread, view
                ):
                    block = self.stores.fetch(aux, view)
                    self.stores.finish(accs, block, epilogue_smem, *outputs, aux, (), view)
            else:
                sums = accs
                if cutlass.const_expr(config.cluster[2] > 1):
                    sums = [self.splits.over_cluster(accs[0], exchange, walk.place[2], thread)]
                piped = (pipe, read, smem.piped)
                self.stores.finish(sums, fetched, epilogue_smem, *outputs, aux, piped, view)
                if cutlass.const_expr(config.piped_stages > 0):
                    read.advance(config.piped_stages)
                    release.advance(config.piped_stages)
        cute.arch.cp_async_bulk_wait_group(0, read=True)


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.sm90:matmul``; the module's docstring says what the params mean."""
    config = Config.parse(params)
    space, extents = AddressSpace.gmem, operands.Extents(config.runs)
    a = operands.tma_stride(
        config.a_dtype,
        (extents.m, extents.k, *extents.own_batch()),
        1 if config.a_major == "k" else 0,
    )
    batch_b = extents.own_batch()
    bs = [
        operands.tma_stride(
            config.b_dtype, (extents.n, extents.k, *batch_b), 1 if config.b_major == "k" else 0
        )
        for _ in range(config.products)
    ]
    aux = operands.epilogue_inputs(config.epilogue, extents, space)
    if config.scales is not None:
        aux = [*config.scales.tensors(space, config.runs), *aux]
    outs = operands.tiled_outputs(config.epilogue, extents, space, config.store == "tma")
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel, one = Sm90Matmul(config), Int32(1)
    if not config.stream_k:
        return KernelTemplate(
            kernel.plain, (one, one, a, stream, *bs, *aux, *outs), config.smem_bytes
        )
    partials = make_fake_tensor(config.acc_dtype, (cute.sym_int64(),), (1,), assumed_align=16)
    counters = make_fake_tensor(Int32, (cute.sym_int(),), (1,))
    arguments = (one, one, a, *bs, partials, counters, stream, *aux, *outs)
    return KernelTemplate(kernel.stream_k, arguments, config.smem_bytes)
