"""``cudnn-aot tune``: measure the plans of a store that `build --all-configs` made."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.output import exclusive, replaceable
from cudnn_aot.cache.plan_record import need_servable, parse_record
from cudnn_aot.cli.completion import complete_files, complete_plans
from cudnn_aot.cli.files import check_path, publish
from cudnn_aot.cli.options import (
    check_symbols,
    choose_store,
    json_option,
    store_option,
    target_option,
)
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.run import all_names, only_target
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.errors import (
    Error,
    NotInStoreError,
    RequirementError,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from cudnn_aot.cli.measure import Measured
    from cudnn_aot.cli.operands import Operands
    from cudnn_aot.compiler.graph.graph import Graph

# Plans of an entry: the fastest, and what is nearly as fast, should another GPU of the kind or
# another release of the kernels decide otherwise, or one plan be wanted for several entries.
_KEPT, _NEARLY = 20, 1.10
_SAMPLE = 1 << 18  # elements of an output that are compared for each plan
_WHAT = "the tuning file"
_STEP = 4  # between the values of a symbol that are measured unless some are given


# Engine and knobs of a plan; None for one that is made of ranges.
_Named = tuple[str, dict[str, int]] | None


@dataclass(frozen=True, slots=True)
class _Case:
    """The plans of one graph at one value of each symbol, and what was measured.

    Attributes:
        best: the place of the fastest that is not made of ranges; None if there is none.
    """

    name: str
    target: str
    symbols: dict[str, int]
    entry: dict[str, Any]
    plans: Sequence[_Named]
    measured: Sequence[Measured]

    @property
    def best(self) -> int | None:
        order = self.order()
        return order[0] if order else None

    def order(self) -> list[int]:
        """Places of the plans of one schedule that are right, fastest first."""
        timed = [
            (found.microseconds, place)
            for place, found in enumerate(self.measured)
            if found.microseconds is not None and self.plans[place] is not None
        ]
        return [place for _, place in sorted(timed)]

    @property
    def faults(self) -> list[str]:
        return [
            f"{self.name}{_at(self.symbols)}: {_plan_name(self.plans[place])}: {found.fault}"
            for place, found in enumerate(self.measured)
            if found.fault
        ]

    def to_entry(self) -> dict[str, Any]:
        """What a tuning file says of it."""
        order = self.order()
        fastest = self.measured[order[0]].microseconds or 0.0
        kept = [p for p in order if (self.measured[p].microseconds or 0.0) <= _NEARLY * fastest]
        plans = []
        for place in kept[:_KEPT]:
            engine, knobs = self.plans[place] or ("", {})
            us = round(self.measured[place].microseconds or 0.0, 3)
            plans.append({"engine": engine, "knobs": knobs, "us": us})
        return {**self.entry, "plans": plans}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "target": self.target,
            "symbols": self.symbols,
            "plans": [
                {
                    "engine": plan[0] if plan else "",
                    "knobs": plan[1] if plan else {},
                    "microseconds": found.microseconds,
                    "rounds": found.rounds,
                    "worst_error": found.error,
                    "fault": found.fault,
                }
                for plan, found in zip(self.plans, self.measured, strict=True)
            ],
        }


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_plans)
@store_option
@target_option("The target whose plans are measured; needed when the store holds several.")
@click.option(
    "--output", "-o", metavar="FILE", required=True, shell_complete=complete_files,
    help="The tuning file. What one that exists says of other graphs and extents stays.",
)  # fmt: skip
@click.option(
    "--symbol", "symbols", multiple=True, metavar="M=1,16,64",
    help="The values of a symbol to measure at; may be repeated. Default: its domain in steps of "
    "four times, and its hint.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=10, show_default=True,
    help="How often each plan is measured; the median counts.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True,
    help="Seed of the random operands.",
)  # fmt: skip
@click.option(
    "--device", type=click.IntRange(0, 1023), default=0, show_default=True, metavar="N",
    help="CUDA device.",
)  # fmt: skip
@json_option
def tune(
    names: tuple[str, ...],
    store: str | None,
    target: str | None,
    output: str,
    symbols: tuple[str, ...],
    rounds: int,
    seed: int,
    device: int,
    as_json: bool,
) -> int:
    """Measure the plans that `build --all-configs` made, and write which were fastest.

    Needs the GPU of the target and no compiler. Each plan is first checked on random operands
    against the reference; what is wrong is named, is in no entry, and makes the exit code 1. Then
    all plans of a graph are timed in turns. Without a NAME all graphs of the store are measured
    that have more than one plan. `build --tuning FILE` takes the plans that were fastest.

    \b
    cudnn-aot build graphs --target h200 --all-configs --store candidates
    cudnn-aot tune --store candidates -o h200.json
    """
    choice = choose_store(store)
    choice.check_writers()
    reader = choice.pinned_reader()
    given = _parse_symbols(symbols)
    file = _TuningFile(Path(output))
    if names:
        chosen = [(name, _owner(reader, name, target)) for name in names]
    else:
        chosen = [(name, holder or "") for name, holder in all_names(reader, target)]
    tuner = _Tuner(reader, rounds, seed, device)
    cases: list[_Case] = []
    failed = 0

    def fail(name: str, error: Error | MemoryError) -> None:
        nonlocal failed
        failed += 1
        complain(f"error: {name}: {' '.join(str(error).split()) or 'not enough memory'}")

    found: dict[tuple[str, str], _Stored] = {}  # once, of several names of a graph the first
    for name, holder in chosen:
        try:
            stored = _Stored.read(reader, name, holder)
            found.setdefault((holder, stored.graph_key), stored)
        except UsageError:
            raise
        except Error as error:
            fail(name, error)
    several = [each for each in found.values() if names or len(each.digests) > 1]
    if several and not names:  # a symbol need not belong to every graph then
        known = dict.fromkeys(name for each in several for name in each.graph.symbols)
        check_symbols(given, known, of_all=True)
    points = [list(_values(each.graph, given, strict=bool(names))) for each in several]
    for stored, every in zip(several, points, strict=True):
        try:
            for values in every:
                case = tuner.measure(stored, values)
                cases.append(case)
                if case.best is not None:  # each at once: who ends this early keeps what there is
                    file.add(case.to_entry())
                for line in case.faults:
                    complain(f"error: {line}")
                if not as_json:
                    complain(_line(case))
        except UsageError:
            raise
        except (Error, MemoryError) as error:
            fail(stored.name, error)
    if not cases and not failed:
        raise NotInStoreError(_why_nothing(reader.where, found.values()))
    tell = file.finish()
    if as_json:
        print_json({"store": reader.where, "cases": [case.to_json() for case in cases]})
    else:
        for line in _report(cases):
            tell(line)
    return 1 if failed or any(case.faults for case in cases) else 0


def _why_nothing(where: str, stored: Collection[_Stored]) -> str:
    if any(each.has_every_config for each in stored):
        why = "its engines have one plan of each graph: name a graph to measure that"
    else:
        why = "no graph has more than one plan: build it with --all-configs"
    return f"nothing to measure in {where}: {why}"


class _TuningFile:
    """What is written to: each entry at once, or a stream at the end.

    Others may write to the same file meanwhile, as for the other GPUs of this machine: an entry is
    put into the file as it is then, and nothing else of it is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_stream = os.path.exists(path) and replaceable(path) is None
        self._measured: dict[str, dict[str, Any]] = {}  # for a stream
        if not self._is_stream:
            self._read()
        check_path(path, _WHAT)

    def add(self, entry: dict[str, Any]) -> None:
        from cudnn_aot.compiler.planning.tuning import place_of

        if self._is_stream:
            self._measured[place_of(entry)] = entry
            return
        with exclusive(self._path):
            self._write(self._read() | {place_of(entry): entry})

    def finish(self) -> Callable[[str], None]:
        """What tells of it in a line, as `publish` does."""
        return self._write(self._measured) if self._is_stream and self._measured else say

    def _read(self) -> dict[str, dict[str, Any]]:
        from cudnn_aot.compiler.planning.tuning import place_of, read_entries

        entries = read_entries(self._path) if os.path.exists(self._path) else []
        return {place_of(entry): entry for entry in entries}

    def _write(self, entries: Mapping[str, dict[str, Any]]) -> Callable[[str], None]:
        import json

        from cudnn_aot.compiler.planning.tuning import FORMAT

        lines = ",\n".join(f"  {json.dumps(entry, sort_keys=True)}" for entry in entries.values())
        return publish(self._path, f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n', _WHAT)


def _owner(reader: AnyReader, name: str, target: str | None) -> str:
    """The target that is asked for, or the one that holds a name."""
    owner = target or only_target(reader, name)
    holders = {holder for holder, known in reader.names() if known == name}
    if not holders:
        near = did_you_mean(name, {known for _, known in reader.names()})
        raise NotInStoreError(f"no plan {name!r}{near} in the store {reader.where!r}")
    if owner not in holders:
        near, held = did_you_mean(owner or "", holders), ", ".join(sorted(holders))
        raise NotInStoreError(f"{name!r} is stored for {held}, not for {owner!r}{near}")
    return owner or ""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a store has of a graph: its native plans' records, best first."""

    name: str
    target: str
    graph_key: str
    graph: Graph
    uids: dict[str, int]
    digests: tuple[str, ...]
    has_every_config: bool

    @classmethod
    def read(cls, reader: AnyReader, name: str, target: str) -> _Stored:
        from cudnn_aot.compiler.formats import graph_json

        found = reader.name(target, name)
        pointer = reader.pointer(target, found["graph_key"])
        native: Mapping[str, Any] = providers_of(pointer).get("native", {"records": []})
        if not native["records"]:
            raise NotInStoreError(f"it has no plan of our engines for {target}")
        graph = graph_json.loads(reader.blob(pointer["graph"]).decode())
        return cls(
            name=name,
            target=target,
            graph_key=found["graph_key"],
            graph=graph,
            uids=found["uids"],
            digests=tuple(native["records"]),
            has_every_config=native.get("all_configs", False),
        )


class _Tuner:
    def __init__(self, reader: AnyReader, rounds: int, seed: int, device: int) -> None:
        self._reader = reader
        self._rounds, self._seed, self._device = rounds, seed, device
        self._of: _Stored | None = None  # whose plans are loaded, for all its values
        self._loaded: tuple[list[Any], list[_Named]] = [], []
        self._operands: Operands | None = None  # of the last value of the same graph

    def measure(self, stored: _Stored, symbols: dict[str, int]) -> _Case:
        from cudnn_aot.cli import operands as ops
        from cudnn_aot.cli.measure import measure

        earlier, self._operands = self._operands if self._of is stored else None, None
        operands = ops.make_operands(stored.graph, symbols, self._seed, earlier)
        self._operands, earlier = operands, None
        reference = ops.Reference(stored.graph, operands, symbols, _SAMPLE)
        plans, named = self._plans(stored)
        measured = measure(plans, operands, reference, symbols, self._device, self._rounds)
        entry = _entry(stored.graph, stored.target, symbols)
        return _Case(stored.name, stored.target, symbols, entry, named, measured)

    def _plans(self, stored: _Stored) -> tuple[list[Any], list[_Named]]:
        from cudnn_aot.runtime.plan import Plan

        if self._of is not stored:
            self._loaded, self._of = ([], []), stored
            for digest in stored.digests:
                record = parse_record(self._reader.blob(digest), digest)
                need_servable(record, digest, stored.target, stored.graph_key)
                plan = Plan(stored.name, stored.uids, record, self._reader.blob)
                self._loaded[0].append(plan)
                self._loaded[1].append(None if plan.ranges else (plan.engine, plan.knobs))
        return self._loaded


def _entry(graph: Graph, target: str, symbols: Mapping[str, int]) -> dict[str, Any]:
    """What a tuning file calls the graph at these values."""
    from cudnn_aot.compiler.planning import manifest
    from cudnn_aot.compiler.planning.engine import Refusal
    from cudnn_aot.compiler.planning.facts import facts_for

    graph = graph.freeze().canonical()
    family = manifest.family_for(node.op for node in graph.nodes)
    facts: Any = Refusal("it is of no family")
    if family is not None:
        facts = facts_for(graph, manifest.resolve(family.analyzer))
    if family is None or isinstance(facts, Refusal):
        raise RequirementError(
            f"no engine of this version takes it ({facts.reason}): build it anew"
        )
    extents = facts.extents_at(symbols) if symbols else facts.extents
    return {
        "family": family.name,
        "target": target,
        "layout_class": facts.layout_class,
        "extents": extents,
    }


def _values(
    graph: Graph, given: Mapping[str, Sequence[int]], *, strict: bool
) -> Iterator[dict[str, int]]:
    """The values of its symbols to measure at: those given, else a ladder of each domain."""
    if strict:
        check_symbols(given, graph.symbols)
    if not graph.symbols:
        yield {}
        return
    ladders = []
    for name, symbol in graph.symbols.items():
        values = list(given.get(name, ())) or _ladder(symbol)
        for value in values:
            if refused := symbol.refuse(value):
                raise UsageError(f"--symbol {name}: {refused}")
        ladders.append([(name, value) for value in values])
    for chosen in itertools.product(*ladders):
        yield dict(chosen)


def _ladder(symbol: Any) -> list[int]:
    step = symbol.multiple_of
    values, value = [], max(symbol.min, 1)
    while value <= symbol.max:
        values.append(-(-value // step) * step)
        value *= _STEP
    if symbol.hint is not None:
        values.append(symbol.hint)
    return sorted({value for value in values if not symbol.refuse(value)}) or [symbol.planned]


def _parse_symbols(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    symbols: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = values.split(",")
        if not (name and equals) or not all(p.isdecimal() and len(p) < 20 for p in parts):
            raise UsageError(f"--symbol: got {text[:80]!r}, want NAME=NUMBERS, for example M=1,64")
        every = (*symbols.get(name, ()), *map(int, parts))
        symbols[name] = tuple(dict.fromkeys(every))
    return symbols


def _at(symbols: Mapping[str, int]) -> str:
    return "".join(f" {name}={value}" for name, value in symbols.items())


def _plan_name(plan: _Named) -> str:
    from cudnn_aot.compiler.planning.knobs import plan_name

    return "ranges" if plan is None else plan_name(plan[0], tuple(plan[1].items()))


def _line(case: _Case) -> str:
    best = case.best
    us = None if best is None else case.measured[best].microseconds
    said = "none is right" if us is None else f"{us:.2f} us by {_plan_name(case.plans[best or 0])}"
    return f"{case.name}{_at(case.symbols)}: {plural(len(case.plans), 'plan')}, {said}"


def _report(cases: Sequence[_Case]) -> list[str]:
    header = ["plan", "target", "symbols", "plans", "ranked-us", "best-us", "gain"]
    rows = []
    for case in cases:
        today = case.measured[0].microseconds
        best = None if case.best is None else case.measured[case.best].microseconds
        rows.append(
            (
                case.name,
                case.target,
                _at(case.symbols).strip() or "-",
                str(len(case.plans)),
                "-" if today is None else f"{today:.2f}",
                "-" if best is None else f"{best:.2f}",
                "-" if today is None or best is None else f"{today / best:.3f}",
            )
        )
    return format_table(header, rows, right="plans ranked-us best-us gain")


__all__ = ["tune"]
