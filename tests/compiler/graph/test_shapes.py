"""Extents and strides of results, by hand."""

from typing import Any

import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import evaluate, packed
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError


def new_graph(**symbols: Any) -> Graph:
    ranges = {name: {"min": 1, "max": 64} for name in symbols}
    return Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT, symbols=ranges)


def shape(tensor: Tensor) -> list[Any]:
    return [extent if isinstance(extent, int) else str(extent) for extent in tensor.dim]


@pytest.mark.parametrize(
    ("image", "weight", "attrs", "want"),
    [
        ([1, 3, 8, 8], [5, 3, 3, 3], {}, [1, 5, 6, 6]),
        ([1, 3, 8, 8], [5, 3, 3, 3], {"padding": [1, 1]}, [1, 5, 8, 8]),
        ([1, 3, 9, 8], [5, 3, 3, 3], {"padding": [1, 0], "stride": [2, 1]}, [1, 5, 5, 6]),
        ([1, 3, 9, 9], [5, 3, 3, 3], {"dilation": [2, 4]}, [1, 5, 5, 1]),
        ([1, 3, 8, 8], [5, 3, 2, 2], {"pre_padding": [1, 0], "post_padding": [0, 1]}, [1, 5, 8, 8]),
        ([2, 4, 7], [6, 4, 7], {}, [2, 6, 1]),
        ([2, 4, 5, 5, 5], [6, 4, 1, 2, 3], {}, [2, 6, 5, 4, 3]),
        (["N", 3, "H", 8], [5, 3, 3, 3], {"padding": [1, 1]}, ["N", 5, "H", 8]),
    ],
)
def test_convolution(image: Any, weight: Any, attrs: Any, want: Any) -> None:
    graph = new_graph(N=1, H=1) if "N" in image else new_graph()
    y = graph.conv_fprop(graph.tensor(image), graph.tensor(weight), **attrs).set_output(True)
    assert shape(y) == want
    graph.validate()
    assert shape(y) == want and y.stride[1] == 1  # channels last, as the cuDNN backend has it


@pytest.mark.parametrize(
    ("image", "weight", "attrs", "message"),
    [
        ([1, 3, 2, 8], [5, 3, 3, 3], {}, "port image: got 2 places on axis 2, want at least 3"),
        ([1, 3], [5, 3], {}, "port image: got rank 2, want at least 3"),
        ([1, 3, 8, 8], [5, 3, 3], {}, "port weight: got rank 3, want 4, as image"),
        ([1, 3, 8, 8], [5, 3, 3, 3], {"stride": [1]}, "stride: got 1 values, want one for each"),
        ([1, 3, 8, 8], [5, 3, 3, 3], {"stride": [0, 1]}, "stride 0, dilation 1, want at least 1"),
    ],
)  # fmt: skip
def test_wrong_convolutions(image: Any, weight: Any, attrs: Any, message: str) -> None:
    graph = new_graph()
    graph.conv_fprop(graph.tensor(image), graph.tensor(weight), **attrs).set_output(True)
    with pytest.raises(InvalidGraphError, match=message):
        graph.validate()


@pytest.mark.parametrize(("stride", "back"), [([1, 1], [2, 3, 8, 8]), ([2, 2], [2, 3, 7, 7])])
def test_the_gradient_of_a_strided_convolution_is_open(stride: Any, back: Any) -> None:
    graph = new_graph()
    image, weight = graph.tensor([2, 3, 8, 8]), graph.tensor([5, 3, 3, 3])
    y = graph.conv_fprop(image, weight, stride=stride)
    dx = graph.conv_dgrad(graph.tensor(y.dim), weight, stride=stride).set_output(True)
    assert shape(dx) == back
    dx.set_dim([2, 3, 8, 8])
    y.set_output(True)
    graph.validate()
    assert shape(dx) == [2, 3, 8, 8]


