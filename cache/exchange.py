"""Moving a whole store to and from another place: a URL of a folder, or an image of a registry."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cudnn_aot.cache import image, layout, trust
from cudnn_aot.cache.contents import contents_of, plan_paths, publish_order
from cudnn_aot.cache.index import Index, parse_index
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.registry import Registry, parse_reference
from cudnn_aot.cache.remote import FileSystem, RemoteFiles
from cudnn_aot.cache.transfer import Retry
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotInStoreError,
    PinError,
    RemoteError,
    did_you_mean,
)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a push did. ``digest`` is that of the manifest, empty for a URL."""

    root_digest: str
    digest: str
    files: int  # or blobs of the registry
    files_sent: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Received:
    """What a pull did. ``digest`` is that of the manifest."""

    root_digest: str
    digest: str
    targets: tuple[str, ...]
    files_written: int


def push_folder(
    reader: StoreReader,
    url: str,
    retry: Retry | None = None,
    progress: ProgressCallback = silent,
) -> Sent:
    """Copy a store to the folder at a URL; what is there already is not sent again.

    The index is written last: readers see the old store or the new one.

    Raises:
        DamagedError: the store has faults.
        RemoteError: something cannot be written.
    """
    contents = contents_of(reader)
    there = FileSystem(url, retry)
    try:
        known = there.read_index()
    except (NotAStoreError, RemoteError):  # what lies there as the index is replaced
        known = Index({}, {}, {})
    sent = sent_bytes = 0
    for number, path in enumerate(contents.files):
        progress(Event(Stage.SEND, number, len(contents.files), path))
        part = contents.index.part(path)
        if part is not None and known.part(path) == part:
            continue
        data = reader.read(path)
        if fault := layout.file_fault(path, data):
            raise DamagedError(f"{reader.path / path} is damaged: {fault}")
        there.write(path, data)
        sent, sent_bytes = sent + 1, sent_bytes + len(data)
    if known != contents.index:
        there.write(layout.INDEX_FILE, contents.index.to_bytes())
    return Sent(contents.index.root_digest, "", len(contents.files), sent, sent_bytes)


def push_image(
    reader: StoreReader,
    reference: str,
    plain_http: bool = False,
    retry: Retry | None = None,
    progress: ProgressCallback = silent,
) -> Sent:
    """Publish a store as an image; what the registry has is not sent again.

    Raises:
        UsageError: that is no reference, or the store fits no image.
        DamagedError: the store has faults.
        RemoteError: the registry does not take it.
    """
    parsed = parse_reference(reference)
    contents = contents_of(reader)
    index = contents.index.to_bytes()
    registry = Registry(parsed, plain_http, retry)
    sent = sent_bytes = 0

    def put(media_type: str, data: bytes, annotations: Mapping[str, str] | None = None) -> Any:
        nonlocal sent, sent_bytes
        described = image.descriptor(media_type, data, annotations)
        if not registry.has_blob(described["digest"]):
            registry.put_blob(described["digest"], data)
            sent, sent_bytes = sent + 1, sent_bytes + len(data)
        return described

    layers = []
    parts = image.layers_of(contents)
    for number, layer in enumerate(parts):
        progress(Event(Stage.SEND, number, len(parts), layer.target))
        data = layer.to_bytes(reader, index)
        layers.append(put(image.LAYER_TYPE, data, {image.TARGET: layer.target}))
    diff_ids = [layer["digest"] for layer in layers]
    config = put(image.CONFIG_TYPE, image.config_bytes(contents, diff_ids))
    manifest = image.manifest_bytes(contents, config, layers)
    described = image.descriptor(image.MANIFEST_TYPE, manifest)
    if parsed.digest and parsed.digest != described["digest"]:
        raise RemoteError(
            f"{parsed}: the store gives the manifest {described['digest']}: push to a tag"
        )
    registry.put_manifest(parsed.place, manifest)
    root_digest = contents.index.root_digest
    return Sent(root_digest, described["digest"], len(layers) + 1, sent, sent_bytes)


def pull_image(
    reference: str,
    path: Path,
    *,
    target: str | None = None,
    digest: str = "",
    keys: tuple[trust.PublicKey, ...] = (),
    plain_http: bool = False,
    retry: Retry | None = None,
    progress: ProgressCallback = silent,
) -> Received:
    """Add the store in an image, or one target's share of it, to the store at ``path``.

    Everything is checked before anything is published: the manifest against the digest in the
    reference, each layer against the manifest, the root digest against a signature, each file
    against the index that has this root digest.

    Raises:
        NotInStoreError: there is no such image, or nothing for the target in it.
        RemoteError: it cannot be read, or is not what it says.
        PinError: it has not the root digest ``digest``, if there is one.
        TrustError: none of the keys has signed it.
    """
    parsed = parse_reference(reference)
    registry = Registry(parsed, plain_http, retry)
    manifest, manifest_digest = registry.manifest(parsed.place)
    layers = _layers(manifest, str(parsed))
    held = [layer.target for layer in layers if layer.target]
    if target is not None and target not in held:
        near = did_you_mean(target, held)
        raise NotInStoreError(
            f"{parsed} holds nothing for target {target!r}{near}: it has {', '.join(held)}"
        )
    with ExitStack() as stack:
        streams = []
        for number, layer in enumerate(layers):
            progress(Event(Stage.RECEIVE, number, len(layers), layer.target))
            if target in (None, layer.target) or not layer.target:
                stream = stack.enter_context(tempfile.TemporaryFile())
                registry.read_blob(layer.digest, layer.size, stream)
                streams.append(_Stream(stream, layer.media_type, f"{parsed} layer {layer.digest}"))
        index, signatures = _checked(streams, str(parsed), whole=target is None)
        if digest and digest != index.root_digest:
            raise PinError(
                f"{parsed} is not the pinned store: got root digest {index.root_digest}, want "
                f"{digest}"
            )
        if keys:
            read = _reader_of(signatures, str(parsed))
            trust.need_signed(read, keys, index.root_digest, str(parsed))
        with StoreWriter(path) as writer:
            _publish(writer, streams)
        taken = tuple(name for name in held if target in (None, name))
        return Received(index.root_digest, manifest_digest, taken, writer.files_written)


