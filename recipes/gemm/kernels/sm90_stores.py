"""The end of a tile on Hopper: the chain on accumulators in registers, staging slots, stores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Boolean, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp
from cutlass.tensor_utils import LayoutEnum

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.gemm.kernels import epilogue as device_epilogue
from cudnn_aot.recipes.gemm.kernels.raster import Tile
from cudnn_aot.recipes.gemm.kernels.sm90_config import (
    BLOCK_COLUMNS,
    GROUP_BARRIER,
    GROUP_ROWS,
    SLOTS,
    STORE_BYTES,
    STORE_INSTRUCTIONS,
    UNROLLED_ELEMENTS,
    UNROLLED_INSTRUCTIONS,
    UNROLLED_TENSORS,
    WARPGROUP,
    Config,
    block_pattern,
)
from cudnn_aot.recipes.gemm.kernels.sm90_folds import Folds
from cudnn_aot.recipes.gemm.kernels.sm90_loads import piped_part
from cudnn_aot.recipes.trace.pointwise import DEVICE, instructions


@dataclass(frozen=True)
class View:
    """A math thread's place: its tile and warpgroup, its two rows, and the columns it finishes."""

    tile: Tile
    group: Int32
    band: Int32  # its 64 rows, of those of the result
    lane: Int32  # in the warpgroup
    rows: tuple[Int32, Int32]
    block: Int32  # the first block of columns, of those of the result
    extents: tuple[Int32, Int32]


