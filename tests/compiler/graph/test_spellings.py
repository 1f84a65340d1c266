"""Attributes that say one thing in several ways: one key and one class for what means the same."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_cases import without_rules
from op_graphs import example

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.enums import diagonal_alignment
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.graph.rules.attention import Band, band
from cudnn_aot.compiler.reference.ops import apply

_rules = pytest.fixture(autouse=True)(without_rules)

ATTENTION = [name for name in OPS if name.startswith("sdpa")]
TOP_LEFT, BOTTOM_RIGHT = diagonal_alignment.TOP_LEFT, diagonal_alignment.BOTTOM_RIGHT

# Each line says one mask in several ways; no two lines say the same. A bound wins over a
# causal flag and over a window, a causal flag over the alignment; without a bound there is no
# diagonal.
MASKS: list[tuple[Band, list[dict[str, Any]]]] = [
    (
        Band(None, None, TOP_LEFT),
        [{}, {"use_causal_mask": False}, {"alignment": "BOTTOM_RIGHT"}, {"alignment": "TOP_LEFT"}],
    ),
    (
        Band(None, 0, TOP_LEFT),
        [
            {"use_causal_mask": True},
            {"right": 0},
            {"right": 0, "alignment": "TOP_LEFT"},
            {"use_causal_mask": True, "alignment": "BOTTOM_RIGHT"},
            {"use_causal_mask": True, "right": 0},
        ],
    ),
    (
        Band(None, 0, BOTTOM_RIGHT),
        [
            {"use_causal_mask_bottom_right": True},
            {"right": 0, "alignment": "BOTTOM_RIGHT"},
            {"use_causal_mask_bottom_right": True, "use_causal_mask": True},
        ],
    ),
    (
        Band(None, 1, TOP_LEFT),
        [
            {"right": 1},
            {"use_causal_mask": True, "right": 1},
            {"use_causal_mask": True, "right": 1, "alignment": "BOTTOM_RIGHT"},
        ],
    ),
    (
        Band(None, 1, BOTTOM_RIGHT),
        [
            {"right": 1, "alignment": "BOTTOM_RIGHT"},
            {"use_causal_mask_bottom_right": True, "right": 1},
            {"use_causal_mask_bottom_right": True, "use_causal_mask": True, "right": 1},
        ],
    ),
    (Band(2, None, TOP_LEFT), [{"left": 2}, {"window": 2}, {"left": 2, "window": 1}]),
    (
        Band(2, None, BOTTOM_RIGHT),
        [{"left": 2, "alignment": "BOTTOM_RIGHT"}, {"window": 2, "alignment": "BOTTOM_RIGHT"}],
    ),
    (Band(1, None, TOP_LEFT), [{"left": 1}, {"window": 1}]),
    (
        Band(2, 0, TOP_LEFT),
        [{"left": 2, "right": 0}, {"window": 2, "use_causal_mask": True}],
    ),
    (
        Band(2, 0, BOTTOM_RIGHT),
        [
            {"left": 2, "right": 0, "alignment": "BOTTOM_RIGHT"},
            {"window": 2, "use_causal_mask_bottom_right": True},
        ],
    ),
]
NAMES = {
    "left": ("diagonal_band_left_bound", "left_bound"),
    "right": ("diagonal_band_right_bound", "right_bound"),
    "window": ("sliding_window_length", "sliding_window"),
    "alignment": ("diagonal_alignment",),
}


def in_words_of(op: str, keywords: dict[str, Any]) -> dict[str, Any] | None:
    """The attributes of `op`; None for what it has no word for."""
    found = {}
    for word, value in keywords.items():
        names = [name for name in NAMES.get(word, (word,)) if OPS[op].has_attr(name)]
        if not names:
            return None
        found[names[0]] = value
    return found


def spelled(op: str) -> Iterator[tuple[Band, list[Graph]]]:
    for want, ways in MASKS:
        words = [in_words_of(op, way) for way in ways]
        graphs = [example(OPS[op], attrs=attrs) for attrs in words if attrs is not None]
        if graphs:
            yield want, graphs


def node_of(graph: Graph) -> Node:
    (node,) = graph.nodes
    return node


@pytest.mark.parametrize("op", ATTENTION)
def test_one_key_and_one_class_for_each_mask(op: str) -> None:
    keys, buckets, count = set(), set(), 0
    for want, graphs in spelled(op):
        assert {band(node_of(graph).view) for graph in graphs} == {want}
        found = {graph.key() for graph in graphs}
        assert len(found) == 1, want
        assert len({graph_class(graph).bucket for graph in graphs}) == 1, want
        keys |= found
        buckets.add(graph_class(graphs[0]).bucket)
        count += 1
    assert len(keys) == len(buckets) == count >= 8


@pytest.mark.parametrize("op", ATTENTION)
def test_files_keep_the_words_of_the_program(op: str) -> None:
    for _, graphs in spelled(op):
        for graph in graphs:
            again = graph_json.loads(graph_json.dumps(graph))
            assert node_of(again).attrs == node_of(graph).attrs
            assert again.key() == graph.key()
            document = json.loads(graph_json.dumps(graph))
            document["nodes"][0]["attrs"] = {
                name: getattr(value, "name", value)
                for name, value in node_of(graph).view.said.items()
            }
            respelled = graph_json.loads(json.dumps(document))
            assert respelled.key() == graph.key()
            assert node_of(respelled).view.said == node_of(respelled).attrs


# Each line says one thing in several ways; no two lines of an op say the same.
PAIR = [1, 2]
WINDOWS: list[list[dict[str, Any]]] = [
    [
        {},
        {"padding": [0, 0]},
        {"pre_padding": [0, 0], "post_padding": [0, 0], "stride": [1, 1], "dilation": [1, 1]},
    ],
    [
        {"padding": PAIR},
        {"pre_padding": PAIR, "post_padding": PAIR},
        {"padding": PAIR, "pre_padding": PAIR, "dilation": [1, 1]},
        {"padding": [3, 3], "pre_padding": PAIR, "post_padding": PAIR},
    ],
    [{"pre_padding": PAIR}, {"pre_padding": PAIR, "post_padding": [0, 0]}],
    [{"post_padding": PAIR}, {"pre_padding": [0, 0], "post_padding": PAIR}],
    [{"padding": PAIR, "post_padding": [2, 1]}, {"pre_padding": PAIR, "post_padding": [2, 1]}],
    [{"stride": PAIR}, {"stride": PAIR, "padding": [0, 0]}],
    [{"stride": [2, 1]}],
    [{"dilation": PAIR}],
    [{"convolution_mode": "CONVOLUTION"}, {"convolution_mode": "CONVOLUTION", "padding": [0, 0]}],
]
WAYS: dict[str, list[list[dict[str, Any]]]] = {
    **dict.fromkeys(("conv_fprop", "conv_dgrad", "conv_wgrad"), WINDOWS),
    "concatenate": [[{"axis": 1}, {"axis": -3}], [{"axis": 0}, {"axis": -4}]],
    "block_scale_quantize": [
        [{"block_size": 2}, {"block_size": 2, "axis": -1}, {"block_size": 2, "axis": 3}],
        [{"block_size": 2, "axis": 2}],
        [{"block_size": 4}],
    ],
    "block_scale_dequantize": [
        [{"block_size": [2]}, {"block_size": [1, 2]}, {"block_size": [1, 1, 1, 2]}],
        [{"block_size": [2, 1]}, {"block_size": [1, 2, 1]}],
        [{"block_size": [1]}, {"block_size": [1, 1]}],
    ],
}


def test_every_op_with_spellings_is_here() -> None:
    assert {name for name, op in OPS.items() if op.spellings} == {*WAYS, *ATTENTION}


@pytest.mark.parametrize("op", WAYS)
def test_one_key_and_one_class_for_each_meaning(op: str) -> None:
    keys, buckets = set(), set()
    for ways in WAYS[op]:
        graphs = [example(OPS[op], attrs=attrs) for attrs in ways]
        said = [dict(node_of(graph).view.said) for graph in graphs]
        assert all(each == said[0] for each in said), ways
        assert len({graph_class(graph).bucket for graph in graphs}) == 1, ways
        assert len({graph.key() for graph in graphs}) == 1, ways
        for graph in graphs:
            again = graph_json.loads(graph_json.dumps(graph))
            assert node_of(again).attrs == node_of(graph).attrs and again.key() == graph.key()
        keys.add(graphs[0].key())
        buckets.add(graph_class(graphs[0]).bucket)
    assert len(keys) == len(buckets) == len(WAYS[op])


def test_the_reference_computes_the_same_for_every_spelling() -> None:
    rng = np.random.default_rng(5)
    rows = {"q": 4, "k": 6, "v": 6}
    operands = {port: rng.standard_normal((1, 2, count, 4)) for port, count in rows.items()}
    results = []
    for _, ways in MASKS:
        values = [apply("sdpa", operands, **(in_words_of("sdpa", way) or {}))["O"] for way in ways]
        assert all(np.array_equal(value, values[0]) for value in values), ways
        results.append(values[0].tobytes())
    assert len(set(results)) == len(MASKS)


@pytest.mark.parametrize("op", [op for op in ATTENTION if OPS[op].has_attr("is_inference")])
def test_whether_there_are_stats(op: str) -> None:
    def key(**attrs: bool) -> str:
        return example(OPS[op], attrs=attrs).key()

    without = {key(), key(generate_stats=False), key(is_inference=False, generate_stats=False)}
    given = {key(is_inference=False), key(generate_stats=True)}
    assert len(without) == len(given) == 1 and without != given
