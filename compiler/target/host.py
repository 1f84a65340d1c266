"""Hosts: what the launch stubs of kernels, and kernels of the CPU, are compiled for.

A target or ``--host`` names the host; the processor of a build machine never decides it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

from cudnn_aot.errors import UsageError

# Triple -> its levels, lowest first. "" is the baseline, Armv8-A, which asks for nothing.
LEVELS: Mapping[str, tuple[str, ...]] = {
    "x86_64-linux-gnu": ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
    "aarch64-linux-gnu": ("",),
}
# Of who names a triple alone. Servers with the GPUs that are targets here have AVX2.
DEFAULT_LEVELS: Mapping[str, str] = {
    "x86_64-linux-gnu": "x86-64-v3",
    "aarch64-linux-gnu": "",
}


def why_not_host(triple: str, level: str) -> str | None:
    """None when code is made for hosts of that triple and level, else one sentence."""
    levels = LEVELS.get(triple)
    if levels is None:
        return f"host_triple is {triple!r}, want one of {', '.join(LEVELS)}"
    if level not in levels:
        want = f"one of {', '.join(levels)}" if levels[0] else "'', its one level,"
        return f"host_level is {level!r}, want {want} for {triple}"
    return None


def parse_host(text: str) -> tuple[str, str]:
    """``"TRIPLE"`` or ``"TRIPLE/LEVEL"`` as triple and level.

    Raises:
        UsageError: the triple or the level is unknown.
    """
    triple, slash, level = text.partition("/")
    if not slash:
        level = DEFAULT_LEVELS.get(triple, "")
    fault = why_not_host(triple, level)
    if fault is None and slash and not level:
        fault = "host_level is empty: leave out the '/'"
    if fault is not None:
        raise UsageError(f"bad host {text!r}: {fault}")
    return triple, level


def this_triple() -> str:
    """The triple that this interpreter runs on, known to be served or not."""
    return f"{platform.machine()}-linux-gnu" if sys.platform == "linux" else sys.platform


def why_not_built_here(triple: str) -> str | None:
    """None when this machine compiles for a host, else one sentence that names what would.

    The DSL makes host code for the machine that it runs on: it refuses ``--host-target`` together
    with the tvm-ffi calls that the runtime makes.
    """
    here = this_triple()
    if triple == here:
        return None
    machine = triple.partition("-")[0]
    return (
        f"cannot compile for the host {triple!r} on {here!r}: the DSL makes host code for its own "
        f"machine alone; build on an {machine} machine with pip install 'cudnn-aot[compile]' (its "
        f"wheels are there for {machine}) and a C compiler (apt-get install gcc binutils)"
    )
