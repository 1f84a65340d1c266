"""The symbols of a 64-bit little-endian ELF object or shared object, read from its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_DT = {
    "STRTAB": 5,
    "SYMTAB": 6,
    "VERSYM": 0x6FFFFFF0,
    "VERNEED": 0x6FFFFFFE,
    "VERNEEDNUM": 0x6FFFFFFF,
}
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM = 2, 6, 11
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class Import:
    """An undefined symbol and the version it is bound to ("" for none)."""

    name: str
    version: str


def imported_symbols(data: bytes) -> list[Import]:
    """Undefined dynamic symbols, sorted by name."""
    versions = _needed_versions(data)
    return sorted(
        (
            Import(name, versions.get(version, ""))
            for name, section, _, version in _symbols(data)
            if section == 0
        ),
        key=lambda symbol: symbol.name,
    )


def undefined_symbols(data: bytes) -> list[str]:
    """What an object that is not linked yet names and does not define, sorted."""
    return sorted(
        name for name, section, _, _ in _symbols(data, _SHT_SYMTAB) if section == 0 and name
    )


def exported_symbols(data: bytes) -> list[str]:
    """Defined global or weak dynamic symbols, sorted."""
    return sorted(name for name, section, binding, _ in _symbols(data) if section and binding)


def _sections(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """(type, address, offset, size, link) of each section."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for index in range(count):
        _, kind, _, address, place, length, link = struct.unpack_from(
            "<IIQQQQI", data, offset + index * size
        )
        found.append((kind, address, place, length, link))
    return found


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode("ascii", "replace")


def _dynamic(data: bytes) -> dict[int, int]:
    for kind, _, offset, size, _ in _sections(data):
        if kind == _SHT_DYNAMIC:
            return dict(struct.iter_unpack("<QQ", data[offset : offset + size]))
    return {}


def _file_offset(data: bytes, address: int) -> int:
    for kind, start, offset, size, _ in _sections(data):
        if kind != 8 and start <= address < start + size:  # 8 is SHT_NOBITS
            return offset + address - start
    raise ValueError(f"no section holds the address {address:#x}")


def _symbols(data: bytes, table: int = _SHT_DYNSYM) -> Iterator[tuple[str, int, int, int]]:
    """(name, section index, binding, version index) of each symbol of a table."""
    sections = _sections(data)
    versym = _dynamic(data).get(_DT["VERSYM"])
    for kind, _, offset, size, link in sections:
        if kind != table:
            continue
        names = sections[link][2]
        for index in range(1, size // _SYMBOL.size):
            name, info, _, section, _, _ = _SYMBOL.unpack_from(data, offset + index * _SYMBOL.size)
            version = 0
            if versym is not None:
                (version,) = struct.unpack_from("<H", data, _file_offset(data, versym) + 2 * index)
            yield _text(data, names + name), section, info >> 4, version & 0x7FFF


def _needed_versions(data: bytes) -> dict[int, str]:
    """Version index -> name, from the table of needed versions."""
    dynamic = _dynamic(data)
    if _DT["VERNEED"] not in dynamic:
        return {}
    strings = _file_offset(data, dynamic[_DT["STRTAB"]])
    found: dict[int, str] = {}
    need = _file_offset(data, dynamic[_DT["VERNEED"]])
    for _ in range(dynamic[_DT["VERNEEDNUM"]]):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, need)
        entry = need + first
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, entry)
            found[index] = _text(data, strings + name)
            entry += step
        need += following
    return found
