"""Operands of one execution of a stored plan: random inputs laid out as declared, poisoned outputs.

Values are numpy arrays in the storage form of their dtype (bfloat16 as uint16); a device copy of
the same bytes is made by ``cli/device.py`` where the plan runs on one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cudnn_aot.cache.jobs import available_memory_bytes
from cudnn_aot.cli.options import check_symbols
from cudnn_aot.cli.table import format_bytes
from cudnn_aot.compiler.graph.enums import data_type, moe_grouped_matmul_mode
from cudnn_aot.compiler.graph.extents import Extent, SymExpr, evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.reference.execute import execute, random_operands
from cudnn_aot.compiler.reference.storage import from_storage, storage_dtype, to_storage
from cudnn_aot.compiler.reference.tolerance import tolerances
from cudnn_aot.errors import RequirementError, UsageError

_POISON = 0xFF  # a NaN in every floating dtype
# And one of a sign and payload that no arithmetic gives.
_POISON_IS_NO_RESULT = (data_type.FLOAT, data_type.HALF, data_type.BFLOAT16, data_type.DOUBLE)

# Rows, and how many of a block of them the reference computes where it need not compute all; of so
# many it does.
_ROW_AXIS, _ROW_BLOCK, _ROWS_OF_BLOCK, _ALL_ROWS = -2, 64, 4, 256


@dataclass(frozen=True, slots=True)
class Buffer:
    """One operand: all bytes from its first to its last element, and the strided view of them."""

    uid: int
    tensor: Tensor
    flat: np.ndarray
    view: np.ndarray

    def poison(self) -> None:
        """Fill it with NaN."""
        self.flat.view(np.uint8).fill(_POISON)


@dataclass(frozen=True, slots=True)
class Operands:
    """What one execution reads and writes.

    Attributes:
        scalars: pass-by-value operands, host numbers.
        values: the same inputs as the reference takes them.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scalars: Mapping[int, float]
    values: Mapping[int, np.ndarray]


