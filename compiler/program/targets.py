"""Which target a graph of this process is planned for: named, or that of the current CUDA device.

A device is matched by what a target requires of it, never by its name. So are the plans that a
store holds for other targets: where none is named, they serve if the device meets what they
require.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.target.target import Target, known_targets, load_target
from cudnn_aot.errors import RequirementError, UsageError

VARIABLE = "CUDNN_AOT_TARGET"
NONE = "none"  # the variable's value for a process that only describes graphs


@dataclass(frozen=True, slots=True)
class Choice:
    """The target to plan for, and the attributes of the device that it was chosen by.

    ``device`` is None where a target was named: then its plans are wanted and no others.
    """

    target: Target
    device: Mapping[str, Any] | None = None


def choose_target(named: str | None = None) -> Choice:
    """The target called ``named``; else that of the variable; else the current device's.

    Raises:
        UsageError: it is unknown, or none is named and there is no device of a known target.
    """
    name = named or os.environ.get(VARIABLE)
    if name and name != NONE:
        return Choice(load_target(name))
    why = f"{VARIABLE} is {NONE!r}" if name else "no target is named"
    if not name:
        try:
            attributes = _current_device()
        except RequirementError as error:
            why = f"{why}, and {error}"
        else:
            found = nearest_target(attributes)
            if found is not None:
                return Choice(found, attributes)
            major, minor = attributes["compute_capability"]
            why = f"{why}, and none is of the current device's compute capability {major}.{minor}"
    raise UsageError(
        f"no target to plan for: {why}; give pygraph(target=...) or {VARIABLE} one of "
        f"{', '.join(known_targets())}"
    )


def is_target_known(named: str | None = None) -> bool:
    """Whether `choose_target` finds one; a wrong name is left for it to refuse."""
    if named or (name := os.environ.get(VARIABLE)):
        return bool(named) or name != NONE
    try:
        return nearest_target(_current_device()) is not None
    except RequirementError:
        return False


def nearest_target(attributes: Mapping[str, Any]) -> Target | None:
    """The first of `nearest_targets`, if there is one."""
    return next(iter(nearest_targets(attributes)), None)


def nearest_targets(attributes: Mapping[str, Any]) -> list[Target]:
    """The shipped targets for hosts as this one whose code runs on a device: first that with the
    most like number of SMs, then the most like L2, then the shortest name (h200 before h100_nvl,
    which is as large).
    """
    from cudnn_aot.runtime.requirements import Requirements, this_host

    fitting = []
    for target in map(load_target, known_targets()):
        if target.kind != "cuda" or target.host_triple != this_host().triple:
            continue
        needs = Requirements(
            gpu_arch=target.gpu_arch,
            driver_min=target.driver_min,
            smem_optin_bytes=target.smem_optin_bytes,
        )
        try:
            needs.check_device(target.name, 0, attributes)
        except RequirementError:
            continue
        fitting.append(target)

    def distance(target: Target) -> tuple[int, int, int, str]:
        sms = abs(target.sm_count - attributes["sm_count"])
        l2 = abs(target.l2_bytes - attributes["l2_bytes"])
        return sms, l2, len(target.name), target.name

    return sorted(fitting, key=distance)


def _current_device() -> Mapping[str, Any]:
    """What the current CUDA device is; raises RequirementError where there is none."""
    from cudnn_aot import _native
    from cudnn_aot.runtime import cudart

    cudart.find()
    return _native.device_attributes(_native.current_device())
