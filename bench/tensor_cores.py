"""Stored plans of FP8, INT8 and fused matmuls beside torch: TFLOP/s, medians of replays in turns.

    python bench/tensor_cores.py --store STORE [--compile] [--only KIND...]

FP8 stands beside ``torch._scaled_mm`` with sums as exact as it gives them and with
``use_fast_accum``, and with a scale for each block beside the same of blocks, if this torch has it;
INT8 beside ``torch._int_mm``, both with INT32 results, which are exact; a gated FFN ``silu(a @
gate) * (a @ up)``, a bias with GELU, a residual matrix, and a result in FP8 with its largest
magnitude beside torch as it is, beside cuDNN's plan of the graph where its frontend is installed
and, with ``--compile``, beside ``torch.compile(mode="max-autotune")``; all but the FFN beside the
matmul alone too, the last also beside ours. Random data; CUDA graphs of launches that go round sets
of operands, so that small matrices do not stay in L2. Errors are relative to fp32.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

from program import run_main
from replay import ROUNDS, launcher, medians, need_gpu, relative_error, sets_for, torch

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader

NAME = re.compile(r"bench_(fp8|int8|block|gelu|residual|amax|gated|gated_fp8)_(\d+)x(\d+)x(\d+)\Z")
FP8 = getattr(torch, "float8_e4m3fn", None)
BLOCK = 128
AMAX_SCALE = 56.0  # the largest of some 1e8 normal numbers is below 8
# Relative errors, of rounding to bf16 and to E4M3.
ERROR, FP8_ERROR = 1e-2, 4e-2
EXACT = 1e-30  # of nothing: an error is 0 or at least an integer over the largest one
Operands = dict[str, "torch.Tensor"]
Function = Callable[[Operands], "torch.Tensor"]


def operand_sets(kind: str, m: int, n: int, k: int) -> list[Operands]:
    """By the names of the graph's tensors; each B is (N, K), as it lies."""
    dtype = FP8 if kind in ("fp8", "block", "gated_fp8") else torch.bfloat16
    if kind == "int8":
        return int8_sets(m, n, k)
    matrices = {"A": (m, k)} | {b: (n, k) for b in (["Bg", "Bu"] if "gated" in kind else ["B"])}
    size = dtype.itemsize * (m * k + (len(matrices) - 1) * n * k) + 2 * m * n
    sets = []
    for _ in range(sets_for(size)):
        each = {}
        for name, shape in matrices.items():
            scale = 1.0 if name == "A" or dtype is FP8 else k**-0.5
            each[name] = (torch.randn(shape, device="cuda") * scale).to(dtype)
        if kind == "fp8":
            each["a_scale"] = torch.full((1,), 0.5, device="cuda")
            each["b_scale"] = torch.full((1,), 0.25, device="cuda")
        if kind == "gated_fp8":
            each["one"] = torch.ones((), device="cuda")
        if kind == "block":
            each["a_scale"] = torch.rand(k // BLOCK, m, device="cuda").t() + 0.25
            each["b_scale"] = torch.rand(n // BLOCK, k // BLOCK, device="cuda") + 0.25
        if kind == "gelu":
            each["bias"] = torch.randn(n, device="cuda").to(dtype)
        if kind == "residual":
            each["residual"] = torch.randn(m, n, device="cuda").to(dtype)
        each["Y"] = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        if kind == "amax":
            each["plain"], each["Y"] = each["Y"], each["Y"].to(FP8)
            each["scale"] = torch.full((1,), AMAX_SCALE, device="cuda")
            each["AMAX_mn"] = torch.full((1,), float("nan"), device="cuda")
        sets.append(each)
    return sets


def int8_sets(m: int, n: int, k: int) -> list[Operands]:
    """Numbers of all that INT8 has, each as likely."""
    made = []
    for _ in range(sets_for(m * k + n * k + 4 * m * n)):
        a, b = (
            torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
            for shape in ((m, k), (n, k))
        )
        made.append({"A": a, "B": b, "Y": torch.zeros(m, n, device="cuda", dtype=torch.int32)})
    return made


def scaled_mm(fast: bool) -> Function:
    return lambda x: torch._scaled_mm(
        x["A"],
        x["B"].t(),
        scale_a=x["a_scale"],
        scale_b=x["b_scale"],
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def block_mm(x: Operands) -> torch.Tensor:
    return torch._scaled_mm(
        x["A"],
        x["B"].t(),
        scale_a=x["a_scale"],
        scale_b=x["b_scale"].t(),
        out_dtype=torch.bfloat16,
    )


def plain(x: Operands) -> torch.Tensor:
    return x["A"] @ x["B"].t()


def gelu(x: Operands) -> torch.Tensor:
    return torch.nn.functional.gelu(x["A"] @ x["B"].t() + x["bias"])


def residual(x: Operands) -> torch.Tensor:
    return x["A"] @ x["B"].t() + x["residual"]


def amax(x: Operands) -> torch.Tensor:
    y = (x["A"] @ x["B"].t()).float()
    x["AMAX_mn"].copy_(y.abs().amax())
    return (y * x["scale"]).to(FP8)


def gated(x: Operands) -> torch.Tensor:
    return torch.nn.functional.silu(x["A"] @ x["Bg"].t()) * (x["A"] @ x["Bu"].t())


def gated_fp8(x: Operands) -> torch.Tensor:
    products = [
        torch._scaled_mm(
            x["A"], b.t(), scale_a=x["one"], scale_b=x["one"], out_dtype=torch.bfloat16
        )
        for b in (x["Bg"], x["Bu"])
    ]
    return torch.nn.functional.silu(products[0]) * products[1]


FUSED = {"gelu": gelu, "residual": residual, "amax": amax, "gated": gated, "gated_fp8": gated_fp8}


@functools.cache
def cudnn_graph(kind: str, m: int, n: int, k: int) -> Function:
    """The plan of the whole graph that cuDNN's heuristics take, which it fuses or refuses."""
    import cudnn

    bf16, fp32 = cudnn.data_type.BFLOAT16, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        handle=handle, io_data_type=bf16, intermediate_data_type=fp32, compute_data_type=fp32
    )
    shapes = {"A": (m, k), "B": (n, k), "Bg": (n, k), "Bu": (n, k), "bias": (1, n)}
    used = {"gelu": ("A", "B", "bias"), "gated": ("A", "Bg", "Bu")}.get(
        kind, ("A", "B", "residual")
    )
    tensors = {}
    for name in used:
        rows, columns = shapes.get(name, (m, n))
        dim, stride = [1, rows, columns], [rows * columns, columns, 1]
        if name.startswith("B"):  # (N, K), as it lies
            dim, stride = [1, columns, rows], [rows * columns, 1, columns]
        tensors[name] = graph.tensor(name=name, dim=dim, stride=stride)
    products = [graph.matmul(tensors["A"], b) for name, b in tensors.items() if name[0] == "B"]
    if kind == "gated":
        y = graph.mul(graph.swish(products[0]), products[1])
    elif kind == "gelu":
        y = graph.gelu(graph.add(products[0], tensors["bias"]))
    else:
        y = graph.add(products[0], tensors["residual"])
    y.set_output(True).set_data_type(bf16)
    try:
        graph.build([cudnn.heur_mode.A])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise RuntimeError(str(error)) from None
    room = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)

    def run(x: Operands) -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        pack = {tensor: x[name] for name, tensor in tensors.items()} | {y: torch.empty_like(x["Y"])}
        graph.execute(pack, room, handle)
        return pack[y]

    return run


def exact(kind: str, x: Operands) -> torch.Tensor:
    if kind == "int8":
        return x["A"].double() @ x["B"].t().double()
    x = {name: value.float() for name, value in x.items()}
    if kind == "fp8":
        return x["A"] @ x["B"].t() * x["a_scale"] * x["b_scale"]
    if kind == "block":
        a = x["A"] * x["a_scale"].repeat_interleave(BLOCK, 1)
        b = x["B"] * x["b_scale"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return a @ b.t()
    if kind == "amax":
        return x["A"] @ x["B"].t() * x["scale"]
    return FUSED[kind.removesuffix("_fp8")](x)


def rivals(kind: str, compiled: bool) -> Iterator[tuple[str, Function]]:
    if kind == "fp8":
        yield "_scaled_mm", scaled_mm(False)
        yield "_scaled_mm fast", scaled_mm(True)
        return
    if kind == "int8":
        yield "_int_mm", lambda x: torch._int_mm(x["A"], x["B"].t())
        return
    if kind == "block":
        yield "_scaled_mm blocks", block_mm
        return
    function = FUSED[kind]
    if "gated" not in kind:
        yield "matmul alone", plain
    yield "eager", function
    if kind in ("gelu", "residual", "gated") and importlib.util.find_spec("cudnn"):
        yield "cuDNN", lambda x: cudnn_graph(kind, *x["Y"].shape, x["A"].shape[1])(x)
    if compiled:
        yield "max-autotune", torch.compile(function, mode="max-autotune-no-cudagraphs")


def bound(plan: Any, each: Operands) -> dict[int, object]:
    """By uid; addresses, since not every torch gives 8-bit floats a DLPack type."""
    return {plan.uids[name]: value.data_ptr() for name, value in each.items() if name in plan.uids}


def plain_launcher(plan: Any, sets: list[Operands]) -> Callable[[int], object]:
    """Of the matmul alone, on the same A and B."""
    output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
    return launcher(plan, [bound(plan, x) | {output: x["plain"].data_ptr()} for x in sets])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--compile", action="store_true", help="take torch.compile in")
    kinds = NAME.pattern.partition("(")[2].partition(")")[0].split("|")
    parser.add_argument("--only", nargs="+", choices=kinds, help="these kinds of graphs alone")
    given = parser.parse_args()
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    reader, store = StoreReader(given.store), runtime.open(given.store, target="h200")
    names = sorted(name for target, name in reader.names() if target == "h200")
    print(f"{torch.cuda.get_device_name()}, median of {ROUNDS} replays in turns")
    print(f"{'graph':<34}{'':<18}{'us':>9}{'TF/s':>9}{'ratio':>8}{'error':>10}")
    for name, match in ((name, NAME.match(name)) for name in names):
        if match is None:
            continue
        kind, m, n, k = match[1], int(match[2]), int(match[3]), int(match[4])
        if given.only and kind not in given.only:
            continue
        plan, sets = store.plan(name), operand_sets(kind, m, n, k)
        want = exact(kind, sets[0])
        ours_on = launcher(plan, [bound(plan, each) for each in sets])
        ours_on(0)
        torch.cuda.synchronize()
        rows = [("ours", relative_error(sets[0]["Y"], want))]
        launches: list[Callable[[int], object]] = [ours_on]
        if kind == "amax":
            largest = want.abs().amax() / AMAX_SCALE
            if not relative_error(sets[0]["AMAX_mn"], largest) < ERROR:
                raise SystemExit(f"{name}: amax {sets[0]['AMAX_mn'].item()}, want {largest.item()}")
            launches.append(plain_launcher(store.plan(f"bench_{m}x{n}x{k}"), sets))
            launches[-1](0)
            rows.append(("ours, matmul alone", relative_error(sets[0]["plain"], want / AMAX_SCALE)))
        for label, function in rivals(kind, given.compile):
            try:
                rows.append((label, relative_error(function(sets[0]), want)))
            except (RuntimeError, ValueError) as error:  # not in this torch
                print(f"{label}: {str(error).splitlines()[0]}")
                continue
            launches.append(lambda index, function=function, sets=sets: function(sets[index]))
        limit = {"amax": FP8_ERROR, "int8": EXACT}.get(kind, ERROR)
        if not rows[0][1] < limit:
            raise SystemExit(f"{name}: relative error {rows[0][1]}, want below {limit}")
        del want
        times = medians(launches, len(sets))
        flops = 2e-6 * m * n * k * (2 if "gated" in kind else 1)
        for (label, error), us in zip(rows, times, strict=True):
            print(f"{name if label == 'ours' else '':<34}{label:<18}{us:9.2f}"
                  f"{flops / us:9.1f}{us / times[0]:8.3f}{error:10.1e}")  # fmt: skip
        knobs = ", ".join(f"{knob}={value}" for knob, value in sorted(plan.knobs.items()))
        print(f"    {plan.engine}[{knobs}]")


if __name__ == "__main__":
    run_main(main)
