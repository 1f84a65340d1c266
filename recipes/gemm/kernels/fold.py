"""The second step of a reduction: what the tiles of a result left, folded into the output.

Arguments: ``launch, count, partials (T, R, L), out (R, L)``; ``count`` is of how many values each
output is the fold, tiles with the rows or columns that are theirs counted whole or in part.
``partials`` is fp32 with ``T`` contiguous, ``out`` has any strides; any extents (T = 0 leaves the
mode's value of none).

Roles: a warp for each output, 8 warps in a block, or, where T is long, all 8 for one: there may be
no more than one output. Lanes take every 32nd or 256th of the T values, then fold across the warp
by shuffles, and the warps in order: the same order at every call of these extents, and no atomics.

Shared memory: a value for each warp. Floor: T R L values are read once, 1/32 or less of what the
result has.
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
from cudnn_aot.recipes.trace import reductions
from cudnn_aot.recipes.trace.pointwise import DEVICE
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel

WARP, WARPS = 32, 8
LONG = 256  # values of an output, beyond which all warps of a block fold them
SMEM_BYTES = WARPS * 4
LOADS = 4  # in flight of a lane


class FoldTiles:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(self, mode: str):
        self.fold = reductions.fold(mode)

    @cute.jit
    def __call__(
        self, launch: Int32, count: Int64, partials: cute.Tensor, out: cute.Tensor, stream
    ):
        (partials,), (out,) = batching.nested((partials,)), batching.nested((out,), before=1)
        team = Int32(1)
        if partials.shape[0] > LONG:
            team = Int32(WARPS)
        blocks = cute.ceil_div(out.shape[0], WARPS // team) * batching.count(out.shape[1])
        if (launch != 0) & (blocks > 0):
            self.kernel(count, partials, out, team).launch(
                grid=[blocks, 1, 1], block=[WARP * WARPS, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(self, count: Int64, partials: cute.Tensor, out: cute.Tensor, team: Int32):
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        lane, warp, rows = thread % WARP, thread // WARP, out.shape[0]
        totals = SmemAllocator().allocate_tensor(Float32, cute.make_layout(WARPS), 16)
        outputs = WARPS // team  # of a block
        blocks_of_one = cute.ceil_div(rows, outputs)
        matrix = block // blocks_of_one
        row = (block - matrix * blocks_of_one) * outputs + warp // team
        batch = batching.place(matrix, out.shape[1])
        total = Float32(self.fold.identity)
        if row < rows:
            start = row.to(Int64) * partials.stride[1]
            start = start + batching.offset(batch, partials.stride[2])
            first, step, tiles = warp % team * WARP + lane, team * WARP, partials.shape[0]
            for t in range(first, tiles, step * LOADS):
                # Clamped, not predicated, so that all loads are in flight together.
                places = [t + i * step for i in range(LOADS)]
                values = [
                    cute.make_tensor(
                        partials.iterator + (start + cutlass.min(place, tiles - 1)),
                        cute.make_layout(1),
                    )[0]
                    for place in places
                ]
                for place, value in zip(places, values, strict=True):
                    inside = DEVICE.select(place < tiles, value, self.fold.identity)
                    total = Float32(self.fold.combine(DEVICE, total, inside))
        total = cute.arch.warp_reduction(total, lambda x, y: self.fold.combine(DEVICE, x, y))
        if team > 1:
            if lane == 0:
                totals[warp] = total
            cute.arch.sync_threads()
            total = totals[0]
            for w in cutlass.range_constexpr(1, WARPS):
                total = Float32(self.fold.combine(DEVICE, total, totals[w]))
        if (row < rows) & (lane == 0) & (warp % team == 0):
            value = self.fold.finish(DEVICE, total, count.to(Float32))
            place = row.to(Int64) * out.stride[0] + batching.offset(batch, out.stride[1])
            target = cute.make_tensor(out.iterator + place, cute.make_layout(1))
            target[0] = DEVICE.narrow(value, out.element_type)

    name_kernel(kernel, "gemm_fold")


def fold(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.fold:fold``; params ``mode`` and ``dtype``, that of the output,
    and ``batch_runs``, if any.
    """
    space, extents = AddressSpace.gmem, operands.Extents(batching.runs(params))
    shape = (extents.m, *extents.batch)
    partials = operands.partials((cute.sym_int(), *shape), space)
    out = operands.any_stride(operands.named_dtype(params["dtype"]), shape, space)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return KernelTemplate(
        FoldTiles(params["mode"]), (Int32(1), Int64(1), partials, out, stream), SMEM_BYTES
    )
