"""Whether stored plans run on a machine, told from their records: no library is loaded.

A plan's answer has one flag for each thing that can be wrong, with what is wanted and what was
found. What cannot be known without a driver is None, which is neither yes nor no.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cache.plan_record import FORMAT, need_servable, parse_record
from cudnn_aot.errors import NotInStoreError, PinError, RequirementError, StoreError, UsageError
from cudnn_aot.runtime import cudart, requirements
from cudnn_aot.runtime.plan import FFI_MIN, find_ffi
from cudnn_aot.runtime.requirements import Requirements, this_host

# What a device is known by: the fields of a target descriptor, and of `_native.device_attributes`.
_DEVICE_FIELDS = ("gpu_arch", "compute_capability", "sm_count", "smem_optin_bytes")


@dataclass(frozen=True, slots=True)
class Flag:
    """One thing that a plan needs. ``ok`` is None where it cannot be told."""

    name: str
    ok: bool | None
    want: str
    got: str


@dataclass(frozen=True, slots=True)
class Validity:
    """What stands against one stored plan.

    Attributes:
        target, graph_key: where it lies.
        names: the names of the graph, sorted.
        record: digest of its record; empty where that could not be read from the pointer.
        flags: of all that was looked at; where the record is damaged, of that alone.
    """

    target: str
    graph_key: str
    names: tuple[str, ...]
    record: str
    flags: tuple[Flag, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing is known to stand against it."""
        return all(flag.ok is not False for flag in self.flags)

    @property
    def unmet(self) -> tuple[Flag, ...]:
        return tuple(flag for flag in self.flags if flag.ok is False)

    def __str__(self) -> str:
        what = self.names[0] if self.names else self.graph_key[:12]
        said = "; ".join(f"{flag.name}: want {flag.want}, got {flag.got}" for flag in self.unmet)
        return f"{what!r} for {self.target}: {said or 'runs'}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of a machine; a device's fields are None where they are not."""

    arch: str | None = None  # that a target names
    capability: tuple[int, int] | None = None
    sm_count: int | None = None
    smem_optin_bytes: int | None = None
    driver: int | None = None
    triple: str = field(default_factory=lambda: this_host().triple)
    level: str = field(default_factory=lambda: this_host().level)
    glibc: str = field(default_factory=lambda: this_host().glibc)

    @classmethod
    def described(cls, device: Any) -> Machine:
        """From None (this host), a target's name or descriptor, or a device's attributes."""
        if device is None:
            return cls()
        if isinstance(device, str):
            from cudnn_aot.compiler.target.target import load_target

            device = load_target(device)
        if not isinstance(device, Mapping):
            if not hasattr(device, "descriptor"):
                raise UsageError(
                    f"bad device: got {device!r}, want the name of a target, a descriptor or the "
                    "attributes of a device"
                )
            device = device.descriptor()
        if "gpu_arch" not in device and "compute_capability" not in device:
            raise UsageError(
                f"bad device: got fields {', '.join(map(str, device)) or 'none'}, want some of "
                f"{', '.join(_DEVICE_FIELDS)}"
            )
        capability = device.get("compute_capability")
        has_gpu = capability is not None or device["gpu_arch"] != ""
        return cls(
            arch=device.get("gpu_arch"),
            capability=tuple(capability) if capability is not None else None,
            sm_count=device.get("sm_count") if has_gpu else 0,
            smem_optin_bytes=device.get("smem_optin_bytes") if has_gpu else 0,
            driver=device.get("driver_version"),
            triple=device.get("host_triple") or this_host().triple,
            level=device.get("host_level") or this_host().level,
        )


def validities(
    reader: AnyReader, machine: Machine, target: str | None = None
) -> Iterator[Validity]:
    """Of the best plan of every graph of a store, in order of target and key; declines have none.

    Raises:
        StoreError: a folder of the store cannot be listed.
    """
    process = _process_flags()
    names: dict[tuple[str, str], list[str]] = {}
    for holder, name in reader.names():
        try:
            key = reader.name(holder, name)["graph_key"]
        except StoreError:
            continue  # a damaged name stands against no plan
        names.setdefault((holder, key), []).append(name)
    for holder, key in reader.pointers():
        if target is None or holder == target:
            called = tuple(names.get((holder, key), ()))
            answer = _first_loadable(reader, machine, process, holder, key, called)
            if answer is not None:
                yield answer


def _first_loadable(
    reader: AnyReader,
    machine: Machine,
    process: tuple[Flag, Flag],
    target: str,
    key: str,
    names: tuple[str, ...],
) -> Validity | None:
    """Of the plan that loading takes: that of the first layer that has it whole, else the first."""
    first = None
    for layer in reader.readers:
        try:
            pointer = layer.pointer(target, key)
        except NotInStoreError:
            continue
        except StoreError as error:
            flag = Flag("digest", False, "a whole pointer", str(error))
            answer = Validity(target, key, names, "", (flag,))
            if isinstance(error, PinError):  # which no other layer makes good
                return answer
        else:
            if not pointer["records"]:
                return None
            answer = _validity(reader, machine, process, pointer["records"][0], target, key, names)
        if not {flag.name for flag in answer.unmet} & {"digest", "format"}:
            return answer
        first = first or answer
    return first


