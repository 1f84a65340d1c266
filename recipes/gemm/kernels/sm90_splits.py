"""Sums of the parts of K, on Hopper: over a workspace, or over the blocks of a cluster."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cudnn_aot.recipes.gemm.kernels.sm90_config import SPLIT_BARRIER, WARPGROUP, Config


class Splits:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def over_workspace(
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
    def over_cluster(self, acc, exchange, rank: Int32, thread: Int32):
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
