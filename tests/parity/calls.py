"""Calls of every op, made from the op table: ports and attributes alone and together, other shapes.

See `perform` for what a call looks like.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from op_graphs import dim_of, required_attrs, value_of

from cudnn_aot.compiler.graph import attr as attr_types
from cudnn_aot.compiler.graph.attr import Attr
from cudnn_aot.compiler.graph.extents import row_major
from cudnn_aot.compiler.graph.op import Op, Port, Style
from cudnn_aot.compiler.graph.ops.table import OPS

Call = dict[str, Any]

# Results whose extents do not follow from the operands, or not in the frontend's own graph.
_OUT_DIMS: dict[str, Any] = {
    "reduction": [2, 3, 1, 8],
    "reshape": [2, 16, 12],
    "conv_wgrad": [5, 3, 3, 3],
}
_INTEGERS = ("cu_seqlens", "state_indices", "first_token_offset", "token_index", "token_ks")
# Fewer than the operands would fit; the frontend refuses a `padding` beside the other two.
_APART = ("pre_padding", "post_padding")


def calls() -> list[Call]:
    """Every call, in one order."""
    return [call for spec in OPS.values() for call in (*_of_op(spec), *_of_shapes(spec))]


def mismatches() -> list[Call]:
    """Calls whose operands do not fit."""
    found = []
    for op, *dims in (
        ("matmul", [2, 4, 6], [2, 5, 8]),
        ("matmul", [2, 4, 6], [3, 6, 8]),
        ("add", [2, 4], [3, 4]),
        ("binary_select", [2, 4], [4], [3]),
    ):
        ports = zip(OPS[op].inputs, dims, strict=True)
        found.append(_call(OPS[op], OPS[op].ports, {}, dims=dict(ports)))
    return found


def _of_op(spec: Op) -> Iterator[Call]:
    required = [port for port in spec.ports if not port.optional]
    optional = [port for port in spec.ports if port.optional]
    attrs = {attr.name: value_of(attr) for attr in spec.attrs if _is_given(attr)}
    needed = required_attrs(spec)
    yield _call(spec, required, needed)
    yield _call(spec, required, needed, virtual=True)
    for virtual in (False, True):
        yield {**_call(spec, required, needed, virtual=virtual), "context": False}
    yield _call(spec, required, needed, by_position=True)
    for port in optional:
        yield _call(spec, [*required, port], needed)
    for name, value in attrs.items():
        yield _call(spec, required, {**needed, name: value})
        if optional:
            yield _call(spec, spec.ports, {**needed, name: value})
    together = {name: value for name, value in attrs.items() if name not in _APART}
    yield _call(spec, spec.ports, {**needed, **together})
    yield _call(spec, spec.ports, {**needed, **together}, by_position=True)
    unknown = _call(spec, required, needed)
    unknown["kwargs"]["no_such_keyword"] = 1
    yield unknown


def _is_given(attr: Attr) -> bool:
    """Whether a builder's argument can give it without a function or a tuple."""
    return attr.is_parameter and attr.type is not attr_types.FUNCTION


def _of_shapes(spec: Op) -> Iterator[Call]:
    """Ports of other extents and strides, drawn from a sequence that is the same every time."""
    draw = random.Random(spec.name)
    required = [port for port in spec.ports if not port.optional]
    for _ in range(4):
        dims = _shapes(spec, draw)
        if dims is not None:
            yield _call(spec, required, {**required_attrs(spec), **_window(spec, draw)}, dims=dims)