def pull_folder(
    files: RemoteFiles,
    path: Path,
    target: str | None = None,
    progress: ProgressCallback = silent,
) -> Received:
    """Add the store at a URL, or one target's share of it, to the store at ``path``.

    Raises:
        NotInStoreError: it holds nothing for the target.
        RemoteError: something cannot be read.
    """
    reader = StoreReader(files.mirror, whole=files.url, files=files)
    index = files.index
    if target is None:
        wanted = index.paths
        files.need(wanted, progress)
        targets = reader.targets()
    else:
        documents = [path for path in index.documents if _target_of(path) == target]
        if not documents:
            held = sorted({name for name in map(_target_of, index.documents) if name is not None})
            raise NotInStoreError(
                f"{files.url} holds nothing for target {target!r}{did_you_mean(target, held)}: it "
                f"has {', '.join(held)}"
            )
        files.need(documents)
        keys = [key for holder, key in reader.pointers() if holder == target]
        needed = {path for key in keys for path in plan_paths(reader, target, key)}
        files.need(needed, progress)
        wanted, targets = [*documents, *needed], [target]
    with StoreWriter(path) as writer:
        for relative in publish_order(wanted):
            writer.put_file(relative, files.read(relative))
    return Received(index.root_digest, "", tuple(targets), writer.files_written)


# What follows is not part of the interface.


@dataclass(frozen=True, slots=True)
class _Described:
    digest: str
    size: int
    media_type: str
    target: str  # empty for what targets share, and where a tool has dropped the annotation


@dataclass(frozen=True, slots=True)
class _Stream:
    """The bytes of a layer, which were compared with its digest."""

    stream: IO[bytes]
    media_type: str
    where: str


def _layers(manifest: dict[str, Any], where: str) -> list[_Described]:
    """The layers of a manifest, which must be those that `push_image` makes."""
    found = []
    for layer in manifest.get("layers") or ():
        match layer:
            case {"mediaType": str(kind), "digest": str(digest), "size": int(size)} if kind in (
                image.LAYER_TYPE,
                image.GZIP_LAYER_TYPE,
            ) and layout.is_digest(digest.removeprefix("sha256:")):
                target = (layer.get("annotations") or {}).get(image.TARGET, "")
                found.append(_Described(digest, size, kind, str(target)))
            case _:
                raise RemoteError(f"{where} is no image of a store: it has other layers", 1)
    if not found:
        raise RemoteError(f"{where} is no image of a store: it has no layers", 1)
    return found


def _files(streams: Sequence[_Stream]) -> Iterator[tuple[str, bytes, str]]:
    for each in streams:
        each.stream.seek(0)
        for path, data in image.entries(each.stream, each.media_type, each.where):
            yield path, data, each.where


def _checked(streams: Sequence[_Stream], name: str, whole: bool) -> tuple[Index, dict[str, bytes]]:
    """The index and the signatures of layers of which every file was compared with the index."""
    index = None
    for path, data, where in _files(streams):
        if path == layout.INDEX_FILE:
            try:
                index = parse_index(data)
            except ValueError as error:
                raise RemoteError(f"{where}: {path} is damaged: {error}", 1) from None
    if index is None:
        raise RemoteError(f"{name} is no image of a store: it has no {layout.INDEX_FILE}", 1)
    signatures, seen = {}, set()
    for path, data, where in _files(streams):
        fault = layout.file_fault(path, data)
        part = index.part(path)
        if path.startswith("signatures/"):
            signatures[path] = data
        elif path not in (layout.STORE_FILE, layout.INDEX_FILE) and fault is None:
            seen.add(path)
            if part is None or not part.holds(data):
                fault = "the index lists it otherwise"
        if fault:
            raise RemoteError(f"{where}: {path} is damaged: {fault}", 1)
    missing = {*index.documents, *index.blobs} - seen
    if whole and missing:
        raise RemoteError(f"{name} lacks {sorted(missing)[0]}, which its index lists", 1)
    return index, signatures


def _publish(writer: StoreWriter, streams: Sequence[_Stream]) -> None:
    """Blobs before what names them; a layer at a time would not do, as layers share kernels."""
    order = publish_order(path for path, _, _ in _files(streams))
    for kind in dict.fromkeys(_kind(path) for path in order):
        for path, data, _ in _files(streams):
            # The index is of the whole image: with other things in the store it would be wrong.
            if _kind(path) == kind and kind not in ("index", "store"):
                writer.put_file(path, data)


def _kind(path: str) -> str:
    return (layout.classify(path) or ("",))[0]


def _target_of(path: str) -> str | None:
    kind, ids = layout.classify(path) or ("", ())
    return ids[0] if kind in ("pointer", "class", "name") else None


def _reader_of(signatures: Mapping[str, bytes], where: str) -> Any:
    def read(key_id: str) -> dict[str, Any]:
        data = signatures.get(layout.signature_path(key_id))
        if data is None:
            raise NotInStoreError(f"{where} has no signature of key {key_id}")
        return layout.parse_document(data)

    return read
