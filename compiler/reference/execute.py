"""Run a graph in numpy: float64 inside, rounded to the tensor's data type at every port.

This is what a result is judged by, on small and large graphs alike; it is never part of serving.

A value is an array of the tensor's declared extents, in its own axes. Two kinds of tensor lie in
memory as no strides can say, and may be given as their flat buffer instead: a ragged one (packed
batches; as a value it has zeros beyond each batch's length) and one of ``F8_128x4`` scales. Results
are always of the declared extents; `layout` packs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnn_aot.compiler.graph.enums import tensor_reordering
from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.reference import layout
from cudnn_aot.compiler.reference.call import Array, Call, Declared
from cudnn_aot.compiler.reference.operands import (
    Site,
    derived_maker_of,
    follows_own_shape,
    maker_of,
    ragged_offsets,
    random_values,
)
from cudnn_aot.compiler.reference.ops import compute
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.errors import InvalidGraphError


def shape_of(tensor: Tensor, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The tensor's extents for these symbol values."""
    return tuple(evaluate(extent, symbols) for extent in tensor.dim)


def execute(
    graph: Graph, values: Mapping[int, Any], symbols: Mapping[str, int] | None = None
) -> dict[int, Array]:
    """Every output of `graph` by uid.

    Args:
        values: the inputs by uid, rounded to their data types first. A pass-by-value tensor may be
            left out if it has a value.
        symbols: a value for every symbol of the graph.
    """
    graph.validate()
    symbols = symbols or {}
    state: dict[int, Array] = {}
    for tensor in sorted(graph.inputs(), key=lambda tensor: tensor.ragged_offset is not None):
        given = values.get(tensor.uid, tensor.pass_by_value)
        if given is None:
            raise InvalidGraphError(f"{tensor} has no value")
        array = _of_declared_extents(tensor, np.asarray(given), state, symbols)
        assert tensor.data_type is not None
        state[tensor.uid] = round_to(array, tensor.data_type)
    for node in graph.nodes:
        for port, result in compute(_call(graph, node, state, symbols)).items():
            output = node.outputs[port]
            shape = shape_of(output, symbols)
            if result.shape != shape:
                raise InvalidGraphError(
                    f"{node}: the reference gives {port} as {result.shape}, declared is {shape}"
                )
            assert output.data_type is not None
            state[output.uid] = round_to(result, output.data_type)
    return {tensor.uid: state[tensor.uid] for tensor in graph.outputs()}


def _of_declared_extents(
    tensor: Tensor, array: Array, state: Mapping[int, Array], symbols: Mapping[str, int]
) -> Array:
    shape = shape_of(tensor, symbols)
    if array.shape == shape:
        return array
    if tensor.is_pass_by_value and array.size == 1:
        return array.reshape(shape)
    stride = tuple(evaluate(extent, symbols) for extent in tensor.stride)
    offset = tensor.ragged_offset
    if offset is not None and offset.uid in state and array.ndim == 1 and len(shape) == 4:
        factor, starts = tensor.ragged_offset_multiplier, state[offset.uid].reshape(-1)
        lengths = lengths_of(starts, factor, shape, stride, array.size)
        return layout.unpack_ragged(array, shape, lengths, starts, stride, factor)
    if tensor.reordering_type is tensor_reordering.F8_128x4 and array.ndim == 1:
        return layout.from_128x4(array, shape, scales_axis(stride))
    raise InvalidGraphError(f"{tensor}: got shape {array.shape}, want {shape}")


