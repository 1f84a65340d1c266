"""``convert``, ``show`` of graph files, and Python files as input of ``build``."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph
from jsonschema import Draft202012Validator

from cudnn_aot.compiler.formats import graph_json, peer_blob
from cudnn_aot.compiler.formats.load import load_graphs

PEER = Path(__file__).parents[1] / "data" / "peer_graphs"
LOWERED = PEER / "cudnn_frontend_1_32" / "lowered_sdpa_fwd.json"
SOURCE = """
import cudnn_aot as cudnn

def linear(n):
    graph = cudnn.pygraph(io_data_type="BFLOAT16", compute_data_type="FLOAT")
    a, b = graph.tensor([1, 32, 48], name="A"), graph.tensor([1, 48, n], name="B")
    graph.matmul(a, b, name="mm").set_output(True)
    return graph

first = linear(64)

def graphs():
    return {f"wide_{n}": linear(n) for n in (72, 80)}
"""


def keys(folder: Path) -> dict[str, str]:
    return {path.stem: load_graphs(path)[0].key() for path in folder.glob("*.json")}


def test_every_form_becomes_graph_json(tmp_path: Path) -> None:
    gemm = PEER / "cudnn_frontend_1_32" / "gemm_residual.json"
    header = {"format": 1, "frontend_version": "1.32.0", "plan": {}, "kernels": []}
    text = json.dumps({**header, "graph": json.loads(gemm.read_text())}).encode()
    blob = tmp_path / "plan.bin"
    blob.write_bytes(peer_blob.MAGIC + len(text).to_bytes(8, "little") + text + b"\x7fELF")
    ours = write_graph(tmp_path, linear_graph("ours", 64))
    source = tmp_path / "model.py"
    source.write_text(SOURCE)
    out = tmp_path / "deep" / "out"
    done = run_cli("convert", gemm, LOWERED, blob, ours, source, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"7 graphs written to {out}" in done.stdout
    found = keys(out)
    expected = {path.stem: load_graphs(path)[0].key() for path in (gemm, LOWERED, blob, ours)}
    assert {name: found[name] for name in expected} == expected
    assert found["plan"] == found["gemm_residual"]
    assert set(found) - set(expected) == {"first", "wide_72", "wide_80"}
    again = run_cli("convert", *out.glob("*.json"), "-o", tmp_path / "again")
    assert again.returncode == 0
    for path in out.glob("*.json"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_folder_of_the_frontends_graphs(tmp_path: Path) -> None:
    files = sorted(PEER.glob("*/*.json"))
    done = run_cli("convert", *files, "-o", tmp_path, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert [row["source"] for row in document["graphs"]] == [str(path) for path in files]
    for row in document["graphs"]:
        assert row["status"] == "converted"
        (graph,) = load_graphs(row["file"])
        assert (graph.key(), len(graph.nodes)) == (row["graph_key"], row["nodes"])


def test_a_failing_file_stops_nothing_but_itself(tmp_path: Path) -> None:
    bad, unsupported = tmp_path / "bad.json", tmp_path / "unsupported.json"
    bad.write_text("{")
    lowered = json.loads(LOWERED.read_text())
    lowered["nodes"][0]["tag"] = "RESAMPLE"
    unsupported.write_text(json.dumps(lowered))
    out = tmp_path / "out"
    done = run_cli("convert", bad, unsupported, tmp_path / "absent", LOWERED, "-o", out, "--json")
    assert done.returncode == 1
    rows = {Path(row["source"]).name: row for row in json.loads(done.stdout)["graphs"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "bad.json": "failed",
        "unsupported.json": "declined",
        "absent": "failed",
        "lowered_sdpa_fwd.json": "converted",
    }
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"error: {bad}: not JSON")
    assert lines[1].startswith(f"declined: {unsupported}: $.nodes[0]: node 'attn': tag 'RESAMPLE'")
    assert "cannot read the graph file" in lines[2]
    assert [path.name for path in out.iterdir()] == ["lowered_sdpa_fwd.json"]
    assert run_cli("convert", unsupported, LOWERED, "-o", out).returncode == 3


def test_convert_overwrites_neither_its_input_nor_another_graph(tmp_path: Path) -> None:
    ours = write_graph(tmp_path, linear_graph("g", 64))
    before = ours.read_bytes()
    done = run_cli("convert", ours, "-o", tmp_path)
    assert_one_line_error(done, 1, "g.json", "choose another folder")
    assert ours.read_bytes() == before
    other = tmp_path / "other"
    other.mkdir()
    twin = write_graph(other, linear_graph("g", 72))
    out = tmp_path / "out"
    done = run_cli("convert", ours, twin, "-o", out)
    assert_one_line_error(done, 1, str(twin), "is written already, with another graph of")
    assert keys(out) == {"g": load_graphs(ours)[0].key()}
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(ours, copy / "g.json")
    assert run_cli("convert", ours, copy / "g.json", "-o", out).returncode == 0


def test_one_file_is_one_graph(tmp_path: Path) -> None:
    """Graphs of one key differ in names; equal graphs are one file, and counted as one."""
    ours = write_graph(tmp_path, linear_graph("g", 64))
    for name, text in (
        ("same", ours.read_text()),
        ("other", ours.read_text().replace('"name": "g"', '"name": "other"')),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "g.json").write_text(text)
    out = tmp_path / "out"
    done = run_cli("convert", ours, tmp_path / "same/g.json", "-o", out)
    assert (done.returncode, done.stderr) == (0, "") and f"1 graph written to {out}" in done.stdout
    before = (out / "g.json").read_bytes()
    other = tmp_path / "other/g.json"
    assert load_graphs(other)[0].key() == load_graphs(ours)[0].key()
    done = run_cli("convert", ours, other, "-o", out)
    assert_one_line_error(done, 1, str(other), "is written already, with another graph of")
    assert "1 graph written" in done.stdout and (out / "g.json").read_bytes() == before


def test_one_bad_graph_of_a_python_file_costs_no_other(tmp_path: Path) -> None:
    source, out, store = tmp_path / "model.py", tmp_path / "out", tmp_path / "store"
    source.write_text(SOURCE + "\nbad = cudnn.pygraph()\n")
    line = f"{source}: bad: the graph has no node"
    done = run_cli("convert", source, "-o", out)
    assert_one_line_error(done, 1, line)
    assert set(keys(out)) == {"first", "wide_72", "wide_80"}
    assert f"3 graphs written to {out}, 1 left out" in done.stdout
    done = run_cli("show", source)
    assert_one_line_error(done, 1, line)
    assert "first: 1 node" in done.stdout and "wide_80: 1 node" in done.stdout
    done = run_cli("build", source, "--target", "cpu", "--store", store, "--json")
    assert_one_line_error(done, 1, line)
    statuses = {row["name"]: row["status"] for row in json.loads(done.stdout)["graphs"]}
    assert statuses == {
        **dict.fromkeys(("first", "wide_72", "wide_80"), "built"),
        "bad": "failed",
    }


def test_names_that_are_no_file_names(tmp_path: Path) -> None:
    source = tmp_path / "names.py"
    body = SOURCE.replace('f"wide_{n}"', 'f"../a b/{n}*"')
    source.write_text(body)
    out = tmp_path / "out"
    assert run_cli("convert", source, "-o", out).returncode == 0
    assert {path.name for path in out.iterdir()} == {"first.json", "_a_b_72_.json", "_a_b_80_.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"names.py", "out"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("convert", "-o", "x"), "no file given"),
        (("convert", LOWERED), "no folder given: pass -o DIR"),
        (("convert", LOWERED, "-o", LOWERED), "cannot make the folder"),
        (("show", "absent.json"), "cannot read the graph file"),
        (("show", "plan", "--mermaid"), "--mermaid and --svg draw graph files: 'plan' is none"),
        (("show", LOWERED, "--svg", "/no/such/folder/x.svg"), "cannot write the drawing"),
    ],
)
def test_wrong_commands(args: tuple[object, ...], message: str) -> None:
    assert_one_line_error(run_cli(*args), 2, message)


def test_the_schema_is_printed() -> None:
    done = run_cli("convert", "--schema")
    assert (done.returncode, done.stderr) == (0, "")
    schema = json.loads(done.stdout)
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(graph_json.dumps(linear_graph("g", 64))))


# show


def show(*args: object) -> str:
    done = run_cli("show", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_show_is_a_table(tmp_path: Path) -> None:
    path = write_graph(tmp_path, linear_graph("up", 64))
    text = show(path)
    (graph,) = load_graphs(path)
    assert text.startswith("up: ") and graph.key() in text
    assert "symbol   M in 0..4096, usually 33" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "A", "input", "BFLOAT16", "[1,", "M,", "48]", "[48*M,", "48,", "1]"] in rows
    assert any(row[1:2] == ["matmul"] and "A=1" in row and "B=2" in row for row in rows)
    thd = show(PEER / "real_programs" / "te_thd_sink.json")
    assert "ragged by uid 4" in thd and "use_causal_mask=True" in thd
    scales = show(PEER / "real_programs" / "fi_mm_fp4_m512.json")
    assert "order F8_128x4" in scales and "block_size=[1, 16]" in scales


def test_show_prints_json(tmp_path: Path) -> None:
    path = write_graph(tmp_path, linear_graph("up", 64))
    document: dict[str, Any] = json.loads(show(path, "--json"))
    (row,) = document["graphs"]
    (graph,) = load_graphs(path)
    assert (row["name"], row["graph_key"]) == ("up", graph.key())
    assert graph_json.loads(json.dumps(row["graph"])).key() == graph.key()
    assert len(row["class"]) == 64 and row["class"] != row["graph_key"]


def test_show_draws(tmp_path: Path) -> None:
    path = PEER / "cudnn_frontend_1_32" / "gemm_swiglu_dual.json"
    assert show(path, "--mermaid").startswith("flowchart TD\n  t1[")
    target = tmp_path / "drawing.svg"
    assert show(path, "--svg", target) == f"{target}: 4 nodes drawn\n"
    assert target.read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    source = tmp_path / "model.py"
    source.write_text(SOURCE)
    assert show(source, "--mermaid").count("flowchart TD") == 3
    done = run_cli("show", source, "--svg", target)
    assert_one_line_error(done, 2, "--svg: the file holds 3 graphs, want one")


def test_show_prefers_a_plan_to_a_folder_of_its_name(
    store_copy: Path, tmp_path: Path, graph_files: list[Path]
) -> None:
    (tmp_path / "up").mkdir()
    done = run_cli("show", "up", "--store", store_copy, cwd=tmp_path)
    assert done.returncode == 0 and "engine" in done.stdout


# build


def test_build_takes_a_python_file(tmp_path: Path) -> None:
    source, store = tmp_path / "model.py", tmp_path / "store"
    source.write_text(SOURCE)
    done = run_cli("build", source, "--target", "cpu", "--store", store, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["graphs"]
    assert {row["name"]: row["status"] for row in rows} == dict.fromkeys(
        ("first", "wide_72", "wide_80"), "built"
    )
    assert {row["file"] for row in rows} == {str(source)}
    again = run_cli("build", source, "--target", "cpu", "--store", store, "--json")
    assert {row["status"] for row in json.loads(again.stdout)["graphs"]} == {"cached"}


def test_a_bad_python_file_does_not_stop_a_build(
    tmp_path: Path, graph_files: list[Path], store_copy: Path
) -> None:
    source = tmp_path / "model.py"
    source.write_text("print('noise')\nimport os\nos.abort()\n")
    done = run_cli(
        "build", source, *graph_files, "--target", "cpu", "--store", store_copy, "--json"
    )
    assert_one_line_error(done, 1, "model", "running the file ended with signal SIGABRT")
    statuses = {row["name"]: row["status"] for row in json.loads(done.stdout)["graphs"]}
    assert statuses == {"model": "failed", "up": "cached", "down": "cached"}


def test_a_plan_whose_name_ends_as_files_do(tmp_path: Path) -> None:
    file, store = write_graph(tmp_path, linear_graph("up.json", 64)), tmp_path / "store"
    done = run_cli("build", file, "-t", "cpu", "--store", store)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run_cli("show", "up.json", "--store", store, cwd=elsewhere)
    assert done.returncode == 0 and "engine" in done.stdout
    done = run_cli("show", "down.json", "--store", store, cwd=elsewhere)
    assert_one_line_error(done, 2, "down.json: cannot read the graph file")
    (elsewhere / "up.json").write_bytes(write_graph(elsewhere, linear_graph("x", 32)).read_bytes())
    assert "engine" not in run_cli("show", "up.json", "--store", store, cwd=elsewhere).stdout
