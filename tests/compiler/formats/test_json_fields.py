"""Each value of a graph file, changed or left out alone: another key, a refusal, or no meaning."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot.compiler.formats.load import read_bytes
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

ROOT = Path(__file__).resolve().parents[3]
OURS = sorted((ROOT / "examples" / "graphs").glob("*.json"))
PEER = sorted((ROOT / "tests" / "data" / "peer_graphs").glob("*/*.json"))
GONE = object()
OTHER_TYPES = {"BFLOAT16": "HALF", "FLOAT": "HALF", "HALF": "BFLOAT16", "INT32": "INT64"}

Path_ = tuple[str | int, ...]


def values(document: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    if isinstance(document, dict | list):
        pairs = document.items() if isinstance(document, dict) else enumerate(document)
        for name, value in pairs:
            yield from values(value, (*path, name))
    else:
        yield path, document


def others(value: Any) -> Iterator[Any]:
    yield GONE
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
    elif value is None:
        yield 1
    else:
        yield value + "x"
        if value in OTHER_TYPES:
            yield OTHER_TYPES[value]


def changed(document: Any, path: Path_, value: Any) -> Any:
    made = at = copy.deepcopy(document)
    for name in path[:-1]:
        at = at[name]
    if value is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


def key(document: Any) -> str:
    """Empty if it is refused."""
    try:
        return read_bytes(json.dumps(document).encode()).key()
    except (InvalidGraphError, cudnnGraphNotSupportedError):
        return ""


def without_effect(document: Any) -> set[tuple[str, Any]]:
    """What leaves the key as it is: field, with ``#`` for an index, and the value that it got."""
    base = key(document)
    assert base
    found = set()
    for path, value in values(document):
        for other in others(value):
            if key(changed(document, path, other)) == base:
                field = ".".join("#" if isinstance(name, int) else name for name in path)
                found.add((field, "gone" if other is GONE else "other"))
    return found


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_what_has_no_meaning_in_our_files(file: Path) -> None:
    """Names; hints, for which one of equal plans is chosen; a type that no tensor takes."""
    document = json.loads(file.read_text())
    names = {"name", "nodes.#.name", "tensors.#.name"}
    silent = {(name, how) for name in names for how in ("gone", "other")}
    for symbol in document.get("symbols", {}):
        silent |= {(f"symbols.{symbol}.hint", how) for how in ("gone", "other")}
        if document["symbols"][symbol].get("min") == 1:  # as without it
            silent.add((f"symbols.{symbol}.min", "gone"))
    found = without_effect(document)
    if not any(tensor.get("is_virtual") for tensor in document["tensors"]):
        silent |= {("intermediate_data_type", how) for how in ("gone", "other")}
    assert found <= silent, found - silent
    assert ("name", "other") in found


# Fields of the frontend's tensors and nodes that say nothing of what is computed: which of its own
# kernels it takes, or what other fields say too. Its defaults of types are in every tensor.
PEER_SILENT = {
    "nodes.#.implementation",
    "nodes.#.is_mxfp8",
    "nodes.#.mma_core_mode",
    "nodes.#.name",
    "tensors.#.name",
    "tensors.#.dim_assigned",
    "tensors.#.stride_assigned",
    "tensors.#.uid_assigned",
}


@pytest.mark.parametrize("file", PEER[::7], ids=lambda file: file.stem)
def test_every_value_that_is_assigned_counts_in_the_frontend_s(file: Path) -> None:
    """Extents, strides, types, flags and attributes; what is not assigned is inferred."""
    document = json.loads(file.read_text())
    base = key(document)
    assert base
    for path, value in values(document):
        field = ".".join("#" if isinstance(name, int) else name for name in path)
        tensor = document["tensors"][path[1]] if path[0] == "tensors" else {}
        if path[0] not in ("tensors", "nodes") or field in PEER_SILENT:
            continue
        if path[-1] == "$enum" or value is None:  # the class of a value; a default
            continue
        if path[0] == "tensors" and path[2] in ("dim", "stride"):
            is_one = tensor["dim"][path[3]] == 1  # of which the stride moves nothing
            if not tensor[f"{path[2]}_assigned"] or path[2] == "stride" and is_one:
                continue
        for other in others(value):
            if other is not GONE:
                assert key(changed(document, path, other)) != base, (field, value, other)
