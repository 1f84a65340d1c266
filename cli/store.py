"""``cudnn-aot ls``, ``show``, ``verify``: what a store holds; standard library and click."""

import os
from dataclasses import dataclass, field
from typing import Any

import click

from cudnn_aot.cache.layers import AnyReader, open_store
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.plan_record import bound_words, engines_of, need_servable, parse_record
from cudnn_aot.cache.trust import need_signed
from cudnn_aot.cli.builds import list_builds
from cudnn_aot.cli.completion import (
    complete_allowed,
    complete_files,
    complete_plans_and_files,
    complete_targets_and_devices,
)
from cudnn_aot.cli.expressions import expression_terms, format_expression
from cudnn_aot.cli.options import (
    choose_keys,
    choose_list,
    choose_store,
    json_option,
    store_option,
    stored_targets_option,
    target_option,
    trust_option,
)
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.cli.table import format_bytes, format_engines, format_table, plural
from cudnn_aot.errors import (
    Error,
    NotInStoreError,
    RemoteError,
    StoreError,
    UsageError,
    did_you_mean,
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A name, or a graph without one, on a target and all that the store says of it; ``fault`` when
    it is damaged or the system does not let us read it.
    """

    name: str
    target: str
    graph_key: str
    status: str
    uids: dict[str, int] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    fault: str = ""
    providers: dict[str, Any] = field(default_factory=dict)

    @property
    def engines(self) -> list[str]:
        return engines_of(self.record) if self.record else []

    @property
    def knobs(self) -> dict[str, int]:
        return dict(self.record.get("knobs", {}))

    @property
    def kernels(self) -> list[dict[str, Any]]:
        return list(self.record.get("kernels", []))

    @property
    def bytes(self) -> int:
        """Of all that the best plan is made of."""
        return sum(part["bytes"] for part in (*self.kernels, *self.record.get("blobs", [])))

    def to_json(self, full: bool) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "target": self.target,
            "graph_key": self.graph_key,
            "status": self.status,
            "engine": self.engines[0] if self.engines else "",
            "engines": self.engines,
            "knobs": self.knobs,
            "kernels": self.kernels,
            "blobs": self.record.get("blobs", []),
            "providers": {
                name: {"plans": len(held["records"]), "reasons": held["reasons"]}
                for name, held in self.providers.items()
            },
            "reasons": list(self.reasons),
        }
        if self.fault:
            document["fault"] = self.fault
        if full:
            document["uids"] = self.uids
            document["requirements"] = self.record.get("requirements", {})
            document["table"] = self.record.get("table", {})
        return document


@click.command()
@store_option
@target_option("Only this target.")
@click.option("--stats", is_flag=True, help="What each target takes, is shared, and made by.")
@click.option("--builds", is_flag=True, help="What its builds were asked to make instead.")
@json_option
def ls(store: str | None, target: str | None, stats: bool, builds: bool, as_json: bool) -> int:
    """List the plans of a store: name, target, engine, kernels, size.

    \b
    cudnn-aot ls --store store --target h200
    cudnn-aot ls --stats
    """
    choice = choose_store(store)
    if stats:
        from cudnn_aot.cli.stats import show_stats

        one = open_store(choice.path, keys=choose_keys())
        if target is not None and not one.has_target(target):
            raise NotInStoreError(_no_target(one, target))
        return show_stats(one, target, as_json)
    if builds:
        return list_builds(choice.reader(), as_json)
    reader = choice.reader()
    plans = [plan for plan in _read_all(reader) if target in (None, plan.target)]
    if target is not None and not plans:
        raise NotInStoreError(_no_target(reader, target))
    if as_json:
        listed = [plan.to_json(full=False) for plan in plans]
        print_json({"store": reader.where, "root_digests": _digests(reader), "plans": listed})
    else:
        rows = [
            (
                plan.name or "-",
                plan.target,
                plan.status,
                format_engines(plan.engines),
                str(len(plan.kernels)),
                format_bytes(plan.bytes),
                plan.graph_key[:12],
            )
            for plan in plans
        ]
        header = ("name", "target", "status", "engine", "kernels", "bytes", "graph")
        say(*(format_table(header, rows, right="kernels bytes") or ["no plans"]))
    return _report_faults(plans)


@click.command()
@click.argument("name", metavar="NAME|FILE", shell_complete=complete_plans_and_files)
@store_option
@target_option("Only this target; by default every target that holds the name.")
@click.option("--mermaid", is_flag=True, help="Of a graph file: a Mermaid flowchart.")
@click.option(
    "--svg",
    metavar="OUT",
    shell_complete=complete_files,
    help="Of a graph file: draw it into this file.",
)
@json_option
def show(
    name: str, store: str | None, target: str | None, mermaid: bool, svg: str | None, as_json: bool
) -> int:
    """Show one plan of a store, or the graph in a file.

    Of a plan: operands, engine, branches, kernels, requirements. Of a graph file, which is a path
    that exists, or a name that ends in .json and is none of the store's: key, symbols, tensors and
    nodes.

    \b
    cudnn-aot show ffn_up --target h200
    cudnn-aot show ffn_up.json --svg ffn_up.svg
    """
    if os.path.isfile(name) or name.endswith(".json") and not _is_stored(name, store):
        from cudnn_aot.cli.graph_file import show_graph_file

        return show_graph_file(name, as_json=as_json, as_mermaid=mermaid, svg=svg)
    if mermaid or svg is not None:
        raise UsageError(f"--mermaid and --svg draw graph files: {name!r} is none")
    reader = choose_store(store).reader()
    owners = [owner for owner, known in reader.names() if known == name]
    if not owners:
        known = sorted({known for _, known in reader.names()})
        raise NotInStoreError(
            f"no plan {name!r}{did_you_mean(name, known)} in the store {reader.where!r}: it "
            f"holds {_some(known)}"
        )
    if target is not None and target not in owners:
        raise NotInStoreError(f"{name!r} is stored for {', '.join(owners)}, not for {target!r}")
    plans = [_read(reader, owner, name) for owner in owners if target in (None, owner)]
    if as_json:
        print_json({"store": reader.where, "plans": [p.to_json(full=True) for p in plans]})
    else:
        for number, plan in enumerate(plans):
            say(*([""] if number else []), *_describe(plan))
    return _report_faults(plans)


def _is_stored(name: str, store: str | None) -> bool:
    try:
        return any(known == name for _, known in choose_store(store).reader().names())
    except Error:  # that there is no store says nothing of a file that is not there either
        return False


@click.command()
@store_option
@click.option(
    "--complete", metavar="DIR|LIST", shell_complete=complete_files,
    help="Instead: is all here that graphs need?",
)  # fmt: skip
@click.option(
    "--device", metavar="N|T", shell_complete=complete_targets_and_devices,
    help="Instead: do the plans run on a device or target?",
)  # fmt: skip
@stored_targets_option("Of --complete and --device: only these; by default all that the store has.")
@click.option(
    "--allow-declined", multiple=True, metavar="T[,T]", shell_complete=complete_allowed,
    help="Of --complete: exit 0 although graphs are declined for these (`all` for every target).",
)  # fmt: skip
@trust_option
@json_option
def verify(
    store: str | None,
    complete: str | None,
    device: str | None,
    targets: tuple[str, ...],
    allow_declined: tuple[str, ...],
    trust: tuple[str, ...],
    as_json: bool,
) -> int:
    """Read every byte of a store and follow every reference; exit code 1 if anything is wrong.

    With --trust, a PEM file or 32 bytes in base64, one of the keys must have signed the store.

    \b
    cudnn-aot verify --store store
    cudnn-aot verify --complete graphs --target h200
    """
    reader = choose_store(store).only_reader()
    keys = choose_keys(trust)
    if keys:
        need_signed(reader.signature, keys, reader.root_digest(), f"store {reader.where!r}")
    if complete is not None or device is not None or targets or allow_declined:
        from cudnn_aot.cli.complete import check_options, verify_complete, verify_device

        check_options(complete, device, targets, allow_declined)
        if device is not None:
            return verify_device(reader, device, targets, as_json)
        allowed = choose_list("allow-declined", allow_declined).names
        return verify_complete(reader, complete or "", targets, allowed, as_json)
    with show_progress(quiet=as_json) as progress:
        problems = reader.verify(progress)
    listing = reader.listing()
    plans, kernels, foreign = len(listing.of("pointer")), len(listing.of("kernel")), listing.foreign
    (digest,) = _digests(reader)
    if as_json:
        print_json(
            {
                "store": reader.where,
                "root_digest": digest,
                "plans": plans,
                "kernels": kernels,
                "problems": [
                    {"path": p.path, "what": p.what, "unreadable": p.unreadable} for p in problems
                ],
                "foreign": foreign,
            }
        )
    else:
        for problem in problems:
            say(f"{'unreadable' if problem.unreadable else 'damaged'}: {problem}")
        counts = f"{plural(plans, 'plan')}, {plural(kernels, 'kernel')}"
        verdict = f"{plural(len(problems), 'problem')}" if problems else "every byte as recorded"
        others = f"; {plural(len(foreign), 'file')} not of the store" if foreign else ""
        say(f"{reader.where}: {counts}: {verdict}{others}")
        if any(not problem.unreadable for problem in problems):
            say("what is damaged is never loaded: build the same graphs again, or copy the store")
        say(f"root digest {digest or 'unknown: a document cannot be read'}")
    return 1 if problems else 0


def _read_all(reader: AnyReader) -> list[_Plan]:
    """Every name, then every graph that has none."""
    named = [_read(reader, target, name) for target, name in reader.names()]
    known = {(plan.target, plan.graph_key) for plan in named}
    nameless = [place for place in reader.pointers() if place not in known]
    return named + [_read(reader, target, "", key) for target, key in nameless]


def _read(reader: AnyReader, target: str, name: str, graph_key: str = "") -> _Plan:
    """The plan of a name, or without one of a graph key."""
    uids: dict[str, int] = {}
    record: dict[str, Any] = {}
    try:
        if name:
            named = reader.name(target, name)
            graph_key, uids = named["graph_key"], dict(named["uids"])
        pointer = reader.pointer(target, graph_key)
        records = pointer["records"]
        if records:
            record = parse_record(reader.blob(records[0]), records[0])
            need_servable(record, records[0], target, graph_key)
        return _Plan(
            name,
            target,
            graph_key,
            pointer["status"],
            uids,
            record,
            tuple(pointer["reasons"]),
            providers=providers_of(pointer),
        )
    except StoreError as error:
        is_unread = type(error) in (StoreError, RemoteError)  # nothing is known of its bytes
        status = "unreadable" if is_unread else "damaged"
        return _Plan(name, target, graph_key, status, fault=str(error))


def _digests(reader: AnyReader) -> list[str]:
    """The root digest of each layer, "" where a document cannot be read."""
    found = []
    for layer in reader.readers:
        try:
            found.append(layer.root_digest())
        except StoreError:
            found.append("")
    return found


def _report_faults(plans: list[_Plan]) -> int:
    faulty = [plan for plan in plans if plan.fault]
    for plan in faulty:
        complain(f"error: {plan.name or plan.graph_key} for {plan.target}: {plan.fault}")
    return 1 if faulty else 0


def _describe(plan: _Plan) -> list[str]:
    lines = [f"{plan.name} for {plan.target}: {plan.status}", f"  graph        {plan.graph_key}"]
    lines += [f"  because      {reason}" for reason in plan.reasons]
    if set(plan.providers) != {"native"}:
        held = (f"{name} {len(each['records'])}" for name, each in plan.providers.items())
        lines.append(f"  plans        {', '.join(held)}")
    if not plan.record:
        return lines
    table = plan.record["table"]
    for part in plan.record.get("ranges") or [plan.record]:
        bounds = (bound_words(name, *ends) for name, ends in part.get("bounds", {}).items())
        knobs = (f"{knob}={value}" for knob, value in part["knobs"].items())
        words = [*bounds, part["engine"]["name"], *knobs]
        lines.append(f"  engine       {' '.join(words)}")
    needs = ", ".join(f"{k} {v}" for k, v in plan.record["requirements"].items() if v)
    lines.append(f"  requires     {needs}")
    for symbol, domain in table.get("symbols", {}).items():
        step = domain.get("multiple_of", 1)
        lines.append(
            f"  symbol       {symbol} in {domain['min']}..{domain['max']}"
            + (f", a multiple of {step}" if step != 1 else "")
        )
    names = {uid: name for name, uid in plan.uids.items()}
    operands = [
        (
            str(operand["uid"]),
            names.get(operand["uid"], operand.get("name", "")),
            operand["kind"] + (" (optional)" if operand.get("optional") else ""),
            operand["dtype"],
            _extents(operand.get("dim", [])),
            _extents(operand.get("stride", [])),
        )
        for operand in table.get("operands", [])
    ]
    header = ("uid", "name", "kind", "dtype", "dim", "stride")
    lines += ["", *_indent(format_table(header, operands, right="uid")), ""]
    branches = table.get("branches", {})
    for entry in table.get("dispatch", []):
        steps = ", ".join(_step(step) for step in branches[entry["branch"]]["steps"])
        lines.append(f"  branch {entry['branch']}: {steps or 'nothing to do'}")
        terms = expression_terms(entry["when"])
        lines += [f"    {'when' if i == 0 else ' and'} {term}" for i, term in enumerate(terms)]
    lines.append("")
    kernels = [
        (str(i), kernel["key"][:12], kernel["blob"][:12], format_bytes(kernel["bytes"]))
        for i, kernel in enumerate(plan.kernels)
    ]
    lines += _indent(format_table(("kernel", "key", "blob", "bytes"), kernels, right="bytes"))
    blobs = [
        (str(i), blob["blob"][:12], format_bytes(blob["bytes"]))
        for i, blob in enumerate(plan.record.get("blobs", []))
    ]
    lines += _indent(format_table(("blob", "digest", "bytes"), blobs, right="bytes"))
    return lines


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]


def _extents(values: list[Any]) -> str:
    return "[" + ", ".join(format_expression(value) for value in values) + "]"


def _step(step: dict[str, Any]) -> str:
    if step["step"] == "kernel":
        return f"kernel {step['kernel']}"
    if step["step"] == "fill":
        return f"fill {step.get('slice', step.get('operand'))}"
    if step["step"] == "backend":
        return f"blob {step['blob']}"
    return str(step["step"])


def _no_target(reader: AnyReader, target: str) -> str:
    held = reader.targets()
    near = did_you_mean(target, held)
    return f"no plan for target {target!r}{near}: the store holds plans for {_some(held)}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
