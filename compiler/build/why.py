"""Why a graph gets the plan that it gets: facts, verdicts of the engines, the ranking, the choice.

Made from the list that `build` plans by, so it cannot say anything else. What a store holds of the
graph is `compiler.build.why_stored`. `Explanation.to_json` is the schema of ``why --json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cudnn_aot.compiler.build.sources import Source, failure_line
from cudnn_aot.compiler.build.why_stored import StoreAnswer
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.cudnn import this_process
from cudnn_aot.compiler.planning.engine import DECLINES, PlanConfig
from cudnn_aot.compiler.planning.manifest import check_providers
from cudnn_aot.compiler.planning.plan_list import PlanList, decline_reason
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import Error, InvalidGraphError, cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """Whether an engine of the family takes the graph: ``reason`` is None, or why not."""

    engine_id: int
    name: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class BackendAnswer:
    """What cuDNN has for a graph: how many plans of the list, or why none."""

    plans: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class RankedRange:
    """What serves one range of a plan: ``range`` in words, the plan's name, and what decided it."""

    range: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """One plan of the list.

    Attributes:
        name: ``engine[KNOB=value, ...]``; of a plan with ranges, those of all of them.
        mode: the heuristic mode that proposed it first.
        why: what put it where it is.
        ranges: what serves each range; empty for a plan without ranges.
        declined: why it cannot be built; None when it can, or was not tried.
    """

    name: str
    mode: str
    why: str
    ranges: tuple[RankedRange, ...] = ()
    declined: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan that a build takes: its place in the list, counted from 1, and what it runs.

    Attributes:
        kernels: template and key of each.
        aligned: name of each operand that some branch wants at an address of whole so many bytes; a
            call whose address is another goes to a branch behind it.
        blobs: plans of cuDNN's.
    """

    place: int
    kernels: tuple[tuple[str, str], ...]
    branches: tuple[str, ...]
    aligned: tuple[tuple[str, int], ...] = ()
    blobs: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that decides the plan of one graph on one target.

    Attributes:
        ops: what the graph is made of, with counts.
        family: name of the one family whose anchor is in the graph; empty if there is none.
        anchors: the ops that name the family.
        facts: what the family says of the graph, in words; empty when it refuses.
        symbols: range of each symbol, and the value to rank for.
        tuning_entry: what a tuning file says to speak of this graph, without its plans.
        backend: what cuDNN has for it; None unless it was asked.
        chosen: what a build takes; None when every engine declines, or planning fails.
        reasons: one sentence per side that offers nothing.
        fault: why planning fails; empty when it does not.
        stored: what the store holds of it; None without a store.
    """

    file: str
    name: str
    graph_key: str
    target: str
    ops: str
    family: str = ""
    anchors: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, dict[str, int]] = field(default_factory=dict)
    tuning_entry: dict[str, Any] | None = None
    engines: tuple[EngineVerdict, ...] = ()
    backend: BackendAnswer | None = None
    plans: tuple[RankedPlan, ...] = ()
    chosen: Chosen | None = None
    reasons: tuple[str, ...] = ()
    fault: str = ""
    stored: StoreAnswer | None = None

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["engines"] = [
            {"id": e.engine_id, "name": e.name, "takes_it": e.reason is None, "reason": e.reason}
            for e in self.engines
        ]
        if self.chosen is not None:
            document["chosen"]["kernels"] = [
                {"template": template, "key": key} for template, key in self.chosen.kernels
            ]
            document["chosen"]["aligned"] = dict(self.chosen.aligned)
        return document