def test_moves() -> None:
    graph = new_graph(M=1)
    x = graph.tensor([4, "M", 8])
    built = (
        (graph.transpose(x, [2, 0, 1]), [8, 4, "M"]),
        (graph.slice(x, [slice(1, 3), slice(None), slice(None, -1, 3)]), [2, "M", 3]),
        (graph.concatenate(inputs=[x, x], axis=1), [4, "2*M", 8]),
        (graph.concatenate(inputs=[x, x, x], axis=-1), [4, "M", 24]),
        (graph.reshape(x, out_dims=["4*M", 8]), ["4*M", 8]),
    )
    for tensor, want in built:
        tensor.set_output(True)
        assert shape(tensor) == want
    graph.validate()
    assert [shape(tensor) for tensor, _ in built] == [want for _, want in built]
    assert built[1][0].data_type is data_type.HALF


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x: g.transpose(x, [0, 0, 1]), r"permutation \[0, 0, 1\], want the axes 0"),
        (lambda g, x: g.slice(x, [slice(None)]), "got rank 3, want 1: one slice for each axis"),
        (lambda g, x: g.concatenate(inputs=[x], axis=3), "got rank 3, want an axis 3"),
        (lambda g, x: g.concatenate(inputs=[x, g.tensor([4, 5, 7])], axis=0), r"inputs_1: got dim"),
        (lambda g, x: g.block_scale_quantize(x, block_size=0)[0], "block_size 0, want at least 1"),
        (lambda g, x: g.block_scale_quantize(x, block_size=4, axis=3)[0], "rank 3, want an axis 3"),
        (lambda g, x: g.moe_grouped_matmul(x, x, x, mode="COMBINE"), "top_k_scores: got dim"),
    ],
)  # fmt: skip
def test_wrong_moves_and_scales(call: Any, message: str) -> None:
    graph = new_graph()
    call(graph, graph.tensor([4, 5, 6])).set_output(True)
    with pytest.raises(InvalidGraphError, match=message):
        graph.validate()


def test_statistics_of_norms() -> None:
    graph = new_graph()
    one = graph.tensor([1, 1, 1, 1], is_pass_by_value=True)
    x, channels = graph.tensor([2, 3, 4, 5]), graph.tensor([1, 3, 4, 5])
    row, tokens = graph.tensor([1, 3, 1, 1]), graph.tensor([2, 3, 1, 1])
    assert shape(graph.rmsnorm(x, channels, None, one, "TRAINING")[1]) == [2, 1, 1, 1]
    assert shape(graph.rmsnorm(x, None, None, one, "TRAINING")[1]) == [2, 1, 1, 1]
    assert shape(graph.layernorm(x, channels, None, one, "TRAINING")[1]) == [2, 1, 1, 1]
    assert shape(graph.adalayernorm(x, tokens, None, one, "TRAINING")[2]) == [2, 1, 4, 5]
    assert shape(graph.instancenorm(x, row, row, one, "TRAINING")[1]) == [2, 3, 1, 1]
    assert [shape(t) for t in graph.genstats(x)] == [[1, 3, 1, 1]] * 2
    assert shape(graph.layernorm_backward(x, x, channels, one, one)[1]) == [1, 3, 4, 5]


def test_layernorm_s_two_statistics_go_together() -> None:
    graph = new_graph()
    x, row = graph.tensor([8, 16]), graph.tensor([1, 16])
    one = graph.tensor([1, 1], is_pass_by_value=True)
    _, mean, inv_var = graph.layernorm(x, row, row, one, "TRAINING")
    assert shape(inv_var) == [8, 1]
    mean.set_output(True).set_dim([1, 1])
    graph.validate()
    assert shape(inv_var) == [1, 1]


def test_block_scales() -> None:
    graph = new_graph(K=1)
    x = graph.tensor([1, 33, "32*K"])
    assert shape(graph.block_scale_quantize(x, block_size=16)[1]) == [1, 33, "2*K"]
    assert shape(graph.block_scale_quantize(x, block_size=16, axis=1)[1]) == [1, 3, "32*K"]
    assert graph.block_scale_quantize(x, block_size=24)[1].dim == ()  # 4 / 3 * K: to be declared


