"""The frontend's lowered form: version 2.0 as it writes it, and 1.0 with tensors by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot.compiler.formats import lowered
from cudnn_aot.compiler.formats.json_reader import parse
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
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
        (("tensors", 0, "ragged_offset_uid"), 9, cudnnGraphNotSupportedError, "ragged"),
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


@pytest.mark.parametrize("field", ["json_version", "nodes", "tensors"])
def test_a_missing_part_is_named(field: str) -> None:
    value = document()
    del value[field]
    with pytest.raises(InvalidGraphError, match=field):
        read(value)
