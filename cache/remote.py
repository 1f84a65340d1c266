"""Reading a store that lies at a URL, by way of a folder that holds what was fetched of it.

The folder, the *mirror*, is a store of its own in the user's cache and goes by the root digest:
whatever lies in it belongs to that store, from whichever URL it came. The root digest is not of the
list of blobs in its index: where a pinned store lacks something, its URL is asked for the index
again. The index is fetched first and compared with the root digest that is asked for and with a
signature; a file is fetched when it is read, compared with the digest that the index has for it,
and only then published in the mirror.
Nothing else comes from the URL. Offline nothing is asked of anybody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cudnn_aot.cache import layout, trust
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.files import Folder, Status, StoreFiles, tree_of
from cudnn_aot.cache.index import MAX_INDEX_BYTES, Index, Part, parse_index
from cudnn_aot.cache.output import replace
from cudnn_aot.cache.place import cache_store
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.session import refused
from cudnn_aot.cache.transfer import Mismatch, Retry, fetch, is_offline, redacted
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotInStoreError,
    PinError,
    RemoteError,
    UsageError,
)

DEFAULT_RETRY = Retry()
_THREADS = 8  # requests at a time
_HTTP = ("http", "https")
_PIECE_BYTES = 1 << 16
_MAX_SIGNATURE_BYTES = 64 << 10  # it has some hundred


class FileSystem:
    """The folder at a URL, by way of fsspec; every call is tried again as far as that helps.

    Attributes:
        name: the URL, for messages, without secrets.
        is_local: whether it is a folder of this machine, or mounted.

    Raises:
        UsageError: there is no such kind of URL, it has a query, or it is an image.
        RemoteError: a module that it needs is not installed.
    """

    def __init__(self, url: str, retry: Retry | None = None) -> None:
        self.retry = retry or DEFAULT_RETRY
        self.name = redacted(url)
        if any(mark in url for mark in "?#"):
            raise UsageError(
                f"bad URL of a store: got {self.name!r} with a query, want the URL of a folder"
            )
        if url.lower().startswith("oci://"):  # fsspec has another meaning for it
            raise UsageError(
                f"bad URL of a store: got {self.name!r}, an image, which is no folder: "
                "`cudnn-aot pull` it into one"
            )
        self._url = url
        self._is_http = url.split(":", 1)[0].lower() in _HTTP
        try:
            self._open()
        except ImportError as error:
            lacking = " ".join(redacted(str(error)).split()).rstrip(".")
            raise RemoteError(
                f"{self.name} needs a module that is not installed ({lacking}): pip install "
                "'cudnn-aot[remote]', or 'cudnn-aot[s3]' for s3://"
            ) from None
        except ValueError as error:
            raise UsageError(f"bad URL of a store {self.name!r}: {redacted(str(error))}") from None

    def read(self, relative: str, want: Part | None = None) -> bytes:
        """The bytes of a file, which are those wanted.

        Raises:
            FileNotFoundError: there is none.
            RemoteError: it cannot be read, or stays another.
        """

        def ask(seconds: float) -> bytes:
            limit_s = self.retry.limit_s(seconds, want.size if want else 0)
            data = self._bytes(relative, limit_s, want.size if want else _MAX_SIGNATURE_BYTES)
            limit_bytes = want.size if want else _MAX_SIGNATURE_BYTES
            if len(data) > limit_bytes:
                raise Mismatch(f"it has more than {limit_bytes} bytes")
            if want is not None and len(data) != want.size:
                raise Mismatch(f"it has {len(data)} bytes, want {want.size}")
            if want is not None and (got := sha256_hex(data)) != want.sha256:
                raise Mismatch(f"its bytes hash to {got}, want {want.sha256}")
            return data

        return fetch(f"cannot read {self.name}/{relative}", self.retry, ask)

    def read_index(self) -> Index:
        """The index there, whole.

        Raises:
            NotAStoreError: there is none.
            RemoteError: it cannot be read.
        """

        def ask(seconds: float) -> Index:
            data = self._bytes(layout.INDEX_FILE, seconds, MAX_INDEX_BYTES)
            if len(data) > MAX_INDEX_BYTES:
                raise RemoteError(
                    f"{self.name}/{layout.INDEX_FILE} has more than {MAX_INDEX_BYTES} bytes", 1
                )
            try:
                return parse_index(data)
            except ValueError as error:
                raise Mismatch(f"it is no index: {error}") from None

        what = f"cannot read {self.name}/{layout.INDEX_FILE}"
        try:
            return fetch(what, self.retry, ask)
        except FileNotFoundError:
            raise NotAStoreError(
                f"{self.name} is not a store: it has no {layout.INDEX_FILE}, which "
                "`cudnn-aot push` writes"
            ) from None

    def write(self, relative: str, data: bytes) -> bool:
        """Put a file there; False where a folder of this machine has it, byte for byte.

        In such a folder processes may have mapped what lies there: it is replaced, never changed.

        Raises:
            UsageError: nothing can be written to such a URL.
            RemoteError: it cannot be written.
        """
        path = self._path(relative)

        def ask(seconds: float) -> bool:
            if self.is_local:
                return _replace_local(Path(path), data)
            if not self._system.async_impl:
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._call(self.retry.limit_s(seconds, len(data)), "pipe_file", path, data)
            return True

        if self._is_http:
            raise UsageError(f"{self.name}: nothing can be written over HTTP: push to its server")
        try:
            return fetch(f"cannot write {self.name}/{relative}", self.retry, ask)
        except FileNotFoundError as error:
            raise RemoteError(
                f"cannot write {self.name}/{relative}: {redacted(str(error)) or 'not found'}"
            ) from None

    def _path(self, relative: str) -> str:
        # Names are percent-encoded once more: the server decodes one layer to find the file.
        return f"{self._root}/{quote(relative) if self._is_http else relative}"

    def _bytes(self, relative: str, seconds: float, limit_bytes: int) -> bytes:
        """The file, or what it begins with: one byte more than the limit, if it has as many."""
        path, end = self._path(relative), limit_bytes + 1
        self._open_here()
        if self._is_http:
            from fsspec.asyn import sync

            return bytes(sync(self._system.loop, self._http_bytes, path, end, timeout=seconds))
        # A range of one of its objects S3 gives in full; a range of an empty one is an error there.
        bounds = {} if self._system.async_impl else {"end": end}
        timed = {"timeout": seconds} if self._system.async_impl else {}
        return bytes(self._system.cat_file(path, **bounds, **timed))

    async def _http_bytes(self, path: str, end: int) -> bytearray:
        """As fsspec's own reading, which has no bound, neither of the body nor of unpacking it."""
        session = await self._system.set_session()
        data = bytearray()
        url = self._system.encode_url(path)
        async with session.get(url, **self._system.kwargs) as answer:
            self._system._raise_not_found_for_status(answer, path)
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                data += piece
                if len(data) >= end:
                    answer.close()
                    break
        return data[:end]

    def _call(self, seconds: float, function: str, *args: Any) -> Any:
        self._open_here()
        call = getattr(self._system, function)
        return call(*args, timeout=seconds) if self._system.async_impl else call(*args)

    def _open_here(self) -> None:
        if self._pid != os.getpid():  # fsspec's own thread is not in a forked child
            self._open()

    def _open(self) -> None:
        import fsspec

        client = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"}}
        options = {"encoded": True, "client_kwargs": client} if self._is_http else {}
        self._system, root = fsspec.core.url_to_fs(self._url, **options)
        self.is_local = "file" in self._system.protocol
        self._root = root.rstrip("/")
        self._pid = os.getpid()


