"""Signatures of stores: an Ed25519 key signs the root digest, and who trusts the key pins to it.

What is signed is the text ``cudnn-aot root digest 1``, a newline, the 64 hex digits of the root
digest and a newline. A key goes by its id, the SHA-256 of its 32 public bytes. The library
``cryptography`` is imported when somebody signs or asks for trust, and not before.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.errors import NotInStoreError, StoreError, TrustError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "CUDNN_AOT_TRUST"
_WANT = "want an Ed25519 public key: the path of a PEM file, or its 32 bytes in base64"
_KEY_BYTES = 32
_MAX_PEM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that is trusted."""

    raw: bytes

    @property
    def id(self) -> str:
        return sha256_hex(self.raw)

    def __str__(self) -> str:
        return base64.b64encode(self.raw).decode("ascii")


def public_keys(keys: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[PublicKey]:
    """Keys as they are given: paths of PEM files, or 32 bytes in base64.

    Raises:
        UsageError: one is no Ed25519 public key, or there is none.
        StoreError: the library is not installed.
    """
    given = [keys] if isinstance(keys, (str, os.PathLike)) else list(keys)
    if not given:
        raise UsageError(f"no key to trust: {_WANT}")
    return [_public_key(key) for key in given]


def environment_keys() -> list[PublicKey]:
    """The keys of ``CUDNN_AOT_TRUST``, with ``:`` between them; none where it is unset or empty.

    Raises:
        UsageError: one is no key.
    """
    text = os.environ.get(VARIABLE)
    return public_keys(text.split(os.pathsep)) if text else []


def message(root_digest: str) -> bytes:
    """The bytes that are signed."""
    return b"cudnn-aot root digest 1\n%b\n" % root_digest.encode("ascii")


def sign_digest(root_digest: str, private_key: Ed25519PrivateKey) -> tuple[str, bytes]:
    """Path and bytes of the document that holds the signature."""
    key = PublicKey(private_key.public_key().public_bytes_raw())
    document = {
        "format": layout.FORMAT,
        "key_id": key.id,
        "root_digest": root_digest,
        "signature": base64.b64encode(private_key.sign(message(root_digest))).decode("ascii"),
    }
    return layout.signature_path(key.id), layout.document_bytes(document)


def need_signed(
    read: Callable[[str], dict[str, Any]], keys: Sequence[PublicKey], root_digest: str, where: str
) -> str:
    """The root digest of a store, once one of the keys turns out to have signed it.

    Args:
        read: of a reader, `signature`.
        root_digest: that of the store as it is.
        where: what messages call it.

    Raises:
        TrustError: none has; the message says for each key what is wrong.
    """
    faults = []
    for key in keys:
        try:
            fault = _fault(read(key.id), key, root_digest)
        except NotInStoreError:
            fault = "has not signed it"
        except StoreError as error:
            fault = str(error)
        if fault is None:
            return root_digest
        faults.append(f"key {key.id[:12]} {fault}")
    raise TrustError(f"{where} is not trusted: {'; '.join(faults)}")


def public_path(path: Path) -> Path:
    """Where `new_private_key` puts the public key of the private one at ``path``."""
    return path.with_name(path.name + ".pub")


def new_private_key(path: Path) -> PublicKey:
    """Write a new private key as PEM, for its owner alone, and the public one beside it.

    Raises:
        UsageError: one of the two exists; neither is changed.
        StoreError: the system refuses; neither is left.
    """
    ed25519 = _ed25519()
    from cryptography.hazmat.primitives import serialization

    key = ed25519.Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = PublicKey(key.public_key().public_bytes_raw())
    with contextlib.ExitStack() as undone:
        _write_new(path, 0o600, text, undone)
        _write_new(public_path(path), 0o666, public_pem(public), undone)
        undone.pop_all()
    return public


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a PEM file without a password; raises UsageError for anything else."""
    ed25519 = _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except OSError as error:
        raise UsageError(f"cannot read the key {str(path)!r}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(
            f"bad key {str(path)!r}: want an Ed25519 private key as PEM without a password; "
            "`cudnn-aot sign --new-key FILE` makes one"
        )
    return key  # type: ignore[no-any-return]


def public_pem(key: PublicKey) -> bytes:
    """A public key as the text of a PEM file."""
    ed25519 = _ed25519()
    from cryptography.hazmat.primitives import serialization

    public = ed25519.Ed25519PublicKey.from_public_bytes(key.raw)
    return public.public_bytes(  # type: ignore[no-any-return]
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


# What follows is not part of the interface.


def _read(path: Path) -> bytes:
    """A file as long as keys are; from a pipe too, as of a vault, and never a device to its end."""
    with path.open("rb") as stream:
        return stream.read(_MAX_PEM_BYTES)


def _write_new(path: Path, mode: int, data: bytes, undone: contextlib.ExitStack) -> None:
    """Write a file that is not there yet; ``undone`` removes it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        undone.callback(path.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
    except FileExistsError:
        raise UsageError(f"bad key file {str(path)!r}: it exists, and may be a key") from None
    except OSError as error:
        raise StoreError(f"cannot write the key {str(path)!r}: {_reason(error)}") from None


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise StoreError(
            "signatures need the module cryptography: pip install 'cudnn-aot[trust]'"
        ) from None
    return ed25519


def _public_key(given: str | os.PathLike[str]) -> PublicKey:
    try:
        text = os.fspath(given)
    except TypeError:
        raise UsageError(f"bad key: got {given!r}, {_WANT}") from None
    if not isinstance(text, str):
        raise UsageError(f"bad key: got {given!r}, {_WANT}")
    ed25519 = _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not text:
        raise UsageError(f"bad key: got an empty one, {_WANT}")
    try:
        raw = base64.b64decode(text, validate=True)
        if len(raw) == _KEY_BYTES:
            return PublicKey(raw)
    except (binascii.Error, ValueError):
        pass
    try:
        key = load_pem_public_key(_read(Path(text)))
    except OSError as error:
        raise UsageError(f"bad key {text!r}: {_reason(error)}, {_WANT}") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(f"bad key {text!r}: {_WANT}")
    return PublicKey(key.public_bytes_raw())


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _fault(document: dict[str, Any], key: PublicKey, root_digest: str) -> str | None:
    """Why a signature is not one of this key for this root digest."""
    from cryptography.exceptions import InvalidSignature

    if document.get("root_digest") != root_digest:
        return f"signed root digest {document.get('root_digest')}, the store has {root_digest}"
    public = _ed25519().Ed25519PublicKey.from_public_bytes(key.raw)
    try:
        signature = base64.b64decode(str(document.get("signature")), validate=True)
        public.verify(signature, message(root_digest))
    except (InvalidSignature, binascii.Error, ValueError):
        return "did not make the signature that bears its id"
    return None
