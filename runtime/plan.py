"""A plan loaded from a store, ready to prepare and execute."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from cudnn_aot import _native
from cudnn_aot.errors import RequirementError, StoreError, UsageError
from cudnn_aot.runtime import cudart, requirements
from cudnn_aot.runtime.requirements import Requirements


class Plan:
    """One stored plan. Immutable, and safe to execute from any number of threads.

    Attributes:
        name: the name that it was asked for by, or its graph key.
        graph_key, target: what was built, and for which target.
        engine: name of the engine that made it, ``"gemm.sm90.persistent"``.
        engine_id, knobs: with these the same plan is built again.
        ranges: of a plan that is made of several, what serves which values of the symbols:
            ``{"bounds": {"M": [1, 64]}, "engine": {"id", "name"}, "knobs"}``; engine and knobs are
            those of the first.
        uids: operand name -> uid.
        device: ``"cuda"`` or ``"cpu"``.
        requirements: the least machine that runs it.
        table: its launch table, as data.
        symbols: the values that it is bound to; empty for a plan that takes any call's.
        execute: ``execute(bindings, workspace=None, stream=None, symbols=None, override_uids=None,
            override_shapes=None, override_strides=None)`` checks one call and launches it; see
            ``docs/runtime.md``. Raises RefusedError, having launched nothing, for a call that does
            not fit; RequirementError or LaunchError when the device cannot run it.
        caller: ``caller(uids)`` is a callable that takes the buffers of these operands, in this
            order: ``call(a, b, y, workspace=None, stream=None)``. It does what ``execute`` does.
        launcher: ``launcher(bindings, workspace=None, ...)`` checks one call as ``execute`` does
            and launches nothing. It returns a callable that repeats this call with other addresses:
            ``launch(1 << 20, 2 << 20, 3 << 20, workspace=None, stream=None)``.
        resolve: the same parameters; returns what ``execute`` would launch, and launches nothing.
        workspace_bytes: ``workspace_bytes(symbols=None)``, the most that a call with these values
            may need, or any call at all. Of a bound plan, any call with its values.
    """

    __slots__ = (
        "_native",
        "_record",
        "caller",
        "execute",
        "launcher",
        "name",
        "resolve",
        "symbols",
        "uids",
        "workspace_bytes",
    )

    def __init__(
        self,
        name: str,
        uids: Mapping[str, int],
        record: Mapping[str, Any],
        read_blob: Callable[[str], bytes],
        refusals: dict[str, int] | None = None,
    ) -> None:
        """Load the plan of a record: check the host, verify and load its kernels.

        Refused calls of ``execute`` are counted in ``refusals``, by rule.

        Raises:
            RequirementError: this host cannot run it; nothing of it was loaded.
            StoreError: the record or a kernel is missing, damaged or of a newer version.
        """
        read = _native.PlanRecord(name, dict(uids), dict(record))
        read.check_host(requirements.this_host())
        self._fill(read, load_native(read, read_blob, {} if refusals is None else refusals))

    @classmethod
    def loaded(cls, record: _native.PlanRecord, native: _native.Plan) -> Plan:
        """The plan of a record whose kernels are loaded."""
        plan = object.__new__(cls)
        plan._fill(record, native)
        return plan

    def _fill(self, record: _native.PlanRecord, native: _native.Plan) -> None:
        self.name = record.name
        self.uids = record.uids
        self.symbols: dict[str, int] = {}
        self._record = record
        self._expose(native)

    @property
    def graph_key(self) -> str:
        return self._record.graph_key

    @property
    def target(self) -> str:
        return self._record.target

    @property
    def engine(self) -> str:
        return self._record.engine

    @property
    def engine_id(self) -> int:
        return self._record.engine_id

    @property
    def device(self) -> str:
        return self._record.device

    @property
    def knobs(self) -> dict[str, int]:
        knobs: dict[str, int] = self._record.document["knobs"]
        return knobs

    @property
    def ranges(self) -> list[dict[str, Any]]:
        ranges: list[dict[str, Any]] = self._record.document.get("ranges", [])
        return ranges

    @property
    def table(self) -> dict[str, Any]:
        table: dict[str, Any] = self._record.document["table"]
        return table

    @property
    def requirements(self) -> Requirements:
        return Requirements.from_record(self._record.document["requirements"])

    def bind(
        self,
        symbols: Mapping[str, int],
        scalars: Mapping[int, int | float] | None = None,
        *,
        name: str | None = None,
        uids: Mapping[str, int] | None = None,
    ) -> Plan:
        """This plan with values of its symbols, so that calls need none.

        Nothing is loaded: both share kernels and what `prepare` did. Symbols that are left out are
        bound at the call. ``scalars`` are by uid the values of pass-by-value operands that a call
        does not bind itself; ``name`` and ``uids`` are those of the new plan, if they differ.

        Raises:
            UsageError: the plan is bound already.
            RefusedError: there is no such symbol or scalar, or a value is out of its range.
        """
        if isinstance(self._native, _native.BoundPlan):
            raise UsageError(f"plan {self.name!r} is bound already: bind the one it came from")
        bound = self._native.bind(symbols, scalars)
        plan = self.renamed(self.name if name is None else name, uids)
        plan.symbols = dict(symbols)
        plan._expose(bound)
        return plan

    def renamed(self, name: str, uids: Mapping[str, int] | None = None) -> Plan:
        """This plan under another name, and with other names of its operands unless None."""
        plan = object.__new__(Plan)
        for field in _COPIED:
            setattr(plan, field, getattr(self, field))
        plan.name = name
        if uids is not None:
            plan.uids = dict(uids)
        plan._expose(self._native)
        return plan

    def _expose(self, native: _native.Plan | _native.BoundPlan) -> None:
        self._native: _native.Plan | _native.BoundPlan = native
        self.execute = native.execute  # no Python frame on the path of a launch
        self.caller: Callable[..., Callable[..., None]] = native.caller
        self.launcher: Callable[..., Callable[..., None]] = native.launcher
        if os.environ.get("CUDNN_AOT_NVTX") == "1":
            from cudnn_aot.runtime import ranges

            name = self.name
            self.execute = ranges.ranged(native.execute, name)
            self.caller = lambda *args: ranges.ranged(native.caller(*args), name)
            self.launcher = lambda *args, **kwargs: ranges.ranged(
                native.launcher(*args, **kwargs), name
            )
        self.resolve = native.resolve
        self.workspace_bytes = native.workspace_bytes

    def prepare(self, device: Any = None) -> None:
        """Check a device and do all lazy CUDA work of the plan on it; idempotent.

        ``device`` is an index, ``"cuda:1"``, an object with an ``index``, or None for the current
        one. Required before an execute is captured into a CUDA graph. CPU plans need none.

        Raises:
            UsageError: that names no device, or one of another kind than the plan's.
            RequirementError: the device does not run this plan.
            LaunchError: CUDA failed.
        """
        self._native.prepare(_device_index(device, self.device))

    def __repr__(self) -> str:
        knobs = ", ".join(f"{knob}={value}" for knob, value in sorted(self.knobs.items()))
        values = "".join(f", {symbol} = {value}" for symbol, value in self.symbols.items())
        return f"<Plan {self.name!r} for {self.target}: {self.engine}[{knobs}]{values}>"


_COPIED = Plan.__slots__


def load_native(
    record: _native.PlanRecord, read_blob: Callable[[str], bytes], refusals: dict[str, int]
) -> _native.Plan:
    """Load the kernels of a record, and cuDNN's plug-ins for its blobs, from bytes at hand.

    Raises:
        RequirementError: this process cannot run it; no blob was read.
        StoreError: a kernel is missing, or does not belong to the launch table.
    """
    make_plugins = None
    if record.blobs:
        from cudnn_aot.runtime import cudnn_backend

        needed = Requirements.from_record(record.document["requirements"])
        table = record.document["table"]
        make_plugins = cudnn_backend.plugins(record.what, needed.cudnn, table, len(record.blobs))
    initialise_ffi()
    kernels = [
        _native.load_kernel(read_blob(blob), symbol, blob) for blob, symbol in record.kernels
    ]
    plugins = make_plugins([read_blob(blob) for blob in record.blobs]) if make_plugins else None
    hook = device_hook(record)
    try:
        return _native.Plan(record.document["table"], kernels, hook, plugins, refusals)
    except ValueError as error:
        raise StoreError(f"launch table of plan {record.name!r}: {error}") from None


def device_hook(record: _native.PlanRecord) -> Callable[[int | None], None]:
    """What a plan calls before it uses a device. It holds no plan: that goes with its last user."""
    return functools.partial(_make_ready, record.what, record)


FFI_MIN = "0.1.15"  # of apache-tvm-ffi; no newer one is known to do otherwise


def initialise_ffi() -> None:
    """Load libtvm_ffi of the installed package, without importing that package."""
    _native.init_ffi(str(find_ffi()))


@functools.cache
def find_ffi() -> Path:
    """The libtvm_ffi of the installed package.

    Raises:
        RequirementError: there is none.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        library = Path(folder) / "lib" / "libtvm_ffi.so"
        if os.path.isfile(library):
            return library
    raise RequirementError(
        f"no libtvm_ffi: apache-tvm-ffi is not installed, want {FFI_MIN} or newer"
    )


