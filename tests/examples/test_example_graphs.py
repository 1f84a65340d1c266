"""The example graphs: what the script writes, of real size, and small enough to run on a CPU."""

import math
import runpy
from pathlib import Path

import pytest

from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.extents import evaluate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted((EXAMPLES / "graphs").glob("*.json"))


def test_the_files_are_what_the_script_writes(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLES / "make_graphs.py"))["main"](tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        p.name: p.read_text() for p in FILES
    }


def test_names_and_keys_differ() -> None:
    graphs = [load_graphs(path)[0] for path in FILES]
    assert [graph.name for graph in graphs] == [path.stem for path in FILES]
    assert len({graph.key() for graph in graphs}) == len(FILES) >= 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_matmul_of_k_major_operands_within_reach_of_a_cpu(path: Path) -> None:
    (graph,) = load_graphs(path)
    (matmul,) = [node for node in graph.nodes if node.op == "matmul"]
    a, b = matmul.inputs["A"], matmul.inputs["B"]
    assert a.stride[-1] == 1 and b.stride[-2] == 1
    symbols = {name: symbol.planned for name, symbol in graph.symbols.items()}
    extents = [evaluate(e, symbols) for e in (*matmul.outputs["C"].dim, a.dim[-1])]
    assert 2 * math.prod(extents) < 20e9
