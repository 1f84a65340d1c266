"""cuDNN's backend as an engine: its plans for one graph, found through the cuDNN frontend.

cuDNN's engines are not known beforehand; they are asked for per graph, one heuristic mode at a
time, so that each plan is tagged with the mode that proposed it. The pair ``(engine_id, knobs)`` is
a plan's identity, and `backend_plan` builds exactly that plan again.

Asking needs a driver and a device of the target's kind. Where they, the frontend or a cuDNN are
absent, that is a `Refusal`, as is all that cuDNN itself declines; any other error propagates.
Nothing of the frontend is imported before `find_backend` is called. Its names with an underscore
are used here and in ``runtime.cudnn_backend``, for one minor version of it (see pyproject.toml).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.compiler.formats import to_frontend as lowering
from cudnn_aot.compiler.graph.enums import data_type, tensor_reordering
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.slots import slot_geometry
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

MODES = ("A", "FALLBACK")
FIRST_OTHER_ID = 10_000  # cuDNN's engines have the ids below
FRONTEND_MIN, FRONTEND_END = (1, 32), (1, 33)
CUDNN_MIN, CUDNN_END = 90_000, 100_000
ALIGNMENT = 16  # bytes: what the frontend promises cuDNN of every address
WORKSPACE_ALIGNMENT = 256

# Types that a launch table can name.
_DTYPES = frozenset(
    "FLOAT DOUBLE HALF BFLOAT16 INT8 INT32 INT64 UINT8 BOOLEAN FP8_E4M3 FP8_E5M2 FP8_E8M0 "
    "FP4_E2M1 INT4".split()
)
_ARCH = re.compile(r"sm_(\d+)(\d)[af]?")
_CC_MAJOR, _CC_MINOR, _SM_COUNT = 75, 76, 16  # CUdevice_attribute

Knobs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Device:
    """The device that plans are made on."""

    compute_capability: tuple[int, int]
    sm_count: int
    driver_version: int


@dataclass(frozen=True, slots=True)
class Backend:
    """A cuDNN that can be asked on this machine.

    Attributes:
        frontend: the imported module ``cudnn``.
        handle: the frontend's handle on the device.
        version: cuDNN's, ``"9.19.0"``.
    """

    frontend: Any = field(repr=False)
    handle: Any = field(repr=False)
    version: str
    frontend_version: str
    device: Device


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One plan that cuDNN proposes.

    Attributes:
        engine_id: cuDNN's number of the engine.
        knobs: ``(knob name, value)`` pairs in name order, from the public vocabulary.
        mode: ``"A"``, ``"B"`` or ``"FALLBACK"``, the heuristic that proposed it first.
        name: what cuDNN calls the plan.
        index: its place in cuDNN's own list.
        notes: names of cuDNN's behavior notes.
    """

    engine_id: int
    knobs: Knobs
    mode: str
    name: str
    index: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """A plan that was built, as it can be stored.

    Attributes:
        blob: the serialized plan; executes on a device like the one it was built on.
        uids: operands in the order in which the plug-in takes their addresses.
        notes: names of cuDNN's behavior notes.
    """

    engine_id: int
    knobs: Knobs
    name: str
    blob: bytes = field(repr=False)
    uids: tuple[int, ...]
    workspace_bytes: int
    notes: tuple[str, ...]


def find_backend(target: Target) -> Backend | Refusal:
    """The cuDNN of this machine, if it can make plans for ``target``."""
    if target.kind != "cuda":
        return Refusal(f"cuDNN runs on GPUs, and target {target.name} has none")
    device = _device()
    if isinstance(device, Refusal):
        return device
    matched = _ARCH.fullmatch(target.gpu_arch)
    wanted = (int(matched[1]), int(matched[2])) if matched else (0, 0)
    if device.compute_capability != wanted or device.sm_count != target.sm_count:
        return Refusal(
            f"cuDNN makes plans for the device that is there: got {_shown(device)}, want compute "
            f"capability {wanted[0]}.{wanted[1]} with {target.sm_count} SMs for {target.name}"
        )
    return _frontend(device)


