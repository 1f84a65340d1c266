"""What a stored plan requires of the machine that runs it, and whether this one has it.

Requirements are recorded with a plan when it is built. The host's part is checked before any of
its code is loaded, the device's part before the first call on that device. Zero or empty asks for
nothing. The rules are those of the C++ half (``native/src/requirements``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_aot import _native
from cudnn_aot.errors import StoreError


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
        _native.check_host(what, self._record(), this_host())

    def check_device(self, what: str, device: int, attributes: Mapping[str, Any]) -> None:
        """Raise RequirementError unless the device, as ``_native`` describes it, runs the plan."""
        _native.check_device(what, self._record(), device, dict(attributes))

    def _record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def arch_runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether machine code for ``arch`` runs on a device of that compute capability.

    ``sm_90a`` is for 9.0 alone, ``sm_100f`` for its family, ``sm_80`` for 8.0 and later 8.x.
    """
    return _native.arch_runs_on(arch, capability)


def arch_capability(arch: str) -> tuple[int, int] | None:
    """The compute capability that an architecture is named for; None for "" and what is none."""
    return _native.arch_capability(arch)


def this_host() -> _native.Host:
    """That of this process: its triple, its C library, the level of its CPU."""
    return _native.this_host()


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version that are numbers, to compare it by."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def level_covers(have: str, wanted: str) -> bool:
    """Whether a host of one level runs code for another; a level that is unknown runs nowhere."""
    return _native.level_covers(have, wanted)
