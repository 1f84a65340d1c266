import enum

import numpy as np
import pytest

from cudnn_aot.compiler.graph.dtypes import DTYPES, as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference import storage
from cudnn_aot.errors import InvalidGraphError


class FrontendEnum(enum.Enum):
    """Stands for the enum of another library with the same names."""

    BFLOAT16 = "anything"


class TorchDtype:
    """Prints as torch's dtypes do."""

    def __init__(self, name):
        self.text = f"torch.{name}"

    def __repr__(self):
        return self.text


def test_integers_are_those_of_the_cudnn_frontend():
    assert {member.name: int(member) for member in data_type} == {
        "NOT_SET": 0,
        "FLOAT": 1,
        "DOUBLE": 2,
        "HALF": 3,
        "INT8": 4,
        "INT32": 5,
        "INT8x4": 6,
        "UINT8": 7,
        "UINT8x4": 8,
        "INT8x32": 9,
        "BFLOAT16": 10,
        "INT64": 11,
        "BOOLEAN": 12,
        "FP8_E4M3": 14,
        "FP8_E5M2": 15,
        "FAST_FLOAT_FOR_FP8": 16,
        "FP8_E8M0": 17,
        "FP8_E5M3": 18,
        "FP4_E2M1": 19,
        "INT4": 20,
    }


def test_every_type_has_facts():
    assert set(DTYPES) == set(data_type) - {data_type.NOT_SET}
    for row in DTYPES.values():
        assert row.dlpack is None or row.dlpack[1] == row.bits
        assert row.is_float == (row.significand_bits > 0)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (data_type.HALF, data_type.HALF),
        ("BFLOAT16", data_type.BFLOAT16),
        (FrontendEnum.BFLOAT16, data_type.BFLOAT16),
        (np.float16, data_type.HALF),
        (np.dtype("float32"), data_type.FLOAT),
        (np.dtype("bool"), data_type.BOOLEAN),
        (TorchDtype("bfloat16"), data_type.BFLOAT16),
        (TorchDtype("float8_e4m3fn"), data_type.FP8_E4M3),
        (TorchDtype("int64"), data_type.INT64),
        (None, None),
        (data_type.NOT_SET, None),
    ],
    ids=repr,
)
def test_what_means_a_data_type(given, wanted):
    assert as_data_type(given) is wanted


@pytest.mark.parametrize(
    "given", ["bf16x", 3, np.complex64, object()], ids=["word", "number", "complex", "object"]
)
def test_anything_else_is_refused_with_the_choices(given):
    with pytest.raises(InvalidGraphError, match="bad data_type: got .*, want one of FLOAT, DOUBLE"):
        as_data_type(given)


FLOATS = [dtype for dtype, row in DTYPES.items() if row.is_float]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_nearest_number_is_the_one_that_the_references_round_to(dtype):
    row, rng = DTYPES[dtype], np.random.default_rng(0)
    assert row.largest == storage.largest(dtype)
    wide = rng.choice([-1, 1], 2000) * 10.0 ** rng.uniform(-50, 40, 2000)
    values = [*wide.tolist(), *rng.uniform(-10, 10, 500).tolist(), -0.0, 2.5, 0.75, row.largest]
    rounded = np.asarray(storage.round_to(values, dtype), np.float64).tolist()
    for value, want in zip(values, rounded, strict=True):
        got = row.nearest(value)
        if row.least <= value <= row.largest:
            assert (got, str(got)) == (want, str(want)), value  # the sign of a 0 too
        elif got is not None:  # it rounds to the last one inside
            assert got in (row.least, row.largest), value
    assert row.nearest(1e300) == (1e300 if dtype is data_type.DOUBLE else None)