def test_linear_attention() -> None:
    graph = new_graph()
    q, v = graph.tensor([24, 2, 8]), graph.tensor([24, 4, 16])
    g, cu = graph.tensor([24, 4]), graph.tensor([4], None, "INT32")
    out, state, checkpoints = graph.gdn(
        q, q, v, g, g, cu, output_final_state=True, checkpoint_every_n_tokens=10
    )
    assert [shape(t) for t in (out, state, checkpoints)] == [
        [24, 4, 16],
        [3, 4, 16, 8],
        [2 + 3, 4, 16, 8],
    ]
    pool, slots = graph.tensor([9, 4, 16, 8]), graph.tensor([3], None, "INT32")
    served = graph.gdn(q, q, v, g, g, cu, pool, state_indices=slots, output_final_state=True)
    assert shape(served[1]) == [9, 4, 16, 8]
    assert shape(graph.gdn_summary(q, v, g, g, cu, output_transition=True)[1]) == [3, 4, 8, 8]
    assert shape(graph.gdn_summary_bwd(q, q, g, g, cu, v)[0]) == [3, 4, 16, 8]
    assert shape(graph.mamba2_summary(q, v, g, g, cu, output_transition=True)[1]) == [3, 4]
    major = graph.tensor([24, 3, 4, 16])  # token-major k, v, beta
    built = graph.gdp(q, major, major, g, g, cu, num_householder=3)
    assert shape(built[0]) == [24, 4, 16] and built[1:] == [None, None]


def test_a_symbolic_batch_of_sequences_is_declared_by_the_caller() -> None:
    graph = new_graph(T=1, S=1, N=1)
    q, g = graph.tensor(["T", 2, 8]), graph.tensor(["T", 2])
    cu = graph.tensor(["S"], None, "INT32")
    out, state, _ = graph.gdn(q, q, q, g, g, cu, output_final_state=True)
    out.set_output(True), state.set_output(True)
    assert shape(out) == ["T", 2, 8]
    with pytest.raises(InvalidGraphError, match="port final_state has no dim: .*set_dim"):
        graph.validate()
    state.set_dim(["N", 2, 8, 8])
    graph.validate()


def test_experts() -> None:
    graph = new_graph()
    token, weight = graph.tensor([1, 24, 8]), graph.tensor([3, 8, 6])
    first, index = graph.tensor([3, 1, 1], None, "INT32"), graph.tensor([1, 30, 1], None, "INT32")
    assert shape(graph.moe_grouped_matmul(token, weight, first)) == [1, 24, 6]
    assert shape(graph.moe_grouped_matmul(token, weight, first, index, mode="GATHER")) == [1, 30, 6]
    combined = graph.moe_grouped_matmul(token, weight, first, mode="COMBINE", top_k_scores=index)
    assert shape(combined) == [1, 30, 6]
    assert shape(graph.moe_grouped_matmul_bwd(combined, token, first)) == [3, 8, 6]


@pytest.mark.parametrize(
    ("x_stride", "y_stride", "want"),
    [
        (None, None, (32, 8, 1)),
        ((32, 1, 4), (32, 8, 1), (32, 1, 4)),  # the first operand's
        ((40, 10, 1), None, (40, 10, 1)),
        ((0, 8, 1), (32, 1, 4), (32, 1, 4)),  # repeated elements cannot be written
        ((0, 8, 1), (32, 0, 4), (32, 8, 1)),
    ],
)
def test_a_result_lies_as_the_first_operand_of_its_extents(
    x_stride: Any, y_stride: Any, want: Any
) -> None:
    graph = new_graph()
    x, y = graph.tensor([2, 4, 8], x_stride), graph.tensor([2, 4, 8], y_stride)
    out = graph.add(x, y).set_output(True)
    graph.validate()
    assert out.stride == want
    out.set_stride([32, 8, 1])
    graph.validate()
    assert out.stride == (32, 8, 1)


