"""The compile toolchain as a key sees it. Reads package metadata; never imports the DSL.

The DSL ships its code generator in one wheel per CUDA flavour, and picks a flavour by asking the
driver. Here the target names it, so wheels of other flavours are never read by a compile and stay
out of the key: a builder with cu13 installed beside cu12 gives the same keys as one without.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

from cudnn_aot.compiler.target.flavor import flavor_of
from cudnn_aot.errors import CompileError

# The lowest DSL that compiles the kernels here.
DSL_MIN = "4.8.1"

_DSL = "nvidia-cutlass-dsl"
_FLAVOR_WHEEL = re.compile(rf"{_DSL}-.*-(cu\d+)")


def toolchain(flavor: str) -> dict[str, str]:
    """Version of every wheel that a compile of this flavour reads, and the flavour.

    Raises:
        CompileError: the DSL, its flavour or tvm-ffi is not installed.
    """
    flavor_of(flavor)
    return dict(_toolchain(flavor))


@lru_cache(maxsize=8)
def _toolchain(flavor: str) -> tuple[tuple[str, str], ...]:
    found = {"dsl_flavor": flavor}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", _name(distribution)).lower()
        wheel = _FLAVOR_WHEEL.fullmatch(name)
        if name == "apache-tvm-ffi" or (
            (name == _DSL or name.startswith(f"{_DSL}-"))
            and (wheel is None or wheel.group(1) == flavor)
        ):
            found.setdefault(
                name, distribution.version
            )  # the first on the path is the one imported
    for name, extra in (
        (_DSL, "cudnn-aot[compile]"),
        (f"{_DSL}-libs-{flavor}", f"{_DSL}-libs-{flavor}"),
        ("apache-tvm-ffi", "apache-tvm-ffi"),
    ):
        if name not in found:
            raise CompileError(f"{name} is not installed: pip install '{extra}'")
    return tuple(sorted(found.items()))


def _name(distribution: importlib.metadata.Distribution) -> str:
    """The name that a distribution's metadata states.

    ``distribution.metadata`` reads the whole as an email message, descriptions and all, which for
    every package of a machine takes longer than a hundred plans.
    """
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    stated = re.search(r"^Name:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return stated.group(1) if stated else ""


def why_no_dsl(minimum: str) -> str | None:
    """None when the DSL is installed in ``minimum`` or newer, else the reason; never imports it."""
    version = dsl_version()
    if version is None:
        return f"{_DSL} is not installed: pip install 'cudnn-aot[compile]'"
    if _numbers(version) < _numbers(minimum):
        return f"{_DSL} is {version}, want {minimum} or newer"
    return None


@lru_cache(maxsize=1)
def dsl_version() -> str | None:
    """Version of the installed DSL, or None; from metadata alone."""
    try:
        return importlib.metadata.version(_DSL)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, ``(4, 8, 1)`` of ``"4.8.1.post2"``."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


def dsl_folder() -> Path:
    """The installed ``nvidia_cutlass_dsl`` folder, found without importing it."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if Path(place).is_dir():
            return Path(place)
    raise CompileError(f"{_DSL} is not installed: pip install 'cudnn-aot[compile]'")


def device_runtime(flavor: str) -> Path:
    """The static library that a GPU kernel's host stub is linked with."""
    path = dsl_folder() / flavor / "lib" / "libcuda_dialect_runtime_static.a"
    if not path.is_file():
        raise CompileError(
            f"{path.name} of flavour {flavor} is not installed: pip install {_DSL}-libs-{flavor}"
        )
    return path
