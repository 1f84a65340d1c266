"""Graphs in logs of the frontend's C++ half, one of which it wrote from four threads."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.recorder.collection import collect
from cudnn_aot.compiler.recorder.frontend_log import FrontendLog, read_log
from cudnn_aot.compiler.recorder.spool import Spool
from cudnn_aot.errors import UsageError

LOG = Path(__file__).parents[2] / "data/frontend_logs/four_threads.log"
MESSAGE = "[cudnn_frontend] INFO: Assigned UID 4 to tensor named '0::C'.\n"
RULE = "=" * 128 + "\n"
GRAPH = (
    '{"context":{"name":"%s"},"gid":%d,"json_version":"2.0","nodes":[],"tensors":[{"name":"é"}]}'
)


def read(text: str | bytes, tmp_path: Path) -> FrontendLog:
    path = tmp_path / "frontend.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path)


def names(log: FrontendLog) -> list[str]:
    return sorted(graph.document["context"]["name"] for graph in log.graphs)


def test_a_log_of_four_threads() -> None:
    log = read_log(LOG)
    assert (log.damaged, log.without_json) == ([], 0)
    assert sum(graph.built for graph in log.graphs) == 13
    recording = collect(Spool(graphs=log.graphs))
    gemm = next(graph for graph in recording.graphs if graph.graph.nodes[0].op == "matmul")
    rows = sorted(shape.symbols["M"] for shape in gemm.shapes)
    assert rows == sorted(16 * thread + step for thread in (1, 2, 3, 4) for step in range(3))
    assert [node.op for node in gemm.graph.nodes] == ["matmul", "relu"]


def test_one_graph_printed_often_is_one_graph(tmp_path: Path) -> None:
    """The number that the library gives every graph object is no part of it."""
    lines = [GRAPH % (name, number) for number, name in enumerate("aab")]
    log = read("\n".join(lines), tmp_path)
    assert [(g.document["context"]["name"], g.built) for g in log.graphs] == [("a", 2), ("b", 1)]
    assert "gid" not in log.graphs[0].document
    assert log.graphs[0].document["tensors"][0]["name"] == "é"


def test_prefixes_indentation_and_what_is_no_graph(tmp_path: Path) -> None:
    text = (
        '[rank0]: 12:30:01 {"context": 1}\n'
        f"[rank1]: {GRAPH % ('a', 1)} tail\n"
        f"{json.dumps(json.loads(GRAPH % ('b', 2)), indent=4)}\n"
        f"{GRAPH % ('c', 3)}{GRAPH % ('d', 4)}\n"
        '{"tag":"MATMUL","nodes":[]}\n'
    )
    log = read(text, tmp_path)
    assert names(log) == ["a", "b", "c", "d"]
    assert log.damaged == []


def test_graphs_inside_graphs(tmp_path: Path) -> None:
    outer, inner, third = (GRAPH % (name, 1) for name in "abc")
    text = f"{outer[:30]}{inner[:40]}{third}\n{inner[40:]}\n{outer[30:]}\n"
    log = read(text, tmp_path)
    assert (names(log), log.damaged) == (["a", "b", "c"], [])


def test_a_torn_graph_is_damaged_and_costs_no_other(tmp_path: Path) -> None:
    torn = (GRAPH % ("torn", 1))[:50]
    log = read(f"{MESSAGE}{torn}\n{GRAPH % ('a', 1)}\n{torn}", tmp_path)
    assert names(log) == ["a"]
    assert log.damaged == [len(MESSAGE), len(MESSAGE) + len(torn) + len(GRAPH % ("a", 1)) + 3]


@settings(max_examples=150, deadline=None)
@given(
    cuts=st.lists(
        st.tuples(st.integers(11, 95), st.sampled_from([MESSAGE, RULE, MESSAGE + RULE])),
        max_size=4,
    )
)
def test_messages_that_interrupt_a_graph_are_cut_out(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, str]]
) -> None:
    text = GRAPH % ("a", 1)
    for position, message in sorted(cuts, reverse=True):
        text = text[:position] + message + text[position:]
    log = read(f"{RULE}{text}\n{GRAPH % ('b', 2)}\n", tmp_path_factory.mktemp("log"))
    assert (names(log), log.damaged) == (["a", "b"], [])


def test_a_graph_whose_start_is_interrupted_is_damaged(tmp_path: Path) -> None:
    text = GRAPH % ("a", 1)
    log = read(f"{text[:5]}{MESSAGE}{text[5:]}\n{GRAPH % ('b', 2)}\n", tmp_path)
    assert (names(log), len(log.damaged)) == (["b"], 1)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([GRAPH % ("a", 1), '{"context":', "{", '"', "\\", MESSAGE, "é\n"])))
def test_any_text_is_read_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    log = read("".join(parts), tmp_path_factory.mktemp("log"))
    assert set(names(log)) <= {"a"}


def test_a_library_that_cannot_print_graphs_is_named(tmp_path: Path) -> None:
    line = "print is unavailable when compiled with CUDNN_FRONTEND_SKIP_JSON_LIB\n"
    assert read(line * 3, tmp_path).without_json == 3


def test_deep_nesting_and_binary_data(tmp_path: Path) -> None:
    log = read(b'{"context":' + b"[" * 200_000 + b"\xff\x00\n", tmp_path)
    assert (log.graphs, log.damaged) == ([], [0])
    assert read(b"", tmp_path).graphs == []


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the log: no such file"):
        read_log(tmp_path / "absent.log")
