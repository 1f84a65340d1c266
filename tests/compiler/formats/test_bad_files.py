"""Every kind of wrong file gives one clear line, and never another exception."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.json_reader import MAX_BYTES, parse
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.errors import Error, InvalidGraphError, UsageError

GOOD: dict[str, Any] = {
    "cudnn_aot_graph": 1,
    "io_data_type": "HALF",
    "intermediate_data_type": "FLOAT",
    "compute_data_type": "FLOAT",
    "symbols": {"M": {"min": 1, "max": 64}},
    "tensors": [
        {"uid": 1, "name": "A", "dim": [1, "M", 8]},
        {"uid": 2, "name": "B", "dim": [1, 8, 16]},
        {"uid": 3, "is_virtual": True},
        {"uid": 4},
    ],
    "nodes": [
        {"op": "matmul", "inputs": {"A": 1, "B": 2}, "outputs": {"C": 3}},
        {"op": "relu", "inputs": {"input": 3}, "outputs": {"OUT_0": 4}},
    ],
}


class _Delete:
    def __repr__(self) -> str:
        return "nothing"


DELETE = _Delete()


def edited(path: str, value: Any) -> str:
    document = copy.deepcopy(GOOD)
    target: Any = document
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        target = target[part]
    if value is DELETE:
        del target[last]
    elif isinstance(target, list) and last == len(target):
        target.append(value)
    else:
        target[last] = value
    return json.dumps(document)


EDITS = [
    ("cudnn_aot_graph", 2, "$.cudnn_aot_graph: got version 2, want 1"),
    ("cudnn_aot_graph", "1", '$.cudnn_aot_graph: got "1", want an integer'),
    ("colour", 1, "$.colour: unknown field; known: cudnn_aot_graph, tensors, nodes, name"),
    ("a b", 1, '$["a b"]: unknown field'),
    ("nodes", DELETE, "$: field 'nodes' is missing"),
    ("nodes", {}, "$.nodes: got an object, want a list"),
    ("nodes", [], "the graph has no node"),
    ("name", 3, "$.name: got 3, want text"),
    ("name", "\ud800", r"$.name: got '\ud800', want text without half of a surrogate pair"),
    ("io_data_type", "BF16", '$.io_data_type: got "BF16", want one of FLOAT, DOUBLE, HALF'),
    ("io_data_type", "NOT_SET", '$.io_data_type: got "NOT_SET", want one of FLOAT'),
    ("io_data_type", ["HALF"], "$.io_data_type: got a list, want one of FLOAT"),
    ("symbols", [], "$.symbols: got a list, want an object"),
    ("symbols.M.max", 0, "$.symbols: symbol 'M': got min 1 and max 0"),
    ("symbols.M.most", 9, "$.symbols.M.most: unknown field; known: min, max, hint, multiple_of"),
    ("symbols.M.max", 8.5, "$.symbols.M.max: got 8.5, want an integer"),
    ("symbols.2M", {}, "$.symbols: bad symbol name: got '2M'"),
    ("symbols", {}, "tensor 'A' (uid 1): symbol 'M' is not declared (declared: none)"),
    ("symbols.Q", {}, "symbol 'Q' is declared, but no tensor uses it"),
    ("tensors.0.uid", DELETE, "$.tensors[0]: field 'uid' is missing"),
    ("tensors.0.uid", 2, "$.tensors[1]: uid 2 is used twice"),
    ("tensors.0.uid", -1, "$.tensors[0].uid: got -1, want 0 <= uid < 2**63"),
    ("tensors.0.uid", True, "$.tensors[0].uid: got true, want an integer"),
    ("tensors.0.uid", 1.0, "$.tensors[0].uid: got 1.0, want an integer"),
    ("tensors.0.uid", 2**63, "$.tensors[0].uid: got 9223372036854775808, want an integer below"),
    ("tensors.0.uid", 10**400, "$.tensors[0].uid: got an integer of 401 digits, want an integer"),
    ("tensors.0.dim", DELETE, "tensor 'A' (uid 1) has no dim"),
    ("tensors.0.dim", [], "$.tensors[0].dim: got no extents"),
    ("tensors.0.dim", "M", '$.tensors[0].dim: got "M", want a list'),
    ("tensors.0.dim.2", -8, "$.tensors[0].dim[2]: bad extent: got -8"),
    ("tensors.0.dim.2", 8.0, "$.tensors[0].dim[2]: got 8.0, want an integer or text"),
    ("tensors.0.dim.2", None, "$.tensors[0].dim[2]: got null, want an integer or text"),
    ("tensors.0.dim.1", "M+1", "$.tensors[0].dim[1]: bad extent: got 'M+1'"),
    ("tensors.0.stride", [1], "tensor 'A' (uid 1): got 1 strides for 3 extents"),
    ("tensors.0.is_virtual", 1, "$.tensors[0].is_virtual: got 1, want true or false"),
    ("tensors.0.name", None, "$.tensors[0].name: got null, want text"),
    ("tensors.0.alignment_value", 0, "$.tensors[0]: bad alignment_value: got 0, want an integ"),
    ("tensors.0.alignment_value", 3, "tensor 'A' (uid 1): alignment_value: got 3, want a power"),
    ("tensors.0.ragged_offset", 9, "$.tensors[0].ragged_offset: no tensor has uid 9"),
    ("tensors.0.ragged_offset", 3, "tensor 'A' (uid 1): its ragged offset tensor 'matmul.0"),
    ("tensors.0.ragged_offset", -1, "$.tensors[0].ragged_offset: got -1, want 0 <= uid < 2**63"),
    ("tensors.0.ragged_offset_multiplier", 0, "$.tensors[0]: bad ragged_offset_multiplier: got 0"),
    ("tensors.0.ragged_offset_multiplier", 4, "tensor 'A' (uid 1): got ragged_offset_multiplier"),
    ("tensors.0.reordering_type", "SWAP", '$.tensors[0].reordering_type: got "SWAP", want one of'),
    ("tensors.0.pass_by_value", "1", '$.tensors[0].pass_by_value: got "1", want a number'),
    ("tensors.0.pass_by_value", 1, "tensor 'A' (uid 1) has a pass_by_value but is not"),
    ("tensors.0.scalar_type", "CONST", '$.tensors[0].scalar_type: got "CONST", want one of'),
    ("tensors.0.shape", [1], "$.tensors[0].shape: unknown field; known: uid, name"),
    ("tensors.4", {"uid": 9, "dim": [1]}, "tensor uid 9 is not used by any node"),
    ("tensors.4", [], "$.tensors[4]: got a list, want an object"),
    ("tensors.1.dim", [1, 9, 16], "node 'matmul.0' (matmul): port B: got dim [1, 9, 16], want K"),
    ("nodes.0.op", "matmull", "$.nodes[0].op: unknown op 'matmull' (did you mean 'matmul'?); "),
    ("nodes.0.op", DELETE, "$.nodes[0]: field 'op' is missing"),
    ("nodes.0.kind", "x", "$.nodes[0].kind: unknown field; known: op, inputs, outputs, name"),
    ("nodes.1.attrs", {"foo": 1}, "$.nodes[1].attrs.foo: unknown field; known: negative_slope"),
    ("nodes.1.attrs", {"upper_clip": "six"}, '$.nodes[1].attrs.upper_clip: got "six", want a n'),
    ("nodes.1.attrs", {"upper_clip": None}, "$.nodes[1].attrs.upper_clip: got null, want a number"),
    ("nodes.1.attrs", {"upper_clip": [6]}, "$.nodes[1].attrs.upper_clip: got a list, want a num"),
    ("nodes.1.inputs.input", 7, "$.nodes[1].inputs.input: no tensor has uid 7"),
    ("nodes.1.inputs.input", 4, "$.nodes[1]: the node depends on its own result"),
    ("nodes.1.inputs.input", -1, "$.nodes[1].inputs.input: got -1, want 0 <= uid < 2**63"),
    ("nodes.1.inputs.input", "3", '$.nodes[1].inputs.input: got "3", want an integer'),
    ("nodes.1.inputs", {"x": 3}, "$.nodes[1]: node 'relu.0' (relu): no input port 'x'; it has: in"),
    ("nodes.1.inputs", {}, "$.nodes[1]: node 'relu.0' (relu): input port input is not wired"),
    ("nodes.1.outputs", {"OUT_0": 3}, "$.nodes[1].outputs.OUT_0: uid 3 is already produced at $.n"),
    ("nodes.1.outputs", {"OUT_1": 4}, "$.nodes[1]: node 'relu.0' (relu): no output port 'OUT_1'"),
    ("nodes.0.compute_data_type", "X", '$.nodes[0].compute_data_type: got "X", want one of'),
    ("tensors.3.is_virtual", True, "the graph has no output"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"), EDITS, ids=[f"{p}={v}"[:40] for p, v, _ in EDITS]
)
def test_one_wrong_field_is_named_by_its_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        graph_json.loads(edited(path, value))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


TEXT = json.dumps(GOOD)
RAW = [
    (b"", "not JSON: the file is empty"),
    (b"  \n", "not JSON: the file is empty"),
    (b"graph", "not JSON: expecting value (line 1, column 1)"),
    (TEXT[:-1].encode(), "not JSON: expecting ',' delimiter"),
    (TEXT.encode() + b"x", "not JSON: extra data"),
    (b"\xff" + TEXT.encode(), "not UTF-8: byte 0xff at offset 0"),
    (TEXT.encode("utf-16"), "not UTF-8: byte 0xff at offset 0"),
    (b"\xef\xbb\xbf" + TEXT.encode(), "not JSON: "),
    (b"[" * 100_000, "nested deeper than"),
    (b'{"a":' * 100_000, "nested deeper than"),
    (b" " * (MAX_BYTES + 1), f"got {MAX_BYTES + 1} bytes, want at most {MAX_BYTES}"),
    (b"[]", "$: got a list, want an object"),
    (b"NaN", "$: got NaN, want an object"),
    (TEXT.replace('"uid": 1,', '"uid": 1, "uid": 5,').encode(), "$.tensors[0]: key 'uid' is given"),
    (TEXT.replace('"uid": 4', '"uid": NaN').encode(), "$.tensors[3].uid: got NaN, want an integer"),
    (
        TEXT.replace('"uid": 4', '"uid": 4, "pass_by_value": -Infinity').encode(),
        "$.tensors[3].pass_by_value: got -Infinity, want a number",
    ),
    (
        TEXT.replace('"uid": 4', '"uid": 4, "pass_by_value": 1e999').encode(),
        "$.tensors[3].pass_by_value: got 1e999, want a number",
    ),
]


@pytest.mark.parametrize(("data", "message"), RAW, ids=range(len(RAW)))
def test_bytes_that_are_no_graph(data: bytes, message: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        graph_json.read(parse(data))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_unedited_text_is_a_graph() -> None:
    assert len(graph_json.loads(TEXT).nodes) == 2


def test_a_cycle_is_named() -> None:
    document = copy.deepcopy(GOOD)
    document["tensors"].append({"uid": 5, "is_virtual": True})
    document["nodes"] += [
        {"op": "tanh", "inputs": {"input": 5}, "outputs": {"OUT_0": 5}},
    ]
    with pytest.raises(InvalidGraphError, match=r"\$\.nodes\[2\]: the node depends on its own"):
        graph_json.loads(json.dumps(document))


def test_errors_of_a_file_start_with_its_path(tmp_path: Any) -> None:
    path = tmp_path / "bad.json"
    path.write_text(edited("nodes.0.op", "matmull"))
    with pytest.raises(InvalidGraphError) as caught:
        load_graphs(path)
    assert str(caught.value).startswith(f"{path}: $.nodes[0].op: unknown op")
    path.write_text('{"weights": []}')
    with pytest.raises(InvalidGraphError, match="not a graph: got no field 'cudnn_aot_graph'"):
        load_graphs(path)
    for wrong in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UsageError, match="cannot read the graph file"):
            load_graphs(wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            found += places(value[key], (*path, key))
    return found


@settings(max_examples=400, deadline=None)
@given(place=st.sampled_from(places(GOOD)), value=JSON)
def test_any_value_anywhere_is_read_or_refused_in_one_line(place: Any, value: Any) -> None:
    document = copy.deepcopy(GOOD)
    target: Any = document
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    try:
        graph = graph_json.loads(json.dumps(document))
    except Error as error:
        assert isinstance(error, InvalidGraphError) and "\n" not in str(error)
    else:
        assert graph_json.loads(graph_json.dumps(graph)).key() == graph.key()


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        graph_json.read(parse(data))
    assert "\n" not in str(caught.value)
