"""A target: what planning and compiling may know about the machine that will run a plan.

Targets are named and read from data files, never probed, so that the same plans come out on any
build machine. What a stored plan *requires* is recorded from it; a device is later matched by
requirement, not by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from cudnn_aot.compiler.target.flavor import driver_min, why_not_arch
from cudnn_aot.compiler.target.host import LEVELS, parse_host, why_not_built_here, why_not_host
from cudnn_aot.errors import CompileError, UsageError, did_you_mean

DATA_DIR = Path(__file__).parent / "data"

# A file system takes 255 bytes, and `--host` and the store add to it.
_NAME_MAX = 128
_NUMBER_MAX = 2**63 - 1  # the runtime reads 64 bits

# Architectures that the compiler knows; an unknown one would die inside it as a bare KeyError.
GPU_ARCHES = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f",
    "sm_101a", "sm_101f", "sm_103a", "sm_103f", "sm_110a", "sm_110f", "sm_120", "sm_120a",
    "sm_120f", "sm_121a",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """One target descriptor.

    Attributes:
        name: the name that ``--target`` takes and that the store files plans under.
        kind: ``"cuda"`` or ``"cpu"``.
        gpu_arch: architecture that kernels are compiled for, ``"sm_90a"``; empty for a CPU.
        sm_count: streaming multiprocessors, used to rank plans; kernels read the device's own
            count.
        l2_bytes: L2 cache.
        smem_optin_bytes: largest shared memory of one block after opting in.
        driver_min: lowest CUDA driver API version that loads the code, as ``cuDriverGetVersion``
            gives it; follows from the flavour.
        dsl_flavor: CuTe DSL flavour that compiles for it, ``"cu12"`` or ``"cu13"``.
        host_triple: host that the launch stubs (or CPU kernels) run on.
        host_level: x86-64 micro-architecture level of that host's code; empty for the baseline of
            another processor.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    gpu_arch: str
    sm_count: int
    l2_bytes: int
    smem_optin_bytes: int
    driver_min: int
    dsl_flavor: str
    host_triple: str
    host_level: str

    @property
    def sm(self) -> int:
        """``major * 10 + minor`` of the architecture, 90 for ``"sm_90a"``; 0 for a CPU."""
        return int("".join(c for c in self.gpu_arch if c.isdigit()) or "0")

    def on_host(self, host: str | None) -> Target:
        """This target with the host ``TRIPLE[/LEVEL]`` in place of its own; as it is for None.

        Code for another processor is filed apart, under ``h200-aarch64``: a store holds both. A
        level is a requirement and no part of the name.

        Raises:
            UsageError: the triple or the level is unknown.
        """
        if host is None:
            return self
        triple, level = parse_host(host)
        name = self.name
        if triple != self.host_triple:
            name = f"{name}-{triple.partition('-')[0]}"
        return replace(self, name=name, host_triple=triple, host_level=level)

    def descriptor(self) -> dict[str, str | int]:
        """The fields as plain data, as a plan key reads them."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in fields(Target))


def known_targets() -> tuple[str, ...]:
    """Names of the shipped descriptors, sorted."""
    return tuple(sorted(path.stem for path in DATA_DIR.glob("*.json")))


def is_descriptor_path(name: str) -> bool:
    """Whether what stands for a target is the path of a descriptor, and no name."""
    return name.endswith(".json") or "/" in name


def stored_name(target: str) -> str:
    """The name that a store files plans under: that of a descriptor file, else the text itself.

    A store may hold plans of targets that are described nowhere here, so a name is not checked.

    Raises:
        UsageError: the file is no descriptor.
    """
    return load_target(target).name if is_descriptor_path(target) else target


def load_target(name: str, host: str | None = None) -> Target:
    """The target called ``name``, or the one described by the JSON file at that path.

    ``host`` is a ``TRIPLE[/LEVEL]`` that takes the place of its host, as `Target.on_host` says.

    Raises:
        UsageError: the name is unknown (the message lists the known ones) or the file is no
            descriptor.
    """
    is_path = is_descriptor_path(name)
    path = Path(name) if is_path else DATA_DIR / f"{name}.json"
    if not is_path and name not in known_targets():
        raise UsageError(
            f"unknown target {name!r}{did_you_mean(name, known_targets())}; known: "
            f"{', '.join(known_targets())}, or a descriptor file"
        )
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for without end
        raise UsageError(f"target descriptor {name!r} is not a regular file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read target descriptor {name!r}: {error.strerror or error}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"target descriptor {name!r} is not JSON: {error}") from error
    target = target_from(document, name)
    if is_path and target.name in known_targets() and target != load_target(target.name):
        raise UsageError(
            f"target descriptor {name!r}: a shipped target is called {target.name!r} and has other "
            "fields: give this one another name"
        )
    return target.on_host(host)


def load_targets(names: Iterable[str], host: str | None = None) -> dict[str, Target]:
    """Name -> target, of each that `load_target` finds.

    Raises:
        UsageError: as of `load_target`, or two descriptors have one name.
    """
    loaded: dict[str, Target] = {}
    for target in (load_target(name, host) for name in names):
        if loaded.setdefault(target.name, target) != target:
            raise UsageError(
                f"two different descriptors are named {target.name!r}: give one another name"
            )
    return loaded


def need_builder(targets: Iterable[Target]) -> None:
    """Refuse at once what would fail at the first kernel, after all the planning.

    Raises:
        CompileError: this machine compiles for no host of that kind.
    """
    for target in targets:
        if fault := why_not_built_here(target.host_triple):
            raise CompileError(f"target {target.name}: {fault}")


def target_from(document: Any, source: str) -> Target:
    """The target that a parsed descriptor describes; ``source`` names it in messages.

    Raises:
        UsageError: it is no descriptor.
    """
    if not isinstance(document, dict):
        raise UsageError(
            f"target descriptor {source!r}: got {type(document).__name__}, want object"
        )
    names = set(_FIELDS)
    if unknown := sorted(set(document) - names):
        near = did_you_mean(unknown[0], names)
        raise UsageError(f"target descriptor {source!r}: unknown field {unknown[0]!r}{near}")
    if missing := sorted(names - set(document)):
        raise UsageError(f"target descriptor {source!r}: field {missing[0]!r} is missing")
    for name, hint in get_type_hints(Target).items():
        want = int if hint is int else str
        value = document[name]
        if not isinstance(value, want) or isinstance(value, bool):
            raise UsageError(
                f"target descriptor {source!r}: {name} is {value!r}, want {want.__name__}"
            )
    if document["kind"] not in ("cuda", "cpu"):
        raise UsageError(
            f"target descriptor {source!r}: kind is {document['kind']!r}, want 'cuda' or 'cpu'"
        )
    name = document["name"]
    if not name[:1].isalnum() or not all(c.isalnum() or c in "._-" for c in name):
        raise UsageError(
            f"target descriptor {source!r}: name is {name!r}, want a letter or digit, "
            "then letters, digits, '.', '_', '-'"
        )
    if fault := _why_not(document):
        raise UsageError(f"target descriptor {source!r}: {fault}")
    return Target(**document)


def _why_not(document: dict[str, Any]) -> str | None:
    """What in a descriptor does not go together, in one sentence."""
    arch, flavor, floor = (document[field] for field in ("gpu_arch", "dsl_flavor", "driver_min"))
    if fault := why_not_host(document["host_triple"], document["host_level"]):
        return fault
    name, own = document["name"], document["host_triple"].partition("-")[0]
    if len(name) > _NAME_MAX:
        return f"name has {len(name)} characters, want {_NAME_MAX} or fewer: it names a folder"
    for processor in (triple.partition("-")[0] for triple in LEVELS):
        if name.endswith(f"-{processor}") and processor != own:
            return (
                f"name is {name!r}, which --host gives to a target of {processor} hosts, not {own}"
            )
    for field in ("sm_count", "l2_bytes", "smem_optin_bytes", "driver_min"):
        if document[field] > _NUMBER_MAX:
            return f"{field} is {document[field]}, want {_NUMBER_MAX} or less"
    if document["kind"] == "cpu":
        driver_min(flavor)  # a flavour that is none
        return f"gpu_arch is {arch!r}, want '' for a cpu" if arch else None
    if arch not in GPU_ARCHES:
        return f"gpu_arch is {arch!r}, want one of {', '.join(GPU_ARCHES)}"
    if fault := why_not_arch(flavor, arch):
        return fault
    if floor != driver_min(flavor):
        return f"driver_min is {floor}, want {driver_min(flavor)} for dsl_flavor {flavor!r}"
    for field in ("sm_count", "l2_bytes", "smem_optin_bytes"):
        if document[field] < 1:
            return f"{field} is {document[field]}, want 1 or more"
    return None
