"""Planning: classify a graph, analyze it once, rank, lower the first plan that does not decline.

Nothing here knows a device, and nothing compiles. The plan key covers everything that a plan is
made from, so an unchanged graph is recognised without planning it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import Engine, PlanConfig, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

TABLE_VERSION = 1
MODES = ("A", "FALLBACK")


@dataclass(frozen=True, slots=True)
class Planned:
    """A lowered plan: who serves the graph, with which knobs, and what it runs."""

    engine_id: int
    engine_name: str
    knobs: dict[str, int] = field(hash=False)
    kernels: tuple[KernelSpec, ...]
    table: dict[str, Any] = field(hash=False)


def plan_graph(graph: Graph, target: Target) -> Planned:
    """The best plan for ``graph`` on ``target``.

    Raises:
        cudnnGraphNotSupportedError: every engine declined; ``reasons`` and the message carry all
            their reasons.
    """
    graph = graph.freeze().canonical()
    family = manifest.family_for(node.op for node in graph.nodes)
    if family is None:
        raise _declined(graph, target, ["no engine family serves this combination of ops"])
    facts = manifest.resolve(family.analyzer)(graph)
    if isinstance(facts, Refusal):
        raise _declined(graph, target, [f"{family.name}: {facts.reason}"])
    engines, reasons = _supporting_engines(family, facts, target)
    for config in _plan_list(family, facts, list(engines), target):
        engine = engines[config.engine_id]
        lowering = engine.lower(facts, dict(config.knobs), target)
        if isinstance(lowering, Refusal):
            reasons.append(f"{engine.name}: {lowering.reason}")
            continue
        return Planned(
            config.engine_id, engine.name, dict(config.knobs), lowering.kernels, lowering.table
        )
    raise _declined(graph, target, reasons)


def _supporting_engines(
    family: manifest.Family, facts: Any, target: Target
) -> tuple[dict[int, Engine], list[str]]:
    engines: dict[int, Engine] = {}
    reasons: list[str] = []
    for slot in family.engines:
        engine: Engine = manifest.resolve(slot.factory)()
        refusal = engine.check_support(facts, target)
        if refusal is None:
            engines[family.engine_id(slot)] = engine
        else:
            reasons.append(f"{slot.name}: {refusal.reason}")
    return engines, reasons


def _plan_list(
    family: manifest.Family, facts: Any, offered: list[int], target: Target
) -> list[PlanConfig]:
    """One list over the modes, first position of a repeated plan wins."""
    recommend = manifest.resolve(family.heuristics)
    ranked = [config for mode in MODES for config in recommend(mode, facts, offered, target)]
    return list(dict.fromkeys(ranked))


def _declined(graph: Graph, target: Target, reasons: list[str]) -> cudnnGraphNotSupportedError:
    return cudnnGraphNotSupportedError(
        f"graph {graph.name!r} is declined for {target.name}: {'; '.join(reasons)}", reasons
    )


def plan_key(graph: Graph, target: Target) -> str:
    """64 hex digits over graph, target descriptor, planner and recipe sources, table version and
    modes.

    Kernel sources and tools are no part of it: the keys of the plan's kernels hold them.
    """
    family = manifest.family_for(node.op for node in graph.nodes)
    document = {
        "graph": graph.key(),
        "target": target.descriptor(),
        "planner": _source_digest(family.name if family else None),
        "table_version": TABLE_VERSION,
        "modes": list(MODES),
    }
    return canonical_digest(document)


def _source_digest(family: str | None) -> str:
    """Digest of the sources that decide a plan: planning, graph, the family's recipe.

    Names are relative to their package, so that a wheel and a checkout agree.
    """
    packages = ["compiler.planning", "compiler.graph", "compiler.target"]
    packages += [f"recipes.{family}"] if family else []
    digest = hashlib.sha256()
    for package in packages:
        root = _folder(package)
        for path in sorted(root.rglob("*.py")):
            if "kernels" in path.relative_to(root).parts:
                continue
            digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _folder(package: str) -> Path:
    """Where a package of the project lies, without importing it."""
    spec = importlib.util.find_spec(f"cudnn_aot.{package}")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))
