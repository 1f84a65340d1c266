"""The flavours of the CuTe DSL: what each asks of a driver, and which architectures it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudnn_aot.errors import UsageError


@dataclass(frozen=True, slots=True)
class Flavor:
    """One flavour.

    Attributes:
        driver_min: the lowest driver, as ``cuDriverGetVersion`` counts, that loads what it makes.
        lacks: prefixes of architectures that its CUDA release has no name for.
    """

    driver_min: int
    lacks: tuple[str, ...]


# CUDA 13.0 calls sm_110 what CUDA 12 calls sm_101; all other architectures are in both.
FLAVORS: Mapping[str, Flavor] = {
    "cu12": Flavor(12090, lacks=("sm_110",)),  # 575.51.03
    "cu13": Flavor(13000, lacks=("sm_101",)),  # 580.65.06
}


def flavor_of(name: str) -> Flavor:
    """The flavour of a name; raises UsageError for one that is unknown."""
    try:
        return FLAVORS[name]
    except KeyError:
        known = ", ".join(FLAVORS)
        raise UsageError(f"unknown DSL flavour {name!r}, want one of {known}") from None


def driver_min(flavor: str) -> int:
    """The driver floor of a DSL flavour."""
    return flavor_of(flavor).driver_min


def why_not_arch(flavor: str, gpu_arch: str) -> str | None:
    """None when a flavour compiles for an architecture, else which one does."""
    if not gpu_arch.startswith(flavor_of(flavor).lacks):
        return None
    fitting = (name for name, each in FLAVORS.items() if not gpu_arch.startswith(each.lacks))
    return f"dsl_flavor is {flavor!r}, want {' or '.join(map(repr, fitting))} for {gpu_arch}"
