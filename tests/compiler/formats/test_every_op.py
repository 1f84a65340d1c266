"""Our graph file holds whatever a graph of any op says; the schema agrees with the reader."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from op_cases import KINDS, graph_of, without_rules

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.formats.schema import graph_schema
from cudnn_aot.compiler.graph import attr as attr_types
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError

ROOT = Path(__file__).resolve().parents[3]
PEER = sorted((ROOT / "tests/data/peer_graphs").glob("*/*.json"))
VALIDATOR = Draft202012Validator(graph_schema())
_rules = pytest.fixture(autouse=True)(without_rules)

TENSOR_FIELDS = (
    "uid",
    "name",
    "data_type",
    "dim",
    "stride",
    "is_virtual",
    "is_optional",
    "is_pass_by_value",
    "pass_by_value",
    "scalar_type",
    "ragged_offset_multiplier",
    "reordering_type",
    "alignment_value",
)


def said(graph: Graph) -> dict[str, Any]:
    """Everything that a graph says, in plain data."""
    return {
        "tensors": [
            (
                {field: getattr(tensor, field) for field in TENSOR_FIELDS},
                None if tensor.ragged_offset is None else tensor.ragged_offset.uid,
            )
            for tensor in graph.tensors.values()
        ],
        "nodes": [
            (
                node.op,
                node.name,
                node.compute_data_type,
                {port: tensor.uid for port, tensor in node.inputs.items()},
                {port: tensor.uid for port, tensor in node.outputs.items()},
                dict(node.attrs),
            )
            for node in graph.nodes
        ],
        "symbols": dict(graph.symbols),
    }


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_op_survives_a_file(op: str, kind: str) -> None:
    graph = graph_of(op, kind)
    text = graph_json.dumps(graph)
    again = graph_json.loads(text)
    assert said(again) == said(graph)
    assert again.key() == graph.key()
    assert graph_json.dumps(again) == text
    VALIDATOR.validate(json.loads(text))


@pytest.mark.parametrize("op", OPS)
def test_results_that_declare_what_inference_would_give_are_not_written(op: str) -> None:
    """A graph has one text, whether its builder or inference said what a result is."""
    graph = graph_of(op, "required")
    text = graph_json.dumps(graph)
    for tensor in graph.outputs():
        dim, stride, dtype = tensor.dim, tensor.stride, tensor.data_type
        tensor.set_dim(dim).set_stride(stride).set_data_type(dtype)
    assert graph_json.dumps(graph) == text


def test_every_field_of_a_tensor_survives() -> None:
    graph = Graph("all", "HALF", "FLOAT", "FLOAT", symbols={"B": {"max": 8}, "S": {"max": 64}})
    offset = graph.tensor(["B"], [1], "INT32", name="offset")
    q, k, v = (
        graph.tensor(["B", 2, "S", 8], ["16*S", 8, 16, 1], name=name, ragged_offset=offset)
        for name in "qkv"
    )
    for tensor, multiplier in zip((q, k, v), (1, 16, 128), strict=True):
        tensor.set_ragged_offset_multiplier(multiplier).set_alignment_value(multiplier)
    scale = graph.tensor_scalar(0.5, scalar_type.COMPILE_TIME_CONST)
    (o, stats) = graph.sdpa(q, k, v, attn_scale=scale, is_inference=False)
    o.set_output(True).set_ragged_offset(offset).set_name("out").set_reordering_type("F16x16")
    stats.set_output(True, optional=True).set_stride(["2*S", "S", 1, 1])
    again = graph_json.loads(graph_json.dumps(graph))
    assert said(again) == said(graph) and again.key() == graph.key()
    assert again.tensors[o.uid].ragged_offset is again.tensors[offset.uid]


@pytest.mark.parametrize("op", ["sdpa", "sdpa_backward"])
def test_a_function_cannot_be_written(op: str) -> None:
    graph = graph_of(op, "required")
    (node,) = graph.nodes
    other = Graph("", "HALF", "FLOAT", "FLOAT")
    tensors = {p: other.tensor(t.dim) for p, t in node.inputs.items()}
    made = other.add_node(op, tensors, {"score_mod": lambda g, s: s})
    next(iter(made.outputs.values())).set_output(True)
    with pytest.raises(InvalidGraphError, match="a Python function cannot be written"):
        graph_json.dumps(other)


def node_edit(op: str, kind: str = "attributes") -> tuple[dict[str, Any], dict[str, Any]]:
    document = json.loads(graph_json.dumps(graph_of(op, kind)))
    return document, document["nodes"][0]["attrs"]


WRONG = [
    ("reduction", "mode", "SUM", 'attrs.mode: got "SUM", want one of ADD, MUL'),
    ("reduction", "mode", "NOT_SET", 'attrs.mode: got "NOT_SET", want one of ADD'),
    ("reduction", "mode", 1, "attrs.mode: got 1, want one of ADD"),
    ("sdpa", "score_mod", "f", "attrs.score_mod: a Python function cannot be in a file"),
    ("sdpa", "use_causal_mask", 1, "attrs.use_causal_mask: got 1, want true or false"),
    ("sdpa", "softmax_precision", "DOUBLE", 'got "DOUBLE", want one of FLOAT, HALF'),
    ("sdpa", "sliding_window_length", 2.5, "attrs.sliding_window_length: got 2.5, want an integer"),
    ("sdpa", "sliding_window_length", True, "attrs.sliding_window_length: got true, want an int"),
    ("sdpa", "attn_scale", "0.5", 'attrs.attn_scale: got "0.5", want a number'),
    ("sdpa", "attn_scale", None, "attrs.attn_scale: got null, want a number"),
    ("gdn", "gate_domain", "cubic", 'attrs.gate_domain: got "cubic", want one of log, linear'),
    ("transpose", "permutation", 1, "attrs.permutation: got 1, want a list"),
    ("transpose", "permutation", [0, "1"], 'attrs.permutation[1]: got "1", want an integer'),
    ("slice", "slices", [[0, 1]], "attrs.slices[0]: got 2 values, want [start, stop, step]"),
    ("slice", "slices", [[0, 1, 1.5]], "attrs.slices[0][2]: got 1.5, want an integer"),
    ("slice", "slices", [[None, 1, 1]], "attrs.slices[0][0]: got null, want an integer"),
]


@pytest.mark.parametrize(("op", "name", "value", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_attributes_are_named_by_path(op: str, name: str, value: Any, message: str) -> None:
    document, attrs = node_edit(op)
    attrs[name] = value
    with pytest.raises(InvalidGraphError) as caught:
        graph_json.loads(json.dumps(document))
    assert message in str(caught.value) and str(caught.value).startswith("$.nodes[0].attrs.")
    assert not VALIDATOR.is_valid(document)


def test_nodes_of_a_long_file_may_stand_in_reverse() -> None:
    """In linear time: 2,000 nodes in the worst order are read like those in the best."""
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    value = graph.tensor([2])
    for _ in range(2_000):
        value = graph.tanh(value)
    value.set_output(True)
    document = json.loads(graph_json.dumps(graph))
    document["nodes"].reverse()
    assert graph_json.loads(json.dumps(document)).key() == graph.key()


# The schema.


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(graph_schema())
    assert json.loads(json.dumps(graph_schema())) == graph_schema()
    ops = graph_schema()["$defs"]["ops"]
    for spec in OPS.values():
        written = {a.name for a in spec.attrs if a.type is not attr_types.FUNCTION}
        assert set(ops[spec.name]["properties"]["attrs"]["properties"]) == written


@pytest.mark.parametrize("path", sorted((ROOT / "examples/graphs").glob("*.json")))
def test_examples_fit_the_schema(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", PEER, ids=[path.stem for path in PEER])
def test_converted_graphs_fit_the_schema(path: Path) -> None:
    (graph,) = load_graphs(path)
    VALIDATOR.validate(json.loads(graph_json.dumps(graph)))


def samples() -> list[dict[str, Any]]:
    names = ("gemm_scale_two_outputs", "te_thd_sink", "fi_mm_fp4_m512", "layernorm_train_llama")
    documents = []
    for path in PEER:
        if path.stem in (*names, "fi_mm_bf16_override_qkv_bias"):
            (graph,) = load_graphs(path)
            documents.append(json.loads(graph_json.dumps(graph)))
    graph = Graph("slices", "HALF", "FLOAT", "FLOAT")
    x = graph.tensor([4, 8], alignment_value=16)
    y = graph.slice(x, [slice(0, 2), slice(1, 8, 2)])
    graph.concatenate(inputs=[y, graph.tensor([2, 4])], axis=0).set_output(True)
    graph.scale(y, graph.tensor_scalar(0.5)).set_output(True, optional=True)
    return [*documents, json.loads(graph_json.dumps(graph))]


SAMPLES = samples()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.integers(-2, 9)
    | st.floats().filter(lambda x: not x.is_integer())
    | st.sampled_from(["M", "2*M", "HALF", "NONE", "relu", "sdpa", "TRAINING", ""])
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)
# What the reader says of a form, rather than of a graph.
OF_FORM = re.compile(
    r"unknown field|field '.*' is missing|got no extents|got \d+ values, want \[start|"
    r"want (an integer|a number|text|true or false|an object|a list|0 <= uid < 2\*\*63)$|"
    r"want one of |unknown op|want an integer or text|no input port '"
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found += places(value[key], (*path, key))
    return found


@st.composite
def mutated(draw: Any) -> dict[str, Any]:
    document = copy.deepcopy(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(places(document)))
        target: Any = document
        for key in place[:-1]:
            target = target[key]
        change = draw(st.sampled_from(["replace", "delete", "add", "swap"]))
        if change == "delete":
            del target[place[-1]]
        elif change == "add" and isinstance(target, dict):
            target[draw(st.sampled_from(["dim", "attrs", "axis", "x", "ragged_offset"]))] = draw(
                JSON
            )
        elif change == "swap":
            other: Any = document
            for key in draw(st.sampled_from(places(document))):
                other = other[key]
            target[place[-1]] = copy.deepcopy(other)
        else:
            target[place[-1]] = draw(JSON)
    return document


def is_plain(document: Any) -> bool:
    """Whether the text holds only numbers that JSON has and that the reader takes as they are."""
    text = json.dumps(document)
    return not re.search(r"NaN|Infinity|\d{21}", text)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=mutated())
def test_schema_and_reader_agree_on_mutated_documents(document: Any) -> None:
    if not is_plain(document):
        return
    fits = VALIDATOR.is_valid(document)
    try:
        graph_json.loads(json.dumps(document))
    except Exception as error:
        message = str(error)
        assert "\n" not in message
        if OF_FORM.search(message):
            assert not fits, message
    else:
        assert fits, [e.message for e in VALIDATOR.iter_errors(document)][:3]
