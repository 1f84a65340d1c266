"""The canonical form of graphs with override shapes is symbolic; the graphs stay as declared."""

import pytest

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.extents import Symbol, row_major
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.errors import cudnnGraphNotSupportedError


def new_graph(**kwargs):
    return Graph("", "BFLOAT16", "FLOAT", "FLOAT", is_override_shape_enabled=True, **kwargs)


def canonical(graph, *tensors):
    """The tensors of the canonical form that stand for these."""
    return [graph.canonical().tensors[tensor.uid] for tensor in tensors]


def shown(extents):
    return [str(extent) for extent in extents]


def test_rows_of_a_and_of_what_follows_become_one_symbol():
    graph = new_graph()
    a = graph.tensor([1, 8192, 64])
    b = graph.tensor([1, 64, 32], [2048, 1, 64])
    bias, residual = graph.tensor([1, 1, 32]), graph.tensor([1, 8192, 32])
    y = graph.add(graph.bias(graph.matmul(a, b), bias), residual).set_output(True)
    y.set_dim([1, 8192, 32]).set_stride([8192 * 32, 32, 1])
    a, b, bias, residual, y = canonical(graph, a, b, bias, residual, y)
    assert dict(graph.canonical().symbols) == {"M": Symbol(0, 1 << 20, 8192)}
    assert shown(a.dim) == ["1", "M", "64"] and shown(a.stride) == ["64*M", "64", "1"]
    assert shown(residual.dim) == shown(y.dim) == ["1", "M", "32"]
    assert shown(residual.stride) == shown(y.stride) == ["32*M", "32", "1"]
    assert (b.dim, b.stride) == ((1, 64, 32), (2048, 1, 64))
    assert (bias.dim, bias.stride) == ((1, 1, 32), (32, 32, 1))


@pytest.mark.parametrize(
    ("dim", "stride", "wanted"),
    [
        ([2, 8, 64], None, ["64*M", "64", "1"]),
        ([2, 8, 64], [512, 1, 8], ["64*M", "1", "M"]),  # column-major
        ([2, 8, 64], [64, 128, 1], ["64", "128", "1"]),  # rows outermost
        ([2, 8, 64], [1000, 100, 1], ["1000", "100", "1"]),  # padded: stays as declared
        ([1, 8, 64], [512, 64, 1], ["64*M", "64", "1"]),
        ([4, 1, 8], [8, 8, 1], ["8*M", "8", "1"]),
        ([4, 1, 8], [8, 32, 1], ["8", "32", "1"]),
        ([4, 8, 1], [8, 1, 1], ["M", "1", "1"]),
        ([4, 0, 8], [0, 8, 1], ["8*M", "8", "1"]),
    ],
)
def test_dense_strides_stay_dense(dim, stride, wanted):
    graph = new_graph()
    a = graph.tensor(dim, stride)
    graph.matmul(a, graph.tensor([1, dim[2], 32])).set_output(True)
    (a,) = canonical(graph, a)
    assert shown(a.stride) == wanted


def decode_norm(graph, tensor):
    x, scale = tensor([3, 8, 64, 1]), tensor([1, 1, 64, 1])
    y, _ = graph.rmsnorm(x, scale, None, graph.tensor_scalar(1e-5), "INFERENCE")
    return [y]


def attention_of(heads, heads_of_k, queries):
    def build(graph, tensor):
        q = tensor([2, heads, queries, 64])
        k, v = tensor([2, heads_of_k, 64, 64]), tensor([2, heads_of_k, 64, 64])
        return graph.sdpa(q, k, v, is_inference=False)

    return build


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, tensor: [graph.matmul(tensor([4, 1, 8]), tensor([4, 8, 16]))],
        decode_norm,
        attention_of(4, 1, 64),  # one head of k and v
        attention_of(4, 4, 1),  # one query
        attention_of(1, 1, 1),
    ],
    ids=["matmul", "norm", "one-head", "one-query", "one-of-both"],
)
def test_written_strides_that_are_row_major_are_those_left_out(build):
    def key(is_written):
        graph = new_graph()
        results = build(
            graph, lambda dim: graph.tensor(dim, row_major(dim) if is_written else None)
        )
        for result in results:
            result.set_output(True)
        if is_written:
            graph.validate()
            for result in results:
                result.set_dim(result.dim).set_stride(row_major(result.dim))
        return graph.key()

    assert key(True) == key(False)


def test_an_operand_with_as_many_columns_as_a_has_rows_keeps_them():
    graph = new_graph()
    a, b = graph.tensor([1, 64, 64]), graph.tensor([1, 64, 64])
    bias = graph.tensor([1, 1, 64])
    y = graph.bias(graph.matmul(a, b), bias).set_output(True)
    b, bias, y = canonical(graph, b, bias, y)
    assert shown(y.dim) == ["1", "M", "64"]
    assert (b.dim, bias.dim) == ((1, 64, 64), (1, 1, 64))


