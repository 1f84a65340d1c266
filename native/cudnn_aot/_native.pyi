from collections.abc import Callable, Mapping, Sequence
from typing import Any

class Kernel:
    """A loaded kernel function."""

    @property
    def symbol(self) -> str: ...
    @property
    def digest(self) -> str: ...

class Plan:
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
    def bind(
        self, symbols: Mapping[str, int], scalars: Mapping[int, int | float] | None = None
    ) -> BoundPlan: ...

class BoundPlan:
    """A plan with values of its symbols and, by uid, of its pass-by-value operands."""

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
