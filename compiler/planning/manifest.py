"""The manifest: which families exist, which engines each has, and their ids. Import-free by design.

A family is a *kind of graph*, named by its anchor node; a graph that names two families belongs to
none. Analyzers, heuristics and engines are named as ``"module:attribute"`` strings under
``cudnn_aot.recipes`` and resolved when a graph needs them. Ids live in one flat space: cuDNN's
backend ``[0, 10000)``, reserved ``[10000, 20000)``, ours from 20000 with a block of 100 per
family. An id is never reused.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FIRST_ENGINE_ID = 20_000
FAMILY_BLOCK = 100


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """One engine of a family: ``offset`` in the family's block of ids, public name, and where
    the class is.
    """

    offset: int
    name: str
    factory: str
    opt_in: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of graph and the engines that compete for it."""

    name: str
    base_id: int
    anchors: tuple[str, ...]
    analyzer: str
    heuristics: str
    engines: tuple[EngineSlot, ...]

    def engine_id(self, slot: EngineSlot) -> int:
        return self.base_id + slot.offset


FAMILIES: tuple[Family, ...] = (
    Family(
        name="gemm",
        base_id=20_000,
        anchors=("matmul",),
        analyzer="gemm.facts:analyze",
        heuristics="gemm.heuristics:recommend",
        engines=(
            EngineSlot(0, "gemm.sm90.persistent", "gemm.sm90:GemmSm90Persistent"),
            EngineSlot(1, "gemm.host.blocked", "gemm.host:GemmHostBlocked"),
        ),
    ),
)


def family_for(ops: Iterable[str]) -> Family | None:
    """The one family whose anchor is among ``ops`` (the graph's op names), or None for none or
    several.
    """
    named = set(ops)
    matching = [family for family in FAMILIES if named & set(family.anchors)]
    return matching[0] if len(matching) == 1 else None


def engine_for_id(engine_id: int) -> tuple[Family, EngineSlot]:
    """Family and slot of an engine id, with nothing registered or imported first.

    Raises:
        KeyError: no engine has this id.
    """
    for family in FAMILIES:
        for slot in family.engines:
            if family.engine_id(slot) == engine_id:
                return family, slot
    raise KeyError(engine_id)


def resolve(name: str) -> Any:
    """The attribute that a manifest string ``"module:attribute"`` names under
    ``cudnn_aot.recipes``.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"cudnn_aot.recipes.{module}"), attribute)
