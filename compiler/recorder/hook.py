"""The half of the recorder that runs inside the recorded program.

It wraps the lifecycle methods of the graph class once the module that defines it is imported, and
appends what it sees to files of its own in a spool folder, which `spool` reads afterwards.

- One file, loaded by its path: the program may run in an environment without this package, with any
  Python from 3.8 on. Standard library alone.
- No error of the recorder reaches the program: everything is guarded, failures are counted and
  written down.
- A process that is killed leaves what it recorded: a record is one ``write``, no file stays open,
  and counters live in a shared mapping of a file.
- A graph that was seen already costs a walk over it and no write; an execution costs one counter.

Files of one process, named alike:

- ``*.jsonl``, records: ``process``, ``module``, ``structure`` (a graph without its extents and
  strides), ``instance`` (a structure with numbers), ``call`` (an execution with override shapes),
  ``failure``;
- ``*.counts``, 64-bit counters of this machine's byte order, which the records name by index.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, _local  # `threading` is not worth its import in every child process

TYPE_CHECKING = False  # nor is `typing`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FAILURES, DROPPED, FIRST_FREE = 0, 1, 2  # counters of every process
MAX_BYTES = 256 << 20  # records of one process; past it new shapes are counted as dropped
MAX_FAILURES = 20  # distinct ones that are written down
_CHUNK = 65536 // 8  # counters in one mapping; a multiple of every page size in use

# Lifecycle methods, by the module whose import makes a graph class usable, and what each means:
# ``before``, ``after``: record the graph then; ``first``: before, if the object is not known yet;
# ``planned``: after, when layouts are settled; ``executed``, or the position of the override
# arguments: an execution. A method that a release does not have is left out.
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "cudnn": (
        "pygraph",
        {
            "validate": "before",
            "build": "first",
            "build_operation_graph": "first",
            "create_execution_plans": "planned",
            "create_execution_plan": "planned",
            "execute": 3,  # position of override_uids, override_shapes, override_strides
            "execute_plan_at_index": 4,
            "populate_cuda_graph": "executed",
            "update_cuda_graph": "executed",
        },
    ),
    "cudnn_aot.compiler.graph.graph": (
        "Graph",
        {"validate": "after", "freeze": "after", "execute": 3},
    ),
}
_OVERRIDES = ("override_uids", "override_shapes", "override_strides")

_TENSOR_FIELDS = """
    name data_type is_virtual is_pass_by_value pass_by_value uid uid_assigned dim_assigned
    stride_assigned reordering_type ragged_offset ragged_offset_multiplier alignment_value
    scalar_type""".split()
_GRAPH_KWARGS = (
    "name sm_count sm_version is_dynamic_shape_enabled is_override_shape_enabled".split()
)
_CONTEXT = "io_data_type intermediate_data_type compute_data_type".split()
# Programs may give torch's types, which the frontend translates when it lowers the graph.
_TORCH_TYPES = dict(
    pair.split(":")
    for pair in """
    float32:FLOAT float:FLOAT float64:DOUBLE double:DOUBLE float16:HALF half:HALF bfloat16:BFLOAT16
    int8:INT8 int32:INT32 int:INT32 int64:INT64 long:INT64 uint8:UINT8 bool:BOOLEAN
    float8_e4m3fn:FP8_E4M3 float8_e5m2:FP8_E5M2 float8_e8m0fnu:FP8_E8M0
    float4_e2m1fn_x2:FP4_E2M1""".split()
)


class _Busy(_local):
    """Whether this thread is inside the recorder, whose own calls are not the program's."""

    now = False


_busy = _Busy()
_active: tuple[Recorder, ...] = ()  # replaced whole, never changed
_install_lock = RLock()
# (class, method name, wrapper, original or None when inherited)
_wrapped: list[tuple[Any, str, Any, Any]] = []