def lengths_of(
    starts: Array, factor: int, shape: tuple[int, ...], stride: tuple[int, ...], size: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many tokens each batch of a packed tensor has, by where the batches start."""
    edges = np.rint(np.asarray(starts, np.float64)).astype(np.int64) * factor
    if len(edges) == shape[0]:
        edges = np.append(edges, size)
    return np.minimum(np.diff(edges) // max(stride[2], 1), shape[2])


def scales_axis(stride: tuple[int, ...]) -> int:
    """The axis of a tensor of scales along which a row's scales lie: the one of unit stride."""
    return -2 if len(stride) > 1 and stride[-1] != 1 and stride[-2] == 1 else -1


def _call(graph: Graph, node: Node, state: Mapping[int, Array], symbols: Mapping[str, int]) -> Call:
    """The node with the operands that `state` has, and the results that somebody reads."""
    return Call(
        node.op,
        {port: state[t.uid] for port, t in node.inputs.items() if t.uid in state},
        {attr.name: node.attr(attr.name) for attr in node.spec.attrs},
        {
            port: _declared(tensor, symbols)
            for port, tensor in node.outputs.items()
            if not graph.is_discarded(tensor)
        },
        {port: _declared(tensor, symbols) for port, tensor in node.inputs.items()},
    )


def _declared(tensor: Tensor, symbols: Mapping[str, int]) -> Declared:
    stride = tuple(evaluate(extent, symbols) for extent in tensor.stride)
    return Declared(shape_of(tensor, symbols), tensor.data_type, stride)


def random_operands(
    graph: Graph,
    symbols: Mapping[str, int] | None = None,
    seed: int = 0,
    earlier: Mapping[int, Array] | None = None,
) -> dict[int, Array]:
    """Values for every input of `graph` by uid, exact in their data types.

    Normal numbers where any will do, such that results are of order one whatever the shape; what an
    op asks for elsewhere (`operands`): sorted offsets, valid tables, decaying gates, statistics
    that fit the operands. A tensor's values depend on the seed, its uid and what they have to fit.
    A pass-by-value tensor that has a value keeps it.

    Args:
        earlier: what was made for the same graph and seed at other values of symbols: the arrays of
            operands that do not depend on these, such as weights, are taken from it.
    """
    graph.validate()
    symbols, earlier = symbols or {}, earlier or {}
    offsets = {t.ragged_offset.uid: t for t in graph.tensors.values() if t.ragged_offset}
    values: dict[int, Array] = {}
    derived = []
    for tensor in graph.inputs():
        if tensor.uid in offsets:
            continue
        shape = shape_of(tensor, symbols)
        if tensor.pass_by_value is not None:
            values[tensor.uid] = np.full(shape, tensor.pass_by_value)
        elif any(derived_maker_of(node.op, port) for node, port in uses(graph, tensor)):
            derived.append(tensor)
        elif tensor.uid in earlier and _is_fixed(graph, tensor):
            values[tensor.uid] = earlier[tensor.uid]
        else:
            values[tensor.uid] = _made(graph, tensor, values, symbols, seed, maker_of)
    for uid, tensor in sorted(offsets.items()):
        values[uid] = _offsets(graph, tensor, values, symbols)
    for tensor in derived:
        values[tensor.uid] = _made(graph, tensor, values, symbols, seed, derived_maker_of)
    return {tensor.uid: values[tensor.uid] for tensor in graph.inputs()}


def _is_fixed(graph: Graph, tensor: Tensor) -> bool:
    """Whether an operand is the same for all values of the symbols."""
    return all(isinstance(extent, int) for extent in tensor.dim) and all(
        follows_own_shape(node.op, port) for node, port in uses(graph, tensor)
    )


def uses(graph: Graph, tensor: Tensor) -> list[tuple[Node, str]]:
    """Who reads a tensor, on which port; numbers with scales are read as what they stand for."""
    found = []
    for node in graph.nodes:
        for port, operand in node.inputs.items():
            if operand is not tensor:
                continue
            if node.op == "block_scale_dequantize" and port == "input":
                found += uses(graph, node.outputs["OUT_0"])
            else:
                found.append((node, port))
    return found


def _made(
    graph: Graph,
    tensor: Tensor,
    values: Mapping[int, Array],
    symbols: Mapping[str, int],
    seed: int,
    find: Any,
) -> Array:
    """The operand by the maker of the first place that has one, else random numbers.

    A derived operand whose node has operands of other nodes is random too: what it would follow
    from is not there yet.
    """
    assert tensor.data_type is not None
    shape = shape_of(tensor, symbols)
    rng = np.random.Generator(np.random.SFC64((seed, tensor.uid)))
    for node, port in uses(graph, tensor):
        make = find(node.op, port)
        if make is None:
            continue
        if find is derived_maker_of and any(graph.producer(t) for t in node.inputs.values()):
            continue
        node_rng = np.random.Generator(np.random.SFC64((seed, 1 << 20, graph.nodes.index(node))))
        site = Site(node, port, shape, rng, node_rng, _call(graph, node, values, symbols))
        return round_to(make(site), tensor.data_type)
    return random_values(shape, tensor.data_type, rng)


def _offsets(
    graph: Graph, tensor: Tensor, values: Mapping[int, Array], symbols: Mapping[str, int]
) -> Array:
    """The offsets of a ragged tensor from the sequence lengths of the node that has it."""
    offset = tensor.ragged_offset
    assert offset is not None and offset.data_type is not None
    shape = shape_of(offset, symbols)
    stride = tuple(evaluate(extent, symbols) for extent in tensor.stride)
    dim = shape_of(tensor, symbols)
    lengths = np.full(dim[0], dim[2] if len(dim) > 2 else 1)
    for node in graph.nodes:
        ports = {**node.inputs, **node.outputs}
        side = next((port for port, t in ports.items() if t is tensor), None)
        if side is None:
            continue
        kind = "kv" if side in ("k", "v", "dK", "dV") else "q"
        for port, is_cumulative in ((f"seq_len_{kind}", False), (f"cu_seq_len_{kind}", True)):
            source = node.inputs.get(port)
            if source is not None and source.uid in values:
                given = values[source.uid].reshape(-1)
                lengths = np.diff(given) if is_cumulative else given
    count = int(np.prod(shape, dtype=np.int64))
    return ragged_offsets(tensor, lengths, stride, count).reshape(shape)
