"""Grouped matmul of a mixture of experts for operands of any layout, groups found on the device.

Arguments: ``launch, groups, token (T, K), weight (N, K, E), offsets (C,), route..., out (R, N)``;
element alignment, any strides, any extents. BFLOAT16, HALF, FLOAT, FP8_E4M3 or FP8_E5M2 in and
out; fp32 FMA on the CUDA cores, so FLOAT inputs keep full precision. Group g is the rows from
``offsets[g]`` to ``offsets[g + 1]``, or to R if there is none, and multiplies by ``weight[g % E]``.

The grid follows from extents alone, so nothing waits for the offsets: groups, and the rows before
and behind them, cut R rows into C + 1 segments, and segments have no more tiles of 64 rows than
``ceil(R / 64) + C``, nor than R. Warp 0 of a block finds its tile by running sums over 32 segments
at a time; blocks past the last tile end there. NONE and GATHER write zeros to rows of no group;
SCATTER writes its targets alone, and ``zero`` (arguments ``launch, out``) goes before it.

Nothing outside the operands is touched whatever the numbers in them are: offsets are clamped to
``0..R`` and to those before them, so that groups are disjoint; a GATHER row whose index is no token
is 0; a SCATTER row whose target is no row is dropped. Of SCATTER rows with one target any one
counts, element by element.

Roles: 256 threads compute a 64 x 64 tile, 4 x 4 outputs each. Per 16 k each thread loads 4 elements
of token and 4 of the weight to registers, then the block computes on the tile in shared memory that
the loads of the step before filled. Lanes run along whichever axis of an operand has the smaller
stride, decided per call.

Shared memory: 2 x 16 x 68 fp32 = 8704 bytes, padded rows of 68 so that float4 reads stay aligned,
and 16 bytes for the tile that was found. Registers: 16 accumulators, 8 staged elements, 8 row
starts.

Floor: as of the any-stride matmul, near a third of the fp32 FMA peak; a group of few rows pays for
64.
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

from cudnn_aot.recipes.moe.kernels import operands, segments
from cudnn_aot.recipes.moe.kernels.segments import WARP
from cudnn_aot.recipes.trace import dtypes
from cudnn_aot.recipes.trace.pointwise import DEVICE
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel
from cudnn_aot.recipes.trace.tile import (
    BLOCK,
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

FOUND_BYTES = 16  # of the tile that a block found
NO_ROW = -1


class SimtGrouped:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(self, mode: str):
        self.mode = mode

    @cute.jit
    def __call__(
        self,
        launch: Int32,
        groups: Int32,
        token: cute.Tensor,
        weight: cute.Tensor,
        offsets: cute.Tensor,
        stream,
        *rest,
    ):
        route, out = rest[:-1], rest[-1]
        rows, n = out.shape
        tiles_m, tiles_n = cute.ceil_div(rows, TILE), cute.ceil_div(n, TILE)
        blocks = cutlass.min(rows, tiles_m + offsets.shape[0]) * tiles_n
        if (launch != 0) & (blocks > 0):
            self.kernel(groups, token, weight, offsets, route, out).launch(
                grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(
        self,
        groups: Int32,
        token: cute.Tensor,
        weight: cute.Tensor,
        offsets: cute.Tensor,
        route,
        out: cute.Tensor,
    ):
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        tiles_n = cute.ceil_div(out.shape[1], TILE)
        smem = SmemAllocator()
        layout = smem_layout()
        s_a = smem.allocate_tensor(Float32, layout, byte_alignment=16)
        s_b = smem.allocate_tensor(Float32, layout, byte_alignment=16)
        found = smem.allocate_tensor(Int32, cute.make_layout(3), byte_alignment=16)
        if thread < WARP:
            self.find(offsets, out.shape[0], block // tiles_n, thread, found)
        cute.arch.sync_threads()
        group, row0, end = found[0], found[1], found[2]
        is_group = (group >= 0) & (group < groups)
        has_work = row0 < end
        if cutlass.const_expr(self.mode == "SCATTER"):
            has_work = has_work & is_group
        if has_work:
            k = Int32(cutlass.select_(is_group, weight.shape[1], Int32(0)))
            expert = cutlass.max(group, 0) % weight.shape[2]
            column0 = block % tiles_n * TILE
            self.tile(token, weight, route, out, s_a, s_b, row0, end, column0, expert, k, thread)

    name_kernel(kernel, "moe_any_stride")

    @cute.jit
    def find(self, offsets: cute.Tensor, rows: Int32, tile: Int32, lane: Int32, found: cute.Tensor):
        """One warp: the group, the first row, and the end of the group that a tile of rows is in;
        no rows where there is no such tile.
        """
        count = offsets.shape[0]
        start, before = Int32(0), Int32(0)  # where the next segment starts; tiles up to there
        for base in range(0, count + 1, WARP):
            segment = base + lane
            first, end = segments.bounds(offsets, rows, base, start, lane)
            tiles = cute.ceil_div(end - first, TILE)
            through = segments.running_sum(tiles, lane) + before
            if (tile < through) & (tile >= through - tiles):
                found[0] = segment - 1
                found[1] = first + (tile - (through - tiles)) * TILE
                found[2] = end
            start = cute.arch.shuffle_sync(end, WARP - 1)
            before = cute.arch.shuffle_sync(through, WARP - 1)
        if (lane == 0) & (tile >= before):
            found[0], found[1], found[2] = Int32(NO_ROW), Int32(0), Int32(0)

    @cute.jit
    def tile(
        self,
        token: cute.Tensor,
        weight: cute.Tensor,
        route,
        out: cute.Tensor,
        s_a: cute.Tensor,
        s_b: cute.Tensor,
        row0: Int32,
        end: Int32,
        column0: Int32,
        expert: Int32,
        k: Int32,
        thread: Int32,
    ):
        """The products of up to 64 rows of one group and 64 columns."""
        n = out.shape[1]
        at_a, at_b = lanes(token, thread), lanes(weight, thread)
        a_rows = [self.source(route, row0 + row, end, token.shape[0]) for row, _ in at_a]
        a_from = [row * token.stride[0] for row in a_rows]
        a_inside = [row >= 0 for row in a_rows]
        matrix = expert.to(Int64) * weight.stride[2]
        b_from = [matrix + (column0 + column).to(Int64) * weight.stride[0] for column, _ in at_b]
        b_inside = [column0 + column < n for column, _ in at_b]

        next_a = cute.make_rmem_tensor((LOADS,), token.element_type)
        next_b = cute.make_rmem_tensor((LOADS,), weight.element_type)
        acc = cute.make_rmem_tensor((BLOCK, BLOCK), Float32)
        acc.fill(0.0)
        tr, tc = corner(thread)
        self.load(token, next_a, a_from, a_inside, at_a, Int32(0), k)
        self.load(weight, next_b, b_from, b_inside, at_b, Int32(0), k)
        for k0 in range(0, k, TILE_K):
            for i in cutlass.range_constexpr(LOADS):
                s_a[at_a[i][0], at_a[i][1]] = dtypes.widen(next_a[i])
                s_b[at_b[i][0], at_b[i][1]] = dtypes.widen(next_b[i])
            cute.arch.sync_threads()
            self.load(token, next_a, a_from, a_inside, at_a, k0 + TILE_K, k)
            self.load(weight, next_b, b_from, b_inside, at_b, k0 + TILE_K, k)
            multiply(s_a, [s_b], [acc], thread)
            cute.arch.sync_threads()

        values = cute.make_rmem_tensor((BLOCK, BLOCK), out.element_type)
        values.store(DEVICE.narrow(acc.load(), out.element_type))
        for r in cutlass.range_constexpr(BLOCK):
            to = self.target(route, row0 + tr + r, end, out.shape[0])
            for c in cutlass.range_constexpr(BLOCK):
                column = column0 + tc + c
                if (to >= 0) & (column < n):
                    place = to * out.stride[0] + column.to(Int64) * out.stride[1]
                    _at(out, place)[0] = values[r, c]

    @cute.jit
    def source(self, route, row: Int32, end: Int32, tokens: Int32) -> Int64:
        """The row of token that a routed row reads; `NO_ROW` past the group, or for no token."""
        source = Int64(NO_ROW)
        if row < end:
            source = row.to(Int64)
            if cutlass.const_expr(self.mode == "GATHER"):
                source = _at(route[0], row.to(Int64) * route[0].stride[0])[0].to(Int64)
                if source >= tokens.to(Int64):
                    source = Int64(NO_ROW)
        return source

    @cute.jit
    def target(self, route, row: Int32, end: Int32, rows: Int32) -> Int64:
        """The row of the output for a routed row; negative past the group, or for no row."""
        target = Int64(NO_ROW)
        if row < end:
            target = row.to(Int64)
            if cutlass.const_expr(self.mode == "SCATTER"):
                index, slot = (
                    _at(each, row.to(Int64) * each.stride[0])[0].to(Int64) for each in route[:2]
                )
                target = index * route[2] + slot
                if target >= rows.to(Int64):
                    target = Int64(NO_ROW)
        return target

    @cute.jit
    def load(self, t: cute.Tensor, to: cute.Tensor, starts, inside, places, k0: Int32, k: Int32):
        """Load a thread's elements of one step of K; zeros outside the operand."""
        for i in cutlass.range_constexpr(LOADS):
            at = k0 + places[i][1]
            to[i] = t.element_type(0.0)
            if inside[i] & (at < k):
                to[i] = _at(t, starts[i] + at.to(Int64) * t.stride[1])[0]


