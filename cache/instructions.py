"""Which host instructions a linked kernel holds, judged by the level that it is stored for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from cudnn_aot.errors import CompileError

C_LOCALE = {**os.environ, "LC_ALL": "C"}  # the messages of tools are read

# The assembler knows which instructions a level has; extensions are named as gas names them.
_V1 = "generic64+fxsr+ibt"  # ibt: endbr64 is a no-op where it is not known
_V2 = _V1 + "+cx16+popcnt+sse4.2+ssse3"
_V3 = _V2 + "+avx2+bmi+bmi2+f16c+fma+lzcnt+movbe+xsave"
_V4 = _V3 + "+avx512f+avx512bw+avx512cd+avx512dq+avx512vl"
_GAS_LEVELS = {
    "x86-64": _V1,
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
}
_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(?P<text>[^#<]+)", re.MULTILINE)
_REFUSED = re.compile(
    r"`(?P<instruction>[^`']+)' is (?:not|only) supported"
    r"|bad register name `(?P<register>[^`']+)'"
    r"|(?:unsupported \w+|unknown vector operation:?)(?: for)? `(?P<operation>[^`']+)'"
)


def check_instructions(library: Path, level: str) -> None:
    """Assemble every distinct host instruction again with an assembler restricted to ``level``.

    Only "not supported" and its like are a verdict: the assembler does not take back every text
    (jumps to bare addresses, for one).
    Without binutils nothing is checked; the code generator was told the level in any case.
    """
    tools = instruction_tools(level)
    if tools is None:
        return
    disassembler, assembler = tools
    listing = subprocess.run(
        [disassembler, "-d", "--no-show-raw-insn", str(library)],
        capture_output=True,
        text=True,
        errors="backslashreplace",  # it names paths, which may be no text
        env=C_LOCALE,
    )
    if listing.returncode != 0:
        raise CompileError(f"cannot disassemble the linked kernel: {listing.stderr.strip()}")
    texts = sorted({match.group("text").strip() for match in _INSTRUCTION.finditer(listing.stdout)})
    if "(bad)" in texts:
        raise CompileError(
            "the linked kernel holds instructions that the disassembler does not know"
        )
    done = subprocess.run(
        [assembler, f"-march={_GAS_LEVELS[level]}", "-o", os.devnull, "-"],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        env=C_LOCALE,
    )
    refused = sorted(
        {match.group(match.lastgroup or 0) for match in _REFUSED.finditer(done.stderr)}
    )
    if refused:
        raise CompileError(
            f"the linked kernel holds {', '.join(refused[:5])}, which {level} does not have"
        )


@lru_cache(maxsize=8)
def instruction_tools(level: str) -> tuple[str, str] | None:
    """objdump and as of binutils, or None where they are missing or do not know the level."""
    disassembler, assembler = shutil.which("objdump"), shutil.which("as")
    if disassembler is None or assembler is None or level not in _GAS_LEVELS:
        return None
    known = subprocess.run(
        [assembler, f"-march={_GAS_LEVELS[level]}", "-o", os.devnull, "-"],
        input="nop\n",
        capture_output=True,
        text=True,
        env=C_LOCALE,
    )
    return (disassembler, assembler) if known.returncode == 0 else None
