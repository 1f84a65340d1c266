"""Bad input is one line on stderr with the right exit code, and the store stays as it was."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, tree_digest, write_graph

from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.formats import graph_json


def valid_document() -> dict[str, Any]:
    return json.loads(graph_json.dumps(linear_graph("g", 64)))


def edit(change: Callable[[dict[str, Any]], None]) -> bytes:
    document = valid_document()
    change(document)
    return json.dumps(document).encode()


def unknown_op(document: dict[str, Any]) -> None:
    document["nodes"][0]["op"] = "matmull"


def unknown_field(document: dict[str, Any]) -> None:
    document["nodes"][0]["colour"] = "red"


def uid_twice(document: dict[str, Any]) -> None:
    document["tensors"][1]["uid"] = document["tensors"][0]["uid"]


def shapes_differ(document: dict[str, Any]) -> None:
    b = next(t for t in document["tensors"] if t.get("name") == "B")
    b["dim"][1] = 47


# id: (bytes of the graph file, what the line must say)
BAD_FILES = {
    "no-json": (b"this is no graph", ()),
    "empty": (b"", ()),
    "binary": (bytes(range(256)) * 8, ()),
    "list": (b"[1, 2]", ()),
    "deep": (b"[" * 100_000, ()),
    "no-graph": (b"{}", ()),
    "unknown-op": (edit(unknown_op), ("matmull",)),
    "unknown-field": (edit(unknown_field), ("colour",)),
    "uid-twice": (edit(uid_twice), ()),
    "shapes-differ": (edit(shapes_differ), ("47", "48")),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_graph_file(case: str, tmp_path: Path, store_copy: Path) -> None:
    content, fragments = BAD_FILES[case]
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    before = tree_digest(store_copy)
    done = run_cli("build", path, "--target", "cpu", "--store", store_copy)
    assert_one_line_error(done, 1, "bad.json", *fragments)
    assert tree_digest(store_copy) == before
    fresh = tmp_path / "fresh"
    run_cli("build", path, "--target", "cpu", "--store", fresh)
    assert not fresh.exists()


def test_a_bad_file_does_not_stop_the_others(
    tmp_path: Path, graph_files: list[Path], store_copy: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    done = run_cli("build", bad, *graph_files, "--target", "cpu", "--store", store_copy, "--json")
    assert_one_line_error(done, 1, "bad.json")
    statuses = {item["name"]: item["status"] for item in json.loads(done.stdout)["graphs"]}
    assert statuses == {"bad": "failed", "up": "cached", "down": "cached"}


# id: (arguments after the graph file, exit code, what the line must say)
BAD_ARGUMENTS = {
    "unknown-target": (("--target", "h2000"), 2, ("h2000", "h200", "cpu")),
    "no-target": ((), 2, ("--target", "h200", "cpu")),
    "target-file-missing": (("--target", "./no.json"), 2, ("no.json",)),
    "jobs-zero": (("--target", "cpu", "-j", "0"), 2, ("-j", "'0'")),
    "jobs-huge": (("--target", "cpu", "-j", "9" * 5000), 2, ("-j", "9999")),
    "jobs-word": (("--target", "cpu", "-j", "many"), 2, ("'many'", "auto")),
    "unknown-option": (("--target", "cpu", "--fast"), 2, ("--fast",)),
    "tuning-missing": (("--target", "cpu", "--tuning", "no.json"), 2, ("no.json", "No such file")),
    "allow-unknown": (("--target", "cpu", "--allow-declined", "h100"), 2, ("h100",)),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_build_arguments(case: str, graph_files: list[Path], store_copy: Path) -> None:
    arguments, code, fragments = BAD_ARGUMENTS[case]
    before = tree_digest(store_copy)
    done = run_cli("build", graph_files[0], *arguments, "--store", store_copy)
    assert_one_line_error(done, code, *fragments)
    assert tree_digest(store_copy) == before


def test_build_without_graphs(store_copy: Path) -> None:
    assert_one_line_error(run_cli("build", "--target", "cpu", "--store", store_copy), 2, "graph")


def test_missing_graph_file_and_folder(tmp_path: Path, store_copy: Path) -> None:
    before = tree_digest(store_copy)
    for path in (tmp_path / "absent.json", tmp_path):
        done = run_cli("build", path, "--target", "cpu", "--store", store_copy)
        assert_one_line_error(done, 1, str(path))
    assert tree_digest(store_copy) == before


def test_one_name_for_two_graphs(tmp_path: Path, store_copy: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = write_graph(tmp_path / "a", linear_graph("same", 64))
    second = write_graph(tmp_path / "b", linear_graph("same", 72))
    before = tree_digest(store_copy)
    done = run_cli("build", first, second, "--target", "cpu", "--store", store_copy)
    assert_one_line_error(done, 2, "'same'", str(first), str(second))
    assert tree_digest(store_copy) == before


STORE_COMMANDS = (
    *(("ls",), ("show", "up"), ("verify",), ("run", "up")),
    *(("ls", "--stats"), ("verify", "--device", "cpu"), ("prune", "--unreferenced")),
)


@pytest.mark.parametrize("command", STORE_COMMANDS, ids=lambda value: value[0])
def test_a_store_that_is_not_one(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"not a store")
    before = tree_digest(tmp_path)
    assert_one_line_error(run_cli(*command, "--store", tmp_path), 2, str(tmp_path))
    assert_one_line_error(run_cli(*command, "--store", tmp_path / "absent"), 2, "absent")
    assert_one_line_error(run_cli(*command, "--store", tmp_path / "holiday.jpg"), 2, "holiday.jpg")
    assert tree_digest(tmp_path) == before


def test_build_into_a_folder_that_is_not_a_store(tmp_path: Path, graph_files: list[Path]) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"not a store")
    before = tree_digest(tmp_path)
    done = run_cli("build", *graph_files, "--target", "cpu", "--store", tmp_path)
    assert_one_line_error(done, 2, str(tmp_path))
    done = run_cli("build", *graph_files, "--target", "cpu", "--store", tmp_path / "holiday.jpg")
    assert_one_line_error(done, 2, "holiday.jpg")
    assert tree_digest(tmp_path) == before


def test_a_store_of_a_newer_format(store_copy: Path) -> None:
    file = store_copy / "store.json"
    file.chmod(0o644)
    file.write_text('{"format":99}\n')
    for command in STORE_COMMANDS:
        assert_one_line_error(run_cli(*command, "--store", store_copy), 2, "99", "format 1")


def kernel_blobs(store: Path) -> list[Path]:
    records = [json.loads(path.read_text()) for path in (store / "kernels").rglob("*.json")]
    digests = [record["blob"]["sha256"] for record in records]
    return [store / "blobs" / "sha256" / digest[:2] / digest for digest in digests]


def flip_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_flipped_byte_in_a_kernel(store_copy: Path, graph_files: list[Path]) -> None:
    blobs = kernel_blobs(store_copy)
    for blob in blobs:
        flip_byte(blob, 1000)
    before = tree_digest(store_copy)
    done = run_cli("verify", "--store", store_copy)
    assert done.returncode == 1
    assert all(blob.name in done.stdout for blob in blobs)
    done = run_cli("run", "up", "--store", store_copy)
    assert_one_line_error(done, 1, "damaged")
    assert tree_digest(store_copy) == before
    healed = run_cli("build", *graph_files, "--target", "cpu", "--store", store_copy)
    assert healed.returncode == 0, healed.stderr
    assert run_cli("verify", "--store", store_copy).returncode == 0
    assert run_cli("run", "--all", "--store", store_copy).returncode == 0


@pytest.mark.parametrize("folder", ["kernels", "plans", "names", "blobs"])
def test_a_flipped_byte_anywhere_is_found(folder: str, store_copy: Path) -> None:
    for index, path in enumerate(
        sorted(p for p in (store_copy / folder).rglob("*") if p.is_file())
    ):
        flip_byte(path, 37 + 11 * index)
        done = run_cli("verify", "--store", store_copy)
        assert done.returncode == 1, path
        assert path.name in done.stdout, path
        assert "Traceback" not in done.stderr
        flip_byte(path, 37 + 11 * index)
    assert run_cli("verify", "--store", store_copy).returncode == 0


def test_unknown_names_and_targets(store_copy: Path) -> None:
    for command in ("show", "run"):
        done = run_cli(command, "upp", "--store", store_copy)
        assert_one_line_error(done, 1, "'upp'", "up")
        done = run_cli(command, "up", "--target", "h100", "--store", store_copy)
        assert_one_line_error(done, 1, "h100", "cpu")
    assert_one_line_error(run_cli("ls", "--target", "h100", "--store", store_copy), 1, "cpu")


def test_bad_run_arguments(store_copy: Path) -> None:
    for arguments, fragment in (
        ((), "--all"),
        (("up", "--all"), "--all"),
        (("up", "--symbol", "M"), "'M'"),
        (("up", "--symbol", "M=-1"), "M=-1"),
        (("up", "--symbol", "Q=3"), "'Q'"),
        (("--all", "--symbol", "Q=3"), "no graph has a symbol 'Q'; they have: M"),
        (("up", "--symbol", "M=3", "--symbol", "M=4"), "'M' is given twice, want one number"),
        (("up", "--seed", "x"), "seed"),
        (("up", "--seed", "-1"), "seed"),
        (("up", "--device", "99999999999"), "device"),
    ):
        done = run_cli("run", *arguments, "--store", store_copy)
        assert_one_line_error(done, 2, fragment)


def test_a_symbol_out_of_range(store_copy: Path) -> None:
    """Refused before anything is allocated, however large it is."""
    for value in ("4097", "100000000", "9223372036854775807", "9" * 5000):
        done = run_cli("run", "up", "--symbol", f"M={value}", "--store", store_copy)
        assert_one_line_error(done, 2, "M", value[:19])
    done = run_cli("run", "--all", "--symbol", "M=100000000", "--store", store_copy)
    assert done.returncode == 1
    assert sorted(done.stderr.splitlines()) == [
        f"error: {name}: --symbol M: got 100000000, want 0..4096" for name in ("down", "up")
    ]


def test_operands_beyond_this_machine(store_copy: Path, tmp_path: Path) -> None:
    """A symbol within its range can still ask for more than there is."""
    graph = linear_graph("wide", 64, max_rows=(1 << 31) - 1)
    path = write_graph(tmp_path, graph)
    built = run_cli("build", path, "--target", "cpu", "--store", store_copy)
    assert built.returncode == 0, built.stderr
    rows = (1 << 31) - 1
    done = run_cli("run", "wide", "--symbol", f"M={rows}", "--store", store_copy)
    assert_one_line_error(done, 1, f"M={rows}", " bytes", "--symbol")


def test_unknown_command() -> None:
    assert_one_line_error(run_cli("bild"), 2, "'bild'", "build")


def without_roots_rights() -> list[str]:
    """What to start a command with so that file modes hold for it too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv to give that up")
    dropped = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]


