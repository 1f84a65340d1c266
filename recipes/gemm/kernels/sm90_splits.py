"""Sums of the parts of K, on Hopper: over a workspace, or over the blocks of a cluster."""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.gemm.kernels.sm90_config import SPLIT_BARRIER, WARPGROUP, Config

# Of partial sums: all that a thread has of a large tile would take too many registers.
QUADS_IN_FLIGHT = 4


class Splits:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config = config

    @cute.jit
    def over_workspace(
        self,
        acc,
        workspace,
        flag,
        run: cutlass.Constexpr,
        segment: cutlass.Constexpr,
        thread: Int32,
        view: cutlass.Constexpr,
    ):
        """Publish the sums of a piece of a tile; the last to arrive gets the sum of all pieces.

        The first or second piece of a tile publishes nothing where all others have arrived: sums of
        two are the same in either order. A thread's accumulators lie 4 by 4 with those of the other
        threads in between, so that a warp moves 512 contiguous bytes. Threads whose rows lie past
        the result move nothing. Returns whether this CTA finishes the tile: it does one that is in
        one piece.
        """
        config = self.config
        partials, counters = workspace
        math_threads = WARPGROUP * config.math_groups
        quads = cute.size(acc) // 4
        flat = cute.make_tensor(acc.iterator, cute.make_layout((4, quads)))
        by_thread = cute.make_layout((4, quads), stride=(1, 4 * math_threads))
        rank = cute.arch.block_idx_in_cluster()
        has_rows = view.rows[0] < view.extents[0]
        pieces = run.stream_k.pieces(segment.tile)
        others = pieces.count - 1
        is_last = others == 0
        if others > 0:
            mine = run.cluster - pieces.first
            is_behind_two = mine > 1
            streamed = segment.tile - run.stream_k.whole
            counter = counters.iterator + (streamed * config.cluster_size + rank)
            # The flag of the tile before may still be read.
            self.meet(math_threads)
            if thread == 0:
                flag[0] = cute.arch.atomic_add(counter, Int32(0), sem="acquire", scope="gpu")
            self.meet(math_threads)
            if (flag[0] < others) | is_behind_two:
                if has_rows:
                    ours = self.sums_of(partials, pieces.slot(mine), rank, thread)
                    cute.autovec_copy(flat, cute.make_tensor(ours, by_thread))
                cute.arch.fence_acq_rel_gpu()
                self.meet(math_threads)
                if thread == 0:
                    flag[0] = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
                self.meet(math_threads)
            is_last = flag[0] == others
            if is_last & has_rows:
                cute.arch.fence_acq_rel_gpu()
                begin = Int32(0)
                if is_behind_two:
                    begin = Int32(1)
                    theirs = self.sums_of(partials, pieces.slot(0), rank, thread)
                    cute.autovec_copy(cute.make_tensor(theirs, by_thread), flat)
                some = math.gcd(quads, QUADS_IN_FLIGHT)
                part = cute.make_rmem_tensor((4, some), config.acc_dtype)
                for piece in range(begin, pieces.count):
                    if (piece != mine) | is_behind_two:
                        theirs = self.sums_of(partials, pieces.slot(piece), rank, thread)
                        for i in cutlass.range_constexpr(quads // some):
                            source = theirs + i * some * 4 * math_threads
                            layout = cute.make_layout((4, some), stride=by_thread.stride)
                            cute.autovec_copy(cute.make_tensor(source, layout), part)
                            sums = cute.make_tensor(acc.iterator + i * some * 4, part.layout)
                            sums.store(sums.load() + part.load())
        return is_last

    def meet(self, math_threads: int) -> None:
        """All math threads of the CTA wait for each other."""
        cute.arch.barrier(barrier_id=SPLIT_BARRIER, number_of_threads=math_threads)

    def sums_of(self, partials: cute.Tensor, slot: Int32, rank: Int32, thread: Int32):
        """A thread's first sums in the slot of a piece, of which each CTA of a cluster has one."""
        tile_size = self.config.tile[0] * self.config.tile[1]
        number = slot * self.config.cluster_size + rank
        place = number.to(Int64) * tile_size + thread * 4
        return operands.aligned(partials.iterator + place, 16)

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
        mine = cute.make_rmem_tensor((size,), config.acc_dtype)
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
                source = cute.recast_ptr((slots + place).align(16), dtype=config.acc_dtype)
                part = cute.make_rmem_tensor((4,), config.acc_dtype)
                cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), part)
                for i in cutlass.range_constexpr(4):
                    mine[4 * quad + i] = mine[4 * quad + i] + part[i]
        return mine