def test_a_single_declared_row_still_broadcasts():
    graph = new_graph()
    a, row = graph.tensor([1, 1, 64]), graph.tensor([1, 1, 32])
    y = graph.add(graph.matmul(a, graph.tensor([1, 64, 32])), row).set_output(True)
    row, y = canonical(graph, row, y)
    assert shown(y.dim) == ["1", "M", "32"] and row.dim == (1, 1, 32)


def test_chained_matmuls_share_the_rows_and_two_inputs_of_other_rows_do_not():
    graph = new_graph()
    first = graph.matmul(graph.tensor([1, 16, 64]), graph.tensor([1, 64, 32]))
    chained = graph.matmul(first, graph.tensor([1, 32, 8])).set_output(True)
    other = graph.matmul(graph.tensor([1, 24, 64]), graph.tensor([1, 64, 32])).set_output(True)
    chained, other = canonical(graph, chained, other)
    assert (shown(chained.dim), shown(other.dim)) == (["1", "M", "8"], ["1", "M2", "32"])
    assert {name: symbol.hint for name, symbol in graph.canonical().symbols.items()} == {
        "M": 16,
        "M2": 24,
    }


def test_the_order_of_nodes_numbers_no_symbol():
    def key(order):
        graph = new_graph()
        b = graph.tensor([1, 8, 16], uid=3)
        for uid in order:
            a = graph.tensor([1, 64 * uid, 8], uid=uid)
            graph.matmul(graph.relu(a), b).set_output(True).set_uid(10 + uid)
        return graph.key()

    assert key([1, 2]) == key([2, 1])


def test_the_order_of_nodes_names_no_symbol():
    def symbols(is_norm_first):
        graph = new_graph()
        x = graph.tensor([2, 4, 16, 64], uid=1)
        k, v = (graph.tensor([2, 4, 16, 64], uid=uid) for uid in (2, 3))
        scale, epsilon = graph.tensor([1, 4, 1, 64], uid=4), graph.tensor_scalar(1e-5)

        def norm():
            y, _ = graph.rmsnorm(x, scale, None, epsilon, "INFERENCE")
            y.set_output(True).set_uid(25)

        if is_norm_first:
            norm()
        graph.sdpa(x, k, v)[0].set_output(True).set_uid(26)
        if not is_norm_first:
            norm()
        return dict(graph.canonical().symbols), graph.key()

    assert symbols(True) == symbols(False)
    assert symbols(True)[0] == {
        "B": Symbol(1, 1 << 12, 2), "R2": Symbol(1, 1 << 20, 16), "S_kv": Symbol(1, 1 << 20, 16),
    }  # fmt: skip


def test_a_graph_with_symbols_of_its_own_keeps_its_declaration():
    graph = new_graph(symbols={"N": Symbol(1, 64)})
    y = graph.matmul(graph.tensor([1, 8, 64]), graph.tensor([1, 64, "N"])).set_output(True)
    assert graph.canonical() is graph
    assert shown(y.dim) == ["1", "8", "N"]


def test_more_rows_than_the_usual_bound_raise_it():
    graph = new_graph()
    graph.matmul(graph.tensor([1, 1 << 21, 8]), graph.tensor([1, 8, 8])).set_output(True)
    assert graph.canonical().symbols["M"].max == 1 << 21


def product(**kwargs):
    graph = new_graph()
    a, b = graph.tensor([1, 64, 8], **kwargs), graph.tensor([1, 8, 16])
    return graph, a, graph.matmul(a, b).set_output(True)


def test_the_tensors_of_the_caller_keep_what_was_declared():
    graph, a, y = product()
    key = graph.key()
    assert (a.get_dim(), a.get_stride()) == ([1, 64, 8], [512, 8, 1])
    assert (y.get_dim(), dict(graph.symbols)) == ([1, 64, 16], {})
    written = graph_json.loads(graph_json.dumps(graph))
    assert written.key() == key and set(written.symbols) == {"M"}
    plain = Graph("", "BFLOAT16", "FLOAT", "FLOAT")
    plain.matmul(plain.tensor([1, 64, 8]), plain.tensor([1, 8, 16])).set_output(True)
    assert plain.key() != key


def test_a_validated_graph_may_still_change():
    graph, a, y = product()
    graph.validate()
    residual = graph.tensor([1, 64, 16])
    z = graph.add(y, residual).set_output(True)
    residual, z = canonical(graph, residual, z)
    assert shown(residual.dim) == shown(z.dim) == ["1", "M", "16"]
    a.set_dim([1, 32, 8]).set_stride([256, 8, 1])
    residual = graph.tensors[residual.uid].set_dim([1, 32, 16]).set_stride([512, 16, 1])
    graph.validate()
    assert graph.canonical().symbols["M"].hint == 32 and y.dim == (1, 32, 16)


