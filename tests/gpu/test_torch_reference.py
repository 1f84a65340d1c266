"""The oracle of the GPU tests beside the float64 reference: they agree."""

from __future__ import annotations

import batch_graphs
import gemm_graphs
import moe_graphs
import numpy as np
import pytest
import torch
import torch_reference
from graph_tables import PEER

from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.reference.execute import execute

M = 37
LARGEST = 1 << 23  # products of a matmul


def graphs():
    made = [
        make()
        for make in (
            *gemm_graphs.TEST_GRAPHS,
            *gemm_graphs.ANY_STRIDE_GRAPHS,
            *gemm_graphs.FOLD_GRAPHS,
            *gemm_graphs.BLOCK_SCALED_GRAPHS,
            *batch_graphs.BATCH_AXES_GRAPHS,
            *moe_graphs.TEST_GRAPHS,
            *moe_graphs.TENSOR_CORE_GRAPHS,
        )
    ]
    for pattern in ("gemm_*", "bmm_*"):
        for path in sorted((PEER / "cudnn_frontend_1_32").glob(f"{pattern}.json")):
            made += load_graphs(path)
    for g in made:
        g.freeze()
    return {g.name: g for g in made if size(g) <= LARGEST}


def size(g) -> int:
    symbols = dict.fromkeys(g.symbols, M)
    sizes = []
    for node in g.nodes:
        if node.op in ("matmul", "moe_grouped_matmul"):
            b = node.inputs["B" if node.op == "matmul" else "weight"]
            (out,) = node.outputs.values()
            *_, rows, columns = (evaluate(extent, symbols) for extent in out.dim)
            sizes.append(rows * columns * evaluate(b.dim[-2], symbols))
    return max(sizes)


GRAPHS = graphs()


@pytest.mark.parametrize("name", GRAPHS)
def test_they_agree(name):
    g = GRAPHS[name]
    symbols = dict.fromkeys(g.symbols, M)
    assert all(torch_reference._has_row(node) for node in g.nodes)
    for seed in range(2):
        bound = torch_reference.operands(g, symbols, seed, device="cpu")
        values = {
            uid: each.to(torch.float64).numpy()
            if isinstance(each, torch.Tensor)
            else np.array(each)
            for uid, each in bound.items()
        }
        inputs = {tensor.uid: values[tensor.uid] for tensor in g.inputs()}
        assert all(np.isfinite(each).all() for each in inputs.values())
        for uid, array in execute(g, inputs, symbols).items():
            bound[uid].copy_(torch.from_numpy(np.asarray(array)))
        torch_reference.assert_close(g, bound)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_wrong_element_or_one_that_was_not_written_is_seen(name):
    g = GRAPHS[name]
    symbols = dict.fromkeys(g.symbols, M)
    bound = torch_reference.operands(g, symbols, device="cpu")
    with pytest.raises(AssertionError, match="is off by more than the tolerance at"):
        torch_reference.assert_close(g, bound)
    for uid, result in torch_reference.reference(g, bound).items():
        bound[uid].copy_(torch_reference._rounded(result, bound[uid].dtype))
    torch_reference.assert_close(g, bound)
    for tensor in g.outputs():
        place = bound[tensor.uid][(-1,) * len(tensor.dim)]
        right = place.clone()
        place.copy_(right.double() * 1.3 + 1)
        with pytest.raises(AssertionError, match="at 1 of"):
            torch_reference.assert_close(g, bound)
        place.copy_(right)


def test_grouped_operands_have_an_empty_group_and_name_every_row_once():
    g = moe_graphs.grouped("SCATTER", rows=12, tokens=6, offsets=4).freeze()
    bound = torch_reference.operands(g, {}, device="cpu")
    by_name = {tensor.name: bound[tensor.uid].reshape(-1) for tensor in g.inputs()}
    starts = by_name["first_token_offset"].tolist()
    assert starts == sorted(starts) and starts[1] == starts[2] and starts[0] == 0
    places = by_name["token_index"] * 2 + by_name["token_ks"]
    assert sorted(places.tolist()) == list(range(12))
