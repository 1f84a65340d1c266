"""From open to planned: what may change when, and what a change undoes."""

import enum
import operator
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type, tensor_reordering
from cudnn_aot.compiler.graph.graph import Graph, Stage
from cudnn_aot.compiler.graph.key import graph_key
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import FrozenGraphError, InvalidGraphError

BF16, FP32 = data_type.BFLOAT16, data_type.FLOAT


def attention():
    """A graph with every kind of thing: a ragged operand, a scalar, attributes, two outputs."""
    graph = Graph("", BF16, FP32, FP32)
    offsets = graph.tensor([3, 1, 1, 1], None, "INT32", name="offsets")
    q = graph.tensor([2, 4, 16, 8], name="q", ragged_offset=offsets)
    scale = graph.tensor_scalar(0.5, name="scale")
    rows = graph.tensor([2, 1, 1, 1], None, "INT32", name="rows")
    lengths = {"use_padding_mask": True, "seq_len_q": rows, "seq_len_kv": rows}
    dropout = (0.1, scale, scale)
    out, stats = graph.sdpa(
        q, q, q, attn_scale=scale, is_inference=False, dropout=dropout, **lengths
    )
    out.set_output(True).set_ragged_offset(offsets)
    stats.set_output(True)
    return graph, q, out


WRITES = {
    "set_output": lambda g, t, n: t.set_output(False),
    "set_data_type": lambda g, t, n: t.set_data_type("HALF"),
    "set_dim": lambda g, t, n: t.set_dim([1, 4, 16, 8]),
    "set_stride": lambda g, t, n: t.set_stride([9999, 128, 8, 1]),
    "set_uid": lambda g, t, n: t.set_uid(99),
    "set_name": lambda g, t, n: t.set_name("z"),
    "set_ragged_offset": lambda g, t, n: t.set_ragged_offset(None),
    "set_ragged_offset_multiplier": lambda g, t, n: t.set_ragged_offset_multiplier(4),
    "set_reordering_type": lambda g, t, n: t.set_reordering_type("F8_128x4"),
    "set_is_pass_by_value": lambda g, t, n: t.set_is_pass_by_value(True),
    "set_is_virtual": lambda g, t, n: t.set_is_virtual(True),
    "set_alignment_value": lambda g, t, n: t.set_alignment_value(16),
    "dim": lambda g, t, n: setattr(t, "dim", [1]),
    "pass_by_value": lambda g, t, n: setattr(t, "pass_by_value", 1.0),
    "scalar_type": lambda g, t, n: setattr(t, "scalar_type", "RUNTIME_PARAM"),
    "is_optional": lambda g, t, n: setattr(t, "is_optional", True),
    "node name": lambda g, t, n: setattr(n, "name", "z"),
    "compute_data_type": lambda g, t, n: setattr(n, "compute_data_type", "HALF"),
    "tensor": lambda g, t, n: g.tensor([1]),
    "tensor_like": lambda g, t, n: g.tensor_like(t),
    "tensor_scalar": lambda g, t, n: g.tensor_scalar(1.0),
    "pointwise": lambda g, t, n: g.relu(t),
    "structured": lambda g, t, n: g.reduction(t, mode="ADD"),
    "captured": lambda g, t, n: g.sdpa(t, t, t),
    "add_node": lambda g, t, n: g.add_node("relu", {"input": t}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_every_write_undoes_a_validation_and_is_refused_after_planning(write):
    graph, _, out = attention()
    graph.validate()
    assert graph.stage is Stage.VALID
    write(graph, out, graph.nodes[0])
    assert graph.stage is Stage.OPEN

    graph, _, out = attention()
    graph.begin_planning()
    key, before = graph.key(), repr([*graph.tensors.values()])
    with pytest.raises(FrozenGraphError, match="cannot .*: the graph is frozen; build a new graph"):
        write(graph, out, graph.nodes[0])
    assert repr([*graph.tensors.values()]) == before
    assert graph.key() == key == attention()[0].key()


READERS = ("canonical", "inputs", "outputs", "inspect", "uids")


def public_reads(thing):
    """What the public attributes and readers without parameters of an object give, by name."""
    for name in dir(thing):
        if name.startswith("_") or isinstance(thing, Graph) and name in (*OPS, "get_node"):
            continue
        value = getattr(thing, name)
        if not callable(value):
            yield name, lambda name=name: getattr(thing, name)
        elif name.startswith("get_") or name in READERS:
            yield name, value


def reachable(graph):
    """What is reached from a graph by public names, each with its path and reader.

    Tuples are passed through; what a dictionary, list or set holds is not looked at.
    """
    seen, found = [graph], list(public_reads(graph))
    while found:
        path, read = found.pop()
        thing = read()
        if any(thing is other for other in seen) or path.count("view") > 1:
            continue  # views are made when asked for: one of each node is enough
        seen.append(thing)
        inside = thing.items() if isinstance(thing, MappingProxyType) else ()
        if isinstance(thing, tuple | frozenset):
            inside = enumerate(thing)
        elif isinstance(thing, Mapping | list | set):
            yield path, read, thing
        elif type(thing).__module__.startswith("cudnn_aot.") and not isinstance(thing, enum.Enum):
            yield path, read, thing
            found += [(f"{path}.{name}", reader) for name, reader in public_reads(thing)]
        found += [(f"{path}[{where!r}]", lambda item=item: item) for where, item in inside]


def test_nothing_can_be_edited_in_place():
    """What a frozen graph gives by public names refuses to be written, or is a container that is
    made anew for each who asks.
    """
    graph, _, _ = attention()
    graph.freeze()
    key, text = graph_key(graph), graph_json.dumps(graph)
    paths = []
    for path, read, thing in reachable(graph):
        paths.append(path)
        if isinstance(thing, dict | list | set):
            assert read() is not thing, path
        elif isinstance(thing, Mapping):
            for edit in (operator.setitem, lambda each, *_: each.update(A=7)):
                with pytest.raises((TypeError, AttributeError)):
                    edit(thing, "A", 7)
        else:
            for name in [name for name in dir(thing) if not name.startswith("_")]:
                for edit in (setattr, lambda each, name, _: delattr(each, name)):
                    with pytest.raises((AttributeError, FrozenGraphError)):
                        edit(thing, name, 7)
    assert (graph_key(graph), graph_json.dumps(graph)) == (key, text)
    for known in ("view.inputs", "view.outputs", "view.attrs", "attr_rows", "ragged_offset"):
        assert any(path.endswith(known) for path in paths), known


@pytest.mark.parametrize("is_valid", [False, True])
def test_an_open_graph_is_changed_by_its_setters_alone(is_valid):
    graph, q, _ = attention()
    if is_valid:
        graph.validate()
    node, before = graph.nodes[0], attention()[0].key()
    for field in ("inputs", "outputs", "attrs", "compute_data_type", "name"):
        with pytest.raises(AttributeError, match="a view is for reading"):
            setattr(node.view, field, None)
        with pytest.raises(AttributeError):
            delattr(node.view, field)
    ports = [each for owner in (node, node.view) for each in (owner.inputs, owner.outputs)]
    for mapping in (*ports, node.attrs, node.view.attrs, node.said):
        with pytest.raises(TypeError):
            mapping["q"] = q
    assert graph.key() == before


def test_a_validation_is_done_once_and_again_after_a_change():
    graph = Graph("", BF16, FP32, FP32)
    x = graph.tensor([2, 4])
    y = graph.relu(x).set_output(True)
    graph.validate()
    graph.validate()
    assert graph.stage is Stage.VALID and y.dim == (2, 4)
    x.set_dim([2, 5])
    assert graph.stage is Stage.OPEN
    graph.validate()
    assert y.dim == (2, 5)
    y.set_dim([2, 4])
    with pytest.raises(InvalidGraphError, match=r"got dim \[2, 4\], want \[2, 5\]"):
        graph.validate()
    assert graph.stage is Stage.OPEN and not graph.is_frozen  # and may be mended
    y.set_dim([2, 5])
    assert graph.freeze().stage is Stage.FROZEN


def test_planning_is_one_shot():
    graph, _, _ = attention()
    assert graph.begin_planning() is graph
    assert graph.stage is Stage.PLANNED and graph.is_frozen
    with pytest.raises(FrozenGraphError, match="planning is one-shot; build a new graph"):
        graph.begin_planning()
    graph.validate()
    graph.freeze()
    assert graph.stage is Stage.PLANNED
    broken = Graph("", BF16, FP32, FP32)
    with pytest.raises(InvalidGraphError, match="the graph has no node"):
        broken.begin_planning()
    assert broken.stage is Stage.OPEN


def test_a_uid_may_be_set_to_itself_at_any_time():
    graph, q, _ = attention()
    graph.freeze()
    assert q.set_uid(q.uid) is q and not q.uid_assigned
    with pytest.raises(FrozenGraphError):
        q.set_uid(q.uid + 1)


def test_a_ragged_offset_is_an_operand():
    graph, q, out = attention()
    offsets = q.ragged_offset
    graph.freeze()
    assert offsets in graph.inputs() and offsets is out.ragged_offset
    assert all(offsets not in node.inputs.values() for node in graph.nodes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, q, o: o.set_is_virtual(True), "'offsets' .* is virtual, but no node"),
        (lambda g, q, o: o.set_is_pass_by_value(True), "its ragged offset .* is no graph input"),
        (lambda g, q, o: o.set_ragged_offset(o), "its ragged offset .* is ragged itself"),
        (lambda g, q, o: q.set_ragged_offset(g.nodes[0].outputs["O"]), "is no graph input"),
        (lambda g, q, o: o.set_ragged_offset_multiplier(4), "multiplier 4 and no ragged_offset"),
        (lambda g, q, o: q.set_ragged_offset(attention()[1]), "belongs to another graph"),
        (lambda g, q, o: q.set_ragged_offset(3), "port ragged_offset: got int, want a tensor"),
        (lambda g, q, o: q.set_ragged_offset_multiplier(0), "bad ragged_offset_multiplier: got 0"),
        (lambda g, q, o: q.set_reordering_type("F8"), "bad reordering_type: got 'F8', want .*NONE"),
        (lambda g, q, o: q.set_alignment_value(24), "alignment_value: got 24, want a power of two"),
        (lambda g, q, o: q.set_alignment_value(0), "bad alignment_value: got 0"),
    ],
)  # fmt: skip
def test_wrong_fields_of_a_tensor(change, message):
    graph, q, _ = attention()
    with pytest.raises(InvalidGraphError, match=message):
        change(graph, q, q.ragged_offset)
        graph.validate()


