"""Reshape, slice, transpose, concatenate: where every element goes."""

import numpy as np
import pytest

from cudnn_aot.compiler.reference.call import Call, Declared
from cudnn_aot.compiler.reference.ops import apply, compute
from cudnn_aot.errors import InvalidGraphError

X = np.arange(24.0).reshape(2, 3, 4)


def reshaped(x, dim, mode, source=(), target=()):
    call = Call(
        "reshape",
        {"input": x},
        {"reshape_mode": mode},
        {"OUT_0": Declared(dim, stride=target)},
        {"input": Declared(x.shape, stride=source)},
    )
    return compute(call)["OUT_0"]


def test_reshape_of_packed_tensors_is_the_same_in_both_modes() -> None:
    for mode in ("VIEW_ONLY", "LOGICAL"):
        assert np.array_equal(reshaped(X, (4, 6), mode), X.reshape(4, 6))
        assert np.array_equal(reshaped(X, (4, 6), mode, (12, 4, 1), (6, 1)), X.reshape(4, 6))
    assert apply("reshape", {"input": X}, wanted={"OUT_0": (24,)})["OUT_0"].shape == (24,)
    assert reshaped(np.zeros((0, 3)), (3, 0), "VIEW_ONLY").shape == (3, 0)


def test_a_view_keeps_addresses_and_a_logical_reshape_keeps_the_order() -> None:
    # [B, H, S] stored as [B, S, H], read as [B, S * H]: the heads alternate.
    x = np.arange(12.0).reshape(2, 2, 3)
    got = reshaped(x, (2, 6), "VIEW_ONLY", (6, 1, 2), (6, 1))
    assert np.array_equal(got, x.transpose(0, 2, 1).reshape(2, 6))
    assert np.array_equal(reshaped(x, (2, 6), "LOGICAL", (6, 1, 2), (6, 1)), x.reshape(2, 6))


def test_slice() -> None:
    got = apply("slice", {"input": X}, slices=[slice(0, 1), slice(None, None, 2), slice(-3, None)])
    assert np.array_equal(got["OUT_0"], X[:1, ::2, -3:])
    triples = apply("slice", {"input": X}, slices=((0, 1, 1), (0, None, 2), (-3, None, 1)))
    assert np.array_equal(triples["OUT_0"], got["OUT_0"])
    assert np.array_equal(apply("slice", {"input": X}, slices=[slice(1, 2)])["OUT_0"], X[1:2])


def test_transpose() -> None:
    got = apply("transpose", {"input": X}, permutation=[2, 0, 1])["OUT_0"]
    assert got.shape == (4, 2, 3)
    assert all(got[k, i, j] == X[i, j, k] for i, j, k in np.ndindex(X.shape))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(axis: int) -> None:
    got = apply(
        "concatenate", {"inputs_0": X, "inputs_1": -X, "inputs_2": X}, axis=axis, in_place_index=0
    )
    assert np.array_equal(got["OUT_0"], np.concatenate([X, -X, X], axis=axis))


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="output: got 23 elements, want the input's 24"):
        apply("reshape", {"input": X}, wanted={"OUT_0": (23,)})
    with pytest.raises(InvalidGraphError, match=r"permutation: got \(0, 1\), want one of 3 axes"):
        apply("transpose", {"input": X}, permutation=[0, 1])
    with pytest.raises(InvalidGraphError, match="reach beyond the input's elements"):
        reshaped(X, (24,), "VIEW_ONLY", (12, 4, 1), (2,))
