"""What a report says of a store, as one document: docs/json.md describes it.

A part that cannot be read is said to be damaged where it stands; the rest is reported. Nothing is
loaded or executed.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cudnn_aot
from cudnn_aot import _native
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.plan_record import engines_of, need_servable, parse_record
from cudnn_aot.cache.reader import Listing, StoreReader
from cudnn_aot.cli.expressions import format_expression, symbol_bounds
from cudnn_aot.compiler.target.target import known_targets, load_target
from cudnn_aot.errors import StoreError
from cudnn_aot.runtime.requirements import Requirements
from cudnn_aot.runtime.validity import Flag, Machine, machine_flags


@dataclass(frozen=True, slots=True)
class _Plan:
    """A graph on a target: its row, and what decides where it runs."""

    row: dict[str, Any]
    needed: Requirements | None = None
    is_gpu: bool = False
    blobs: tuple[tuple[str, int], ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        return self.row["target"], self.row["graph_key"]


def report_document(
    reader: StoreReader,
    benches: Sequence[Mapping[str, Any]] = (),
    builds: Sequence[Mapping[str, Any]] = (),
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The document. ``seconds`` has the compile times that are known, by kernel key."""
    problems = reader.verify()
    listing = reader.listing()
    names = _names(reader, listing)
    plans = [_plan(reader, ids[0], ids[1], names.get(ids, [])) for ids in listing.of("pointer")]
    plans.sort(key=lambda plan: (plan.row["names"] or ["~"], plan.row["target"]))
    kernels = _kernels(reader, listing, plans, seconds or {})
    graphs, machines = _where(plans)
    blobs = dict(blob for plan in plans for blob in plan.blobs)
    blobs |= {kernel["blob"]: kernel["bytes"] for kernel in kernels if kernel["blob"]}
    rows = [plan.row for plan in plans]
    return {
        "store": reader.where,
        "version": cudnn_aot.__version__,
        "totals": {
            "graphs": len(graphs),
            "plans": sum(row["status"] == "built" for row in rows),
            "declined": sum(row["status"] == "declined" for row in rows),
            "damaged": sum(row["status"] == "damaged" for row in rows),
            "kernels": len(kernels),
            "bytes": sum(blobs.values()),
        },
        "targets": [_target(name, plans) for name in listing.targets],
        "plans": rows,
        "kernels": kernels,
        "graphs": graphs,
        "machines": machines,
        "problems": [
            {"path": p.path, "what": p.what, "unreadable": p.unreadable} for p in problems
        ],
        "benches": list(benches),
        "builds": list(builds),
    }


def _names(reader: StoreReader, listing: Listing) -> dict[tuple[str, ...], list[str]]:
    names: dict[tuple[str, ...], list[str]] = {}
    for target, name in listing.of("name"):
        try:
            names.setdefault((target, reader.name(target, name)["graph_key"]), []).append(name)
        except (StoreError, KeyError):
            continue  # among the problems
    return names


def _plan(reader: StoreReader, target: str, graph_key: str, names: list[str]) -> _Plan:
    row: dict[str, Any] = {
        "names": names,
        "target": target,
        "graph_key": graph_key,
        "status": "damaged",
        "provider": "",
        "engine": "",
        "knobs": {},
        "kernels": [],
        "bytes": 0,
        "workspace_bytes": None,
        "symbols": {},
        "dispatch": [],
        "requirements": {},
        "reasons": [],
        "fault": "",
    }
    try:
        pointer = reader.pointer(target, graph_key)
        row["reasons"] = list(pointer["reasons"])
        records = pointer["records"]
        if not records:
            return _Plan(row | {"status": pointer["status"]})
        record = parse_record(reader.blob(records[0]), records[0])
        need_servable(record, records[0], target, graph_key)
        table = record["table"]
        kernels, blobs = record["kernels"], record.get("blobs", [])
        parts = tuple((part["blob"], part["bytes"]) for part in (*kernels, *blobs))
        needed = Requirements.from_record(record["requirements"])
        holders = [n for n, held in providers_of(pointer).items() if records[0] in held["records"]]
        found = {
            "status": pointer["status"],
            "provider": holders[0] if holders else "",
            "engine": ", ".join(engines_of(record)),
            "knobs": record["knobs"],
            "kernels": [kernel["key"] for kernel in kernels],
            "bytes": sum(dict(parts).values()),
            "workspace_bytes": _native.Plan(table).workspace_bytes(),
            "symbols": table.get("symbols", {}),
            "dispatch": [_entry(entry, table.get("symbols", {})) for entry in table["dispatch"]],
            "requirements": record["requirements"],
        }
        return _Plan(row | found, needed, table["device"] == "cuda", parts)
    except StoreError as error:
        return _Plan(row | {"fault": str(error)})
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return _Plan(row | {"fault": "its pointer or plan record cannot be read"})


