"""Run a graph in numpy: float64 inside, rounded to the tensor's data type at every port.

This is what a result is judged by, on small and large graphs alike; it is never part of serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.reference.call import Call, Declared
from cudnn_aot.compiler.reference.ops import compute
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.errors import InvalidGraphError


def shape_of(tensor: Tensor, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The tensor's extents for these symbol values."""
    return tuple(evaluate(extent, symbols) for extent in tensor.dim)


def execute(
    graph: Graph, values: Mapping[int, Any], symbols: Mapping[str, int] | None = None
) -> dict[int, np.ndarray[Any, Any]]:
    """Every output of `graph` by uid.

    Args:
        values: the inputs by uid, in the tensors' own axes; rounded to their data types first. A
            pass-by-value tensor may be left out if it has a value.
        symbols: a value for every symbol of the graph.
    """
    graph.validate()
    symbols = symbols or {}
    state: dict[int, np.ndarray[Any, Any]] = {}
    for tensor in graph.inputs():
        given = values.get(tensor.uid, tensor.pass_by_value)
        if given is None:
            raise InvalidGraphError(f"{tensor} has no value")
        shape = shape_of(tensor, symbols)
        array = np.asarray(given)
        if tensor.is_pass_by_value and array.size == 1:
            array = array.reshape(shape)
        if array.shape != shape:
            raise InvalidGraphError(f"{tensor}: got shape {array.shape}, want {shape}")
        assert tensor.data_type is not None
        state[tensor.uid] = round_to(array, tensor.data_type)
    for node in graph.nodes:
        for port, result in compute(_call(node, state, symbols)).items():
            output = node.outputs[port]
            shape = shape_of(output, symbols)
            if result.shape != shape:
                raise InvalidGraphError(
                    f"{node}: the reference gives {port} as {result.shape}, declared is {shape}"
                )
            assert output.data_type is not None
            state[output.uid] = round_to(result, output.data_type)
    return {tensor.uid: state[tensor.uid] for tensor in graph.outputs()}


def _call(
    node: Node, state: Mapping[int, np.ndarray[Any, Any]], symbols: Mapping[str, int]
) -> Call:
    return Call(
        node.op,
        {port: state[tensor.uid] for port, tensor in node.inputs.items()},
        {attr.name: node.attr(attr.name) for attr in node.spec.attrs},
        {port: _declared(tensor, symbols) for port, tensor in node.outputs.items()},
        {port: _declared(tensor, symbols) for port, tensor in node.inputs.items()},
    )


def _declared(tensor: Tensor, symbols: Mapping[str, int]) -> Declared:
    stride = tuple(evaluate(extent, symbols) for extent in tensor.stride)
    return Declared(shape_of(tensor, symbols), tensor.data_type, stride)


def random_operands(
    graph: Graph, symbols: Mapping[str, int] | None = None, seed: int = 0
) -> dict[int, np.ndarray[Any, Any]]:
    """Values for every input of `graph` by uid, exact in their data types.

    Normal numbers, B of a matmul divided by sqrt(K), so that results are of order one whatever the
    shape. A tensor's values depend on the seed and its uid only. A pass-by-value tensor that has a
    value keeps it.
    """
    graph.validate()
    symbols = symbols or {}
    weights = {node.inputs["B"].uid for node in graph.nodes if node.op == "matmul"}
    values: dict[int, np.ndarray[Any, Any]] = {}
    for tensor in graph.inputs():
        assert tensor.data_type is not None
        shape = shape_of(tensor, symbols)
        if tensor.pass_by_value is not None:
            values[tensor.uid] = np.full(shape, tensor.pass_by_value, np.float64)
            continue
        scale = max(1, shape[-2]) ** -0.5 if tensor.uid in weights else 1.0
        values[tensor.uid] = _random(shape, tensor.data_type, scale, (seed, tensor.uid))
    return values


def _random(
    shape: tuple[int, ...], dtype: data_type, scale: float, seed: tuple[int, int]
) -> np.ndarray[Any, Any]:
    rng = np.random.Generator(np.random.SFC64(seed))
    facts = DTYPES[dtype]
    if facts.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.float64)
    if not facts.is_float:
        return rng.integers(0 if facts.kind == "uint" else -8, 9, shape).astype(np.float64)
    drawn = rng.standard_normal(shape, np.float64 if dtype is data_type.DOUBLE else np.float32)
    drawn *= scale
    return round_to(drawn, dtype)
