import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

class Kernel:
    """A loaded kernel function."""

    @property
    def symbol(self) -> str: ...
    @property
    def digest(self) -> str: ...

class _Calls:
    """What both kinds of plan have; no class of the module."""

    def execute(
        self,
        bindings: dict[Any, Any] | Sequence[Any],
        workspace: Any = None,
        stream: Any = None,
        symbols: Mapping[str, int] | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None: ...
    def resolve(
        self,
        bindings: dict[Any, Any] | Sequence[Any],
        workspace: Any = None,
        stream: Any = None,
        symbols: Mapping[str, int] | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> dict[str, Any]: ...
    def caller(self, uids: Sequence[int], /) -> Caller: ...
    def launcher(
        self,
        bindings: dict[Any, Any] | Sequence[Any],
        workspace: Any = None,
        stream: None = None,
        symbols: Mapping[str, int] | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> Launcher: ...
    def prepare(self, device: int | None, /) -> None: ...
    def workspace_bytes(self, symbols: Mapping[str, int] | None = None) -> int: ...

class Plan(_Calls):
    """A launch table with its kernels; without kernels it validates and describes calls.

    Raises ValueError, with the place, for a table that breaks the vocabulary. ``on_device`` is
    called with a device's index before its first use, and with None before the current device is
    looked up. ``backends`` has one callable for each blob that a backend step names: it is called
    as ``(device, addresses, count, workspace, stream)``, see ``docs/launch-table.md``. In
    ``refusals`` the refused calls of ``execute`` are counted by rule.
    """

    def __new__(
        cls,
        table: Mapping[str, Any],
        kernels: Sequence[Kernel] | None = None,
        on_device: Callable[[int | None], object] | None = None,
        backends: Sequence[Callable[[int, int, int, int, int], object]] | None = None,
        refusals: dict[str, int] = ...,
    ) -> Plan: ...
    @property
    def device(self) -> str: ...
    @property
    def uids(self) -> tuple[int, ...]: ...
    def bind(
        self, symbols: Mapping[str, int], scalars: Mapping[int, int | float] | None = None
    ) -> BoundPlan: ...

class BoundPlan(_Calls):
    """A plan with values of its symbols and, by uid, of its pass-by-value operands."""

class Caller:
    """A plan that takes its buffers as positional arguments."""

    def __call__(
        self,
        *buffers: Any,
        workspace: Any = None,
        stream: Any = None,
        symbols: Mapping[str, int] | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> None: ...

class Launcher:
    """A checked call that is repeated with other addresses."""

    def __call__(self, *addresses: int, workspace: Any = None, stream: Any = None) -> None: ...

def init_ffi(path: str) -> None: ...
def load_kernel(data: bytes, symbol: str, digest: str | None = None) -> Kernel:
    """A function of a library; ``digest`` is the SHA-256 of the bytes if the caller knows it.

    Any number of threads may load at once; the interpreter lock is given up meanwhile.
    """

def load_cudart(path: str | None = None) -> str | None: ...
def loaded_cudart() -> str | None: ...
def current_device() -> int: ...
def device_attributes(device: int) -> dict[str, Any]: ...
def nearest(name: str, names: Iterable[str]) -> list[str]:
    """At most three names that are most like ``name``: ``difflib.get_close_matches`` at 0.4."""

# Stores and plan records, as they are served; see `cudnn_aot.runtime.store`.
class PlanRecord:
    """What a store holds of one plan, read and checked; the launch table is parsed.

    Raises StoreError for a document that is none. Without ``uids`` they are the launch table's.
    """

    def __init__(self, name: str, uids: dict[str, int], document: dict[str, Any]) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def graph_key(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def engine_id(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def uids(self) -> dict[str, int]: ...
    @property
    def kernels(self) -> list[tuple[str, str]]:
        """Digest of the library and symbol of each."""

    @property
    def blobs(self) -> list[str]: ...
    @property
    def what(self) -> str: ...
    @property
    def document(self) -> dict[str, Any]:
        """The whole record; parsed when it is first asked for, and the same object from then on."""

    bytes: int
    """That were read for the plan so far."""
    ns: int
    """That loading took so far."""

    def check_host(self, host: Host) -> None: ...
    def check_device(self, what: str, device: int, attributes: dict[str, Any]) -> None: ...

class HeldGraphs:
    """What this process holds of a store, so that ``prune`` leaves it; ends with the object."""

    def __init__(self, path: builtins.bytes) -> None: ...
    def take(self, target: str, graph_key: str) -> None: ...

class Store:
    """The files of a store, or of several that lie in layers, the first before the others.

    No layers are those of the environment, no digests those of it, an empty target is any.

    ``load`` gives the interpreter lock up once for all that it is asked for, uses several threads,
    and puts an error in the place of what failed.
    """

    def __init__(
        self, layers: Sequence[builtins.bytes], target: str = "", digests: Sequence[str] = ()
    ) -> None: ...
    @property
    def path(self) -> str:
        """Of all layers, with ``:`` between them."""

    @property
    def layers(self) -> list[tuple[str, str]]:
        """The path and the root digest of each; "" where it is not pinned."""

    def root_digests(self) -> list[str]:
        """Of each layer as it lies there now."""

    def take_faults(self) -> list[Exception]:
        """Those of one layer where another had what was asked for, since they were last taken."""

    def names(self) -> list[tuple[str, str]]: ...
    def targets(self) -> list[str]: ...
    def need_target(self, target: str) -> None: ...
    def holds(self, target: str, name: str) -> bool: ...
    def blob(self, digest: str) -> builtins.bytes: ...
    def find(self, name: str, target: str = "") -> tuple[str, str, dict[str, int], list[str]]:
        """Target, graph key, uids by the names of operands, the best record if there is one."""

    def load(
        self,
        requests: Sequence[tuple[str, str, str]],
        provider: str = "",
        host: Host | None = None,
        hook: Callable[[PlanRecord], Callable[[int | None], object]] | None = None,
        refusals: dict[str, int] = ...,
    ) -> list[tuple[PlanRecord, Plan | None] | Exception]:
        """The best plan of each (name or key, target, name of the plan).

        ``hook`` makes the ``on_device`` of a plan. None loads no kernels: there are records alone.
        There is no plan of a record that has blobs either. Without ``host`` none is checked.
        """

# What plans require of a machine; see `cudnn_aot.runtime.requirements`.
class Host:
    """A machine that runs host code; ``flags`` are those of /proc/cpuinfo, ``glibc`` "" if none."""

    def __init__(self, triple: str, glibc: str, flags: Iterable[str]) -> None: ...
    @property
    def triple(self) -> str: ...
    @property
    def glibc(self) -> str: ...
    @property
    def level(self) -> str: ...

def this_host() -> Host: ...
def level_covers(have: str, wanted: str) -> bool: ...
def arch_capability(arch: str) -> tuple[int, int] | None: ...
def arch_runs_on(arch: str, capability: tuple[int, int]) -> bool: ...
def check_host(what: str, requirements: dict[str, Any], host: Host) -> None: ...
def check_device(
    what: str, requirements: dict[str, Any], device: int, attributes: dict[str, Any]
) -> None: ...
