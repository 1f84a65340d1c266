"""A store opened for serving. Touches no GPU and no compiler."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from typing import Any

from cudnn_aot.cache.layout import is_digest, providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotInStoreError,
    StoreError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.runtime.plan import FORMAT, Plan

VARIABLE = "CUDNN_AOT_STORE"


def open(path: str | os.PathLike[str] | None = None, target: str | None = None) -> Store:
    """Open the store at ``path``, or at ``CUDNN_AOT_STORE``.

    Args:
        path: the store's folder.
        target: the target whose plans are wanted; needed where a name is stored for several.

    Raises:
        NotAStoreError: there is no store of a format that this version reads.
        UsageError: no path was given.
    """
    chosen = path if path is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise UsageError(f"no store: pass a path or set {VARIABLE}")
    try:
        folder = os.fsdecode(chosen)
    except TypeError:
        raise UsageError(f"bad path of a store: got {chosen!r}, want a string or a path") from None
    if "\0" in folder:
        raise NotAStoreError(f"bad path of a store: got {folder!r}, want one without a null byte")
    return Store(folder, target)


class Store:
    """A store and the plans in it.

    Attributes:
        target: the target that ``plan`` takes when it is given none, or None.
    """

    def __init__(self, path: str | os.PathLike[str], target: str | None = None) -> None:
        self._reader = StoreReader(path)
        self.target = target
        if target is not None:
            self._need_target(target)

    @property
    def path(self) -> str:
        return str(self._reader.path)

    def names(self) -> list[tuple[str, str]]:
        """(target, name) of every named graph, sorted."""
        return self._reader.names()

    def plan(self, name: str, target: str | None = None, *, provider: str | None = None) -> Plan:
        """Load the best plan of a graph, by its name or its key; with ``provider``, its best one.

        Providers are ``"native"`` and ``"cudnn"``.

        Raises:
            NotInStoreError: the store holds no such graph; the message has the nearest names.
            cudnnGraphNotSupportedError: it was declined when the store was built.
            RequirementError: this host does not run it.
            DamagedError: stored bytes are not what was recorded.
            UsageError: several targets hold it and none was chosen; the name is no string.
        """
        if not isinstance(name, str):
            raise UsageError(f"bad name: got {name!r}, want the name or the key of a graph")
        chosen = target or self.target
        if chosen is not None:
            self._need_target(chosen)
        if is_digest(name):
            holder = chosen or self._only_target(name, self._reader.pointers())
            return self._load(name, {}, self._reader.pointer(holder, name), provider)
        holder = chosen or self._only_target(name, self._reader.names())
        try:
            entry = self._reader.name(holder, name)
        except (NotInStoreError, UnicodeEncodeError):  # a string that is no text names no file
            raise self._absent(name, holder) from None
        try:
            pointer = self._reader.pointer(holder, entry["graph_key"])
        except KeyError:
            raise DamagedError(f"name {name!r} for {holder} states no graph key") from None
        return self._load(name, entry.get("uids", {}), pointer, provider)

    def __repr__(self) -> str:
        return f"<Store {self.path!r}>"

    # What follows is not part of the interface.

    def _load(
        self,
        name: str,
        uids: Mapping[str, int],
        pointer: Mapping[str, Any],
        provider: str | None = None,
    ) -> Plan:
        target = pointer["target"]
        if provider is not None:
            pointer = {**pointer, **self._part_of(provider, name, pointer)}
        records = pointer.get("records", [])
        if pointer.get("status") == "declined" or not records:
            reasons = "; ".join(pointer.get("reasons", [])) or "no reason was recorded"
            raise cudnnGraphNotSupportedError(f"graph {name!r} is declined for {target}: {reasons}")
        try:
            record = json.loads(self._reader.blob(records[0]))  # best first
        except ValueError:
            raise DamagedError(f"plan record {records[0]} of {name!r} is no JSON") from None
        found = record.get("format") if isinstance(record, dict) else None
        if found != FORMAT:
            raise StoreError(
                f"plan record of {name!r} has format {found!r}, this version of cudnn-aot reads "
                f"format {FORMAT}"
            )
        if record.get("graph_key") != pointer["graph_key"] or record.get("target") != target:
            raise DamagedError(f"plan record {records[0]} belongs to another graph than {name!r}")
        return Plan(name, uids, record, self._reader.blob)

    def _part_of(self, provider: str, name: str, pointer: Mapping[str, Any]) -> Mapping[str, Any]:
        held = providers_of(pointer)
        if provider not in held:
            raise NotInStoreError(
                f"store {self.path!r} holds no plan of {provider!r} for {name!r}; it has those of: "
                f"{', '.join(sorted(held))}"
            )
        status = "built" if held[provider]["records"] else "declined"
        return {**held[provider], "status": status}

    def _need_target(self, target: str) -> None:
        held = self._reader.targets()
        if target not in held:
            raise NotInStoreError(
                f"store {self.path!r} holds nothing for target {target!r}; it has: "
                f"{', '.join(held) or 'no target at all'}"
            )

    def _only_target(self, name: str, entries: list[tuple[str, str]]) -> str:
        holders = [target for target, entry in entries if entry == name]
        if not holders:
            raise self._absent(name, None)
        if len(holders) > 1:
            raise UsageError(
                f"{name!r} is stored for {', '.join(holders)}: choose one with "
                f"plan({name!r}, target=...)"
            )
        return holders[0]

    def _absent(self, name: str, target: str | None) -> NotInStoreError:
        entries = self._reader.names()
        message = f"no graph named {name!r} in store {self.path!r}"
        if target is not None:
            elsewhere = sorted({holder for holder, entry in entries if entry == name})
            entries = [entry for entry in entries if entry[0] == target]
            message = f"no graph named {name!r} for {target} in store {self.path!r}"
            if elsewhere:
                return NotInStoreError(f"{message}; it is there for {', '.join(elsewhere)}")
        names = sorted({entry for _, entry in entries})
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        if not nearest:
            return NotInStoreError(f"{message}; it holds {len(names)} names")
        return NotInStoreError(f"{message}; the nearest are {', '.join(map(repr, nearest))}")


__all__ = ["Store", "open"]
