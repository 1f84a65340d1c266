"""Building: automatic names and uids, tensors from other libraries, the freeze."""

import numpy as np
import pytest

from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import FrozenGraphError, InvalidGraphError, cudnnGraphNotSupportedError

BF16, FP32 = data_type.BFLOAT16, data_type.FLOAT


def new_graph(**kwargs):
    return Graph(io_data_type=BF16, intermediate_data_type=FP32, compute_data_type=FP32, **kwargs)


def chain():
    graph = new_graph()
    a, b = graph.tensor([1, 4, 8], name="A"), graph.tensor([1, 8, 16], name="B")
    y = graph.relu(graph.matmul(a, b)).set_output(True)
    return graph, a, b, y


def test_automatic_names_count_per_op_and_uids_count_up():
    graph = new_graph()
    x = graph.tensor([2, 2], name="x")
    first, named, second = graph.relu(x), graph.relu(x, name="act"), graph.relu(x)
    assert [node.name for node in graph.nodes] == ["relu.0", "act", "relu.1"]
    assert [t.name for t in (first, named, second)] == [
        "relu.0::OUT_0",
        "act::OUT_0",
        "relu.1::OUT_0",
    ]
    assert [t.uid for t in (x, first, named, second)] == [1, 2, 3, 4]
    assert first.is_virtual and not x.is_virtual


def test_a_chosen_uid_renumbers_an_automatic_holder():
    graph = new_graph()
    x = graph.tensor([2, 2], name="x")
    y = graph.relu(x)
    z = graph.tensor([2, 2], name="z", uid=2)
    assert (x.uid, y.uid, z.uid) == (1, 3, 2)
    x.set_uid(3)
    assert (x.uid, y.uid) == (3, 4)
    assert list(graph.tensors) == [2, 3, 4]
    assert graph.tensor([1]).uid == 5


def test_a_uid_that_was_asked_for_is_given_to_nobody_else():
    graph = new_graph()
    graph.tensor([1], uid=3).set_uid(9)
    assert [graph.tensor([1]).uid for _ in range(5)] == [1, 2, 4, 5, 6]
    taken = graph.tensor([1], uid=5)  # its automatic holder moves on, past 9 in the end
    assert taken.uid == 5 and list(graph.tensors) == [1, 2, 4, 5, 6, 7, 9]
    assert [graph.tensor([1]).uid for _ in range(2)] == [8, 10]


def test_a_value_can_be_given_where_a_scalar_is_declared():
    scalar = new_graph().tensor(
        [1], is_pass_by_value=True, pass_by_value=2.0, scalar_type="COMPILE_TIME_CONST"
    )
    assert scalar.pass_by_value == 2.0
    assert scalar.scalar_type is scalar_type.COMPILE_TIME_CONST


def test_two_chosen_uids_collide():
    graph = new_graph()
    graph.tensor([2, 2], name="x", uid=7)
    with pytest.raises(InvalidGraphError, match=r"uid 7 is used twice: by tensor 'x' \(uid 7\)"):
        graph.tensor([2, 2], name="y", uid=7)
    assert list(graph.tensors) == [7]
    for bad in (-2, 2**63, True, "1"):
        with pytest.raises(InvalidGraphError, match="bad uid"):
            graph.tensor([1], uid=bad)


def test_inputs_and_outputs_come_by_uid_whatever_the_order_of_building():
    graph = new_graph()
    x = graph.tensor([2, 2], name="x", uid=30)
    bias = graph.tensor([1, 2], name="b", uid=20)
    mid = graph.bias(x, bias).set_output(True).set_uid(40)
    last = graph.tanh(mid).set_output(True, optional=True).set_uid(10)
    assert graph.inputs() == (bias, x)
    assert graph.outputs() == (last, mid)
    assert last.is_optional and not mid.is_optional
    assert graph.uids() == {"b": 20, "x": 30, "bias.0::OUT_0": 40, "tanh.0::OUT_0": 10}
    assert graph.producer(mid) is graph.nodes[0] and graph.producer(x) is None


def test_names_that_several_tensors_have_name_none():
    graph = new_graph()
    graph.tensor([2], name="same")
    graph.tensor([2], name="same")
    only = graph.tensor([2], name="only")
    assert graph.uids() == {"only": only.uid}
    assert graph.find_tensor("only") is only and graph.find_tensor(only.uid) is only
    with pytest.raises(InvalidGraphError, match="'same' names 2 tensors"):
        graph.find_tensor("same")
    assert graph.find_tensor("other") is None and graph.find_tensor(99) is None


def test_types_and_shapes_are_inferred_and_inferred_again_after_a_change():
    graph, a, b, y = chain()
    graph.validate()
    (matmul, relu) = graph.nodes
    product = matmul.outputs["C"]
    assert (product.dim, product.stride, product.data_type) == ((1, 4, 16), (64, 16, 1), FP32)
    assert (y.dim, y.stride, y.data_type) == ((1, 4, 16), (64, 16, 1), BF16)
    assert (a.stride, a.data_type) == ((32, 8, 1), BF16)
    assert relu.compute_data_type is FP32
    a.set_dim([1, 5, 8])
    y.set_data_type("HALF")
    graph.validate()
    assert (y.dim, y.data_type, a.stride) == ((1, 5, 16), data_type.HALF, (40, 8, 1))


def test_symbolic_extents_flow_through():
    graph = new_graph(symbols={"M": Symbol(1, 64)})
    a = graph.tensor([1, "M", 8])
    y = graph.matmul(a, graph.tensor([1, 8, 16])).set_output(True)
    graph.validate()
    assert [str(e) for e in y.dim] == ["1", "M", "16"]
    assert [str(e) for e in y.stride] == ["16*M", "16", "1"]