class Counters:
    """64-bit counters that outlive the process; a failing file makes them plain memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._chunks: list[memoryview] = []
        self._used = FIRST_FREE
        self._grow()

    def _grow(self) -> None:
        size = _CHUNK * 8
        try:
            import mmap

            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                start = len(self._chunks) * size
                # Space is taken now: writing to a mapping of a full disk would kill the process.
                getattr(os, "posix_fallocate", lambda f, at, n: os.ftruncate(f, at + n))(
                    fd, start, size
                )
                # No descriptor of ours stays behind for the program to close, where Python can.
                options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
                chunk = memoryview(mmap.mmap(fd, size, offset=start, **options)).cast("q")
            finally:
                os.close(fd)
        except (OSError, ValueError, ImportError):
            import array

            chunk = memoryview(array.array("q", [0]) * _CHUNK)
        self._chunks.append(chunk)

    def new(self) -> int:
        """The index of a counter that is 0."""
        if self._used == len(self._chunks) * _CHUNK:
            self._grow()
        self._used += 1
        return self._used - 1

    def add(self, index: int) -> None:
        self._chunks[index // _CHUNK][index % _CHUNK] += 1


class _Instance:
    """A recorded graph: its id and its counters."""

    __slots__ = ("built", "calls", "executed", "id", "superseded")

    def __init__(self, number: int, counters: Counters) -> None:
        self.id = number
        self.built = counters.new()
        self.executed = counters.new()
        self.superseded = counters.new()  # times that a later look at the graph replaced this one
        self.calls: dict[Any, int] = {}  # overrides -> counter


class Recorder:
    """Writes what the hooks see to files of this process in the folder `spool`."""

    def __init__(self, spool: str) -> None:
        self.spool = spool
        self.begin()

    def begin(self) -> None:
        """Start afresh: at first, and in a forked child, whose files are its own."""
        self._lock = RLock()  # reentrant: a signal handler may build graphs too
        self._path = ""
        self._files: Counters | None = None
        self._bytes = 0
        self._structures: dict[str, int] = {}  # id by text
        # By structure and numbers; None when there was no room.
        self._instances: dict[tuple[int, Any], _Instance | None] = {}
        # By id of the graph; the weak reference is None for a class that allows none.
        self._graphs: dict[int, tuple[Any, _Instance]] = {}
        self._failures: set[Any] = set()

    # What the hooks report.

    def module_imported(self, name: str, version: str, methods: list[str]) -> None:
        self._write({"module": name, "version": version, "methods": methods})

    def seen(self, graph: Any, *, is_built: bool) -> _Instance | None:
        """Record the graph as it is now, in place of what was recorded of the same object."""
        captured = capture(graph)
        if captured is None:
            return None
        form, document, numbers = captured
        with self._lock:
            instance = self._instance(form, document, numbers)
            before = self._known(graph)
            if instance is None or instance is before:
                return instance
            if is_built:
                self._counters().add(instance.built)
            if before is not None:
                self._counters().add(before.superseded)
            self._graphs[id(graph)] = (_weak(graph, self._graphs), instance)
            return instance

    def executed(self, graph: Any, overrides: list[Any] | None) -> None:
        """Count an execution, and record its override shapes when they are new."""
        instance = self._known(graph) or self.seen(graph, is_built=False)
        if instance is None:
            return
        if overrides is None:
            index = instance.executed
        else:
            call = (
                tuple(overrides[0] or ()),
                tuple(tuple(shape) for shape in overrides[1] or ()),
                tuple(tuple(stride) for stride in overrides[2] or ()),
            )
            known = instance.calls.get(call)
            index = self._call(instance, call) if known is None else known
        with self._lock:
            self._counters().add(index)

    def failed(self, where: str, error: Exception) -> None:
        """Note a failure of the recorder itself."""
        with self._lock:
            self._counters().add(FAILURES)
            text = f"{type(error).__name__}: {error}"[:300]
            kind = (where, type(error))
            if kind not in self._failures and len(self._failures) < MAX_FAILURES:
                self._failures.add(kind)
                self._write({"failure": where, "error": text})

    # Files.

    def knows(self, graph: Any) -> bool:
        return self._known(graph) is not None

    def _known(self, graph: Any) -> _Instance | None:
        reference, instance = self._graphs.get(id(graph), (None, None))
        if reference is not None and reference() is not graph:
            return None
        return instance

    def _instance(
        self, form: str, document: dict[str, Any], numbers: tuple[int, ...]
    ) -> _Instance | None:
        import json

        text = json.dumps([form, document], sort_keys=True, separators=(",", ":"))
        structure = self._structures.get(text)
        if structure is None:
            structure = len(self._structures)
            record = {"structure": structure, "form": form, "document": document}
            if not self._write(record):
                return None
            self._structures[text] = structure
        key = (structure, numbers)
        if key in self._instances:
            return self._instances[key]
        instance = _Instance(len(self._instances), self._counters())
        record = {
            "instance": instance.id,
            "structure": structure,
            "numbers": numbers,
            "built": instance.built,
            "executed": instance.executed,
            "superseded": instance.superseded,
        }
        self._instances[key] = instance if self._write(record) else None
        return self._instances[key]

    def _call(self, instance: _Instance, call: tuple[Any, ...]) -> int:
        with self._lock:
            index = self._counters().new()
            uids, shapes, strides = call
            record = {
                "call": index,
                "instance": instance.id,
                "uids": [int(uid) for uid in uids],
                "shapes": [[int(extent) for extent in shape] for shape in shapes],
                "strides": [[int(step) for step in stride] for stride in strides],
            }
            self._write(record)
            instance.calls[call] = index
            return index

    def _counters(self) -> Counters:
        """The counters, which come into being together with the file of records."""
        if self._files is None:
            import time

            name = f"{os.getpid()}-{os.urandom(4).hex()}"
            self._path = os.path.join(self.spool, f"{name}.jsonl")  # noqa: PTH118
            self._files = Counters(os.path.join(self.spool, f"{name}.counts"))  # noqa: PTH118
            self._write(
                {
                    "process": os.getpid(),
                    "parent": os.getppid(),
                    "program": (getattr(sys, "argv", None) or [""])[0],
                    "python": sys.version.split()[0],
                    "started": time.time(),
                }
            )
        return self._files

    def _write(self, record: dict[str, Any]) -> bool:
        """Append one record; whether it is there. No descriptor stays open for the program to
        close, and a line torn by a full disk is ended by the next one."""
        import json

        with self._lock:
            counters = self._counters()
            line = b"\n" + json.dumps(record, separators=(",", ":")).encode() + b"\n"
            if self._bytes + len(line) > MAX_BYTES:
                counters.add(DROPPED)
                return False
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(fd, line)
            finally:
                os.close(fd)
            self._bytes += written
            if written < len(line):
                counters.add(DROPPED)
            return written == len(line)


def _weak(graph: Any, known: dict[int, Any]) -> Any:
    """A weak reference that takes the graph out of `known`; None for a class that allows none."""
    import weakref

    key = id(graph)
    try:
        return weakref.ref(graph, lambda _: known.pop(key, None))
    except TypeError:  # a class of a C++ binding
        return None


# Reading a graph of the program.


def capture(graph: Any) -> tuple[str, dict[str, Any], tuple[int, ...]] | None:
    """``(form, document without extents, numbers)`` of a graph; or None for an empty one.

    Forms: ``peer``, the graph part of the cuDNN frontend's plan blob; ``lowered``, the JSON that
    its C++ half prints; ``cudnn_aot``, this package's graph JSON as text.
    """
    if any(cls.__module__.startswith("cudnn_aot.") for cls in type(graph).__mro__):
        graph_json = __import__("cudnn_aot.compiler.formats.graph_json", fromlist=["dumps"])
        return "cudnn_aot", {"text": graph_json.dumps(graph)}, ()
    if getattr(graph, "_tensor_by_uid", None) is None or not graph._nodes:
        return _capture_lowered(graph)
    return _capture_peer(graph)


def _capture_peer(graph: Any) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    numbers: list[int] = []
    # A stride that nobody assigned is a guess until planning settles it; inside the graph it is
    # nobody's business even then.
    is_planned = bool(getattr(graph, "_planning_done", False))
    context = graph._context
    kwargs = graph._cpp_graph_kwargs
    tensors = []
    for tensor in list(graph._tensor_by_uid.values()):
        row = {field: _encode(getattr(tensor, field, None)) for field in _TENSOR_FIELDS}
        is_final = tensor.stride_assigned or (is_planned and not tensor.is_virtual)
        row["dim"] = _take(tensor.dim, numbers)
        row["stride"] = _take(tensor.stride if is_final else (), numbers)
        tensors.append(row)
    nodes = [
        {
            "name": node.name,
            "node_type": node.node_type.name,
            "compute_data_type": _encode(node.compute_data_type),
            "inputs": {port: tensor.uid for port, tensor in node.inputs.items()},
            "outputs": {port: tensor.uid for port, tensor in node.outputs.items()},
            "params": {name: _encode(value) for name, value in node.params.items()},
        }
        for node in list(graph._nodes)
    ]
    document = {
        "context": {name: _encode(getattr(context, name, None)) for name in _CONTEXT},
        "graph_kwargs": {name: _encode(kwargs[name]) for name in _GRAPH_KWARGS if name in kwargs},
        "is_cuda_graph_replay_expected": bool(
            getattr(graph, "is_cuda_graph_replay_expected", False)
        ),
        "tensors": tensors,
        "nodes": nodes,
    }
    return "peer", document, tuple(numbers)


def _capture_lowered(graph: Any) -> tuple[str, dict[str, Any], tuple[int, ...]] | None:
    """A graph that only the C++ half knows: a deserialized one, or any of an older release."""
    import json

    text = repr(graph)
    if "json_version" not in text:
        return None
    document = json.loads(text)
    if not document.get("nodes"):
        return None
    document.pop("gid", None)  # numbers the graphs of a process
    numbers: list[int] = []
    tensors = document.get("tensors") or []
    for row in tensors.values() if isinstance(tensors, dict) else tensors:
        for field in ("dim", "stride"):
            row[field] = _take(row.get(field), numbers)
    return "lowered", document, tuple(numbers)


def _take(extents: Any, numbers: list[int]) -> int:
    """Move extents to `numbers`; how many there are stays in the document."""
    values = [int(extent) for extent in extents or ()]
    numbers.extend(values)
    return len(values)


def _encode(value: Any) -> Any:
    """A value as the plan blob writes it, and a slice, for which it has no word.

    ``$opaque`` names the type of what has no plain form.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        name = str(value).rpartition(".")[2]
        if name in _TORCH_TYPES:
            return {"$enum": "cudnn._compiled_module:data_type", "name": _TORCH_TYPES[name]}
    elif hasattr(value, "uid") and hasattr(value, "stride_assigned"):
        return {"$tensor": value.uid}
    elif hasattr(kind, "__members__"):
        encoded: dict[str, Any] = {
            "$enum": f"{kind.__module__}:{kind.__qualname__}",
            "name": value.name,
        }
        if isinstance(value, int):
            encoded["value"] = int(value)
        return encoded
    elif isinstance(value, (list, tuple)):  # noqa: UP038  (Python 3.8)
        items = [_encode(item) for item in value]
        return items if isinstance(value, list) else {"$tuple": items}
    elif kind is slice:
        return {"$slice": [_encode(end) for end in (value.start, value.stop, value.step)]}
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"$dict": {key: _encode(item) for key, item in value.items()}}
    elif hasattr(value, "item") and not getattr(value, "shape", ()):  # a numpy or torch scalar
        item = value.item()
        if type(item) in (bool, int, float, str):
            return item
    return {"$opaque": f"{kind.__module__}.{kind.__qualname__}"}


