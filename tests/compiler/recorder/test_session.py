"""`cudnn_aot.record` in the program itself."""

import os
import sys
import threading
import warnings
from pathlib import Path

import pytest
from recorded import counts, environment, run_program

import cudnn_aot
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.errors import UsageError


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch, fake_frontend: Path):
    monkeypatch.syspath_prepend(str(fake_frontend))
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    import cudnn

    yield cudnn
    sys.modules.pop("cudnn")


def own_graph(m: int) -> cudnn_aot.pygraph:
    types = cudnn_aot.data_type
    graph = cudnn_aot.pygraph(io_data_type=types.HALF, compute_data_type=types.FLOAT)
    a, b = graph.tensor([1, m, 8]), graph.tensor([1, 8, 16])
    graph.matmul(a, b).set_output(True)
    return graph


def extents(folder: Path) -> set[str]:
    graphs = [graph for path in folder.glob("*.json") for graph in load_graphs(path)]
    return {str(graph.inputs()[0].dim[1]) for graph in graphs}


def test_a_block_writes_what_was_built_inside_it(cudnn, tmp_path: Path) -> None:
    cudnn.mm(1).build()
    with cudnn_aot.record(tmp_path / "graphs") as recording:
        for m in (4, 8):
            cudnn.mm(m).build()
    cudnn.mm(2).build()
    assert extents(tmp_path / "graphs") == {"M"}
    symbol = recording.result.graphs[0].graph.symbols["M"]
    assert (symbol.min, symbol.max) == (4, 8)


def test_graphs_of_this_package_are_recorded(tmp_path: Path) -> None:
    with cudnn_aot.record(tmp_path, symbolize=False) as recording:
        own_graph(4).validate()
        own_graph(9).freeze()
        own_graph(9).key()
    assert extents(tmp_path) == {"4", "9"}
    assert sorted(graph.built for graph in recording.result.graphs) == [1, 2]
    own_graph(11).validate()
    assert extents(tmp_path) == {"4", "9"}


def test_an_invalid_graph_is_refused_as_ever(tmp_path: Path) -> None:
    with cudnn_aot.record(tmp_path) as recording:
        graph = cudnn_aot.pygraph(io_data_type="HALF", compute_data_type="FLOAT")
        graph.matmul(graph.tensor([1, 2, 3]), graph.tensor([1, 4, 5])).set_output(True)
        with pytest.raises(ValueError, match="K = 3"):
            graph.validate()
    assert recording.result.graphs == []


def test_a_block_that_raises_writes_and_raises(cudnn, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), cudnn_aot.record(tmp_path):
        cudnn.mm(4).build()
        raise KeyError("mine")
    assert extents(tmp_path) == {"4"}


def test_as_a_decorator_calls_add_up(cudnn, tmp_path: Path) -> None:
    @cudnn_aot.record(tmp_path)
    def step(m: int) -> int:
        """One step."""
        cudnn.mm(m).build()
        return m if m > 6 else step(m + 1)

    assert (step(5), step.__doc__, step.__name__) == (7, "One step.", "step")
    assert extents(tmp_path) == {"M"}
    step(30)
    (path,) = tmp_path.glob("*.json")
    assert load_graphs(path)[0].symbols["M"].max == 30


def test_threads_share_a_block(cudnn, tmp_path: Path) -> None:
    recording = cudnn_aot.record(tmp_path)
    barrier = threading.Barrier(6)

    def work(m: int) -> None:
        with recording:
            barrier.wait()
            cudnn.mm(m).build()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(m,)) for m in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recording.result.graphs[0].shapes) == 6


def test_two_recordings_at_once(cudnn, tmp_path: Path) -> None:
    outer, inner = cudnn_aot.record(tmp_path / "outer"), cudnn_aot.record(tmp_path / "inner")
    outer.__enter__()
    cudnn.mm(4).build()
    inner.__enter__()
    cudnn.mm(8).build()
    outer.__exit__(None, None, None)
    cudnn.mm(16).build()
    inner.__exit__(None, None, None)
    shapes = [
        sorted(shape.symbols["M"] for shape in recording.result.graphs[0].shapes)
        for recording in (outer, inner)
    ]
    assert shapes == [[4, 8], [8, 16]]


def test_forks_are_recorded_and_leave_the_files_to_their_parent(
    tmp_path: Path, spool: Path, fake_frontend: Path
) -> None:
    script = """
    import os, sys
    import cudnn_aot
    from cudnn import mm
    with cudnn_aot.record("graphs") as recording:
        mm(4).build()
        child = os.fork()
        if child == 0:
            mm(8).build()
        else:
            os.waitpid(child, 0)
            mm(16).build()
    if child:
        print([shape.symbols["M"] for shape in recording.result.graphs[0].shapes])
    """
    done = run_program(script, tmp_path, environment(spool, fake_frontend, recording=False))
    assert (done.stdout, done.stderr) == ("[4, 8, 16]\n", "")


def test_inside_a_recorded_program_both_record(
    tmp_path: Path, spool: Path, fake_frontend: Path
) -> None:
    script = """
    import cudnn_aot
    from cudnn import mm
    with cudnn_aot.record("graphs"):
        mm(4).build()
    mm(8).build()
    """
    done = run_program(script, tmp_path, environment(spool, fake_frontend))
    assert (done.returncode, done.stderr) == (0, "")
    assert extents(tmp_path / "graphs") == {"4"}
    assert counts(spool) == {4: (1, 0), 8: (1, 0)}


def test_a_folder_that_cannot_be_made_is_refused_on_entry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write graphs there"):
        cudnn_aot.record(tmp_path / "file").__enter__()


def test_trouble_at_the_end_is_a_warning(cudnn, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught, cudnn_aot.record(tmp_path / "g"):
        warnings.simplefilter("always")
        cudnn.mm(4).build()
        os.rename(tmp_path / "g", tmp_path / "moved")  # noqa: PTH104
    assert [str(item.message).split(":")[0] for item in caught] == [
        f"no graphs written to {tmp_path / 'g'}"
    ]
