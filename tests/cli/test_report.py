"""`report`: its document, and its page looked at in a real browser."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import toy_store
from browser import needs_browser, screenshot, visit
from cli_process import assert_one_line_error, run_cli

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.layout import blob_path
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.expressions import symbol_bounds

# Ends of scripts and comments, markup, an attribute's end: names that others wrote.
HOSTILE = "</script><script>document.title='got'</script><img src=x onerror=nosuch()>\"'<!--"


def report(store: Path, page: Path, *arguments: object, code: int = 0) -> Path:
    done = run_cli("report", "--store", store, "-o", page, *arguments)
    assert done.returncode == code, done.stderr
    return page


def document(store: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = run_cli("report", "--store", store, "--json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, built_store: Path) -> Path:
    """A document of `run --bench --json` in which `up` has three values of M."""
    runs = []
    for rows in (1, 7, 64):
        done = run_cli(
            "run", "up", "--bench", "--json", "--symbol", f"M={rows}", "--store", built_store
        )
        runs += json.loads(done.stdout)["runs"]
    path = tmp_path_factory.mktemp("bench") / "now.json"
    path.write_text(json.dumps({"format": 1, "store": "store", "runs": runs}))
    return path


def test_what_the_document_says_of_a_store(built_store: Path) -> None:
    """Each number against what the store's own reader says."""
    reader = StoreReader(built_store)
    got = document(built_store)
    sizes = {key: reader.kernel(key)["blob"]["bytes"] for key in reader.kernels()}
    assert got["totals"] == {
        "graphs": 2, "plans": 2, "declined": 0, "damaged": 0, "kernels": 2,
        "bytes": sum(sizes.values()),
    }  # fmt: skip
    assert {kernel["key"]: kernel["bytes"] for kernel in got["kernels"]} == sizes
    down, up = got["plans"]
    assert (down["names"], up["names"]) == (["down"], ["up"])
    assert (up["target"], up["engine"], up["provider"]) == ("cpu", "gemm.host.blocked", "native")
    assert up["symbols"]["M"]["max"] == 4096
    assert [(entry["branch"], entry["bounds"]) for entry in up["dispatch"]] == [
        ("empty", {"M": [0, 0]}),
        ("blocked", {"M": [0, 4096]}),
    ]
    assert [got["kernels"][0]["plans"], got["kernels"][1]["plans"]] in ([[0], [1]], [[1], [0]])


def test_where_graphs_run(built_store: Path, tmp_path: Path) -> None:
    """A CPU plan serves no GPU; a GPU plan serves the machines that have what it requires."""
    states = {m["name"]: m["graphs"] for m in document(built_store)["machines"]}
    assert states["cpu"] == {"runs": 2} and states["h200"] == {"missing": 2}
    store = tmp_path / "store"
    copy_for_gpus(built_store, store, {"h200": 232448, "h100": 999999})
    got = document(store)
    (graph,) = got["graphs"]
    assert graph["on"]["h200"] == "runs" and graph["on"]["h100"] == "unmet"
    (h100,) = (machine for machine in got["machines"] if machine["name"] == "h100")
    want = {"target": "h100", "flag": "smem", "want": "999999 or more", "got": "232448", "plans": 1}
    assert h100["unmet"] == [want]
    other = tmp_path / "other"
    copy_for_gpus(built_store, other, {"h200": 232448})
    (graph,) = document(other)["graphs"]
    assert graph["on"]["h100"] == "elsewhere" and graph["on"]["cpu"] == "missing"