@cute.kernel
def _zero_tile(out: cute.Tensor):
    rows, n = out.shape
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    tiles_n = cute.ceil_div(n, TILE)
    row0 = block // tiles_n * TILE + thread // TILE
    column = block % tiles_n * TILE + thread % TILE
    for i in cutlass.range_constexpr(TILE * TILE // THREADS):
        row = row0 + i * (THREADS // TILE)
        if (row < rows) & (column < n):
            place = row.to(Int64) * out.stride[0] + column.to(Int64) * out.stride[1]
            _at(out, place)[0] = out.element_type(0.0)


name_kernel(_zero_tile, "moe_zero")


@cute.jit
def _zero(launch: Int32, out: cute.Tensor, stream):
    tiles = cute.ceil_div(out.shape[0], TILE) * cute.ceil_div(out.shape[1], TILE)
    if (launch != 0) & (tiles > 0):
        _zero_tile(out).launch(grid=[tiles, 1, 1], block=[THREADS, 1, 1], stream=stream)


def _at(tensor: cute.Tensor, offset: Int64) -> cute.Tensor:
    """The element at an offset in elements."""
    return cute.make_tensor(tensor.iterator + offset, cute.make_layout(1))


def grouped_matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``moe.kernels.simt:grouped_matmul``; params as `operands.arguments` has them."""
    head, tail = operands.arguments(params, AddressSpace.gmem)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    arguments = (Int32(1), Int32(1), *head, stream, *tail)
    return KernelTemplate(SimtGrouped(params["mode"]), arguments, 2 * SMEM_BYTES + FOUND_BYTES)


def zero(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``moe.kernels.simt:zero``; param ``out_dtype``."""
    out = operands.output(params, (cute.sym_int(), cute.sym_int()), AddressSpace.gmem)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return KernelTemplate(_zero, (Int32(1), out, stream), 0)