def backend_entries(
    graph: Graph, target: Target, modes: Sequence[str] = MODES
) -> list[BackendEntry] | Refusal:
    """All plans that cuDNN proposes for a graph, in its order, each once."""
    backend = find_backend(target)
    return backend if isinstance(backend, Refusal) else entries_of(backend, graph, modes)


def backend_plan(
    graph: Graph, target: Target, engine_id: int, knobs: Mapping[str, int]
) -> BackendPlan | Refusal:
    """Exactly the plan ``(engine_id, knobs)`` of a graph, built and serialized."""
    backend = find_backend(target)
    return backend if isinstance(backend, Refusal) else plan_of(backend, graph, engine_id, knobs)


def entries_of(
    backend: Backend, graph: Graph, modes: Sequence[str] = MODES
) -> list[BackendEntry] | Refusal:
    """`backend_entries` of a backend that was found already."""
    lowered = _lower(backend, graph)
    if isinstance(lowered, Refusal):
        return lowered
    declined = backend.frontend.cudnnGraphNotSupportedError
    entries: dict[tuple[int, Knobs], BackendEntry] = {}
    reasons: list[str] = []
    end = lowered.get_execution_plan_count()
    for mode in modes:
        # cuDNN appends the answer to one list: its length says which plans are this mode's.
        start = end
        try:
            lowered.create_execution_plans([getattr(backend.frontend.heur_mode, mode)])
        except declined as error:
            reasons.append(f"mode {mode}: {_line(error)}")
            continue
        end = lowered.get_execution_plan_count()
        for index in range(start, end):
            engine_id, values = lowered.get_engine_and_knobs_at_index(index)
            knobs = tuple(sorted((kind.name, int(value)) for kind, value in values.items()))
            if not 0 <= engine_id < FIRST_OTHER_ID:
                continue
            name = lowered.get_plan_name_at_index(index)
            notes = _notes(lowered, index)
            entry = BackendEntry(engine_id, knobs, mode, name, index, notes)
            entries.setdefault((engine_id, knobs), entry)
    if not entries:
        return Refusal("; ".join(reasons) or f"cuDNN proposes no plan in {', '.join(modes)}")
    return list(entries.values())


def plan_of(
    backend: Backend, graph: Graph, engine_id: int, knobs: Mapping[str, int]
) -> BackendPlan | Refusal:
    """`backend_plan` of a backend that was found already."""
    if not 0 <= engine_id < FIRST_OTHER_ID:
        return Refusal(f"engine {engine_id} is not cuDNN's: want 0 to {FIRST_OTHER_ID - 1}")
    lowered = _lower(backend, graph)
    if isinstance(lowered, Refusal):
        return lowered
    frontend = backend.frontend
    try:
        chosen = {getattr(frontend.knob_type, name): value for name, value in knobs.items()}
        index = lowered.get_execution_plan_count()
        lowered.create_execution_plan(engine_id, chosen)
        lowered.build_plan_at_index(index)
    except (frontend.cudnnGraphNotSupportedError, RuntimeError) as error:
        # A plan that cuDNN proposes and cannot build is a RuntimeError.
        _need_device(backend)
        return Refusal(_line(error))
    try:
        blob = bytes(lowered.serialize(as_bytes=True))
    except (frontend.cudnnGraphNotSupportedError, RuntimeError) as error:
        _need_device(backend)
        return Refusal(f"it cannot be serialized: {_line(error)}")
    # Read it back as the runtime will: what it then asks for is what the table promises it.
    loaded = frontend.pygraph(handle=backend.handle)
    loaded.deserialize(backend.handle, blob, enforce_precompiled=True)
    stored = loaded._lowered_graph
    stored._prepare_variant_pack_template()
    uids = tuple(stored._get_variant_pack_uids_sorted())
    known = {tensor.uid for tensor in _operands(graph)}
    if not set(uids) <= known:
        return Refusal(f"it asks for tensors that the graph does not have: got {uids}")
    return BackendPlan(
        engine_id=engine_id,
        knobs=tuple(sorted(knobs.items())),
        name=lowered.get_plan_name_at_index(index),
        blob=blob,
        uids=uids,
        workspace_bytes=max(
            int(lowered.get_workspace_size_plan_at_index(index)), int(stored.get_workspace_size())
        ),
        notes=_notes(lowered, index),
    )


