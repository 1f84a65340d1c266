"""The op table, run on numpy as a third machine: the same rows that kernels trace."""

from __future__ import annotations

import math

import numpy as np
import op_chains
import pointwise_graphs
import pytest

from cudnn_aot.compiler.graph.ops.pointwise import ROWS
from cudnn_aot.compiler.reference.call import Call
from cudnn_aot.compiler.reference.ops import compute
from cudnn_aot.recipes.pointwise import TRACED, TRUTH, UNTRACED
from cudnn_aot.recipes.trace import pointwise

GRAPH_ROWS = {row.name: row for row in ROWS}


class Numpy:
    """The machine interface of pointwise.py on float32 arrays."""

    alike = staticmethod(list)
    exp = fast_exp = staticmethod(np.exp)
    log, sqrt, tanh = staticmethod(np.log), staticmethod(np.sqrt), staticmethod(np.tanh)
    sin, cos, tan = staticmethod(np.sin), staticmethod(np.cos), staticmethod(np.tan)
    abs, ceil, floor = staticmethod(np.abs), staticmethod(np.ceil), staticmethod(np.floor)
    maximum, minimum = staticmethod(np.maximum), staticmethod(np.minimum)
    pow, remainder = staticmethod(np.power), staticmethod(np.fmod)

    def select(self, condition, a, b):
        return np.where(condition, a, b).astype(np.float32)

    def reciprocal(self, x):
        return 1 / x

    def divide(self, a, b):
        return a / b

    def rsqrt(self, x):
        return 1 / np.sqrt(x)

    def half_erfc(self, x):
        return np.array([0.5 * math.erfc(v) for v in x], np.float32)

    def gelu(self, x):
        return x * self.half_erfc(x * np.float32(-math.sqrt(0.5)))

    def erf(self, x):
        return np.array([math.erf(v) for v in x], np.float32)

    def widen(self, x):
        return x

    def round_to(self, x, dtype):
        assert dtype == "HALF"
        return x.astype(np.float16).astype(np.float32)


X = np.array([-30, -3, -1.5, -0.0, 0.0, 0.25, 2, 8, 30, np.inf, -np.inf, np.nan], np.float32)


def test_there_is_a_row_for_each_op_of_the_graph_with_its_operands_and_attributes():
    assert set(pointwise.OPS) == TRACED | {"cast"}
    assert not set(pointwise.OPS) & set(UNTRACED)
    for name in TRACED:
        traced, declared = pointwise.OPS[name], GRAPH_ROWS[name]
        assert traced.arity == len(declared.ports), name
        assert dict(traced.attributes) == {
            attr.name: pointwise.REQUIRED if attr.required else attr.default
            for attr in declared.attrs
        }, name


def operands() -> dict[str, np.ndarray]:
    """Pairs of special values, and what stands on the ports for gradients and masks."""
    special = pointwise_graphs.SPECIAL
    x, y = (axis.reshape(-1) for axis in np.meshgrid(special, special))
    return {"x": x, "y": y, "z": np.resize(pointwise_graphs.FINITE, x.shape)}


def reference(name, values, attributes):
    row = GRAPH_ROWS[name]
    inputs = {port.name: value for port, value in zip(row.ports, values, strict=True)}
    return compute(Call(name, inputs, attributes))["OUT_0"]


WITH_DEFAULTS = [
    (name, {}) for name in sorted(TRACED) if not any(a.required for a in GRAPH_ROWS[name].attrs)
]


@pytest.mark.parametrize(
    ("name", "attributes"), [*WITH_DEFAULTS, *pointwise_graphs.ATTRIBUTES.items()]
)
@np.errstate(all="ignore")
def test_values(name, attributes):
    tensors = operands()
    values = [tensors[letter] for letter in pointwise_graphs.operands_of(name)]
    got = pointwise.apply_op(Numpy(), name, values, attributes)
    want = reference(name, values, attributes)
    assert got.dtype == np.float32
    assert pointwise_graphs.TOLERANCE.error(got, want.astype(np.float32)) <= 1
    if name in TRUTH:
        assert set(np.unique(got)) == {0.0, 1.0}