# Hooks.


def install(recorder: Recorder) -> None:
    """Let `recorder` see the graphs of this process, and of what forks from it, from now on."""
    global _active
    with _install_lock:
        _active = (*_active, recorder)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        for name in TARGETS:
            module = sys.modules.get(name)
            if module is not None:
                _wrap_module(name, module, only=recorder)


def uninstall(recorder: Recorder) -> None:
    """End what `install` began; the last one restores the classes."""
    global _active
    with _install_lock:
        _active = tuple(other for other in _active if other is not recorder)
        if _active:
            return
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        while _wrapped:
            cls, name, wrapper, original = _wrapped.pop()
            if cls.__dict__.get(name) is wrapper:  # else someone wrapped ours: it only passes on
                if original is None:
                    delattr(cls, name)
                else:
                    setattr(cls, name, original)


def _wrap_module(name: str, module: Any, only: Recorder | None = None) -> None:
    """Wrap the graph class of a module that has just been imported, or was before `only` began."""
    import functools

    class_name, plan = TARGETS[name]
    cls = getattr(module, class_name, None)
    if cls is None:
        return  # not finished importing, or another module of that name
    for method, action in plan.items():
        original = getattr(cls, method, None)
        if original is None or any((cls, method) == entry[:2] for entry in _wrapped):
            continue
        wrapper = _WRAPPERS.get(action, _execution)(original, method, action)
        try:
            functools.update_wrapper(wrapper, original)
        except Exception:  # a method of a C++ binding may lack what is copied
            pass
        own = cls.__dict__.get(method)
        setattr(cls, method, wrapper)
        _wrapped.append((cls, method, wrapper, own))
    methods = [entry[1] for entry in _wrapped if entry[0] is cls]
    version = str(getattr(module, "__version__", ""))
    for recorder in _active if only is None else (only,):
        recorder.module_imported(name, version, methods)


