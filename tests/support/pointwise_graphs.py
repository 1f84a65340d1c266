"""Every pointwise op that kernels trace, applied to operands with special values: graphs, operands,
and the judgement of a result, for the CPU and the GPU alike.

The operands of the ops are graph inputs, so what an op got is exact, and its result is judged by
the float64 reference to a few steps of fp32.

``python tests/support/pointwise_graphs.py FOLDER`` writes the graphs as files, for ``cudnn-aot
build``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gemm_graphs import BF16, FLOAT, HALF, graph, operand

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.pointwise import ROWS
from cudnn_aot.compiler.reference import execute as reference
from cudnn_aot.compiler.reference.tolerance import Tolerance
from cudnn_aot.recipes.pointwise import TRACED

BOOLEAN = cudnn.data_type.BOOLEAN
M, N, K = 40, 72, 16  # no whole tile of any kernel; every pair of special values fits
OPS_PER_GRAPH = 8  # beside x, y, z and the product: what one kernel takes
TOLERANCE = Tolerance(relative=2e-6, absolute=2e-6)

# Attributes that an op has to have, or that change what it gives.
ATTRIBUTES: dict[str, dict[str, float]] = {
    "relu": {"negative_slope": 0.25, "lower_clip": -1.0, "upper_clip": 2.0},
    "relu_backward": {"negative_slope": 0.25, "lower_clip": -1.0, "upper_clip": 2.0},
    "leaky_relu": {"negative_slope": 0.125},
    "leaky_relu_backward": {"negative_slope": 0.125},
    "swish": {"swish_beta": 1.5},
    "swish_backward": {"swish_beta": 1.5},
}
# Zeros of both signs, the clips and other ties, integers, halves, tails, poles, arguments that need
# an exact reduction, where exp and tanh saturate, infinities and NaN. No square overflows fp32.
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -1.5, 1e-4, -1e-4, 1e-20]
    + [6.0, -6.0, 20.0, -20.0, 88.0, -88.0, -150.0, 3e5, -3e5, 1e10, np.inf, -np.inf, np.nan],
    np.float32,
)  # fmt: skip
# Gradients and masks: finite, as an infinite gradient times a slope that underflows is NaN in fp32.
FINITE = np.array([0.0, -0.0, 1.0, -1.0, 0.25, -3.0, 1e-4, 4.0, np.nan], np.float32)


def operands_of(name: str) -> str:
    """The names of the tensors on the ports of an op, in order."""
    (row,) = [row for row in ROWS if row.name == name]
    others = iter("xy")
    return "".join("z" if port.name in ("loss", "mask") else next(others) for port in row.ports)


def _start(name: str, letters: str) -> tuple[Graph, Any, dict[str, Any]]:
    g = graph(name, HALF)
    product = g.matmul(operand(g, "A", M, K), operand(g, "B", K, N, transposed=True), name="mm")
    return g, product, {letter: operand(g, letter, M, N, data_type=FLOAT) for letter in letters}


def every_op() -> list[Graph]:
    """One output for each op, some ops to a graph."""
    made = []
    for index, names in enumerate(_batches(sorted(TRACED), OPS_PER_GRAPH)):
        letters = "".join(sorted(set().union(*map(operands_of, names))))
        g, product, tensors = _start(f"pointwise_{index}", letters)
        product.set_output(True).set_data_type(FLOAT)
        for name in names:
            ports = [tensors[letter] for letter in operands_of(name)]
            result = getattr(g, name)(*ports, **ATTRIBUTES.get(name, {}))
            result.set_output(True).set_data_type(FLOAT).set_name(name)
        made.append(g)
    return made


def _batches(names: list[str], size: int) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def truth_values() -> Graph:
    """BOOLEAN tensors between ops, from numbers, comparisons and logic, into selections; where the
    arithmetic of what makes them is BOOLEAN too, as programs write it.
    """
    g, product, tensors = _start("pointwise_truth", "xyz")
    x, y, z = tensors.values()

    def truth(tensor):
        return tensor.set_data_type(BOOLEAN)

    less = truth(g.cmp_lt(x, y, compute_data_type=BOOLEAN))
    same = truth(g.cmp_eq(x, y, compute_data_type=BOOLEAN))
    either = truth(g.logical_or(less, same, compute_data_type=BOOLEAN))
    number = truth(g.identity(z))  # true is not equal 0, NaN included
    both = truth(g.logical_and(either, number, compute_data_type=BOOLEAN))
    # A row spread over the result beside what is computed at every place of it.
    row = g.tensor(name="row", dim=[1, 1, N], stride=[N, N, 1], data_type=BF16)
    chosen = g.binary_select(product, row, both)
    chosen.set_output(True).set_data_type(FLOAT).set_name("chosen")
    # Truth values as numbers: 1 or 0, whatever they were made of.
    counted = g.add(g.mul(number, x), g.logical_not(number))
    counted.set_output(True).set_data_type(FLOAT).set_name("counted")
    return g


def graphs() -> list[Graph]:
    return [*every_op(), truth_values()]


def operands(g: Graph, seed: int = 0) -> dict[int, np.ndarray[Any, Any]]:
    """Inputs by uid in fp32, exact in their types: every pair of special values in x and y, random
    numbers beyond.
    """
    rng = np.random.default_rng(seed)
    values = {}
    for tensor in g.inputs():
        shape = tuple(int(extent) for extent in tensor.dim)
        # Halves of small integers, so that the product is exact in any order of its sums.
        array = rng.integers(-4, 5, shape).astype(np.float32) / 2
        if tensor.name in ("x", "y", "z"):
            array = (3 * rng.standard_normal(shape)).astype(np.float32)
            flat = array.reshape(-1)
            if tensor.name == "z":
                flat[::3] = rng.choice(FINITE, flat[::3].size)
            else:
                pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32)
                flat[: len(pairs)] = pairs[:, "xy".index(tensor.name)]
        values[tensor.uid] = array
    return values


def assert_right(
    g: Graph, values: Mapping[int, np.ndarray[Any, Any]], got: Mapping[int, Any]
) -> None:
    """Every output, by uid, is what the float64 reference gives; NaN where that has NaN."""
    with np.errstate(all="ignore"):
        want = reference.execute(g, values)
    for tensor in g.outputs():
        error = TOLERANCE.error(got[tensor.uid], want[tensor.uid])
        assert error <= 1, f"{g.name}: {tensor.name} is off by {error:.3g} tolerances"


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for g in graphs():
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