def test_what_inference_found_gives_way_and_what_callers_set_stays():
    graph = Graph("", BF16, FP32, FP32)
    x, half = graph.tensor([1, 4, 8]), graph.tensor_scalar(0.1)
    y = graph.mul(x, half).set_output(True).set_data_type("HALF")
    graph.validate()
    rounded = half.pass_by_value
    assert (rounded == 0.1, half.declared_value) == (False, 0.1)
    assert (x.dim_assigned, x.stride_assigned, x.data_type_assigned) == (True, False, False)
    assert (y.dim_assigned, y.stride_assigned, y.data_type_assigned) == (False, False, True)
    x.set_dim([1, 2, 3])
    half.set_data_type("DOUBLE")
    graph.validate()
    assert (x.stride, y.dim, y.stride) == ((6, 3, 1), (1, 2, 3), (6, 3, 1))
    assert (half.pass_by_value, half.declared_value) == (0.1, 0.1)
    y.set_stride([6, 1, 2])
    half.pass_by_value = 3
    x.set_dim([1, 2, 3]).set_stride(())
    graph.validate()
    assert (y.stride, y.stride_assigned, half.pass_by_value) == ((6, 1, 2), True, 3.0)
    y.set_dim([1, 2, 4])
    for _ in range(2):
        with pytest.raises(InvalidGraphError, match=r"got dim \[1, 2, 4\], want \[1, 2, 3\]"):
            graph.validate()
    y.set_dim(()).set_stride(())
    graph.validate()
    assert (y.dim, y.stride, y.dim_assigned) == ((1, 2, 3), (6, 3, 1), False)


