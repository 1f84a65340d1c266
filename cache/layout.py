"""Where things lie in a store, and what its documents must look like. Standard library only.

    STORE/store.json                       {"format":1}
    STORE/blobs/sha256/ab/<64 hex>         immutable bytes, named by their digest
    STORE/kernels/ab/<kernel key>.json     the record of a kernel; written after its blob
    STORE/plans/<target>/<graph key>.json  pointer to plan records, or a decline with its reasons
    STORE/classes/<target>/<bucket>.json   the symbolic graphs of a class bucket that have plans
    STORE/names/<target>/<name>.json       name -> graph key and the uid of each tensor name
    STORE/builds/<digest>.json             what a build was asked to make; named by its own digest
    STORE/signatures/<key id>.json         what a key signed: the root digest; optional
    STORE/index.json                       all files with their digests, where none can be listed

Documents are canonical JSON and a newline, and carry ``digest``: the SHA-256 of the rest of the
document. A file whose bytes are not exactly that is damaged.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from cudnn_aot.cache.canonical import plain, plain_bytes, sha256_hex
from cudnn_aot.errors import UsageError

FORMAT = 1
STORE_FILE = "store.json"
STORE_BYTES = b'{"format":%d}\n' % FORMAT
INDEX_FILE = "index.json"
STAGING = ".building"  # staging inside a store whose parent folder cannot hold it

REMOTES = ".remotes"  # in the user's cache: what was fetched of stores elsewhere
NOT_SHIPPED = (STAGING, REMOTES)

# The fields of a document that are in its path, in that order.
_PLACE = {
    "kernel": ("key",),
    "pointer": ("target", "graph_key"),
    "class": ("target", "bucket"),
    "name": ("name",),
    "build": ("digest",),
    "signature": ("key_id",),
}

_HEX64 = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(
    r"plans|names|classes|builds|signatures|kernels(/[0-9a-f]{2})?|blobs(/sha256(/[0-9a-f]{2})?)?"
)
_MAX_NAME_BYTES = 240  # a file name has 255, and ".json" must fit


def is_digest(text: object) -> bool:
    return isinstance(text, str) and _HEX64.fullmatch(text) is not None


def _need_digest(what: str, text: str) -> str:
    if not is_digest(text):
        raise UsageError(f"bad {what}: got {text!r}, want 64 hex digits")
    return text


@functools.lru_cache(maxsize=1024)  # the same few targets for every file
def encode_name(what: str, name: str) -> str:
    """A graph or target name as one file name: percent-encoded, never hidden, never a path."""
    coded = quote(name, safe=" +,=@()[]")
    if coded.startswith("."):
        coded = "%2E" + coded[1:]
    if not coded or len(coded) > _MAX_NAME_BYTES:
        raise UsageError(
            f"bad {what} {name!r}: got {len(coded)} bytes, want 1 to {_MAX_NAME_BYTES}"
        )
    return coded


def decode_name(coded: str) -> str | None:
    """The name behind a file name, or None when no name is written this way."""
    name = unquote(coded)
    try:
        return name if encode_name("name", name) == coded else None
    except (UsageError, UnicodeError):
        return None


def blob_path(digest: str) -> str:
    _need_digest("blob digest", digest)
    return f"blobs/sha256/{digest[:2]}/{digest}"


def kernel_path(key: str) -> str:
    _need_digest("kernel key", key)
    return f"kernels/{key[:2]}/{key}.json"


def pointer_path(target: str, graph_key: str) -> str:
    return f"plans/{encode_name('target', target)}/{_need_digest('graph key', graph_key)}.json"


def class_path(target: str, bucket: str) -> str:
    return f"classes/{encode_name('target', target)}/{_need_digest('class bucket', bucket)}.json"


def name_path(target: str, name: str) -> str:
    return f"names/{encode_name('target', target)}/{encode_name('graph name', name)}.json"


def build_path(digest: str) -> str:
    return f"builds/{_need_digest('build digest', digest)}.json"


def signature_path(key_id: str) -> str:
    return f"signatures/{_need_digest('key id', key_id)}.json"


def classify(relative: str) -> tuple[str, tuple[str, ...]] | None:
    """What a file of a store is, None for a file that is not the store's own.

    ("blob", (digest,)), ("kernel", (key,)), ("pointer", (target, graph key)), ("class", (target,
    bucket)), ("name", (target, name)), ("build", (digest,)), ("signature", (key id,)),
    ("index", ()) or ("store", ()).
    """
    if relative in (STORE_FILE, INDEX_FILE):
        return ("store" if relative == STORE_FILE else "index", ())
    parts = relative.split("/")
    if parts[:2] == ["blobs", "sha256"]:
        digest = parts[-1]
        return ("blob", (digest,)) if is_digest(digest) and relative == blob_path(digest) else None
    if not relative.endswith(".json"):
        return None
    stem = parts[-1][: -len(".json")]
    if parts[0] == "builds":
        return ("build", (stem,)) if is_digest(stem) and relative == build_path(stem) else None
    if parts[0] == "signatures":
        is_one = is_digest(stem) and relative == signature_path(stem)
        return ("signature", (stem,)) if is_one else None
    if len(parts) != 3:
        return None
    if parts[0] == "kernels":
        return ("kernel", (stem,)) if is_digest(stem) and relative == kernel_path(stem) else None
    target = decode_name(parts[1])
    if target is None:
        return None
    if parts[0] == "plans":
        return ("pointer", (target, stem)) if is_digest(stem) else None
    if parts[0] == "classes":
        return ("class", (target, stem)) if is_digest(stem) else None
    if parts[0] == "names":
        name = decode_name(stem)
        return ("name", (target, name)) if name is not None else None
    return None


def is_folder(relative: str) -> bool:
    """Whether the store can only have a folder here; folders of targets are not known by name."""
    return _FOLDER.fullmatch(relative) is not None


def is_target_folder(relative: str) -> bool:
    """Whether a folder here would be a target's; a file here is not the store's own."""
    if relative.count("/") != 1:
        return False
    holder, coded = relative.split("/")
    return holder in ("plans", "names", "classes") and decode_name(coded) is not None


def root_digest(documents: Mapping[str, str]) -> str:
    """The root digest of documents, of which the SHA-256 is given by path."""
    lines = (f"{digest}  {path}\n" for path, digest in sorted(documents.items()))
    return sha256_hex("".join(lines).encode("ascii"))


def providers_of(pointer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each provider has for a graph; a pointer of before there were several is native."""
    held = pointer.get("providers")
    if held is not None:
        return {name: dict(each) for name, each in held.items()}
    native: dict[str, Any] = {"plan_key": "", "records": [], "reasons": []}
    return {"native": {field: pointer.get(field, empty) for field, empty in native.items()}}


