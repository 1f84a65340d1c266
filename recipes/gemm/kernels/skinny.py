"""Matmul of up to 64 rows with a pointwise epilogue: B is streamed once, to the tensor cores.

Arguments: ``launch, a (M, K, La), b (N, K, Lb), aux..., outs...``; A and B contiguous along K,
their bases and other strides multiples of 16 bytes, K a multiple of 32; outputs of any strides.
BFLOAT16 or HALF in, fp32 accumulation. Right for any M, meant for at most ``8 * row_tiles``: B is
read once per that many.

Roles: 8 warps. ``k_warps`` of them share ``16 * column_tiles`` columns and take the steps of K in
turns, so a block has ``8 / k_warps`` groups of columns. Columns of the result are the M of
``mma.m16n8k16``, its rows the N. A step is 32 elements of K: the lane of group ``g = lane / 4`` and
quarter ``q = lane % 4`` loads 16 bytes at ``8 q`` of columns ``g`` and ``g + 8`` of B and of row
``g`` of A. Which element of K stands where in an MMA does not matter as long as A and B agree, so
what a lane loaded is its fragment of two MMAs: nothing goes through shared memory before the end.

Loads: ``unroll`` neighbouring steps are in flight per lane, so a warp reads ``64 * unroll`` bytes
in one piece of each column. A comes from L1 after the first warp read it.

Shared memory: 512 bytes per warp, row tile and column tile for the sums of a group's warps; each
adds and stores its share of them. None if a group is one warp.
Registers: 4 x row_tiles x column_tiles sums, 4 x unroll x (2 column_tiles + row_tiles) loaded.

Floor: the bytes of B at the bandwidth of memory: 4.8 TB/s are 21 bytes per SM and cycle. 64 rows
are then 660 multiply-adds per SM and cycle of the 1000 or so of ``mma.sync``, and A adds 4 bytes
from L1 to each of B (83 of 128 a cycle), half of that with two column tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import warp as warp_mma
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels import stream
from cudnn_aot.recipes.gemm.kernels.stream import THREADS, VECTOR, WARP, WARPS, template
from cudnn_aot.recipes.trace.template import KernelTemplate

STEP = 4 * VECTOR  # of K: a vector for each quarter of a group
TILE_COLUMNS, TILE_ROWS = 16, 8  # of the result, in one MMA
SUMS = 4  # of a lane, per MMA tile
MENU = {
    "row_tiles": (1, 2, 4, 8),
    "column_tiles": (1, 2),
    "k_warps": (1, 2, 4, 8),
    "unroll": (1, 2, 4),
}


class Skinny:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(
        self,
        epilogue: Mapping[str, Any],
        dtype: type,
        row_tiles: int,
        column_tiles: int,
        k_warps: int,
        unroll: int,
    ):
        self.epilogue = epilogue
        self.num_inputs = len(epilogue["inputs"])
        self.dtype = dtype
        self.row_tiles, self.column_tiles = row_tiles, column_tiles
        self.k_warps, self.unroll = k_warps, unroll
        self.groups = WARPS // k_warps
        self.sums = SUMS * row_tiles * column_tiles  # of a lane

    @property
    def smem_bytes(self) -> int:
        return WARPS * WARP * self.sums * 4 if self.k_warps > 1 else 0

    @cute.jit
    def __call__(self, launch: Int32, a: cute.Tensor, b: cute.Tensor, stream, *rest):
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        m, n, batches = outs[0].shape
        blocks = self.blocks_m(m) * self.blocks_n(n) * batches
        if (launch != 0) & (blocks > 0):
            self.kernel(a, b, aux, outs).launch(
                grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream
            )

    def blocks_m(self, m: Int32) -> Int32:
        return cute.ceil_div(m, self.row_tiles * TILE_ROWS)

    def blocks_n(self, n: Int32) -> Int32:
        return cute.ceil_div(n, self.groups * self.column_tiles * TILE_COLUMNS)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, _ = outs[0].shape
        k = a.shape[1]
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        warp, lane = thread // WARP, thread % WARP
        group, turn = warp // self.k_warps, warp % self.k_warps
        quarter, eighth = lane % 4, lane // 4
        rest = block // self.blocks_n(n)
        place = (block - rest * self.blocks_n(n)) * self.groups + group
        column0 = place * (self.column_tiles * TILE_COLUMNS)
        batch = rest // self.blocks_m(m)
        row0 = (rest - batch * self.blocks_m(m)) * (self.row_tiles * TILE_ROWS)

        a_rows = [row0 + t * TILE_ROWS + eighth for t in range(self.row_tiles)]
        b_rows = [column0 + h * TILE_ROWS + eighth for h in range(2 * self.column_tiles)]
        within = (quarter * VECTOR).to(Int64)
        a_starts = stream.starts(a, a_rows, batch, within)
        b_starts = stream.starts(b, b_rows, batch, within)
        sums = [cute.make_rmem_tensor((SUMS,), Float32) for _ in range(self.sums // SUMS)]
        for each in sums:
            each.fill(0.0)
        # The steps that all warps take `unroll` at a time, then what is left, one at a time.
        pass_steps = self.unroll * self.k_warps
        passes = k // STEP // pass_steps
        for p in range(0, passes):
            first = (p * pass_steps + turn * self.unroll) * STEP
            self.add(a, b, a_starts, b_starts, first, self.unroll, sums)
        if cutlass.const_expr(pass_steps > 1):
            for s in range(passes * pass_steps + turn, k // STEP, self.k_warps):
                self.add(a, b, a_starts, b_starts, s * STEP, 1, sums)

        # Each warp of a group ends with its share of the sums; where there are fewer sums than
        # warps, some have none.
        share = max(self.sums // self.k_warps, 1)
        mine = cute.make_rmem_tensor((share,), Float32)
        if cutlass.const_expr(self.k_warps > 1):
            smem = SmemAllocator()
            layout = cute.make_layout((WARPS, self.sums, WARP), stride=(self.sums * WARP, WARP, 1))
            partial = smem.allocate_tensor(Float32, layout, byte_alignment=16)
            for e in cutlass.range_constexpr(self.sums):
                partial[warp, e, lane] = sums[e // SUMS][e % SUMS]
            cute.arch.sync_threads()
            for i in cutlass.range_constexpr(share):
                e = cutlass.min(turn * share + i, self.sums - 1)
                total = Float32(0.0)
                for other in cutlass.range_constexpr(self.k_warps):
                    total = total + partial[group * self.k_warps + other, e, lane]
                mine[i] = total
        else:
            for e in cutlass.range_constexpr(self.sums):
                mine[e] = sums[e // SUMS][e % SUMS]

        rows, columns = self.places(row0, column0, turn * share, share, lane, m)
        pattern = tuple((i, i) for i in range(share))
        mine_at = device_epilogue.Block(rows, columns, batch, pattern, (m, n))
        fetched = device_epilogue.fetch(self.epilogue, aux, mine_at)
        results = device_epilogue.run(self.epilogue, fetched, [mine.load()])
        for out, result in zip(outs, results, strict=True):
            narrow = cute.make_rmem_tensor((share,), out.element_type)
            narrow.store(result.to(out.element_type))
            device_epilogue.store_direct(out, narrow, mine_at)

    def places(
        self, row0: Int32, column0: Int32, first: Int32, count: int, lane: Int32, m: Int32
    ) -> tuple[list[Int32], list[Int32]]:
        """Rows and columns of the result that a lane's sums from ``first`` on belong to.

        Sum e is of tile e / 4: row 2 q + e % 2; column g or, from e % 4 = 2 on, g + 8. A sum that
        there is none of has the row ``m``, past the end, and is not stored.
        """
        rows, columns = [], []
        for i in range(count):
            e = first + i
            tile, within = e // SUMS, e % SUMS
            row = row0 + tile % self.row_tiles * TILE_ROWS + 2 * (lane % 4) + within % 2
            rows.append(Int32(cutlass.select_(e < self.sums, row, m)))
            first_of_tile = column0 + tile // self.row_tiles * TILE_COLUMNS
            columns.append(first_of_tile + within // 2 * 8 + lane // 4)
        return rows, columns

    @cute.jit
    def add(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        a_starts: cutlass.Constexpr,
        b_starts: cutlass.Constexpr,
        k0: Int32,
        steps: cutlass.Constexpr,
        sums: cutlass.Constexpr,
    ):
        """Add the products of ``steps`` neighbouring steps of K from ``k0`` on."""
        atom = cute.make_mma_atom(warp_mma.MmaF16BF16Op(self.dtype, Float32, (16, 8, 16)))
        ys = [stream.load(b, b_starts, k0 + i * STEP) for i in range(steps)]
        xs = [stream.load(a, a_starts, k0 + i * STEP) for i in range(steps)]
        for i in cutlass.range_constexpr(steps):
            for half in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(self.column_tiles):
                    low, high = ys[i][2 * c], ys[i][2 * c + 1]
                    left = cute.make_rmem_tensor((VECTOR,), self.dtype)
                    for pair in cutlass.range_constexpr(2):
                        for v in cutlass.range_constexpr(2):
                            at = 4 * half + 2 * pair + v
                            left[4 * pair + v] = low[at]
                            left[4 * pair + 2 + v] = high[at]
                    for r in cutlass.range_constexpr(self.row_tiles):
                        right = cute.make_rmem_tensor((VECTOR // 2,), self.dtype)
                        for v in cutlass.range_constexpr(VECTOR // 2):
                            right[v] = xs[i][r][4 * half + v]
                        total = sums[c * self.row_tiles + r]
                        cute.mma_atom_call(atom, total, left, right, total)


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.skinny:matmul``; params ``ab_dtype``, ``row_tiles``,
    ``column_tiles``, ``k_warps``, ``unroll`` and ``epilogue``.
    """
    return template(Skinny, MENU, params)
