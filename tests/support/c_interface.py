"""The C interface of ``libcudnn_aot.so`` through ctypes, with errors as Python's own classes."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudnn_aot import errors

_SPEC = importlib.util.find_spec("cudnn_aot._native")
assert _SPEC is not None and _SPEC.origin is not None
INSTALLED = Path(_SPEC.origin).parent
LIBRARY = INSTALLED / "lib" / "libcudnn_aot.so"
NO_OPERAND = -(2**63)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("graph_key", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("engine", ctypes.c_char_p),
        ("device_type", ctypes.c_int32),
        ("num_operands", ctypes.c_int32),
        ("num_symbols", ctypes.c_int32),
    )


class Operand(ctypes.Structure):
    _fields_ = (
        ("uid", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("rank", ctypes.c_int32),
        ("is_optional", ctypes.c_int32),
    )


class Symbol(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("min", ctypes.c_int64),
        ("max", ctypes.c_int64),
        ("multiple_of", ctypes.c_int64),
        ("hint", ctypes.c_int64),
    )


class Symbols(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("values", ctypes.POINTER(ctypes.c_int64)),
    )


Each = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_RESULTS = {
    "version": ctypes.c_char_p,
    "code_name": ctypes.c_char_p,
    "error_code": ctypes.c_int,
    "error_message": ctypes.c_char_p,
    "error_rule": ctypes.c_char_p,
    "error_operand": ctypes.c_int64,
    "plan_get_info": Info,
    "plan_operand": Operand,
    "plan_symbol": Symbol,
}


def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(LIBRARY))
    for name in (
        "version", "code_name", "error_code", "error_message", "error_rule", "error_operand",
        "error_free", "open", "open_layers", "store_digest", "store_free", "store_names",
        "store_plan", "plan_free",
        "plan_get_info", "plan_operand", "plan_symbol", "plan_uid", "plan_layout",
        "plan_workspace_bytes", "plan_prepare", "plan_execute",
    ):  # fmt: skip
        returns = None if name.endswith("free") else _RESULTS.get(name, ctypes.c_void_p)
        getattr(loaded, f"cudnn_aot_{name}").restype = returns
    return loaded


C = library()


def raise_error(error: int | None) -> None:
    """Raise what a call returned, as the class that its code names; None is success."""
    if error is None:
        return
    held = ctypes.c_void_p(error)
    try:
        kind = C.cudnn_aot_code_name(C.cudnn_aot_error_code(held)).decode()
        message = C.cudnn_aot_error_message(held).decode()
        assert kind != "InternalError", message
        if kind == "RefusedError":
            operand = C.cudnn_aot_error_operand(held)
            rule = C.cudnn_aot_error_rule(held).decode()
            raise errors.RefusedError(message, rule, None if operand == NO_OPERAND else operand)
        raise getattr(errors, kind)(message)
    finally:
        C.cudnn_aot_error_free(held)


def _text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _symbols(values: Mapping[str, int] | None) -> Any:
    if values is None:
        return None
    names = (ctypes.c_char_p * len(values))(*(name.encode() for name in values))
    return ctypes.byref(
        Symbols(len(values), names, (ctypes.c_int64 * len(values))(*values.values()))
    )


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def tensor_of(array: np.ndarray, **fields: int) -> Tensor:
    """A DLTensor of an array, which must outlive it; ``fields`` replace some of its own."""
    axes = (ctypes.c_int64 * (2 * array.ndim))(
        *array.shape, *(stride // array.itemsize for stride in array.strides)
    )
    at = ctypes.addressof(axes)
    tensor = Tensor(
        array.ctypes.data, 1, 0, array.ndim, _CODES[array.dtype.kind], 8 * array.itemsize, 1,
        at, at + 8 * array.ndim, 0,
    )  # fmt: skip
    tensor.axes, tensor.array = axes, array
    for name, value in fields.items():
        setattr(tensor, name, value)
    return tensor


class Plan:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle

    def __del__(self) -> None:
        C.cudnn_aot_plan_free(self.handle)

    @property
    def info(self) -> Info:
        return C.cudnn_aot_plan_get_info(self.handle)

    @property
    def operands(self) -> list[Operand]:
        return [C.cudnn_aot_plan_operand(self.handle, i) for i in range(self.info.num_operands)]

    @property
    def symbols(self) -> list[Symbol]:
        return [C.cudnn_aot_plan_symbol(self.handle, i) for i in range(self.info.num_symbols)]

    def uid(self, name: str) -> int:
        out = ctypes.c_int64()
        raise_error(C.cudnn_aot_plan_uid(self.handle, name.encode(), ctypes.byref(out)))
        return out.value

    def layout(
        self, uid: int, rank: int, symbols: Mapping[str, int]
    ) -> tuple[list[int], list[int]]:
        dim, stride = ((ctypes.c_int64 * rank)() for _ in range(2))
        raise_error(
            C.cudnn_aot_plan_layout(
                self.handle, ctypes.c_int64(uid), _symbols(symbols), dim, stride
            )
        )
        return list(dim), list(stride)

    def workspace_bytes(self, symbols: Mapping[str, int] | None = None) -> int:
        out = ctypes.c_int64()
        given = _symbols(symbols)
        raise_error(C.cudnn_aot_plan_workspace_bytes(self.handle, given, ctypes.byref(out)))
        return out.value

    def prepare(self, device: int = -1) -> None:
        raise_error(C.cudnn_aot_plan_prepare(self.handle, device))

    def execute(
        self,
        bindings: Mapping[int, Any],
        workspace: np.ndarray | None = None,
        stream: int | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        """``bindings`` are arrays, tensors of `tensor_of`, or None."""
        tensors = [tensor_of(b) if isinstance(b, np.ndarray) else b for b in bindings.values()]
        count = len(tensors)
        pointers = (ctypes.c_void_p * count)(
            *(None if each is None else ctypes.addressof(each) for each in tensors)
        )
        room = (None, 0) if workspace is None else (workspace.ctypes.data, workspace.nbytes)
        raise_error(
            C.cudnn_aot_plan_execute(
                self.handle,
                count,
                (ctypes.c_int64 * count)(*bindings),
                pointers,
                ctypes.c_void_p(room[0]),
                ctypes.c_int64(room[1]),
                ctypes.c_void_p(stream),
                _symbols(symbols),
            )
        )


def _texts(texts: Sequence[str] | None) -> Any:
    return None if texts is None else (ctypes.c_char_p * len(texts))(*map(_text, texts))


class Store:
    """``path`` is one store or a list of layers, with ``digests`` or without."""

    def __init__(
        self,
        path: str | Path | Sequence[str | Path] | None,
        target: str | None = None,
        digests: Sequence[str] | None = None,
    ) -> None:
        self.handle = ctypes.c_void_p()
        out = ctypes.byref(self.handle)
        if digests is None and (path is None or isinstance(path, (str, Path))):
            folder = None if path is None else str(path)
            raise_error(C.cudnn_aot_open(_text(folder), _text(target), out))
            return
        layers = [path] if isinstance(path, (str, Path)) else list(path or ())
        paths = _texts(list(map(str, layers)))
        raise_error(
            C.cudnn_aot_open_layers(len(layers), paths, _texts(digests), _text(target), out)
        )

    def digest(self, layer: int = 0) -> str:
        out = ctypes.create_string_buffer(65)
        raise_error(C.cudnn_aot_store_digest(self.handle, layer, out))
        return out.value.decode()

    def __del__(self) -> None:
        C.cudnn_aot_store_free(self.handle)

    def names(self) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        each = Each(lambda _, target, name: out.append((target.decode(), name.decode())))
        raise_error(C.cudnn_aot_store_names(self.handle, each, None))
        return out

    def plan(self, name: str, target: str | None = None, *, provider: str | None = None) -> Plan:
        plan = ctypes.c_void_p()
        raise_error(
            C.cudnn_aot_store_plan(
                self.handle, name.encode(), _text(target), _text(provider), ctypes.byref(plan)
            )
        )
        return Plan(plan)
