"""Calls a compiled kernel through tvm-ffi's C ABI with ctypes: any dtype, any strides, no array
library in between.
"""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from pathlib import Path

DTYPE_CODES = {
    "FLOAT": (2, 32),
    "HALF": (2, 16),
    "BFLOAT16": (4, 16),
    "FP8_E4M3": (10, 8),
    "FP8_E5M2": (12, 8),
    "INT8": (0, 8),
    "INT32": (0, 32),
    "INT64": (0, 64),
    "DOUBLE": (2, 64),
}
CPU, CUDA = 1, 2
_INT, _FLOAT, _TENSOR = 1, 3, 7


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Value(ctypes.Union):
    _fields_ = [("i", ctypes.c_int64), ("f", ctypes.c_double), ("p", ctypes.c_void_p)]


class _Any(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("pad", ctypes.c_uint32), ("value", _Value)]


@dataclass(frozen=True)
class Buffer:
    """A tensor argument: address, cuDNN dtype name, extents and strides in elements."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int = CPU


def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.submodule_search_locations
    path = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libtvm_ffi.so"
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


class Kernel:
    """A linked kernel; calling it returns None, or the one-line error of the wrapper."""

    def __init__(self, path: Path, symbol: str = "kernel"):
        self.ffi = _library()
        self.function = getattr(ctypes.CDLL(str(path)), f"__tvm_ffi_{symbol}")
        self.function.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(_Any),
            ctypes.c_int32,
            ctypes.POINTER(_Any),
        ]

    def __call__(self, *arguments: Buffer | int | float) -> str | None:
        keep = []
        packed, result = (_Any * max(len(arguments), 1))(), _Any()
        for slot, argument in zip(packed, arguments, strict=False):
            if isinstance(argument, Buffer):
                rank = len(argument.shape)
                shape = (ctypes.c_int64 * rank)(*argument.shape)
                strides = (ctypes.c_int64 * rank)(*argument.strides)
                code, bits = DTYPE_CODES[argument.dtype]
                tensor = _Tensor(
                    argument.address,
                    _Device(argument.device, 0),
                    rank,
                    _DataType(code, bits, 1),
                    shape,
                    strides,
                    0,
                )
                keep += [tensor, shape, strides]
                slot.type_index, slot.value.p = _TENSOR, ctypes.addressof(tensor)
            elif isinstance(argument, int):
                slot.type_index, slot.value.i = _INT, argument
            else:
                slot.type_index, slot.value.f = _FLOAT, argument
        if self.function(None, packed, len(arguments), ctypes.byref(result)) == 0:
            return None
        handle = ctypes.c_void_p()
        self.ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
        # An error object: 24 bytes of header, then (pointer, length) of the kind and of the
        # message.
        fields = (ctypes.c_size_t * 4).from_address(handle.value + 24)
        text = ": ".join(ctypes.string_at(fields[i], fields[i + 1]).decode() for i in (0, 2))
        self.ffi.TVMFFIObjectDecRef(handle)
        return text
