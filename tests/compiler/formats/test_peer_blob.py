"""Graphs that the cuDNN frontend wrote, read as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot.compiler.formats import graph_json, peer_blob
from cudnn_aot.compiler.formats.json_reader import parse
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.errors import Error, InvalidGraphError, cudnnGraphNotSupportedError

FOLDER = Path(__file__).resolve().parents[2] / "data" / "peer_graphs"
BF16, FP16, FP32 = data_type.BFLOAT16, data_type.HALF, data_type.FLOAT
E4M3, E5M2 = data_type.FP8_E4M3, data_type.FP8_E5M2

# name: ops, and by uid the name, type, dim and stride of what callers bind.
READ: dict[str, tuple[list[str], dict[int, tuple[Any, ...]]]] = {
    "gemm_bias_gelu": (
        ["matmul", "bias", "gelu"],
        {
            1: ("A", BF16, [1, 2048, 4096], [8388608, 4096, 1]),
            2: ("B", BF16, [1, 4096, 11008], [45088768, 1, 4096]),
            3: ("bias", BF16, [1, 1, 11008], [11008, 11008, 1]),
            6: ("gelu.0::OUT_0", BF16, [1, 2048, 11008], [2048 * 11008, 11008, 1]),
        },
    ),
    "gemm_scale_two_outputs": (
        ["matmul", "scale", "relu"],
        {
            1: ("A", BF16, [1, 1024, 1024], [1048576, 1024, 1]),
            2: ("B", BF16, [1, 1024, 1024], [1048576, 1024, 1]),
            3: ("alpha", FP32, [1, 1, 1], [1, 1, 1]),
            5: ("sc::OUT_0", BF16, [1, 1024, 1024], [1048576, 1024, 1]),
            6: ("act::OUT_0", BF16, [1, 1024, 1024], [1048576, 1024, 1]),
        },
    ),
    "bmm_broadcast_b": (
        ["matmul"],
        {
            1: ("A", BF16, [16, 256, 128], [32768, 128, 1]),
            2: ("B", BF16, [1, 128, 256], [32768, 256, 1]),
            3: ("mm::C", BF16, [16, 256, 256], [65536, 256, 1]),
        },
    ),
    "fi_mm_bf16_a_m_major_b_n_major": (
        ["matmul"],
        {
            1: ("a", BF16, [1, 512, 1024], [524288, 1, 512]),
            2: ("b", BF16, [1, 1024, 4096], [4194304, 4096, 1]),
            3: ("matmul::C", BF16, [1, 512, 4096], [512 * 4096, 4096, 1]),
        },
    ),
    "fi_bmm_fp8_b64": (
        ["matmul", "mul", "mul"],
        {
            1: ("a", E4M3, [64, 4, 7168], [28672, 7168, 1]),
            2: ("b", E4M3, [64, 7168, 1024], [7340032, 1, 7168]),
            3: ("a_scale", FP32, [1, 1, 1], [1, 1, 1]),
            4: ("b_scale", FP32, [1, 1, 1], [1, 1, 1]),
            7: ("sb::OUT_0", BF16, [64, 4, 1024], [4096, 1024, 1]),
        },
    ),
    "pw_mul": (
        ["mul"],
        {
            1: ("a", FP32, [64, 1024], [1024, 1]),
            2: ("b", FP32, [1, 1024], [1024, 1]),
            3: ("p::OUT_0", FP32, [64, 1024], [1024, 1]),
        },
    ),
}
FILES = {path.stem: path for path in sorted(FOLDER.glob("*/*.json"))}
PLAN_BLOB = [name for name in FILES if not name.startswith("lowered_")]


def document(name: str) -> dict[str, Any]:
    return json.loads(FILES[name].read_text())


def load(name: str) -> Any:
    (graph,) = load_graphs(FILES[name])
    return graph


@pytest.mark.parametrize("name", READ)
def test_ops_operands_and_layouts(name: str) -> None:
    ops, operands = READ[name]
    graph = load(name)
    assert graph.name == name
    assert [node.op for node in graph.nodes] == ops
    assert {
        t.uid: (t.name, t.data_type, list(t.dim), list(t.stride))
        for t in (*graph.inputs(), *graph.outputs())
    } == operands


@pytest.mark.parametrize("name", PLAN_BLOB)
def test_every_graph_is_read_and_survives_our_format(name: str) -> None:
    graph = load(name)
    raw = document(name)
    assert [node.name for node in graph.nodes] == [node["name"] for node in raw["nodes"]]
    assert {t["uid"] for t in raw["tensors"]} == set(graph.tensors)
    for row in raw["tensors"]:
        tensor = graph.tensors[row["uid"]]
        if not graph.symbols and row["dim"]:
            assert list(tensor.dim) == row["dim"]
        if not graph.symbols and row["stride_assigned"]:
            assert list(tensor.stride) == row["stride"]
        if row["data_type"]:
            assert tensor.data_type is data_type[row["data_type"]["name"]]
        assert tensor.is_virtual == row["is_virtual"]
    text = graph_json.dumps(graph)
    again = graph_json.loads(text)
    assert again.key() == graph.key()
    assert graph_json.dumps(again) == text


@pytest.mark.parametrize("name", ["gemm_odd", "gemm_bias_gelu", "sdpa_padded"])
def test_where_neither_context_nor_tensor_names_a_type(name: str) -> None:
    """The frontend writes what its program said, and lowers the rest as FLOAT."""
    raw = document(name)
    raw["context"] = dict.fromkeys(raw["context"])
    for row in [*raw["nodes"], *(row for row in raw["tensors"] if row["is_virtual"])]:
        row["compute_data_type" if "node_type" in row else "data_type"] = None
    assert read(raw).key() == load(name).key()


def test_the_folder_holds_every_family_and_all_keys_differ() -> None:
    graphs = {name: load(name) for name in PLAN_BLOB}
    assert len(PLAN_BLOB) >= 100
    assert len({graph.key() for graph in graphs.values()}) == len(graphs)
    ops = {node.op for graph in graphs.values() for node in graph.nodes}
    assert {"sdpa", "sdpa_backward", "moe_grouped_matmul", "gdn", "kda", "conv_fprop"} <= ops
    assert {"block_scale_dequantize", "reduction", "rmsnorm", "layernorm", "transpose"} <= ops


@pytest.mark.parametrize(
    ("name", "n", "k", "out"),
    [
        ("fi_mm_bf16_override_qkv_bias", 6144, 4096, BF16),
        ("fi_mm_bf16_override_down_fp32", 4096, 14336, FP32),
    ],
)
def test_override_shapes_become_a_symbol(name: str, n: int, k: int, out: data_type) -> None:
    graph = load(name)
    assert dict(graph.symbols) == {"M": Symbol(0, 1 << 20, 8192)}
    a, b = graph.tensors[1], graph.tensors[2]
    (y,) = graph.outputs()
    assert [str(e) for e in a.dim] == ["1", "M", str(k)]
    assert [str(e) for e in a.stride] == [f"{k}*M", str(k), "1"]
    assert b.dim == (1, k, n)
    assert [str(e) for e in y.dim] == ["1", "M", str(n)] and y.data_type is out


def test_pointwise_ports_become_the_ports_of_the_op() -> None:
    graph = load("gemm_scale_two_outputs")
    scale, relu = graph.nodes[1], graph.nodes[2]
    assert {port: t.uid for port, t in scale.inputs.items()} == {"input": 4, "scale": 3}
    assert {port: t.uid for port, t in relu.inputs.items()} == {"input": 5}
    assert {port: t.uid for port, t in relu.outputs.items()} == {"OUT_0": 6}


def test_header_and_whole_blob_are_read_like_the_graph_part(tmp_path: Path) -> None:
    graph = document("gemm_residual")
    header = {"format": 1, "frontend_version": "1.32.0", "graph": graph, "plan": {}, "kernels": []}
    text = json.dumps(header).encode()
    blob = peer_blob.MAGIC + len(text).to_bytes(8, "little") + text + b"\x7fELF kernels"
    wanted = load("gemm_residual").key()
    for name, data in (("header.json", text), ("plan.bin", blob)):
        path = tmp_path / name
        path.write_bytes(data)
        (read,) = load_graphs(path)
        assert (read.key(), read.name) == (wanted, path.stem)
    path.write_bytes(blob[:40])
    with pytest.raises(InvalidGraphError, match="plan blob: got 40 bytes, want a header of"):
        load_graphs(path)


def test_a_given_name_is_kept_and_the_frontends_default_is_not() -> None:
    raw = document("gemm_residual")
    raw["graph_kwargs"]["name"] = "o_proj"
    assert read(raw).name == "o_proj"
    raw["graph_kwargs"]["name"] = "test_graph"
    assert read(raw).name == "stem"


def test_tensors_that_no_node_uses_are_left_out() -> None:
    raw = document("gemm_residual")
    raw["tensors"].append({**raw["tensors"][0], "uid": 99, "name": "left_over"})
    assert 99 not in read(raw).tensors


def read(raw: dict[str, Any]) -> Any:
    return peer_blob.read(peer_blob_value(raw), "stem")


def peer_blob_value(raw: dict[str, Any]) -> Any:
    from cudnn_aot.compiler.formats.json_reader import parse

    return parse(json.dumps(raw).encode())


def drop_tensor(raw: Any) -> None:
    del raw["tensors"][2]


BAD = [
    (lambda raw: raw.update(extra=1), InvalidGraphError, "$.extra: unknown field"),
    (lambda raw: raw["tensors"][0].update(x=1), InvalidGraphError, "$.tensors[0].x: unknown field"),
    (lambda raw: raw["tensors"][1].update(uid=1), InvalidGraphError, "$.tensors[1]: uid 1 is used"),
    (
        lambda raw: raw["tensors"][0].update(dim=[1, 2]),
        InvalidGraphError,
        "tensor 'A' (uid 1): got 3",
    ),
    (
        lambda raw: raw["tensors"][0].update(is_virtual=3),
        InvalidGraphError,
        "$.tensors[0].is_virtual",
    ),
    (
        lambda raw: raw["tensors"][0].update(data_type={"$enum": "cudnn", "name": "BF"}),
        InvalidGraphError,
        '$.tensors[0].data_type.name: got "BF", want one of',
    ),
    (drop_tensor, InvalidGraphError, "$.nodes[1]: port b: no tensor has uid 3"),
    (
        lambda raw: raw["nodes"][1]["params"].update(alpha=2.0),
        InvalidGraphError,
        "$.nodes[1]: node 'res' (add): add has no attribute 'alpha'",
    ),
    (
        lambda raw: raw["nodes"][1]["inputs"].update(IN_2=1),
        InvalidGraphError,
        "$.nodes[1].inputs.IN_2: add has 2 inputs",
    ),
    (
        lambda raw: raw["nodes"][1]["params"].update(mode="subtract"),
        cudnnGraphNotSupportedError,
        "$.nodes[1]: op 'subtract' (node 'res') is not supported",
    ),
    (
        lambda raw: raw["nodes"][0]["params"].update(padding={"$tensor": 1}),
        InvalidGraphError,
        "$.nodes[0].params.padding: got an object, want a number",
    ),
    (
        lambda raw: raw["nodes"][0]["params"].update(padding={"$enum": "os:path", "name": "X"}),
        InvalidGraphError,
        '$.nodes[0].params.padding["$enum"]: got "os:path", want an enum of the module cudnn',
    ),
    (
        lambda raw: raw["nodes"][0].update(node_type="RELU"),
        cudnnGraphNotSupportedError,
        "$.nodes[0]: op 'relu' (node 'mm') is not supported",
    ),
    (
        lambda raw: raw["tensors"][0].update(ragged_offset={"$tensor": 33}),
        InvalidGraphError,
        "$.tensors[0].ragged_offset: no tensor has uid 33",
    ),
    (
        lambda raw: raw["tensors"][0].update(ragged_offset=3),
        InvalidGraphError,
        "$.tensors[0].ragged_offset: got 3, want an object",
    ),
    (
        lambda raw: raw["tensors"][0].update(reordering_type={"$enum": "cudnn", "name": "F8"}),
        InvalidGraphError,
        '$.tensors[0].reordering_type.name: got "F8", want one of NONE, INT8x32',
    ),
    (
        lambda raw: raw["graph_kwargs"].update(sm_count=80),
        cudnnGraphNotSupportedError,
        "sm_count and sm_version come from the target",
    ),
]


@pytest.mark.parametrize(("edit", "error", "message"), BAD, ids=range(len(BAD)))
def test_wrong_files_are_refused_in_one_line(edit: Any, error: type[Error], message: str) -> None:
    raw = document("gemm_residual")
    edit(raw)
    with pytest.raises(error) as caught:
        read(raw)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def sliced(slices: Any) -> dict[str, Any]:
    """A slice of an 8 by 6 tensor."""
    x, y = ({"name": name, "uid": uid} for name, uid in (("x", 1), ("y", 2)))
    half = {"$enum": "cudnn:data_type", "name": "HALF"}
    row = {"name": "s", "node_type": "SLICE", "inputs": {"input": 1}, "outputs": {"OUT_0": 2}}
    return {
        "context": {"compute_data_type": {"$enum": "cudnn:data_type", "name": "FLOAT"}},
        "graph_kwargs": {},
        "tensors": [{**x, "dim": [8, 6], "stride": [6, 1], "data_type": half}, y],
        "nodes": [{**row, "params": {"slices": slices}}],
    }


def test_slices_as_the_recorder_writes_them() -> None:
    written = [{"$slice": [2, None, 3]}, {"$slice": [None, -1, None]}]
    graph = peer_blob.read(parse(json.dumps(sliced(written)).encode()))
    assert graph.nodes[0].attrs["slices"] == ((2, None, 3), (0, -1, 1))
    assert graph.tensors[2].dim == (2, 5)


@pytest.mark.parametrize(
    "item", [{"$slice": [1, 2]}, {"$slice": 1}, {"$slice": [0, 1, 1], "$tuple": []}, {"$slic": []}]
)
def test_what_is_no_slice_is_refused(item: Any) -> None:
    with pytest.raises(InvalidGraphError, match="slice|slic|tuple"):
        peer_blob.read(parse(json.dumps(sliced([item, {"$slice": [0, 6, 1]}])).encode()))
