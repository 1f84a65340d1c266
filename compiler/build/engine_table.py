"""What every engine takes, as rows: ``targets --engines``, and docs/engines.md.

The document is made by ``python -m cudnn_aot.compiler.build.engine_table > docs/engines.md``; a
test holds the file equal to what this writes. The rows are the capability rows by which engines
accept and refuse, so neither can say anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.capability import Capability
from cudnn_aot.compiler.planning.engine import DECLINES, Engine
from cudnn_aot.compiler.target.target import Target


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One capability row of one engine; without ``caps`` of one that does not import.

    Attributes:
        is_opt_in, is_offered: whether it has to be enabled, and whether it may serve now.
        notes: behaviour and numerical notes of its plans.
        why_not: of a row asked about a target: None when its kernels are made for it, else why
            not.
    """

    family: str
    anchors: tuple[str, ...]
    engine_id: int
    name: str
    is_opt_in: bool
    is_offered: bool
    summary: str = ""
    dsl_min: str = ""
    notes: tuple[str, ...] = ()
    caps: Capability[Any] | None = None
    why_not: str | None = None

    def to_json(self) -> dict[str, Any]:
        caps = self.caps
        return {
            "family": self.family,
            "anchors": list(self.anchors),
            "id": self.engine_id,
            "name": self.name,
            "summary": self.summary,
            "opt_in": self.is_opt_in,
            "offered": self.is_offered,
            "dsl_min": self.dsl_min,
            "arches": caps.arches if caps else "",
            "dtypes": list(caps.dtypes) if caps else [],
            "layouts": list(caps.layouts) if caps else [],
            "alignment_bytes": caps.alignment_bytes if caps else 0,
            "features": list(caps.features) if caps else [],
            "notes": list(self.notes),
        }


def engine_rows(target: Target | None = None) -> list[EngineRow]:
    """Every row of every engine of the manifest, in its order; judged for ``target`` if given."""
    rows: list[EngineRow] = []
    for family in manifest.FAMILIES:
        offered = family.offered()
        for slot in family.engines:
            about: dict[str, Any] = {
                "family": family.name,
                "anchors": family.anchors,
                "engine_id": family.engine_id(slot),
                "name": slot.name,
                "is_opt_in": slot.opt_in,
                "is_offered": slot in offered,
            }
            try:
                engine: type[Engine] = manifest.resolve(slot.factory)
            except DECLINES as decline:
                rows.append(EngineRow(**about, why_not=f"it does not import: {decline}"))
                continue
            notes = sorted(n.name for n in (*engine.behavior_notes, *engine.numerical_notes))
            about |= {"dsl_min": engine.dsl_min, "notes": tuple(notes)}
            about["summary"] = " ".join((engine.__doc__ or "").split())
            for caps in engine.caps:
                why_not = caps.why_not_target(target) if target is not None else None
                rows.append(EngineRow(**about, caps=caps, why_not=why_not))
    return rows


HEAD = """\
# Engines

Made from the engines' capability rows by `python -m cudnn_aot.compiler.build.engine_table`; do not edit. How an engine is added:
[adding-an-engine.md](adding-an-engine.md). `cudnn-aot targets --engines TARGET` shows the same rows, judged for a target, and `cudnn-aot why` what they say to a
graph.

An engine takes a graph when one of its rows does. *Align*: of the fastest branch; slower branches take less. *Needs*: the CuTe DSL that compiles its
kernels. Of an opt-in engine, `CUDNN_AOT_OPT_IN_ENGINES` has to name it.
"""  # noqa: E501


def markdown() -> str:
    """The text of docs/engines.md."""
    parts = [HEAD]
    rows = engine_rows()
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        anchors = " or ".join(f"`{anchor}`" for anchor in members[0].anchors)
        parts.append(f"\n## {family}\n\nGraphs with {anchors} in them.\n\n")
        parts.append("| id | engine | runs on | types | layouts | align | also | notes | needs |\n")
        parts.append("|---|---|---|---|---|---|---|---|---|\n")
        parts += [_line(row) for row in members]
        parts.append("\n")
        summaries = {row.name: row.summary for row in members}
        parts += [f"- `{name}`: {summary}\n" for name, summary in summaries.items()]
    return "".join(parts)


def _line(row: EngineRow) -> str:
    caps = row.caps
    if caps is None:
        return f"| {row.engine_id} | `{row.name}` | | | | | | | |\n"
    cells = (
        str(row.engine_id),
        f"`{row.name}`" + " (opt-in)" * row.is_opt_in,
        caps.arches,
        ", ".join(caps.dtypes),
        ", ".join(caps.layouts),
        f"{caps.alignment_bytes} B" if caps.alignment_bytes > 1 else "-",
        "; ".join(caps.features) or "-",
        ", ".join(row.notes) or "-",
        f"DSL {row.dsl_min}",
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