def test_a_name_given_late_is_written():
    graph, _, _ = product()
    graph.validate()
    graph.name = "late"
    assert graph_json.loads(graph_json.dumps(graph)).name == "late"


def test_attention_is_symbolic_in_batch_and_lengths():
    graph = new_graph()
    q = graph.tensor([2, 4, 1, 64], [256, 64, 256, 1])
    k, v = graph.tensor([2, 2, 128, 64]), graph.tensor([2, 2, 128, 32])
    bias, rows = graph.tensor([1, 4, 1, 128]), graph.tensor([2, 1, 1, 1], data_type="INT32")
    o, stats = graph.sdpa(
        q, k, v, is_inference=False, bias=bias, use_padding_mask=True, seq_len_q=rows,
        seq_len_kv=rows,
    )  # fmt: skip
    o.set_output(True).set_dim([2, 4, 1, 32]).set_stride([128, 32, 128, 1])
    stats.set_output(True)
    dims = [shown(tensor.dim) for tensor in canonical(graph, q, k, v, bias, rows, o, stats)]
    assert dims == [
        ["B", "4", "S_q", "64"],
        ["B", "2", "S_kv", "64"],
        ["B", "2", "S_kv", "32"],
        ["1", "4", "1", "S_kv"],
        ["B", "1", "1", "1"],
        ["B", "4", "S_q", "32"],
        ["B", "4", "S_q", "1"],
    ]
    hints = {name: symbol.hint for name, symbol in graph.canonical().symbols.items()}
    assert hints == {"B": 2, "S_q": 1, "S_kv": 128}
    assert instantiate(graph, hints).key() == instantiate(graph.canonical(), hints).key()


def test_page_tables_have_the_batch():
    graph = new_graph()
    q, pool = graph.tensor([2, 4, 1, 64]), graph.tensor([8, 2, 16, 64])
    rows = graph.tensor([2, 1, 1, 1], data_type="INT32")
    tables = [graph.tensor([2, 1, 4, 1], data_type="INT32") for _ in "kv"]
    o, _ = graph.sdpa(
        q, pool, pool, use_padding_mask=True, seq_len_q=rows, seq_len_kv=rows,
        paged_attention_k_table=tables[0], paged_attention_v_table=tables[1],
        paged_attention_max_seq_len_kv=64,
    )  # fmt: skip
    o.set_output(True)
    for table in canonical(graph, *tables):
        assert shown(table.dim) == ["B", "1", "4", "1"]
    assert instantiate(graph, {"B": 3, "S_q": 2}).tensors[o.uid].dim == (3, 4, 2, 64)


@pytest.mark.parametrize("inputs", ["qqq", "qkk", "qqv"])
def test_what_one_axis_counts_twice_is_one_symbol(inputs):
    graph = new_graph()
    tensors = {name: graph.tensor([2, 4, 16, 64]) for name in sorted(set(inputs))}
    o, _ = graph.sdpa(*(tensors[name] for name in inputs))
    o.set_output(True)
    symbols = {"B": 3, **{name: 5 for name in graph.canonical().symbols if name != "B"}}
    assert instantiate(graph, symbols).tensors[o.uid].dim == (3, 4, 5, 64)
    assert len(symbols) == (3 if inputs == "qkk" else 2)


def test_rows_of_a_gradient_are_those_of_its_operand():
    graph = new_graph()
    q, o, grad = (graph.tensor([2, 4, 8, 64]) for _ in range(3))
    k, v = (graph.tensor([2, 4, 16, 64]) for _ in range(2))
    stats = graph.tensor([2, 4, 8, 1], data_type="FLOAT")
    _, dk, _ = graph.sdpa_backward(q, k, v, o, grad, stats)
    y = graph.matmul(dk, graph.tensor([1, 4, 64, 32])).set_output(True)
    q, k, y = canonical(graph, q, k, y)
    assert [shown(tensor.dim)[2] for tensor in (q, k, y)] == ["S_q", "M", "M"]


def test_the_batch_of_offsets_stays_a_number():
    graph = new_graph()
    offsets = graph.tensor([3, 1, 1, 1], data_type="INT32")
    q, k, v = (graph.tensor([2, 4, 16, 64], ragged_offset=offsets) for _ in range(3))
    rows = graph.tensor([2, 1, 1, 1], data_type="INT32")
    o, _ = graph.sdpa(q, k, v, use_padding_mask=True, seq_len_q=rows, seq_len_kv=rows)
    o.set_output(True).set_ragged_offset(offsets)
    (o,) = canonical(graph, o)
    assert shown(o.dim) == ["2", "4", "S_q", "64"]


