"""One node as its reference sees it: operands and attributes by name, and what it has to give.

A reference is a function of a `Call` that returns arrays by output port. It computes in float64;
rounding to data types at the ports belongs to `execute`. Absent optional ports are absent, and an
attribute that is off reads as the default that the reader names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.errors import InvalidGraphError

Array: TypeAlias = np.ndarray[Any, Any]
Results: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Declared:
    """What a graph says of a tensor; every part may be open in a call made by hand."""

    dim: tuple[int, ...] = ()
    data_type: data_type | None = None
    stride: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One node with concrete operands.

    Attributes:
        op: the op's name.
        inputs: operand by input port, in the tensors' own axes.
        attrs: attribute by name.
        wanted: the declaration of every output that has to be computed, by port.
        declared: the declarations of the inputs, by port.
    """

    op: str
    inputs: Mapping[str, Array]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    wanted: Mapping[str, Declared] = field(default_factory=dict)
    declared: Mapping[str, Declared] = field(default_factory=dict)

    def __getitem__(self, port: str) -> Array:
        """The operand of a required port in float64; refuses one that is not wired."""
        if port not in self.inputs:
            raise self.refuse(f"port {port} is open")
        return np.asarray(self.inputs[port], np.float64)

    def moved(self, port: str) -> Array:
        """The operand of a required port as it is carried, for ops that compute nothing."""
        if port not in self.inputs:
            raise self.refuse(f"port {port} is open")
        return np.asarray(self.inputs[port])

    def exact(self, port: str) -> Array:
        """The operand of a required port in float64, or in int64 if it is one of INT64: for ops
        that choose among values and change their sign alone."""
        array = self.moved(port)
        return array if array.dtype == np.int64 else self[port]

    def get(self, port: str) -> Array | None:
        """The operand of an optional port in float64, or None."""
        return self[port] if port in self.inputs else None

    def integers(self, port: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The operand of a required port as integers."""
        array = self.moved(port)
        return array.astype(np.int64) if array.dtype.kind in "iu" else _as_integers(array)

    def many(self, port: str) -> list[Array]:
        """The operands of a list port, in order, as they are carried."""
        count = 0
        while f"{port}_{count}" in self.inputs:
            count += 1
        return [self.moved(f"{port}_{index}") for index in range(count)]

    def scalar(self, port: str, default: float) -> float:
        """The number on an optional port that holds one element."""
        value = self.get(port)
        if value is None:
            return default
        if value.size != 1:
            raise self.refuse(f"port {port}: got {value.size} elements, want 1")
        return float(value.reshape(-1)[0])

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` where it is absent or None."""
        value = self.attrs.get(name)
        return default if value is None else value

    def choice(self, name: str, default: str) -> str:
        """The member's name of an attribute that is an enum."""
        value = self.attr(name, default)
        return str(getattr(value, "name", value)).upper()

    def wants(self, port: str) -> bool:
        """Whether an output has to be computed."""
        return port in self.wanted

    def dim(self, port: str) -> tuple[int, ...]:
        """The declared extents of an output, which the inputs do not give."""
        dim = self.wanted[port].dim if port in self.wanted else ()
        if not dim:
            raise self.refuse(f"output {port} has no dim")
        return dim

    def refuse(self, text: str) -> InvalidGraphError:
        """An error that says what the reference cannot compute."""
        return InvalidGraphError(f"the reference of {self.op}: {text}")


def with_negatives(x: Array) -> Array:
    """`x`; of int64 without the least integer, whose negative would be one too large."""
    return x if x.dtype != np.int64 else np.maximum(x, -np.iinfo(np.int64).max)


def _as_integers(array: Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.rint(np.asarray(array, np.float64)).astype(np.int64)


Reference: TypeAlias = Callable[[Call], Results]


def in_rows(values: Array, kept: int = 1) -> Array:
    """`values` with all axes but the last `kept` as one; unlike ``reshape(-1, ...)`` also where an
    extent is 0."""
    split = values.ndim - kept
    return values.reshape(math.prod(values.shape[:split]), *values.shape[split:])


def summed_to(values: Array, dim: tuple[int, ...]) -> Array:
    """`values` summed over the axes that broadcasting stretched from `dim`."""
    extra = values.ndim - len(dim)
    summed = values.sum(axis=tuple(range(extra)))
    axes = tuple(axis for axis, extent in enumerate(dim) if extent == 1 and summed.shape[axis] != 1)
    return summed.sum(axis=axes, keepdims=True) if axes else summed


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, with no overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))``, with no overflow and the digits of its tail."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_erf_of, _erfc_of = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf_of(x), np.float64)


def erfc(x: Array) -> Array:
    return np.asarray(_erfc_of(x), np.float64)
