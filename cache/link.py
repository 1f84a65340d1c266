"""Linking one kernel's object into the shared object that is stored, and judging the result.

No library of the build machine is linked in, so its glibc leaves no trace: symbols of libc and libm
carry no version and bind to what the serving process has. A GPU kernel is linked with the DSL's
static device runtime and a launch hook (launch_hook.py). A host kernel that calls libm names it as
a needed library, by way of a stand-in that has the names and no code: the real one would pin the
newest version of each function, and ``exp`` of a new glibc does not load on an old one. A linked
kernel is refused when it

- exports anything but ``__tvm_ffi_*`` and the launch hook,
- needs a symbol that the serving runtime does not provide,
- needs a glibc above ``GLIBC_FLOOR``,
- holds host instructions above the level that it is stored for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cudnn_aot.cache import elf, launch_hook
from cudnn_aot.cache.instructions import C_LOCALE, check_instructions
from cudnn_aot.cache.toolchain import device_runtime
from cudnn_aot.errors import CompileError

GLIBC_FLOOR = (2, 28)

_FLAGS = (
    "-shared",
    "-nostdlib",
    "-nostartfiles",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,--gc-sections",
    "-Wl,--hash-style=gnu",
    "-Wl,--as-needed",
    # The device runtime names all of the CUDA runtime; a kernel calls a dozen functions of it.
    "-Wl,-z,lazy",
    # Pages of their own for code and for what is read-only would pad the file, by 4 to 8 KB; to
    # start what is written on one pads it by 2 KB on the mean.
    "-Wl,-z,norelro",
    "-Wl,-z,noseparate-code",
    "-Wl,-z,common-page-size=64",
    "-Wl,-z,noexecstack",
    "-Wl,--no-eh-frame-hdr",
)
# Tables for exceptions, of which kernels raise none, and names of compilers.
_DISCARDED = "SECTIONS { /DISCARD/ : { *(.eh_frame .comment) } } INSERT AFTER .text;\n"
_EXPORTS = "{ global: __tvm_ffi_*; %s local: *; };\n"

# What a process that serves has: tvm-ffi, the extension module, a CUDA runtime, libc and libm.
_PROVIDED = re.compile(
    r"TVMFFI[A-Z]\w*"
    r"|CuteDSLRT_TVMFFISetRaisedCuda(Launch)?Error"
    r"|cuda[A-Z]\w*"
)
_LIBC = frozenset(
    "abort calloc fprintf fputs free fwrite malloc memcmp memcpy memmove memset printf puts "
    "realloc snprintf stderr stdout strcmp strlen strncmp vfprintf".split()
)
_LIBM = frozenset(
    f"{name}{suffix}"
    for name in (
        "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 "
        "expm1 fabs floor fma fmax fmin fmod ldexp lgamma log log10 log1p log2 nearbyint pow rint "
        "round roundeven sin sincos sinh sqrt tan tanh tgamma trunc"
    ).split()
    for suffix in ("", "f")
)
# All others are in every glibc; a symbol without a version cannot say so itself.
_LIBM_SINCE = {"roundeven": (2, 25), "roundevenf": (2, 25)}


@dataclass(frozen=True, slots=True)
class Linked:
    """A shared object's bytes and the lowest glibc that has its symbols ("" when any has)."""

    data: bytes
    glibc_min: str


def link(kernel: Path, output: Path, flavor: str, gpu: bool, host_level: str) -> Linked:
    """Link the object ``kernel`` into ``output`` and check it.

    The bytes depend on the object, the flags, the linker and the runtime archive: on no path.

    Raises:
        CompileError: no C compiler, a failed link, or a result that could not be served.
    """
    exports, sections = output.with_suffix(".map"), output.with_suffix(".ld")
    hooked = gpu and launch_hook.fits(kernel.read_bytes())
    exports.write_text(_EXPORTS % (f"{launch_hook.NAME};" if hooked else ""))
    sections.write_text(_DISCARDED)
    inputs: list[object] = []
    if hooked:
        hook = output.with_name("launch_hook.c")
        hook.write_text(launch_hook.SOURCE)
        inputs = [*launch_hook.FLAGS, hook]
    inputs.append(device_runtime(flavor) if gpu else _libm_names(output.with_name("libm-names.so")))
    _run(
        [
            compiler(),
            *_FLAGS,
            f"-Wl,--version-script={exports}",
            f"-Wl,-T,{sections}",
            "-o",
            str(output),
            str(kernel),
            *map(str, inputs),
        ],
        "link",
    )
    data = output.read_bytes()
    imports = elf.imported_symbols(data)
    check_symbols(imports, elf.exported_symbols(data), gpu)
    check_instructions(output, host_level)
    return Linked(data, _glibc(imports))


