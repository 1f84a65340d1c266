"""The contract between planning and the engines in ``recipes``.

An engine says what it takes (capability rows), and lowers a graph's facts to kernels and a launch
table. It ships no ``execute``: one C++ executor walks every table. Facts describe, capabilities
judge, heuristics rank; the three never mix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.toolchain import DSL_MIN
from cudnn_aot.compiler.graph.enums import behavior_note, heur_mode, numerical_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.capability import Capability
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

# By which an engine says "not this graph"; every other exception is a fault and propagates.
DECLINES = (NotImplementedError, cudnnGraphNotSupportedError, ImportError)

Note: TypeAlias = behavior_note | numerical_note


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an analyzer or engine does not take a graph: one sentence, lower case, no trailing
    dot.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """One plan that can be built: an engine, and the knobs that it builds with.

    ``(engine_id, knobs)`` is the plan's identity. ``knobs`` is a hashable record of the engine's
    own, complete: nothing is left for the engine to choose; None where it has nothing to choose.
    ``why`` says in a few words what put the plan where it is in a ranking.
    """

    engine_id: int
    knobs: Any = None
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a plan runs: kernels and blobs by position, and the launch table that names them by
    that position.

    Attributes:
        blobs: plans of another library as bytes, which are made here and not by a compile worker.
        requirements: the least machine that runs the blobs; kernels say theirs when compiled.
    """

    kernels: tuple[KernelSpec, ...]
    table: dict[str, Any] = field(hash=False)
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    requirements: dict[str, Any] = field(default_factory=dict, hash=False)


class Engine:
    """Base of the engines. They are stateless: everything they need comes in the arguments.

    Attributes:
        name: that of the manifest's slot.
        caps: what it takes. A graph is supported when one of the rows takes it.
        dsl_min: lowest version of the CuTe DSL that compiles its kernels; None where it has none.
        behavior_notes, numerical_notes: by which a program selects and deselects plans; those of
            all its plans, unless `notes` says otherwise.
        tells_numerical_notes: whether its numerical notes are known. Where they are not, a rule
            about one excludes its plans, whichever way the rule goes.
    """

    name: str
    caps: ClassVar[tuple[Capability[Any], ...]]
    dsl_min: ClassVar[str | None] = DSL_MIN
    tells_numerical_notes: ClassVar[bool] = True
    behavior_notes: ClassVar[frozenset[behavior_note]] = frozenset()
    numerical_notes: ClassVar[frozenset[numerical_note]] = frozenset()

    def check_support(self, facts: Any, target: Target) -> Refusal | None:
        """None when the engine takes the graph on the target, else the reason; from facts
        alone, cheap.
        """
        reasons = [row.why_not(facts, target) for row in self.caps]
        if any(reason is None for reason in reasons):
            return None
        return Refusal("; ".join(dict.fromkeys(reason for reason in reasons if reason)))

    def lower(self, facts: Any, knobs: Any, target: Target) -> Lowering | Refusal:
        """Kernels and launch table for one config; pure, compiles nothing."""
        raise NotImplementedError

    def configs(self, facts: Any, target: Target) -> Iterable[Any]:
        """The knob records that are worth measuring for the graph, whatever the heuristics think of
        them; nothing for an engine that has nothing to choose.
        """
        return ()

    def notes(self, knobs: Any) -> frozenset[Note]:
        """The notes of the plan with these knobs.

        Raises:
            cudnnGraphNotSupportedError: the plan has to be made to know them, and cannot be.
        """
        return frozenset({*self.behavior_notes, *self.numerical_notes})

    def knobs_to_public(self, knobs: Any) -> dict[knob_type, int]:
        """The engine's knob record in the public vocabulary; ``{}`` when it has no knobs."""
        if knobs is not None:
            raise TypeError(f"{self.name} has no knobs, got {knobs!r}")
        return {}

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> Any:
        """The record that ``knobs`` spell: complete, and of values that the engine builds.

        Raises:
            cudnnGraphNotSupportedError: a knob is missing, unknown, or out of its domain.
        """
        if knobs:
            given = ", ".join(sorted(knob.name for knob in knobs))
            raise cudnnGraphNotSupportedError(f"engine {self.name} has no knobs, got {given}")
        return None


class Backend(Protocol):
    """A source of plans that are found by asking a library, not by rules of ours."""

    def entries(
        self, graph: Graph, target: Target, modes: Sequence[heur_mode]
    ) -> Mapping[heur_mode, Sequence[PlanConfig]] | Refusal:
        """The plans that each mode finds, or why there can be none.

        Their ids are cuDNN's. OPENSOURCE finds at most the one that leaves the choice to cuDNN,
        where a plan can be made of that.
        """
        ...

    def engine(self, graph: Graph, target: Target, engine_id: int) -> Engine:
        """What lowers one of them."""
        ...
