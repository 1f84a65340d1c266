"""A small graph of any op, with as many of its ports and attributes as asked for."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from cudnn_aot.compiler.graph import attr as attr_types
from cudnn_aot.compiler.graph.attr import Attr
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op, Port, Style
from cudnn_aot.compiler.graph.ops.table import OPS

B, H, S, D = 2, 4, 16, 8
T, N = 24, 3  # tokens, sequences
IMAGE = [2, 3, 8, 8]
ROW = [1, 3, 1, 1]

_MATRIX = [B, H, S, D]
_ATTENTION: dict[str, list[int]] = {
    **dict.fromkeys(("q", "k", "v", "o", "o_f16", "dO", "dO_f16", "q_T", "k_T", "dO_T"), _MATRIX),
    **dict.fromkeys(("stats", "score_max", "score_sum_exp"), [B, H, S, 1]),
    **dict.fromkeys(("bias", "dBias", "rng_dump", "block_mask"), [B, H, S, S]),
    **dict.fromkeys(("seq_len_q", "seq_len_kv"), [B, 1, 1, 1]),
    **dict.fromkeys(("cu_seq_len_q", "cu_seq_len_kv"), [B + 1, 1, 1, 1]),
    **dict.fromkeys(("paged_attention_k_table", "paged_attention_v_table"), [B, 1, S, 1]),
    **dict.fromkeys(("sink_token", "dSink_token"), [1, H, 1, 1]),
    "kv_mask": [B, 1, 1, S],
    "sf_o": [B, H, S, 1],
}
_STATE = [N, H, D, D]
_LINEAR: dict[str, list[int]] = {
    **dict.fromkeys(("q", "k", "v", "w", "z", "dO", "O_pre"), [T, H, D]),
    "g": [T, H],
    "beta": [T, H],
    "cu_seqlens": [N + 1],
    "state_indices": [N],
    **dict.fromkeys(("initial_state", "d_final_state"), _STATE),
    "state_checkpoints": [T // 8 + N, H, D, D],
    **dict.fromkeys(("a", "a_log", "dt_bias", "d"), [H]),
}
_STRUCTURED: dict[str, list[int]] = {
    **dict.fromkeys(("input", "grad", "dY", "image", "inputs"), IMAGE),
    **dict.fromkeys(("scale", "bias", "mean", "inv_variance"), ROW),
    **dict.fromkeys(("in_running_mean", "in_running_var", "peer_stats"), ROW),
    **dict.fromkeys(("epsilon", "momentum"), [1, 1, 1, 1]),
    "weight": [5, 3, 3, 3],
    "filter": [5, 3, 3, 3],
    "loss": [2, 5, 6, 6],
    "descale": [2, 3, 8, 1],
    "group_offset": [2],
    "freqs": [2, 1, 8, 8],
    "doutput": [1, T, 6],
}
_DIMS: dict[str, dict[str, list[int]]] = {
    "moe": {
        "token": [1, T, D],
        "weight": [N, D, 6],
        "first_token_offset": [N, 1, 1],
        **dict.fromkeys(("token_index", "token_ks", "top_k_scores"), [1, T, 1]),
        "doutput": [1, T, 6],
    },
}
# Results whose extents do not follow from the operands.
_RESULTS = {"reduction": [2, 1, 1, 1], "reshape": [2, 192], "conv_wgrad": [5, 3, 3, 3]}
_INTEGERS = ("cu_seqlens", "state_indices", "first_token_offset", "token_index", "token_ks")
_INTS = {
    "block_size": (1, 1, 1, 8),
    "permutation": (0, 2, 3, 1),
    "padding": (1, 1),
    "pre_padding": (1, 0),
    "post_padding": (0, 1),
    "stride": (2, 1),
    "dilation": (2, 1),
}


def bare(op: str) -> Op:
    """The row of an op without its semantic rules, which the tests of the rules cover."""
    return OPS[op].replace(rules=())


def dim_of(spec: Op, port: str) -> list[int]:
    """Extents that suit a port."""
    if spec.is_pointwise:
        return [4, 6, 8]
    if spec.name == "matmul":
        return {"A": [2, 4, 6], "B": [1, 6, 8]}[port]
    if spec.is_python_only:
        return _LINEAR[port]
    if spec.style is Style.CAPTURED:
        return _ATTENTION.get(port, [1, 1, 1, 1])
    return _DIMS.get(spec.name[:3], _STRUCTURED)[port]


def value_of(attr: Attr) -> Any:
    """A value other than the default."""
    kinds: dict[Any, Any] = {
        attr_types.FLOAT: 0.5,
        attr_types.LIMIT: 0.5,
        attr_types.INT: 2,
        attr_types.BOOL: not attr.default,
        attr_types.SLICES: (slice(0, 1), slice(None), slice(2, 8, 2), slice(1, None)),
    }
    if attr.choices:
        return next(choice for choice in attr.choices if choice != attr.default)
    if attr.type in kinds:
        return kinds[attr.type]
    if attr.type is attr_types.INTS:
        return _INTS[attr.name]
    word, _, names = attr.type.word.removeprefix("a ").partition(": ")
    default = attr.default.name if isinstance(attr.default, enum.Enum) else None
    others = [name for name in names.split(", ") if name != default]
    return others[len(others) // 2]


def required_attrs(spec: Op) -> dict[str, Any]:
    return {attr.name: value_of(attr) for attr in spec.attrs if attr.required}


def operands(graph: Graph, spec: Op, wanted: Iterable[Port]) -> dict[str, Any]:
    """A tensor for every port of `wanted`, by port name; two for a list port."""
    made = {}
    for port in wanted:
        names = [f"{port.name}_0", f"{port.name}_1"] if port.is_list else [port.name]
        for name in names:
            dtype = "INT32" if port.name in _INTEGERS or "seq" in port.name else None
            if spec.style is Style.CAPTURED and port.name == "dropout":
                made[name] = graph.tensor([1, 1, 1, 1], name=name)
            else:
                made[name] = graph.tensor(dim_of(spec, port.name), None, dtype, name=name)
    return made


def example(spec: Op, ports: Iterable[str] = (), attrs: Mapping[str, Any] | None = None) -> Graph:
    """A graph of one node: its required ports and `ports`, and `attrs`; every result an output."""
    graph = Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT)
    ports = set(ports)
    wanted = [port for port in spec.ports if not port.optional or port.name in ports]
    made = operands(graph, spec, wanted)
    written = {port.name for port in spec.ports if port.is_result}
    node = graph.add_node(
        spec,
        {name: tensor for name, tensor in made.items() if name not in written},
        {**required_attrs(spec), **(attrs or {})},
        results={name: tensor for name, tensor in made.items() if name in written},
    )
    for name, tensor in node.outputs.items():
        tensor.set_output(True)
        if spec.name in _RESULTS and name not in written:
            tensor.set_dim(_RESULTS[spec.name])
    return graph
