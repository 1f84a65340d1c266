"""Matmuls of one A with a pointwise epilogue and reductions of its values, for operands that TMA
cannot describe: slower, and right for every layout.

Arguments: ``launch, a (M, K, La), b (N, K, Lb)..., scales..., aux..., outs...``; element alignment,
any strides, any extents (K = 0 runs the epilogue on zeros). BFLOAT16, HALF, FLOAT, FP8_E4M3 or
FP8_E5M2 in, which may differ between A and every B; fp32 FMA on the CUDA cores, so FLOAT inputs
keep full precision. INT8 in: INT32 multiply-adds. Of matrices with a scale for each block, the sum
of a block of K is scaled before it is added. In place of an output that is reduced stand its
partial values (T, R, L), which ``fold.py`` folds: for each of the T tiles along the axes that are
reduced, and each of the R rows or columns that are kept.

Roles: 256 threads compute a 64 x 64 tile, 4 x 4 outputs each; no specialisation. Per 16 k each
thread loads 4 elements of A and of each B to registers, then the block computes on the tile in
shared memory that the loads of the step before filled. Lanes run along whichever axis of an operand
has the smaller stride, decided per call.

A reduction of a tile: a thread folds its 4 x 4 values along the axes, 64 threads what 16 of them
left in shared memory, and thread 0 the 64 where both axes go. Values outside the result count as
the mode's identity. The order is fixed.

Shared memory: 16 x 68 values of 4 bytes = 4352 bytes for A and for each B, padded rows of 68 so
that reads of 16 bytes stay aligned; A's is used again, as fp32, for reductions. Registers: for each
product 16 accumulators, with scales 16 more, and 4 staged elements of each operand.

Floor: fp32 FMA peak of an H200 is 67 TFLOP/s; a 4 x 4 block reads 8 floats of shared memory per 16
FMA, which was expected to cap it near a third (27 TFLOP/s measured at 2048 cubed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_stream
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.trace import dtypes, reductions
from cudnn_aot.recipes.trace.pointwise import DEVICE
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel
from cudnn_aot.recipes.trace.tile import (
    BLOCK,
    LANES,
    LOADS,
    SMEM_BYTES,
    THREADS,
    TILE,
    TILE_K,
    corner,
    lanes,
    multiply,
    smem_layout,
)

PATTERN = tuple((r, c) for r in range(BLOCK) for c in range(BLOCK))


class SimtMatmul:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(
        self,
        a_dtype: type,
        products: int,
        scales: operands.Scales | None,
        epilogue: Mapping[str, Any],
    ):
        self.sum = dtypes.accumulator(a_dtype)
        self.products = products
        self.scales = scales
        self.num_scales = scales.count if scales else 0
        self.epilogue = epilogue
        self.num_inputs = len(epilogue["inputs"])

    @cute.jit
    def __call__(self, launch: Int32, a: cute.Tensor, stream, *rest):
        a, *rest = batching.nested((a, *rest))
        bs, tail = rest[: self.products], rest[self.products :]
        scales, tail = tail[: self.num_scales], tail[self.num_scales :]
        aux, outs = tail[: self.num_inputs], tail[self.num_inputs :]
        m, n, matrices = a.shape[0], bs[0].shape[0], batching.count(outs[0].shape[2])
        tiles = cute.ceil_div(m, TILE) * cute.ceil_div(n, TILE) * matrices
        if (launch != 0) & (tiles > 0):
            self.kernel(a, bs, scales, aux, outs).launch(
                grid=[tiles, 1, 1], block=[THREADS, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, bs, scales, aux, outs):
        m, n = a.shape[0], bs[0].shape[0]
        thread, tile = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        tiles_n = cute.ceil_div(n, TILE)
        tiles_mn = cute.ceil_div(m, TILE) * tiles_n
        matrix = tile // tiles_mn
        rest = tile - matrix * tiles_mn
        batch = batching.place(matrix, outs[0].shape[2])
        row0, column0 = rest // tiles_n * TILE, rest % tiles_n * TILE

        smem = SmemAllocator()
        layout = smem_layout()
        s_a = smem.allocate_tensor(self.sum, layout, byte_alignment=16)
        s_bs = [smem.allocate_tensor(self.sum, layout, byte_alignment=16) for _ in bs]

        k = a.shape[1]
        next_a = cute.make_rmem_tensor((LOADS,), a.element_type)
        next_bs = [cute.make_rmem_tensor((LOADS,), b.element_type) for b in bs]
        at_a, at_bs = lanes(a, thread), [lanes(b, thread) for b in bs]
        accs = [cute.make_rmem_tensor((BLOCK, BLOCK), self.sum) for _ in bs]
        for acc in accs:
            acc.fill(0)
        sums = accs
        if cutlass.const_expr(self.scales is not None):
            sums = [cute.make_rmem_tensor((BLOCK, BLOCK), self.sum) for _ in bs]
            for block in sums:
                block.fill(0)
        tr, tc = corner(thread)
        rows = [row0 + tr + r for r in range(BLOCK)]
        columns = [column0 + tc + c for c in range(BLOCK)]
        self.load(a, next_a, row0, Int32(0), batch, at_a)
        for b, next_b, at_b in zip(bs, next_bs, at_bs, strict=True):
            self.load(b, next_b, column0, Int32(0), batch, at_b)
        for k0 in range(0, k, TILE_K):
            for i in cutlass.range_constexpr(LOADS):
                s_a[at_a[i][0], at_a[i][1]] = dtypes.widen(next_a[i], self.sum)
                for s_b, next_b, at_b in zip(s_bs, next_bs, at_bs, strict=True):
                    s_b[at_b[i][0], at_b[i][1]] = dtypes.widen(next_b[i], self.sum)
            cute.arch.sync_threads()
            self.load(a, next_a, row0, k0 + TILE_K, batch, at_a)
            for b, next_b, at_b in zip(bs, next_bs, at_bs, strict=True):
                self.load(b, next_b, column0, k0 + TILE_K, batch, at_b)
            multiply(s_a, s_bs, accs, thread)
            cute.arch.sync_threads()
            if cutlass.const_expr(self.scales is not None):
                after = k0 + TILE_K
                if (after % self.scales.depth == 0) | (after >= k):
                    block = k0 // self.scales.depth
                    self.scale(scales, sums, accs, rows, columns, (m, n), block, batch)

        blocks = [cute.make_rmem_tensor((BLOCK * BLOCK,), self.sum) for _ in bs]
        for acc, block in zip(sums, blocks, strict=True):
            for e in cutlass.range_constexpr(BLOCK * BLOCK):
                block[e] = acc[PATTERN[e]]
        mine = device_epilogue.Block(rows, columns, batch, PATTERN, (m, n))
        fetched = device_epilogue.fetch(self.epilogue, aux, mine)
        values = device_epilogue.run(self.epilogue, fetched, [block.load() for block in blocks])
        for entry, out, value in zip(self.epilogue["outputs"], outs, values, strict=True):
            if cutlass.const_expr("reduce" in entry):
                fold, axes = reductions.fold(entry["reduce"]["mode"]), entry["reduce"]["axes"]
                self.leave(fold, axes, value, mine, out, cute.recast_tensor(s_a, Float32))
            else:
                narrow = cute.make_rmem_tensor((BLOCK * BLOCK,), out.element_type)
                narrow.store(DEVICE.narrow(value, out.element_type))
                device_epilogue.store_direct(out, narrow, mine)

    name_kernel(kernel, "gemm_any_stride")

    @cute.jit
    def scale(self, scales, sums, accs, rows, columns, extents, block: Int32, batch):
        """Add a block of K of every product to the sums, and start the next from zero."""
        tensors = self.scales.of_each(scales)
        inside = [
            [cutlass.min(x, extent - 1) for x in coordinates]
            for coordinates, extent in zip((rows, columns), extents, strict=True)
        ]
        of_a = [self.scales.read(tensors[0], 0, row, block, batch) for row in inside[0]]
        for product in cutlass.range_constexpr(len(accs)):
            matrix = product + 1
            tensor = tensors[matrix]
            of_b = [self.scales.read(tensor, matrix, row, block, batch) for row in inside[1]]
            for r in cutlass.range_constexpr(BLOCK):
                for c in cutlass.range_constexpr(BLOCK):
                    scaled = accs[product][r, c] * of_a[r] * of_b[c]
                    sums[product][r, c] = sums[product][r, c] + scaled
            accs[product].fill(0)

    @cute.jit
    def leave(
        self,
        fold: cutlass.Constexpr,
        axes: cutlass.Constexpr,
        value: Any,
        block: cutlass.Constexpr,
        partials: cute.Tensor,
        smem: cute.Tensor,
    ):
        """Fold the values of the block's tile along the axes, and write what is left."""
        thread = cute.arch.thread_idx()[0]
        values = cute.make_rmem_tensor((BLOCK * BLOCK,), Float32)
        values.store(fold.map(DEVICE, value))
        # A fold along N keeps rows, the others keep columns.
        kept, other = (0, 1) if axes == "n" else (1, 0)
        place = (thread // LANES, thread % LANES)  # of the thread's values, in steps of BLOCK
        inside = [
            [x < extent for x in coordinates]
            for coordinates, extent in zip((block.rows, block.columns), block.extents, strict=True)
        ]
        left = [Float32(fold.identity)] * BLOCK
        for e in cutlass.range_constexpr(BLOCK * BLOCK):
            r, c = PATTERN[e]
            x = DEVICE.select(inside[0][r] & inside[1][c], values[e], fold.identity)
            left[PATTERN[e][kept]] = fold.combine(DEVICE, left[PATTERN[e][kept]], x)
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(BLOCK):
            smem[place[kept] * BLOCK + i, place[other]] = left[i]
        cute.arch.sync_threads()
        tile = [coordinates[0] // TILE for coordinates in (block.rows, block.columns)]
        if thread < TILE:
            total = Float32(fold.identity)
            for i in cutlass.range_constexpr(LANES):
                total = fold.combine(DEVICE, total, smem[thread, i])
            if cutlass.const_expr(axes == "mn"):
                smem[thread, 0] = total
            else:
                at = tile[kept] * TILE + thread
                if at < block.extents[kept]:
                    device_epilogue.write_partial(partials, tile[other], at, block.batch, total)
        if cutlass.const_expr(axes == "mn"):
            cute.arch.sync_threads()
            if thread == 0:
                total = Float32(fold.identity)
                for i in cutlass.range_constexpr(TILE):
                    total = fold.combine(DEVICE, total, smem[i, 0])
                across = cute.ceil_div(block.extents[1], TILE)
                number = tile[0] * across + tile[1]
                device_epilogue.write_partial(partials, number, Int32(0), block.batch, total)

    @cute.jit
    def load(self, t: cute.Tensor, to: cute.Tensor, row0: Int32, k0: Int32, batch, places):
        """Load a thread's elements of one tile; zeros outside the operand."""
        base = batching.offset(batching.inside(batch, t.shape[2]), t.stride[2])
        for i in cutlass.range_constexpr(LOADS):
            row, k = row0 + places[i][0], k0 + places[i][1]
            to[i] = t.element_type(0)
            if (row < t.shape[0]) & (k < t.shape[1]):
                offset = base + row.to(Int64) * t.stride[0] + k.to(Int64) * t.stride[1]
                to[i] = cute.make_tensor(t.iterator + offset, cute.make_layout(1))[0]


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.simt:matmul``; params ``a_dtype``, ``b_dtype``, ``products``,
    ``scales`` and ``batch_runs``, if any, and ``epilogue``.
    """
    epilogue, scales = params["epilogue"], operands.Scales.parse(params)
    runs = batching.runs(params)
    space, extents = AddressSpace.gmem, operands.Extents(runs)
    a, *bs = operands.matrices(params, extents, space)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.tiled_outputs(epilogue, extents, space, tma=False)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    function = SimtMatmul(a.element_type, params["products"], scales, epilogue)
    aux = [*(scales.tensors(space, runs) if scales else ()), *aux]
    smem_bytes = (1 + params["products"]) * SMEM_BYTES
    return KernelTemplate(function, (Int32(1), a, stream, *bs, *aux, *outs), smem_bytes)