def _shapes(spec: Op, draw: random.Random) -> dict[str, list[int]] | None:
    batch, heads, rows = draw.choice([1, 2, 5]), draw.choice([2, 4]), draw.choice([8, 12])
    if spec.is_pointwise:
        whole = [draw.choice([2, 3, 5]) for _ in range(draw.choice([2, 3, 4]))]
        dims = {port.name: [n if draw.random() < 0.6 else 1 for n in whole] for port in spec.ports}
        if draw.random() < 0.5:
            dims[spec.ports[-1].name] = whole[draw.choice([0, 1]) :]
        return dims
    if spec.name == "matmul":
        m, n, k = draw.choice([1, 4, 7]), draw.choice([1, 8]), draw.choice([2, 6])
        wide = draw.choice([1, batch])
        return {"A": [wide, heads, m, k], "B": [batch, draw.choice([1, heads]), k, n]}
    if spec.name in ("sdpa", "sdpa_fp8", "sdpa_mxfp8"):
        d, d_v = draw.choice([8, 16]), draw.choice([8, 32])
        dims = {port.name: dim_of(spec, port.name) for port in spec.ports}
        return dims | {
            "q": [batch, heads, rows, d],
            "k": [batch, heads // 2, rows * 2, d],
            "v": [batch, heads // 2, rows * 2, d_v],
        }
    if spec.name == "conv_fprop":
        return {"image": [batch, 3, rows, rows + 1], "weight": [heads, 3, 3, 2]}
    if spec.name == "conv_dgrad":
        return {"loss": [batch, heads, rows, rows + 1], "filter": [heads, 3, 3, 2]}
    return None


def _window(spec: Op, draw: random.Random) -> dict[str, Any]:
    if not spec.name.startswith("conv"):
        return {}
    values = {
        "padding": [draw.choice([0, 1]), draw.choice([0, 2])],
        "stride": [draw.choice([1, 2]), 1],
        "dilation": [1, draw.choice([1, 2])],
    }
    return {name: value for name, value in values.items() if draw.random() < 0.7}


def _call(
    spec: Op,
    wanted: Iterable[Port],
    attrs: Mapping[str, Any],
    *,
    dims: Mapping[str, list[int]] | None = None,
    virtual: bool = False,
    by_position: bool = False,
) -> Call:
    tensors: list[dict[str, Any]] = []

    def declare(name: str, port: str) -> dict[str, int]:
        dim = [1, 1, 1, 1] if port == "dropout" else (dims or {}).get(port) or dim_of(spec, port)
        is_index = port in _INTEGERS or "seq" in port
        tensors.append(
            {
                "name": name,
                "dim": dim,
                "stride": list(row_major(dim)),
                "data_type": "INT32" if is_index else None,
            }
        )
        return {"$tensor": len(tensors) - 1}

    kwargs: dict[str, Any] = {}
    for port in wanted:
        names = [f"{port.name}_{index}" for index in range(2)] if port.is_list else [port.name]
        items = [declare(name, port.name) for name in names]
        kwargs[port.name] = {"$tuple": items} if port.is_list else items[0]
    for name, value in attrs.items():
        if name not in kwargs:
            kwargs[name] = _value(spec.attr(name), value)
    if spec.name in _OUT_DIMS:
        kwargs["out_dims"] = _OUT_DIMS[spec.name]
    args: list[Any] = []
    if by_position:
        for name in _positional(spec):
            if name not in kwargs:
                break
            args.append(kwargs.pop(name))
    return {
        "op": spec.name,
        "tensors": tensors,
        "args": args,
        "kwargs": kwargs,
        "virtual": virtual,
        "context": True,
    }


def _positional(spec: Op) -> list[str]:
    """The leading parameters of the builder: the ports, and behind all of them the attributes."""
    captured = spec.style is Style.CAPTURED
    ports = [
        port.name
        for port in spec.ports
        if not (port.is_keyword_only or port.is_list or port.is_result)
        and not (captured and port.optional)
    ]
    attrs = [] if captured or spec.style is Style.MATMUL else [attr.name for attr in spec.attrs]
    return [*ports, *attrs]


def _value(attr: Attr, value: Any) -> Any:
    if attr.type is attr_types.SLICES:
        return [{"$slice": [each.start, each.stop, each.step]} for each in value]
    if isinstance(value, str) and attr.type is not attr_types.STR:  # the name of a member
        kind = attr.type.word.removeprefix("a ").partition(":")[0]  # "a reduction_mode: ADD, ..."
        return {"$enum": [kind, value]}
    if not isinstance(value, bool | int | float | str | tuple | list):
        return {"$enum": [type(value).__name__, value.name]}
    return list(value) if isinstance(value, tuple) else value
