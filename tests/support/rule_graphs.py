"""One-node graphs as data, built alike by this package and by the cuDNN frontend.

A spec holds an op, its arguments by keyword and its results; a tensor is a mapping with ``dim``.
`changed` gives a spec with other values at dotted paths, None taking a value out. Run as a program
it reads specs and writes the verdict of the frontend on each: this module imports neither package.
"""

import json
import sys
from typing import Any

Spec = dict[str, Any]


def t(*dim: int, type: str = "HALF", **fields: Any) -> Spec:
    """A tensor."""
    return {"dim": list(dim), "type": type, **fields}


def number(value: str = "FLOAT") -> Spec:
    return t(1, 1, 1, 1, type=value)


B, H, KV, S, D = 2, 4, 2, 16, 32
_Q, _K = t(B, H, S, D), t(B, KV, S, D)
_STATS = t(B, H, S, 1, type="FLOAT")
_FP8_Q, _FP8_K = t(B, H, S, D, type="FP8_E4M3"), t(B, KV, S, D, type="FP8_E4M3")


def _scales(heads: int, *blocks: int) -> Spec:
    return t(B, heads, *blocks, type="FP8_E8M0", reorder="F8_128x4")


_MX = {
    "descale_q": _scales(H, S, 1),
    "descale_k": _scales(KV, S, 1),
    "descale_v": _scales(KV, 1, D),
}
_FP8 = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s")
_FP8_BWD = (
    "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP scale_s scale_dQ"
)
LENGTHS = {
    "use_padding_mask": True,
    "seq_len_q": t(B, 1, 1, 1, type="INT32"),
    "seq_len_kv": t(B, 1, 1, 1, type="INT32"),
}
PAGES = {
    "k": t(9, KV, 4, D),
    "v": t(9, KV, 4, D),
    "paged_attention_k_table": t(B, 1, 4, 1, type="INT32"),
    "paged_attention_v_table": t(B, 1, 4, 1, type="INT32"),
    "paged_attention_max_seq_len_kv": 16,
    **LENGTHS,
}

T, N, K, V, HQ, HV = 24, 3, 8, 16, 2, 4
_STATE = t(N, HV, V, K, type="FLOAT")


def _linear(family: str) -> Spec:
    """Arguments of the family's forward op."""
    rows = T * 2 if family == "gdp" else T
    channels = (K,) if family in ("kda", "gdn2") else ()
    made = {
        "q": t(T, HQ, K),
        "k": t(rows, HQ, K),
        "v": t(rows, HV, V),
        "g": t(T, HV, *channels, type="FLOAT"),
        "cu_seqlens": t(N + 1, type="INT32"),
    }
    if family == "mamba2":
        return {**made, "a": t(HV, type="FLOAT")}
    beta = (T, HV, K) if family == "gdn2" else (rows, HV)
    made["beta"] = t(*beta, type="FLOAT")
    if family == "gdn2":
        made["w"] = t(T, HV, V)
    return {**made, "num_householder": 2} if family == "gdp" else made


def _families() -> dict[str, Spec]:
    specs = {}
    for family in ("gdn", "kda", "gdn2", "gdp", "mamba2"):
        made = _linear(family)
        grad = {"dO": t(T, HV, V)}
        specs[family] = made
        specs[f"{family}_bwd"] = {**made, **grad}
        specs[f"{family}_summary"] = {port: made[port] for port in made if port != "q"}
        specs[f"{family}_summary_bwd"] = {
            **{port: made[port] for port in made if port not in ("v", "w")},
            **grad,
        }
    return specs