class Stores:
    """Of one configuration."""

    def __init__(self, config: Config):
        self.config, self.folds = config, Folds(config)
        nodes, inputs = config.epilogue["nodes"], config.epilogue["inputs"]
        tensors = len(inputs) + len(config.stored) + len(config.folded)
        few = tensors <= UNROLLED_TENSORS and not config.folded
        self.has_room = few and not config.is_tight
        # Of columns, and those that are each code of their own: all, if that is little.
        self.blocks = config.bands * config.columns // config.block_columns
        # Beside as many sums as there can be, the many of a 4-byte result have no registers for it.
        has_many = config.ends_full and config.block_columns < BLOCK_COLUMNS[0]
        most = 1
        if not nodes and tensors == len(config.stored) and not has_many:
            most = self.blocks
        elif config.products == 1 and self.has_room:
            per_element = STORE_INSTRUCTIONS + instructions(nodes)
            elements = min(UNROLLED_ELEMENTS, UNROLLED_INSTRUCTIONS // per_element)
            most = elements // (config.block_columns * GROUP_ROWS // WARPGROUP)
        counts = range(1, max(most, 1) + 1)
        self.blocks_unrolled = max(n for n in counts if self.blocks % n == 0)
        # Whether what is read of matrices by elements is read where it is used, and waited for: a
        # chain that is not unrolled has no room for that code twice. Few matrices are read so.
        self.late = self.blocks_unrolled == 1

    def layout(self, dtype: type) -> Any:
        """Shared-memory layout (64, block columns, slots) of one math warpgroup's staged stores."""
        columns = self.config.block_columns
        kind = sm90_utils.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, columns)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        return cute.tile_to_shape(atom, (GROUP_ROWS, columns, 1), order=(0, 1, 2))

    def view(
        self,
        tile: Tile,
        place: tuple[Int32, Int32, Int32],
        thread: Int32,
        group: Int32,
        extents: Any,
    ) -> View:
        """What this thread finishes of the result."""
        config = self.config
        lane_in_group = thread & (WARPGROUP - 1)
        warp, lane = lane_in_group >> 5, lane_in_group & 31
        band = tile.m * (config.tile[0] // GROUP_ROWS)
        if not config.pingpong:
            band += group
        row = band * GROUP_ROWS + warp * 16 + (lane >> 2)
        block = tile.n * (config.tile[1] // config.block_columns)
        block += place[2] * (config.columns // config.block_columns)
        return View(tile, group, band, lane_in_group, (row, row + 8), block, extents)

    def step(self, view: View, number: Any) -> tuple[View, Any]:
        """The place of the ``number``-th block that a warpgroup finishes of its tile, 64 rows after
        64 rows, and which of the columns it is.
        """
        if self.config.bands == 1:
            return view, number
        blocks = self.config.columns // self.config.block_columns
        band = number // blocks
        first, second = view.rows
        rows = (first + band * GROUP_ROWS, second + band * GROUP_ROWS)
        return replace(view, band=view.band + band, rows=rows), number - band * blocks

    def block(self, view: View, index: int) -> device_epilogue.Block:
        """The thread's elements in block ``index`` of the columns that it finishes."""
        columns = self.config.block_columns
        begin = (view.block + index) * columns
        steps = [8 * eight + c for eight in range(columns // 8) for c in (0, 1)]
        return device_epilogue.Block(
            view.rows,
            [begin + (view.lane & 3) * 2 + step for step in steps],
            view.tile.batch,
            block_pattern(columns),
            view.extents,
            device_epilogue.Pairs(begin + columns, steps),
        )

    def fetch(self, aux: Any, view: View) -> list[Any]:
        """Issue the loads of the first block's operands."""
        return device_epilogue.fetch(self.config.epilogue, aux, self.block(view, 0), self.late)

    @cute.jit
    def finish(
        self,
        accs,
        fetched,
        smem,
        tma_outs,
        tma_targets,
        outs,
        partials,
        aux,
        piped,
        view: cutlass.Constexpr,
    ):
        """Run the epilogue on the accumulators, a block of columns at a time: store the outputs,
        and fold those that are reduced. ``smem`` is that of the one and of the other; ``piped``
        is the pipeline, where it is, and the addresses of its stages.

        The operands of a block are fetched while the one ahead of it is computed. A chain is traced
        for some blocks alone, in a loop that shifts the accumulators down by them between turns:
        all unrolled, a chain such as GELU is more code than the instruction cache holds, and every
        warp would stream it per tile; a block at a time, a third of what it executes are moves.
        """
        config = self.config
        size = cute.size(accs[0]) // self.blocks
        staging, scratch = smem
        running = self.folds.start()
        layout = cute.make_layout(size)
        step = self.blocks_unrolled
        for first in cutlass.range(0, self.blocks, step, unroll=1):
            for j in cutlass.range_constexpr(step):
                i = first + j
                mine = [cute.make_tensor(acc.iterator + j * size, layout).load() for acc in accs]
                block, ahead = (self.block(*self.step(view, i + k)) for k in (0, 1))
                # Where registers are short, what comes of the last block is not worth a branch.
                is_last = j == step - 1
                more = first + step < self.blocks if is_last and self.has_room else True
                if cutlass.const_expr(config.piped is not None):
                    self.read_piped(piped, fetched[config.piped], view.group, view.lane, i)
                values = device_epilogue.run(
                    config.epilogue,
                    fetched,
                    mine,
                    aux,
                    block,
                    ahead,
                    same_rows=config.bands == 1,
                    late=self.late,
                    more=more,
                )
                if cutlass.const_expr(is_last):
                    if more:
                        for acc in accs:
                            flat = cute.make_tensor(acc.iterator, cute.make_layout(cute.size(acc)))
                            for e in cutlass.range_constexpr(cute.size(acc) - step * size):
                                flat[e] = flat[e + step * size]
                here, column = self.step(view, i)
                self.folds.take(values, running, partials, scratch, here, column)
                self.store(values, staging, tma_outs, tma_targets, outs, here, column, i)
                if cutlass.const_expr(config.bands > 1 and len(config.folded) > 0):
                    if column == self.blocks // config.bands - 1:
                        self.folds.leave(running, partials, scratch, here)
                        self.folds.reset(running)
        if cutlass.const_expr(config.bands == 1):
            self.folds.leave(running, partials, scratch, view)

    @cute.jit
    def read_piped(self, piped, to: cute.Tensor, group: Int32, lane: Int32, number):
        """Read the thread's elements of the piped input in the ``number``-th block of a tile, and
        give its stage back behind the last of it.
        """
        config, columns = self.config, self.config.block_columns
        pipe, first, bases = piped
        begin, whole = number * columns, config.stage_parts * config.piped_columns
        stage = first.clone()
        stage.advance(Int32(begin // whole))
        part = begin % whole // config.piped_columns
        pipe.consumer_wait(stage)
        rows = piped_part(config, bases, stage.index, part, group)
        at = begin % config.piped_columns // columns
        block = cute.local_tile(rows, (GROUP_ROWS, columns, 1), (0, at, 0))
        dtype = config.piped_dtype
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=2 * dtype.width
        )
        tiled = cute.make_tiled_copy_C(atom, self.block_mma())
        source = tiled.get_slice(lane).partition_S(block)[None, None, None, 0]
        elements = cute.recast_tensor(to, dtype)
        cute.copy(
            tiled, source, cute.make_tensor(elements.iterator, cute.make_layout(source.shape))
        )
        if ((begin + columns) % whole == 0) | (number == self.blocks - 1):
            cute.arch.sync_warp()
            pipe.consumer_release(stage)

    @cute.jit
    def store(
        self,
        values,
        staging,
        tma_outs,
        tma_targets,
        outs,
        view: cutlass.Constexpr,
        index,
        number,
    ):
        """Narrow and store the output values of block ``index`` of the columns, the ``number``-th
        of the tile.
        """
        config = self.config
        turns = self.blocks * len(config.out_dtypes)
        for o in cutlass.range_constexpr(len(config.out_dtypes)):
            dtype, value = config.out_dtypes[o], values[config.stored[o]]
            narrow = cute.make_rmem_tensor((value.shape,), dtype)
            narrow.store(DEVICE.narrow(value, dtype))
            turn = number * len(config.out_dtypes) + o
            staged = self.stage(narrow, staging, turn, turns, view)
            self.put(o, staged, tma_outs, tma_targets, outs, view, index)
            if view.lane < 32:
                # A group per turn, empty where TMA stored nothing: ``stage`` counts turns.
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def put(
        self,
        o: cutlass.Constexpr,
        staged,
        tma_outs,
        tma_targets,
        outs,
        view: cutlass.Constexpr,
        index,
    ):
        """Store a staged block of output ``o``."""
        if cutlass.const_expr(self.config.store == "tma"):
            if self.clips(view, index, self.config.out_dtypes[o]):
                self.store_tma(tma_outs[o], tma_targets[o], staged, view, index)
            else:
                self.store_elements(outs[o], staged, view, index)
        else:
            self.store_elements(outs[o], staged, view, index)

    def clips(self, view: View, index: int, dtype: type) -> Boolean:
        """Whether a TMA store of a block stays inside the result.

        TMA clips stores at 16 bytes, not at elements: where the row length is no multiple of that,
        the block with the end of the row would overwrite up to 15 bytes behind it.
        """
        n = view.extents[1]
        end = (view.block + index + 1) * self.config.block_columns
        return (end <= n) | (n % (operands.TMA_ALIGN_BYTES * 8 // dtype.width) == 0)

    @cute.jit
    def stage(
        self,
        narrow: cute.Tensor,
        staging,
        turn,
        turns: cutlass.Constexpr,
        view: cutlass.Constexpr,
    ):
        """Write one block of one output to a staging slot; ``turn`` numbers a tile's blocks.

        Returns the (64, columns, 1) slot, complete and visible to TMA.
        """
        dtype = narrow.element_type
        layout = self.layout(dtype)
        offset = (view.group * SLOTS + turn % SLOTS) * (GROUP_ROWS * STORE_BYTES)
        pointer = cute.recast_ptr((staging + offset).align(1024), layout.inner, dtype=dtype)
        staged = cute.make_tensor(pointer, layout.outer)
        # The slot's previous block must have been read out. Where a tile has an odd number of
        # turns, the last of one tile and the first of the next share a slot: wait for all.
        pending = SLOTS - 1 if turns % SLOTS == 0 else 0
        barrier = GROUP_BARRIER + view.group
        if view.lane < 32:
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)
        self.to_shared(narrow, staged, dtype, view.lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=barrier, number_of_threads=WARPGROUP)
        return staged

    @cute.jit
    def store_tma(
        self,
        tma: cute.CopyAtom,
        target: cute.Tensor,
        staged: cute.Tensor,
        view: cutlass.Constexpr,
        index,
    ):
        """Let TMA store a staged block."""
        config = self.config
        if view.lane < 32:
            boxes = cute.local_tile(target, (GROUP_ROWS, config.block_columns), (None, None, None))
            source, to = cpasync.tma_partition(
                tma,
                0,
                cute.make_layout(1),
                cute.group_modes(staged, 0, 2),
                cute.group_modes(boxes, 0, 2),
            )
            cute.copy(
                tma, source[None, 0], to[None, view.band, view.block + index, view.tile.batch]
            )

    @cute.jit
    def store_elements(
        self,
        out: cute.Tensor,
        staged: cute.Tensor,
        view: cutlass.Constexpr,
        index,
    ):
        """Store a staged block to a tensor of any strides, lanes along the rows of the result."""
        columns = self.config.block_columns
        row0 = view.band * GROUP_ROWS
        column0 = (view.block + index) * columns
        base = batching.offset(view.tile.batch, out.stride[2])
        # Beside TMA it is the last block of a row at most: as little code as may be.
        unroll = 4 if self.config.store == "direct" else 1
        for e in cutlass.range(view.lane, GROUP_ROWS * columns, WARPGROUP, unroll=unroll):
            r, c = e // columns, e % columns
            row, column = row0 + r, column0 + c
            if (row < view.extents[0]) & (column < view.extents[1]):
                place = base + row.to(Int64) * out.stride[0] + column.to(Int64) * out.stride[1]
                cute.make_tensor(out.iterator + place, cute.make_layout(1))[0] = staged[r, c, 0]

    def to_shared(self, narrow: cute.Tensor, staged: cute.Tensor, dtype: type, in_group: Int32):
        """Registers of a block to its slot: stmatrix for 16-bit, pairs of columns for others."""
        mma = self.block_mma()
        if dtype.width == 16:
            atom = cute.make_copy_atom(StMatrix8x8x16bOp(False, 4), dtype)
        else:
            pair = 2 * dtype.width
            atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=pair)
        tiled = cute.make_tiled_copy_C(atom, mma)
        to = tiled.get_slice(in_group).partition_D(staged)[None, None, None, 0]
        source = cute.make_tensor(narrow.iterator, cute.make_layout(to.shape))
        cute.copy(tiled, source, to)

    def block_mma(self) -> cute.TiledMma:
        """What gives a block's elements to the threads of a warpgroup as they have them."""
        return sm90_utils.make_trivial_tiled_mma(
            self.config.a_dtype,
            self.config.b_dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            self.config.acc_dtype,
            (1, 1, 1),
            (GROUP_ROWS, self.config.block_columns),
        )
