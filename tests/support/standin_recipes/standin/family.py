"""A family of one anchor, ``relu``, whose engines do what a test's script says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.graph.enums import behavior_note, numerical_note
from cudnn_aot.compiler.graph.extents import Symbol, extent_expr
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.engine import Engine, Lowering, PlanConfig
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.errors import cudnnGraphNotSupportedError


@dataclass(slots=True)
class Script:
    """What happens at each place: ``(engine name or hook, "support" | "lower")`` gives an exception
    to raise or a refusal to return; ``proposals`` are the heuristics', by kind.
    """

    acts: dict[tuple[str, str], Any] = field(default_factory=dict)
    proposals: dict[str, Any] = field(default_factory=dict)
    workspace_bytes: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    facts: list[Any] = field(default_factory=list)  # as the hooks and engines were given them

    def act(self, *place: str) -> Any:
        self.calls.append(place)
        said = self.acts.get(place)
        if isinstance(said, BaseException):
            raise said
        return said


SCRIPT = Script()


@dataclass(frozen=True, slots=True)
class Facts:
    operands: tuple[tuple[int, tuple[Any, ...], tuple[Any, ...], bool], ...]
    symbols: Mapping[str, Symbol] = field(hash=False)
    layout_class: str = "relu"

    @property
    def extents(self) -> dict[str, int]:
        return {name: symbol.planned for name, symbol in sorted(self.symbols.items())}


def validate(graph: Graph) -> None:
    SCRIPT.act("family", "validate")


def analyze(graph: Graph) -> Any:
    refusal = SCRIPT.act("family", "analyze")
    outputs = {tensor.uid for tensor in graph.outputs()}
    operands = tuple(
        (t.uid, tuple(t.dim), tuple(t.stride), t.uid in outputs)
        for t in sorted((*graph.inputs(), *graph.outputs()), key=lambda t: t.uid)
    )
    return refusal or Facts(operands, dict(graph.symbols))


def recommend(kind: str, facts: Facts, offered: tuple[int, ...], target: Any) -> Any:
    SCRIPT.act("family", "rank")
    SCRIPT.facts.append(facts)
    if kind in SCRIPT.proposals:
        return SCRIPT.proposals[kind]
    return [PlanConfig(engine, TUNED if engine == TUNED_ID else None) for engine in offered]


class StandIn(Engine):
    def check_support(self, facts: Any, target: Any) -> Any:
        SCRIPT.facts.append(facts)
        return SCRIPT.act(self.name, "support")

    def lower(self, facts: Facts, knobs: Any, target: Any) -> Any:
        refusal = SCRIPT.act(self.name, "lower")
        return refusal or Lowering((), self.table(facts, knobs))

    def table(self, facts: Facts, knobs: Any) -> dict[str, Any]:
        """One branch per presence of alignment: the aligned one is named by the knobs."""
        operands = [
            {
                "uid": uid,
                "name": f"t{uid}",
                "kind": "output" if written else "input",
                "dtype": "FLOAT",
                "dim": [extent_expr(extent) for extent in dim],
                "stride": [extent_expr(step) for step in stride],
            }
            for uid, dim, stride, written in facts.operands
        ]
        room = SCRIPT.workspace_bytes.get(self.name, 0)
        workspace = [{"name": "room", "bytes": room, "align": 256}] if room else []
        return {
            "version": 1,
            "device": "cpu",
            "symbols": {
                name: {"min": s.min, "max": s.max, "multiple_of": s.multiple_of}
                for name, s in sorted(facts.symbols.items())
            },
            "operands": operands,
            "checks": [],
            "dispatch": [
                {"when": ["aligned", operands[0]["uid"], 64], "branch": f"fast {knobs}"},
                {"when": True, "branch": "slow"},
            ],
            "branches": {
                f"fast {knobs}": {"workspace": workspace, "steps": []},
                "slow": {"workspace": [], "steps": []},
            },
        }


class One(StandIn):
    name = "standin.one"
    behavior_notes = frozenset({behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API})


class Two(StandIn):
    name = "standin.two"
    behavior_notes = frozenset({behavior_note.CUBLASLT_DEPENDENCY, behavior_note(1)})
    numerical_notes = frozenset({numerical_note.NONDETERMINISTIC, numerical_note.TENSOR_CORE})


@dataclass(frozen=True, slots=True)
class Knobs:
    tile_m: int
    stages: int

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.stages}"


TUNED_ID = 20_902
TUNED = Knobs(64, 2)
DOMAIN = {knob_type.TILE_M: (64, 128, 256), knob_type.STAGES: (1, 2, 3)}


class Tuned(StandIn):
    name = "standin.tuned"

    def knobs_to_public(self, knobs: Knobs) -> dict[knob_type, int]:
        return {knob_type.TILE_M: knobs.tile_m, knob_type.STAGES: knobs.stages}

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> Knobs:
        if set(knobs) != set(DOMAIN) or any(knobs[k] not in DOMAIN[k] for k in knobs):
            names = ", ".join(f"{knob.name}={value}" for knob, value in knobs.items())
            raise cudnnGraphNotSupportedError(f"engine {self.name}: no schedule {names}")
        return Knobs(knobs[knob_type.TILE_M], knobs[knob_type.STAGES])


class Young(StandIn):
    name = "standin.young"
