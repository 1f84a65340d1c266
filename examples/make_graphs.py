"""Write examples/graphs/*.json: GEMM graphs with the shapes of real models.

    python examples/make_graphs.py [FOLDER]

The weights are stored [N, K], so a matmul's B is column-major: extents [1, K, N], strides [K*N, 1,
K]. Prefill graphs have 128 rows, so that they also run on a CPU in seconds; on a GPU a deployment
would use its own row counts, or a symbol as `llama8b_qkv_dynamic` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn_aot as cudnn

# Llama-3-8B
HIDDEN, QKV, FFN, HEADS, HEAD_DIM = 4096, 6144, 14336, 32, 128
# ViT-L/16: two images of 14 * 14 patches and a class token
VIT_TOKENS, VIT_HIDDEN, VIT_MLP = 2 * 197, 1024, 4096

bf16, fp16, fp32 = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT

MAKERS: list[Callable[[], Any]] = []


def example(maker: Callable[[], Any]) -> Callable[[], Any]:
    """Add a function that returns a graph to the list; the graph gets its name."""
    MAKERS.append(maker)
    return maker


def new_graph(io: Any = bf16, **kwargs: Any) -> Any:
    """A graph with fp32 arithmetic and fp32 intermediates."""
    return cudnn.pygraph(
        io_data_type=io, intermediate_data_type=fp32, compute_data_type=fp32, **kwargs
    )


def linear(g: Any, m: int | str, k: int, n: int) -> Any:
    """``X @ W.T`` with W stored [n, k]."""
    x = g.tensor(name="X", dim=[1, m, k])
    w = g.tensor(name="W", dim=[1, k, n], stride=[k * n, 1, k])
    return g.matmul(x, w, name="matmul")


def output(tensor: Any, name: str = "Y", **kwargs: Any) -> None:
    tensor.set_output(True, **kwargs).set_name(name)


@example
def llama8b_qkv_prefill() -> Any:
    g = new_graph()
    output(linear(g, 128, HIDDEN, QKV))
    return g


@example
def llama8b_qkv_dynamic() -> Any:
    """One plan for every row count of a step; the hint is a decode batch."""
    symbols = {"M": cudnn.Symbol(min=1, max=8192, hint=128)}
    g = new_graph(symbols=symbols)
    output(linear(g, "M", HIDDEN, QKV))
    return g


@example
def llama8b_qkv_decode16() -> Any:
    g = new_graph()
    output(linear(g, 16, HIDDEN, QKV))
    return g


@example
def llama8b_o_residual() -> Any:
    g = new_graph()
    y = linear(g, 128, HIDDEN, HIDDEN)
    residual = g.tensor(name="residual", dim=[1, 128, HIDDEN])
    output(g.add(y, residual, name="residual_add"))
    return g


@example
def llama8b_gate_up() -> Any:
    """The gated FFN's first half: silu(X @ W.T + bias) * up, with the up projection given."""
    g = new_graph()
    gate = linear(g, 128, HIDDEN, FFN)
    bias = g.tensor(name="bias", dim=[1, 1, FFN])
    up = g.tensor(name="up", dim=[1, 128, FFN])
    output(g.mul(g.swish(g.bias(gate, bias)), up))
    return g


@example
def llama8b_down_prefill() -> Any:
    g = new_graph()
    output(linear(g, 128, FFN, HIDDEN))
    return g


@example
def llama8b_down_decode1() -> Any:
    """One token: the K of 14336 is where splitting K pays."""
    g = new_graph()
    output(linear(g, 1, FFN, HIDDEN))
    return g


@example
def llama8b_attention_scores() -> Any:
    """A batch of 32 heads: Q @ K.T scaled by a host number, in fp32."""
    g = new_graph()
    tokens = 256
    q = g.tensor(name="Q", dim=[HEADS, tokens, HEAD_DIM])
    k = g.tensor(
        name="K",
        dim=[HEADS, HEAD_DIM, tokens],
        stride=[tokens * HEAD_DIM, 1, HEAD_DIM],
    )
    scale = g.tensor_scalar(HEAD_DIM**-0.5, name="attn_scale")
    scores = g.scale(g.matmul(q, k, name="matmul"), scale)
    output(scores.set_data_type(fp32), "S")
    return g


@example
def vit_l16_fc1_gelu() -> Any:
    """fp16, and rows that are no multiple of a tile."""
    g = new_graph(fp16)
    y = linear(g, VIT_TOKENS, VIT_HIDDEN, VIT_MLP)
    bias = g.tensor(name="bias", dim=[1, 1, VIT_MLP])
    output(g.gelu(g.bias(y, bias)))
    return g


@example
def scale_relu_two_outputs() -> Any:
    """A scale that lives on the device; the activated copy may be left out of a call."""
    g = new_graph()
    y = linear(g, 256, 1024, 1024)
    alpha = g.tensor(name="alpha", dim=[1, 1, 1], data_type=fp32)
    scaled = g.scale(y, alpha)
    output(scaled, "Y")
    output(g.relu(scaled), "Y_relu", optional=True)
    return g


@example
def odd_sizes() -> Any:
    """No extent is a multiple of a tile, and rows of Y start at odd addresses."""
    g = new_graph()
    y = linear(g, 257, 504, 1003)
    bias = g.tensor(name="bias", dim=[1, 1, 1003])
    output(g.tanh(g.bias(y, bias)))
    return g


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for maker in MAKERS:
        graph = maker()
        graph.name = maker.__name__
        (folder / f"{graph.name}.json").write_text(cudnn.dumps(graph), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("graphs"))
