"""A store opened for serving. Touches no GPU and no compiler."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_aot import _native
from cudnn_aot.errors import (
    Error,
    NotAStoreError,
    NotInStoreError,
    RequirementError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.runtime import requirements
from cudnn_aot.runtime.log import Log
from cudnn_aot.runtime.plan import Plan, device_hook, initialise_ffi, load_native
from cudnn_aot.runtime.stats import Counters, Stats
from cudnn_aot.runtime.targets import stored_name

if TYPE_CHECKING:
    from cudnn_aot.cache.layers import AnyReader
    from cudnn_aot.runtime.classes import ClassIndex
    from cudnn_aot.runtime.remote import FetchingStore
    from cudnn_aot.runtime.validity import Validity

_Request = tuple[str, str, str]  # name or key; target, empty for any; another name for the plan

VARIABLE = "CUDNN_AOT_STORE"
TRUST_VARIABLE = "CUDNN_AOT_TRUST"
PIN_VARIABLE = "CUDNN_AOT_PIN"
MISS_VARIABLE = "CUDNN_AOT_MISS_DIR"


_Path = str | os.PathLike[str]


def open(
    path: _Path | Sequence[_Path] | None = None,
    target: str | None = None,
    *,
    digest: str | Sequence[str] | None = None,
    trust: _Path | Sequence[_Path] | None = None,
) -> Store:
    """Open the store at ``path``, or those at ``CUDNN_AOT_STORE``, with ``:`` between them.

    Args:
        path: the store, a folder, a pack or the URL of a folder, or a list of stores that lie in
            layers: a plan is that of the first that has it whole.
        target: the target whose plans are wanted, by its name or the path of its descriptor;
            needed where a name is stored for several that are for hosts as this one.
        digest: the root digest that the store must have, or a list of those of all layers; else
            they are those of ``CUDNN_AOT_PIN``, with ``:`` between them, if that is set. What is
            read later is compared with what had that digest.
        trust: Ed25519 public keys, as paths of PEM files or as 32 bytes in base64, of which one
            must have signed each store, which is then pinned to what was signed; else those of
            ``CUDNN_AOT_TRUST``, with ``:`` between them, if that is set.

    Raises:
        NotAStoreError: there is no store of a format that this version reads.
        DamagedError: it is a pack whose index is not what was written.
        PinError: the store has another root digest.
        TrustError: none of the keys has signed the store as it is.
        RemoteError: the URL cannot be read.
        UsageError: no path was given, there is no digest for a layer, or a variable of the
            environment means nothing.
    """
    layers: list[str] = []
    if path is not None:
        if not path:
            raise UsageError(f"no store: pass a path or set {VARIABLE}")
        layers = [_text(each) for each in (path if isinstance(path, (list, tuple)) else [path])]
    digests: list[str] = []
    if digest is not None:
        digests = [digest] if isinstance(digest, str) else list(digest)
        if not digests or not all(isinstance(each, str) for each in digests):
            raise UsageError(f"bad digest: got {digest!r}, want a root digest of each layer")
    return Store(layers, target, digests, trust)


def _text(path: Any) -> str:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(f"bad path of a store: got {path!r}, want a string or a path") from None
    if "\0" in text:
        raise NotAStoreError(f"bad path of a store: got {text!r}, want one without a null byte")
    return text


class Store:
    """A store and the plans in it.

    Attributes:
        target: the target that ``plan`` takes when it is given none, or None.
    """

    def __init__(
        self,
        layers: Sequence[str],
        target: str | None = None,
        digests: Sequence[str] = (),
        trust: _Path | Sequence[_Path] | None = None,
    ) -> None:
        name = stored_name(target)
        self._native: _native.Store | FetchingStore
        named = layers or [os.environ.get(VARIABLE, "")]
        if trust is not None or os.environ.get(TRUST_VARIABLE) or any("://" in at for at in named):
            from cudnn_aot.runtime.remote import open_native

            self._native = open_native(layers, name, digests, trust, VARIABLE)
        else:
            paths = list(map(os.fsencode, layers))
            self._native = _native.Store(paths, name, list(digests))
        self.target = name or None
        self._targets: frozenset[str] = frozenset()  # all, once a graph was asked for without one
        self._seen: set[str] = set()  # targets that are known to be there
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, str], Plan] = {}  # of graphs, by target and key
        self._counters = Counters()
        self._log = Log()
        if self._log.takes("warning") and not digests and not os.environ.get(PIN_VARIABLE):
            self._warn_of_writers(layers or self.path.split(os.pathsep))
        self._classes: ClassIndex | None = None  # once a graph was asked for

    def _warn_of_writers(self, layers: Sequence[str]) -> None:
        from cudnn_aot.cache.files import is_open_to_all

        for layer in filter(is_open_to_all, layers):
            remedy = "open it by its root digest, or take that right away"
            self._log.write("warning", f"any user may change the store {layer}: {remedy}")

    @property
    def path(self) -> str:
        """Of all layers, with ``:`` between them."""
        return self._native.path

    def root_digests(self) -> tuple[str, ...]:
        """The root digest of each layer as it lies there now, which a later opening may ask for.

        Raises:
            StoreError: a document cannot be read.
        """
        return tuple(self._native.root_digests())

    def names(self) -> list[tuple[str, str]]:
        """(target, name) of every named graph, sorted."""
        return self._native.names()

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

        machine = Machine.described(device)
        return tuple(validities(self._reader(), machine, self.target))

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
        from cudnn_aot.cache.canonical import canonical_digest

        entries = []
        for name, holder in self._closure(names, target).items():
            found, key, uids, records = self._native.find(name, holder)
            entries.append([found, name, key, sorted(uids.items()), records])
        return canonical_digest({"plans": sorted(entries), "version": 1})

    def max_workspace(self, names: Iterable[str] | None = None, target: str | None = None) -> int:
        """Bytes that are enough for any one call of any of these plans; None for all names.

        It is told from the records and for any GPU: no kernel is loaded. A declined graph asks for
        nothing.

        Raises:
            NotInStoreError, DamagedError, UsageError: as of `closure_digest`.
        """
        largest = 0
        requests = [(name, holder, "") for name, holder in self._closure(names, target).items()]
        for answer in self._native.load(requests):
            if isinstance(answer, cudnnGraphNotSupportedError):
                continue
            if isinstance(answer, Exception):
                raise answer
            table = answer[0].document["table"]
            largest = max(largest, _native.Plan(table).workspace_bytes())
        return largest

    def plans(
        self, names: Iterable[str] | None = None, target: str | None = None
    ) -> dict[str, Plan]:
        """Load the best plans of many graphs at once, by their names or keys.

        They are read, verified and loaded on as many threads as there are processors, without the
        interpreter lock. None stands for every name of the store that has a plan; declined graphs
        are left out, as far as they are not asked for.

        Raises:
            NotInStoreError, cudnnGraphNotSupportedError, RequirementError, DamagedError,
            UsageError: as of `plan`, the first in the order of the names. All others were loaded
                all the same, so that asking for them again takes little.
        """
        requests = self._closure(names, target)
        plans = {}
        faults: list[Exception] = []
        answers = self._load([(name, holder, "") for name, holder in requests.items()])
        for name, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Plan):
                plans[name] = answer
            elif names is not None or not isinstance(answer, cudnnGraphNotSupportedError):
                self._note_fault(answer)
                faults.append(answer)
        if faults:
            raise faults[0]
        return plans

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
                return self._plan_of_name((name, stored_name(target), ""), provider)
            return self._plan_of_graph(name, stored_name(target), provider)
        except Error as error:
            self._note_fault(error)
            if isinstance(error, NotInStoreError) and not isinstance(name, str):
                self._note_miss(name)
            raise

    def stats(self) -> Stats:
        """What was loaded, missed and refused since the store was opened."""
        self._note_passed()
        return self._counters.stats()

    def __repr__(self) -> str:
        return f"<Store {self.path!r}>"

    # What follows is not part of the interface.

    def _closure(self, names: Iterable[str] | None, target: str | None) -> dict[str, str]:
        """The targets of distinct names, empty where it is to be found; None stands for all."""
        chosen = stored_name(target) or self.target or ""
        if chosen:
            self._need_target(chosen)
        closure: dict[str, str] = {}
        if names is None:
            for holder, name in self.names():
                if chosen in ("", holder):
                    closure[name] = "" if name in closure else holder
            return closure
        if isinstance(names, str):
            raise UsageError(f"bad names: got the string {names!r}, want a list of names")
        for name in names:
            if not isinstance(name, str):
                raise UsageError(f"bad name: got {name!r}, want the name or the key of a graph")
            closure[name] = chosen
        return closure

    def _plan_of_name(self, request: _Request, provider: str | None = None) -> Plan:
        (answer,) = self._load([request], provider)
        if isinstance(answer, Plan):
            return answer
        raise answer

    def _load(
        self, requests: Sequence[_Request], provider: str | None = None
    ) -> list[Plan | Exception]:
        """A plan or an error for each request."""
        lacking: Exception | None = None
        try:
            initialise_ffi()
        except Error as error:  # not before it is known that there is something to load
            lacking = error
        answers = self._native.load(
            requests,
            provider or "",
            requirements.this_host(),
            device_hook if lacking is None else None,
            self._counters.refusals,
        )
        out: list[Plan | Exception] = []
        for answer in answers:
            if isinstance(answer, Exception):
                out.append(answer)
                continue
            record, native = answer
            made = native or (self._load_with_plugins(record) if record.blobs else lacking)
            assert made is not None  # a record without blobs has a plan once libtvm_ffi is there
            out.append(made if isinstance(made, Exception) else self._loaded(record, made))
        self._note_passed()
        return out

    def _loaded(self, record: _native.PlanRecord, native: _native.Plan) -> Plan:
        self._counters.add_load(record.bytes)
        if self._log.takes("info"):
            took = f"{record.bytes} bytes in {1e-6 * record.ns:.1f} ms"
            what = f"{record.name!r} for {record.target}"
            self._log.write("info", f"loaded {what}: {record.engine}, {took}")
        return Plan.loaded(record, native)

    def _load_with_plugins(self, record: _native.PlanRecord) -> _native.Plan | Exception:
        began = time.perf_counter_ns()

        def read_blob(digest: str) -> bytes:
            data = self._native.blob(digest)
            record.bytes += len(data)
            return data

        try:
            return load_native(record, read_blob, self._counters.refusals)
        except Error as error:
            return error
        finally:
            record.ns += time.perf_counter_ns() - began

    def _note_fault(self, error: Exception) -> None:
        if isinstance(error, NotInStoreError):
            self._counters.add_miss()
            self._log.write("warning", f"miss: {error}")
        else:
            self._counters.add_failure(error)
            self._log.write("error", f"{type(error).__name__}: {error}")

    def _note_passed(self) -> None:
        for fault in self._native.take_faults():
            self._note_fallback(fault)

    def _note_fallback(self, fault: Exception) -> None:
        """Of one layer, where another had what was asked for."""
        self._counters.add_fallback(fault)
        self._log.write("error", f"{type(fault).__name__}: {fault}; another layer has it")

    def _reader(self) -> AnyReader:
        """The same layers, pinned alike, read from Python."""
        if not isinstance(self._native, _native.Store):
            return self._native.reader(self._note_fallback)
        from cudnn_aot.cache.layers import open_layers

        return open_layers(self._native.layers, self._note_fallback)

    def _note_miss(self, value: Any) -> None:
        """Leave a missing graph for the next build, if there is a folder for that."""
        folder = os.environ.get(MISS_VARIABLE)
        if not folder:
            return
        from cudnn_aot.runtime import classes, misses

        graph = classes.as_graph(value)
        if graph is not None and (fault := misses.write(graph, folder)):
            self._log.write("warning", f"{MISS_VARIABLE}: {fault}")

    def _plan_of_graph(self, value: Any, target: str, provider: str | None) -> Plan:
        graph = None
        if "cudnn_aot.compiler.graph.graph" in sys.modules:  # else nobody has a graph
            from cudnn_aot.runtime import classes

            graph = classes.as_graph(value)
        if graph is None:
            raise UsageError(
                f"bad name: got {value!r}, want the name or the key of a graph, or the graph"
            )
        if provider is not None:
            exact = self._plan_of_name((graph.key(), target, ""), provider)
            return exact.renamed(graph.name or exact.name, graph.uids())
        chosen = target or self.target
        if chosen:
            self._need_target(chosen)
            targets = [chosen]
        else:
            if not self._targets:
                self._targets = frozenset(self._native.targets())
            targets = sorted(self._targets)
        found: list[Plan] = []
        refused: list[Error] = []
        reasons: list[str] = []
        for holder in targets:
            try:
                plan = self._exact_or_class(graph, holder, reasons)
            except (RequirementError, cudnnGraphNotSupportedError) as error:
                refused.append(error)
                continue
            if plan is not None:
                found.append(plan)
        if len(found) > 1:
            holders = ", ".join(plan.target for plan in found)
            raise UsageError(f"{graph!r} is stored for {holders}: choose one with target=...")
        if found:
            return found[0]
        raise refused[0] if refused else self._no_plan(graph, targets, reasons)

    def _exact_or_class(self, graph: Any, target: str, reasons: list[str]) -> Plan | None:
        """The plan of a graph on one target, else None and the reasons; a decline is final."""
        from cudnn_aot.runtime import classes

        key = graph.key()
        name = graph.name or key
        plan = self._plans.get((target, key))
        if plan is None and self._native.holds(target, key):
            plan = self._keep((key, target, name))
        if plan is not None:
            return plan.renamed(name, graph.uids())
        if self._classes is None:
            with self._lock:
                self._classes = self._classes or classes.ClassIndex(self._reader())
        found = self._classes.find(graph, target)
        if isinstance(found, list):
            reasons += found
            return None
        member = found.member
        plan = self._plans.get((target, member.graph_key)) or self._keep(
            (member.graph_key, target, member.pattern.graph.name)
        )
        scalars = classes.passed_scalars(found, plan.table)
        if isinstance(scalars, str):
            reasons.append(scalars)
            return None
        used = plan.table["symbols"]  # what only virtual tensors mention is no part of a table
        symbols = {symbol: value for symbol, value in found.match.symbols.items() if symbol in used}
        return plan.bind(symbols, scalars, name=name, uids=graph.uids())

    def _keep(self, request: _Request) -> Plan:
        """Load a plan that a graph found, once."""
        key, target, _ = request
        with self._lock:
            plan = self._plans.get((target, key))
            if plan is None:
                plan = self._plans[target, key] = self._plan_of_name(request)
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
        if target not in self._seen:
            self._native.need_target(target)
            self._seen.add(target)


__all__ = ["Store", "open"]
