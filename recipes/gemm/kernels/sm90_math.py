"""The main loop of a math warpgroup on Hopper: WGMMA over the stages of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum

from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    GROUP_ROWS,
    TURN_BARRIER,
    WARPGROUP,
    Config,
    block_pattern,
)
from cudnn_aot.recipes.gemm.kernels.sm90_stores import View


class Mma(NamedTuple):
    """What math warpgroup ``group`` multiplies: its rows of A's stages and all of each B's, by
    WGMMA that sum from zero (``start``) or onto what there is (``add``).
    """

    group: Int32
    start: cute.TiledMma
    add: cute.TiledMma
    a: cute.Tensor
    bs: list[cute.Tensor]


@cute.jit
def start_turns(group: Int32):
    """Ahead of the first turn: it is that of math warpgroup 0. They have as many turns each."""
    if group == 1:
        pass_turn(group)


def wait_for_turn(group: Int32) -> None:
    """Wait until the other math warpgroup has issued what it had to."""
    cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARPGROUP)


def pass_turn(group: Int32) -> None:
    """The turn is the other math warpgroup's."""
    cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARPGROUP)


class Math:
    """Main loops of one configuration."""

    def __init__(self, config: Config):
        self.config = config

    def operand_layouts(self) -> tuple[Any, Any]:
        """Swizzled shared-memory layouts (rows, tile_k, stages) of A and B."""
        tile_m, tile_n, _ = self.config.tile
        a = self.operand_layout(tile_m, self.config.a_major, self.config.a_dtype)
        return a, self.operand_layout(tile_n, self.config.b_major, self.config.b_dtype)

    def operand_layout(self, rows: int, major: str, dtype: type) -> Any:
        """Swizzled shared-memory layout (rows, tile_k, stages)."""
        config = self.config
        k_major = major == "k"
        order = LayoutEnum.ROW_MAJOR if k_major else LayoutEnum.COL_MAJOR
        kind = sm90_utils.get_smem_layout_atom(order, dtype, config.tile[2] if k_major else rows)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        shape = (rows, config.tile[2], config.stages)
        return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if k_major else (1, 0, 2))

    def mma(self, s_a: cute.Tensor, s_bs: Sequence[cute.Tensor], group: Int32) -> Mma:
        """Of math warpgroup ``group``, and the stages of A and of each B."""
        start, add = self.tiled_mma(False), self.tiled_mma(True)
        lane = add.get_slice(0 if self.config.pingpong else group * WARPGROUP)
        a = add.make_fragment_A(lane.partition_A(s_a))
        bs = [add.make_fragment_B(lane.partition_B(s_b)) for s_b in s_bs]
        return Mma(group, start, add, a, bs)

    def accumulators(self, mma: Mma) -> list[cute.Tensor]:
        """Registers of the sums of each product's tile."""
        shape = mma.add.partition_shape_C(self.config.tile[:2])
        return [cute.make_rmem_tensor(shape, self.config.acc_dtype) for _ in mma.bs]

    def tiled_mma(self, accumulate: bool) -> cute.TiledMma:
        config = self.config
        mma = sm90_utils.make_trivial_tiled_mma(
            config.a_dtype,
            config.b_dtype,
            OperandMajorMode.K if config.a_major == "k" else OperandMajorMode.MN,
            OperandMajorMode.K if config.b_major == "k" else OperandMajorMode.MN,
            config.acc_dtype,
            (config.tile_groups, 1, 1),
            (GROUP_ROWS, config.mma_columns),
        )
        mma.set(warpgroup.Field.ACCUMULATE, accumulate)
        return mma

    @cute.jit
    def accumulate(
        self,
        pipe,
        mma: Mma,
        accs,
        k_tiles: Int32,
        read,
        release,
        last_k_tiles: cutlass.Constexpr = 0,
    ):
        """Sum the products of ``k_tiles`` stages, at least one, on the tensor cores; the last of
        them are not waited for, and their stage is not released.

        With ``last_k_tiles`` warpgroup 1 issues so many when 0 has issued all: one finishes its
        rows while the other multiplies. Returns the pipeline's states.
        """
        are_apart = self.config.are_apart(k_tiles)
        pipe.consumer_wait(read)
        self.issue_stage(mma, mma.start, accs, read.index)
        read.advance()
        for k in range(1, k_tiles):
            if cutlass.const_expr(last_k_tiles > 0):
                if are_apart & (mma.group == 1) & (k == k_tiles - last_k_tiles):
                    wait_for_turn(mma.group)
            pipe.consumer_wait(read)
            self.issue_stage(mma, mma.add, accs, read.index)
            read.advance()
            # All but the step just issued is done: its predecessor's stage is free.
            warpgroup.wait_group(1)
            pipe.consumer_release(release)
            release.advance()
        if cutlass.const_expr(last_k_tiles > 0):
            if are_apart & (mma.group == 0):
                pass_turn(mma.group)
        return read, release

    def issue_stage(self, mma: Mma, first: cute.TiledMma, accs, stage: Int32) -> None:
        """Issue the WGMMA of a stage; ``first`` is that of step 0."""
        warpgroup.fence()
        for i in range(cute.size(mma.a, mode=[2])):
            wgmma = first if i == 0 else mma.add
            place = (None, None, i, stage)
            for acc, b in zip(accs, mma.bs, strict=True):
                cute.gemm(wgmma, acc, mma.a[place], b[place], acc)
        warpgroup.commit_group()

    @cute.jit
    def promote(
        self,
        pipe,
        mma: Mma,
        accs,
        s_scales,
        view: cutlass.Constexpr,
        k_range: tuple[Int32, Int32],
        read,
        release,
    ):
        """Sum products of FP8 on the tensor cores over some k tiles, and those sums in fp32.

        The columns of one WGMMA go over the k tiles before the next, so that their sums take few
        registers. Two warpgroups issue theirs in turns, see `start_turns`: at once, both would add
        at once. Returns the pipeline's states behind the last k tile.
        """
        config = self.config
        columns = config.mma_columns
        pieces = [(p, n) for p in range(config.products) for n in range(config.tile[1] // columns)]
        part = cute.make_rmem_tensor(mma.add.partition_shape_C((config.tile[0], columns)), Float32)
        flat = cute.make_tensor(part.iterator, cute.make_layout(cute.size(part)))
        pattern = block_pattern(columns)
        begin, end = k_range
        for acc in accs:
            acc.fill(0.0)
        for k in range(begin, end, config.promoted_k_tiles):
            last = cutlass.min(k + config.promoted_k_tiles, end)
            first = read.clone()
            for index in cutlass.range_constexpr(len(pieces)):
                p, n = pieces[index]
                is_last = index == len(pieces) - 1
                read = first.clone()
                if cutlass.const_expr(index == 0):
                    pipe.consumer_wait(read)
                if cutlass.const_expr(config.takes_turns):
                    wait_for_turn(mma.group)
                self.issue_columns(mma, mma.start, part, p, n, read.index)
                if cutlass.const_expr(config.scales is not None):
                    scales = self.read_scales(s_scales, view, p, n, read.index)
                read.advance()
                for _ in range(k + 1, last):
                    if cutlass.const_expr(index == 0):
                        pipe.consumer_wait(read)
                    self.issue_columns(mma, mma.add, part, p, n, read.index)
                    read.advance()
                if cutlass.const_expr(config.takes_turns):
                    pass_turn(mma.group)
                if cutlass.const_expr(is_last):
                    for _ in range(k + 1, last):
                        warpgroup.wait_group(1)
                        pipe.consumer_release(release)
                        release.advance()
                warpgroup.wait_group(0)
                if cutlass.const_expr(is_last):
                    if cutlass.const_expr(config.scales is not None):
                        # A lane releases the stage for its warp, all of which has read scales.
                        cute.arch.sync_warp()
                    pipe.consumer_release(release)
                    release.advance()
                mine = cute.make_tensor(accs[p].iterator + n * cute.size(part), flat.layout)
                if cutlass.const_expr(config.scales is None):
                    mine.store(mine.load() + flat.load())
                else:
                    factors = cute.make_rmem_tensor(flat.layout, Float32)
                    for e in cutlass.range_constexpr(cute.size(part)):
                        row, column = pattern[e]
                        group = (n * columns + column // 2 * 8) // config.scale_columns
                        factors[e] = scales[group][row]
                    mine.store(cute.math.fma(flat.load(), factors.load(), mine.load()))
        return read, release

    def read_scales(
        self, s_scales: cute.Tensor, view: View, p: int, n: int, stage: Int32
    ) -> dict[int, list[Float32]]:
        """What the sums of a stage's ``n``-th columns of a product are scaled by: for each group
        of the tile's columns that have one scale, of a thread's two rows.
        """
        config = self.config
        assert config.scales is not None
        of_a, of_b = config.scales.rows[0], config.scales.rows[1 + p]
        rows: list[Any] = [Float32(1.0)] * 2
        if of_a is not None:
            rows = [s_scales[row - view.tile.m * config.tile[0], stage] for row in view.rows]
        columns = range(n * config.mma_columns, (n + 1) * config.mma_columns)
        groups = sorted({column // config.scale_columns for column in columns})
        if of_b is None:
            return dict.fromkeys(groups, rows)
        first = config.tile[0] + p * config.scale_groups
        factors = {}
        for group in groups:
            of_columns = s_scales[first + group, stage]
            factors[group] = [row * of_columns for row in rows]
        return factors

    def issue_columns(
        self, mma: Mma, first: cute.TiledMma, part, p: int, n: int, stage: Int32
    ) -> None:
        """Issue the WGMMA of a stage and the ``n``-th columns of a product; ``first`` is that of
        step 0.
        """
        warpgroup.fence()
        for i in range(cute.size(mma.a, mode=[2])):
            a, b = mma.a[None, None, i, stage], mma.bs[p][None, n, i, stage]
            b = cute.make_tensor(b.iterator, cute.append(b.layout, cute.make_layout(1)))
            cute.gemm(first if i == 0 else mma.add, part, a, b, part)
        warpgroup.commit_group()