def backend_table(graph: Graph, plan: BackendPlan) -> dict[str, Any] | Refusal:
    """The launch table of a plan: every operand as declared, one step.

    cuDNN reads addresses only, so a call's strides and alignment must be those that the plan was
    made for; the checks say so.
    """
    written = {id(tensor) for node in graph.nodes for tensor in node.outputs.values()}
    operands: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for tensor in _operands(graph):
        dtype = tensor.data_type.name if tensor.data_type else ""
        if dtype not in _DTYPES:
            return Refusal(f"{tensor} is of type {dtype}, which a launch table cannot name")
        entry: dict[str, Any] = {"uid": tensor.uid, "name": tensor.name, "dtype": dtype}
        if tensor.is_pass_by_value:
            operands.append(entry | {"kind": "scalar", "value": tensor.pass_by_value})
            continue
        entry |= {
            "kind": "output" if id(tensor) in written else "input",
            "dim": list(tensor.dim),
            "stride": list(tensor.stride),
        }
        if tensor.ragged_offset is not None:
            entry["ragged"] = True
        if tensor.reordering_type is tensor_reordering.F8_128x4:
            entry["reordering_type"] = tensor.reordering_type.name
        operands.append(entry)
        checks.append({"rule": "alignment", "operand": tensor.uid, "bytes": ALIGNMENT})
        slots = slot_geometry(tensor.dim, tensor.stride, data_type[dtype])
        assert slots is not None  # validated
        checks += [
            {"rule": "equal", "operand": tensor.uid, "a": ["stride", tensor.uid, axis], "b": stride}
            for axis, (extent, stride) in enumerate(zip(*slots, strict=True))
            if extent != 1
        ]
    step: dict[str, Any] = {"step": "backend", "blob": 0, "uids": list(plan.uids)}
    workspace: list[dict[str, Any]] = []
    if plan.workspace_bytes:
        step["slice"] = "cudnn"
        workspace.append(
            {"name": "cudnn", "bytes": plan.workspace_bytes, "align": WORKSPACE_ALIGNMENT}
        )
    return {
        "version": 1,
        "device": "cuda",
        "symbols": {},
        "operands": operands,
        "checks": checks,
        "dispatch": [{"when": True, "branch": "cudnn"}],
        "branches": {"cudnn": {"workspace": workspace, "steps": [step]}},
    }


def backend_requirements(backend: Backend, target: Target) -> dict[str, Any]:
    """What a plan of this backend requires; docs/cudnn-backend.md says why it is so much."""
    return {
        "cudnn": backend.version,
        "gpu_arch": target.gpu_arch,
        "sm_count": backend.device.sm_count,
        "driver_min": backend.device.driver_version // 1000 * 1000,
        "host_triple": target.host_triple,
    }


