"""What the producer warps of a matmul on Hopper do: TMA loads of A and B, copies of scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, Int8, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum

from cudnn_aot.recipes.gemm.kernels import batching
from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels.raster import Walk
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    GROUP_ROWS,
    GROUP_WARPS,
    PREFETCHED_K_TILES,
    SCALES_LAG,
    STORE_BYTES,
    SWIZZLE_BYTES,
    WARP,
    Config,
)

# The L2 policy that ``createpolicy.fractional.L2::evict_first`` makes of all that is touched.
EVICT_FIRST = 0x12F0000000000000


class Operand(NamedTuple):
    """A or a B: the atom of TMA, of A one for each of the boxes, the matrix as that sees it (rows,
    k, batch), and the stages in shared memory (rows, k, stage).
    """

    tma: Any
    matrix: cute.Tensor
    stages: cute.Tensor


def tma_load(
    tensor: cute.Tensor, layout: Any, box: tuple[int, int], sharers: int = 1
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """TMA atom and coordinate tensor of an operand whose stages ``layout`` has, a box a load;
    ``sharers`` CTAs load a slice of it each.
    """
    op = (
        cpasync.CopyBulkTensorTileG2SOp()
        if sharers == 1
        else cpasync.CopyBulkTensorTileG2SMulticastOp()
    )
    stage = cute.select(layout, mode=[0, 1])
    info = cpasync.make_tiled_tma_atom(op, tensor, stage, box, num_multicast=sharers)
    return info[0], info[1]


def operand_pipeline(
    config: Config, barriers: cute.Pointer, arrivals: int
) -> pipeline.PipelineTmaAsync:
    """That of the stages, each of which is full after so many arrivals and the bytes of TMA. It may
    be used when every CTA of the cluster is behind this.
    """
    sharing = config.cluster[0] + config.cluster[1] - 1
    return pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        consumer_group=pipeline.CooperativeGroup(
            pipeline.Agent.Thread, sharing * config.tile_groups * GROUP_WARPS
        ),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, *config.cluster[:2], 1)),
        defer_sync=True,
    )


def piped_layout(config: Config, rows: int) -> Any:
    """Swizzled shared-memory layout (rows, columns, 1) of a part of the piped input."""
    kind = sm90_utils.get_smem_layout_atom(
        LayoutEnum.ROW_MAJOR, config.piped_dtype, config.piped_columns
    )
    atom = warpgroup.make_smem_layout_atom(kind, config.piped_dtype)
    return cute.tile_to_shape(atom, (rows, config.piped_columns, 1), order=(0, 1, 2))


def piped_part(
    config: Config, bases: tuple[Int32, Int32], stage: Int32, part: Any, group: Any = None
) -> cute.Tensor:
    """A part of a stage, all rows of it or those of a math warpgroup; ``bases`` are the addresses
    of the stages of A and of the first B.
    """
    at_a, at_b = config.piped_at(stage, part)
    address = bases[0] + at_a
    if isinstance(part, int):
        address = address if part == 0 else bases[1] + at_b
    else:
        address = cutlass.select_(part == 0, address, bases[1] + at_b)
    rows = config.tile[0] if group is None else GROUP_ROWS
    if group is not None:
        address += group * (GROUP_ROWS * STORE_BYTES)
    layout = piped_layout(config, rows)
    raw = cute.make_ptr(Int8, address, AddressSpace.smem, assumed_align=SWIZZLE_BYTES)
    pointer = cute.recast_ptr(raw, layout.inner, dtype=config.piped_dtype)
    return cute.make_tensor(pointer, layout.outer)


def tma_parts(
    tma: cute.CopyAtom, stages: cute.Tensor, tiles: cute.Tensor, which: Any = 0, sharers: int = 1
) -> tuple[Any, Any]:
    """What TMA moves, in shared memory and in a matrix: their first two modes become one, a load,
    or that slice of it which the CTA brings that is the ``which``-th of ``sharers``.
    """
    return cpasync.tma_partition(
        tma,
        which,
        cute.make_layout(sharers),
        cute.group_modes(stages, 0, 2),
        cute.group_modes(tiles, 0, 2),
    )


class RowLoads(NamedTuple):
    """Loads of so many rows of A each: what TMA moves of them, in shared memory (a load, its place,
    stage) and in the matrix (a load, its place, k).
    """

    box: int
    tma: cute.CopyAtom
    to: Any
    source: Any


def load_counts(boxes: Sequence[int], rows: Int32) -> tuple[list[Int32], Int32]:
    """How many loads of each of these numbers of rows bring a tile's ``rows``, and how many rows
    that are: the fewest loads with less rows outside than the smallest load has, as those outside
    take longer.
    """
    counts: list[Int32] = []
    brought: Any = 0
    for box in boxes:
        count = (cutlass.max(rows - brought, 0) + boxes[-1] - 1) // box
        counts.append(count)
        brought = brought + count * box
    return counts, brought


@cute.jit
def load_rows(loads: Sequence[RowLoads], counts, first: Int32, k: Int32, stage: Int32, full, mask):
    """Bring the rows of a tile from ``first`` on to a stage."""
    start = Int32(0)
    for i in cutlass.range_constexpr(len(loads)):
        box, tma, to, source = loads[i]
        for load in range(counts[i]):
            cute.copy(
                tma,
                source[None, (first + start) // box + load, k],
                to[None, start // box + load, stage],
                tma_bar_ptr=full,
                mcast_mask=mask,
            )
        start = start + counts[i] * box


class Copied(NamedTuple):
    """Where a warp is that copies to stages: how many it has copied to and not arrived at, the next
    to copy to, and the next to arrive at.
    """

    late: Int32
    stage: pipeline.PipelineState
    ready: pipeline.PipelineState


class LateArrivals:
    """How a warp that copies to stages by cp.async arrives at them: it waits for the copies to one
    when it has issued those to ``lag`` more, and then one lane arrives. With ``to_wgmma`` what was
    copied is read through another proxy than cp.async writes it.
    """

    def __init__(self, stages: int, lag: int, to_wgmma: bool):
        self.stages, self.lag, self.to_wgmma = stages, lag, to_wgmma

    def start(self) -> Copied:
        stage, late = self.first(), Int32(0)
        return Copied(late, stage, self.first())

    def first(self) -> pipeline.PipelineState:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)

    @cute.jit
    def commit(self, pipe, copied: Copied):
        """All copies to a stage are issued: arrive at the one ``lag`` before it."""
        late, stage, ready = copied
        cute.arch.cp_async_commit_group()
        stage.advance()
        late = late + 1
        if late > self.lag:
            cute.arch.cp_async_wait_group(self.lag)
            self.arrive(pipe, ready)
            ready.advance()
            late = late - 1
        return Copied(late, stage, ready)

    @cute.jit
    def drain(self, pipe, copied: Copied):
        """Wait for all copies, and arrive at the stages that are left."""
        late, _, ready = copied
        cute.arch.cp_async_wait_group(0)
        for _ in range(late):
            self.arrive(pipe, ready)
            ready.advance()

    @cute.jit
    def arrive(self, pipe, stage: pipeline.PipelineState):
        if cutlass.const_expr(self.to_wgmma):
            cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(pipe.producer_get_barrier(stage))


class Loads:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config = config
        self.scales_arrivals = LateArrivals(config.stages, SCALES_LAG, to_wgmma=False)

    def multicast_masks(self, place: tuple[Int32, ...]) -> tuple[Any, Any]:
        """Which CTAs of the cluster receive this CTA's slices of A (same rows) and of B."""
        layout, coordinate = cute.make_layout((*self.config.cluster, 1)), (*place, 0)
        mask_a = mask_b = 0
        if self.config.cluster[1] > 1:
            mask_a = cute.make_layout_image_mask(layout, coordinate, mode=1)
        if self.config.cluster[0] > 1:
            mask_b = cute.make_layout_image_mask(layout, coordinate, mode=0)
        return mask_a, mask_b

    def parts_of_b(self, bs: Sequence[Operand], place: tuple[Int32, ...]) -> list[Any]:
        """What TMA moves of each B: shared memory (a load, stage), matrix (a load, n, k, batch)."""
        _, tile_n, tile_k = self.config.tile
        return [
            tma_parts(
                b.tma,
                b.stages,
                cute.local_tile(b.matrix, (tile_n, tile_k), (None, None, None)),
                place[0],
                self.config.cluster[0],
            )
            for b in bs
        ]

    def tiles_of_b(self, bs: Sequence[Operand], parts: list[Any], tile) -> list[Any]:
        """Of what TMA moves of each B in the matrix, that of a tile: (a load, k)."""
        return [
            source[None, tile.n, None, batching.inside(tile.batch, b.matrix.shape[2])]
            for b, (_, source) in zip(bs, parts, strict=True)
        ]

    def load_b(self, bs: Sequence[Operand], parts, tiles, k: Int32, stage: Int32, full, mask):
        """Bring a k tile of each B to a stage. With few rows it is read once, or by blocks that run
        at the same time, and L2 evicts it first.
        """
        policy = {"cache_policy": Int64(EVICT_FIRST)} if self.config.few_rows else {}
        for b, (to, _), tile in zip(bs, parts, tiles, strict=True):
            source, target = tile[None, k], to[None, stage]
            cute.copy(b.tma, source, target, tma_bar_ptr=full, mcast_mask=mask, **policy)

    @cute.jit
    def prefetch_b(self, bs: Sequence[Operand], walk: Walk):
        """Bring the first k tiles of B to L2, where it is of no account who writes them when."""
        if walk.first < walk.stop:
            segment = walk.segment(walk.first)
            tile, begin = walk.tile(segment), segment.begin
            parts = self.parts_of_b(bs, walk.place)
            for k in range(begin, cutlass.min(begin + PREFETCHED_K_TILES, segment.end)):
                for b, (_, from_b) in zip(bs, parts, strict=True):
                    batch = batching.inside(tile.batch, b.matrix.shape[2])
                    cute.prefetch(b.tma, from_b[None, tile.n, k, batch])

    @cute.jit
    def produce_a(self, pipe, a: Operand, bs: Sequence[Operand], piped, walk: Walk, aux, extents):
        """Producer warp: bring A, and those B that have no warp of their own, to the stages of
        every item of this CTA, in order, and say how many bytes come to each, of all. Behind those
        of K come those of the input that is ``piped``, if there is one.
        """
        tile_m, tile_n, tile_k = self.config.tile
        row_bytes = tile_k * self.config.a_dtype.width // 8
        masks = self.multicast_masks(walk.place)
        boxes = self.config.a_boxes
        parts_a = [
            tma_parts(
                tma,
                cute.local_tile(a.stages, (box, tile_k), (None, 0, None)),
                cute.local_tile(a.matrix, (box, tile_k), (None, None, None)),
                walk.place[1],
                self.config.cluster[1],
            )
            for box, tma in zip(boxes, a.tma, strict=True)
        ]
        parts_b = self.parts_of_b(bs, walk.place)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        for item in range(walk.first, walk.stop, walk.step):
            segment = walk.segment(item)
            tile = walk.tile(segment)
            batch_a = batching.inside(tile.batch, a.matrix.shape[2])
            loads_a = [
                RowLoads(box, tma, to, source[None, None, None, batch_a])
                for box, tma, (to, source) in zip(boxes, a.tma, parts_a, strict=True)
            ]
            tiles_b = self.tiles_of_b(bs, parts_b, tile)
            # Rows that are not loaded keep what they held: their results are never stored.
            row0, counts, brought = tile.m * tile_m, [Int32(1)], Int32(tile_m)
            if cutlass.const_expr(len(boxes) > 1):
                rows = cutlass.min(a.matrix.shape[0] - row0, tile_m)
                counts, brought = load_counts(boxes, rows)
            # What is unrolled by itself has the same instructions for each k tile, many times over.
            for k in cutlass.range(segment.begin, segment.end, unroll=1):
                full = pipe.producer_get_barrier(state)
                if cutlass.const_expr(len(boxes) == 1):
                    pipe.producer_acquire(state)
                else:
                    pipe.sync_object_empty.wait(state.index, state.phase)
                    with cute.arch.elect_one():
                        load_bytes = self.config.stage_bytes - (tile_m - brought) * row_bytes
                        cute.arch.mbarrier_arrive_and_expect_tx(full, load_bytes)
                load_rows(loads_a, counts, row0, k, state.index, full, masks[0])
                self.load_b(bs, parts_b, tiles_b, k, state.index, full, masks[1])
                state.advance()
            for stage in cutlass.range_constexpr(self.config.piped_stages):
                self.load_piped(pipe, piped, stage, tile, state)
                state.advance()
            if cutlass.const_expr(not self.config.pingpong):
                # What the chain reads of matrices is there when the math warpgroups come to it.
                # That may take its time where another tile is multiplied meanwhile.
                corner = (tile.m * tile_m, tile.n * tile_n, tile.batch)
                lane = cute.arch.lane_idx()
                device_epilogue.warm(
                    self.config.epilogue, aux, (tile_m, tile_n), corner, extents, lane
                )
        if cutlass.const_expr(not self.config.stream_k):
            # The next kernel may set itself up: all of A is on its way, and B as good as that.
            cute.arch.griddepcontrol_launch_dependents()
        # A CTA may not exit while others of its cluster still signal its barriers.
        pipe.producer_tail(state)

    @cute.jit
    def load_piped(self, pipe, piped, number: cutlass.Constexpr, tile, state):
        """Bring what the ``number``-th stage has of a tile of the piped input."""
        config = self.config
        tile_m, tile_n, _ = config.tile
        tma, matrix, bases = piped
        first = number * config.stage_parts
        parts = min(config.stage_parts, config.piped_parts - first)
        full = pipe.producer_get_barrier(state)
        pipe.sync_object_empty.wait(state.index, state.phase)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, parts * tile_m * STORE_BYTES)
        mine = cute.domain_offset((0, tile.n * tile_n, 0), matrix)
        boxes = cute.local_tile(mine, (tile_m, config.piped_columns), (None, None, None))
        for part in cutlass.range_constexpr(parts):
            to, source = tma_parts(tma, piped_part(config, bases, state.index, part), boxes)
            place = (None, tile.m, first + part, tile.batch)
            cute.copy(tma, source[place], to[None, 0], tma_bar_ptr=full)

    @cute.jit
    def produce_b(self, pipe, bs: Sequence[Operand], walk: Walk):
        """Another producer warp: bring each B to the stages of every item, in order."""
        _, mask = self.multicast_masks(walk.place)
        parts = self.parts_of_b(bs, walk.place)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        for item in range(walk.first, walk.stop, walk.step):
            segment = walk.segment(item)
            tile = walk.tile(segment)
            tiles = self.tiles_of_b(bs, parts, tile)
            for k in cutlass.range(segment.begin, segment.end, unroll=1):
                full = pipe.producer_get_barrier(state)
                pipe.sync_object_empty.wait(state.index, state.phase)
                self.load_b(bs, parts, tiles, k, state.index, full, mask)
                state.advance()
            if cutlass.const_expr(self.config.piped_stages > 0):
                state.advance(self.config.piped_stages)

    @cute.jit
    def produce_scales(self, pipe, scales, s_scales, walk: Walk, extents):
        """Another producer warp: bring the scales of every item's stages, in order."""
        config = self.config
        tile_m, tile_n, tile_k = config.tile
        tensors = config.scales.of_each(scales)
        lane = cute.arch.lane_idx()
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
        copied = self.scales_arrivals.start()
        for item in range(walk.first, walk.stop, walk.step):
            segment = walk.segment(item)
            tile = walk.tile(segment)
            copies = self.copies_of_scales(tensors, tile, extents, lane)
            # The compiler may unroll it: kept from that, it was 5 % slower.
            for k in range(segment.begin, segment.end):
                pipe.sync_object_empty.wait(copied.stage.index, copied.stage.phase)
                block = (k // (config.scales.depth // tile_k)).to(Int64)
                for i in cutlass.range_constexpr(len(copies)):
                    tensor, lanes, begins, at = copies[i]
                    if lane < lanes:
                        source = tensor.iterator + (begins + block * tensor.stride[1])
                        target = s_scales.iterator + s_scales.layout((at, copied.stage.index))
                        one = cute.make_layout(1)
                        cute.copy(
                            atom, cute.make_tensor(source, one), cute.make_tensor(target, one)
                        )
                copied = self.scales_arrivals.commit(pipe, copied)
        self.scales_arrivals.drain(pipe, copied)

    def copies_of_scales(self, tensors, tile, extents, lane: Int32) -> list[tuple[Any, ...]]:
        """Of each copy of a warp: the scales, how many lanes take part, where in memory their
        scales along K start, and their places in a stage.
        """
        tile_m, tile_n, _ = self.config.tile
        scales, groups = self.config.scales, self.config.scale_groups
        assert scales is not None
        parts = [(0, i, WARP, tile.m * tile_m + i + lane) for i in range(0, tile_m, WARP)]
        column = tile.n * tile_n + lane * self.config.scale_columns
        for p in range(self.config.products):
            parts.append((1 + p, tile_m + p * groups, groups, column))
        return [
            (
                tensors[matrix],
                lanes,
                scales.of_row(
                    tensors[matrix],
                    matrix,
                    cutlass.min(row, extents[min(matrix, 1)] - 1),
                    tile.batch,
                ),
                place + lane,
            )
            for matrix, place, lanes, row in parts
            if tensors[matrix] is not None
        ]
