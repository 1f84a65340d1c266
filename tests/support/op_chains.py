"""Chains of one pointwise op behind a bias, and the machine code of a kernel that has them."""

from __future__ import annotations

import struct
from typing import Any

import kernel_menu
import pointwise_graphs

from cudnn_aot.recipes.pointwise import TRACED
from cudnn_aot.recipes.trace.pointwise import OPS

# What a chain is of: ops, and casts by their type.
LINKS = (*sorted(TRACED), *(f"cast {dtype}" for dtype in ("FP8_E4M3", "FP8_E5M2", "INT8")))
SIMT_ELEMENTS = 16  # of a thread of the kernel on the CUDA cores, which has code for each
EM_CUDA, SECTION, INSTRUCTION_BYTES = 190, struct.Struct("<IIQQQQIIQQ"), 16


def epilogue(link: str, count: int) -> dict[str, Any]:
    """A bias, then the op so many times over, of the values that were made last."""
    op, _, dtype = link.partition(" ")
    attributes = {"dtype": dtype} if dtype else pointwise_graphs.ATTRIBUTES.get(op, {})
    nodes: list[Any] = [["bias", [0, 1], {}]]
    for last in range(2, 2 + count):
        nodes.append([op, [max(last - i, 1) for i in range(OPS[op].arity)], attributes])
    return {
        "inputs": [{"dtype": "FLOAT", "kind": "row"}],
        "nodes": nodes,
        "outputs": [{"value": 2 + count, "dtype": "FLOAT"}],
    }


def simt(chain: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the kernel on the CUDA cores with this chain."""
    return kernel_menu.SIMT["simt_chain"] | {"epilogue": chain}


def machine_code(data: bytes) -> int:
    """Instructions of the GPU code in an object file or a linked one."""
    start = data.find(b"\x7fELF", 4)
    while start >= 0 and struct.unpack_from("<H", data, start + 18)[0] != EM_CUDA:
        start = data.find(b"\x7fELF", start + 4)
    assert start >= 0, "an object without GPU code"
    (sections,) = struct.unpack_from("<Q", data, start + 40)
    size, count, names = struct.unpack_from("<HHH", data, start + 58)
    headers = [SECTION.unpack_from(data, start + sections + size * i) for i in range(count)]
    strings = start + headers[names][4]
    code = (h[5] for h in headers if data.startswith(b".text.", strings + h[0]))
    return sum(code) // INSTRUCTION_BYTES
