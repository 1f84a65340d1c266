"""A store as an OCI image: layers, configuration and manifest, as bytes; and the way back.

Every layer is a plain tar, `application/vnd.oci.image.layer.v1.tar`: one has what targets share,
the others what one target alone needs. Unpacked over each other they are the store at
``/cudnn-aot/store``. Layers are not compressed, since compressors change their output between
versions: equal stores give equal digests, wherever they are pushed. No time and no user is in them.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.contents import Contents
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import DamagedError, RemoteError, UsageError

FOLDER = "cudnn-aot/store"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
# What is read, too: tools that copy images between registries compress layers.
GZIP_LAYER_TYPE = f"{LAYER_TYPE}+gzip"
_MAX_LAYER_BYTES = 16 << 30  # of what a compressed layer may make of little
_MAX_READ_BYTES = 64 << 10  # at once: a name in an extended header has some hundred
_PIECE_BYTES = 32 << 10
_HASHED_BYTES = 1 << 20
# Annotations of the manifest, and of layers the target, which is empty for what targets share.
ROOT_DIGEST = "cudnn-aot.root-digest"
TARGETS = "cudnn-aot.targets"
TARGET = "cudnn-aot.target"

_ARCHITECTURES = {"x86_64-linux-gnu": "amd64", "aarch64-linux-gnu": "arm64"}


@dataclass(frozen=True, slots=True)
class Layer:
    """The files of one layer, by their paths in the store; made when it is sent."""

    target: str
    paths: tuple[str, ...]

    def write(self, reader: StoreReader, index: bytes, to: IO[bytes]) -> None:
        # PAX is the one form in which Python writes long names by the standard.
        with tarfile.open(fileobj=to, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for folder in _folders(self.paths):
                tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
            for path in sorted(self.paths):
                data = index if path == layout.INDEX_FILE else _checked(reader, path)
                entry = _entry(f"{FOLDER}/{path}", tarfile.REGTYPE, 0o444)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def layers_of(contents: Contents) -> list[Layer]:
    """What targets share first, then each target, sorted."""
    owners: dict[str, list[str]] = {}
    for target, paths in contents.targets.items():
        for path in paths:
            owners.setdefault(path, []).append(target)
    shares: dict[str, list[str]] = {"": [layout.INDEX_FILE]}
    for path in contents.files:
        held = owners.get(path, ())
        shares.setdefault(held[0] if len(held) == 1 else "", []).append(path)
    return [Layer(target, tuple(sorted(shares[target]))) for target in sorted(shares)]


def descriptor(
    media_type: str, blob: IO[bytes], annotations: Mapping[str, str] | None = None
) -> Any:
    """What a manifest says of a blob, which is read from its start to its end."""
    blob.seek(0)
    digest = hashlib.sha256()
    while piece := blob.read(_HASHED_BYTES):
        digest.update(piece)
    found: dict[str, Any] = {
        "mediaType": media_type,
        "digest": f"sha256:{digest.hexdigest()}",
        "size": blob.tell(),
    }
    return found | ({"annotations": dict(annotations)} if annotations else {})


def architecture_of(contents: Contents) -> str:
    """That of the hosts of the kernels.

    Raises:
        UsageError: there are several, and an image is for one.
    """
    found = sorted({_ARCHITECTURES.get(triple, triple) for triple in contents.host_triples})
    if len(found) > 1:
        raise UsageError(
            f"the store holds kernels for hosts of several architectures ({', '.join(found)}), "
            "and an image is for one: keep a store for each host and push each under a tag of its "
            "own, or push this one to a URL"
        )
    return found[0] if found else "amd64"


def config_bytes(architecture: str, diff_ids: Iterable[str]) -> bytes:
    """The image's configuration."""
    return canonical_bytes(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }
    )


def manifest_bytes(contents: Contents, config: Any, layers: Iterable[Any]) -> bytes:
    return canonical_bytes(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": list(layers),
            "annotations": {
                ROOT_DIGEST: contents.index.root_digest,
                TARGETS: ",".join(layout.encode_name("target", t) for t in contents.targets),
            },
        }
    )


def entries(
    stream: IO[bytes], media_type: str, where: str
) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Path in the store, size in bytes and what reads them, of each file of a layer.

    Nothing is unpacked, and of what whoever made the layer chooses a few KiB are in memory at a
    time: a caller reads no file of which the size is not as it should be. A file is to be read
    before the next one is asked for.

    Raises:
        RemoteError: it is no tar, or holds something else than a store's files in their folders.
    """
    plain: Any = gzip.GzipFile(fileobj=stream) if media_type == GZIP_LAYER_TYPE else stream
    end = -1
    try:
        bounded: Any = _Bounded(plain)
        tar: Any  # typeshed has neither `members` nor what `pax_headers` is
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            while (entry := tar.next()) is not None:
                tar.members.clear()  # else there is one for each entry
                tar.pax_headers.clear()
                if entry.size < 0 or entry.offset <= end:
                    raise tarfile.ReadError("an entry begins before the one before it ends")
                end = entry.offset
                relative = _relative(entry, where)
                if relative is not None:
                    yield relative, entry.size, functools.partial(_content, tar, entry, where)
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError, zlib.error) as error:
        raise RemoteError(f"{where} is no tar: {str(error).lower()}", 1) from None
    except RecursionError:  # an extended header of an extended header, and so on
        raise RemoteError(f"{where} is no tar: too many headers of one entry", 1) from None


class _Bounded:
    """A stream for tarfile, which else reads at once as much as a header of the layer says."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header has {size} bytes, want {_MAX_READ_BYTES} at most")
        self._need_place(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int) -> int:
        self._need_place(place)
        return self._stream.seek(place)

    def tell(self) -> int:
        return self._stream.tell()

    def _need_place(self, place: int) -> None:
        if place > _MAX_LAYER_BYTES:
            raise tarfile.ReadError(f"it has more than {_MAX_LAYER_BYTES} bytes")


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo, where: str) -> bytes:
    content = tar.extractfile(entry)
    assert content is not None  # a regular file, as `_relative` has seen
    data = bytearray()
    while piece := content.read(_PIECE_BYTES):
        data += piece
    if len(data) != entry.size:
        raise RemoteError(f"{where}: {entry.name!r} was cut", 1)
    return bytes(data)


def _relative(entry: tarfile.TarInfo, where: str) -> str | None:
    """The path of an entry in the store, None for a folder."""
    name = entry.name
    if entry.isdir():
        if f"{FOLDER}/".startswith(f"{name}/") or name.startswith(f"{FOLDER}/"):
            return None
    elif entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.sparse:
        relative = name.removeprefix(f"{FOLDER}/")
        if relative != name and layout.classify(relative) is not None:
            return relative
    kind = "a link" if entry.islnk() or entry.issym() else "an entry"
    raise RemoteError(f"{where}: {kind} {name!r} is no file of a store under {FOLDER}")


def _folders(paths: Iterable[str]) -> list[str]:
    found = set()
    for path in paths:
        folder = f"{FOLDER}/{path}".rpartition("/")[0]
        while folder:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry  # time, user and group are 0 and empty


def _checked(reader: StoreReader, path: str) -> bytes:
    data = reader.read(path)
    fault = layout.file_fault(path, data)
    if fault:
        raise DamagedError(f"{reader.path / path} is damaged: {fault}")
    return data
