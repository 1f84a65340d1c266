"""One ranked plan list out of what a family proposes and what cuDNN's backend offers.

The family's heuristics say what comes first, and by a `BACKEND` marker where the backend's block
goes; without a marker the family's proposals come first. Ranking policy has no other home.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Ranges

DEFAULT_MODES: Final = (heur_mode.A, heur_mode.FALLBACK)


class _Marker:
    def __repr__(self) -> str:
        return "BACKEND"


BACKEND: Final = _Marker()

Entry = PlanConfig | Ranges
Proposal = PlanConfig | Ranges | _Marker


def rank(
    modes: Sequence[heur_mode],
    recommend: Callable[[str], Sequence[Proposal]],
    backend: Mapping[heur_mode, Sequence[PlanConfig]],
    delegate: PlanConfig | None = None,
) -> list[Entry]:
    """The plans of all modes in their order; of one that is there twice, the first place counts.

    A plan is identified by ``(engine_id, knobs)``, never by where a query put it.

    Args:
        modes: A and B ask the family for ``"A"``, FALLBACK for ``"FALLBACK"``; OPENSOURCE is A
            without the backend, then the delegating entry.
        recommend: the family's heuristics for a kind; a family proposes nothing by ``[]``.
        backend: the backend's plans, by the mode that found them.
        delegate: the backend's entry that picks among engines it never lists.

    Raises:
        ValueError: a marker is there twice; the fault is the family's.
    """
    ranked: list[Entry] = []
    for mode in modes:
        proposals = list(recommend("FALLBACK" if mode is heur_mode.FALLBACK else "A"))
        markers = proposals.count(BACKEND)
        if markers > 1:
            raise ValueError(f"the heuristics place the backend {markers} times, want once")
        if mode is heur_mode.OPENSOURCE:
            block: Sequence[PlanConfig] = () if delegate is None else (delegate,)
            proposals = [p for p in proposals if not isinstance(p, _Marker)] + [BACKEND]
        else:
            block = backend.get(mode, ())
            proposals += [] if markers else [BACKEND]
        for proposal in proposals:
            ranked += block if isinstance(proposal, _Marker) else [proposal]
    return list(dict.fromkeys(ranked))