def explain(
    source: Source,
    target: Target,
    tuning: Tuning | None = None,
    providers: Sequence[str] = ("native",),
) -> Explanation:
    """What decides the plan of a graph on a target, among those of ``providers``.

    Raises:
        InvalidGraphError: the graph breaks a rule of its family.
        UsageError: a provider is unknown.
    """
    asked = check_providers(providers)
    graph = source.graph
    about: dict[str, Any] = {
        "file": source.file,
        "name": source.name,
        "graph_key": source.key,
        "target": target.name,
        "ops": _counted(graph),
        "symbols": {
            name: {
                "min": symbol.min,
                "max": symbol.max,
                "multiple_of": symbol.multiple_of,
                "ranked_for": symbol.planned,
            }
            for name, symbol in graph.symbols.items()
        },
    }
    listed: dict[str, Any] = {
        "tuning": tuning,
        "backend": this_process() if "cudnn" in asked else None,
        "engines": None if "native" in asked else (),
    }
    try:
        plans = PlanList(graph, target, **listed)
    except cudnnGraphNotSupportedError as refusal:  # by the family's validator
        return Explanation(**about, reasons=tuple(refusal.reasons or [str(refusal)]))
    family = plans.family
    if family is not None:
        about |= {"family": family.name, "anchors": family.anchors}
    if family is not None and plans.facts is not None:
        about["facts"] = {name: str(value) for name, value in plans.facts.describe().items()}
        about["tuning_entry"] = {
            "family": family.name,
            "target": target.name,
            "layout_class": plans.facts.layout_class,
            "extents": plans.facts.extents,
        }
        about["engines"] = tuple(
            EngineVerdict(family.engine_id(slot), slot.name, plans.support[slot.name])
            for slot in family.engines
        )
    if "cudnn" in asked:
        about["backend"] = _backend_answer(plans)
    return _explain_choice(about, plans, listed)


def _backend_answer(plans: PlanList) -> BackendAnswer:
    ids = [entry.engine_id for entry in plans.entries if isinstance(entry, PlanConfig)]
    found = sum(manifest.provider_of(engine_id) == "cudnn" for engine_id in ids)
    prefix = "cudnn: "
    reason = next((r.removeprefix(prefix) for r in plans.reasons if r.startswith(prefix)), None)
    return BackendAnswer(found, reason)


def _explain_choice(about: dict[str, Any], plans: PlanList, listed: dict[str, Any]) -> Explanation:
    chosen: Chosen | None = None
    reasons, fault = tuple(plans.reasons), ""
    tried = len(plans)
    modes = _modes(plans, listed)  # of the entries as they are listed: walking may change one
    try:
        tried, planned = plans.walk(lambda planned: planned)
        chosen = _chosen(tried, planned)
    except cudnnGraphNotSupportedError as declined:
        reasons = tuple(declined.reasons)
    except InvalidGraphError:
        raise
    except Error as error:  # such as a tool of the compile that is not installed
        tried, fault = 0, failure_line(error)
    ranked = tuple(_ranked(plans, i, modes[i], is_tried=i < tried) for i in range(len(plans)))
    return Explanation(**about, plans=ranked, chosen=chosen, reasons=reasons, fault=fault)


def _chosen(index: int, planned: Planned) -> Chosen:
    kernels = tuple((spec.template, spec.key) for spec in planned.kernels)
    branches, aligned = tuple(planned.table["branches"]), tuple(_aligned(planned.table))
    return Chosen(index + 1, kernels, branches, aligned, len(planned.blobs))


def _aligned(table: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The operands of whose addresses guards ask something, in the table's order, and how many
    bytes at most.
    """
    wanted: dict[int, int] = {}
    left: list[Any] = [entry["when"] for entry in table["dispatch"]]
    while left:
        predicate = left.pop()
        if isinstance(predicate, list | tuple) and predicate[0] == "aligned":
            _, uid, size = predicate
            wanted[uid] = max(size, wanted.get(uid, 0))
        elif isinstance(predicate, list | tuple) and predicate[0] in ("and", "or", "not"):
            left += predicate[1:]
    for operand in table["operands"]:
        if operand["uid"] in wanted:
            yield operand["name"], wanted[operand["uid"]]


def _ranked(plans: PlanList, index: int, mode: str, is_tried: bool) -> RankedPlan:
    declined = None
    if is_tried:
        try:
            plans.lower(index)
        except DECLINES as decline:
            declined = decline_reason(decline)
    ranges = tuple(RankedRange(*row) for row in plans.ranges(index))
    return RankedPlan(plans.name(index), mode, plans.entry(index).why, ranges, declined)


def _modes(plans: PlanList, listed: dict[str, Any]) -> list[str]:
    """For each plan, the first mode whose own list has it."""
    alone = {
        mode: PlanList(plans.graph, plans.target, (mode,), **listed).entries for mode in plans.modes
    }
    return [
        next((mode.name for mode, entries in alone.items() if entry in entries), "")
        for entry in plans.entries
    ]


def _counted(graph: Graph) -> str:
    counts = Counter(node.op for node in graph.nodes)
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in counts.items())
