"""Buffers that `Graph` allocates for a call: torch's for calls with torch tensors, else numpy's.

Neither library is imported unless a call gives its tensors.
"""

from __future__ import annotations

import sys
from typing import Any

from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError
from cudnn_aot.handles import Handle


def empty_like(tensor: Tensor, like: Any) -> Any:
    """A buffer as ``tensor`` declares it, of the library and on the device of ``like``.

    Raises:
        UsageError: its extents are symbolic.
        cudnnGraphNotSupportedError: the library has no such type.
    """
    dim = [extent for extent in tensor.dim if isinstance(extent, int)]
    stride = [step for step in tensor.stride if isinstance(step, int)]
    if len(dim) + len(stride) < 2 * len(tensor.dim):
        raise UsageError(f"{tensor} has symbolic extents: pass its buffer in a dict")
    dtype = tensor.get_data_type()
    if _is_torch(like):
        from cudnn_aot.datatypes import cudnn_to_torch_data_type

        kind = cudnn_to_torch_data_type(dtype)
        if kind is None:
            raise cudnnGraphNotSupportedError(f"torch has no type for {dtype.name}: pass {tensor}")
        return sys.modules["torch"].empty_strided(dim, stride, dtype=kind, device=like.device)
    import numpy

    try:
        kind = numpy.dtype(_NUMPY[dtype.name])
    except KeyError:
        raise cudnnGraphNotSupportedError(
            f"numpy has no type for {dtype.name}: pass {tensor}"
        ) from None
    span = 1 + sum((extent - 1) * step for extent, step in zip(dim, stride, strict=True))
    flat = numpy.empty(span if all(dim) else 0, kind)
    strides = [step * kind.itemsize for step in stride]
    return numpy.lib.stride_tricks.as_strided(flat, dim, strides)


_NUMPY = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "HALF": "float16",
    "BFLOAT16": "uint16",  # its bits
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOLEAN": "bool",
}


def empty_bytes(count: int, like: Any) -> Any:
    """A workspace, of the library and on the device of ``like``."""
    if _is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=torch.uint8, device=like.device)
    import numpy

    return numpy.empty(count, numpy.uint8)


def current_stream() -> Handle | None:
    """A handle on torch's current stream; None where there is no torch in the process."""
    torch = sys.modules.get("torch")
    return None if torch is None else Handle(torch.cuda.current_stream())


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