def choose_symbols(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """Values of the graph's symbols: those given, else what planning ranked for."""
    check_symbols(given, graph.symbols)
    chosen = {name: given.get(name, symbol.planned) for name, symbol in graph.symbols.items()}
    for name, value in chosen.items():
        refused = graph.symbols[name].refuse(value)
        if refused:
            raise UsageError(f"--symbol {name}: {refused}")
    return chosen


def check_memory(graph: Graph, symbols: Mapping[str, int], held: int = 0) -> None:
    """Refuse what this machine cannot hold; the system would end the process without a word.

    Counted are the operands as stored and every tensor of the reference as float64, less the bytes
    that are ``held`` already.
    """
    needed = -held
    for tensor in graph.tensors.values():
        dim = [evaluate(extent, symbols) for extent in tensor.dim]
        needed += 8 * math.prod(dim)
        if not tensor.is_virtual:
            needed += _elements(tensor, symbols) * storage_dtype(_dtype(tensor)).itemsize
    available = available_memory_bytes()
    if needed > available:
        values = " ".join(f"{name}={value}" for name, value in symbols.items())
        raise RequirementError(
            f"operands and reference{' for ' + values if values else ''} need {needed} bytes "
            f"({format_bytes(needed)}), this machine has {format_bytes(available)} left: choose "
            "smaller symbols with --symbol"
        )


def make_operands(
    graph: Graph, symbols: Mapping[str, int], seed: int, earlier: Operands | None = None
) -> Operands:
    """Random inputs and poisoned outputs for these symbol values.

    Args:
        earlier: those of the same graph and seed for other values, of which what does not depend on
            these is taken: to make a weight matrix takes longer than to measure with it.
    """
    known = {} if earlier is None else {buffer.uid: buffer for buffer in earlier.inputs}
    before = {} if earlier is None else earlier.values
    held = sum(
        buffer.flat.nbytes + before[uid].nbytes
        for uid, buffer in known.items()
        if _is_declared_alike(buffer.tensor)
    )
    check_memory(graph, symbols, held)
    values = random_operands(graph, symbols, seed, before)
    inputs, scalars = [], {}
    for tensor in graph.inputs():
        if tensor.is_pass_by_value:
            scalars[tensor.uid] = float(np.asarray(values[tensor.uid]).reshape(-1)[0])
            continue
        if values[tensor.uid] is before.get(tensor.uid) and _is_declared_alike(tensor):
            inputs.append(known[tensor.uid])
            continue
        buffer = _buffer(tensor, symbols)
        buffer.view[...] = to_storage(values[tensor.uid], _dtype(tensor))
        inputs.append(buffer)
    outputs = tuple(_buffer(tensor, symbols) for tensor in graph.outputs())
    return Operands(tuple(inputs), outputs, scalars, values)


def _is_declared_alike(tensor: Tensor) -> bool:
    """Whether it lies in memory in one way for all values of symbols."""
    return all(isinstance(extent, int) for extent in (*tensor.dim, *tensor.stride))


def _dtype(tensor: Tensor) -> data_type:
    assert tensor.data_type is not None  # a validated graph has every type
    return tensor.data_type


def _buffer(tensor: Tensor, symbols: Mapping[str, int]) -> Buffer:
    dim = tuple(evaluate(extent, symbols) for extent in tensor.dim)
    stride = tuple(evaluate(extent, symbols) for extent in tensor.stride)
    dtype = storage_dtype(_dtype(tensor))
    elements = _elements(tensor, symbols)
    flat = np.empty(elements, dtype)
    bytes_per_step = tuple(step * dtype.itemsize for step in stride)
    view = np.ndarray(dim, dtype, flat.data if elements else None, 0, bytes_per_step)
    buffer = Buffer(tensor.uid, tensor, flat, view)
    buffer.poison()
    return buffer


def _elements(tensor: Tensor, symbols: Mapping[str, int]) -> int:
    """Elements from the first to the last that the tensor touches."""
    dim = [evaluate(extent, symbols) for extent in tensor.dim]
    stride = [evaluate(extent, symbols) for extent in tensor.stride]
    if not all(dim):
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(dim, stride, strict=True))


class Reference:
    """What the outputs of one execution should be; made once, as it may take long.

    With ``sample``, of outputs with more elements only that many are compared, drawn at random, and
    that all others were written: many plans are compared with one reference, each in no time. Of
    many rows that do not depend on each other some of every tile's are computed. Where the poison
    may be a result, as in integers, all are compared.
    """

    def __init__(
        self,
        graph: Graph,
        operands: Operands,
        symbols: Mapping[str, int],
        sample: int | None = None,
    ) -> None:
        self._allowed = tolerances(graph, symbols)
        self._rows: np.ndarray | None = None  # of all outputs, that are computed; None for all
        self._places: dict[int, np.ndarray] = {}  # of those, by uid of an output that is too large
        values, told = operands.values, [_is_told(buffer) for buffer in operands.outputs]
        name = _row_symbol(graph) if sample is not None and all(told) else None
        if name is not None and symbols[name] > _ALL_ROWS:
            self._rows = _some_rows(symbols[name])
            values = {
                tensor.uid: np.take(values[tensor.uid], self._rows, _ROW_AXIS)
                if _has_rows(tensor, name)
                else values[tensor.uid]
                for tensor in graph.inputs()
            }
            symbols = {**symbols, name: len(self._rows)}
        self._want = dict(execute(graph, values, symbols))
        for buffer, is_told in zip(operands.outputs, told, strict=True):
            size = self._want[buffer.uid].size
            if sample is not None and size > sample and is_told:
                drawn = np.random.default_rng(buffer.uid).integers(size, size=sample)
                self._places[buffer.uid] = drawn
                self._want[buffer.uid] = self._want[buffer.uid].reshape(-1)[drawn]

    def worst_error(self, outputs: Iterable[Buffer]) -> float:
        """The worst error of any output in units of its tolerance: right up to 1.

        An element left unwritten is a NaN, so an infinite error.
        """
        worst = 0.0
        for buffer in outputs:
            stored = buffer.view
            if self._rows is not None or buffer.uid in self._places:
                word = np.dtype(f"u{stored.itemsize}")
                if (stored.view(word) == np.iinfo(word).max).any():
                    return math.inf
            if self._rows is not None:
                stored = np.take(stored, self._rows, _ROW_AXIS)
            if buffer.uid in self._places:
                stored = stored.reshape(-1)[self._places[buffer.uid]]
            got = from_storage(stored, _dtype(buffer.tensor))
            worst = max(worst, self._allowed[buffer.uid].error(got, self._want[buffer.uid]))
        return worst


