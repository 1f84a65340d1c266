"""Moving a whole store to and from another place: a URL of a folder, or an image of a registry."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cudnn_aot.cache import image, layout, trust
from cudnn_aot.cache.contents import (
    Contents,
    contents_of,
    need_whole,
    plan_paths,
    pointer_paths,
)
from cudnn_aot.cache.files import Folder, Selection, StoreFiles
from cudnn_aot.cache.index import MAX_INDEX_BYTES, Index, is_size, parse_index
from cudnn_aot.cache.merge import Prefer, merge
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
)

_MAX_SIGNATURE_BYTES = 64 << 10  # it has some hundred


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
    """What a pull did. ``digest`` is that of the manifest, empty for a URL.

    Attributes:
        root_digest: of the store that was written to, as it is now: what a pin of it names.
        source_root_digest: of the whole store that was pulled from.
        conflicts, failures: as `merge.Merged` has them.
    """

    root_digest: str
    source_root_digest: str
    digest: str
    targets: tuple[str, ...]
    files_written: int
    conflicts: tuple[str, ...]
    failures: tuple[str, ...]


def push_folder(
    reader: StoreReader,
    url: str,
    retry: Retry | None = None,
    progress: ProgressCallback = silent,
) -> Sent:
    """Copy a store to the folder at a URL; what is there already is not sent again.

    The index is written last: readers see the old store or the new one.

    Raises:
        DamagedError: the store has faults; nothing was sent.
        RemoteError: something cannot be written.
    """
    contents = _whole_contents(reader, progress)
    there = FileSystem(url, retry)
    try:
        known = there.read_index()
    except (NotAStoreError, RemoteError):  # what lies there as the index is replaced
        known = Index({}, {}, {})
    sent = sent_bytes = 0
    for number, path in enumerate(contents.files):
        progress(Event(Stage.SEND, number, len(contents.files), path))
        part = contents.index.part(path)
        if part is not None and known.part(path) == part and not there.is_local:
            continue  # in a folder here, looking is as quick
        data = reader.read(path)
        if fault := layout.file_fault(path, data):
            raise DamagedError(f"{reader.path / path} is damaged: {fault}")
        if there.write(path, data):
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
        UsageError: that is no reference, or the store fits no image; nothing was sent.
        DamagedError: the store has faults; nothing was sent.
        RemoteError: the registry does not take it.
    """
    parsed = parse_reference(reference)
    contents = _whole_contents(reader, progress)
    architecture = image.architecture_of(contents)
    index = contents.index.to_bytes()
    registry = Registry(parsed, plain_http, retry)
    sent = sent_bytes = 0

    def put(
        media_type: str, blob: IO[bytes], annotations: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        nonlocal sent, sent_bytes
        described: dict[str, Any] = image.descriptor(media_type, blob, annotations)
        if not registry.has_blob(described["digest"]):
            registry.put_blob(described["digest"], blob)
            sent, sent_bytes = sent + 1, sent_bytes + described["size"]
        return described

    layers = []
    parts = image.layers_of(contents)
    for number, layer in enumerate(parts):
        progress(Event(Stage.SEND, number, len(parts), layer.target))
        with tempfile.TemporaryFile() as file:  # a layer may be larger than memory
            layer.write(reader, index, file)
            layers.append(put(image.LAYER_TYPE, file, {image.TARGET: layer.target}))
    diff_ids = [layer["digest"] for layer in layers]
    config = put(image.CONFIG_TYPE, io.BytesIO(image.config_bytes(architecture, diff_ids)))
    manifest = image.manifest_bytes(contents, config, layers)
    described = image.descriptor(image.MANIFEST_TYPE, io.BytesIO(manifest))
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
    prefer: Prefer | None = None,
    plain_http: bool = False,
    retry: Retry | None = None,
    progress: ProgressCallback = silent,
) -> Received:
    """Add the store in an image, or one target's share of it, to the store at ``path``, as `merge`.

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
    name = str(parsed)
    registry = Registry(parsed, plain_http, retry)
    manifest, manifest_digest = registry.manifest(parsed.place)
    layers = _layers(manifest, name)
    held = [layer.target for layer in layers]
    # Tools drop annotations: then any layer may have something of the target.
    is_split = target is not None and None not in held
    if is_split and target not in held:
        raise NotInStoreError(_lacking(name, target, filter(None, held)))
    with ExitStack() as stack:
        streams = []
        for number, layer in enumerate(layers):
            progress(Event(Stage.RECEIVE, number, len(layers), layer.target or ""))
            if not is_split or layer.target in (target, ""):
                stream = stack.enter_context(tempfile.TemporaryFile())
                registry.read_blob(layer.digest, layer.size, stream)
                streams.append(_Stream(stream, layer.media_type, f"{name} layer {layer.digest}"))
        index, signatures = _index_of(streams, name, [key.id for key in keys])
        if digest and digest != index.root_digest:
            raise PinError(
                f"{name} is not the pinned store: got root digest {index.root_digest}, want "
                f"{digest}"
            )
        if keys:
            trust.need_signed(_reader_of(signatures, name), keys, index.root_digest, name)
        stage = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _unpack(streams, index, stage)
        files = Folder(stage)
        reader = StoreReader(stage, whole=name, files=files)
        taken = _taken(reader, index, target, name)
        source = _selected(reader, files, taken)
        return _received(source, path, taken, index, manifest_digest, prefer, progress)


def pull_folder(
    files: RemoteFiles,
    path: Path,
    target: str | None = None,
    progress: ProgressCallback = silent,
    prefer: Prefer | None = None,
) -> Received:
    """Add the store at a URL, or one target's share of it, to the store at ``path``, as `merge`.

    Raises:
        NotInStoreError: it holds nothing for the target.
        RemoteError: something cannot be read, or the index lacks what a document names.
    """
    reader = StoreReader(files.mirror, whole=files.url, files=files)
    files.refresh()
    index = files.index
    files.need(index.paths if target is None else _documents(index, target), progress)
    if target is not None:
        records = (reader.pointer(*place) for place in _pointers(index, target))
        files.need((blob for pointer in records for blob in pointer_paths(pointer)), progress)
    taken = _taken(reader, index, target, files.url)
    files.need(taken.paths, progress)
    source = _selected(reader, files, taken)
    return _received(source, path, taken, index, "", prefer, progress)


# What follows is not part of the interface.


def _whole_contents(reader: StoreReader, progress: ProgressCallback) -> Contents:
    """What a store consists of, every byte checked; the list of what was pushed is made anew."""
    need_whole(reader, "pushed", but=(layout.INDEX_FILE,), progress=progress)
    return contents_of(reader)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is taken of a store, and whose plans that is."""

    paths: tuple[str, ...]
    targets: tuple[str, ...]


