"""Grouped matmul of a mixture of experts for the host CPU, compiled by the DSL like the device
kernels.

Arguments: ``groups, token (T, K), weight (N, K, E), offsets (C,), route..., out (R, N)``; element
alignment, any strides, any extents. BFLOAT16, HALF, FLOAT, FP8_E4M3 or FP8_E5M2 in and out, fp32
accumulation, one thread. Group g is the rows from ``offsets[g]`` to ``offsets[g + 1]``, or to R if
there is none, and multiplies by ``weight[g % E]``.

Nothing outside the operands is touched whatever the numbers in them are: offsets are clamped to
``0..R`` and to those before them, so that groups are disjoint; a GATHER row whose index is no token
is 0; a SCATTER row whose target is no row is dropped. Rows that nothing reaches are 0. Of SCATTER
rows with one target the last one counts.

Three loops over the rows of a group, chosen per call by the strides it got:

* ``dot``    token and weight contiguous along K: blocks of 4 x 2 outputs, each an 8-wide fp32
  accumulator over K.
* ``axpy``   weight contiguous along N: blocks of 4 x 16 outputs, token broadcast from scalars.
* ``any``    everything else, one output at a time.

Floor of one AVX2 core: as of the matmul for the host, about half of 90 GFLOP/s for ``dot``. A
weight is read once per 4 rows of its group.

Only operators, ``cute.math`` and integer bitcasts: device intrinsics abort a host compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace

from cudnn_aot.recipes.moe.kernels import operands
from cudnn_aot.recipes.trace import pointwise
from cudnn_aot.recipes.trace.template import KernelTemplate

ROWS = 4  # of a block
DOT_COLUMNS, DOT_WIDTH = 2, 8
AXPY_WIDTH = 16


class HostGrouped:
    """The traced function; what it is specialised on lives in the instance."""

    def __init__(self, mode: str):
        self.mode = mode

    @cute.jit
    def __call__(
        self, groups: Int32, token: cute.Tensor, weight: cute.Tensor, offsets: cute.Tensor, *rest
    ):
        route, out = rest[:-1], rest[-1]
        rows, count = out.shape[0], offsets.shape[0]
        if cutlass.const_expr(self.mode == "SCATTER"):
            self.zero(out, Int32(0), rows)
        start = Int32(0)
        # Rows before the first offset are in no group, as are those after the last boundary.
        for segment in range(count + 1):
            end = rows
            if segment < count:
                offset = offsets[segment].to(Int64)
                end = cutlass.min(cutlass.max(offset, start.to(Int64)), rows.to(Int64)).to(Int32)
            group = segment - 1
            if (group >= 0) & (group < groups) & (token.shape[0] > 0):
                expert = group - group // weight.shape[2] * weight.shape[2]
                self.group(token, weight, route, out, start, end, expert)
            elif cutlass.const_expr(self.mode != "SCATTER"):
                self.zero(out, start, end)
            start = end

    @cute.jit
    def zero(self, out: cute.Tensor, start: Int32, end: Int32):
        for i in range(start, end):
            for j in range(out.shape[1]):
                self.store(out, i, j, Float32(0.0))

    @cute.jit
    def store(self, out: cute.Tensor, i: Int32, j: Int32, value: Float32):
        out[i, j] = pointwise.HOST.narrow(value, out.element_type)

    @cute.jit
    def emit(self, token: cute.Tensor, route, out: cute.Tensor, i: Int32, j: Int32, acc: Float32):
        """Store the product of routed row ``i`` where the mode puts it."""
        if cutlass.const_expr(self.mode == "SCATTER"):
            to = route[0][i].to(Int64) * route[2] + route[1][i].to(Int64)
            if (to >= 0) & (to < out.shape[0].to(Int64)):
                self.store(out, to.to(Int32), j, acc)
        elif cutlass.const_expr(self.mode == "GATHER"):
            index = route[0][i].to(Int64)
            is_token = (index >= 0) & (index < token.shape[0].to(Int64))
            self.store(out, i, j, Float32(cutlass.select_(is_token, acc, Float32(0.0))))
        else:
            self.store(out, i, j, acc)

    def source(self, token: cute.Tensor, route, i: Int32) -> Any:
        """Where the row of token starts that routed row ``i`` reads; some row for a bad index."""
        row = i.to(Int64)
        if self.mode == "GATHER":
            last = token.shape[0].to(Int64) - 1
            row = cutlass.max(cutlass.min(route[0][i].to(Int64), last), Int64(0))
        return token.iterator + row * token.stride[0]

    @cute.jit
    def group(
        self,
        token: cute.Tensor,
        weight: cute.Tensor,
        route,
        out: cute.Tensor,
        start: Int32,
        end: Int32,
        expert: Int32,
    ):
        """Rows ``start`` to ``end`` times the weight of one expert."""
        whole = end - (end - start) % ROWS
        if (token.stride[1] == 1) & (weight.stride[1] == 1):
            for i in range(start, whole, ROWS):
                self.dot(token, weight, route, out, i, expert, ROWS)
            for i in range(whole, end):
                self.dot(token, weight, route, out, i, expert, 1)
        elif weight.stride[0] == 1:
            for i in range(start, whole, ROWS):
                self.axpy(token, weight, route, out, i, expert, ROWS)
            for i in range(whole, end):
                self.axpy(token, weight, route, out, i, expert, 1)
        else:
            for i in range(start, end):
                self.elements(token, weight, route, out, i, Int32(0), expert)

    @cute.jit
    def dot(
        self,
        token: cute.Tensor,
        weight: cute.Tensor,
        route,
        out: cute.Tensor,
        i: Int32,
        expert: Int32,
        rows: cutlass.Constexpr,
    ):
        n, k = out.shape[1], weight.shape[1]
        a_rows = [self.source(token, route, i + r) for r in range(rows)]
        matrix = weight.iterator + expert.to(Int64) * weight.stride[2]
        whole = k - k % DOT_WIDTH
        for j in range(0, n, DOT_COLUMNS):
            b_rows = [
                matrix + cutlass.min(j + c, n - 1).to(Int64) * weight.stride[0]
                for c in range(DOT_COLUMNS)
            ]
            acc = [cute.make_rmem_tensor((DOT_WIDTH,), Float32) for _ in range(rows * DOT_COLUMNS)]
            for fragment in acc:
                fragment.fill(0.0)
            for p in range(0, whole, DOT_WIDTH):
                bv = [_vector(row + p, DOT_WIDTH) for row in b_rows]
                for r in cutlass.range_constexpr(rows):
                    av = _vector(a_rows[r] + p, DOT_WIDTH)
                    for c in cutlass.range_constexpr(DOT_COLUMNS):
                        fragment = acc[r * DOT_COLUMNS + c]
                        fragment.store(cute.math.fma(av, bv[c], fragment.load()))
            block = _accumulators(rows, DOT_COLUMNS)
            for r in cutlass.range_constexpr(rows):
                for c in cutlass.range_constexpr(DOT_COLUMNS):
                    values = acc[r * DOT_COLUMNS + c].load()
                    total = values.reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
                    for p in range(whole, k):
                        total = cute.math.fma(_scalar(a_rows[r] + p), _scalar(b_rows[c] + p), total)
                    block[r, c] = total
            columns = cutlass.min(n - j, DOT_COLUMNS)
            self.emit_block(token, route, out, i, j, block, rows, columns)

    @cute.jit
    def axpy(
        self,
        token: cute.Tensor,
        weight: cute.Tensor,
        route,
        out: cute.Tensor,
        i: Int32,
        expert: Int32,
        rows: cutlass.Constexpr,
    ):
        n, k = out.shape[1], weight.shape[1]
        a_rows = [self.source(token, route, i + r) for r in range(rows)]
        matrix = weight.iterator + expert.to(Int64) * weight.stride[2]
        whole = n - n % AXPY_WIDTH
        for j in range(0, whole, AXPY_WIDTH):
            acc = [cute.make_rmem_tensor((AXPY_WIDTH,), Float32) for _ in range(rows)]
            for fragment in acc:
                fragment.fill(0.0)
            for p in range(k):
                bv = _vector(matrix + (p.to(Int64) * weight.stride[1] + j), AXPY_WIDTH)
                for r in cutlass.range_constexpr(rows):
                    x = cute.full_like(bv, _scalar(a_rows[r] + p.to(Int64) * token.stride[1]))
                    acc[r].store(cute.math.fma(x, bv, acc[r].load()))
            block = _accumulators(rows, AXPY_WIDTH)
            for r in cutlass.range_constexpr(rows):
                for c in cutlass.range_constexpr(AXPY_WIDTH):
                    block[r, c] = acc[r][c]
            self.emit_block(token, route, out, i, j, block, rows, Int32(AXPY_WIDTH))
        for r in range(rows):
            self.elements(token, weight, route, out, i + r, whole, expert)

    @cute.jit
    def emit_block(
        self,
        token: cute.Tensor,
        route,
        out: cute.Tensor,
        i: Int32,
        j: Int32,
        acc: cute.Tensor,
        rows: cutlass.Constexpr,
        columns: Int32,
    ):
        for r in range(rows):
            for c in range(columns):
                self.emit(token, route, out, i + r, j + c, acc[r, c])

    @cute.jit
    def elements(
        self,
        token: cute.Tensor,
        weight: cute.Tensor,
        route,
        out: cute.Tensor,
        i: Int32,
        first: Int32,
        expert: Int32,
    ):
        """Row ``i`` from column ``first`` on, one element at a time."""
        row = self.source(token, route, i)
        for j in range(first, out.shape[1]):
            acc = Float32(0.0)
            for p in range(weight.shape[1]):
                x = _scalar(row + p.to(Int64) * token.stride[1])
                acc = cute.math.fma(x, pointwise.HOST.widen(weight[j, p, expert]), acc)
            self.emit(token, route, out, i, j, acc)


def _accumulators(rows: int, width: int) -> cute.Tensor:
    """Accumulators ``(rows, width)``, rows contiguous, so that loops along them become vectors."""
    return cute.make_rmem_tensor(cute.make_layout((rows, width), stride=(width, 1)), Float32)


def _vector(pointer: Any, width: int) -> Any:
    return pointwise.HOST.widen(cute.make_tensor(pointer, cute.make_layout(width)).load())


def _scalar(pointer: Any) -> Float32:
    return pointwise.HOST.widen(cute.make_tensor(pointer, cute.make_layout(1))[0])


def grouped_matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``moe.kernels.host:grouped_matmul``; params as `operands.arguments` has them."""
    head, tail = operands.arguments(params, AddressSpace.generic)
    return KernelTemplate(HostGrouped(params["mode"]), (Int32(1), *head, *tail), 0)
