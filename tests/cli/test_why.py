"""`why` as it is read: every answer in sentences, one document, and the exit codes."""

import json
from pathlib import Path

import gemm_graphs
import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, tree_digest, write_graph
from cudnn_stand_in import CudnnStandIn

from cudnn_aot.compiler.build import driver


def test_a_planned_and_stored_graph_is_told_from_facts_to_store(
    built_store: Path, graph_files: list[Path]
) -> None:
    before = tree_digest(built_store)
    done = run_cli("why", graph_files[0], "--target", "cpu", "--store", built_store)
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    for part in (
        f"up for cpu, from {graph_files[0]}\n",
        "It is a graph of the family gemm",
        "symbol M        0..4096, ranked for 33",
        "gemm.host.blocked     takes it",
        "gemm.sm90.persistent  does not: target cpu is a cpu target, want cuda",
        "1 plan, best first",
        "A build takes plan 1: it runs 1 kernel of gemm.kernels.host:matmul.",
        f"The store {built_store} has this plan, and it is current: a build has nothing to do.",
    ):
        assert part in text, part
    places = [text.index(part) for part in ("family gemm", "Engines", "1 plan,", "The store")]
    assert places == sorted(places)
    assert tree_digest(built_store) == before


def test_a_stored_plan_of_cudnn_s_is_told_too(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    CudnnStandIn(monkeypatch)
    driver.build(graph_files, ["cpu"], store_copy, engines=["cudnn"])
    ask = ("why", graph_files[0], "-t", "cpu", "--store", store_copy)
    text = run_cli(*ask).stdout
    assert f"The store {store_copy} has this plan, and it is current" in text
    assert (
        "\n  it has cudnn's plan cudnn.eng4[KERNEL_CFG=3], whole:"
        "\n    cuDNN was not asked whether it is current: name it among the engines\n"
    ) in text
    asked = run_cli(*ask, "--engines", "cudnn").stdout
    assert f"The store {store_copy} has the native plan gemm.host.blocked, and it is" in asked
    assert "whole:\n    cuDNN runs on GPUs, and target cpu has none\n" in asked


def test_an_absent_graph_names_the_nearest_and_the_field(built_store: Path, tmp_path: Path) -> None:
    path = write_graph(tmp_path, linear_graph("mine", 72))
    text = run_cli("why", path, "-t", "cpu,h200", "--store", built_store).stdout
    assert "does not have it" in text
    assert "the nearest there is 'up', which is of the same kind; the difference is" in text
    assert "dim[2] of 'B': here 72, there 64" in text
    assert "it holds nothing for h200" in text


def test_the_first_plans_are_shown_unless_all_are_asked_for(tmp_path: Path) -> None:
    path = write_graph(tmp_path, linear_graph("long", 64, k=4096))  # a long k has many splits
    short = run_cli("why", path, "-t", "h200").stdout.splitlines()
    title = next(line for line in short if "best first" in line)
    assert title.split()[1] == "plans," and "more with --all" in title
    everything = run_cli("why", path, "-t", "h200", "--all").stdout
    assert "more with --all" not in everything and len(everything.splitlines()) > len(short)


def test_a_declined_graph_is_explained_with_exit_code_0(tmp_path: Path) -> None:
    g = gemm_graphs.graph("two_matmuls")
    a, b = (gemm_graphs.operand(g, name, 16, 16) for name in "AB")
    g.matmul(g.matmul(a, b), b).set_output(True)
    path = write_graph(tmp_path, g)
    done = run_cli("why", path, "-t", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No plan: a build declines this graph." in done.stdout
    assert "A of 'matmul.1', 'matmul.0::C', is what 'matmul.0' computes, want a" in done.stdout
    assert "No store was named" in done.stdout


def test_one_document(built_store: Path, graph_files: list[Path]) -> None:
    env = {"CUDNN_AOT_STORE": str(built_store)}
    done = run_cli("why", graph_files[0], "-t", "cpu,h200", "--json", env=env)
    document = json.loads(done.stdout)
    assert (document["format"], document["store"]) == (1, str(built_store))
    cpu, h200 = document["graphs"]
    assert (cpu["target"], h200["target"]) == ("cpu", "h200")
    native, cudnn = cpu["stored"]["plans"]
    name = cpu["plans"][0]["name"]
    assert native == {
        "provider": "native",
        "held": "current",
        "plan": name,
        "is_declined": False,
        "reasons": [],
    }
    assert (cudnn["provider"], cudnn["held"]) == ("cudnn", "absent")
    assert [plan["held"] for plan in h200["stored"]["plans"]] == ["absent", "absent"]
    assert h200["stored"]["other_targets"] == ["cpu"]
    engines = {engine["name"]: engine for engine in h200["engines"]}
    assert engines["gemm.sm90.persistent"] == {
        "id": 20_000,
        "name": "gemm.sm90.persistent",
        "takes_it": True,
        "reason": None,
    }
    assert h200["chosen"]["place"] == 1 and len(h200["chosen"]["kernels"][0]["key"]) == 64
    assert document["failures"] == []


def test_every_graph_of_a_file_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "several.py"
    path.write_text(
        "import cudnn_aot as cudnn\n"
        "def graphs():\n"
        "    for n in (16, 32):\n"
        "        g = cudnn.pygraph(name=f'n{n}', io_data_type='BFLOAT16',\n"
        "            intermediate_data_type='FLOAT', compute_data_type='FLOAT')\n"
        "        a, b = g.tensor(dim=[1, 8, 16]), g.tensor(dim=[1, 16, n])\n"
        "        g.matmul(a, b).set_output(True)\n"
        "        yield g\n"
    )
    done = run_cli("why", path, "-t", "cpu", "--json", cwd=tmp_path)
    assert [graph["name"] for graph in json.loads(done.stdout)["graphs"]] == ["n16", "n32"]


# id: (arguments, exit code, what the line must say)
BAD = {
    "no-graph": (("-t", "cpu"), 2, ("GRAPH",)),
    "absent": (("absent.json", "-t", "cpu"), 1, ("absent.json",)),
    "no-target": (("up.json",), 2, ("--target", "h200")),
    "unknown-target": (("up.json", "-t", "h2000"), 2, ("h2000", "h200")),
    "no-store": (("up.json", "-t", "cpu", "--store", "nowhere"), 2, ("nowhere",)),
    "no-tuning": (("up.json", "-t", "cpu", "--tuning", "no.json"), 2, ("no.json",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str, tmp_path: Path) -> None:
    arguments, code, fragments = BAD[case]
    write_graph(tmp_path, linear_graph("up", 64))
    assert_one_line_error(run_cli("why", *arguments, cwd=tmp_path), code, *fragments)


def test_a_bad_graph_file_has_its_place_in_the_document(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    done = run_cli("why", "bad.json", "-t", "cpu", "--json", cwd=tmp_path)
    assert_one_line_error(done, 1, "bad.json")
    document = json.loads(done.stdout)
    assert document["graphs"] == [] and document["failures"][0]["graph"] == "bad.json"


def test_cudnn_s_plans_or_why_there_are_none(tmp_path: Path) -> None:
    """With the real question: the cpu target has no GPU wherever this runs."""
    path = write_graph(tmp_path, linear_graph("mine", 72))
    reason = "cuDNN runs on GPUs, and target cpu has none"
    done = run_cli("why", path, "-t", "cpu", "--engines", "native,cudnn", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"cuDNN proposes no plan:\n  {reason}\n" in done.stdout
    assert "A build takes plan 1" in done.stdout
    alone = run_cli("why", path, "-t", "cpu", "--engines", "cudnn", "--json", cwd=tmp_path)
    (graph,) = json.loads(alone.stdout)["graphs"]
    assert graph["backend"] == {"plans": 0, "reason": reason}
    assert graph["plans"] == graph["engines"] == [] and graph["reasons"] == [f"cudnn: {reason}"]
    plain = run_cli("why", path, "-t", "cpu", "--json", cwd=tmp_path)
    assert json.loads(plain.stdout)["graphs"][0]["backend"] is None
    wrong = run_cli("why", path, "-t", "cpu", "--engines", "trt", cwd=tmp_path)
    assert wrong.returncode == 2 and "want one or more of native, cudnn" in wrong.stderr
