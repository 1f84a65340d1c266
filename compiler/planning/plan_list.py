"""The ranked plans of one graph on one target, and the walk that takes the first one that builds.

Everything that names a plan by its place in the list, pins one or excludes some is here, so the
build command, ``why`` and programs that plan in process see one list and one set of rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cudnn_aot.cache.spec import steady_sources
from cudnn_aot.cache.toolchain import why_no_dsl
from cudnn_aot.compiler.graph.enums import behavior_note, heur_mode, numerical_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import (
    DECLINES,
    Backend,
    Engine,
    Lowering,
    Note,
    PlanConfig,
    Refusal,
)
from cudnn_aot.compiler.planning.exclusions import Exclusions
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.knobs import plan_name
from cudnn_aot.compiler.planning.planned import Planned, PlannedRange
from cudnn_aot.compiler.planning.ranges import (
    Range,
    Ranges,
    check_partition,
    merge,
    narrow_facts,
)
from cudnn_aot.compiler.planning.rank import BACKEND, DEFAULT_MODES, Entry, Proposal, rank
from cudnn_aot.compiler.planning.replay import (
    PublicKnobs,
    RangedKnobs,
    parse_bounds,
    ranged_knobs,
    typed_knobs,
)
from cudnn_aot.compiler.planning.shipped import with_shipped
from cudnn_aot.compiler.planning.tuned import measured_first
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import PlanIndexError, UsageError, cudnnGraphNotSupportedError

Built = TypeVar("Built")


class PlanList:
    """The plans of a frozen graph on a target, best first.

    Attributes:
        facts: the family's facts, or None when there is no family or its analyzer refuses.
        support: by engine name of the family, None when it takes the graph, else the reason.
        entries: the ranked plans.
        reasons: one sentence per side that offers nothing: the family, each engine, the backend.

    Args:
        modes: heuristic modes, in the order in which their plans are listed.
        backend: asked for plans of its own; None leaves it out.
        tuning: measured plans, which come before those that the heuristics rank; of the graphs that
            it speaks of in place of those that are shipped.
        engines: names of our engines that may serve; None for all that the manifest offers. With
            none at all our side is left out, its reasons too.
        lowered: plans that were lowered before, of this graph and target. They are in the list,
            and their engines are offered; with one of ours, engines are listed even where the
            compiler that the others need is missing.
        needs_compiler: whether an engine is declined for want of its compiler; else it is listed,
            and declines when it lowers.

    Raises:
        InvalidGraphError, cudnnGraphNotSupportedError: the graph is invalid, or the family's
            validator refuses it.
        UsageError: a mode is none.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        modes: Sequence[heur_mode] = DEFAULT_MODES,
        *,
        backend: Backend | None = None,
        tuning: Tuning | None = None,
        engines: Iterable[str] | None = None,
        lowered: Sequence[Planned] = (),
        needs_compiler: bool = True,
    ) -> None:
        self.graph = graph.freeze().canonical()
        self.target = target
        self.modes = tuple(modes)
        for mode in self.modes:
            if not isinstance(mode, heur_mode):
                raise UsageError(f"mode: got {mode!r}, want a heur_mode")
        self.family = manifest.family_for(node.op for node in graph.nodes)
        self.facts: Any = None
        self.support: dict[str, str | None] = {}
        self.reasons: list[str] = []
        self._backend = backend
        self._engines: dict[int, Engine] = {}
        self._of_backend: dict[int, Engine] = {}
        self._excluded = Exclusions()
        self._lowered: dict[Entry, Planned] = {}
        held = any(manifest.provider_of(planned.engine_id) == "native" for planned in lowered)
        self._needs_compiler = needs_compiler and not held
        self._of_lowered = {plan.engine_id for plan in lowered}
        self._of_lowered |= {part.engine_id for plan in lowered for part in plan.ranges}
        self._lacks_modules = False  # of this installation, for which an engine declined
        self.selected: int | None = None
        self._analyze(None if engines is None else frozenset(engines))
        self.entries = self._rank(tuning)
        for planned in lowered:
            self._lowered[self.entry(self.append_planned(planned))] = planned

    # What there is.

    def __len__(self) -> int:
        return len(self.entries)

    def entry(self, index: int) -> Entry:
        """The plan at a place of the list.

        Raises:
            PlanIndexError: there is no such place.
        """
        return self.entries[self._place(index)]

    def place_of(self, planned: Planned) -> int:
        """Where in the list a plan is that was lowered."""
        lowered = (self._lowered.get(entry) for entry in self.entries)
        return next(index for index, each in enumerate(lowered) if each is planned)

    def name(self, index: int) -> str:
        """``engine[KNOB=value, ...]`` of a plan, the same in every process and release."""
        return self._name(self.entry(index))

    def ranges(self, index: int) -> list[tuple[str, str, str]]:
        """Each range in words, the name of what serves it, and what decided that; none of a plan
        without ranges.
        """
        entry = self.entry(index)
        parts = entry.parts if isinstance(entry, Ranges) else ()
        return [(str(part), self._name(part.plan), part.plan.why) for part in parts]

    def engine_and_knobs(self, index: int) -> tuple[int, PublicKnobs | RangedKnobs]:
        """What `append` builds the same plan from; ``{}`` for a plan without knobs."""
        entry = self.entry(index)
        if isinstance(entry, Ranges):
            ranged = RangedKnobs()
            for part in entry.parts:
                ranged[str(part)] = (part.plan.engine_id, self._public(part.plan))
            return entry.parts[0].plan.engine_id, ranged
        return entry.engine_id, self._public(entry)

    def behavior_notes(self, index: int) -> list[behavior_note]:
        """The notes of a plan, in the order of their numbers."""
        notes = [n for n in self._notes(index) if isinstance(n, behavior_note)]
        return sorted(notes, key=lambda note: note.value)

    def numerical_notes(self, index: int) -> list[numerical_note]:
        """The notes of a plan, in the order of their numbers."""
        notes = [n for n in self._notes(index) if isinstance(n, numerical_note)]
        return sorted(notes, key=lambda note: note.value)

    def workspace_bytes(self, index: int) -> int:
        """The most workspace that any legal call of a plan needs.

        Raises:
            cudnnGraphNotSupportedError: the plan's engine declines.
        """
        from cudnn_aot import _native  # ranking alone needs no executor

        return int(_native.Plan(self.lower(index).table, None).workspace_bytes(None))

    # Choosing.

    def append(self, engine_id: int, knobs: Mapping[Any, Any]) -> int:
        """Add the plan of a recorded ``(engine_id, knobs)`` to the end of the list; its place.

        A plan that is listed already keeps its place. ``knobs`` may have numbers or names for knob
        types, and be what JSON makes of those of a plan of ranges.

        Raises:
            UsageError: there is no such engine, knob or range.
            cudnnGraphNotSupportedError: the engine does not take the graph or the knobs.
        """
        ranged = ranged_knobs(knobs)
        if ranged is not None:
            entry: Entry = self._ranged(ranged)
        else:
            entry = self._replayed(engine_id, knobs)
        if entry not in self.entries:
            self.entries.append(entry)
        return self.entries.index(entry)

    def append_configs(self) -> list[int]:
        """`append` of every plan that an engine finds worth measuring; their places."""
        places = []
        for engine_id, engine in self._engines.items():
            for knobs in engine.configs(self.facts, self.target):
                entry = PlanConfig(engine_id, knobs, "to be measured")
                if entry not in self.entries:
                    self.entries.append(entry)
                places.append(self.entries.index(entry))
        return places

    def append_planned(self, planned: Planned) -> int:
        """`append` of a plan's engine and knobs, of another list or a record; its place."""
        knobs: PublicKnobs | RangedKnobs = typed_knobs(planned.knobs)
        if planned.ranges:
            knobs = RangedKnobs()
            for part in planned.ranges:
                bounds = tuple((name, low, high) for name, (low, high) in part.bounds.items())
                words = str(Range(bounds, PlanConfig(part.engine_id)))
                knobs[words] = (part.engine_id, typed_knobs(part.knobs))
        return self.append(planned.engine_id, knobs)

    def select(self, index: int) -> None:
        """Pin a plan: what is built is this one or nothing."""
        self.selected = self._place(index)

    def deselect_engines(self, names: Iterable[str]) -> None:
        """Build no plan of these engines."""
        self._excluded.deselect_engines(names)

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        """Build no plan that may need more workspace than this."""
        self._excluded.deselect_workspace_greater_than(nbytes)

    def deselect_notes(self, notes: Iterable[Note]) -> None:
        """Build no plan that has one of these notes."""
        self._excluded.deselect_notes(notes)

    def select_notes(self, notes: Iterable[Note]) -> None:
        """Build only plans that have all of these notes."""
        self._excluded.select_notes(notes)

    def why_excluded(self, index: int) -> str | None:
        """The exclusion that a plan falls under, in a sentence; None for a plan that may be built.

        Raises:
            cudnnGraphNotSupportedError: workspace or notes are limited and the plan's engine
                declines.
        """
        return self._excluded.why_excluded(
            self._engines_of(index),
            lambda: self._notes(index),
            lambda: self.workspace_bytes(index),
        )

    # Lowering.

    def lower(self, index: int) -> Planned:
        """Kernels and launch table of one plan; made once.

        Of a plan of ranges, each by the first of its plans that lowers: the entry at this place
        then is what was taken, whoever asked for it.

        Raises:
            cudnnGraphNotSupportedError: the engine declines, or all plans of one range.
        """
        place = self._place(index)
        entry = self.entries[place]
        if entry not in self._lowered:
            try:
                with steady_sources():
                    if isinstance(entry, Ranges):
                        entry, planned = self._lower_ranges(entry)
                    else:
                        planned = self._lower(entry, self.facts)
            except _RangeDeclined:
                raise
            except DECLINES as decline:
                reason = self._reason(decline)
                raise cudnnGraphNotSupportedError(reason, [reason]) from decline
            self.entries[place] = entry
            self._lowered.setdefault(entry, planned)
        return self._lowered[entry]

    def build_at(self, index: int, build: Callable[[Planned], Built]) -> Built:
        """``build`` of one plan.

        Raises:
            cudnnGraphNotSupportedError: it is excluded, or its engine or ``build`` declines.
        """
        try:
            return self._built(index, build)
        except DECLINES as decline:
            reasons = self._reasons(index, decline)
            where = f"plan {self._label(index)}: "
            raise cudnnGraphNotSupportedError(where + "; ".join(reasons), reasons) from decline

    def walk(self, build: Callable[[Planned], Built]) -> tuple[int, Built]:
        """The first plan that builds, and its place; a pinned one is the only one tried.

        A decline goes on to the next plan. Any other exception propagates.

        Raises:
            cudnnGraphNotSupportedError: none builds; it has the reason of every side.
        """
        if self.selected is not None:
            return self.selected, self.build_at(self.selected, build)
        reasons = list(self.reasons)
        for index in range(len(self.entries)):
            try:
                return index, self._built(index, build)
            except DECLINES as decline:
                label = self._label(index)
                reasons += [f"{label}: {reason}" for reason in self._reasons(index, decline)]
        raise self.declined(reasons)

    def declined(self, reasons: Sequence[str]) -> cudnnGraphNotSupportedError:
        """The error that says that no plan is left, and why."""
        why = "; ".join(reasons)
        error = cudnnGraphNotSupportedError(
            f"graph {self.graph.name!r} is declined for {self.target.name}: {why}", reasons
        )
        error.is_lasting = not self._lacks_modules
        return error

    # What follows is not part of the interface.

    def _place(self, index: Any) -> int:
        """An index of any integer type as a place of the list."""
        try:
            place = -1 if isinstance(index, bool) else operator.index(index)
        except TypeError:
            place = -1
        if not 0 <= place < len(self.entries):
            raise PlanIndexError(
                f"plan index: got {index!r}, want 0..{len(self.entries) - 1}"
                if self.entries
                else f"plan index: got {index!r}, but there is no plan"
            )
        return place

    def _analyze(self, wanted: frozenset[str] | None) -> None:
        if wanted is not None and not wanted:
            return
        family = self.family
        if family is None:
            self.reasons.append("no engine family serves this combination of ops")
            return
        try:
            validate = manifest.resolve(family.validator) if family.validator else None
        except ImportError as missing:
            self.reasons.append(f"{family.name}: {self._reason(missing)}")
            return
        if validate is not None:
            validate(self.graph)
        try:
            facts = facts_for(self.graph, manifest.resolve(family.analyzer))
        except DECLINES as decline:
            facts = Refusal(self._reason(decline))
        if isinstance(facts, Refusal):
            self.reasons.append(f"{family.name}: {facts.reason}")
            return
        self.facts = facts
        offered = family.offered()
        for slot in family.engines:
            engine_id = family.engine_id(slot)
            if wanted is not None and slot.name not in wanted:
                reason: str | None = "not among the engines asked for"
            elif slot not in offered and engine_id not in self._of_lowered:
                reason = self._not_enabled(slot)
            else:
                reason = self._support(engine_id, slot)
            self.support[slot.name] = reason
            if reason is not None:
                self.reasons.append(f"{slot.name}: {reason}")

    def _support(self, engine_id: int, slot: manifest.EngineSlot) -> str | None:
        """None when the engine takes the graph, and it is kept; else the reason."""
        try:
            engine: Engine = manifest.resolve(slot.factory)()
            refusal = engine.check_support(self.facts, self.target)
        except DECLINES as decline:
            return self._reason(decline)
        if refusal is not None:
            return refusal.reason
        missing = _why_no_compiler(engine) if self._needs_compiler else None
        if missing is None:
            self._engines[engine_id] = engine
        else:
            self._lacks_modules = True
        return missing

    def _not_enabled(self, slot: manifest.EngineSlot) -> str:
        """Why an engine that is not enabled does not serve: that alone only where it else would."""
        try:
            engine: Engine = manifest.resolve(slot.factory)()
            refusal = engine.check_support(self.facts, self.target)
        except Exception:  # it is not mature: where nobody asked for it, it costs nobody a plan
            refusal = None
        if refusal is not None:
            return refusal.reason
        return f"not enabled: set {manifest.OPT_IN_VARIABLE}={slot.name}"

    def _reason(self, decline: BaseException) -> str:
        """`decline_reason`, remembering that a module is what is missing."""
        self._lacks_modules |= isinstance(decline, ImportError)
        return decline_reason(decline)

    def _reasons(self, index: int, decline: BaseException) -> list[str]:
        """What a decline of a plan says, and what declined in its ranges before."""
        if isinstance(decline, _RangeDeclined):
            return list(decline.reasons)
        entry = self.entry(index)
        before = entry.declined if isinstance(entry, Ranges) else ()
        return [*before, self._reason(decline)]

    def _rank(self, tuning: Tuning | None) -> list[Entry]:
        found = self._ask_backend()
        declined: dict[str, None] = {}

        def recommend(kind: str) -> Sequence[Proposal]:
            if self.family is None or not self._engines:
                return ()
            ranked: Sequence[Proposal] = ()
            try:
                hook = manifest.resolve(self.family.heuristics)
                ranked = hook(kind, self.facts, tuple(self._engines), self.target)
            except DECLINES as decline:
                declined[f"{self.family.name}: {self._reason(decline)}"] = None
            for proposal in ranked:
                self._check_proposal(proposal)
            measured = with_shipped(tuning, self.family, self.target) if kind == "A" else None
            if measured is None:
                return ranked
            family, facts, target = self.family.name, self.facts, self.target
            return measured_first(measured, family, facts, target, self._engines, ranked)

        entries = rank(self.modes, recommend, found)
        if self.modes and self._engines and not any(_is_ours(entry) for entry in entries):
            assert self.family is not None
            self.reasons += declined or [f"{self.family.name}: the heuristics propose no plan"]
        return entries

    def _ask_backend(self) -> Mapping[heur_mode, Sequence[PlanConfig]]:
        if self._backend is None or not self.modes:
            return {}
        try:
            found = self._backend.entries(self.graph, self.target, self.modes)
        except DECLINES as decline:
            found = Refusal(decline_reason(decline))
        if isinstance(found, Refusal):
            self.reasons.append(f"cudnn: {found.reason}")
            return {}
        entries = [entry for mode in self.modes for entry in found.get(mode, ())]
        for entry in entries:
            if entry.engine_id not in manifest.BACKEND_IDS:
                raise ValueError(f"the backend proposes engine {entry.engine_id}, not its own")
        if self.modes and not entries:
            self.reasons.append("cudnn: it finds no plan")
        return found

    def _check_proposal(self, proposal: Proposal) -> None:
        """Heuristics may propose only what was offered, and ranges that partition the domain."""
        if proposal is BACKEND:
            return
        if isinstance(proposal, Ranges):
            check_partition(proposal, self.graph.symbols)
        elif not isinstance(proposal, PlanConfig):
            raise ValueError(f"the heuristics propose {proposal!r}, want plans and the marker")
        for config in _proposed(proposal):
            if config.engine_id not in self._engines:
                raise ValueError(f"the heuristics propose engine {config.engine_id}, not offered")

    def _engine(self, engine_id: int) -> Engine:
        """The engine of an id, if it takes the graph."""
        if type(engine_id) is not int:
            raise UsageError(f"engine id: got {engine_id!r}, want an integer")
        if engine_id in self._engines:
            return self._engines[engine_id]
        if engine_id in manifest.BACKEND_IDS:
            if self._backend is None:
                raise cudnnGraphNotSupportedError(
                    f"engine {engine_id} is cuDNN's: its backend is not among the engines asked for"
                )
            if engine_id not in self._of_backend:
                self._of_backend[engine_id] = self._backend.engine(
                    self.graph, self.target, engine_id
                )
            return self._of_backend[engine_id]
        try:
            family, slot = manifest.engine_for_id(engine_id)
        except KeyError:
            raise UsageError(f"unknown engine id {engine_id!r}") from None
        reason = self.support.get(slot.name, f"the graph is not of the family {family.name}")
        raise cudnnGraphNotSupportedError(f"engine {slot.name}: {reason}", [str(reason)])

    def _engines_of(self, index: int) -> list[Engine]:
        """The engines that serve a plan, each once."""
        ids = dict.fromkeys(config.engine_id for config in _configs(self.entry(index)))
        return [self._engine(engine_id) for engine_id in ids]

    def _notes(self, index: int) -> frozenset[Note]:
        entry = self.entry(index)
        if entry in self._lowered and (notes := self._lowered[entry].notes) is not None:
            return notes
        return frozenset().union(*(self._notes_of(config) for config in _configs(entry)))

    def _notes_of(self, config: PlanConfig) -> frozenset[Note]:
        return self._engine(config.engine_id).notes(config.knobs)

    def _public(self, config: PlanConfig) -> PublicKnobs:
        return self._engine(config.engine_id).knobs_to_public(config.knobs)

    def _named_knobs(self, config: PlanConfig) -> dict[str, int]:
        return {knob.name: value for knob, value in self._public(config).items()}

    def _name(self, entry: Entry) -> str:
        if isinstance(entry, Ranges):
            return "; ".join(f"{part}: {self._name(part.plan)}" for part in entry.parts)
        engine = self._engine(entry.engine_id)
        return plan_name(engine.name, tuple(self._named_knobs(entry).items()))

    def _label(self, index: int) -> str:
        """The plan's name; of a backend's plan whose engine declines, what is known of it."""
        try:
            return self.name(index)
        except DECLINES:
            ids = dict.fromkeys(config.engine_id for config in _configs(self.entry(index)))
            return f"engine {', '.join(map(str, ids))}"

    def _built(self, index: int, build: Callable[[Planned], Built]) -> Built:
        self._refuse_excluded(index)
        planned = self.lower(index)
        self._refuse_excluded(index)  # a range may have taken another plan
        return build(planned)

    def _refuse_excluded(self, index: int) -> None:
        excluded = self.why_excluded(index)
        if excluded:
            raise cudnnGraphNotSupportedError(excluded, [excluded])

    def _lower(self, config: PlanConfig, facts: Any) -> Planned:
        engine = self._engine(config.engine_id)
        missing = _why_no_compiler(engine)
        if missing is not None:
            raise cudnnGraphNotSupportedError(missing, [missing])
        lowering = engine.lower(facts, config.knobs, self.target)
        if isinstance(lowering, Refusal):
            raise cudnnGraphNotSupportedError(lowering.reason, [lowering.reason])
        return Planned(
            config.engine_id,
            engine.name,
            self._named_knobs(config),
            lowering.kernels,
            lowering.table,
            blobs=lowering.blobs,
            requirements=lowering.requirements,
            notes=engine.notes(config.knobs),
        )

    def _lower_ranges(self, ranges: Ranges) -> tuple[Ranges, Planned]:
        """What was taken for every range, and one table of all."""
        parts: list[tuple[Range, Planned]] = []
        declined: list[str] = []
        for part in ranges.parts:
            found, said = self._lower_range(part)
            declined += [f"range {part}: {each}" for each in said]
            if found is None:
                raise _RangeDeclined("; ".join(declined), declined)
            parts.append((part.served_by(found[0], said), found[1]))
        merged = merge(
            [(part, Lowering(p.kernels, p.table)) for part, p in parts], self.graph.symbols
        )
        first = parts[0][1]
        planned = tuple(
            PlannedRange(
                {name: (low, high) for name, low, high in part.bounds},
                p.engine_id,
                p.engine_name,
                p.knobs,
            )
            for part, p in parts
        )
        whole = Planned(
            first.engine_id,
            first.engine_name,
            first.knobs,
            merged.kernels,
            merged.table,
            planned,
            notes=frozenset().union(*(p.notes or () for _, p in parts)),
        )
        return ranges.served_by([part for part, _ in parts], declined), whole

    def _lower_range(self, part: Range) -> tuple[tuple[PlanConfig, Planned] | None, list[str]]:
        """The first plan of a range that lowers, if any; and what the others say."""
        said: list[str] = []
        for plan in (part.plan, *part.others):
            try:
                return (plan, self._lower(plan, narrow_facts(self.facts, part))), said
            except DECLINES as decline:
                said.append(f"{self._name(plan)} declines: {self._reason(decline)}")
        return None, said

    def _replayed(self, engine_id: int, knobs: Mapping[Any, Any]) -> PlanConfig:
        engine = self._engine(engine_id)
        return PlanConfig(engine_id, engine.knobs_from_public(typed_knobs(knobs)))

    def _ranged(self, knobs: RangedKnobs) -> Ranges:
        ranges = Ranges(
            tuple(
                Range(parse_bounds(text), self._replayed(engine_id, public))
                for text, (engine_id, public) in knobs.items()
            )
        )
        try:
            check_partition(ranges, self.graph.symbols)
        except ValueError as error:
            raise UsageError(f"knobs by range: {error}") from None
        return ranges


class _RangeDeclined(cudnnGraphNotSupportedError):
    """All plans of one range decline; ``reasons`` has those of the ranges before it, too."""


def decline_reason(decline: BaseException) -> str:
    """What a decline says, as a reason in a list of reasons."""
    if isinstance(decline, ImportError) and decline.name:
        return f"module {decline.name!r} is not installed or does not import"
    return " ".join(str(decline).split()) or type(decline).__name__


def _why_no_compiler(engine: Engine) -> str | None:
    return None if engine.dsl_min is None else why_no_dsl(engine.dsl_min)


def _is_ours(entry: Entry) -> bool:
    return isinstance(entry, Ranges) or entry.engine_id >= manifest.FIRST_ENGINE_ID


def _configs(entry: Entry) -> Iterable[PlanConfig]:
    """What serves the calls of an entry."""
    if isinstance(entry, PlanConfig):
        return (entry,)
    return (part.plan for part in entry.parts)


def _proposed(entry: Entry) -> Iterable[PlanConfig]:
    """What may come to serve them."""
    yield from _configs(entry)
    if isinstance(entry, Ranges):
        for part in entry.parts:
            yield from part.others
