"""The explanation of ``cudnn-aot why`` as text, to be read aloud."""

from collections.abc import Iterator

from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.compiler.build.why import Explanation
from cudnn_aot.compiler.build.why_stored import Held, HeldPlan, StoreAnswer

SHOWN_DIFFERENCES = 3


def describe(e: Explanation, shown_plans: int | None) -> list[str]:
    """Its lines, with so many plans, or as many as it takes to show the chosen one; None is all."""
    sections = [
        [f"{e.name} for {e.target}, from {e.file}", f"graph {e.graph_key}, made of {e.ops}"],
        _facts(e),
        _engines(e),
        _backend(e),
        _plans(e, shown_plans),
        _choice(e),
        _stored(e),
    ]
    lines: list[str] = []
    for section in filter(None, sections):
        lines += [*([""] if lines else []), *section]
    return lines


def _facts(e: Explanation) -> list[str]:
    if not e.family:
        return []
    title = f"It is a graph of the family {e.family}: it has {' or '.join(e.anchors)} in it."
    if not e.facts:
        return [title]
    rows = list(e.facts.items())
    for name, symbol in e.symbols.items():
        step = f", multiples of {symbol['multiple_of']}" if symbol["multiple_of"] != 1 else ""
        domain = f"{symbol['min']}..{symbol['max']}{step}"
        rows.append((f"symbol {name}", f"{domain}, ranked for {symbol['ranked_for']}"))
    return [title, *_columns(rows)]


def _engines(e: Explanation) -> list[str]:
    if not e.engines:
        return []
    rows = [
        (engine.name, "takes it" if engine.reason is None else f"does not: {engine.reason}")
        for engine in e.engines
    ]
    return [f"Engines of the family on {e.target}:", *_columns(rows)]


def _backend(e: Explanation) -> list[str]:
    if e.backend is None:
        return []
    if e.backend.plans:
        return [f"cuDNN proposes {plural(e.backend.plans, 'plan')}."]
    return ["cuDNN proposes no plan:", *_indented([e.backend.reason or "it gives no reason"])]


def _plans(e: Explanation, shown: int | None) -> list[str]:
    if not e.plans:
        return []
    first = len(e.plans) if shown is None else max(shown, e.chosen.place if e.chosen else 0)
    rows: list[tuple[str, ...]] = []
    for place, plan in enumerate(e.plans[:first], start=1):
        because = plan.why or "-"
        if plan.declined is not None:
            because += f"; cannot be built: {plan.declined}"
        name = f"a plan for each of {plural(len(plan.ranges), 'range')}" * bool(plan.ranges)
        rows.append((str(place), plan.mode, because, name or plan.name))
        rows += [("", "", part.why or "-", f"  {part.range}: {part.name}") for part in plan.ranges]
    left = len(e.plans) - first
    more = f"; {left} more with --all" if left > 0 else ""
    modes = "mode A ranks, FALLBACK always works"
    title = f"{plural(len(e.plans), 'plan')}, best first ({modes}){more}:"
    header = ("place", "mode", "because", "plan")
    return [title, *_indented(format_table(header, rows, right="place"))]


def _choice(e: Explanation) -> list[str]:
    if e.fault:
        return [f"A build fails: {e.fault}"]
    if e.chosen is None:
        said = {f"{engine.name}: {engine.reason}" for engine in e.engines}
        if e.backend is not None:
            said.add(f"cudnn: {e.backend.reason}")
        reasons = [reason for reason in e.reasons if reason not in said]
        return ["No plan: a build declines this graph.", *_indented(reasons)]
    templates = ", ".join(dict.fromkeys(template for template, _ in e.chosen.kernels))
    kernels = plural(len(e.chosen.kernels), "kernel")
    what = "a plan of cuDNN's own" if e.chosen.blobs else "no kernel"
    lines = [f"A build takes plan {e.chosen.place}: it runs {what}."]
    if e.chosen.kernels:
        lines = [f"A build takes plan {e.chosen.place}: it runs {kernels} of {templates}."]
    lines.append(f"Each call goes to the first branch that fits it: {_some(e.chosen.branches)}.")
    by_size: dict[int, list[str]] = {}
    for name, size in e.chosen.aligned:
        by_size.setdefault(size, []).append(repr(name))
    for size, names in by_size.items():
        wanted = f"want addresses that are multiples of {size} bytes"
        lines.append(f"Some of these {wanted}: {_some(tuple(names))}.")
    return lines