def _taken(reader: StoreReader, index: Index, target: str | None, where: str) -> _Taken:
    """All of a store, or a target's share of it, as its documents have it.

    The root digest is of the documents alone: what else an index lists is not believed.
    """
    if target is not None and target not in index.targets:
        raise NotInStoreError(_lacking(where, target, index.targets))
    try:
        if target is None:
            blobs = contents_of(reader).index.blobs
            wanted = [*index.documents, *blobs, *index.signatures]
            targets = tuple(index.targets)
        else:
            places = _pointers(index, target)
            needed = {path for place in places for path in plan_paths(reader, *place)}
            wanted, targets = [*_documents(index, target), *needed], (target,)
        for path in wanted:
            if reader.size(path) is None:
                raise DamagedError(f"{path} is missing")
    except (DamagedError, NotInStoreError) as error:
        fault = str(error).removeprefix(f"{reader.path}/")
        raise RemoteError(f"{where} is no whole store: {fault}", 1) from None
    return _Taken(tuple(wanted), targets)


def _selected(reader: StoreReader, files: StoreFiles, taken: _Taken) -> StoreReader:
    """The same store, with nothing in it but what is taken."""
    selected = Selection(files, [layout.STORE_FILE, *taken.paths])
    return StoreReader(reader.path, whole=reader.where, files=selected)


def _received(
    source: StoreReader,
    path: Path,
    taken: _Taken,
    index: Index,
    digest: str,
    prefer: Prefer | None,
    progress: ProgressCallback,
) -> Received:
    did = merge([source], path, prefer, progress)
    written = did.files_written
    made = StoreReader(path).root_digest()
    signatures = [each for each in taken.paths if each in index.signatures]
    if signatures and made == index.root_digest:  # else they are not of what the store is now
        with StoreWriter(path) as writer:
            for relative in signatures:
                writer.put_file(relative, source.read(relative))
        written += writer.files_written
    return Received(
        made,
        index.root_digest,
        digest,
        taken.targets,
        written,
        tuple(did.conflicts),
        tuple(did.failures),
    )


def _documents(index: Index, target: str) -> list[str]:
    return [path for path in index.documents if _target_of(path) == target]


