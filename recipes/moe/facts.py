"""Facts of a grouped matmul of a mixture of experts: one ``moe_grouped_matmul``, and nothing after
it.

``analyze`` is the family's one parse of a graph. It refuses only what is no such graph at all;
whether an engine takes it is the business of that engine's capability rows.

Routed rows ``R`` lie in groups, and group g multiplies by ``weight[g % experts]``. Extents are ints
or ``SymExpr``s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.graph.extents import Extent, Symbol, evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.operand import Operand, dtype_name, solve, why_not_strided

OP = "moe_grouped_matmul"
# The ports that route rows, of each mode; in the order of the kernels' arguments.
ROUTE: dict[str, tuple[str, ...]] = {
    "NONE": (),
    "GATHER": ("token_index",),
    "SCATTER": ("token_index", "token_ks"),
    "COMBINE": ("token_index", "token_ks", "top_k_scores"),
}


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """What the graph computes, as numbers. No policy here.

    Attributes:
        offsets: ``first_token_offset``: starts of groups, or starts and the end.
        route: what routes rows, as `ROUTE` has it for the mode.
        unread: inputs that the mode has no use for; a call binds them all the same.
        top_k: how many output rows a token has; read by SCATTER.
    """

    mode: str
    token: Operand
    weight: Operand
    offsets: Operand
    route: tuple[Operand, ...]
    unread: tuple[Operand, ...]
    out: Operand
    top_k: int
    compute_dtype: str
    symbols: Mapping[str, Symbol] = field(hash=False)

    def operands(self) -> tuple[Operand, ...]:
        """Everything that a call binds, once, by ascending uid."""
        every = (self.token, self.weight, self.offsets, *self.route, *self.unread, self.out)
        by_uid = {operand.uid: operand for operand in every}
        return tuple(by_uid[uid] for uid in sorted(by_uid))

    @property
    def named_extents(self) -> dict[str, Extent]:
        experts, k, n = self.weight.dim
        return {
            "tokens": self.token.dim[-2],
            "rows": self.rows,
            "n": n,
            "k": k,
            "experts": experts,
            "offsets": self.offsets.dim[0],
        }

    @property
    def rows(self) -> Extent:
        """The number of routed rows."""
        return self.route[0].dim[-2] if self.mode == "GATHER" else self.token.dim[-2]

    @property
    def groups(self) -> int | None:
        """How many groups the offsets delimit; None where a symbol decides whether the last of them
        is an end.

        As many offsets as groups are starts, and one more has the end; with one expert there is an
        end.
        """
        count, experts = self.offsets.dim[0], self.weight.dim[0]
        if not (isinstance(count, int) and isinstance(experts, int)):
            return None
        return count - 1 if experts == 1 or count % experts else count

    @property
    def extents(self) -> dict[str, int]:
        """The extents to rank for: symbols take their hint, or their largest value."""
        return self.extents_at({})

    def extents_at(self, given: Mapping[str, int]) -> dict[str, int]:
        """The extents to rank for where some symbols have given values."""
        values = {name: symbol.planned for name, symbol in self.symbols.items()}
        values.update(given)
        return {name: evaluate(extent, values) for name, extent in self.named_extents.items()}

    def symbols_at(self, extents: Mapping[str, int]) -> dict[str, int] | None:
        """The values of all symbols for which `extents_at` gives these extents, in their domains or
        not; None where there are none, or extents do not tell one.
        """
        told = [(extent, extents.get(name)) for name, extent in self.named_extents.items()]
        values = solve(told, self.symbols)
        return values if values is not None and self.extents_at(values) == extents else None

    @property
    def layout_class(self) -> str:
        """What kernels are shared by, in words: mode, types, and what is contiguous."""
        majors = "".join(
            next((name for axis, name in axes.items() if operand.stride[axis] == 1), "?")
            for operand, axes in (
                (self.token, {-1: "k", -2: "m"}),
                (self.weight, {-2: "k", -1: "n"}),
            )
        )
        integers = ",".join(operand.dtype for operand in (self.offsets, *self.route))
        types = f"{self.token.dtype}x{self.weight.dtype}"
        return f"{self.mode} {types} {majors} [{integers}] -> {self.out.dtype}"

    def describe(self) -> dict[str, Any]:
        """The facts in words, for a person."""
        described: dict[str, Any] = {"mode": self.mode}
        described |= {name: str(extent) for name, extent in self.named_extents.items()}
        described["groups"] = "open" if self.groups is None else str(self.groups)
        if self.mode == "SCATTER":
            described["top_k"] = str(self.top_k)
        for name, operand in (
            ("token", self.token),
            ("weight", self.weight),
            ("first_token_offset", self.offsets),
            *zip(ROUTE[self.mode], self.route, strict=True),
            ("output", self.out),
        ):
            described[name] = str(operand)
        described["accumulates in"] = self.compute_dtype
        return described


def analyze(graph: Graph) -> MoeFacts | Refusal:
    """Facts of ``graph``, or the reason why it is not one grouped matmul alone."""
    (first, *others) = sorted(graph.nodes, key=lambda node: node.op != OP)
    if others:
        return Refusal(
            f"node {others[0].name!r} is {others[0].op} beside {first.name!r}, want one {OP} alone"
        )
    inputs = dict(first.inputs)
    for port, tensor in inputs.items():
        if tensor.is_pass_by_value:
            return Refusal(f"{port} of {first.name!r} is passed by value, want a tensor")
    if reason := why_not_strided(graph.tensors.values()):
        return Refusal(reason)
    mode = first.attr("mode").name
    named = ("token", "weight", "first_token_offset", *ROUTE[mode])
    token, weight, offsets, *route = (Operand.of(inputs.pop(port)) for port in named)
    return MoeFacts(
        mode=mode,
        token=token,
        weight=weight,
        offsets=offsets,
        route=tuple(route),
        unread=tuple(map(Operand.of, inputs.values())),
        out=Operand.of(first.outputs["OUT_0"]),
        top_k=first.attr("top_k"),
        compute_dtype=dtype_name(first.compute_data_type),
        symbols=dict(graph.symbols),
    )