def close_folders(store: Path) -> None:
    for path in [store, *store.rglob("*")]:
        if path.is_dir():
            path.chmod(0o555)


def test_unwritable_store(store_copy: Path, tmp_path: Path) -> None:
    extra = write_graph(tmp_path, linear_graph("extra", 56))
    close_folders(store_copy)
    before = tree_digest(store_copy.parent)
    done = run_cli(
        *("build", extra, "--target", "cpu", "--store", store_copy), prefix=without_roots_rights()
    )
    assert_one_line_error(done, 1, "--store")
    assert tree_digest(store_copy.parent) == before


def test_unreadable_file(store_copy: Path, graph_files: list[Path]) -> None:
    """It is not called damaged, since nobody has seen its bytes; a build puts it right."""
    blob = kernel_blobs(store_copy)[0]
    blob.chmod(0)
    prefix = without_roots_rights()
    done = run_cli("verify", "--store", store_copy, prefix=prefix)
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if blob.name in line]
    assert len(lines) == 1 and lines[0].startswith("unreadable: "), done.stdout
    assert "permission denied" in lines[0] and "damaged" not in done.stdout
    build = ("build", *graph_files, "--target", "cpu", "--store", store_copy)
    assert run_cli(*build, prefix=prefix).returncode == 0
    assert run_cli("verify", "--store", store_copy, prefix=prefix).returncode == 0


