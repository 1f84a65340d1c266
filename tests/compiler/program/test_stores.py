"""Where built plans come from and go to: the store a process is given, and the one it adds to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cudnn_aot as cudnn
from cudnn_aot import runtime
from cudnn_aot.cache import reader, toolchain
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.switch import is_compile_forbidden
from cudnn_aot.cli.main import main
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning import manifest, plan_list
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.program.layers import layers
from cudnn_aot.errors import (
    CompileForbiddenError,
    NotAStoreError,
    NotInStoreError,
    PinError,
    RefusedError,
    StoreError,
    TrustError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.recipes.gemm.analyze import analyze


@pytest.fixture
def filled(linear, overlay: Path) -> Path:
    """The overlay, with the plan of `Linear` in it."""
    linear().graph.build()
    return overlay


def planned(graph) -> bool:
    """Whether a plan list was made for the graph."""
    return graph._program._plans is not None


def test_what_was_built_is_an_ordinary_store(linear, filled):
    it = linear()
    assert StoreReader(filled).verify() == []
    plan = runtime.open(filled).plan(it.graph.key())
    plan.execute({tensor.uid: buffer for tensor, buffer in it.pack().items()})
    it.check()


def test_the_next_process_only_loads(linear, filled, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = linear("renamed")
    it.graph.build()
    assert not planned(it.graph)
    it.graph.execute(it.pack())
    it.check()


def test_what_a_store_is_is_read_once(linear, filled, monkeypatch):
    linear().graph.build()
    monkeypatch.setattr(reader, "read_format", lambda *_: pytest.fail("it was read again"))
    linear().graph.build()


def test_building_again_writes_nothing(linear, filled):
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("*")}
    linear().graph.build()
    assert {path: path.stat().st_mtime_ns for path in filled.rglob("*")} == before


def test_a_store_of_the_build_command_comes_first(
    linear, filled, empty_overlay, tmp_path, monkeypatch
):
    store = copy_without_plans(filled, tmp_path / "base")  # so that nothing is compiled twice
    file = tmp_path / "linear.json"
    file.write_text(graph_json.dumps(linear().graph))
    assert build([file], ["cpu"], store).exit_code() == 0
    monkeypatch.setenv("CUDNN_AOT_STORE", str(store))
    for path in (store, *store.rglob("*")):
        path.chmod(0o555)
    it = linear()
    it.graph.build([cudnn.heur_mode.A])
    assert not planned(it.graph) and not empty_overlay.exists()
    it.graph.execute(it.pack())
    it.check()
    for path in (store, *store.rglob("*")):
        path.chmod(0o755)


def test_kernels_of_the_base_serve_a_plan_that_it_has_not(
    linear, filled, empty_overlay, monkeypatch
):
    base = copy_without_plans(filled, empty_overlay.parent / "base")
    monkeypatch.setenv("CUDNN_AOT_STORE", str(base))
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = linear()
    it.graph.build()
    assert planned(it.graph)
    assert StoreReader(empty_overlay).verify() == []  # whole by itself
    assert 0 < len(StoreReader(empty_overlay).kernels())
    assert set(StoreReader(empty_overlay).kernels()) <= set(StoreReader(base).kernels())
    it.graph.execute(it.pack())
    it.check()


def test_the_plan_of_the_base_is_taken_whatever_it_was_built_with(
    linear, filled, empty_overlay, tmp_path, monkeypatch
):
    """Measured plans and engines that were opted in to are of the build, not of this process."""
    base = copy_without_plans(filled, tmp_path / "base")
    file = tmp_path / "linear.json"
    file.write_text(graph_json.dumps(linear().graph))
    facts = facts_for(linear().graph.freeze().canonical(), analyze)
    measured = {
        "family": "gemm",
        "target": "cpu",
        "layout_class": facts.layout_class,
        "extents": facts.extents,
        "plans": [{"engine": "gemm.host.blocked", "knobs": {}}],
    }
    tuning = tmp_path / "tuning.json"
    tuning.write_text(json.dumps({"format": 1, "entries": [measured]}))
    assert build([file], ["cpu"], base, tuning=tuning).exit_code() == 0
    monkeypatch.setenv("CUDNN_AOT_STORE", str(base))
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    family = next(family for family in manifest.FAMILIES if family.name == "gemm")
    slots = tuple(replace(slot, opt_in=True) for slot in family.engines)
    monkeypatch.setattr(manifest, "FAMILIES", (replace(family, engines=slots),))
    it = linear()
    it.graph.build()
    assert not planned(it.graph) and not empty_overlay.exists()
    it.graph.execute(it.pack())
    it.check()
    assert it.graph.get_plan_name() == "gemm.host.blocked"
    shutil.copytree(base, empty_overlay)  # there the plan key counts
    monkeypatch.delenv("CUDNN_AOT_STORE")
    with pytest.raises(cudnnGraphNotSupportedError, match="not enabled: set"):
        linear().graph.build()


def test_a_program_that_asks_for_fallback_leaves_the_stored_plan_alone(
    linear, filled, three_engines
):
    pointer = StoreReader(filled).pointer("cpu", linear().graph.key())
    it = linear()
    it.graph.build([cudnn.heur_mode.FALLBACK])
    assert planned(it.graph)
    assert StoreReader(filled).pointer("cpu", it.graph.key()) == pointer


@pytest.fixture(scope="module")
def of_a_class(tmp_path_factory) -> Path:
    """A store with the plan of `Linear` for any number of rows up to 64."""
    folder = tmp_path_factory.mktemp("class")
    g = cudnn.pygraph("any", "FLOAT", "FLOAT", "FLOAT", symbols={"M": {"min": 1, "max": 64}})
    a, b, bias = g.tensor([1, "M", 8]), g.tensor([1, 8, 16]), g.tensor([1, 1, 16])
    g.relu(g.bias(g.matmul(a, b), bias)).set_output(True)
    (folder / "any.json").write_text(graph_json.dumps(g))
    assert build([folder / "any.json"], ["cpu"], folder / "store").exit_code() == 0
    return folder / "store"


@pytest.mark.parametrize("variable", ["CUDNN_AOT_STORE", "CUDNN_AOT_CACHE"])
def test_the_plan_of_a_class_serves_its_cases(
    linear, of_a_class, empty_overlay, without_the_dsl, monkeypatch, variable
):
    monkeypatch.setenv(variable, str(of_a_class))
    it = linear()
    it.graph.build()
    assert not planned(it.graph) and it.graph._program.current.plan.symbols == {"M": 4}
    it.graph.execute(it.pack(), None)
    it.check()
    assert it.graph.get_workspace_size() == 0
    with pytest.raises(RefusedError, match="extents|got"):
        it.graph.execute({**it.pack(), it.a: it.buffers[0][:, :3]})
    assert it.graph.get_plan_name() == "gemm.host.blocked"  # it has a place in the graph's list
    assert it.graph.get_execution_plan_count() == 1
    it.graph.select_plan(0).build_plans()
    it.graph.execute(it.pack())
    it.check()


def test_the_plan_of_a_class_comes_after_the_graph_s_own_and_not_for_other_graphs(
    linear, of_a_class, filled, monkeypatch
):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(of_a_class))
    it = linear()
    it.graph.build()
    assert not planned(it.graph) and it.graph._program.current.plan.symbols == {}
    it = linear(io="HALF")
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    with pytest.raises(CompileForbiddenError):
        it.graph.build()


def test_a_class_plan_of_another_plan_key_is_a_miss_in_the_overlay(
    linear, of_a_class, empty_overlay, monkeypatch
):
    import cudnn_aot.compiler.program.program as program

    monkeypatch.setattr(program, "plan_key", lambda *_: "0" * 64)
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(of_a_class))
    g = linear().graph
    g.create_execution_plans()
    assert planned(g)
    monkeypatch.setenv("CUDNN_AOT_STORE", str(of_a_class))
    g = linear().graph
    g.create_execution_plans()
    assert not planned(g)


@pytest.mark.parametrize("include_kernels", [True, False])
def test_the_plan_of_a_class_comes_back_from_its_bytes(
    linear, of_a_class, empty_overlay, monkeypatch, include_kernels
):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(of_a_class))
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = linear()
    it.graph.build()
    data = it.graph.serialize(as_bytes=True, include_kernels=include_kernels)
    if include_kernels:
        monkeypatch.delenv("CUDNN_AOT_STORE")
    g = cudnn.pygraph()
    g.deserialize(data)
    g.execute({tensor.uid: buffer for tensor, buffer in it.pack().items()})
    it.check()
    assert g.key() == it.graph.key() and g.serialize(as_bytes=True) == it.graph.serialize(
        as_bytes=True
    )
    monkeypatch.delenv("CUDNN_AOT_STORE", raising=False)
    if not include_kernels:
        with pytest.raises(NotInStoreError):
            cudnn.pygraph().deserialize(data)


def test_a_plan_is_published_as_the_build_does(
    linear, filled, of_a_class, empty_overlay, tmp_path, monkeypatch
):
    """With its name, and of a symbolic graph for every case of it."""
    base = copy_without_plans(filled, tmp_path / "base")
    monkeypatch.setenv("CUDNN_AOT_STORE", str(base))
    it = linear("published")
    it.graph.build()
    stored = runtime.open(empty_overlay)
    assert stored.plan("published").graph_key == it.graph.key()
    monkeypatch.setenv("CUDNN_AOT_STORE", str(copy_without_plans(of_a_class, tmp_path / "other")))
    g = cudnn.pygraph(target="cpu")
    g.deserialize(StoreReader(of_a_class).blob(class_graph(of_a_class)).decode())
    g.build()
    concrete = linear("five", rows=5).graph
    assert stored.plan(concrete).symbols == {"M": 5}
    concrete.build()
    assert not planned(concrete)


def class_graph(store: Path) -> str:
    ((target, key),) = StoreReader(store).pointers()
    return StoreReader(store).pointer(target, key)["graph"]


@pytest.mark.parametrize("name", ["", "/" * 300])
def test_a_plan_without_a_name_is_there_all_the_same(
    linear, filled, empty_overlay, tmp_path, monkeypatch, capsys, name
):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(copy_without_plans(filled, tmp_path / "base")))
    it = linear(name)
    it.graph.build()
    stored = StoreReader(empty_overlay)
    assert stored.pointers() == [("cpu", it.graph.key())] and stored.names() == []
    for command, says in (
        ("ls", it.graph.key()[:12]),
        ("verify", ": 1 plan, "),
        ("doctor", "1 plan for cpu"),
    ):
        main([command, "--store", str(empty_overlay)])
        assert says in capsys.readouterr().out


def copy_without_plans(store: Path, to: Path) -> Path:
    """The kernels of a store alone."""
    shutil.copytree(store / "kernels", to / "kernels")
    shutil.copytree(store / "blobs", to / "blobs")
    shutil.copy(store / "store.json", to)
    return to


def test_a_damaged_layer_falls_through_to_the_next(linear, filled, empty_overlay, monkeypatch):
    linear_key = linear().graph.key()
    shutil.copytree(filled, empty_overlay)
    damaged = empty_overlay.parent / "damaged"
    shutil.copytree(filled, damaged)
    pointer = StoreReader(damaged).pointer("cpu", linear_key)
    digest = pointer["records"][0]
    blob = damaged / "blobs" / "sha256" / digest[:2] / digest
    blob.chmod(0o644)
    blob.write_bytes(b"changed")
    monkeypatch.setenv("CUDNN_AOT_STORE", str(damaged))
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = linear()
    it.graph.build()
    assert not planned(it.graph)
    it.graph.execute(it.pack())
    it.check()


def test_a_plan_of_another_plan_key_is_a_miss(linear, filled, monkeypatch):
    import cudnn_aot.compiler.program.program as program

    monkeypatch.setattr(program, "plan_key", lambda *_: "0" * 64)
    g = linear().graph
    g.create_execution_plans()
    assert planned(g)


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_a_missing_kernel_with_compiling_forbidden(linear, empty_overlay, monkeypatch, text):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", text)
    with pytest.raises(CompileForbiddenError) as caught:
        linear("up").graph.build()
    for part in ("graph 'up'", "for cpu", str(empty_overlay), "cudnn-aot build", "--target cpu"):
        assert part in str(caught.value)
    assert not empty_overlay.exists()


@pytest.mark.parametrize("text", ["", "0", "false", "No", " off"])
def test_what_does_not_forbid_compiling(monkeypatch, text):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", text)
    assert not is_compile_forbidden()


def test_a_setting_that_says_neither_is_refused(
    linear, empty_overlay, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "never")
    with pytest.raises(UsageError, match="CUDNN_AOT_FORBID_COMPILE: got 'never', want 1, true"):
        linear().graph.build()
    file = tmp_path / "linear.json"
    file.write_text(graph_json.dumps(linear().graph))
    assert main(["build", str(file), "-t", "cpu", "--store", str(tmp_path / "store")]) == 2
    assert "got 'never'" in capsys.readouterr().err and not (tmp_path / "store").exists()


def test_a_plan_is_as_good_where_the_overlay_cannot_be_written(
    linear, filled, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    base = copy_without_plans(filled, tmp_path / "base")
    monkeypatch.setenv("CUDNN_AOT_STORE", str(base))
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "file" / "store"))
    it = linear()
    it.graph.build()
    assert planned(it.graph)
    it.graph.execute(it.pack())
    it.check()
    monkeypatch.delenv("CUDNN_AOT_STORE")
    with pytest.raises(StoreError, match="no place for compiled plans: set CUDNN_AOT_CACHE"):
        linear().graph.build()


@pytest.fixture
def without_the_dsl(monkeypatch):
    """As on a host that has the serving install alone."""

    def missing(minimum: str) -> str:
        return "nvidia-cutlass-dsl is not installed: pip install 'cudnn-aot[compile]'"

    import cudnn_aot.compiler.program.program as program

    monkeypatch.setattr(toolchain, "why_no_dsl", missing)
    monkeypatch.setattr(plan_list, "why_no_dsl", missing)
    monkeypatch.setattr(program, "why_no_dsl", missing)


def test_a_miss_without_the_dsl_names_what_is_missing(linear, empty_overlay, without_the_dsl):
    with pytest.raises(cudnnGraphNotSupportedError) as caught:
        linear("up").graph.build()
    for part in ("nvidia-cutlass-dsl is not installed", "cudnn-aot build", str(empty_overlay)):
        assert part in str(caught.value)


def test_a_stored_plan_without_the_dsl_has_its_whole_list(
    linear, three_engines, filled, without_the_dsl
):
    it = linear()
    it.graph.build()
    assert not planned(it.graph)
    assert it.graph.get_plan_name() == "gemm.host.blocked"
    assert it.graph.get_execution_plan_count() == 3
    it.graph.select_plan(1).build_plans()  # the stored one
    it.graph.execute(it.pack())
    it.check()
    with pytest.raises(cudnnGraphNotSupportedError, match="nvidia-cutlass-dsl is not installed"):
        it.graph.select_plan(2).build_plans()
    with pytest.raises(cudnnGraphNotSupportedError, match="nvidia-cutlass-dsl is not installed"):
        linear().graph.deselect_engines(["gemm.host.blocked"]).build()


SERVE = """
import sys
BLOCKED = {"filelock", "cutlass", "nvidia_cutlass_dsl", "numpy", "torch", "rich", "click"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import importlib.metadata
real = importlib.metadata.version
def version(name):
    if name.startswith("nvidia-cutlass"):
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
importlib.metadata.distributions = lambda: []
import array
import cudnn_aot as cudnn
g = cudnn.pygraph("served", "FLOAT", "FLOAT", "FLOAT", target="cpu")
a, b, bias = g.tensor([1, 4, 8]), g.tensor([1, 8, 16]), g.tensor([1, 1, 16])
y = g.relu(g.bias(g.matmul(a, b), bias)).set_output(True)
g.build([cudnn.heur_mode.A])
ones = lambda n: array.array("f", [1.0] * n)
result = ones(64)
g.execute({a: ones(32), b: ones(128), bias: ones(16), y: result})
assert list(result) == [9.0] * 64
assert not {m for m in sys.modules if m.startswith("cudnn_aot.recipes.gemm")}
print(g.get_plan_name_at_index(0))
"""


def test_a_host_without_the_compiler_builds_from_a_store(filled, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(filled))
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "none"))
    done = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "gemm.host.blocked"


def test_a_path_that_is_no_store(linear, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(tmp_path))
    with pytest.raises(NotAStoreError):
        linear().graph.build()


def test_the_overlay_is_in_the_user_s_cache_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDNN_AOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert layers().overlay == tmp_path / "cudnn-aot" / "store" and layers().base == ()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/somewhere")
    assert layers().overlay == Path("/somewhere/.cache/cudnn-aot/store")

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UsageError, match="set CUDNN_AOT_CACHE"):
        layers()


# Layers and pins


def test_the_base_may_lie_at_a_url_and_be_signed(
    linear, filled, empty_overlay, tmp_path, monkeypatch
):
    pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
    pytest.importorskip("cryptography", reason="the extra `trust` is not installed")
    from cudnn_aot.cache import trust
    from cudnn_aot.cache.exchange import push_folder
    from cudnn_aot.cache.writer import StoreWriter

    push_folder(StoreReader(filled), f"file://{tmp_path}/far")
    monkeypatch.setenv("CUDNN_AOT_STORE", f"file://{tmp_path}/far")
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = linear()
    it.graph.build()
    assert not planned(it.graph)
    it.graph.execute(it.pack())
    it.check()
    assert StoreReader(empty_overlay).pointers() == []  # it holds the mirror, and is a store
    public = trust.new_private_key(tmp_path / "key")
    monkeypatch.setenv("CUDNN_AOT_TRUST", str(public))
    with pytest.raises(TrustError, match="has not signed it"):
        linear("again").graph.build()
    with StoreWriter(tmp_path / "far") as writer:
        private = trust.load_private_key(tmp_path / "key")
        writer.put_file(*trust.sign_digest(writer.reader.root_digest(), private))
    monkeypatch.delenv("CUDNN_AOT_FORBID_COMPILE")
    it = linear("again")
    it.graph.build()
    it.graph.execute(it.pack())
    it.check()
    linear(rows=5).graph.build()  # a plan of signed kernels, which is not published
    with pytest.raises(CompileForbiddenError, match="compiling is forbidden by CUDNN_AOT_TRUST"):
        linear(io="HALF").graph.build()
    assert StoreReader(empty_overlay).pointers() == []


def test_the_base_may_lie_in_layers(linear, of_a_class, filled, empty_overlay, monkeypatch):
    """Each has what the other has not: the plan of a graph, and that of a class."""
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    for stores in ((of_a_class, filled), (filled, of_a_class)):
        monkeypatch.setenv("CUDNN_AOT_STORE", ":".join(map(str, stores)))
        for rows in (4, 7):
            it = linear(rows=rows)
            it.graph.build()
            assert not planned(it.graph) and not empty_overlay.exists()
            it.graph.execute(it.pack())
            it.check()
    monkeypatch.setenv("CUDNN_AOT_STORE", f"{filled}:")
    with pytest.raises(UsageError, match="CUDNN_AOT_STORE: got .*, want folders or packs"):
        linear().graph.build()


def test_with_a_pin_nothing_else_is_read_or_compiled(
    linear, of_a_class, filled, tmp_path, monkeypatch
):
    digest = StoreReader(filled).root_digest()
    monkeypatch.setenv("CUDNN_AOT_STORE", str(filled))
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(of_a_class))
    monkeypatch.setenv("CUDNN_AOT_PIN", digest)
    it = linear()
    it.graph.build()
    it.graph.execute(it.pack())
    it.check()
    before = StoreReader(of_a_class).root_digest()
    it = linear(rows=7)
    it.graph.build()
    assert planned(it.graph)  # of the pinned kernels, although the cache has a plan
    with pytest.raises(CompileForbiddenError, match="compiling is forbidden by CUDNN_AOT_PIN"):
        linear(io="HALF").graph.build()
    assert StoreReader(of_a_class).root_digest() == before
    monkeypatch.setenv("CUDNN_AOT_PIN", "0" * 64)
    with pytest.raises(PinError, match=f"got root digest {digest}, want 0000"):
        linear().graph.build()
    monkeypatch.setenv("CUDNN_AOT_PIN", f"{digest}:{digest}")
    with pytest.raises(UsageError, match="got 2 root digests, want 1, one of each layer"):
        linear().graph.build()
    monkeypatch.delenv("CUDNN_AOT_PIN")
    it = linear(rows=7)
    it.graph.build()
    assert not planned(it.graph)
