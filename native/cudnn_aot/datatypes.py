"""Data types from and to frameworks' dtypes, under the names that programs import.

No framework is imported: torch's dtypes are recognised by name, and given back if torch is loaded.
"""

from __future__ import annotations

import sys
from typing import Any

from cudnn_aot.compiler.graph.dtypes import DTYPES, as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError


def torch_to_cudnn_data_type(dtype: Any) -> data_type | None:
    """The `data_type` of a torch dtype, or None if it has none."""
    try:
        return as_data_type(dtype)
    except InvalidGraphError:
        return None


def cudnn_to_torch_data_type(dtype: data_type) -> Any:
    """The torch dtype of a `data_type`, or None if torch is not loaded or has none."""
    torch = sys.modules.get("torch")
    row = DTYPES.get(dtype)
    names = row.names if row is not None else ()
    found = (getattr(torch, name, None) for name in names)
    return next((value for value in found if value is not None), None)


def _library_type(dtype: Any) -> data_type:
    """The `data_type` of any library's dtype; `cudnnGraphNotSupportedError` if it has none."""
    found = torch_to_cudnn_data_type(dtype)
    if found is None:
        raise cudnnGraphNotSupportedError(f"dtype: got {dtype!r}, want one with a data_type")
    return found


# The spellings that programs use, private as they are.
_torch_to_cudnn_data_type = torch_to_cudnn_data_type
_cudnn_to_torch_data_type = cudnn_to_torch_data_type