def test_what_is_no_file_is_named_and_replaced(store_copy: Path, graph_files: list[Path]) -> None:
    """A folder or a FIFO in place of every single file of the store."""
    before = tree_digest(store_copy)
    files = [path for path in store_copy.rglob("*") if path.is_file()]
    files.remove(store_copy / "store.json")
    for index, path in enumerate(files):
        path.unlink()
        path.mkdir() if index % 2 else os.mkfifo(path)
    done = run_cli("verify", "--store", store_copy)
    assert done.returncode == 1
    for path in files:
        assert f"damaged: {path.relative_to(store_copy)}: " in done.stdout
    assert "is never loaded: build the same graphs again" in done.stdout
    done = run_cli("run", "--all", "--store", store_copy)
    assert done.returncode == 1 and "internal error" not in done.stderr
    done = run_cli("build", *graph_files, "--target", "cpu", "--store", store_copy)
    assert done.returncode == 0, done.stderr
    assert tree_digest(store_copy) == before


@pytest.mark.parametrize(
    "command", [("build", "g.json", "-t", "cpu"), *STORE_COMMANDS, ("doctor",)], ids=lambda v: v[0]
)
def test_an_empty_store_setting(command: tuple[str, ...], tmp_path: Path) -> None:
    """An unset variable in `--store "$STORE"` must not choose the default."""
    write_graph(tmp_path, linear_graph("g", 64))
    done = run_cli(*command, "--store", "", cwd=tmp_path)
    assert_one_line_error(done, 2, "--store", "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["g.json"]


def test_a_graph_file_that_is_none(tmp_path: Path, store_copy: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.py")
    out = tmp_path / "out"
    for path in (tmp_path / "pipe.json", tmp_path / "pipe.py", Path("/dev/null")):
        for code, command in (
            (1, ("build", path, "--target", "cpu", "--store", store_copy)),
            (1, ("convert", path, "-o", out)),
            (2, ("record", "-o", out, "--from-log", path)),
        ):
            assert_one_line_error(run_cli(*command), code, str(path), "not a regular file")
    done = run_cli("show", tmp_path / "pipe.json")
    assert_one_line_error(done, 2, "pipe.json", "not a regular file")
    graph = write_graph(tmp_path, linear_graph("g", 64))
    done = run_cli("build", graph, "--target", tmp_path / "pipe.json", "--store", store_copy)
    assert_one_line_error(done, 2, "pipe.json", "not a regular file")


JSON_FAILURES = {
    "no-plan": (("show", "nothere"), 1, "NotInStoreError"),
    "no-target": (("run", "--all", "--target", "h200"), 1, "NotInStoreError"),
    "ls-target": (("ls", "--target", "h200"), 1, "NotInStoreError"),
    "no-names": (("run",), 2, "UsageError"),
    "bad-option": (("ls", "--fast"), 2, "UsageError"),
    "no-build-target": (("build", "g.json"), 2, "UsageError"),
    "bad-command": (("bild",), 2, "UsageError"),
}


@pytest.mark.parametrize("case", JSON_FAILURES)
def test_a_failure_is_a_document_as_well(case: str, store_copy: Path) -> None:
    command, code, kind = JSON_FAILURES[case]
    done = run_cli(*command, "--json", env={"CUDNN_AOT_STORE": str(store_copy)})
    assert_one_line_error(done, code)
    error = json.loads(done.stdout)["error"]
    assert error == {"kind": kind, "message": done.stderr[len("error: ") : -1], "exit_code": code}
    quiet = run_cli(*command, env={"CUDNN_AOT_STORE": str(store_copy)})
    assert quiet.stdout == "" and quiet.stderr.startswith("error: ")


def test_forbidden_compile_names_the_kernel(tmp_path: Path, graph_files: list[Path]) -> None:
    store = tmp_path / "store"
    done = run_cli(
        "build",
        graph_files[0],
        *("--target", "cpu", "--store", store),
        env={"CUDNN_AOT_FORBID_COMPILE": "1"},
    )
    assert_one_line_error(done, 1, "CUDNN_AOT_FORBID_COMPILE", "gemm.kernels.host:matmul")
    assert not list(store.rglob("kernels/*/*.json"))


def test_forbidden_compile_allows_what_is_stored(store_copy: Path, graph_files: list[Path]) -> None:
    done = run_cli(
        "build",
        *graph_files,
        *("--target", "cpu", "--store", store_copy, "--json"),
        env={"CUDNN_AOT_FORBID_COMPILE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"]["compiled"] == 0


def test_full_disk(tmp_path: Path, graph_files: list[Path]) -> None:
    """ENOSPC is one clear line and what was stored stays valid."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("mounting is not allowed here")
    try:
        store = small / "store"
        done = run_cli("build", *graph_files, "--target", "cpu", "--store", store)
        assert done.returncode == 1
        assert "no space left" in done.stderr.lower()
        assert "Traceback" not in done.stderr
        assert run_cli("verify", "--store", store).returncode == 0
    finally:
        os.system(f"umount {small}")


def test_paths_need_be_no_text(built_store: Path, tmp_path: Path) -> None:
    """A store, a graph file whose graph has no name, and a URL, of bytes that no encoding has."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))
    odd.mkdir()
    document = json.loads(write_graph(tmp_path, linear_graph("up", 64)).read_text())
    graph = odd / os.fsdecode(b"g\xff.json")
    graph.write_text(json.dumps(document | {"name": ""}))
    env = {"CUDNN_AOT_CACHE": str(tmp_path / "cache")}
    url = f"file://{odd}/far"
    for command in (
        ("build", graph, "-t", "cpu", "-o", odd / "store"),
        ("verify", "--store", odd / "store"),
        ("verify", "--complete", graph, "--store", odd / "store"),
        ("why", graph, "-t", "cpu", "--store", built_store),
        ("push", url, "--store", odd / "store"),
        ("pull", url, "-o", odd / "pulled"),
        ("run", "g\ufffd", "--store", odd / "pulled"),
    ):
        done = run_cli(*command, env=env)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "command", [("run", "--all"), ("tune", "-o", "x"), ("verify", "--device", "cpu")]
)
def test_a_store_without_plans(command: tuple[str, ...], tmp_path: Path) -> None:
    StoreWriter(tmp_path / "store").close()
    done = run_cli(*command, "--store", tmp_path / "store", cwd=tmp_path)
    assert_one_line_error(done, 1, "the store holds no plan: build or pull into it first")


@pytest.mark.parametrize("leads_to", ["link", "nothing"])
def test_a_link_that_leads_to_no_store(
    leads_to: str, built_store: Path, graph_files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(leads_to)
    for command in (
        ("build", graph_files[0], "-t", "cpu", "--store", "link"),
        ("merge", built_store, "-o", "link"),
    ):
        done = run_cli(*command, cwd=tmp_path)
        assert_one_line_error(done, 2, "'link' is not a store: it is a link that leads to nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "--trust", "/dev/zero"), "bad key '/dev/zero'"),
        (("sign", "--key", "/dev/zero"), "bad key '/dev/zero'"),
        (("build", "-t", "cpu", "--tuning", "/dev/zero"), "tuning file '/dev/zero' is not a reg"),
        (("why", "-t", "cpu", "--tuning", "pipe"), "tuning file 'pipe' is not a regular file"),
    ],
)
def test_a_file_without_end_is_not_read(
    words: tuple[str, ...], said: str, built_store: Path, graph_files: list[Path], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    graphs = graph_files[:1] if words[0] in ("build", "why") else []
    done = run_cli(words[0], *graphs, *words[1:], "--store", built_store, cwd=tmp_path)
    assert_one_line_error(done, 2, said)
