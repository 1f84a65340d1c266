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

What is built here is the graph: it comes back validated and sealed. Plans of it are made by the
build command and looked up in a store.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from cudnn_aot.compiler.graph.enums import data_type, heur_mode
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.tensor import Tensor

_T = TypeVar("_T")


@contextlib.contextmanager
def graph(
    handle: Any,
    name: str = "cudnn_graph",
    io_data_type: Any = data_type.HALF,
    intermediate_data_type: Any = data_type.FLOAT,
    compute_data_type: Any = data_type.FLOAT,
    **graph_kwargs: Any,
) -> Iterator[tuple[Graph, list[Tensor]]]:
    """A new graph, and an empty list for the tensors whose uids the caller wants."""
    yield (
        Graph(
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
) -> Callable[[Callable[..., tuple[Graph, list[Tensor]]]], Callable[..., tuple[Graph, list[int]]]]:
    """Decorate a function that returns a graph and tensors: returns it sealed, and their uids.

    `heur_modes` and the other arguments choose between plans, which a build for a target does.
    """

    def decorate(
        function: Callable[..., tuple[Graph, list[Tensor]]],
    ) -> Callable[..., tuple[Graph, list[int]]]:
        @functools.wraps(function)
        def build(*args: Any, **kwargs: Any) -> tuple[Graph, list[int]]:
            built, tensors = function(*args, **kwargs)
            return built.freeze(), [tensor.uid for tensor in tensors]

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
