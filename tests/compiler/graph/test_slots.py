"""Storage slots against the packing that torch's float4_e2m1fn_x2 has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import SymExpr, packed
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.slots import elements_per_slot, slot_bytes, slot_geometry
from cudnn_aot.errors import InvalidGraphError

FP4 = data_type.FP4_E2M1


@pytest.mark.parametrize(
    ("dim", "stride", "slots"),
    [
        ((1, 512, 7168), (3670016, 7168, 1), ((1, 512, 3584), (1835008, 3584, 1))),
        ((1, 7168, 1024), (7340032, 1, 7168), ((1, 3584, 1024), (3670016, 1, 3584))),
        ((4, 1, 6), (6, 1, 1), ((4, 1, 3), (3, 1, 1))),  # the axis of extent 1 is never stepped
        ((2, 3), (1, 2), ((1, 3), (1, 1))),
        ((2, 3), (3, 1), None),  # odd extent
        ((4, 6), (7, 1), None),  # a row starts within a slot
        ((4, 6), (12, 2), None),  # no axis of stride 1
    ],
)
def test_two_elements_share_a_slot_along_the_unit_stride_axis(dim, stride, slots):
    assert slot_geometry(dim, stride, FP4) == slots
    assert slot_geometry(dim, stride, data_type.INT4) == slots
    assert slot_geometry(dim, stride, data_type.FP8_E4M3) == (dim, stride)


def test_symbolic_extents_halve_where_a_coefficient_does():
    m = SymExpr(1, ("M",))
    assert slot_geometry((m, 8), (8, 1), FP4) == ((m, 4), (4, 1))
    even = SymExpr(2, ("M",))
    assert slot_geometry((3, even), (even, 1), FP4) == ((3, m), (m, 1))
    assert slot_geometry((3, m), (m, 1), FP4) is None


@given(
    dim=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_dense_tensor_has_half_as_many_slots(dim, data):
    order = data.draw(st.permutations(range(len(dim))))
    dim[order[-1]] *= 2
    slots = slot_geometry(dim, packed(dim, order), FP4)
    assert slots is not None
    inner, steps = slots
    product = 1
    for extent in inner:
        product *= extent
    whole = 1
    for extent in dim:
        whole *= extent
    assert 2 * product == whole
    # dense in the same order: the last slot is the (product - 1)th
    assert sum((n - 1) * step for n, step in zip(inner, steps, strict=True)) == product - 1


def test_widths():
    assert {d: (elements_per_slot(d), slot_bytes(d)) for d in DTYPES if DTYPES[d].bits < 16} == {
        **dict.fromkeys((data_type.FP4_E2M1, data_type.INT4), (2, 1)),
        **dict.fromkeys(
            (
                data_type.INT8,
                data_type.UINT8,
                data_type.BOOLEAN,
                data_type.FP8_E4M3,
                data_type.FP8_E5M2,
                data_type.FP8_E8M0,
                data_type.FP8_E5M3,
            ),
            (1, 1),
        ),
    }
    assert slot_bytes(data_type.INT8x32) == 32 and slot_bytes(data_type.BFLOAT16) == 2


def test_a_graph_refuses_a_buffer_that_has_no_slots():
    graph = Graph("", FP4, "FLOAT", "FLOAT")
    graph.relu(graph.tensor([4, 3], name="x")).set_output(True).set_data_type("FLOAT")
    with pytest.raises(InvalidGraphError, match="tensor 'x' .*FP4_E2M1.* want an even extent"):
        graph.validate()
    graph = Graph("", "FLOAT", FP4, "FLOAT")  # a virtual tensor has no buffer
    graph.relu(graph.relu(graph.tensor([4, 3]))).set_output(True)
    graph.validate()
