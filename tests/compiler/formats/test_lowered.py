"""The frontend's lowered form: version 2.0 as it writes it, and 1.0 with tensors by name."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot.compiler.formats import graph_json, lowered, peer_blob
from cudnn_aot.compiler.formats.json_reader import parse
from cudnn_aot.compiler.formats.lowered_tags import TAGS
from cudnn_aot.compiler.graph.enums import data_type, diagonal_alignment
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

FOLDER = Path(__file__).parents[2] / "data/peer_graphs/cudnn_frontend_1_32"
DATA = FOLDER / "lowered_matmul_bias_relu.json"


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(DATA.read_text())
    return value


def read(value: dict[str, Any]) -> Graph:
    return lowered.read(parse(json.dumps(value).encode()), "file")


def expected() -> Graph:
    graph = Graph(
        io_data_type=data_type.BFLOAT16,
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
    )
    a, b = graph.tensor([1, 128, 64], uid=1), graph.tensor([1, 64, 256], uid=2)
    y = graph.add(graph.matmul(a, b), graph.tensor([1, 1, 256], uid=3))
    graph.relu(y).set_uid(6).set_output(True)
    return graph


def test_the_frontends_own_file() -> None:
    graph = read(document())
    assert graph.key() == expected().key()
    assert [node.name for node in graph.nodes] == ["mm", "bias_add", "act"]
    assert graph.name == "file"


def test_version_1_keys_tensors_by_uid_or_name() -> None:
    """Tensors without a uid of the caller's are keyed and referred to by name."""
    value = document()
    value["json_version"] = "1.0"
    value["context"]["name"] = "named"
    rows = {}
    for row in value["tensors"]:
        row["uid_assigned"] = not row["is_virtual"]
        rows[row["name"] if row["is_virtual"] else str(row["uid"])] = row
    names = {row["uid"]: row["name"] for row in value["tensors"] if row["is_virtual"]}
    for row in rows.values():
        if not row["uid_assigned"]:
            row["uid"] = 0
    for node in value["nodes"]:
        for side in ("inputs", "outputs"):
            node[side] = {port: names.get(uid, uid) for port, uid in node[side].items()}
    value["tensors"] = rows
    graph = read(value)
    assert (graph.key(), graph.name) == (expected().key(), "named")


def test_attributes_as_numbers_or_bits_of_a_float() -> None:
    value = document()
    value["nodes"][2] |= {"relu_lower_clip_slope": "3DCCCCCD", "relu_upper_clip": 6.0}
    (node,) = (node for node in read(value).nodes if node.op == "relu")
    assert node.attr("negative_slope") == pytest.approx(0.1)
    assert node.attr("upper_clip") == 6.0


def test_types_and_shapes_may_be_left_to_inference() -> None:
    """The log prints a graph before anything is inferred."""
    value = document()
    for row in value["tensors"][3:]:
        row |= {"dim": [], "stride": [], "data_type": None}
    for node in value["nodes"]:
        node["compute_data_type"] = None
    assert read(value).key() == expected().key()


@pytest.mark.parametrize(
    ("path", "new", "error", "reason"),
    [
        (("json_version",), "3.0", cudnnGraphNotSupportedError, "json_version '3.0'"),
        (("nodes", 0, "tag"), "MAMBA", cudnnGraphNotSupportedError, "tag 'MAMBA'"),
        (("nodes", 1, "elu_alpha"), 0.5, cudnnGraphNotSupportedError, "elu_alpha: got 0.5"),
        (("nodes", 1, "new_field"), 1, cudnnGraphNotSupportedError, "new_field"),
        (("nodes", 1, "mode"), "WARP", InvalidGraphError, "unknown op 'warp'"),
        (("nodes", 2, "relu_upper_clip"), "zz", InvalidGraphError, "8 hexadecimal digits"),
        (("nodes", 0, "inputs", "A"), 77, InvalidGraphError, "no tensor 77"),
        (("nodes", 0, "inputs", "A"), [1], InvalidGraphError, "no tensor"),
        (("nodes", 0, "inputs"), None, InvalidGraphError, "want an object"),
        (("nodes", 2, "inputs", "IN_1"), 5, InvalidGraphError, "relu has 1 inputs"),
        (("tensors", 0, "uid"), "x", InvalidGraphError, "want an integer"),
        (("tensors", 0, "dim"), 3, InvalidGraphError, "want a list"),
        (
            ("tensors", 0, "ragged_offset_uid"),
            9,
            InvalidGraphError,
            "ragged_offset_uid: no tensor 9",
        ),
        (("tensors", 0, "reordering_type"), "SWAP", InvalidGraphError, 'got "SWAP", want one of'),
        (("tensors", 0, "reordering_type"), math.inf, InvalidGraphError, "got Infinity, want"),
        (("tensors", 0, "reordering_type"), {}, InvalidGraphError, "got an object, want one of"),
        (("nodes", 0, "padding_value"), [1], InvalidGraphError, "want a number"),
        (("nodes", 0, "peer_stats"), [3], InvalidGraphError, "want an object"),
        (("nodes", 0, "peer_stats"), [{}], InvalidGraphError, "'uid' is missing"),
        (("nodes", 1, "relu_lower_clip"), 0.5, cudnnGraphNotSupportedError, "not read"),
        (("tensors",), 3, InvalidGraphError, "want a list"),
    ],
)
def test_one_line_says_what_is_wrong_and_where(
    path: tuple[Any, ...], new: Any, error: type[Exception], reason: str
) -> None:
    value = place = document()
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    with pytest.raises(error, match=reason) as caught:
        read(value)
    assert "\n" not in str(caught.value)


