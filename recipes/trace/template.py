"""What a kernel template hands to the compile worker.

A template is a function ``name(params) -> KernelTemplate`` in a module of a ``kernels`` package.
It builds the traceable function and the fake arguments from plain ``params``. It launches nothing,
allocates nothing and reads nothing but its parameters and the modules that it imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """One traceable kernel.

    Attributes:
        function: a ``@cute.jit`` host function.
        args: its arguments in order: fake tensors, scalars, the environment's fake stream.
        smem_bytes: opt-in shared memory of its largest launch; 0 for a kernel of the host.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    smem_bytes: int


def name_kernel(kernel: Any, name: str) -> None:
    """Give a ``@cute.kernel`` its name in profiles and in its code, where it stands ten times: the
    DSL's own names hold the types of all arguments.
    """
    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
