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
) -> list[Entry]:
    """The plans of all modes in their order; of one that is there twice, the first place counts.

    A plan is identified by ``(engine_id, knobs)``, never by where a query put it.

    Args:
        modes: A and B ask the family for ``"A"``, FALLBACK for ``"FALLBACK"``; OPENSOURCE asks for
            ``"A"`` and puts the backend's block last, wherever the marker is.
        recommend: the family's heuristics for a kind; a family proposes nothing by ``[]``.
        backend: the backend's plans, by the mode that found them; of OPENSOURCE, the one that
            delegates to engines that the backend never lists. Where that mode is asked, it leads
            the backend's block in every mode, as the backend tries it before its own plans.

    Raises:
        ValueError: a marker is there twice; the fault is the family's.
    """
    delegating = backend.get(heur_mode.OPENSOURCE, ()) if heur_mode.OPENSOURCE in modes else ()
    ranked: list[Entry] = []
    for mode in modes:
        proposals = recommend("FALLBACK" if mode is heur_mode.FALLBACK else "A")
        ours = [proposal for proposal in proposals if not isinstance(proposal, _Marker)]
        markers = len(proposals) - len(ours)
        if markers > 1:
            raise ValueError(f"the heuristics place the backend {markers} times, want once")
        found, place = [*delegating, *backend.get(mode, ())], len(ours)
        if markers and mode is not heur_mode.OPENSOURCE:
            place = proposals.index(BACKEND)
        ranked += [*ours[:place], *found, *ours[place:]]
    return list(dict.fromkeys(ranked))