def _report(action: str, method: str, graph: Any, overrides: Any) -> None:
    """Tell every recorder; nothing escapes but what stops the program anyway."""
    _busy.now = True
    try:
        for recorder in _active:
            try:
                if action == "executed":
                    recorder.executed(graph, overrides)
                elif action == "seen" or not recorder.knows(graph):
                    recorder.seen(graph, is_built=True)
            except Exception as error:
                try:
                    recorder.failed(method, error)
                except Exception:
                    pass
    finally:
        _busy.now = False


def _before(original: Any, method: str, action: Any) -> Callable[..., Any]:
    report = "first" if action == "first" else "seen"

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _busy.now:
            _report(report, method, self, None)
        return original(self, *args, **kwargs)

    return wrapper


def _after(original: Any, method: str, action: Any) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not _busy.now:
            _report("seen", method, self, None)
        return result

    return wrapper


def _execution(original: Any, method: str, action: Any) -> Callable[..., Any]:
    first = action if isinstance(action, int) else None

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not _busy.now:
            overrides = None
            if first is not None and (len(args) > first or "override_uids" in kwargs):
                overrides = [
                    args[first + offset] if len(args) > first + offset else kwargs.get(name)
                    for offset, name in enumerate(_OVERRIDES)
                ]
                if overrides[0] is None:
                    overrides = None
            _report("executed", method, self, overrides)
        return result

    return wrapper


_WRAPPERS = {"before": _before, "first": _before, "after": _after, "planned": _after}


class _Loader:
    """The loader of a target: loads as the real one does, then wraps."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        name = module.__name__
        try:
            with _install_lock:
                _wrap_module(name, module)
        except Exception as error:
            for recorder in _active:
                try:
                    recorder.failed(f"import {name}", error)
                except Exception:
                    pass


class _Finder:
    """Finds a target with the other finders, and puts `_Loader` in front of its loader."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in TARGETS:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


_finder = _Finder()


def _after_fork() -> None:
    global _install_lock
    _install_lock = RLock()
    _busy.now = False
    for recorder in _active:
        try:
            recorder.begin()
        except Exception:
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