# A valid graph of every op with rules: its arguments by keyword.
VALID: dict[str, Spec] = {
    "matmul": {"A": t(2, 8, 16), "B": t(1, 16, 4)},
    "relu": {"input": t(2, 3, 4), "upper_clip": 6.0},
    "relu_backward": {"loss": t(2, 3, 4), "input": t(2, 3, 4), "upper_clip": 6.0},
    "gen_index": {"input": t(2, 3, 4), "axis": 1},
    "moe_grouped_matmul": {
        "token": t(1, 32, 8),
        "weight": t(4, 8, 16),
        "first_token_offset": t(4, 1, 1, type="INT32"),
        "mode": "enum moe_grouped_matmul_mode.NONE",
    },
    "moe_grouped_matmul_bwd": {
        "doutput": t(1, 32, 16),
        "token": t(1, 32, 8),
        "first_token_offset": t(4, 1, 1, type="INT32"),
    },
    "block_scale_dequantize": {
        "input": t(1, 128, 64, type="FP8_E4M3"),
        "descale": t(1, 128, 2, type="FP8_E8M0"),
        "block_size": [1, 32],
    },
    "block_scale_quantize": {"input": t(1, 128, 64), "block_size": 32},
    "reduction": {
        "input": t(4, 8, 16),
        "mode": "enum reduction_mode.ADD",
        "results": [{"dim": [4, 1, 16]}],
    },
    "rmsnorm": {
        "input": t(8, 16, 1, 1),
        "scale": t(1, 16, 1, 1),
        "epsilon": number(),
        "norm_forward_phase": "enum norm_forward_phase.TRAINING",
    },
    "rmsnorm_backward": {
        "grad": t(8, 16, 1, 1),
        "input": t(8, 16, 1, 1),
        "scale": t(1, 16, 1, 1),
        "inv_variance": t(8, 1, 1, 1),
        "has_dbias": True,
    },
    "layernorm": {
        "input": t(8, 16, 1, 1),
        "scale": t(1, 16, 1, 1),
        "bias": t(1, 16, 1, 1),
        "epsilon": number(),
        "norm_forward_phase": "enum norm_forward_phase.TRAINING",
    },
    "layernorm_backward": {
        "grad": t(8, 16, 1, 1),
        "input": t(8, 16, 1, 1),
        "scale": t(1, 16, 1, 1),
        "mean": t(8, 1, 1, 1),
        "inv_variance": t(8, 1, 1, 1),
    },
    "instancenorm": {
        "input": t(2, 3, 8, 8),
        "scale": t(1, 3, 1, 1),
        "bias": t(1, 3, 1, 1),
        "epsilon": number(),
        "norm_forward_phase": "enum norm_forward_phase.TRAINING",
    },
    "instancenorm_backward": {
        "grad": t(2, 3, 8, 8),
        "input": t(2, 3, 8, 8),
        "scale": t(1, 3, 1, 1),
        "mean": t(2, 3, 1, 1),
        "inv_variance": t(2, 3, 1, 1),
    },
    "batchnorm": {
        "input": t(2, 3, 8, 8),
        **{port: t(1, 3, 1, 1) for port in ("scale", "bias", "in_running_mean", "in_running_var")},
        "epsilon": number(),
        "momentum": number(),
    },
    "batchnorm_inference": {
        "input": t(2, 3, 8, 8),
        **{port: t(1, 3, 1, 1) for port in ("mean", "inv_variance", "scale", "bias")},
    },
    "batchnorm_backward": {
        "grad": t(2, 3, 8, 8),
        "input": t(2, 3, 8, 8),
        **{port: t(1, 3, 1, 1) for port in ("scale", "mean", "inv_variance")},
    },
    "genstats": {"input": t(2, 3, 8, 8)},
    "conv_fprop": {
        "image": t(2, 4, 8, 8),
        "weight": t(6, 2, 3, 3),
        "padding": [1, 1],
        "stride": [2, 2],
        "dilation": [1, 1],
    },
    "conv_dgrad": {
        "loss": t(2, 6, 4, 4),
        "filter": t(6, 2, 3, 3),
        "padding": [1, 1],
        "stride": [2, 2],
        "dilation": [1, 1],
        "results": [{"dim": [2, 4, 8, 8]}],
    },
    "conv_wgrad": {
        "image": t(2, 4, 8, 8),
        "loss": t(2, 6, 4, 4),
        "padding": [1, 1],
        "stride": [2, 2],
        "dilation": [1, 1],
        "results": [{"dim": [6, 2, 3, 3]}],
    },
    "reshape": {"input": t(4, 6), "results": [{"dim": [3, 8]}]},
    "slice": {"input": t(4, 6), "slices": ["slice 0 2", "slice 1 6"]},
    "transpose": {"input": t(4, 6), "permutation": [1, 0]},
    "concatenate": {"inputs": [t(4, 6), t(2, 6)], "axis": 0, "results": [{"dim": [6, 6]}]},
    "rope": {"input": t(2, 4, 16, 8), "freqs": t(16, 1, 1, 8, type="FLOAT")},
    "rope_backward": {"dY": t(2, 4, 16, 8), "freqs": t(16, 1, 1, 8, type="FLOAT")},
    "sdpa": {"q": _Q, "k": _K, "v": _K, "is_inference": False},
    "sdpa_backward": {"q": _Q, "k": _K, "v": _K, "o": _Q, "dO": _Q, "stats": _STATS},
    "sdpa_fp8": {
        "q": _FP8_Q,
        "k": _FP8_K,
        "v": _FP8_K,
        **{port: number() for port in (*_FP8, "scale_o")},
        "is_inference": False,
    },
    "sdpa_fp8_backward": {
        **{"q": _FP8_Q, "k": _FP8_K, "v": _FP8_K, "o": _FP8_Q, "dO": _FP8_Q, "stats": _STATS},
        **{port: number() for port in (*_FP8_BWD.split(), "scale_dK", "scale_dV", "scale_dP")},
    },
    "sdpa_mxfp8": {"q": _FP8_Q, "k": _FP8_K, "v": _FP8_K, **_MX, "is_inference": False},
    "sdpa_mxfp8_backward": {
        **{"q": _FP8_Q, "q_T": _FP8_Q, "k": _FP8_K, "k_T": _FP8_K, "v": _FP8_K},
        **{"o_f16": _Q, "dO_f16": _Q, "dO": _FP8_Q, "dO_T": _FP8_Q, "stats": _STATS},
        **_MX,
        "descale_q_T": _scales(H, 1, D),
        "descale_k_T": _scales(KV, 1, D),
        "descale_dO": _scales(H, S, 1),
        "descale_dO_T": _scales(H, 1, D),
        "results": [
            *({"dim": port["dim"]} for port in (_Q, _K, _K)),
            *({"dim": [1, 1, 1, 1]} for _ in range(3)),
        ],
    },
    **_families(),
}
VALID["adalayernorm"] = VALID["layernorm"]
VALID["adalayernorm_backward"] = VALID["layernorm_backward"]


