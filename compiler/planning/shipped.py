"""Measured plans that come with a family: a tuning file for each target that it was measured on.

The files lie in the folder ``tuning`` of the package that has the family's heuristics, under the
target's name. Plans are ranked by them as by a file of `--tuning`; what that says of a graph takes
the place of what is shipped.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.tuning import Tuning, load_tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import RequirementError, UsageError

FOLDER = "tuning"


def with_shipped(tuning: Tuning | None, family: manifest.Family, target: Target) -> Tuning | None:
    """What plans of a family are ranked by: a tuning file, if one is given, over the shipped one,
    if there is one.
    """
    path = shipped_file(family, target.name)
    if path is None:
        return tuning
    shipped = _load(path)
    return shipped if tuning is None else _over(tuning, shipped)


def shipped_digest(family: manifest.Family, target: Target) -> str:
    """Of the bytes of a family's file for a target; empty when there is none.

    Taken once per process, as the file is read once.
    """
    path = shipped_file(family, target.name)
    return "" if path is None else _digest(path)


@functools.cache
def shipped_file(family: manifest.Family, target: str) -> Path | None:
    """The file of a family for a target, if one is shipped."""
    path = shipped_folder(family) / f"{target}.json"
    return path if os.path.isfile(path) else None


def shipped_folder(family: manifest.Family) -> Path:
    """Where a family's files are, if it has any."""
    return manifest.folder(f"recipes.{family.heuristics.partition('.')[0]}") / FOLDER


_over = functools.lru_cache(maxsize=8)(Tuning.over)  # all graphs of a build ask for the same


@functools.cache
def _load(path: Path) -> Tuning:
    try:
        return load_tuning(path, is_shipped=True)
    except UsageError as error:
        raise _damaged(str(error)) from None


@functools.cache
def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _damaged(f"tuning file {str(path)!r}: {error.strerror or error}") from None


def _damaged(what: str) -> RequirementError:
    return RequirementError(f"{what}; it comes with cudnn-aot: reinstall that")