def gelu_of_the_gpu(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """By its instructions in fp32."""
    device = pointwise.DEVICE
    with monkeypatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(pointwise.cute.math, "absf", np.abs)
        patch.setattr(pointwise.cute.math, "exp2", lambda x, fastmath: np.exp2(x))
        patch.setattr(type(device), "minimum", lambda self, a, b: np.minimum(a, np.float32(b)))
        got = device.gelu(x)
    assert got.dtype == np.float32
    return got


def gelu_error(x: np.ndarray, got: np.ndarray) -> np.ndarray:
    want = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    return np.abs(got - want)


GELU_GRID = np.concatenate([np.linspace(-9, 9, 90001), np.linspace(-0.05, 0.05, 2001)]).astype(
    np.float32
)


def test_gelu_of_the_gpu_is_as_exact_as_it_says(monkeypatch: pytest.MonkeyPatch):
    """Beside fp64; near zero relative to the argument."""
    x = GELU_GRID
    error = gelu_error(x, gelu_of_the_gpu(x, monkeypatch))
    assert error.max() <= 5e-7
    near = np.abs(x) <= 0.05
    assert (error[near] <= 1e-6 * np.abs(x[near])).all()


def test_gelu_of_the_gpu_far_out(monkeypatch: pytest.MonkeyPatch):
    x = np.array([np.inf, 3e38, 40, 12, 0, -0.0, 1e-40, -40, -3e38, -np.inf, np.nan], np.float32)
    want = [np.inf, 3e38, 40, 12, 0, 0, 5e-41, 0, 0, np.nan, np.nan]
    got = gelu_of_the_gpu(x, monkeypatch)
    np.testing.assert_allclose(got, np.array(want, np.float32), rtol=1e-7, atol=1e-44)


@pytest.mark.parametrize("place", range(len(pointwise._GELU_TAIL)))
def test_no_coefficient_of_gelu_may_be_off(place, monkeypatch: pytest.MonkeyPatch):
    """By what changes the tail by 1e-5 of it where the argument is 2."""
    tail = list(pointwise._GELU_TAIL)
    tail[place] += 1e-5 / 2**place / math.log(2)
    monkeypatch.setattr(pointwise, "_GELU_TAIL", tuple(tail))
    error = gelu_error(GELU_GRID, gelu_of_the_gpu(GELU_GRID, monkeypatch))
    near = np.abs(GELU_GRID) <= 0.05
    assert error.max() > 5e-7 or (error[near] > 1e-6 * np.abs(GELU_GRID[near])).any()


def test_instructions_are_of_ops():
    assert set(pointwise.INSTRUCTIONS) <= set(pointwise.OPS)
    chain = [["gelu", [0], {}], ["tan", [1], {}], ["elu", [2], {}]]
    assert pointwise.instructions(chain) == 11 + 80 + pointwise.OTHER_INSTRUCTIONS
    casts = [["cast", [0], {"dtype": dtype}] for dtype in ("BFLOAT16", "BOOLEAN", "FP8_E4M3")]
    assert pointwise.instructions(casts) == 2 + 2 + 12


def test_no_op_takes_many_more_instructions_than_said(compile_kernels, tmp_path):
    """Not half as many again, or three where few are said: kernels have room for what is said."""
    count, bare = 4, "none"
    chains = {link: op_chains.epilogue(link, count) for link in op_chains.LINKS}
    chains[bare] = op_chains.epilogue("identity", 0)
    jobs = [
        {
            "name": name,
            "template": "gemm.kernels.simt:matmul",
            "params": op_chains.simt(chain),
            "arch": "sm_90a",
        }
        for name, chain in chains.items()
    ]
    compile_kernels(jobs, tmp_path)
    code = {n: op_chains.machine_code((tmp_path / f"{n}.o").read_bytes()) for n in chains}
    for link in op_chains.LINKS:
        said = pointwise.instructions(chains[link]["nodes"][1:]) / count
        each = (code[link] - code[bare]) / op_chains.SIMT_ELEMENTS / count
        assert each <= max(1.5 * said, said + 3), f"{link}: {each:.1f}, {said:.0f} are said"


@np.errstate(all="ignore")
def test_a_beta_of_zero_makes_swish_a_half():
    loss, x = np.ones_like(X), X
    got = pointwise.apply_op(Numpy(), "swish_backward", [loss, x], {"swish_beta": 0.0})
    np.testing.assert_array_equal(got, [*[0.5] * (len(X) - 1), np.nan])


def test_unset_attributes_are_their_defaults():
    unset = {"negative_slope": None, "lower_clip": None, "upper_clip": None}
    np.testing.assert_array_equal(
        pointwise.apply_op(Numpy(), "relu", [X], unset),
        pointwise.apply_op(Numpy(), "relu", [X], {}),
    )


def test_a_cast_to_boolean_asks_whether_a_value_is_not_zero():
    got = pointwise.apply_op(Numpy(), "cast", [X], {"dtype": "BOOLEAN"})
    np.testing.assert_array_equal(got, [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1])


def test_apply_walks_the_dag():
    """Every value is usable more than once; outputs may name inputs, nodes or the accumulator."""
    epilogue = {
        "inputs": [{"dtype": "FLOAT", "kind": "full"}],
        "nodes": [["add", [0, 1], {}], ["mul", [2, 2], {}], ["cast", [3], {"dtype": "HALF"}]],
        "outputs": [{"value": v, "dtype": "FLOAT"} for v in (4, 0, 1, 2)],
    }
    acc, other = np.float32([1.0, 2.0]), np.float32([0.1, 3.0])
    got = pointwise.apply(epilogue, [acc], [other], Numpy())
    total = acc + other
    want = [(total * total).astype(np.float16).astype(np.float32), acc, other, total]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize(
    ("name", "values", "attributes", "message"),
    [
        ("frobnicate", 1, {}, "pointwise op: got 'frobnicate', want one of identity, abs"),
        ("add", 1, {}, "add: got 1 values, want 2"),
        ("tanh", 1, {"beta": 1.0}, "tanh: got attribute 'beta', want none"),
        ("swish", 1, {"beta": 1.0}, "swish: got attribute 'beta', want swish_beta"),
        ("cast", 1, {}, "cast: attribute 'dtype' is missing"),
        (
            "cast",
            1,
            {"dtype": "INT7"},
            "cast: got dtype 'INT7', want one of FLOAT, HALF, BFLOAT16, FP8_E4M3, ",
        ),
    ],
)
def test_refusals(name, values, attributes, message):
    with pytest.raises(ValueError) as caught:
        pointwise.apply_op(Numpy(), name, [X] * values, attributes)
    assert str(caught.value).startswith(message)


def test_value_ids_are_checked():
    epilogue = {
        "inputs": [],
        "nodes": [["add", [0, 1], {}]],
        "outputs": [{"value": 1, "dtype": "FLOAT"}],
    }
    with pytest.raises(ValueError, match=r"add: got value id 1, want 0\.\.0"):
        pointwise.apply(epilogue, [X], [], Numpy())
    with pytest.raises(ValueError, match="epilogue: got 1 inputs, want 0"):
        pointwise.apply(epilogue, [X], [X], Numpy())
