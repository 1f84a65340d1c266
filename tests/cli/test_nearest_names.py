"""Whatever has a name from a closed set is refused with the nearest one, in the same words."""

import json
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.errors import did_you_mean

# arguments ({graph}, {op}, {port}, {descriptor} are files in {folder}): exit code, what was meant
WRONG = {
    "command": (("buidl",), 2, "build"),
    "option": (("ls", "--jsn"), 2, "--json"),
    "target of build": (("build", "{graph}", "-t", "hh200"), 2, "h200"),
    "target in another case": (("build", "{graph}", "-t", "H200"), 2, "h200"),
    "target of why": (("why", "{graph}", "-t", "cpuu"), 2, "cpu"),
    "target of the engines": (("targets", "--engines", "h10"), 2, "h100"),
    "field of a descriptor": (("build", "{graph}", "-t", "{descriptor}"), 2, "gpu_arch"),
    "allowed decline": (
        ("build", "{graph}", "-t", "cpu", "--allow-declined", "cpuu"),
        2,
        "cpu",
    ),
    "provider": (("build", "{graph}", "-t", "cpu", "--engines", "cuddn"), 2, "cudnn"),
    "executor": (("build", "{graph}", "-t", "cpu", "--executor", "rya"), 2, "ray"),
    "verb of a command": (("targets", "prob"), 2, "probe"),
    "target of a device": (("verify", "--device", "h2000"), 2, "h200"),
    "target of the plans": (("verify", "--device", "cpu", "-t", "cpuu"), 1, "cpu"),
    "graph file": (("build", "{folder}/grph.json", "-t", "cpu"), 1, "graph.json"),
    "folder of graph files": (("build", "{folder}x", "-t", "cpu"), 1, "nearest0"),
    "plan": (("show", "dwn"), 1, "down"),
    "target of a store": (("ls", "-t", "cpuu"), 1, "cpu"),
    "target of run": (("run", "--all", "-t", "cpuu"), 1, "cpu"),
    "symbol": (("run", "up", "--symbol", "m=3"), 2, "M"),
    "op of a graph file": (("show", "{op}"), 1, "matmul"),
    "port of a graph file": (("show", "{port}"), 1, "A"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("nearest")
    document = json.loads(graph_json.dumps(linear_graph("g", 64)))
    texts = {"graph": json.dumps(document)}
    document["nodes"][0]["op"] = "matmull"
    texts["op"] = json.dumps(document)
    document["nodes"][0]["op"] = "matmul"
    document["nodes"][0]["inputs"]["a"] = document["nodes"][0]["inputs"].pop("A")
    texts["port"] = json.dumps(document)
    texts["descriptor"] = json.dumps({"gpu_arhc": "sm_90a"})
    paths = {name: folder / f"{name}.json" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)
    return {name: str(path) for name, path in paths.items()} | {"folder": str(folder)}


@pytest.mark.parametrize("case", WRONG)
def test_the_nearest_is_named(case: str, files: dict[str, str], built_store: Path) -> None:
    arguments, code, meant = WRONG[case]
    filled = [argument.format(**files) for argument in arguments]
    done = run_cli(*filled, env={"CUDNN_AOT_STORE": str(built_store)})
    assert_one_line_error(done, code, f"(did you mean {meant!r}?)")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h20", " (did you mean 'h200'?)"),
        ("H100", " (did you mean 'h100'?)"),
        ("zebra", ""),
        ("", ""),
        ("h200" * 5000, ""),
    ],
)
def test_the_words(name: str, said: str) -> None:
    assert did_you_mean(name, ("cpu", "h100", "h200")) == said
    assert did_you_mean(name, ()) == ""
