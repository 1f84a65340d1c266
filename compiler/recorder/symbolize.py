"""Finds the symbolic extents and strides that a set of concrete graphs of one class are cases of.

Input is numbers alone: for every tensor, its extents and strides in each sample. What is constant
stays a number. Extents that vary together are one symbol; an extent of a result may also be a
product of symbols, such as the rows of a reshape; a stride that varies must be a product of a
constant, the tensor's own extents, or symbols, the packed layout first. What cannot be said that
way is a `LayoutError`, which tells where, so that the caller can part the samples there.

Nothing here is believed: the caller evaluates the result on every sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, mul, packed


@dataclass(frozen=True, slots=True)
class Geometry:
    """Extents and strides of one tensor in one sample."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """Concrete graphs of one structure, and how often each was used.

    Attributes:
        rows: for every sample, the geometry of every tensor.
        weights: uses of each sample; ranges count every sample, hints prefer the heavy ones.
        is_result: for every tensor, whether a node computes it.
        axis_names: for every tensor, a name to suggest for a symbol on each axis.
    """

    rows: tuple[tuple[Geometry, ...], ...]
    weights: tuple[int, ...]
    is_result: tuple[bool, ...]
    axis_names: tuple[tuple[str, ...], ...]

    def pick(self, indices: Sequence[int]) -> Samples:
        return Samples(
            tuple(self.rows[index] for index in indices),
            tuple(self.weights[index] for index in indices),
            self.is_result,
            self.axis_names,
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """What the samples are cases of.

    Attributes:
        dims, strides: for every tensor.
        symbols: range and hint by name, in the order of first use.
        values: for every sample, its value of every symbol.
    """

    dims: tuple[tuple[Extent, ...], ...]
    strides: tuple[tuple[Extent, ...], ...]
    symbols: Mapping[str, Symbol]
    values: tuple[Mapping[str, int], ...]


class LayoutError(Exception):
    """The stride of `tensor` on `axis` varies as no product of extents does."""

    def __init__(self, tensor: int, axis: int) -> None:
        super().__init__(f"tensor {tensor}, axis {axis}")
        self.tensor = tensor
        self.axis = axis


_Vector = tuple[int, ...]


def fit(samples: Samples) -> Fit:
    """The symbolic form of `samples`; raises `LayoutError` where there is none."""
    names: dict[_Vector, str] = {}
    dims: dict[int, tuple[Extent, ...]] = {}
    tensors = range(len(samples.is_result))
    # Graph inputs first: what a result's extents are follows from them.
    for tensor in sorted(tensors, key=lambda tensor: samples.is_result[tensor]):
        extents: list[Extent] = []
        for axis in range(len(samples.rows[0][tensor].dim)):
            vector = tuple(row[tensor].dim[axis] for row in samples.rows)
            extent = _known(vector, names)
            if extent is None and samples.is_result[tensor]:
                factors = [(_symbol(name), known) for known, name in names.items()]
                extent = _product(vector, factors, most=2)
            if extent is None:
                wanted = samples.axis_names[tensor][axis]
                names[vector] = _free_name(wanted, names.values())
                extent = _symbol(names[vector])
            extents.append(extent)
        dims[tensor] = tuple(extents)
    strides = tuple(_fit_strides(samples, tensor, dims[tensor], names) for tensor in tensors)
    symbols = {name: _range(vector, samples.weights) for vector, name in names.items()}
    values = tuple(
        {name: vector[index] for vector, name in names.items()}
        for index in range(len(samples.rows))
    )
    return Fit(tuple(dims[tensor] for tensor in tensors), strides, symbols, values)


def _symbol(name: str) -> SymExpr:
    return SymExpr(1, (name,))


def _known(vector: _Vector, names: Mapping[_Vector, str]) -> Extent | None:
    if len(set(vector)) == 1:
        return vector[0]
    return _symbol(names[vector]) if vector in names else None


def _fit_strides(
    samples: Samples, tensor: int, dim: tuple[Extent, ...], names: Mapping[_Vector, str]
) -> tuple[Extent, ...]:
    """The strides of one tensor, packed in the order that they have if that is what they are."""
    rows = [row[tensor] for row in samples.rows]
    vectors = [tuple(row.stride[axis] for row in rows) for axis in range(len(dim))]
    order = stride_order(rows[0])
    if all(row.stride == packed(row.dim, order) for row in rows):
        return packed(dim, order)
    factors = [(extent, tuple(row.dim[axis] for row in rows)) for axis, extent in enumerate(dim)]
    symbols = [(_symbol(name), vector) for vector, name in names.items()]
    strides: list[Extent] = []
    unrelated: list[int] = []
    for axis, vector in enumerate(vectors):
        stride: Extent | None = vector[0] if len(set(vector)) == 1 else None
        if stride is None:
            stride = _product(vector, factors, most=len(factors))
        if stride is None:
            stride = _product(vector, symbols, most=2)
        if stride is None:
            unrelated.append(axis)
        else:
            strides.append(stride)
    if unrelated:  # the one of fewest values: others, such as a batch stride, may follow from it
        raise LayoutError(tensor, min(unrelated, key=lambda axis: len(set(vectors[axis]))))
    return tuple(strides)


def stride_order(geometry: Geometry) -> list[int]:
    """The axes as they lie in memory, outermost first; of equal strides, extent 1 lies outside."""
    dim, stride = geometry.dim, geometry.stride
    return sorted(range(len(dim)), key=lambda axis: (-stride[axis], dim[axis] != 1, axis))


def _product(
    vector: _Vector, factors: Iterable[tuple[Extent, _Vector]], most: int
) -> Extent | None:
    """`vector` as a constant times a product of at most `most` distinct factors, or None.

    A smaller constant is the better explanation, then fewer factors.
    """
    varying = [(extent, values) for extent, values in factors if not isinstance(extent, int)]
    best: tuple[int, int, Extent] | None = None
    for count in range(1, min(most, len(varying)) + 1):
        for chosen in itertools.combinations(varying, count):
            product = [1] * len(vector)
            for _, values in chosen:
                product = [left * right for left, right in zip(product, values, strict=True)]
            coefficient = _ratio(vector, product)
            if coefficient is None:
                continue
            found = (coefficient, count, mul(coefficient, *(extent for extent, _ in chosen)))
            if best is None or found[:2] < best[:2]:
                best = found
    return best[2] if best else None


def _ratio(vector: _Vector, product: Sequence[int]) -> int | None:
    """The constant k with ``vector == k * product``, or None."""
    pairs = list(zip(vector, product, strict=True))
    anchor = next(((value, part) for value, part in pairs if value and part), None)
    if anchor is None or anchor[0] % anchor[1]:
        return None
    coefficient = anchor[0] // anchor[1]
    return coefficient if all(value == coefficient * part for value, part in pairs) else None


def _range(vector: _Vector, weights: Sequence[int]) -> Symbol:
    uses: dict[int, int] = {}
    for value, weight in zip(vector, weights, strict=True):
        uses[value] = uses.get(value, 0) + weight
    hint = max(uses, key=lambda value: (uses[value], value))
    return Symbol(min(vector), max(vector), hint)


def _free_name(wanted: str, taken: Iterable[str]) -> str:
    used = set(taken)
    numbered = (f"{wanted}{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], numbered) if name not in used)


def contiguous_extent(geometry: Geometry) -> int:
    """The extent of the last axis of stride 1; 1 where there is none."""
    steps = zip(geometry.dim, geometry.stride, strict=True)
    return next((extent for extent, step in reversed(list(steps)) if step == 1), 1)


def layout_signature(row: Sequence[Geometry]) -> tuple[object, ...]:
    """What of a sample's strides does not depend on how large its extents are.

    Samples of one signature usually share one symbolic form; those in which an axis has extent 1
    say less about it and have a signature of their own.
    """
    signature = []
    for geometry in row:
        order = [axis for axis in stride_order(geometry) if geometry.dim[axis] != 1]
        dense = tuple(
            geometry.stride[outer] == geometry.stride[inner] * geometry.dim[inner]
            for outer, inner in itertools.pairwise(order)
        )
        signature.append((tuple(order), dense))
    return tuple(signature)
