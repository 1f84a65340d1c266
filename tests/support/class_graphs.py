"""Three classes of graphs for the CPU: their symbolic graphs, members, near misses of every kind.

What a case changes is told by its fields, so that a member and its near misses are declared by the
same code, as a program declares a graph for each of its steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.runtime.plan import Plan

BF16, HALF, FLOAT = data_type.BFLOAT16, data_type.HALF, data_type.FLOAT


@dataclass(frozen=True, slots=True)
class Linear:
    """``Y = relu((A @ W + bias) * factor)``, clipped; without a factor no node multiplies by it."""

    m: Any = "M"
    n: int = 64
    k: int = 48
    row: int = 0  # elements from one row of A to the next, unless dense
    dtype: data_type = BF16
    alignment: int = 16
    factor: float | None = 0.5
    clip: float = 6.0
    has_tanh: bool = False
    uid: int = 5
    name: str = "linear"

    def graph(self) -> Graph:
        symbols = {"M": {"min": 8, "max": 4096, "multiple_of": 8}}
        graph = Graph(
            self.name,
            self.dtype,
            FLOAT,
            FLOAT,
            symbols=None if isinstance(self.m, int) else symbols,
        )
        m, n, k, row = self.m, self.n, self.k, self.row or self.k
        a = graph.tensor(
            [1, m, k], [f"{row}*{m}", row, 1], uid=1, name="A", alignment_value=self.alignment
        )
        w = graph.tensor([1, k, n], [k * n, 1, k], uid=2, name="W")
        bias = graph.tensor([1, 1, n], uid=3, name="bias")
        y = graph.bias(graph.matmul(a, w), bias)
        if self.factor is not None:
            factor = graph.tensor(
                [1, 1, 1], None, FLOAT, is_pass_by_value=True, uid=4, name="factor"
            )
            factor.pass_by_value = self.factor
            y = graph.scale(y, factor)
        y = graph.relu(y, upper_clip=self.clip)
        if self.has_tanh:
            y = graph.tanh(y)
        y.set_uid(self.uid).set_name("Y").set_output(True)
        return graph


@dataclass(frozen=True, slots=True)
class Batched:
    """``Y = A @ B + bias`` of a batch of any size, `B` and the bias the same for all of it."""

    b: Any = "B"
    m: Any = "M"
    n: int = 24
    k: int = 32
    bias_batch: int = 1
    name: str = "batched"

    def graph(self) -> Graph:
        symbols = {"B": {"min": 1, "max": 64}, "M": {"min": 1, "max": 512}}
        declared = None if isinstance(self.m, int) else symbols
        graph = Graph(self.name, FLOAT, FLOAT, FLOAT, symbols=declared)
        b, m, n, k = self.b, self.m, self.n, self.k
        a = graph.tensor([b, m, k], [f"{m}*{k}", k, 1], uid=1, name="A")
        w = graph.tensor([1, k, n], uid=2, name="W")
        bias = graph.tensor([self.bias_batch, 1, n], uid=3, name="bias")
        graph.bias(graph.matmul(a, w), bias).set_uid(4).set_name("Y").set_output(True)
        return graph


def build_store(folder: Path) -> Path:
    """A store with the symbolic graph of each class, for the CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for case in (Linear(), Linear(factor=None, name="plain"), Batched()):
        files.append(folder / f"{case.name}.json")
        files[-1].write_text(graph_json.dumps(case.graph()), encoding="utf-8")
    summary = build(files, ["cpu"], folder / "store")
    assert summary.exit_code() == 0, summary
    return folder / "store"


def any_plain(dice: random.Random) -> Linear:
    """A matmul, a bias and a relu, of random extents."""
    return Linear(m=8 * dice.randint(1, 512), factor=None, name="step")


def any_linear(dice: random.Random) -> Linear:
    return Linear(m=8 * dice.randint(1, 512), factor=dice.uniform(-2, 2), name="step")


def any_batched(dice: random.Random) -> Batched:
    return Batched(b=dice.randint(1, 64), m=dice.randint(1, 512), name="step")


def execute_and_check(plan: Plan, graph: Graph, seed: int) -> None:
    """Execute a bound plan of a graph on random operands; compare with the reference."""
    import numpy as np  # here: a bench that declares graphs has a help without it

    from cudnn_aot.cli.operands import compare, make_operands

    operands = make_operands(graph, {}, seed)
    bindings = {buffer.uid: buffer.view for buffer in (*operands.inputs, *operands.outputs)}
    workspace = np.empty(plan.workspace_bytes(), np.uint8)
    plan.execute(bindings, workspace)
    worst, correct = compare(graph, operands, {})
    assert correct, worst


LINEAR = Linear(m=64)  # a member
BATCHED = Batched(b=3, m=17)

# What is wrong with each, as the error says it.
NEAR_MISSES: dict[str, tuple[Linear | Batched, str]] = {
    "N one more": (replace(LINEAR, n=65), "got 65, want 64"),
    "N one less": (replace(LINEAR, n=63), "got 63, want 64"),
    "K one more": (replace(LINEAR, k=49), "got 49, want 48"),
    "padded rows": (replace(LINEAR, row=56), "stride[0]: got 3584, want 48*M = 3072 (M = 64)"),
    "dtype": (replace(LINEAR, dtype=HALF), "data_type: got HALF, want BFLOAT16"),
    "alignment": (replace(LINEAR, alignment=8), "alignment_value: got 8, want 16"),
    "no multiple": (replace(LINEAR, m=60), "symbol 'M': got 60, want a multiple of 8"),
    "above the domain": (replace(LINEAR, m=4104), "symbol 'M': got 4104, want 8..4096"),
    "one above the domain": (replace(LINEAR, m=4097), "symbol 'M': got 4097, want 8..4096"),
    "one below the domain": (replace(LINEAR, m=7), "symbol 'M': got 7, want 8..4096"),
    "no row": (replace(LINEAR, m=0), "symbol 'M': got 0, want 8..4096"),
    "extra node": (replace(LINEAR, has_tanh=True), "ops: got bias matmul relu scale tanh, want"),
    "attribute": (replace(LINEAR, clip=7.0), "upper_clip=7.0, want"),
    "uid": (replace(LINEAR, uid=6), "uids of the outputs: got [6], want [5]"),
    "batch above the domain": (replace(BATCHED, b=65), "symbol 'B': got 65, want 1..64"),
    "M above the domain": (replace(BATCHED, m=513), "symbol 'M': got 513, want 1..512"),
    "a bias for each": (replace(BATCHED, bias_batch=3), "(uid 3): dim[0]: got 3, want 1"),
}
