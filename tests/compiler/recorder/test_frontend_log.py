"""Graphs in logs of the frontend's C++ half, one of which it wrote from four threads."""

import json
import time
from pathlib import Path

import pytest
from fuzz_inputs import seeds, wrecked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.recorder.collection import collect, write_recording
from cudnn_aot.compiler.recorder.frontend_log import FrontendLog, read_log
from cudnn_aot.compiler.recorder.spool import Spool
from cudnn_aot.errors import UsageError

LOG = Path(__file__).parents[2] / "data/frontend_logs/four_threads.log"
MESSAGE = "[cudnn_frontend] INFO: Assigned UID 4 to tensor named '0::C'.\n"
RULE = "=" * 128 + "\n"
GRAPH = (
    '{"context":{"name":"%s"},"gid":%d,"json_version":"2.0","nodes":[],"tensors":[{"name":"é"}]}'
)


SEEDS = seeds()["lowered"]


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


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_wrecked_logs_are_read_to_their_end(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What a log comes to is written, whatever it holds."""
    numbers = data.draw(st.randoms(use_true_random=False))

    def below(count: int) -> int:
        return numbers.randrange(count) if count > 0 else 0

    pieces: list[bytes] = []
    for _ in range(1 + below(4)):
        graph = wrecked("lowered", SEEDS[below(len(SEEDS))], below)
        cut = below(len(graph))
        pieces += [graph] if below(2) else [graph[:cut], MESSAGE.encode(), graph[cut:]]
        pieces.append(b"\n" if below(4) else b"")
    folder = tmp_path_factory.mktemp("log")
    log = read(b"".join(pieces), folder)
    write_recording(collect(Spool(graphs=log.graphs)), folder)


@pytest.mark.parametrize(
    ("part", "count", "damaged"),
    [
        ('{"context":', 20_000, 20_000),  # as deep as it can be
        ('{"context":"a', 100_000, 100_000),  # short, with other graphs inside
        ('{"context":[' + "1," * 2000, 300, 300),  # long
        ('{"context":[' + ("1," * 200 + MESSAGE) * 20, 100, 100),  # with much to cut out
        (GRAPH % ("a", 1) + MESSAGE, 5000, 0),
        ("{" + " " * 1000, 2000, 0),
        ("=" * 63 + "[cudnn_frontend", 20_000, 0),
    ],
    ids=range(7),
)
def test_the_work_is_in_proportion_to_the_log(
    tmp_path: Path, part: str, count: int, damaged: int
) -> None:
    """Graphs that begin and never end, without a newline; one that is whole follows them."""
    began = time.process_time()
    log = read(part * count + "\n" * 100_000 + GRAPH % ("last", 1), tmp_path)
    assert time.process_time() - began < 5
    assert "last" in names(log) and len(log.damaged) == damaged


def test_graphs_too_deep_to_be_written_are_damaged(tmp_path: Path) -> None:
    deep = GRAPH.replace('"tensors":[', '"tensors":[' + "[" * 900 + "]" * 900 + ",")
    log = read(f"{deep % ('deep', 1)}\n{GRAPH % ('a', 1)}", tmp_path)
    assert (names(log), log.damaged) == (["a"], [0])


def test_a_large_graph_is_read_whole(tmp_path: Path) -> None:
    large = GRAPH % ("x" * 3_000_000, 1)
    assert len(read(large, tmp_path).graphs) == 1
    half = len(large) // 2
    log = read(f"{large[:half]}{MESSAGE}{large[half:]}\n", tmp_path)
    assert (len(log.graphs), log.damaged) == (1, [])


def test_a_message_may_stand_at_any_place_of_a_real_graph(tmp_path: Path) -> None:
    graph = json.dumps(SEEDS[0], sort_keys=True)
    assert "false" in graph and "null" in graph
    lines = [graph[:at] + MESSAGE + graph[at:] for at in range(11, len(graph))]
    log = read("\n".join(lines), tmp_path)
    assert [found.built for found in log.graphs] == [len(lines)] and log.damaged == []


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
