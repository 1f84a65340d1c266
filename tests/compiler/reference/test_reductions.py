"""Every reduction mode against plain loops, over every set of axes; groups; empty extents."""

import functools
import itertools
import math

import numpy as np
import pytest

from cudnn_aot.compiler.reference.groups import boundaries, group_count
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

X = np.array([[[1.0, -2.0, 0.0], [4.0, 0.5, -3.0]], [[-0.25, 2.0, 7.0], [0.0, -1.0, 2.0]]])

MODES = {
    "ADD": math.fsum,
    "MUL": math.prod,
    "MIN": min,
    "MAX": max,
    "AMAX": lambda values: max(abs(value) for value in values),
    "AVG": lambda values: math.fsum(values) / len(values),
    "NORM1": lambda values: math.fsum(abs(value) for value in values),
    "NORM2": lambda values: math.sqrt(math.fsum(value * value for value in values)),
    "MUL_NO_ZEROS": lambda values: math.prod(value for value in values if value),
}


def reduced(x: np.ndarray, mode: str, *dim: int, **inputs: object) -> np.ndarray:
    return apply("reduction", {"input": x, **inputs}, mode=mode, wanted={"OUT_0": dim})["OUT_0"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [a for n in range(4) for a in itertools.combinations(range(3), n)])
def test_modes(mode: str, axes: tuple[int, ...]) -> None:
    dim = tuple(1 if axis in axes else X.shape[axis] for axis in range(3))
    got = reduced(X, mode, *dim)
    assert got.shape == dim
    for index in np.ndindex(dim):
        group = X[tuple(slice(None) if axis in axes else index[axis] for axis in range(3))]
        assert got[index] == pytest.approx(MODES[mode](group.ravel().tolist()), rel=1e-14)


def test_the_mode_may_be_an_enum_member() -> None:
    class Member:
        name = "AMAX"

    assert reduced(X, Member(), 1, 1, 1).item() == 7.0


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        *(("ADD", 0), ("MUL", 1), ("MAX", -np.inf), ("MIN", np.inf), ("AMAX", 0), ("NORM2", 0)),
        ("AVG", np.nan),
    ],
)
@pytest.mark.filterwarnings("error")
def test_nothing_to_reduce_gives_the_neutral_value(mode: str, wanted: float) -> None:
    got = reduced(np.zeros((3, 0)), mode, 3, 1)
    np.testing.assert_array_equal(got, np.full((3, 1), wanted))
    assert reduced(np.zeros((0, 5)), mode, 0, 1).shape == (0, 1)


@pytest.mark.parametrize("offsets", [[0, 2, 2, 5], [0, 2, 2, 5, 7]])
def test_groups_reduce_their_own_rows(offsets: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 7, 3))
    got = reduced(x, "ADD", 1, 4, 3, group_offset=np.array(offsets).reshape(-1, 1, 1))
    parts = [x[0, 0:2], x[0, 2:2], x[0, 2:5], x[0, 5:7]]
    want = np.array([functools.reduce(np.add, part, np.zeros(3)) for part in parts])
    np.testing.assert_allclose(got[0], want, atol=1e-15)


def test_boundaries() -> None:
    assert boundaries([0, 3], 2, 9).tolist() == [0, 3, 9]
    assert boundaries([0, 3, 7], 2, 9).tolist() == [0, 3, 7]
    for bad in ([0], [3, 0], [0, 10], [-1, 3]):
        with pytest.raises(InvalidGraphError, match="group offsets"):
            boundaries(bad, 2, 9)
    assert [group_count(n, 4) for n in (4, 5, 8, 9)] == [4, 4, 8, 8]
    assert [group_count(n, 1) for n in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(InvalidGraphError, match="got 6, want a multiple of 4 experts, or one more"):
        group_count(6, 4)


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="output axis 1: got 2, want 1 or 3"):
        reduced(np.zeros((3, 3)), "ADD", 3, 2)
    with pytest.raises(InvalidGraphError, match="mode: got NOT_SET, want one of ADD, MUL"):
        apply("reduction", {"input": np.zeros(3)}, wanted={"OUT_0": (1,)})
    with pytest.raises(InvalidGraphError, match="output OUT_0 has no dim"):
        apply("reduction", {"input": np.zeros(3)}, mode="ADD")
