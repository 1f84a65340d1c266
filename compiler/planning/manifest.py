"""The manifest: which families exist, which engines each has, and their ids. Import-free by design.

A family is a *kind of graph*, named by its anchor node; a graph that names two families belongs to
none. What a family cannot say without being imported (validator, analyzer, heuristics, engines) is
named as ``"module:attribute"`` under ``cudnn_aot.recipes`` and resolved when a graph needs it. Ids
live in one flat space: cuDNN's backend ``[0, 10000)``, reserved ``[10000, 20000)``, ours from 20000
with a block of 100 per family. An id is never reused.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache.switch import OFF, ON
from cudnn_aot.errors import UsageError, did_you_mean

BACKEND_IDS = range(0, 10_000)
RESERVED_IDS = range(10_000, 20_000)
FIRST_ENGINE_ID = 20_000
FAMILY_BLOCK = 100

# The sides of a plan list; what each makes is stored apart. Unranked, they come in this order.
PROVIDERS = ("native", "cudnn")

OPT_IN_VARIABLE = "CUDNN_AOT_OPT_IN_ENGINES"


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """One engine of a family: ``offset`` in the family's block of ids, public name, and where
    the class is.

    An ``opt_in`` engine is not mature: it is offered only when `OPT_IN_VARIABLE` names it.
    """

    offset: int
    name: str
    factory: str
    opt_in: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of graph and the engines that compete for it.

    Attributes:
        anchors: the ops that name it. Other ops are ignored when classifying: whether the whole
            graph can be served is the analyzer's judgment.
        analyzer: ``(graph) -> facts | Refusal``.
        heuristics: ``(kind, facts, offered ids, target) -> [PlanConfig | Ranges | BACKEND]``.
        validator: ``(graph) -> None``, raises for what breaks a rule of the family beyond those of
            its ops; may be empty.
        borrows: the packages of other families that these modules import.
    """

    name: str
    base_id: int
    anchors: tuple[str, ...]
    analyzer: str
    heuristics: str
    engines: tuple[EngineSlot, ...]
    validator: str = ""
    borrows: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages under ``recipes`` that it is made of."""
        hooks = [self.analyzer, self.heuristics, self.validator]
        hooks += [slot.factory for slot in self.engines]
        return tuple(sorted({hook.partition(".")[0] for hook in hooks if hook} | {*self.borrows}))

    def engine_id(self, slot: EngineSlot) -> int:
        return self.base_id + slot.offset

    def offered(self) -> tuple[EngineSlot, ...]:
        """The engines that may serve now: those that are mature, and those opted in to."""
        names = opted_in()
        return tuple(
            slot for slot in self.engines if not slot.opt_in or names is None or slot.name in names
        )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="gemm",
        base_id=20_000,
        anchors=("matmul",),
        analyzer="gemm.analyze:analyze",
        heuristics="gemm.heuristics:recommend",
        engines=(
            EngineSlot(0, "gemm.sm90.persistent", "gemm.sm90:GemmSm90Persistent"),
            EngineSlot(1, "gemm.host.blocked", "gemm.host:GemmHostBlocked"),
            EngineSlot(2, "gemm.sm90.gemv", "gemm.gemv:GemmSm90Gemv"),
            # 3 was an engine that is gone.
            EngineSlot(4, "gemm.sm90.any_stride", "gemm.any_stride:GemmSm90AnyStride"),
            # 5 was an engine that is gone.
        ),
    ),
    Family(
        name="moe",
        base_id=20_100,
        anchors=("moe_grouped_matmul",),
        analyzer="moe.facts:analyze",
        heuristics="moe.heuristics:recommend",
        engines=(
            EngineSlot(0, "moe.sm90.any_stride", "moe.any_stride:MoeSm90AnyStride"),
            EngineSlot(1, "moe.host.blocked", "moe.host:MoeHostBlocked"),
            EngineSlot(2, "moe.sm90.persistent", "moe.sm90:MoeSm90Persistent"),
        ),
        borrows=("gemm",),
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


def provider_of(engine_id: int) -> str:
    """Whose engine has this id."""
    return "cudnn" if engine_id in BACKEND_IDS else "native"


def check_providers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once.

    Raises:
        UsageError: one is unknown, or there is none.
    """
    given = tuple(dict.fromkeys(names))
    unknown = [name for name in given if name not in PROVIDERS]
    if unknown or not given:
        got = f"{unknown[0]!r}{did_you_mean(unknown[0], PROVIDERS)}" if unknown else "none"
        raise UsageError(f"engines: got {got}, want one or more of {', '.join(PROVIDERS)}")
    return given


def opted_in() -> frozenset[str] | None:
    """The opt-in engines that `OPT_IN_VARIABLE` names, read now; None for all of them.

    Raises:
        UsageError: it names no opt-in engine.
    """
    text = os.environ.get(OPT_IN_VARIABLE, "").strip()
    if text.lower() in ON:
        return None
    if text.lower() in OFF:
        return frozenset()
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    known = {slot.name for family in FAMILIES for slot in family.engines if slot.opt_in}
    if unknown := sorted(names - known):
        raise UsageError(
            f"{OPT_IN_VARIABLE}: got {unknown[0]!r}{did_you_mean(unknown[0], known)}, want 1, 0 or "
            "opt-in engines: "
            f"{', '.join(sorted(known)) or 'there are none'}"
        )
    return names


def resolve(name: str) -> Any:
    """The attribute that a manifest string ``"module:attribute"`` names under
    ``cudnn_aot.recipes``.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"cudnn_aot.recipes.{module}"), attribute)


def folder(package: str) -> Path:
    """Where a package of the project lies, without importing it."""
    spec = importlib.util.find_spec(f"cudnn_aot.{package}")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))