def pointer_of(
    graph: str | None, providers: Mapping[str, Mapping[str, Any]], order: Sequence[str]
) -> dict[str, Any]:
    """The pointer to what providers have for a graph, whose blob is ``graph``.

    Records are those of all, in the order of the providers that ``order`` names, then of the
    others. The reasons are those of every provider without a plan; all but the native ones say
    whose.
    """
    known = [*order, *sorted(set(providers) - set(order))]
    held = {name: providers[name] for name in known if name in providers}
    found = [record for each in held.values() for record in each["records"]]
    return {
        "status": "built" if found else "declined",
        "records": found,
        "graph": graph,
        "reasons": [
            reason if name == "native" else f"{name}: {reason}"
            for name, each in held.items()
            if not each["records"]
            for reason in each["reasons"]
        ],
        "providers": {name: dict(each) for name, each in held.items()},
    }


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as stored: sealed with ``digest``, canonical, one final newline."""
    body = plain({name: value for name, value in document.items() if name != "digest"})
    data = plain_bytes(body)
    digest = sha256_hex(data)
    if min(body, default="") > "digest":  # which so comes first
        return b'{"digest":"%b",%b\n' % (digest.encode("ascii"), data[1:])
    return plain_bytes({**body, "digest": digest}) + b"\n"


def _is_sealed(document: Mapping[str, Any], data: bytes) -> bool:
    """Whether a document, of which ``data`` is the canonical form, carries its own digest."""
    digest = document.get("digest")
    if not is_digest(digest):
        return False
    member = b'"digest":"%b"' % str(digest).encode("ascii")
    if data.count(member) == 1:  # the seal: what is left without it is the canonical body
        for cut in (member + b",", b"," + member):
            if cut in data:
                return digest == sha256_hex(data[:-1].replace(cut, b"", 1))
    body = {name: value for name, value in document.items() if name != "digest"}
    return digest == sha256_hex(plain_bytes(body))


def parse_document(data: bytes) -> dict[str, Any]:
    """The document, seal checked; raises ValueError with what is wrong."""
    try:
        document = json.loads(data.decode())  # of bytes it would guess the encoding first
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    version = document.get("format")
    if type(version) is int and version > FORMAT:
        raise ValueError(f"format {version} is newer than {FORMAT}, which this version reads")
    # What JSON gives is plain: only that it is written and sealed as it should be is checked.
    try:
        is_whole = plain_bytes(document) + b"\n" == data and _is_sealed(document, data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not is_whole:
        raise ValueError("the content does not match its digest")
    if version != FORMAT:
        raise ValueError(f"format is {version!r}, want {FORMAT}")
    return document


def file_fault(relative: str, data: bytes) -> str | None:
    """Why these bytes cannot be the file of a store at this place, as far as they tell themselves.

    What a file refers to is not looked at.
    """
    kind, ids = classify(relative) or ("", ())
    if not kind:
        return "no file of a store lies there"
    if kind == "store":
        return None if data == STORE_BYTES else f"want {STORE_BYTES!r}"
    if kind == "blob":
        got = sha256_hex(data)
        return None if got == ids[0] else f"its bytes hash to {got}"
    try:
        document = parse_document(data)
    except ValueError as error:
        return str(error)
    # What the document itself says of its place; the target of a name is its folder's alone.
    for field, value in zip(reversed(_PLACE.get(kind, ())), reversed(ids), strict=False):
        if document.get(field) != value:
            return f"it belongs to another {field.replace('_', ' ')}"
    return None
