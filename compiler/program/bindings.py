"""What a call binds, in the forms that programs give it, as one mapping by uid.

A dict by tensor, name or uid, or a list of buffers beside a list of uids. Buffers that were bound
while the graph was declared fill in what a call leaves out.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cudnn_aot.compiler.graph.extents import SymExpr, evaluate, symbols_of
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import RefusedError


def bindings(graph: Graph, given: Any, tensor_uids: Any = None) -> dict[int, Any]:
    """Buffer by uid: those that the graph has already, and over them what a call gives.

    Raises:
        RefusedError: a name is unknown or of several tensors; buffers and uids do not match.
    """
    bound = graph.bindings if graph._bound else None  # made anew each time
    if tensor_uids is not None:
        ordered = _ordered(given, tensor_uids)
        return {**bound, **ordered} if bound else ordered
    if not bound and type(given) is dict and not [key for key in given if type(key) is not int]:
        return given  # by uid already, which costs a call the least
    if not isinstance(given, Mapping):
        raise RefusedError(
            f"buffers: got {type(given).__name__}, want a dict by tensor, name or uid, or a list "
            "with tensor_uids=",
            "name",
        )
    pack = dict(bound) if bound else {}
    for key, buffer in given.items():
        if type(key) is Tensor:
            pack[key.uid] = buffer
        elif type(key) is int:
            pack[key] = buffer
        elif isinstance(key, str):
            pack[_uid_of_name(graph, key)] = buffer
        elif key is not None:  # an optional tensor that is not there
            pack[_uid_of(key)] = buffer
    return pack


def symbols_of_call(
    graph: Graph, wanted: Iterable[str], uids: Any, shapes: Any
) -> dict[str, int] | None:
    """The values that overridden shapes give the symbols ``wanted``, or None where one has none.

    Raises:
        RefusedError: a shape is none that the graph's symbols allow, or two do not go together.
    """
    if uids is None and shapes is None:
        return None
    uids, shapes = list(uids or ()), list(shapes or ())
    if len(uids) != len(shapes):
        raise RefusedError(
            f"override shapes: got {len(shapes)} for {len(uids)} uids, want one each", "override"
        )
    graph = graph.canonical()
    given = [
        (tensor, _sizes(tensor, shape))
        for uid, shape in zip(uids, shapes, strict=True)
        if (tensor := graph.tensors.get(uid)) is not None
    ]
    values: dict[str, int] = {}
    for tensor, sizes in given:
        for extent, size in zip(tensor.dim, sizes, strict=True):
            if isinstance(extent, SymExpr) and len(extent.symbols) == 1:
                name = extent.symbols[0]
                reason = graph.symbols[name].refuse(values.setdefault(name, size // extent.coef))
                if reason:
                    raise _bad_shape(tensor, f"symbol {name!r}: {reason}")
    for tensor, sizes in given:
        for axis, (extent, size) in enumerate(zip(tensor.dim, sizes, strict=True)):
            names = sorted(symbols_of([extent]))
            if all(name in values for name in names) and evaluate(extent, values) != size:
                ranges = [(n, graph.symbols[n].min, graph.symbols[n].max) for n in names]
                where = ", ".join(f"{n} = {values[n]} of {low}..{high}" for n, low, high in ranges)
                want = f"{extent} ({where})" if names else str(extent)
                raise _bad_shape(tensor, f"dim[{axis}]: got {size}, want {want}")
    wanted = list(wanted)
    return {n: values[n] for n in wanted} if all(n in values for n in wanted) else None


def _sizes(tensor: Tensor, shape: Any) -> list[int]:
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        raise _bad_shape(tensor, f"got {shape!r}, want a list of integers") from None
    if len(sizes) != len(tensor.dim):
        raise _bad_shape(tensor, f"got {len(sizes)} extents, want {len(tensor.dim)}")
    return sizes


def _bad_shape(tensor: Tensor, what: str) -> RefusedError:
    return RefusedError(f"override shape of {tensor}: {what}", "override", tensor.uid)


def _ordered(buffers: Any, uids: Any) -> dict[int, Any]:
    for what, value in (("buffers", buffers), ("tensor_uids", uids)):
        if not isinstance(value, list | tuple):
            raise RefusedError(f"{what}: got {type(value).__name__}, want a list or tuple", "name")
    if len(buffers) != len(uids):
        raise RefusedError(
            f"tensor_uids: got {len(uids)} uids for {len(buffers)} buffers, want one each", "name"
        )
    bound = dict(zip(uids, buffers, strict=True))
    if len(bound) < len(uids):
        raise RefusedError(f"tensor_uids: got {_repeated(uids)} twice, want distinct uids", "name")
    if wrong := [uid for uid in uids if type(uid) is not int]:
        raise RefusedError(f"tensor_uids: got {wrong[0]!r}, want integers", "name")
    return bound


def _repeated(uids: Sequence[Any]) -> Any:
    return next(uid for place, uid in enumerate(uids) if uid in uids[:place])


def _uid_of_name(graph: Graph, name: str) -> int:
    named = [tensor for tensor in graph.tensors.values() if tensor.name == name]
    if len(named) > 1:
        uids = ", ".join(str(tensor.uid) for tensor in named)
        raise RefusedError(
            f"name {name!r} is that of {len(named)} tensors: bind by uid ({uids})", "name"
        )
    if not named:
        known = ", ".join(repr(known) for known in graph.uids())
        raise RefusedError(f"no tensor is named {name!r}, want one of {known}", "name")
    return named[0].uid


def _uid_of(key: Any) -> int:
    """The uid of a tensor of this package or another's."""
    uid = getattr(key, "uid", None)
    if uid is None and hasattr(key, "get_uid"):
        uid = key.get_uid()
    if type(uid) is not int:
        raise RefusedError(
            f"a buffer is bound to {type(key).__name__} {key!r}, want a tensor, a name or a uid",
            "name",
        )
    return uid