@pytest.mark.parametrize(
    "write",
    [
        lambda g, t, n: t.set_name("z"),
        lambda g, t, n: t.set_dim([1]),
        lambda g, t, n: t.set_output(False),
        lambda g, t, n: setattr(t, "uid", 9),
        lambda g, t, n: setattr(t, "data_type", "FLOAT"),
        lambda g, t, n: setattr(n, "name", "z"),
        lambda g, t, n: setattr(n, "compute_data_type", "HALF"),
        lambda g, t, n: g.tensor([1]),
        lambda g, t, n: g.relu(t),
    ],
)
def test_every_write_after_the_freeze_raises(write):
    graph, _, _, y = chain()
    graph.freeze()
    key = graph.key()
    with pytest.raises(FrozenGraphError, match="the graph is frozen"):
        write(graph, y, graph.nodes[0])
    assert issubclass(FrozenGraphError, RuntimeError)
    assert graph.key() == key == chain()[0].key()


def test_ports_attributes_and_symbols_are_read_only():
    graph, a, _, _ = chain()
    node = graph.nodes[0]
    for mapping in (node.inputs, node.outputs, node.attrs, graph.tensors, graph.symbols):
        with pytest.raises(TypeError):
            mapping["A"] = a
    with pytest.raises(AttributeError):
        node.op = "tanh"
    with pytest.raises(AttributeError, match="cannot set 'color' of a tensor"):
        a.color = "red"


def test_freeze_validates_and_is_idempotent():
    graph = new_graph()
    with pytest.raises(InvalidGraphError, match="no node"):
        graph.freeze()
    assert not graph.is_frozen
    graph, *_ = chain()
    assert graph.freeze() is graph is graph.freeze()
    assert graph.is_frozen


def test_tensor_like_numpy_torch_and_its_own_kind():
    class TorchTensor:
        shape = (2, 3)
        dtype = "torch.bfloat16"

        def stride(self):
            return (1, 2)

    graph = new_graph()
    array = graph.tensor_like(np.zeros((4, 6), np.float16).T)
    assert (array.dim, array.stride, array.data_type) == ((6, 4), (1, 6), data_type.HALF)
    foreign = graph.tensor_like(TorchTensor(), name="t")
    assert (foreign.dim, foreign.stride, foreign.data_type) == ((2, 3), (1, 2), BF16)
    again = graph.tensor_like(foreign)
    assert (again.dim, again.stride, again.data_type) == ((2, 3), (1, 2), BF16)
    assert again.uid != foreign.uid and again.name == ""
    with pytest.raises(InvalidGraphError, match="tensor_like: got list"):
        graph.tensor_like([1, 2])


def test_tensor_scalar():
    graph = new_graph()
    half = graph.tensor_scalar(0.5)
    assert (half.dim, half.data_type, half.pass_by_value) == ((1,), FP32, 0.5)
    assert half.is_pass_by_value and half.scalar_type is scalar_type.RUNTIME_PARAM
    two = graph.tensor_scalar(2, scalar_type.COMPILE_TIME_CONST, name="two")
    assert (two.data_type, two.pass_by_value) == (data_type.INT32, 2)
    assert two.scalar_type is scalar_type.COMPILE_TIME_CONST


def test_getters_of_the_frontend():
    graph, a, _, y = chain()
    assert y.get_data_type() is data_type.NOT_SET
    graph.validate()
    assert (a.get_uid(), a.get_name(), a.get_dim(), a.get_stride()) == (
        1,
        "A",
        [1, 4, 8],
        [32, 8, 1],
    )
    assert (y.get_data_type(), y.get_is_virtual()) == (BF16, False)


def test_what_belongs_to_a_device_is_accepted_or_refused_by_meaning():
    assert (
        new_graph(handle=object(), kernel_cache=object(), is_dynamic_shape_enabled=True).nodes == ()
    )
    with pytest.raises(cudnnGraphNotSupportedError, match="come from the target"):
        new_graph(sm_count=80)


def test_the_frontend_s_way_to_look_at_a_graph():
    graph, a, b, y = chain()
    graph.validate()
    assert (graph.get_inputs(), graph.get_outputs()) == ([a, b], [y])
    assert graph.context.io_data_type is BF16
    with pytest.raises(FrozenGraphError, match="cannot set io_data_type"):
        graph.context.io_data_type = BF16
    assert graph.get_node("relu.0") is graph.nodes[1] and graph.get_node("relu.1") is None
    seen = graph.inspect()
    assert seen["context"]["compute_data_type"] == "FLOAT"
    assert [(node["type"], node["op"]) for node in seen["nodes"]] == [
        ("MATMUL", "matmul"),
        ("POINTWISE", "relu"),
    ]
    assert seen["nodes"][1]["outputs"] == {"OUT_0": y.uid}
    assert seen["tensors"][y.uid] == {
        "name": "relu.0::OUT_0",
        "dim": [1, 4, 16],
        "stride": [64, 16, 1],
        "data_type": "BFLOAT16",
        "is_virtual": False,
    }


def test_strides_that_are_not_given_are_row_major_at_once():
    graph = new_graph()
    x = graph.tensor([2, 4])
    assert x.get_stride() == [4, 1]
    graph.relu(x).set_output(True)
    x.set_dim([2, 8])
    graph.validate()
    assert x.get_stride() == [8, 1]