def _libm_names(output: Path) -> Path:
    """A shared object called libm.so.6 that defines the names of libm, without versions."""
    source = output.with_suffix(".s")
    lines = [f".globl {name}\n.type {name}, @function\n{name}:" for name in sorted(_LIBM)]
    source.write_text("\n".join([".text", *lines, '.section .note.GNU-stack,""']) + "\n")
    _run(
        [
            compiler(),
            "-shared",
            "-nostdlib",
            "-Wl,-soname,libm.so.6",
            "-o",
            str(output),
            str(source),
        ],
        "make a stand-in for libm",
    )
    return output


def compiler() -> str:
    """The C compiler driver that links: ``CC``, else ``cc``."""
    name = os.environ.get("CC") or "cc"
    path = shutil.which(name)
    if path is None:
        raise CompileError(f"no C compiler {name!r} to link with: install gcc or clang, or set CC")
    return path


def check_symbols(imports: list[elf.Import], exports: list[str], gpu: bool) -> None:
    """Refuse what a serving process could not resolve."""
    allowed = _LIBC if gpu else _LIBC | _LIBM
    missing = sorted(
        symbol.name
        for symbol in imports
        if symbol.name not in allowed
        and not (_PROVIDED.fullmatch(symbol.name) and (gpu or not symbol.name.startswith("cuda")))
    )
    if missing:
        raise CompileError(
            f"the linked kernel needs {', '.join(missing)}, which no serving process provides"
        )
    functions = {name for name in exports if name.startswith("__tvm_ffi_")}
    foreign = sorted(set(exports) - functions - {launch_hook.NAME})
    if foreign or not functions:
        got = ", ".join(foreign) or "nothing"
        raise CompileError(f"the linked kernel exports {got}, want only __tvm_ffi_ symbols")
    floor = "GLIBC_" + ".".join(map(str, GLIBC_FLOOR))
    for symbol in imports:
        if symbol.version and _version(symbol.version) > GLIBC_FLOOR:
            raise CompileError(
                f"the linked kernel needs {symbol.name}@{symbol.version}, want {floor} or older: "
                "build on an older distribution"
            )


def _glibc(imports: list[elf.Import]) -> str:
    versions = [_version(symbol.version) for symbol in imports if symbol.version]
    versions += [_LIBM_SINCE[symbol.name] for symbol in imports if symbol.name in _LIBM_SINCE]
    return ".".join(map(str, max(versions))) if versions else ""


def _version(text: str) -> tuple[int, ...]:
    """``"GLIBC_2.27"`` -> (2, 27); anything else counts as too new."""
    match = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)*)", text)
    return tuple(map(int, match.group(1).split("."))) if match else (999,)


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="backslashreplace",  # it names paths, which may be no text
            env=C_LOCALE,
        )
    except OSError as error:
        raise CompileError(f"cannot {what} with {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        # collect2 only counts what ld has said before it
        said = [line for line in done.stderr.splitlines() if line.strip()]
        lines = [line for line in said if not line.startswith("collect2:")] or said
        telling = ("error", "undefined", "failed")
        reason = next((line for line in lines if any(word in line for word in telling)), None)
        reason = reason or (lines[0] if lines else f"exit code {done.returncode}")
        raise CompileError(f"cannot {what} with {command[0]}: {reason.strip()}")
    return done.stdout
