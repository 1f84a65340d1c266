"""Imports point one way, and the serving half pulls in the standard library alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_aot.compiler.planning.manifest import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compiler", "cache", "runtime", "cli", "recipes")

# Longest prefix wins. A module may import itself, its own package and what is listed.
ALLOWED = {
    "cudnn_aot.errors": (),
    "cudnn_aot.compiler.graph": ("cudnn_aot.errors",),
    "cudnn_aot.compiler.formats": (
        "cudnn_aot.errors",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.cache.switch",
    ),
    "cudnn_aot.compiler.recorder": (
        "cudnn_aot.errors",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.compiler.formats",
    ),
    "cudnn_aot.compiler.reference": ("cudnn_aot.errors", "cudnn_aot.compiler.graph"),
    "cudnn_aot.compiler.target": ("cudnn_aot.errors",),
    "cudnn_aot.compiler.planning": (
        "cudnn_aot.compiler.formats",
        "cudnn_aot.errors",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.compiler.target",
        "cudnn_aot.cache.spec",
        "cudnn_aot.cache.canonical",
        "cudnn_aot.cache.plan_record",
        "cudnn_aot.cache.switch",
        "cudnn_aot.cache.toolchain",
        "cudnn_aot._native",  # bounds the workspace of a table
    ),
    "cudnn_aot.compiler.program": (
        "cudnn_aot.errors",
        "cudnn_aot.handles",
        "cudnn_aot.datatypes",
        "cudnn_aot._native",
        "cudnn_aot.compiler",
        "cudnn_aot.cache",
        "cudnn_aot.runtime",
    ),
    "cudnn_aot.compiler.build": ("cudnn_aot.errors", "cudnn_aot.compiler", "cudnn_aot.cache"),
    "cudnn_aot.recipes.trace": ("cudnn_aot.errors",),
    "cudnn_aot.recipes": (
        "cudnn_aot.errors",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.compiler.planning",
        "cudnn_aot.compiler.target",
        "cudnn_aot.cache.spec",
        "cudnn_aot.recipes",
    ),
    "cudnn_aot.cache": ("cudnn_aot.errors", "cudnn_aot.compiler.target", "cudnn_aot.recipes.trace"),
    # Parses launch tables as serving does, where somebody asks whether they are whole.
    "cudnn_aot.cache.plan_record": (
        "cudnn_aot.errors",
        "cudnn_aot._native",
        "cudnn_aot.cache",
    ),
    "cudnn_aot.runtime": (
        "cudnn_aot.errors",
        "cudnn_aot._native",
        "cudnn_aot.cache.canonical",
        "cudnn_aot.cache.files",
        "cudnn_aot.cache.layers",
        "cudnn_aot.cache.layout",
    ),
    # Asks for targets by name; imported when somebody asks for one.
    "cudnn_aot.runtime.validity": (
        "cudnn_aot.errors",
        "cudnn_aot.cache.layers",
        "cudnn_aot.cache.plan_record",
        "cudnn_aot.compiler.target",
        "cudnn_aot.runtime",
    ),
    # Stores at URLs and signed stores; imported when somebody opens one.
    "cudnn_aot.runtime.remote": (
        "cudnn_aot.errors",
        "cudnn_aot._native",
        "cudnn_aot.cache",
    ),
    # Knows descriptors when somebody gives one.
    "cudnn_aot.runtime.targets": ("cudnn_aot.errors", "cudnn_aot.compiler.target"),
    # Only for who hands a graph over: no module of the runtime imports it before (tested below).
    "cudnn_aot.runtime.classes": (
        "cudnn_aot.errors",
        "cudnn_aot.cache.layers",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.compiler.formats",
    ),
    # Writes graphs that were handed over and missed; imported then.
    "cudnn_aot.runtime.misses": (
        "cudnn_aot.errors",
        "cudnn_aot.cache.layout",
        "cudnn_aot.compiler.graph",
        "cudnn_aot.compiler.formats",
    ),
    "cudnn_aot.cli": ("cudnn_aot",),
}  # fmt: skip
# The planner hashes the recipes' sources: it knows where they are, and imports them by name only.
# The record of a build has the package's version.
ALLOWED_EXACTLY = {
    ("cudnn_aot.compiler.planning.plan", "cudnn_aot.recipes"),
    ("cudnn_aot.compiler.build.provenance", "cudnn_aot"),
}
# Kernel templates are run by compile workers, which may know nothing but them and the DSL.
RECIPES = "cudnn_aot.recipes."
KERNELS = ("cudnn_aot.recipes.trace", "cudnn_aot.errors")


def modules() -> list[tuple[str, Path]]:
    found = [("cudnn_aot.errors", ROOT / "native/cudnn_aot/errors.py")]
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("cudnn_aot", *parts)).removesuffix(".__init__")
            found.append((name, path))
    return found


def imports_of(name: str, path: Path) -> set[str]:
    """Every cudnn_aot module the file imports, wherever in the file, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write {name}'s imports in full"
            module = node.module or ""
            if module == "cudnn_aot":
                found |= {f"cudnn_aot.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    return {module for module in found if module.split(".")[0] == "cudnn_aot"}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def kernel_packages(name: str) -> list[str]:
    """Where a kernel module may import kernels from: its package, and those that the families of
    that package borrow from.
    """
    own = name.split(".kernels")[0]
    borrowed = {
        other
        for family in FAMILIES
        for other in family.borrows
        if own.rpartition(".")[2] in family.packages
    }
    return [f"{package}.kernels" for package in (own, *sorted(RECIPES + each for each in borrowed))]


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda value: str(value).split("/")[-1])
def test_imports_point_one_way(name: str, path: Path) -> None:
    owner = max((prefix for prefix in ALLOWED if within(name, prefix)), key=len, default=None)
    if owner is None:
        return
    allowed = (owner, *ALLOWED[owner])
    if ".kernels" in name:
        allowed = (*kernel_packages(name), *KERNELS)
    for module in sorted(imports_of(name, path)):
        if (name, module) in ALLOWED_EXACTLY:
            continue
        assert any(within(module, prefix) for prefix in allowed), f"{name} imports {module}"


