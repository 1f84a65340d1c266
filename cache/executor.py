"""What compiles kernels: the contract of the local pool and of a cluster, and its values.

A unit of work is a value: a ``KernelSpec`` goes in, the bytes of an object and what its template
said come out. An executor links nothing, reads no store and publishes nothing: the build does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cudnn_aot.cache.spec import KernelSpec

# What a person may want to know while waiting, one line; called from any thread.
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """An object file's bytes, and what its template said about it."""

    data: bytes
    smem_bytes: int
    seconds: float


class Cause(str, Enum):
    """What a failed compile says of whom."""

    KERNEL = "kernel"  # the kernel does not compile, or ended its worker
    KILLED = "killed"  # the worker was killed from outside, most likely for want of memory
    REFUSED = "refused"  # this worker may not compile the kernel: another one might
    CLOSED = "closed"  # the executor was closed


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no object, in one line, and what the worker printed meanwhile."""

    reason: str
    log: str = ""
    cause: Cause = Cause.KERNEL


class Executor(Protocol):
    """Compiles kernels in other processes; thread-safe."""

    @property
    def jobs(self) -> int:
        """How many kernels it compiles at once: as many threads may usefully ask."""

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        """Compile one kernel; waits for a worker; raises nothing that a kernel or worker causes."""

    def close(self) -> None:
        """End every worker, in the middle of a compile too."""


def silent(notice: str) -> None:
    """Tell nobody."""


__all__ = ["Cause", "Compiled", "Executor", "Failed", "Notice", "silent"]