def _pointers(index: Index, target: str) -> list[tuple[str, str]]:
    """Target and graph key of each pointer of a target."""
    known = (layout.classify(path) or ("", ()) for path in _documents(index, target))
    return [(ids[0], ids[1]) for kind, ids in known if kind == "pointer"]


def _lacking(where: str, target: str | None, held: Iterable[str]) -> str:
    return f"{where} holds nothing for target {target!r}: it has {', '.join(held) or 'none'}"


@dataclass(frozen=True, slots=True)
class _Described:
    digest: str
    size: int
    media_type: str
    target: str | None  # empty for what targets share, None where a tool has dropped the annotation


@dataclass(frozen=True, slots=True)
class _Stream:
    """The bytes of a layer, which were compared with its digest."""

    stream: IO[bytes]
    media_type: str
    where: str


def _layers(manifest: dict[str, Any], where: str) -> list[_Described]:
    """The layers of a manifest, which must be those that `push_image` makes."""
    listed = manifest.get("layers")
    if not isinstance(listed, list):
        raise RemoteError(f"{where} is no image of a store: bad layers, want a list", 1)
    found = []
    for number, layer in enumerate(listed):
        match layer:
            case {"mediaType": str(kind), "digest": str(digest), "size": size} if (
                kind in (image.LAYER_TYPE, image.GZIP_LAYER_TYPE)
                and digest.startswith("sha256:")
                and layout.is_digest(digest.removeprefix("sha256:"))
                and is_size(size)
            ):
                annotations = layer.get("annotations") or {}
                target = annotations.get(image.TARGET) if isinstance(annotations, dict) else 0
                if target is None or isinstance(target, str):
                    found.append(_Described(digest, size, kind, target))
                    continue
        raise RemoteError(f"{where} is no image of a store: bad layers: {number} is another", 1)
    if not found:
        raise RemoteError(f"{where} is no image of a store: it has no layers", 1)
    return found


def _files(streams: Sequence[_Stream]) -> Iterator[tuple[str, int, Callable[[], bytes], str]]:
    for each in streams:
        each.stream.seek(0)
        for path, size, read in image.entries(each.stream, each.media_type, each.where):
            yield path, size, read, each.where


def _index_of(
    streams: Sequence[_Stream], name: str, key_ids: Sequence[str]
) -> tuple[Index, dict[str, bytes]]:
    """The index and the signatures of these keys; no other file is read for it."""
    asked = {layout.signature_path(key_id) for key_id in key_ids}
    index, signatures = None, {}
    for path, size, read, where in _files(streams):
        if path == layout.INDEX_FILE and index is None:
            if size > MAX_INDEX_BYTES:
                raise RemoteError(f"{where}: {path} has {size} bytes, want {MAX_INDEX_BYTES}", 1)
            try:
                index = parse_index(read())
            except ValueError as error:
                raise RemoteError(f"{where}: {path} is damaged: {error}", 1) from None
        elif path in asked and size <= _MAX_SIGNATURE_BYTES:
            signatures[path] = read()
    if index is None:
        raise RemoteError(f"{name} is no image of a store: it has no {layout.INDEX_FILE}", 1)
    return index, signatures


def _unpack(streams: Sequence[_Stream], index: Index, stage: Path) -> None:
    """Write the files into a folder, each compared with the index."""
    (stage / layout.STORE_FILE).write_bytes(layout.STORE_BYTES)
    for path, size, read, where in _files(streams):
        part = index.part(path)
        if path in (layout.STORE_FILE, layout.INDEX_FILE):
            continue
        # The size first: what the index does not have is not read.
        if part is None or part.size != size or not part.holds(data := read()):
            raise RemoteError(f"{where}: {path} is damaged: the index lists it otherwise", 1)
        if fault := layout.file_fault(path, data):
            raise RemoteError(f"{where}: {path} is damaged: {fault}", 1)
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_bytes(data)


def _target_of(path: str) -> str | None:
    kind, ids = layout.classify(path) or ("", ())
    return ids[0] if kind in ("pointer", "class", "name") else None


def _reader_of(signatures: Mapping[str, bytes], where: str) -> Any:
    def read(key_id: str) -> dict[str, Any]:
        data = signatures.get(layout.signature_path(key_id))
        if data is None:
            raise NotInStoreError(f"{where} has no signature of key {key_id}")
        try:
            return layout.parse_document(data)
        except ValueError as error:
            raise DamagedError(f"signature of key {key_id} is damaged: {error}") from None

    return read
