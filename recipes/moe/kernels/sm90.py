"""Persistent grouped matmul of a mixture of experts for Hopper: TMA or gathered rows in, WGMMA.

Arguments: ``launch, sm_count, groups, token (T, K), weight (N, K, E), offsets (C,), route...,
out (R, N)``. BFLOAT16, HALF, or FP8 of either kind in, fp32 accumulation; every extent is a
run-time value. What offsets and indices mean, and that nothing outside the operands is touched
whatever they are, is as in `simt`; NONE and GATHER write zeros to rows of no group, SCATTER writes
its targets alone, and ``simt.zero`` goes before it.

One launch, and nothing waits for the offsets: each CTA walks a list of tiles that every warp which
needs it makes of the offsets, 32 segments at a time, and keeps its place in. A tile is up to
``tile_m`` rows of one group and ``tile_n`` columns. Tiles of a group run together, in the order of
the matmul's raster, so that those which read the same weights find them in L2.

Roles of a CTA (threads):

* warpgroup 0, producer: a warp issues the TMA loads of B. Rows of a group are contiguous for NONE
  and SCATTER: another warp loads A by TMA, from any first row on, in the boxes of the matmul, and
  fewer than 16 rows behind the group. For GATHER all four warps copy rows by cp.async, 16 bytes a
  thread; a row whose index is no token and what lies past K are zero-filled.
* warpgroups 1..G: math, as in the matmul. Each owns 64 rows of the tile; two that promote sums of
  FP8 take turns.

Rows of a tile behind its group hold anything: what is computed of them is never stored.

Pipelines:

* operands: producer -> math, ``stages`` deep. Full: the bytes of TMA and one arrival, and for
  GATHER one more of each producer warp. WGMMA reads shared memory through another proxy than
  cp.async writes it: a warp waits until its copies of a stage are there, a ``lag`` of stages after
  it issued them, fences, and then arrives. The consumers free a stage when they have issued the
  next: that no side waits for the other takes a lag of ``stages`` - 2 at most; with half as many,
  the math warpgroups have stages in hand. Empty: one arrival per math warp.
* stores: staging slots of each math warpgroup, as in the matmul.

Both sides walk the same tiles, and step through k tiles of each alike: none for rows of no group,
which the math warpgroups store zeros to.

FP8, registers, shared memory: as in the matmul; a producer that gathers keeps 56 registers and
leaves 224 to math.

Stores: 64 rows that all belong to the group by TMA, if the layout of the result allows that; others
row by row, 16 bytes a thread, or by elements where rows are not aligned to that. For SCATTER each
thread loads where its (up to 4) rows go ahead of the main loop.

Preconditions, checked by the compiled wrapper: token, weight and with ``store`` "tma" the output
have 16-byte aligned bases, unit stride on their major axis (K for token, N for the output) and
multiples of 16 bytes on the others. GATHER: K a multiple of 16 bytes.

Floor, H200: touched weights, tokens and results at 4.2 TB/s, or 2 R N K at about 750 TFLOP/s bf16,
twice that FP8. A group of few rows costs its weights: 64 experts of 7168 x 2048 bf16 are 1.88 GB,
447 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import Boolean, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    A_WARP,
    B_WARP,
    GROUP_ROWS,
    MATH_REGISTERS,
    PRODUCER_REGISTERS,
    WARPGROUP,
    Config,
)
from cudnn_aot.recipes.gemm.kernels.sm90_loads import (
    LateArrivals,
    Operand,
    RowLoads,
    load_counts,
    load_rows,
    operand_pipeline,
    tma_load,
    tma_parts,
)
from cudnn_aot.recipes.gemm.kernels.sm90_math import Math, start_turns
from cudnn_aot.recipes.moe.kernels import operands
from cudnn_aot.recipes.moe.kernels.segments import WARP
from cudnn_aot.recipes.moe.kernels.sm90_stores import (
    CHUNK_BYTES,
    NO_ROW,
    RowStores,
    element,
    row_chunks,
)
from cudnn_aot.recipes.moe.kernels.sm90_tiles import Tiles, TileWalk
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel

PRODUCER_WARPS = WARPGROUP // WARP
GATHER_PRODUCER_REGISTERS, GATHER_MATH_REGISTERS = 56, 224
COLUMNS_STEP = 32  # of a tile: a row of a block has pieces for two threads at least


class Sm90Grouped:
    """The traced host and device functions of one configuration."""

    def __init__(self, mode: str, config: Config):
        self.mode, self.config = mode, config
        self.walk, self.math = TileWalk(config, mode), Math(config)
        self.stores = RowStores(config, mode)
        self.gathers = mode == "GATHER"
        self.arrivals = LateArrivals(config.stages, config.stages // 2 - 1, to_wgmma=True)
        self.registers = (
            (GATHER_PRODUCER_REGISTERS, GATHER_MATH_REGISTERS)
            if self.gathers
            else (PRODUCER_REGISTERS, MATH_REGISTERS)
        )

    @cute.jit
    def __call__(
        self,
        launch: Int32,
        sm_count: Int32,
        groups: Int32,
        token: cute.Tensor,
        weight: cute.Tensor,
        offsets: cute.Tensor,
        stream,
        *rest,
    ):
        if launch != 0:
            self.launch(sm_count, groups, token, weight, offsets, rest[:-1], rest[-1], stream)

    @cute.jit
    def launch(
        self,
        sm_count: Int32,
        groups: Int32,
        token: cute.Tensor,
        weight: cute.Tensor,
        offsets: cute.Tensor,
        route,
        out: cute.Tensor,
        stream,
    ):
        config = self.config
        tile_m, tile_n, tile_k = config.tile
        _, b_layout = self.math.operand_layouts()
        tma_b, b = tma_load(weight, b_layout, (tile_n, tile_k))
        tma_as, a = (), token
        if cutlass.const_expr(not self.gathers):
            loads_a = [
                tma_load(
                    token,
                    self.math.operand_layout(box, config.a_major, config.a_dtype),
                    (box, tile_k),
                )
                for box in config.a_boxes
            ]
            tma_as, a = tuple(load[0] for load in loads_a), loads_a[0][1]
        # The stores are those of a matmul, whose result has a batch.
        out = cute.make_tensor(
            out.iterator, cute.make_layout((*out.shape, 1), stride=(*out.stride, 0))
        )
        tma_outs = tma_targets = ()
        if cutlass.const_expr(config.store == "tma" and self.mode != "SCATTER"):
            info = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(),
                out,
                cute.select(self.stores.layout(out.element_type), mode=[0, 1]),
                (GROUP_ROWS, config.block_columns),
            )
            tma_outs, tma_targets = (info[0],), (info[1],)
        rows, n = out.shape[0], out.shape[1]
        tiles_m = cutlass.min(rows, cute.ceil_div(rows, tile_m) + offsets.shape[0])
        blocks = cutlass.min(tiles_m * cute.ceil_div(n, tile_n), cutlass.max(sm_count, 1))
        if blocks > 0:
            self.kernel(
                tma_as,
                a,
                tma_b,
                b,
                (tma_outs, tma_targets, (out,), ()),
                offsets,
                route,
                groups,
                blocks,
            ).launch(
                grid=[blocks, 1, 1],
                block=[config.threads, 1, 1],
                min_blocks_per_mp=1,
                stream=stream,
                use_pdl=True,
            )

    @cute.kernel
    def kernel(
        self,
        tma_as,
        a: cute.Tensor,
        tma_b: cute.CopyAtom,
        b: cute.Tensor,
        outputs,
        offsets: cute.Tensor,
        route,
        groups: Int32,
        blocks: Int32,
    ):
        config = self.config
        tma_outs, _, (out,), _ = outputs
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for atom in (*tma_as, tma_b, *tma_outs):
                cpasync.prefetch_descriptor(atom)

        smem = SmemAllocator()
        barriers = smem.allocate_array(Int64, 2 * config.stages)
        a_layout, b_layout = self.math.operand_layouts()
        s_a = smem.allocate_tensor(config.a_dtype, a_layout.outer, 1024, a_layout.inner)
        s_b = smem.allocate_tensor(config.b_dtype, b_layout.outer, 1024, b_layout.inner)
        staging = smem.allocate(config.staging_bytes, 1024)
        pipe = operand_pipeline(config, barriers, 1 + PRODUCER_WARPS * self.gathers)
        pipeline.pipeline_init_arrive(cluster_shape_mn=config.cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=config.cluster)
        # Nothing of what the kernel before wrote is read, and nothing that it reads is written,
        # ahead of this. The next one may set itself up on what SMs are free.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        operand_b = Operand(tma_b, b, s_b)
        tiles = Tiles(offsets, groups, out, blocks)
        if warp < PRODUCER_WARPS:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_decrease(self.registers[0])
            if cutlass.const_expr(self.gathers):
                self.gather(pipe, a, s_a, operand_b, tiles, route)
            else:
                if warp == A_WARP:
                    self.produce_a(pipe, Operand(tma_as, a, s_a), tiles)
                if warp == B_WARP:
                    self.produce_b(pipe, operand_b, tiles, a.shape[1])
        else:
            if cutlass.const_expr(config.math_groups > 1):
                cute.arch.setmaxregister_increase(self.registers[1])
            self.consume(pipe, (s_a, s_b, staging), tiles, route, outputs, b.shape[1])

    name_kernel(kernel, "moe_sm90")

    def b_tiles(self, operand_b) -> tuple[Any, Any]:
        """Stages of B, and tiles (columns, k, expert) that TMA loads to them."""
        _, tile_n, tile_k = self.config.tile
        tma_b, b, s_b = operand_b
        return tma_parts(tma_b, s_b, cute.local_tile(b, (tile_n, tile_k), (None, None, None)))

    @cute.jit
    def produce_a(self, pipe, operand_a: Operand, tiles: Tiles):
        """Producer warp: bring A to the stages of every tile of this CTA, in order, and say how
        many bytes come to each, those of B too.
        """
        tile_m, _, tile_k = self.config.tile
        boxes = self.config.a_boxes
        row_bytes = tile_k * self.config.a_dtype.width // 8
        tma_as, a, s_a = operand_a
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        cursor, tile = self.walk.first(tiles)
        while tile.exists:
            _, group, row0, _, end = tile
            rows_of_a = cute.domain_offset((row0, 0), a)
            loads_a = []
            for box, tma in zip(boxes, tma_as, strict=True):
                parts = tma_parts(
                    tma,
                    cute.local_tile(s_a, (box, tile_k), (None, 0, None)),
                    cute.local_tile(rows_of_a, (box, tile_k), (None, None)),
                )
                loads_a.append(RowLoads(box, tma, *parts))
            counts, brought = load_counts(boxes, cutlass.min(end - row0, tile_m))
            load_bytes = self.config.stage_bytes - (tile_m - brought) * row_bytes
            for k in range(self.walk.k_tiles(group, a.shape[1])):
                full = pipe.producer_get_barrier(state)
                pipe.sync_object_empty.wait(state.index, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full, load_bytes)
                load_rows(loads_a, counts, Int32(0), k, state.index, full, 0)
                state.advance()
            cursor, tile = self.walk.next(cursor, tiles)

    @cute.jit
    def produce_b(self, pipe, operand_b: Operand, tiles: Tiles, depth: Int32):
        """Another producer warp: bring B, K of it, to the stages of every tile, in order."""
        to, source = self.b_tiles(operand_b)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        cursor, tile = self.walk.first(tiles)
        while tile.exists:
            _, group, _, column, _ = tile
            expert = cutlass.max(group, 0) % operand_b.matrix.shape[2]
            for k in range(self.walk.k_tiles(group, depth)):
                full = pipe.producer_get_barrier(state)
                pipe.sync_object_empty.wait(state.index, state.phase)
                cute.copy(
                    operand_b.tma,
                    source[None, column, k, expert],
                    to[None, state.index],
                    tma_bar_ptr=full,
                )
                state.advance()
            cursor, tile = self.walk.next(cursor, tiles)

    @cute.jit
    def gather(
        self, pipe, token: cute.Tensor, s_a: cute.Tensor, operand_b: Operand, tiles: Tiles, route
    ):
        """Producer warpgroup: A by cp.async from the rows that the index names, B by TMA."""
        config = self.config
        tile_m, tile_n, tile_k = config.tile
        dtype = config.a_dtype
        wide = CHUNK_BYTES * 8 // dtype.width
        chunks = tile_k // wide
        rows_at_once = WARPGROUP // chunks
        passes = tile_m // rows_at_once
        b_bytes = tile_n * tile_k * config.b_dtype.width // 8
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(thread // WARP)
        atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL),
            dtype,
            num_bits_per_copy=8 * CHUNK_BYTES,
        )
        to_a = row_chunks(atom, chunks, wide).get_slice(thread).partition_D(s_a)
        tma_b, b, _ = operand_b
        to_b, from_b = self.b_tiles(operand_b)
        sources = cute.make_rmem_tensor((passes,), Int64)
        inside = cute.make_rmem_tensor((1,), Boolean)
        copied = self.arrivals.start()
        cursor, tile = self.walk.first(tiles)
        while tile.exists:
            _, group, row0, column, end = tile
            row = row0 + thread // chunks
            for i in cutlass.range_constexpr(passes):
                sources[i] = self.source(route[0], row + i * rows_at_once, end, token)
            live = cute.ceil_div(end - row0, rows_at_once)
            tile_b = from_b[None, column, None, cutlass.max(group, 0) % b.shape[2]]
            at = thread % chunks * wide
            for k in range(self.walk.k_tiles(group, token.shape[1])):
                pipe.sync_object_empty.wait(copied.stage.index, copied.stage.phase)
                if warp == 0:
                    full = pipe.producer_get_barrier(copied.stage)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full, b_bytes)
                    cute.copy(
                        tma_b, tile_b[None, k], to_b[None, copied.stage.index], tma_bar_ptr=full
                    )
                k0 = k * tile_k + at
                for i in cutlass.range_constexpr(passes):
                    if i < live:
                        to = to_a[None, i, 0, copied.stage.index]
                        inside[0] = (sources[i] >= 0) & (k0 < token.shape[1])
                        place = Int64(cutlass.select_(inside[0], sources[i] + k0, Int64(0)))
                        source = (token.iterator + place).align(CHUNK_BYTES)
                        cute.copy(atom, cute.make_tensor(source, to.layout), to, pred=inside)
                copied = self.arrivals.commit(pipe, copied)
            cursor, tile = self.walk.next(cursor, tiles)
        self.arrivals.drain(pipe, copied)

    @cute.jit
    def source(self, index: cute.Tensor, row: Int32, end: Int32, token: cute.Tensor) -> Int64:
        """Where the row of token starts that a routed row reads, in elements; negative past the
        group, or for no token.
        """
        source = Int64(NO_ROW)
        if row < end:
            found = element(index, row).to(Int64)
            if (found >= 0) & (found < token.shape[0].to(Int64)):
                source = found * token.stride[0]
        return source

    @cute.jit
    def consume(self, pipe, smem, tiles: Tiles, route, outputs, k: Int32):
        """Math warpgroups: multiply, then finish the tile."""
        config = self.config
        thread = cute.arch.thread_idx()[0] - WARPGROUP
        group = cute.arch.make_warp_uniform(thread // WARPGROUP)
        s_a, s_b, staging = smem
        _, _, (out,), _ = outputs
        mma = self.math.mma(s_a, [s_b], group)
        accs = self.math.accumulators(mma)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
        if cutlass.const_expr(config.takes_turns):
            start_turns(group)
        cursor, tile = self.walk.first(tiles)
        while tile.exists:
            # They fly while the tile is multiplied.
            fetched = self.stores.fetch_targets(tile, route, thread, group)
            k_tiles = self.walk.k_tiles(tile.group, k)
            if cutlass.const_expr(config.promotes):
                span = (Int32(0), k_tiles)
                read, release = self.math.promote(pipe, mma, accs, (), None, span, read, release)
            else:
                if k_tiles > 0:
                    read, release = self.math.accumulate(pipe, mma, accs, k_tiles, read, release)
                    warpgroup.wait_group(0)
                    pipe.consumer_release(release)
                    release.advance()
                else:
                    accs[0].fill(0.0)
            view = self.stores.rows_view(tile, route, fetched, out, thread, group)
            self.stores.finish(accs, [], (staging, None), *outputs, (), (), view)
            cursor, tile = self.walk.next(cursor, tiles)
        cute.arch.cp_async_bulk_wait_group(0, read=True)


def configuration(params: Mapping[str, Any]) -> Config:
    """That of the matmul of one tile; ValueError names the first parameter that is off the menu."""
    if params["tile"][1] % COLUMNS_STEP:
        raise ValueError(f"tile: got {params['tile']}, want a multiple of {COLUMNS_STEP} columns")
    own = {
        "a_dtype": params["token_dtype"],
        "b_dtype": params["weight_dtype"],
        "products": 1,
        "a_major": "k",
        "cluster": [1, 1, 1],
        "stream_k": False,
        "few_rows": False,
        "pingpong": False,
        "epilogue": {
            "inputs": [],
            "nodes": [],
            "outputs": [{"value": 0, "dtype": params["out_dtype"]}],
        },
    }
    return Config.parse(
        own | {name: params[name] for name in ("b_major", "tile", "a_boxes", "store")}
    )


def grouped_matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``moe.kernels.sm90:grouped_matmul``; params as `operands.arguments` has them, and
    ``b_major`` (k or n), ``tile`` (m, n, k), ``a_boxes``, ``store`` (tma or direct).
    """
    config = configuration(params)
    head, tail = operands.tma_arguments(params)
    one, stream = Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True)
    arguments = (one, one, one, *head, stream, *tail)
    return KernelTemplate(Sm90Grouped(params["mode"], config), arguments, config.smem_bytes)
