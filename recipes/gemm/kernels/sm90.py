"""Persistent warp-specialised matmul for Hopper: TMA in, WGMMA, a traced pointwise chain, stores.

Arguments: ``launch, sm_count, a (M, K, La), b (N, K, Lb)..., [partials, counters],
scales..., aux..., outs...``. BFLOAT16, HALF, or FP8 of either kind in, fp32 accumulation; M, N, K
and the batch are run-time values, one kernel serves every shape of a layout class. K >= 1. With
``products`` = 2 there are two B, alike, and the chain gets the accumulators of both; no split of K.
In place of an output that is reduced stand its partial values (T, R, L), see ``sm90_folds.py``,
which ``fold.py`` folds.

Roles of a CTA (threads):

* warpgroup 0: its warp 0 issues TMA loads of A and B tiles; with ``scales``, warp 1 copies those.
  The others idle.
* warpgroups 1..G: math. Each owns 64 rows of the tile: G = 2 for tiles of 128 rows, 1 for 64. With
  ``pingpong`` G = 2 and each owns every second tile: one multiplies while the other finishes.

Pipelines:

* operands: producer warp -> math warpgroups, ``stages`` deep. Full: 1 arrival and the bytes of all
  tiles, and one of each lane that copies scales, when its copies (cp.async) are there. Empty: one
  arrival per math warp of a tile, of every CTA that gets this CTA's multicast. With a cluster
  (2, 1, 1) two CTAs share B and each loads half of it for both; (1, 2, 1) shares A. ``a_box`` rows
  of A are a load: all of the tile's, or 16, where those outside the matrix, which take longer than
  others, are not loaded. Rows of the tile that are not there hold anything: what is computed of
  them is never stored.
* exchange: with a cluster (1, 1, W) its CTAs split K. Each writes its sums of the columns that
  another finishes into that one's shared memory; one barrier per CTA counts the bytes.
* stores: each math warpgroup has ``SLOTS`` staging slots of 64 rows x 128 bytes of its own and one
  named barrier; its warp 0 issues the TMA stores. A barrier spans the math warpgroups in stream-K,
  around the count of a piece, and with ``pingpong``, where each waits before a main loop until the
  other has issued its own.

FP8: WGMMA reads it along K alone, and keeps about 14 bits of the sums. It sums two k tiles (256)
from zero, or one with ``scales``, of as many columns of one product at a time as registers allow,
and the warpgroup adds that to its fp32 accumulators; while it waits and adds, the tensor cores work
for the other warpgroup. With ``scales`` the sums are scaled before they are added: a thread has two
rows of A, and 32 columns of B or more have one scale.

Registers: 384 threads start with 168 each; the producer drops to 40 and math rises to 232
(40 + 2 x 232 = 504 <= 512 per lane of the file). The accumulators are products x tile_n / 2 of
them for each 64 rows that a warpgroup has, and for FP8 there are tile_n / 2 more for the sums to
promote, or half as many: within 192 together. 256-thread CTAs (one math warpgroup) may use 255 and
need no exchange.

Shared memory: barriers and the scales of all stages, in whole KB; stages x (tile_m + products x
tile_n) rows of 128 bytes, G x SLOTS x 8 KB of staging, (W - 1) / W of the tile in fp32 to exchange,
and G x 1 KB where something is reduced along M, within 232448 bytes: 4 stages at 128 x 256, 6 at
128 x 128 (5 with scales), 8 at 64 x 128. The largest tiles leave 2 KB of it, with scales nothing.

Epilogue: a block of output columns at a time, 64, or 32 with a FLOAT output or a chain that reads
several matrices: up to 128 bytes of a row. The chain runs on accumulator registers and the results
go to a staging slot (stmatrix for 16-bit outputs). ``store`` "tma": TMA stores the slot and clips
at the edges, except where a row of the result is no multiple of 16 bytes, whose last block is
stored by elements; "direct": all blocks are, to any strides. Values to reduce are folded in fp32
ahead of that.

Split-K in a cluster: a grid of one cluster per tile, so that nothing is exchanged twice. CTA r
finishes the r-th of W shares of the columns; sums are added in a fixed order. K >= W k tiles.

Stream-K (``stream_k``): the tiles of the last waves are shared out to the k tile, see ``raster``. A
CTA of a piece of a tile writes its fp32 sums to ``partials`` and counts itself in ``counters``; the
last to arrive adds the sums of all pieces in the order of K, so the result does not depend on who
is last but on the SM count alone, and runs the epilogue. Nobody waits for another. Counters must be
zero before the launch. Extents, with clusters = max(sm_count // cluster_size, 1), and tiles =
ceil_div(M, tile_m * cluster_m) * ceil_div(N, tile_n * cluster_n) * L:

    partials  FLOAT  2 * min(clusters, tiles * min(ceil_div(K, 16 * tile_k), 8))
                       * cluster_size * tile_m * tile_n                 (16-byte aligned)
    counters  INT32  min(2 * clusters, tiles) * cluster_size

Programmatic dependent launch (not with ``stream_k``, which follows a fill): a kernel that comes
behind this one sets its barriers up while the last tiles are finished, and waits for its end before
it touches memory. With ``prefetch_b``, for matrices of which reading B is most of the time, it asks
L2 for its first tiles of B before that.

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

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.gemm.kernels.raster import Raster, StreamK
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    GROUP_ROWS,
    MATH_REGISTERS,
    PRODUCER_REGISTERS,
    SCALE_ALIGN,
    TURN_BARRIER,
    WARPGROUP,
    Config,
)
from cudnn_aot.recipes.gemm.kernels.sm90_loads import Loads, segment_of
from cudnn_aot.recipes.gemm.kernels.sm90_math import Math
from cudnn_aot.recipes.gemm.kernels.sm90_splits import Splits
from cudnn_aot.recipes.gemm.kernels.sm90_stores import Stores
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel


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
            self.launch(sm_count, a, bs, None, None, stream, tail)

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
            self.launch(sm_count, a, (b,), partials, counters, stream, rest)

    @cute.jit
    def launch(self, sm_count: Int32, a, bs, partials, counters, stream, rest):
        config = self.config
        scales, rest = rest[: self.num_scales], rest[self.num_scales :]
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        stored = tuple(outs[o] for o in config.stored)
        folded = tuple(outs[o] for o in config.folded)
        tile_m, tile_n, tile_k = config.tile
        size_m, size_n, size_k = config.cluster
        a_layout, b_layout = self.math.operand_layouts()
        a_box = self.math.operand_layout(config.a_box, config.a_major, config.a_dtype)
        tma_a, a_tma = self.tma_load(a, a_box, (config.a_box, tile_k), size_n)
        loads = [self.tma_load(b, b_layout, (tile_n, tile_k), size_m) for b in bs]
        tma_bs, bs_tma = tuple(load[0] for load in loads), tuple(load[1] for load in loads)
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
            walk = StreamK.of(items, cute.ceil_div(a.shape[1], tile_k), clusters)
            clusters, streamed = walk.clusters, (walk.whole, walk.shares)
        if items > 0:
            self.kernel(
                tma_a,
                a_tma,
                tma_bs,
                bs_tma,
                tma_outs,
                tma_targets,
                stored,
                folded,
                aux,
                scales,
                partials,
                counters,
                (raster.clusters_m, raster.clusters_n, raster.batches),
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
        folded,
        aux,
        scales,
        partials,
        counters,
        counts,
        extents,
        clusters: Int32,
        streamed,
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
        s_scales = None
        if cutlass.const_expr(config.scales is not None):
            layout = cute.make_layout((config.scale_bytes // 4, config.stages))
            s_scales = smem.allocate_tensor(Float32, layout, SCALE_ALIGN)
        a_layout, b_layout = self.math.operand_layouts()
        s_a = smem.allocate_tensor(config.a_dtype, a_layout.outer, 1024, a_layout.inner)
        s_bs = [
            smem.allocate_tensor(config.b_dtype, b_layout.outer, 1024, b_layout.inner)
            for _ in tma_bs
        ]
        staging = smem.allocate(config.staging_bytes, 1024)
        exchange = scratch = None
        if cutlass.const_expr(config.cluster[2] > 1):
            slots = cute.recast_ptr(smem.allocate(config.exchange_bytes, 16), dtype=Int32)
            exchange = (slots, arrived)
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_init(arrived, 1)
        if cutlass.const_expr(config.fold_bytes > 0):
            scratch = cute.recast_ptr(smem.allocate(config.fold_bytes, 16), dtype=Float32)

        cluster_layout = cute.make_layout((*config.cluster, 1))
        sharing = config.cluster[0] + config.cluster[1] - 1
        pipe = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=config.stages,
            producer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, 1 + (config.scales is not None)
            ),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, sharing * config.tile_groups * (WARPGROUP // 32)
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
        run = None
        if cutlass.const_expr(config.stream_k):
            run = StreamK(raster.items, k_tiles, clusters, *streamed).run(first)

        pipeline.pipeline_init_wait(cluster_shape_mn=config.cluster)
        if cutlass.const_expr(config.cluster[2] > 1):
            if cute.arch.thread_idx()[0] == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, config.exchange_bytes)
        if cutlass.const_expr(not config.stream_k):
            # Nothing of what the kernel before wrote is read, and nothing that it reads is written,
            # ahead of this.
            if cutlass.const_expr(config.prefetch_b):
                if warp == 0:
                    self.loads.prefetch_b(
                        tuple(zip(tma_bs, bs, s_bs, strict=True)), raster, place, first, k_tiles
                    )
            cute.arch.griddepcontrol_wait()

        if warp < WARPGROUP // 32:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                masks = self.loads.multicast_masks(cluster_layout, (*place, 0))
                self.loads.produce(
                    pipe,
                    (tma_a, a, s_a),
                    tuple(zip(tma_bs, bs, s_bs, strict=True)),
                    masks,
                    aux,
                    raster,
                    run,
                    place,
                    first,
                    clusters,
                    k_tiles,
                    extents,
                )
            if cutlass.const_expr(config.scales is not None):
                if warp == 1:
                    self.loads.produce_scales(
                        pipe,
                        scales,
                        s_scales,
                        raster,
                        run,
                        place,
                        first,
                        clusters,
                        k_tiles,
                        extents,
                    )
        else:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_increase(MATH_REGISTERS)
            self.consume(
                pipe,
                s_a,
                s_bs,
                (staging, scratch),
                flag,
                tma_outs,
                tma_targets,
                outs,
                folded,
                aux,
                s_scales,
                (partials, counters),
                exchange,
                raster,
                run,
                place,
                first,
                clusters,
                k_tiles,
                extents,
            )

    name_kernel(kernel, "gemm_sm90")

    @cute.jit
    def consume(
        self,
        pipe,
        s_a,
        s_bs,
        smem,
        flag,
        tma_outs,
        tma_targets,
        outs,
        folded,
        aux,
        s_scales,
        workspace,
        exchange,
        raster,
        run,
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
        start, accumulate = self.math.tiled_mma(False), self.math.tiled_mma(True)
        lane = accumulate.get_slice(0 if config.pingpong else group * WARPGROUP)
        r_a = accumulate.make_fragment_A(lane.partition_A(s_a))
        r_bs = [accumulate.make_fragment_B(lane.partition_B(s_b)) for s_b in s_bs]
        shape = accumulate.partition_shape_C(config.tile[:2])
        accs = [cute.make_rmem_tensor(shape, Float32) for _ in s_bs]
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)

        turn, stop = first, raster.items
        if cutlass.const_expr(config.stream_k):
            first, stop, step = 0, run.items, 1
        if cutlass.const_expr(config.pingpong):
            first, step = first + group * step, 2 * step
            read.advance(group * k_tiles)
            release.advance(group * k_tiles)
        for item in range(first, stop, step):
            segment = segment_of(config, item, run, place, k_tiles)
            tile, begin, end = raster.locate(segment.tile, place), segment.begin, segment.end
            if cutlass.const_expr(config.pingpong):
                if item > turn:
                    cute.arch.barrier(
                        barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARPGROUP
                    )
            view = self.stores.view(tile, place, thread, group, extents)
            if cutlass.const_expr(config.promotes):
                k_range = (begin, end)
                read, release = self.math.promote(
                    pipe, start, accumulate, accs, r_a, r_bs, s_scales, view, k_range, read, release
                )
            else:
                read, release = self.math.accumulate(
                    pipe, start, accumulate, accs, r_a, r_bs, end - begin, read, release
                )
            if cutlass.const_expr(config.pingpong):
                if item + step // 2 < stop:
                    cute.arch.barrier_arrive(
                        barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARPGROUP
                    )
            if cutlass.const_expr(not config.stream_k):
                # The loads of the first block fly while the last steps multiply.
                fetched = self.stores.fetch(aux, view)
            if cutlass.const_expr(not config.promotes):
                warpgroup.wait_group(0)
                pipe.consumer_release(release)
                release.advance()
            if cutlass.const_expr(config.pingpong):
                read.advance(k_tiles)
                release.advance(k_tiles)

            if cutlass.const_expr(config.stream_k):
                if self.splits.over_workspace(accs[0], workspace, flag, run, segment, thread, view):
                    block = self.stores.fetch(aux, view)
                    targets = (tma_outs, tma_targets, outs, folded)
                    self.stores.finish(accs, block, smem, *targets, aux, view)
            else:
                sums = accs
                if cutlass.const_expr(config.cluster[2] > 1):
                    sums = [self.splits.over_cluster(accs[0], exchange, place[2], thread)]
                targets = (tma_outs, tma_targets, outs, folded)
                self.stores.finish(sums, fetched, smem, *targets, aux, view)
        cute.arch.cp_async_bulk_wait_group(0, read=True)


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
    outs = operands.tiled_outputs(config.epilogue, extents, space, config.store == "tma")
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel, one = Sm90Matmul(config), Int32(1)
    if not config.stream_k:
        return KernelTemplate(
            kernel.plain, (one, one, a, stream, *bs, *aux, *outs), config.smem_bytes
        )
    partials = make_fake_tensor(Float32, (cute.sym_int64(),), (1,), assumed_align=16)
    counters = make_fake_tensor(Int32, (cute.sym_int(),), (1,))
    arguments = (one, one, a, *bs, partials, counters, stream, *aux, *outs)
    return KernelTemplate(kernel.stream_k, arguments, config.smem_bytes)
