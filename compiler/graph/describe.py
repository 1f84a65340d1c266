"""What another library's tensor declares: extents, strides in elements, data type, on the host or not.

Reads attributes that array libraries share (``shape``, ``dtype``, ``stride()`` or ``strides``,
``__cuda_array_interface__``) and, from an object that has none of them, the DLPack capsule. Imports
no library.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.graph.dtypes import DTYPES, as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import row_major
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.errors import InvalidGraphError

_TYPE_CODES = {"f": "float", "i": "int", "u": "uint", "b": "bool"}  # of array interfaces


class Description(Record):
    """A tensor of another library; ``stride`` counts elements, not bytes."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]
    data_type: data_type | None
    is_host: bool

    @property
    def is_host_number(self) -> bool:
        """One element in host memory: what a pass-by-value tensor is."""
        return self.is_host and all(extent == 1 for extent in self.dim)


def is_describable(value: Any) -> bool:
    """Whether `value` looks like a tensor of some library."""
    return any(hasattr(value, name) for name in ("__dlpack__", "__cuda_array_interface__")) or (
        hasattr(value, "shape") and hasattr(value, "dtype")
    )


def describe(value: Any) -> Description:
    """Describe `value`; raises `InvalidGraphError` if it is no tensor."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _from_attributes(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        return _from_interface(interface)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    raise InvalidGraphError(
        f"tensor_like: got {type(value).__name__}, want an object with shape, strides and dtype"
    )


def _from_attributes(value: Any) -> Description:
    dim = tuple(int(extent) for extent in value.shape)
    stride: tuple[int, ...] | None = None
    if callable(getattr(value, "stride", None)):  # torch: in elements
        stride = tuple(int(step) for step in value.stride())
    elif getattr(value, "strides", None) is not None:  # numpy, cupy: in bytes
        stride = tuple(int(step) // value.itemsize for step in value.strides)
    device = getattr(value, "device", None)
    is_host = getattr(device, "type", None) == "cpu"
    return _description(dim, stride, as_data_type(value.dtype), is_host)


def _from_interface(interface: dict[str, Any]) -> Description:
    dim = tuple(int(extent) for extent in interface["shape"])
    text = str(interface["typestr"])[1:]
    kind, bits = _TYPE_CODES.get(text[:1], ""), 8 * int(text[1:] or 0)
    dtype = next((d for d, row in DTYPES.items() if _is_plain(d, kind, bits)), None)
    steps = interface.get("strides")
    stride = None if steps is None else tuple(int(step) * 8 // bits for step in steps)
    return _description(dim, stride, dtype, is_host=False)


def _is_plain(dtype: data_type, kind: str, bits: int) -> bool:
    """Whether `dtype` is what array interfaces call (kind, bits)."""
    row = DTYPES[dtype]
    if row.dlpack is None or (row.kind, row.bits) != (kind, bits):
        return False
    return kind != "float" or row.dlpack[0] == 2


def _from_dlpack(value: Any) -> Description:
    import ctypes  # of use to a few libraries only

    class Tensor(ctypes.Structure):  # dlpack.h, DLTensor
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("rank", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    capsule = value.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The capsule keeps its tensor alive, and frees it, since it is not consumed here.
    tensor = Tensor.from_address(pointer(capsule, b"dltensor"))
    dim = tuple(tensor.shape[: tensor.rank])
    stride = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
    code = (tensor.code, tensor.bits)
    dtype = next((d for d, row in DTYPES.items() if row.dlpack == code), None)
    return _description(dim, stride, dtype, is_host=tensor.device_type == 1)


def _description(
    dim: tuple[int, ...], stride: tuple[int, ...] | None, dtype: data_type | None, is_host: bool
) -> Description:
    if not dim:  # a number: one element
        dim, stride = (1,), (1,)
    dense = tuple(step for step in row_major(dim) if isinstance(step, int))
    return Description(dim, dense if stride is None else stride, dtype, is_host)
