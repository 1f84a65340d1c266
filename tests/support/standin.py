"""Engines that do as a test says, found through the manifest as real ones are, and a backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cudnn_aot.recipes
from cudnn_aot.compiler.graph.enums import data_type, heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import Engine, Lowering, PlanConfig, Refusal
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.manifest import EngineSlot, Family

RECIPES = Path(__file__).with_name("standin_recipes")
BASE = 20_900
ONE, TWO, TUNED, YOUNG, ABSENT = range(BASE, BASE + 5)

FAMILY = Family(
    name="standin",
    base_id=BASE,
    anchors=("relu",),
    validator="standin.family:validate",
    analyzer="standin.family:analyze",
    heuristics="standin.family:recommend",
    engines=(
        EngineSlot(0, "standin.one", "standin.family:One"),
        EngineSlot(1, "standin.two", "standin.family:Two"),
        EngineSlot(2, "standin.tuned", "standin.family:Tuned"),
        EngineSlot(3, "standin.young", "standin.family:Young", opt_in=True),
    ),
)


def installed(monkeypatch: pytest.MonkeyPatch, family: Family = FAMILY) -> Any:
    """Add the family to the manifest for one test; its module, with an empty script."""
    path = [p for p in cudnn_aot.recipes.__path__ if p != str(RECIPES)]
    monkeypatch.setattr(cudnn_aot.recipes, "__path__", [*path, str(RECIPES)])
    monkeypatch.setattr(manifest, "FAMILIES", (*manifest.FAMILIES, family))
    monkeypatch.delenv(manifest.OPT_IN_VARIABLE, raising=False)
    script = manifest.resolve("standin.family:SCRIPT")
    script.__init__()
    return sys.modules["cudnn_aot.recipes.standin.family"]


def changed(**fields: Any) -> Family:
    """The family with other hooks or engines."""
    return replace(FAMILY, **fields)


def relu_graph(rows: Any = 8, columns: Any = 4, symbols: Mapping[str, Any] | None = None) -> Graph:
    graph = Graph(
        "g",
        io_data_type=data_type.FLOAT,
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
        symbols=symbols,
    )
    x = graph.tensor([1, rows, columns], uid=1, name="X")
    graph.relu(x).set_uid(2).set_name("Y").set_output(True)
    return graph


class BackendEngine(Engine):
    """Of plans that a backend offers; its knobs are ``(name, value)`` pairs."""

    def __init__(self, engine_id: int, refusal: Any = None) -> None:
        self.name = f"cudnn.{engine_id}"  # type: ignore[misc]
        self.refusal = refusal

    def lower(self, facts: Any, knobs: Any, target: Any) -> Any:
        if isinstance(self.refusal, BaseException):
            raise self.refusal
        table = {"backend": self.name, "knobs": dict(knobs)}
        return self.refusal or Lowering((), table)

    def knobs_to_public(self, knobs: Any) -> dict[knob_type, int]:
        return {knob_type[name]: value for name, value in knobs}

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> Any:
        return tuple(sorted((knob.name, value) for knob, value in knobs.items()))


class StandInBackend:
    """A backend that finds what it is told to, by mode; engines by id, or what becomes of them."""

    def __init__(self, found: Any, engines: Mapping[int, Any] | None = None) -> None:
        self.found = found
        self.engines = dict(engines or {})
        self.asked: list[tuple[heur_mode, ...]] = []

    def entries(self, graph: Graph, target: Any, modes: Sequence[heur_mode]) -> Any:
        self.asked.append(tuple(modes))
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    def engine(self, graph: Graph, target: Any, engine_id: int) -> Engine:
        said = self.engines.get(engine_id)
        if isinstance(said, Unmakeable):
            raise said.error
        return BackendEngine(engine_id, said)


class Unmakeable:
    """Of an engine that cannot be made: the exception of asking for it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def backend_plan(engine_id: int, **knobs: int) -> PlanConfig:
    return PlanConfig(engine_id, tuple(sorted(knobs.items())))


def every_decline() -> Iterator[Any]:
    """The three types of a decline, and the refusal that is a value."""
    from cudnn_aot.errors import cudnnGraphNotSupportedError

    yield NotImplementedError("not written")
    yield cudnnGraphNotSupportedError("not this graph")
    yield ImportError("no such library", name="library")
    yield Refusal("not today")
