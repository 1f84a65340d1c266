"""Every command prints the document that docs/json.md describes, and nothing else."""

import json
import sys
from pathlib import Path

import jsonschema
import pytest
from cli_process import linear_graph, run_cli, write_graph
from json_tables import schema, sections

from cudnn_aot.cli.commands import COMMANDS

# command: arguments of runs, each with the section of the page that describes its document.
# {store}, {graph}, {folder} and {bad}, a graph file that cannot be read, are filled in.
RUNS = {
    "record": {"record": ("-o", "{folder}", "--", sys.executable, "-c", "pass")},
    "convert": {"convert": ("{graph}", "{bad}", "-o", "{folder}")},
    "build": {"build": ("{graph}", "{bad}", "-t", "cpu", "--store", "{store}")},
    "why": {"why": ("{graph}", "-t", "cpu", "--store", "{store}")},
    "ls": {"ls": ("--store", "{store}")},
    "show": {"show": ("up", "--store", "{store}"), "show of a graph file": ("{graph}",)},
    "verify": {"verify": ("--store", "{store}")},
    "run": {"run": ("up", "--bench", "--store", "{store}")},
    "targets": {"targets": (), "targets --engines": ("--engines", "h200")},
    "report": {"report": ("{store}", "--bench", "{bench}", "--build", "{built}")},
    "doctor": {"doctor": ("--store", "{store}")},
    "completion": {"completion": ("bash",)},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, built_store: Path) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("json")
    (folder / "bad.json").write_text("{")
    graph = write_graph(folder, linear_graph("up", 64))
    bench = run_cli("run", "up", "--bench", "--json", "--store", built_store)
    built = run_cli("build", graph, "-t", "cpu", "--json", "--store", built_store)
    for name, done in (("bench", bench), ("built", built)):
        (folder / f"{name}.json").write_text(done.stdout)
    return {
        "bench": str(folder / "bench.json"),
        "built": str(folder / "built.json"),
        "store": str(built_store),
        "graph": str(graph),
        "bad": str(folder / "bad.json"),
        "folder": str(folder / "out"),
    }


def test_every_command_has_a_run_and_a_section() -> None:
    assert set(RUNS) == set(COMMANDS)
    described = set(sections()) - {"error"}
    assert described == {section for runs in RUNS.values() for section in runs}


@pytest.mark.parametrize(
    ("command", "section"), [(name, section) for name, runs in RUNS.items() for section in runs]
)
def test_the_document_is_the_one_described(
    command: str, section: str, places: dict[str, str]
) -> None:
    arguments = [argument.format(**places) for argument in RUNS[command][section]]
    done = run_cli(command, "--json", *arguments)
    document = json.loads(done.stdout)
    rows = sections()[section]
    if section == "show":
        rows = [row for row in sections()["ls"] if row[0].startswith("plans[]")] + rows
    jsonschema.validate(document, schema(rows))
    assert document["format"] == 1 and list(document)[0] == "format"


@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("show", "x", "--store", "."), ("nothing",), ("build", "x", "-t", "cpux")],
)
def test_an_error_is_a_document_too(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run_cli(*arguments, "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema(sections()["error"]))
    assert document["error"]["exit_code"] == done.returncode == 2
    assert done.stderr == f"error: {document['error']['message']}\n"


def test_the_reader_of_the_page_refuses_what_the_page_does_not_say() -> None:
    """What `schema` makes of a table is strict: a field too many or too few, another type."""
    rows = [("a[].b", "integer"), ("a[].c?", "string"), ("d.*.e", "digest"), ("f[]?", "any")]
    made = schema(rows)
    good = {"format": 1, "a": [{"b": 1}, {"b": 2, "c": ""}], "d": {"x": {"e": "0" * 64}}}
    jsonschema.validate(good, made)
    for change in (
        {"a": [{"c": ""}]},
        {"a": [{"b": 1, "new": 1}]},
        {"a": [{"b": "1"}]},
        {"d": {"x": {"e": "0"}}},
        {"d": {"x": {}}},
        {"f": 1},
        {"new": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | change, made)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({k: v for k, v in good.items() if k != "d"}, made)
