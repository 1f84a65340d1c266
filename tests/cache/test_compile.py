"""Compiling through the cache, with real workers and real processes."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import toy_store

import cudnn_aot.recipes
from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.compile import CompilerPool, compile_cached
from cudnn_aot.cache.executor import Cause, Compiled, Failed
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.spec import KernelSpec, kernel_spec
from cudnn_aot.cache.worker import one_line
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import CompileError, CompileForbiddenError, NotReproducibleError


@pytest.fixture
def store(toy_build: Path, tmp_path: Path) -> Path:
    """A copy of the store with two toy kernels, to write to."""
    return Path(shutil.copytree(toy_build, tmp_path / "store"))


def test_records_say_what_a_machine_must_have(toy_build: Path) -> None:
    reader = StoreReader(toy_build)
    assert reader.verify() == []
    host, device = (
        reader.kernel(toy_store.toy_spec(function, scale=2.0).key)
        for function in ("host", "device")
    )
    assert device["requirements"] == {
        "gpu_arch": "sm_90a",
        "smem_optin_bytes": 1024,
        "driver_min": 12090,
        "host_triple": "x86_64-linux-gnu",
        "host_level": "x86-64-v3",
        "glibc_min": "",
    }
    assert host["requirements"]["gpu_arch"] == ""
    assert host["requirements"]["driver_min"] == 0
    assert host["requirements"]["glibc_min"] == ""  # expf, of any glibc
    assert device["blob"]["bytes"] < 60_000
    for record in (host, device):
        blob = reader.blob(record["blob"]["sha256"])
        assert len(blob) == record["blob"]["bytes"]
        for text in (
            b"/site-packages",
            b"Debian",
            b"Ubuntu",
            b"Red Hat",
            str(Path.home()).encode() + b"/",
        ):
            assert text not in blob


def test_a_host_kernel_computes(toy_build: Path) -> None:
    import tvm_ffi

    record = StoreReader(toy_build).kernel(toy_store.toy_spec("host", scale=2.0).key)
    module = tvm_ffi.load_module(
        shutil.copy(toy_build / blob_of(record), toy_build.parent / "k.so")
    )
    x, y = np.linspace(-2, 2, 1003, dtype="f4"), np.zeros(1003, "f4")
    module["kernel"](x, y)
    np.testing.assert_allclose(y, np.exp(x * 2), rtol=1e-6)


def blob_of(record: dict) -> str:
    return layout.blob_path(record["blob"]["sha256"])


def test_a_hit_compiles_nothing(toy_build: Path, pool: CompilerPool) -> None:
    with StoreWriter(toy_build) as writer:
        entry = compile_cached(toy_store.toy_spec("device", scale=2.0), writer, pool, forbid=True)
        assert not entry.compiled and entry.seconds == 0
        assert writer.files_written == 0
        with pytest.raises(CompileForbiddenError, match="not in the store and compiling is forb"):
            compile_cached(toy_store.toy_spec(scale=77.0), writer, pool, forbid=True)


@pytest.mark.parametrize("damage", ["blob", "record"])
def test_a_damaged_kernel_is_made_again(store: Path, pool: CompilerPool, damage: str) -> None:
    before = toy_store.snapshot(store)
    spec = toy_store.toy_spec(scale=2.0)
    record = StoreReader(store).kernel(spec.key)
    path = store / (blob_of(record) if damage == "blob" else layout.kernel_path(spec.key))
    path.chmod(0o644)
    path.write_bytes(b"")
    with StoreWriter(store) as writer:
        with pytest.raises(CompileForbiddenError):
            compile_cached(spec, writer, pool, forbid=True)
        entry = compile_cached(spec, writer, pool)
    assert entry.compiled and entry.object_digest == record["object"]["sha256"]
    assert {path: data for path, (_, _, data) in toy_store.snapshot(store).items()} == {
        path: data for path, (_, _, data) in before.items()
    }


def test_another_object_for_a_key_raises_the_alarm(store: Path, pool: CompilerPool) -> None:
    spec = toy_store.toy_spec(scale=2.0)
    record = StoreReader(store).kernel(spec.key)
    record["object"]["sha256"] = "e" * 64
    path = store / layout.kernel_path(spec.key)
    path.chmod(0o644)
    path.write_bytes(layout.document_bytes(record))
    (store / blob_of(record)).unlink()
    with StoreWriter(store) as writer, pytest.raises(NotReproducibleError, match="not reproduc"):
        compile_cached(spec, writer, pool)


def test_bytes_do_not_depend_on_where_and_who(toy_build: Path, tmp_path: Path) -> None:
    """Another folder, home, temporary folder, hash seed, order and DSL variables; same bytes."""
    scratch = tmp_path / "a temporary folder"
    scratch.mkdir()
    environment = {
        **os.environ,
        "HOME": "/nonexistent",
        "TMPDIR": str(scratch),
        "PYTHONHASHSEED": "123",
        "LC_ALL": "C",
        "USER": "somebody",
        "CUTE_DSL_ARCH": "sm_100a",
        "CUTE_DSL_LINEINFO": "1",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_LIBS": "/nonexistent.so",
    }
    other = tmp_path / "other" / "store"
    kernels = ("device=2", "host=2")
    toy_store.finish(toy_store.start(other, *kernels, cwd=scratch, env=environment, umask=0o77))
    assert toy_store.snapshot(other) == toy_store.snapshot(toy_build)
    assert list(scratch.iterdir()) == []


def test_eight_processes_one_key(tmp_path: Path) -> None:
    store, at = tmp_path / "store", str(time.monotonic() + 2.0)
    started = [toy_store.start(store, "host=5", "--at", at) for _ in range(8)]
    entries = [entry for process in started for entry in toy_store.finish(process)]
    assert len(entries) == 8
    assert sum(entry["compiled"] for entry in entries) == 1
    assert len({(entry["object_digest"], entry["blob_digest"]) for entry in entries}) == 1
    assert StoreReader(store).verify() == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "user-cache"] == ["store"]


def test_different_keys_overlap_and_waiters_hear_of_it(tmp_path: Path) -> None:
    """Four keys in four processes, each compiled for seconds, and a fifth process that waits."""
    store, at = tmp_path / "store", str(time.monotonic() + 1.0)
    kernels = ("host=1", "host=2", "host=3", "host=4")
    all_four = [toy_store.start(store, kernel, "--sleep", "4", "--at", at) for kernel in kernels]
    waiting = toy_store.start(
        store, "host=1", "--sleep", "4", "--at", str(float(at) + 0.7)
    )  # a kernel is the same whoever sleeps
    entries = [entry for process in all_four for entry in toy_store.finish(process)]
    (last,) = toy_store.finish(waiting)
    assert [entry["compiled"] for entry in [*entries, last]] == [True] * 4 + [False]
    assert max(entry["began"] for entry in entries) < min(entry["ended"] for entry in entries)
    assert last["notices"] and last["notices"][0].startswith(f"pid {all_four[0].pid} on ")


def test_threads_of_one_builder(tmp_path: Path) -> None:
    """Six threads ask for three kernels with two workers."""
    with StoreWriter(tmp_path / "store") as writer, CompilerPool(2) as pool:
        specs = [toy_store.toy_spec(scale=float(n % 3)) for n in range(6)]
        entries = {}
        threads = [
            threading.Thread(
                target=lambda n=n: entries.update({n: compile_cached(specs[n], writer, pool)})
            )
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(entries) == list(range(6))
    assert sum(entry.compiled for entry in entries.values()) == 3


@pytest.mark.parametrize("after_s", [0.5, 1.8])
def test_killed_while_compiling(toy_build: Path, tmp_path: Path, after_s: float) -> None:
    """SIGKILL of the builder: its workers end, its locks are gone, the next build is complete."""
    store = tmp_path / "store"
    process = toy_store.start(store, "host=2", "device=2", "--jobs", "2")
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    toy_store.finish(toy_store.start(store, "host=2", "device=2"))
    assert toy_store.snapshot(store) == toy_store.snapshot(toy_build)
    assert [path.name for path in tmp_path.iterdir() if path.name != "user-cache"] == ["store"]


# Templates that misbehave


def fails(function: str, pool: CompilerPool, tmp_path: Path) -> str:
    with StoreWriter(tmp_path / "store") as writer:
        with pytest.raises(CompileError) as caught:
            compile_cached(toy_store.toy_spec(function, "faulty"), writer, pool)
        assert writer.reader.kernels() == []
    message = str(caught.value)
    assert "\n" not in message
    assert f"kernel toys.kernels.faulty:{function} (" in message
    return message


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("reads_a_file", "toys/kernels/table.txt, which its source digest does not cover"),
        ("reads_a_file_and_hides_it", "table.txt, which its source digest does not cover"),
        ("imports_by_name", "the kernel imports cudnn_aot.recipes.toys.kernels.scaling, which"),
        ("starts_a_process", "starts a process (subprocess.Popen)"),
        ("raises", "did not compile: ValueError: tile 96 is not in the menu; log: "),
        ("does_not_compile", "did not compile: DSLUserCodeError: TYPE_UNSTABLE_JOIN"),
        ("dies", "killed (out of memory?) while compiling, the second time alone, with "),
        ("aborts", "the compile worker died of SIGABRT while compiling"),
        # The DSL misses it, or where this machine's libgcc happens to have it, the check of what
        # is linked.
        ("needs_a_missing_symbol", " __truncsfbf2"),
        ("absent", "AttributeError: module 'cudnn_aot.recipes.toys.kernels.faulty' has no"),
    ],
)
def test_one_line_says_why(function: str, reason: str, pool: CompilerPool, tmp_path: Path) -> None:
    message = fails(function, pool, tmp_path)
    assert reason in message
    if "; log: " in message:
        assert Path(message.partition("; log: ")[2]).read_text()


# What a kernel reads


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("imports_what_is_loaded", "the kernel imports cudnn_aot.cache.toolchain, which"),
        ("takes_what_is_loaded", "KeyError: 'cudnn_aot.errors'"),
        ("takes_the_worker", "AttributeError: module '__main__' has no attribute 'toolchain'"),
        ("imports_another_project", "the kernel imports numpy, which its source digest"),
        ("imports_another_project_by_name", "the kernel imports numpy, which its source digest"),
        ("loads_another_project", "/site-packages/click/"),
        ("lists_a_folder", "toys/kernels, which its source digest"),
        ("scans_a_folder", "toys/kernels, which its source digest"),
        ("opens_beside_a_folder", "toys/kernels, which its source digest"),
        ("reads_from_its_folder", "toys/kernels/table.txt, which its source digest"),
        ("reads_through_a_link", "/link, which its source digest"),
        ("links_a_file", "toys/kernels/table.txt, which its source digest"),
        ("reads_the_machine", "the kernel opens /proc/cpuinfo, which its source digest"),
        ("asks_the_network", "the kernel asks the network (socket.gethostname), which"),
    ],
)
def test_a_kernel_reads_what_its_key_has(
    function: str, reason: str, pool: CompilerPool, tmp_path: Path
) -> None:
    assert reason in fails(function, pool, tmp_path)


@pytest.mark.parametrize("function", ["reads_outside", "loads_a_library"])
def test_no_file_of_elsewhere_is_an_input(
    function: str, pool: CompilerPool, tmp_path: Path
) -> None:
    """One key would name the object of each content that the file has had."""
    file = tmp_path / "outside.so"
    file.write_text("5")
    outcome = pool.compile(toy_store.toy_spec(function, "faulty", file=str(file)))
    assert isinstance(outcome, Failed)
    assert outcome.reason == f"the kernel opens {file}, which its source digest does not cover"


def test_a_kernel_may_use_its_tools_and_its_folder(pool: CompilerPool) -> None:
    outcome = pool.compile(toy_store.toy_spec("uses_what_it_may", "faulty"))
    assert isinstance(outcome, Compiled), outcome


class DSLRuntimeError(Exception):
    """As the DSL's: the cause is an attribute, and the message may say nothing."""

    cause: Exception | None = None


