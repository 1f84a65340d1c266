"""The source digest: every project file that a compile of a template reads, importing none.

The closure starts at the template's module and follows its imports, wherever they stand in it.
Kernel modules may import only ``cudnn_aot.recipes.**.kernels``, ``cudnn_aot.recipes.trace`` and
packages that are not this project; anything else is refused here, and the compile worker refuses
what hides from this reading (``importlib``, ``open``). Files go by their names relative to
``cudnn_aot.recipes``, so an editable install and a wheel agree. The step that turns a template
into an object is source too and belongs to every closure.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudnn_aot.errors import CompileError

PROJECT = "cudnn_aot"
RECIPES = "cudnn_aot.recipes"
_STEP = "cache/export.py"


@dataclass(frozen=True, slots=True)
class SourceClosure:
    """Module name -> file of every project module that a template's compile may read."""

    modules: tuple[tuple[str, Path], ...]
    packages: tuple[Path, ...]  # the empty __init__.py files on the way
    digest: str

    @property
    def files(self) -> frozenset[Path]:
        return frozenset(path for _, path in self.modules) | frozenset(self.packages)


def split_template(template: str) -> tuple[str, str]:
    """``"gemm.kernels.sm90:matmul"`` -> full module name and function name."""
    module, colon, function = template.partition(":")
    parts = [*module.split("."), function]
    if not colon or not all(part.isidentifier() for part in parts):
        raise CompileError(f"bad template {template!r}: want family.kernels.module:function")
    full = f"{RECIPES}.{module}"
    if not _is_kernel_module(full):
        raise CompileError(f"bad template {template!r}: its module is not in a kernels package")
    return full, function


def source_closure(template: str) -> SourceClosure:
    """The closure of a template; raises CompileError for a forbidden or missing import.

    Plans ask often: it is read again only when a file of it, or a folder that its modules were
    looked for in, has changed.
    """
    place = (template, *importlib.import_module(RECIPES).__path__)
    steady = _steady.get()
    if steady is not None and place in steady:
        return steady[place]
    closure = _current(template, place)
    if steady is not None:
        steady[place] = closure
    return closure


@contextmanager
def steady_sources() -> Iterator[None]:
    """Within it a closure that was found is not looked at again: the kernels of one plan are of the
    same sources, and looking costs more than the rest of a spec.
    """
    token = _steady.set({})
    try:
        yield
    finally:
        _steady.reset(token)


def _current(template: str, place: _Place) -> SourceClosure:
    known = _known.get(place)
    if known is not None and _is_unchanged(known[1]):
        return known[0]
    try:
        closure = _closure(template)
        read = {Path(__file__).with_name(Path(_STEP).name), *closure.files}
        seen = read | {path.parent for path in read} | {Path(folder) for folder in place[1:]}
        _known[place] = closure, [(str(path), _version(str(path))) for path in seen]
    except OSError as error:  # a file that goes while it is read
        raise CompileError(
            f"template {template!r}: cannot read {error.filename}: {error.strerror}"
        ) from None
    return closure


def _is_unchanged(seen: Iterable[tuple[str, _Version]]) -> bool:
    try:
        return all(_version(path) == version for path, version in seen)
    except OSError:  # one of them is gone
        return False


_Version = tuple[int, int, int]
_Place = tuple[str, ...]  # a template, and the folders that recipes lie in
_steady: ContextVar[dict[_Place, SourceClosure] | None] = ContextVar("_steady", default=None)
_known: dict[_Place, tuple[SourceClosure, list[tuple[str, _Version]]]] = {}


