"""The builder method of an op: one function per row of the op table, with the row's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.ops import Op

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.tensor import Tensor


def builder(spec: Op) -> Callable[..., Tensor | list[Tensor]]:
    """The method of one row, with the row's signature."""
    ports, attrs = set(spec.inputs), {attr.name: attr for attr in spec.attrs}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

    def parameter(name: str) -> inspect.Parameter:
        if name in ports:
            return inspect.Parameter(name, kind)
        default: Any = "" if name == "name" else None
        if name in attrs:
            default = attrs[name].default
        return inspect.Parameter(name, kind, default=default)

    signature = inspect.Signature(
        [inspect.Parameter("self", kind), *(parameter(name) for name in spec.signature)]
    )

    def build(*args: Any, **kwargs: Any) -> Tensor | list[Tensor]:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{spec.name}(): {error}") from None
        node = given["self"].add_node(
            spec,
            {port: given[port] for port in spec.inputs},
            {name: given[name] for name in attrs if name in given},
            compute_data_type=given.get("compute_data_type"),
            name=given.get("name", ""),
        )
        results = list(node.outputs.values())
        return results[0] if len(results) == 1 else results

    build.__name__ = spec.name
    build.__qualname__ = f"Graph.{spec.name}"
    build.__doc__ = f"Add a {spec.name} node: {', '.join(spec.inputs)} -> {spec.outputs[0].name}."
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build
