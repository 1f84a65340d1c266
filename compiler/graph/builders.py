"""The builder method of an op: one function per row of the op table, with the row's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.op import Op, Style
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_COMMON = {"name": "", "compute_data_type": None, "out_dims": None}


def parameters(spec: Op) -> list[inspect.Parameter]:
    """The parameters of the row's builder, without ``self``."""
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

    made: list[inspect.Parameter] = []
    for kind, names in ((_EITHER, positional), (_KEYWORD, keyword)):
        for name in names:
            # Python wants a default behind one: what is missing there is refused later.
            optional = any(p.default is not inspect.Parameter.empty for p in made)
            needs_default = kind is _EITHER and optional
            made.append(inspect.Parameter(name, kind, default=_default(spec, name, needs_default)))
    return made


def _default(spec: Op, name: str, needs_default: bool) -> Any:
    """The default that the signature shows; none for what has to be given."""
    if name in _COMMON:
        return _COMMON[name]
    port = next((port for port in spec.ports if port.name == name), None)
    if port is not None:
        needed = not port.optional and not port.is_result
    else:
        needed = spec.attr(name).required
    if needed and not needs_default:
        return inspect.Parameter.empty
    if port is not None or spec.style is Style.POINTWISE:
        return None
    return spec.attr(name).default


def builder(spec: Op) -> Callable[..., Any]:
    """The method of one row, with the row's signature."""
    signature = inspect.Signature([inspect.Parameter("self", _EITHER), *parameters(spec)])

    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{spec.name}(): {error}") from None
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
        )
        node.infer_early(_out_dims(spec, common["out_dims"]))
        built = [node.outputs.get(output.name) for output in spec.outputs]
        return built[0] if len(built) == 1 and spec.style is not Style.CAPTURED else built

    build.__name__ = spec.name
    build.__qualname__ = f"Graph.{spec.name}"
    outputs = ", ".join(output.name for output in spec.outputs)
    build.__doc__ = f"Add a {spec.name} node: {', '.join(spec.inputs)} -> {outputs}."
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


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