@pytest.mark.parametrize(
    ("message", "cause", "line"),
    [
        ("\n\x1b[91merror[BAD_TILE]:\x1b[0m tile 96\n  --> x.py:3", None, "BAD_TILE tile 96"),
        (
            "error: \U0001f9ca\U0001f9ca ICE \U0001f9ca\U0001f9ca\n  --> x.py:3",
            "no such op",
            "no such op",
        ),
        ("error: \U0001f9ca ICE IR Verification Failed \U0001f9ca", None, "\U0001f9ca ICE IR"),
        ("error: a library could not be resolved\n = note: no symbol f \n", "x", "no symbol f"),
        ("", None, ""),
    ],
)
def test_the_first_line_of_substance(message: str, cause: str | None, line: str) -> None:
    error = DSLRuntimeError(message)
    error.cause = ValueError(cause) if cause else None
    kind = "ValueError" if line == cause else "DSLRuntimeError"
    assert one_line(error).startswith(f"{kind}: {line}" if line else kind)
    assert "\n" not in one_line(error)


def test_a_faulty_kernel_leaves_the_pool_working(tmp_path: Path, pool: CompilerPool) -> None:
    fails("dies", pool, tmp_path)
    fails("imports_by_name", pool, tmp_path)
    with StoreWriter(tmp_path / "store") as writer:
        assert compile_cached(toy_store.toy_spec("good", "faulty"), writer, pool).compiled


