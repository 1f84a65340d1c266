"""Block scaling: the documented formula on hand-made blocks, and bounds that it must keep."""

import numpy as np
import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.call import Declared
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.compiler.reference.storage import largest, round_to
from cudnn_aot.errors import InvalidGraphError

E4M3, E5M2, E8M0 = data_type.FP8_E4M3, data_type.FP8_E5M2, data_type.FP8_E8M0
E2M1 = data_type.FP4_E2M1

RECIPES = {"mxfp8": (E4M3, E8M0, 32), "mxfp8 wide": (E5M2, E8M0, 32), "nvfp4": (E2M1, E4M3, 16)}


def quantized(x: np.ndarray, dtype: data_type, scales: data_type, block: int, **attrs: object):
    dim = attrs.pop("scale_dim", ())
    inputs = {"input": x, "group_offset": attrs.pop("group_offset", None)}
    wanted = {"Y": Declared(x.shape, dtype), "scale": Declared(dim, scales)}
    got = apply("block_scale_quantize", inputs, block_size=block, wanted=wanted, **attrs)
    return got["Y"], got["scale"]


def test_a_block_by_hand() -> None:
    x = np.zeros((1, 16))
    x[0, :4] = [12.0, -4.9, 1.0, 0.4]
    y, scale = quantized(x, E2M1, E4M3, 16)
    assert scale.tolist() == [[2.0]]  # 12 / 6
    assert y[0, :4].tolist() == [6.0, -2.0, 0.5, 0.0]  # 2.45 goes to 2, 0.2 to 0
    x[0, 0] = 12.1  # 2.0167 is no E4M3: the next above is 2.25
    y, scale = quantized(x, E2M1, E4M3, 16)
    assert scale.tolist() == [[2.25]] and y[0, 0] == 6.0
    y, scale = quantized(np.full((1, 32), 449.0), E4M3, E8M0, 32)
    assert scale.tolist() == [[2.0]] and (y == 224.0).all()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_no_value_is_beyond_the_type_and_all_are_near(recipe: str, axis: int) -> None:
    dtype, scales, block = RECIPES[recipe]
    rng = np.random.default_rng(2)
    # six octaves, so that the scales stay normal numbers of E4M3
    x = rng.standard_normal((70, 40)) * np.exp2(rng.integers(-3, 3, (70, 40)))
    y, scale = quantized(x, dtype, scales, block, axis=axis)
    assert np.array_equal(round_to(y, dtype), y) and np.array_equal(round_to(scale, scales), scale)
    sizes = [1, 1]
    sizes[axis] = block
    back = apply("block_scale_dequantize", {"input": y, "descale": scale}, block_size=sizes)[
        "OUT_0"
    ]
    amax = np.maximum.reduceat(np.abs(x), np.arange(0, x.shape[axis], block), axis=axis)
    assert (scale * largest(dtype) >= amax).all()
    # half a step of the type at the block's largest number, which a scale at most doubles
    step = {E4M3: 2.0**-3, E5M2: 2.0**-2, E2M1: 0.5}[dtype]
    bound = np.repeat(amax, block, axis=axis)
    bound = bound[tuple(slice(0, n) for n in x.shape)] * step
    assert (np.abs(back - x) <= bound).all()


def test_scaling_by_a_power_of_two_moves_the_scales_alone() -> None:
    x = np.random.default_rng(0).standard_normal((4, 64))
    y, scale = quantized(x, E4M3, E8M0, 32)
    far, scaled = quantized(x * 2.0**40, E4M3, E8M0, 32)
    assert np.array_equal(far, y) and np.array_equal(scaled, scale * 2.0**40)


def test_zeros_and_saturation() -> None:
    y, scale = quantized(np.zeros((1, 32)), E4M3, E8M0, 32)
    assert not y.any() and scale.tolist() == [[2.0**-127]]
    y, scale = quantized(np.zeros((1, 16)), E2M1, E4M3, 16)
    assert not y.any() and not scale.any()
    y, scale = quantized(np.full((1, 16), 1e9), E2M1, E4M3, 16)
    assert scale.tolist() == [[448.0]] and (y == 6.0).all()


def test_transpose_and_padded_scales() -> None:
    x = np.random.default_rng(1).standard_normal((2, 6, 64))
    y, scale = quantized(x, E4M3, E8M0, 32, axis=2)
    turned, turned_scale = quantized(x, E4M3, E8M0, 32, axis=2, transpose=True)
    assert np.array_equal(turned, y) and np.array_equal(turned_scale, scale)  # strides alone
    _, padded = quantized(x, E4M3, E8M0, 32, axis=2, scale_dim=(2, 128, 4))
    assert padded.shape == (2, 128, 4) and np.array_equal(padded[:, :6, :2], scale)
    back = apply("block_scale_dequantize", {"input": y, "descale": padded}, block_size=[1, 32])
    want = apply("block_scale_dequantize", {"input": y, "descale": scale}, block_size=[1, 32])
    assert np.array_equal(back["OUT_0"], want["OUT_0"])


@pytest.mark.parametrize("sizes", [[1, 32], [32, 1], [16, 16], [1, 1, 32]])
def test_dequantize_multiplies_every_block_by_its_scale(sizes: list[int]) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 40, 64))
    blocks = [1] * (3 - len(sizes)) + sizes
    scale = rng.standard_normal([-(-n // b) for n, b in zip(x.shape, blocks, strict=True)])
    got = apply("block_scale_dequantize", {"input": x, "descale": scale}, block_size=sizes)["OUT_0"]
    for index in np.ndindex(x.shape):
        at = tuple(i // b for i, b in zip(index, blocks, strict=True))
        assert got[index] == x[index] * scale[at]


def test_groups_must_not_cut_blocks_that_run_along_rows() -> None:
    x = np.ones((1, 64, 8))
    quantized(x, E4M3, E8M0, 32, axis=-1, group_offset=[0, 5])
    quantized(x, E4M3, E8M0, 32, axis=-2, group_offset=[0, 32, 64])
    with pytest.raises(
        InvalidGraphError, match=r"group_offset: got \[0, 5\], want multiples of 32"
    ):
        quantized(x, E4M3, E8M0, 32, axis=-2, group_offset=[0, 5])


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="block_size: got None, want at least 1"):
        quantized(np.ones((1, 2)), E4M3, E8M0, None)
    with pytest.raises(InvalidGraphError, match="outputs Y and scale have no data type"):
        apply("block_scale_quantize", {"input": np.ones((1, 2))}, block_size=2)
    with pytest.raises(InvalidGraphError, match="descale axis 1: got 2, want 3 blocks"):
        apply(
            "block_scale_dequantize",
            {"input": np.ones((1, 80)), "descale": np.ones((1, 2))},
            block_size=[1, 32],
        )
