"""What a stored plan requires of the machine that runs it, and whether this one has it.

Requirements are recorded with a plan when it is built. The host's part is checked before any of
its code is loaded, the device's part before the first call on that device. Zero or empty asks for
nothing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.errors import RequirementError, StoreError

# Flags of /proc/cpuinfo that each level adds; the psABI's names for some differ (lzcnt is abm).
_LEVEL_FLAGS = (
    ("x86-64", ()),
    ("x86-64-v2", ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")),
    ("x86-64-v3", ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")),
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)
_LEVELS = tuple(level for level, _ in _LEVEL_FLAGS)
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")


@dataclass(frozen=True, slots=True)
class Requirements:
    """The least machine that runs a plan.

    ``cudnn`` and ``sm_count`` are met by equal ones only; `runtime.cudnn_backend` checks ``cudnn``.
    """

    gpu_arch: str = ""
    smem_optin_bytes: int = 0
    driver_min: int = 0
    host_triple: str = ""
    host_level: str = ""
    glibc_min: str = ""
    sm_count: int = 0
    cudnn: str = ""

    @classmethod
    def from_record(cls, document: Mapping[str, Any]) -> Requirements:
        """Raises StoreError for a requirement that this version does not know how to check."""
        known = cls.__dataclass_fields__
        if unknown := sorted(set(document) - set(known)):
            raise StoreError(
                f"the plan requires {unknown[0]!r}, which this version of cudnn-aot cannot check: "
                "update cudnn-aot"
            )
        return cls(**{name: value for name, value in document.items() if value})

    def check_host(self, what: str) -> None:
        """Raise RequirementError unless this process can run the plan's host code."""
        if self.host_triple and self.host_triple != host_triple():
            raise _unmet(what, "host", self.host_triple, host_triple())
        if self.host_level:
            self._check_level(what)
        if self.glibc_min:
            version = glibc_version()
            if numbers(version) < numbers(self.glibc_min):
                raise _unmet(what, "glibc", f"{self.glibc_min} or newer", version or "none")

    def check_device(self, what: str, device: int, attributes: Mapping[str, Any]) -> None:
        """Raise RequirementError unless the device, as ``_native`` describes it, runs the plan."""
        where = f"cuda:{device}"
        if self.gpu_arch:
            found = attributes["compute_capability"]
            if not arch_runs_on(self.gpu_arch, found):
                raise _unmet(
                    what,
                    f"device {where}",
                    f"{self.gpu_arch} (compute capability {_wanted_capability(self.gpu_arch)})",
                    f"compute capability {found[0]}.{found[1]}",
                )
        if self.sm_count and attributes["sm_count"] != self.sm_count:
            raise _unmet(
                what,
                f"device {where}",
                f"{self.sm_count} SMs exactly",
                str(attributes["sm_count"]),
            )
        if attributes["driver_version"] < self.driver_min:
            raise _unmet(
                what,
                "CUDA driver",
                f"one for CUDA {_cuda_version(self.driver_min)} or newer",
                f"one for CUDA {_cuda_version(attributes['driver_version'])}",
            )
        if attributes["smem_optin_bytes"] < self.smem_optin_bytes:
            raise _unmet(
                what,
                f"shared memory of {where}",
                f"{self.smem_optin_bytes} bytes for one block",
                f"{attributes['smem_optin_bytes']}",
            )

    def _check_level(self, what: str) -> None:
        if self.host_level not in _LEVELS:
            raise _unmet(what, "host level", self.host_level, host_level())
        if missing := _missing_flags(self.host_level, cpu_flags()):
            raise _unmet(what, "host level", self.host_level, f"{host_level()} ({missing})")


@functools.lru_cache(maxsize=16)
def _missing_flags(wanted: str, have: frozenset[str]) -> str:
    """What a level, or one below it, needs of a CPU that has these flags; "" for nothing."""
    for level, flags in _LEVEL_FLAGS[: _LEVELS.index(wanted) + 1]:
        if missing := [flag for flag in flags if flag not in have]:
            return f"{level} needs {', '.join(missing)}"
    return ""


def arch_runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether machine code for ``arch`` runs on a device of that compute capability.

    ``sm_90a`` is for 9.0 alone, ``sm_100f`` for its family, ``sm_80`` for 8.0 and later 8.x.
    """
    matched = _ARCH.fullmatch(arch)
    if matched is None:
        return False
    major, minor, kind = int(matched[1]), int(matched[2]), matched[3]
    if kind == "a":
        return capability == (major, minor)
    return capability[0] == major and capability[1] >= minor


def arch_capability(arch: str) -> tuple[int, int] | None:
    """The compute capability that an architecture is named for; None for "" and what is none."""
    matched = _ARCH.fullmatch(arch)
    return (int(matched[1]), int(matched[2])) if matched else None


def host_triple() -> str:
    libc = "gnu" if glibc_version() else "unknown"
    system = os.uname()
    return f"{system.machine}-{system.sysname.lower()}-{libc}"


def host_level() -> str:
    """The highest x86-64 level of this CPU, as far as the kernel tells."""
    best, have = "x86-64", cpu_flags()
    for level, flags in _LEVEL_FLAGS:
        if any(flag not in have for flag in flags):
            break
        best = level
    return best


@functools.cache
def cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


@functools.cache
def glibc_version() -> str:
    """ "2.36", or "" where the C library is another."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version that are numbers, to compare it by."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def level_covers(have: str, wanted: str) -> bool:
    """Whether a host of one level runs code for another; a level that is unknown runs nowhere."""
    if wanted not in _LEVELS or have not in _LEVELS:
        return False
    return _LEVELS.index(have) >= _LEVELS.index(wanted)


def _cuda_version(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _wanted_capability(arch: str) -> str:
    matched = _ARCH.fullmatch(arch)
    if matched is None:
        return "unknown"
    exact = f"{matched[1]}.{matched[2]}"
    return exact if matched[3] == "a" else f"{exact} or a later {matched[1]}.x"


def _unmet(what: str, subject: str, required: str, found: str) -> RequirementError:
    return RequirementError(
        f"{what} cannot run here: {subject}: requires {required}, found {found}"
    )