def _validity(
    reader: AnyReader,
    machine: Machine,
    process: tuple[Flag, Flag],
    digest: str,
    target: str,
    key: str,
    names: tuple[str, ...],
) -> Validity:
    """Of the plan of this record."""
    try:
        record = parse_record(reader.blob(digest), digest)
        version = record["format"]
        if version != FORMAT:
            flag = Flag("format", False, str(FORMAT), str(version))
            return Validity(target, key, names, digest, (flag,))
        needed = Requirements.from_record(record["requirements"])
        need_servable(record, digest, target, key)
        is_gpu = record["table"]["device"] == "cuda"
        whole = _blobs(reader, record)
    except StoreError as error:
        flag = Flag("digest", False, digest, str(error))
        return Validity(target, key, names, digest, (flag,))
    ffi, runtime = process
    flags = [
        Flag("format", True, str(FORMAT), str(version)),
        whole,
        *machine_flags(needed, machine, is_gpu=is_gpu),
        ffi,
        *((runtime,) if is_gpu else ()),
        *((_cudnn_flag(needed.cudnn),) if needed.cudnn else ()),
    ]
    return Validity(target, key, names, digest, tuple(flags))


def _blobs(reader: AnyReader, record: Mapping[str, Any]) -> Flag:
    """That every blob lies there in its size; its bytes are compared when it is loaded."""
    parts = [*record["kernels"], *record.get("blobs", ())]
    for part in parts:
        size, want = reader.blob_size(part["blob"]), part["bytes"]
        if size is None or size != want:
            got = "none" if size is None else f"{size} bytes"
            return Flag("digest", False, f"blob {part['blob']} of {want} bytes", got)
    return Flag("digest", True, "whole records", f"those, and {len(parts)} blobs of their size")


def machine_flags(needed: Requirements, machine: Machine, *, is_gpu: bool) -> list[Flag]:
    """What a plan requires of the machine alone: of its host, and its GPU if it runs on one."""
    device = _device_flags(needed, machine) if is_gpu else []
    return [*_host_flags(needed, machine), *device]


def _host_flags(needed: Requirements, machine: Machine) -> list[Flag]:
    flags = []
    if needed.host_triple:
        ok = needed.host_triple == machine.triple
        flags.append(Flag("host_triple", ok, needed.host_triple, machine.triple))
    if needed.host_level:
        ok = requirements.level_covers(machine.level, needed.host_level)
        flags.append(Flag("host_level", ok, needed.host_level, machine.level))
    if needed.glibc_min:
        ok = requirements.numbers(machine.glibc) >= requirements.numbers(needed.glibc_min)
        flags.append(Flag("glibc", ok, f"{needed.glibc_min} or newer", machine.glibc or "none"))
    return flags


def _device_flags(needed: Requirements, machine: Machine) -> list[Flag]:
    found = machine.capability
    if found is None and machine.arch is not None:
        found = requirements.arch_capability(machine.arch)
    has_device = machine.arch is not None or machine.capability is not None
    got = f"compute capability {found[0]}.{found[1]}" if found else "no GPU"
    flags = []
    if needed.gpu_arch:
        ok = None
        if has_device:
            ok = found is not None and requirements.arch_runs_on(needed.gpu_arch, found)
        flags.append(Flag("arch", ok, needed.gpu_arch, got if has_device else "unknown"))
    for name, want, have, is_least in (
        ("smem", needed.smem_optin_bytes, machine.smem_optin_bytes, True),
        ("sm_count", needed.sm_count, machine.sm_count, False),
        ("driver", needed.driver_min, machine.driver, True),
    ):
        if not want:
            continue
        ok = None if have is None else have >= want if is_least else have == want
        text = f"{want} or more" if is_least else f"{want} exactly"
        flags.append(Flag(name, ok, text, "unknown" if have is None else str(have)))
    return flags


def _process_flags() -> tuple[Flag, Flag]:
    """libtvm_ffi and libcudart, as this process would find them; neither is loaded."""
    try:
        version = _ffi_version(find_ffi())
    except RequirementError:
        ffi = Flag("tvm_ffi", False, f"{FFI_MIN} or newer", "none")
    else:
        ok = None if version is None else requirements.numbers(version) >= _FFI_NUMBERS
        ffi = Flag("tvm_ffi", ok, f"{FFI_MIN} or newer", version or "an unknown version")
    found = cudart.locate()
    named = os.environ.get(cudart.VARIABLE)
    wanted = "libcudart.so.12 or .13"
    if found is None and named:
        runtime = Flag("cudart", False, f"{named}, of {cudart.VARIABLE}", "no such file")
    else:  # what none of the known places has, the system's loader may still find
        runtime = Flag("cudart", True if found else None, wanted, found or "unknown")
    return ffi, runtime


def _cudnn_flag(wanted: str) -> Flag:
    """The cuDNN that this process would load, by its distribution; it is not imported."""
    want = f"{wanted} exactly, and its frontend"
    if importlib.util.find_spec("cudnn") is None:
        return Flag("cudnn", False, want, "no cuDNN frontend")
    for distribution in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = ".".join(importlib.metadata.version(distribution).split(".")[:3])
            return Flag("cudnn", version == wanted, want, version)
    return Flag("cudnn", None, want, "unknown")


_FFI_NUMBERS = requirements.numbers(FFI_MIN)


def _ffi_version(library: Path) -> str | None:
    """That of the distribution beside which the library lies."""
    for folder in library.parents[2].glob("apache_tvm_ffi-*.dist-info"):
        return folder.name[len("apache_tvm_ffi-") : -len(".dist-info")]
    return None


__all__ = ["Flag", "Machine", "Validity", "machine_flags", "validities"]
