"""Buffers of any type, layout and device, published through ``__dlpack_c_exchange_api__``.

What they point to is never read here, so an address may be made up.
"""

from __future__ import annotations

import ctypes
from typing import Any


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DLTensor),
]
VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
OWN = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Managed)))


class Api(ctypes.Structure):
    pass


Api._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("previous", ctypes.POINTER(Api)),
    ("allocate", ctypes.c_void_p),
    ("own", OWN),
    ("to_object", ctypes.c_void_p),
    ("view", VIEW),
    ("stream", ctypes.c_void_p),
]


class Exchanged:
    """One buffer; strides of None say row-major, as a producer may."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        dtype: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int] = (1, 0),
        offset: int = 0,
    ) -> None:
        self.address, self.shape, self.strides = address, shape, strides
        self.dtype, self.device, self.offset = dtype, device, offset
        self.deleted = 0

    @classmethod
    def of(cls, array: Any, **fields: Any) -> Exchanged:
        """A numpy array, as FLOAT unless `fields` say otherwise."""
        strides = tuple(step // array.itemsize for step in array.strides)
        made = cls(array.ctypes.data, array.shape, strides, **fields)
        made.held = array  # type: ignore[attr-defined]
        return made

    def fill(self, out: DLTensor) -> None:
        rank = len(self.shape)
        self.axes = (ctypes.c_int64 * (2 * rank))(*self.shape, *(self.strides or ()))
        out.data = self.address - self.offset
        out.device, out.ndim, out.dtype = Device(*self.device), rank, DType(*self.dtype)
        out.byte_offset = self.offset
        out.shape = ctypes.cast(self.axes, ctypes.POINTER(ctypes.c_int64))
        if self.strides is None:
            out.strides = None
        else:
            strides = ctypes.addressof(self.axes) + 8 * rank
            out.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))


@VIEW
def _view(producer: Exchanged, out: Any) -> int:
    producer.fill(out.contents)
    return 0


@OWN
def _own(producer: Any, out: Any) -> int:
    def delete(_: Any) -> None:
        producer.deleted += 1

    managed = producer.managed = Managed(1, 1, None, DELETER(delete), 1)  # read-only
    producer.fill(managed.tensor)
    out[0] = ctypes.pointer(managed)
    return 0


def publish(api: Api) -> type[Exchanged]:
    """A type whose objects are read through `api`."""
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made = capsule(ctypes.addressof(api), b"dlpack_exchange_api", None)
    return type("Producer", (Exchanged,), {"__dlpack_c_exchange_api__": made})


BORROWING = Api(1, 3, None, None, _own, None, _view, None)
OWNING = Api(1, 3, None, None, _own, None, VIEW(0), None)
NEWER = Api(2, 0, ctypes.pointer(BORROWING), None, OWN(0), None, VIEW(0), None)

Writable = publish(BORROWING)
ReadOnly = publish(OWNING)
