"""Matmul with a pointwise epilogue for the host CPU, compiled by the DSL like the device kernels.

Arguments: ``a (M, K, La), b (N, K, Lb), aux..., outs...``; element alignment, any strides, any
extents (K = 0 runs the epilogue on zeros). Inputs BFLOAT16, HALF, FLOAT, FP8_E4M3 or FP8_E5M2,
which may differ between A and B; fp32 accumulation. Inputs INT8: INT32 accumulation. One thread.

Three loops, chosen per call by the strides it got:

* ``dot``    A and B contiguous along K (``[N, K]`` weights): blocks of 4 x 2 outputs, each an
  8-wide accumulator over K.
* ``axpy``   B contiguous along N: blocks of 4 x 16 outputs, A broadcast from scalars.
* ``any``    everything else, one output at a time.

Floor of one AVX2 core: 2 FMA of 8 lanes a cycle, about 90 GFLOP/s at 2.8 GHz. ``dot`` issues 8 FMA
beside 6 widening loads per 8 k and block, so about half of that while B's rows stream from cache;
widening bf16 is a zero-extend and a shift, FP8 some fifteen instructions.

Only operators, ``cute.math`` and integer bitcasts: device intrinsics abort a host compile. The
object's undefined symbols are libm's and tvm-ffi's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.base_dsl.enums import AddressSpace

from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.trace import dtypes, pointwise
from cudnn_aot.recipes.trace.template import KernelTemplate

DOT_ROWS, DOT_COLUMNS, DOT_WIDTH = 4, 2, 8
AXPY_ROWS, AXPY_WIDTH = 4, 16


class HostMatmul:
    """The traced function; what it is specialised on lives in the instance."""

    def __init__(self, epilogue: Mapping[str, Any], a_dtype: type):
        self.epilogue = epilogue
        self.num_inputs = len(epilogue["inputs"])
        self.sum = dtypes.accumulator(a_dtype)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, *rest):
        aux, outs = rest[: self.num_inputs], rest[self.num_inputs :]
        if a.stride[1] == 1 and b.stride[1] == 1:
            self.dot(a, b, aux, outs)
        elif b.stride[0] == 1:
            self.axpy(a, b, aux, outs)
        else:
            self.any(a, b, aux, outs)

    @cute.jit
    def emit(self, aux, outs, m: Int32, n: Int32, batch: Int32, acc):
        """Run the epilogue for one element and store its outputs."""
        inputs = []
        for entry, value in zip(self.epilogue["inputs"], aux, strict=True):
            inputs.append(value if entry["kind"] == "value" else dtypes.widen(value[m, n, batch]))
        results = pointwise.apply(self.epilogue, acc, inputs, pointwise.HOST)
        for out, value in zip(outs, results, strict=True):
            out[m, n, batch] = pointwise.HOST.narrow(value, out.element_type)

    @cute.jit
    def emit_block(
        self,
        aux,
        outs,
        m: Int32,
        n: Int32,
        batch: Int32,
        acc: cute.Tensor,
        rows: cutlass.Constexpr,
        columns: Int32,
    ):
        """Emit ``rows x columns`` accumulators, the rows of a register tensor ``(rows, width)``.

        In loops: the chain is traced once for a block, not once for an accumulator.
        """
        for r in range(rows):
            for c in range(columns):
                self.emit(aux, outs, m + r, n + c, batch, acc[r, c])

    @cute.jit
    def dot(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, batches = outs[0].shape
        whole = m - m % DOT_ROWS
        for batch in range(batches):
            for i in range(0, whole, DOT_ROWS):
                for j in range(0, n, DOT_COLUMNS):
                    self.dot_block(a, b, aux, outs, i, j, batch, DOT_ROWS)
            for i in range(whole, m):
                for j in range(0, n, DOT_COLUMNS):
                    self.dot_block(a, b, aux, outs, i, j, batch, 1)

    @cute.jit
    def dot_block(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        aux,
        outs,
        i: Int32,
        j: Int32,
        batch: Int32,
        rows: cutlass.Constexpr,
    ):
        n, k = outs[0].shape[1], a.shape[1]
        last = n - 1
        a_rows = [self.k_row(a, i + r, batch) for r in range(rows)]
        b_rows = [self.k_row(b, cutlass.min(j + c, last), batch) for c in range(DOT_COLUMNS)]
        acc = [cute.make_rmem_tensor((DOT_WIDTH,), self.sum) for _ in range(rows * DOT_COLUMNS)]
        for fragment in acc:
            fragment.fill(0)
        whole = k - k % DOT_WIDTH
        for p in range(0, whole, DOT_WIDTH):
            bv = [self.values(row + p, DOT_WIDTH) for row in b_rows]
            for r in cutlass.range_constexpr(rows):
                av = self.values(a_rows[r] + p, DOT_WIDTH)
                for c in cutlass.range_constexpr(DOT_COLUMNS):
                    fragment = acc[r * DOT_COLUMNS + c]
                    fragment.store(dtypes.multiply_add(av, bv[c], fragment.load()))
        sums = [fragment.load().reduce(cute.ReductionOp.ADD, self.sum(0), 0) for fragment in acc]
        for p in range(whole, k):
            for r in cutlass.range_constexpr(rows):
                for c in cutlass.range_constexpr(DOT_COLUMNS):
                    x, y = self.value(a_rows[r] + p), self.value(b_rows[c] + p)
                    sums[r * DOT_COLUMNS + c] = dtypes.multiply_add(x, y, sums[r * DOT_COLUMNS + c])
        block = self.accumulators(rows, DOT_COLUMNS)
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(DOT_COLUMNS):
                block[r, c] = sums[r * DOT_COLUMNS + c]
        columns = cutlass.min(n - j, DOT_COLUMNS)
        self.emit_block(aux, outs, i, j, batch, block, rows, columns)

    def accumulators(self, rows: int, width: int) -> cute.Tensor:
        """Accumulators ``(rows, width)``, rows contiguous, so that loops along them become
        vectors.
        """
        layout = cute.make_layout((rows, width), stride=(width, 1))
        return cute.make_rmem_tensor(layout, self.sum)

    def value(self, at: cute.Pointer) -> Any:
        """An element of an operand, in the type of the accumulators."""
        return dtypes.widen(cute.make_tensor(at, cute.make_layout(1))[0], self.sum)

    def values(self, start: cute.Pointer, count: int) -> Any:
        """A vector of consecutive elements of an operand, in the type of the accumulators."""
        return dtypes.widen(cute.make_tensor(start, cute.make_layout(count)).load(), self.sum)

    def k_row(self, t: cute.Tensor, row: Int32, batch: Int32) -> cute.Pointer:
        """Where a row of a K-contiguous operand starts; a batch of one is read by every batch."""
        offset = (
            row.to(Int64) * t.stride[0] + cutlass.min(batch, t.shape[2] - 1).to(Int64) * t.stride[2]
        )
        return t.iterator + offset

    @cute.jit
    def axpy(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, batches = outs[0].shape
        whole_m, whole_n = m - m % AXPY_ROWS, n - n % AXPY_WIDTH
        for batch in range(batches):
            for i in range(0, whole_m, AXPY_ROWS):
                for j in range(0, whole_n, AXPY_WIDTH):
                    self.axpy_block(a, b, aux, outs, i, j, batch, AXPY_ROWS)
            for i in range(whole_m, m):
                for j in range(0, whole_n, AXPY_WIDTH):
                    self.axpy_block(a, b, aux, outs, i, j, batch, 1)
            for i in range(m):
                for j in range(whole_n, n):
                    self.element(a, b, aux, outs, i, j, batch)

    @cute.jit
    def axpy_block(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        aux,
        outs,
        i: Int32,
        j: Int32,
        batch: Int32,
        rows: cutlass.Constexpr,
    ):
        batch_a = cutlass.min(batch, a.shape[2] - 1)
        columns = b.iterator + j + cutlass.min(batch, b.shape[2] - 1).to(Int64) * b.stride[2]
        acc = [cute.make_rmem_tensor((AXPY_WIDTH,), self.sum) for _ in range(rows)]
        for fragment in acc:
            fragment.fill(0)
        for p in range(a.shape[1]):
            bv = self.values(columns + p.to(Int64) * b.stride[1], AXPY_WIDTH)
            for r in cutlass.range_constexpr(rows):
                x = cute.full_like(bv, dtypes.widen(a[i + r, p, batch_a], self.sum))
                acc[r].store(dtypes.multiply_add(x, bv, acc[r].load()))
        block = self.accumulators(rows, AXPY_WIDTH)
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(AXPY_WIDTH):
                block[r, c] = acc[r][c]
        self.emit_block(aux, outs, i, j, batch, block, rows, AXPY_WIDTH)

    @cute.jit
    def any(self, a: cute.Tensor, b: cute.Tensor, aux, outs):
        m, n, batches = outs[0].shape
        for batch in range(batches):
            for i in range(m):
                for j in range(n):
                    self.element(a, b, aux, outs, i, j, batch)

    @cute.jit
    def element(self, a: cute.Tensor, b: cute.Tensor, aux, outs, i: Int32, j: Int32, batch: Int32):
        batch_a, batch_b = cutlass.min(batch, a.shape[2] - 1), cutlass.min(batch, b.shape[2] - 1)
        acc = self.sum(0)
        for p in range(a.shape[1]):
            x, y = (dtypes.widen(v, self.sum) for v in (a[i, p, batch_a], b[j, p, batch_b]))
            acc = dtypes.multiply_add(x, y, acc)
        self.emit(aux, outs, i, j, batch, acc)


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.host:matmul``; params ``a_dtype``, ``b_dtype`` and ``epilogue``."""
    epilogue = params["epilogue"]
    a_dtype, b_dtype = (operands.named_dtype(params[name]) for name in ("a_dtype", "b_dtype"))
    space, extents = AddressSpace.generic, operands.Extents()
    a = operands.any_stride(a_dtype, (extents.m, extents.k, cute.sym_int()), space)
    b = operands.any_stride(b_dtype, (extents.n, extents.k, cute.sym_int()), space)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.epilogue_outputs(epilogue, extents, space, tma=False)
    return KernelTemplate(HostMatmul(epilogue, a_dtype), (a, b, *aux, *outs), 0)
