"""Planning for a build: the best plan of a graph, and the key that says when it must be made anew.

Nothing here knows a device, and nothing compiles. The plan key covers everything that a plan is
made from, so an unchanged graph is recognised without planning it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import DECLINES, Refusal
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.planning.rank import DEFAULT_MODES
from cudnn_aot.compiler.planning.shipped import shipped_digest
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target

TABLE_VERSION = 1
# Modules of the packages below that no native plan is made by: they compare graphs in words, and
# ask cuDNN, whose plans have keys of their own.
NO_PLANNERS = frozenset({"compiler.graph/difference.py", "compiler.planning/backend.py"})


def plan_graph(
    graph: Graph,
    target: Target,
    modes: Sequence[heur_mode] = DEFAULT_MODES,
    tuning: Tuning | None = None,
) -> Planned:
    """The best plan of our engines for ``graph`` on ``target``.

    Raises:
        cudnnGraphNotSupportedError: every engine declined; ``reasons`` and the message carry all
            their reasons.
    """
    _, planned = PlanList(graph, target, modes, tuning=tuning).walk(lambda planned: planned)
    return planned


def plan_configs(
    graph: Graph, target: Target, *, tuning: Tuning | None = None
) -> tuple[Planned, ...]:
    """What `plan_graph` gives, then every other plan that is worth measuring beside it.

    Raises:
        cudnnGraphNotSupportedError: as of `plan_graph`.
    """
    plans = PlanList(graph, target, tuning=tuning)
    best, planned = plans.walk(lambda planned: planned)
    found = [planned]
    for place in plans.append_configs():
        if place != best:
            with contextlib.suppress(*DECLINES):  # that config alone does not take the graph
                found.append(plans.build_at(place, lambda planned: planned))
    return tuple(found)


def plan_key(
    graph: Graph,
    target: Target,
    modes: Sequence[heur_mode] = DEFAULT_MODES,
    tuning: Tuning | None = None,
) -> str:
    """64 hex digits over what docs/keys.md lists: `planner_document`, and what is the graph's own.

    Kernel sources and tools are no part of it: the keys of the plan's kernels hold them. So a
    serving host without the DSL finds what was built with it.
    """
    return canonical_digest(plan_key_document(graph, target, modes, tuning))


def plan_key_document(
    graph: Graph,
    target: Target,
    modes: Sequence[heur_mode] = DEFAULT_MODES,
    tuning: Tuning | None = None,
) -> dict[str, Any]:
    """What the plan key is the digest of; ``planner`` stands for a `planner_document`."""
    family = manifest.family_for(node.op for node in graph.nodes)
    return {
        "graph": graph.key(),
        "hints": hints(graph),
        "planner": _planner_digest(
            _source_digest(family.packages if family else ()),
            shipped_digest(family, target) if family else "",
            " ".join(mode.name for mode in modes),
            " ".join(slot.name for slot in family.offered()) if family else "",
            *target.descriptor().values(),
        ),
        "tuning": _tuning_digest(graph, family, target, tuning),
    }


def planner_document(
    sources: str, shipped: str, modes: str, engines: str, *descriptor: str | int
) -> dict[str, Any]:
    """What the plan keys of many graphs have in common."""
    return {
        "table_version": TABLE_VERSION,
        "sources": sources,
        "shipped": shipped,
        "modes": modes,
        "engines": engines,
        "target": list(descriptor),
    }


@functools.lru_cache(maxsize=64, typed=True)  # by type, too: 1 and 1.0 give different keys
def _planner_digest(*parts: Any) -> str:
    return canonical_digest(planner_document(*parts))


def hints(graph: Graph) -> dict[str, int | None]:
    """The hint of each symbol, by name: all that planning reads of a graph and its key leaves out.

    Names end up in a plan too, in the words of refusals, and decide nothing.
    """
    symbols = graph.freeze().canonical().symbols
    return {name: symbol.hint for name, symbol in sorted(symbols.items())}


def _tuning_digest(
    graph: Graph, family: manifest.Family | None, target: Target, tuning: Tuning | None
) -> str:
    if tuning is None or family is None:
        return ""
    try:
        facts = facts_for(graph.freeze().canonical(), manifest.resolve(family.analyzer))
    except DECLINES:
        return ""
    return "" if isinstance(facts, Refusal) else tuning.digest(family.name, facts, target)


@functools.cache
def _source_digest(recipes: tuple[str, ...]) -> str:
    """Digest of the sources that decide a plan.

    Taken once per process: its modules are those that were imported, whatever happens to their
    files.
    """
    digest = hashlib.sha256()
    for name, path in planner_sources(recipes):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def planner_sources(recipes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Name and place of every source that decides a plan: planning, graph, target, the family's
    recipes, and what recipes share.

    Names are relative to their package, so that a wheel and a checkout agree.
    """
    packages = ["compiler.planning", "compiler.graph", "compiler.target"]
    packages += [f"recipes.{recipe}" for recipe in recipes]
    for package in packages:
        root = manifest.folder(package)
        for path in sorted(root.rglob("*.py")):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            if "kernels" not in path.relative_to(root).parts and name not in NO_PLANNERS:
                yield name, path
    for path in sorted(manifest.folder("recipes").glob("*.py")):
        yield f"recipes/{path.name}", path
