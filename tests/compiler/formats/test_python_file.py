"""Python files that define graphs are run in a process of their own, and fail in one line."""

from pathlib import Path

import pytest

from cudnn_aot.compiler.formats.load import Unread, load_graphs, read_graphs
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import Error, InvalidGraphError, cudnnGraphNotSupportedError

HEAD = """
import cudnn_aot as cudnn

def make(n, name=""):
    graph = cudnn.pygraph(name, "HALF", "FLOAT", "FLOAT")
    graph.relu(graph.tensor([n])).set_output(True)
    return graph
"""


def write(folder: Path, body: str, name: str = "model.py") -> Path:
    path = folder / name
    path.write_text(HEAD + body)
    return path


def found(path: Path) -> dict[str, int]:
    """The extent of the input by the graph's name."""
    return {graph.name: graph.inputs()[0].dim[0] for graph in load_graphs(path)}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("up = make(3)\ndown = make(4)\n", {"up": 3, "down": 4}),
        ("up = make(3, 'given')\nagain = up\n", {"given": 3}),
        ("graphs = [make(3), make(4, 'named')]\n", {"model_0": 3, "named": 4}),
        ("graphs = {'a': make(3), 'b': make(4)}\n", {"a": 3, "b": 4}),
        (
            "def graphs():\n    for n in (3, 4):\n        yield make(n)\n",
            {"model_0": 3, "model_1": 4},
        ),
        ("def graphs():\n    return {'a': make(5)}\n", {"a": 5}),
        ("graphs = make(6)\n", {"model_0": 6}),
        ("one = make(3)\ngraphs = (one, make(4))\n", {"one": 3, "model_1": 4}),
        ("others = [make(3)]\nup = make(4)\n", {"up": 4}),
        ("if __name__ == '__main__':\n    raise SystemExit(9)\nup = make(4)\n", {"up": 4}),
        ("import helper\nup = make(helper.SIZE)\n", {"up": 12}),
        ("print('to stdout')\nup = make(3)\n", {"up": 3}),
    ],
)
def test_graphs_are_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], body: str, wanted: dict[str, int]
) -> None:
    (tmp_path / "helper.py").write_text("SIZE = 12\n")
    assert found(write(tmp_path, body)) == wanted
    assert capfd.readouterr() == ("", "")


def test_graphs_of_a_file_are_described_and_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine takes this graph: where its plans were built it would raise."""
    monkeypatch.setenv("CUDNN_AOT_TARGET", "cpu")
    body = """
@cudnn.jit()
def build(n):
    return make(n), []

up, _ = build(3)
with cudnn.Graph(io_data_type="HALF") as wrapped:
    wrapped.relu(wrapped.tensor([4])).set_output(True)
down = wrapped.graph
"""
    assert found(write(tmp_path, body)) == {"up": 3, "down": 4}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "the file defines no graph: want graphs as names of the module, or a list or"),
        ("x = 1 / 0\n", "line 8: ZeroDivisionError: division by zero"),
        ("def f():\n    return {}['k']\nf()\n", "line 9: KeyError: 'k'"),
        ("x = (\n", "line 8: SyntaxError: '(' was never closed"),
        (
            "import no_such_module\n",
            "line 8: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("raise SystemExit(3)\n", "line 8: the file called exit(3)"),
        ("raise ValueError('two\\nlines')\n", "line 8: ValueError: two lines"),
        ("import os; os._exit(7)\n", "running the file ended with exit code 7"),
        (
            "import os, signal; os.kill(os.getpid(), 11)\n",
            "running the file ended with signal SIGS",
        ),
        ("graphs = 3\n", "graphs: got int, want graphs"),
        ("graphs = [make(3), 4]\n", "graphs[1]: got int, want a graph"),
        ("graphs = {'a': None}\n", "graphs['a']: got NoneType, want a graph"),
        ("def graphs(n):\n    return []\n", "TypeError: graphs() missing 1 required positional"),
        ("bad = cudnn.pygraph()\n", "the graph has no node"),
        ("g = make(3)\ng.add(g.tensor([2]), 3)\n", "line 9: node 'add.0' (add): port b: got int"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, body: str, reason: str) -> None:
    path = write(tmp_path, body)
    with pytest.raises(InvalidGraphError) as caught:
        load_graphs(path)
    assert str(caught.value).startswith(f"{path}: ") and reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        ("up = make(3)\nbad = cudnn.pygraph()\ndown = make(4)\n", ["up", "down"], {"bad": "bad: "}),
        ("bad = cudnn.pygraph('own')\nup = make(3)\n", ["up"], {"own": "bad: the graph has no"}),
        (
            "graphs = [make(3), cudnn.pygraph(), make(4), 5]\n",
            ["model_0", "model_2"],
            {"model_1": "graphs[1]: the graph has no node", "model_3": "graphs[3]: got int, want"},
        ),
        ("graphs = {'a': make(3), 'b': None}\n", ["a"], {"b": "graphs['b']: got NoneType, want a"}),
        (
            "up = make(4)\ndef graphs():\n    yield make(3)\n    {}['k']\n",
            ["up", "model_0"],
            {"graphs": "graphs: line 11: KeyError: 'k'"},
        ),
        ("up = make(4)\ngraphs = 3\n", ["up"], {"graphs": "graphs: got int, want graphs"}),
        ("up = make(4)\ndef graphs():\n    exit(3)\n", ["up"], {"graphs": "called exit(3)"}),
    ],
    ids=range(7),
)
def test_a_bad_graph_costs_no_other(
    tmp_path: Path, body: str, good: list[str], bad: dict[str, str]
) -> None:
    path = write(tmp_path, body)
    items = read_graphs(path)
    assert [item.name for item in items if isinstance(item, Graph)] == good
    unread = {item.name: str(item.error) for item in items if isinstance(item, Unread)}
    assert list(unread) == list(bad)
    for name, line in unread.items():
        assert line.startswith(f"{path}: ") and bad[name] in line and "\n" not in line
    with pytest.raises(InvalidGraphError) as caught:
        load_graphs(path)
    assert str(caught.value) == next(iter(unread.values()))


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    for error in ("ValueError", "cudnn.cudnnGraphNotSupportedError"):
        path = write(tmp_path, f"raise {error}('x' * 10**6)\n")
        with pytest.raises(Error, match=r"line 8: .*x\.\.\. \(cut\)") as caught:
            load_graphs(path)
        assert len(str(caught.value)) < 2000


def test_what_is_not_supported_stays_so(tmp_path: Path) -> None:
    path = write(tmp_path, "g = cudnn.pygraph(sm_version=90)\n")
    with pytest.raises(cudnnGraphNotSupportedError, match=r"line 8: sm_count and sm_version"):
        load_graphs(path)


def test_a_file_that_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudnn_aot.compiler.formats.python_file.SECONDS", 1)
    path = write(tmp_path, "import time\nwhile True:\n    time.sleep(1)\n")
    with pytest.raises(Error, match="took more than 1 s"):
        load_graphs(path)


def test_only_a_name_that_ends_in_py_is_run(tmp_path: Path) -> None:
    path = write(tmp_path, "up = make(3)\n", "model.json")
    with pytest.raises(InvalidGraphError, match="not JSON"):
        load_graphs(path)
