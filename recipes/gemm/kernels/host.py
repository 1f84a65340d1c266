"""Matmuls of one A with a pointwise epilogue and reductions of its values, for the host CPU,
compiled by the DSL like the device kernels.

Arguments: ``a (M, K, La), b (N, K, Lb)..., scales..., aux..., outs..., totals...``; element
alignment, any strides, any extents (K = 0 runs the epilogue on zeros). Inputs BFLOAT16, HALF,
FLOAT, FP8_E4M3 or FP8_E5M2, which may differ between A and every B; fp32 accumulation. Inputs INT8:
INT32 accumulation. Of matrices with a scale for each block, the sum of a block of K is scaled
before it is added. One thread.

``totals`` are fp64, one for each output that is reduced and of its shape: they are set to the
mode's identity, take in every value as it is made, and are finished into the output at the end. So
a fold of millions of values loses nothing, and one of none is defined.

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

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Float64, Int32, Int64
from cutlass.base_dsl.enums import AddressSpace

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.trace import dtypes, pointwise, reductions
from cudnn_aot.recipes.trace.template import KernelTemplate

DOT_ROWS, DOT_COLUMNS, DOT_WIDTH = 4, 2, 8
AXPY_ROWS, AXPY_WIDTH = 4, 16


class HostMatmul:
    """The traced function; what it is specialised on lives in the instance.

    ``tail`` is what follows the matrices: aux, outs and totals.
    """

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
        self.num_outputs = len(epilogue["outputs"])
        self.folds = [
            (position, reductions.fold(entry["reduce"]["mode"]), operands.reduced_axes(entry))
            for position, entry in enumerate(epilogue["outputs"])
            if "reduce" in entry
        ]

    @cute.jit
    def __call__(self, a: cute.Tensor, *rest):
        a, *rest = batching.nested((a, *rest))
        bs, rest = rest[: self.products], rest[self.products :]
        scales, tail = rest[: self.num_scales], rest[self.num_scales :]
        self.start(tail)
        if self.contiguous((a, *bs), 1):
            self.dot(a, bs, scales, tail)
        elif self.contiguous(bs, 0):
            self.axpy(a, bs, scales, tail)
        else:
            self.any(a, bs, scales, tail)
        self.finish(tail)

    def contiguous(self, matrices: Sequence[cute.Tensor], axis: int) -> Boolean:
        """Whether all of these are, along an axis."""
        return functools.reduce(operator.and_, [m.stride[axis] == 1 for m in matrices])

    def outs(self, tail: Sequence[Any]) -> Sequence[cute.Tensor]:
        return tail[self.num_inputs : self.num_inputs + self.num_outputs]

    def totals(self, tail: Sequence[Any]) -> Sequence[cute.Tensor]:
        return tail[self.num_inputs + self.num_outputs :]

    @cute.jit
    def start(self, tail):
        """Set the totals to what is left of no value."""
        for (_, fold, axes), total in zip(self.folds, self.totals(tail), strict=True):
            m, n, extents = total.shape
            for matrix in range(batching.count(extents)):
                batch = batching.place(matrix, extents)
                for i in range(1 if 0 in axes else m):
                    for j in range(1 if 1 in axes else n):
                        total[i, j, batch] = Float64(fold.identity)

    @cute.jit
    def finish(self, tail):
        """Write the outputs that are reduced."""
        for (position, fold, axes), total in zip(self.folds, self.totals(tail), strict=True):
            m, n, extents = total.shape
            count = Float64(1.0)
            for axis in axes:
                count = count * total.shape[axis].to(Float64)
            for matrix in range(batching.count(extents)):
                batch = batching.place(matrix, extents)
                for i in range(1 if 0 in axes else m):
                    for j in range(1 if 1 in axes else n):
                        value = fold.finish(pointwise.HOST, total[i, j, batch], count)
                        out = self.outs(tail)[position]
                        out[i, j, batch] = pointwise.HOST.narrow(
                            value.to(Float32), out.element_type
                        )

    @cute.jit
    def emit(self, tail, m: Int32, n: Int32, batch: Any, accs):
        """Run the epilogue for one element, and store or take in its outputs."""
        inputs = []
        for entry, value in zip(self.epilogue["inputs"], tail[: self.num_inputs], strict=True):
            inputs.append(
                value if entry["kind"] == "value" else pointwise.HOST.widen(value[m, n, batch])
            )
        results = pointwise.apply(self.epilogue, accs, inputs, pointwise.HOST)
        outputs = zip(self.epilogue["outputs"], self.outs(tail), results, strict=True)
        for entry, out, value in outputs:
            if cutlass.const_expr("reduce" not in entry):
                out[m, n, batch] = pointwise.HOST.narrow(value, out.element_type)
        for (position, fold, _), total in zip(self.folds, self.totals(tail), strict=True):
            value = fold.map(pointwise.HOST, results[position].to(Float64))
            total[m, n, batch] = fold.combine(pointwise.HOST, total[m, n, batch], value)

    @cute.jit
    def emit_block(
        self,
        tail,
        m: Int32,
        n: Int32,
        batch: Any,
        blocks,
        rows: cutlass.Constexpr,
        columns: Int32,
    ):
        """Emit ``rows x columns`` accumulators of each product, the rows of register tensors
        ``(rows, width)``.

        In loops: the chain is traced once for a block, not once for an accumulator.
        """
        for r in range(rows):
            for c in range(columns):
                self.emit(tail, m + r, n + c, batch, [block[r, c] for block in blocks])

    @cute.jit
    def dot(self, a: cute.Tensor, bs, scales, tail):
        m, n, extents = self.outs(tail)[0].shape
        whole = m - m % DOT_ROWS
        for matrix in range(batching.count(extents)):
            batch = batching.place(matrix, extents)
            for i in range(0, whole, DOT_ROWS):
                for j in range(0, n, DOT_COLUMNS):
                    self.dot_block(a, bs, scales, tail, i, j, batch, DOT_ROWS)
            for i in range(whole, m):
                for j in range(0, n, DOT_COLUMNS):
                    self.dot_block(a, bs, scales, tail, i, j, batch, 1)

    @cute.jit
    def dot_block(
        self,
        a: cute.Tensor,
        bs,
        scales,
        tail,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
    ):
        blocks = self.blocks(self.dot_sums, a, bs, scales, i, j, batch, rows, DOT_COLUMNS)
        columns = cutlass.min(bs[0].shape[0] - j, DOT_COLUMNS)
        self.emit_block(tail, i, j, batch, blocks, rows, columns)

    @cute.jit
    def blocks(
        self,
        add_up: cutlass.Constexpr,
        a: cute.Tensor,
        bs,
        scales,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
        width: cutlass.Constexpr,
    ):
        """The accumulators ``(rows, width)`` of each product; ``add_up`` gives those of some K."""
        k = a.shape[1]
        blocks = [self.accumulators(rows, width) for _ in bs]
        if cutlass.const_expr(self.scales is None):
            for b, block in zip(bs, blocks, strict=True):
                add_up(a, b, block, i, j, batch, rows, 0, k)
        else:
            depth, last = self.scales.depth, bs[0].shape[0] - 1
            tensors = self.scales.of_each(scales)
            part = self.accumulators(rows, width)
            for product in cutlass.range_constexpr(self.products):
                block, matrix = blocks[product], product + 1
                block.fill(0)
                for first in range(0, k, depth):
                    after = cutlass.min(first + depth, k)
                    add_up(a, bs[product], part, i, j, batch, rows, first, after)
                    at = first // depth
                    for r in range(rows):
                        of_a = self.scales.read(tensors[0], 0, i + r, at, batch)
                        for c in range(width):
                            column = cutlass.min(j + c, last)
                            of_b = self.scales.read(tensors[matrix], matrix, column, at, batch)
                            block[r, c] = block[r, c] + part[r, c] * of_a * of_b
        return blocks

    @cute.jit
    def dot_sums(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        block: cute.Tensor,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
        first: Int32,
        after: Int32,
    ):
        """One product's sums of a block of outputs, over a part of K."""
        last = b.shape[0] - 1
        a_rows = [self.k_row(a, i + r, batch) for r in range(rows)]
        b_rows = [self.k_row(b, cutlass.min(j + c, last), batch) for c in range(DOT_COLUMNS)]
        acc = [cute.make_rmem_tensor((DOT_WIDTH,), self.sum) for _ in range(rows * DOT_COLUMNS)]
        for fragment in acc:
            fragment.fill(0)
        whole = after - (after - first) % DOT_WIDTH
        for p in range(first, whole, DOT_WIDTH):
            bv = [self.values(row + p, DOT_WIDTH) for row in b_rows]
            for r in cutlass.range_constexpr(rows):
                av = self.values(a_rows[r] + p, DOT_WIDTH)
                for c in cutlass.range_constexpr(DOT_COLUMNS):
                    fragment = acc[r * DOT_COLUMNS + c]
                    fragment.store(dtypes.multiply_add(av, bv[c], fragment.load()))
        sums = [fragment.load().reduce(cute.ReductionOp.ADD, self.sum(0), 0) for fragment in acc]
        for p in range(whole, after):
            for r in cutlass.range_constexpr(rows):
                for c in cutlass.range_constexpr(DOT_COLUMNS):
                    x, y = self.value(a_rows[r] + p), self.value(b_rows[c] + p)
                    sums[r * DOT_COLUMNS + c] = dtypes.multiply_add(x, y, sums[r * DOT_COLUMNS + c])
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(DOT_COLUMNS):
                block[r, c] = sums[r * DOT_COLUMNS + c]

    def accumulators(self, rows: int, width: int) -> cute.Tensor:
        """Accumulators ``(rows, width)``, rows contiguous, so that loops along them become
        vectors.
        """
        layout = cute.make_layout((rows, width), stride=(width, 1))
        return cute.make_rmem_tensor(layout, self.sum)

    def value(self, at: cute.Pointer) -> Any:
        """An element of an operand, in the type of the accumulators."""
        return pointwise.HOST.widen(cute.make_tensor(at, cute.make_layout(1))[0], self.sum)

    def values(self, start: cute.Pointer, count: int) -> Any:
        """A vector of consecutive elements of an operand, in the type of the accumulators."""
        return pointwise.HOST.widen(
            cute.make_tensor(start, cute.make_layout(count)).load(), self.sum
        )

    def k_row(self, t: cute.Tensor, row: Int32, batch: Any) -> cute.Pointer:
        """Where a row of a K-contiguous operand starts; a batch of one is read by every batch."""
        of_batch = batching.offset(batching.inside(batch, t.shape[2]), t.stride[2])
        return t.iterator + (row.to(Int64) * t.stride[0] + of_batch)

    @cute.jit
    def axpy(self, a: cute.Tensor, bs, scales, tail):
        m, n, extents = self.outs(tail)[0].shape
        whole_m, whole_n = m - m % AXPY_ROWS, n - n % AXPY_WIDTH
        for matrix in range(batching.count(extents)):
            batch = batching.place(matrix, extents)
            for i in range(0, whole_m, AXPY_ROWS):
                for j in range(0, whole_n, AXPY_WIDTH):
                    self.axpy_block(a, bs, scales, tail, i, j, batch, AXPY_ROWS)
            for i in range(whole_m, m):
                for j in range(0, whole_n, AXPY_WIDTH):
                    self.axpy_block(a, bs, scales, tail, i, j, batch, 1)
            for i in range(m):
                for j in range(whole_n, n):
                    self.element(a, bs, scales, tail, i, j, batch)

    @cute.jit
    def axpy_block(
        self,
        a: cute.Tensor,
        bs,
        scales,
        tail,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
    ):
        blocks = self.blocks(self.axpy_sums, a, bs, scales, i, j, batch, rows, AXPY_WIDTH)
        self.emit_block(tail, i, j, batch, blocks, rows, AXPY_WIDTH)

    @cute.jit
    def axpy_sums(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        block: cute.Tensor,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
        first: Int32,
        after: Int32,
    ):
        """One product's sums of a block of outputs, over a part of K."""
        batch_a = batching.inside(batch, a.shape[2])
        of_batch = batching.offset(batching.inside(batch, b.shape[2]), b.stride[2])
        columns = b.iterator + j + of_batch
        acc = [cute.make_rmem_tensor((AXPY_WIDTH,), self.sum) for _ in range(rows)]
        for fragment in acc:
            fragment.fill(0)
        for p in range(first, after):
            bv = self.values(columns + p.to(Int64) * b.stride[1], AXPY_WIDTH)
            for r in cutlass.range_constexpr(rows):
                x = cute.full_like(bv, pointwise.HOST.widen(a[i + r, p, batch_a], self.sum))
                acc[r].store(dtypes.multiply_add(x, bv, acc[r].load()))
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(AXPY_WIDTH):
                block[r, c] = acc[r][c]

    @cute.jit
    def any(self, a: cute.Tensor, bs, scales, tail):
        m, n, extents = self.outs(tail)[0].shape
        for matrix in range(batching.count(extents)):
            batch = batching.place(matrix, extents)
            for i in range(m):
                for j in range(n):
                    self.element(a, bs, scales, tail, i, j, batch)

    @cute.jit
    def element(self, a: cute.Tensor, bs, scales, tail, i: Int32, j: Int32, batch: Any):
        blocks = self.blocks(self.element_sum, a, bs, scales, i, j, batch, 1, 1)
        self.emit(tail, i, j, batch, [block[0, 0] for block in blocks])

    @cute.jit
    def element_sum(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        block: cute.Tensor,
        i: Int32,
        j: Int32,
        batch: Any,
        rows: cutlass.Constexpr,
        first: Int32,
        after: Int32,
    ):
        """One product's sum of an output, over a part of K."""
        batch_a = batching.inside(batch, a.shape[2])
        batch_b = batching.inside(batch, b.shape[2])
        total = self.sum(0)
        for p in range(first, after):
            x = pointwise.HOST.widen(a[i, p, batch_a], self.sum)
            total = dtypes.multiply_add(x, pointwise.HOST.widen(b[j, p, batch_b], self.sum), total)
        block[0, 0] = total


def matmul(params: Mapping[str, Any]) -> KernelTemplate:
    """Template ``gemm.kernels.host:matmul``; params ``a_dtype``, ``b_dtype``, ``products``,
    ``scales`` and ``batch_runs``, if any, and ``epilogue``.
    """
    epilogue, scales = params["epilogue"], operands.Scales.parse(params)
    runs = batching.runs(params)
    space, extents = AddressSpace.generic, operands.Extents(runs)
    a, *bs = operands.matrices(params, extents, space)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.epilogue_outputs(epilogue, extents, space, tma=False)
    totals = [
        operands.folded(Float64, extents.result, operands.reduced_axes(entry), space)
        for entry in epilogue["outputs"]
        if "reduce" in entry
    ]
    function = HostMatmul(a.element_type, params["products"], scales, epilogue)
    aux = [*(scales.tensors(space, runs) if scales else ()), *aux]
    return KernelTemplate(function, (a, *bs, *aux, *outs, *totals), 0)