def _is_told(buffer: Buffer) -> bool:
    """Whether an element that was not written is told from a result."""
    return _dtype(buffer.tensor) in _POISON_IS_NO_RESULT


def _row_symbol(graph: Graph) -> str | None:
    """The symbol that the rows of every output are, where each follows from the same row of what
    has rows, and from all else: matmuls of rows by what has none, and pointwise ops.
    """
    if len(graph.symbols) != 1:
        return None
    (name,) = graph.symbols
    ports = [port for node in graph.nodes for port in (node.inputs, node.outputs)]
    tensors = {id(tensor): tensor for port in ports for tensor in port.values()}
    if any(_has_rows(tensor, name) is None or tensor.ragged_offset for tensor in tensors.values()):
        return None
    for node in graph.nodes:
        if node.op == "matmul" and (
            _has_rows(node.inputs["B"], name) or not _has_rows(node.inputs["A"], name)
        ):
            return None
        if node.op != "matmul" and (not node.spec.is_pointwise or node.op == "gen_index"):
            return None
    return name if all(_has_rows(tensor, name) for tensor in graph.outputs()) else None


def _has_rows(tensor: Tensor, name: str) -> bool | None:
    """Whether a symbol is a tensor's extent on the axis of rows; None where it has it elsewhere."""
    rows = len(tensor.dim) >= -_ROW_AXIS and tensor.dim[_ROW_AXIS] == SymExpr(1, (name,))
    others = [*tensor.dim[:_ROW_AXIS], *tensor.dim[_ROW_AXIS + 1 :]]
    extents = others if rows else tensor.dim
    if any(name in extent.symbols for extent in extents if isinstance(extent, SymExpr)):
        return None
    return rows


def _some_rows(count: int) -> np.ndarray:
    """The first and the last, and some of each block of rows that a tile may have."""
    rng = np.random.default_rng(count)
    begins = np.arange(0, count, _ROW_BLOCK)
    lengths = np.minimum(_ROW_BLOCK, count - begins)
    drawn = [begins + rng.integers(lengths) for _ in range(_ROWS_OF_BLOCK)]
    return np.unique(np.concatenate([[0, count - 1], *drawn]))


def compare(graph: Graph, operands: Operands, symbols: Mapping[str, int]) -> tuple[float, bool]:
    """The worst error of any output in units of its tolerance, and whether all are within it."""
    worst = Reference(graph, operands, symbols).worst_error(operands.outputs)
    return worst, worst <= 1.0


def matmul_flops(graph: Graph, symbols: Mapping[str, int]) -> float:
    """Multiply-adds of the graph's matmuls, counted as two operations each."""
    return 2.0 * sum(
        math.prod(float(evaluate(extent, symbols)) for extent in _product(node))
        for node in graph.nodes
        if node.op in ("matmul", "moe_grouped_matmul")
    )


def _product(node: Node) -> tuple[Extent, ...]:
    """The extents of all the products that a matmul adds up; every row counts as routed."""
    if node.op == "matmul":
        return (*node.outputs["C"].dim, node.inputs["A"].dim[-1])
    routed = "token_index" if node.attr("mode") is moe_grouped_matmul_mode.GATHER else "token"
    return (node.inputs[routed].dim[-2], *node.inputs["weight"].dim[-2:])
