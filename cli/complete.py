"""``cudnn-aot verify --complete`` and ``--device``: is it all here, and does it run there?"""

from __future__ import annotations

from pathlib import Path

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.errors import NotInStoreError, UsageError, did_you_mean


def verify_complete(
    reader: StoreReader,
    needed: str,
    targets: tuple[str, ...],
    allow_declined: tuple[str, ...],
    as_json: bool,
) -> int:
    """Whether the store has all that graphs need: 0, 1, or 3 if only declined ones are not here."""
    from cudnn_aot.cli.needed import State, answers, read_needs

    needs, failures = read_needs(Path(needed))
    targets = targets or tuple(reader.targets())
    if not targets:
        raise NotInStoreError(f"the store {reader.where!r} holds nothing for any target")
    found = answers(reader, needs, targets)
    for failure in failures:
        complain(f"error: {failure}")
    if as_json:
        print_json(
            {
                "store": reader.where,
                "graphs": [
                    {
                        "name": answer.name,
                        "graph_key": answer.graph_key,
                        "target": answer.target,
                        "state": answer.state.value,
                        "by": answer.by,
                        "reasons": list(answer.reasons),
                    }
                    for answer in found
                ],
                "failures": failures,
            }
        )
    else:
        for answer in found:
            if not answer.is_here:
                said = "; ".join(answer.reasons) or "no reason was recorded"
                say(f"{answer.state.value}: {answer.name} for {answer.target}: {said}")
        for target in targets:
            states = [answer.state for answer in found if answer.target == target]
            counts = [f"{states.count(state)} {state.value}" for state in State if state in states]
            say(": ".join(filter(None, (target, plural(len(states), "graph"), ", ".join(counts)))))
    if failures or any(answer.state in (State.ABSENT, State.DAMAGED) for answer in found):
        return 1
    declined = {answer.target for answer in found if answer.state is State.DECLINED}
    return 0 if "all" in allow_declined or declined <= set(allow_declined) else 3


def verify_device(reader: StoreReader, device: str, targets: tuple[str, ...], as_json: bool) -> int:
    """Whether the best plan of every graph runs on a device of this machine, or on a target."""
    from cudnn_aot.runtime.validity import Machine, validities

    known: object = device
    if device.isdecimal():
        from cudnn_aot import _native

        known = _native.device_attributes(int(device))
    machine = Machine.described(known)
    found = [v for v in validities(reader, machine) if not targets or v.target in targets]
    if not found:
        held = reader.targets()
        if not targets or not held:
            raise NotInStoreError("the store holds no plan: build or pull into it first")
        near = did_you_mean(targets[0], held) if len(targets) == 1 else ""
        raise NotInStoreError(
            f"the store has no plan of {', '.join(targets)}{near}: it has those of "
            f"{', '.join(held)}"
        )
    if as_json:
        print_json(
            {
                "store": reader.where,
                "device": device,
                "plans": [
                    {
                        "names": list(validity.names),
                        "target": validity.target,
                        "graph_key": validity.graph_key,
                        "ok": validity.ok,
                        "flags": [
                            {"name": f.name, "ok": f.ok, "want": f.want, "got": f.got}
                            for f in validity.flags
                        ],
                    }
                    for validity in found
                ],
            }
        )
    else:
        rows = [
            (
                validity.names[0] if validity.names else validity.graph_key[:12],
                validity.target,
                "yes" if validity.ok else "no",
                "; ".join(f"{f.name}: want {f.want}, got {f.got}" for f in validity.unmet)
                or _untold(len([f for f in validity.flags if f.ok is None])),
            )
            for validity in found
        ]
        say(*format_table(("name", "target", "runs", "because"), rows))
        fit = sum(validity.ok for validity in found)
        say("", f"{fit} of {plural(len(found), 'plan')} run on {device}")
    return 0 if all(validity.ok for validity in found) else 1


def _untold(count: int) -> str:
    return f"{plural(count, 'requirement')} cannot be told here" if count else ""


def check_options(
    complete: str | None, device: str | None, targets: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    """Raise UsageError unless they go together."""
    if complete is not None and device is not None:
        raise UsageError("--complete and --device answer two questions: ask one at a time")
    if complete is None and allowed:
        raise UsageError("--allow-declined belongs to --complete: name the graphs that are needed")
    if complete is None and device is None and targets:
        raise UsageError("--target belongs to --complete and --device: without them all is read")
