"""The record of a build: what it was asked to make, from which sources, with which tools.

It says what went in and nothing of how it went, of when, where or by whom. So every part of a
sharded build, and every repetition, gives the same record; plans and kernels are found from it by
their keys.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cudnn_aot
from cudnn_aot.cache.toolchain import toolchain
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.shipped import FOLDER
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import CompileError

if TYPE_CHECKING:
    from cudnn_aot.compiler.planning.cudnn import Cudnn

_PACKAGES = ("cudnn_aot.cache", "cudnn_aot.compiler", "cudnn_aot.recipes")


def build_record(
    graphs: Iterable[tuple[str, str]],
    targets: Sequence[Target],
    engines: Sequence[str],
    tuning: Tuning | None,
    cudnn: Cudnn | None,
) -> dict[str, Any]:
    """The document for `StoreWriter.introduce`.

    Args:
        graphs: name and key of each; every one is asked for on every target.
        engines: the providers that are asked.
        cudnn: cuDNN, if it is one of them.
        tuning: the tuning file's content, of which the digest is recorded.
    """
    return {
        "version": cudnn_aot.__version__,
        "sources": source_digest(),
        "toolchain": {flavor: _tools(flavor) for flavor in sorted({t.dsl_flavor for t in targets})},
        "cudnn": {} if cudnn is None else _versions(targets, cudnn),
        "engines": list(engines),
        "targets": [t.descriptor() for t in sorted(targets, key=lambda target: target.name)],
        "graphs": [{"name": name, "graph_key": key} for name, key in sorted(set(graphs))],
        "tuning": "" if tuning is None else tuning.content_digest(),
    }


@functools.cache
def source_digest() -> str:
    """Of every module of ours that plans, compiles or writes, and of the measured plans that are
    shipped; once per process, as imported.

    Templates that a program adds are in the specs of their kernels.
    """
    return digest_of({name: Path(next(iter(import_module(name).__path__))) for name in _PACKAGES})


def digest_of(folders: Mapping[str, Path]) -> str:
    """Of the Python files below folders, and of shipped tuning files; by names within them, so a
    wheel and a checkout agree.
    """
    digest = hashlib.sha256()
    for package, folder in sorted(folders.items()):
        for path in sorted((*folder.rglob("*.py"), *folder.rglob(f"{FOLDER}/*.json"))):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _tools(flavor: str) -> dict[str, str]:
    try:
        return toolchain(flavor)
    except CompileError:  # not installed: a host that asks cuDNN alone
        return {}


def _versions(targets: Sequence[Target], cudnn: Cudnn) -> dict[str, dict[str, str]]:
    found = {target.name: cudnn.found(target) for target in targets}
    return {
        name: {"cudnn": backend.version, "frontend": backend.frontend_version}
        for name, backend in found.items()
        if not isinstance(backend, Refusal)
    }