def _stored(e: Explanation) -> list[str]:
    answer = e.stored
    if answer is None:
        return ["No store was named, so nothing is said of what is stored."]
    lines: list[str] = []
    for plan in answer.plans:
        if plan.provider == "native":
            lines += _native(e, answer, plan)
        elif plan.held is not Held.ABSENT:
            lines += _further(plan)
    if answer.other_targets:
        lines.append(f"a plan of it is stored for {', '.join(answer.other_targets)}")
    if answer.declined_targets:
        lines.append(f"it is stored as declined for {', '.join(answer.declined_targets)}")
    return [lines[0], *_indented(lines[1:])]


def _native(e: Explanation, answer: StoreAnswer, plan: HeldPlan) -> Iterator[str]:
    store = f"The store {answer.store}"
    chosen = "" if e.chosen is None else e.plans[e.chosen.place - 1].name
    if plan.held is Held.ABSENT:
        others = any(other.held is not Held.ABSENT for other in answer.plans)
        yield f"{store} has no native plan of it." if others else f"{store} does not have it."
        yield from () if others else _nearest(answer, e.target)
    elif plan.held is Held.DAMAGED:
        yield f"{store} has it, damaged; a build makes it again."
    elif plan.held is Held.STALE:
        what = "a decline of it" if plan.is_declined else "a plan of it"
        yield f"{store} has {what} that a build would make again:"
    elif plan.is_declined:
        yield f"{store} has it as declined, and a build leaves it at that:"
    else:
        what = "this plan" if plan.plan == chosen else f"the native plan {plan.plan}"
        yield f"{store} has {what}, and it is current: a build has nothing to do."
    yield from plan.reasons
    if plan.held is Held.STALE and plan.plan and chosen:
        yield "the plan stays the same" if plan.plan == chosen else f"stored is {plan.plan}"


_HELD = {
    Held.CURRENT: "current",
    Held.STALE: "which a build would make again",
    Held.WHOLE: "whole",
    Held.DAMAGED: "damaged",
}


def _further(plan: HeldPlan) -> Iterator[str]:
    """Another provider's plan, below the native one."""
    named = f"{plan.provider}'s plan" + (f" {plan.plan}" if plan.plan else "")
    what = f"that {plan.provider} declines it" if plan.is_declined else named
    yield f"it has {what}, {_HELD[plan.held]}" + (":" if plan.reasons else "")
    yield from _indented(list(plan.reasons))


def _nearest(answer: StoreAnswer, target: str) -> Iterator[str]:
    nearest = answer.nearest
    if nearest is None:
        held = plural(answer.graphs, "graph") if answer.graphs else "nothing"
        yield f"it holds {held} for {target}" + (", none of them like it" * bool(answer.graphs))
        return
    other = repr(nearest.name) if nearest.name else f"graph {nearest.graph_key[:12]}"
    if nearest.serves_for is not None:
        values = ", ".join(f"{name} = {value}" for name, value in nearest.serves_for.items())
        yield f"but {other} there serves it" + (f" for {values}" if values else "")
        return
    shown = nearest.differences[:SHOWN_DIFFERENCES]
    alike = {"class": "is of the same kind", "name": "has its name", "ops": "has the same ops"}
    yield f"the nearest there is {other}, which {alike[nearest.likeness]}; the difference is"
    yield from (f"  {difference.in_words('here', 'there')}" for difference in shown)
    left = len(nearest.differences) - len(shown)
    if left:
        yield f"  and {plural(left, 'field')} more"


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {value}" for name, value in rows]


def _indented(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown
