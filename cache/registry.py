"""The OCI distribution API: blobs and manifests of one repository of a registry.

Every request has a limit of time and is tried again as far as that helps. What comes is compared
with its digest before anybody sees it. Credentials are those of the docker configuration, go to the
registry and the token server it names, and are sent over TLS unless plain HTTP was asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.image import MANIFEST_TYPE
from cudnn_aot.cache.transfer import Mismatch, Retry, fetch, redacted
from cudnn_aot.errors import NotInStoreError, RemoteError, StoreError, UsageError

_T = TypeVar("_T")

_NAME = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB = ("registry-1.docker.io", "https://index.docker.io/v1/")
_MAX_MANIFEST_BYTES = 4 << 20  # what the specification asks registries to take
_PIECE_BYTES = 1 << 20
_AS_IT_IS = {"Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry: ``host/name:tag``, ``host/name@sha256:…`` or both."""

    host: str
    name: str
    tag: str
    digest: str

    @property
    def place(self) -> str:
        """What a manifest is asked for by."""
        return self.digest or self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """A reference as docker writes it, ``latest`` and docker.io being understood.

    Raises:
        UsageError: it is none.
    """
    rest, at, digest = text.removeprefix("oci://").partition("@")
    host, slash, name = rest.partition("/")
    if not slash or not (set(host) & {".", ":"} or host == "localhost"):
        host, name = "docker.io", rest if slash else f"library/{rest}"
    name, colon, tag = name.partition(":")
    if (
        not _NAME.fullmatch(name)
        or at
        and not _DIGEST.fullmatch(digest)
        or colon
        and not _TAG.fullmatch(tag)
        or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?|\[[0-9a-fA-F:]+\](:\d+)?", host)
    ):
        raise UsageError(
            f"bad image {redacted(text)!r}: want HOST[:PORT]/NAME[:TAG][@sha256:DIGEST], all of "
            "NAME in lower case"
        )
    return Reference(host, name, tag or ("" if digest else "latest"), digest)


class Registry:
    """One repository of a registry.

    Args:
        plain_http: HTTP without TLS; for a registry of this machine that is the default.

    Raises:
        StoreError: the module requests is not installed.
    """

    def __init__(
        self, reference: Reference, plain_http: bool = False, retry: Retry | None = None
    ) -> None:
        try:
            import requests
        except ModuleNotFoundError:
            raise StoreError(
                "registries need the module requests: pip install 'cudnn-aot[remote]'"
            ) from None
        host = reference.host
        is_local = re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", host) is not None
        self._is_plain = plain_http or is_local
        address = _DOCKER_HUB[0] if host == "docker.io" else host
        scheme = "http" if self._is_plain else "https"
        self._base = f"{scheme}://{address}/v2/{reference.name}"
        self._name = reference.name
        self._retry = retry or Retry()
        self._session = requests.Session()
        self._session.trust_env = True  # proxies
        self._session.auth = _no_authentication  # else requests would read ~/.netrc
        self._login = _login(host)
        self._token = ""

    def has_blob(self, digest: str) -> bool:
        def ask(seconds: float) -> bool:
            answer = self._send("HEAD", f"{self._base}/blobs/{digest}", seconds)
            if answer.status_code != 404:
                answer.raise_for_status()
            return answer.status_code == 200

        return self._fetch(f"cannot ask for {self._base}/blobs/{digest}", ask)

    def put_blob(self, digest: str, blob: IO[bytes]) -> None:
        """Upload a blob in one request, as it is read."""

        def ask(seconds: float) -> None:
            opened = self._send("POST", f"{self._base}/blobs/uploads/", seconds)
            opened.raise_for_status()
            place = urljoin(f"{self._base}/", opened.headers.get("Location", ""))
            place += f"{'&' if urlsplit(place).query else '?'}digest={digest}"
            kind = {"Content-Type": "application/octet-stream"}
            self._send("PUT", place, seconds, headers=kind, data=blob).raise_for_status()

        self._fetch(f"cannot upload {self._base}/blobs/{digest}", ask)

    def put_manifest(self, place: str, data: bytes) -> None:
        """Publish a manifest under a tag or its digest."""

        def ask(seconds: float) -> None:
            url = f"{self._base}/manifests/{place}"
            answer = self._send(
                "PUT", url, seconds, headers={"Content-Type": MANIFEST_TYPE}, data=data
            )
            answer.raise_for_status()
            got = answer.headers.get("Docker-Content-Digest", "")
            if got and got != f"sha256:{sha256_hex(data)}":
                raise Mismatch(f"the registry has digest {got}, want sha256:{sha256_hex(data)}")

        self._fetch(f"cannot write {self._base}/manifests/{place}", ask)

    def manifest(self, place: str) -> tuple[dict[str, Any], str]:
        """The image manifest under a tag or digest, and its digest, which was compared."""

        def ask(seconds: float) -> bytes:
            url = f"{self._base}/manifests/{place}"
            answer = self._send("GET", url, seconds, headers={"Accept": MANIFEST_TYPE}, stream=True)
            with answer:
                answer.raise_for_status()
                data = _body(answer, seconds, url)
            got = f"sha256:{sha256_hex(data)}"
            said = answer.headers.get("Docker-Content-Digest", got)
            want = place if _DIGEST.fullmatch(place) else said
            if got != want:
                raise Mismatch(f"its bytes hash to {got}, want {want}")
            return data

        what = f"{self._base}/manifests/{place}"
        data = self._fetch(f"cannot read {what}", ask)
        try:
            manifest = json.loads(data)
        except (ValueError, RecursionError):
            raise RemoteError(f"{what} is no manifest: it is no JSON", 1) from None
        if not isinstance(manifest, dict) or manifest.get("mediaType") != MANIFEST_TYPE:
            kind = manifest.get("mediaType") if isinstance(manifest, dict) else None
            raise RemoteError(f"{what} is no OCI image manifest: it says {kind!r}", 1)
        return manifest, f"sha256:{sha256_hex(data)}"

    def read_blob(self, digest: str, size: int, file: IO[bytes]) -> None:
        """Write a blob into an empty file; when this returns its bytes are those of the digest."""

        def ask(seconds: float) -> None:
            file.seek(0)
            file.truncate()
            hashed, count = hashlib.sha256(), 0
            url = f"{self._base}/blobs/{digest}"
            with self._send("GET", url, seconds, stream=True) as answer:
                answer.raise_for_status()
                for piece in _pieces(answer, self._retry.limit_s(seconds, size)):
                    count += len(piece)
                    if count > size:
                        break
                    hashed.update(piece)
                    file.write(piece)
            if count != size:
                more = "more than " if count > size else f"{count} bytes, want "
                raise Mismatch(f"it has {more}{size}{' bytes' if count > size else ''}")
            if (got := f"sha256:{hashed.hexdigest()}") != digest:
                raise Mismatch(f"its bytes hash to {got}")
            file.flush()
            file.seek(0)

        self._fetch(f"cannot read {self._base}/blobs/{digest}", ask)

    # What follows is not part of the interface.

    def _fetch(self, what: str, ask: Callable[[float], _T]) -> _T:
        import requests

        def send(seconds: float) -> _T:
            try:
                return ask(seconds)
            except requests.HTTPError as error:
                code = error.response.status_code if error.response is not None else 0
                if code == 404:
                    raise FileNotFoundError(what) from None
                if code in (401, 403):
                    fix = "log in (`docker login`, `skopeo login --authfile ~/.docker/config.json`)"
                    raise RemoteError(f"{redacted(what)}: HTTP {code}: {fix}", 1) from None
                raise

        try:
            return fetch(what, self._retry, send)
        except FileNotFoundError:
            raise NotInStoreError(f"{redacted(what)}: the registry does not have it") from None

    def _send(self, method: str, url: str, seconds: float, **options: Any) -> Any:
        """One request, and once more with a token or login where the registry asks for that."""
        headers = dict(options.pop("headers", {}))
        for _ in range(2):
            if hasattr(options.get("data"), "seek"):
                options["data"].seek(0)  # what went before may have read some of it
            own = urlsplit(url).netloc == urlsplit(self._base).netloc
            authorized = {"Authorization": self._token} if self._token and own else {}
            answer = self._session.request(
                method,
                url,
                headers={**_AS_IT_IS, **headers, **authorized},
                timeout=seconds,
                **options,
            )
            challenge = answer.headers.get("WWW-Authenticate", "")
            if answer.status_code != 401 or not own or not self._authorize(challenge, seconds):
                break
            answer.close()
        return answer

    def _authorize(self, challenge: str, seconds: float) -> bool:
        """Whether there is now something new to show."""
        scheme, _, rest = challenge.partition(" ")
        before = self._token
        if scheme.lower() == "basic" and self._login:
            self._token = f"Basic {self._login}"
        elif scheme.lower() == "bearer":
            asked = dict(_CHALLENGE.findall(rest))
            realm = asked.pop("realm", "")
            if not (realm.startswith("https://") or self._is_plain and realm.startswith("http://")):
                raise RemoteError(f"{self._base}: bad token server {redacted(realm)!r}, want HTTPS")
            asked.setdefault("scope", f"repository:{self._name}:pull,push")
            headers = {"Authorization": f"Basic {self._login}"} if self._login else {}
            given = self._session.get(
                realm, params=asked, headers={**_AS_IT_IS, **headers}, timeout=seconds, stream=True
            )
            with given:
                given.raise_for_status()
                data = _body(given, seconds, redacted(realm))
            self._token = f"Bearer {_token(data, redacted(realm))}"
        return self._token != before


def _pieces(answer: Any, seconds: float) -> Iterator[bytes]:
    """The body; the limit of requests is one of silence, and a body may come drop by drop."""
    end = time.monotonic() + seconds
    # As they are sent: a piece that is decompressed may be a thousand times as large.
    for piece in answer.raw.stream(_PIECE_BYTES, decode_content=False):
        if time.monotonic() > end:
            raise TimeoutError(f"it took more than {seconds:.0f} s")
        yield piece


def _body(answer: Any, seconds: float, what: str) -> bytes:
    """The body of a manifest, or of less."""
    data = bytearray()
    for piece in _pieces(answer, seconds):
        data += piece
        if len(data) > _MAX_MANIFEST_BYTES:
            raise RemoteError(f"{what} has more than {_MAX_MANIFEST_BYTES} bytes", 1)
    return bytes(data)


def _token(data: bytes, realm: str) -> str:
    """The token in the answer of a token server."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        token = document.get("token") or document.get("access_token") or ""
        if isinstance(token, str) and token.isascii() and token.isprintable():
            return token
    raise RemoteError(f"bad answer of token server {realm}: want a JSON object with a token", 1)


def _no_authentication(request: Any) -> Any:
    return request


def _login(host: str) -> str:
    """``user:password`` in base64 for a registry, of the docker configuration; "" for none.

    Raises:
        UsageError: the configuration cannot be read.
    """
    named = os.environ.get("DOCKER_CONFIG")
    path = Path(named or os.path.expanduser("~/.docker")) / "config.json"  # noqa: PTH111
    if not named and not os.path.exists(path):  # or in the home of somebody else
        return ""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries: Mapping[str, Any] = document.get("auths", {})
        for name in (host, f"https://{host}", *(_DOCKER_HUB[1:] if host == "docker.io" else ())):
            entry = entries.get(name, {})
            if entry.get("auth"):
                base64.b64decode(entry["auth"], validate=True)
                return str(entry["auth"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError, TypeError, binascii.Error):
        raise UsageError(f"cannot read the docker configuration {str(path)!r}") from None
    return ""
