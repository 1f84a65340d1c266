"""What enters a key, and what does not."""

import enum
import importlib.metadata
import pickle
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import toy_store
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnn_aot.recipes
from cudnn_aot.cache import spec as specs
from cudnn_aot.cache import toolchain as tools
from cudnn_aot.cache.canonical import canonical_bytes, plain
from cudnn_aot.cache.source import source_closure, steady_sources
from cudnn_aot.cache.spec import Frozen, KernelSpec, kernel_spec
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import CompileError, UsageError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
FINITE = SCALARS.filter(lambda value: value not in (float("inf"), float("-inf")))
VALUES = st.recursive(
    FINITE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
PARAMS = st.dictionaries(st.text(), VALUES, max_size=5)

SPEC = KernelSpec(
    template="gemm.kernels.sm90:matmul",
    source_digest="0" * 64,
    params={"ab_dtype": "BFLOAT16", "tile": [128, 256, 64], "epilogue": {"nodes": []}},
    gpu_arch="sm_90a",
    host_triple="x86_64-linux-gnu",
    host_level="x86-64-v3",
    toolchain={"dsl_flavor": "cu12", "nvidia-cutlass-dsl": "4.8.1"},
    options=("--opt-level 3",),
)


@given(one=PARAMS, other=PARAMS)
@settings(max_examples=50, deadline=None)
def test_specs_are_equal_when_their_keys_are(one: Any, other: Any) -> None:
    for first, second in ((one, other), (one, dict(one))):
        made = [replace(SPEC, params=params) for params in (first, second)]
        assert (made[0] == made[1]) == (made[0].key == made[1].key)
        assert (made[0].params == made[1].params) == (made[0].key == made[1].key)


def test_values_that_python_takes_for_equal_give_different_kernels() -> None:
    """What goes by ``==`` (a set, a plan's list of kernels) must not take one for the other."""
    alike = [0, 0.0, -0.0, False]
    for nest in (lambda v: {"n": v}, lambda v: {"n": [v]}, lambda v: {"n": {"m": (1, v)}}):
        made = [replace(SPEC, params=nest(value)) for value in alike]
        assert len({spec.key for spec in made}) == len(alike)
        assert [[one == other for other in made] for one in made] == [
            [one is other for other in made] for one in made
        ]
        assert len(set(made)) == len(alike) == len({spec.params for spec in made})
    with_options = [replace(SPEC, options=(value,)) for value in (1, True)]
    assert with_options[0] != with_options[1]


def test_params_are_checked_once_however_deep_they_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic graph makes several specs: checking what they share took most of their time."""
    checked: list[Any] = []
    monkeypatch.setattr(specs, "field_names", lambda *args: checked.append(args) or sorted(args[0]))
    epilogue = Frozen({"leaf": [1, {"two": 2.0}]})
    params: dict[str, Any] = {"leaf": [1, {"two": 2.0}]}
    for depth in range(1, 4):
        epilogue, params = Frozen({"inner": [epilogue]}), {"inner": [params]}
        checked.clear()
        made = replace(SPEC, params=params)
        assert len(checked) == depth + 2  # a level each, and the leaf
        checked.clear()
        shared = replace(SPEC, params={"a": epilogue, "b": (epilogue,)})
        assert len(checked) == 1
        assert shared.params["a"] is shared.params["b"][0] is epilogue
        assert shared.key == replace(SPEC, params={"a": params, "b": [params]}).key != made.key
        assert plain(made.params) == plain(epilogue) == params


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(TypeError, match=r"^params\.a\[1\]\.b\[0\] is a builtins\.bytes"):
        replace(SPEC, params={"a": [0, {"b": [b"k"]}]})
    with pytest.raises(TypeError, match=r"^params\.a has the field 1 of type int, want str"):
        replace(SPEC, params={"a": {1: 2}})
    with pytest.raises(TypeError, match=r"^toolchain\.dsl_flavor is a builtins\.bytes"):
        replace(SPEC, toolchain={"dsl_flavor": b"cu12"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("template", "gemm.kernels.simt:matmul"),
        ("source_digest", "1" * 64),
        ("params", {**SPEC.params, "ab_dtype": "HALF"}),
        ("params", {**SPEC.params, "tile": [128, 64, 256]}),
        ("params", {**SPEC.params, "epilogue": {"nodes": [None]}}),
        ("params", {**SPEC.params, "extra": None}),
        ("gpu_arch", "sm_90"),
        ("host_triple", "aarch64-linux-gnu"),
        ("host_level", "x86-64-v2"),
        ("toolchain", {**SPEC.toolchain, "nvidia-cutlass-dsl": "4.8.2"}),
        ("toolchain", {**SPEC.toolchain, "dsl_flavor": "cu13"}),
        ("options", ()),
        ("options", ("--opt-level 3", "--opt-level 3")),
    ],
)
def test_every_field_changes_the_key(field: str, value: Any) -> None:
    assert replace(SPEC, **{field: value}).key != SPEC.key


@settings(max_examples=60, deadline=None)
@given(PARAMS, PARAMS)
def test_keys_are_equal_exactly_when_params_are(first: Any, second: Any) -> None:
    one, two = replace(SPEC, params=first), replace(SPEC, params=second)
    assert (one.key == two.key) == (canonical_bytes(first) == canonical_bytes(second))
    assert (one == two) == (one.key == two.key) or first == second  # 0 == False, 1 == 1.0


@settings(max_examples=60, deadline=None)
@given(PARAMS, st.randoms())
def test_order_of_fields_does_not_count(params: dict[str, Any], random: Any) -> None:
    names = list(params)
    random.shuffle(names)
    shuffled = {name: params[name] for name in names}
    assert replace(SPEC, params=shuffled).key == replace(SPEC, params=params).key


@settings(max_examples=60, deadline=None)
@given(PARAMS)
def test_a_spec_survives_its_canonical_form(params: dict[str, Any]) -> None:
    spec = replace(SPEC, params=params)
    fields = spec.canonical()
    assert fields.pop("version") == 1
    again = KernelSpec(**{**fields, "options": tuple(fields["options"])})
    assert again.key == spec.key
    assert pickle.loads(pickle.dumps(spec)).key == spec.key
    assert isinstance(hash(spec), int)


def test_a_key_stays_what_it_is() -> None:
    """Keys of published stores: this value may change only together with ``spec.VERSION``."""
    assert SPEC.key == "fb95c7c814e5d40e28da0d72ec73bb63f858323340896bca3a9c4efd946c9208"


def test_numbers_of_different_kinds_differ() -> None:
    keys = {
        replace(SPEC, params={"k": value}).key for value in (1, 1.0, True, "1", None, -0.0, 0.0)
    }
    assert len(keys) == 7


class _Dtype(enum.IntEnum):
    HALF = 2


class _Text(str):
    pass


@pytest.mark.parametrize(
    "value",
    [_Dtype.HALF, _Text("k"), b"k", {1: 2}, {"a": {1}}, Path("k"), object, len, float("nan"), 1j],
    ids=repr,
)
def test_anything_but_plain_data_raises(value: Any) -> None:
    with pytest.raises(TypeError, match=r"params"):
        replace(SPEC, params={"k": value})


# Values of every other kind that a program may have at hand.
OTHERS = st.one_of(
    st.binary(),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.uuids(),
    st.sets(st.integers(), min_size=1),
    st.frozensets(st.text()),
    st.builds(bytearray, st.binary()),
    st.builds(range, st.integers(0, 9)),
    st.builds(PurePosixPath, st.text("abc/")),
    st.builds(np.int64, st.integers(-9, 9)),
    st.builds(np.float32, st.integers(-9, 9)),
    st.builds(np.zeros, st.integers(0, 3)),
    st.sampled_from([_Dtype.HALF, _Text("k"), object(), len, int, ..., NotImplemented]),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    st.dictionaries(st.integers() | st.none() | st.binary(), st.none(), min_size=1),
    st.builds(type("Dtype", (int,), {}), st.integers()),
)


@settings(max_examples=200, deadline=None)
@given(OTHERS, st.lists(st.sampled_from("ld"), max_size=4), VALUES)
def test_a_value_of_any_other_type_raises_however_deep_it_lies(
    value: Any, path: list[str], beside: Any
) -> None:
    for step in path:
        value = [beside, value] if step == "l" else {"beside": beside, "it": value}
    for field in ("params", "toolchain"):
        with pytest.raises(TypeError, match=f"^{field}"):
            replace(SPEC, **{field: {"k": value}})
    with pytest.raises(TypeError, match="^options"):
        replace(SPEC, options=(value,))
    with pytest.raises(TypeError):
        canonical_bytes({"k": value})


@settings(max_examples=60, deadline=None)
@given(OTHERS | st.none() | st.integers() | st.lists(st.text()))
def test_fields_that_are_text_take_nothing_else(value: Any) -> None:
    for field in ("template", "source_digest", "gpu_arch", "host_triple", "host_level"):
        with pytest.raises(TypeError, match=f"^{field} is a "):
            replace(SPEC, **{field: value})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_change_of_any_one_field_changes_the_key(data: Any) -> None:
    field = data.draw(st.sampled_from(sorted(SPEC.canonical().keys() - {"version"})))
    if field == "params":
        value: Any = data.draw(PARAMS)
    elif field == "toolchain":
        value = data.draw(st.dictionaries(st.text(), st.text(), max_size=3))
    elif field == "options":
        value = tuple(data.draw(st.lists(st.text(), max_size=3)))
    else:
        value = data.draw(st.text())
    is_same = canonical_bytes(getattr(SPEC, field)) == canonical_bytes(value)
    assert (replace(SPEC, **{field: value}).key == SPEC.key) == is_same


def test_params_cannot_change_after_the_key_was_taken() -> None:
    tile = [128, 256, 64]
    spec = replace(SPEC, params={"tile": tile})
    key = spec.key
    tile.append(1)
    assert spec.key == key
    with pytest.raises(TypeError):
        spec.params["tile"] = 1  # type: ignore[index]


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_plain_copies(value: Any) -> None:
    assert canonical_bytes(plain(value)) == canonical_bytes(value)


# Targets and tools


def test_a_key_names_requirements_and_not_devices() -> None:
    """Two devices of one arch run the same code, so they share kernels."""
    h100, h200 = load_target("h100"), load_target("h200")
    template = "toys.kernels.elementwise:device"
    assert kernel_spec(template, {"scale": 1}, h100) == kernel_spec(template, {"scale": 1}, h200)


def test_the_driver_floor_is_the_flavours() -> None:
    """It is a requirement of the kernel, told by the flavour that compiled it."""
    assert toy_store.toy_spec("device").driver_min == 12090
    assert toy_store.toy_spec("host").driver_min == 0
    assert replace(SPEC, toolchain={"dsl_flavor": "cu13"}).driver_min == 13000


class _Wheel:
    def __init__(self, name: str, version: str) -> None:
        self._name, self.version = name, version

    def read_text(self, file: str) -> str | None:
        header = f"Metadata-Version: 2.4\nName: {self._name}\nVersion: {self.version}\n"
        return header + "\nName: of another" if file == "METADATA" else None


def test_wheels_that_no_compile_reads_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {
        "nvidia-cutlass-dsl": "4.8.1",
        "nvidia_cutlass_dsl_libs_base": "4.8.1",
        "nvidia-cutlass-dsl-libs-cu12": "4.8.1",
        "nvidia-cutlass-dsl-libs-cu13": "4.8.1",
        "apache-tvm-ffi": "0.1.15",
        "numpy": "2.0",
    }

    def distributions() -> list[_Wheel]:
        return [_Wheel(name, version) for name, version in installed.items()]

    monkeypatch.setattr(importlib.metadata, "distributions", distributions)
    tools._toolchain.cache_clear()
    try:
        both = tools.toolchain("cu12")
        assert both == {
            "dsl_flavor": "cu12",
            "nvidia-cutlass-dsl": "4.8.1",
            "nvidia-cutlass-dsl-libs-base": "4.8.1",
            "nvidia-cutlass-dsl-libs-cu12": "4.8.1",
            "apache-tvm-ffi": "0.1.15",
        }
        assert tools.toolchain("cu13") != both
        for change, same in (
            ({"nvidia-cutlass-dsl-libs-cu13": "4.9"}, True),
            ({"numpy": "3.0"}, True),
            ({"nvidia_cutlass_dsl_libs_base": "4.8.2"}, False),
            ({"nvidia-cutlass-dsl-libs-new": "1"}, False),
            ({"apache-tvm-ffi": "0.1.16"}, False),
        ):
            before = dict(installed)
            installed.update(change)
            tools._toolchain.cache_clear()
            assert (tools.toolchain("cu12") == both) == same, change
            installed.clear()
            installed.update(before)
        del installed["nvidia-cutlass-dsl-libs-cu12"]
        tools._toolchain.cache_clear()
        with pytest.raises(CompileError, match="pip install 'nvidia-cutlass-dsl-libs-cu12'"):
            tools.toolchain("cu12")
    finally:
        tools._toolchain.cache_clear()
    with pytest.raises(UsageError, match="unknown DSL flavour 'cu11', want one of cu12, cu13"):
        tools.toolchain("cu11")


# Sources


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the toys that a test may edit, in the place of the toys."""
    copy = tmp_path / "recipes"
    shutil.copytree(toy_store.RECIPES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    kept = [p for p in cudnn_aot.recipes.__path__ if p != str(toy_store.RECIPES)]
    monkeypatch.setattr(cudnn_aot.recipes, "__path__", [*kept, str(copy)])
    return copy / "toys" / "kernels"


TEMPLATE = "toys.kernels.elementwise:host"


def test_the_closure_follows_imports() -> None:
    names = {
        name.removeprefix("cudnn_aot.recipes.") for name, _ in source_closure(TEMPLATE).modules
    }
    assert names == {"toys.kernels.elementwise", "toys.kernels.scaling", "trace.template"}


def test_the_digest_is_of_contents_and_not_of_places(recipes: Path) -> None:
    """A wheel, an editable install and a copy elsewhere give one digest."""
    here = source_closure(TEMPLATE).digest
    other = recipes.parents[1].with_name("elsewhere")
    recipes.parents[1].rename(other)
    cudnn_aot.recipes.__path__[-1] = str(other)
    assert source_closure(TEMPLATE).digest == here
    cudnn_aot.recipes.__path__[-1] = str(toy_store.RECIPES)
    assert source_closure(TEMPLATE).digest == here


def test_the_digest_changes_with_what_a_compile_reads(recipes: Path) -> None:
    before = source_closure(TEMPLATE).digest
    faulty = recipes / "faulty.py"
    faulty.write_text(faulty.read_text() + "# another template's module\n")
    (recipes / "notes.txt").write_text("not a source")
    assert source_closure(TEMPLATE).digest == before
    scaling = recipes / "scaling.py"
    scaling.write_text(scaling.read_text() + "# an imported module\n")
    assert source_closure(TEMPLATE).digest != before


@pytest.mark.parametrize("gone", ["elementwise.py", "scaling.py", "__init__.py", "."])
def test_a_source_that_is_gone_is_an_error_of_the_compile(recipes: Path, gone: str) -> None:
    """In a process that has read it before, too."""
    stored = replace(SPEC, template=TEMPLATE, source_digest=source_closure(TEMPLATE).digest)
    assert not any("does not exist" in each for each in specs.why_not_current(stored.canonical()))
    if gone == ".":
        shutil.rmtree(recipes)
    else:
        (recipes / gone).unlink()
    if gone != "__init__.py":  # which holds nothing, so modules are found without it
        with pytest.raises(CompileError, match="which does not exist"):
            source_closure(TEMPLATE)
        assert any("does not exist" in each for each in specs.why_not_current(stored.canonical()))


def test_a_source_that_goes_while_it_is_read_is_an_error_of_the_compile(
    recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path, *version: int) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("cudnn_aot.cache.source._scan", gone)
    with pytest.raises(CompileError, match=r"cannot read .*elementwise.py: No such file"):
        source_closure(TEMPLATE)


def test_steady_sources_are_looked_at_once(recipes: Path) -> None:
    scaling = recipes / "scaling.py"
    with steady_sources():
        before = source_closure(TEMPLATE)
        scaling.write_text(scaling.read_text() + "# edited meanwhile\n")
        assert source_closure(TEMPLATE) is before
        other = source_closure("toys.kernels.faulty:host")
        assert other.digest != before.digest
    assert source_closure(TEMPLATE).digest != before.digest


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import cudnn_aot", "imports cudnn_aot:"),
        ("from cudnn_aot.compiler.target import target", "imports cudnn_aot.compiler.target:"),
        ("from cudnn_aot.recipes import gemm", "imports cudnn_aot.recipes.gemm:"),
        ("def f():\n    import cudnn_aot.cache.spec", "imports cudnn_aot.cache.spec:"),
        ("from ...gemm import facts", "imports cudnn_aot.recipes.gemm"),
        (
            "from .absent import f",
            "needs cudnn_aot.recipes.toys.kernels.absent, which does not exist",
        ),
        ("def f(:", "toys/kernels/scaling.py:1: "),
    ],
)
def test_forbidden_imports_are_refused(recipes: Path, line: str, message: str) -> None:
    (recipes / "scaling.py").write_text(line + "\n")
    with pytest.raises(CompileError) as caught:
        source_closure(TEMPLATE)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "block",
    [
        "class C:\n    def f(self):\n        {}",
        "async def f():\n    async with a:\n        {}",
        "if a:\n    pass\nelif b:\n    {}",
        "for a in b:\n    pass\nelse:\n    {}",
        "while a:\n    with b:\n        {}",
        "try:\n    pass\nexcept OSError:\n    {}",
        "try:\n    pass\nfinally:\n    {}",
        "match a:\n    case 1:\n        {}",
    ],
)
def test_imports_are_found_in_every_block(recipes: Path, block: str) -> None:
    (recipes / "scaling.py").write_text(block.format("import cudnn_aot.cache.spec") + "\n")
    with pytest.raises(CompileError, match=r"imports cudnn_aot\.cache\.spec:"):
        source_closure(TEMPLATE)


def test_relative_imports_are_followed(recipes: Path) -> None:
    (recipes / "scaling.py").write_text("from .more import f\nfrom . import extra\n")
    (recipes / "more.py").write_text("f = 1\n")
    (recipes / "extra.py").write_text("")
    names = {name for name, _ in source_closure(TEMPLATE).modules}
    assert {"cudnn_aot.recipes.toys.kernels.more", "cudnn_aot.recipes.toys.kernels.extra"} <= names


def test_kernel_packages_stay_empty(recipes: Path) -> None:
    (recipes / "__init__.py").write_text("SCALE = 2\n")
    with pytest.raises(CompileError, match=r"kernels/__init__.py has code"):
        source_closure(TEMPLATE)


@pytest.mark.parametrize(
    "template", ["", "toys", "toys.kernels.absent:f", "gemm.facts:f", "../x:f", "toys.kernels:f"]
)
def test_bad_templates(template: str) -> None:
    with pytest.raises(CompileError, match="template"):
        source_closure(template)
