"""A store opened for serving. Touches no GPU and no compiler."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot import _native
from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.cache.layout import is_digest, providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import (
    DamagedError,
    Error,
    NotAStoreError,
    NotInStoreError,
    StoreError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.runtime.log import Log
from cudnn_aot.runtime.plan import FORMAT, Plan
from cudnn_aot.runtime.stats import Counters, Stats

if TYPE_CHECKING:
    from cudnn_aot.runtime.classes import ClassIndex
    from cudnn_aot.runtime.validity import Validity

VARIABLE = "CUDNN_AOT_STORE"
MISS_VARIABLE = "CUDNN_AOT_MISS_DIR"


def open(path: str | os.PathLike[str] | None = None, target: str | None = None) -> Store:
    """Open the store at ``path``, or at ``CUDNN_AOT_STORE``.

    Args:
        path: the store's folder.
        target: the target whose plans are wanted; needed where a name is stored for several.

    Raises:
        NotAStoreError: there is no store of a format that this version reads.
        UsageError: no path was given, or a variable of the environment means nothing.
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
        self._targets: frozenset[str] = frozenset()  # all, once a graph was asked for without one
        self._seen: set[str] = set()  # targets that are known to be there
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, str], Plan] = {}  # of graphs, by target and key
        self._counters = Counters()
        self._log = Log()
        self._classes: ClassIndex | None = None  # once a graph was asked for
        if target is not None:
            self._need_target(target)

    @property
    def path(self) -> str:
        return str(self._reader.path)

    def names(self) -> list[tuple[str, str]]:
        """(target, name) of every named graph, sorted."""
        return self._reader.names()

    def validity(self, device: Any = None) -> tuple[Validity, ...]:
        """Whether the store's plans run on a device, told from their records alone.

        Nothing is loaded and no driver is asked. ``device`` is the name of a target or the path
        of a descriptor, whose host and GPU are compared; the attributes of a device, as
        ``_native.device_attributes`` has them, for this host; or None for this host and a GPU of
        which nothing is known. tvm-ffi and libcudart are those of this process. Of every graph it
        is the best plan, for the store's target if it was opened for one.

        Raises:
            UsageError: that names no device.
            StoreError: the store cannot be listed.
        """
        from cudnn_aot.runtime.validity import Machine, validities

        return tuple(validities(self._reader, Machine.described(device), self.target))

    def closure_digest(self, names: Iterable[str] | None = None, target: str | None = None) -> str:
        """One value that is equal where the same plans would be loaded under these names.

        It covers the names, the operands that they give names to, and the records of the plans,
        which name their kernels by digest. The path of the store and the order of the names are no
        part of it. Names may be keys of graphs; None stands for all names of the store.

        Raises:
            NotInStoreError: the store lacks one of the names.
            DamagedError: what was read is not what was recorded.
            UsageError: several targets hold a name and none was chosen.
        """
        entries = []
        for holder, name in self._closure(names, target):
            uids, pointer = self._find(name, holder)
            records = pointer.get("records", [])[:1]
            entries.append([holder, name, pointer["graph_key"], sorted(uids.items()), records])
        return canonical_digest({"plans": sorted(entries), "version": 1})

    def max_workspace(self, names: Iterable[str] | None = None, target: str | None = None) -> int:
        """Bytes that are enough for any one call of any of these plans; None for all names.

        It is told from the records and for any GPU: no kernel is loaded. A declined graph asks for
        nothing.

        Raises:
            NotInStoreError, DamagedError, UsageError: as of `closure_digest`.
        """
        largest = 0
        for holder, name in self._closure(names, target):
            _, pointer = self._find(name, holder)
            if pointer.get("records"):
                table = self._record(name, pointer)["table"]
                try:
                    largest = max(largest, _native.Plan(table).workspace_bytes())
                except ValueError as error:
                    raise StoreError(f"launch table of plan {name!r}: {error}") from None
        return largest

    def plan(self, name: Any, target: str | None = None, *, provider: str | None = None) -> Plan:
        """Load the best plan of a graph, by its name, its key, or the graph itself.

        A graph is frozen, and finds the plan that was built for it; else that of a symbolic graph
        of which it is a case, bound to its extents and scalars. Plans that graphs found are kept
        for the life of this object, so that only the first of a class loads anything.

        With ``provider``, ``"native"`` or ``"cudnn"``, it is the best plan of that provider, for
        this very graph.

        Raises:
            NotInStoreError: the store holds no such graph; the message has the nearest names, or
                what a graph has otherwise than the stored ones of its class.
            cudnnGraphNotSupportedError: it was declined when the store was built.
            RequirementError: this host does not run it.
            DamagedError: stored bytes are not what was recorded.
            UsageError: several targets hold it and none was chosen; the name is no string.
            InvalidGraphError: the graph breaks a rule of its ops.
        """
        try:
            if isinstance(name, str):
                return self._plan_of_name(name, target, provider)
            return self._plan_of_graph(name, target, provider)
        except NotInStoreError as error:
            self._counters.add_miss()
            self._log.write("warning", f"miss: {error}")
            if not isinstance(name, str):
                self._note_miss(name)
            raise
        except Error as error:
            self._counters.add_failure(error)
            self._log.write("error", f"{type(error).__name__}: {error}")
            raise

    def stats(self) -> Stats:
        """What was loaded, missed and refused since the store was opened."""
        return self._counters.stats()

    def __repr__(self) -> str:
        return f"<Store {self.path!r}>"

    # What follows is not part of the interface.

    def _find(self, name: str, target: str | None) -> tuple[Mapping[str, int], Mapping[str, Any]]:
        """What lies under a name or a key: names of operands, and the pointer."""
        chosen = target or self.target
        if chosen is not None:
            self._need_target(chosen)
        holder = chosen or self._only_target(name)
        if is_digest(name):
            return {}, self._reader.pointer(holder, name)
        try:
            entry = self._reader.name(holder, name)
        except (NotInStoreError, UnicodeEncodeError):  # a string that is no text names no file
            raise self._absent(name, holder) from None
        try:
            pointer = self._reader.pointer(holder, entry["graph_key"])
        except KeyError:
            raise DamagedError(f"name {name!r} for {holder} states no graph key") from None
        return entry.get("uids", {}), pointer

    def _closure(
        self, names: Iterable[str] | None, target: str | None
    ) -> list[tuple[str | None, str]]:
        """(target, name) of each distinct name; None stands for all."""
        chosen = target or self.target
        if names is None:
            return [entry for entry in self.names() if chosen in (None, entry[0])]
        if isinstance(names, str):
            raise UsageError(f"bad names: got the string {names!r}, want a list of names")
        listed = sorted(set(names))
        return [(chosen or self._only_target(name), name) for name in listed]

    def _plan_of_name(self, name: str, target: str | None, provider: str | None) -> Plan:
        uids, pointer = self._find(name, target)
        return self._load(name, uids, pointer, provider)

    def _note_miss(self, value: Any) -> None:
        """Leave a missing graph for the next build, if there is a folder for that."""
        folder = os.environ.get(MISS_VARIABLE)
        if not folder:
            return
        from cudnn_aot.runtime import classes, misses

        graph = classes.as_graph(value)
        if graph is not None and (fault := misses.write(graph, folder)):
            self._log.write("warning", f"{MISS_VARIABLE}: {fault}")

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
        began = time.perf_counter()
        size = 0

        def read_blob(digest: str) -> bytes:
            nonlocal size
            data = self._reader.blob(digest)
            size += len(data)
            return data

        record = self._record(name, pointer, read_blob)
        plan = Plan(name, uids, record, read_blob, self._counters.refusals)
        self._counters.add_load(size)
        if self._log.takes("info"):
            took = f"{size} bytes in {1e3 * (time.perf_counter() - began):.1f} ms"
            self._log.write("info", f"loaded {name!r} for {target}: {plan.engine}, {took}")
        return plan

    def _record(
        self,
        name: str,
        pointer: Mapping[str, Any],
        read_blob: Callable[[str], bytes] | None = None,
    ) -> Mapping[str, Any]:
        """The record of the best plan of a graph that has one."""
        target, records = pointer["target"], pointer["records"]
        try:
            record = json.loads((read_blob or self._reader.blob)(records[0]))
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
        return record

    def _part_of(self, provider: str, name: str, pointer: Mapping[str, Any]) -> Mapping[str, Any]:
        held = providers_of(pointer)
        if provider not in held:
            raise NotInStoreError(
                f"store {self.path!r} holds no plan of {provider!r} for {name!r}; it has those of: "
                f"{', '.join(sorted(held))}"
            )
        status = "built" if held[provider]["records"] else "declined"
        return {**held[provider], "status": status}

    def _plan_of_graph(self, value: Any, target: str | None, provider: str | None) -> Plan:
        graph = None
        if "cudnn_aot.compiler.graph.graph" in sys.modules:  # else nobody has a graph
            from cudnn_aot.runtime import classes

            graph = classes.as_graph(value)
        if graph is None:
            raise UsageError(
                f"bad name: got {value!r}, want the name or the key of a graph, or the graph"
            )
        if provider is not None:
            exact = self._plan_of_name(graph.key(), target, provider)
            return exact.renamed(graph.name or exact.name, graph.uids())
        chosen = target or self.target
        if chosen is not None:
            self._need_target(chosen)
            targets = [chosen]
        else:
            if not self._targets:
                self._targets = frozenset(self._reader.targets())
            targets = sorted(self._targets)
        found: list[Plan] = []
        declined: list[cudnnGraphNotSupportedError] = []
        reasons: list[str] = []
        for holder in targets:
            try:
                plan = self._exact_or_class(graph, holder, reasons)
            except cudnnGraphNotSupportedError as error:
                declined.append(error)
                continue
            if plan is not None:
                found.append(plan)
        if len(found) > 1:
            holders = ", ".join(plan.target for plan in found)
            raise UsageError(f"{graph!r} is stored for {holders}: choose one with target=...")
        if found:
            return found[0]
        raise declined[0] if declined else self._no_plan(graph, targets, reasons)

    def _exact_or_class(self, graph: Any, target: str, reasons: list[str]) -> Plan | None:
        """The plan of a graph on one target, else None and the reasons; a decline is final."""
        from cudnn_aot.runtime import classes

        key = graph.key()
        name = graph.name or key
        plan = self._plans.get((target, key))
        if plan is None:
            try:
                pointer = self._reader.pointer(target, key)
            except NotInStoreError:
                pass
            else:
                plan = self._keep(name, pointer)
        if plan is not None:
            return plan.renamed(name, graph.uids())
        if self._classes is None:
            with self._lock:
                self._classes = self._classes or classes.ClassIndex(self._reader)
        found = self._classes.find(graph, target)
        if isinstance(found, list):
            reasons += found
            return None
        member = found.member
        plan = self._plans.get((target, member.graph_key)) or self._keep(
            member.pattern.graph.name or member.graph_key, member.pointer
        )
        scalars = classes.passed_scalars(found, plan.table)
        if isinstance(scalars, str):
            reasons.append(scalars)
            return None
        used = plan.table["symbols"]  # what only virtual tensors mention is no part of a table
        symbols = {symbol: value for symbol, value in found.match.symbols.items() if symbol in used}
        return plan.bind(symbols, scalars, name=name, uids=graph.uids())

    def _keep(self, name: str, pointer: Mapping[str, Any]) -> Plan:
        """Load a plan that a graph found, once."""
        place = pointer["target"], pointer["graph_key"]
        with self._lock:
            plan = self._plans.get(place)
            if plan is None:
                plan = self._plans[place] = self._load(name, {}, pointer)
        return plan

    def _no_plan(self, graph: Any, targets: list[str], reasons: list[str]) -> NotInStoreError:
        """What there is instead: of its class, else under its name."""
        for target in targets if graph.name and not reasons and self._classes else ():
            assert self._classes is not None
            reason = self._classes.why_not(graph, target, graph.name)
            if reason is not None:
                reasons.append(f"the stored graph of its name is another: {reason}")
        name = repr(graph.name) if graph.name else graph.key()[:12]
        return NotInStoreError(
            f"no plan of graph {name} for {' or '.join(targets) or 'any target'} in store "
            f"{self.path!r}: {'; '.join(reasons) or 'neither its key nor its class is there'}"
        )

    def _need_target(self, target: str) -> None:
        if target in self._seen:
            return
        if self._reader.has_target(target):
            self._seen.add(target)
        else:
            held = self._reader.targets()
            raise NotInStoreError(
                f"store {self.path!r} holds nothing for target {target!r}; it has: "
                f"{', '.join(held) or 'no target at all'}"
            )

    def _only_target(self, name: str) -> str:
        holders = self._reader.holders(name)
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
        nearest = _native.nearest(name.encode(errors="replace").decode(), names)
        if not nearest:
            return NotInStoreError(f"{message}; it holds {len(names)} names")
        return NotInStoreError(f"{message}; the nearest are {', '.join(map(repr, nearest))}")


__all__ = ["Store", "open"]