def _copy(value: Any) -> Any:
    """A copy in which no two tensors are one."""
    return json.loads(json.dumps(value))


def changed(op: str, changes: Spec) -> Spec:
    """The valid graph of `op` with other values: ``{"q.dim": [...], "bias": t(...)}``."""
    spec = _copy({"op": op, "results": [], **VALID[op]})
    for path, value in changes.items():
        *steps, last = path.split(".")
        place: Any = spec
        for step in steps:
            place = place[step]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = _copy(value)
    return spec


def build(cudnn: Any, spec: Spec) -> Any:
    """The graph of a spec, by either package; every result is an output."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )

    def tensor(given: Spec) -> Any:
        made = graph.tensor(
            dim=given["dim"],
            stride=given.get("stride"),
            data_type=getattr(cudnn.data_type, given["type"]),
        )
        if given.get("ragged"):
            made.set_ragged_offset(tensor(t(given["dim"][0] + 1, 1, 1, 1, type="INT32")))
        if given.get("reorder"):
            made.set_reordering_type(getattr(cudnn.tensor_reordering, given["reorder"]))
        return made

    def value(given: Any) -> Any:
        if isinstance(given, dict):
            return tensor(given)
        if isinstance(given, list) and any(isinstance(item, (dict, str)) for item in given):
            return [value(item) for item in given]
        if isinstance(given, str) and given.startswith("enum "):
            kind, _, name = given.removeprefix("enum ").partition(".")
            return getattr(getattr(cudnn, kind), name)
        if isinstance(given, str) and given.startswith("slice "):
            return slice(*map(int, given.split()[1:]))
        if given == "function":
            return lambda graph, score: score
        return given

    op, results = spec["op"], spec["results"]
    arguments = {name: value(v) for name, v in spec.items() if name not in ("op", "results")}
    if "dropout" in arguments:
        arguments["dropout"] = tuple(arguments["dropout"])
    made = getattr(graph, op)(**arguments)
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    for index, result in enumerate(made):
        if result is None:
            continue
        fields = results[index] if index < len(results) else {}
        if fields.get("dim"):
            result.set_dim(fields["dim"])
        if fields.get("stride"):
            result.set_stride(fields["stride"])
        if fields.get("type"):
            result.set_data_type(getattr(cudnn.data_type, fields["type"]))
        if op == "block_scale_dequantize" and not fields.get("is_output"):
            graph.identity(result).set_output(True)
        else:
            result.set_output(True)
    return graph


def verdict(cudnn: Any, spec: Spec) -> str:
    """``ok``, or the kind of error that building and validating gives."""
    try:
        build(cudnn, spec).validate()
    except Exception as error:
        return _kind(cudnn, error)
    return "ok"


def refusing(graph: Any) -> Any:
    """The rule of this package that refuses the graph, or None where none does."""
    for node in graph.nodes:
        for rule in node.spec.rules:
            if rule(node.view) is not None:
                return rule
    return None


def _kind(cudnn: Any, error: Exception) -> str:
    kinds = (ValueError, cudnn.cudnnGraphNotSupportedError)
    return next((kind.__name__ for kind in kinds if isinstance(error, kind)), repr(error))


def _frontend_verdict(cudnn: Any, spec: Spec) -> str:
    """The frontend's verdict; ``-`` where only its native library, which needs a driver, has one.

    Its rules in Python are asked directly too, since it skips them for what only its own engines
    serve. A graph that passes may still be ``declined`` by the analysis that planning starts with.
    """
    from cudnn import _gemm_validate, _sdpa_validate  # type: ignore[import-not-found]

    is_native = False
    try:
        graph = build(cudnn, spec)
        try:
            graph.validate()
        except (ValueError, cudnn.cudnnGraphNotSupportedError):
            raise
        except Exception:  # on the way into the native library, for want of a driver
            is_native = True
        for validator in (_gemm_validate, _sdpa_validate):
            if validator.validate_graph(graph):
                is_native = False
    except Exception as error:
        return _kind(cudnn, error)
    return "-" if is_native else _analysis(graph)


def _analysis(graph: Any) -> str:
    from cudnn.linear_attention import graph_analyzer as linear  # type: ignore[import-not-found]
    from cudnn.sdpa import graph_analyzer as attention

    for analyzer in (linear, attention):
        facts = analyzer.analyze(graph)
        if facts is not None and facts.invalid:
            return "declined"
    return "ok"


def main() -> None:
    """Specs on stdin, the frontend's verdicts on stdout, both JSON."""
    import cudnn

    json.dump([_frontend_verdict(cudnn, spec) for spec in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
