"""The example server, built by CMake against the installed package and run without Python."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import c_interface
import pytest
from cpp_server import build, check_outputs, run, serve
from served_store import put_plan, small_store

from cudnn_aot.cache import elf
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.formats import graph_json


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cpp-server"))


def test_answers_are_those_of_the_reference(server, built_store, tmp_path):
    """Both plans, several sizes, on 8 threads: elements by the reference, and the sums of them."""
    asked = [
        (name, m) for name, m in itertools.product(("up", "down"), (1, 5, 17, 33, 64, 100))
    ] * 3
    requests = "".join(f"{name} M={m}\n" for name, m in asked)
    options = ("--store", built_store, "--threads", 8, "--repeat", 3, "--out", tmp_path)
    done = serve(server, requests, *options)
    assert done.returncode == 0, done.stderr
    answers = dict(re.findall(r"^(\d+ \w+) 3:(\S+)$", done.stdout, re.MULTILINE))
    reader = StoreReader(built_store)
    for line, (name, m) in enumerate(asked, 1):
        pointer = reader.pointer("cpu", reader.name("cpu", name)["graph_key"])
        graph = graph_json.loads(reader.blob(pointer["graph"]).decode())
        sums = check_outputs(graph, {"M": m}, f"{tmp_path}/{line}")
        assert float(answers[f"{line} {name}"]) == pytest.approx(sums[3], abs=1e-9)
    table = done.stdout.split("us of execute\n")[1].splitlines()
    assert len(table) == 12 and all(row.split()[2] == "9" for row in table)


def test_errors_are_one_line_and_the_others_are_served(server, tmp_path):
    store = small_store(tmp_path / "store")
    done = serve(server, "scale M=3\nscale M=-1\nodd\nscale N=1\n", "--store", store, "scale",
                 "--target", "cpu")  # fmt: skip
    assert done.returncode == 1
    assert re.match(r"1 scale 9:\S+$", done.stdout.splitlines()[0])
    assert sorted(done.stderr.splitlines()) == [
        "error: RefusedError: symbol 'M': got -1, want 0 to 1048576 (rule symbol_range)",
        "error: RefusedError: symbols: got 'N', want 'M' (rule symbol_unknown)",
        "error: no plan odd",
    ]
    for options, message in (
        ([], "UsageError: no store: pass a path or set CUDNN_AOT_STORE"),
        (["--store", tmp_path], "NotAStoreError: "),
        (["--store", store, "scael"], "NotInStoreError: "),
        (
            ["--store", store, "odd"],
            "cudnnGraphNotSupportedError: graph 'odd' is declined for h200",
        ),
    ):
        done = serve(server, "", *options)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {message}"), done.stderr
        assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_a_damaged_store_is_not_served(server, store_copy):
    for blob in (store_copy / "blobs").rglob("*"):
        if blob.is_file() and blob.read_bytes()[:4] == b"\x7fELF":
            data = bytearray(blob.read_bytes())
            data[len(data) // 2] ^= 1
            blob.chmod(0o644)
            blob.write_bytes(data)
    done = serve(server, "up M=1\n", "--store", store_copy)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("error: DamagedError: ") and "its bytes hash to" in done.stderr


def test_layers_packs_and_digests(server, tmp_path):
    """The plan of the overlay, a pack, where it has one; and only what has the digests."""
    stores = [tmp_path / "overlay.pack", small_store(tmp_path / "base")]
    with StoreWriter(tmp_path / "overlay") as writer:
        put_plan(writer, "scale", version=2)  # adds 1 to each of 18 elements
    write_pack(StoreReader(tmp_path / "overlay"), stores[0], 0)
    digests = [StoreReader(store).root_digest() for store in stores]
    options = [option for store in stores for option in ("--store", store)]
    pins = [option for digest in digests for option in ("--digest", digest)]
    sums = {}
    for name, given in {"both": [*options, *pins], "base": options[2:]}.items():
        done = serve(server, "scale M=3\n", *given, "--target", "cpu", "scale")
        assert done.returncode == 0, done.stderr
        sums[name] = float(re.search(r"9:(\S+)$", done.stdout, re.MULTILINE)[1])
    assert sums["both"] == sums["base"] + 18
    for given, message in (
        ([*options, *pins[2:], *pins[:2]], f"PinError: store '{stores[0]}' is not the pinned one"),
        ([*options, *pins[:2]], "UsageError: bad digest: got ''"),
        ([*options[:2], *pins], "UsageError: bad digest: got ''"),
        (pins, "UsageError: bad digest: got some for no layer"),
    ):
        done = serve(server, "", *given, "scale")
        assert done.returncode == 1 and done.stderr.startswith(f"error: {message}"), done.stderr


def test_the_library_knows_no_python(server):
    data = c_interface.LIBRARY.read_bytes()
    for binary in (server, c_interface.LIBRARY):
        assert "libpython" not in run("ldd", binary)
    exported = elf.exported_symbols(data)
    imported = [symbol.name for symbol in elf.imported_symbols(data)]
    assert not [name for name in imported if name.startswith(("Py", "_Py"))]
    assert exported and all(name.startswith(("cudnn_aot_", "CuteDSLRT_")) for name in exported)
    header = (c_interface.INSTALLED / "include" / "cudnn_aot.h").read_text()
    declared = set(re.findall(r"\b(cudnn_aot_\w+)\(", header))
    assert declared == {name for name in exported if name.startswith("cudnn_aot_")}


@pytest.mark.parametrize("dlpack", [False, True], ids=["own", "dlpack.h"])
def test_the_header_is_c(tmp_path, dlpack):
    """With DLPack's own header too, which the package of tvm-ffi has."""
    import tvm_ffi.libinfo

    program = tmp_path / "program.c"
    program.write_text(
        "#include <stdio.h>\n#include <cudnn_aot.h>\n"
        "int main(void) {\n"
        "  cudnn_aot_store* store = NULL;\n"
        '  cudnn_aot_error* error = cudnn_aot_open("/nonexistent", NULL, &store);\n'
        "  DLTensor tensor = {0};\n"
        "  puts(cudnn_aot_error_message(error));\n"
        "  int code = (int)cudnn_aot_error_code(error) + tensor.ndim;\n"
        "  cudnn_aot_error_free(error);\n"
        "  return code;\n"
        "}\n"
    )
    include = c_interface.INSTALLED / "include"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}"]
    if dlpack:
        flags.append(f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}")
    library = c_interface.LIBRARY.parent
    link = [f"-L{library}", "-lcudnn_aot", f"-Wl,-rpath,{library}"]
    run("cc", *flags, program, "-o", tmp_path / "program", *link)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert done.returncode == 2
    want = "want one that `cudnn-aot build --store` made"
    assert done.stdout == f"no store at '/nonexistent': there is no such folder, {want}\n"