def _replace_local(path: Path, data: bytes) -> bool:
    """Let a file be there with these bytes, synced; False where it is."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, data, sync=True)
    return True


class RemoteFiles(StoreFiles):
    """The files of a store at a URL, as `files.Folder` has those of a folder.

    Attributes:
        url: for messages, without secrets.
        mirror: the folder in which files lie once they were read.
        index: what there is.
    """

    def __init__(
        self,
        url: str,
        index: Index,
        mirror: Path,
        source: FileSystem | None,
        is_from_source: bool = True,
    ) -> None:
        self.url = redacted(url)
        self.index = index
        self.mirror = mirror
        self._source = source  # None is offline
        # What a mirror has of blobs may be of another URL: the root digest is not of them.
        self._is_from_source = is_from_source or source is None
        self._folder = Folder(mirror)
        self._whole: set[str] = set()  # that this process has compared
        self._tree = tree_of([layout.STORE_FILE, *index.paths])
        self._lock = threading.Lock()

    def read(self, relative: str) -> bytes:
        if relative == layout.STORE_FILE:
            return layout.STORE_BYTES
        part = self._part(relative)
        if part is None:
            raise FileNotFoundError(relative)
        data = self._local(relative, part)
        return self._fetch([(relative, part)])[0] if data is None else data

    def status(self, relative: str) -> Status | None:
        part = self._part(relative)
        if part is not None or relative == layout.STORE_FILE:
            return Status(True, False, part.size if part else len(layout.STORE_BYTES))
        return Status(False, True, 0) if relative in self._tree else None

    def entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        if folder not in self._tree:
            raise FileNotFoundError(folder)
        return sorted(self._tree[folder].items())

    def need(self, paths: Iterable[str], progress: ProgressCallback = silent) -> None:
        """Fetch those of these files that the mirror has not whole; those of no store are left out.

        Raises:
            RemoteError: one cannot be had; the others were fetched.
        """
        parts = [(path, part) for path in paths if (part := self._part(path)) is not None]
        missing = [
            (path, part)
            for path, part in dict(parts).items()
            if path not in self._whole and self._local(path, part) is None
        ]
        if missing:
            self._fetch(missing, progress)

    def refresh(self) -> None:
        """Take the index of the source, once, for that of the mirror, if it has this root digest.

        Raises:
            RemoteError: it cannot be read.
        """
        with self._lock:
            if self._is_from_source or self._source is None:
                return
            try:
                found = self._source.read_index()
            except NotAStoreError:  # what is asked for next says what is there
                found = self.index
            if found.root_digest == self.index.root_digest and found != self.index:
                self.index = found
                self._tree = tree_of([layout.STORE_FILE, *found.paths])
                with StoreWriter(self.mirror) as writer:
                    writer.put_file(layout.INDEX_FILE, found.to_bytes())
            self._is_from_source = True

    # What follows is not part of the interface.

    def _part(self, relative: str) -> Part | None:
        part = self.index.part(relative)
        if part is None and not self._is_from_source and relative.startswith("blobs/"):
            self.refresh()
            part = self.index.part(relative)
        return part

    def _local(self, relative: str, part: Part) -> bytes | None:
        try:
            data = self._folder.read(relative)
        except OSError:
            return None
        if not part.holds(data):
            return None
        self._whole.add(relative)
        return data

    def _fetch(
        self, parts: Sequence[tuple[str, Part]], progress: ProgressCallback = silent
    ) -> list[bytes]:
        source = self._source
        if source is None:
            raise RemoteError(
                f"{self.url}/{parts[0][0]} was not fetched yet and this is offline: "
                "unset CUDNN_AOT_OFFLINE, or fetch it before"
            )
        if not self._is_from_source:
            self.refresh()
            parts = [(path, self.index.part(path) or part) for path, part in parts]
        with StoreWriter(self.mirror) as writer:

            def get(entry: tuple[str, Part]) -> bytes:
                relative, part = entry
                try:
                    data = source.read(relative, part)
                except FileNotFoundError:
                    raise RemoteError(
                        f"{self.url}/{relative} is not there, though the index lists it", 1
                    ) from None
                try:
                    writer.put_file(relative, data)
                except DamagedError as error:  # what was pushed was no store
                    raise RemoteError(f"{self.url}: {error}", 1) from None
                self._whole.add(relative)
                return data

            if len(parts) == 1:
                return [get(parts[0])]
            with ThreadPoolExecutor(min(_THREADS, len(parts))) as threads:
                pending = [threads.submit(get, entry) for entry in parts]
                fetched = []
                for number, (each, (path, _)) in enumerate(zip(pending, parts, strict=True)):
                    fetched.append(each.result())
                    progress(Event(Stage.RECEIVE, number + 1, len(parts), path))
                return fetched


def open_remote(
    url: str,
    *,
    digest: str = "",
    keys: Sequence[trust.PublicKey] = (),
    offline: bool | None = None,
    retry: Retry | None = None,
    cache: Path | None = None,
) -> RemoteFiles:
    """The store at a URL, its index compared with what is asked of it.

    Args:
        digest: the root digest that it must have; any where that is empty.
        keys: keys of which one must have signed it; any store where there are none.
        offline: whether to take what was fetched before and nothing else; by default what
            ``CUDNN_AOT_OFFLINE`` says.
        cache: a store of the user's, in which the mirrors lie under ``.remotes``; by default that
            of `cache_store`.

    Raises:
        NotAStoreError: no store was pushed there.
        RemoteError: it cannot be reached; offline, it was never read.
        PinError: it has another root digest.
        TrustError: none of the keys has signed it.
        UsageError: such a URL cannot be read.
    """
    cache = cache or cache_store()
    mirrors = cache / layout.REMOTES
    named = redacted(url).rstrip("/").encode("utf-8", "surrogateescape")  # of file:// any bytes
    seen = mirrors / f"{sha256_hex(named)}.seen"
    source = None if (is_offline() if offline is None else offline) else FileSystem(url, retry)
    if digest and not layout.is_digest(digest):
        raise UsageError(f"bad root digest: got {digest!r}, want 64 hex digits")
    index = None
    if digest:
        index = _known_index(mirrors / digest, digest)
    is_from_source = index is None
    if index is None and source is None:
        last = digest or _last_seen(seen)
        index = _known_index(mirrors / last, last) if last else None
        if index is None:
            raise RemoteError(
                f"{redacted(url)} was not read yet and this is offline: unset CUDNN_AOT_OFFLINE, "
                "or read it before"
            )
    if index is None:
        assert source is not None
        index = source.read_index()
    root_digest = index.root_digest
    if digest and root_digest != digest:
        raise PinError(
            f"store {redacted(url)} is not the pinned one: got root digest {root_digest}, want "
            f"{digest}"
        )
    mirror = mirrors / root_digest
    signatures: dict[str, bytes] = {}
    if keys:
        read = _signatures(mirror, source, signatures)
        trust.need_signed(read, keys, root_digest, redacted(url))
    _publish_index(cache, mirror, index, signatures)
    if source is not None and _last_seen(seen) != root_digest:
        _note_seen(seen, root_digest)
    return RemoteFiles(url, index, mirror, source, is_from_source)


def remote_reader(url: str, *, whole: str = "", **options: Any) -> StoreReader:
    """The store at a URL for reading; options and errors are those of `open_remote`.

    ``whole`` is what messages call all that is looked in.
    """
    files = open_remote(url, **options)
    return StoreReader(files.mirror, whole=whole or files.url, files=files)


# What follows is not part of the interface.


def _known_index(mirror: Path, root_digest: str) -> Index | None:
    try:
        index = parse_index(Folder(mirror).read(layout.INDEX_FILE))
    except (OSError, ValueError):
        return None
    return index if index.root_digest == root_digest else None


def _publish_index(
    cache: Path, mirror: Path, index: Index, signatures: Mapping[str, bytes]
) -> None:
    if _known_index(mirror, index.root_digest) == index and not signatures:
        return
    with StoreWriter(cache):  # whoever compiles in process adds to it too: it is a store at once
        pass
    with StoreWriter(mirror) as writer:
        writer.put_file(layout.INDEX_FILE, index.to_bytes())
        for relative, data in signatures.items():
            writer.put_file(relative, data)


def _signatures(mirror: Path, source: FileSystem | None, found: dict[str, bytes]) -> Any:
    """Reads the signature of a key from the mirror, else from the source into ``found``."""

    def read(key_id: str) -> dict[str, Any]:
        relative = layout.signature_path(key_id)
        try:
            return layout.parse_document(Folder(mirror).read(relative))
        except (OSError, ValueError):
            pass
        if source is None:
            raise NotInStoreError(f"signature of key {key_id} was not fetched")
        try:
            data = source.read(relative)
        except FileNotFoundError:
            raise NotInStoreError(f"signature of key {key_id} is not there") from None
        try:
            document = layout.parse_document(data)
        except ValueError as error:
            raise DamagedError(f"{source.name}/{relative} is damaged: {error}") from None
        found[relative] = data
        return document

    return read


def _last_seen(seen: Path) -> str:
    try:
        text = seen.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if layout.is_digest(text) else ""


def _note_seen(seen: Path, root_digest: str) -> None:
    stage = seen.with_name(f"{seen.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        stage.write_text(root_digest + "\n", encoding="ascii")
        stage.replace(seen)
    except OSError as error:
        raise refused(seen, error) from None


__all__ = ["FileSystem", "RemoteFiles", "open_remote", "remote_reader"]
