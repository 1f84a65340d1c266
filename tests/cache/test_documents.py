"""Every field of every document with values of every type, sealed as if it were meant so.

`verify` finds what serving refuses, whatever the value; nothing but an error of ours comes out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot import errors, runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import plain_bytes, sha256_hex
from cudnn_aot.cache.reader import StoreReader

KINDS = ("plans", "names", "classes", "kernels", "builds", "record")
VALUES: list[Any] = [
    None, True, -1, 1.5, 2**63, 10**400, "", "x", "\ud800", "a\0b", [], {}, [[]], {"": None},
    "0" * 64,
]  # fmt: skip
GONE = object()
DEEP = {"table", "graph"}  # launch tables have tests of their own


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field and item, outside in."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list) and key not in DEEP:
            yield from places(inner, (*at, key))


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return document


def sealed(document: dict[str, Any]) -> bytes:
    """As `layout.document_bytes`, of what it would refuse to write."""
    body = {name: value for name, value in document.items() if name != "digest"}
    digest = sha256_hex(plain_bytes(body))
    return plain_bytes({**body, "digest": digest}) + b"\n"


def serve(store: Path) -> None:
    opened = runtime.open(store, "cpu")
    for name in ("up", "down"):
        opened.plan(name).workspace_bytes({"M": 3})


@pytest.mark.parametrize("kind", KINDS)
def test_what_serving_refuses_verify_finds(kind: str, store_copy: Path) -> None:
    folder = "plans" if kind == "record" else kind
    file = min((store_copy / folder).rglob("*.json"))
    kept = file.read_bytes()
    document = json.loads(kept)
    record = {}
    if kind == "record":
        record = json.loads(StoreReader(store_copy).blob(document["records"][0]))
    whole = record or {name: value for name, value in document.items() if name != "digest"}
    file.chmod(0o644)
    served = found = 0
    missed: list[str] = []
    for place in places(whole):
        for value in (*VALUES, GONE):
            made = changed(whole, place, value)
            if made == whole:
                continue
            blob = None
            if kind == "record":
                data = plain_bytes(made)
                blob = store_copy / layout.blob_path(sha256_hex(data))
                blob.parent.mkdir(exist_ok=True)
                blob.write_bytes(data)
                made = changed(document, ("records", 0), blob.name)
                held = made.get("providers", {}).get("native")
                if held:
                    held["records"][0] = blob.name
            data = sealed(made)
            here = file
            if kind == "builds":
                here = store_copy / layout.build_path(json.loads(data)["digest"])
                file.unlink()
            here.write_bytes(data)
            problems = StoreReader(store_copy).verify()
            try:
                serve(store_copy)
                served += 1
            except errors.Error as error:
                found += 1
                # What only another host would run is no damage.
                if not problems and not isinstance(error, errors.RequirementError):
                    missed.append(f"{place} = {value!r}: {error}")
            if here != file:
                here.unlink()
            if blob is not None:
                blob.unlink()
            file.write_bytes(kept)
    assert not missed, "\n".join(missed)
    assert StoreReader(store_copy).verify() == []
    if kind not in ("builds", "classes", "kernels"):  # which serving does not need
        assert found > served > 0