def _version(path: str) -> _Version:
    status = os.stat(path)  # noqa: PTH116  (asked ten times per plan: a Path costs as much again)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _closure(template: str) -> SourceClosure:
    start, _ = split_template(template)
    found: dict[str, Path] = {}
    packages: dict[str, Path] = {}
    pending = [(start, f"template {template!r}")]
    while pending:
        name, wanted_by = pending.pop()
        if name in found or name in packages:
            continue
        path, is_package = _find(name, wanted_by)
        if is_package:
            packages[name] = _empty(path)
        else:
            found[name] = path
            for imported in _imports(name, path):
                if not _may_import(imported):
                    raise CompileError(
                        f"{_relative(name)} imports {imported}: a kernel module imports only "
                        "recipes/**/kernels, recipes/trace and other projects"
                    )
                pending.append((imported, _relative(name)))
        parent = name.rpartition(".")[0]
        if parent != RECIPES:
            pending.append((parent, name))
    digest = hashlib.sha256()
    step = Path(__file__).with_name(Path(_STEP).name)
    for label, path in [
        (_STEP, step),
        *sorted((_relative(name), path) for name, path in found.items()),
    ]:
        digest.update(f"{label}\0{_scan(path, *_version(str(path))).digest}\n".encode())
    return SourceClosure(
        tuple(sorted(found.items())), tuple(sorted(packages.values())), digest.hexdigest()
    )


def recipe_folders() -> list[Path]:
    """Where recipes lie: one folder, or more when a program appended to the package's path."""
    return [Path(entry) for entry in importlib.import_module(RECIPES).__path__]


def add_recipe_folders(folders: Iterable[str]) -> None:
    """Append what is missing to the package's path, as the program that started us did."""
    path = importlib.import_module(RECIPES).__path__
    path.extend(folder for folder in folders if folder not in path)


def _relative(module: str) -> str:
    return module[len(RECIPES) + 1 :].replace(".", "/") + ".py"


def _is_kernel_module(name: str) -> bool:
    parts = name.split(".")[2:]
    return name.startswith(f"{RECIPES}.") and "kernels" in parts[:-1]


def _may_import(name: str) -> bool:
    parts = name.split(".")[2:]
    return name.startswith(f"{RECIPES}.") and ("kernels" in parts or parts[0] == "trace")


def _find(name: str, wanted_by: str) -> tuple[Path, bool]:
    """The file of a project module, and whether it is a package's ``__init__.py``."""
    inner = name[len(RECIPES) + 1 :].split(".")
    for folder in recipe_folders():
        base = folder.joinpath(*inner)
        if (base / "__init__.py").is_file():
            return base / "__init__.py", True
        if base.with_name(base.name + ".py").is_file():
            return base.with_name(base.name + ".py"), False
    raise CompileError(f"{wanted_by} needs {name}, which does not exist")


def _empty(path: Path) -> Path:
    """Packages of kernels hold no code, so they need not be in the digest."""
    body = ast.parse(path.read_bytes()).body
    if body and not (
        len(body) == 1
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        raise CompileError(f"{path.parent.name}/__init__.py has code: kernel packages stay empty")
    return path


def _imports(name: str, path: Path) -> Iterator[str]:
    """Project modules imported anywhere in a module, as full names of modules that exist."""
    try:
        statements = _scan(path, *_version(str(path))).imports
    except SyntaxError as error:
        raise CompileError(f"{_relative(name)}:{error.lineno}: {error.msg}") from None
    for level, module, names in statements:
        if level:
            above = name.split(".")[:-level]
            module = ".".join([*above, module] if module else above)
        if _is_project(module):
            yield from (_module_of(module, attribute) for attribute in names) if names else [module]


@dataclass(frozen=True, slots=True)
class _Scanned:
    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]  # level, module, names imported from it


@lru_cache(maxsize=512)
def _scan(path: Path, *version: int) -> _Scanned:
    """A file's digest and imports; parsed once per version of it, since plans ask often."""
    text = path.read_bytes()
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in _statements(ast.parse(text, filename=path.name)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append((node.level, node.module or "", names))
    return _Scanned(hashlib.sha256(text).hexdigest(), tuple(found))


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements in a block, nested ones too; no expression, which most nodes are, has any."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(block, name, ()):
            yield statement
            yield from _statements(statement)


def forget_scans() -> None:
    """Read every file again, whatever its time says."""
    _scan.cache_clear()
    _known.clear()


def _is_project(module: str) -> bool:
    return module == PROJECT or module.startswith(f"{PROJECT}.")


def _module_of(module: str, attribute: str) -> str:
    """``from module import attribute`` imports ``module.attribute`` if that is a module."""
    if attribute != "*" and (module == RECIPES or module.startswith(f"{RECIPES}.")):
        full = f"{module}.{attribute}"
        try:
            _find(full, module)
        except CompileError:
            return module
        return full
    return module
