"""Every command prints the document that docs/json.md describes, and nothing else."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import cuda_stand_in
import jsonschema
import pytest
import toy_store
from cli_process import linear_graph, run_cli, write_graph
from json_tables import schema, sections

from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.commands import COMMANDS, cudnn_aot_command
from cudnn_aot.compiler.build.summary import BuildSummary, KernelFailure, KernelTotals

# verb: arguments of runs, each with the section of the page that describes its document.
# What stands in braces is of the fixture `places`; {bad} is a graph file that cannot be read.
RUNS = {
    "record": {"record": ("-o", "{folder}/recorded", "--", sys.executable, "-c", "pass")},
    "convert": {"convert": ("{graph}", "{bad}", "-o", "{folder}/converted")},
    "build": {"build": ("{graph}", "{bad}", "-t", "cpu", "--store", "{store}")},
    "why": {"why": ("{graph}", "-t", "cpu", "--store", "{store}")},
    "ls": {
        "ls": ("--store", "{store}"),
        "ls --stats": ("--stats", "--store", "{store}"),
        "ls --builds": ("--builds", "--store", "{store}"),
    },
    "show": {"show": ("up", "--store", "{store}"), "show of a graph file": ("{graph}",)},
    "verify": {
        "verify": ("--store", "{damaged}"),
        "verify --complete": ("--complete", "{folder}", "--store", "{store}"),
        "verify --device": ("--device", "cpu", "--store", "{store}"),
    },
    "run": {"run": ("up", "--bench", "--store", "{store}")},
    "tune": {"tune": ("up", "--symbol", "M=1", "-o", "{folder}/tuning", "--store", "{store}")},
    "report": {"report": ("--store", "{store}", "--bench", "{bench}", "--build", "{built}")},
    "diff": {"diff": ("{one}", "{other}")},
    "merge": {"merge": ("{one}", "{other}", "-o", "{folder}/merged")},
    "prune": {"prune": ("--dry-run", "--target", "cpu", "--store", "{store}")},
    "sign": {
        "sign": ("--key", "{key}", "--store", "{other}"),
        "sign --new-key": ("--new-key", "{folder}/new.pem"),
    },
    "pack": {"pack": ("--store", "{store}", "-o", "{folder}/pack")},
    "push": {"push": ("{url}", "--store", "{store}")},
    "pull": {"pull": ("{url}", "-o", "{folder}/pulled")},
    "targets": {"targets": (), "targets --engines": ("--engines", "h200")},
    "targets probe": {"targets probe": ()},
    "doctor": {"doctor": ("--store", "{store}")},
    "completion": {"completion": ("bash",)},
}
NEEDS = {"push": "fsspec", "pull": "fsspec", "sign": "cryptography"}  # of the extras


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, built_store: Path) -> dict[str, str]:
    """Files, and stores: `one` and `other` differ in whatever stores can differ in."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "bad.json").write_text("{")
    graph = write_graph(folder, linear_graph("up", 64))
    bench = run_cli("run", "up", "--bench", "--json", "--store", built_store)
    built = run_cli("build", graph, "-t", "cpu", "--json", "--store", built_store)
    for name, done in (("bench", bench), ("built", built)):
        (folder / f"{name}.txt").write_text(done.stdout)
    for name, numbers in (("one", (0, 1)), ("other", (1, 2))):
        with StoreWriter(folder / name) as writer:
            for number in numbers:
                toy_store.put(writer, number)
            key = writer.reader.name("h200", f"layer/{numbers[0]}")["graph_key"]
            writer.put_name("h200", "moved", key, {"A": 1})
    with StoreWriter(folder / "other") as writer:
        key = writer.reader.name("h200", "layer/1")["graph_key"]
        declined = {"status": "declined", "records": [], "reasons": ["too odd"]}
        pointer = {**writer.reader.pointer("h200", key), **declined}
        writer.put_pointer("h200", key, pointer)
    shutil.copytree(folder / "one", folder / "damaged")
    next((folder / "damaged" / "blobs").glob("*/*/*")).unlink()
    url = f"file://{folder}/pushed"
    if importlib.util.find_spec("fsspec"):
        assert run_cli("push", url, "--store", built_store).returncode == 0
    if importlib.util.find_spec("cryptography"):
        assert run_cli("sign", "--new-key", folder / "key").returncode == 0
    files = ("bad.json", "bench.txt", "built.txt", "one", "other", "damaged", "key")
    known = {name.partition(".")[0]: str(folder / name) for name in files}
    known |= {"store": str(built_store), "graph": str(graph), "url": url}
    return known | {"folder": str(folder)}


def verbs() -> set[str]:
    """Every command, and the verbs of those that have some."""
    context = cudnn_aot_command.make_context("cudnn-aot", [])
    found = set(COMMANDS)
    for name in COMMANDS:
        command = cudnn_aot_command.get_command(context, name)
        found |= {f"{name} {verb}" for verb in getattr(command, "commands", ())}
    return found


def test_every_verb_has_a_run_and_a_section() -> None:
    assert set(RUNS) == verbs()
    described = set(sections()) - {"error"}
    assert described == {section for runs in RUNS.values() for section in runs}


@pytest.mark.parametrize(
    ("verb", "section"), [(name, section) for name, runs in RUNS.items() for section in runs]
)
def test_the_document_is_the_one_described(verb: str, section: str, places: dict[str, str]) -> None:
    if verb in NEEDS:
        pytest.importorskip(NEEDS[verb], reason="the extra is not installed")
    arguments = [argument.format(**places) for argument in RUNS[verb][section]]
    devices = cuda_stand_in.environment() if verb == "targets probe" else {}
    cache = {"CUDNN_AOT_CACHE": f"{places['folder']}/cache"}
    done = run_cli(*verb.split(), "--json", *arguments, env=devices | cache)
    document = json.loads(done.stdout)
    rows = sections()[section]
    if section == "show":
        rows = [row for row in sections()["ls"] if row[0].startswith("plans[]")] + rows
    jsonschema.validate(document, schema(rows))
    assert document["format"] == 1 and list(document)[0] == "format"
    for field in NOT_EMPTY.get(section, ()):
        assert document[field], field


# Lists of documents that must have something in them here, or their rows would not be compared.
NOT_EMPTY = {
    "ls --stats": ("targets",),
    "ls --builds": ("builds",),
    "verify": ("problems",),
    "verify --complete": ("graphs", "failures"),
    "verify --device": ("plans",),
    "diff": ("only_a", "only_b", "changed", "names"),
    "merge": ("conflicts",),
    "prune": ("graphs", "kernels", "blobs"),
    "pull": ("targets",),
}


def test_a_kernel_that_failed_is_described_too() -> None:
    failure = KernelFailure("0" * 64, "module:kernel", "no such name", "", (("up", "cpu"),))
    totals = KernelTotals(failures=(failure,))
    summary = BuildSummary("store", 1, (), totals, 0, 0.5, shard=(1, 2))
    document = {"format": 1, **summary.to_json()}
    jsonschema.validate(document, schema(sections()["build"]))
    assert document["shard"] == [1, 2] and document["kernels"]["failed"] == 1
    assert document["failures"][0]["graphs"] == [{"name": "up", "target": "cpu"}]


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
