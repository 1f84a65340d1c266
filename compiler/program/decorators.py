"""`graph`, `jit` and `graph_cache`: functions that build graphs, as programs write them.

::

    @cudnn.graph_cache(lambda m: m)
    @cudnn.jit(heur_modes=[cudnn.heur_mode.A])
    def product(m):
        with cudnn.graph(handle) as (g, _):
            a, b = g.tensor([1, m, 64]), g.tensor([1, 64, 32])
            c = g.matmul(a, b).set_output(True)
            return g, [a, b, c]

    g, uids = product(16)

The graph comes back sealed and built. On a machine without a target to build for it comes back
sealed, and is built when a plan is first needed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from cudnn_aot.compiler.graph.enums import data_type, heur_mode
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.program.pygraph import pygraph

_T = TypeVar("_T")
_G = TypeVar("_G", bound=Any)  # a `pygraph`, or the `Graph` that wraps one


@contextlib.contextmanager
def graph(
    handle: Any,
    name: str = "cudnn_graph",
    io_data_type: Any = data_type.HALF,
    intermediate_data_type: Any = data_type.FLOAT,
    compute_data_type: Any = data_type.FLOAT,
    **graph_kwargs: Any,
) -> Iterator[tuple[pygraph, list[Tensor]]]:
    """A new graph, and an empty list for the tensors whose uids the caller wants."""
    yield (
        pygraph(
            name,
            io_data_type,
            intermediate_data_type,
            compute_data_type,
            handle,
            **graph_kwargs,
        ),
        [],
    )


def jit(
    heur_modes: heur_mode | list[heur_mode] = heur_mode.A, **kwargs: Any
) -> Callable[[Callable[..., tuple[_G, list[Tensor]]]], Callable[..., tuple[_G, list[int]]]]:
    """Decorate a function that returns a graph and tensors: returns it built, and their uids.

    A graph that has plans already is not built again.
    """
    modes = heur_modes if isinstance(heur_modes, list) else [heur_modes]

    def decorate(
        function: Callable[..., tuple[_G, list[Tensor]]],
    ) -> Callable[..., tuple[_G, list[int]]]:
        @functools.wraps(function)
        def build(*args: Any, **kwargs: Any) -> tuple[_G, list[int]]:
            built, tensors = function(*args, **kwargs)
            built.build_if_possible(modes)
            return built, [tensor.uid for tensor in tensors]

        return build

    return decorate


def graph_cache(
    key_fn: Callable[..., Hashable], maxsize: int = 256
) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Decorate a function to be called once per ``key_fn(*args)``; the oldest results are dropped
    beyond `maxsize`.
    """

    def decorate(function: Callable[..., _T]) -> Callable[..., _T]:
        kept: dict[Hashable, _T] = {}

        @functools.wraps(function)
        def lookup(*args: Any, **kwargs: Any) -> _T:
            key = key_fn(*args, **kwargs)
            if key not in kept:
                result = function(*args, **kwargs)
                while kept and len(kept) >= maxsize:
                    del kept[next(iter(kept))]
                kept[key] = result
            return kept[key]

        return lookup

    return decorate
