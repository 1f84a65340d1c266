"""Graphs with override shapes: the extents that calls override become symbols.

Such a graph is declared with stand-ins for extents that each call overrides. Its canonical form has
symbols for them, so one plan serves every call; the caller's own tensors keep the stand-ins:

- the rows of every matmul's A, the row axes of a norm's input, and of attention the batch and both
  sequence lengths (`_roots`);
- the same axis of operands that meet them in pointwise ops, norms and dequantization and have the
  same extent; an operand of extent 1 there broadcasts and keeps it;
- results, as they follow; strides that were dense in the stand-in stay dense in the symbol, others
  stay as they are declared.

A graph in which none of these is found, or whose symbols run into an op that leaves its result's
extents to the caller, is refused: it would serve the stand-ins alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from cudnn_aot.compiler.graph.extents import Symbol, SymExpr, packed, symbols_of
from cudnn_aot.compiler.graph.infer import infer_node
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import DIM, Tensor, fill
from cudnn_aot.compiler.graph.twin import twin_of
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

# Rows are tokens of one step; the bound keeps every packed extent within 32-bit indexing of rows.
MAX_ROWS = 1 << 20
MAX_BATCH = 1 << 12  # with which scores of 128 heads stay below 2**63 bytes

_NORMS = frozenset(
    f"{norm}{direction}"
    for norm in ("rmsnorm", "layernorm", "adalayernorm")
    for direction in ("", "_backward")
)
_ATTENTION = frozenset(("sdpa", "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward"))
# The overridden extent on every axis of attention's ports; `.` is none.
_SCORES = "B . S_q S_kv"
_QUERIES = "B . S_q ."
_AXES: Mapping[str, str] = {
    **dict.fromkeys(("q", "o", "dO", "stats", "score_max", "score_sum_exp"), _QUERIES),
    **dict.fromkeys(("k", "v"), "B . S_kv ."),
    **dict.fromkeys(("bias", "dBias", "rng_dump", "dropout_0"), _SCORES),
    "kv_mask": "B . . S_kv",
    **dict.fromkeys(("seq_len_q", "seq_len_kv"), "B . . ."),
    **dict.fromkeys(("paged_attention_k_table", "paged_attention_v_table"), "B . . ."),
}


_GRADIENTS = {"dK": "k", "dV": "v"}  # with the rows of these operands; other results have q's
_BROADCASTS = ("bias", "dBias", "kv_mask")  # whose axes of extent 1 stay


def symbolic(graph: Graph) -> Graph:
    """The canonical form of a validated graph with override shapes, frozen.

    Raises `cudnnGraphNotSupportedError` where it is not clear what calls override.
    """
    form = _Form(graph)
    for node in graph.nodes:
        for tensor, axis, letter in _roots(node):
            form.mark(tensor, axis, letter)
    if not form.counts:
        _refuse("no matmul, norm or attention tells which extents those are")
    form.name_symbols()
    try:
        while not form.infer():
            pass
        for node in form.copy.nodes:
            _check_scales(node)
        return form.copy.freeze()
    except InvalidGraphError as error:
        _refuse(str(error))


def _refuse(why: str) -> NoReturn:
    raise cudnnGraphNotSupportedError(
        f"is_override_shape_enabled: {why}: declare the extents that calls override as symbols, or "
        "leave it out"
    )


def _meets_by_axis(node: Node) -> bool:
    """Whether operands meet axis by axis, aligned at the last one."""
    return node.spec.is_pointwise or node.op in _NORMS or node.op == "block_scale_dequantize"


def _roots(node: Node) -> Iterator[tuple[Tensor, int, str]]:
    """Operands of a node with an axis that calls override, counted from the last, and its name."""
    if node.op == "matmul":
        yield node.inputs["A"], -2, "M"
    elif node.op in _NORMS:
        operand, scale = node.inputs["input"], node.inputs.get("scale")
        rank = len(operand.dim)
        yield operand, -rank, "M"
        for axis in range(1, rank):
            if scale is not None and scale.dim[axis] == 1 != operand.dim[axis]:
                yield operand, axis - rank, f"R{axis}"
    elif node.op in _ATTENTION:
        for tensor, axis, letter in _attention_axes(node, node.inputs):
            yield tensor, axis, letter


def _check_scales(node: Node) -> None:
    """Refuse scales beside a symbol that are padded, or that lie so many rows apart."""
    if node.op != "block_scale_dequantize":
        return
    scales = node.inputs["descale"].dim
    sizes = (1,) * (len(scales) - len(node.attr("block_size"))) + node.attr("block_size")
    for extent, count, size in zip(node.inputs["input"].dim, scales, sizes, strict=True):
        if symbols_of((extent,)) and count != extent and not count == size == 1:
            _refuse(f"{node} has {count} scales for {extent} rows, which no product of extents is")


def _attention_axes(node: Node, ports: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, int, str]]:
    if "block_mask" in node.inputs:
        _refuse(f"{node} has a mask of blocks, whose number is no product of extents")
    # The number of offsets is one more than the batch, which no extent can express.
    tensors = (*node.inputs.values(), *node.outputs.values())
    has_offsets = any(tensor.ragged_offset is not None for tensor in tensors)
    has_offsets |= any(port.startswith("cu_seq_len") for port in node.inputs)
    is_paged = any(port.startswith("paged_attention") for port in node.inputs)
    for port, tensor in ports.items():
        letters = _AXES.get(port, "").split()
        if is_paged and port in ("k", "v") or port == "dropout_0" and node.attr(port) is not None:
            continue
        for axis, (letter, extent) in enumerate(zip(letters, tensor.dim, strict=False)):
            stays = letter == "B" and has_offsets or letter == "S_kv" and is_paged
            if letter != "." and not stays and not (extent == 1 and port in _BROADCASTS):
                yield tensor, axis - len(tensor.dim), letter


_Count: TypeAlias = tuple[str, int]


class _Form:
    """The canonical form as it comes about.

    Attributes:
        graph: the caller's graph, validated.
        copy: the form; its extents are those of `graph` until `infer` is through.
        counts: by uid and axis of a graph input, counted from the last, what calls override there:
            what it counts and its stand-in.
        names: the symbol for each of those.
        axes: by uid of a graph input, the symbols of its axes.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copy = twin_of(graph, lambda tensor: (tensor.dim, tensor.stride))
        self.counts: dict[tuple[int, int], set[_Count]] = {}
        self.names: dict[_Count, str] = {}
        self.axes: dict[int, dict[int, str]] = {}

    def mark(self, tensor: Tensor, axis: int, letter: str) -> None:
        """Say that calls override an axis of the graph inputs that an axis of `tensor` is from."""
        extent = tensor.dim[axis]
        assert isinstance(extent, int)
        self._trace(tensor, axis, (letter, extent))

    def name_symbols(self) -> None:
        """Declare the symbols of what is marked: one for all that an axis counts, and numbered by
        the first input that has it, so that the order of nodes does not matter."""
        merged: dict[_Count, frozenset[_Count]] = {}
        for counts in self.counts.values():
            whole = frozenset(counts).union(*(merged.get(count, ()) for count in counts))
            merged |= dict.fromkeys(whole, whole)
        used: dict[str, int] = {}
        for (uid, axis), counts in sorted(self.counts.items()):
            whole = merged[min(counts)]
            letter, extent = min(whole)
            if (letter, extent) not in self.names:
                used[letter] = used.get(letter, 0) + 1
                name = letter if used[letter] == 1 else f"{letter}{used[letter]}"
                self.names |= dict.fromkeys(whole, name)
                letters = {letter for letter, _ in whole}
                least = 0 if all(each.startswith(("M", "R")) for each in letters) else 1
                most = MAX_BATCH if "B" in letters else MAX_ROWS
                symbol = Symbol(min(least, extent), max(most, extent), extent)
                self.copy._declare_symbol(name, symbol)
            self.axes.setdefault(uid, {})[axis] = self.names[letter, extent]

    def _trace(self, tensor: Tensor, axis: int, count: _Count) -> None:
        node = self.graph.producer(tensor)
        if node is None:
            self.counts.setdefault((tensor.uid, axis), set()).add(count)
            return
        extent = tensor.dim[axis]
        if node.op == "matmul" and axis == -2:
            sources = [node.inputs["A"]]
        elif node.op in _ATTENTION:
            port = next(port for port, result in node.outputs.items() if result is tensor)
            sources = [node.inputs[_GRADIENTS.get(port, "q")]]
        elif _meets_by_axis(node):
            sources = [
                operand
                for operand in node.inputs.values()
                if len(operand.dim) >= -axis and operand.dim[axis] == extent
            ][: 1 if extent == 1 else None]
        else:
            _refuse(f"axis {len(tensor.dim) + axis} of {tensor} comes out of {node}")
        for source in sources:
            self._trace(source, axis, count)

    def infer(self) -> bool:
        """Infer all extents from those of the inputs; False if more inputs became symbolic."""
        for tensor in self.graph.inputs():
            self._write(tensor)
        for node, twin in zip(self.graph.nodes, self.copy.nodes, strict=True):
            if _meets_by_axis(node) and self._join(node, twin):
                return False
            for port, tensor in twin.outputs.items():
                self._open(node, twin, port, tensor)
            infer_node(twin._view)
            for port, tensor in twin.outputs.items():
                _lay_out(tensor, node.outputs[port])
        return True

    def _write(self, tensor: Tensor) -> None:
        """Give an input's twin its symbols."""
        twin, rank = self.copy.tensors[tensor.uid], len(tensor.dim)
        dim = list(tensor.dim)
        for axis, name in self.axes.get(tensor.uid, {}).items():
            dim[rank + axis] = SymExpr(1, (name,))
        fill(twin, dim=tuple(dim))
        _lay_out(twin, tensor)

    def _join(self, node: Node, twin: Node) -> bool:
        """Mark the axes of inputs that meet a symbol and have its stand-in; whether any is new."""
        found = False
        symbols = self.copy.symbols
        for axis in range(-max(len(operand.dim) for operand in node.inputs.values()), 0):
            met = {t.dim[axis] for t in twin.inputs.values() if len(t.dim) >= -axis}
            names = sorted(symbols_of(met))
            for tensor in node.inputs.values():
                if self.graph.producer(tensor) is not None or len(tensor.dim) < -axis:
                    continue
                marked = self.axes.setdefault(tensor.uid, {})
                fitting = [name for name in names if symbols[name].hint == tensor.dim[axis] != 1]
                if fitting and axis not in marked:
                    marked[axis] = fitting[0]
                    found = True
        return found

    def _open(self, node: Node, twin: Node, port: str, tensor: Tensor) -> None:
        """Leave the extents of a result to inference, or say what becomes of the caller's."""
        declared, output = node.outputs[port], node.spec.output(port)
        if output is None:
            dim = list(declared.dim)
            for owner, axis, letter in _attention_axes(node, node.outputs):
                extent = declared.dim[axis]
                if owner is declared and isinstance(extent, int):
                    dim[axis] = SymExpr(1, (self.names[letter, extent],))
            fill(tensor, dim=tuple(dim))
        elif output.shape.rule(node._view) == declared.dim:
            fill(tensor, dim=(), stride=())
        elif symbols_of(extent for operand in twin.inputs.values() for extent in operand.dim):
            if node.op != "reduction":
                _refuse(f"{node} leaves the extents of its result to the caller")
            before, after = node.inputs["input"].dim, twin.inputs["input"].dim
            if any(one == 1 != two for one, two in zip(before, after, strict=True)):
                _refuse(f"{node}: which of the axes of extent 1 it reduces is open")
            kept = zip(declared.dim, before, after, strict=True)
            fill(tensor, dim=tuple(two if own == one else own for own, one, two in kept))


def _lay_out(tensor: Tensor, declared: Tensor) -> None:
    """Give `tensor` the strides of `declared`: dense if they are, inferred if none were set."""
    is_set = declared.stride_assigned
    stride = declared.stride
    if tensor.dim != declared.dim and len(stride) == len(tensor.dim):
        old = declared.dim
        axes = range(len(old))
        # Outermost first; of equal strides, the axis of extent 1 lies inside.
        steps = [step if isinstance(step, int) else 0 for step in stride]
        order = sorted(axes, key=lambda axis: (-steps[axis], old[axis] == 1, axis))
        # Strides outside an extent of 0 are 0 and do not sort.
        dense = next((each for each in (axes, order) if stride == packed(old, each)), None)
        if dense is not None:
            stride = packed(tensor.dim, dense)
    fill(tensor, stride=stride if is_set else (), _inferred=declared._inferred & DIM)