def workers_of(pool: CompilerPool) -> int:
    """Worker processes of a pool that are alive: their folders are in its folder."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += pool._folder.name.encode() in (process / "cmdline").read_bytes()
    return count


def test_a_killed_compile_is_repeated_alone(tmp_path: Path) -> None:
    """SIGKILL is what the system sends for want of memory: then nothing else may take any."""
    marker, again = tmp_path / "marker", tmp_path / "marker-again"
    dies_once = toy_store.toy_spec("dies_once", "faulty", marker=str(marker))
    others = [toy_store.toy_spec(scale=float(n), sleep=0.5) for n in range(4)]
    notices: list[str] = []
    with CompilerPool(2, notices.append) as own, ThreadPoolExecutor(2) as threads:
        pending = [threads.submit(own.compile, spec) for spec in (dies_once, *others)]
        most = 0
        while not again.exists() and not pending[0].done():
            if marker.exists() and not notices:
                most = max(most, workers_of(own))
            time.sleep(0.01)
        alone = workers_of(own)
        outcomes = [future.result() for future in pending]
    assert all(isinstance(outcome, Compiled) for outcome in outcomes), outcomes
    assert (most, alone) == (2, 1)
    (notice,) = notices
    assert notice == (
        f"toys.kernels.faulty:dies_once {dies_once.key[:12]}: the compile worker was killed (out "
        "of memory?) while compiling; it is compiled again alone"
    )


def test_a_worker_with_other_tools_is_refused(pool: CompilerPool) -> None:
    """The key would name what another toolchain made."""
    spec = toy_store.toy_spec(scale=9.0)
    tools = {**spec.toolchain, "apache-tvm-ffi": "0.0.1"}
    outcome = pool.compile(KernelSpec(**{**fields(spec), "toolchain": tools}))
    assert isinstance(outcome, Failed) and outcome.cause is Cause.REFUSED
    has = spec.toolchain["apache-tvm-ffi"]
    assert f"toolchain: apache-tvm-ffi {has} (planned with 0.0.1): " in outcome.reason
    stale = pool.compile(KernelSpec(**{**fields(spec), "source_digest": "0" * 64}))
    assert isinstance(stale, Failed) and stale.cause is Cause.REFUSED
    digests = f"(source digest {spec.source_digest[:12]}, planned with {'0' * 12})"
    assert stale.reason.endswith(digests)


def test_sources_that_change_after_planning(tmp_path: Path, pool: CompilerPool) -> None:
    spec = toy_store.toy_spec(scale=3.0)
    stale = KernelSpec(**{**fields(spec), "source_digest": "0" * 64})
    with (
        StoreWriter(tmp_path / "store") as writer,
        pytest.raises(CompileError, match="sources changed since it was planned: build again"),
    ):
        compile_cached(stale, writer, pool)


def test_an_edit_recompiles_the_kernels_that_read_it_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two families with two kernels each, one of which imports what is edited."""
    recipes = tmp_path / "recipes"
    ignored = shutil.ignore_patterns("__pycache__", "faulty.py")
    for family in ("alpha", "beta"):
        copy = recipes / family
        shutil.copytree(toy_store.RECIPES / "toys", copy, ignore=ignored)
        scaled = copy / "kernels" / "elementwise.py"
        scaled.write_text(scaled.read_text().replace("recipes.toys.", f"recipes.{family}."))
        own = copy / "kernels" / "plain.py"
        own.write_text(
            scaled.read_text()
            .replace(f"from cudnn_aot.recipes.{family}.kernels.scaling import scaled\n", "")
            .replace("scaled(x[i], scale)", "x[i] * scale")
        )
    monkeypatch.setattr(cudnn_aot.recipes, "__path__", [*cudnn_aot.recipes.__path__, str(recipes)])
    templates = [
        f"{f}.kernels.{m}:host" for f in ("alpha", "beta") for m in ("elementwise", "plain")
    ]

    def compiled(writer: StoreWriter, own: CompilerPool) -> set[str]:
        specs = [kernel_spec(t, {"scale": 2.0}, load_target("cpu")) for t in templates]
        return {s.template for s in specs if compile_cached(s, writer, own).compiled}

    with StoreWriter(tmp_path / "store") as writer, CompilerPool(1) as own:
        assert compiled(writer, own) == set(templates)
        assert compiled(writer, own) == set()
        edited = recipes / "beta" / "kernels" / "scaling.py"
        edited.write_text(edited.read_text() + "# a comment\n")
        assert compiled(writer, own) == {"beta.kernels.elementwise:host"}
        (recipes / "beta" / "facts.py").write_text("# what plans is no source of a kernel\n")
        (recipes / "beta" / "kernels" / "new.py").write_text("# a kernel that nobody asked for\n")
        assert compiled(writer, own) == set()