def copy_for_gpus(source: Path, store: Path, smem: dict[str, int]) -> None:
    """The plan `up` as one for each of these targets, requiring so much shared memory."""
    reader = StoreReader(source)
    entry = reader.name("cpu", "up")
    pointer = reader.pointer("cpu", entry["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    with StoreWriter(store, create=True) as writer:
        graph = writer.put_blob(reader.blob(pointer["graph"]))
        for target, need in smem.items():
            needs = record["requirements"] | {"gpu_arch": "sm_90a", "smem_optin_bytes": need}
            table = {**toy_store.NOTHING, "device": "cuda"}
            other = {"target": target, "kernels": [], "requirements": needs, "table": table}
            made = canonical_bytes(record | other)
            writer.put_pointer(
                target,
                entry["graph_key"],
                {
                    "status": "built",
                    "records": [writer.put_blob(made)],
                    "graph": graph,
                    "reasons": [],
                },
            )
            writer.put_name(target, "up", entry["graph_key"], entry["uids"])


@pytest.mark.parametrize(
    ("predicate", "bounds"),
    [
        (True, (1, 100)),
        (["le", "M", 64], (1, 64)),
        (["lt", "M", 64], (1, 63)),
        (["lt", 64, "M"], (65, 100)),
        (["and", ["le", 16, "M"], ["and", ["lt", "M", 32], ["aligned", 1, 16]]], (16, 31)),
        (["eq", "M", 7], (7, 7)),
        (["eq", ["mod", "M", 8], 0], None),
        (["or", ["le", "M", 4], ["aligned", 1, 16]], None),
    ],
    ids=str,
)
def test_bounds_of_a_guard(predicate: Any, bounds: tuple[int, int] | None) -> None:
    assert symbol_bounds(predicate, "M", 1, 100) == bounds


@needs_browser
def test_the_page_in_a_browser(built_store: Path, bench: Path, tmp_path: Path) -> None:
    """Scripts ran without an error, nothing was asked for, every part is there with its values."""
    page = report(built_store, tmp_path / "report.html", "--bench", bench)
    seen = visit(page)
    assert (seen.console, seen.requests) == ((), ())
    assert 'data-drawn="yes"' in seen.dom
    rows = seen.rows("plans")
    assert [row[:4] for row in rows] == [
        ["down", "cpu", "built", "gemm.host.blocked"],
        ["up", "cpu", "built", "gemm.host.blocked"],
    ]
    assert [row[5].startswith("M 0..4096") for row in rows] == [True, True]
    assert ["cpu", "-"] in [row[:2] for row in seen.rows("machines")]
    assert len(seen.rows("kernels")) == 2
    assert (
        len(re.findall("<rect", seen.dom.partition('id="treemap"')[2].partition("</svg>")[0])) == 2
    )
    line = seen.dom.partition('class="bench-line"')[2].partition("</svg>")[0]
    assert line.count("<circle") == 3 and "M=64" in line
    assert [row[2] for row in seen.rows("benches")] == ["M=1", "M=7", "M=64"]


@needs_browser
def test_a_view_is_in_the_address(built_store: Path, tmp_path: Path) -> None:
    """Searching and sorting, as a click or a key does them."""
    page = report(built_store, tmp_path / "report.html")
    sizes = {row["names"][0]: row["bytes"] for row in document(built_store)["plans"]}
    largest = sorted(sizes, key=lambda name: -sizes[name])
    assert [row[0] for row in visit(page, "plans.sort=-bytes").rows("plans")] == largest
    assert [row[0] for row in visit(page, "plans.sort=bytes").rows("plans")] == largest[::-1]
    found = visit(page, "plans.q=DOWN cpu")
    assert [row[0] for row in found.rows("plans")] == ["down"]
    assert "1 of 2" in found.dom and found.console == ()
    text = page.read_text()
    click = "<script>document.querySelectorAll('#plans-table th button')[7].click()</script></body>"
    clicked = tmp_path / "clicked.html"
    clicked.write_text(text.replace("</body>", click))
    assert [row[0] for row in visit(clicked).rows("plans")] == largest


@needs_browser
def test_names_are_text(store_copy: Path, bench: Path, tmp_path: Path) -> None:
    reader = StoreReader(store_copy)
    entry = reader.name("cpu", "up")
    with StoreWriter(store_copy) as writer:
        writer.put_name("cpu", HOSTILE, entry["graph_key"], entry["uids"])
    timed = json.loads(bench.read_text())
    timed["runs"][0]["name"] = HOSTILE
    hostile_bench = tmp_path / "bench.json"
    hostile_bench.write_text(json.dumps(timed))
    page = report(store_copy, tmp_path / "report.html", "--bench", hostile_bench)
    seen = visit(page)
    assert (seen.console, seen.requests) == ((), ())
    assert f"{HOSTILE}, up" in [row[0] for row in seen.rows("plans")]
    assert HOSTILE in [row[0] for row in seen.rows("benches")]
    assert "<img" not in seen.dom.partition('id="data"')[0]
    assert "<title>cudnn-aot" in seen.dom


def test_the_page_names_no_other_file(built_store: Path, tmp_path: Path) -> None:
    text = report(built_store, tmp_path / "report.html").read_text()
    addresses = set(re.findall(r"https?://[^\"' ]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, which nobody opens
    assert not re.findall(r"<(?:link|img|iframe|script src)\b", text)
    assert "default-src 'none'" in text
    assert "@CSS@" not in text and "@JS@" not in text and "@DATA@" not in text


@needs_browser
def test_schemes_and_widths(built_store: Path, bench: Path, tmp_path: Path) -> None:
    """Dark differs from light, and a phone scrolls tables, not the page."""
    page = report(built_store, tmp_path / "report.html", "--bench", bench)
    light = screenshot(page, tmp_path / "light.png")
    dark = screenshot(page, tmp_path / "dark.png", 1280, "--blink-settings=preferredColorScheme=0")
    assert len({light, dark}) == 2
    measure = (
        "<script>document.body.dataset.colour = getComputedStyle(document.body).backgroundColor;"
        "document.body.dataset.over = document.documentElement.scrollWidth - innerWidth</script>"
    )
    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", measure + "</body>"))
    phone = visit(measured, "", 500)
    assert 'data-over="0"' in phone.dom and 'data-colour="rgb(251, 251, 250)"' in phone.dom
    dark_dom = visit(measured, "", 1280, "--blink-settings=preferredColorScheme=0").dom
    assert 'data-colour="rgb(20, 23, 26)"' in dark_dom


def test_a_damaged_store_is_shown(store_copy: Path, tmp_path: Path) -> None:
    """A kernel's bytes, a record's blob and a name: each stands where it belongs, exit code 1."""
    reader = StoreReader(store_copy)
    kernels = {plan["names"][0]: plan["kernels"][0] for plan in document(store_copy)["plans"]}
    record = reader.pointer("cpu", reader.name("cpu", "down")["graph_key"])["records"][0]
    for path, content in (
        (store_copy / blob_path(reader.kernel(kernels["up"])["blob"]["sha256"]), b"x"),
        (store_copy / blob_path(record), None),
        (store_copy / "names" / "cpu" / "up.json", b"{}"),
    ):
        path.parent.chmod(0o755)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    got = document(store_copy, code=1)
    down, nameless = got["plans"]
    assert (down["status"], nameless["status"], nameless["names"]) == ("damaged", "built", [])
    assert record in down["fault"]
    assert len(got["problems"]) >= 3 and got["totals"]["damaged"] == 1
    assert {graph["on"]["cpu"] for graph in got["graphs"]} == {"damaged", "runs"}
    page = report(store_copy, tmp_path / "report.html", code=1)
    assert record in page.read_text()


@needs_browser
def test_a_store_without_a_plan(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", create=True):
        pass
    seen = visit(report(tmp_path / "store", tmp_path / "report.html"))
    assert seen.console == () and 'data-drawn="yes"' in seen.dom
    assert seen.rows("plans") == [] and len(seen.rows("machines")) >= 3


@needs_browser
def test_a_thousand_plans(
    built_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some seconds of one processor at most, and a page that a browser draws whole."""
    reader = StoreReader(built_store)
    entry = reader.name("cpu", "up")
    pointer = reader.pointer("cpu", entry["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    store = tmp_path / "store"
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # 4000 files, and no crash
    with StoreWriter(store, create=True) as writer:
        graph = writer.put_blob(reader.blob(pointer["graph"]))
        for number in range(1000):
            key = f"{number:064b}"  # no digit that is looked for below
            other = {"graph_key": key, "kernels": [], "table": toy_store.NOTHING}
            made = writer.put_blob(canonical_bytes(record | other))
            fields = {"status": "built", "records": [made], "graph": graph, "reasons": []}
            writer.put_pointer("cpu", key, fields)
            writer.put_name("cpu", f"plan {number}", key, entry["uids"])
    before = os.times()
    page = report(store, tmp_path / "report.html")
    after = os.times()
    assert after.children_user - before.children_user < 10
    assert page.stat().st_size < 4 << 20
    seen = visit(page, "plans.q=99&plans.sort=-graph")
    assert seen.console == ()
    names = [row[0] for row in seen.rows("plans")]
    assert names[:2] == ["plan 999", "plan 998"] and len(names) == 19
    assert len(seen.rows("graphs")) == 1000


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (None, "cannot read"),
        ("{", "not JSON"),
        ("[]", "not a document of"),
        ("{}", "not a document"),
    ],
)
@pytest.mark.parametrize("option", ["--bench", "--build"])
def test_a_wrong_document(
    option: str, content: str | None, fragment: str, built_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_text(content)
    done = run_cli("report", "--store", built_store, "-o", tmp_path / "report.html", option, path)
    assert_one_line_error(done, 2, str(path), fragment)
    assert not (tmp_path / "report.html").exists()


def test_where_the_page_goes(built_store: Path, tmp_path: Path) -> None:
    assert_one_line_error(run_cli("report", "--store", built_store), 2, "-o FILE", "--json")
    absent = tmp_path / "absent" / "report.html"
    assert_one_line_error(run_cli("report", "--store", built_store, "-o", absent), 2, str(absent))
    page = tmp_path / "report.html"
    page.write_text("old")
    done = run_cli("report", "-o", page, env={"CUDNN_AOT_STORE": str(built_store)})
    assert done.returncode == 0 and done.stdout.startswith(f"{page}: 2 plans, 2 kernels, ")
    assert page.read_text().startswith("<!doctype html>")


def test_a_tuning_file_is_drawn_as_a_line(built_store: Path, tmp_path: Path) -> None:
    about = {"family": "gemm", "target": "cpu", "layout_class": "kk -> FLOAT"}
    entries = [
        {
            **about,
            "extents": {"batch": 1, "m": m, "n": 64, "k": 32},
            "plans": [{"engine": "gemm.host.blocked", "knobs": {}, "us": 2.0 * m}],
        }
        for m in (4, 1, 16)
    ]
    file = tmp_path / "cpu.json"
    file.write_text(json.dumps({"format": 1, "entries": entries}))
    done = run_cli("report", "--json", "--store", built_store, "--bench", file)
    assert done.returncode == 0, done.stderr
    benches = json.loads(done.stdout)["benches"]
    assert {bench["name"] for bench in benches} == {"kk -> FLOAT batch=1 n=64 k=32"}
    times = {bench["symbols"]["m"]: bench["microseconds"] for bench in benches}
    assert times == {1: 2.0, 4: 8.0, 16: 32.0}


def tuning_file(path: Path, *times: Any) -> Path:
    about = {"family": "gemm", "target": "cpu", "layout_class": "kk -> FLOAT"}
    plan = {"engine": "gemm.host.blocked", "knobs": {}}
    entries = [
        {**about, "extents": {"m": m}, "plans": [] if us is None else [{**plan, "us": us}]}
        for m, us in enumerate(times)
    ]
    path.write_text(json.dumps({"format": 1, "entries": entries}))
    return path


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (None, "entries[1] has no plan, want one"),
        ("fast", "entries[1]: plans[0]: us is 'fast', want microseconds"),
        ([], "entries[1]: plans[0]: us is [], want microseconds"),
        (-1.0, "entries[1]: plans[0]: us is -1.0, want microseconds"),
        (10**400, "entries[1]: plans[0]: us is 1000"),
        (float("nan"), "is not JSON: NaN is no number of JSON"),
        (float("inf"), "is not JSON: Infinity is no number of JSON"),
    ],
    ids=["none", "string", "list", "negative", "huge", "nan", "infinite"],
)
def test_a_time_that_no_chart_has_is_refused(
    built_store: Path, tmp_path: Path, us: Any, said: str
) -> None:
    file = tuning_file(tmp_path / "cpu.json", 1.0, us)
    done = run_cli("report", "--json", "--store", built_store, "--bench", file)
    assert_one_line_error(done, 2, f"tuning file {str(file)!r}", said)


@pytest.mark.parametrize(
    "seconds", ["NaN", "Infinity", "-1", "1e999", "1" + "0" * 400], ids=lambda text: text[:8]
)
def test_a_document_without_numbers_is_none(
    built_store: Path, tmp_path: Path, seconds: str
) -> None:
    timed = {"name": "up", "target": "cpu", "symbols": {}, "correct": True, "tflops": 1.0}
    runs = json.dumps({"runs": [{**timed, "microseconds": 0.125}]})
    made = {"jobs": 1, "graphs": [], "kernels": {"compiled": 0, "hits": 0}, "seconds": 0.125}
    for option, text in (("--bench", runs), ("--build", json.dumps(made))):
        file = tmp_path / "document.json"
        for said, code in (("0.125", 0), (seconds, 2)):
            file.write_text(text.replace("0.125", said))
            done = run_cli("report", "--json", "--store", built_store, option, file)
            assert done.returncode == code, done.stderr
        assert_one_line_error(done, 2, f"{file}: not a document of `")


def test_a_tuning_file_of_another_format_is_refused(built_store: Path, tmp_path: Path) -> None:
    file = tuning_file(tmp_path / "cpu.json", 1.0)
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    done = run_cli("report", "--json", "--store", built_store, "--bench", file)
    assert_one_line_error(done, 2, f"tuning file {str(file)!r}: format is 2, want 1")
