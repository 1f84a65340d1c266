"""Tensors of other libraries: described by the attributes they share, passed straight to ports."""

import numpy as np
import pytest

from cudnn_aot.compiler.graph.describe import describe, is_describable
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import InvalidGraphError


class Device:
    def __init__(self, kind):
        self.type = kind


class TorchTensor:
    """Has what a torch tensor has."""

    def __init__(self, shape, stride, dtype="bfloat16", device="cuda"):
        self.shape, self._stride = shape, stride
        self.dtype, self.device = f"torch.{dtype}", Device(device)

    def stride(self):
        return self._stride

    def __dlpack__(self):
        raise AssertionError("declaring a tensor must not export it")


class JaxArray:
    shape, dtype = (2, 5), np.dtype("float32")


class CudaArray:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


class DlpackOnly:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self):
        return self._array.__dlpack__()


@pytest.mark.parametrize(
    ("value", "dim", "stride", "dtype"),
    [
        (TorchTensor((4, 8), (1, 4)), (4, 8), (1, 4), data_type.BFLOAT16),
        (TorchTensor((), (), "float32"), (1,), (1,), data_type.FLOAT),
        (np.zeros((3, 4), np.float16).T, (4, 3), (1, 4), data_type.HALF),
        (np.zeros((6, 4), np.int64)[::2], (3, 4), (8, 1), data_type.INT64),
        (JaxArray(), (2, 5), (5, 1), data_type.FLOAT),
        (CudaArray(shape=(2, 3), typestr="<f2", strides=None), (2, 3), (3, 1), data_type.HALF),
        (CudaArray(shape=(2, 3), typestr="<i4", strides=(4, 8)), (2, 3), (1, 2), data_type.INT32),
        (CudaArray(shape=(2,), typestr="|b1"), (2,), (1,), data_type.BOOLEAN),
        (CudaArray(shape=(2,), typestr="|u1"), (2,), (1,), data_type.UINT8),
        (DlpackOnly(np.zeros((3, 4), np.int8).T), (4, 3), (1, 4), data_type.INT8),
        (DlpackOnly(np.zeros((2, 3), np.float64)), (2, 3), (3, 1), data_type.DOUBLE),
    ],
)
def test_what_a_tensor_declares(value, dim, stride, dtype):
    found = describe(value)
    assert (found.dim, found.stride, found.data_type) == (dim, stride, dtype)


def test_what_is_no_tensor():
    for value in (1, 2.0, "x", [1, 2], None):
        assert not is_describable(value)
        with pytest.raises(InvalidGraphError, match="want an object with shape, strides and dtype"):
            describe(value)


def test_ports_take_them_and_the_graph_remembers_them():
    graph = Graph("", "BFLOAT16", "FLOAT", "FLOAT")
    a, b = TorchTensor((4, 8), (8, 1)), TorchTensor((8, 6), (1, 8), "float16")
    product = graph.matmul(a, b)
    bias = graph.tensor([1, 6])
    graph.bias(product, bias).set_output(True)
    (matmul, _) = graph.nodes
    left, right = matmul.inputs["A"], matmul.inputs["B"]
    assert (left.name, left.dim, left.data_type) == ("matmul.0::A", (4, 8), data_type.BFLOAT16)
    assert (right.stride, right.data_type) == ((1, 8), data_type.HALF)
    assert graph.bindings == {left.uid: a, right.uid: b}
    right.set_uid(77)
    assert graph.bindings == {left.uid: a, 77: b}
    graph.freeze()
    assert product.dim == (4, 6)


def test_a_number_in_host_memory_is_passed_by_value():
    graph = Graph("", "FLOAT", "FLOAT", "FLOAT")
    x = graph.tensor([4, 4])
    graph.scale(x, TorchTensor((1, 1), (1, 1), "float32", "cpu")).set_output(True)
    graph.scale(x, TorchTensor((1, 1), (1, 1), "float32", "cuda")).set_output(True)
    graph.scale(x, TorchTensor((4, 4), (4, 1), "float32", "cpu")).set_output(True)
    assert [node.inputs["scale"].is_pass_by_value for node in graph.nodes] == [True, False, False]
    graph.freeze()


def test_attention_takes_a_tensor_or_a_number_for_its_scale():
    graph = Graph("", "BFLOAT16", "FLOAT", "FLOAT")
    q = TorchTensor((2, 4, 16, 8), (512, 8, 32, 1))
    scale = TorchTensor((1, 1, 1, 1), (1, 1, 1, 1), "float32", "cpu")
    graph.sdpa(q, q, q, attn_scale=scale)
    graph.sdpa(q, q, q, attn_scale=np.float32(0.5))
    first, second = graph.nodes
    assert first.inputs["attn_scale"].is_pass_by_value and not first.attrs
    assert dict(second.attrs) == {"attn_scale": 0.5}
    assert {first.inputs[port].dim for port in "qkv"} == {(2, 4, 16, 8)}
