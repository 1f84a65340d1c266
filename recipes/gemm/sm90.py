"""``gemm.sm90.persistent``: the GEMM family on Hopper, FP8, INT8 and two matmuls of one A included.

FP8 may have a scale for each block of rows and K: the sums of a block are scaled before they are
added.

A plan has, for each presence of the optional outputs, a TMA + WGMMA branch and a slower one that
takes any strides and any element-aligned pointer; guards on the call's own strides and addresses
choose. Stream-K plans zero their tile counters first; reductions are folded in a second step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cudnn_aot.cache.spec import Frozen, kernel_spec
from cudnn_aot.compiler.graph.enums import numerical_note
from cudnn_aot.compiler.graph.extents import Symbol, SymExpr, extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import lowering, tma
from cudnn_aot.recipes.gemm.any_stride import add_any_stride_branch, second_step
from cudnn_aot.recipes.gemm.batch import Form, forms
from cudnn_aot.recipes.gemm.capability import FUSED, SM90, GemmCapability
from cudnn_aot.recipes.gemm.config import (
    STREAM_MAX_PIECES,
    STREAM_MIN_SHARE,
    GemmConfig,
    Schedule,
    tile_class,
)
from cudnn_aot.recipes.gemm.facts import FULL, Epilogue, GemmFacts
from cudnn_aot.recipes.gemm.lowering import Json, KernelParts, TableBuilder
from cudnn_aot.recipes.operand import ALIGN_BYTES, FP8_DTYPES, Operand, bounds, is_multiple

TMA_TEMPLATE = "gemm.kernels.sm90:matmul"
# Rows of the result, of which a warpgroup leaves one partial value of a reduction.
GROUP_ROWS = 64
# Of A, the most with which reading B takes most of the time, so that L2 is asked for it ahead of
# the end of the kernel before; and the rows of a load, where tiles of so few may not be full.
FEW_ROWS, A_PARTS = 256, [64, 16]
PIPED_DTYPES = ("BFLOAT16", "HALF")
# Of the largest Hopper chip: what bounds a workspace until a device is known.
MAX_SMS = 144


class ScheduledEngine(Engine):
    """An engine whose knobs are those of a `Schedule`."""

    schedule: ClassVar[type[Schedule]]

    def knobs_to_public(self, knobs: Schedule) -> dict[knob_type, int]:
        return knobs.to_public()

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> Schedule:
        try:
            return self.schedule.from_public(knobs)
        except ValueError as error:
            raise cudnnGraphNotSupportedError(f"engine {self.name}: {error}") from None


class GemmSm90Persistent(ScheduledEngine):
    """Persistent TMA + WGMMA, cooperative or ping-pong math warpgroups, split of K or stream-K.

    Cooperative ones that leave K whole load the first 16-bit matrix of an epilogue by TMA: a call's
    has to be as aligned as A and B for the fast branch. Sums of FP8 products are fp32: the tensor
    cores, which keep fewer bits, add up 256 of K alone, 128 of blocks with scales. Those of INT8
    are INT32, exact whatever splits K.
    """

    name = "gemm.sm90.persistent"
    schedule = GemmConfig
    caps = (
        GemmCapability(
            dtypes=("BFLOAT16", "HALF", *FP8_DTYPES, "INT8"),
            absent=(("FLOAT", "tensor cores multiply it as TF32, with 10 of its 23 bits"),),
            alignment_bytes=ALIGN_BYTES,
            **SM90,
            **FUSED,
        ),
    )
    numerical_notes = frozenset({numerical_note.TENSOR_CORE})

    def configs(self, facts: GemmFacts, target: Target) -> Iterable[GemmConfig]:
        if tma.why_never(facts):
            return ()
        return GemmConfig.measured(facts.extents["k"], tile_class(facts))

    def lower(self, facts: GemmFacts, knobs: GemmConfig, target: Target) -> Lowering | Refusal:
        reason = knobs.why_not_for(tile_class(facts))
        if reason and not tma.why_never(facts):
            return Refusal(reason)
        builder = TableBuilder(facts, "cuda")
        for variant, parts in builder.variants():
            for form in forms(facts, variant, parts):
                for part in _by_rows(form, knobs):
                    _add_tma_branch(builder, part, knobs, target)
            add_any_stride_branch(builder, facts, variant, parts, target)
        return Lowering(tuple(builder.kernels), builder.table())


def _by_rows(form: Form, config: GemmConfig) -> Iterator[Form]:
    """A form for few rows ahead of one for any, where a call may have either and they are not
    loaded alike.
    """
    facts = form.facts
    low, high = bounds(facts.m, facts.symbols)
    if isinstance(facts.m, SymExpr) and len(facts.m.symbols) == 1 and low <= FEW_ROWS < high:
        (name,) = facts.m.symbols
        symbol = facts.symbols[name]
        least, most = max(symbol.min, 1), FEW_ROWS // facts.m.coef  # no rows are no work
        few = Symbol(min=least, max=most, multiple_of=symbol.multiple_of)
        if few.why_not() is None:
            guard = ex.all_of(form.guard, ex.lt(extent_expr(facts.m), FEW_ROWS + 1))
            narrowed = replace(facts, symbols={**facts.symbols, name: few})
            if _loads(narrowed, config) != _loads(facts, config):
                yield replace(form, name=f"{form.name}_few", guard=guard, facts=narrowed)
    yield form


def _add_tma_branch(builder: TableBuilder, form: Form, config: GemmConfig, target: Target) -> None:
    facts, variant, parts = form.facts, form.variant, form.parts
    outputs, runs = variant.stored, facts.batch_runs
    layout, axes = facts.majors(), tma.unit_axes(facts)
    if layout is None or axes is None or tma.why_not(facts, outputs):
        return
    store = "tma" if tma.may_store(outputs, facts) else "direct"
    output_guards = [
        tma.guard(o, -1, runs) if store == "tma" else ex.eq(ex.stride(o.uid, o.axis(-1)), 1)
        for o in outputs
    ]
    guard = ex.all_of(
        variant.guard,
        form.guard,
        ex.lt(config.cluster_k - 1, ex.ceil_div(extent_expr(facts.k), config.tile_k)),
        *(tma.guard(operand, axis, runs) for operand, axis in tma.matrices(facts, axes)),
        *output_guards,
    )
    params = tma_params(facts, config, parts, layout, store)
    if (piped := _piped(facts, config, parts)) is not None:
        position, operand = piped
        params["epilogue"] = _with_piped(facts.epilogue, variant.absent, position)
        guard = ex.all_of(guard, tma.guard(operand, -1, runs))
    kernel = builder.kernel(kernel_spec(TMA_TEMPLATE, params, target))
    sm_count: ex.Expr = ["attr", "sm_count"]
    operands = parts.operands
    share = config.tile_n // config.cluster_k  # of a tile's columns, that a block finishes
    folds = second_step(builder, facts, variant, parts, (GROUP_ROWS, share), target)
    workspace, steps = folds.workspace, []
    if config.stream_k:
        sm_count = ex.minimum(sm_count, MAX_SMS)
        stream = _stream_k(facts, config, sm_count)
        operands = operands + stream.views
        workspace = stream.workspace + workspace
        steps.append(stream.fill)
    head: list[Json] = [{"arg": "launch"}, {"arg": "int", "value": sm_count}]
    args = head + operands + parts.inputs + folds.outputs
    steps += [{"step": "kernel", "kernel": kernel, "args": args}, *folds.steps]
    name = "stream_k" if config.stream_k else "tma"
    builder.add(f"{name}{form.name}{variant.name}", guard, workspace, steps)


def tma_params(
    facts: GemmFacts, config: GemmConfig, parts: KernelParts, layout: tuple[str, str], store: str
) -> Json:
    """Of the template: ``layout`` is the majors of A and B, ``store`` is tma or direct."""
    return lowering.matmul_params(facts, parts) | {
        "a_major": layout[0],
        "b_major": layout[1],
        "tile": list(config.tile),
        "cluster": [config.cluster_m, config.cluster_n, config.cluster_k],
        **_loads(facts, config),
        "stream_k": config.stream_k == 1,
        "pingpong": config.pingpong == 1,
        "store": store,
    }


def _piped(facts: GemmFacts, config: GemmConfig, parts: KernelParts) -> tuple[int, Operand] | None:
    """The first input of the epilogue that comes through the pipeline of the operands, by position:
    a 16-bit matrix that TMA may load, where one warpgroup does not finish a tile while another
    multiplies, which hides the latency of what it reads as well.
    """
    if config.pingpong or config.stream_k or config.cluster_k > 1 or any(parts.scales):
        return None
    by_uid = {operand.uid: operand for operand, _ in facts.epilogue.inputs}
    args = parts.inputs[len(parts.inputs) - len(parts.epilogue["inputs"]) :]
    for position, (entry, arg) in enumerate(zip(parts.epilogue["inputs"], args, strict=True)):
        if entry["kind"] == FULL and entry["dtype"] in PIPED_DTYPES:
            operand = by_uid[arg["operand"]]
            if tma.may_load(operand, facts):
                return position, operand
    return None


@functools.lru_cache(maxsize=64)  # every range of a plan asks for the same
def _with_piped(epilogue: Epilogue, absent: tuple[int, ...], position: int) -> Frozen:
    params = lowering.epilogue_params(epilogue, absent)
    inputs = list(params["inputs"])
    inputs[position] = {**inputs[position], "kind": "piped"}
    return Frozen({**params, "inputs": inputs})


def _loads(facts: GemmFacts, config: GemmConfig) -> Json:
    """How matrices are loaded, by how many rows there may be."""
    return {
        "a_boxes": _a_boxes(facts, config),
        "few_rows": not (config.stream_k or _is_long(facts) or _is_shared(facts)),
    }


def _is_long(facts: GemmFacts) -> bool:
    return bounds(facts.m, facts.symbols)[1] > FEW_ROWS


def _is_shared(facts: GemmFacts) -> bool:
    """Whether several matrices of a batch are multiplied by one B."""
    runs = [run for run in facts.batch_runs if any(e != 1 for e in run.extents(facts.batch))]
    return any(not run.of(b) for run in runs for b in facts.every_b)


def _a_boxes(facts: GemmFacts, config: GemmConfig) -> list[int]:
    """Rows of A that a load brings: fewer than the tile's where the matrix may not have those, as
    rows outside of it take longer than others.
    """
    is_whole = is_multiple(facts.m, config.tile_m, facts.symbols)
    majors = facts.majors() or ("", "")
    if is_whole or _is_long(facts) or config.cluster_n > 1 or majors[0] != "k":
        return [config.tile_m]
    return A_PARTS


@dataclass(frozen=True, slots=True)
class _StreamK:
    views: list[Any]
    workspace: list[Json]
    fill: Json


def _stream_k(facts: GemmFacts, config: GemmConfig, sm_count: ex.Expr) -> _StreamK:
    """Workspace of a stream-K plan: two partial tiles, in the type of the sums, for each block that
    has pieces of tiles, and an arrival counter for each tile of the last two waves.

    Tiles are counted in whole clusters, as the kernel walks them.
    """
    p = lowering.problem(facts)
    size = config.cluster_m * config.cluster_n
    tiles = ex.mul(
        ex.ceil_div(p.m, config.tile_m * config.cluster_m),
        ex.ceil_div(p.n, config.tile_n * config.cluster_n),
        p.batch,
    )
    clusters = ex.floor_div(sm_count, size)
    if size > 1:
        clusters = ex.maximum(clusters, 1)
    pieces = ex.minimum(ex.ceil_div(p.k, STREAM_MIN_SHARE * config.tile_k), STREAM_MAX_PIECES)
    sharing = ex.minimum(clusters, ex.mul(tiles, pieces))
    elements = ex.mul(sharing, 2 * size * config.tile_m * config.tile_n)
    counters = ex.mul(ex.minimum(ex.mul(clusters, 2), tiles), size)
    counters_bytes = ex.mul(counters, 4)
    return _StreamK(
        views=[
            {
                "arg": "tensor",
                "slice": "partials",
                "dtype": facts.accumulators[0],
                "dim": [elements],
                "stride": [1],
            },
            {
                "arg": "tensor",
                "slice": "counters",
                "dtype": "INT32",
                "dim": [counters],
                "stride": [1],
            },
        ],
        workspace=[
            {
                "name": "partials",
                "bytes": ex.mul(elements, 4),
                "align": lowering.WORKSPACE_ALIGN_BYTES,
            },
            {"name": "counters", "bytes": counters_bytes, "align": lowering.WORKSPACE_ALIGN_BYTES},
        ],
        fill={
            "step": "fill",
            "slice": "counters",
            "bytes": counters_bytes,
            "pattern": 0,
            "width": 4,
        },
    )