# Every op that the frontend lowers, written by it in both forms.
BOTH: dict[str, Any] = json.loads((FOLDER.parents[1] / "lowered_and_plan_blob.json").read_text())


def written_by_python(name: str) -> Graph | None:
    document = BOTH[name]["plan_blob"]
    return None if document is None else peer_blob.read(parse(json.dumps(document).encode()))


def as_cpp_has_it(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes as C++ keeps them: masks as a band, float32 numbers, nothing of Python's."""
    kept = {name: value for name, value in attrs.items() if value is not False}
    for python_only in ("implementation", "transpose"):
        kept.pop(python_only, None)
    prefix = "" if "fp8" in op and op != "sdpa_mxfp8" else "diagonal_band_"
    left, right = f"{prefix}left_bound", f"{prefix}right_bound"
    for window in ("sliding_window_length", "sliding_window"):
        if window in kept:
            kept[left] = kept.pop(window)
    if kept.pop("use_causal_mask", False):
        kept[right] = 0
    if kept.pop("use_causal_mask_bottom_right", False):
        kept |= {right: 0, "diagonal_alignment": diagonal_alignment.BOTTOM_RIGHT}
    if kept.pop("is_inference", None) is None and attrs.get("is_inference") is False:
        kept["generate_stats"] = True
    return {
        name: pytest.approx(value, rel=1e-7) if isinstance(value, float) else value
        for name, value in kept.items()
    }


SAME_OP = {"bias": "add", "scale": "mul", "leaky_relu": "relu"}
SAME_OP["leaky_relu_backward"] = "relu_backward"


@pytest.mark.parametrize("name", [name for name in BOTH if name != "moe_COMBINE"])
def test_both_forms_of_a_graph_say_the_same(name: str) -> None:
    graph = read(BOTH[name]["lowered"])
    other = written_by_python(name)
    if other is None:
        assert name == "slice"  # the plan blob has no word for a slice
        (node,) = graph.nodes
        assert node.attr("slices") == ((0, 1, 1), (2, 8, 2), (0, 8, 1), (0, 8, 1))
        return
    for ours, theirs in zip(graph.nodes, other.nodes, strict=True):
        assert ours.op == SAME_OP.get(theirs.op, theirs.op)
        attrs = {key: value for key, value in ours.attrs.items() if value is not False}
        assert attrs == as_cpp_has_it(theirs.op, theirs.attrs)
        for side in ("inputs", "outputs"):
            wired = [{p: t.uid for p, t in getattr(n, side).items()} for n in (ours, theirs)]
            if ours.op == theirs.op:
                assert wired[0] == wired[1]
            else:
                assert [*wired[0].values()] == [*wired[1].values()]
    assert graph.tensors.keys() == other.tensors.keys()
    for uid, tensor in graph.tensors.items():
        twin = other.tensors[uid]
        assert tensor.data_type is twin.data_type
        if tensor.is_pass_by_value:
            continue  # C++ gives scalars the rank of their reader
        assert tensor.dim == twin.dim
        assert tensor.reordering_type is twin.reordering_type
        assert tensor.ragged_offset_multiplier == twin.ragged_offset_multiplier
        offsets = [None if t.ragged_offset is None else t.ragged_offset.uid for t in (tensor, twin)]
        assert offsets[0] == offsets[1]
        assert tensor.stride == twin.stride  # of a result: what C++ gave it, and what we infer
    assert graph_json.loads(graph_json.dumps(graph)).key() == graph.key()


def test_the_samples_hold_every_op_that_has_a_tag() -> None:
    ops = {
        node.op
        for name in BOTH
        if name != "moe_COMBINE"
        for node in read(BOTH[name]["lowered"]).nodes
    }
    assert {row.op for row in TAGS.values() if row.op} <= ops
    lowered_modes = {row.name for row in OPS.values() if row.is_pointwise} - SAME_OP.keys()
    assert lowered_modes <= ops


def test_values_of_scalars() -> None:
    assert read(BOTH["scalar_int"]["lowered"]).tensors[2].pass_by_value == 3
    constant = read(BOTH["scalar_const"]["lowered"]).tensors[2]
    assert constant.is_pass_by_value and constant.pass_by_value is None  # C++ does not write it


def test_a_combine_is_refused_by_name() -> None:
    with pytest.raises(cudnnGraphNotSupportedError, match="COMBINE, whose top_k_scores"):
        read(BOTH["moe_COMBINE"]["lowered"])


@pytest.mark.parametrize("field", ["json_version", "nodes", "tensors"])
def test_a_missing_part_is_named(field: str) -> None:
    value = document()
    del value[field]
    with pytest.raises(InvalidGraphError, match=field):
        read(value)
