"""cuDNN's side of the plan list: what `planning.backend` finds for a graph, as entries and engines.

Asking needs a GPU host, so nothing is asked before an entry, a note or a plan is wanted; what was
listed is kept for as long as its graph lives. Of mode OPENSOURCE nothing is offered: its
one entry leaves the choice to cuDNN, so it has no identity to record, and no bytes to store
(docs/cudnn-backend.md).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from cudnn_aot.compiler.graph.enums import behavior_note, heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import backend as asking
from cudnn_aot.compiler.planning.backend import BackendEntry, BackendPlan, Knobs
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Note, PlanConfig, Refusal
from cudnn_aot.compiler.planning.knobs import is_frontend_knob_type, knob_type
from cudnn_aot.compiler.planning.rank import DEFAULT_MODES
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

_ASKED = (heur_mode.A, heur_mode.B, heur_mode.FALLBACK)


class Cudnn:
    """The cuDNN of this machine as a source of plans; an `engine.Backend`.

    Safe to use from many threads: its one handle is for one of them at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._found: dict[Target, asking.Backend] = {}
        self._listed: WeakKeyDictionary[Graph, dict[Identity, BackendEntry]] = WeakKeyDictionary()

    def found(self, target: Target) -> asking.Backend | Refusal:
        """The cuDNN that makes plans for a target, or why this machine has none."""
        with self._lock:
            found = self._found.get(target) or asking.find_backend(target)
            if not isinstance(found, Refusal):  # which may hold no longer when asked again
                self._found[target] = found
            return found

    def key(
        self, graph: Graph, target: Target, modes: Sequence[heur_mode] = DEFAULT_MODES
    ) -> str | Refusal:
        """Under which a stored plan of cuDNN's serves."""
        found = self.found(target)
        if isinstance(found, Refusal):
            return found
        return asking.backend_key(found, graph, target, [mode.name for mode in modes])

    def entries(
        self, graph: Graph, target: Target, modes: Sequence[heur_mode]
    ) -> Mapping[heur_mode, Sequence[PlanConfig]] | Refusal:
        """The plans that each mode finds, or why there can be none."""
        found = self.found(target)
        if isinstance(found, Refusal):
            return found
        asked = [mode.name for mode in modes if mode in _ASKED]
        if not asked:
            return Refusal("it lists no plan in mode OPENSOURCE, where it chooses by itself")
        with self._lock:
            entries = asking.entries_of(found, graph, asked)
        if isinstance(entries, Refusal):
            return entries
        listed = self._listed.setdefault(graph, {})
        by_mode: dict[heur_mode, list[PlanConfig]] = {}
        for entry in entries:
            listed.setdefault((entry.engine_id, entry.knobs), entry)
            config = PlanConfig(entry.engine_id, entry.knobs, "cuDNN's order")
            by_mode.setdefault(heur_mode[entry.mode], []).append(config)
        return by_mode

    def engine(self, graph: Graph, target: Target, engine_id: int) -> Engine:
        """What lowers one of them; it asks nothing yet."""
        return CudnnEngine(self, graph, target, engine_id)

    def listed(self, graph: Graph, engine_id: int, knobs: Knobs) -> BackendEntry | None:
        """An entry that was found for a graph."""
        return self._listed.get(graph, {}).get((engine_id, knobs))

    def plan(
        self, graph: Graph, target: Target, engine_id: int, knobs: Knobs
    ) -> BackendPlan | Refusal:
        """A plan, built and serialized."""
        found = self.found(target)
        if isinstance(found, Refusal):
            return found
        with self._lock:
            return asking.plan_of(found, graph, engine_id, dict(knobs))


@functools.cache
def this_process() -> Cudnn:
    """The one that all graphs of a process share, so that they share its handle."""
    return Cudnn()


Identity = tuple[int, Knobs]


class CudnnEngine(Engine):
    """One of cuDNN's engines, for one graph. Its knobs are ``(name, value)`` pairs by name, and
    each of its plans is made once.
    """

    caps = ()  # cuDNN says for each graph what it takes
    dsl_min = None
    tells_numerical_notes = False  # the frontend filters by them, and does not give them

    def __init__(self, source: Cudnn, graph: Graph, target: Target, engine_id: int) -> None:
        self.name = f"cudnn.eng{engine_id}"
        self._source = source
        self._graph = graph
        self._target = target
        self._id = engine_id
        self._made: dict[Knobs, BackendPlan | Refusal] = {}

    def lower(self, facts: object, knobs: Knobs, target: Target) -> Lowering | Refusal:
        """The plan, built and serialized, and the table that runs it."""
        found = self._source.found(target)
        if isinstance(found, Refusal):
            return found
        plan = self._plan(knobs)
        if isinstance(plan, Refusal):
            return plan
        table = asking.backend_table(self._graph, plan)
        if isinstance(table, Refusal):
            return table
        requirements = asking.backend_requirements(found, target)
        return Lowering((), table, (plan.blob,), requirements)

    def notes(self, knobs: Knobs) -> frozenset[Note]:
        plan: BackendEntry | BackendPlan | Refusal | None
        plan = self._source.listed(self._graph, self._id, knobs) or self._plan(knobs)
        if isinstance(plan, Refusal):
            raise cudnnGraphNotSupportedError(plan.reason, [plan.reason])
        return frozenset(behavior_note[n] for n in plan.notes if n in behavior_note.__members__)

    def knobs_to_public(self, knobs: Knobs) -> dict[knob_type, int]:
        return {knob_type[name]: value for name, value in knobs}

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> Knobs:
        for knob in knobs:
            if is_frontend_knob_type(knob):
                raise cudnnGraphNotSupportedError(f"engine {self.name}: no knob {knob.name}")
        return tuple(sorted((knob.name, value) for knob, value in knobs.items()))

    def _plan(self, knobs: Knobs) -> BackendPlan | Refusal:
        if knobs not in self._made:
            self._made[knobs] = self._source.plan(self._graph, self._target, self._id, knobs)
        return self._made[knobs]
