"""What the producer warps of a matmul on Hopper do: TMA loads of A and B, copies of scales."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels.raster import Run, Segment
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    PREFETCHED_K_TILES,
    SCALES_LAG,
    WARP,
    Config,
)


def segment_of(
    config: Config,
    item: Int32,
    run: Run | None,
    place: tuple[Int32, Int32, Int32],
    k_tiles: Int32,
) -> Segment:
    """The tile of an item, by its number, and its k tiles: all, or a CTA's share."""
    if run is not None:
        return run.segment(item)
    if config.cluster[2] == 1:
        return Segment(item, Int32(0), k_tiles)
    split, splits = place[2], Int32(config.cluster[2])
    share, extra = k_tiles // splits, k_tiles % splits
    begin = split * share + cutlass.min(split, extra)
    return Segment(item, begin, begin + share + Int32(split < extra))


class Loads:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config = config

    def multicast_masks(self, cluster_layout: cute.Layout, coordinate: tuple) -> tuple[Any, Any]:
        """Which CTAs of the cluster receive this CTA's slices of A (same rows) and of B."""
        mask_a = mask_b = 0
        if self.config.cluster[1] > 1:
            mask_a = cute.make_layout_image_mask(cluster_layout, coordinate, mode=1)
        if self.config.cluster[0] > 1:
            mask_b = cute.make_layout_image_mask(cluster_layout, coordinate, mode=0)
        return mask_a, mask_b

    def parts_of_b(self, operands_b, place) -> list[Any]:
        """What TMA moves of each B: shared memory (a load, stage), matrix (a load, n, k, batch)."""
        _, tile_n, tile_k = self.config.tile
        return [
            cpasync.tma_partition(
                tma_b,
                place[0],
                cute.make_layout(self.config.cluster[0]),
                cute.group_modes(s_b, 0, 2),
                cute.group_modes(cute.local_tile(b, (tile_n, tile_k), (None, None, None)), 0, 2),
            )
            for tma_b, b, s_b in operands_b
        ]

    @cute.jit
    def prefetch_b(self, operands_b, raster, place, first, k_tiles):
        """Bring the first k tiles of B to L2, where it is of no account who writes them when."""
        if first < raster.items:
            segment = segment_of(self.config, first, None, place, k_tiles)
            tile, begin, end = raster.locate(segment.tile, place), segment.begin, segment.end
            parts = self.parts_of_b(operands_b, place)
            for k in range(begin, cutlass.min(begin + PREFETCHED_K_TILES, end)):
                for (tma_b, b, _), (_, from_b) in zip(operands_b, parts, strict=True):
                    batch = cutlass.min(tile.batch, b.shape[2] - 1)
                    cute.prefetch(tma_b, from_b[None, tile.n, k, batch])

    @cute.jit
    def produce(
        self,
        pipe,
        operand_a,
        operands_b,
        masks,
        aux,
        raster,
        run,
        place,
        first,
        step,
        k_tiles,
        extents,
    ):
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
        parts_b = self.parts_of_b(operands_b, place)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.stages)
        stop = raster.items
        if cutlass.const_expr(self.config.stream_k):
            first, stop, step = 0, run.items, 1
        for item in range(first, stop, step):
            segment = segment_of(self.config, item, run, place, k_tiles)
            tile, begin, end = raster.locate(segment.tile, place), segment.begin, segment.end
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
            # What is unrolled by itself has the same instructions for each k tile, many times over.
            for k in cutlass.range(begin, end, unroll=1):
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
            if cutlass.const_expr(not self.config.pingpong):
                # What the chain reads of matrices is there when the math warpgroups come to it.
                # That may take its time where another tile is multiplied meanwhile.
                corner = (tile.m * tile_m, tile.n * tile_n, tile.batch)
                lane = cute.arch.lane_idx()
                device_epilogue.warm(
                    self.config.epilogue, aux, (tile_m, tile_n), corner, extents, lane
                )
        if cutlass.const_expr(not self.config.stream_k):
            # The next kernel may set itself up: all that this block reads by TMA is on its way.
            cute.arch.griddepcontrol_launch_dependents()
        # A CTA may not exit while others of its cluster still signal its barriers.
        pipe.producer_tail(state)

    @cute.jit
    def produce_scales(
        self, pipe, scales, s_scales, raster, run, place, first, step, k_tiles, extents
    ):
        """Another producer warp: bring the scales of every item's stages, in order."""
        config = self.config
        tile_m, tile_n, tile_k = config.tile
        tensors = config.scales.of_each(scales)
        lane = cute.arch.lane_idx()
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        # Stages that this warp has not arrived at yet, and the next of them.
        late = Int32(0)
        ready = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
        stop = raster.items
        if cutlass.const_expr(config.stream_k):
            first, stop, step = 0, run.items, 1
        for item in range(first, stop, step):
            segment = segment_of(self.config, item, run, place, k_tiles)
            tile, begin, end = raster.locate(segment.tile, place), segment.begin, segment.end
            copies = self.copies_of_scales(tensors, tile, extents, lane)
            for k in range(begin, end):  # kept from being unrolled, it was 5 % slower
                pipe.sync_object_empty.wait(state.index, state.phase)
                block = (k // (config.scales.depth // tile_k)).to(Int64)
                for i in cutlass.range_constexpr(len(copies)):
                    tensor, lanes, begins, at = copies[i]
                    if lane < lanes:
                        source = tensor.iterator + (begins + block * tensor.stride[1])
                        target = s_scales.iterator + s_scales.layout((at, state.index))
                        one = cute.make_layout(1)
                        cute.copy(
                            atom, cute.make_tensor(source, one), cute.make_tensor(target, one)
                        )
                cute.arch.cp_async_commit_group()
                state.advance()
                late = late + 1
                if late > SCALES_LAG:
                    cute.arch.cp_async_wait_group(SCALES_LAG)
                    self.arrive(pipe, ready)
                    ready.advance()
                    late = late - 1
        cute.arch.cp_async_wait_group(0)
        for _ in range(late):
            self.arrive(pipe, ready)
            ready.advance()

    @cute.jit
    def arrive(self, pipe, ready):
        """A warp whose copies to a stage are there says so."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(pipe.producer_get_barrier(ready))

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
