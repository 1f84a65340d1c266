"""Records become graphs: override shapes, settings of a device, what no file can hold."""

import json
from collections import Counter
from pathlib import Path

import pytest

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.recorder.collection import REPORT, collect, write_recording
from cudnn_aot.compiler.recorder.convert import uses_of
from cudnn_aot.compiler.recorder.spool import Call, RecordedGraph, Spool
from cudnn_aot.errors import cudnnGraphNotSupportedError

FOLDER = Path(__file__).parents[2] / "data/peer_graphs"
DATA = {path.stem: path for path in FOLDER.glob("*/*.json")}


def record(name: str, **counts: int) -> RecordedGraph:
    return RecordedGraph("peer", json.loads(DATA[name].read_text()), **counts)


def override(m: int) -> Call:
    """The call of a program that runs the graph of `fi_mm_bf16_override_down_bf16` with m rows."""
    rows = {row["uid"]: row for row in record("fi_mm_bf16_override_down_bf16").document["tensors"]}
    k, n = rows[1]["dim"][-1], rows[2]["dim"][-1]
    out = max(rows)
    return Call(
        (1, out), ((1, m, k), (1, m, n)), ((m * k, k, 1), (m * n, n, 1))
    )  # A and the result


def test_override_calls_give_the_range_that_was_seen() -> None:
    recorded = record("fi_mm_bf16_override_down_bf16", built=1)
    recorded.calls = Counter({override(1): 50, override(37): 3, override(512): 7})
    recording = collect(Spool(graphs=[recorded]))
    assert (recording.unread, recording.notes) == ([], [])
    (merged,) = recording.graphs
    declared = recorded.document["tensors"][0]["dim"][1]
    (symbol,) = merged.graph.symbols.values()
    # The declared stand-in is in the range: the graph is looked up as it is declared.
    assert (symbol.min, symbol.max, symbol.hint) == (1, declared, 1)
    assert {shape.symbols["M"]: (shape.built, shape.executed) for shape in merged.shapes} == {
        1: (0, 50),
        37: (0, 3),
        512: (0, 7),
        declared: (1, 0),
    }


def test_override_enabled_but_never_used_keeps_the_symbols_of_its_importer() -> None:
    recorded = record("fi_mm_bf16_override_down_bf16", built=1)
    (merged,) = collect(Spool(graphs=[recorded])).graphs
    (imported,) = load_graphs(DATA["fi_mm_bf16_override_down_bf16"])
    assert merged.graph.key() == imported.key()


def test_override_enabled_where_nothing_tells_what_for_keeps_the_declaration() -> None:
    recorded, plain = record("pw_mul", built=1), record("pw_mul")
    recorded.document["graph_kwargs"]["is_override_shape_enabled"] = True
    (use,), (note,) = uses_of(recorded)
    assert use.graph.key() == uses_of(plain)[0][0].graph.key()
    assert note.startswith("is_override_shape_enabled: no matmul, norm or attention")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (Call((1,), ((1, 3, 4),), ()), "got 1 uids, 1 shapes, 0 strides"),
        (Call((77,), ((1,),), ((1,),)), "no tensor has uid 77"),
        (Call((1,), ((1, 7, 3),), ((21, 3, 1),)), "K = 3"),
    ],
    ids=["lengths", "uid", "shape"],
)
def test_an_override_that_makes_no_graph_is_a_note(call: Call, reason: str) -> None:
    recorded = record("fi_mm_bf16_override_down_bf16", built=1)
    recorded.calls = Counter({call: 1, override(8): 1})
    recording = collect(Spool(graphs=[recorded]))
    assert len(recording.notes) == 1 and reason in recording.notes[0]
    assert len(recording.graphs[0].shapes) == 2


def test_a_result_that_does_not_follow_is_a_note() -> None:
    call = override(8)
    wrong = Call(call.uids, (call.shapes[0], (1, 9, call.shapes[1][-1])), call.strides)
    recorded = record("fi_mm_bf16_override_down_bf16", built=1)
    recorded.calls = Counter({wrong: 1})
    (note,) = collect(Spool(graphs=[recorded])).notes
    assert "follows from the other operands" in note


def test_settings_of_the_live_device_are_left_out() -> None:
    recorded = record("gemm_bias_gelu", built=1)
    recorded.document["graph_kwargs"] |= {"sm_count": 100, "sm_version": 900}
    plain = record("gemm_bias_gelu")
    (use,), _ = uses_of(recorded)
    assert use.graph.key() == uses_of(plain)[0][0].graph.key()


def test_a_program_that_names_no_types_for_its_graph() -> None:
    recorded, plain = record("gemm_bias_gelu", built=1), record("gemm_bias_gelu")
    recorded.document["context"] = dict.fromkeys(recorded.document["context"])
    for row in [*recorded.document["nodes"], *recorded.document["tensors"]]:
        if row.get("is_virtual", "node_type" in row):
            row["compute_data_type" if "node_type" in row else "data_type"] = None
    (use,), _ = uses_of(recorded)
    assert use.graph.key() == uses_of(plain)[0][0].graph.key()


def test_what_no_file_can_hold_is_kept_with_the_reason(tmp_path: Path) -> None:
    recorded = record("gemm_bias_gelu", built=3, executed=4)
    recorded.document["nodes"][0]["params"]["score_mod"] = [{"$opaque": "builtins.function"}]
    with pytest.raises(cudnnGraphNotSupportedError, match="score_mod holds a builtins.function"):
        uses_of(recorded)
    recording = collect(Spool(graphs=[recorded, record("gemm_odd", built=1)]))
    write_recording(recording, tmp_path)
    (unread,) = recording.unread
    assert unread.file.endswith(".peer.json") and unread.file.startswith("matmul_bias_gelu-")
    assert json.loads((tmp_path / unread.file).read_text()) == recorded.document
    lines = [json.loads(line) for line in (tmp_path / REPORT).read_text().splitlines()]
    assert [line.get("file") for line in lines[1:]] == [
        f"{recording.graphs[0].name}.json",
        unread.file,
    ]
    assert (lines[2]["built"], lines[2]["executed"]) == (3, 4)
    assert "score_mod" in lines[2]["reason"]


def test_a_record_that_trips_the_reader_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise TypeError("not\nfinished")

    monkeypatch.setattr("cudnn_aot.compiler.formats.peer_blob.read", broken)
    (unread,) = collect(Spool(graphs=[record("gemm_odd", built=1)])).unread
    assert unread.reason == "internal error: TypeError: not finished"


def test_written_files_are_graphs_of_the_reported_keys(tmp_path: Path) -> None:
    names = ("gemm_bias_gelu", "gemm_decode_m1", "gemm_decode_m16", "bmm_16", "pw_mul")
    recording = collect(Spool(graphs=[record(name, built=1) for name in names]))
    write_recording(recording, tmp_path)
    write_recording(recording, tmp_path)
    written = {path.name: load_graphs(path)[0] for path in tmp_path.glob("*.json")}
    report = recording.to_json()
    assert {row["file"]: row["graph_key"] for row in report["graphs"]} == {
        name: graph.key() for name, graph in written.items()
    }
    assert all(graph.name == name.removesuffix(".json") for name, graph in written.items())
    assert not list(tmp_path.glob(".*"))


def test_a_graph_of_this_package_is_kept_as_text() -> None:
    (graph,) = load_graphs(DATA["gemm_odd"])
    text = graph_json.dumps(graph)
    (use,), notes = uses_of(RecordedGraph("cudnn_aot", {"text": text}, built=1))
    assert (use.graph.key(), notes) == (graph.key(), [])