IMAGE_LAST = [192, 1, 24, 3]  # of [2, 3, 8, 8], channels last


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda g, x: g.transpose(x, permutation=[0, 2, 3, 1]), [192, 24, 3, 1]),
        (lambda g, x: g.slice(x, slices=[slice(1), slice(3), slice(2, 8, 2), slice(8)]),
         [192, 1, 48, 3]),
        (lambda g, x: g.concatenate(inputs=[x, x], axis=1), [384, 1, 48, 6]),
        (lambda g, x: g.genstats(x)[0], [3, 1, 3, 3]),
        (lambda g, x: g.batchnorm_backward(g.identity(x).set_stride([192, 64, 8, 1]), x,
                                           *[g.tensor([1, 3, 1, 1])] * 3)[0], IMAGE_LAST),
        (lambda g, x: g.reduction(x, mode="ADD").set_dim([2, 3, 1, 8]), [24, 1, 24, 3]),
        (lambda g, x: g.reshape(x).set_dim([2, 16, 12]), [192, 1, 16]),
        (lambda g, x: g.rmsnorm(x, g.tensor([1, 3, 1, 1]), None, g.tensor([1, 1, 1, 1]),
                                "TRAINING")[1], [64, 1, 8, 1]),
        (lambda g, x: g.rmsnorm_backward(x, x, g.tensor([1, 3, 1, 1], [3, 1, 3, 3]),
                                         g.tensor([2, 1, 8, 8]))[1], [3, 1, 3, 3]),
        (lambda g, x: g.block_scale_quantize(x, block_size=2, axis=3)[1], [96, 1, 12, 3]),
        (lambda g, x: g.block_scale_quantize(x, block_size=2, axis=3, transpose=True)[0],
         [64, 128, 8, 1]),
        (lambda g, x: g.moe_grouped_matmul_bwd(
            g.tensor([1, 48, 6]), g.reshape(x).set_dim([1, 48, 8]).set_stride([384, 8, 1]),
            g.tensor([4, 1, 1], data_type=data_type.INT32)), [48, 1, 8]),
    ],
)  # fmt: skip
def test_strides_of_results_follow_the_frontend_when_it_lowers(build: Any, want: Any) -> None:
    graph = new_graph()
    result = build(graph, graph.tensor([2, 3, 8, 8], IMAGE_LAST)).set_output(True)
    graph.validate()
    assert list(result.stride) == want


def test_views_of_repeated_elements_get_strides_of_their_own() -> None:
    """A result is written, which strides of 0 would not allow."""
    graph = new_graph()
    x = graph.tensor([4, 6], [0, 1])
    turned = graph.transpose(x, [1, 0]).set_output(True)
    part = graph.slice(x, [slice(2), slice(None)]).set_output(True)
    graph.validate()
    assert (turned.stride, part.stride) == ((4, 1), (6, 1))


def test_strides_in_the_order_of_symbolic_operands() -> None:
    """They are those of a concrete operand, also where an extent turns out to be 1."""
    symbolic = new_graph(M=1)
    for order in ([0, 1, 2, 3], [0, 2, 3, 1]):
        for axis in range(4):
            dim: list[Any] = [4, 3, 5, 8]
            dim[axis] = "M"
            x = symbolic.tensor(dim)
            x.set_stride(packed(x.dim, order))
            joined = symbolic.concatenate(inputs=[x, x], axis=2)
            for m in (1, 6):
                values = {"M": m}
                concrete = new_graph()
                y = concrete.tensor(
                    [evaluate(extent, values) for extent in x.dim],
                    [evaluate(step, values) for step in x.stride],
                )
                again = concrete.concatenate(inputs=[y, y], axis=2)
                assert again.stride == tuple(evaluate(step, values) for step in joined.stride)