def backend_key(
    backend: Backend, graph: Graph, target: Target, modes: Sequence[str] = MODES
) -> str:
    """64 hex digits over all that decides which plan is made."""
    digest = hashlib.sha256()
    for path in (Path(__file__), Path(__file__).with_name("cudnn.py"), Path(lowering.__file__)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    device = backend.device
    document = {
        "provider": "cudnn",
        "graph": graph.key(),
        "target": target.descriptor(),
        "planner": digest.hexdigest(),
        "cudnn": backend.version,
        "frontend": backend.frontend_version,
        "device": [*device.compute_capability, device.sm_count],
        "modes": list(modes),
    }
    return canonical_digest(document)


def _operands(graph: Graph) -> list[Tensor]:
    """What a call gives: all that is not virtual and no constant of the plan, by uid."""
    return sorted(
        (
            tensor
            for tensor in graph.tensors.values()
            if not tensor.is_virtual
            and not (tensor.is_pass_by_value and not lowering.passed_by_call(tensor))
        ),
        key=lambda tensor: tensor.uid,
    )


def _notes(lowered: Any, index: int) -> tuple[str, ...]:
    return tuple(note.name for note in lowered.get_behavior_notes_for_plan_at_index(index))


def _lower(backend: Backend, graph: Graph) -> Any | Refusal:
    """cuDNN's own graph, its operations built; it lives as long as this value."""
    graph.freeze()
    for node in graph.nodes:
        if node.spec.is_python_only:
            return Refusal(f"{node}: cuDNN has no such op")
    try:
        made = lowering.to_frontend(graph, backend.frontend, handle=backend.handle)
    except cudnnGraphNotSupportedError as error:
        return Refusal(_line(error))
    try:
        made.validate()
        unlowerable = made._unlowerable_node()
        if unlowerable is not None:
            return Refusal(f"node {unlowerable.name!r}: cuDNN has no field for what it asks")
        guard = made._backend_guard_reason()
        if guard is not None:
            return Refusal(guard)
        made._lower_backend_graph()
    except (backend.frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
        # A descriptor that cuDNN rejects is a RuntimeError, one that the frontend rejects a
        # ValueError.
        _need_device(backend)
        return Refusal(_line(error))
    return made._lowered_graph


def _need_device(backend: Backend) -> None:
    """Raise what cuDNN raises if the device has failed, which is no decline of a graph."""
    backend.frontend.destroy_handle(backend.frontend.create_handle())


def _device() -> Device | Refusal:
    """The first visible device, through the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Refusal("cuDNN makes plans on a GPU host only: this one has no libcuda.so.1")
    code = driver.cuInit(0)
    if code != 0:
        return Refusal(f"cuDNN makes plans on a GPU host only: cuInit gives error {code}")
    number, ordinal, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(number)) != 0 or number.value < 1:
        return Refusal("cuDNN makes plans on a GPU host only: this one shows no device")
    driver.cuDeviceGet(ctypes.byref(ordinal), 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    values = []
    for attribute in (_CC_MAJOR, _CC_MINOR, _SM_COUNT):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, ordinal) != 0:
            return Refusal(f"the driver does not tell attribute {attribute} of its device")
        values.append(value.value)
    return Device((values[0], values[1]), values[2], version.value)


def _frontend(device: Device) -> Backend | Refusal:
    if importlib.util.find_spec("cudnn") is None:
        return Refusal("the cuDNN frontend is not installed: pip install 'cudnn-aot[cudnn]'")
    try:
        frontend = importlib.import_module("cudnn")
    except ImportError as error:
        return Refusal(f"the cuDNN frontend does not import: {_line(error)}")
    version = str(getattr(frontend, "__version__", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not FRONTEND_MIN <= numbers < FRONTEND_END:
        return Refusal(f"cuDNN frontend: got {version}, want {FRONTEND_MIN[0]}.{FRONTEND_MIN[1]}")
    try:
        found = int(frontend.backend_version())
    except RuntimeError as error:
        return Refusal(f"no libcudnn: {_line(error)}")
    if not CUDNN_MIN <= found < CUDNN_END:
        return Refusal(f"cuDNN: got {version_text(found)}, want 9")
    return Backend(frontend, frontend.create_handle(), version_text(found), version, device)


def version_text(number: int) -> str:
    """``"9.19.0"`` of 91900."""
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def _shown(device: Device) -> str:
    major, minor = device.compute_capability
    return f"compute capability {major}.{minor} with {device.sm_count} SMs"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}... (cut)"
