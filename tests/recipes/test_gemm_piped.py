"""Which matrix of an epilogue comes through the pipeline of the operands."""

from __future__ import annotations

import batch_graphs
import gemm_graphs
import pytest

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.sm90 import TMA_TEMPLATE, GemmSm90Persistent

TARGET = load_target("h200")
COOPERATIVE = GemmConfig(128, 256, 64, 2, 1, 1)


def residual(m=512, n=768, k=256, batch=1, dtype=gemm_graphs.BF16, dim=None, stride=None, other=()):
    """A product and a matrix; ``other`` are more of them, of these types, that come first."""
    g = gemm_graphs.graph("residual")
    a = gemm_graphs.operand(g, "A", m, k, batch)
    y = g.matmul(a, gemm_graphs.operand(g, "B", k, n, batch, transposed=True), name="mm")
    for i, each in enumerate(other):
        y = g.mul(y, gemm_graphs.operand(g, f"other{i}", m, n, batch, data_type=each))
    dim, stride = dim or [batch, m, n], stride or [m * n, n, 1]
    y = g.add(y, g.tensor(name="residual", dim=dim, stride=stride, data_type=dtype))
    y.set_output(True).set_data_type(gemm_graphs.BF16).set_name("Y")
    return g


def lowered(graph, config=COOPERATIVE):
    frozen = graph.freeze().canonical()
    family = manifest.family_for(node.op for node in frozen.nodes)
    facts = facts_for(frozen, manifest.resolve(family.analyzer))
    return GemmSm90Persistent().lower(facts, config, TARGET)


def kinds(graph, config=COOPERATIVE):
    """Of the inputs of the epilogue, in the kernel on the tensor cores."""
    specs = lowered(graph, config).kernels
    (params,) = [spec.params for spec in specs if spec.template == TMA_TEMPLATE]
    return [entry["kind"] for entry in params["epilogue"]["inputs"]]


@pytest.mark.parametrize("dtype", [gemm_graphs.BF16, gemm_graphs.HALF])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_16_bit_matrix_is_piped(dtype, batch):
    assert kinds(residual(dtype=dtype, batch=batch)) == ["piped"]


def test_the_first_that_may_be_is():
    graph = residual(other=(gemm_graphs.FLOAT, gemm_graphs.HALF))
    assert kinds(graph) == ["full", "piped", "full"]


@pytest.mark.parametrize(
    "graph",
    [
        residual(dtype=gemm_graphs.FLOAT),
        residual(dtype=gemm_graphs.E4M3),
        residual(n=764, stride=[512 * 764, 764, 1]),  # rows of 8 bytes more than 16 have no stride
        residual(stride=[512 * 768, 1, 512]),
        residual(dim=[1, 1, 768], stride=[768, 768, 1]),
        residual(batch=3, dim=[1, 512, 768]),  # the same for every matrix of the batch
    ],
    ids=["FLOAT", "FP8", "odd_rows", "column_major", "row", "broadcast_batch"],
)
def test_what_tma_may_not_load_so_is_not(graph):
    assert "piped" not in kinds(graph)


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(128, 160, 64, 2, 1, 1, 0, 1),
        GemmConfig(64, 64, 64, 1, 1, 2),
        GemmConfig(64, 64, 64, 1, 1, 1, 1, 0),
    ],
    ids=["pingpong", "splits", "stream_k"],
)
def test_schedules_that_hide_it_or_split_k_read_it_from_memory(config):
    assert kinds(residual(), config) == ["full"]


def test_a_call_whose_matrix_does_not_fit_a_descriptor_takes_another_branch():
    table = lowered(residual()).table
    (uid,) = [entry["uid"] for entry in table["operands"] if entry["name"] == "residual"]
    guards = {each["branch"]: str(each["when"]) for each in table["dispatch"]}
    assert f"['aligned', {uid}, 16]" in guards["tma"]
    assert "any_stride" in guards


@pytest.mark.parametrize(("heads", "want"), [(3, ["full", "piped"]), (1, ["full", "full"])])
def test_of_a_batch_of_several_runs_it_is_piped_where_every_matrix_has_its_own(heads, want):
    g = gemm_graphs.graph("g")
    a = batch_graphs.of_heads(g, "A", 64, 72, 2, 3)
    y = g.matmul(a, batch_graphs.of_heads(g, "B", 136, 72, 2, 3, transposed=True), name="mm")
    y = g.add(y, batch_graphs.of_batch(g, "row", 64, 136, [2, 1], data_type=gemm_graphs.FLOAT))
    y = g.add(y, batch_graphs.of_heads(g, "residual", 64, 136, 2, heads))
    y.set_output(True).set_data_type(gemm_graphs.BF16).set_name("Y")
    assert kinds(g) == want
