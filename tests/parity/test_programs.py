"""Names that programs use around their graphs: handles, decorators, `Graph`, data types."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import cudnn_aot as cudnn
from cudnn_aot.errors import Error, FrozenGraphError, InvalidGraphError, UsageError

dt = cudnn.data_type


def test_a_handle_remembers_its_stream_until_it_is_destroyed():
    handle = cudnn.create_handle()
    assert isinstance(handle, cudnn.Handle) and isinstance(handle, cudnn.handle)
    assert cudnn.get_stream(handle) == 0
    stream = SimpleNamespace(cuda_stream=7)
    cudnn.set_stream(handle=handle, stream=stream)
    assert cudnn.get_stream(handle) is stream
    cudnn.set_stream(handle, None)
    assert cudnn.get_stream(handle) == 0
    cudnn.destroy_handle(handle)
    cudnn.destroy_handle(handle)
    with pytest.raises(UsageError, match="get_stream: the handle is destroyed"):
        cudnn.get_stream(handle)
    with pytest.raises(UsageError, match="set_stream: the handle is destroyed"):
        cudnn.set_stream(handle, 7)


@pytest.mark.parametrize("call", [cudnn.get_stream, cudnn.destroy_handle])
def test_an_address_is_no_handle(call):
    with pytest.raises(TypeError, match="got int, want a handle"):
        call(140234)


def test_versions_name_the_cudnn_that_is_followed():
    assert cudnn.backend_version() == 92801 and cudnn.backend_version_string() == "9.28.1"


def test_graph_makes_a_graph_and_jit_seals_it_and_gives_uids():
    made = []

    @cudnn.graph_cache(lambda m, **_: m, maxsize=2)
    @cudnn.jit(heur_modes=[cudnn.heur_mode.A])
    def product(m, n=8):
        """A product."""
        made.append(m)
        with cudnn.graph(cudnn.create_handle()) as (g, tensors):
            assert tensors == []
            a, b = g.tensor([1, m, 4]), g.tensor([1, 4, n])
            c = g.matmul(a, b).set_output(True)
            return g, [c, a, b]

    graph, uids = product(3)
    assert uids == [3, 1, 2] and graph.is_frozen and graph.name == "cudnn_graph"
    types = (graph.io_data_type, graph.intermediate_data_type, graph.compute_data_type)
    assert types == (dt.HALF, dt.FLOAT, dt.FLOAT)
    with pytest.raises(FrozenGraphError):
        graph.tensor([1])
    assert product.__doc__ == "A product."
    assert product(3)[0] is graph and made == [3]
    product(5), product(7), product(3)
    assert made == [3, 5, 7, 3]  # the oldest of two was dropped


def test_graph_takes_the_arguments_of_pygraph():
    with cudnn.graph(None, "g", dt.BFLOAT16, symbols={"M": {"max": 9}}) as (g, _):
        g.relu(g.tensor(["M", 4], name="x")).set_output(True)
    assert g.io_data_type is dt.BFLOAT16 and g.symbols["M"].max == 9


def linear(**kwargs):
    x = np.zeros((1, 4, 8), np.float16)
    w = np.zeros((1, 8, 16), np.float16)
    with cudnn.Graph(
        io_data_type=dt.HALF, intermediate_data_type=dt.FLOAT, compute_data_type=dt.FLOAT, **kwargs
    ) as g:
        y = g.matmul(x, B=w, name="fc")
        y = g.add(a=y, b=x[..., :1])
        g.relu(y).set_output(True)
    return g, x, w


def test_a_wrapped_graph_names_its_ends():
    g, x, w = linear(inputs=["fc::B", "add.0::b", "fc::0"], outputs=["relu.0::OUT_0"])
    assert g.graph.is_frozen and [node.name for node in g.graph.nodes] == ["fc", "add.0", "relu.0"]
    assert [tensor.dim for tensor in g.inputs] == [(1, 8, 16), (1, 4, 1), (1, 4, 8)]
    assert [tensor.name for tensor in g.outputs] == ["relu.0::OUT_0"]
    assert g.graph.bindings[g.inputs[2].uid] is x
    g.set_io_tuples([w, g.arguments["add.0::b"], x], [g.outputs[0].uid])
    assert [tensor.dim for tensor in g.inputs] == [(1, 8, 16), (1, 4, 1), (1, 4, 8)]


def test_one_buffer_passed_twice_is_one_tensor():
    x = np.zeros((4, 8), np.float16)
    with cudnn.Graph(io_data_type=dt.HALF) as g:
        g.add(x, x).set_output(True)
        one = g.tensor([4, 8])
        g.mul(x, one).set_output(True)
    assert len(g.graph.inputs()) == 2


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (["fc::C"], [], r"inputs\[0\]: tensor 'fc::C' .* is virtual, want an input"),
        (["fc::A"], [], r"inputs\[0\]: got 'fc::A', want one of fc::0, fc::B, add.0::a, add.0::b"),
        (["fc::0", "fc::0"], [], r"inputs\[1\]: tensor 'fc::0' \(uid 1\) is there twice"),
        (["fc::0", "fc::B"], ["relu.0::OUT_0"], r"inputs: tensor 'add.0::b' .* name it too"),
        (["fc::0", "fc::B", "add.0::b"], [], r"outputs: tensor 'relu.0::OUT_0' .* name it too"),
        (["fc::0", object()], [], r"inputs\[1\]: got 'object', want one of"),
    ],
)
def test_ends_that_are_not_the_graph_s(inputs, outputs, message):
    with pytest.raises(InvalidGraphError, match=message):
        linear(inputs=inputs, outputs=outputs)


def test_a_wrapped_graph_is_built_once():
    g, _, _ = linear()
    with pytest.raises(UsageError, match="built already"), g:
        pass
    with pytest.raises(UsageError, match="no graph yet"):
        cudnn.Graph().relu(1)
    with pytest.raises(UsageError, match="inputs: got str, want a list"):
        cudnn.Graph(inputs="x")
    with pytest.raises(InvalidGraphError, match="node name 'r' is used already"):
        with cudnn.Graph(io_data_type=dt.HALF) as g:
            g.relu(g.relu(g.tensor([4]), name="r"), name="r")
    with pytest.raises(ZeroDivisionError), cudnn.Graph() as g:
        _ = 1 / 0


def test_dropout_of_a_wrapped_graph():
    with cudnn.Graph(io_data_type=dt.HALF, intermediate_data_type=dt.FLOAT) as g:
        q = [g.tensor([1, 2, 8, 16], name=name) for name in "qkv"]
        seed, offset = np.zeros((1, 1, 1, 1), np.int64), np.zeros((1, 1, 1, 1), np.int64)
        o, stats = g.sdpa(*q, is_inference=True, dropout=(0.1, seed, offset))
        o.set_output(True)
    assert stats is None and g.graph.nodes[0].attr("dropout_0") == 0.1
    assert {"sdpa.0::dropout::1", "sdpa.0::dropout::2"} <= g.arguments.keys()


def test_data_types_of_frameworks(monkeypatch):
    convert = cudnn.datatypes.torch_to_cudnn_data_type
    torch = SimpleNamespace(bfloat16="torch.bfloat16", float8_e4m3fn="torch.float8_e4m3fn")
    assert convert(torch.bfloat16) is dt.BFLOAT16 and convert(np.dtype("int32")) is dt.INT32
    assert convert("complex64") is None and convert(None) is None
    assert cudnn.datatypes._library_type(torch.float8_e4m3fn) is dt.FP8_E4M3
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="got 'complex64'"):
        cudnn.datatypes._library_type("complex64")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cudnn.datatypes.cudnn_to_torch_data_type(dt.BFLOAT16) == "torch.bfloat16"
    assert cudnn.datatypes.cudnn_to_torch_data_type(dt.FP8_E5M3) is None


def test_every_error_of_these_names_is_ours():
    assert issubclass(UsageError, Error) and issubclass(cudnn.cudnnGraphNotSupportedError, Error)