def test_a_family_borrows_from_every_other_whose_modules_it_imports() -> None:
    """A plan is named by the sources of its family's packages."""
    homes = {family.name: family for family in FAMILIES}
    for name, path in modules():
        family = homes.get(name.removeprefix(RECIPES).split(".")[0])
        if family is None or not name.startswith(RECIPES):
            continue
        for module in imports_of(name, path):
            other = module.removeprefix(RECIPES).split(".")[0]
            if module.startswith(RECIPES) and other in homes:
                assert other in family.packages, f"{name} imports {module}"


def test_only_kernel_modules_import_the_dsl() -> None:
    """`cutlass` belongs to kernel modules, the tracing vocabulary and the compile worker."""
    for name, path in modules():
        if ".kernels" in name or within(name, "cudnn_aot.recipes.trace"):
            continue
        if name in ("cudnn_aot.cache.export", "cudnn_aot.cache.worker"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(within(module, "cutlass") for module in names), f"{name} imports cutlass"


def test_nothing_is_unpickled() -> None:
    """What a store, a worker or a log holds is read as data, never run to be read."""
    runs = ("pickle", "cPickle", "cloudpickle", "marshal", "shelve", "dill")
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(within(module, each) for module in names for each in runs), name


def test_no_question_about_a_path_raises() -> None:
    """Whether a file is there, `os.path` answers with no where the system does not let us look."""
    raising = ("exists", "is_dir", "is_file", "is_symlink")  # of pathlib.Path
    for name, path in modules():
        if within(name, "cudnn_aot.cache") or within(name, "cudnn_aot.recipes"):
            continue  # ask in the store and in the installation alone
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr in raising:
                assert ast.unparse(node.func.value) == "os.path", f"{name}: {ast.unparse(node)}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_cannot_be_imported_by_its_own_name(folder: str) -> None:
    """From the checkout `import compiler` would give a second copy of every class."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"import cudnn_aot.{folder}, not {folder}" in done.stderr


def test_packages_have_empty_init_files() -> None:
    """Only the guards of the top folders and the runtime's lazy names hold code."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("__init__.py"):
            if path.parent != ROOT / folder:
                assert path.read_text() == "", f"{path.relative_to(ROOT)} holds code"


HEAVY = ("click", "filelock", "rich", "numpy", "torch", "cutlass", "tvm_ffi", "ml_dtypes")


@pytest.mark.parametrize("module", ["cudnn_aot.runtime", "cudnn_aot.cache.reader"])
def test_the_serving_half_is_light(module: str) -> None:
    """A fresh interpreter that serves has neither the compiler nor anything installed for it."""
    script = f"""
import sys
import cudnn_aot, {module}
if {module!r} == "cudnn_aot.runtime":
    from cudnn_aot import runtime
    runtime.open, runtime.Store, runtime.Plan
bad = [m for m in sys.modules if m.split(".")[0] in {HEAVY!r}]
bad += [m for m in sys.modules if m.startswith(
    ("cudnn_aot.compiler", "cudnn_aot.recipes", "cudnn_aot.cli"))]
assert not bad, bad
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_names_a_folder_that_only_one_machine_has() -> None:
    """Nothing in the package depends on where it was written."""
    for _, path in modules():
        text = path.read_text(encoding="utf-8")
        assert "/home/" not in text and "/root/" not in text, path
