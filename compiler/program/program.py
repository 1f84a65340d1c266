"""The plans of one graph in this process: the ranked list, the ones built, the one in use.

The list and its rules are those of `PlanList`; this class adds what building means here. A plan
that a store holds (see `layers`) is used as it is: nothing is planned or compiled, and no engine is
imported, unless the program asks for the list, or for plans of cuDNN's, too: then the family ranks
the two. Safe to use from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cudnn_aot.cache.toolchain import why_no_dsl
from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.manifest import provider_of
from cudnn_aot.compiler.planning.plan import plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.planning.providers import provider_order
from cudnn_aot.compiler.planning.rank import DEFAULT_MODES
from cudnn_aot.compiler.program.built import BuiltPlan, StoredPlan, load
from cudnn_aot.compiler.program.layers import Layers, layers
from cudnn_aot.compiler.program.locks import ForkLock
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import SequenceError, cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_aot.compiler.planning.cudnn import Cudnn
    from cudnn_aot.compiler.program.builder import Builder

Exclusion = tuple[str, Any]  # a method of PlanList that excludes plans, and its argument


class Program:
    """The plans of a frozen graph on a target.

    Args:
        modes: heuristic modes of the list; none for a list of recorded plans alone.
        exclusions: those that were asked for before there was a list.
        stored: a plan that is at hand; without it the stores are looked in.
        providers: whose plans are listed.
        device: attributes of the device that the target was chosen by, if it was.

    Raises:
        cudnnGraphNotSupportedError: no store holds a plan and there is none to build; it has the
            reason of every side.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        modes: Sequence[heur_mode],
        exclusions: Sequence[Exclusion] = (),
        stored: StoredPlan | None = None,
        providers: Sequence[str] = ("native",),
        device: Mapping[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.target = target
        self._device = device
        self._modes = tuple(modes)
        self._exclusions = list(exclusions)
        self._layers: Layers = layers()
        self._lock = ForkLock()
        self._plans: PlanList | None = None
        self._ranked = 0  # how many of the list are there by rank
        self._built: dict[int, BuiltPlan] = {}  # by id of the Planned, which they keep alive
        self.current: BuiltPlan | None = None
        self._providers = tuple(providers)
        self._best: StoredPlan | None = stored  # of the graph: what an unrestricted walk finds
        self._at_hand: list[StoredPlan] = [] if stored is None else [stored]
        if stored is None and self._modes:
            self._look_in_stores()
        if self._best is None:
            _ = self.plans

    @property
    def plans(self) -> PlanList:
        """The ranked list, made when it is first asked for."""
        with self._lock:
            if self._plans is None:
                self._plans = self._list()
            return self._plans

    @property
    def place(self) -> int:
        """Where in the list the plan in use is: built, pinned, else the first."""
        plans = self.plans
        if self.current is not None:
            return plans.place_of(self.current.stored.planned)
        if plans.selected is not None:
            return plans.selected
        return 0 if self._best is None else plans.place_of(self._best.planned)

    def exclude(self, exclusion: Exclusion) -> None:
        """Exclude plans; the one in use is given up if it is among them."""
        with self._lock:
            method, argument = exclusion
            getattr(self.plans, method)(argument)
            self._exclusions.append(exclusion)
            if self.current is not None and self.plans.why_excluded(self.place):
                self.current = None

    def select(self, place: int) -> None:
        """Pin a plan: it is the one that is built, or none is."""
        with self._lock:
            self.plans.select(place)
            self.current = None

    def build(self) -> BuiltPlan:
        """Build the first plan that can be, or the pinned one, and use it."""
        with self._lock:
            if self.current is None:
                self.current = self._walk()
            return self.current

    def build_all(self) -> None:
        """Build every plan that can be; the first of them is used, or the pinned one."""
        with self._lock, self._builder() as builder:
            plans = self.plans
            first: int | None = None
            reasons = list(plans.reasons)
            for place in range(len(plans)):
                try:
                    plans.build_at(place, lambda planned: self._build(builder, planned))
                except cudnnGraphNotSupportedError as decline:
                    if place == plans.selected:
                        raise
                    reasons += [f"{plans.name(place)}: {reason}" for reason in decline.reasons]
                    continue
                first = place if first is None else first
            use = plans.selected if plans.selected is not None else first
            if use is None:
                raise plans.declined(reasons)
            self._use(use, builder)

    def build_at(self, place: int) -> None:
        """Build one plan and use it."""
        with self._lock, self._builder() as builder:
            self._use(place, builder)

    def built_at(self, place: int) -> BuiltPlan:
        """One plan, built if it is not yet; the plan in use stays.

        Raises:
            cudnnGraphNotSupportedError: it is excluded, or declines.
        """
        with self._lock, self._builder() as builder:
            return self.plans.build_at(place, lambda planned: self._build(builder, planned))

    def restore(self, place: int, forbid_compile: bool) -> None:
        """Build one plan and use it, without compiling if that is forbidden."""
        with self._lock, self._builder(forbid_compile) as builder:
            self._use(place, builder)

    # What follows is not part of the interface.

    def _look_in_stores(self) -> None:
        """Find what is stored by those who are asked; the best is that of who ranks first."""
        found: dict[str, StoredPlan] = {}
        for provider in self._providers:
            key = self._plan_key(provider)
            stored = key and self._layers.find(
                self.graph, self.target.name, key, provider, self._device
            )
            if stored is not None:
                found[provider] = stored
        self._at_hand = list(found.values())
        first = self._providers[0]
        if len(self._providers) > 1:
            first = provider_order(self.graph, self.target, self._modes)[0]
        self._best = found.get(first)

    def _plan_key(self, provider: str) -> Callable[[Graph], str] | None:
        """Under which the overlay holds a provider's plan of a graph; None where what stores hold
        says nothing of a list of these modes.

        Stores are built with the default modes. Engines here propose the same for every mode but
        FALLBACK, so what serves those is what a list of others begins with; cuDNN proposes plans
        of their own for B.
        """
        if provider == "native":
            if self._modes[0] is heur_mode.FALLBACK:
                return None
            return lambda graph: plan_key(graph, self.target)
        if self._modes[0] is not heur_mode.A or heur_mode.B in self._modes:
            return None
        key = _cudnn().key(self.graph, self.target, DEFAULT_MODES)
        return None if isinstance(key, Refusal) else lambda graph: key

    def _list(self) -> PlanList:
        lowered = [stored.planned for stored in self._at_hand]
        is_listed = any(provider_of(planned.engine_id) == "cudnn" for planned in lowered)
        plans = PlanList(
            self.graph,
            self.target,
            self._modes,
            backend=_cudnn() if is_listed or "cudnn" in self._providers else None,
            engines=None if "native" in self._providers else (),
            lowered=lowered,
        )
        for method, argument in self._exclusions:
            getattr(plans, method)(argument)
        self._ranked = len(plans)
        if self._modes and not len(plans):
            raise plans.declined([*plans.reasons, *self._why_not_stored()])
        return plans

    def _why_not_stored(self) -> list[str]:
        if why_no_dsl("0") is None:
            return []
        return [
            f"no store holds a plan for graph key {self.graph.key()} ({self._layers}): build one "
            f"with `cudnn-aot build GRAPH.json --target {self.target.name} --store DIR` where the "
            "compiler is, and set CUDNN_AOT_STORE"
        ]

    def _walk(self) -> BuiltPlan:
        if self._best is not None and not self._is_restricted():
            return self._load(self._best)
        plans = self.plans
        if not len(plans):
            raise SequenceError(
                "there is no plan to build: call create_execution_plans() or "
                "create_execution_plan(engine_id, knobs)"
            )
        with self._builder() as builder:
            place, built = plans.walk(lambda planned: self._build(builder, planned))
            is_new = all(built.stored is not stored for stored in self._at_hand)
            if is_new and place < self._ranked and not self._is_restricted():
                provider = provider_of(built.stored.planned.engine_id)
                key = self._plan_key(provider)
                if key is not None:
                    builder.get().publish(built.stored, provider, key(self.graph))
            return built

    def _is_restricted(self) -> bool:
        """Whether the plan that is wanted may be another than the graph's best."""
        is_pinned = self._plans is not None and self._plans.selected is not None
        return bool(is_pinned or self._exclusions)

    def _use(self, place: int, builder: _LazyBuilder) -> None:
        self.current = self.plans.build_at(place, lambda planned: self._build(builder, planned))

    def _build(self, builder: _LazyBuilder, planned: Planned) -> BuiltPlan:
        if id(planned) in self._built:
            return self._built[id(planned)]
        for stored in self._at_hand:
            if planned is stored.planned:
                return self._load(stored)
        return self._load(builder.get().build(planned))

    def _load(self, stored: StoredPlan) -> BuiltPlan:
        built = self._built.get(id(stored.planned)) or load(stored, self.graph)
        self._built[id(stored.planned)] = built
        return built

    def _builder(self, forbid_compile: bool = False) -> _LazyBuilder:
        return _LazyBuilder(self.graph, self.target, self._layers, forbid_compile)


def _cudnn() -> Cudnn:
    from cudnn_aot.compiler.planning.cudnn import this_process

    return this_process()


class _LazyBuilder:
    """A `Builder`, whose module needs the compiler's, made once something has to be built."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._builder: Builder | None = None

    def get(self) -> Builder:
        if self._builder is None:
            from cudnn_aot.compiler.program.builder import Builder

            self._builder = Builder(*self._arguments)
        return self._builder

    def __enter__(self) -> _LazyBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._builder is not None:
            self._builder.close()
