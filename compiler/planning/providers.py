"""Whose plans come first where a store holds those of several providers.

A store is filled by one provider at a time, on different machines. So the order is read from the
family's heuristics alone: where they put the backend's block beside their own plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import Engine, PlanConfig
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.ranges import Ranges
from cudnn_aot.compiler.planning.rank import DEFAULT_MODES, Entry
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import Error, cudnnGraphNotSupportedError


class _AnyBackend:
    """A backend of one plan for each mode, to see where a family puts the real one's."""

    def entries(
        self, graph: Graph, target: Target, modes: Sequence[heur_mode]
    ) -> Mapping[heur_mode, Sequence[PlanConfig]]:
        return {mode: [PlanConfig(mode.value)] for mode in modes}

    def engine(self, graph: Graph, target: Target, engine_id: int) -> Engine:
        raise cudnnGraphNotSupportedError("it stands for plans that are not known")


def provider_order(
    graph: Graph,
    target: Target,
    modes: Sequence[heur_mode] = DEFAULT_MODES,
    tuning: Tuning | None = None,
) -> tuple[str, ...]:
    """All providers, by the place in the ranked list of the first plan of each.

    Asks no library and needs no compiler: the family's marker decides, as if the backend had a
    plan in every mode. Where nothing ranks them, the order is the manifest's.
    """
    try:
        plans = PlanList(
            graph, target, modes, backend=_AnyBackend(), tuning=tuning, needs_compiler=False
        )
    except Error:  # the family's validator refuses the graph
        return manifest.PROVIDERS
    found = [_provider(entry) for entry in plans.entries]
    if "native" not in found:
        return manifest.PROVIDERS
    return tuple(dict.fromkeys([*found, *manifest.PROVIDERS]))


def _provider(entry: Entry) -> str:
    first = entry.parts[0].plan if isinstance(entry, Ranges) else entry
    return manifest.provider_of(first.engine_id)