def test_fields_are_read_back_as_they_were_set():
    graph = Graph()
    offsets = graph.tensor([3])
    q = graph.tensor(
        [2, 8],
        ragged_offset=offsets,
        reordering_type=tensor_reordering.F8_128x4,
        ragged_offset_multiplier=8,
        alignment_value=16,
        uid=-1,
    )
    assert (q.uid, q.uid_assigned, q.ragged_offset) == (2, False, offsets)
    assert q.get_reordering_type() is q.reordering_type is tensor_reordering.F8_128x4
    assert (q.get_ragged_offset_multiplier(), q.alignment_value) == (8, 16)
    assert offsets.reordering_type is tensor_reordering.NONE
    assert graph.tensor([1], reordering_type=None).reordering_type is tensor_reordering.NONE


def test_offsets_of_experts_promise_what_their_values_are_multiples_of():
    graph = Graph("", BF16, FP32, FP32)
    first = graph.tensor([3, 1, 1], None, "INT32", alignment_value=24)
    token, weight = graph.tensor([1, 24, 8]), graph.tensor([3, 8, 8])
    graph.moe_grouped_matmul(token, weight, first).set_output(True)
    graph.freeze()


def test_a_result_that_nobody_asked_for_needs_no_type_and_does_not_count():
    def build(stats_type):
        graph = Graph("", BF16, None, FP32)
        q, one = graph.tensor([2, 4, 16, 16]), graph.tensor([1, 1, 1, 1], None, FP32)
        row = graph.tensor([2, 4, 16, 1], None, FP32)
        built = graph.sdpa_fp8_backward(*[q] * 5, row, *[one] * 12)
        for tensor in built[:3]:
            tensor.set_output(True)
        if stats_type:
            built[3].set_data_type(stats_type)
        assert graph.is_discarded(built[3]) and not graph.is_discarded(built[0])
        return graph.key()

    assert build(None) == build("HALF")


def test_nothing_of_a_graph_can_be_deleted():
    graph, q, _ = attention()
    key = graph.key()
    holders = (
        (q, ("dim", "uid", "_graph")),
        (graph.nodes[0], ("compute_data_type", "_view", "name")),
        (graph, ("_nodes", "_stage", "_key")),
        (graph.context, ("io_data_type",)),
    )
    for holder, fields in holders:
        for field in fields:
            with pytest.raises(
                (AttributeError, FrozenGraphError), match=f"cannot delete .*{field}"
            ):
                delattr(holder, field)
    assert graph.key() == key