def _entry(entry: Mapping[str, Any], symbols: Mapping[str, Any]) -> dict[str, Any]:
    """A guard and its branch, and the range of each symbol that the guard names."""
    bounds = {
        name: symbol_bounds(entry["when"], name, domain["min"], domain["max"])
        for name, domain in symbols.items()
    }
    return {
        "branch": entry["branch"],
        "when": format_expression(entry["when"]),
        "bounds": {name: list(range_) for name, range_ in bounds.items() if range_ is not None},
    }


def _kernels(
    reader: StoreReader, listing: Listing, plans: Sequence[_Plan], seconds: Mapping[str, float]
) -> list[dict[str, Any]]:
    users: dict[str, list[int]] = {}
    for index, plan in enumerate(plans):
        for key in dict.fromkeys(plan.row["kernels"]):
            users.setdefault(key, []).append(index)
    rows = []
    for key in sorted({*(ids[0] for ids in listing.of("kernel")), *users}):
        row: dict[str, Any] = {
            "key": key,
            "template": "",
            "gpu_arch": "",
            "toolchain": {},
            "options": [],
            "blob": "",
            "bytes": None,
            "seconds": seconds.get(key),
            "plans": users.get(key, []),
            "fault": "",
        }
        try:
            record = reader.kernel(key)
            spec, blob = record["spec"], record["blob"]
            row |= {
                "template": str(spec.get("template", "")),
                "gpu_arch": str(spec.get("gpu_arch", "")),
                "toolchain": dict(spec.get("toolchain", {})),
                "options": [str(option) for option in spec.get("options", [])],
                "blob": blob["sha256"],
                "bytes": blob.get("bytes", reader.blob_size(blob["sha256"])),
            }
        except StoreError as error:
            row["fault"] = str(error)
        except (ValueError, KeyError, TypeError, AttributeError):
            row["fault"] = "its record cannot be read"
        rows.append(row)
    return rows


def _target(name: str, plans: Sequence[_Plan]) -> dict[str, Any]:
    held = [plan for plan in plans if plan.row["target"] == name]
    return {
        "name": name,
        "gpu_arch": next((plan.needed.gpu_arch for plan in held if plan.needed), ""),
        "plans": sum(plan.row["status"] == "built" for plan in held),
        "declined": sum(plan.row["status"] == "declined" for plan in held),
        "kernels": len({key for plan in held for key in plan.row["kernels"]}),
        "bytes": sum(dict(blob for plan in held for blob in plan.blobs).values()),
    }


def _where(plans: Sequence[_Plan]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of every graph, what becomes of it on each known target; of every one of those, the sums."""
    by_graph: dict[str, list[_Plan]] = {}
    for plan in plans:
        by_graph.setdefault(plan.row["graph_key"], []).append(plan)
    machines = {name: Machine.described(name) for name in known_targets()}

    @functools.cache
    def unmet(machine: str, needed: Requirements, is_gpu: bool) -> tuple[Flag, ...]:
        flags = machine_flags(needed, machines[machine], is_gpu=is_gpu)
        return tuple(flag for flag in flags if flag.ok is False)

    def state(machine: str, held: Sequence[_Plan]) -> str:
        is_gpu = bool(machines[machine].arch)
        runs = {  # on operands that are where the machine of that target has them
            plan.row["target"]: not unmet(machine, plan.needed, plan.is_gpu)
            for plan in held
            if plan.needed is not None and plan.is_gpu == is_gpu
        }
        for plan in held:
            if plan.row["target"] == machine:
                status = str(plan.row["status"])
                return status if status != "built" else "runs" if runs.get(machine) else "unmet"
        return "elsewhere" if any(runs.values()) else "missing"

    graphs: list[dict[str, Any]] = [
        {
            "graph_key": key,
            "names": sorted({name for plan in held for name in plan.row["names"]}),
            "on": {machine: state(machine, held) for machine in machines},
        }
        for key, held in by_graph.items()
    ]
    rows = []
    for name in machines:
        faults = Counter(
            (plan.row["target"], flag)
            for plan in plans
            if plan.needed is not None
            for flag in unmet(name, plan.needed, plan.is_gpu)
        )
        rows.append(
            {
                "name": name,
                "gpu_arch": load_target(name).gpu_arch,
                "graphs": dict(Counter(graph["on"][name] for graph in graphs)),
                "unmet": [
                    {"target": target, "flag": f.name, "want": f.want, "got": f.got, "plans": n}
                    for (target, f), n in faults.items()
                ],
            }
        )
    return graphs, rows