def test_stale_byte_code_is_not_run(
    tmp_path: Path, pool: CompilerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .pyc that claims to belong to the source, as a careless copy leaves one."""
    recipes = tmp_path / "recipes"
    shutil.copytree(toy_store.RECIPES, recipes, ignore=shutil.ignore_patterns("__pycache__"))
    (recipes / "toys").rename(recipes / "tools")
    module = recipes / "tools" / "kernels" / "stale.py"
    module.write_text("def host(params):\n    raise ValueError('0ld')\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(module)], check=True)
    status = module.stat()
    module.write_text("def host(params):\n    raise ValueError('new')\n")
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr(cudnn_aot.recipes, "__path__", [*cudnn_aot.recipes.__path__, str(recipes)])
    spec = kernel_spec("tools.kernels.stale:host", {}, load_target("cpu"))
    with (
        StoreWriter(tmp_path / "store") as writer,
        CompilerPool(1) as own,
        pytest.raises(CompileError, match="ValueError: new"),
    ):
        compile_cached(spec, writer, own)


def fields(spec: KernelSpec) -> dict:
    found = spec.canonical()
    del found["version"]
    return {**found, "options": tuple(found["options"])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"host_triple": "aarch64-linux-gnu"},
            "host_level is 'x86-64-v3', want '', its one level, for aarch64-linux-gnu",
        ),
        (
            {"host_triple": "aarch64-linux-gnu", "host_level": ""},
            "cannot compile for the host 'aarch64-linux-gnu' on",
        ),
        ({"host_level": "x86-64-v9"}, "host_level is 'x86-64-v9', want one of x86-64, "),
        ({"toolchain": {"dsl_flavor": "cu13"}}, "the DSL has no code generator _cutlass_ir.cu13."),
        ({"options": ("--no-such-option",)}, "did not compile: "),
    ],
)
def test_what_this_machine_cannot_make(
    change: dict, message: str, tmp_path: Path, pool: CompilerPool
) -> None:
    spec = KernelSpec(**{**fields(toy_store.toy_spec(scale=9.0)), **change})
    with StoreWriter(tmp_path / "store") as writer, pytest.raises(CompileError) as caught:
        compile_cached(spec, writer, pool)
    assert message in str(caught.value)


# The build machine's own driver and processor do not count


def test_neither_the_driver_nor_torch_is_asked(tmp_path: Path, toy_build: Path) -> None:
    """A stand-in libcuda of CUDA 13 and a stand-in torch, which note who loads them."""
    asked = tmp_path / "asked"
    source = tmp_path / "cuda.c"
    source.write_text(
        "#include <stdio.h>\n"
        f'static void note(void) {{ FILE *f = fopen("{asked}", "a"); if (f) fclose(f); }}\n'
        "__attribute__((constructor)) static void loaded(void) { note(); }\n"
        "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n"
        "int cuInit(unsigned flags) { return 0; }\n"
    )
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library))
    assert asked.exists(), "the stand-in does not note"
    asked.unlink()
    (tmp_path / "torch.py").write_text(f"open({str(asked)!r}, 'w').close()\n")
    store = tmp_path / "store"
    folder = str(tmp_path)
    environment = {**os.environ, "LD_LIBRARY_PATH": folder, "PYTHONPATH": folder}
    toy_store.finish(toy_store.start(store, "device=2", "host=2", env=environment))
    assert not asked.exists()
    assert toy_store.snapshot(store) == toy_store.snapshot(toy_build)


def test_host_code_is_made_for_the_level_it_is_stored_for(
    tmp_path: Path, pool: CompilerPool
) -> None:
    """Also below what this processor has: the code generator is told, not left to look."""
    spec = KernelSpec(**{**fields(toy_store.toy_spec(scale=2.0)), "host_level": "x86-64"})
    with StoreWriter(tmp_path / "store") as writer:
        entry = compile_cached(spec, writer, pool)
        blob = tmp_path / "kernel.so"
        blob.write_bytes(writer.reader.blob(entry.blob_digest))
    listing = subprocess.run(["objdump", "-d", str(blob)], capture_output=True, text=True).stdout
    assert "\tmovss" in listing and "\tvmovss" not in listing and "%ymm" not in listing


def test_a_closed_pool_refuses(tmp_path: Path) -> None:
    own = CompilerPool(1)
    own.close()
    with (
        StoreWriter(tmp_path / "store") as writer,
        pytest.raises(CompileError, match="the compiler pool was closed"),
    ):
        compile_cached(toy_store.toy_spec(scale=4.0), writer, own)


def test_closing_ends_a_compile() -> None:
    own, outcomes = CompilerPool(1), []
    thread = threading.Thread(
        target=lambda: outcomes.append(own.compile(toy_store.toy_spec(sleep=60)))
    )
    thread.start()
    time.sleep(0.5)
    own.close()
    thread.join(timeout=10)
    assert [outcome.cause for outcome in outcomes] == [Cause.CLOSED]


def test_object_digests_are_of_objects(toy_build: Path, pool: CompilerPool) -> None:
    spec = toy_store.toy_spec(scale=2.0)
    made = pool.compile(spec)
    assert isinstance(made, Compiled)
    record = StoreReader(toy_build).kernel(spec.key)
    assert sha256_hex(made.data) == record["object"]["sha256"]
    assert json.loads(json.dumps(record["spec"])) == spec.canonical()
