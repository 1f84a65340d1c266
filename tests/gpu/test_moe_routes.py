"""Grouped matmuls of offsets and indices that no router gives: rows of no group are zeros, indices
that name nothing read or write nothing.
"""

from __future__ import annotations

import moe_graphs
import pytest
import torch
from torch_reference import assert_within, execute, operands

M = 200
NAMES = [make().name for make in (*moe_graphs.TEST_GRAPHS, *moe_graphs.TENSOR_CORE_GRAPHS)]
# Of the number of offsets and of rows.
OFFSETS = {
    "in no order": lambda count, rows: torch.randint(-rows, 2 * rows, (count,)),
    "rows on both sides": lambda count, rows: torch.linspace(rows // 3, rows - rows // 4, count),
    "every group empty": lambda count, rows: torch.full((count,), rows // 2),
    "one row each": lambda count, rows: torch.arange(count),
    "the last has all": lambda count, rows: torch.tensor([0] * (count - 1) + [rows]),
    "far away": lambda count, rows: torch.tensor([-(2**31), 2**31 - 1] * count)[:count],
}


def groups_of(offsets: list[int], groups: int, rows: int) -> list[tuple[int, int, int]]:
    """Group, first row and end: offsets are clamped to the rows and to those before them."""
    edges, before = [], 0
    for offset in offsets:
        before = max(before, min(max(offset, 0), rows))
        edges.append(before)
    ends = [*edges[1:], rows]
    return [(group, edges[group], ends[group]) for group in range(groups)]


def expected(graph, bound) -> torch.Tensor:
    """float64 (rows, N)."""
    (node,) = graph.nodes
    mode = node.attr("mode").name
    arguments = {port: bound[tensor.uid] for port, tensor in node.inputs.items()}
    token, weight = arguments["token"][0].double(), arguments["weight"]
    index = arguments["token_index"].reshape(-1).long() if mode != "NONE" else None
    rows = len(token) if mode != "GATHER" else len(index)
    offsets, experts = arguments["first_token_offset"].reshape(-1).tolist(), len(weight)
    has_end = len(offsets) % experts != 0 or (experts == 1 and len(offsets) > 1)
    if mode == "GATHER":
        is_token = (index >= 0) & (index < len(token))
        token = token[index.where(is_token, 0)] * is_token[:, None]
    product = token.new_zeros((rows, weight.shape[-1]))
    is_routed = torch.zeros(rows, dtype=torch.bool, device=token.device)
    for group, start, end in groups_of(offsets, len(offsets) - has_end, rows):
        product[start:end] = token[start:end] @ weight[group % experts].double()
        is_routed[start:end] = True
    if mode != "SCATTER":
        return product
    target = index * int(node.attr("top_k")) + arguments["token_ks"].reshape(-1).long()
    kept = is_routed & (target >= 0) & (target < rows)
    out = torch.zeros_like(product)
    out[target[kept]] = product[kept]
    return out


def spoil(graph, bound) -> None:
    """Indices of every seventh routed row name nothing."""
    (node,) = graph.nodes
    if "token_index" in node.inputs:
        index = bound[node.inputs["token_index"].uid]
        bad = torch.tensor([-1, 2**31 - 1, -(2**31), 1 << 20], device=index.device)
        flat = index.view(-1)
        flat[::7] = bad.repeat(len(flat))[: len(flat[::7])].to(index.dtype)


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_numbers(stored, name, case):
    graph, plan = stored.graph(name), stored.plan(name)
    symbols = dict.fromkeys(graph.symbols, M)
    bound = operands(graph, symbols, seed=3)
    (node,), (out,) = graph.nodes, graph.outputs()
    place = bound[node.inputs["first_token_offset"].uid]
    rows = bound[out.uid].shape[-2]
    torch.manual_seed(5)
    made = OFFSETS[case](place.numel(), rows)
    place.copy_(made.reshape(place.shape).to(place.dtype))
    spoil(graph, bound)
    execute(plan, bound, symbols)
    assert_within(graph, out, bound, expected(graph, bound))
