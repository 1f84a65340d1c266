"""The builder methods of a graph: one function per row of the op table, with the row's signature.

A method is made when it is first looked up, and with it the table loaded that has its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.op import Op, Style
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

_COMMON = {"name": "", "compute_data_type": None, "out_dims": None}
_REQUIRED = object()


class Builders(type):
    """The class of graph classes: finds the methods that the op table gives a graph."""

    def __getattr__(cls, name: str) -> Callable[..., Any]:
        spec = None if name.startswith("_") else OPS.get(name)
        if spec is None:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        method = builder(spec)
        setattr(cls, name, method)
        return method

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *OPS})


def parameters(spec: Op) -> tuple[list[str], list[str]]:
    """The names of the builder's parameters: positional ones in order, those by keyword only."""
    positional = [
        port.name
        for port in spec.ports
        if not (port.is_keyword_only or port.is_result or port.is_list)
        and (spec.style is not Style.CAPTURED or not port.optional)
    ]
    keyword = [port.name for port in spec.ports if port.name not in positional]
    attrs = [attr.name for attr in spec.attrs if attr.is_parameter and attr.name not in spec.inputs]
    if spec.style is Style.MATMUL:
        positional += ["compute_data_type", *attrs, "name"]
    elif spec.style is Style.POINTWISE:
        positional += [*attrs, "name", "compute_data_type"] if attrs else []
        keyword += [] if attrs else ["name", "compute_data_type"]
    elif spec.style is Style.STRUCTURED:
        positional += attrs
        keyword += ["name", "compute_data_type", "out_dims"]
    else:
        keyword += [*attrs, "name", "compute_data_type", "out_dims"]
    return positional, keyword


def _default(spec: Op, name: str) -> Any:
    """The default that the signature shows, `_REQUIRED` for none."""
    if name in _COMMON:
        return _COMMON[name]
    port = next((port for port in spec.ports if port.name == name), None)
    if port is not None:
        return None if port.optional or port.is_result else _REQUIRED
    attr = spec.attr(name)
    if attr.required:
        return _REQUIRED
    return None if spec.style is Style.POINTWISE else attr.default


def builder(spec: Op) -> Callable[..., Any]:
    """The method of one row, with the row's signature."""
    positional, keyword = parameters(spec)
    defaults = {name: _default(spec, name) for name in (*positional, *keyword)}
    first = next((i for i, n in enumerate(positional) if defaults[n] is not _REQUIRED), None)
    for name in positional[first:] if first is not None else ():
        if defaults[name] is _REQUIRED:  # behind one with a default: refused later if missing
            defaults[name] = None
    parts = {
        name: name if value is _REQUIRED else f"{name}=_defaults[{name!r}]"
        for name, value in defaults.items()
    }
    listed = ["self", *(parts[name] for name in positional)]
    if keyword:
        listed += ["*", *(parts[name] for name in keyword)]
    # A function that Python itself binds: its signature, its speed, its errors.
    source = f"def {spec.name}({', '.join(listed)}): return _add(_spec, locals())"
    scope: dict[str, Any] = {"_add": _add, "_spec": spec, "_defaults": defaults}
    exec(source, scope)
    method: Callable[..., Any] = scope[spec.name]
    outputs = ", ".join(output.name for output in spec.outputs)
    method.__doc__ = f"Add a {spec.name} node: {', '.join(spec.inputs)} -> {outputs}."
    method.__module__ = __name__
    return method


def _add(spec: Op, given: dict[str, Any]) -> Any:
    """Add a node of `spec` from the arguments of its builder; what the builder returns."""
    graph: Graph = given.pop("self")
    common = {name: given.pop(name, default) for name, default in _COMMON.items()}
    inputs, results, attrs = _sort(spec, given)
    node = graph.add_node(
        spec,
        inputs,
        attrs,
        results=results,
        compute_data_type=common["compute_data_type"],
        name=common["name"],
        out_dims=_out_dims(spec, common["out_dims"]),
    )
    built = [node.outputs.get(output.name) for output in spec.outputs]
    return built[0] if len(built) == 1 and spec.style is not Style.CAPTURED else built


def _sort(
    spec: Op, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments as inputs and results by port, and attributes by name."""
    inputs: dict[str, Any] = {}
    results: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    ports = {port.name: port for port in spec.ports}
    for name, value in given.items():
        port = ports.get(name)
        if value is None:
            continue
        if port is None:
            attrs[name] = value
        elif port.is_list:
            for index, item in enumerate(value):
                where = f"{name}_{index}"
                (attrs if spec.has_attr(where) and not is_tensor(item) else inputs)[where] = item
        elif spec.has_attr(name) and not is_tensor(value):
            attrs[name] = value
        else:
            (results if port.is_result else inputs)[name] = value
    return inputs, results, attrs


def is_tensor(value: Any) -> bool:
    """Whether an argument that may be a number or a tensor is a tensor."""
    return isinstance(value, Tensor) or any(
        hasattr(value, name) for name in ("__dlpack__", "__cuda_array_interface__")
    )


def _out_dims(spec: Op, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {spec.outputs[0].name: value}
