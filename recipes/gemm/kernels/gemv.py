"""Matmul of a few rows with a pointwise epilogue: B is streamed once, on the CUDA cores.

Arguments: ``launch, a (M, K, La), b (N, K, Lb), aux..., outs...``; A and B contiguous along K,
their bases and other strides multiples of 16 bytes, K a multiple of 8; outputs of any strides.
BFLOAT16 or HALF in; fp32 FMA. Right for any M, meant for at most ``rows``: B is read once per that
many.

Roles: 8 warps. ``k_warps`` of them share ``columns`` columns and take the steps of K in turns, so a
block has ``8 / k_warps`` groups of columns. A lane takes 8 consecutive elements of K of every
column and row; its ``rows x columns`` sums are added over the lanes by shuffles, over the warps of
a group through shared memory. Then lane ``e`` has the result of row ``e // columns`` and runs the
epilogue.

Loads: ``unroll`` steps of ``columns`` 16-byte loads of B are in flight per lane before the first is
used. A comes from L1 after the first warp read it.

Shared memory: 8 x 32 fp32 = 1024 bytes if a group has several warps, else none.
Registers: rows x columns sums, unroll x (columns + rows) x 4 for what was loaded.

Floor: the bytes of B at the bandwidth of memory. 4.8 TB/s are 21 bytes per SM and cycle, which
takes 22 KB in flight at 600 ns; 4 rows of bf16 cost 64 + 32 instructions per lane and 16 bytes, at
1.3 of those per cycle some 60 % of what an SM issues, so more than 4 rows are another kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_stream
from cutlass.memory import SmemAllocator

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.trace.pointwise import DEVICE
from cudnn_aot.recipes.trace.template import KernelTemplate, name_kernel

WARP = 32
WARPS = 8
THREADS = WARP * WARPS
VECTOR = 8  # elements of a 16-byte load

MENU = {"rows": (1, 2, 4), "columns": (1, 2, 4), "k_warps": (1, 2, 4, 8), "unroll": (1, 2, 4)}


class Gemv:
    """The traced host and device functions; what they are specialised on lives in the instance."""

    def __init__(
        self,
        epilogue: Mapping[str, Any],
        rows: int,
        columns: int,
        k_warps: int,
        unroll: int,
    ):
        self.epilogue = epilogue
        self.num_inputs = len(epilogue["inputs"])
        self.rows, self.columns = rows, columns
        self.k_warps, self.unroll = k_warps, unroll
        self.groups = WARPS // k_warps

    @property
    def smem_bytes(self) -> int:
        return WARPS * WARP * 4 if self.k_warps > 1 else 0

    @cute.jit
    def __call__(self, launch: Int32, a: cute.Tensor, b: cute.Tensor, stream, *rest):
        a, b, *rest = batching.nested((a, b, *rest))
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        m, n, matrices = outs[0].shape[0], outs[0].shape[1], batching.count(outs[0].shape[2])
        blocks = cute.ceil_div(m, self.rows) * cute.ceil_div(n, self.groups * self.columns)
        if (launch != 0) & (blocks * matrices > 0):
            self.kernel(a, b, aux, outs).launch(
                grid=[blocks * matrices, 1, 1],
                block=[THREADS, 1, 1],
                stream=stream,
                use_pdl=True,
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, extents = outs[0].shape
        k = a.shape[1]
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        warp, lane = thread // WARP, thread % WARP
        group, turn = warp // self.k_warps, warp % self.k_warps
        blocks_n = cute.ceil_div(n, self.groups * self.columns)
        # Blocks that follow each other read neighbouring columns for the same rows.
        rest = block // blocks_n
        column0 = (block - rest * blocks_n) * (self.groups * self.columns) + group * self.columns
        matrix = rest // cute.ceil_div(m, self.rows)
        row0 = (rest - matrix * cute.ceil_div(m, self.rows)) * self.rows
        batch = batching.place(matrix, extents)

        a_rows = starts(a, [row0 + r for r in range(self.rows)], batch)
        b_rows = starts(b, [column0 + c for c in range(self.columns)], batch)
        sums = cute.make_rmem_tensor((self.rows * self.columns,), Float32)
        sums.fill(0.0)
        # Of what the kernel before wrote or reads, nothing is touched ahead of this.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        step = WARP * VECTOR * self.k_warps
        first = (turn * WARP + lane) * VECTOR
        whole = k - (self.unroll - 1) * step  # from here on a lane has fewer steps than unroll
        for k0 in range(first, whole, self.unroll * step):
            self.add(a, b, a_rows, b_rows, k0, self.unroll, sums)
        if cutlass.const_expr(self.unroll > 1):
            passes = cutlass.max(whole - first + self.unroll * step - 1, 0) // (self.unroll * step)
            for k0 in range(first + passes * self.unroll * step, k, step):
                self.add(a, b, a_rows, b_rows, k0, 1, sums)

        mine = Float32(0.0)
        for e in cutlass.range_constexpr(self.rows * self.columns):
            total = cute.arch.warp_reduction(sums[e], lambda x, y: x + y)
            mine = Float32(cutlass.select_(lane == e, total, mine))
        if cutlass.const_expr(self.k_warps > 1):
            smem = SmemAllocator()
            layout = cute.make_layout((WARPS, WARP), stride=(WARP, 1))
            partial = smem.allocate_tensor(Float32, layout, byte_alignment=16)
            partial[warp, lane] = mine
            cute.arch.sync_threads()
            mine = Float32(0.0)
            for other in cutlass.range_constexpr(self.k_warps):
                mine = mine + partial[group * self.k_warps + other, lane]

        has_one = (lane < self.rows * self.columns) & (turn == 0)
        row = cutlass.select_(has_one, row0 + lane // self.columns, m)  # past the end: not stored
        place = device_epilogue.Block(
            [Int32(row)], [column0 + lane % self.columns], batch, ((0, 0),), (m, n)
        )
        value = cute.make_rmem_tensor((1,), Float32)
        value[0] = mine
        fetched = device_epilogue.fetch(self.epilogue, aux, place)
        results = device_epilogue.run(self.epilogue, fetched, [value.load()])
        for out, result in zip(outs, results, strict=True):
            narrow = cute.make_rmem_tensor((1,), out.element_type)
            narrow.store(DEVICE.narrow(result, out.element_type))
            device_epilogue.store_direct(out, narrow, place)

    name_kernel(kernel, "gemm_gemv")

    @cute.jit
    def add(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        a_rows: cutlass.Constexpr,
        b_rows: cutlass.Constexpr,
        k0: Int32,
        steps: cutlass.Constexpr,
        sums: cute.Tensor,
    ):
        """Add the products of ``steps`` steps of K from ``k0`` on."""
        step = WARP * VECTOR * self.k_warps
        ys = [load(b, b_rows, k0 + i * step) for i in range(steps)]
        xs = [load(a, a_rows, k0 + i * step) for i in range(steps)]
        for i in cutlass.range_constexpr(steps):
            wide_y = [y.load().to(Float32) for y in ys[i]]
            for r in cutlass.range_constexpr(self.rows):
                wide_x = xs[i][r].load().to(Float32)
                for c in cutlass.range_constexpr(self.columns):
                    total = sums[r * self.columns + c]
                    for v in cutlass.range_constexpr(VECTOR):
                        total = cute.math.fma(wide_x[v], wide_y[c][v], total)
                    sums[r * self.columns + c] = total


def starts(t: cute.Tensor, rows: Sequence[Int32], batch: Any) -> list[Int64]:
    """Offsets of rows of an operand; those past the end are its last, whose sums nobody stores."""
    base = batching.offset(batching.inside(batch, t.shape[2]), t.stride[2])
    last = t.shape[0] - 1
    return [base + cutlass.min(row, last).to(Int64) * t.stride[0] for row in rows]


def load(t: cute.Tensor, rows: Sequence[Int64], k0: Int32) -> list[cute.Tensor]:
    """16 bytes from ``k0`` on of each row."""
    loaded = []
    for start in rows:
        pointer = operands.aligned(t.iterator + (start + k0.to(Int64)), 16)
        to = cute.make_rmem_tensor((VECTOR,), t.element_type)
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(VECTOR)), to)
        loaded.append(to)
    return loaded


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.gemv:matmul``; params ``ab_dtype``, ``rows``, ``columns``,
    ``k_warps``, ``unroll``, ``epilogue``, and ``batch_runs``, if any.

    Raises:
        ValueError: a parameter is off the menu.
    """
    for name, values in MENU.items():
        if params[name] not in values:
            wanted = ", ".join(map(str, values))
            raise ValueError(f"{name}: got {params[name]!r}, want one of {wanted}")
    epilogue, dtype = params["epilogue"], operands.named_dtype(params["ab_dtype"])
    space, extents = AddressSpace.gmem, operands.Extents(batching.runs(params))
    a = operands.tma_stride(dtype, (extents.m, extents.k, *extents.own_batch()), 1)
    b = operands.tma_stride(dtype, (extents.n, extents.k, *extents.own_batch()), 1)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.epilogue_outputs(epilogue, extents, space, tma=False)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel = Gemv(epilogue, **{name: params[name] for name in MENU})
    return KernelTemplate(kernel, (Int32(1), a, b, stream, *aux, *outs), kernel.smem_bytes)
