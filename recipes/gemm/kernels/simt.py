"""Matmul with a pointwise epilogue for operands that TMA cannot describe: slower, and right for
every layout.

Arguments: ``launch, a (M, K, La), b (N, K, Lb), aux..., outs...``; element alignment, any strides,
any extents (K = 0 runs the epilogue on zeros). BFLOAT16, HALF, FLOAT, FP8_E4M3 or FP8_E5M2 in,
which may differ between A and B; fp32 FMA on the CUDA cores, so FLOAT inputs keep full precision.
INT8 in: INT32 multiply-adds.

Roles: 256 threads compute a 64 x 64 tile, 4 x 4 outputs each; no specialisation. Per 16 k each
thread loads 4 elements of A and 4 of B to registers, then the block computes on the tile in shared
memory that the loads of the step before filled. Lanes run along whichever axis of an operand has
the smaller stride, decided per call.

Shared memory: 2 x 16 x 68 values of 4 bytes = 8704 bytes, padded rows of 68 so that reads of 16
bytes stay aligned.
Registers: 16 accumulators, 8 staged elements.

Floor: fp32 FMA peak of an H200 is 67 TFLOP/s; a 4 x 4 block reads 8 floats of shared memory per 16
FMA, which was expected to cap it near a third (27 TFLOP/s measured at 2048 cubed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_stream
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.trace import dtypes, pointwise
from cudnn_aot.recipes.trace.template import KernelTemplate

THREADS = 256
TILE, TILE_K = 64, 16
BLOCK = 4  # outputs of a thread along each axis
LANES = TILE // BLOCK
PITCH = TILE + 4
LOADS = TILE * TILE_K // THREADS
SMEM_BYTES = 2 * TILE_K * PITCH * 4
PATTERN = tuple((r, c) for r in range(BLOCK) for c in range(BLOCK))


class SimtMatmul:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(self, epilogue: Mapping[str, Any], a_dtype: type):
        self.epilogue = epilogue
        self.sum = dtypes.accumulator(a_dtype)
        self.num_inputs = len(epilogue["inputs"])

    @cute.jit
    def __call__(self, launch: Int32, a: cute.Tensor, b: cute.Tensor, stream, *rest):
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        m, n, batches = outs[0].shape
        tiles = cute.ceil_div(m, TILE) * cute.ceil_div(n, TILE) * batches
        if (launch != 0) & (tiles > 0):
            self.kernel(a, b, aux, outs).launch(
                grid=[tiles, 1, 1], block=[THREADS, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, _ = outs[0].shape
        thread, tile = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        tiles_n = cute.ceil_div(n, TILE)
        tiles_mn = cute.ceil_div(m, TILE) * tiles_n
        batch = tile // tiles_mn
        rest = tile - batch * tiles_mn
        row0, column0 = rest // tiles_n * TILE, rest % tiles_n * TILE

        smem = SmemAllocator()
        layout = cute.make_layout((TILE, TILE_K), stride=(1, PITCH))
        s_a = smem.allocate_tensor(self.sum, layout, byte_alignment=16)
        s_b = smem.allocate_tensor(self.sum, layout, byte_alignment=16)

        k = a.shape[1]
        next_a = cute.make_rmem_tensor((LOADS,), a.element_type)
        next_b = cute.make_rmem_tensor((LOADS,), b.element_type)
        at_a, at_b = self.lanes(a, thread), self.lanes(b, thread)
        acc = cute.make_rmem_tensor((BLOCK, BLOCK), self.sum)
        acc.fill(0)
        tr, tc = thread // LANES * BLOCK, thread % LANES * BLOCK
        self.load(a, next_a, row0, Int32(0), batch, at_a)
        self.load(b, next_b, column0, Int32(0), batch, at_b)
        for k0 in range(0, k, TILE_K):
            for i in cutlass.range_constexpr(LOADS):
                s_a[at_a[i][0], at_a[i][1]] = dtypes.widen(next_a[i], self.sum)
                s_b[at_b[i][0], at_b[i][1]] = dtypes.widen(next_b[i], self.sum)
            cute.arch.sync_threads()
            self.load(a, next_a, row0, k0 + TILE_K, batch, at_a)
            self.load(b, next_b, column0, k0 + TILE_K, batch, at_b)
            for p in cutlass.range_constexpr(TILE_K):
                x = cute.make_rmem_tensor((BLOCK,), self.sum)
                y = cute.make_rmem_tensor((BLOCK,), self.sum)
                cute.autovec_copy(cute.local_tile(s_a[None, p], (BLOCK,), (tr // BLOCK,)), x)
                cute.autovec_copy(cute.local_tile(s_b[None, p], (BLOCK,), (tc // BLOCK,)), y)
                for r in cutlass.range_constexpr(BLOCK):
                    for c in cutlass.range_constexpr(BLOCK):
                        acc[r, c] = dtypes.multiply_add(x[r], y[c], acc[r, c])
            cute.arch.sync_threads()

        rows = [row0 + tr + r for r in range(BLOCK)]
        columns = [column0 + tc + c for c in range(BLOCK)]
        block = cute.make_rmem_tensor((BLOCK * BLOCK,), self.sum)
        for e in cutlass.range_constexpr(BLOCK * BLOCK):
            block[e] = acc[PATTERN[e]]
        mine = device_epilogue.Block(rows, columns, batch, PATTERN, (m, n))
        fetched = device_epilogue.fetch(self.epilogue, aux, mine)
        values = device_epilogue.run(self.epilogue, fetched, block.load())
        for out, value in zip(outs, values, strict=True):
            narrow = cute.make_rmem_tensor((BLOCK * BLOCK,), out.element_type)
            narrow.store(pointwise.DEVICE.narrow(value, out.element_type))
            device_epilogue.store_direct(out, narrow, mine)

    def lanes(self, t: cute.Tensor, thread: Int32) -> list[tuple[Int32, Int32]]:
        """Tile coordinates (row, k) of the elements that a thread loads, consecutive lanes along
        the axis of smaller stride.
        """
        along_k = Boolean(t.stride[1] < t.stride[0])
        places = []
        for i in range(LOADS):
            e = thread + i * THREADS
            row = cutlass.select_(along_k, e // TILE_K, e % TILE)
            k = cutlass.select_(along_k, e % TILE_K, e // TILE)
            places.append((Int32(row), Int32(k)))
        return places

    @cute.jit
    def load(self, t: cute.Tensor, to: cute.Tensor, row0: Int32, k0: Int32, batch: Int32, places):
        """Load a thread's elements of one tile; zeros outside the operand."""
        base = cutlass.min(batch, t.shape[2] - 1).to(Int64) * t.stride[2]
        for i in cutlass.range_constexpr(LOADS):
            row, k = row0 + places[i][0], k0 + places[i][1]
            to[i] = t.element_type(0)
            if (row < t.shape[0]) & (k < t.shape[1]):
                offset = base + row.to(Int64) * t.stride[0] + k.to(Int64) * t.stride[1]
                to[i] = cute.make_tensor(t.iterator + offset, cute.make_layout(1))[0]


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.simt:matmul``; params ``a_dtype``, ``b_dtype`` and ``epilogue``."""
    epilogue = params["epilogue"]
    a_dtype, b_dtype = (operands.named_dtype(params[name]) for name in ("a_dtype", "b_dtype"))
    space, extents = AddressSpace.gmem, operands.Extents()
    a = operands.any_stride(a_dtype, (extents.m, extents.k, cute.sym_int()), space)
    b = operands.any_stride(b_dtype, (extents.n, extents.k, cute.sym_int()), space)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.epilogue_outputs(epilogue, extents, space, tma=False)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel = SimtMatmul(epilogue, a_dtype)
    return KernelTemplate(kernel, (Int32(1), a, b, stream, *aux, *outs), SMEM_BYTES)
