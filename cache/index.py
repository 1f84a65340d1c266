"""The index of a store that lies where files cannot be listed: each with its digest and size.

``index.json`` is a document of the store's form. It is made when a store is pushed and lists the
documents, whose digests give the root digest, and the blobs that they name. Whoever has checked the
root digest has thereby checked all that is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex

MAX_INDEX_BYTES = 64 << 20  # of some 500 000 files
_MAX_SIZE_BYTES = 1 << 34  # of one file or one layer: nobody has had a larger one
_KINDS = {
    "documents": ("build", "class", "kernel", "name", "pointer"),  # what the root digest is of
    "blobs": ("blob",),
    "signatures": ("signature",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """What bytes there are at a path, by their digest and number."""

    sha256: str
    size: int

    def holds(self, data: bytes) -> bool:
        return len(data) == self.size and sha256_hex(data) == self.sha256


@dataclass(frozen=True, slots=True)
class Index:
    """The documents of a store, the blobs that they name, and signatures, by their paths."""

    documents: Mapping[str, Part]
    blobs: Mapping[str, Part]
    signatures: Mapping[str, Part]

    @property
    def root_digest(self) -> str:
        return layout.root_digest({path: part.sha256 for path, part in self.documents.items()})

    def part(self, relative: str) -> Part | None:
        """What should lie at a path, None for nothing."""
        for parts in (self.documents, self.blobs, self.signatures):
            if relative in parts:
                return parts[relative]
        return None

    @property
    def targets(self) -> list[str]:
        """Every target that has a plan or a name, sorted."""
        known = (layout.classify(path) or ("", ("",)) for path in self.documents)
        return sorted({ids[0] for kind, ids in known if kind in ("pointer", "name")})

    @property
    def paths(self) -> list[str]:
        """Of all that is listed, sorted."""
        return sorted([*self.documents, *self.blobs, *self.signatures])

    def to_bytes(self) -> bytes:
        def listed(parts: Mapping[str, Part]) -> dict[str, list[str | int]]:
            return {path: [part.sha256, part.size] for path, part in parts.items()}

        document = {
            "format": layout.FORMAT,
            "documents": listed(self.documents),
            "blobs": listed(self.blobs),
            "signatures": listed(self.signatures),
        }
        return layout.document_bytes(document)


def is_size(size: object) -> bool:
    """Whether that can be the number of bytes of a file of a store, as JSON has it."""
    return type(size) is int and 0 <= size <= _MAX_SIZE_BYTES


def parse_index(data: bytes) -> Index:
    """The index, seal checked; raises ValueError with what is wrong."""
    document = layout.parse_document(data)
    documents, blobs, signatures = (
        _parts(document.get(field), field) for field in ("documents", "blobs", "signatures")
    )
    return Index(documents, blobs, signatures)


def _parts(listed: object, field: str) -> dict[str, Part]:
    if not isinstance(listed, dict):
        raise ValueError(f"it has no {field}")
    parts = {}
    for path, entry in listed.items():
        kind, ids = layout.classify(path) or ("", ())
        match entry:
            case [str(sha256), int(size)] if layout.is_digest(sha256) and is_size(size):
                part = Part(sha256, size)
            case _:
                raise ValueError(f"it lists {path!r} with {entry!r}, want a digest and a size")
        if kind not in _KINDS[field] or kind == "blob" and ids[0] != sha256:
            raise ValueError(f"it lists {path!r} among {field}")
        parts[path] = part
    return parts


__all__ = ["MAX_INDEX_BYTES", "Index", "Part", "is_size", "parse_index"]
