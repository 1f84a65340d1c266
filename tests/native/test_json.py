"""JSON and SHA-256 of the C++ half beside Python's, on random documents and bytes."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cudnn_aot.cache.canonical import canonical_bytes

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("json.cpp", "sha256.cpp", "text.cpp", "value.cpp")
Probe = Callable[[Sequence[bytes]], list[tuple[bytes, str]]]


def build(folder: Path, *flags: str) -> Probe:
    """Canonical JSON, or an error, and the digest of each text."""
    binary = folder / "probe"
    native = ROOT / "native" / "src"
    command = [shutil.which("c++") or "c++", "-std=c++17", "-O1", *flags, "-I", native]
    command += ["-o", binary, ROOT / "tests" / "support" / "probe.cpp"]
    subprocess.run([*command, *(native / name for name in SOURCES)], check=True)

    def ask(texts: Sequence[bytes]) -> list[tuple[bytes, str]]:
        sent = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
        lines = subprocess.run([binary], input=sent, capture_output=True, check=True).stdout
        answers = lines.split(b"\n")[:-1]
        assert len(answers) == 2 * len(texts)
        return list(zip(answers[::2], map(bytes.decode, answers[1::2]), strict=True))

    return ask


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return build(tmp_path_factory.mktemp("probe"))


CHARACTERS = [
    "a",
    "Z",
    " ",
    '"',
    "\\",
    "/",
    "\n",
    "\t",
    "\b",
    "\x00",
    "\x1f",
    "\x7f",
    "é",
    "€",
    "😀",
]
CHARACTERS += ["\u2028", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"]


def random_number(dice: random.Random) -> Any:
    bits = dice.choice([1, 8, 31, 63, 64, 200])
    number: Any = dice.getrandbits(bits) * dice.choice([1, -1])
    if dice.random() < 0.5:
        return number
    if dice.random() < 0.5:
        return float(
            dice.choice([0.0, -0.0, 0.1, 1e16, 1e15, 9999999999999998.0, 1e-4, 1e-5, 5e-324])
        )
    while (value := struct.unpack("<d", dice.randbytes(8))[0]) != value or abs(value) == 1e999:
        pass
    return value


def random_value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(8 if depth else 5)
    if kind < 2:
        return random_number(dice)
    if kind == 2:
        return dice.choice([None, True, False])
    if kind < 5:
        return "".join(dice.choices(CHARACTERS, k=dice.randrange(8)))
    if kind == 5:
        return [random_value(dice, depth - 1) for _ in range(dice.randrange(5))]
    names = {"".join(dice.choices(CHARACTERS, k=3)) for _ in range(dice.randrange(6))}
    return {name: random_value(dice, depth - 1) for name in names}


def test_random_documents(probe):
    dice = random.Random(5)
    values = [random_value(dice, 6) for _ in range(3000)]
    texts = []
    for value in values:
        indent, is_ascii = dice.choice([None, None, 1, "\t"]), dice.random() < 0.5
        texts.append(json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode())
    for value, text, (canonical, _) in zip(values, texts, probe(texts), strict=True):
        assert canonical == canonical_bytes(value), text


def test_changed_documents_are_read_as_python_reads_them_or_refused(probe):
    """What is taken means the same to both; only what Python is lax about is refused here alone."""
    dice = random.Random(6)
    texts = []
    for _ in range(6000):
        text = bytearray(json.dumps(random_value(dice, 3)).encode())
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(text) + 1)
            part = dice.choice(
                [b"", b"", b'"', b"{", b"]", b",", b":", b"\\", b"\\u", b"d8", b"0", b"-"]
            )
            part = dice.choice([part, b"e", b".", b"\xc3", b"\xff", b" ", b"1e999", b"tru", b"NaN"])
            text[at : at + dice.randrange(3)] = part
        texts.append(bytes(text))
    taken = 0
    for text, (answer, _) in zip(texts, probe(texts), strict=True):
        try:
            value = json.loads(text.decode())
            canonical = canonical_bytes(value)
        except (ValueError, TypeError):
            assert answer.startswith(b"error: byte "), text
            continue
        if not answer.startswith(b"error: "):
            assert answer == canonical, text
            taken += 1
        else:
            assert b"twice" in answer or b"surrogate" in answer or b"double" in answer, (
                text,
                answer,
            )
    assert taken > 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "byte 0: got no JSON value"),
        (b"\xef\xbb\xbf1", "byte 0: got no JSON value"),
        (b"01", "byte 1: got more after the value, want its end"),
        (b"[1,]", "byte 3: got no JSON value"),
        (b'{"a":1,"a":2}', "byte 13: got the field 'a' twice"),
        (b'"\\ud800"', "byte 7: got half of a surrogate pair"),
        (b'"\xed\xa0\x80"', "byte 1: got bytes that are no UTF-8"),
        (b'"\xc0\x80"', "byte 1: got bytes that are no UTF-8"),
        (b'"a\nb"', "byte 2: got a control character in a string, want it escaped"),
        (b"1e999", "byte 5: got the number 1e999, want one that a double holds"),
        (b"NaN", "byte 0: got no JSON value"),
        (b"nul", "byte 0: got no JSON value"),
        (b"[" * 1000, "byte 129: nested deeper than 128"),
        (b" " * (2**26 + 1), f"byte 0: got {2**26 + 1} bytes, want at most {2**26}"),
    ],
)
def test_what_is_no_json(probe, text, message):
    ((answer, _),) = probe([text])
    assert answer.decode() == f"error: {message}"


@pytest.mark.parametrize("flag", ["-DNDEBUG", "-DCUDNN_AOT_PORTABLE_SHA256"])
def test_digests(tmp_path, flag):
    """By the processor's instructions, where it has them, and without."""
    dice = random.Random(7)
    lengths = [*range(200), *(dice.randrange(1 << 16) for _ in range(50)), 1 << 20]
    texts = [dice.randbytes(length) for length in lengths]
    for text, (_, digest) in zip(texts, build(tmp_path, flag)(texts), strict=True):
        assert digest == hashlib.sha256(text).hexdigest(), len(text)