class _Needs(Protocol):
    """Requirements, or the record of a plan that has some."""

    def check_device(self, what: str, device: int, attributes: dict[str, Any]) -> None: ...


def _make_ready(what: str, needs: _Needs, device: int | None) -> None:
    """Called before the first use of a device, and with None to learn which one is current."""
    cudart.find()
    if device is not None:
        needs.check_device(what, device, _native.device_attributes(device))


def _device_index(device: Any, kind: str) -> int | None:
    """The index that names a device of ``kind``, "cuda" or "cpu"; None for the current one."""
    named, index = kind, device
    if isinstance(device, str):
        named, _, digits = device.partition(":")
        index = int(digits) if digits.isdecimal() and digits.isascii() else None
        if (index is None and device != named) or named not in ("cpu", "cuda"):
            raise _bad_device(device, kind)
    elif device is not None and not isinstance(device, int):
        if not hasattr(device, "index"):
            raise _bad_device(device, kind)
        index = device.index
        named = getattr(device, "type", kind)
    if named != kind or isinstance(index, bool) or not isinstance(index, int | None):
        raise _bad_device(device, kind)
    if index is not None and index < 0:
        raise _bad_device(device, kind)
    return index


def _bad_device(device: Any, kind: str) -> UsageError:
    return UsageError(
        f"bad device: got {device!r} for a {kind} plan, want an index, '{kind}', '{kind}:N' or None"
    )