@pytest.mark.parametrize(
    ("dim", "scale", "wanted"),
    [
        ([512, 64, 1, 1], [1, 64, 1, 1], ["M", "64", "1", "1"]),
        ([4, 16, 64], [1, 1, 64], ["M", "R1", "64"]),
        ([16, 16, 16], [1, 1, 16], ["M", "R1", "16"]),
    ],
)
def test_norms_are_symbolic_in_their_rows(dim, scale, wanted):
    graph = new_graph()
    x, w, residual = graph.tensor(dim), graph.tensor(scale), graph.tensor(dim)
    epsilon = graph.tensor_scalar(1e-5)
    y, _ = graph.rmsnorm(x, w, None, epsilon, norm_forward_phase="INFERENCE")
    z = graph.add(y, residual).set_output(True)
    x, residual, z, w = canonical(graph, x, residual, z, w)
    assert shown(x.dim) == shown(residual.dim) == shown(z.dim) == wanted
    assert list(w.dim) == scale


def test_rows_are_traced_back_to_the_inputs_that_they_come_from():
    graph = new_graph()
    x, scale = graph.tensor([1, 64, 8]), graph.tensor([1, 64, 1])
    y = graph.matmul(graph.mul(x, scale), graph.tensor([1, 8, 16])).set_output(True)
    assert [shown(tensor.dim) for tensor in canonical(graph, x, scale, y)] == [
        ["1", "M", "8"],
        ["1", "M", "1"],
        ["1", "M", "16"],
    ]


def test_a_reduction_keeps_the_rows_or_reduces_them():
    graph = new_graph()
    product = graph.matmul(graph.tensor([1, 64, 8]), graph.tensor([1, 8, 16]))
    columns = graph.reduction(product, mode="ADD", out_dims=[1, 64, 1]).set_output(True)
    rows = graph.reduction(product, mode="ADD", out_dims=[1, 1, 16]).set_output(True)
    columns, rows = canonical(graph, columns, rows)
    assert (shown(columns.dim), shown(rows.dim)) == (["1", "M", "1"], ["1", "1", "16"])


def check_nothing_to_override(graph):
    return graph.relu(graph.tensor([4, 8]))


def check_rows_of_a_move(graph):
    a = graph.transpose(graph.tensor([1, 8, 64]), [0, 2, 1]).set_data_type("BFLOAT16")
    return graph.matmul(a, graph.tensor([1, 8, 16]))


def check_reshape(graph):
    y = graph.matmul(graph.tensor([1, 64, 8]), graph.tensor([1, 8, 16]))
    return graph.reshape(y, out_dims=[1, 1024])


def check_one_row_reduced(graph):
    y = graph.matmul(graph.tensor([1, 1, 8]), graph.tensor([1, 8, 16]))
    return graph.reduction(y, mode="ADD", out_dims=[1, 1, 1])


def check_padded_scales(graph):
    a = graph.tensor([1, 100, 64], data_type="FP8_E4M3")
    scales = graph.tensor([1, 128, 2], data_type="FP8_E8M0", reordering_type="F8_128x4")
    b = graph.tensor([1, 64, 32], data_type="BFLOAT16")
    return graph.matmul(graph.block_scale_dequantize(a, scales, block_size=[1, 32]), b)


def check_blocks_of_rows(graph):
    a = graph.tensor([1, 64, 64], data_type="FP8_E4M3")
    scales = graph.tensor([1, 2, 2], data_type="FLOAT")
    b = graph.tensor([1, 64, 32], data_type="BFLOAT16")
    return graph.matmul(graph.block_scale_dequantize(a, scales, block_size=[32, 32]), b)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (check_padded_scales, r"'block_scale_dequantize.0' .* has 128 scales for M rows"),
        (check_blocks_of_rows, r"'block_scale_dequantize.0' .* has 2 scales for M rows"),
        (check_nothing_to_override, "no matmul, norm or attention tells which extents those are"),
        (check_rows_of_a_move, r"comes out of node 'transpose.0' \(transpose\)"),
        (check_reshape, r"'reshape.0' \(reshape\) leaves the extents of its result to the caller"),
        (check_one_row_reduced, "which of the axes of extent 1 it reduces is open"),
    ],
)
def test_what_calls_override_has_to_be_clear(build, reason):
    graph = new_graph()
    build(graph).set_output(True)
    with pytest.raises(
        cudnnGraphNotSupportedError, match=f"^is_override_shape_enabled: .*{reason}"
    ):
        graph.validate()
